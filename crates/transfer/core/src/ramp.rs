//! How many stripes to use: more of them as long as that raises the measured rate.
//!
//! The rate is measured in windows, in which only the time counts during which something was on its
//! way. From a base rate the number of stripes is doubled; after a settling window the trial's rate
//! is compared with the base. A clear gain is kept and is the base of the next trial; otherwise the
//! additional stripes are given up, and the next trial waits, each time twice as long.
//!
//! Where the network drops packets, a rate says less: a stripe may stand still for a retransmission,
//! and by chance more stripes seem to be faster. There the windows are longer, and after a trial of
//! more stripes in vain comes one of half of them, which are kept if they are as fast. Fewer stripes
//! compete less for the queue that overflows, and an object does not wait for the last of many.

use core::time::Duration;

use crate::Guard;

/// How long a rate is measured, in time with something to send.
const WINDOW: Duration = Duration::from_millis(80);
/// How long new stripes run before that.
const SETTLE: Duration = Duration::from_millis(40);
/// A window has at least this many bytes for each stripe, so that what the kernel buffers does not
/// decide.
const WINDOW_BYTES: u64 = 2 << 20;
/// How long a rate is measured where packets are dropped: some retransmissions take 200 ms.
const LOSSY_WINDOW: Duration = Duration::from_millis(400);
/// A network drops packets if one byte of so many was sent again.
const LOSSY: u64 = 1000;
/// A gap between two observations counts at most this much: a longer one was a pause.
const GAP: Duration = Duration::from_millis(100);
/// Doubling the stripes must raise the rate at least by this factor. Where single sockets are the
/// limit it doubles; on a shared machine two equal measurements differ by a tenth.
const GAIN: f64 = 1.2;
/// Half of the stripes must have this part of the rate.
const KEPT: f64 = 0.97;
/// The first pause after a trial in vain, and the longest.
const HOLD: Duration = Duration::from_secs(2);
const HOLD_MAX: Duration = Duration::from_secs(60);

/// What a window measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    /// Bytes a second.
    rate: f64,
    /// The network dropped packets.
    is_lossy: bool,
}

/// What the windows are for. A trial may be of more stripes or of fewer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Measuring the rate with the present number.
    Base,
    /// Stripes are being opened or closed, or have just been.
    Settle { from: usize, base: Measured },
    /// Measuring the rate with the other number.
    Trial { from: usize, base: Measured },
}

/// The decision for one direction of one pair.
#[derive(Clone, Debug)]
pub struct Ramp {
    wanted: usize,
    limit: usize,
    fixed: bool,
    phase: Phase,
    busy: Duration,
    bytes: u64,
    /// Bytes that were sent again in this window.
    again: u64,
    /// What the last window that measured a rate says of the network.
    is_lossy: bool,
    last: Option<Duration>,
    hold: Duration,
    held_until: Duration,
}

impl Ramp {
    /// A decision that starts with one stripe and tries at most `limit`; or `fixed` stripes always.
    pub fn new(fixed: Option<usize>, limit: usize) -> Self {
        Self {
            wanted: fixed.unwrap_or(1).max(1),
            limit: limit.max(1),
            fixed: fixed.is_some(),
            phase: Phase::Base,
            busy: Duration::ZERO,
            bytes: 0,
            again: 0,
            is_lossy: false,
            last: None,
            hold: HOLD,
            held_until: Duration::ZERO,
        }
    }

    /// The number of stripes to use now.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// The network lost `bytes`, and they were sent again.
    pub fn retransmitted(&mut self, bytes: u64) {
        self.again += bytes;
    }

    /// `bytes` were drained since the last observation, by `open` stripes. `under_way` says whether
    /// more waits to be sent, or is not placed yet. Returns whether [`Ramp::wanted`] changed.
    pub fn observe(&mut self, now: Duration, bytes: u64, open: usize, under_way: bool) -> bool {
        if self.fixed {
            return false;
        }
        // Bytes that come first after a pause were drained in time that does not count.
        if let Some(last) = self.last {
            self.busy += now.saturating_sub(last).min(GAP);
            self.bytes += bytes;
        }
        self.last = under_way.then_some(now);
        // The window begins when all stripes are open: it is their rate that is judged.
        if open < self.wanted {
            self.restart(self.phase);
            return false;
        }
        let measured = self.measured();
        let window = match self.phase {
            Phase::Settle { .. } => SETTLE,
            _ if measured.is_lossy || self.is_lossy => LOSSY_WINDOW,
            _ => WINDOW,
        };
        if self.busy < window || self.bytes < WINDOW_BYTES * self.wanted as u64 {
            return false;
        }
        if let Phase::Settle { from, base } = self.phase {
            self.restart(Phase::Trial { from, base });
            return false;
        }
        self.is_lossy = measured.is_lossy;
        match self.phase {
            Phase::Trial { from, base } if from > self.wanted => {
                let is_kept = measured.rate >= base.rate * KEPT;
                if !is_kept {
                    self.give_up(now, from);
                } else if !self.try_fewer(measured) {
                    self.give_up(now, self.wanted);
                }
                true
            }
            Phase::Trial { from, base } => {
                if measured.rate >= base.rate * GAIN || !Guard::Gain.holds() {
                    self.hold = HOLD;
                    return self.try_more(now, measured);
                }
                self.wanted = from;
                if !self.try_fewer(base) {
                    self.give_up(now, from);
                }
                true
            }
            _ => self.try_more(now, measured),
        }
    }

    /// A stripe could not be opened: stay with those that are open.
    pub fn cannot_open(&mut self, now: Duration, open: usize) {
        if !self.fixed {
            self.give_up(now, open.max(1));
        }
    }

    fn measured(&self) -> Measured {
        Measured {
            rate: self.bytes as f64 / self.busy.as_secs_f64(),
            is_lossy: self.again * LOSSY > self.bytes,
        }
    }

    /// The window before `now` is a base: try the double, unless a trial has just failed.
    fn try_more(&mut self, now: Duration, base: Measured) -> bool {
        let more = match Guard::StripeLimit.holds() {
            true => (self.wanted * 2).min(self.limit),
            false => self.wanted * 2,
        };
        if now < self.held_until {
            self.restart(Phase::Base);
            return false;
        }
        if more == self.wanted {
            let is_tried = self.try_fewer(base);
            if !is_tried {
                self.restart(Phase::Base);
            }
            return is_tried;
        }
        self.try_other(more, base);
        true
    }

    /// Try half as many, if the network drops packets and there are several. Returns whether it does.
    fn try_fewer(&mut self, base: Measured) -> bool {
        let is_due = base.is_lossy && self.wanted > 1 && Guard::Fewer.holds();
        if is_due {
            self.try_other(self.wanted / 2, base);
        }
        is_due
    }

    fn try_other(&mut self, other: usize, base: Measured) {
        let from = core::mem::replace(&mut self.wanted, other);
        self.restart(Phase::Settle { from, base });
    }

    fn give_up(&mut self, now: Duration, to: usize) {
        self.wanted = to;
        self.held_until = now + self.hold;
        self.hold = (self.hold * 2).min(HOLD_MAX);
        self.restart(Phase::Base);
    }

    fn restart(&mut self, phase: Phase) {
        self.phase = phase;
        self.busy = Duration::ZERO;
        self.bytes = 0;
        self.again = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs for `seconds` of virtual time against a network that gives `rate(stripes)` bytes a
    /// second, and returns the decision at the end and the most that was tried.
    fn run(
        ramp: &mut Ramp,
        start: f64,
        seconds: f64,
        rate: impl Fn(usize) -> f64,
    ) -> (usize, usize) {
        let step = 0.001;
        let mut most = ramp.wanted();
        for tick in 0..(seconds / step) as u64 {
            let now = Duration::from_secs_f64(start + tick as f64 * step);
            let open = ramp.wanted();
            // Noise that is the same in each run: five percent either way.
            let noise = 0.95 + 0.1 * ((tick * 7919) % 101) as f64 / 101.0;
            ramp.observe(now, (rate(open) * step * noise) as u64, open, true);
            most = most.max(ramp.wanted());
        }
        (ramp.wanted(), most)
    }

    #[test]
    fn slow_sockets_get_as_many_stripes_as_help() {
        let mut ramp = Ramp::new(None, 16);
        // Sockets of 1.4 Gbit/s on a network of 10 Gbit/s: eight fill it.
        let (wanted, _) = run(&mut ramp, 0.0, 2.0, |n| (n as f64 * 175e6).min(1250e6));
        assert_eq!(wanted, 8);
    }

    #[test]
    fn the_limit_is_kept() {
        let mut ramp = Ramp::new(None, 6);
        assert_eq!(run(&mut ramp, 0.0, 2.0, |n| n as f64 * 175e6), (6, 6));
    }

    #[test]
    fn a_socket_that_fills_the_network_stays_alone() {
        let mut ramp = Ramp::new(None, 16);
        let (wanted, most) = run(&mut ramp, 0.0, 1.9, |_| 3e9);
        assert_eq!((wanted, most), (1, 2), "one trial, which was given up");
    }

    #[test]
    fn trials_in_vain_become_rare() {
        let mut ramp = Ramp::new(None, 16);
        let mut trials = 0;
        let mut before = ramp.wanted();
        for tick in 0..120_000u64 {
            ramp.observe(Duration::from_millis(tick), 3_000_000, ramp.wanted(), true);
            trials += u32::from(ramp.wanted() > before);
            before = ramp.wanted();
        }
        assert!((3..=7).contains(&trials), "{trials} trials in two minutes");
    }

    #[test]
    fn a_network_that_becomes_slow_gets_more_stripes_later() {
        let mut ramp = Ramp::new(None, 16);
        assert_eq!(run(&mut ramp, 0.0, 1.0, |_| 3e9).0, 1);
        let (wanted, _) = run(&mut ramp, 1.0, 8.0, |n| (n as f64 * 175e6).min(1400e6));
        assert_eq!(wanted, 8);
    }

    #[test]
    fn pauses_do_not_count() {
        // 10 ms of sending at full rate, then 90 ms of nothing: the rate is that of the 10 ms.
        let mut ramp = Ramp::new(None, 16);
        for tick in 0..10_000u64 {
            let sending = tick % 100 < 10;
            let bytes = if sending {
                ramp.wanted() as u64 * 175_000
            } else {
                0
            };
            ramp.observe(Duration::from_millis(tick), bytes, ramp.wanted(), sending);
        }
        assert_eq!(ramp.wanted(), 16);
    }

    /// Like `run`, where one byte of a hundred is lost.
    fn run_lossy(ramp: &mut Ramp, start: u64, end: u64, rate: impl Fn(u64, usize) -> u64) -> usize {
        for tick in start..end {
            ramp.retransmitted(rate(tick, ramp.wanted()) / 100);
            let bytes = rate(tick, ramp.wanted());
            ramp.observe(Duration::from_millis(tick), bytes, ramp.wanted(), true);
        }
        ramp.wanted()
    }

    #[test]
    fn where_packets_are_dropped_stripes_that_do_not_help_are_given_up() {
        let mut ramp = Ramp::new(None, 16);
        let slow = |_, n| n as u64 * 175_000;
        assert!(
            run_lossy(&mut ramp, 0, 6_000, slow) >= 8,
            "each socket is slow"
        );
        // Now one fills the network, and each further one takes a tenth of it.
        let crowded = |_, n: usize| 1_250_000 - 50_000 * n as u64;
        assert_eq!(run_lossy(&mut ramp, 6_000, 30_000, crowded), 1);
    }

    #[test]
    fn where_packets_are_dropped_stripes_that_help_stay() {
        let mut ramp = Ramp::new(None, 16);
        let rate = |_, n: usize| (n as u64 * 175_000).min(1_250_000);
        run_lossy(&mut ramp, 0, 8_000, rate);
        let mut below = 0;
        for end in 8_001..68_000 {
            below += u32::from(run_lossy(&mut ramp, end - 1, end, rate) < 8);
        }
        assert!(below < 6_000, "{below} of 60,000 ms with fewer than eight");
    }

    #[test]
    fn a_stall_of_a_retransmission_does_not_look_like_a_slow_socket() {
        let mut ramp = Ramp::new(None, 16);
        let mut most = 1;
        for end in 1..60_000 {
            // Nothing moves for 60 ms of each 610, however many there are.
            let rate = |tick, _| u64::from(tick % 610 >= 60) * 1_000_000;
            run_lossy(&mut ramp, end - 1, end, rate);
            most = most.max(ramp.wanted());
        }
        assert_eq!(most, 2, "the most that was tried");
    }

    #[test]
    fn a_fixed_number_stays() {
        let mut ramp = Ramp::new(Some(3), 16);
        assert_eq!(run(&mut ramp, 0.0, 3.0, |n| n as f64 * 1e9), (3, 3));
    }

    #[test]
    fn stripes_that_cannot_be_opened_end_the_trial() {
        let mut ramp = Ramp::new(None, 16);
        let mut now = Duration::ZERO;
        while ramp.wanted() == 1 {
            now += Duration::from_millis(1);
            ramp.observe(now, 175_000, 1, true);
        }
        ramp.cannot_open(now, 1);
        assert_eq!(ramp.wanted(), 1);
    }
}
