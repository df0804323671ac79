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
#[macro_use]
#[path = "../../../../fuzz/kept.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod kept;

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    fn what_is_valid_is_decoded() {
        for (name, bytes) in seeds() {
            assert!(Manifest::decode(&bytes).is_some(), "{name}");
        }
    }

    kept!(manifest, seeds);
}
