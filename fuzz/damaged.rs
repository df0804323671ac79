//! What the crates' tests do with valid messages.

use proptest::sample::Index;

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
