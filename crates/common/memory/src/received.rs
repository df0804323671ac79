//! Memory of other processes that is mapped here, and can be handed on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fd::{AsFd, BorrowedFd};

use crate::file::FileId;
use crate::foreign::Foreign;
use crate::{Mapping, MemoryError, fork, pagemap};

pub(crate) type Hook = Box<dyn FnOnce() + Send + Sync>;

/// What is mapped, by first address. Whoever unmaps something removes it from here first, because
/// the address may be somebody else's from then on.
static MAPPED: Mutex<BTreeMap<usize, Mapped>> = Mutex::new(BTreeMap::new());
static LAST_ID: AtomicU64 = AtomicU64::new(0);

struct Mapped {
    len: usize,
    /// Where the first byte is in the file.
    offset: u64,
    /// Nobody writes to it for now.
    is_kept: bool,
    origin: Arc<Origin>,
}

/// A lender's file. When nobody has it here, and nobody who got it from here, the lender is told.
pub(crate) struct Origin {
    id: u64,
    file: Arc<Foreign>,
    release: Release,
}

/// Calls its hook at the end, unless this process has forked since: both have the memory then, and
/// neither knows when the other is done.
pub(crate) struct Release {
    forks: u64,
    hook: Mutex<Option<Hook>>,
}

impl Release {
    pub(crate) fn new() -> Self {
        Self {
            forks: fork::forks(),
            hook: Mutex::new(None),
        }
    }

    pub(crate) fn set(&self, hook: Option<Hook>) {
        *lock(&self.hook) = hook;
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let Some(hook) = lock(&self.hook).take() else {
            return;
        };
        match self.forks == fork::forks() {
            true => hook(),
            // What it holds would be given back here, and used again, while the other process reads it.
            false => std::mem::forget(hook),
        }
    }
}

impl Origin {
    pub(crate) fn new(file: Arc<Foreign>) -> Self {
        Self {
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            file,
            release: Release::new(),
        }
    }

    pub(crate) fn file(&self) -> &Arc<Foreign> {
        &self.file
    }

    pub(crate) fn release(&self) -> &Release {
        &self.release
    }
}

pub(crate) fn enter(start: usize, len: usize, offset: u64, origin: Arc<Origin>) {
    let mapped = Mapped {
        len,
        offset,
        is_kept: false,
        origin,
    };
    lock(&MAPPED).insert(start, mapped);
}

/// To be called before the memory is unmapped.
pub(crate) fn leave(start: usize) {
    let mapped = lock(&MAPPED).remove(&start);
    // Its hook may take other locks.
    drop(mapped);
}

/// The mapping that has these bytes, and where they are in its file.
fn find<R>(start: *const u8, len: usize, read: impl FnOnce(&mut Mapped, u64) -> R) -> Option<R> {
    let mut mapped = lock(&MAPPED);
    let (&first, entry) = mapped.range_mut(..=start.addr()).next_back()?;
    let offset = start.addr() - first;
    let end = offset.checked_add(len)?;
    let is_within = len > 0 && offset < entry.len && end <= entry.len;
    let offset = entry.offset + offset as u64;
    is_within.then(|| read(entry, offset))
}

/// Mapped memory on its way to a third process: what that one maps is the first one's snapshot.
/// The lender is told of the release when this value and all its clones are gone, and the mapping.
#[derive(Clone)]
pub struct Handover {
    /// Where the bytes start in the descriptor's file.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
    origin: Arc<Origin>,
}

impl Handover {
    /// Whether all `len` bytes from `start` on are in one [`Mapping`](crate::Mapping) that can be
    /// handed on, as far as they were not written to.
    pub fn is_possible(start: *const u8, len: usize) -> bool {
        find(start, len, |_, _| ()).is_some()
    }

    /// The same as [`Handover::of`], of a mapping that nobody has written to, and nobody will before
    /// [`Handover::let_write`]: until then that is not looked up.
    pub fn of_kept(start: *const u8, len: usize) -> Option<Self> {
        find(start, len, |mapped, offset| {
            mapped.is_kept = true;
            Self::at(mapped, offset, len)
        })
    }

    /// From now on the bytes may be written.
    pub fn let_write(start: *const u8, len: usize) {
        find(start, len, |mapped, _| mapped.is_kept = false);
    }

    fn at(mapped: &Mapped, offset: u64, len: usize) -> Self {
        Self {
            offset,
            length: len as u64,
            origin: Arc::clone(&mapped.origin),
        }
    }

    /// The bytes once more, in a mapping of its own.
    ///
    /// # Errors
    /// When the kernel refuses to map it.
    pub fn map(&self) -> Result<Mapping, MemoryError> {
        let mut mapping = self.origin.file.map(self.offset, self.length)?;
        // Who has lent it is told when nobody has it any more.
        let own = self.clone();
        mapping.on_drop(Box::new(move || drop(own)));
        Ok(mapping)
    }

    /// `len` bytes of a mapping from `start` on, for another process to map.
    ///
    /// `None`: they are not in a mapping, its descriptor was not kept (a process has few), or some
    /// of them were written to; send a copy.
    pub fn of(start: *const u8, len: usize) -> Option<Self> {
        let (handover, is_kept) = find(start, len, |mapped, offset| {
            (Self::at(mapped, offset, len), mapped.is_kept)
        })?;
        let first = start.addr();
        (is_kept || pagemap::all_of_file(first..first + len)).then_some(handover)
    }

    /// Names the lender's file within this process.
    pub fn file(&self) -> FileId {
        self.origin.file.id()
    }

    /// Names what was lent within this process. Numbers are never used again.
    pub fn id(&self) -> u64 {
        self.origin.id
    }

    /// Whoever got it has disappeared without a word, and may live on in its children: the lender is
    /// never told of a release.
    pub fn abandon(self) {
        self.origin.release.set(None);
    }
}

impl AsFd for Handover {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.origin.file.as_fd()
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, offset, length) = (self.id(), self.offset, self.length);
        write!(f, "Handover({id}, bytes {offset}..+{length})")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Held across a fork, so that the child finds it open. The handlers of a fork run on one
    /// thread, in the child too.
    static HELD: RefCell<Option<MutexGuard<'static, BTreeMap<usize, Mapped>>>> =
        const { RefCell::new(None) };
}

pub(crate) fn before_fork() {
    let held = lock(&MAPPED);
    let _ = HELD.try_with(|slot| slot.replace(Some(held)));
}

pub(crate) fn after_fork() {
    let _ = HELD.try_with(|slot| drop(slot.take()));
}
