//! Disks that do no more than a test wants them to.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Disk, LocalDisk, Mode, Opened};

/// What a directory does at most. It is a device of its own then, which does one thing after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    pub directory: PathBuf,
    /// Bytes a second.
    pub rate: u64,
    /// Reads and writes a second.
    pub operations: u64,
}

/// The file system with limits.
pub(crate) struct LimitedDisk(Vec<(Limit, Busy)>);

/// Until when a device is busy.
type Busy = Arc<Mutex<Instant>>;

impl LimitedDisk {
    pub(crate) fn new(limits: &[Limit]) -> Self {
        let limits = limits.iter().cloned();
        let now = Instant::now();
        Self(
            limits
                .map(|limit| (limit, Arc::new(Mutex::new(now))))
                .collect(),
        )
    }
}

impl Disk for LimitedDisk {
    fn open(&self, file: &Path, mode: Mode) -> io::Result<Box<dyn Opened>> {
        let opened = LocalDisk.open(file, mode)?;
        let mut limits = self.0.iter();
        let limit = limits.find(|(limit, _)| file.starts_with(&limit.directory));
        Ok(match limit {
            Some((limit, busy)) => Box::new(Limited {
                opened,
                limit: limit.clone(),
                busy: Arc::clone(busy),
            }),
            None => opened,
        })
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        LocalDisk.remove(file)
    }

    fn room(&self, directory: &Path) -> io::Result<u64> {
        LocalDisk.room(directory)
    }
}

struct Limited {
    opened: Box<dyn Opened>,
    limit: Limit,
    busy: Busy,
}

impl Limited {
    /// Waits until the device has done something with so many bytes.
    fn take(&self, bytes: usize) {
        let seconds = bytes as f64 / self.limit.rate.max(1) as f64
            + 1.0 / self.limit.operations.max(1) as f64;
        let until = {
            let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
            *busy = (*busy).max(Instant::now()) + Duration::from_secs_f64(seconds);
            *busy
        };
        sleep(until.saturating_duration_since(Instant::now()));
    }
}

impl Opened for Limited {
    fn length(&self) -> io::Result<u64> {
        self.opened.length()
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        self.opened.reserve(offset, length)
    }

    fn write(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.opened.write(offset, pieces)?;
        self.take(written);
        Ok(written)
    }

    fn sync(&self) -> io::Result<()> {
        self.opened.sync()
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.opened.truncate(length)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let read = self.opened.read(offset, into)?;
        self.take(read);
        Ok(read)
    }

    fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.opened.descriptor()
    }
}
