//! How long reads took in the last seconds: counts in buckets of a quarter of a power of two.

use core::time::Duration;

/// The time that counts.
pub const WINDOW: Duration = Duration::from_secs(SLOTS as u64);
const SLOTS: usize = 5;
/// Up to a minute.
const BUCKETS: usize = 4 * 27;

type Counts = [u32; BUCKETS];

/// Times that were measured, by the second of their end.
#[derive(Debug)]
pub struct Latency {
    slots: [(u64, Counts); SLOTS],
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            slots: [(0, [0; BUCKETS]); SLOTS],
        }
    }
}

impl Latency {
    /// Something that ended now took so long.
    pub fn add(&mut self, now: Duration, took: Duration) {
        let second = now.as_secs();
        let slot = &mut self.slots[(second % SLOTS as u64) as usize];
        if slot.0 != second {
            *slot = (second, [0; BUCKETS]);
        }
        let count = &mut slot.1[bucket(took)];
        *count = count.saturating_add(1);
    }

    /// Nine of ten took no longer, of those in the last seconds and of those that have taken so long until now.
    /// Zero: there are fewer than `few`.
    pub fn most(
        &self,
        now: Duration,
        others: impl Iterator<Item = Duration>,
        few: u64,
    ) -> Duration {
        let mut counts = [0u64; BUCKETS];
        let second = now.as_secs();
        for (at, slot) in &self.slots {
            if at + SLOTS as u64 > second {
                for (sum, count) in counts.iter_mut().zip(slot) {
                    *sum += u64::from(*count);
                }
            }
        }
        for other in others {
            counts[bucket(other)] += 1;
        }
        let all: u64 = counts.iter().sum();
        if all < few.max(1) {
            return Duration::ZERO;
        }
        let mut beyond = all.div_ceil(10);
        for (bucket, count) in counts.iter().enumerate().rev() {
            if *count >= beyond {
                return least(bucket);
            }
            beyond -= count;
        }
        Duration::ZERO
    }
}

/// The bucket of a time.
fn bucket(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(4);
    let power = micros.ilog2();
    let quarter = (micros >> (power - 2)) & 3;
    (4 * power as usize + quarter as usize).min(BUCKETS - 1)
}

/// The shortest time in a bucket.
fn least(bucket: usize) -> Duration {
    let (power, quarter) = (bucket / 4, bucket as u64 % 4);
    Duration::from_micros((4 + quarter) << power >> 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_bucket_has_what_is_at_most_a_quarter_longer() {
        let mut micros = 4;
        while micros < 60_000_000 {
            let time = Duration::from_micros(micros);
            let found = least(bucket(time));
            assert!(found <= time && time <= found * 5 / 4, "{time:?} {found:?}");
            micros += micros / 7 + 1;
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn nine_of_ten_took_no_longer_and_what_is_old_does_not_count() {
        let mut latency = Latency::default();
        let none = || core::iter::empty();
        for _ in 0..91 {
            latency.add(millis(1_000), millis(1));
        }
        for _ in 0..9 {
            latency.add(millis(1_900), millis(500));
        }
        assert!(latency.most(millis(2_000), none(), 1) <= millis(1));
        latency.add(millis(2_000), millis(500));
        latency.add(millis(2_000), millis(500));
        let most = latency.most(millis(2_000), none(), 1);
        assert!(most > millis(390) && most <= millis(500), "{most:?}");
        assert_eq!(latency.most(millis(2_000), none(), 200), Duration::ZERO);
        assert_eq!(latency.most(millis(9_000), none(), 1), Duration::ZERO);
        let waiting = core::iter::repeat_n(millis(700), 3);
        assert!(latency.most(millis(9_000), waiting, 1) > millis(500));
    }
}
