//! What the fuzz target calls: any bytes as the manifest of a directory.

use crate::manifest::Manifest;

/// Takes a manifest apart, and packs what it held again.
///
/// # Panics
/// When the decoder breaks its word.
pub fn manifest(bytes: &[u8]) {
    if let Some(manifest) = Manifest::decode(bytes) {
        assert_eq!(Manifest::decode(&manifest.encode()), Some(manifest));
    }
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
    use std::time::Duration;

    use proptest::prelude::*;

    use super::damaged::damaged;
    use super::{corpus, manifest};
    use crate::manifest::Manifest;

    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let one = |seconds, renewal| Manifest {
            lease: Duration::from_secs(seconds),
            renewal,
        };
        vec![
            ("first", one(60, 0).encode()),
            ("last", one(24 * 3600, u64::MAX).encode()),
        ]
    }

    #[test]
    fn the_corpus_has_what_is_valid() {
        for (name, bytes) in seeds() {
            corpus::compare("manifest", name, &bytes);
            assert!(Manifest::decode(&bytes).is_some(), "{name}");
        }
    }

    #[test]
    fn the_corpus_is_replayed() {
        corpus::replay("manifest", manifest);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            manifest(&bytes);
        }

        #[test]
        fn damaged_seeds(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            length in any::<prop::sample::Index>(),
        ) {
            damaged(seeds(), &changes, length, manifest);
        }
    }
}
