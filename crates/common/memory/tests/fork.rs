//! Forks: parent and child have copies of their own, and no lock stays shut.
#![cfg(target_os = "linux")]

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use treadle_memory::{Mapping, Pool, Segments};

const MIB: usize = 1 << 20;

/// A fork concerns all memory of the process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A forked child; killed, if the test fails before it ended.
struct Child(Option<Pid>);

impl Child {
    /// Runs `body` in a forked child.
    fn fork(body: impl FnOnce()) -> Self {
        // SAFETY: the child only touches what is made to survive a fork, and the allocator, which
        // does.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let succeeded = catch_unwind(AssertUnwindSafe(body)).is_ok();
            // SAFETY: ends the child without running what is its parent's.
            unsafe { libc::_exit(i32::from(!succeeded)) }
        }
        assert!(pid > 0, "no child");
        Child(Pid::from_raw(pid))
    }

    fn assert_succeeds(mut self) {
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            if let Some((_, status)) = waitpid(self.0, WaitOptions::NOHANG).unwrap() {
                self.0 = None;
                return assert_eq!(status.exit_status(), Some(0), "{status:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the child hangs");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(self.0, WaitOptions::empty());
        }
    }
}

fn filled(segments: &Segments, len: usize, byte: u8) -> &'static mut [u8] {
    let start = segments.allocate(len).unwrap();
    // SAFETY: just allocated; tests that free it do not use it later.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) };
    bytes.fill(byte);
    bytes
}

fn free(segments: &Segments, bytes: &mut [u8]) {
    // SAFETY: the tests do not use it later.
    assert!(unsafe { segments.free(NonNull::new(bytes.as_mut_ptr()).unwrap()) });
}

fn all(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|&b| b == byte)
}

#[test]
fn parent_and_child_do_not_see_each_others_writes() {
    let _alone = alone();
    let segments = Segments::new(64 * MIB);
    let array = filled(segments, MIB, 1);
    let (mut parent_wrote, mut tell_child) = pipe().unwrap();
    let (mut child_wrote, mut tell_parent) = pipe().unwrap();
    let child = Child::fork(|| {
        parent_wrote.read_exact(&mut [0]).unwrap();
        assert!(all(array, 1));
        array[MIB / 2..].fill(3);
        tell_parent.write_all(&[0]).unwrap();
    });
    // A child that fails is the end of the pipe.
    drop(tell_parent);
    array[..MIB / 2].fill(2);
    tell_child.write_all(&[0]).unwrap();
    child_wrote.read_exact(&mut [0]).unwrap();
    assert!(all(&array[..MIB / 2], 2));
    assert!(all(&array[MIB / 2..], 1));
    child.assert_succeeds();
    free(segments, array);
}

#[test]
fn what_the_parent_frees_stays_as_it_was_in_the_child() {
    let _alone = alone();
    let segments = Segments::new(64 * MIB);
    let array = filled(segments, MIB, 1);
    let exported = filled(segments, MIB, 2);
    let export = segments.export(exported.as_ptr(), MIB).unwrap();
    let (mut freed, mut tell_child) = pipe().unwrap();
    let child = Child::fork(|| {
        freed.read_exact(&mut [0]).unwrap();
        assert!(all(array, 1) && all(exported, 2));
    });
    drop(export);
    free(segments, array);
    free(segments, exported);
    assert_eq!(segments.stats(), Default::default());
    let others = [7, 8].map(|byte| filled(segments, MIB, byte));
    tell_child.write_all(&[0]).unwrap();
    child.assert_succeeds();
    for other in others {
        free(segments, other);
    }
    // What came after the fork is used again.
    assert_eq!(segments.stats().idle_bytes, 2 * MIB);
}

#[test]
fn a_child_uses_nothing_of_its_parents_pool() {
    let _alone = alone();
    let segments = Segments::new(64 * MIB);
    let array = filled(segments, MIB, 1);
    let idle = filled(segments, MIB, 2);
    let idle_at = idle.as_ptr();
    free(segments, idle);
    let parked = filled(segments, 2 * MIB, 3);
    let export = segments.export(parked.as_ptr(), 2 * MIB).unwrap();
    segments.lend(export.segment);
    free(segments, parked);
    Child::fork(|| {
        let stats = segments.stats();
        assert_eq!((stats.segments, stats.live_bytes), (1, MIB));
        assert_eq!((stats.idle_bytes, stats.parked_bytes), (0, 0));
        free(segments, array);
        assert_eq!(segments.stats(), Default::default());
        let own = filled(segments, MIB, 9);
        free(segments, own);
        assert_eq!(segments.stats().idle_bytes, MIB);
    })
    .assert_succeeds();
    assert!(all(array, 1));
    let stats = segments.stats();
    assert_eq!((stats.idle_bytes, stats.parked_bytes), (MIB, 2 * MIB));
    let again = segments.allocate(MIB).unwrap();
    assert_eq!(again.as_ptr().cast_const(), idle_at);
    // SAFETY: so many bytes were allocated.
    let again = unsafe { std::slice::from_raw_parts(again.as_ptr(), MIB) };
    assert!(all(again, 2));
}

#[test]
fn both_can_export_what_they_did_not_write_to_since() {
    let _alone = alone();
    let segments = Segments::new(64 * MIB);
    let array = filled(segments, MIB, 1);
    let check = |array: &mut [u8], byte| {
        array[MIB / 2..].fill(byte);
        assert!(segments.export(array.as_ptr(), MIB).is_none());
        let export = segments.export(array.as_ptr(), MIB / 2).unwrap();
        let fd = rustix::fd::AsFd::as_fd(&export)
            .try_clone_to_owned()
            .unwrap();
        let mapping = Mapping::new(fd, export.offset, export.length).unwrap();
        assert!(all(mapping.as_slice(), 1));
    };
    Child::fork(|| check(array, 2)).assert_succeeds();
    check(array, 3);
}

/// How many mappings could write into a segment's file.
fn writable_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = |line: &&str| line.contains(" rw-s ") && line.contains("memfd:treadle");
    maps.lines().filter(shared).count()
}

#[test]
fn a_child_cannot_write_into_frozen_segments() {
    let _alone = alone();
    let segments = Segments::new(64 * MIB);
    // Large, and frozen by the export or by the fork.
    let exported = filled(segments, 4 * MIB, 1);
    let other = filled(segments, 4 * MIB, 2);
    let parked = filled(segments, 4 * MIB, 3);
    let export = segments.export(exported.as_ptr(), 4 * MIB).unwrap();
    let lent = segments.export(parked.as_ptr(), 4 * MIB).unwrap();
    segments.lend(lent.segment);
    free(segments, parked);
    assert!(writable_mappings() > 0);
    Child::fork(|| {
        assert_eq!(writable_mappings(), 0);
        assert!(all(exported, 1) && all(other, 2));
        exported.fill(8);
        other.fill(8);
        free(segments, exported);
        free(segments, other);
        let own = filled(segments, 4 * MIB, 9);
        assert!(segments.export(own.as_ptr(), 4 * MIB).is_some());
        free(segments, own);
        assert_eq!(segments.stats().idle_bytes, 4 * MIB);
    })
    .assert_succeeds();
    for (export, byte) in [(&export, 1), (&lent, 3)] {
        let fd = rustix::fd::AsFd::as_fd(export)
            .try_clone_to_owned()
            .unwrap();
        let mapping = Mapping::new(fd, export.offset, export.length).unwrap();
        assert!(all(mapping.as_slice(), byte));
    }
    assert!(all(exported, 1) && all(other, 2));
    // In the parent, what was in use when it forked is not used again, and what was not is.
    let id = lent.segment;
    drop((export, lent));
    free(segments, exported);
    free(segments, other);
    segments.release(id);
    let stats = segments.stats();
    assert_eq!(
        (stats.segments, stats.idle_bytes, stats.parked_bytes),
        (1, 4 * MIB, 0)
    );
    let again = filled(segments, 4 * MIB, 5);
    assert!(all(again, 5));
    free(segments, again);
    segments.trim();
}

#[test]
fn nobody_tells_of_a_mapping_that_was_inherited() {
    let _alone = alone();
    let segments = Segments::new(64 * MIB);
    let array = filled(segments, MIB, 1);
    let export = segments.export(array.as_ptr(), MIB).unwrap();
    let called = Arc::new(AtomicBool::new(false));
    let map = || {
        let fd = rustix::fd::AsFd::as_fd(&export)
            .try_clone_to_owned()
            .unwrap();
        let mut mapping = Mapping::new(fd, export.offset, export.length).unwrap();
        let called = Arc::clone(&called);
        mapping.on_drop(Box::new(move || called.store(true, Ordering::SeqCst)));
        mapping
    };
    let mut inherited = Some(map());
    let child = Child::fork(|| {
        assert!(all(inherited.take().unwrap().as_slice(), 1));
        assert!(!called.load(Ordering::SeqCst));
        drop(map());
        assert!(called.load(Ordering::SeqCst));
    });
    drop(inherited);
    assert!(!called.load(Ordering::SeqCst));
    child.assert_succeeds();
    drop(map());
    assert!(called.load(Ordering::SeqCst));
}

/// Ends the threads of a test that fails, too.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_child_of_busy_threads_allocates_and_frees() {
    let _alone = alone();
    let segments = Segments::new(4 * MIB);
    let pool = Pool::new(4 * MIB);
    drop(Pool::global().buffer(MIB).unwrap());
    let array = filled(segments, MIB, 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    free(segments, filled(segments, MIB, 2));
                    drop(pool.buffer(MIB).unwrap());
                }
            });
        }
        for _ in 0..20 {
            let mut buffer = Some(pool.buffer(MIB).unwrap());
            Child::fork(|| {
                assert!(all(array, 1));
                free(segments, filled(segments, MIB, 3));
                drop(buffer.take());
                drop(pool.buffer(MIB).unwrap());
                assert_eq!(pool.idle_bytes(), 0);
                // The global one is the child's own.
                assert_eq!(Pool::global().idle_bytes(), 0);
                drop(Pool::global().buffer(MIB).unwrap());
                assert_eq!(Pool::global().idle_bytes(), MIB);
            })
            .assert_succeeds();
        }
    });
    assert!(all(array, 1));
}

/// What a mapping holds until it ends, such as the export of memory that others read, would be given back while
/// the child still reads it.
#[test]
fn what_a_mapping_holds_is_not_given_back_after_a_fork() {
    let _alone = alone();
    let segments = Segments::new(64 * MIB);
    let array = filled(segments, MIB, 1);
    let held = Arc::new(());
    let map = || {
        let export = segments.export(array.as_ptr(), MIB).unwrap();
        let fd = rustix::fd::AsFd::as_fd(&export)
            .try_clone_to_owned()
            .unwrap();
        let mut mapping = Mapping::new(fd, export.offset, export.length).unwrap();
        let held = Arc::clone(&held);
        mapping.on_drop(Box::new(move || drop(held)));
        mapping
    };
    drop(map());
    assert_eq!(Arc::strong_count(&held), 1);
    let inherited = map();
    Child::fork(|| ()).assert_succeeds();
    drop(inherited);
    assert_eq!(Arc::strong_count(&held), 2);
    free(segments, array);
}
