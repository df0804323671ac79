//! What can go wrong.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

/// What a volume could not do. A file is as it was before.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VolumeError {
    /// No directories were given.
    #[error("a volume needs a directory: name at least one local directory")]
    NoDirectory,
    /// The disk, or the user's share of it, is full.
    #[error(
        "the disk is full: {} cannot be written ({source}): free space there, or choose another \
         local directory",
        file.display()
    )]
    Full {
        /// What was to be written.
        file: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The volume's own quota is used up.
    #[error(
        "{} cannot grow by {needed} bytes: {used} of the quota of {quota} bytes are in use: raise \
         the quota of files, or make less data",
        file.display()
    )]
    Quota {
        /// What was to be written.
        file: PathBuf,
        /// By how many bytes.
        needed: u64,
        /// The bytes of all files.
        used: u64,
        /// What they may have at most.
        quota: u64,
    },
    /// The disk failed otherwise.
    #[error(
        "cannot {action} {} ({source}): see to the disk, or choose another local directory",
        file.display()
    )]
    Disk {
        /// What was tried.
        action: &'static str,
        /// What it was tried on.
        file: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Somebody else has changed the length of a file.
    #[error(
        "{} has {found} bytes, but {expected} were written: somebody else has changed it; let \
         nobody write to the local directory",
        file.display()
    )]
    Length {
        file: PathBuf,
        /// The bytes that were written.
        expected: u64,
        /// The bytes that are there.
        found: u64,
    },
    /// A range that a file does not have: a mistake of whoever asked.
    #[error("{} has {length} bytes: there are no {wanted} from {offset} on", file.display())]
    Range {
        file: PathBuf,
        /// The first byte that was asked for.
        offset: u64,
        /// How many were asked for.
        wanted: u64,
        /// How many the file has.
        length: u64,
    },
}

impl VolumeError {
    /// Whether the same may succeed soon, although nobody sees to the disk: the process or the machine
    /// was short of descriptors or memory, or a signal came.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        const PASSING: [Errno; 5] = [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::INTR,
            Errno::AGAIN,
        ];
        let VolumeError::Disk { source, .. } = self else {
            return false;
        };
        let said = source.raw_os_error();
        said.is_some_and(|said| PASSING.iter().any(|errno| errno.raw_os_error() == said))
    }

    /// What the system said, where the disk is at fault: another directory may do better.
    pub(crate) fn of_the_disk(&self) -> Option<&Arc<io::Error>> {
        match self {
            VolumeError::Full { source, .. } | VolumeError::Disk { source, .. } => Some(source),
            _ => None,
        }
    }

    pub(crate) fn disk(action: &'static str, file: PathBuf, source: io::Error) -> Self {
        let source = Arc::new(source);
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                VolumeError::Full { file, source }
            }
            _ => VolumeError::Disk {
                action,
                file,
                source,
            },
        }
    }
}
