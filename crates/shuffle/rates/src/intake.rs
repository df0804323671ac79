//! How fast a server takes what is pushed: by its network, its processor, and its disks where rows wait for those.
//!
//! A push is served from when it was announced, or from the push before if that came later, until it is here. So time
//! in which nobody pushes does not count, and neither does a push that never comes. The fastest of the last
//! [`WINDOWS`] counts: a client that is slow itself does not make a server slow.

use core::time::Duration;

/// What a server takes in a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Intake {
    /// In bytes. 0: it is not known.
    pub rate: u64,
    /// How many times [`Intake::FORGOTTEN`] have passed since it was measured.
    pub age: u32,
}

impl Intake {
    /// What was measured so long ago may be half wrong.
    pub const FORGOTTEN: Duration = Duration::from_secs(120);
}

const WINDOWS: usize = 4;
/// A window ends with so many pushes and bytes, after so much time in which they were served; or after [`LONG`]. Less
/// says nothing on a busy machine.
const PUSHES: u32 = 8;
const BYTES: u64 = 4 << 20;
const SERVED: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(10);
/// A push takes so long at most: what it takes beyond that is not the server's speed.
const MOST: Duration = Duration::from_secs(5);
/// Pushes of fewer bytes count as so many: what they take is not the bytes.
const LEAST: u64 = 16 << 10;

/// Measures it.
#[derive(Debug, Default)]
pub struct Gauge {
    windows: [u64; WINDOWS],
    next: usize,
    bytes: u64,
    pushes: u32,
    served: Duration,
    last: Duration,
    /// When a window ended.
    measured: Duration,
}

impl Gauge {
    /// A push of so many bytes is here, which was announced at `since`.
    pub fn arrived(&mut self, length: u64, since: Duration, now: Duration) {
        let took = now.saturating_sub(since.max(self.last));
        self.last = now;
        self.bytes += length.max(LEAST);
        self.pushes += 1;
        self.served += took.min(MOST);
        let is_much = self.bytes >= BYTES && self.pushes >= PUSHES;
        let is_over = is_much && self.served >= SERVED;
        if !is_over && self.served < LONG {
            return;
        }
        let rate = u128::from(self.bytes) * 1_000_000_000 / self.served.as_nanos().max(1);
        self.windows[self.next] = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        self.next = (self.next + 1) % WINDOWS;
        (self.bytes, self.pushes, self.served) = (0, 0, Duration::ZERO);
        self.measured = now;
    }

    pub fn intake(&self, now: Duration) -> Intake {
        let rate = self.windows.iter().copied().max().unwrap_or_default();
        let idle = now.saturating_sub(self.measured).as_secs() / Intake::FORGOTTEN.as_secs();
        Intake {
            rate,
            age: if rate == 0 { 0 } else { idle.min(16) as u32 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Pushes of a MiB, each in so many milliseconds, `depth` of them announced at once.
    fn pushed(gauge: &mut Gauge, clock: &mut u64, took: u64, count: u64, depth: u64) {
        let at = Duration::from_millis;
        let begin = *clock;
        for number in 0..count {
            *clock += took;
            let since = begin + number.saturating_sub(depth - 1) * took;
            gauge.arrived(MIB, at(since), at(*clock));
        }
    }

    fn mib(gauge: &Gauge, clock: u64) -> u64 {
        gauge.intake(Duration::from_millis(clock)).rate / MIB
    }

    #[test]
    fn a_server_is_as_fast_as_it_takes_what_is_there_however_much_that_is() {
        for depth in [1, 4, 16] {
            let (mut gauge, mut clock) = (Gauge::default(), 0);
            pushed(&mut gauge, &mut clock, 40, 7, depth);
            assert_eq!(mib(&gauge, clock), 0, "it is not known yet");
            pushed(&mut gauge, &mut clock, 40, 8, depth);
            assert_eq!(mib(&gauge, clock), 25, "{depth}");
            // Nobody pushes.
            clock += 10_000;
            pushed(&mut gauge, &mut clock, 40, 8, depth);
            assert_eq!(mib(&gauge, clock), 25, "{depth}");
        }
    }

    #[test]
    fn one_that_becomes_slow_or_fast_is_known_to_be_so_after_some_windows() {
        let (mut gauge, mut clock) = (Gauge::default(), 0);
        pushed(&mut gauge, &mut clock, 40, 80, 2);
        pushed(&mut gauge, &mut clock, 400, 40, 2);
        assert_eq!(mib(&gauge, clock), 2);
        pushed(&mut gauge, &mut clock, 40, 20, 2);
        assert_eq!(mib(&gauge, clock), 25);
    }

    #[test]
    fn a_client_that_is_slow_among_others_or_stops_does_not_make_the_server_slow() {
        let (mut gauge, mut clock) = (Gauge::default(), 0);
        for _ in 0..20 {
            pushed(&mut gauge, &mut clock, 40, 16, 2);
            // It was announced long ago.
            clock += 2_000;
            gauge.arrived(MIB, Duration::ZERO, Duration::from_millis(clock));
        }
        assert_eq!(mib(&gauge, clock), 25);
    }

    #[test]
    fn what_was_measured_grows_old() {
        let (mut gauge, mut clock) = (Gauge::default(), 0);
        assert_eq!(gauge.intake(Duration::from_secs(9_000)), Intake::default());
        pushed(&mut gauge, &mut clock, 40, 16, 2);
        let age = |seconds| gauge.intake(Duration::from_secs(seconds)).age;
        assert_eq!([age(60), age(121), age(241), age(1 << 40)], [0, 1, 2, 16]);
    }
}
