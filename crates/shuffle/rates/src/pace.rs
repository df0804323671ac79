//! What a device takes for what it is asked: an operation and each byte take their time. Both are estimated from
//! what came last, by least squares with weights that decay; and, more slowly, what they usually are.

use core::time::Duration;

/// Values that count in what is estimated now, and in what is usual, about.
const NOW: f64 = 64.0;
const USUAL: f64 = 1024.0;
/// Below this many values nothing is slow.
const FEW: u64 = 16;
const MIB: f64 = (1 << 20) as f64;
/// Longer than this tells nothing about a device, in nanoseconds.
const LONGEST: f64 = 60e9;
/// A device is looked at by what these many bytes take.
const SMALL: u64 = 64 << 10;
const LARGE: u64 = 4 << 20;

/// A line through what operations of so many MiB took, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Line {
    memory: f64,
    weight: f64,
    size: f64,
    time: f64,
    size_size: f64,
    size_time: f64,
    operation: f64,
    mebibyte: f64,
}

impl Line {
    /// A guess, which counts as little as two values.
    fn new(memory: f64, operation: f64, mebibyte: f64) -> Self {
        let mut line = Self {
            memory,
            weight: 0.0,
            size: 0.0,
            time: 0.0,
            size_size: 0.0,
            size_time: 0.0,
            operation,
            mebibyte,
        };
        for size in [0.0, 4.0] {
            line.add(size, operation + size * mebibyte);
        }
        line
    }

    fn add(&mut self, size: f64, time: f64) {
        let kept = 1.0 - 1.0 / self.memory;
        let moved = |sum: f64, value: f64| sum * kept + value;
        self.weight = moved(self.weight, 1.0);
        self.size = moved(self.size, size);
        self.time = moved(self.time, time);
        self.size_size = moved(self.size_size, size * size);
        self.size_time = moved(self.size_time, size * time);
    }

    fn learn(&mut self, size: f64, time: f64) {
        self.add(size, time);
        let (size, time) = (self.size / self.weight, self.time / self.weight);
        let spread = self.size_size / self.weight - size * size;
        let together = self.size_time / self.weight - size * time;
        // If all are of one size, what bytes take stays what it was.
        let least = 1.0 / 256.0;
        let slope = (together + least * self.mebibyte) / (spread.max(0.0) + least);
        self.mebibyte = slope.clamp(1.0, LONGEST);
        self.operation = (time - self.mebibyte * size).clamp(1.0, LONGEST);
    }

    fn cost(&self, operations: u64, bytes: u64) -> f64 {
        operations as f64 * self.operation + bytes as f64 / MIB * self.mebibyte
    }
}

/// What reads, or writes, take.
#[derive(Clone, Debug)]
pub struct Pace {
    now: Line,
    usual: Line,
    count: u64,
}

impl Pace {
    /// A guess, as long as nothing was measured.
    pub fn new(is_rotational: bool) -> Self {
        let (operation, mebibyte) = match is_rotational {
            true => (8e6, 8e6),
            false => (1e5, 1e6),
        };
        Self {
            now: Line::new(NOW, operation, mebibyte),
            usual: Line::new(USUAL, operation, mebibyte),
            count: 0,
        }
    }

    /// What so many operations with so many bytes together take of the device, in nanoseconds; at least 1.
    pub fn cost(&self, operations: u64, bytes: u64) -> u64 {
        // Whatever is too large is the largest.
        (self.now.cost(operations, bytes) as u64).max(1)
    }

    /// Something took so many nanoseconds of the device.
    pub fn learn(&mut self, operations: u64, bytes: u64, took: u64) {
        let operations = operations.max(1) as f64;
        let size = (bytes as f64 / MIB / operations).min(1024.0);
        let time = (took as f64 / operations).clamp(1.0, LONGEST);
        self.now.learn(size, time);
        self.usual.learn(size, time);
        self.count += 1;
    }

    /// Whether small or large requests take so many times as long as they usually do.
    pub fn is_slow(&self, factor: u64) -> bool {
        let is_slow = |bytes| self.now.cost(1, bytes) > self.usual.cost(1, bytes) * factor as f64;
        self.count >= FEW && is_slow(SMALL) && is_slow(LARGE)
    }

    /// Bytes a second; 0: not measured.
    pub fn rate(&self) -> u64 {
        match self.count {
            0 => 0,
            _ => (MIB * 1e9 / self.now.mebibyte) as u64,
        }
    }

    /// What an operation takes; zero: not measured.
    pub fn operation(&self) -> Duration {
        match self.count {
            0 => Duration::ZERO,
            _ => Duration::from_nanos(self.now.operation as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    fn is_about(found: u64, expected: u64) -> bool {
        found.abs_diff(expected) <= expected / 50
    }

    #[test]
    fn what_an_operation_and_what_bytes_take_is_told_apart() {
        let mut pace = Pace::new(false);
        assert_eq!((pace.rate(), pace.operation()), (0, Duration::ZERO));
        for _ in 0..400 {
            for mib in [0, 1, 4] {
                pace.learn(1, mib << 20, (10 + 5 * mib) * MILLI);
            }
            pace.learn(3, 0, 30 * MILLI);
        }
        assert!(is_about(pace.cost(1, 0), 10 * MILLI), "{pace:?}");
        assert!(is_about(pace.cost(3, 8 << 20), 70 * MILLI), "{pace:?}");
        assert!(is_about(pace.rate(), 200 << 20), "{pace:?}");
        assert!(!pace.is_slow(4));
    }

    #[test]
    fn requests_of_one_size_take_what_they_took() {
        for size in [0, 4 << 10, 300 << 10, 4 << 20] {
            let mut pace = Pace::new(true);
            for _ in 0..500 {
                pace.learn(1, size, 3 * MILLI);
            }
            assert!(is_about(pace.cost(1, size), 3 * MILLI), "{size}: {pace:?}");
        }
    }

    #[test]
    fn who_is_slower_than_usual_is_slow_until_it_is_usual() {
        let mut pace = Pace::new(false);
        for _ in 0..3_000 {
            pace.learn(1, 4096, MILLI);
            pace.learn(1, 4 << 20, 5 * MILLI);
        }
        assert!(!pace.is_slow(4));
        for _ in 0..100 {
            pace.learn(1, 4096, 20 * MILLI);
            pace.learn(1, 4 << 20, 100 * MILLI);
        }
        assert!(pace.is_slow(4), "{pace:?}");
        let mut recovers = pace.clone();
        for _ in 0..200 {
            recovers.learn(1, 4096, MILLI);
            recovers.learn(1, 4 << 20, 5 * MILLI);
        }
        assert!(!recovers.is_slow(4), "{recovers:?}");
        for _ in 0..5_000 {
            pace.learn(1, 4096, 20 * MILLI);
            pace.learn(1, 4 << 20, 100 * MILLI);
        }
        assert!(!pace.is_slow(4), "that is what it does");
    }

    #[test]
    fn any_numbers_are_possible() {
        let mut pace = Pace::new(true);
        for value in [0, 1, u64::MAX] {
            pace.learn(0, value, value);
            pace.learn(value, value, value);
        }
        assert!(pace.cost(u64::MAX, u64::MAX) > 0 && pace.cost(0, 0) > 0);
    }
}
