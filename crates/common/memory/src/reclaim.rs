//! Memory that the process has and does not use goes back to the system.
//!
//! Fresh pages cost more than anything that short tasks do with them, so what was freed is kept for a
//! while; but not while the process uses more than ever, or its peak would be that of its values and of
//! what is free, too. Work that was done before needs as much as it did then, and in other pieces: for
//! that, what is free may come on top of the most that was used, up to a quarter of it, as long as the
//! process stays below the share of its limit at which what it holds goes to disk.

use std::time::{Duration, Instant};

use crate::{Pool, Segments, trim_heap};

/// How long freed memory is kept for what comes next, while the process takes less than a quarter of its
/// limit: somebody may look at a result before they compute the next one. Somewhat less than the 30
/// seconds after which distributed calls memory that is not managed "old".
const KEPT_IDLE: Duration = Duration::from_secs(20);
/// The same while it takes less than half of its limit, or there is none. jemalloc keeps pages for as
/// long.
const KEPT_ROOMY: Duration = Duration::from_secs(10);
/// The same while it takes more.
pub const KEPT: Duration = Duration::from_secs(1);
/// How long freed buffers are kept while the process uses more than ever.
const KEPT_GROWING: Duration = Duration::from_millis(20);
/// How much more memory than after the last time the process takes beside its values before the
/// allocator is asked to give some back, in bytes.
const SLACK: u64 = 8 << 20;

/// What a process takes, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Altogether.
    pub process: u64,
    /// Of these, what is free, and kept for what comes next.
    pub free: u64,
    /// Beside what is counted: values, payloads, rows, and what is free.
    pub others: u64,
}

/// What a process may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes altogether; 0: there is no limit.
    pub process: u64,
    /// Bytes with what is free, if there is a limit.
    pub with_free: u64,
    /// How long the allocator keeps what is free.
    pub heap: Duration,
}

/// What is known of the process's memory from earlier, in bytes.
#[derive(Debug, Default)]
pub struct Reclaim {
    /// The most that the process used.
    most: u64,
    /// The least that it took beside its values since the allocator was last asked.
    least: u64,
    /// Since when it takes more than it should.
    above: Option<Instant>,
    /// What the process took when it was looked at last.
    last: u64,
    /// By how much that differed from the time before.
    moved: u64,
}

impl Reclaim {
    /// Gives back what is not used; `measure` says what the process takes, and the answer is what it
    /// takes then.
    pub fn reclaim(&mut self, limits: &Limits, measure: impl Fn() -> Taken) -> Taken {
        let taken = measure();
        self.note(taken.process);
        let grows = self.grows(taken);
        let beyond = taken.process.saturating_sub(self.allowed(limits));
        if grows {
            expire(KEPT_GROWING);
        } else if beyond > 0 {
            give_back(KEPT_GROWING, beyond);
        } else {
            expire(kept(taken.process, limits.process));
        }
        let kept = if grows { Duration::ZERO } else { limits.heap };
        if !self.is_due(taken, kept, Instant::now()) {
            return taken;
        }
        trim_heap();
        let taken = measure();
        self.trimmed(taken);
        taken
    }

    /// Gives back all that is kept for what comes next; the answer is as that of
    /// [`reclaim`](Self::reclaim).
    pub fn give_back(&mut self, measure: impl Fn() -> Taken) -> Taken {
        expire(Duration::ZERO);
        trim_heap();
        let taken = measure();
        self.trimmed(taken);
        taken
    }

    /// Whether the process took more or less when it was looked at than the time before, and not just
    /// what differs from one time to the next.
    pub fn is_moving(&self) -> bool {
        self.moved > SLACK
    }

    /// The process takes so much now.
    fn note(&mut self, process: u64) {
        self.moved = process.abs_diff(self.last);
        self.last = process;
    }

    /// Whether the process uses more than ever, and not just what differs from one time to the next.
    fn grows(&mut self, taken: Taken) -> bool {
        let used = taken.process.saturating_sub(taken.free);
        let grows = used > self.most + (self.most / 32).max(SLACK);
        if grows {
            self.most = used;
        }
        grows
    }

    /// The most that the process may take with what is free.
    fn allowed(&self, limits: &Limits) -> u64 {
        let allowed = self.most + self.most / 4;
        match limits.process {
            0 => allowed,
            _ => allowed.min(limits.with_free),
        }
    }

    /// Whether the allocator has had memory that nobody uses for so long.
    fn is_due(&mut self, taken: Taken, kept: Duration, now: Instant) -> bool {
        self.least = self.least.min(taken.others);
        if taken.others <= self.least + SLACK {
            self.above = None;
            return false;
        }
        let since = *self.above.get_or_insert(now);
        now.duration_since(since) >= kept
    }

    fn trimmed(&mut self, taken: Taken) {
        self.least = taken.others;
        self.above = None;
    }
}

/// How long a process that takes so many bytes keeps what is free. `limit` in bytes; 0: there is none.
pub fn kept(process: u64, limit: u64) -> Duration {
    if process < limit / 4 {
        KEPT_IDLE
    } else if process < limit / 2 || limit == 0 {
        KEPT_ROOMY
    } else {
        KEPT
    }
}

/// Gives back the freed buffers that nobody has used for `age`.
fn expire(age: Duration) {
    Pool::global().expire(age);
    Segments::global().expire(age);
}

/// The same, until that makes so many bytes.
fn give_back(age: Duration, enough: u64) {
    let enough = usize::try_from(enough).unwrap_or(usize::MAX);
    let given = Pool::global().give_back(age, enough);
    Segments::global().give_back(age, enough.saturating_sub(given));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: Limits = Limits {
        process: 0,
        with_free: 0,
        heap: KEPT,
    };

    fn taken(others: u64) -> Taken {
        Taken {
            process: 300 << 20,
            free: 0,
            others: others << 20,
        }
    }

    #[test]
    fn the_allocator_is_asked_when_memory_is_not_used_for_long() {
        let start = Instant::now();
        let mut reclaim = Reclaim::default();
        reclaim.trimmed(taken(100));
        let mut is_due = |others, after| reclaim.is_due(taken(others), KEPT, start + after);
        assert!(!is_due(200, Duration::ZERO));
        assert!(!is_due(200, KEPT / 2), "a task may be using it");
        assert!(!is_due(105, KEPT / 2), "and has");
        assert!(!is_due(200, KEPT));
        assert!(!is_due(200, KEPT + KEPT / 4));
        assert!(is_due(200, KEPT * 2));
        // It really is in use: there is no point in asking again.
        reclaim.trimmed(taken(200));
        let mut is_due = |others, after| reclaim.is_due(taken(others), KEPT, start + after);
        assert!(!is_due(205, KEPT * 2));
        assert!(!is_due(205, KEPT * 4));
        // What was in use is not any more.
        assert!(!is_due(50, KEPT * 4));
        assert!(!is_due(100, KEPT * 4));
        assert!(is_due(100, KEPT * 5));
    }

    #[test]
    fn a_process_moves_when_it_takes_more_or_less_than_before() {
        let mut reclaim = Reclaim::default();
        let mut moves = |process: u64| {
            reclaim.note(process << 20);
            reclaim.is_moving()
        };
        assert!(moves(100));
        assert!(!moves(104));
        assert!(moves(200));
        assert!(!moves(200));
        assert!(moves(100));
    }

    #[test]
    fn the_more_a_process_takes_the_shorter_it_keeps_what_is_free() {
        assert_eq!(kept(24, 100), KEPT_IDLE);
        assert_eq!(kept(25, 100), KEPT_ROOMY);
        assert_eq!(kept(50, 100), KEPT);
        assert_eq!(kept(50, 0), KEPT_ROOMY);
    }

    #[test]
    fn a_process_grows_by_what_it_uses() {
        let mut reclaim = Reclaim::default();
        let mut grows = |process: u64, free: u64| {
            reclaim.grows(Taken {
                process: process << 20,
                free: free << 20,
                others: 0,
            })
        };
        assert!(grows(1000, 0));
        assert!(!grows(1000, 900));
        assert!(!grows(1200, 200), "the same again, beside what is free");
        assert!(!grows(1020, 0));
        assert!(grows(1200, 100));
    }

    #[test]
    fn what_is_free_may_come_on_top_of_the_most_that_was_used_below_the_limit() {
        let reclaim = Reclaim {
            most: 400,
            ..Reclaim::default()
        };
        let allowed = |limit, with_free| {
            reclaim.allowed(&Limits {
                process: limit,
                with_free,
                ..NO_LIMIT
            })
        };
        assert_eq!(allowed(0, 0), 500);
        assert_eq!(allowed(1000, 700), 500);
        assert_eq!(allowed(600, 420), 420);
        assert_eq!(allowed(500, 350), 350, "nothing may be free");
    }

    #[test]
    fn a_process_that_grows_asks_at_once() {
        let mut reclaim = Reclaim::default();
        assert!(reclaim.grows(taken(100)));
        assert!(!reclaim.grows(taken(100)));
        reclaim.trimmed(taken(100));
        let now = Instant::now();
        assert!(!reclaim.is_due(taken(105), Duration::ZERO, now));
        assert!(!reclaim.is_due(taken(150), KEPT, now));
        assert!(reclaim.is_due(taken(150), Duration::ZERO, now));
    }
}
