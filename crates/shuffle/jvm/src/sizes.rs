//! How many bytes each partition of a map has as it is stored: what Spark plans the next stage by.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use treadle_shuffle::block::{HEADER, Table};
use treadle_shuffle_client::source::{Allocate, Arena, Failure, Runs, Source, Transfer, Wanted};

/// A source of rows whose batches are looked at.
pub(crate) struct Sized<'a> {
    source: &'a dyn Source,
    sizes: Mutex<Vec<u64>>,
}

impl<'a> Sized<'a> {
    pub(crate) fn new(source: &'a dyn Source, partitions: u32) -> Self {
        Self {
            source,
            sizes: Mutex::new(vec![0; partitions as usize]),
        }
    }

    /// Bytes of each partition, as Java counts: 0 exactly where there is nothing. `rows`: bytes of the rows, which count
    /// where servers had them already.
    pub(crate) fn sizes(self, rows: &[u64]) -> Vec<i64> {
        let stored = self.sizes.into_inner();
        let stored = stored.unwrap_or_else(PoisonError::into_inner);
        let size = |(stored, rows): (u64, &u64)| if stored == 0 { *rows } else { stored };
        let sizes = stored.into_iter().zip(rows).map(size);
        sizes
            .map(|size| i64::try_from(size).unwrap_or(i64::MAX))
            .collect()
    }
}

impl Source for Sized<'_> {
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure> {
        let mut arenas = self.source.gather(transfer, groups, allocate)?;
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        for arena in &mut arenas {
            let bytes = &*arena.memory.as_mut_slice();
            let mut before = None;
            for batch in &arena.batches {
                let table = &bytes[batch.offset + HEADER..][..batch.header.table_length() as usize];
                let table = Table::new(&batch.header, Bytes::copy_from_slice(table));
                let table = table.map_err(|error| Failure::Source(Box::new(error)))?;
                for piece in table.pieces() {
                    let Some(size) = sizes.get_mut(piece.partition as usize) else {
                        continue;
                    };
                    // Rows that are gathered again replace those before. A long piece goes on in the next batch.
                    let known = if before == Some(piece.partition) {
                        *size
                    } else {
                        0
                    };
                    *size = known
                        + match piece.packed {
                            0 => piece.tally.bytes,
                            packed => packed.into(),
                        };
                    before = Some(piece.partition);
                }
            }
        }
        Ok(arenas)
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        self.source.count_in(partitions)
    }
}
