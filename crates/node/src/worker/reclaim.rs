//! Memory that the process has and does not use goes back to the system.

use std::time::Duration;

use treadle_memory::{Pool, Segments, trim_heap};

/// How long buffers are kept for the next value: long enough that a stream of values is received
/// into the same ones.
const KEPT: Duration = Duration::from_millis(500);
/// How much more memory than after the last time the process takes beside its values before the
/// allocator is asked to give some back.
const SLACK: u64 = 16 << 20;

/// What is known of the process's memory from earlier.
#[derive(Debug, Default)]
pub(super) struct Reclaim {
    /// The least that it took beside its values since the allocator was last asked.
    least: u64,
    /// Whether it took more than it may when it was last looked at. What tasks use for a moment
    /// comes and goes.
    was_above: bool,
}

impl Reclaim {
    /// Gives back what is not used; `others` measures how much memory the process takes beside its
    /// values, in bytes.
    pub(super) fn reclaim(&mut self, others: impl Fn() -> u64) {
        Pool::global().expire(KEPT);
        Segments::global().expire(KEPT);
        if self.is_due(others()) {
            trim_heap();
            self.trimmed(others());
        }
    }

    fn is_due(&mut self, others: u64) -> bool {
        self.least = self.least.min(others);
        let is_above = others > self.least + SLACK;
        let was_above = std::mem::replace(&mut self.was_above, is_above);
        is_above && was_above
    }

    fn trimmed(&mut self, others: u64) {
        self.least = others;
        self.was_above = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocator_is_asked_when_memory_stays_in_use_beside_the_values() {
        let mut reclaim = Reclaim::default();
        reclaim.trimmed(100 << 20);
        assert!(!reclaim.is_due(110 << 20));
        assert!(!reclaim.is_due(200 << 20), "a task may be using it");
        assert!(!reclaim.is_due(100 << 20));
        assert!(!reclaim.is_due(200 << 20));
        assert!(reclaim.is_due(200 << 20));
        // It really is in use: there is no point in asking again.
        reclaim.trimmed(200 << 20);
        assert!(!reclaim.is_due(210 << 20));
        assert!(!reclaim.is_due(210 << 20));
        // What was in use is not any more.
        assert!(!reclaim.is_due(50 << 20));
        assert!(!reclaim.is_due(100 << 20));
        assert!(reclaim.is_due(100 << 20));
    }
}
