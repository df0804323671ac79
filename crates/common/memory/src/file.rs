//! Files of memory, by number.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

static LAST: AtomicU64 = AtomicU64::new(0);

/// Names a file of memory within one process, whoever made it. Numbers are never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileId(pub u64);

impl FileId {
    pub(crate) fn next() -> Self {
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// A file that this process made.
pub(crate) struct File {
    pub(crate) id: FileId,
    fd: OwnedFd,
}

impl File {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            id: FileId::next(),
            fd,
        }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
