//! Files of memory that other processes have passed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::mm::MapFlags;
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

use crate::file::FileId;
use crate::region::Region;
use crate::{Mapping, MemoryError, fork, memfd};

/// `statfs` of a memfd without huge pages. With huge pages, a write to a private mapping may find
/// none left, and that is a `SIGBUS`.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// At most this part of the process's descriptors stay open for files of others.
const SHARE: u64 = 8;

/// How many there are.
static OPEN: AtomicU64 = AtomicU64::new(0);

/// Another process's file of memory, which can never shrink: no writer can kill its readers.
///
/// Who keeps it maps it again without a descriptor being passed, and at once where the mapping
/// before is not used any more.
pub struct Foreign {
    id: FileId,
    fd: OwnedFd,
    size: u64,
    /// There are descriptors to spare for it.
    may_stay: bool,
    /// A mapping that nobody uses, without pages of its own, and where it begins in the file.
    idle: Mutex<Option<(u64, Region)>>,
}

impl Foreign {
    /// Takes over a descriptor.
    ///
    /// # Errors
    /// [`MemoryError::Unsafe`], unless it is a memfd that can never shrink.
    pub fn new(fd: OwnedFd) -> Result<Arc<Self>, MemoryError> {
        fork::watch();
        let size = verify(&fd)?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let may_stay = OPEN.fetch_add(1, Ordering::Relaxed) < limit / SHARE;
        Ok(Arc::new(Self {
            id: FileId::next(),
            fd,
            size,
            may_stay,
            idle: Mutex::default(),
        }))
    }

    /// Maps `length` bytes from `offset` on, which need no alignment.
    ///
    /// # Errors
    /// - [`MemoryError::OutOfBounds`], if it has fewer bytes.
    /// - [`MemoryError::System`], if the kernel refuses to map it.
    pub fn map(self: &Arc<Self>, offset: u64, length: u64) -> Result<Mapping, MemoryError> {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > self.size) {
            return Err(MemoryError::OutOfBounds {
                offset,
                length,
                size: self.size,
            });
        }
        let len = usize::try_from(length).map_err(|_| MemoryError::TooLarge { len: usize::MAX })?;
        if len == 0 {
            return Ok(Mapping::empty());
        }
        let within_page = (offset % page_size() as u64) as usize;
        let pages = len
            .checked_add(within_page)
            .ok_or(MemoryError::TooLarge { len })?;
        let region = self.region(offset - within_page as u64, pages)?;
        Ok(Mapping::of(self, region, offset, len))
    }

    fn region(&self, first: u64, len: usize) -> Result<Region, MemoryError> {
        let mut idle = self.idle();
        if let Some((_, region)) =
            idle.take_if(|(start, region)| *start == first && region.len() == len)
        {
            return Ok(region);
        }
        drop(idle);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        Region::of_file(self.fd.as_fd(), first, len, flags)
    }

    /// Keeps a region that nobody uses any more for whoever maps the same, if somebody keeps the
    /// file.
    pub(crate) fn put_back(self: &Arc<Self>, first: u64, region: Region) {
        if Arc::strong_count(self) > 1 && region.forget().is_ok() {
            let other = self.idle().replace((first, region));
            drop(other);
        }
    }

    /// Names it within this process.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Its length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the process has descriptors to spare for keeping it.
    pub fn may_stay(&self) -> bool {
        self.may_stay
    }

    fn idle(&self) -> MutexGuard<'_, Option<(u64, Region)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether mapping it is safe, and its length. Both are for ever.
fn verify(fd: &OwnedFd) -> Result<u64, MemoryError> {
    let unsafe_because = |reason| Err(MemoryError::Unsafe { reason });
    let Ok(seals) = rustix::fs::fcntl_get_seals(fd) else {
        return unsafe_because("it is no memfd");
    };
    if !seals.contains(SealFlags::SHRINK) {
        return unsafe_because("it is not sealed against shrinking");
    }
    let status = rustix::fs::fstat(fd).map_err(MemoryError::system("fstat", 0))?;
    if Some(status.st_dev) != memfd::device() {
        let kind = rustix::fs::fstatfs(fd).map_err(MemoryError::system("fstatfs", 0))?;
        if kind.f_type as u64 != TMPFS_MAGIC {
            return unsafe_because("it consists of huge pages");
        }
    }
    Ok(status.st_size as u64)
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({:?}, {} bytes)", self.id, self.size)
    }
}
