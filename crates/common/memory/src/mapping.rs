//! The receiver's side of shared memory.

use crate::MemoryError;
use crate::foreign::Foreign;
use crate::received::{self, Hook, Origin, Release};
use crate::region::Region;
use bytes::Bytes;
use rustix::fd::OwnedFd;
use rustix::param::page_size;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Somebody else's memory, mapped: reading costs no copy, what is written stays here.
///
/// The content is a snapshot as long as the sender keeps its word, which
/// [`Segments`](crate::Segments) does until it is told of the release, see
/// [`on_drop`](Self::on_drop). What was not written to can be handed on to a third process, see
/// [`Handover`](crate::Handover).
pub struct Mapping {
    /// `None`: there are no bytes to map.
    region: Option<Region>,
    /// Where the region begins in the file.
    first: u64,
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
        Foreign::new(fd)?.map(offset, length)
    }

    /// `len` bytes from `offset` of the file on, in a region of its pages.
    pub(crate) fn of(file: &Arc<Foreign>, region: Region, offset: u64, len: usize) -> Self {
        let within_page = (offset % page_size() as u64) as usize;
        // SAFETY: less than a page into a region that has more bytes than that.
        let start = unsafe { region.start().add(within_page) };
        let lender = if file.may_stay() {
            let origin = Arc::new(Origin::new(Arc::clone(file)));
            received::enter(start.addr().get(), len, offset, Arc::clone(&origin));
            Lender::Kept(origin)
        } else {
            Lender::Closed(Release::new())
        };
        Self {
            region: Some(region),
            first: offset - within_page as u64,
            start,
            len,
            lender,
        }
    }

    pub(crate) fn empty() -> Self {
        Self {
            region: None,
            first: 0,
            start: NonNull::dangling(),
            len: 0,
            lender: Lender::Closed(Release::new()),
        }
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

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let region = self.region.take();
        // The lender is told after this, at the earliest.
        if let Lender::Kept(origin) = &self.lender {
            received::leave(self.start.addr().get());
            if let Some(region) = region {
                origin.file().put_back(self.first, region);
            }
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.len)
    }
}
