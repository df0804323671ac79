//! How long a small piece keeps a large packet alive.
//!
//! What a packet's receiver uses up soon (a worker's recipes and inputs) are views of the packet. What
//! may stay for long (recipes and values at the scheduler, values at a client) is copied out of it,
//! several pieces to an allocation: a piece that outlives its neighbours holds at most [`GROUP`] bytes
//! that are not its own, and copying a hundred bytes costs less than an allocation. Only a piece that
//! is most of its packet remains a view.

use bytes::Bytes;

use crate::{Cells, WireError};

/// Bytes of pieces that share an allocation.
const GROUP: usize = 4096;

/// Takes what may stay out of one packet.
#[derive(Clone, Copy, Debug)]
pub struct Detacher {
    /// The packet's length.
    packet: usize,
}

impl Detacher {
    /// For a packet of so many bytes.
    pub fn new(packet: usize) -> Self {
        Self { packet }
    }

    /// A column of pieces.
    pub fn column(self, cells: Cells) -> Kept {
        Kept {
            detacher: self,
            cells,
            window: Bytes::new(),
            start: 0,
        }
    }

    /// A whole field.
    pub fn detach_field(self, field: Bytes) -> Bytes {
        if field.len() > self.packet / 2 && field.len() >= GROUP {
            field
        } else {
            Bytes::copy_from_slice(&field)
        }
    }
}

/// A column whose pieces may stay.
#[derive(Debug)]
pub struct Kept {
    detacher: Detacher,
    cells: Cells,
    /// A copy of a part of the column.
    window: Bytes,
    /// Where the part begins.
    start: usize,
}

impl Kept {
    /// The next piece.
    #[inline]
    pub(crate) fn next(&mut self, length: u64) -> Result<Bytes, WireError> {
        let size = usize::try_from(length).unwrap_or(usize::MAX);
        if size >= GROUP / 2 {
            return if size > self.detacher.packet / 2 {
                self.cells.slice(length)
            } else {
                Ok(Bytes::copy_from_slice(self.cells.take(length)?))
            };
        }
        let at = self.cells.position();
        let rest = self.cells.rest();
        if size > rest.len() {
            return Err(self.cells.short());
        }
        if size == 0 {
            return Ok(Bytes::new());
        }
        if at + size > self.start + self.window.len() {
            self.window = Bytes::copy_from_slice(&rest[..rest.len().min(GROUP)]);
            self.start = at;
        }
        self.cells.skip(size);
        Ok(self.window.slice(at - self.start..at - self.start + size))
    }

    pub(crate) fn end(&self) -> Result<(), WireError> {
        self.cells.end()
    }
}
