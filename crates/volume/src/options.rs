//! How a volume is set up.

use std::path::PathBuf;
use std::time::Duration;

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
}

impl Options {
    /// Settings with these directories and this quota in bytes.
    pub fn new(directories: Vec<PathBuf>, quota: u64) -> Self {
        Options {
            directories,
            quota,
            retry: Duration::from_secs(1),
        }
    }
}
