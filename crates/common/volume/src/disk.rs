//! The seam between the volume and the file system.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::Path;

/// What a file is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// To write; it must not be there yet. Only this user may read it.
    New,
    /// To write to one that is there.
    Write,
    Read,
}

/// Where files are. Tests put a disk that fails in the place of [`LocalDisk`](crate::LocalDisk).
pub trait Disk: Send + Sync {
    /// Opens a file.
    ///
    /// # Errors
    /// What the system says.
    fn open(&self, file: &Path, mode: Mode) -> io::Result<Box<dyn Opened>>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, file: &Path) -> io::Result<()>;

    /// Bytes that this user can still write in a directory.
    ///
    /// # Errors
    /// What the system says.
    fn room(&self, directory: &Path) -> io::Result<u64>;
}

/// An open file. Each of these is one call of the system; what they leave undone, the caller asks
/// again for.
pub trait Opened {
    /// Its length in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn length(&self) -> io::Result<u64>;

    /// Sets space aside, so that a disk without it says so before anything is written. Not every file
    /// system can do that: there it does nothing, and the writing itself tells.
    ///
    /// # Errors
    /// Only that the disk is full.
    fn reserve(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Writes from the offset on, and answers how many bytes it wrote: perhaps fewer than there are.
    ///
    /// # Errors
    /// What the system says.
    fn write(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Waits until what was written is on the device.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&self) -> io::Result<()>;

    /// Cuts off what is beyond a length.
    ///
    /// # Errors
    /// What the system says.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Reads from the offset on, and answers how many bytes it read: perhaps fewer than there are.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Its descriptor, to map it.
    ///
    /// # Errors
    /// Of a disk that fails on purpose.
    fn descriptor(&self) -> io::Result<BorrowedFd<'_>>;
}
