//! What the fuzz target calls: any bytes as a message of the shuffle plane, or a receipt.

pub mod seeds;

use crate::{Shuffled, decode_shuffled, encode_shuffled};

/// Takes a message of the shuffle plane apart, or a receipt, and packs what it held again.
///
/// # Panics
/// When a decoder breaks its word.
pub fn shuffled(bytes: &[u8]) {
    fn again<M: Shuffled + PartialEq>(bytes: &[u8]) {
        if let Ok(message) = decode_shuffled::<M>(bytes) {
            assert!(decode_shuffled::<M>(&encode_shuffled(&message)) == Ok(message));
        }
    }
    again::<treadle_shuffle::ToNode>(bytes);
    again::<treadle_shuffle::ToMaster>(bytes);
    again::<treadle_shuffle::ToServer>(bytes);
    again::<treadle_shuffle::FromServer>(bytes);
    again::<treadle_shuffle::Receipt>(bytes);
}

#[cfg(test)]
#[path = "../../../../fuzz/corpus.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod corpus;

#[cfg(test)]
#[path = "../../../../fuzz/damaged.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod damaged;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::damaged::damaged;
    use super::seeds::seeds;
    use super::*;

    #[test]
    fn the_corpus_has_what_is_valid() {
        for (name, bytes) in seeds() {
            corpus::compare("shuffled", name, &bytes);
        }
    }

    #[test]
    fn the_corpus_is_replayed() {
        corpus::replay("shuffled", shuffled);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            shuffled(&bytes);
        }

        #[test]
        fn damaged_seeds(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            length in any::<prop::sample::Index>(),
        ) {
            damaged(seeds(), &changes, length, shuffled);
        }
    }
}
