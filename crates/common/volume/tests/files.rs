//! Files while the disk works: appending, ranges, mappings, the quota, directories.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use common::{Fixture, bytes, eventually};
use proptest::prelude::*;
use treadle_volume::{File, Options, Volume, VolumeError};

const MIB: u64 = 1 << 20;

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.len() as usize];
    file.read_all(&mut content).unwrap();
    content
}

#[test]
fn what_is_appended_is_read_back_in_ranges() {
    let f = Fixture::new(1, MIB);
    let file = f.volume.create("partition").unwrap();
    assert!(file.is_empty());
    assert_eq!(file.append(&[]).unwrap(), 0..0);
    assert_eq!(file.append(&[b"", b"abc", b"", b"defg"]).unwrap(), 0..7);
    assert_eq!(file.append(&[b"hij"]).unwrap(), 7..10);
    assert_eq!(
        (file.len(), content(&file).as_slice()),
        (10, b"abcdefghij".as_slice())
    );
    file.sync().unwrap();

    let (mut first, mut second) = ([0; 3], [0; 4]);
    let reads = f.disk.reads();
    file.read_ranges(&mut [(1, &mut first), (6, &mut second)])
        .unwrap();
    assert_eq!((&first, &second), (b"bcd", b"ghij"));
    assert_eq!(f.disk.reads(), reads + 1, "opened once");
    file.read_at(10, &mut []).unwrap();
    assert!(file.path().to_str().unwrap().ends_with(".partition"));
    let mode = fs::metadata(file.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(f.used(), 10);
}

#[test]
fn a_range_beyond_the_end_is_an_error_that_names_the_file() {
    let f = Fixture::new(1, MIB);
    let file = f.volume.write("x", &[b"abc"], true).unwrap();
    for (offset, length) in [(0, 4), (3, 1), (4, 0), (u64::MAX, 2)] {
        let error = file.read_at(offset, &mut vec![0; length]).unwrap_err();
        assert!(
            matches!(error, VolumeError::Range { length: 3, .. }),
            "{error}"
        );
        assert!(error.to_string().contains(".x"), "{error}");
        let range = offset..offset.saturating_add(length as u64);
        assert!(file.map(range).is_err());
    }
    assert!(file.read_all(&mut [0; 2]).is_err());
    assert_eq!(f.volume.stats().directories[0].failures, 0);
}

#[test]
fn a_mapping_is_the_file_and_keeps_it() {
    let f = Fixture::new(1, MIB);
    let all = bytes(3, 20_000);
    let file = f.volume.write("x", &[&all], false).unwrap();
    let mapped = file.map(4095..9000).unwrap();
    assert_eq!(mapped.as_ref(), &all[4095..9000]);
    assert!(file.map(7..7).unwrap().as_ref().is_empty());
    file.append(&[b"more"]).unwrap();
    let path = file.path().to_owned();
    let kept = mapped.into_bytes();
    drop(file);
    assert!(path.exists());
    assert_eq!(f.used(), 20_004);
    assert_eq!(kept.slice(1..3), all[4096..4098]);
    drop(kept);
    assert!(!path.exists());
    assert_eq!(f.used(), 0);
}

#[test]
fn many_producers_append_to_one_file() {
    let f = Fixture::new(1, 64 * MIB);
    let file = f.volume.create("partition").unwrap();
    f.disk.shorten_writes(Some(1000));
    let ranges: Vec<_> = thread::scope(|scope| {
        let producers: Vec<_> = (0..8)
            .map(|producer| {
                let file = &file;
                scope.spawn(move || {
                    let append = |turn: u64| {
                        let seed = producer * 100 + turn;
                        let (head, rest) = (bytes(seed, 700), bytes(seed + 1, 3000));
                        let range = file.append(&[&head, &rest]).unwrap();
                        // Others append meanwhile.
                        let mut read = vec![0; 3700];
                        file.read_at(range.start, &mut read).unwrap();
                        assert_eq!(read, [head, rest].concat());
                        (range, read)
                    };
                    (0..20).map(append).collect::<Vec<_>>()
                })
            })
            .collect();
        let done = producers.into_iter().map(|one| one.join().unwrap());
        done.flatten().collect()
    });
    let mut starts: Vec<_> = ranges.iter().map(|(range, _)| range.start).collect();
    starts.sort_unstable();
    assert!(starts.iter().copied().eq((0..160).map(|at| at * 3700)));
    let all = content(&file);
    for (range, written) in ranges {
        assert_eq!(all[range.start as usize..range.end as usize], written);
    }
}

#[test]
fn more_pieces_than_one_call_of_the_system_takes() {
    let f = Fixture::new(1, MIB);
    let all = bytes(1, 5000);
    let pieces: Vec<&[u8]> = all.chunks(1).collect();
    let file = f.volume.write("x", &pieces, false).unwrap();
    assert_eq!(content(&file), all);
}

#[test]
fn the_quota_is_refused_by_name_and_given_back() {
    let f = Fixture::new(2, 100);
    let file = f.volume.write("x", &[&[1; 60]], false).unwrap();
    let other = f.volume.create("y").unwrap();
    let error = other.append(&[&[2; 41]]).unwrap_err();
    let VolumeError::Quota {
        file: named,
        needed: 41,
        used: 60,
        quota: 100,
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(named, other.path());
    assert!(error.to_string().contains("quota of 100 bytes"), "{error}");
    assert!(f.volume.write("z", &[&[2; 41]], false).is_err());
    assert_eq!(f.volume.stats().files, 2, "nothing is left of it");
    assert_eq!(f.used(), 60);
    let failures = f
        .volume
        .stats()
        .directories
        .iter()
        .map(|at| at.failures)
        .sum::<u64>();
    assert_eq!(failures, 0, "no disk is at fault");

    other.append(&[&[2; 40]]).unwrap();
    assert_eq!(f.used(), 100);
    drop(file);
    assert_eq!(f.used(), 40);
    let again = other.clone();
    drop(other);
    again.append(&[&[3; 60]]).unwrap();
    assert_eq!((f.used(), again.len()), (100, 100));
}

#[test]
fn files_are_spread_over_directories() {
    // On one disk, so that all have the same room.
    let f = Fixture::new(3, MIB);
    let files: Vec<_> = (0..9).map(|_| f.volume.create("x").unwrap()).collect();
    let places: Vec<_> = files.iter().map(|file| f.place(file.path())).collect();
    assert_eq!(places, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    files[1].append(&[b"1234"]).unwrap();
    f.used();
    let per_directory: Vec<_> = f
        .volume
        .stats()
        .directories
        .into_iter()
        .map(|one| (one.used, one.files))
        .collect();
    assert_eq!(per_directory, [(0, 3), (4, 3), (0, 3)]);
}

#[test]
fn directories_go_with_the_last_file() {
    let f = Fixture::new(2, MIB);
    let directories = [f.directory(0), f.directory(1)];
    let file = f.volume.write("x", &[b"abc"], false).unwrap();
    let Fixture { volume, .. } = f;
    drop(volume);
    assert_eq!(content(&file), b"abc");
    drop(file);
    assert!(directories.iter().all(|directory| !directory.exists()));
}

#[test]
fn a_closed_volume_has_nothing_on_disk() {
    let f = Fixture::new(2, MIB);
    let file = f.volume.write("x", &[b"abc"], false).unwrap();
    let mapped = file.map(0..3).unwrap();
    f.volume.close();
    assert!(
        f.bases
            .iter()
            .all(|base| fs::read_dir(base).unwrap().next().is_none())
    );
    assert_eq!(mapped.as_ref(), b"abc");
    assert!(f.volume.create("y").is_err());
    assert!(file.append(&[b"d"]).is_err());
    drop((file, mapped));
    let stats = f.volume.stats();
    assert_eq!((stats.used, stats.files, stats.remove_failures), (0, 0, 0));
}

#[test]
fn a_volume_needs_directories_that_can_be_made() {
    let none = Options::new(vec![], MIB);
    assert!(matches!(Volume::open(&none), Err(VolumeError::NoDirectory)));
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("file");
    fs::write(&file, "").unwrap();
    let good = base.path().join("good");
    let options = Options::new(vec![good.clone(), file.clone()], MIB);
    let error = Volume::open(&options).unwrap_err();
    assert!(
        error.to_string().contains(file.to_str().unwrap()),
        "{error}"
    );
    assert_eq!(fs::read_dir(&good).unwrap().count(), 0);
}

#[test]
fn a_forked_child_does_not_touch_its_parents_files() {
    let f = Fixture::new(1, MIB);
    let file = f.volume.write("x", &[b"abc"], false).unwrap();
    // SAFETY: the child only drops what it has, and ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(file);
        drop(f.volume);
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    let mut status = -1;
    eventually("the child ends", || {
        // SAFETY: waits for the child that was made above.
        (unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) }) == child
    });
    assert_eq!(status, 0);
    assert_eq!(content(&file), b"abc");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against files that are vectors.
    #[test]
    fn any_appends_and_removals(
        steps in prop::collection::vec((0..4_usize, 0..60_usize, any::<bool>()), 1..60),
        short in prop::option::of(1..20_usize),
    ) {
        const QUOTA: u64 = 400;
        let f = Fixture::new(2, QUOTA);
        f.disk.shorten_writes(short);
        let mut files: Vec<Option<(File, Vec<u8>)>> = vec![None; 4];
        for (seed, (which, length, remove)) in steps.into_iter().enumerate() {
            if remove && length % 3 == 0 {
                files[which] = None;
            } else {
                let new = || (f.volume.create("x").unwrap(), Vec::new());
                let (file, expected) = files[which].get_or_insert_with(new);
                let piece = bytes(seed as u64, length);
                let halves = piece.split_at(length / 2);
                let before = f.volume.stats().used;
                let appended = file.append(&[halves.0, halves.1]);
                prop_assert_eq!(appended.is_ok(), before + length as u64 <= QUOTA);
                if appended.is_ok() {
                    expected.extend(piece);
                }
            }
            let known = files.iter().flatten();
            let sum: usize = known.clone().map(|(_, expected)| expected.len()).sum();
            prop_assert_eq!(f.used(), sum as u64);
            for (file, expected) in known {
                prop_assert_eq!(&content(file), expected);
            }
        }
    }
}
