//! How long a small piece keeps a large packet alive.
//!
//! What a packet's receiver uses up soon (a worker's recipes and inputs) are views of the packet. What
//! may stay for long (recipes and values at the scheduler, values at a client) is copied out of it,
//! several pieces to an allocation: a piece that outlives its neighbours holds at most [`GROUP`] bytes
//! that are not its own, and copying a hundred bytes costs less than an allocation. Only a piece that
//! is most of its packet remains a view.

use bytes::{Bytes, BytesMut};

use super::WireError;
use super::column::Cells;

/// Bytes of pieces that share an allocation.
const GROUP: usize = 4096;

/// Takes pieces out of one packet.
#[derive(Debug)]
pub struct Keeper {
    packet: usize,
    group: BytesMut,
}

impl Keeper {
    /// For a packet of so many bytes.
    pub(super) fn new(packet: usize) -> Self {
        Self {
            packet,
            group: BytesMut::new(),
        }
    }

    /// The next piece of a column.
    #[inline]
    pub(super) fn keep(&mut self, column: &mut Cells, length: u64) -> Result<Bytes, WireError> {
        let size = usize::try_from(length).unwrap_or(usize::MAX);
        if size > self.packet / 2 && size >= GROUP {
            return column.slice(length);
        }
        if size >= GROUP / 2 {
            return Ok(Bytes::copy_from_slice(column.take(length)?));
        }
        let left = column.remaining();
        let piece = column.take(length)?;
        if size == 0 {
            return Ok(Bytes::new());
        }
        if self.group.capacity() < size {
            // No more than there is left to keep.
            self.group = BytesMut::with_capacity(left.min(GROUP));
        }
        self.group.extend_from_slice(piece);
        Ok(self.group.split().freeze())
    }

    /// A whole field.
    pub(super) fn keep_field(&mut self, field: Bytes) -> Bytes {
        if field.len() > self.packet / 2 && field.len() >= GROUP {
            field
        } else {
            Bytes::copy_from_slice(&field)
        }
    }
}
