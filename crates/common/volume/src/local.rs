//! The file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::{Errno, pwritev};

use crate::{Disk, Mode, Opened};

/// The file system.
#[derive(Clone, Copy, Default, Debug)]
pub struct LocalDisk;

impl Disk for LocalDisk {
    fn open(&self, file: &Path, mode: Mode) -> io::Result<Box<dyn Opened>> {
        let opened = OpenOptions::new()
            .read(mode == Mode::Read)
            .write(mode != Mode::Read)
            .create_new(mode == Mode::New)
            .mode(0o600)
            .open(file)?;
        Ok(Box::new(opened))
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        fs::remove_file(file)
    }

    fn room(&self, directory: &Path) -> io::Result<u64> {
        let found = statvfs(directory)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

impl Opened for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        match fallocate(self, FallocateFlags::empty(), offset, length) {
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn write(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(pwritev(self, pieces, offset)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.read_at(into, offset)
    }

    fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.as_fd())
    }
}
