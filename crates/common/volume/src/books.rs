//! Who takes how much, and which directory is next: decisions without IO.

use std::time::{Duration, Instant};

use treadle_guards::{InvariantError, ensure, ensure_eq};

use crate::Backoff;

/// What a volume knows of its directories and files.
#[derive(Debug)]
pub(crate) struct Books {
    quota: u64,
    retry: Duration,
    used: u64,
    places: Vec<Place>,
    pub(crate) remove_failures: u64,
    /// The files are gone, or about to be.
    pub(crate) closed: bool,
}

/// What is known of a directory.
#[derive(Clone, Default, Debug)]
pub(crate) struct Place {
    pub(crate) used: u64,
    pub(crate) files: u64,
    pub(crate) failures: u64,
    pub(crate) fault: Option<Fault>,
    /// How many files it is to have, compared with others, and what it is owed of that.
    weight: u32,
    owed: i64,
}

/// A directory that failed.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) reason: String,
    backoff: Backoff,
}

/// More than the quota has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OverQuota {
    pub(crate) used: u64,
    pub(crate) quota: u64,
}

impl Books {
    pub(crate) fn new(directories: usize, quota: u64, retry: Duration) -> Self {
        Books {
            quota,
            retry,
            used: 0,
            places: vec![
                Place {
                    weight: 1,
                    ..Place::default()
                };
                directories
            ],
            remove_failures: 0,
            closed: false,
        }
    }

    pub(crate) fn quota(&self) -> u64 {
        self.quota
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// A file is about to grow.
    pub(crate) fn charge(&mut self, place: usize, bytes: u64) -> Result<(), OverQuota> {
        let (used, quota) = (self.used, self.quota);
        match used.checked_add(bytes) {
            Some(after) if after <= quota => {
                self.used = after;
                self.places[place].used += bytes;
                Ok(())
            }
            _ => Err(OverQuota { used, quota }),
        }
    }

    /// A file is shorter by so many bytes, or was not to grow after all.
    pub(crate) fn give_back(&mut self, place: usize, bytes: u64) {
        self.used -= bytes;
        self.places[place].used -= bytes;
    }

    pub(crate) fn made(&mut self, place: usize) {
        self.places[place].files += 1;
    }

    pub(crate) fn removed(&mut self, place: usize, bytes: u64) {
        self.places[place].files -= 1;
        self.give_back(place, bytes);
    }

    /// A directory is tried after the others for a while.
    pub(crate) fn failed(&mut self, place: usize, reason: String, now: Instant) {
        let retry = self.retry;
        let place = &mut self.places[place];
        let before = place.fault.as_ref().map(|fault| fault.backoff);
        let backoff = Backoff::after(before, retry, now);
        place.failures += 1;
        place.fault = Some(Fault { reason, backoff });
    }

    /// Something was written in a directory.
    pub(crate) fn works(&mut self, place: usize) {
        self.places[place].fault = None;
    }

    /// Those directories that are to be tried before the others: all whose pause is over, or else
    /// the one whose pause ends first.
    pub(crate) fn best(&self, untried: &[usize], now: Instant) -> Vec<usize> {
        let until = |place: usize| {
            let fault = self.places[place].fault.as_ref()?;
            Some(fault.backoff.until()).filter(|&until| until > now)
        };
        let (ready, pausing): (Vec<_>, Vec<_>) =
            untried.iter().partition(|&&place| until(place).is_none());
        if !ready.is_empty() {
            return ready;
        }
        let first = pausing.into_iter().min_by_key(|&place| until(place));
        first.into_iter().collect()
    }

    /// How many of the new files each is to have, compared with the others.
    pub(crate) fn weigh(&mut self, weights: &[u32]) {
        for (place, weight) in self.places.iter_mut().zip(weights) {
            place.weight = (*weight).max(1);
        }
    }

    /// The one of these directories whose turn it is, of those with at least half as much room as the
    /// one that has most. Each with its room in bytes; `None`: there are none.
    pub(crate) fn take_turn(&mut self, rooms: &[(usize, u64)]) -> Option<usize> {
        let most = rooms.iter().map(|&(_, room)| room).max()?;
        let roomy = rooms.iter().filter(|&&(_, room)| room >= most / 2);
        let weights = roomy
            .clone()
            .map(|&(place, _)| i64::from(self.places[place].weight));
        let sum: i64 = weights.sum();
        for &(place, _) in roomy.clone() {
            let Place { weight, owed, .. } = &mut self.places[place];
            // What was owed by other weights is not paid for ever.
            *owed = (*owed).clamp(-sum, sum) + i64::from(*weight);
        }
        // Of equal ones the first.
        let (place, _) = roomy
            .rev()
            .max_by_key(|&&(place, _)| self.places[place].owed)?;
        self.places[*place].owed -= sum;
        Some(*place)
    }

    /// Whether the sums are right.
    pub(crate) fn check(&self) -> Result<(), InvariantError> {
        let used: u64 = self.places.iter().map(|place| place.used).sum();
        ensure_eq!(self.used, used, "bytes in all directories");
        ensure!(
            used <= self.quota,
            "{used} bytes of {} are used",
            self.quota
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Duration = Duration::from_secs(1);
    const GIB: u64 = 1 << 30;

    fn books() -> Books {
        Books::new(3, 100, RETRY)
    }

    #[test]
    fn turns_go_around() {
        let mut books = books();
        let rooms = [(0, GIB), (1, GIB), (2, GIB)];
        let turns: Vec<_> = (0..5).map(|_| books.take_turn(&rooms)).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1].map(Some));
        assert_eq!(books.take_turn(&[]), None);
    }

    #[test]
    fn turns_are_by_weight() {
        let mut books = books();
        books.weigh(&[1_000, 100, 0]);
        let rooms = [(0, GIB), (1, GIB), (2, GIB)];
        let mut count = |turns: usize| {
            let mut counts = [0; 3];
            for _ in 0..turns {
                counts[books.take_turn(&rooms).unwrap()] += 1;
            }
            counts
        };
        assert_eq!(count(1_101), [1_000, 100, 1]);
        assert_eq!(count(11), [10, 1, 0], "they alternate");
        // What was owed by other weights is forgotten.
        books.weigh(&[1, 1, 1]);
        let mut counts = [0; 3];
        for _ in 0..30 {
            counts[books.take_turn(&rooms).unwrap()] += 1;
        }
        assert!(
            counts.iter().all(|count| (7..=13).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_directory_with_little_room_is_left_out() {
        let mut books = books();
        let rooms = [(0, 10 * GIB), (1, 4 * GIB), (2, 5 * GIB)];
        let turns: Vec<_> = (0..4).map(|_| books.take_turn(&rooms)).collect();
        assert_eq!(turns, [0, 2, 0, 2].map(Some));
        // All are full: one of them will say so.
        assert_eq!(books.take_turn(&[(1, 0), (2, 0)]), Some(1));
    }

    #[test]
    fn a_directory_that_failed_is_the_last_until_its_pause_is_over() {
        let mut books = books();
        let all = [0, 1, 2];
        let now = Instant::now();
        assert_eq!(books.best(&all, now), all);
        books.failed(1, "no".into(), now);
        assert_eq!(books.best(&all, now), [0, 2]);
        books.failed(0, "no".into(), now + RETRY / 2);
        books.failed(2, "no".into(), now + RETRY / 4);
        assert_eq!(books.best(&all, now + RETRY / 2), [1]);
        assert_eq!(books.best(&[0, 2], now + RETRY / 2), [2]);
        assert_eq!(books.best(&all, now + RETRY), [1]);
        assert_eq!(books.best(&all, now + 2 * RETRY), all);
        // It fails again, and waits for longer, until it works.
        books.failed(1, "no".into(), now + 2 * RETRY);
        assert_eq!(books.best(&all, now + 3 * RETRY), [0, 2]);
        assert_eq!(books.best(&all, now + 4 * RETRY), all);
        books.works(1);
        books.failed(1, "no".into(), now + 4 * RETRY);
        assert_eq!(books.best(&all, now + 5 * RETRY), all);
        assert_eq!(books.places()[1].failures, 3);
        assert!(books.best(&[], now).is_empty());
    }

    #[test]
    fn the_quota_is_never_exceeded() {
        let mut books = books();
        books.charge(0, 60).unwrap();
        let over = OverQuota {
            used: 60,
            quota: 100,
        };
        assert_eq!(books.charge(1, 41), Err(over));
        assert_eq!(books.charge(1, u64::MAX), Err(over));
        books.charge(1, 40).unwrap();
        books.check().unwrap();
        books.give_back(0, 10);
        books.charge(2, 10).unwrap();
        books.check().unwrap();
        assert_eq!((books.used(), books.quota()), (100, 100));
    }
}
