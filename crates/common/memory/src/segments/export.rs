//! Snapshots of shared memory that are about to be sent.

use std::fmt;
use std::sync::Arc;

use rustix::fd::{AsFd, BorrowedFd};

use super::{SegmentId, Segments};
use crate::file::{File, FileId};

/// A snapshot that is about to be sent: its content does not change, and the segment is not used
/// again, as long as this value is there or a receiver has it.
pub struct Export {
    /// Where the bytes start in the descriptor's file.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
    /// What to tell [`Segments::lend`] and [`Segments::release`].
    pub segment: SegmentId,
    pub(super) file: Arc<File>,
    pub(super) segments: &'static Segments,
}

impl Export {
    /// Names the descriptor's file.
    pub fn file(&self) -> FileId {
        self.file.id
    }
}

impl AsFd for Export {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.segments.release_hold(self.segment, |holds| {
            holds.exports = holds.exports.saturating_sub(1);
        });
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Export {
            segment,
            offset,
            length,
            ..
        } = self;
        write!(f, "Export({segment:?}, bytes {offset}..+{length})")
    }
}
