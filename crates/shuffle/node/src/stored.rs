//! The batches of a group that are in memory.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use treadle_shuffle::BatchId;
use treadle_shuffle::block::{ALIGNMENT, HEADER};

use crate::incoming::Arrived;

/// Batches by their names.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    by_id: BTreeMap<BatchId, Arrived>,
    /// The rows of each, in the same order: from the first read until a batch comes or goes. A read looks
    /// into all batches, and a list is faster to go through than a tree.
    rows: OnceCell<Vec<(BatchId, Bytes)>>,
}

impl Batches {
    pub(crate) fn insert(&mut self, id: BatchId, batch: Arrived) {
        self.rows.take();
        self.by_id.insert(id, batch);
    }

    pub(crate) fn remove(&mut self, id: BatchId) -> Option<Arrived> {
        self.rows.take();
        self.by_id.remove(&id)
    }

    pub(crate) fn get(&self, id: BatchId) -> Option<&Arrived> {
        self.by_id.get(&id)
    }

    /// The rows of all batches, in the order of the names.
    pub(crate) fn rows(&self) -> &[(BatchId, Bytes)] {
        self.rows.get_or_init(|| {
            let batches = self.by_id.iter();
            let rows = batches.map(|(&id, (bytes, table))| {
                let start = (HEADER + table.as_bytes().len()).next_multiple_of(ALIGNMENT);
                (id, bytes.slice(start..))
            });
            rows.collect()
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}
