//! What a volume says about itself.

use std::path::PathBuf;

/// Where a volume stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Bytes of all files.
    pub used: u64,
    /// What they may have at most.
    pub quota: u64,
    /// How many files there are.
    pub files: u64,
    /// Since the start: files that could not be removed. Those count as used still, and go with the
    /// volume.
    pub remove_failures: u64,
    /// The directories, in the order of the options.
    pub directories: Vec<DirectoryStats>,
}

/// Where a directory of a volume stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryStats {
    pub path: PathBuf,
    /// Bytes of its files.
    pub used: u64,
    /// How many files it has.
    pub files: u64,
    /// Since the start: how often it failed.
    pub failures: u64,
    /// Why it failed last, until writing there succeeds.
    pub error: Option<String>,
}
