//! What a client has no futures of any more, in columns.

use super::WireError;
use super::column::{Cells, Column};
use super::family::{Family, Rows};
use crate::wire::proto;

#[derive(Debug, Default)]
pub struct Releases {
    counts: Column,
    ids: Column,
}

impl Releases {
    pub(super) fn push(&mut self, ids: &[u32]) {
        self.counts.put(ids.len() as u64);
        for id in ids {
            self.ids.put_delta((*id).into());
        }
    }

    /// An upper bound of what so many ids add, in bytes.
    pub(super) fn cost(ids: &[u32]) -> usize {
        10 + 5 * ids.len()
    }
}

impl Family for Releases {
    const FIELD: u32 = 4;

    fn is_empty(&self) -> bool {
        self.counts.len() == 0
    }

    fn written(&mut self) -> usize {
        self.counts.written(1) + self.ids.written(2)
    }

    fn write(&mut self, into: &mut Vec<u8>) {
        self.counts.write(1, into);
        self.ids.write(2, into);
    }
}

#[derive(Debug)]
pub struct ReleaseRows {
    counts: Cells,
    ids: Cells,
}

impl ReleaseRows {
    pub(super) fn new(section: proto::Releases) -> Self {
        Self {
            counts: Cells::new("counts", section.counts),
            ids: Cells::new("ids", section.ids),
        }
    }
}

impl Rows for ReleaseRows {
    type Message = Vec<u32>;

    #[inline]
    fn next(&mut self) -> Result<Option<Vec<u32>>, WireError> {
        if self.counts.is_done() {
            return Ok(None);
        }
        let count = self.counts.get_count(&self.ids)?;
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            ids.push(self.ids.get_delta_u32()?);
        }
        Ok(Some(ids))
    }

    fn end(&self) -> Result<(), WireError> {
        self.ids.end()
    }
}
