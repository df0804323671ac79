//! What the tests of the volume share.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use treadle_volume::faults::FaultyDisk;
use treadle_volume::{Options, Volume};

/// Longer than anything here takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// Waits until something is so.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < LONG, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A volume on several directories of a disk with switches.
pub struct Fixture {
    pub volume: Volume,
    pub disk: FaultyDisk,
    pub bases: Vec<tempfile::TempDir>,
}

impl Fixture {
    pub fn new(directories: usize, quota: u64) -> Self {
        Self::retrying(directories, quota, Duration::from_secs(3600))
    }

    /// A directory that failed is tried again after `retry`.
    pub fn retrying(directories: usize, quota: u64, retry: Duration) -> Self {
        let bases: Vec<_> = (0..directories)
            .map(|_| tempfile::tempdir().unwrap())
            .collect();
        let paths = bases.iter().map(|base| base.path().to_owned()).collect();
        let disk = FaultyDisk::new();
        let options = Options {
            retry,
            ..Options::new(paths, quota)
        };
        let volume = Volume::on_disk(&options, Arc::new(disk.clone())).unwrap();
        Fixture {
            volume,
            disk,
            bases,
        }
    }

    /// The volume's own directory of this number.
    pub fn directory(&self, number: usize) -> PathBuf {
        self.volume.directories().nth(number).unwrap().to_owned()
    }

    /// Which directory a file is in.
    pub fn place(&self, file: &Path) -> usize {
        let mut directories = self.volume.directories();
        directories.position(|at| file.starts_with(at)).unwrap()
    }

    /// Bytes in use, as the books and as the disk say.
    pub fn used(&self) -> u64 {
        self.volume.check().unwrap();
        let stats = self.volume.stats();
        let lengths = self.volume.directories().map(length_of_files);
        let per_directory: Vec<u64> = stats.directories.iter().map(|one| one.used).collect();
        assert_eq!(lengths.collect::<Vec<_>>(), per_directory);
        stats.used
    }
}

fn length_of_files(directory: &Path) -> u64 {
    let files = fs::read_dir(directory).unwrap().map(Result::unwrap);
    files
        .filter(|entry| entry.file_name() != "lock")
        .map(|entry| entry.metadata().unwrap().len())
        .sum()
}

pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|i| (i.wrapping_mul(31).wrapping_add(seed) >> 2) as u8)
        .collect()
}
