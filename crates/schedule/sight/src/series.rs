//! Numbers over time: of the last minutes by the second, of the whole run in ever longer steps.

use alloc::vec;
use alloc::vec::Vec;

/// Nanoseconds of a second.
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Seconds that are kept.
pub(crate) const SECONDS: usize = 600;
/// Steps of the whole run.
pub(crate) const STEPS: usize = 1_024;

/// Counters: what came to pass in a step.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Step {
    /// Tasks that ended.
    pub(crate) tasks: u64,
    /// Nanoseconds of executor threads.
    pub(crate) busy: u64,
    /// Bytes that came from other workers.
    pub(crate) fetched: u64,
    /// Bytes that went to disk, or came back.
    pub(crate) spilled: u64,
    /// Nanoseconds in which values were under way, of each pair of workers.
    pub(crate) fetching: u64,
    /// The most bytes of values, and of processes, that a snapshot had.
    pub(crate) managed: u64,
    pub(crate) process: u64,
    /// Snapshots, and those in which no task waited for a worker, an input or its turn.
    pub(crate) snapshots: u64,
    pub(crate) starved: u64,
    /// Snapshots in which tasks waited for others while few ran.
    pub(crate) narrow: u64,
}

impl Step {
    fn add(&mut self, other: &Self) {
        self.tasks += other.tasks;
        self.busy = self.busy.saturating_add(other.busy);
        self.fetched = self.fetched.saturating_add(other.fetched);
        self.spilled = self.spilled.saturating_add(other.spilled);
        self.fetching = self.fetching.saturating_add(other.fetching);
        self.managed = self.managed.max(other.managed);
        self.process = self.process.max(other.process);
        self.snapshots += other.snapshots;
        self.starved += other.starved;
        self.narrow += other.narrow;
    }
}

/// Both.
#[derive(Debug)]
pub(crate) struct Times {
    recent: Vec<Step>,
    /// The second that the last place of `recent` stands for, plus one.
    end: u64,
    whole: Vec<Step>,
    /// Seconds of a step of `whole`.
    step: u64,
}

impl Times {
    pub(crate) fn new() -> Self {
        Self {
            recent: vec![Step::default(); SECONDS],
            end: 1,
            whole: Vec::new(),
            step: 1,
        }
    }

    /// Time has come so far.
    pub(crate) fn advance(&mut self, now: u64) {
        let second = now / SECOND + 1;
        if second > self.end {
            let passed = (second - self.end).min(SECONDS as u64);
            for next in second - passed..second {
                self.recent[next as usize % SECONDS] = Step::default();
            }
            self.end = second;
        }
    }

    fn put(&mut self, second: u64, step: &Step) {
        self.put_recent(second, step);
        self.put_whole(second, step);
    }

    fn put_recent(&mut self, second: u64, step: &Step) {
        if second < self.end && second + SECONDS as u64 >= self.end {
            self.recent[second as usize % SECONDS].add(step);
        }
    }

    fn put_whole(&mut self, second: u64, step: &Step) {
        while second / self.step >= STEPS as u64 {
            let halves = self.whole.chunks(2).map(|pair| {
                let mut sum = pair[0];
                if let Some(other) = pair.get(1) {
                    sum.add(other);
                }
                sum
            });
            self.whole = halves.collect();
            self.step *= 2;
        }
        let place = (second / self.step) as usize;
        if self.whole.len() <= place {
            self.whole.resize(place + 1, Step::default());
        }
        self.whole[place].add(step);
    }

    /// Something came to pass. What is in the future of the clock counts for now.
    pub(crate) fn add(&mut self, time: u64, step: &Step) {
        let second = (time / SECOND).min(self.end - 1);
        self.put(second, step);
    }

    /// An executor thread was busy. However long it was, it costs no more than there are seconds and steps.
    #[inline]
    pub(crate) fn busy(&mut self, start: u64, end: u64) {
        let last = self.to().saturating_sub(1);
        let (start, end) = (start.min(last), end.min(last));
        let oldest = self
            .end
            .saturating_sub(SECONDS as u64)
            .saturating_mul(SECOND);
        for (second, busy) in parts(start.max(oldest), end, SECOND) {
            let step = Step {
                busy,
                ..Step::default()
            };
            self.put_recent(second, &step);
        }
        if start < end {
            // Makes room, so that the steps are as long as they have to be.
            self.put_whole((end - 1) / SECOND, &Step::default());
        }
        let length = self.step.saturating_mul(SECOND);
        for (place, busy) in parts(start, end, length) {
            let step = Step {
                busy,
                ..Step::default()
            };
            self.put_whole(place * self.step, &step);
        }
    }

    /// The last seconds, the earliest first; the last one is not over.
    pub(crate) fn recent(&self) -> impl DoubleEndedIterator<Item = &Step> + ExactSizeIterator {
        let first = self.end as usize;
        (0..SECONDS).map(move |place| &self.recent[(first + place) % SECONDS])
    }

    /// The end of the last second, in nanoseconds.
    pub(crate) fn to(&self) -> u64 {
        self.end.saturating_mul(SECOND)
    }

    /// Seconds of a step of the whole run, and the steps from its beginning.
    pub(crate) fn whole(&self) -> (u64, &[Step]) {
        (self.step, &self.whole)
    }

    pub(crate) fn check(&self) {
        assert!(self.whole.len() <= STEPS);
        assert_eq!(self.recent.len(), SECONDS);
        assert!(self.step.is_power_of_two());
    }
}

/// What of a time is in each of the steps of this length, by their numbers.
pub(crate) fn parts(mut start: u64, end: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    core::iter::from_fn(move || {
        if start >= end {
            return None;
        }
        let number = start / length;
        let until = (number + 1).saturating_mul(length).min(end);
        let part = until - start;
        start = until;
        Some((number, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Step {
        Step {
            tasks: 1,
            ..Step::default()
        }
    }

    #[test]
    fn steps_double_and_nothing_is_lost() {
        let mut times = Times::new();
        let seconds = 5 * STEPS as u64 + 7;
        for second in 0..seconds {
            times.advance(second * SECOND);
            times.add(second * SECOND, &one());
            times.check();
        }
        let (step, whole) = times.whole();
        assert_eq!(step, 8);
        let tasks: u64 = whole.iter().map(|step| step.tasks).sum();
        assert_eq!(tasks, seconds);
        assert!(times.recent().all(|step| step.tasks == 1));
    }

    #[test]
    fn the_last_of_the_seconds_is_now() {
        let mut times = Times::new();
        times.add(5, &one());
        times.advance(3 * SECOND + 1);
        times.add(3 * SECOND, &one());
        let tasks: Vec<u64> = times.recent().map(|step| step.tasks).collect();
        assert_eq!(tasks[SECONDS - 4..], [1, 0, 0, 1]);
        assert_eq!(tasks[..SECONDS - 4].iter().sum::<u64>(), 0);
        assert_eq!(times.to(), 4 * SECOND);
    }

    #[test]
    fn a_long_task_is_busy_in_each_of_its_seconds() {
        let mut times = Times::new();
        times.advance(3_000 * SECOND);
        times.busy(2_990 * SECOND + SECOND / 2, 2_995 * SECOND);
        let busy: Vec<u64> = times
            .recent()
            .map(|step| step.busy / (SECOND / 2))
            .collect();
        assert_eq!(busy[SECONDS - 12..], [0, 1, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn what_is_old_or_in_the_future_counts_once() {
        let mut times = Times::new();
        times.advance(5_000 * SECOND);
        times.add(3 * SECOND, &one());
        times.add(9_000 * SECOND, &one());
        let recent: u64 = times.recent().map(|step| step.tasks).sum();
        assert_eq!(recent, 1);
        let whole: u64 = times.whole().1.iter().map(|step| step.tasks).sum();
        assert_eq!(whole, 2);
        // A long silence empties all.
        times.advance(50_000 * SECOND);
        assert!(times.recent().all(|step| step.tasks == 0));
    }

    #[test]
    fn the_end_of_time_is_no_overflow_and_a_year_costs_little() {
        let mut times = Times::new();
        times.advance(u64::MAX);
        let year = 365 * 24 * 3_600 * SECOND;
        let steps = parts(u64::MAX - year, u64::MAX, SECOND * times.step);
        assert!(steps.count() > STEPS, "before there is room");
        times.busy(u64::MAX - year, u64::MAX);
        times.add(u64::MAX, &one());
        assert_eq!(times.to(), u64::MAX);
        times.check();
        let steps = parts(0, u64::MAX, SECOND * times.step);
        assert!(steps.count() <= STEPS);
        let busy: u64 = times.whole().1.iter().map(|step| step.busy).sum();
        assert_eq!(busy, year - 1);
        let busy: u64 = times.recent().map(|step| step.busy).sum();
        assert!(busy > (SECONDS as u64 - 1) * SECOND);
    }
}
