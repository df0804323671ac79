//! A disk that fails as a test wants it to.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Disk, LocalDisk, Mode, Opened};

/// Longer than anything in a test takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(30);
/// What `ENOSPC` is on Linux.
const NO_SPACE: i32 = 28;

/// The file system with switches: errors of the system, by their numbers, short writes, and gates that
/// hold its callers up. Clones have the same switches.
///
/// It sets no space aside, so that a full disk is met in the middle of a write.
#[derive(Clone, Default)]
pub struct FaultyDisk(Arc<Shared>);

#[derive(Default)]
struct Shared {
    switches: Mutex<Switches>,
    changed: Condvar,
}

#[derive(Default)]
struct Switches {
    only_below: Option<PathBuf>,
    creates: Option<i32>,
    writes: Option<i32>,
    syncs: Option<i32>,
    reads: Option<i32>,
    /// How many attempts to read fail before one succeeds.
    some_reads: Option<(u64, i32)>,
    removes: Option<i32>,
    /// How many writes succeed before one fails.
    one_write: Option<(u64, i32)>,
    most_a_write: Option<usize>,
    room: Option<u64>,
    writes_held: bool,
    reads_held: bool,
    held: u64,
    opened_to_read: u64,
}

impl FaultyDisk {
    /// A disk that works.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only files below this directory meet faults. Gates hold up all.
    pub fn only_below(&self, directory: &Path) {
        self.0
            .set(|switches| switches.only_below = Some(directory.to_owned()));
    }

    /// New files cannot be made.
    pub fn fail_creates(&self, errno: Option<i32>) {
        self.0.set(|switches| switches.creates = errno);
    }

    /// Each write leaves half of its first piece behind, and fails.
    pub fn fail_writes(&self, errno: Option<i32>) {
        self.0.set(|switches| switches.writes = errno);
    }

    /// One write fails, after so many more have succeeded.
    pub fn fail_one_write(&self, after: u64, errno: i32) {
        self.0
            .set(|switches| switches.one_write = Some((after, errno)));
    }

    /// Nothing reaches the device.
    pub fn fail_syncs(&self, errno: Option<i32>) {
        self.0.set(|switches| switches.syncs = errno);
    }

    /// Files cannot be read, nor mapped.
    pub fn fail_reads(&self, errno: Option<i32>) {
        self.0.set(|switches| switches.reads = errno);
    }

    /// So many times a file cannot be read, then it can.
    pub fn fail_some_reads(&self, times: u64, errno: i32) {
        self.0
            .set(|switches| switches.some_reads = Some((times, errno)));
    }

    /// Files cannot be removed.
    pub fn fail_removes(&self, errno: Option<i32>) {
        self.0.set(|switches| switches.removes = errno);
    }

    /// A write takes so many bytes at most.
    pub fn shorten_writes(&self, most: Option<usize>) {
        self.0.set(|switches| switches.most_a_write = most);
    }

    /// After so many more bytes the disk is full. Removing files does not make room.
    pub fn full_after(&self, bytes: Option<u64>) {
        self.0.set(|switches| switches.room = bytes);
    }

    /// Holds writes up, or lets them go.
    pub fn hold_writes(&self, hold: bool) {
        self.0.set(|switches| switches.writes_held = hold);
    }

    /// Holds those up that open a file to read, or lets them go.
    pub fn hold_reads(&self, hold: bool) {
        self.0.set(|switches| switches.reads_held = hold);
    }

    /// Callers that are held up now.
    pub fn held(&self) -> u64 {
        self.0.lock().held
    }

    /// How often a file was opened to read.
    pub fn reads(&self) -> u64 {
        self.0.lock().opened_to_read
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Switches> {
        self.switches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut Switches)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits while a gate is closed.
    fn pass(&self, closed: impl Fn(&Switches) -> bool) {
        let mut switches = self.lock();
        switches.held += 1;
        let waited = self
            .changed
            .wait_timeout_while(switches, LONG, |switches| closed(switches));
        let (mut switches, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        switches.held -= 1;
        drop(switches);
        assert!(!timeout.timed_out(), "a gate that nobody opened");
    }

    /// An error, if this fault is switched on and meets the file.
    fn fault(&self, file: &Path, of: impl Fn(&Switches) -> Option<i32>) -> io::Result<()> {
        let switches = self.lock();
        of(&switches)
            .filter(|_| switches.meet(file))
            .map_or(Ok(()), failure)
    }
}

impl Switches {
    fn meet(&self, file: &Path) -> bool {
        let below = self.only_below.as_deref();
        below.is_none_or(|directory| file.starts_with(directory))
    }

    /// The error of the next attempt to read, if it is one of those that fail.
    fn next_read(&mut self, file: &Path) -> Option<i32> {
        if !self.meet(file) {
            return None;
        }
        let (left, errno) = self.some_reads.as_mut()?;
        *left = left.checked_sub(1)?;
        Some(*errno)
    }

    /// How many bytes the next write may take, before the error if there is one.
    fn next_write(&mut self, first: usize) -> (usize, Option<i32>) {
        if let Some(errno) = self.writes {
            return (first / 2, Some(errno));
        }
        match &mut self.one_write {
            Some((0, errno)) => {
                let errno = *errno;
                self.one_write = None;
                return (first / 2, Some(errno));
            }
            Some((after, _)) => *after -= 1,
            None => {}
        }
        let most = self.most_a_write.unwrap_or(usize::MAX);
        match self.room {
            Some(0) => (0, Some(NO_SPACE)),
            Some(room) => (most.min(usize::try_from(room).unwrap_or(usize::MAX)), None),
            None => (most, None),
        }
    }
}

fn failure(errno: i32) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(errno))
}

impl Disk for FaultyDisk {
    fn open(&self, file: &Path, mode: Mode) -> io::Result<Box<dyn Opened>> {
        match mode {
            Mode::New => self.0.fault(file, |switches| switches.creates)?,
            Mode::Write => {}
            Mode::Read => {
                self.0.set(|switches| switches.opened_to_read += 1);
                self.0.pass(|switches| switches.reads_held);
                self.0.fault(file, |switches| switches.reads)?;
                let next = self.0.lock().next_read(file);
                next.map_or(Ok(()), failure)?;
            }
        }
        Ok(Box::new(Faulty {
            shared: Arc::clone(&self.0),
            path: file.to_owned(),
            opened: LocalDisk.open(file, mode)?,
        }))
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        self.0.fault(file, |switches| switches.removes)?;
        LocalDisk.remove(file)
    }

    fn room(&self, directory: &Path) -> io::Result<u64> {
        LocalDisk.room(directory)
    }
}

struct Faulty {
    shared: Arc<Shared>,
    path: PathBuf,
    opened: Box<dyn Opened>,
}

impl Opened for Faulty {
    fn length(&self) -> io::Result<u64> {
        self.opened.length()
    }

    fn reserve(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.shared.pass(|switches| switches.writes_held);
        let first = pieces.first().map_or(0, |piece| piece.len());
        let (most, errno) = {
            let mut switches = self.shared.lock();
            match switches.meet(&self.path) {
                true => switches.next_write(first),
                false => (usize::MAX, None),
            }
        };
        let mut room = most;
        let mut some = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let taken = &piece[..room.min(piece.len())];
            room -= taken.len();
            some.push(IoSlice::new(taken));
        }
        let written = self.opened.write(offset, &some)?;
        if let Some(errno) = errno {
            failure(errno)?;
        }
        self.shared.set(|switches| {
            if switches.meet(&self.path)
                && let Some(room) = &mut switches.room
            {
                *room = room.saturating_sub(written as u64);
            }
        });
        Ok(written)
    }

    fn sync(&self) -> io::Result<()> {
        self.shared.fault(&self.path, |switches| switches.syncs)?;
        self.opened.sync()
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.opened.truncate(length)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.opened.read(offset, into)
    }

    fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.opened.descriptor()
    }
}
