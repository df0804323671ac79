//! Cuts: pairs of workers of which one could not get a value from the other.

use alloc::collections::BTreeMap;
use core::time::Duration;

use treadle_types::WorkerId;

/// For how long a fetch that failed speaks against the next one.
pub(crate) const CUT: Duration = Duration::from_secs(5);

/// Pairs of a reader and a holder, each until it is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    until: BTreeMap<(WorkerId, WorkerId), Duration>,
}

impl Cuts {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.until.is_empty()
    }

    pub(crate) fn add(&mut self, reader: WorkerId, holder: WorkerId, now: Duration) {
        self.until.insert((reader, holder), now + CUT);
    }

    /// Whether `reader` could not get something from `holder` lately.
    #[inline]
    pub(crate) fn has(&self, reader: WorkerId, holder: WorkerId) -> bool {
        !self.until.is_empty() && self.until.contains_key(&(reader, holder))
    }

    /// Forgets what is old; whether anything was.
    pub(crate) fn expire(&mut self, now: Duration) -> bool {
        let before = self.until.len();
        self.until.retain(|_, until| *until > now);
        self.until.len() < before
    }

    /// A worker is gone.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.until
            .retain(|&(reader, holder), _| reader != worker && holder != worker);
    }
}
