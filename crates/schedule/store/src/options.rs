//! How a store is set up.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the store makes the directory of its files. It is made where it is missing.
    pub directory: PathBuf,
    /// Managed memory, in bytes, above which the least recently used objects leave memory. Not
    /// more than `limit`.
    pub target: u64,
    /// Managed memory, in bytes, that [`Store::put`](crate::Store::put) does not exceed.
    pub limit: u64,
    /// What the lengths of its files together do not exceed, in bytes.
    pub quota: u64,
    /// How long the store waits before it writes again after the disk failed. It doubles with
    /// every failure, up to 64 times of it.
    pub retry: Duration,
    /// How long [`Store::put`](crate::Store::put) waits for room at most while the disk fails;
    /// `None`: as long as it was told.
    pub patience: Option<Duration>,
    /// Whether a file is on the device (`fdatasync`) before its object leaves memory. Without, a
    /// disk that fails after the system took the bytes loses the object: reading it back is then
    /// an error.
    pub sync: bool,
}

impl Options {
    /// A limit in bytes, and a target of 60 % of it. No quota but the disk's room.
    pub fn new(directory: impl Into<PathBuf>, limit: u64) -> Self {
        Options {
            directory: directory.into(),
            target: limit / 5 * 3 + limit % 5 * 3 / 5,
            limit,
            quota: u64::MAX,
            retry: Duration::from_secs(1),
            patience: None,
            sync: true,
        }
    }

    /// The limit of this process's control groups, or all of the machine's memory (see
    /// [`treadle_memory::memory_limit`]), and a target of 60 % of it.
    pub fn from_cgroup(directory: impl Into<PathBuf>) -> Self {
        Options::new(directory, treadle_memory::memory_limit())
    }
}
