//! FNV-1a (Fowler, Noll, Vo), 64 bits: a hash that is the same in each process and release. Whoever chooses texts can
//! choose two with one hash.

/// The hash of a text.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_that_are_published() {
        let published = [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ];
        for (text, expected) in published {
            assert_eq!(hash(text), expected, "{text}");
        }
    }
}
