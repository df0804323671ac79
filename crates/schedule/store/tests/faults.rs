//! Disks that are full, fail, or return other bytes than were written.

mod common;
#[path = "../../../common/volume/tests/common/tiny.rs"]
mod tiny;

use std::fs;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::{Fails, Fixture, LONG, Value, bytes, eventually, files, id};
use libc::{EDQUOT, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC};
use tiny::Tiny;
use treadle_store::file::FormatError;
use treadle_store::{Form, Live, Options, Store, StoreError};
use treadle_volume::VolumeError;

/// Long enough for the spilling thread to fail meanwhile. No test depends on its length.
const SHORT: Duration = Duration::from_millis(50);

fn refused(f: &Fixture, object: u64, length: usize) -> StoreError {
    let live = Value::failing(object, length, &f.seen, Fails::No);
    let error = f
        .store
        .put(id(object), Arc::clone(&live), SHORT)
        .unwrap_err();
    match &error.object {
        Form::Live(object) => assert!(Arc::ptr_eq(object, &live)),
        other => panic!("{other:?}"),
    }
    assert!(f.store.info(id(object)).is_none());
    error.error
}

fn holds(store: &Store, object: u64, length: usize) {
    let mut pinned = store.get(id(object)).unwrap();
    assert_eq!(pinned.frames().unwrap().parts(), [bytes(object, length)]);
}

#[test]
fn a_full_disk_loses_nothing_and_recovers() {
    for errno in [ENOSPC, EDQUOT] {
        let f = Fixture::new(500, 1000);
        f.disk.fail_writes(Some(errno));
        f.put(1, 900);
        eventually("it failed", || f.store.stats().write_failures > 0);
        let said = f.store.stats().disk_error.unwrap();
        assert_eq!(said, io::Error::from_raw_os_error(errno).to_string());
        let error = refused(&f, 2, 900);
        assert!(
            matches!(error, StoreError::Disk(VolumeError::Full { .. })),
            "{error}"
        );
        assert!(error.to_string().contains(&said), "{error}");
        holds(&f.store, 1, 900);
        f.check();

        // It tries again by itself.
        let failures = f.store.stats().write_failures;
        eventually("again", || f.store.stats().write_failures > failures);
        f.disk.fail_writes(None);
        f.put(2, 900);
        assert!(f.spilled(1));
        assert_eq!(f.store.stats().disk_error, None);
        f.settle();
        holds(&f.store, 1, 900);
        holds(&f.store, 2, 900);
        let left: Vec<_> = f
            .files()
            .into_iter()
            .filter(|name| name.ends_with(".new"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_disk_that_fails_otherwise_is_named_too() {
    let f = Fixture::new(500, 1000);
    f.disk.fail_writes(Some(EIO));
    f.put(1, 900);
    eventually("it failed", || f.store.stats().disk_error.is_some());
    let error = refused(&f, 2, 900);
    assert!(
        matches!(
            error,
            StoreError::Disk(VolumeError::Disk {
                action: "write",
                ..
            })
        ),
        "{error}"
    );
    f.disk.fail_writes(None);
    f.settle();

    let g = Fixture::new(500, 1000);
    g.disk.fail_creates(Some(EIO));
    g.put(1, 900);
    eventually("it failed", || g.store.stats().disk_error.is_some());
    holds(&g.store, 1, 900);
    g.disk.fail_creates(None);
    g.settle();
    holds(&g.store, 1, 900);
    eventually("one file", || g.files().len() == 1);
}

#[test]
fn with_a_full_disk_what_is_on_disk_leaves_memory_still() {
    let f = Fixture::new(0, 2000);
    f.put(1, 500);
    f.settle();
    let pinned = f.store.get(id(1)).unwrap();
    f.disk.fail_writes(Some(ENOSPC));
    f.put(2, 500);
    eventually("it failed", || f.store.stats().write_failures > 0);
    drop(pinned);
    eventually("the first goes", || f.spilled(1));
    assert!(f.store.info(id(2)).unwrap().live);
    f.check();
    // Freed memory is room, whatever the disk says.
    f.put(3, 1000);
    thread::scope(|scope| {
        let putting = scope.spawn(|| f.put(4, 1000));
        eventually("it waits", || f.store.stats().waiting == 1);
        f.store.remove(id(3)).unwrap();
        putting.join().unwrap();
    });
    f.check();
}

#[test]
fn a_file_that_cannot_be_read_may_be_later() {
    let f = Fixture::new(0, 2000);
    f.put(1, 500);
    f.settle();
    f.disk.fail_reads(Some(EIO));
    let error = f.store.get(id(1)).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::Disk(VolumeError::Disk { action: "read", .. })
        ),
        "{error}"
    );
    let stats = f.store.stats();
    assert_eq!((stats.managed, stats.pinned.count), (0, 0));
    assert_eq!(stats.read_failures, 1);
    f.check();
    f.disk.fail_reads(None);
    holds(&f.store, 1, 500);
}

#[test]
fn a_file_for_which_there_is_no_descriptor_is_not_lost() {
    for errno in [EMFILE, ENFILE, ENOMEM] {
        let f = Fixture::new(0, 2000);
        f.put(1, 500);
        f.settle();
        f.disk.fail_some_reads(2, errno);
        holds(&f.store, 1, 500);
        f.settle();
        f.disk.fail_reads(Some(errno));
        let before = f.disk.reads();
        let error = f.store.get(id(1)).unwrap_err();
        assert!(!error.is_lost(), "{error}");
        assert!((2..20).contains(&(f.disk.reads() - before)));
        f.check();
        f.disk.fail_reads(None);
        holds(&f.store, 1, 500);
    }
}

#[test]
fn a_file_that_the_disk_does_not_give_is_lost() {
    for errno in [EIO, ENOENT] {
        let f = Fixture::new(0, 2000);
        f.put(1, 500);
        f.settle();
        f.disk.fail_reads(Some(errno));
        let before = f.disk.reads();
        assert!(f.store.get(id(1)).unwrap_err().is_lost());
        assert_eq!(f.disk.reads() - before, 1);
    }
}

#[test]
fn every_reader_of_a_bad_file_gets_an_error() {
    let f = Fixture::new(0, 2000);
    f.put(1, 500);
    f.settle();
    f.disk.hold_reads(true);
    f.disk.fail_reads(Some(EIO));
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| f.store.get(id(1)).is_err()))
            .collect();
        eventually("all ask", || f.store.info(id(1)).unwrap().pins == 3);
        f.store.remove(id(1)).unwrap();
        f.disk.hold_reads(false);
        for reader in readers {
            assert!(reader.join().unwrap());
        }
    });
    assert_eq!(f.store.stats().objects.count, 0);
    assert!(f.files().is_empty());
    f.check();
}

#[test]
fn a_flipped_bit_is_found_and_named() {
    let f = Fixture::new(0, 4000);
    f.put(1, 500);
    f.put(2, 500);
    f.settle();
    let names = f.files();
    assert_eq!(names.len(), 2);
    let path = f.store.directory().join(&names[0]);
    let mut content = fs::read(&path).unwrap();
    let last = content.len() - 1;
    content[last] ^= 0x10;
    fs::write(&path, &content).unwrap();
    let error = f.store.get(id(1)).unwrap_err();
    let StoreError::Corrupt {
        id: object,
        file,
        frame,
        source,
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*object, file, *frame), (id(1), &path, Some(0)));
    assert_eq!(*source, FormatError::Frame(0));
    holds(&f.store, 2, 500);

    // Shorter and longer, without reading past the end or allocating for it.
    for length in [0, 10, content.len() - 1, content.len() + 1] {
        content.resize(length, 0);
        fs::write(&path, &content).unwrap();
        let error = f.store.get(id(1)).unwrap_err();
        let StoreError::Corrupt { frame, source, .. } = &error else {
            panic!("{error}");
        };
        let (expected, found) = (64 + 500, length as u64);
        assert_eq!(*source, FormatError::Length { expected, found });
        assert_eq!(*frame, None);
    }
    // The object can be freed, and computed again.
    f.store.remove(id(1)).unwrap();
    f.put(1, 500);
    holds(&f.store, 1, 500);
    f.settle();
}

#[test]
fn a_quota_of_files_is_kept_and_named() {
    let base = tempfile::tempdir().unwrap();
    let options = Options {
        target: 0,
        quota: 1000,
        retry: Duration::from_millis(5),
        ..Options::new(base.path(), 1000)
    };
    let store = Store::open(options).unwrap();
    let seen = Arc::new(common::Seen::default());
    let put =
        |object: u64, timeout| store.put(id(object), Value::form(object, 800, &seen), timeout);
    // One on disk, one in memory.
    put(1, LONG).unwrap();
    put(2, LONG).unwrap();
    let error = put(3, SHORT).unwrap_err().error;
    assert!(
        matches!(error, StoreError::Disk(VolumeError::Quota { .. })),
        "{error}"
    );
    let said = store.stats().disk_error.unwrap();
    assert!(said.contains("the quota of 1000 bytes"), "{said}");
    store.remove(id(1)).unwrap();
    put(3, LONG).unwrap();
    holds(&store, 2, 800);
    holds(&store, 3, 800);
    store.check().unwrap();
}

#[test]
fn a_file_system_that_is_really_full() {
    const LENGTH: usize = 400_000;
    let Some(tiny) = Tiny::mount() else { return };
    let options = Options {
        target: 0,
        retry: Duration::from_millis(5),
        patience: None,
        ..Options::new(tiny.path(), 1_000_000)
    };
    let store = Store::open(options).unwrap();
    let seen = Arc::new(common::Seen::default());
    let put = |object: u64, timeout| {
        let live: Arc<dyn Live> = Value::failing(object, LENGTH, &seen, Fails::No);
        store.put(id(object), live, timeout)
    };
    // Two fit on the disk, two more in memory.
    for object in 1..=4 {
        put(object, LONG).unwrap();
    }
    eventually("it is full", || store.stats().disk_error.is_some());
    let error = put(5, SHORT).unwrap_err();
    assert!(
        matches!(error.error, StoreError::Disk(VolumeError::Full { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("object 5"), "{error}");
    store.check().unwrap();
    assert_eq!(files(store.directory()).len(), 2);
    assert_eq!(store.stats().spilled.count, 2);
    for object in 1..=4 {
        holds(&store, object, LENGTH);
    }
    // Freed objects free the disk: two can be written, and the last cannot again.
    store.remove(id(1)).unwrap();
    store.remove(id(2)).unwrap();
    put(5, LONG).unwrap();
    eventually("it works again", || store.stats().written.count == 4);
    holds(&store, 5, LENGTH);
    store.check().unwrap();
}
