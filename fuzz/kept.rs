//! The tests that a fuzz target has in its crate, whose module `fuzzing` includes this file.

use proptest::sample::Index;

#[path = "corpus.rs"]
pub mod corpus;

/// Hands a target what is valid, with a few bytes changed, and cut.
pub fn damaged(
    seeds: impl IntoIterator<Item = (&'static str, Vec<u8>)>,
    changes: &[(Index, u8)],
    length: Index,
    target: impl Fn(&[u8]),
) {
    for (_, mut bytes) in seeds {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        target(&bytes);
        target(&bytes[..length.index(bytes.len())]);
    }
}

/// Tests the target `crate::fuzzing::$target`, whose valid inputs `$seeds` returns with their names: they are kept in
/// the corpus, all of that is replayed, and neither any bytes nor damaged inputs make it panic.
macro_rules! kept {
    ($target:ident, $seeds:ident) => {
        mod $target {
            use proptest::prelude::*;
            use proptest::sample::Index;

            use super::$seeds;
            use crate::fuzzing::kept::{corpus, damaged};
            use crate::fuzzing::$target as target;

            #[test]
            fn the_corpus_has_what_is_valid() {
                for (name, bytes) in $seeds() {
                    corpus::compare(stringify!($target), name, &bytes);
                }
            }

            #[test]
            fn the_corpus_is_replayed() {
                corpus::replay(stringify!($target), target);
            }

            proptest! {
                #[test]
                fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
                    target(&bytes);
                }

                #[test]
                fn damaged_seeds(
                    changes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
                    length in any::<Index>(),
                ) {
                    damaged($seeds(), &changes, length, target);
                }
            }
        }
    };
}
