//! What the parts of the shuffle plane say survives the wire, and what cannot be is refused.

mod strategies;

use proptest::prelude::*;
use treadle_shuffle::{
    AttemptId, BatchId, Chosen, Commit, FromServer, Generation, Group, GroupId, MapSet, Plan,
    ReadPiece, Receipt, ServerId, ShuffleId, Tally, Tenant, ToMaster, ToNode,
};
use treadle_shuffle_wire::{Shuffled, WireError, decode_shuffled, encode_shuffled};
use treadle_types::Runs;

use strategies::{from_server, receipt, to_master, to_node, to_server};

/// A message comes back as it was; cut or changed it is another one, or refused.
fn survives<M: Shuffled + PartialEq + std::fmt::Debug>(
    message: M,
    at: prop::sample::Index,
    byte: u8,
) {
    let mut bytes = encode_shuffled(&message);
    assert_eq!(decode_shuffled::<M>(&bytes).as_ref(), Ok(&message));
    let at = at.index(bytes.len());
    assert_ne!(decode_shuffled(&bytes[..at]), Ok(message));
    bytes[at] = byte;
    if let Ok(other) = decode_shuffled::<M>(&bytes) {
        assert_eq!(decode_shuffled(&encode_shuffled(&other)), Ok(other));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn messages_survive(
        to_node in to_node(),
        to_master in to_master(),
        to_server in to_server(),
        from_server in from_server(),
        receipt in receipt(),
        at: prop::sample::Index,
        byte: u8,
    ) {
        survives(to_node, at, byte);
        survives(to_master, at, byte);
        survives(to_server, at, byte);
        survives(from_server, at, byte);
        survives(receipt, at, byte);
    }
}

fn id(node: u32) -> GroupId {
    let server = ServerId {
        node,
        incarnation: 1,
    };
    let epoch = Generation(1);
    GroupId { epoch, server }
}

#[test]
fn plans_that_cannot_be_are_refused_by_name() {
    let of = |groups: &[(u32, Runs)], partitions| {
        let groups = groups.iter();
        let groups = groups.map(|(node, partitions)| Group::new(id(*node), partitions.clone()));
        let plan = Plan {
            shuffle: ShuffleId(1),
            generation: Generation(1),
            opened: Generation(1),
            is_final: false,
            tenant: Tenant::default(),
            maps: 3,
            partitions,
            groups: groups.collect(),
        };
        let bytes = encode_shuffled(&ToNode::Plan(plan.into()));
        decode_shuffled::<ToNode>(&bytes).map(drop)
    };
    let (low, high) = (Runs::range(0, 4), Runs::range(4, 8));
    assert_eq!(of(&[(1, low.clone()), (2, high.clone())], 8), Ok(()));
    let refused = |column, value| Err(WireError::Range { column, value });
    let unordered = of(&[(2, low.clone()), (1, high.clone())], 8);
    assert_eq!(unordered, refused("groups", 1));
    assert_eq!(of(&[(1, high.clone())], 7), refused("partitions", 8));
    assert_eq!(of(&[(1, Runs::new())], 8), refused("partitions", 0));
    let twice = of(&[(1, low), (2, Runs::range(3, 8))], 8);
    assert_eq!(twice, refused("partitions", 3));
    let many = of(&[(1, high)], u32::MAX);
    assert!(matches!(
        many,
        Err(WireError::TooMany {
            what: "partitions",
            ..
        })
    ));
}

/// A commit of one group with these winners, of which it has those at these positions.
fn commit_of(winners: Vec<(u32, AttemptId)>, positions: MapSet) -> Vec<u8> {
    let tally = Tally::default();
    let commit = Commit {
        keeps: false,
        shuffle: ShuffleId(1),
        groups: [(id(1), Chosen { positions, tally })].into(),
        winners: winners.into(),
    };
    encode_shuffled(&ToMaster::Commit { ask: 1, commit })
}

#[test]
fn lists_out_of_order_are_refused_by_name() {
    let decode = |winners: &[(u32, u64)], positions: &[u32]| {
        let winners = winners
            .iter()
            .map(|&(map, attempt)| (map, AttemptId(attempt)));
        let bytes = commit_of(winners.collect(), positions.iter().copied().collect());
        decode_shuffled::<ToMaster>(&bytes).map(|_| ())
    };
    let refused = |column, value| Err(WireError::Range { column, value });
    assert_eq!(decode(&[(2, 1), (2, 2)], &[1]), Ok(()));
    assert_eq!(decode(&[(2, 2), (2, 1)], &[1]), refused("winners", 1));
    assert_eq!(decode(&[(2, 1), (2, 2)], &[0, 1]), refused("positions", 1));
    assert_eq!(decode(&[(2, 1), (3, 2)], &[0, 2]), refused("positions", 2));
    let many = commit_of(Vec::new(), MapSet::from_bits(vec![1; (1 << 14) + 1]));
    let error = decode_shuffled::<ToMaster>(&many).unwrap_err();
    assert!(matches!(error, WireError::TooMany { .. }), "{error}");
}

#[test]
fn there_may_be_more_pieces_than_maps() {
    let piece = |map: u32| ReadPiece {
        batch: BatchId {
            map,
            ..BatchId::default()
        },
        rows: 1,
        bytes: 8,
        digest: 0,
        packed: 0,
    };
    let message = FromServer::Rows {
        read: 1,
        tally: Tally::default(),
        pieces: (0..=1 << 20).map(|number| piece(number / 2)).collect(),
    };
    let bytes = encode_shuffled(&message);
    assert_eq!(decode_shuffled::<FromServer>(&bytes), Ok(message));
}

#[test]
fn a_winner_takes_few_bytes_and_a_false_count_none() {
    let attempt = |map: u32| AttemptId(u64::from(1000 + map) << 32 | 1);
    let winners: Vec<_> = (0..1000).map(|map| (map, attempt(map))).collect();
    let some = (0..1000).filter(|map| map % 3 > 0).collect();
    for positions in [MapSet::below(1000), some] {
        let bytes = commit_of(winners.clone(), positions);
        assert!(bytes.len() < 3 * 1000 + 1000 / 8 + 100, "{}", bytes.len());
    }
    // A receipt whose shares are nothing but their count: a million.
    let receipt = [10, 0, 18, 4, 8, 0x80, 0x80, 0x40];
    let error = decode_shuffled::<Receipt>(&receipt).unwrap_err();
    assert_eq!(error, WireError::Short { column: "epochs" });
    let receipt = [10, 0, 18, 5, 8, 0x81, 0x80, 0x80, 0x08];
    let error = decode_shuffled::<Receipt>(&receipt).unwrap_err();
    assert!(matches!(error, WireError::TooMany { what: "shares", .. }));
}
