//! Which pages of a private mapping were written to.

use crate::memfd;
use crate::region::Region;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::mm::MapFlags;
use rustix::param::page_size;
use std::ops::Range;
use std::sync::OnceLock;

const ENTRY: usize = size_of::<u64>();
/// So many pages are looked up at once.
const BATCH: usize = 8192;

// Linux, Documentation/admin-guide/mm/pagemap.rst.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// The page is the file's; a page that a write copied is not.
const OF_FILE: u64 = 1 << 61;

/// Whether every page with a byte in `addresses` still is the file's, in a private mapping of a
/// file. `false` where the kernel does not tell.
pub(crate) fn all_of_file(addresses: Range<usize>) -> bool {
    can_tell() && scan(addresses).is_some_and(|written| !written)
}

/// Whether the kernel's answers are what they should be: some sandboxes imitate the file.
fn can_tell() -> bool {
    static CAN_TELL: OnceLock<bool> = OnceLock::new();
    *CAN_TELL.get_or_init(|| probe() == Some([false, true]))
}

/// Looks up a page that was only read and one that was written.
fn probe() -> Option<[bool; 2]> {
    let page = page_size();
    let file = memfd::create(2 * page).ok()?;
    // The file must have pages, or there is nothing to read.
    drop(memfd::map_to_write(rustix::fd::AsFd::as_fd(&file), 2 * page).ok()?);
    let region = Region::of_file(
        rustix::fd::AsFd::as_fd(&file),
        0,
        2 * page,
        MapFlags::PRIVATE,
    )
    .ok()?;
    let start = region.start().as_ptr();
    // SAFETY: both are in the region, which nobody else knows.
    unsafe {
        start.read_volatile();
        start.add(page).write_volatile(1);
    }
    let address = start.addr();
    Some([
        scan(address..address + page)?,
        scan(address + page..address + 2 * page)?,
    ])
}

/// Whether a page was written; `None` where the kernel does not tell.
fn scan(addresses: Range<usize>) -> Option<bool> {
    let pagemap = rustix::fs::open(
        "/proc/self/pagemap",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let first = addresses.start / page_size();
    let end = addresses.end.div_ceil(page_size());
    let mut entries = vec![0; BATCH.min(end - first) * ENTRY];
    let mut next = first;
    while next < end {
        let batch = &mut entries[..BATCH.min(end - next) * ENTRY];
        read_exact(&pagemap, batch, (next * ENTRY) as u64)?;
        if batch.chunks_exact(ENTRY).any(written) {
            return Some(true);
        }
        next += batch.len() / ENTRY;
    }
    Some(false)
}

fn written(entry: &[u8]) -> bool {
    let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
    // What is neither here nor swapped was never touched, or is the file's and was given up.
    entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0
}

fn read_exact(file: &OwnedFd, mut buffer: &mut [u8], mut offset: u64) -> Option<()> {
    while !buffer.is_empty() {
        match rustix::io::pread(file, &mut *buffer, offset) {
            Ok(0) => return None,
            Ok(read) => {
                buffer = &mut buffer[read..];
                offset += read as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(())
}
