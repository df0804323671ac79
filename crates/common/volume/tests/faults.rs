//! Disks that are full, fail or vanish.

mod common;
#[path = "common/tiny.rs"]
mod tiny;

use std::fs;
use std::io;
use std::time::Duration;

use common::{Fixture, bytes, eventually};
use libc::{EDQUOT, EINTR, EIO, ENOSPC, EROFS};
use tiny::Tiny;
use treadle_volume::{File, Options, Volume, VolumeError};

const MIB: u64 = 1 << 20;

fn holds(file: &File, expected: &[u8]) {
    let mut content = vec![0; file.len() as usize];
    file.read_all(&mut content).unwrap();
    assert_eq!(content, expected);
}

#[test]
fn an_append_that_fails_leaves_the_file_as_it_was() {
    let f = Fixture::new(1, MIB);
    let file = f.volume.write("x", &[b"before"], false).unwrap();
    f.disk.shorten_writes(Some(10));
    for after in 0..10 {
        f.disk.fail_one_write(after, EIO);
        let error = file.append(&[&bytes(1, 55), &bytes(2, 45)]).unwrap_err();
        let VolumeError::Disk {
            action: "write",
            file: named,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(named, file.path());
        assert_eq!((file.len(), f.used()), (6, 6));
        holds(&file, b"before");
    }
    file.append(&[b" and after"]).unwrap();
    holds(&file, b"before and after");
    assert_eq!(f.volume.stats().directories[0].failures, 10);
    assert_eq!(
        f.volume.stats().directories[0].error,
        None,
        "it works again"
    );
}

#[test]
fn an_interrupted_write_goes_on() {
    let f = Fixture::new(1, MIB);
    f.disk.fail_one_write(0, EINTR);
    let file = f.volume.write("x", &[b"abc"], false).unwrap();
    holds(&file, b"abc");
}

#[test]
fn a_disk_that_is_full_after_some_bytes() {
    let f = Fixture::new(1, MIB);
    let file = f.volume.create("x").unwrap();
    f.disk.full_after(Some(250));
    let mut appended = 0;
    let error = loop {
        match file.append(&[&[7; 100]]) {
            Ok(_) => appended += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, VolumeError::Full { .. }), "{error}");
    assert!(error.to_string().contains(file.path().to_str().unwrap()));
    assert_eq!((appended, f.used()), (2, 200));
    f.disk.full_after(None);
    file.append(&[&[7; 100]]).unwrap();
    holds(&file, &[7; 300]);
}

#[test]
fn a_write_goes_elsewhere_when_a_directory_fails() {
    for errno in [ENOSPC, EDQUOT, EIO, EROFS] {
        let f = Fixture::new(3, MIB);
        f.disk.only_below(&f.directory(0));
        f.disk.fail_writes(Some(errno));
        let file = f.volume.write("x", &[b"abc"], false).unwrap();
        assert_eq!(f.place(file.path()), 1);
        holds(&file, b"abc");
        assert_eq!((f.used(), f.volume.stats().files), (3, 1));
        let failed = &f.volume.stats().directories[0];
        let said = io::Error::from_raw_os_error(errno).to_string();
        assert_eq!((failed.failures, failed.error.as_ref()), (1, Some(&said)));
        // The others take turns without it.
        let next: Vec<_> = (0..4)
            .map(|_| f.volume.write("y", &[b"d"], false).unwrap())
            .map(|file| f.place(file.path()))
            .collect();
        assert_eq!(next, [2, 1, 2, 1]);
        assert_eq!(f.volume.stats().directories[0].failures, 1);
    }
}

#[test]
fn a_directory_that_failed_has_another_chance_after_a_while() {
    let f = Fixture::retrying(2, MIB, Duration::from_millis(5));
    f.disk.only_below(&f.directory(0));
    f.disk.fail_creates(Some(EIO));
    assert_eq!(f.place(f.volume.create("x").unwrap().path()), 1);
    f.disk.fail_creates(None);
    eventually("it is used again", || {
        let file = f.volume.write("x", &[b"a"], false).unwrap();
        f.place(file.path()) == 0
    });
    assert_eq!(f.volume.stats().directories[0].error, None);
}

#[test]
fn where_all_fail_the_error_names_a_file_and_nothing_is_left() {
    let f = Fixture::new(2, MIB);
    for switch in [
        |f: &Fixture, errno| f.disk.fail_writes(errno),
        |f: &Fixture, errno| f.disk.fail_creates(errno),
        |f: &Fixture, errno| f.disk.fail_syncs(errno),
    ] {
        switch(&f, Some(EIO));
        let error = f.volume.write("x", &[b"abc"], true).unwrap_err();
        assert!(error.to_string().contains(".x"), "{error}");
        let stats = f.volume.stats();
        assert_eq!((f.used(), stats.files), (0, 0));
        assert!(stats.directories.iter().all(|at| at.error.is_some()));
        // No directory works, so each is tried all the same.
        switch(&f, None);
        f.volume.write("x", &[b"abc"], true).unwrap();
    }
}

#[test]
fn a_directory_that_vanished_is_left_out() {
    let f = Fixture::new(2, MIB);
    let files = [(); 2].map(|()| f.volume.write("x", &[b"abc"], false).unwrap());
    fs::remove_dir_all(f.directory(0)).unwrap();
    let error = files[0].append(&[b"d"]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains(files[0].path().to_str().unwrap())
    );
    assert!(files[0].read_at(0, &mut [0]).is_err());
    for _ in 0..3 {
        let file = f.volume.write("x", &[b"abc"], false).unwrap();
        assert_eq!(f.place(file.path()), 1);
    }
    holds(&files[1], b"abc");
    // What is gone takes no room.
    drop(files);
    let stats = f.volume.stats();
    assert_eq!((stats.used, stats.remove_failures), (0, 0));
}

#[test]
fn a_file_that_cannot_be_read_may_be_later() {
    let f = Fixture::new(1, MIB);
    let file = f.volume.write("x", &[b"abc"], false).unwrap();
    f.disk.fail_reads(Some(EIO));
    for error in [
        file.read_at(1, &mut [0]).unwrap_err(),
        file.map(0..1).unwrap_err(),
    ] {
        assert!(
            matches!(error, VolumeError::Disk { action: "read", .. }),
            "{error}"
        );
    }
    f.disk.fail_reads(None);
    holds(&file, b"abc");
}

#[test]
fn a_file_that_somebody_changed_is_found_out() {
    let f = Fixture::new(1, MIB);
    let file = f.volume.write("x", &[b"abcdef"], false).unwrap();
    for (found, content) in [(4, "abcd"), (8, "abcdefgh")] {
        fs::write(file.path(), content).unwrap();
        let error = file.read_all(&mut [0; 6]).unwrap_err();
        let expected = (6, found);
        assert!(
            matches!(error, VolumeError::Length { expected: e, found: f, .. } if (e, f) == expected),
            "{error}"
        );
        assert_eq!(file.read_at(0, &mut [0; 2]).is_ok(), found > 6);
        assert_eq!(file.map(0..2).is_ok(), found > 6);
    }
}

#[test]
fn a_file_that_cannot_be_removed_counts_still() {
    let f = Fixture::new(1, MIB);
    let file = f.volume.write("x", &[b"abc"], false).unwrap();
    f.disk.fail_removes(Some(EIO));
    drop(file);
    assert_eq!((f.used(), f.volume.stats().remove_failures), (3, 1));
    f.volume.close();
    assert!(
        f.bases
            .iter()
            .all(|base| fs::read_dir(base).unwrap().next().is_none())
    );
}

#[test]
fn a_file_system_that_is_really_full() {
    let Some(small) = Tiny::mount() else { return };
    let large = tempfile::tempdir().unwrap();
    let places = vec![small.path().to_owned(), large.path().to_owned()];
    let volume = Volume::open(&Options::new(places, u64::MAX)).unwrap();
    let piece = vec![1; 400_000];
    // It has too little room to be chosen, where the other works.
    let file = volume.write("x", &[&piece], false).unwrap();
    assert!(file.path().starts_with(large.path()));
    fs::remove_dir_all(volume.directories().nth(1).unwrap()).unwrap();
    let file = volume.write("x", &[&piece], false).unwrap();
    assert!(file.path().starts_with(small.path()));
    file.append(&[&piece]).unwrap();
    let error = file.append(&[&piece]).unwrap_err();
    assert!(matches!(error, VolumeError::Full { .. }), "{error}");
    holds(&file, &[1; 800_000]);
}
