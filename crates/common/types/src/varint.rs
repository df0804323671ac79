//! Unsigned integers in as few bytes as they need: LEB128, in the shortest form. The one varint of
//! the project; signed integers are zigzag-coded first.

use alloc::vec::Vec;

/// Why bytes do not begin with a varint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VarintError {
    /// They end before it does.
    #[error("an integer is cut off")]
    Truncated,
    /// It is not in its shortest form, or has more than 64 bits.
    #[error("a malformed integer")]
    Malformed,
}

/// Appends an integer.
#[inline]
pub fn put(value: u64, into: &mut Vec<u8>) {
    match value {
        0..0x80 => into.push(value as u8),
        _ => put_long(value, into),
    }
}

fn put_long(mut value: u64, into: &mut Vec<u8>) {
    let mut bytes = [0; 10];
    let mut length = 0;
    while value >= 0x80 {
        bytes[length] = value as u8 | 0x80;
        length += 1;
        value >>= 7;
    }
    bytes[length] = value as u8;
    into.extend_from_slice(&bytes[..=length]);
}

/// The integer at the start of `bytes`, and how many bytes it takes.
///
/// # Errors
/// When `bytes` do not begin with an integer in its shortest form.
#[inline]
pub fn get(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    match *bytes {
        [byte, ..] if byte < 0x80 => Ok((u64::from(byte), 1)),
        [first, second, ..] if second < 0x80 && second > 0 => {
            Ok((u64::from(first & 0x7f) | u64::from(second) << 7, 2))
        }
        _ => get_long(bytes),
    }
}

fn get_long(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    if let Some(word) = bytes.first_chunk() {
        let word = u64::from_le_bytes(*word);
        // Of the last byte the highest bit is 0.
        let ends = !word & 0x8080_8080_8080_8080;
        if ends != 0 {
            let length = ends.trailing_zeros() as usize / 8 + 1;
            if length > 1 && bytes[length - 1] == 0 {
                return Err(VarintError::Malformed);
            }
            let own = word & (u64::MAX >> (64 - 8 * length));
            // Seven bits of each byte, then fourteen of each two, then 28 of each four.
            let ones = own & 0x7f7f_7f7f_7f7f_7f7f;
            let twos = (ones & 0x007f_007f_007f_007f) | ((ones & 0x7f00_7f00_7f00_7f00) >> 1);
            let fours = (twos & 0x0000_3fff_0000_3fff) | ((twos & 0x3fff_0000_3fff_0000) >> 2);
            return Ok(((fours & 0x0fff_ffff) | ((fours >> 32) << 28), length));
        }
    }
    let mut value = 0u64;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            let overlong = *byte == 0 && at > 0;
            let overflow = at == 9 && *byte > 1;
            return if overlong || overflow {
                Err(VarintError::Malformed)
            } else {
                Ok((value, at + 1))
            };
        }
    }
    Err(if bytes.len() < 10 {
        VarintError::Truncated
    } else {
        VarintError::Malformed
    })
}

/// Small for integers near 0, of either sign.
#[inline]
pub fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn integers_come_back() {
        let powers = (0..64).map(|bit| 1u64 << bit);
        for value in powers
            .flat_map(|power| [power - 1, power])
            .chain([u64::MAX])
        {
            let mut bytes = Vec::new();
            put(value, &mut bytes);
            let length = bytes.len();
            assert_eq!(get(&bytes), Ok((value, length)));
            let cut = &bytes[..length - 1];
            assert_eq!(get(cut), Err(VarintError::Truncated));
            bytes.extend([0xff; 8]);
            assert_eq!(get(&bytes), Ok((value, length)), "others follow");
            assert_eq!(zigzag(unzigzag(value)), value);
        }
    }

    #[test]
    fn other_forms_are_malformed() {
        for bytes in [
            &[0x80, 0][..],
            &[0xff, 0x80, 0],
            &[0xff; 10],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
        ] {
            assert_eq!(get(bytes), Err(VarintError::Malformed), "{bytes:?}");
            let followed = [bytes, &[1; 8]].concat();
            assert_eq!(get(&followed), Err(VarintError::Malformed), "{bytes:?}");
        }
    }
}
