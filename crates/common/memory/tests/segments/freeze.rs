//! Freezing: what becomes of the pages, and of writes at the same moment. Large segments have their
//! pages moved away, small ones have them forgotten.

use super::{Array, KIB, MIB, PAGE, all, map, present_pages};
use crate::older_kernels;
use rustix::fs::fstat;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use treadle_memory::{Export, Segments};

const SIZES: [usize; 3] = [256 * KIB, 4 * MIB, 5 * MIB];

/// How often this process has the file mapped such that it could write into it.
fn writable_mappings(export: &Export) -> usize {
    let inode = fstat(export).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields[1].ends_with('s') && fields[4] == inode
    });
    ours.count()
}

#[test]
fn a_frozen_segment_is_used_again_with_all_of_its_pages() {
    for len in SIZES {
        let segments = Segments::new(64 * MIB);
        for round in 0..6_u8 {
            let mut array = Array::new(segments, len);
            let pages = len / PAGE;
            assert_eq!(present_pages(array.start.as_ptr(), len), pages, "{len}");
            array.bytes().fill(round);
            let export = array.export_all().unwrap();
            let mapping = map(&export);
            array.bytes()[PAGE..].fill(0xff);
            assert!(all(mapping.as_slice(), round));
            drop(mapping);
            // Freed before and after the receiver is done.
            if round % 2 == 0 {
                let id = export.segment;
                segments.lend(id);
                drop((array, export));
                assert_eq!(segments.stats().parked_bytes, len);
                segments.release(id);
            } else {
                drop((export, array));
            }
            let stats = segments.stats();
            assert_eq!((stats.segments, stats.idle_bytes), (1, len));
        }
    }
}

#[test]
fn the_pages_of_a_large_segment_stay_mapped() {
    let segments = Segments::new(64 * MIB);
    let large = Array::filled(segments, 4 * MIB, 1);
    let export = large.export_all().unwrap();
    let moved = usize::from(!older_kernels::simulated());
    assert_eq!(writable_mappings(&export), moved);
    let small = Array::filled(segments, MIB, 1);
    assert_eq!(writable_mappings(&small.export_all().unwrap()), 0);
    // Reading looks up pages of the file, from the start.
    assert_eq!(present_pages(large.start.as_ptr(), large.len), 0);
    // Nothing is left when the segment goes.
    drop(large);
    segments.trim();
    assert_eq!(writable_mappings(&export), 0);
}

#[test]
fn writes_during_an_export_are_not_lost_and_later_ones_not_seen() {
    for len in SIZES {
        let segments = Segments::new(64 * MIB);
        for _ in 0..10 {
            export_while_writing(&Array::filled(segments, len, 0));
        }
    }
}

/// Ends the threads of a test that fails, too.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two threads write the number of their pass into each page, over and over.
fn export_while_writing(array: &Array) {
    let counters: Vec<&[AtomicU64]> = (0..array.len)
        .step_by(PAGE)
        .map(|offset| {
            // SAFETY: two aligned counters in each page of the array, which outlives this function.
            unsafe { std::slice::from_raw_parts(array.start.as_ptr().add(offset).cast(), 2) }
        })
        .collect();
    let passes = [const { AtomicU64::new(0) }; 2];
    let complete = || passes.each_ref().map(|pass| pass.load(Ordering::Acquire));
    let wait_for_two_passes = || {
        let until = Instant::now() + Duration::from_secs(30);
        let before = complete();
        while (0..2).any(|writer| complete()[writer] < before[writer] + 2) {
            assert!(Instant::now() < until, "the writers hang");
            std::thread::yield_now();
        }
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for (writer, complete) in passes.iter().enumerate() {
            let (counters, stop) = (&counters, &stop);
            scope.spawn(move || {
                for pass in 1.. {
                    for page in counters {
                        page[writer].store(pass, Ordering::Relaxed);
                    }
                    complete.store(pass, Ordering::Release);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        wait_for_two_passes();
        let before = complete();
        let export = array.export_all().unwrap();
        let snapshot = map(&export).as_slice().to_vec();
        wait_for_two_passes();
        let later = map(&export);
        assert!(later.as_slice() == snapshot, "the snapshot has changed");
        for page in snapshot.chunks(PAGE) {
            for writer in 0..2 {
                let seen = u64::from_ne_bytes(page[writer * 8..][..8].try_into().unwrap());
                assert!(seen >= before[writer], "{seen} after {before:?}");
            }
        }
    });
    for page in counters {
        let last = [0, 1].map(|writer: usize| page[writer].load(Ordering::Acquire));
        assert_eq!(last, complete());
    }
}
