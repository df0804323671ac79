//! Ranges of mapped pages.

use crate::MemoryError;
#[cfg(target_os = "linux")]
use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, ProtFlags};
#[cfg(target_os = "linux")]
use std::ffi::c_void;
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

/// What one page table maps, where pages have 4 KiB.
#[cfg(target_os = "linux")]
pub(crate) const PAGE_TABLE: usize = 2 << 20;
/// What one table of page tables maps.
#[cfg(target_os = "linux")]
const TABLE_OF_TABLES: usize = 1 << 30;

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
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        flags: MapFlags,
    ) -> Result<Self, MemoryError> {
        Region::of_file_near(std::ptr::null_mut(), file, offset, len, READ_WRITE, flags)
    }

    /// The same to read only: it shares the pages that the system keeps of the file.
    #[cfg(target_os = "linux")]
    pub(crate) fn to_read(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<Self, MemoryError> {
        let (anywhere, protection) = (std::ptr::null_mut(), ProtFlags::READ);
        Region::of_file_near(anywhere, file, offset, len, protection, MapFlags::SHARED)
    }

    /// A shared mapping of the first `len` bytes of the file, where [`move_away`](Self::move_away)
    /// takes least.
    #[cfg(target_os = "linux")]
    pub(crate) fn movable(file: BorrowedFd<'_>, len: usize) -> Result<Self, MemoryError> {
        Region::of_file_near(gap(len), file, 0, len, READ_WRITE, MapFlags::SHARED)
    }

    #[cfg(target_os = "linux")]
    fn of_file_near(
        hint: *mut c_void,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self, MemoryError> {
        // SAFETY: a new mapping where the kernel finds room touches nobody's memory.
        let start = unsafe { rustix::mm::mmap(hint, len, protection, flags, file, offset) }
            .map_err(MemoryError::system("mmap", len))?;
        Ok(Region::new(start.cast(), len))
    }

    /// The pages of a shared mapping, at another address. The mapping itself stays, and looks them
    /// up again when it is touched: nobody meets a hole, and whoever writes at the same moment
    /// writes into the file.
    ///
    /// `None`: the kernel can not do that (Linux can from 5.13 on), and nothing has changed.
    #[cfg(target_os = "linux")]
    pub(crate) fn move_away(&self) -> Option<Region> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        // Not MREMAP_FIXED: it would replace what somebody else maps in the gap in the meantime.
        // Without it, the address is a hint (which not every C library passes on).
        // SAFETY: the pages go where the kernel finds room, and every byte of this mapping remains
        // what it was.
        let moved = unsafe {
            libc::syscall(
                libc::SYS_mremap,
                self.start.as_ptr(),
                self.len,
                self.len,
                flags,
                gap(self.len),
            )
        };
        (moved != -1)
            .then(|| Region::new(std::ptr::without_provenance_mut(moved as usize), self.len))
    }

    fn new(start: *mut u8, len: usize) -> Self {
        let start = NonNull::new(start).expect("the kernel maps nothing at address zero");
        Region { start, len }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn prefer_huge_pages(&self) {
        if self.len < PAGE_TABLE {
            // There is room for none.
            return;
        }
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

    /// Gives back the pages that are this region's alone, because somebody wrote to them: of a
    /// private mapping of a file, what is left is the file's.
    #[cfg(target_os = "linux")]
    pub(crate) fn forget(&self) -> rustix::io::Result<()> {
        // SAFETY: whoever could use the region borrows it, or knows what becomes of its content.
        unsafe {
            rustix::mm::madvise(
                self.start.as_ptr().cast(),
                self.len,
                rustix::mm::Advice::LinuxDontNeed,
            )
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Where `len` bytes fit now, such that whole page tables can be moved from and to there: the
/// larger the better, because each move interrupts the process's threads on all processors.
#[cfg(target_os = "linux")]
fn gap(len: usize) -> *mut c_void {
    let alignment = match len {
        TABLE_OF_TABLES.. => TABLE_OF_TABLES,
        PAGE_TABLE.. => PAGE_TABLE,
        _ => return std::ptr::null_mut(),
    };
    // SAFETY: a new mapping where the kernel finds room touches nobody's memory.
    let reserved = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            len + alignment,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    reserved.map_or(std::ptr::null_mut(), |start| {
        // Somebody else may map there before the caller does: the address is a hint.
        drop(Region::new(start.cast(), len + alignment));
        start.map_addr(|start| start.next_multiple_of(alignment))
    })
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and whoever could use it borrowed this value.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
