//! Files of a process, in several directories under one quota.
//!
//! # The model
//!
//! A [`Volume`] has a directory of its own in each place that it is given ([`Options::directories`]),
//! one a disk, say. The [`Directory`] is locked and private, and goes with the process.
//!
//! A [`File`] is made in one of them and stays there. It only grows: [`File::append`] writes all of
//! its pieces at the end, or nothing. What was appended never changes, so it is read in any ranges by
//! any number of threads meanwhile ([`File::read_at`], [`File::read_ranges`]), or mapped
//! ([`File::map`]). The file is removed with its last handle.
//!
//! A file has no descriptor between two operations, since a worker has more files than a process may
//! have descriptors. Opening takes microseconds, so that appends and ranges should be large: gather
//! before you append. A disk is fast at large writes that follow one another, whoever gathers.
//!
//! # Which directory
//!
//! New files go to the directories in turn, but only to those that have at least half as much room as
//! the one that has most. Turns use all disks at once; without the rule about room the smallest would
//! be full first. Who knows that some disks do more than others gives them more turns ([`Volume::weigh`]).
//!
//! A directory that has failed is tried last for new files, until a pause is over; the pause doubles
//! with each failure ([`Options::retry`]). If making a file fails in one directory, the next one is
//! tried, so an error means that none works. It names the file, and so the directory.
//!
//! # The quota
//!
//! The lengths of all files together stay within [`Options::quota`]. Appending beyond that is
//! [`VolumeError::Quota`]; nothing waits. The bytes are given back when the file is removed.
//!
//! # Faults
//!
//! All of this is above a seam, [`Disk`]: the file system, [`LocalDisk`], or one that fails as a test
//! wants it to, [`faults::FaultyDisk`].

mod backoff;
mod books;
mod device;
mod directory;
mod disk;
mod error;
pub mod faults;
mod file;
mod limited;
mod local;
mod options;
mod stats;
mod volume;

pub use backoff::Backoff;
pub use device::Device;
pub use directory::{Directory, Kind as DirectoryKind, remove_directory};
pub use disk::{Disk, Mode, Opened};
pub use error::VolumeError;
pub use file::{File, Mapped};
pub use limited::Limit;
pub use local::LocalDisk;
pub use options::Options;
pub use stats::{DirectoryStats, Stats};
pub use volume::Volume;
