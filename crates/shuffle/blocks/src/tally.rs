//! What is counted: rows, bytes, and a digest that does not depend on order.

use core::iter::Sum;

use treadle_guards::checks;

/// Counts of rows. Adding them up in any order gives the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tally {
    /// Rows. An opaque object counts as one.
    pub rows: u64,
    /// Bytes of the rows, without headers.
    pub bytes: u64,
    /// The sum of the digests of the rows ([`RowDigest`]), modulo 2⁶⁴.
    pub digest: u64,
}

impl Tally {
    /// Adds what another one counts.
    pub fn add(&mut self, other: &Self) {
        self.rows = self.rows.wrapping_add(other.rows);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.digest = self.digest.wrapping_add(other.digest);
    }

    /// Takes away what another one counts, which was added before.
    pub fn subtract(&mut self, other: &Self) {
        self.rows = self.rows.wrapping_sub(other.rows);
        self.bytes = self.bytes.wrapping_sub(other.bytes);
        self.digest = self.digest.wrapping_sub(other.digest);
    }

    /// Whether nothing is counted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The same with the low half of the digest only, as pieces have it.
    #[must_use]
    pub fn narrow(mut self) -> Self {
        self.digest &= u64::from(u32::MAX);
        self
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |mut sum, tally| {
            sum.add(&tally);
            sum
        })
    }
}

/// Digests of the rows that one map has for one partition.
///
/// A row that is changed, or filed under another map or partition, changes the sum; a change of order
/// does not. It finds accidents. It is no protection against somebody who wants to deceive.
#[derive(Clone, Copy, Debug)]
pub struct RowDigest(u64);

impl RowDigest {
    /// Of rows from `map` for `partition`.
    pub const fn new(map: u32, partition: u32) -> Self {
        let seed = (map as u64) << 32 | partition as u64;
        Self(fold(seed ^ 0x243f_6a88_85a3_08d3, 0x9e37_79b9_7f4a_7c15))
    }

    /// The digest of one row.
    ///
    /// Pairs of words are mixed independently of each other, each with its own key, so that a
    /// processor works on several at once.
    #[inline]
    pub fn of(&self, row: &[u8]) -> u64 {
        if !checks::are_computed() {
            return 0;
        }
        let mut sum = row.len() as u64;
        let mut key = 0xa076_1d64_78bd_642f_u64;
        // One number, as compilers make two loads of it in every build.
        let mut mix = |pair: u128| {
            let low = pair as u64 ^ key;
            let high = (pair >> 64) as u64 ^ key.rotate_left(32);
            sum = sum.wrapping_add(fold(low, high));
            key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
        };
        let (pairs, rest) = row.as_chunks::<16>();
        for pair in pairs {
            mix(u128::from_le_bytes(*pair));
        }
        if !rest.is_empty() {
            mix(padded(rest));
        }
        fold(self.0 ^ sum, 0x8ebc_6af0_9c88_c6e3)
    }

    /// The sum over rows of `width` bytes each.
    pub fn of_rows(&self, rows: &[u8], width: usize) -> u64 {
        if !checks::are_computed() {
            return 0;
        }
        match width {
            // The compiler knows the length here.
            8 => self.sum(rows.as_chunks::<8>().0.iter().map(|row| &row[..])),
            _ => self.sum(rows.chunks_exact(width.max(1))),
        }
    }

    #[inline]
    fn sum<'r>(&self, rows: impl Iterator<Item = &'r [u8]>) -> u64 {
        rows.fold(0, |sum, row| sum.wrapping_add(self.of(row)))
    }
}

/// Fewer than 16 bytes as a number, with zeros above them.
///
/// They are read as words, which may overlap. To copy them first and read the copy as another word takes
/// ten times as long: the processor waits until the copy is written.
#[inline]
fn padded(rest: &[u8]) -> u128 {
    let word = |bytes: &[u8; 8]| u128::from(u64::from_le_bytes(*bytes));
    let half = |bytes: &[u8; 4]| u128::from(u32::from_le_bytes(*bytes));
    let bits = 8 * rest.len();
    match (rest.first_chunk(), rest.last_chunk()) {
        // Rows of whole words are common.
        (Some(low), _) if bits == 64 => word(low),
        (Some(low), Some(high)) => word(low) | word(high) << (bits - 64),
        _ => match (rest.first_chunk(), rest.last_chunk()) {
            (Some(low), Some(high)) => half(low) | half(high) << (bits - 32),
            _ => rest
                .iter()
                .rfold(0, |number, &byte| number << 8 | u128::from(byte)),
        },
    }
}

/// Both halves of the product in one word (the mixing step of wyhash, Wang Yi, 2019), with the first
/// operand added, so that a zero does not stay one.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product as u64) ^ ((product >> 64) as u64) ^ a.rotate_left(23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_does_not_depend_on_order_but_on_every_bit_map_and_partition() {
        let digest = RowDigest::new(3, 5);
        let rows: [u8; 24] = core::array::from_fn(|i| i as u8);
        let sum = digest.of_rows(&rows, 8);
        let mut turned = rows;
        turned.rotate_left(8);
        assert_eq!(sum, digest.of_rows(&turned, 8));
        for bit in 0..rows.len() * 8 {
            let mut flipped = rows;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sum, digest.of_rows(&flipped, 8), "bit {bit}");
        }
        assert_ne!(sum, RowDigest::new(4, 5).of_rows(&rows, 8));
        assert_ne!(sum, RowDigest::new(3, 6).of_rows(&rows, 8));
        assert_ne!(digest.of(&[0, 0]), digest.of(&[0, 0, 0]));
    }

    #[test]
    fn what_is_left_of_a_row_is_padded_with_zeros() {
        let rest: [u8; 16] = core::array::from_fn(|i| 0xF0 + i as u8);
        for length in 0..16 {
            let mut pair = [0; 16];
            pair[..length].copy_from_slice(&rest[..length]);
            let found = padded(&rest[..length]);
            assert_eq!(found, u128::from_le_bytes(pair), "{length} bytes");
        }
    }

    #[test]
    fn what_is_added_can_be_taken_away() {
        let one = Tally {
            rows: 3,
            bytes: 24,
            digest: u64::MAX,
        };
        let mut sum: Tally = [one, one].into_iter().sum();
        assert_eq!((sum.rows, sum.digest), (6, u64::MAX - 1));
        sum.subtract(&one);
        assert_eq!(sum, one);
        assert_eq!(sum.narrow().digest, u64::from(u32::MAX));
    }
}
