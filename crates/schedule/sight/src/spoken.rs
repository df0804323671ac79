//! Which rules have spoken in the run: when, and what they said when it was worst.

use alloc::vec::Vec;

use crate::verdicts::Verdict;

/// Rules and subjects that are remembered.
const MOST: usize = 64;

/// What rules said, one for each rule and what it is about.
#[derive(Debug, Default)]
pub(crate) struct Spoken {
    verdicts: Vec<Verdict>,
}

impl Spoken {
    /// Rules speak at a time.
    pub(crate) fn hear(&mut self, verdicts: Vec<Verdict>, now: u64) {
        for verdict in verdicts {
            let known = self.verdicts.iter_mut().find(|one| one.is_as(&verdict));
            match known {
                Some(known) => {
                    let first = known.first;
                    if verdict.weight >= known.weight {
                        *known = verdict;
                    }
                    (known.first, known.last) = (first, now);
                }
                None => {
                    if self.verdicts.len() == MOST {
                        let verdicts = self.verdicts.iter().enumerate();
                        let oldest = verdicts.min_by_key(|(_, one)| one.last);
                        let oldest = oldest.map_or(0, |(place, _)| place);
                        self.verdicts.remove(oldest);
                    }
                    self.verdicts.push(Verdict {
                        first: now,
                        last: now,
                        ..verdict
                    });
                }
            }
        }
    }

    /// Says of what is spoken now since when it is, and returns what was spoken before and is not now, the latest
    /// first.
    pub(crate) fn before(&self, verdicts: &mut [Verdict], now: u64) -> Vec<Verdict> {
        for verdict in verdicts.iter_mut() {
            let known = self.verdicts.iter().find(|one| one.is_as(verdict));
            verdict.first = known.map_or(now, |known| known.first);
            verdict.last = now;
        }
        let is_over = |known: &&Verdict| !verdicts.iter().any(|one| one.is_as(known));
        let mut earlier: Vec<Verdict> = self.verdicts.iter().filter(is_over).cloned().collect();
        earlier.sort_by_key(|one| u64::MAX - one.last);
        earlier
    }

    pub(crate) fn check(&self) {
        assert!(self.verdicts.len() <= MOST);
        for (place, one) in self.verdicts.iter().enumerate() {
            assert!(one.first <= one.last);
            let others = &self.verdicts[place + 1..];
            assert!(!others.iter().any(|other| other.is_as(one)));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;
    use crate::verdicts::{Severity, Where};

    fn slow(worker: u32, weight: u64) -> Verdict {
        Verdict {
            rule: "slow-worker",
            severity: Severity::Warn,
            text: format!("worker {worker} takes {weight}"),
            view: "workers",
            place: Where {
                worker: Some(worker),
                ..Where::default()
            },
            first: 0,
            last: 0,
            weight,
        }
    }

    #[test]
    fn the_worst_is_kept_with_its_first_and_last_time() {
        let mut spoken = Spoken::default();
        for (now, weight) in [(5, 2), (6, 9), (8, 3)] {
            spoken.hear([slow(1, weight)].into(), now);
        }
        spoken.hear([slow(2, 1)].into(), 7);
        spoken.check();
        let mut now = [slow(2, 4)];
        let earlier = spoken.before(&mut now, 20);
        assert_eq!((now[0].first, now[0].last), (7, 20));
        let [one] = &earlier[..] else {
            panic!("{earlier:?}");
        };
        assert_eq!((one.first, one.last), (5, 8));
        assert_eq!(one.text, "worker 1 takes 9");
    }

    #[test]
    fn the_oldest_make_room() {
        let mut spoken = Spoken::default();
        for worker in 0..100 {
            spoken.hear([slow(worker, 1)].into(), worker.into());
            spoken.check();
        }
        let earlier = spoken.before(&mut [], 100);
        assert_eq!(earlier.len(), MOST);
        assert_eq!(earlier[0].place.worker, Some(99));
        assert_eq!(earlier[MOST - 1].first, 100 - MOST as u64);
    }
}
