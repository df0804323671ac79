//! Anonymous files: memory with a descriptor, without a name that could be left behind.

use crate::MemoryError;
use crate::region::{PAGE_TABLE, READ_WRITE, Region};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags};
use rustix::param::page_size;
use std::ops::Range;
use std::sync::OnceLock;

/// A file of `len` zeros whose length can never change again: who maps it cannot be killed by
/// somebody who truncates it.
pub(crate) fn create(len: usize) -> Result<OwnedFd, MemoryError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux 6.3 wants to be told that nobody will execute the file; before, it refuses to hear.
    let file = rustix::fs::memfd_create("treadle", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|error| match error {
            Errno::INVAL => rustix::fs::memfd_create("treadle", flags),
            error => Err(error),
        })
        .map_err(MemoryError::system("memfd_create", len))?;
    rustix::fs::ftruncate(&file, len as u64).map_err(MemoryError::system("ftruncate", len))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(MemoryError::system("fcntl(F_ADD_SEALS)", len))?;
    Ok(file)
}

/// The device of files as [`create`] makes them, none of which consists of huge pages.
pub(crate) fn device() -> Option<u64> {
    static DEVICE: OnceLock<Option<u64>> = OnceLock::new();
    *DEVICE.get_or_init(|| Some(rustix::fs::fstat(create(0).ok()?).ok()?.st_dev))
}

/// Maps all `len` bytes of `file` to write into it. Its pages have to be put in place.
pub(crate) fn map_to_write(file: BorrowedFd<'_>, len: usize) -> Result<Region, MemoryError> {
    let region = Region::movable(file, len)?;
    region.prefer_huge_pages();
    Ok(region)
}

/// Puts the pages of a part of `region` in place, a mapping of all of `file`: a page that cannot be
/// had is an error here, not a `SIGBUS` later. Begins and ends at pages.
pub(crate) fn populate(
    region: &Region,
    file: BorrowedFd<'_>,
    part: Range<usize>,
) -> Result<(), MemoryError> {
    let len = part.len();
    assert!(part.end <= region.len() && part.start.is_multiple_of(page_size()));
    // SAFETY: the part is within the region, as was just seen.
    let start = unsafe { region.start().add(part.start) };
    // SAFETY: the advice does not change what the memory contains.
    let populated =
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, Advice::LinuxPopulateWrite) };
    match populated {
        // Before Linux 5.14.
        Err(Errno::INVAL) => {
            let (offset, len) = (part.start as u64, len as u64);
            rustix::fs::fallocate(file, FallocateFlags::empty(), offset, len)
                .map_err(MemoryError::system("fallocate", part.len()))
        }
        populated => populated.map_err(MemoryError::system("madvise(MADV_POPULATE_WRITE)", len)),
    }
}

/// From now on what is written to `region`, a mapping of all of `file`, is its own: the file keeps
/// what was written so far. Readers of the region notice nothing. A write by another thread at the
/// same moment goes to the file or to the region.
///
/// Returns a mapping to write into the file, with every page in place, if there is one. Taking the
/// pages of a large region away from it takes microseconds; forgetting them, which the kernel does
/// page by page, took 20 to 40 ms a GiB.
pub(crate) fn freeze(region: &Region, file: BorrowedFd<'_>) -> Result<Option<Region>, MemoryError> {
    // For less than a page table it is not worth its two mappings, of which a process has 65530.
    let shared = (region.len() >= PAGE_TABLE)
        .then(|| region.move_away())
        .flatten();
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: replaces, in one step, a mapping that `region` owns by one with the same content.
    let mapped = unsafe {
        rustix::mm::mmap(
            region.start().as_ptr().cast(),
            region.len(),
            READ_WRITE,
            flags,
            file.as_fd(),
            0,
        )
    };
    mapped.map_err(MemoryError::system("mmap(MAP_FIXED)", region.len()))?;
    Ok(shared)
}

/// Leaves the region out of children: they die where they read it, instead of sharing it.
pub(crate) fn keep_from_children(region: &Region) {
    // SAFETY: the advice changes nothing in this process.
    let _ = unsafe {
        rustix::mm::madvise(
            region.start().as_ptr().cast(),
            region.len(),
            Advice::LinuxDontFork,
        )
    };
}
