//! Reads at a server: which wait, and which are given up.

use std::time::Duration;

use treadle_shuffle::{
    ApplicationId, ConnectionId, Expected, Fetch, FromServer, Limit, Plan, Refusal, ServerEffect,
    ServerEvent, ServerId, Tenant, ToNode, ToSend, ToServer, Verdict,
};

use crate::server::{compare, fetch, holder, is_acked, spilled};
use crate::support::{C, Holder, S, batch, server_id, transfer};

/// Bytes of each partition of [`roomy`].
const PARTITION: u64 = 12_000;

/// A server with three partitions in memory, which has room for one of them beside that.
fn roomy() -> (Holder, std::sync::Arc<Plan>) {
    let (mut holder, plan) = holder();
    let rows = PARTITION / 8;
    let pieces = [(0, rows), (1, rows), (2, rows)];
    let one = batch(transfer(0, 10), plan.groups[0].id, 0, &pieces);
    assert!(is_acked(holder.push(one.clone())));
    let mut expected = Expected::default();
    expected.winners.push(0, transfer(0, 10).attempt);
    expected.tally = one.0.tally;
    assert_eq!(compare(&mut holder, &plan, expected), Verdict::Complete);
    let limit = 40_000;
    holder.event(ServerEvent::Budget {
        target: limit,
        limit,
    });
    (holder, plan)
}

fn fetch_as(plan: &Plan, partition: u32, read: u64) -> ToServer {
    let ToServer::Fetch(fetch) = fetch(plan, partition) else {
        unreachable!();
    };
    ToServer::Fetch(Fetch { read, ..fetch })
}

/// The reads that are sent, with the numbers of their loads.
fn reads_sent(effects: &[ServerEffect]) -> Vec<(u64, u64)> {
    let sent = effects.iter().filter_map(|effect| match effect {
        ServerEffect::Send(ToSend { read, load, .. }) => Some((*read, *load)),
        _ => None,
    });
    sent.collect()
}

#[test]
fn reads_wait_until_the_bytes_of_those_before_have_left() {
    let (mut holder, plan) = roomy();
    holder.is_stuck = true;
    let first = reads_sent(&holder.message(fetch_as(&plan, 0, 5)));
    let [(5, load)] = first[..] else {
        panic!("one always begins: {first:?}");
    };
    for (partition, read) in [(1, 6), (2, 7)] {
        let effects = holder.message(fetch_as(&plan, partition, read));
        assert_eq!(reads_sent(&effects), []);
    }
    assert_eq!(holder.server.waiting(), 2);
    // The connection to who does not take its rows ends, and its memory is freed.
    holder.event(ServerEvent::Disconnected(C));
    assert_eq!(holder.server.waiting(), 0);
    assert!(!holder.server.is_empty());
    let other = ConnectionId(2);
    let message = fetch_as(&plan, 1, 8);
    let effects = holder.event(ServerEvent::Message {
        from: other,
        message,
    });
    assert_eq!(reads_sent(&effects), []);
    let effects = holder.event(ServerEvent::Sent { load });
    assert_eq!(reads_sent(&effects)[0].0, 8);
}

#[test]
fn what_is_kept_of_each_piece_counts_as_memory_of_reads() {
    let (mut holder, plan) = holder();
    holder.is_stuck = true;
    let mut expected = Expected::default();
    for map in 0..100 {
        let one = batch(transfer(map, 10), plan.groups[0].id, 0, &[(0, 1), (1, 1)]);
        expected.tally.add(&one.0.tally);
        expected.winners.push(map, transfer(map, 10).attempt);
        assert!(is_acked(holder.push(one)));
    }
    assert_eq!(compare(&mut holder, &plan, expected), Verdict::Complete);
    // There is room for the rows of ten such partitions, and for the pieces of one.
    let limit = 2 * 10 * 800 + 2 * 100 * 256;
    holder.event(ServerEvent::Budget {
        target: limit,
        limit,
    });
    let first = reads_sent(&holder.message(fetch_as(&plan, 0, 5)));
    assert_eq!(first.len(), 1);
    assert_eq!(reads_sent(&holder.message(fetch_as(&plan, 1, 6))), []);
    let effects = holder.event(ServerEvent::Sent { load: first[0].1 });
    assert_eq!(reads_sent(&effects)[0].0, 6);
}

#[test]
fn a_read_that_is_cancelled_takes_no_turn_and_no_memory() {
    let (mut holder, plan) = roomy();
    holder.is_stuck = true;
    let load = reads_sent(&holder.message(fetch_as(&plan, 0, 5)))[0].1;
    for (partition, read) in [(1, 6), (2, 7)] {
        holder.message(fetch_as(&plan, partition, read));
    }
    holder.message(ToServer::Cancel { read: 6 });
    // Another connection has other numbers.
    holder.event(ServerEvent::Message {
        from: ConnectionId(2),
        message: ToServer::Cancel { read: 7 },
    });
    let effects = holder.event(ServerEvent::Sent { load });
    assert_eq!(reads_sent(&effects)[0].0, 7);
    assert_eq!(holder.server.waiting(), 0);
}

#[test]
fn what_was_loaded_for_a_read_that_is_cancelled_is_forgotten() {
    let (mut holder, plan) = roomy();
    let limit = 1;
    let effects = holder.event(ServerEvent::Budget {
        target: limit,
        limit,
    });
    let (run, _) = spilled(&effects).expect("there is more than the target");
    holder.event(ServerEvent::Spilled {
        run,
        written: Ok(()),
    });
    let effects = holder.message(fetch_as(&plan, 0, 5));
    let ServerEffect::Load { load, .. } = effects[0] else {
        panic!("{effects:?}");
    };
    let effects = holder.message(ToServer::Cancel { read: 5 });
    assert_eq!(effects, [ServerEffect::Forget { load }]);
    let pieces = Some(Vec::new());
    assert_eq!(
        holder.event(ServerEvent::Loaded { load, run, pieces }),
        [],
        "it is not sent"
    );
    holder.told(ToNode::Close(S));
    assert!(holder.server.is_empty());
}

/// A read of partition 0 by a process of this application.
fn fetch_of(plan: &Plan, application: u64, read: u64) -> ToServer {
    let ToServer::Fetch(fetch) = fetch_as(plan, 0, read) else {
        unreachable!();
    };
    ToServer::Fetch(Fetch {
        reader: Some(Tenant {
            application: ApplicationId(application),
            priority: 1,
        }),
        ..fetch
    })
}

#[test]
fn who_takes_nothing_holds_up_nobody_else() {
    let (mut holder, plan) = roomy();
    holder.is_stuck = true;
    assert_eq!(reads_sent(&holder.message(fetch_of(&plan, 1, 5))).len(), 1);
    // Its own next one waits, and a read of another application of the same rows does not.
    assert_eq!(reads_sent(&holder.message(fetch_of(&plan, 1, 6))), []);
    let message = fetch_of(&plan, 2, 7);
    let from = ConnectionId(2);
    let effects = holder.event(ServerEvent::Message { from, message });
    assert_eq!(reads_sent(&effects)[0].0, 7);
}

/// A server whose rows are in a file.
fn in_a_file() -> (Holder, std::sync::Arc<Plan>) {
    let (mut holder, plan) = roomy();
    let effects = holder.event(ServerEvent::Budget {
        target: 1,
        limit: 1_000 * PARTITION,
    });
    let (run, _) = spilled(&effects).expect("there is more than the target");
    let written = Ok(());
    holder.event(ServerEvent::Spilled { run, written });
    (holder, plan)
}

/// Who is told to pause, and for how long.
fn sleeps(effects: &[ServerEffect]) -> Vec<(u64, Duration)> {
    let sleeps = effects.iter().filter_map(|effect| match effect {
        ServerEffect::Reply {
            message:
                FromServer::Unread {
                    read,
                    reason: Refusal::Sleep(pause),
                },
            ..
        } => Some((*read, *pause)),
        _ => None,
    });
    sleeps.collect()
}

fn loads(effects: &[ServerEffect]) -> usize {
    let loads = effects.iter();
    let loads = loads.filter(|effect| matches!(effect, ServerEffect::Load { .. }));
    loads.count()
}

fn limited(application: u64, most: u32, each: u64) -> ServerEvent {
    let limits = vec![Limit {
        application: ApplicationId(application),
        most,
        each: Duration::from_millis(each),
    }];
    ServerEvent::Limited { disk: 0, limits }
}

#[test]
fn reads_of_one_application_leave_room_for_those_of_another() {
    let (mut holder, plan) = in_a_file();
    // Of 64 it has all as long as it is alone.
    let begun: usize = (0..80)
        .map(|read| loads(&holder.message(fetch_of(&plan, 1, read))))
        .sum();
    assert_eq!(begun, 64);
    assert_eq!(loads(&holder.message(fetch_of(&plan, 2, 100))), 1);
    assert_eq!(
        loads(&holder.message(fetch_of(&plan, 2, 101))),
        0,
        "all are taken"
    );
}

#[test]
fn while_a_disk_is_slow_who_has_too_many_reads_there_sleeps_and_nobody_else() {
    let (mut holder, plan) = in_a_file();
    for read in 0..70 {
        holder.message(fetch_of(&plan, 1, read));
    }
    holder.message(fetch_of(&plan, 2, 100));
    assert_eq!(holder.server.waiting(), 6);
    // Those that wait go, but one; those that came last first, each until its turn comes.
    let told = sleeps(&holder.event(limited(1, 10, 20)));
    let reads: Vec<u64> = told.iter().map(|(read, _)| *read).collect();
    assert_eq!(reads, [69, 68, 67, 66, 65]);
    assert!(
        told.iter()
            .all(|(_, pause)| *pause >= Duration::from_millis(100)),
        "{told:?}"
    );
    let told = sleeps(&holder.message(fetch_of(&plan, 1, 71)));
    assert_eq!(told.len(), 1);
    assert_eq!(holder.server.slept(), 6);
    // The other application has no limit, or is below it.
    assert_eq!(sleeps(&holder.message(fetch_of(&plan, 2, 101))), []);
    holder.event(limited(2, 10, 20));
    assert_eq!(sleeps(&holder.message(fetch_of(&plan, 2, 102))), []);
    // It is over, though another disk has no limits either.
    let over = |disk| ServerEvent::Limited {
        disk,
        limits: Vec::new(),
    };
    holder.event(over(1));
    assert_eq!(sleeps(&holder.message(fetch_of(&plan, 1, 73))).len(), 1);
    holder.event(over(0));
    assert_eq!(sleeps(&holder.message(fetch_of(&plan, 1, 72))), []);
}

#[test]
fn a_limit_that_is_not_said_again_ends() {
    let (mut holder, plan) = in_a_file();
    holder.message(fetch_of(&plan, 1, 1));
    holder.event(limited(1, 1, 20));
    assert_eq!(sleeps(&holder.message(fetch_of(&plan, 1, 2))).len(), 1);
    holder.now += Duration::from_secs(1);
    assert_eq!(sleeps(&holder.message(fetch_of(&plan, 1, 3))), []);
}

#[test]
fn a_read_for_which_a_disk_has_no_place_comes_again() {
    let (mut holder, plan) = in_a_file();
    let effects = holder.message(fetch_of(&plan, 1, 5));
    let ServerEffect::Load { load, .. } = effects[0] else {
        panic!("{effects:?}");
    };
    let effects = holder.event(ServerEvent::Unloaded { load });
    let busy = FromServer::Unread {
        read: 5,
        reason: Refusal::Busy,
    };
    let is_busy = |effect: &ServerEffect| matches!(effect, ServerEffect::Reply { message, .. } if *message == busy);
    assert!(effects.iter().any(is_busy), "{effects:?}");
    assert_eq!(holder.event(ServerEvent::Unloaded { load }), []);
    assert_eq!(loads(&holder.message(fetch_of(&plan, 1, 6))), 1);
}

#[test]
fn the_word_of_the_master_ends_a_process_and_all_that_it_asked_for() {
    let (mut holder, plan) = roomy();
    holder.is_stuck = true;
    let (gone, other) = (server_id(9), ConnectionId(2));
    for (from, member) in [(C, gone), (other, server_id(8))] {
        holder.event(ServerEvent::Connected { from, member });
    }
    let load = reads_sent(&holder.message(fetch_as(&plan, 0, 5)))[0].1;
    holder.message(fetch_as(&plan, 1, 6));
    let message = fetch_as(&plan, 2, 7);
    let from = other;
    let effects = holder.event(ServerEvent::Message { from, message });
    assert_eq!(reads_sent(&effects), []);
    let effects = holder.event(ServerEvent::Gone(gone));
    assert_eq!(effects, [ServerEffect::Disconnect(C)]);
    assert_eq!(holder.server.waiting(), 1);
    // What was to be sent to it is not in memory any more.
    let effects = holder.event(ServerEvent::Sent { load });
    assert_eq!(reads_sent(&effects)[0].0, 7);
    // It has not heard of it yet.
    let (from, member) = (ConnectionId(3), gone);
    let effects = holder.event(ServerEvent::Connected { from, member });
    assert_eq!(effects, [ServerEffect::Disconnect(from)]);
}

#[test]
fn of_many_processes_that_are_gone_those_that_went_last_are_remembered() {
    let (mut holder, _) = roomy();
    // Those of the second master have larger names, and go first.
    let gone = |at: u32| ServerId {
        node: at % 1_025,
        incarnation: 7 - at / 1_025,
    };
    for at in 0..2 * 1_025 {
        holder.event(ServerEvent::Gone(gone(at)));
    }
    let mut connect = |member| {
        let from = ConnectionId(3);
        holder.event(ServerEvent::Connected { from, member })
    };
    let dropped = [ServerEffect::Disconnect(ConnectionId(3))];
    assert_eq!(connect(gone(2 * 1_025 - 1)), dropped);
    assert_eq!(connect(gone(1_100)), dropped);
    assert_eq!(connect(gone(1_000)), []);
}
