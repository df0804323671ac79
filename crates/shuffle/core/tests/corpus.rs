//! Replays what fuzzing found for the decoders of batches (`fuzz/`).

#[path = "../../../../fuzz/block.rs"]
#[allow(unreachable_pub, reason = "it is a module of the fuzz target, too")]
mod block;
#[path = "../../../../fuzz/corpus.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod corpus;

use proptest::prelude::*;
use treadle_shuffle::block::{Header, TableBuilder};
use treadle_shuffle::{AttemptId, BatchId, Generation, ShuffleId, Tally};

/// Header and table of a batch: of rows with a width, or without; with a compressed piece, or without.
fn batch(width: u32, is_packed: bool) -> Vec<u8> {
    let id = BatchId {
        map: 7,
        attempt: AttemptId(1 << 40),
        number: 2,
    };
    let mut builder = TableBuilder::new(ShuffleId(9), Generation(3), id, width);
    for (partition, rows) in [(1, 3), (4, 1), (200, 1000)] {
        let tally = Tally {
            rows,
            bytes: rows * u64::from(width.max(5)),
            digest: rows * 0xfeed,
        };
        builder.push(partition, &tally);
    }
    let (mut header, mut table) = builder.finish().unwrap();
    if is_packed {
        let ends = table.pieces().map(|piece| piece.offset + piece.tally.bytes);
        let mut ends: Vec<u32> = ends.map(|end| end as u32).collect();
        ends[2] -= 4000;
        (header, table) = table.packed(&header, &ends).unwrap();
    }
    assert_eq!(table.len(), 3);
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(table.as_bytes());
    assert_eq!(Header::decode(&bytes), Ok(header));
    bytes
}

#[test]
fn the_corpus_is_replayed() {
    corpus::replay("block", block::block);
}

#[test]
fn the_corpus_has_what_is_valid() {
    corpus::compare("block", "fixed", &batch(8, false));
    corpus::compare("block", "variable", &batch(0, false));
    corpus::compare("block", "fixed-packed", &batch(8, true));
    corpus::compare("block", "variable-packed", &batch(0, true));
}

proptest! {
    #[test]
    fn damaged_batches(
        width in prop::sample::select(vec![0_u32, 8]),
        is_packed in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        length in any::<prop::sample::Index>(),
    ) {
        let mut bytes = batch(width, is_packed);
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        block::block(&bytes);
        block::block(&bytes[..length.index(bytes.len())]);
    }
}
