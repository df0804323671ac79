//! The seam between the store and the file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// How files are written and read. Tests put a disk that fails in the place of [`LocalDisk`].
pub trait Disk: Send + Sync {
    /// Writes a file of `nbytes` in total; with `sync`, until it is on the device.
    ///
    /// # Errors
    /// What the system says. The caller removes what was written.
    fn write(&self, file: &Path, pieces: &[&[u8]], nbytes: u64, sync: bool) -> io::Result<()>;

    /// Gives a file its final name.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Fills `into` from the start of a file, and answers with the length of the whole file. Where
    /// that differs from the length of `into`, what `into` holds means nothing.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, file: &Path, into: &mut [u8]) -> io::Result<u64>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, file: &Path) -> io::Result<()>;
}

/// The file system.
#[derive(Clone, Copy, Default, Debug)]
pub struct LocalDisk;

impl Disk for LocalDisk {
    fn write(&self, file: &Path, pieces: &[&[u8]], nbytes: u64, sync: bool) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(file)?;
        // A disk without the space says so before anything is written. Not every file system
        // can reserve; there, and after any other error, the writing itself tells.
        if nbytes > 0
            && let Err(error @ (Errno::NOSPC | Errno::DQUOT)) =
                fallocate(&file, FallocateFlags::empty(), 0, nbytes)
        {
            return Err(error.into());
        }
        write_all(&mut file, pieces)?;
        if sync {
            file.sync_data()?;
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn read(&self, file: &Path, into: &mut [u8]) -> io::Result<u64> {
        let mut file = File::open(file)?;
        let nbytes = file.metadata()?.len();
        if nbytes == into.len() as u64 {
            file.read_exact(into)?;
        }
        Ok(nbytes)
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        fs::remove_file(file)
    }
}

fn write_all(file: &mut File, pieces: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rest = slices.as_mut_slice();
    while !rest.is_empty() {
        match file.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
