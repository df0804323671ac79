//! Ranges of mapped pages.

use crate::MemoryError;
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::NonNull;

/// A mapping that this value owns: unmapped when it is dropped.
pub(crate) struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: mapped pages belong to the process, not to a thread.
unsafe impl Send for Region {}
// SAFETY: a shared reference only tells the address.
unsafe impl Sync for Region {}

pub(crate) const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Region {
    /// Fresh private memory of zeros. `len` is a multiple of the page size, and not zero.
    pub(crate) fn anonymous(len: usize) -> Result<Self, MemoryError> {
        // SAFETY: a new mapping where the kernel finds room touches nobody's memory.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE)
        }
        .map_err(MemoryError::system("mmap", len))?;
        let region = Region::new(start.cast(), len);
        #[cfg(target_os = "linux")]
        region.prefer_huge_pages();
        Ok(region)
    }

    /// A mapping of `len` bytes of the file from `offset` on, both in whole pages.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_file(
        file: rustix::fd::BorrowedFd<'_>,
        offset: u64,
        len: usize,
        flags: MapFlags,
    ) -> Result<Self, MemoryError> {
        // SAFETY: a new mapping where the kernel finds room touches nobody's memory.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, READ_WRITE, flags, file, offset) }
                .map_err(MemoryError::system("mmap", len))?;
        Ok(Region::new(start.cast(), len))
    }

    fn new(start: *mut u8, len: usize) -> Self {
        let start = NonNull::new(start).expect("the kernel maps nothing at address zero");
        Region { start, len }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn prefer_huge_pages(&self) {
        // SAFETY: the advice does not change what the memory contains. Without huge pages it is
        // refused, and nothing is lost.
        let _ = unsafe {
            rustix::mm::madvise(
                self.start.as_ptr().cast(),
                self.len,
                rustix::mm::Advice::LinuxHugepage,
            )
        };
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and whoever could use it borrowed this value.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
