//! A file of a volume.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use treadle_memory::MappedFile;

use crate::volume::Shared;
use crate::{Mode, Opened, VolumeError};

/// A file that only grows. Clones are the same file, which is removed with the last of them.
#[derive(Clone)]
pub struct File(Arc<Inner>);

struct Inner {
    volume: Arc<Shared>,
    /// The number of its directory.
    place: usize,
    path: PathBuf,
    /// Bytes that were appended; what the disk has beyond them is being written.
    length: AtomicU64,
    /// Who appends holds it alone.
    end: RwLock<()>,
}

impl File {
    pub(crate) fn new(volume: Arc<Shared>, place: usize, path: PathBuf) -> Self {
        File(Arc::new(Inner {
            volume,
            place,
            path,
            length: AtomicU64::new(0),
            end: RwLock::new(()),
        }))
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The number of its directory, in the order of the options.
    pub fn directory(&self) -> usize {
        self.0.place
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.0.length.load(Ordering::Acquire)
    }

    /// Whether nothing was appended yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes pieces, which follow one another, at the end: all of them, or nothing. Answers where
    /// they are. Several threads take turns: a disk writes one after the other anyway.
    ///
    /// # Errors
    /// [`VolumeError::Quota`], [`VolumeError::Full`], [`VolumeError::Disk`]. The file is as long as
    /// before.
    pub fn append(&self, pieces: &[&[u8]]) -> Result<Range<u64>, VolumeError> {
        let opened = self.open(Mode::Write)?;
        self.grow(&*opened, pieces, false)
    }

    /// Waits until what was appended is on the device.
    ///
    /// # Errors
    /// [`VolumeError::Full`], [`VolumeError::Disk`]. What was appended since the last time may be
    /// lost, also if the next time succeeds: the system reports a failure once.
    pub fn sync(&self) -> Result<(), VolumeError> {
        let opened = self.open(Mode::Write)?;
        opened.sync().map_err(|error| self.failed("write", error))
    }

    /// Fills `into` from an offset on.
    ///
    /// # Errors
    /// [`VolumeError::Range`] beyond the end, [`VolumeError::Length`], [`VolumeError::Disk`].
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), VolumeError> {
        self.read_ranges(&mut [(offset, into)])
    }

    /// Fills several buffers, each from an offset on, and opens the file once for all. Ranges in the
    /// order of the file are read fastest.
    ///
    /// # Errors
    /// As [`File::read_at`]; what the buffers hold means nothing then.
    pub fn read_ranges(&self, ranges: &mut [(u64, &mut [u8])]) -> Result<(), VolumeError> {
        for (offset, into) in ranges.iter() {
            self.has(*offset, into.len() as u64)?;
        }
        let opened = self.to_read()?;
        for (offset, into) in ranges {
            read_all(&*opened, *offset, into).map_err(|error| self.failed("read", error))?;
        }
        Ok(())
    }

    /// Fills `into`, which is as long as the file, with all of it, and verifies that nobody has made
    /// the file longer or shorter. Waits while somebody appends.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_all(&self, into: &mut [u8]) -> Result<(), VolumeError> {
        let _nobody_appends = self.0.end.read().unwrap_or_else(PoisonError::into_inner);
        let expected = self.len();
        if into.len() as u64 != expected {
            return Err(self.out_of_range(0, into.len() as u64));
        }
        let opened = self.open(Mode::Read)?;
        let found = self.length_of(&*opened)?;
        if found != expected {
            return Err(self.changed(expected, found));
        }
        read_all(&*opened, 0, into).map_err(|error| self.failed("read", error))
    }

    /// Maps a range, to read without a copy. The system reads what is touched; a disk that fails then
    /// ends the process, where [`File::read_at`] is an error. The file stays while it is mapped.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn map(&self, range: Range<u64>) -> Result<Mapped, VolumeError> {
        let length = range.end.saturating_sub(range.start);
        self.has(range.start, length)?;
        let opened = self.to_read()?;
        let descriptor = opened
            .descriptor()
            .map_err(|error| self.failed("map", error))?;
        // SAFETY: the file has the range, as was just looked up. It lies before the end, and files are
        // only written to and cut off behind that. Nobody else writes there: the directory is private,
        // and locked. The mapping keeps the file; where a volume is closed before, the removed file
        // stays until it is unmapped.
        let bytes = unsafe { MappedFile::new(descriptor, range.start, length) }
            .map_err(|error| self.failed("map", io::Error::other(error)))?;
        Ok(Mapped {
            bytes,
            _file: self.clone(),
        })
    }

    /// Appends to the opened file; with `sync`, until it is on the device.
    pub(crate) fn grow(
        &self,
        opened: &dyn Opened,
        pieces: &[&[u8]],
        sync: bool,
    ) -> Result<Range<u64>, VolumeError> {
        let Inner {
            volume,
            place,
            path,
            length,
            end,
        } = &*self.0;
        let _alone = end.write().unwrap_or_else(PoisonError::into_inner);
        let needed = pieces.iter().map(|piece| piece.len() as u64).sum();
        let start = self.len();
        volume.charge(*place, path, needed)?;
        let written = write_all(opened, start, needed, pieces)
            .and_then(|()| if sync { opened.sync() } else { Ok(()) });
        match written {
            Ok(()) => {
                // After the bytes: who sees the new length may read them.
                length.store(start + needed, Ordering::Release);
                volume.works(*place);
                Ok(start..start + needed)
            }
            Err(error) => {
                // If this fails, too, the next append writes over what is there.
                let _ = opened.truncate(start);
                volume.give_back(*place, needed);
                Err(self.failed("write", error))
            }
        }
    }

    fn open(&self, mode: Mode) -> Result<Box<dyn Opened>, VolumeError> {
        let action = match mode {
            Mode::Read => "read",
            Mode::Write | Mode::New => "write",
        };
        let opened = self.0.volume.disk.open(&self.0.path, mode);
        opened.map_err(|error| self.failed(action, error))
    }

    /// The opened file, where that has all that was appended.
    fn to_read(&self) -> Result<Box<dyn Opened>, VolumeError> {
        let expected = self.len();
        let opened = self.open(Mode::Read)?;
        match self.length_of(&*opened)? {
            found if found < expected => Err(self.changed(expected, found)),
            _ => Ok(opened),
        }
    }

    fn length_of(&self, opened: &dyn Opened) -> Result<u64, VolumeError> {
        opened.length().map_err(|error| self.failed("read", error))
    }

    /// An error unless there are so many bytes from an offset on.
    fn has(&self, offset: u64, wanted: u64) -> Result<(), VolumeError> {
        match offset.checked_add(wanted) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(self.out_of_range(offset, wanted)),
        }
    }

    fn out_of_range(&self, offset: u64, wanted: u64) -> VolumeError {
        VolumeError::Range {
            file: self.0.path.clone(),
            offset,
            wanted,
            length: self.len(),
        }
    }

    fn changed(&self, expected: u64, found: u64) -> VolumeError {
        VolumeError::Length {
            file: self.0.path.clone(),
            expected,
            found,
        }
    }

    fn failed(&self, action: &'static str, error: io::Error) -> VolumeError {
        let error = VolumeError::disk(action, self.0.path.clone(), error);
        self.0.volume.failed(self.0.place, &error);
        error
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let length = *self.length.get_mut();
        self.volume.remove(self.place, &self.path, length);
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({}, {} bytes)", self.0.path.display(), self.len())
    }
}

/// A range of a file, mapped to read.
#[derive(Debug)]
pub struct Mapped {
    bytes: MappedFile,
    /// Its bytes count until the last mapping is gone.
    _file: File,
}

impl Mapped {
    /// The same memory, shared and counted.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

fn write_all(
    opened: &dyn Opened,
    mut offset: u64,
    length: u64,
    pieces: &[&[u8]],
) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    opened.reserve(offset, length)?;
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rest = slices.as_mut_slice();
    // Past the empty ones at the start: writing only those would look like a disk that takes nothing.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match opened.write(offset, rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut rest, written);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_all(opened: &dyn Opened, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        match opened.read(offset, into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                offset += read as u64;
                into = &mut into[read..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
