//! Which pages of a private mapping were written to.

use crate::memfd;
use crate::region::Region;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mm::MapFlags;
use rustix::param::page_size;
use std::ops::Range;
use std::sync::OnceLock;

/// Whether one of these pages (numbered by address) was written to, according to
/// `/proc/self/pagemap`; `None` where the kernel does not tell.
type Scan = fn(&OwnedFd, Range<usize>) -> Option<bool>;

/// So many pages are looked up at once.
const BATCH: usize = 8192;

/// Whether every page with a byte in `addresses` still is the file's, in a private mapping of a
/// file. `false` where the kernel does not tell.
pub(crate) fn all_of_file(addresses: Range<usize>) -> bool {
    static SCAN: OnceLock<Option<Scan>> = OnceLock::new();
    // Some sandboxes imitate the file: only what gives the right answers is believed.
    let scan = SCAN.get_or_init(|| {
        [ask as Scan, read]
            .into_iter()
            .find(|&scan| probe(scan) == Some([false, true]))
    });
    scan.and_then(|scan| any_written(scan, addresses)) == Some(false)
}

fn any_written(scan: Scan, addresses: Range<usize>) -> Option<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let pagemap = rustix::fs::open("/proc/self/pagemap", flags, Mode::empty()).ok()?;
    let end = addresses.end.div_ceil(page_size());
    for first in (addresses.start / page_size()..end).step_by(BATCH) {
        if scan(&pagemap, first..end.min(first + BATCH))? {
            return Some(true);
        }
    }
    Some(false)
}

/// Looks up a page that was only read and one that was written.
fn probe(scan: Scan) -> Option<[bool; 2]> {
    let page = page_size();
    let file = memfd::create(2 * page).ok()?;
    // The file must have pages, or there is nothing to read.
    drop(memfd::map_to_write(file.as_fd(), 2 * page).ok()?);
    let region = Region::of_file(file.as_fd(), 0, 2 * page, MapFlags::PRIVATE).ok()?;
    let start = region.start().as_ptr();
    // SAFETY: both are in the region, which nobody else knows.
    unsafe {
        start.read_volatile();
        start.add(page).write_volatile(1);
    }
    let address = start.addr();
    Some([
        any_written(scan, address..address + page)?,
        any_written(scan, address + page..address + 2 * page)?,
    ])
}

/// `struct pm_scan_arg` of Linux, `include/uapi/linux/fs.h`.
#[derive(Default)]
#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of the same.
#[derive(Default)]
#[repr(C)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// `PAGEMAP_SCAN`.
const SCAN: rustix::ioctl::Opcode = rustix::ioctl::opcode::read_write::<ScanArguments>(b'f', 16);

/// Has the kernel look for a written page, from Linux 6.7 on. What was not touched since the
/// segment was frozen has no page tables, and takes no time.
fn ask(pagemap: &OwnedFd, pages: Range<usize>) -> Option<bool> {
    let mut written = PageRegion::default();
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        start: (pages.start * page_size()) as u64,
        end: (pages.end * page_size()) as u64,
        vec: (&raw mut written).expose_provenance() as u64,
        vec_len: 1,
        max_pages: 1,
        category_inverted: PAGE_IS_FILE,
        category_mask: PAGE_IS_FILE,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: PAGE_IS_FILE,
        ..ScanArguments::default()
    };
    // SAFETY: the kernel reads and writes one `ScanArguments`, and writes one `PageRegion`.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), SCAN as _, &raw mut arguments) };
    // How many page regions were found, or an error.
    (found >= 0).then_some(found > 0)
}

const ENTRY: usize = size_of::<u64>();

// Linux, Documentation/admin-guide/mm/pagemap.rst.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// The page is the file's; a page that a write copied is not.
const OF_FILE: u64 = 1 << 61;

/// Reads what there is about each page.
fn read(pagemap: &OwnedFd, pages: Range<usize>) -> Option<bool> {
    let mut entries = vec![0; pages.len() * ENTRY];
    read_exact(pagemap, &mut entries, (pages.start * ENTRY) as u64)?;
    Some(entries.chunks_exact(ENTRY).any(written))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_find_every_written_page() {
        const PAGES: usize = 40;
        let page = page_size();
        let len = PAGES * page;
        let file = memfd::create(len).unwrap();
        drop(memfd::map_to_write(file.as_fd(), len).unwrap());
        for scan in [ask as Scan, read] {
            // Linux before 6.7 cannot be asked.
            if probe(scan).is_none() {
                continue;
            }
            for written in [0, 1, 20, PAGES - 1] {
                let region = Region::of_file(file.as_fd(), 0, len, MapFlags::PRIVATE).unwrap();
                let start = region.start().as_ptr();
                let address = |page_number: usize| start.addr() + page_number * page;
                let check = |first, end, expected| {
                    let found = any_written(scan, address(first)..address(end) - page + 1);
                    assert_eq!(found, Some(expected), "{written} in {first}..{end}");
                };
                // Nothing was touched; then some pages were read.
                check(0, PAGES, false);
                for number in (0..PAGES).step_by(2) {
                    // SAFETY: in the region.
                    unsafe { start.add(number * page).read_volatile() };
                }
                check(0, PAGES, false);
                // SAFETY: in the region.
                unsafe { start.add(written * page + 7).write_volatile(1) };
                check(0, PAGES, true);
                check(written, written + 1, true);
                for (first, end) in [(0, written), (written + 1, PAGES)] {
                    if first < end {
                        check(first, end, false);
                    }
                }
            }
        }
    }
}
