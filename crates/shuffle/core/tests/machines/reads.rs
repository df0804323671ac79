//! Reads at a server: which wait, and which are given up.

use treadle_shuffle::{
    ApplicationId, ConnectionId, Expected, Fetch, Plan, ServerEffect, ServerEvent, Tenant, ToNode,
    ToServer, Verdict,
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
        ServerEffect::Send { read, load, .. } => Some((*read, *load)),
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
