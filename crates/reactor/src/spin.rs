//! How long a thread that waits spins before it sleeps.
//!
//! To wake a sleeping thread takes 40 to 50 µs, of which 15 to 20 are its waker's, and most answers
//! come sooner. But a thread that spins takes a processor that others may need.

use std::time::Duration;

/// A thread that waits spins for at least this long before it sleeps, unless nothing has come
/// soon for some time.
pub const SPIN: Duration = Duration::from_micros(100);
/// And for at most this long, where answers take so long.
const LONGEST: Duration = Duration::from_micros(300);
/// What does not come within this time does not come soon.
const SOON: Duration = Duration::from_micros(500);
/// How often in a row nothing came soon, before a thread sleeps at once.
const MISSES: u32 = 4;

/// What waiting was like lately.
#[derive(Debug)]
pub(crate) struct Spin {
    /// How often in a row nothing came soon.
    misses: u32,
    /// How long the longest of the latest waits for something that came soon took.
    usual: Duration,
}

impl Default for Spin {
    fn default() -> Self {
        Self {
            misses: 0,
            usual: SPIN,
        }
    }
}

impl Spin {
    /// How long to spin: half as long again as answers take.
    pub(crate) fn length(&self) -> Duration {
        if self.misses < MISSES {
            (self.usual * 3 / 2).clamp(SPIN, LONGEST)
        } else {
            Duration::ZERO
        }
    }

    /// Nothing came for so long.
    pub(crate) fn note_nothing(&mut self, waited: Duration) {
        if waited >= SOON {
            self.note(waited);
        }
    }

    /// Something came, after so long.
    pub(crate) fn note(&mut self, waited: Duration) {
        if waited < SOON {
            self.misses = 0;
            // One that took long is forgotten by and by: the next one like it may be a few away.
            self.usual = waited.max(self.usual - self.usual / 16);
        } else {
            self.misses = (self.misses + 1).min(MISSES);
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
        spin.note(micros(450));
        assert_eq!(spin.length(), LONGEST);
        for _ in 0..100 {
            spin.note(micros(10));
        }
        assert_eq!(spin.length(), SPIN);
    }

    #[test]
    fn nobody_spins_where_nothing_comes_soon() {
        let mut spin = Spin::default();
        for _ in 1..MISSES {
            spin.note(SOON);
        }
        assert!(spin.length() >= SPIN, "{spin:?}");
        spin.note(SOON);
        assert_eq!(spin.length(), Duration::ZERO);
        spin.note(micros(10));
        assert!(spin.length() >= SPIN, "{spin:?}");
    }

    #[test]
    fn nobody_spins_where_nothing_comes_at_all() {
        let mut spin = Spin::default();
        spin.note_nothing(SOON - micros(1));
        for _ in 1..MISSES {
            spin.note_nothing(SOON);
        }
        assert!(spin.length() >= SPIN, "{spin:?}");
        spin.note_nothing(SOON);
        assert_eq!(spin.length(), Duration::ZERO);
    }
}
