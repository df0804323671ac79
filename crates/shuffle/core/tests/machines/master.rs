//! Assignment, loss, commit, the end.

use treadle_shuffle::{
    Commit, CommitError, Generation, GroupId, MasterEffect, Receipt, ServerId, Share, ShuffleError,
    Spec, ToMaster, ToNode, Verdict,
};
use treadle_shuffle::{Config, MasterEvent, ShuffleId};
use treadle_types::Runs;

use crate::support::{Head, S, count, server_id, spec, transfer};

fn group(epoch: u32, node: u32) -> GroupId {
    GroupId {
        epoch: Generation(epoch),
        server: server_id(node),
    }
}

fn receipt(map: u32, groups: &[GroupId]) -> Receipt {
    let transfer = transfer(map, 100 + u64::from(map));
    let shares = groups.iter().map(|&group| Share {
        group,
        holder: transfer.attempt,
        tally: count(1, 5),
    });
    Receipt {
        transfer,
        shares: shares.collect(),
    }
}

/// The transfer has ended, as the master hears.
fn transferred(head: &mut Head, receipt: &Receipt) {
    let message = ToMaster::Transferred {
        transfer: receipt.transfer,
        groups: receipt.shares.iter().map(|share| share.group).collect(),
        tally: receipt.tally(),
    };
    head.hear(0, message);
}

fn commit(head: &mut Head, maps: u32, receipts: &[Receipt]) {
    let commit = Commit::new(S, maps, receipts).expect("one for each map");
    head.hear(0, ToMaster::Commit { ask: 9, commit });
}

fn verdict(head: &mut Head, group: GroupId, round: u32, verdict: Verdict) {
    let sealed = ToMaster::Sealed {
        shuffle: S,
        group,
        round,
        verdict,
    };
    head.hear(group.server.node, sealed);
}

/// What the barrier was answered.
fn answers(effects: &[MasterEffect]) -> Vec<Result<Generation, CommitError>> {
    let answers = effects.iter().filter_map(|effect| match effect {
        MasterEffect::Send {
            message: ToNode::Committed { result, .. },
            ..
        } => Some(*result),
        _ => None,
    });
    answers.collect()
}

/// What was invalidated: maps, and whether outputs.
fn invalidated(effects: &[MasterEffect]) -> Vec<(Vec<u64>, bool)> {
    let invalidated = effects.iter().filter_map(|effect| match effect {
        MasterEffect::Invalidate { maps, outputs, .. } => Some((maps.iter().collect(), *outputs)),
        _ => None,
    });
    invalidated.collect()
}

#[test]
fn nothing_is_sent_before_somebody_asks() {
    let mut head = Head::new(2, spec(2, 4));
    let other = ShuffleId(8);
    head.take();
    let registered = MasterEvent::Register {
        shuffle: other,
        spec: spec(1, 1),
    };
    head.event(registered.clone());
    assert_eq!(head.take(), []);
    let again = head.master.handle(registered, &mut Vec::new());
    assert_eq!(again, Err(ShuffleError::Registered(other)));
}

#[test]
fn what_nobody_wants_is_in_no_group() {
    let wanted = Runs::from_iter([1, 2, 5]);
    let culled = Spec {
        outputs: wanted.clone(),
        ..spec(1, 6)
    };
    let head = Head::new(2, culled);
    let plan = head.plan();
    let all = plan
        .groups
        .iter()
        .fold(Runs::new(), |all, g| all.union(&g.partitions));
    assert_eq!(all, wanted);
    assert!(plan.group_of(0).is_none());
    let beyond = Spec {
        outputs: Runs::range(0, 7),
        ..spec(1, 6)
    };
    let register = MasterEvent::Register {
        shuffle: ShuffleId(9),
        spec: beyond,
    };
    let mut head = head;
    let refused = head.master.handle(register, &mut Vec::new());
    assert_eq!(refused, Err(ShuffleError::Outputs(ShuffleId(9))));
}

#[test]
fn all_that_was_sent_is_compared_before_a_barrier_returns() {
    let mut head = Head::new(2, spec(2, 4));
    let [a, b] = [group(1, 0), group(1, 1)];
    let receipts = [receipt(0, &[a, b]), receipt(1, &[b])];
    for receipt in &receipts {
        transferred(&mut head, receipt);
    }
    head.take();
    commit(&mut head, 2, &receipts);
    let seals = head.take().into_iter().filter_map(|effect| match effect {
        MasterEffect::Send {
            to,
            message: ToNode::Seal(seal),
        } => Some((
            to.node,
            seal.expected.tally.rows,
            seal.expected.winners.len(),
        )),
        _ => None,
    });
    assert_eq!(seals.collect::<Vec<_>>(), [(0, 1, 1), (1, 2, 2)]);
    verdict(&mut head, a, 1, Verdict::Complete);
    // Of an earlier round.
    verdict(&mut head, b, 0, Verdict::Complete);
    assert_eq!(answers(&head.take()), []);
    verdict(&mut head, b, 1, Verdict::Complete);
    assert_eq!(answers(&head.take()), [Ok(Generation(1))]);
    let progress = head.master.progress(S).expect("it is there");
    assert!(progress.is_committed && progress.transferred == 2 && progress.tally.rows == 3);
}

#[test]
fn losing_a_server_invalidates_those_that_had_rows_there() {
    let mut head = Head::new(2, spec(3, 4));
    let [a, b] = [group(1, 0), group(1, 1)];
    for receipt in [receipt(0, &[a]), receipt(1, &[a, b])] {
        transferred(&mut head, &receipt);
    }
    head.take();
    head.event(MasterEvent::Lost(server_id(1)));
    assert_eq!(invalidated(&head.take()), [(vec![1], false)]);
    head.hear(0, ToMaster::Join(S));
    let plan = head.plan();
    let ids: Vec<GroupId> = plan.groups.iter().map(|group| group.id).collect();
    assert_eq!(ids, [a, group(2, 0)]);
    // One that had ended, and of which the master hears only now.
    head.take();
    transferred(&mut head, &receipt(2, &[b]));
    assert_eq!(invalidated(&head.take()), [(vec![2], false)]);
    // A barrier that began with receipts of before.
    commit(
        &mut head,
        3,
        &[receipt(0, &[a]), receipt(1, &[a, b]), receipt(2, &[])],
    );
    let effects = head.take();
    assert_eq!(invalidated(&effects), [(vec![1], false)]);
    assert_eq!(answers(&effects), [Err(CommitError::Again(S))]);
}

#[test]
fn a_barrier_that_waits_hears_of_a_loss() {
    let mut head = Head::new(2, spec(1, 2));
    let receipts = [receipt(0, &[group(1, 1)])];
    transferred(&mut head, &receipts[0]);
    commit(&mut head, 1, &receipts);
    head.take();
    head.event(MasterEvent::Lost(server_id(1)));
    let effects = head.take();
    assert_eq!(answers(&effects), [Err(CommitError::Again(S))]);
    verdict(&mut head, group(1, 0), 1, Verdict::Complete);
    assert_eq!(answers(&head.take()), []);
}

#[test]
fn what_is_short_is_made_again_a_few_times_and_then_named() {
    let mut head = Head::new(1, spec(1, 2));
    let repairs = Config::default().repairs;
    let short = Verdict::Short {
        found: count(0, 0),
        missing: Some(0),
    };
    for round in 1..=repairs {
        let group = group(round, 0);
        let receipts = [receipt(0, &[group])];
        transferred(&mut head, &receipts[0]);
        commit(&mut head, 1, &receipts);
        head.take();
        verdict(&mut head, group, round, short);
        let effects = head.take();
        assert_eq!(answers(&effects), [Err(CommitError::Again(S))]);
        assert_eq!(invalidated(&effects), [(vec![0], false)]);
    }
    let last = group(repairs + 1, 0);
    commit(&mut head, 1, &[receipt(0, &[last])]);
    head.take();
    verdict(&mut head, last, repairs + 1, short);
    let answers = answers(&head.take());
    assert!(matches!(
        answers[..],
        [Err(CommitError::Damaged {
            missing: Some(0),
            ..
        })]
    ));
}

#[test]
fn a_map_that_differs_makes_everything_anew_and_the_user_is_told() {
    let mut head = Head::new(2, spec(3, 4));
    let differs = ToMaster::Differs {
        shuffle: S,
        group: group(1, 0),
        map: Some(2),
        is_late: false,
    };
    head.take();
    head.hear(1, differs.clone());
    let effects = head.take();
    assert_eq!(invalidated(&effects), [(vec![0, 1, 2], true)]);
    assert!(effects.contains(&MasterEffect::NotDeterministic {
        shuffle: S,
        map: Some(2)
    }));
    // The same, said by another: it is of before.
    head.hear(0, differs);
    assert_eq!(head.take(), []);
}

/// What a late attempt of map 0 that has found other rows at a server says.
fn late(node: u32) -> ToMaster {
    ToMaster::Differs {
        shuffle: S,
        group: group(1, node),
        map: Some(0),
        is_late: true,
    }
}

/// Who was told that what was committed stays.
fn told_final(effects: &[MasterEffect]) -> Vec<u32> {
    let told = effects.iter().filter_map(|effect| match effect {
        MasterEffect::Send {
            to,
            message: ToNode::Plan(plan),
        } if plan.is_final => Some(to.node),
        _ => None,
    });
    told.collect()
}

#[test]
fn what_was_committed_stays_when_an_attempt_with_other_rows_is_late() {
    let mut head = Head::new(2, spec(1, 4));
    let receipt = receipt(0, &[group(1, 0)]);
    transferred(&mut head, &receipt);
    commit(&mut head, 1, &[receipt]);
    head.take();
    // It is not known yet whether it will be committed.
    head.hear(1, late(0));
    assert_eq!(head.take(), []);
    verdict(&mut head, group(1, 0), 1, Verdict::Complete);
    verdict(&mut head, group(1, 1), 1, Verdict::Complete);
    let effects = head.take();
    assert_eq!(answers(&effects), [Ok(Generation(1))]);
    assert_eq!(told_final(&effects), [1]);
    head.hear(0, late(0));
    let effects = head.take();
    assert_eq!((told_final(&effects), effects.len()), (vec![0], 1));
    // Some of what was committed is gone, and has to be made again: with the same rows, or all of it.
    head.hear(
        0,
        ToMaster::Damaged {
            shuffle: S,
            group: group(1, 1),
        },
    );
    head.take();
    head.hear(0, late(0));
    assert_eq!(invalidated(&head.take()), [(vec![0], true)]);
}

#[test]
fn receipts_of_a_late_attempt_leave_what_was_committed_if_they_are_to() {
    let empty = receipt(0, &[]);
    for keeps in [true, false] {
        let mut head = Head::new(1, spec(1, 2));
        let first = receipt(0, &[group(1, 0)]);
        transferred(&mut head, &first);
        commit(&mut head, 1, &[first]);
        verdict(&mut head, group(1, 0), 1, Verdict::Complete);
        head.take();
        let again = |head: &mut Head| {
            let mut commit =
                Commit::new(S, 1, core::slice::from_ref(&empty)).expect("there is one");
            commit.keeps = keeps;
            head.hear(0, ToMaster::Commit { ask: 9, commit });
            head.take()
        };
        let effects = again(&mut head);
        if keeps {
            assert_eq!(answers(&effects), [Err(CommitError::Late(S))]);
            assert_eq!(effects.len(), 1);
            // Some of what was committed is gone: then they count.
            let group = group(1, 0);
            head.hear(0, ToMaster::Damaged { shuffle: S, group });
            head.take();
        }
        let effects = if keeps { again(&mut head) } else { effects };
        assert_eq!(answers(&effects), [Err(CommitError::Again(S))]);
        assert_eq!(invalidated(&effects), [(vec![0], true)]);
    }
}

#[test]
fn what_was_committed_once_is_the_same_when_it_is_made_again() {
    let mut head = Head::new(1, spec(1, 2));
    for (epoch, rows) in [(1, 1), (2, 1), (3, 2)] {
        let group = group(epoch, 0);
        let mut receipt = receipt(0, &[group]);
        receipt.shares[0].tally = count(rows, 5);
        transferred(&mut head, &receipt);
        head.take();
        commit(&mut head, 1, &[receipt]);
        let effects = head.take();
        if epoch == 3 {
            // All that was there before is gone, and nobody else could compare.
            assert_eq!(answers(&effects), [Err(CommitError::Again(S))]);
            assert_eq!(invalidated(&effects), [(vec![0], true)]);
            return;
        }
        verdict(&mut head, group, epoch, Verdict::Complete);
        assert_eq!(answers(&head.take()), [Ok(Generation(epoch))]);
        head.hear(0, ToMaster::Damaged { shuffle: S, group });
    }
}

#[test]
fn who_comes_back_is_another_and_what_the_first_held_is_gone() {
    let mut head = Head::new(2, spec(1, 4));
    transferred(&mut head, &receipt(0, &[group(1, 1)]));
    head.take();
    let again = ServerId {
        node: 1,
        incarnation: 2,
    };
    head.event(MasterEvent::Joined(again));
    assert_eq!(invalidated(&head.take()), [(vec![0], false)]);
    // What the first one says changes nothing.
    head.hear(1, ToMaster::Join(S));
    assert_eq!(head.take(), []);
    let refused = head
        .master
        .handle(MasterEvent::Joined(again), &mut Vec::new());
    assert_eq!(refused, Err(ShuffleError::Joined(again)));
}

#[test]
fn two_sides_of_a_merge_stay_together() {
    let mut head = Head::new(3, spec(1, 7));
    let other = ShuffleId(8);
    head.event(MasterEvent::Register {
        shuffle: other,
        spec: Spec {
            aligned: Some(S),
            ..spec(1, 7)
        },
    });
    let from = server_id(1);
    head.event(MasterEvent::Message {
        from,
        message: ToMaster::Join(other),
    });
    let homes =
        |head: &Head, shuffle| -> Vec<_> { (0..7).map(|p| head.master.home(shuffle, p)).collect() };
    assert_eq!(homes(&head, S), homes(&head, other));
    head.event(MasterEvent::Lost(server_id(2)));
    assert_eq!(homes(&head, S), homes(&head, other));
    assert!(homes(&head, S).iter().all(Option::is_some));
    head.event(MasterEvent::End(S));
    head.event(MasterEvent::Lost(server_id(1)));
    let all_at_last = homes(&head, other);
    assert!(all_at_last.iter().all(|home| *home == Some(server_id(0))));
    let refused = MasterEvent::Register {
        shuffle: ShuffleId(9),
        spec: Spec {
            aligned: Some(other),
            ..spec(1, 6)
        },
    };
    let refused = head.master.handle(refused, &mut Vec::new());
    assert_eq!(refused, Err(ShuffleError::Aligned(ShuffleId(9), other)));
}

#[test]
fn without_servers_a_shuffle_waits_for_one() {
    let mut head = Head::new(1, spec(1, 2));
    head.event(MasterEvent::Lost(server_id(0)));
    head.take();
    let next = ServerId {
        node: 5,
        incarnation: 1,
    };
    head.event(MasterEvent::Joined(next));
    assert_eq!(head.take(), []);
    head.hear(0, ToMaster::Join(S));
    let from = next;
    head.event(MasterEvent::Message {
        from,
        message: ToMaster::Join(S),
    });
    assert_eq!(head.plan().groups[0].id.server, next);
    assert_eq!(head.plan().generation, Generation(2));
}

#[test]
fn a_server_that_leaves_gets_nothing_and_is_told_when_it_holds_nothing() {
    let mut head = Head::new(2, spec(1, 2));
    head.event(MasterEvent::Draining(server_id(1)));
    let other = ShuffleId(8);
    head.event(MasterEvent::Register {
        shuffle: other,
        spec: spec(1, 4),
    });
    head.hear(0, ToMaster::Join(other));
    assert!((0..4).all(|p| head.master.home(other, p) == Some(server_id(0))));
    assert!(!head.take().contains(&MasterEffect::Drained(server_id(1))));
    head.event(MasterEvent::End(S));
    let effects = head.take();
    assert!(effects.contains(&MasterEffect::Drained(server_id(1))));
    let close = |node| MasterEffect::Send {
        to: server_id(node),
        message: ToNode::Close(S),
    };
    assert!(effects.contains(&close(0)) && effects.contains(&close(1)));
    assert_eq!(head.master.progress(S), None);
    // Whoever asks later hears that it is over.
    head.hear(1, ToMaster::Join(S));
    assert_eq!(head.take(), [close(1)]);
}
