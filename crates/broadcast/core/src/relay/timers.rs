//! What is due when.

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use treadle_types::ClientId;

use crate::CastId;

/// What may be due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Timer {
    /// Results go up.
    Flush(ClientId),
    /// Others hear what is settled.
    Settle(ClientId),
    /// Others hear that the node is there.
    Beat,
    /// Children may be silent.
    Silence,
    /// The payload of a cast may have stalled.
    Stall(CastId),
    /// The top may have to be asked.
    Ask(ClientId),
    /// Top: members that nobody reached are tried again.
    Retry(CastId),
}

#[derive(Default)]
pub(crate) struct Timers {
    due: BTreeSet<(Duration, Timer)>,
    armed: BTreeMap<Timer, Duration>,
}

impl Timers {
    /// A timer that is armed already stays as it is.
    pub(crate) fn arm(&mut self, timer: Timer, at: Duration) {
        if let alloc::collections::btree_map::Entry::Vacant(entry) = self.armed.entry(timer) {
            entry.insert(at);
            self.due.insert((at, timer));
        }
    }

    pub(crate) fn cancel(&mut self, timer: Timer) {
        if let Some(at) = self.armed.remove(&timer) {
            self.due.remove(&(at, timer));
        }
    }

    /// Takes the next that is due, with the time when it was.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<(Duration, Timer)> {
        let &(at, timer) = self.due.first()?;
        if at > now {
            return None;
        }
        self.cancel(timer);
        Some((at, timer))
    }

    pub(crate) fn next(&self) -> Option<Duration> {
        Some(self.due.first()?.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    pub(crate) fn armed(&self) -> impl Iterator<Item = Timer> + '_ {
        self.armed.keys().copied()
    }
}
