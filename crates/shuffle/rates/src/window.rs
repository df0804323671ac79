//! How much may be under way to one server: it follows the gradient of the round-trip time (Netflix's
//! concurrency-limits, `Gradient2Limit`).
//!
//! A short-term time that is longer than the long-term one means that requests wait in a queue at the
//! server, so that the window shrinks by their ratio. Otherwise it grows by a little.

use core::time::Duration;

/// A window in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    bytes: u64,
    /// The smoothed round-trip time, in nanoseconds. 0: none was measured.
    long: u64,
}

/// The long-term time is smoothed over about so many answers.
const MEMORY: u64 = 64;
/// Times up to so many percent of the long-term one are not a queue.
const TOLERANCE: u64 = 200;
/// A new value counts for so many percent.
const SMOOTHING: u64 = 20;

impl Window {
    /// Begins with the largest window.
    pub fn new(most: u64) -> Self {
        Self {
            bytes: most,
            long: 0,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Something was answered after so long. The window stays between `least` and `most`.
    pub fn answered(&mut self, time: Duration, least: u64, most: u64) {
        let short = u64::try_from(time.as_nanos())
            .unwrap_or(u64::MAX / 1_000)
            .max(1);
        let short = short.min(u64::MAX / 1_000);
        if self.long == 0 {
            self.long = short;
        }
        // In percent, from a half to one.
        let gradient = (u128::from(self.long) * u128::from(TOLERANCE) / u128::from(short)) as u64;
        let gradient = gradient.clamp(50, 100);
        // What may wait at the server so that it is never idle.
        let queue = most / 64;
        let target = self.bytes / 100 * gradient + queue;
        let next = (self.bytes / 100 * (100 - SMOOTHING)) + target / 100 * SMOOTHING;
        self.bytes = next.clamp(least.min(most), most);
        self.long = self.long - self.long / MEMORY + short / MEMORY;
        // After a time of overload the long-term time comes down faster.
        if self.long > short.saturating_mul(2) {
            self.long = self.long / 100 * 95;
        }
        self.long = self.long.max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_shrinks_while_answers_take_longer_and_recovers() {
        let (least, most) = (1 << 20, 16 << 20);
        let mut window = Window::new(most);
        let mut answer = |micros: u64, times: u32| {
            for _ in 0..times {
                window.answered(Duration::from_micros(micros), least, most);
            }
            window.bytes()
        };
        assert_eq!(answer(500, 100), most, "steady times leave it alone");
        assert!(
            answer(700, 100) > most / 10 * 9,
            "a little longer is no queue"
        );
        let shrunk = answer(20_000, 30);
        assert!(shrunk < most / 4, "{shrunk}");
        assert!(shrunk >= least);
        let recovered = answer(500, 400);
        assert!(recovered > most / 10 * 9, "{recovered}");
    }
}
