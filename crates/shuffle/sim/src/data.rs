//! Rows: what maps hold, and what must come out.

use std::collections::{BTreeMap, BTreeSet};

use treadle_shuffle::block::{Header, Table, TableBuilder};
use treadle_shuffle::{GroupId, RowDigest, ShuffleId, Tally, Transfer};
use treadle_types::Runs;

use treadle_sim_kernel::mix;

use crate::tasks::Rows;

/// A batch, as its bytes would be.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) header: Header,
    pub(super) table: Table,
    pub(super) pieces: BTreeMap<u32, Vec<u64>>,
}

/// What a map of a shuffle holds. A map that is not deterministic holds something else in each attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) shuffle: ShuffleId,
    /// Which rows: those of another number of the same shuffle are the same.
    pub(super) data: u64,
    pub(super) partitions: u32,
    /// Rows of a map, at most.
    pub(super) rows: u32,
    pub(super) is_deterministic: bool,
}

impl Source {
    /// The rows of a map by partition, in their order.
    pub(super) fn rows(&self, map: u32, attempt: u64) -> BTreeMap<u32, Vec<u64>> {
        let salt = if self.is_deterministic { 0 } else { attempt };
        let seed = mix(mix(self.data << 32 | u64::from(map)) ^ salt);
        let count = seed % u64::from(self.rows + 1);
        let mut rows = BTreeMap::<u32, Vec<u64>>::new();
        for row in (0..count).map(|index| mix(seed ^ mix(index + 1))) {
            let partition = (row >> 7) % u64::from(self.partitions);
            rows.entry(partition as u32).or_default().push(row);
        }
        rows
    }

    /// The batches of an attempt for a group, of at most `most` rows each.
    pub(super) fn batches(
        &self,
        transfer: Transfer,
        group: GroupId,
        partitions: &Runs,
        most: usize,
    ) -> Vec<Batch> {
        let mut cut: Vec<BTreeMap<u32, Vec<u64>>> = Vec::new();
        let mut room = 0;
        for (partition, rows) in self.rows(transfer.map, transfer.attempt.0) {
            if !partitions.contains(u64::from(partition)) {
                continue;
            }
            let mut rows = &rows[..];
            while !rows.is_empty() {
                if room == 0 {
                    cut.push(BTreeMap::new());
                    room = most;
                }
                let (now, later) = rows.split_at(rows.len().min(room));
                room -= now.len();
                rows = later;
                let last = cut.last_mut().expect("one was begun");
                last.insert(partition, now.to_vec());
            }
        }
        let numbered = cut.into_iter().enumerate();
        let batch = |(number, pieces): (usize, BTreeMap<u32, Vec<u64>>)| {
            let id = transfer.batch(number as u32);
            let mut builder = TableBuilder::new(self.shuffle, group.epoch, id, 8);
            for (&partition, rows) in &pieces {
                builder.push(partition, &tally(transfer.map, partition, rows));
            }
            let (header, table) = builder.finish().expect("pieces are in order");
            Batch {
                header,
                table,
                pieces,
            }
        };
        numbered.map(batch).collect()
    }
}

/// What each map's rows may be: those of one attempt, the same one in all outputs.
pub(super) struct Expected {
    what: String,
    candidates: BTreeMap<u32, Vec<BTreeMap<u32, Vec<u64>>>>,
}

impl Expected {
    /// `attempts`: all that there were of a map.
    pub(super) fn new(source: &Source, maps: u32, attempts: impl Fn(u32) -> BTreeSet<u64>) -> Self {
        let candidates = (0..maps).map(|map| {
            let attempts = match source.is_deterministic {
                true => [0].into(),
                false => attempts(map),
            };
            let rows = attempts.into_iter();
            (map, rows.map(|attempt| source.rows(map, attempt)).collect())
        });
        Self {
            what: format!("{:?}", source.shuffle),
            candidates: candidates.collect(),
        }
    }

    /// Compares an output with what the maps hold: every row once, in order. What the outputs before it
    /// had decides on the attempts.
    pub(super) fn verify(&mut self, partition: u32, rows: &Rows) -> Result<(), String> {
        let what = format!("partition {partition} of {}", self.what);
        let maps: Vec<u32> = rows.iter().map(|(map, _)| *map).collect();
        if !maps.is_sorted() {
            return Err(format!(
                "{what} is not in the order of its inputs: {maps:?}"
            ));
        }
        for (map, attempts) in &mut self.candidates {
            let of_map = rows.iter().filter(|(other, _)| other == map);
            let of_map: Vec<u64> = of_map.flat_map(|(_, rows)| rows).copied().collect();
            attempts.retain(|rows| match rows.get(&partition) {
                Some(rows) => *rows == of_map,
                None => of_map.is_empty(),
            });
            if attempts.is_empty() {
                return Err(format!(
                    "{what} has {} rows of input {map}, which are not those that it holds",
                    of_map.len()
                ));
            }
        }
        Ok(())
    }
}

/// What rows count.
pub(super) fn tally(map: u32, partition: u32, rows: &[u64]) -> Tally {
    let digest = RowDigest::new(map, partition);
    let digests = rows.iter().map(|row| digest.of(&row.to_le_bytes()));
    Tally {
        rows: rows.len() as u64,
        bytes: 8 * rows.len() as u64,
        digest: digests.fold(0, u64::wrapping_add),
    }
}
