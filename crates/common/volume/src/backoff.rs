//! How long something that has failed is left alone.

use std::time::{Duration, Instant};

/// The longest pause, in first ones.
const LONGEST: u32 = 64;

/// A pause after a failure: twice as long each time, up to 64 times the first.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pause: Duration,
    until: Instant,
}

impl Backoff {
    /// The pause that starts now, after the one before if that failed, too.
    pub fn after(before: Option<Self>, shortest: Duration, now: Instant) -> Self {
        let pause = before.map_or(shortest, |before| {
            let longest = shortest.saturating_mul(LONGEST);
            before.pause.saturating_mul(2).min(longest)
        });
        // Where the clock cannot express the end, there is no pause.
        let until = now.checked_add(pause).unwrap_or(now);
        Self { pause, until }
    }

    /// When it is over.
    pub fn until(self) -> Instant {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let now = Instant::now();
        let shortest = Duration::from_secs(1);
        let mut last = None;
        let mut seconds = Vec::new();
        for _ in 0..9 {
            let next = Backoff::after(last, shortest, now);
            seconds.push((next.until() - now).as_secs());
            last = Some(next);
        }
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        let endless = Backoff::after(None, Duration::MAX, now);
        assert_eq!(endless.until(), now);
    }
}
