//! Taking batches in, sealing, memory and files, reading.

use std::time::Duration;

use treadle_shuffle::{
    Answer, Ask, Config, ConnectionId, Expected, Fetch, FromServer, Generation, GroupId, MapRange,
    Place, Plan, ReadPiece, Refusal, Remote, Seal, Sent, ServerEffect, ServerEvent, ServerId,
    Storage, ToMaster, ToNode, ToSend, ToServer, Transfer, Verdict,
};

use crate::support::{C, Head, Holder, S, answer, batch, report, server_id, spec, transfer};

/// A server with all four partitions of a shuffle of three maps.
pub(crate) fn holder() -> (Holder, std::sync::Arc<Plan>) {
    let plan = Head::new(1, spec(3, 4)).plan();
    let mut holder = Holder::new(0, Config::default());
    holder.told(ToNode::Plan(plan.clone()));
    (holder, plan)
}

pub(crate) fn refused(answer: Option<FromServer>) -> Option<Refusal> {
    match answer {
        Some(FromServer::Refused { reason, .. } | FromServer::Unread { reason, .. }) => {
            Some(reason)
        }
        _ => None,
    }
}

pub(crate) fn is_acked(answer: Option<FromServer>) -> bool {
    matches!(answer, Some(FromServer::Acked { .. }))
}

pub(crate) fn seal(holder: &mut Holder, plan: &Plan, winners: &[(Transfer, u64)]) -> Verdict {
    seal_as(holder, plan, winners, 0)
}

/// With so many rows too many in the receipts.
fn seal_as(holder: &mut Holder, plan: &Plan, winners: &[(Transfer, u64)], more: u64) -> Verdict {
    let mut expected = Expected::default();
    for &(transfer, rows) in winners {
        expected.winners.push(transfer.map, transfer.attempt);
        let (push, _) = batch(transfer, plan.groups[0].id, 0, &[(1, rows)]);
        expected.tally.add(&push.tally);
    }
    expected.tally.rows += more;
    compare(holder, plan, expected)
}

pub(crate) fn compare(holder: &mut Holder, plan: &Plan, expected: Expected) -> Verdict {
    let seal = Seal {
        shuffle: S,
        generation: plan.generation,
        group: plan.groups[0].id,
        round: 1,
        expected,
    };
    let effects = holder.told(ToNode::Seal(seal));
    let verdicts = effects.iter().find_map(|effect| match effect {
        ServerEffect::Report {
            message: ToMaster::Sealed { verdict, .. },
            ..
        } => Some(*verdict),
        _ => None,
    });
    verdicts.expect("it was compared")
}

pub(crate) fn fetch(plan: &Plan, partition: u32) -> ToServer {
    ToServer::Fetch(Fetch {
        read: 5,
        shuffle: S,
        generation: plan.generation,
        group: plan.groups[0].id,
        partition,
        maps: None,
        reader: None,
    })
}

/// What is sent: maps, rows and places.
fn sent(effects: &[ServerEffect]) -> Option<Vec<(u32, u64, Place)>> {
    effects.iter().find_map(|effect| match effect {
        ServerEffect::Send(ToSend { pieces, .. }) => {
            let piece = |sent: &Sent| (sent.piece.batch.map, sent.piece.rows, sent.place);
            Some(pieces.iter().map(piece).collect())
        }
        _ => None,
    })
}

#[test]
fn a_batch_that_comes_again_changes_nothing() {
    let (mut holder, plan) = holder();
    let group = plan.groups[0].id;
    let one = batch(transfer(0, 10), group, 0, &[(1, 3)]);
    assert!(is_acked(holder.push(one.clone())));
    let resident = holder.server.resident();
    assert!(is_acked(holder.push(one.clone())));
    assert_eq!(
        (holder.server.resident(), holder.store.len()),
        (resident, 1)
    );
    // Both were let in before either was there.
    let two = batch(transfer(0, 10), group, 1, &[(1, 3)]);
    let other = ConnectionId(2);
    for from in [C, other] {
        let message = ToServer::Push(two.0);
        holder.event(ServerEvent::Message { from, message });
    }
    assert!(is_acked(holder.arrive(two.0, Some(two.1.clone()))));
    let effects = holder.event(ServerEvent::Arrived {
        from: other,
        push: two.0,
        table: Some(two.1),
    });
    assert!(is_acked(answer(&effects)));
    assert_eq!(holder.store.len(), 2);
}

#[test]
fn what_was_meant_for_others_is_refused() {
    let (mut holder, plan) = holder();
    let before = GroupId {
        epoch: Generation(0),
        ..plan.groups[0].id
    };
    let stale = holder.push(batch(transfer(0, 10), before, 0, &[(1, 3)]));
    assert_eq!(refused(stale), Some(Refusal::Stale(Generation(1))));
    let other = GroupId {
        server: ServerId {
            node: 0,
            incarnation: 2,
        },
        ..plan.groups[0].id
    };
    let stranger = holder.push(batch(transfer(0, 10), other, 0, &[(1, 3)]));
    assert_eq!(refused(stranger), Some(Refusal::Stranger(server_id(0))));
    // Bytes that are no batch; one for a partition that is not of the group.
    let (push, _) = batch(transfer(0, 10), plan.groups[0].id, 0, &[(1, 3)]);
    holder.message(ToServer::Push(push));
    let malformed = holder.arrive(push, None);
    assert_eq!(refused(malformed), Some(Refusal::Malformed));
    let beyond = holder.push(batch(transfer(0, 10), plan.groups[0].id, 0, &[(4, 3)]));
    assert_eq!(refused(beyond), Some(Refusal::Malformed));
    assert_eq!(holder.server.resident(), 0);
}

#[test]
fn a_push_that_is_ahead_of_the_plan_waits_for_it() {
    let (mut holder, plan) = holder();
    let mut next = (*plan).clone();
    next.generation = Generation(2);
    next.groups[0].id.epoch = Generation(2);
    let group = next.groups[0].id;
    let ahead = batch(transfer(0, 10), group, 0, &[(1, 3)]);
    assert_eq!(holder.push(ahead.clone()), None);
    let effects = holder.told(ToNode::Plan(next.into()));
    let admit = ServerEffect::Admit {
        from: C,
        push: ahead.0,
    };
    assert!(effects.contains(&admit));
    assert!(is_acked(holder.arrive(ahead.0, Some(ahead.1))));
}

#[test]
fn a_shuffle_that_nobody_knows_is_asked_for_and_then_refused() {
    let mut holder = Holder::new(0, Config::default());
    let plan = Head::new(1, spec(3, 4)).plan();
    let group = plan.groups[0].id;
    let effects = holder.message(ToServer::Push(
        batch(transfer(0, 10), group, 0, &[(1, 3)]).0,
    ));
    assert_eq!(effects, [report(ToMaster::Join(S))]);
    holder.now = holder.server.next_deadline().expect("it waits");
    let effects = holder.event(ServerEvent::Tick);
    assert_eq!(refused(answer(&effects)), Some(Refusal::Unknown));
    assert!(holder.server.is_empty());
    holder.message(ToServer::Push(
        batch(transfer(0, 10), group, 0, &[(1, 3)]).0,
    ));
    let effects = holder.told(ToNode::Close(S));
    assert_eq!(refused(answer(&effects)), Some(Refusal::Unknown));
    assert!(holder.server.is_empty());
}

#[test]
fn only_winners_are_kept_and_read_in_the_order_of_the_inputs() {
    let (mut holder, plan) = holder();
    let group = plan.groups[0].id;
    let attempts = [(2, 30, 4), (0, 11, 3), (0, 10, 2), (1, 20, 1)];
    for (map, attempt, rows) in attempts {
        let pushed = batch(transfer(map, attempt), group, 0, &[(1, rows)]);
        assert!(is_acked(holder.push(pushed)));
    }
    let unsealed = holder.message(fetch(&plan, 1));
    assert_eq!(refused(answer(&unsealed)), Some(Refusal::Unsealed));
    let winners = [
        (transfer(0, 10), 2),
        (transfer(1, 20), 1),
        (transfer(2, 30), 4),
    ];
    assert_eq!(seal(&mut holder, &plan, &winners), Verdict::Complete);
    assert_eq!(holder.store.len(), 3);
    let effects = holder.message(fetch(&plan, 1));
    let expected = [(0, 2), (1, 1), (2, 4)].map(|(map, rows)| (map, rows, Place::Memory));
    assert_eq!(sent(&effects), Some(expected.to_vec()));
    assert_eq!(sent(&holder.message(fetch(&plan, 0))), Some(vec![]));
    // A loser that comes late, and a winner that comes again.
    let late = holder.push(batch(transfer(0, 11), group, 0, &[(1, 3)]));
    assert_eq!(refused(late), Some(Refusal::Sealed));
    assert!(is_acked(holder.push(batch(
        transfer(0, 10),
        group,
        0,
        &[(1, 2)]
    ))));
    // The same barrier again, and another one.
    assert_eq!(seal(&mut holder, &plan, &winners), Verdict::Complete);
    assert_eq!(seal(&mut holder, &plan, &winners[1..]), Verdict::Differs);
}

#[test]
fn what_is_missing_is_named() {
    let (mut holder, plan) = holder();
    let group = plan.groups[0].id;
    holder.push(batch(transfer(0, 10), group, 0, &[(1, 2)]));
    let winners = [(transfer(0, 10), 2), (transfer(1, 20), 1)];
    let verdict = seal(&mut holder, &plan, &winners);
    assert!(matches!(
        verdict,
        Verdict::Short { found, missing: Some(1) } if found.rows == 2
    ));
    let verdict = seal_as(&mut holder, &plan, &winners[..1], 1);
    assert!(matches!(verdict, Verdict::Short { missing: None, .. }));
}

#[test]
fn a_transfer_that_runs_again_finds_its_rows() {
    let (mut holder, plan) = holder();
    let group = plan.groups[0].id;
    let (push, table) = batch(transfer(0, 10), group, 0, &[(1, 2), (3, 5)]);
    holder.push((push, table));
    let ask = |holder: &mut Holder, attempt, more| {
        let mut tally = push.tally;
        tally.rows += more;
        let ask = Ask {
            group,
            transfer: transfer(0, attempt),
            tally,
        };
        match answer(&holder.message(ToServer::Ask(ask))) {
            Some(FromServer::Answer { answer, .. }) => answer,
            other => panic!("{other:?}"),
        }
    };
    let have = Answer::Have(transfer(0, 10).attempt);
    assert_eq!(ask(&mut holder, 12, 1), Answer::Missing);
    assert_eq!(ask(&mut holder, 12, 0), have);
    // Somebody relies on it now.
    let transfer = transfer(0, 10);
    holder.message(ToServer::Abandon { group, transfer });
    assert_eq!(holder.store.len(), 1);
    let expected = Expected {
        winners: [(0, transfer.attempt)].into_iter().collect(),
        tally: push.tally,
    };
    let seal = Seal {
        shuffle: S,
        generation: plan.generation,
        group,
        round: 1,
        expected,
    };
    holder.told(ToNode::Seal(seal));
    assert_eq!(ask(&mut holder, 13, 0), have);
    assert_eq!(ask(&mut holder, 13, 1), Answer::Differs);
}

#[test]
fn an_abandoned_transfer_leaves_nothing() {
    let (mut holder, plan) = holder();
    let group = plan.groups[0].id;
    holder.push(batch(transfer(0, 10), group, 0, &[(1, 2)]));
    let transfer = transfer(0, 10);
    holder.message(ToServer::Abandon { group, transfer });
    assert_eq!((holder.store.len(), holder.server.resident()), (0, 0));
}

#[test]
fn nobody_abandons_the_transfer_of_another_process() {
    let (mut holder, plan) = holder();
    let group = plan.groups[0].id;
    let transfer = transfer(0, 10);
    let [first, second] = [0, 1].map(|number| batch(transfer, group, number, &[(1, 2)]));
    holder.push(first);
    holder.message(ToServer::Push(second.0));
    let message = ToServer::Abandon { group, transfer };
    let from = ConnectionId(2);
    holder.event(ServerEvent::Message { from, message });
    // Also what is on its way comes.
    assert!(is_acked(holder.arrive(second.0, Some(second.1))));
    assert_eq!(holder.store.len(), 2);
}

#[test]
fn what_is_on_its_way_of_an_abandoned_transfer_is_not_kept() {
    let (mut holder, plan) = holder();
    let group = plan.groups[0].id;
    let abandoned = transfer(0, 10);
    let other = batch(transfer(1, 20), group, 0, &[(1, 2)]);
    let [first, second] = [0, 1].map(|number| batch(abandoned, group, number, &[(1, 2)]));
    for push in [first.0, other.0] {
        holder.message(ToServer::Push(push));
    }
    holder.message(ToServer::Abandon {
        group,
        transfer: abandoned,
    });
    assert_eq!(holder.arrive(first.0, Some(first.1.clone())), None);
    assert!(is_acked(holder.arrive(other.0, Some(other.1))));
    assert_eq!(holder.store.len(), 1);
    // One that is announced after that is wanted, also under the same name.
    assert!(is_acked(holder.push(second)));
    assert!(is_acked(holder.push(first)));
    assert_eq!(holder.store.len(), 3);
}

/// Four batches of one row each for partition 1, and memory for two.
fn crowded() -> (Holder, std::sync::Arc<Plan>, u64) {
    let (mut holder, plan) = holder();
    let group = plan.groups[0].id;
    let (first, _) = batch(transfer(0, 10), group, 0, &[(1, 1)]);
    holder.event(ServerEvent::Budget {
        target: 2 * first.length,
        limit: 3 * first.length,
    });
    (holder, plan, first.length)
}

pub(crate) fn spilled(effects: &[ServerEffect]) -> Option<(u64, usize)> {
    effects.iter().find_map(|effect| match effect {
        ServerEffect::Spill { run, batches, .. } => Some((*run, batches.len())),
        _ => None,
    })
}

#[test]
fn beyond_the_target_rows_go_to_files_and_come_back() {
    let (mut holder, plan, length) = crowded();
    let group = plan.groups[0].id;
    let maps = [transfer(2, 30), transfer(1, 20), transfer(0, 10)];
    for map in maps {
        assert!(is_acked(holder.push(batch(map, group, 0, &[(1, 1)]))));
    }
    let run = spilled(&holder.effects).expect("there is too much");
    assert_eq!(run, (0, 3));
    let late = batch(transfer(0, 11), group, 0, &[(1, 1)]);
    assert_eq!(holder.push(late.clone()), None, "there is no room");
    let written = ServerEvent::Spilled {
        run: 0,
        written: Ok(()),
    };
    let effects = holder.event(written);
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, ServerEffect::Admit { .. }))
    );
    assert!(is_acked(holder.arrive(late.0, Some(late.1))));
    assert_eq!(holder.server.resident(), length);
    let winners: Vec<_> = maps.iter().rev().map(|&map| (map, 1)).collect();
    assert_eq!(seal(&mut holder, &plan, &winners), Verdict::Complete);
    assert_eq!(holder.server.resident(), 0, "what did not win is gone");
    let effects = holder.message(fetch(&plan, 1));
    let load = ServerEffect::Load {
        load: 0,
        run: 0,
        partition: 1,
        maps: None,
        tenant: treadle_shuffle::Tenant::default(),
    };
    assert_eq!(effects, [load]);
    let loaded: Vec<ReadPiece> = maps
        .iter()
        .map(|&map| {
            let (push, table) = batch(map, group, 0, &[(1, 1)]);
            ReadPiece::new(push.batch, &table.find(1).expect("it is there"))
        })
        .collect();
    let effects = holder.event(ServerEvent::Loaded {
        load: 0,
        run: 0,
        pieces: Some(loaded.clone()),
    });
    let expected = [0, 1, 2].map(|map| (map, 1, Place::Run(0)));
    assert_eq!(sent(&effects), Some(expected.to_vec()));
    // A file that cannot be read, and one that has lost rows.
    for pieces in [None, Some(loaded[1..].to_vec())] {
        let effects = holder.message(fetch(&plan, 1));
        let ServerEffect::Load { load, run, .. } = effects[0] else {
            panic!("{effects:?}");
        };
        let effects = holder.event(ServerEvent::Loaded { load, run, pieces });
        assert_eq!(refused(answer(&effects)), Some(Refusal::Damaged));
        let damaged = ToMaster::Damaged { shuffle: S, group };
        assert!(effects.contains(&report(damaged)));
    }
    let effects = holder.told(ToNode::Close(S));
    assert!(effects.contains(&ServerEffect::DropRun(0)));
    assert!(holder.server.is_empty() && holder.store.is_empty());
}

#[test]
fn a_push_that_is_announced_again_waits_once() {
    let (mut holder, plan, _) = crowded();
    let group = plan.groups[0].id;
    for map in [2, 1, 0] {
        assert!(is_acked(holder.push(batch(
            run_of(map),
            group,
            0,
            &[(1, 1)]
        ))));
    }
    let late = batch(transfer(0, 11), group, 0, &[(1, 1)]);
    for _ in 0..2 {
        // Only the latest announcement can bring the bytes.
        assert_eq!(holder.push(late.clone()), None, "there is no room");
    }
    let written = ServerEvent::Spilled {
        run: 0,
        written: Ok(()),
    };
    let effects = holder.event(written);
    let is_admit = |effect: &&ServerEffect| matches!(effect, ServerEffect::Admit { .. });
    assert_eq!(effects.iter().filter(is_admit).count(), 1);
    assert!(is_acked(holder.arrive(late.0, Some(late.1))));
}

#[test]
fn a_read_of_some_maps_takes_whole_stripes_and_compares_only_those() {
    let plan = Head::new(1, spec(8, 2)).plan();
    let config = Config {
        stripes: 4,
        ..Config::default()
    };
    let mut holder = Holder::new(0, config);
    holder.told(ToNode::Plan(plan.clone()));
    let group = plan.groups[0].id;
    let maps: Vec<Transfer> = (0..8).map(run_of).collect();
    for &map in &maps {
        assert!(is_acked(holder.push(batch(map, group, 0, &[(1, 1)]))));
    }
    let budget = |target, limit| ServerEvent::Budget { target, limit };
    holder.event(budget(1, 1 << 30));
    let written = ServerEvent::Spilled {
        run: 0,
        written: Ok(()),
    };
    holder.event(written);
    let winners: Vec<_> = maps.iter().map(|&map| (map, 1)).collect();
    assert_eq!(seal(&mut holder, &plan, &winners), Verdict::Complete);
    let wanted = MapRange { first: 3, end: 6 };
    let ToServer::Fetch(whole) = fetch(&plan, 1) else {
        panic!("it is a fetch");
    };
    let mut ask = |pieces: std::ops::Range<u32>| {
        let effects = holder.message(ToServer::Fetch(Fetch {
            maps: Some(wanted),
            ..whole
        }));
        let ServerEffect::Load {
            load, run, maps, ..
        } = effects[0]
        else {
            panic!("{effects:?}");
        };
        assert_eq!(maps, Some(MapRange { first: 2, end: 6 }));
        let pieces = pieces.map(|map| {
            let (push, table) = batch(run_of(map), group, 0, &[(1, 1)]);
            ReadPiece::new(push.batch, &table.find(1).expect("it is there"))
        });
        let pieces = Some(pieces.collect());
        holder.event(ServerEvent::Loaded { load, run, pieces })
    };
    let expected = [3, 4, 5].map(|map| (map, 1, Place::Run(0)));
    assert_eq!(sent(&ask(2..6)), Some(expected.to_vec()));
    let refusal = refused(answer(&ask(3..6)));
    assert_eq!(refusal, Some(Refusal::Damaged), "map 2 is lost");
}

/// The only run of a map.
fn run_of(map: u32) -> Transfer {
    transfer(map, 10 + u64::from(map))
}

#[test]
fn a_full_disk_is_tried_again_and_named_after_a_while() {
    let (mut holder, plan, _) = crowded();
    let group = plan.groups[0].id;
    for map in 0..3 {
        holder.push(batch(
            transfer(map, 10 + u64::from(map)),
            group,
            0,
            &[(1, 1)],
        ));
    }
    let late = batch(transfer(0, 14), group, 0, &[(1, 1)]);
    assert_eq!(holder.push(late), None);
    let mut answers = Vec::new();
    for run in 0..200 {
        let failed = ServerEvent::Spilled {
            run,
            written: Err("full".into()),
        };
        let effects = holder.event(failed);
        answers.extend(refused(answer(&effects)));
        assert_eq!(spilled(&effects), None, "not at once");
        holder.now = holder.server.next_deadline().expect("it is tried again");
        let effects = holder.event(ServerEvent::Tick);
        answers.extend(refused(answer(&effects)));
        if !answers.is_empty() {
            break;
        }
        assert_eq!(spilled(&effects), Some((run + 1, 3)));
    }
    let [Refusal::NoRoom(reason)] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert!(
        reason.contains("cannot write to its disks: full."),
        "{reason}"
    );
    assert_eq!(holder.store.len(), 3, "nothing was lost");
}

#[test]
fn what_a_full_disk_does_not_take_goes_to_the_remote_store() {
    let plan = Head::new(1, spec(8, 2)).plan();
    let config = Config {
        remote: Remote::WhenFull,
        ..Config::default()
    };
    let mut holder = Holder::new(0, config);
    holder.told(ToNode::Plan(plan.clone()));
    let group = plan.groups[0].id;
    for map in 0..3 {
        assert!(is_acked(holder.push(batch(
            run_of(map),
            group,
            0,
            &[(1, 1)]
        ))));
    }
    let storage = |effects: &[ServerEffect]| {
        effects.iter().find_map(|effect| match effect {
            ServerEffect::Spill { run, storage, .. } => Some((*run, *storage)),
            _ => None,
        })
    };
    let (target, limit) = (1, 1 << 30);
    let effects = holder.event(ServerEvent::Budget { target, limit });
    assert_eq!(storage(&effects), Some((0, Storage::Local)));
    let failed = |run, why: &str| ServerEvent::Spilled {
        run,
        written: Err(why.into()),
    };
    let effects = holder.event(failed(0, "full"));
    assert_eq!(storage(&effects), Some((1, Storage::Remote)), "at once");
    let effects = holder.event(failed(1, "503"));
    assert_eq!(storage(&effects), None, "not at once");
    holder.now = holder.server.next_deadline().expect("it is tried again");
    let effects = holder.event(ServerEvent::Tick);
    assert_eq!(storage(&effects), Some((2, Storage::Local)));
    let effects = holder.event(failed(2, "full"));
    assert_eq!(storage(&effects), Some((3, Storage::Remote)));
    holder.event(ServerEvent::Spilled {
        run: 3,
        written: Ok(()),
    });
    assert_eq!(holder.server.resident(), 0);
    let effects = holder.told(ToNode::Close(S));
    assert!(effects.contains(&ServerEffect::DropRun(3)));
}

/// Otherwise they would keep a whole arena in memory.
#[test]
fn the_last_batches_of_a_transfer_follow_the_others_into_a_file() {
    let (mut holder, plan, length) = crowded();
    let group = plan.groups[0].id;
    let maps = [transfer(0, 10), transfer(1, 20), transfer(2, 30)];
    let mut expected = Expected::default();
    let mut push = |holder: &mut Holder, map: Transfer, number| {
        let one = batch(map, group, number, &[(1, 1)]);
        expected.tally.add(&one.0.tally);
        assert!(is_acked(holder.push(one)));
    };
    for map in maps {
        push(&mut holder, map, 0);
    }
    let written = |run, written| ServerEvent::Spilled { run, written };
    holder.event(written(0, Ok(())));
    push(&mut holder, maps[2], 1);
    assert_eq!(holder.server.resident(), length, "there is room for one");
    holder.effects.clear();
    expected.winners = maps.iter().map(|map| (map.map, map.attempt)).collect();
    assert_eq!(compare(&mut holder, &plan, expected), Verdict::Complete);
    assert_eq!(spilled(&holder.effects), Some((1, 1)));
    holder.event(written(1, Ok(())));
    assert_eq!(holder.server.resident(), 0);
}

#[test]
fn what_a_lost_connection_was_to_bring_takes_no_memory() {
    let (mut holder, plan, _) = crowded();
    let group = plan.groups[0].id;
    for attempt in 0..5 {
        let (push, _) = batch(transfer(0, attempt), group, 0, &[(1, 1)]);
        holder.message(ToServer::Push(push));
    }
    assert!(holder.server.resident() > 0);
    holder.event(ServerEvent::Disconnected(C));
    assert_eq!(holder.server.resident(), 0);
    assert_eq!(holder.server.next_deadline(), None::<Duration>);
}

/// Otherwise each server that is to be filled would be taken for the damaged one, until there is none left.
#[test]
fn a_copy_whose_batches_are_refused_as_damaged_is_itself_the_damaged_one() {
    let (mut holder, plan) = holder();
    let copy = plan.groups[0].id;
    let filled = server_id(1);
    holder.push(batch(transfer(0, 10), copy, 0, &[(1, 3)]));
    let mut next = (*plan).clone();
    next.groups[0].filling = Some(filled);
    let mut effects = holder.told(ToNode::Plan(next.into()));
    let push = |effects: &[ServerEffect]| {
        effects.iter().find_map(|effect| match effect {
            ServerEffect::Tell {
                to,
                message: ToServer::Push(push),
            } => Some((*to, *push)),
            _ => None,
        })
    };
    for _ in 0..4 {
        let (to, push) = push(&effects).expect("it is sent again");
        assert_eq!(to, filled);
        assert!(
            !effects
                .iter()
                .any(|e| matches!(e, ServerEffect::Report { .. }))
        );
        effects = holder.event(ServerEvent::Peer(FromServer::Refused {
            shuffle: S,
            group: push.group,
            batch: push.batch,
            reason: Refusal::Malformed,
        }));
        if let Some(due) = holder.server.next_deadline() {
            holder.now = due;
            effects.extend(holder.event(ServerEvent::Tick));
        }
    }
    let damaged = ToMaster::Damaged {
        shuffle: S,
        group: copy,
    };
    assert!(effects.contains(&report(damaged)));
}
