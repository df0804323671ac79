//! How a volume is set up.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Disk as _, Limit, LocalDisk};

/// The settings of a volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the volume makes its directories, at least one place; one on each disk. They are made
    /// where they are missing.
    pub directories: Vec<PathBuf>,
    /// What the lengths of all files together do not exceed, in bytes.
    pub quota: u64,
    /// How long a directory that failed is tried only after the others. It doubles with every
    /// failure, up to 64 times of it.
    pub retry: Duration,
    /// For tests: what directories do at most.
    pub limits: Vec<Limit>,
}

impl Options {
    /// Settings with these directories and this quota in bytes.
    pub fn new(directories: Vec<PathBuf>, quota: u64) -> Self {
        Options {
            directories,
            quota,
            retry: Duration::from_secs(1),
            limits: Vec::new(),
        }
    }

    /// How much more files may have than `used` bytes: what the quota leaves, and the file systems of the
    /// directories have. One that does not answer has none.
    pub fn room(&self, used: u64) -> u64 {
        // Directories that are not there yet will be made below those that are.
        let there = self.directories.iter().filter_map(|directory| {
            let mut above = directory
                .ancestors()
                .filter(|path| !path.as_os_str().is_empty());
            let found = above.find_map(|path| Some((path.metadata().ok()?.dev(), path)));
            found.or_else(|| Some((Path::new(".").metadata().ok()?.dev(), Path::new("."))))
        });
        let systems: BTreeMap<u64, &Path> = there.collect();
        let rooms = systems
            .values()
            .map(|path| LocalDisk.room(path).unwrap_or(0));
        let free = rooms.fold(0, u64::saturating_add);
        free.min(self.quota.saturating_sub(used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_counts_once_and_the_quota_limits_it() {
        let place = tempfile::tempdir().unwrap();
        let one = place.path().join("a/b");
        let directories = vec![one.clone(), place.path().join("c")];
        let free =
            |directories: &[PathBuf], quota| Options::new(directories.to_vec(), quota).room(0);
        let whole = free(&[one], u64::MAX);
        assert!(whole > 0);
        // Others use the disk meanwhile.
        assert!(free(&directories, u64::MAX) < whole + whole / 2);
        assert_eq!(free(&directories, 4_096), 4_096);
        assert_eq!(Options::new(directories, 4_096).room(4_000), 96);
        assert_eq!(Options::new(vec![], 4_096).room(5_000), 0);
    }
}
