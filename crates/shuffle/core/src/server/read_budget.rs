//! The bytes of the reads that have begun, until they have left the process.
//!
//! Rows of a read are in memory from when they are loaded until they are written to the reader's
//! connection, which may be slow. So what counts is not how many reads are begun, but what they take.

use alloc::collections::BTreeMap;

use crate::{ApplicationId, Broken};

/// What reads take.
#[derive(Debug, Default)]
pub(super) struct ReadBudget {
    taken: u64,
    /// By the number of the read's loads.
    reads: BTreeMap<u64, Taken>,
}

#[derive(Debug)]
struct Taken {
    application: ApplicationId,
    bytes: u64,
}

impl ReadBudget {
    /// Whether a read of so many bytes may begin. One of each application always may: it can be larger than
    /// the limit, and who does not take its rows holds up itself only.
    pub(super) fn has_room(&self, application: ApplicationId, bytes: u64, limit: u64) -> bool {
        self.taken.saturating_add(bytes) <= limit || self.is_first(application)
    }

    /// Whether no read of an application has begun.
    pub(super) fn is_first(&self, application: ApplicationId) -> bool {
        let mut reads = self.reads.values();
        reads.all(|taken| taken.application != application)
    }

    /// What all take, in bytes.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// A read begins.
    pub(super) fn take(&mut self, load: u64, application: ApplicationId, bytes: u64) {
        self.taken = self.taken.saturating_add(bytes);
        self.reads.insert(load, Taken { application, bytes });
    }

    /// Nothing of a read is in memory any more.
    pub(super) fn give_back(&mut self, load: u64) {
        if let Some(taken) = self.reads.remove(&load) {
            self.taken = self.taken.saturating_sub(taken.bytes);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    pub(super) fn has(&self, load: u64) -> bool {
        self.reads.contains_key(&load)
    }

    pub(super) fn check(&self) -> Result<(), Broken> {
        let found = self.reads.values().map(|taken| taken.bytes).sum();
        Broken::unless_equal("bytes of reads", self.taken, found)
    }
}
