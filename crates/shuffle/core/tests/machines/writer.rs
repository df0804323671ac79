//! What is pushed when, and what a receipt says.

use std::sync::Arc;
use std::time::Duration;

use treadle_shuffle::{
    Answer, Config, FromServer, Gathered, Generation, GroupId, Intake, MasterEvent, Plan, Refusal,
    ServerId, Spec, Standing, ToMaster, ToNode, ToServer, Transfer, TransferError, Writer,
    WriterEffect, WriterEvent,
};
use treadle_types::Runs;

use crate::support::{Head, Pusher, S, server_id, spec, transfer};

const T: fn() -> Transfer = || transfer(0, 10);

fn begin(pusher: &mut Pusher, plan: &Arc<Plan>, again: bool) -> Vec<WriterEffect> {
    begin_that(pusher, plan, (again, true))
}

fn begin_that(
    pusher: &mut Pusher,
    plan: &Arc<Plan>,
    (again, replaces): (bool, bool),
) -> Vec<WriterEffect> {
    let transfer = T();
    let effects = pusher.event(WriterEvent::Begin {
        transfer,
        again,
        replaces,
    });
    assert_eq!(effects, [WriterEffect::Report(ToMaster::Join(S))]);
    pusher.event(WriterEvent::Master(ToNode::Plan(plan.clone())))
}

fn pushes(effects: &[WriterEffect]) -> Vec<(u32, u32)> {
    let pushes = effects.iter().filter_map(|effect| match effect {
        WriterEffect::Send {
            to,
            message: ToServer::Push(push),
        } => Some((to.node, push.batch.number)),
        _ => None,
    });
    pushes.collect()
}

fn acked(group: GroupId, number: u32) -> WriterEvent {
    let message = FromServer::Acked {
        shuffle: S,
        group,
        batch: T().batch(number),
    };
    let from = group.server;
    WriterEvent::Server { from, message }
}

fn refused(group: GroupId, number: u32, reason: Refusal) -> WriterEvent {
    let message = FromServer::Refused {
        shuffle: S,
        group,
        batch: T().batch(number),
        reason,
    };
    let from = group.server;
    WriterEvent::Server { from, message }
}

fn answered(group: GroupId, answer: Answer) -> WriterEvent {
    let message = FromServer::Answer {
        group,
        transfer: T(),
        answer,
    };
    let from = group.server;
    WriterEvent::Server { from, message }
}

/// Gathers for each group as many pieces as take several pushes. No copy has any of them yet.
fn gather_for_all(pusher: &mut Pusher, plan: &Plan) {
    let sizes: Vec<_> = (0..20).map(|_| (1, 100 << 10)).collect();
    for group in &plan.groups {
        pusher.gathered(T(), group.id, &sizes);
        for copy in group.copy_ids() {
            pusher.event(answered(copy, Answer::Missing));
        }
    }
}

fn done(effects: &[WriterEffect]) -> Option<Vec<(GroupId, u64, u64)>> {
    effects.iter().find_map(|effect| match effect {
        WriterEffect::Done(receipt) => {
            let shares = receipt.shares.iter();
            Some(
                shares
                    .map(|s| (s.group, s.holder.0, s.tally.rows))
                    .collect(),
            )
        }
        _ => None,
    })
}

#[test]
fn a_transfer_is_done_when_all_its_batches_are_there() {
    let plan = Head::new(3, spec(1, 3)).plan();
    let groups: Vec<GroupId> = plan.groups.iter().map(|group| group.id).collect();
    let mut pusher = Pusher::new(Config::default());
    let effects = begin(&mut pusher, &plan, false);
    assert_eq!(effects.len(), 3);
    let effects = pusher.gathered(T(), groups[0], &[(2, 100), (1, 50)]);
    assert_eq!(
        pushes(&effects),
        [(groups[0].server.node, 0), (groups[0].server.node, 1)]
    );
    pusher.gathered(T(), groups[1], &[(4, 100)]);
    pusher.gathered(T(), groups[2], &[]);
    assert_eq!(pusher.writer.in_flight(), 250);
    pusher.event(acked(groups[0], 1));
    // Said twice.
    pusher.event(acked(groups[0], 1));
    pusher.event(acked(groups[1], 0));
    let effects = pusher.event(acked(groups[0], 0));
    assert_eq!(
        done(&effects),
        Some(vec![(groups[0], 10, 3), (groups[1], 10, 4)])
    );
    // The master hears of it after the result was reported.
    assert!(matches!(
        effects.last(),
        Some(WriterEffect::Report(ToMaster::Transferred { groups, .. })) if groups.len() == 2
    ));
    assert!(pusher.writer.is_empty());
}

#[test]
fn no_more_is_under_way_than_the_windows_allow() {
    let plan = Head::new(2, spec(1, 2)).plan();
    let groups: Vec<GroupId> = plan.groups.iter().map(|group| group.id).collect();
    let config = Config {
        window: 250,
        server_window: 150,
        ..Config::default()
    };
    let mut pusher = Pusher::new(config);
    begin(&mut pusher, &plan, false);
    let first = pusher.gathered(T(), groups[0], &[(1, 100), (1, 100), (1, 900)]);
    assert_eq!(pushes(&first).len(), 1);
    let second = pusher.gathered(T(), groups[1], &[(1, 100), (1, 10)]);
    assert_eq!(pushes(&second).len(), 2);
    let third = pusher.event(acked(groups[0], 0));
    assert_eq!(pushes(&third).len(), 1);
    pusher.event(acked(groups[1], 0));
    pusher.event(acked(groups[1], 1));
    // What is larger than the window goes alone.
    let last = pusher.event(acked(groups[0], 1));
    assert_eq!(pushes(&last), [(groups[0].server.node, 2)]);
}

#[test]
fn a_broken_connection_brings_everything_again_after_a_pause() {
    let plan = Head::new(1, spec(1, 1)).plan();
    let group = plan.groups[0].id;
    let mut pusher = Pusher::new(Config::default());
    begin(&mut pusher, &plan, false);
    pusher.gathered(T(), group, &[(1, 100), (1, 100)]);
    pusher.event(acked(group, 0));
    let effects = pusher.event(WriterEvent::Disconnected(group.server));
    assert_eq!(effects, []);
    pusher.now = pusher.writer.next_deadline().expect("it is tried again");
    let effects = pusher.event(WriterEvent::Tick);
    assert_eq!(pushes(&effects), [(0, 1)]);
    for _ in 0..10_000 {
        pusher.event(WriterEvent::Disconnected(group.server));
        pusher.now = pusher.writer.next_deadline().expect("it is tried again");
        let effects = pusher.event(WriterEvent::Tick);
        if let Some(WriterEffect::Failed { error, .. }) = effects.last() {
            let transfer = T();
            let server = group.server;
            assert_eq!(*error, TransferError::Unreachable { transfer, server });
            assert!(pusher.now >= Config::default().patience);
            return assert!(pusher.writer.is_empty());
        }
    }
    panic!("it goes on for ever");
}

#[test]
fn a_new_plan_changes_only_what_was_lost() {
    let mut head = Head::new(2, spec(1, 4));
    let plan = head.plan();
    let (kept, lost) = (plan.groups[0].id, plan.groups[1].id);
    let mut pusher = Pusher::new(Config::default());
    begin(&mut pusher, &plan, false);
    pusher.gathered(T(), kept, &[(1, 100)]);
    pusher.gathered(T(), lost, &[(2, 100)]);
    pusher.event(acked(kept, 0));
    head.event(MasterEvent::Lost(lost.server));
    let effects = pusher.event(WriterEvent::Master(ToNode::Plan(head.plan())));
    let freed = WriterEffect::Free {
        transfer: T(),
        group: lost,
    };
    assert_eq!(effects[0], freed);
    let WriterEffect::Gather {
        group, partitions, ..
    } = &effects[1]
    else {
        panic!("{effects:?}");
    };
    assert_eq!(*partitions, plan.groups[1].partitions);
    // What the lost one says now changes nothing.
    assert_eq!(pusher.event(acked(lost, 0)), []);
    let group = *group;
    pusher.gathered(T(), group, &[(2, 100)]);
    let effects = pusher.event(acked(group, 0));
    assert_eq!(done(&effects), Some(vec![(kept, 10, 1), (group, 10, 2)]));
}

#[test]
fn a_group_that_goes_before_its_rows_are_gathered_is_freed_first() {
    let mut head = Head::new(3, spec(1, 6));
    let mut pusher = Pusher::new(Config::default());
    begin(&mut pusher, &head.plan(), false);
    let mut wanted: Vec<(GroupId, Runs)> = Vec::new();
    for node in [1, 2] {
        let plan = head.plan();
        let mut groups = plan.groups.iter().map(|group| group.id.server);
        let lost = groups.find(|server| server.node == node).unwrap();
        head.event(MasterEvent::Lost(lost));
        // The task gathers the first ones meanwhile, and takes all that is wanted afterwards at once.
        for effect in pusher.event(WriterEvent::Master(ToNode::Plan(head.plan()))) {
            match effect {
                WriterEffect::Free { group, .. } => wanted.retain(|(other, _)| *other != group),
                WriterEffect::Gather {
                    group, partitions, ..
                } => {
                    let mut others = wanted.iter();
                    let is_apart = others.all(|(_, other)| other.is_disjoint(&partitions));
                    assert!(is_apart, "{group:?} of {partitions:?}, and {wanted:?}");
                    wanted.push((group, partitions));
                }
                _ => {}
            }
        }
    }
    let plan = head.plan();
    assert!(wanted.len() >= 2);
    assert!(wanted.iter().all(|(group, _)| plan.group(*group).is_some()));
}

/// Partitions whose groups are all closed are not left out: they wait for the next plan.
#[test]
fn a_transfer_does_not_end_before_all_partitions_have_a_group() {
    let plan = Head::new(2, spec(1, 4)).plan();
    let mut closed = (*plan).clone();
    closed.groups[1].is_open = false;
    let mut writer = Writer::new(Config::default());
    let mut effects = Vec::new();
    let mut tell = |event| {
        effects.clear();
        writer
            .handle(event, Duration::ZERO, &mut effects)
            .expect("the event can be");
        effects.clone()
    };
    let transfer = T();
    tell(WriterEvent::Master(ToNode::Plan(closed.into())));
    tell(WriterEvent::Begin {
        transfer,
        again: false,
        replaces: true,
    });
    let gathered = |group| WriterEvent::Gathered {
        transfer,
        group,
        gathered: Gathered::default(),
    };
    assert_eq!(done(&tell(gathered(plan.groups[0].id))), None);
    tell(WriterEvent::Master(ToNode::Plan(plan.clone())));
    let effects = tell(gathered(plan.groups[1].id));
    assert_eq!(done(&effects), Some(Vec::new()));
}

#[test]
fn who_runs_again_asks_and_pushes_only_what_is_missing() {
    let plan = Head::new(2, spec(1, 2)).plan();
    let groups: Vec<GroupId> = plan.groups.iter().map(|group| group.id).collect();
    let mut pusher = Pusher::new(Config::default());
    begin(&mut pusher, &plan, true);
    for &group in &groups {
        let effects = pusher.gathered(T(), group, &[(1, 100)]);
        assert_eq!(pushes(&effects), []);
    }
    pusher.event(answered(groups[0], Answer::Have(transfer(0, 3).attempt)));
    let effects = pusher.event(answered(groups[1], Answer::Missing));
    assert_eq!(pushes(&effects), [(groups[1].server.node, 0)]);
    let effects = pusher.event(acked(groups[1], 0));
    assert_eq!(
        done(&effects),
        Some(vec![(groups[0], 3, 1), (groups[1], 10, 1)])
    );
}

#[test]
fn what_differs_is_told_and_waits() {
    let plan = Head::new(1, spec(1, 2)).plan();
    let group = plan.groups[0].id;
    let mut pusher = Pusher::new(Config::default());
    begin(&mut pusher, &plan, false);
    pusher.gathered(T(), group, &[(1, 100)]);
    let effects = pusher.event(refused(group, 0, Refusal::Sealed));
    assert!(matches!(
        effects[..],
        [WriterEffect::Send {
            message: ToServer::Ask(_),
            ..
        }]
    ));
    let effects = pusher.event(answered(group, Answer::Differs));
    let differs = ToMaster::Differs {
        shuffle: S,
        group,
        map: Some(0),
        is_late: false,
    };
    assert_eq!(effects, [WriterEffect::Report(differs)]);
    let mut next = (*plan).clone();
    next.generation = Generation(2);
    next.groups[0].id.epoch = Generation(2);
    let effects = pusher.event(WriterEvent::Master(ToNode::Plan(next.into())));
    assert!(matches!(
        effects[..],
        [WriterEffect::Free { .. }, WriterEffect::Gather { .. }]
    ));
}

#[test]
fn a_late_attempt_with_other_rows_fails_by_name_as_soon_as_others_are_committed() {
    let head = Head::new(1, spec(1, 4));
    let plan = head.plan();
    let group = plan.groups[0].id;
    for replaces in [false, true] {
        let mut pusher = Pusher::new(Config::default());
        begin_that(&mut pusher, &plan, (false, replaces));
        pusher.gathered(T(), group, &[(1, 100)]);
        pusher.event(refused(group, 0, Refusal::Sealed));
        let differs = ToMaster::Differs {
            shuffle: S,
            group,
            map: Some(0),
            is_late: !replaces,
        };
        let effects = pusher.event(answered(group, Answer::Differs));
        assert_eq!(effects, [WriterEffect::Report(differs)]);
        let mut last = (*plan).clone();
        last.is_final = true;
        let effects = pusher.event(WriterEvent::Master(ToNode::Plan(last.into())));
        let error = TransferError::Late(T());
        let failed = WriterEffect::Failed {
            transfer: T(),
            error,
        };
        assert_eq!(effects.contains(&failed), !replaces, "{effects:?}");
        assert_eq!(pusher.writer.is_empty(), !replaces);
    }
}

#[test]
fn a_refusal_is_waited_out_asked_about_or_fatal() {
    let plan = Head::new(1, spec(1, 2)).plan();
    let group = plan.groups[0].id;
    let stranger = ServerId {
        node: 0,
        incarnation: 2,
    };
    for reason in [Refusal::Stale(Generation(2)), Refusal::Stranger(stranger)] {
        let mut pusher = Pusher::new(Config::default());
        begin(&mut pusher, &plan, false);
        pusher.gathered(T(), group, &[(1, 100)]);
        let effects = pusher.event(refused(group, 0, reason));
        assert_eq!(effects, [WriterEffect::Report(ToMaster::Join(S))]);
        let effects = pusher.event(WriterEvent::Master(ToNode::Plan(plan.clone())));
        assert_eq!(pushes(&effects), [(0, 0)], "it is still so");
    }
    for reason in [Refusal::Busy, Refusal::Unknown] {
        let mut pusher = Pusher::new(Config::default());
        begin(&mut pusher, &plan, false);
        pusher.gathered(T(), group, &[(1, 100)]);
        let effects = pusher.event(refused(group, 0, reason));
        assert_eq!(pushes(&effects), []);
        pusher.now = pusher.writer.next_deadline().expect("it is tried again");
        assert_eq!(pushes(&pusher.event(WriterEvent::Tick)), [(0, 0)]);
    }
    // Not before the server said.
    let pause = Duration::from_secs(1);
    let mut pusher = Pusher::new(Config::default());
    begin(&mut pusher, &plan, false);
    pusher.gathered(T(), group, &[(1, 100)]);
    let effects = pusher.event(refused(group, 0, Refusal::Sleep(pause)));
    assert_eq!(pushes(&effects), []);
    let end = pusher.now + pause;
    assert_eq!(pusher.writer.next_deadline(), Some(end));
    pusher.now = end - Duration::from_millis(1);
    assert_eq!(pushes(&pusher.event(WriterEvent::Tick)), []);
    pusher.now = end;
    assert_eq!(pushes(&pusher.event(WriterEvent::Tick)), [(0, 0)]);
    let (transfer, server) = (T(), server_id(0));
    let fatal = [
        (
            Refusal::NoRoom("full".into()),
            TransferError::NoRoom {
                transfer,
                server,
                reason: "full".into(),
            },
        ),
        (
            Refusal::Malformed,
            TransferError::Malformed { transfer, server },
        ),
    ];
    for (reason, error) in fatal {
        let mut pusher = Pusher::new(Config::default());
        begin(&mut pusher, &plan, false);
        pusher.gathered(transfer, group, &[(1, 100)]);
        // A bit may flip on its way: such a batch is sent again a few times.
        let resends = if reason == Refusal::Malformed { 3 } else { 0 };
        for _ in 0..resends {
            let effects = pusher.event(refused(group, 0, reason.clone()));
            assert_eq!(effects, []);
            pusher.now = pusher.writer.next_deadline().expect("it is tried again");
            assert_eq!(pushes(&pusher.event(WriterEvent::Tick)), [(0, 0)]);
        }
        let effects = pusher.event(refused(group, 0, reason));
        assert_eq!(
            effects.last(),
            Some(&WriterEffect::Failed { transfer, error })
        );
        let abandon = WriterEffect::Send {
            to: server,
            message: ToServer::Abandon { group, transfer },
        };
        assert!(effects.contains(&abandon));
    }
}

#[test]
fn the_end_of_a_shuffle_ends_its_transfers() {
    let plan = Head::new(1, spec(1, 2)).plan();
    let mut pusher = Pusher::new(Config::default());
    begin(&mut pusher, &plan, false);
    let effects = pusher.event(WriterEvent::Master(ToNode::Close(S)));
    let transfer = T();
    let error = TransferError::Ended(S);
    let group = plan.groups[0].id;
    let freed = WriterEffect::Free { transfer, group };
    let failed = WriterEffect::Failed { transfer, error };
    assert_eq!(effects, [freed, failed]);
    // What was being gathered then is freed when it is there.
    let effects = pusher.gathered(transfer, group, &[(1, 100)]);
    assert_eq!(effects, [WriterEffect::Free { transfer, group }]);
}

#[test]
fn a_server_that_answers_much_more_slowly_than_others_is_told_and_pushed_to_until_the_plan_changes()
{
    let copies = Spec {
        copies: 2,
        ..spec(1, 4)
    };
    let mut head = Head::new(4, copies);
    head.hear(0, ToMaster::Join(S));
    let plan = head.plan();
    let slow = plan.groups[0].copies[1];
    let group = plan.groups[0].id;
    let mut pusher = Pusher::new(Config::default());
    begin(&mut pusher, &plan, false);
    gather_for_all(&mut pusher, &plan);
    let told = |effects: &[WriterEffect]| {
        let mut effects = effects.iter();
        effects.any(|effect| {
            matches!(effect, WriterEffect::Report(ToMaster::Slow { server, .. }) if *server == slow)
        })
    };
    let mut effects = Vec::new();
    for number in 0..20 {
        pusher.now += Duration::from_millis(5);
        for group in &plan.groups {
            for copy in group.copy_ids().filter(|copy| copy.server != slow) {
                effects.extend(pusher.event(acked(copy, number)));
            }
        }
    }
    assert!(!told(&effects), "nothing was late yet");
    // It answers nothing.
    let since = pusher.now;
    while !told(&effects) {
        pusher.now = pusher.writer.next_deadline().expect("it is looked at");
        effects = pusher.event(WriterEvent::Tick);
        assert!(pusher.now < since + 2 * Config::default().lag);
    }
    // Its acknowledgements count as before, as long as it has not been replaced.
    assert!(!pusher.writer.is_empty());
    for number in 0..20 {
        pusher.event(acked(group.at(slow), number));
    }
    head.hear(
        0,
        ToMaster::Slow {
            shuffle: S,
            server: slow,
            times: 10,
        },
    );
    let plan_now = ToNode::Plan(head.plan());
    let effects = pusher.event(WriterEvent::Master(plan_now));
    let gathered: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            WriterEffect::Gather { group, .. } => Some(*group),
            _ => None,
        })
        .collect();
    // What was pushed whole to that group stays, and what was not goes elsewhere.
    assert_eq!(gathered.len(), 1);
    let next = head.plan();
    let next = next.group(gathered[0]).expect("it is planned");
    assert!(!next.copies.contains(&slow) && next.partitions != plan.groups[0].partitions);
}

#[test]
fn a_server_with_a_low_share_that_answers_nothing_any_more_is_avoided_before_it_is_poisoned() {
    let spec = Spec {
        copies: 2,
        ..spec(1, 240)
    };
    let mut head = Head::new(4, spec.clone());
    let slow = server_id(3);
    for (node, rate) in (0..).zip([1_000, 1_000, 1_000, 100]) {
        let (domain, weight, store) = (node, 1, 0);
        let intake = Intake { rate, age: 0 };
        let standing = Standing {
            domain,
            weight,
            intake,
            store,
        };
        let server = server_id(node);
        head.event(MasterEvent::Standing { server, standing });
    }
    // It begins when that is known.
    head.event(MasterEvent::End(S));
    let shuffle = S;
    head.event(MasterEvent::Register { shuffle, spec });
    head.hear(0, ToMaster::Join(S));
    let plan = head.plan();
    let is_at_it = |plan: &Plan| {
        let mut open = plan.groups.iter().filter(|group| group.is_open);
        open.any(|group| group.copies.contains(&slow))
    };
    assert!(is_at_it(&plan));
    let mut pusher = Pusher::new(Config::default());
    begin(&mut pusher, &plan, false);
    gather_for_all(&mut pusher, &plan);
    // Others take 5 ms for a push, and this one 50 ms, as its share says.
    let (lag, mut said) = (Config::default().lag, 0);
    let mut report = |effects: Vec<WriterEffect>, head: &mut Head| {
        for effect in effects {
            if let WriterEffect::Report(message @ ToMaster::Slow { .. }) = effect {
                said += 1;
                head.hear(0, message);
            }
        }
        said
    };
    for number in 0..20 {
        pusher.now += Duration::from_millis(5);
        for group in &plan.groups {
            for copy in group.copy_ids() {
                let number = match copy.server == slow {
                    true if number % 10 == 9 => number / 10,
                    true => continue,
                    false => number,
                };
                let effects = pusher.event(acked(copy, number));
                report(effects, &mut head);
            }
        }
    }
    assert!(is_at_it(&head.plan()));
    // It answers nothing.
    let since = pusher.now;
    while is_at_it(&head.plan()) {
        pusher.now = pusher.writer.next_deadline().expect("it is looked at");
        let effects = pusher.event(WriterEvent::Tick);
        report(effects, &mut head);
        assert!(
            pusher.now < since + 3 * lag,
            "after {:?}",
            pusher.now - since
        );
    }
}
