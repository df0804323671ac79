//! The receiver's side of shared memory.

use crate::received::{self, Hook, Origin, Release};
use crate::region::Region;
use crate::{MemoryError, fork, memfd};
use bytes::Bytes;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::mm::MapFlags;
use rustix::param::page_size;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// `statfs` of a memfd without huge pages. With huge pages, a write to a private mapping may find
/// none left, and that is a `SIGBUS`.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Somebody else's memory, mapped: reading costs no copy, what is written stays here.
///
/// The content is a snapshot as long as the sender keeps its word, which
/// [`Segments`](crate::Segments) does until it is told of the release, see
/// [`on_drop`](Self::on_drop). What was not written to can be handed on to a third process, see
/// [`Handover`](crate::Handover).
pub struct Mapping {
    /// `None`: there are no bytes to map.
    region: Option<Region>,
    start: NonNull<u8>,
    len: usize,
    lender: Lender,
}

/// Whose memory it is.
enum Lender {
    /// It can be handed on.
    Kept(Arc<Origin>),
    /// The descriptor is closed.
    Closed(Release),
}

// SAFETY: the mapping is this value's own, and belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes from `offset` on, which need no alignment. The descriptor is kept while
    /// the process has plenty of them.
    ///
    /// # Errors
    /// - [`MemoryError::Unsafe`], unless the descriptor is a memfd that can never shrink.
    /// - [`MemoryError::OutOfBounds`], if it has fewer bytes.
    /// - [`MemoryError::System`], if the kernel refuses to map it.
    pub fn new(fd: OwnedFd, offset: u64, length: u64) -> Result<Self, MemoryError> {
        fork::watch();
        verify(&fd, offset, length)?;
        let len = usize::try_from(length).map_err(|_| MemoryError::TooLarge { len: usize::MAX })?;
        let mut mapping = Mapping {
            region: None,
            start: NonNull::dangling(),
            len,
            lender: Lender::Closed(Release::new()),
        };
        if len > 0 {
            let within_page = (offset % page_size() as u64) as usize;
            let region = Region::of_file(
                fd.as_fd(),
                offset - within_page as u64,
                len.checked_add(within_page)
                    .ok_or(MemoryError::TooLarge { len })?,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?;
            // SAFETY: less than a page into a mapping that has more bytes than that.
            mapping.start = unsafe { region.start().add(within_page) };
            mapping.region = Some(region);
            if received::has_room() {
                let origin = Arc::new(Origin::new(fd));
                let first = mapping.start.addr().get();
                received::enter(first, len, offset, Arc::clone(&origin));
                mapping.lender = Lender::Kept(origin);
            }
        }
        Ok(mapping)
    }

    /// Calls `hook` when the memory is unmapped, and by those that it was handed on to, on the
    /// thread that finds that out: to tell the sender that it may use the segment again. One hook; a
    /// second one replaces the first.
    ///
    /// It is not called once this process has forked, neither here nor in the child, because both
    /// have the memory mapped then and neither knows when the other is done. The sender finds out
    /// when the connection ends.
    pub fn on_drop(&mut self, hook: Hook) {
        let release = match &self.lender {
            Lender::Kept(origin) => origin.release(),
            Lender::Closed(release) => release,
        };
        release.set(Some(hook));
    }

    /// Looks up all pages at once, which takes a fraction of the time that a reader's first touch
    /// of them takes. For those who will read everything; whether it worked makes no difference.
    pub fn populate(&self) {
        if let Some(region) = &self.region {
            // SAFETY: the advice does not change what the memory contains.
            let _ = unsafe {
                rustix::mm::madvise(
                    region.start().as_ptr().cast(),
                    region.len(),
                    rustix::mm::Advice::LinuxPopulateRead,
                )
            };
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The first byte, to write. What is written is seen here only, at the price of a copied page.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes of this value's mapping, which cannot shrink.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The same memory, shared and counted.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

fn verify(fd: &OwnedFd, offset: u64, length: u64) -> Result<(), MemoryError> {
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
    let size = status.st_size as u64;
    if offset.checked_add(length).is_none_or(|end| end > size) {
        return Err(MemoryError::OutOfBounds {
            offset,
            length,
            size,
        });
    }
    Ok(())
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if matches!(self.lender, Lender::Kept(_)) {
            received::leave(self.start.addr().get());
        }
        // The lender is told after this, at the earliest.
        drop(self.region.take());
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.len)
    }
}
