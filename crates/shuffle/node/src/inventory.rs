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

use std::collections::HashMap;
use std::sync::Arc;

use treadle_shuffle::block::{HEADER, Header};
use treadle_shuffle::{
    AttemptId, BatchId, Expected, Generation, Inventory, RowDigest, ShuffleId, Tally, Winners,
};

use crate::index::Index;
use crate::run::Run;

const MAGIC: &[u8; 4] = b"TSI1";
/// Bytes before those that are covered by the digest.
const START: usize = 12;
/// Bytes of an inventory, at most.
const MOST: u64 = 256 << 20;

/// A run, as another process finds it.
pub(crate) struct WrittenRun {
    pub(crate) name: String,
    pub(crate) length: u64,
    pub(crate) index: Index,
    pub(crate) headers: HashMap<BatchId, Header>,
}

fn digest(bytes: &[u8]) -> u64 {
    RowDigest::new(0, 0).of(bytes)
}

pub(crate) fn encode(inventory: &Inventory, runs: &[Arc<Run>]) -> Vec<u8> {
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
        let name = run.kept.name();
        bytes.extend(run.kept.length().to_le_bytes());
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(name.as_bytes());
        count(&mut bytes, run.index.begins().len());
        for (partition, map, at) in run.index.begins() {
            bytes.extend(partition.to_le_bytes());
            bytes.extend(map.to_le_bytes());
            bytes.extend(at.to_le_bytes());
        }
        count(&mut bytes, run.headers.len());
        for header in run.headers.values() {
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

/// Reads an inventory of this length with `fetch`.
pub(crate) fn read(
    length: u64,
    fetch: impl FnOnce(&mut [u8]) -> Result<(), String>,
) -> Result<(Inventory, Vec<WrittenRun>), String> {
    if length > MOST {
        return Err(format!("an inventory has {length} bytes, and may have {MOST}"));
    }
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(length as usize);
    reserved.map_err(|error| error.to_string())?;
    bytes.resize(length as usize, 0);
    fetch(&mut bytes)?;
    decode(&bytes).ok_or_else(|| "an inventory is damaged".into())
}

/// `None`: it is no inventory, or damaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Inventory, Vec<WrittenRun>)> {
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
        let index = rest.list(16, |rest| Some((rest.word()?, rest.word()?, rest.long()?)))?;
        let headers = rest.list(HEADER, |rest| {
            let header = Header::decode(rest.take(HEADER)?).ok()?;
            Some((header.batch, header))
        })?;
        Some(WrittenRun {
            name: str::from_utf8(name).ok()?.into(),
            length,
            index: Index::of(index)?,
            headers: headers.into_iter().collect(),
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
    use bytes::Bytes;
    use treadle_shuffle::block::TableBuilder;

    use super::*;
    use crate::run::{Kept, write};

    struct Nowhere(u64);

    impl Kept for Nowhere {
        fn length(&self) -> u64 {
            self.0
        }

        fn read_at(&self, _at: u64, _into: &mut [u8]) -> Result<(), String> {
            Err("nothing is here".into())
        }

        fn name(&self) -> &str {
            "treadle-1-0000000000000001/3.shuffle"
        }
    }

    fn written() -> (Inventory, Arc<Run>) {
        let tally = Tally {
            rows: 1,
            bytes: 1,
            digest: 77,
        };
        let id = BatchId {
            map: 3,
            attempt: AttemptId(1 << 40 | 9),
            number: 0,
        };
        let mut builder = TableBuilder::new(ShuffleId(5), Generation(2), id, 1);
        for partition in [0, 4, 5] {
            builder.push(partition, &tally);
        }
        let (header, table) = builder.finish().unwrap();
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(table.as_bytes());
        bytes.resize(header.length() as usize, 7);
        let batches = [(id, Bytes::from(bytes), table)];
        let (index, end) = write(&batches, |_| Ok::<_, ()>(())).unwrap();
        let run = Run::new(ShuffleId(5), &batches, index, Box::new(Nowhere(end)));
        let inventory = Inventory {
            shuffle: ShuffleId(5),
            epoch: Generation(2),
            expected: Expected {
                winners: [(3, id.attempt)].into_iter().collect(),
                tally: header.tally,
            },
            stripe: 4,
            counts: [0, 1, 2].map(|at| ((0, at), tally)).into(),
        };
        (inventory, Arc::new(run))
    }

    #[test]
    fn an_inventory_is_read_as_it_was_written() {
        let (inventory, run) = written();
        let bytes = encode(&inventory, &[run.clone(), run.clone()]);
        let (found, runs) = decode(&bytes).unwrap();
        assert_eq!(found, inventory);
        assert_eq!(runs.len(), 2);
        for found in runs {
            assert_eq!((&*found.name, found.length), (run.kept.name(), run.kept.length()));
            assert_eq!(found.index.begins(), run.index.begins());
            assert_eq!(found.headers, run.headers);
        }
    }

    #[test]
    fn one_that_is_damaged_cut_off_or_continued_is_none() {
        let (inventory, run) = written();
        let bytes = encode(&inventory, &[run]);
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_none(), "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_none(), "{end} bytes");
            // A digest that is right does not make it one.
            let mut cut = bytes[..end].to_vec();
            if end > START {
                let check = digest(&cut[START..]);
                cut[4..START].copy_from_slice(&check.to_le_bytes());
                assert!(decode(&cut).is_none(), "{end} bytes");
            }
        }
        assert!(decode(&[&bytes[..], &[0]].concat()).is_none());
        assert!(read(MOST + 1, |_| Ok(())).is_err());
    }
}
