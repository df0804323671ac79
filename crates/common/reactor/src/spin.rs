//! How long a thread that waits spins before it sleeps.
//!
//! To wake a sleeping thread takes 40 to 50 µs, of which 15 to 20 are its waker's, and most answers
//! come sooner. But a thread that spins takes a processor that others may need.

use std::time::Duration;

/// A thread that waits spins for at least this long before it sleeps, unless nothing has come
/// soon for some time.
pub const SPIN: Duration = Duration::from_micros(100);
/// And for at most this long, where answers take so long. What takes longer does not come soon.
const LONGEST: Duration = Duration::from_micros(300);
/// A thread sleeps at once while nothing came soon in so many of its latest 16 waits. Where messages of
/// many come by chance every few hundred microseconds, it would spin most of the time, and save few
/// wake-ups.
const MISSES: u32 = 4;

/// What waiting was like lately.
#[derive(Debug)]
pub(crate) struct Spin {
    /// The latest waits, a bit each: whether nothing came soon.
    missed: u16,
    /// How long the longest of the latest waits for something that came soon took.
    usual: Duration,
}

impl Default for Spin {
    fn default() -> Self {
        Self {
            missed: 0,
            usual: SPIN,
        }
    }
}

impl Spin {
    /// How long to spin: half as long again as answers take.
    pub(crate) fn length(&self) -> Duration {
        if self.missed.count_ones() < MISSES {
            (self.usual * 3 / 2).clamp(SPIN, LONGEST)
        } else {
            Duration::ZERO
        }
    }

    /// Nothing came for so long.
    pub(crate) fn note_nothing(&mut self, waited: Duration) {
        if waited >= LONGEST {
            self.note(waited);
        }
    }

    /// Something came, after so long.
    pub(crate) fn note(&mut self, waited: Duration) {
        self.missed <<= 1;
        if waited < LONGEST {
            // One that took long is forgotten by and by: the next one like it may be a few away.
            self.usual = waited.max(self.usual - self.usual / 16);
        } else {
            self.missed |= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn it_lasts_longer_where_answers_take_longer() {
        let mut spin = Spin::default();
        spin.note(micros(160));
        assert_eq!(spin.length(), micros(240));
        spin.note(micros(10));
        assert!(spin.length() > micros(160), "{spin:?}");
        spin.note(micros(290));
        assert_eq!(spin.length(), LONGEST);
        for _ in 0..100 {
            spin.note(micros(10));
        }
        assert_eq!(spin.length(), SPIN);
    }

    #[test]
    fn nobody_spins_where_little_comes_soon() {
        let mut spin = Spin::default();
        // Every fourth wait is long.
        for _ in 1..MISSES {
            spin.note(LONGEST);
            for _ in 0..3 {
                spin.note(micros(10));
            }
        }
        assert!(spin.length() >= SPIN, "{spin:?}");
        spin.note(LONGEST);
        assert_eq!(spin.length(), Duration::ZERO);
        // Not before the long ones are forgotten.
        for _ in 0..3 {
            spin.note(micros(10));
            assert_eq!(spin.length(), Duration::ZERO);
        }
        spin.note(micros(10));
        assert!(spin.length() >= SPIN, "{spin:?}");
    }

    #[test]
    fn nobody_spins_where_nothing_comes_at_all() {
        let mut spin = Spin::default();
        spin.note_nothing(LONGEST - micros(1));
        for _ in 1..MISSES {
            spin.note_nothing(LONGEST);
        }
        assert!(spin.length() >= SPIN, "{spin:?}");
        spin.note_nothing(LONGEST);
        assert_eq!(spin.length(), Duration::ZERO);
    }
}
