//! A histogram of durations with a bounded relative error.

use std::time::Duration;

/// Buckets for each power of two.
const PARTS: u64 = 64;

/// Counts durations in buckets that grow with their value, as `HdrHistogram` does: a quantile is
/// off by less than 1 %, in constant memory.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Up to the last one that is not empty.
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
}

impl Histogram {
    /// Counts a duration `times` times.
    pub fn record(&mut self, duration: Duration, times: u64) {
        if times == 0 {
            return;
        }
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = bucket(nanoseconds);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += times;
        self.count += times;
        self.max = self.max.max(duration);
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (own, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += count;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest one, exactly; zero where there is none.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The nearest-rank quantile, `share` from 0 to 1; zero where nothing was counted.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(middle(bucket)).min(self.max);
            }
        }
        self.max
    }
}

/// Values below two times `PARTS` have a bucket each; each further power of two has `PARTS`.
fn bucket(value: u64) -> usize {
    let shift = value.max(PARTS).ilog2() - PARTS.ilog2();
    (u64::from(shift) * PARTS + (value >> shift)) as usize
}

/// The middle of a bucket's values.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    let first = (bucket - shift * PARTS) << shift;
    first + ((1 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_their_middles_close() {
        let mut last = bucket(0);
        assert_eq!(last, 0);
        for value in (0..1 << 14).chain((14..64).flat_map(|bit| {
            let power = 1u64 << bit;
            [power - 1, power, power + power / 3, power + (power - 1)]
        })) {
            let own = bucket(value);
            assert!(
                own >= last && (value > 1 << 14 || own <= last + 1),
                "{value}"
            );
            let off = middle(own).abs_diff(value) as f64;
            assert!(off <= value as f64 / 100.0, "{value}: {}", middle(own));
            last = own;
        }
    }

    #[test]
    fn quantiles_are_of_all_that_was_counted() {
        let mut low = Histogram::default();
        let mut high = Histogram::default();
        for micros in 1..=1000 {
            let half = if micros <= 500 { &mut low } else { &mut high };
            half.record(Duration::from_micros(micros), 1);
        }
        low.merge(&high);
        assert_eq!(low.count(), 1000);
        assert_eq!(low.max(), Duration::from_millis(1));
        for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (0.0, 1.0), (1.0, 1000.0)] {
            let told = low.quantile(share).as_nanos() as f64 / 1e3;
            assert!((told - micros).abs() <= micros / 100.0, "{share}: {told}");
        }
        assert_eq!(Histogram::default().quantile(0.5), Duration::ZERO);
    }
}
