//! Valid messages of the shuffle plane, also for the tests of those whose packets carry them.

use std::time::Duration;

use treadle_shuffle::block::TableBuilder;
use treadle_shuffle::{
    Answer, ApplicationId, Ask, AttemptId, BatchId, Commit, CommitError, Expected, Fetch,
    FromServer, Generation, Group, GroupId, Inventory, Plan, Push, ReadPiece, Receipt, Refusal,
    Seal, ServerId, Share, ShuffleId, Tally, Tenant, ToMaster, ToNode, ToServer, Transfer,
    Uploaded, Usage, Verdict,
};
use treadle_types::Runs;

use crate::{InventoryRun, Shuffled, decode_shuffled, encode_inventory, encode_shuffled};

type Seeds = Vec<(&'static str, Vec<u8>)>;

const SHUFFLE: ShuffleId = ShuffleId(9);
const GENERATION: Generation = Generation(2);
const TALLY: Tally = Tally {
    rows: 300,
    bytes: 24_000,
    digest: 0xfeed_feed_feed_feed,
};
const TRANSFER: Transfer = Transfer {
    shuffle: SHUFFLE,
    map: 7,
    attempt: AttemptId(12 << 32 | 1),
};

fn group(node: u32) -> GroupId {
    let incarnation = 1;
    GroupId {
        epoch: Generation(1),
        server: ServerId { node, incarnation },
    }
}

fn receipt(map: u32) -> Receipt {
    let attempt = AttemptId(u64::from(map + 5) << 32 | 1);
    let shares = [3, 4].map(|node| Share {
        group: group(node),
        holder: attempt,
        tally: TALLY,
    });
    Receipt {
        transfer: Transfer {
            map,
            attempt,
            ..TRANSFER
        },
        shares: shares.into(),
    }
}

/// What a copy of two batches in one run consists of.
pub fn inventory() -> (Inventory, Vec<InventoryRun>) {
    let mut headers = Vec::new();
    for map in [3, 7] {
        let batch = BatchId {
            map,
            attempt: AttemptId(12 << 32 | u64::from(map)),
            number: 0,
        };
        let mut builder = TableBuilder::new(SHUFFLE, GENERATION, batch, 80);
        for partition in [0, 4, 5] {
            builder.push(partition, &TALLY);
        }
        let (header, _) = builder.finish().expect("it is a table");
        headers.push(header);
    }
    let winners = headers
        .iter()
        .map(|header| (header.batch.map, header.batch.attempt));
    let inventory = Inventory {
        shuffle: SHUFFLE,
        epoch: GENERATION,
        expected: Expected {
            winners: winners.collect(),
            tally: headers.iter().map(|header| header.tally).sum(),
        },
        stripe: 4,
        counts: [((0, 0), TALLY.narrow()), ((1, 2), TALLY.narrow())].into(),
    };
    let run = InventoryRun {
        name: "treadle-17-0000000000000001/3.shuffle".into(),
        length: 144_264,
        begins: vec![(0, 3, 0), (4, 3, 48_088), (5, 3, 96_176)],
        headers,
    };
    (inventory, vec![run])
}

/// The same as bytes, and one without rows.
pub fn inventories() -> Seeds {
    let (inventory, runs) = inventory();
    let empty = Inventory {
        expected: Expected::default(),
        counts: Vec::new(),
        ..inventory.clone()
    };
    vec![
        ("copy", encode_inventory(&inventory, &runs)),
        ("empty", encode_inventory(&empty, &[])),
    ]
}

/// One of each kind.
pub fn seeds() -> Seeds {
    let mut seeds = vec![("receipt", encode_shuffled(&receipt(0)))];
    add(&mut seeds, to_node());
    add(&mut seeds, to_master());
    add(&mut seeds, to_server());
    add(&mut seeds, from_server());
    seeds
}

fn add<M: Shuffled + PartialEq + std::fmt::Debug>(
    seeds: &mut Seeds,
    messages: impl IntoIterator<Item = (&'static str, M)>,
) {
    for (name, message) in messages {
        let bytes = encode_shuffled(&message);
        assert_eq!(decode_shuffled(&bytes), Ok(message));
        seeds.push((name, bytes));
    }
}

fn commit() -> Commit {
    let receipts = [receipt(0), receipt(1)];
    Commit::new(SHUFFLE, 2, &receipts).expect("there is one for each map")
}

/// To nodes.
pub fn to_node() -> [(&'static str, ToNode); 5] {
    let assigned = |node, partitions| Group::new(group(node), partitions);
    let plan = Plan {
        shuffle: SHUFFLE,
        generation: GENERATION,
        opened: Generation(2),
        is_final: false,
        tenant: Tenant {
            application: ApplicationId(3),
            priority: 2,
        },
        maps: 2,
        partitions: 100,
        groups: vec![
            assigned(3, Runs::range(0, 50)),
            assigned(4, [60, 61, 99].into_iter().collect()),
        ],
    };
    let mut commit = commit();
    let group = *commit.groups.keys().next().expect("there are two");
    let expected = commit.take(group);
    let seal = Seal {
        shuffle: SHUFFLE,
        generation: GENERATION,
        group,
        round: 1,
        expected,
    };
    let committed = |result| ToNode::Committed {
        shuffle: SHUFFLE,
        ask: 5,
        result,
    };
    let damaged = CommitError::Damaged {
        shuffle: SHUFFLE,
        group,
        expected: TALLY,
        found: Tally::default(),
        missing: Some(1),
    };
    [
        ("plan", ToNode::Plan(plan.into())),
        ("close", ToNode::Close(SHUFFLE)),
        ("seal", ToNode::Seal(seal)),
        ("committed", committed(Ok(GENERATION))),
        ("not-committed", committed(Err(damaged))),
    ]
}

pub fn to_master() -> [(&'static str, ToMaster); 9] {
    let (shuffle, group) = (SHUFFLE, group(3));
    let verdict = Verdict::Short {
        found: TALLY,
        missing: Some(1),
    };
    let transferred = ToMaster::Transferred {
        transfer: TRANSFER,
        groups: vec![group, self::group(4)],
        tally: TALLY,
    };
    let sealed = ToMaster::Sealed {
        shuffle,
        group,
        round: 1,
        verdict,
    };
    let commit = commit();
    let map = Some(7);
    [
        ("join", ToMaster::Join(shuffle)),
        ("transferred", transferred),
        ("commit", ToMaster::Commit { ask: 5, commit }),
        ("sealed", sealed),
        (
            "differs",
            ToMaster::Differs {
                shuffle,
                group,
                map,
                is_late: true,
            },
        ),
        ("damaged", ToMaster::Damaged { shuffle, group }),
        (
            "uploaded",
            ToMaster::Uploaded {
                shuffle,
                group,
                uploaded: Uploaded {
                    inventory: "treadle-17-0000000000000001/3.shuffle".into(),
                    mark: 1 << 63,
                },
            },
        ),
        (
            "measured",
            ToMaster::Measured {
                shuffle,
                group,
                partitions: Runs::range(2, 4),
                sizes: vec![0, 1 << 40],
            },
        ),
        (
            "used",
            ToMaster::Used {
                shuffle,
                usage: Usage {
                    reads: 3,
                    reading: 70_000,
                    ..Usage::default()
                },
            },
        ),
    ]
}

fn to_server() -> [(&'static str, ToServer); 6] {
    let (shuffle, group, transfer, tally) = (SHUFFLE, group(3), TRANSFER, TALLY);
    let push = Push {
        shuffle,
        group,
        batch: TRANSFER.batch(2),
        tally,
        length: 24_128,
    };
    let ask = Ask {
        group,
        transfer,
        tally,
    };
    let fetch = Fetch {
        read: 4,
        shuffle,
        generation: GENERATION,
        group,
        partition: 17,
        maps: None,
        reader: Some(Tenant {
            application: ApplicationId(5),
            priority: 3,
        }),
    };
    [
        ("push", ToServer::Push(push)),
        (
            "pushes",
            ToServer::Pushes {
                pushes: vec![push, push],
            },
        ),
        ("ask", ToServer::Ask(ask)),
        ("abandon", ToServer::Abandon { group, transfer }),
        ("fetch", ToServer::Fetch(fetch)),
        ("cancel", ToServer::Cancel { read: 4 }),
    ]
}

fn from_server() -> [(&'static str, FromServer); 6] {
    let (shuffle, group, transfer) = (SHUFFLE, group(3), TRANSFER);
    let batch = TRANSFER.batch(2);
    let piece = |batch: BatchId, packed: u32| ReadPiece {
        batch,
        rows: 3,
        bytes: 240,
        digest: 0xfeed_feed,
        packed,
    };
    let rows = FromServer::Rows {
        read: 4,
        tally: TALLY.narrow(),
        pieces: vec![piece(batch, 0), piece(TRANSFER.batch(3), 120)],
    };
    let refused = FromServer::Refused {
        shuffle,
        group,
        batch,
        reason: Refusal::Stranger(group.server),
    };
    let answer = FromServer::Answer {
        group,
        transfer,
        answer: Answer::Have(TRANSFER.attempt),
    };
    let unread = FromServer::Unread {
        read: 4,
        reason: Refusal::Stale(GENERATION),
    };
    let paused = FromServer::Unread {
        read: 4,
        reason: Refusal::Sleep(Duration::from_millis(250)),
    };
    [
        (
            "acked",
            FromServer::Acked {
                shuffle,
                group,
                batch,
            },
        ),
        ("refused", refused),
        ("answer", answer),
        ("rows", rows),
        ("unread", unread),
        ("paused", paused),
    ]
}
