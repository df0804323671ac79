//! How long a thread that waits looks again at once before it sleeps.
//!
//! To wake a sleeping thread takes 40 to 50 µs, of which 15 to 20 are its waker's, and most answers
//! come sooner. But a thread that looks takes a processor that others may need.

use std::time::Duration;

/// A thread that waits looks out for at least this long before it sleeps, unless nothing has come
/// soon for some time.
pub const LOOKOUT: Duration = Duration::from_micros(100);
/// And for at most this long, where answers take so long.
const LONGEST: Duration = Duration::from_micros(300);
/// What does not come within this time does not come soon.
const SOON: Duration = Duration::from_micros(500);
/// How often in a row nothing came soon, before a thread sleeps at once.
const PATIENCE: u32 = 4;

/// What waiting was like lately.
#[derive(Debug)]
pub(crate) struct Lookout {
    /// How often in a row nothing came soon.
    disappointed: u32,
    /// How long the longest of the latest waits for something that came soon took.
    usual: Duration,
}

impl Default for Lookout {
    fn default() -> Self {
        Self {
            disappointed: 0,
            usual: LOOKOUT,
        }
    }
}

impl Lookout {
    /// How long to look out: half as long again as answers take.
    pub(crate) fn length(&self) -> Duration {
        if self.disappointed < PATIENCE {
            (self.usual * 3 / 2).clamp(LOOKOUT, LONGEST)
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
            self.disappointed = 0;
            // One that took long is forgotten by and by: the next one like it may be a few away.
            self.usual = waited.max(self.usual - self.usual / 16);
        } else {
            self.disappointed = (self.disappointed + 1).min(PATIENCE);
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
        let mut lookout = Lookout::default();
        lookout.note(micros(160));
        assert_eq!(lookout.length(), micros(240));
        lookout.note(micros(10));
        assert!(lookout.length() > micros(160), "{lookout:?}");
        lookout.note(micros(450));
        assert_eq!(lookout.length(), LONGEST);
        for _ in 0..100 {
            lookout.note(micros(10));
        }
        assert_eq!(lookout.length(), LOOKOUT);
    }

    #[test]
    fn nobody_looks_out_where_nothing_comes_soon() {
        let mut lookout = Lookout::default();
        for _ in 1..PATIENCE {
            lookout.note(SOON);
        }
        assert!(lookout.length() >= LOOKOUT, "{lookout:?}");
        lookout.note(SOON);
        assert_eq!(lookout.length(), Duration::ZERO);
        lookout.note(micros(10));
        assert!(lookout.length() >= LOOKOUT, "{lookout:?}");
    }

    #[test]
    fn nobody_looks_out_where_nothing_comes_at_all() {
        let mut lookout = Lookout::default();
        lookout.note_nothing(SOON - micros(1));
        for _ in 1..PATIENCE {
            lookout.note_nothing(SOON);
        }
        assert!(lookout.length() >= LOOKOUT, "{lookout:?}");
        lookout.note_nothing(SOON);
        assert_eq!(lookout.length(), Duration::ZERO);
    }
}
