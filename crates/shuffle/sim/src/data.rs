//! Rows: what maps hold, and what must come out.

use std::collections::BTreeMap;

use treadle_shuffle::block::{Header, Table, TableBuilder};
use treadle_shuffle::{GroupId, RowDigest, ShuffleId, Tally, Transfer};
use treadle_types::Runs;

use treadle_sim_kernel::mix;

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
    pub(super) partitions: u32,
    /// Rows of a map, at most.
    pub(super) rows: u32,
    pub(super) is_deterministic: bool,
}

impl Source {
    /// The rows of a map by partition, in their order.
    pub(super) fn rows(&self, map: u32, attempt: u64) -> BTreeMap<u32, Vec<u64>> {
        let salt = if self.is_deterministic { 0 } else { attempt };
        let seed = mix(mix(self.shuffle.0 << 32 | u64::from(map)) ^ salt);
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
