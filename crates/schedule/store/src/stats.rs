//! What the store says about itself.

use std::time::Duration;

/// A number of things, and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// How many bytes together.
    pub nbytes: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, nbytes: u64) {
        self.count += 1;
        self.nbytes += nbytes;
    }

    pub(crate) fn subtract(&mut self, nbytes: u64) {
        self.count -= 1;
        self.nbytes -= nbytes;
    }
}

/// Where a store stands. An object in several forms is counted in each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Managed memory in use, in bytes: what the target and the limit are about.
    pub managed: u64,
    /// Above this, the coldest objects leave memory.
    pub target: u64,
    /// Above this, [`Store::put`](crate::Store::put) waits.
    pub limit: u64,
    /// Objects, with their sizes. Content that was freed or overwritten but is still pinned counts
    /// here and below.
    pub objects: Tally,
    /// Objects in use, with the managed memory that they keep.
    pub pinned: Tally,
    /// Live objects.
    pub live: Tally,
    /// Frames in memory, those that view a live object's memory included.
    pub frames: Tally,
    /// Frames in memory that other processes map too.
    pub shared: Tally,
    pub files: Tally,
    /// Objects that are on disk only, with the lengths of their files.
    pub spilled: Tally,
    /// Objects that could not be serialised, with the managed memory that they keep.
    pub stuck: Tally,
    /// Calls of [`Store::put`](crate::Store::put) that wait for room.
    pub waiting: u64,
    /// Since the start: files that were written.
    pub written: Tally,
    /// Since the start: objects that left memory without writing, by the memory that was freed.
    pub dropped: Tally,
    /// Since the start: files that were read back.
    pub read: Tally,
    /// How long writing took, one file after the other, with making bytes of its value.
    pub write_time: Duration,
    /// How long reading took, each file by itself.
    pub read_time: Duration,
    /// Since the start: files that could not be written.
    pub write_failures: u64,
    /// Since the start: files that could not be read, or were corrupt.
    pub read_failures: u64,
    /// Since the start: files that could not be removed. The directory goes with the store all the
    /// same.
    pub remove_failures: u64,
    /// Why the last attempt to write failed, until one succeeds.
    pub disk_error: Option<String>,
    /// The last error of an object's serialisation.
    pub serialise_error: Option<String>,
}

/// Where an object stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectInfo {
    /// Its size when it came, in bytes.
    pub nbytes: u64,
    /// References: see [`Store::retain`](crate::Store::retain).
    pub references: u64,
    /// How many use it at the moment.
    pub pins: u64,
    /// Whether it is there as a live object.
    pub live: bool,
    /// As frames in memory.
    pub frames: bool,
    /// As frames in memory that other processes map too.
    pub shared: bool,
    /// As a file.
    pub file: bool,
}
