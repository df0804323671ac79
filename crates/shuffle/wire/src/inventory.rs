//! What a copy in a remote store consists of, as bytes: an object, for who adopts the copy.
//!
//! ```text
//! 0   4  "TSI1"
//! 4   8  digest of what follows
//! 12     shuffle 8 · epoch 4 · maps of a stripe 4 · rows 8 · bytes 8 · digest 8
//!        winners:  count 4, then map 4 · attempt 8
//!        counts:   count 4, then stripe 4 · position 4 · rows 8 · bytes 8 · digest 4
//!        runs:     count 4, then each: length 8 · length of its name 2 · name
//!                    index:   count 4, then partition 4 · map 4 · place 8
//!                    batches: count 4, then their headers
//! ```

use treadle_shuffle::block::{HEADER, Header};
use treadle_shuffle::{
    AttemptId, Expected, Generation, Inventory, RowDigest, ShuffleId, Tally, Winners,
};

const MAGIC: &[u8; 4] = b"TSI1";
/// Bytes before those that are covered by the digest.
const START: usize = 12;

/// A run, as another process finds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InventoryRun {
    /// Of its object.
    pub name: String,
    /// In bytes.
    pub length: u64,
    /// Partitions and maps, and where they begin.
    pub begins: Vec<(u32, u32, u64)>,
    /// Of its batches.
    pub headers: Vec<Header>,
}

fn digest(bytes: &[u8]) -> u64 {
    RowDigest::new(0, 0).of(bytes)
}

/// An inventory and the runs of its copy as an object.
pub fn encode_inventory(inventory: &Inventory, runs: &[InventoryRun]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([0; START - 4]);
    let Inventory {
        shuffle,
        epoch,
        expected,
        stripe,
        counts,
    } = inventory;
    let tally = &expected.tally;
    bytes.extend(shuffle.0.to_le_bytes());
    bytes.extend(epoch.0.to_le_bytes());
    bytes.extend(stripe.to_le_bytes());
    for number in [tally.rows, tally.bytes, tally.digest] {
        bytes.extend(number.to_le_bytes());
    }
    count(&mut bytes, expected.winners.iter().count());
    for (map, attempt) in expected.winners.iter() {
        bytes.extend(map.to_le_bytes());
        bytes.extend(attempt.0.to_le_bytes());
    }
    count(&mut bytes, counts.len());
    for ((stripe, at), tally) in counts {
        bytes.extend(stripe.to_le_bytes());
        bytes.extend(at.to_le_bytes());
        bytes.extend(tally.rows.to_le_bytes());
        bytes.extend(tally.bytes.to_le_bytes());
        bytes.extend((tally.digest as u32).to_le_bytes());
    }
    count(&mut bytes, runs.len());
    for run in runs {
        bytes.extend(run.length.to_le_bytes());
        bytes.extend((run.name.len() as u16).to_le_bytes());
        bytes.extend(run.name.as_bytes());
        count(&mut bytes, run.begins.len());
        for (partition, map, at) in &run.begins {
            bytes.extend(partition.to_le_bytes());
            bytes.extend(map.to_le_bytes());
            bytes.extend(at.to_le_bytes());
        }
        count(&mut bytes, run.headers.len());
        for header in &run.headers {
            bytes.extend(header.encode());
        }
    }
    let check = digest(&bytes[START..]);
    bytes[4..START].copy_from_slice(&check.to_le_bytes());
    bytes
}

fn count(bytes: &mut Vec<u8>, count: usize) {
    bytes.extend((count as u32).to_le_bytes());
}

/// The inverse of [`encode_inventory`]. `None`: it is none, or damaged.
pub fn decode_inventory(bytes: &[u8]) -> Option<(Inventory, Vec<InventoryRun>)> {
    let (head, rest) = bytes.split_at_checked(START)?;
    let check = digest(rest).to_le_bytes();
    if head[..4] != MAGIC[..] || head[4..] != check {
        return None;
    }
    let mut rest = Rest(rest);
    let (shuffle, epoch, stripe) = (rest.long()?, rest.word()?, rest.word()?);
    let tally = Tally {
        rows: rest.long()?,
        bytes: rest.long()?,
        digest: rest.long()?,
    };
    let winners = rest.list(12, |rest| Some((rest.word()?, AttemptId(rest.long()?))))?;
    if !winners.is_sorted_by(|one, other| one.0 < other.0) {
        return None;
    }
    let counts = rest.list(28, |rest| {
        let name = (rest.word()?, rest.word()?);
        let tally = Tally {
            rows: rest.long()?,
            bytes: rest.long()?,
            digest: rest.word()?.into(),
        };
        Some((name, tally))
    })?;
    let runs = rest.list(18, |rest| {
        let length = rest.long()?;
        let name = u16::from_le_bytes(*rest.take(2)?.first_chunk()?);
        let name = rest.take(name.into())?;
        let begins = rest.list(16, |rest| Some((rest.word()?, rest.word()?, rest.long()?)))?;
        let headers = rest.list(HEADER, |rest| Header::decode(rest.take(HEADER)?).ok())?;
        Some(InventoryRun {
            name: str::from_utf8(name).ok()?.into(),
            length,
            begins,
            headers,
        })
    })?;
    let inventory = Inventory {
        shuffle: ShuffleId(shuffle),
        epoch: Generation(epoch),
        expected: Expected {
            winners: winners.into_iter().collect::<Winners>(),
            tally,
        },
        stripe,
        counts,
    };
    rest.0.is_empty().then_some((inventory, runs))
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.take(4)?.first_chunk()?))
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.take(8)?.first_chunk()?))
    }

    /// So many of what takes at least `least` bytes as it says first.
    fn list<T>(
        &mut self,
        least: usize,
        mut one: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.word()? as usize;
        if count > self.0.len() / least {
            return None;
        }
        (0..count).map(|_| one(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::seeds::inventory;

    #[test]
    fn an_inventory_is_read_as_it_was_written() {
        let (inventory, runs) = inventory();
        let bytes = encode_inventory(&inventory, &runs);
        assert_eq!(decode_inventory(&bytes), Some((inventory, runs)));
    }

    #[test]
    fn one_that_is_damaged_cut_off_or_continued_is_none() {
        let (inventory, runs) = inventory();
        let bytes = encode_inventory(&inventory, &runs);
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_inventory(&damaged).is_none(), "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert!(decode_inventory(&bytes[..end]).is_none(), "{end} bytes");
            // A digest that is right does not make it one.
            let mut cut = bytes[..end].to_vec();
            if end > START {
                let check = digest(&cut[START..]);
                cut[4..START].copy_from_slice(&check.to_le_bytes());
                assert!(decode_inventory(&cut).is_none(), "{end} bytes");
            }
        }
        assert!(decode_inventory(&[&bytes[..], &[0]].concat()).is_none());
    }
}
