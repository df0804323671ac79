//! What processes did for a shuffle, as they tell it when it ends.

/// What a process did for a shuffle. Times are microseconds of all of its tasks together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Partitions that were read here.
    pub reads: u64,
    /// Bytes of these rows.
    pub read_bytes: u64,
    /// Bytes that were pushed to other processes.
    pub pushed: u64,
    /// Bytes that were stored here.
    pub stored: u64,
    /// Bytes that were written to files.
    pub spilled: u64,
    /// Bytes that were read from files.
    pub loaded: u64,
    /// Transfers, barriers and reads that were given back, to run again.
    pub again: u64,
    /// Those that failed.
    pub failed: u64,
    /// How long rows were gathered.
    pub gathering: u64,
    /// How long transfers waited for the servers to take rows.
    pub pushing: u64,
    /// How long barriers waited for the servers to compare.
    pub comparing: u64,
    /// How long reads waited for rows.
    pub reading: u64,
}

impl Usage {
    /// Adds what another process did.
    pub fn add(&mut self, other: &Self) {
        let Self {
            reads,
            read_bytes,
            pushed,
            stored,
            spilled,
            loaded,
            again,
            failed,
            gathering,
            pushing,
            comparing,
            reading,
        } = self;
        for (mine, others) in [
            (reads, other.reads),
            (read_bytes, other.read_bytes),
            (pushed, other.pushed),
            (stored, other.stored),
            (spilled, other.spilled),
            (loaded, other.loaded),
            (again, other.again),
            (failed, other.failed),
            (gathering, other.gathering),
            (pushing, other.pushing),
            (comparing, other.comparing),
            (reading, other.reading),
        ] {
            *mine = mine.saturating_add(others);
        }
    }
}
