//! What can go wrong.

use std::path::PathBuf;

use treadle_volume::VolumeError;

use crate::file::FormatError;
use crate::{Form, StoredId};

/// What the store could not do. Nothing is lost by any of these but [`StoreError::Corrupt`] and a
/// file that cannot be read, unless the process only lacked descriptors or memory for that.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such object, or not any more.
    #[error("{id} is not in the store: it was never put, or its last reference was released")]
    Unknown {
        /// The object.
        id: StoredId,
    },
    /// There is no room in memory, and none could be made.
    #[error(
        "{id} needs {needed} bytes, but {managed} of the limit of {limit} bytes are in use, \
         {pinned} of them by running tasks and transfers: raise the memory limit, or make smaller \
         pieces"
    )]
    NoMemory {
        /// The object.
        id: StoredId,
        /// What it needs.
        needed: u64,
        /// Managed memory in use.
        managed: u64,
        /// The part of it that is pinned.
        pinned: u64,
        /// The limit of managed memory.
        limit: u64,
    },
    /// The disk failed or is full, or so is the quota.
    #[error(transparent)]
    Disk(#[from] VolumeError),
    /// There is no thread to write files.
    #[error("cannot start a thread for {}: {source}", directory.display())]
    Thread {
        /// Of the files.
        directory: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file of an object is not what was written. The object is lost: release it and compute
    /// it again.
    #[error(
        "the file of {id}, {}, is damaged: {source}. Compute the object again, and see to the disk",
        file.display()
    )]
    Corrupt {
        /// The object.
        id: StoredId,
        file: PathBuf,
        /// The frame that is damaged; none where the header is.
        frame: Option<usize>,
        /// What is wrong.
        source: FormatError,
    },
    /// An object could not be serialised.
    #[error("{id} cannot be serialised: {source}")]
    Serialise {
        /// The object.
        id: StoredId,
        /// What the embedder said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is no memory to read an object into.
    #[error("{id} cannot be read back: {source}")]
    Memory {
        /// The object.
        id: StoredId,
        /// What the system said.
        source: treadle_memory::MemoryError,
    },
    /// The target is above the limit.
    #[error("the target of {target} bytes is above the limit of {limit} bytes")]
    Target {
        /// See [`Options::target`](crate::Options::target).
        target: u64,
        /// See [`Options::limit`](crate::Options::limit).
        limit: u64,
    },
}

impl StoreError {
    /// Whether an object that cannot be read for this reason is lost: it can never be read again.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Unknown { .. } | Self::Corrupt { .. } => true,
            Self::Disk(error) => !error.is_passing(),
            _ => false,
        }
    }
}

/// An object that was not stored, given back.
#[derive(Debug, thiserror::Error)]
#[error("{id} ({needed} bytes, with {managed} of {limit} bytes in use) was not stored: {error}")]
pub struct PutError {
    /// The object's id.
    pub id: StoredId,
    /// The managed memory that it needs, in bytes.
    pub needed: u64,
    /// Managed memory in use, in bytes.
    pub managed: u64,
    /// The limit of managed memory, in bytes.
    pub limit: u64,
    /// The object itself.
    pub object: Form,
    /// Why.
    #[source]
    pub error: StoreError,
}
