//! Shared segments: allocation, snapshots, reuse. The receiver is a second mapping of this process.
#![cfg(target_os = "linux")]

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use treadle_memory::{Export, Mapping, MemoryError, SegmentId, Segments};

#[path = "segments/freeze.rs"]
mod freeze;
#[path = "segments/older_kernels.rs"]
mod older_kernels;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Memory of a segment that a test owns.
struct Array {
    segments: &'static Segments,
    start: NonNull<u8>,
    len: usize,
}

impl Array {
    fn new(segments: &'static Segments, len: usize) -> Self {
        Array {
            segments,
            start: segments.allocate(len).unwrap(),
            len,
        }
    }

    fn filled(segments: &'static Segments, len: usize, byte: u8) -> Self {
        let mut array = Array::new(segments, len);
        array.bytes().fill(byte);
        array
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this length, not freed.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    fn export(&self, offset: usize, len: usize) -> Option<Export> {
        self.segments
            .export(self.start.as_ptr().wrapping_add(offset), len)
    }

    fn export_all(&self) -> Option<Export> {
        self.export(0, self.len)
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: nobody can borrow the array any more.
        assert!(unsafe { self.segments.free(self.start) });
    }
}

fn descriptor(export: &Export) -> OwnedFd {
    export.as_fd().try_clone_to_owned().unwrap()
}

fn map(export: &Export) -> Mapping {
    Mapping::new(descriptor(export), export.offset, export.length).unwrap()
}

fn all(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|&b| b == byte)
}

/// How many pages of `len` bytes can be read without a page fault.
fn present_pages(start: *const u8, len: usize) -> usize {
    use std::os::unix::fs::FileExt;

    let mut entries = vec![0; 8 * (len / PAGE)];
    let offset = start.addr() / PAGE * 8;
    std::fs::File::open("/proc/self/pagemap")
        .and_then(|file| file.read_exact_at(&mut entries, offset as u64))
        .unwrap();
    let present = |entry: &&[u8]| u64::from_ne_bytes((*entry).try_into().unwrap()) >> 63 == 1;
    entries.chunks_exact(8).filter(present).count()
}

#[test]
fn memory_is_aligned_zero_and_writable() {
    let segments = Segments::new(0);
    for len in [0, 1, 64 * KIB, 64 * KIB + 1, MIB, 3 * MIB + 5] {
        let mut array = Array::new(segments, len);
        assert_eq!(array.start.addr().get() % PAGE, 0);
        assert!(all(array.bytes(), 0));
        array.bytes().fill(9);
        assert!(all(array.bytes(), 9));
        assert_eq!(segments.len_at(array.start), Some(len));
    }
}

#[test]
fn addresses_are_known_exactly() {
    let segments = Segments::new(64 * MIB);
    let array = Array::new(segments, 100_000);
    let start = array.start.as_ptr().cast_const();
    assert!(segments.contains(start, 100_000));
    assert!(segments.contains(start.wrapping_add(99_999), 1));
    assert!(!segments.contains(start, 100_001));
    assert!(!segments.contains(start.wrapping_add(100_000), 0));
    assert!(!segments.contains(start.wrapping_sub(1), 1));
    assert!(!segments.contains(start.wrapping_add(10), usize::MAX));
    assert!(array.export(99_999, 2).is_none());
    assert!(array.export(5, 0).is_none());

    let elsewhere = Box::new([0; 10]);
    assert!(segments.export(elsewhere.as_ptr(), 10).is_none());
    let inside = NonNull::new(array.start.as_ptr().wrapping_add(PAGE)).unwrap();
    assert_eq!(segments.len_at(inside), None);
    // SAFETY: no segment starts there.
    assert!(!unsafe { segments.free(inside) });
    drop(array);
    assert!(!segments.contains(start, 1));
}

#[test]
fn a_freed_segment_is_used_again() {
    let segments = Segments::new(64 * MIB);
    let array = Array::filled(segments, MIB, 5);
    let start = array.start;
    assert_eq!(segments.stats().live_bytes, MIB);
    drop(array);
    let stats = segments.stats();
    assert_eq!(
        (stats.live_bytes, stats.idle_bytes, stats.segments),
        (0, MIB, 1)
    );

    let mut again = Array::new(segments, MIB - 100);
    assert_eq!(again.start, start);
    assert!(all(again.bytes(), 5));
    drop(again);
    let zeroed = segments.allocate_zeroed(MIB).unwrap();
    assert_eq!(zeroed, start);
    let mut zeroed = Array {
        segments,
        start: zeroed,
        len: MIB,
    };
    assert!(all(zeroed.bytes(), 0));
}

#[test]
fn idle_memory_has_a_limit() {
    let segments = Segments::new(2 * MIB);
    let arrays = [MIB, MIB, MIB].map(|len| Array::new(segments, len));
    let big = Array::new(segments, 3 * MIB);
    drop(arrays);
    assert_eq!(segments.stats().idle_bytes, 2 * MIB);
    drop(big);
    assert!(segments.stats().idle_bytes <= 2 * MIB);
    segments.trim();
    assert_eq!(segments.stats(), Default::default());
}

#[test]
fn resizing_in_place_stays_within_the_segment() {
    let segments = Segments::new(64 * MIB);
    let mut array = Array::new(segments, MIB - 10);
    assert!(segments.resize(array.start, MIB));
    assert!(!segments.resize(array.start, MIB + 1));
    assert!(!segments.resize(array.start, 10));
    assert!(segments.resize(array.start, MIB / 2));
    array.len = MIB / 2;
    assert_eq!(segments.len_at(array.start), Some(MIB / 2));
    assert!(array.export(0, MIB / 2 + 1).is_none());
    assert!(!segments.resize(NonNull::dangling(), 1));
}

#[test]
fn only_what_was_asked_for_takes_memory() {
    let segments = Segments::new(64 * MIB);
    let short = 2 * MIB - 100 * KIB;
    let mut array = Array::new(segments, short - 7);
    let mapped = |array: &Array| present_pages(array.start.as_ptr(), 2 * MIB) * PAGE;
    assert_eq!(
        (mapped(&array), segments.stats().live_bytes),
        (short, short)
    );
    assert!(segments.resize(array.start, short + PAGE));
    assert_eq!(mapped(&array), short + PAGE);
    assert_eq!(segments.stats().live_bytes, short + PAGE);
    array.len = short + PAGE;
    array.bytes().fill(1);
    let export = array.export_all().unwrap();
    let seen = map(&export);
    // The pages that it lacks would not be the file's.
    assert!(!segments.resize(array.start, 2 * MIB));
    drop((export, array));
    assert!(all(seen.as_slice(), 1));
    assert_eq!(segments.stats().idle_bytes, short + PAGE);
    // Another array of the same class has all of its pages.
    let array = Array::new(segments, 2 * MIB);
    assert_eq!(mapped(&array), 2 * MIB);
    let stats = segments.stats();
    assert_eq!((stats.segments, stats.live_bytes), (1, 2 * MIB));
    drop(array);
    assert_eq!(segments.stats().idle_bytes, 2 * MIB);
}

#[test]
fn a_receiver_sees_what_was_exported_and_nothing_later() {
    let segments = Segments::new(64 * MIB);
    let mut array = Array::filled(segments, 3 * MIB, 1);
    let export = array.export_all().unwrap();
    let early = map(&export);
    assert!(all(early.as_slice(), 1));
    array.bytes().fill(2);
    assert!(all(early.as_slice(), 1));
    // Also in pages that the receiver looks at for the first time after the write.
    let late = map(&export);
    assert!(all(late.as_slice(), 1));
    assert!(all(array.bytes(), 2));
}

#[test]
fn what_a_receiver_writes_is_its_own() {
    let segments = Segments::new(64 * MIB);
    let mut array = Array::filled(segments, MIB, 1);
    let export = array.export_all().unwrap();
    let mut mapping = map(&export);
    // SAFETY: the mapping's own bytes.
    unsafe { mapping.as_mut_ptr().write_bytes(9, MIB / 2) };
    assert!(all(&mapping.as_slice()[..MIB / 2], 9));
    assert!(all(&mapping.as_slice()[MIB / 2..], 1));
    assert!(all(array.bytes(), 1));
    assert!(all(map(&export).as_slice(), 1));
}

#[test]
fn parts_can_start_anywhere() {
    let segments = Segments::new(64 * MIB);
    let mut array = Array::new(segments, MIB);
    for (i, byte) in array.bytes().iter_mut().enumerate() {
        *byte = (i % 251) as u8;
    }
    let expected = array.bytes().to_vec();
    for (offset, len) in [
        (0, 1),
        (1, PAGE),
        (PAGE, PAGE),
        (PAGE - 1, 2),
        (70_001, 500_000),
    ] {
        let export = array.export(offset, len).unwrap();
        assert_eq!((export.offset, export.length), (offset as u64, len as u64));
        assert_eq!(map(&export).as_slice(), &expected[offset..offset + len]);
    }
}

#[test]
fn a_segment_can_be_exported_again_until_it_is_written_to() {
    let segments = Segments::new(64 * MIB);
    let len = MIB;
    let mut array = Array::filled(segments, len, 1);
    let first = array.export_all().unwrap();
    // Reading changes nothing.
    assert!(all(array.bytes(), 1));
    let second = array.export_all().unwrap();
    assert_eq!(second.segment, first.segment);

    let written = 100 * PAGE + 7;
    array.bytes()[written] = 2;
    assert!(array.export_all().is_none());
    assert!(array.export(written, 1).is_none());
    // A page is written to as a whole; all others are as they were.
    assert!(array.export(100 * PAGE, 1).is_none());
    assert!(array.export(99 * PAGE, PAGE + 1).is_none());
    let before = array.export(0, 100 * PAGE).unwrap();
    let after = array.export(101 * PAGE, len - 101 * PAGE).unwrap();
    for export in [&before, &after, &first, &second] {
        assert!(all(map(export).as_slice(), 1));
    }
    // The same value is a write too.
    array.bytes()[0] = 1;
    assert!(array.export(0, 1).is_none());
}

#[test]
fn what_stays_constant_is_exported_without_freezing_it() {
    let segments = Segments::new(64 * MIB);
    let array = Array::filled(segments, 512 * KIB, 3);
    segments.keep_constant(array.start);
    let (start, len) = (array.start, array.len);
    for _ in 0..2 {
        let export = array.export_all().unwrap();
        segments.lend(export.segment);
        assert!(all(map(&export).as_slice(), 3));
        segments.release(export.segment);
    }
    assert_eq!(present_pages(start.as_ptr(), len), len / PAGE);
    drop(array);
    let mut next = Array::new(segments, len);
    assert_eq!(next.start, start, "it is used again where it is");
    assert_eq!(present_pages(start.as_ptr(), len), len / PAGE);
    // Who does not say that it is constant may write to it.
    next.bytes().fill(4);
    let export = next.export_all().unwrap();
    next.bytes().fill(5);
    assert!(all(map(&export).as_slice(), 4));
    assert!(next.export_all().is_none());
}

#[test]
fn every_written_page_is_found() {
    let segments = Segments::new(256 * MIB);
    // More pages than are looked up at once.
    let len = 40 * MIB;
    for page in [0, 1, 8191, 8192, 8193, len / PAGE - 1] {
        let mut array = Array::filled(segments, len, 1);
        drop(array.export_all().unwrap());
        array.bytes()[page * PAGE + 5] = 2;
        assert!(array.export_all().is_none(), "page {page}");
        assert!(array.export(page * PAGE, PAGE).is_none(), "page {page}");
        let rest = if page == 0 { PAGE..len } else { 0..page * PAGE };
        assert!(
            array.export(rest.start, rest.len()).is_some(),
            "page {page}"
        );
    }
}

#[test]
fn a_frozen_segment_is_fresh_when_it_is_used_again() {
    let segments = Segments::new(64 * MIB);
    let mut array = Array::filled(segments, MIB, 1);
    drop(array.export_all().unwrap());
    array.bytes().fill(2);
    drop(array);
    assert_eq!(segments.stats().idle_bytes, MIB);
    let mut again = Array::new(segments, MIB);
    assert_eq!(segments.stats().segments, 1);
    again.bytes().fill(3);
    let export = again.export_all().unwrap();
    assert!(all(map(&export).as_slice(), 3));
}

#[test]
fn what_a_receiver_has_is_not_used_again() {
    let segments = Segments::new(64 * MIB);
    let array = Array::filled(segments, MIB, 1);
    let export = array.export_all().unwrap();
    let id = export.segment;
    segments.lend(id);
    segments.lend(id);
    let mapping = map(&export);
    drop(export);
    drop(array);
    let stats = segments.stats();
    assert_eq!(
        (stats.live_bytes, stats.idle_bytes, stats.parked_bytes),
        (0, 0, MIB)
    );

    let other = Array::filled(segments, MIB, 2);
    assert!(all(mapping.as_slice(), 1));
    drop(other);
    drop(mapping);
    segments.release(id);
    assert_eq!(segments.stats().parked_bytes, MIB);
    segments.release(id);
    let stats = segments.stats();
    assert_eq!((stats.idle_bytes, stats.parked_bytes), (2 * MIB, 0));
    // Once too often is no harm.
    segments.release(id);
    segments.release(SegmentId(u64::MAX));
    segments.lend(id);
    assert_eq!(segments.stats(), stats);
}

#[test]
fn an_export_holds_the_segment_without_any_receiver() {
    let segments = Segments::new(64 * MIB);
    let array = Array::filled(segments, MIB, 1);
    let export = array.export_all().unwrap();
    drop(array);
    assert_eq!(segments.stats().parked_bytes, MIB);
    let other = Array::filled(segments, MIB, 2);
    assert!(all(map(&export).as_slice(), 1));
    drop(other);
    drop(export);
    assert_eq!(segments.stats().parked_bytes, 0);
}

#[test]
fn loans_that_end_before_the_array_leave_it_reusable() {
    let segments = Segments::new(64 * MIB);
    let array = Array::filled(segments, MIB, 1);
    let id = {
        let export = array.export_all().unwrap();
        segments.lend(export.segment);
        export.segment
    };
    segments.release(id);
    drop(array);
    assert_eq!(segments.stats().idle_bytes, MIB);
}

#[test]
fn what_a_lost_receiver_had_is_never_used_again() {
    let segments = Segments::new(64 * MIB);
    for free_first in [true, false] {
        let array = Array::filled(segments, MIB, 1);
        let export = array.export_all().unwrap();
        let id = export.segment;
        segments.lend(id);
        let mapping = map(&export);
        drop(export);
        if free_first {
            drop(array);
            segments.abandon(id);
        } else {
            segments.abandon(id);
            drop(array);
        }
        assert_eq!(segments.stats(), Default::default());
        let _other = Array::filled(segments, MIB, 2);
        assert!(all(mapping.as_slice(), 1));
        segments.release(id);
        segments.trim();
    }
}

#[test]
fn parked_memory_counts_towards_the_limit() {
    let segments = Segments::new(2 * MIB);
    let mut mappings = Vec::new();
    let mut ids = Vec::new();
    for byte in 0..5 {
        let array = Array::filled(segments, MIB, byte);
        let export = array.export_all().unwrap();
        segments.lend(export.segment);
        ids.push(export.segment);
        mappings.push(map(&export));
    }
    let stats = segments.stats();
    assert_eq!((stats.parked_bytes, stats.segments), (2 * MIB, 2));
    for (byte, mapping) in (0..).zip(&mappings) {
        assert!(all(mapping.as_slice(), byte));
    }
    drop(mappings);
    for id in ids {
        segments.release(id);
    }
    let stats = segments.stats();
    assert_eq!((stats.parked_bytes, stats.idle_bytes), (0, 2 * MIB));
}

#[test]
fn arrays_of_several_threads_are_independent() {
    let segments = Segments::new(8 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            scope.spawn(move || {
                for round in 0..30_u8 {
                    let byte = thread * 50 + round;
                    let mut array = Array::filled(segments, MIB, byte);
                    let export = array.export_all().unwrap();
                    let mapping = map(&export);
                    array.bytes().fill(0);
                    drop(export);
                    assert!(all(mapping.as_slice(), byte));
                }
            });
        }
    });
    let stats = segments.stats();
    assert_eq!((stats.live_bytes, stats.parked_bytes), (0, 0));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let segments = Segments::new(MIB);
    let len = 1 << 46;
    let error = segments.allocate(len).unwrap_err();
    assert!(
        matches!(error, MemoryError::OutOfMemory { len: 0x4000_0000_0000, available } if available < len as u64),
        "{error}"
    );
    assert_eq!(
        segments.allocate(usize::MAX),
        Err(MemoryError::TooLarge { len: usize::MAX })
    );
    assert_eq!(segments.stats(), Default::default());
}

#[test]
fn nobody_can_truncate_a_segment() {
    let segments = Segments::new(MIB);
    let array = Array::new(segments, MIB);
    let export = array.export_all().unwrap();
    for len in [0, MIB as u64 / 2, 2 * MIB as u64] {
        let refused = rustix::fs::ftruncate(&export, len);
        assert_eq!(refused, Err(rustix::io::Errno::PERM), "{len}");
    }
    // Nor make it impossible to write to.
    let sealed = rustix::fs::fcntl_add_seals(&export, rustix::fs::SealFlags::WRITE);
    assert_eq!(sealed, Err(rustix::io::Errno::PERM));
}

#[test]
fn a_mapping_tells_when_it_ends() {
    let segments = Segments::new(MIB);
    let array = Array::filled(segments, MIB, 4);
    let export = array.export_all().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let mut mapping = map(&export);
    let counter = Arc::clone(&calls);
    mapping.on_drop(Box::new(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    let bytes = mapping.into_bytes();
    let clone = bytes.slice(10..20);
    drop(bytes);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert!(all(&clone, 4));
    drop(clone);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn a_populated_mapping_has_its_pages() {
    let segments = Segments::new(MIB);
    let array = Array::filled(segments, MIB, 4);
    let mapping = map(&array.export_all().unwrap());
    assert_eq!(present_pages(mapping.as_ptr(), MIB), 0);
    mapping.populate();
    assert_eq!(present_pages(mapping.as_ptr(), MIB), MIB / PAGE);
    assert!(all(mapping.as_slice(), 4));
}

#[test]
fn a_mapping_closes_its_descriptor_at_its_end() {
    let segments = Segments::new(MIB);
    let array = Array::new(segments, MIB);
    let export = array.export_all().unwrap();
    let fd = descriptor(&export);
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let file = std::fs::read_link(&path).unwrap();
    assert!(file.to_string_lossy().contains("memfd:treadle"), "{file:?}");
    let inode = rustix::fs::fstat(&fd).unwrap().st_ino;
    drop(Mapping::new(fd, 0, 10).unwrap());
    // Another test may have opened something else under this number since.
    if let Ok(status) = rustix::fs::stat(&path) {
        assert_ne!(status.st_ino, inode);
    }
}

mod hostile {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn memfd(len: usize, seals: SealFlags) -> OwnedFd {
        let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len as u64).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    fn refused(fd: impl Into<OwnedFd>) {
        let error = Mapping::new(fd.into(), 0, 10).unwrap_err();
        assert!(matches!(error, MemoryError::Unsafe { .. }), "{error}");
    }

    #[test]
    fn only_a_memfd_that_cannot_shrink_is_mapped() {
        refused(memfd(PAGE, SealFlags::empty()));
        refused(memfd(PAGE, SealFlags::GROW | SealFlags::WRITE));
        refused(memfd_create("unsealable", MemfdFlags::CLOEXEC).unwrap());
        refused(std::fs::File::open("/proc/self/exe").unwrap());
        refused(std::fs::File::open("/dev/zero").unwrap());
        refused(std::fs::File::open("/").unwrap());
        refused(std::os::unix::net::UnixDatagram::unbound().unwrap());
        assert!(Mapping::new(memfd(PAGE, SealFlags::SHRINK), 0, 10).is_ok());
    }

    #[test]
    fn nothing_beyond_the_end_is_mapped() {
        let end = 2 * PAGE as u64;
        let map = |offset, length| Mapping::new(memfd(2 * PAGE, SealFlags::SHRINK), offset, length);
        for (offset, length) in [
            (0, end + 1),
            (end, 1),
            (end + 1, 0),
            (1, end),
            (u64::MAX, 1),
            (1, u64::MAX),
            (u64::MAX, u64::MAX),
        ] {
            let error = map(offset, length).unwrap_err();
            let expected = MemoryError::OutOfBounds {
                offset,
                length,
                size: end,
            };
            assert_eq!(error, expected);
        }
        for (offset, length) in [(0, end), (end - 1, 1), (end, 0), (0, 0)] {
            let mapping = map(offset, length).unwrap();
            assert_eq!(mapping.len() as u64, length);
            assert!(all(mapping.as_slice(), 0));
        }
    }

    #[test]
    fn huge_pages_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // Kernels without them have nothing to refuse.
        if let Ok(fd) = memfd_create("huge", flags) {
            ftruncate(&fd, 1 << 30).unwrap();
            fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
            refused(fd);
        }
    }
}
