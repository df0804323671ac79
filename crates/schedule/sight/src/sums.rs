//! How many threads each group kept busy, over the whole run: what is left of spans that made room for others.

use alloc::vec::Vec;

use crate::series::{SECOND, parts};

/// Steps of the run. Their length doubles.
const STEPS: usize = 256;

/// Of a group, some threads were busy for a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sum {
    pub(crate) group: u16,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// On average, and at least one.
    pub(crate) threads: u32,
}

/// By group and step.
#[derive(Debug)]
pub(crate) struct Sums {
    /// Nanoseconds.
    groups: Vec<Vec<u64>>,
    /// Seconds of a step.
    step: u64,
}

impl Sums {
    pub(crate) fn new() -> Self {
        Self {
            groups: Vec::new(),
            step: 1,
        }
    }

    fn length(&self) -> u64 {
        self.step.saturating_mul(SECOND)
    }

    /// A task of a group ran.
    #[inline]
    pub(crate) fn ran(&mut self, group: u16, start: u64, end: u64) {
        while end / self.length() >= STEPS as u64 {
            for row in &mut self.groups {
                let halves = row.chunks(2);
                let halves = halves.map(|pair| {
                    pair.iter()
                        .fold(0, |sum: u64, one| sum.saturating_add(*one))
                });
                *row = halves.collect();
            }
            self.step *= 2;
        }
        let length = self.length();
        let place = usize::from(group);
        if self.groups.len() <= place {
            self.groups.resize_with(place + 1, Vec::new);
        }
        let row = &mut self.groups[place];
        for (place, busy) in parts(start, end, length) {
            let place = place as usize;
            if row.len() <= place {
                row.resize(place + 1, 0);
            }
            row[place] = row[place].saturating_add(busy);
        }
    }

    /// What was before a moment.
    pub(crate) fn before(&self, until: u64) -> impl Iterator<Item = Sum> + '_ {
        let length = self.length();
        let rows = (0..).zip(&self.groups);
        let sums = rows.flat_map(move |(group, row)| {
            let steps = (0_u64..).zip(row).filter(|(_, busy)| **busy > 0);
            steps.map(move |(step, busy)| {
                let from = step.saturating_mul(length);
                Sum {
                    group,
                    from,
                    to: from.saturating_add(length).min(until),
                    threads: (busy.saturating_add(length / 2) / length).clamp(1, 1 << 16) as u32,
                }
            })
        });
        sums.filter(move |sum| sum.from < until)
    }

    pub(crate) fn check(&self) {
        assert!(self.groups.len() <= crate::groups::MOST_GROUPS);
        assert!(self.groups.iter().all(|row| row.len() <= STEPS));
        assert!(self.step.is_power_of_two());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_double_and_nothing_is_lost() {
        let mut sums = Sums::new();
        let seconds = 3 * STEPS as u64;
        for second in 0..seconds {
            // Two threads of one group, one of another half of the time.
            for _ in 0..2 {
                sums.ran(1, second * SECOND, (second + 1) * SECOND);
            }
            sums.ran(3, second * SECOND, second * SECOND + SECOND / 2);
            sums.check();
        }
        assert_eq!(sums.step, 4);
        let busy = |group: usize| sums.groups[group].iter().sum::<u64>();
        assert_eq!(
            (busy(1), busy(3)),
            (2 * seconds * SECOND, seconds * SECOND / 2)
        );
        let until = 100 * SECOND + 5;
        let before: Vec<Sum> = sums.before(until).collect();
        let of = |group| before.iter().filter(move |sum| sum.group == group);
        assert_eq!((of(1).count(), of(3).count()), (26, 26));
        assert!(of(1).all(|sum| sum.threads == 2) && of(3).all(|sum| sum.threads == 1));
        assert_eq!(of(1).next_back().unwrap().to, until);
        assert_eq!(sums.before(0).count(), 0);
    }

    #[test]
    fn the_end_of_time_is_no_overflow() {
        let mut sums = Sums::new();
        sums.ran(0, 0, u64::MAX);
        sums.ran(1, u64::MAX - 1, u64::MAX);
        sums.check();
        assert!(sums.before(u64::MAX).count() <= STEPS + 1);
    }
}
