//! How many stripes to use: more of them as long as that raises the measured rate.
//!
//! The rate is measured in windows, in which only the time counts during which there was something
//! to send. From a base rate the number of stripes is doubled; after a settling window the trial's
//! rate is compared with the base. A clear gain is kept and is the base of the next trial; otherwise
//! the additional stripes are given up, and the next trial waits, each time twice as long.

use core::time::Duration;

use crate::Guard;

/// How long a rate is measured, in time with something to send.
const WINDOW: Duration = Duration::from_millis(80);
/// How long new stripes run before that.
const SETTLE: Duration = Duration::from_millis(40);
/// A window has at least this many bytes for each stripe, so that what the kernel buffers does not
/// decide.
const WINDOW_BYTES: u64 = 2 << 20;
/// A gap between two observations counts at most this much: a longer one was a pause.
const GAP: Duration = Duration::from_millis(100);
/// Doubling the stripes must raise the rate at least by this factor. Where single sockets are the
/// limit it doubles; on a shared machine two equal measurements differ by a tenth.
const GAIN: f64 = 1.2;
/// The first pause after a trial in vain, and the longest.
const HOLD: Duration = Duration::from_secs(2);
const HOLD_MAX: Duration = Duration::from_secs(60);

/// What the windows are for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Measuring the rate with the present number.
    Base,
    /// The additional stripes are being opened, or have just been.
    Settle { from: usize, base: f64 },
    /// Measuring the rate with the additional stripes.
    Trial { from: usize, base: f64 },
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
            last: None,
            hold: HOLD,
            held_until: Duration::ZERO,
        }
    }

    /// The number of stripes to use now.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// `bytes` were drained since the last observation, by `open` stripes. `backlog` says whether
    /// more waits to be sent. Returns whether [`Ramp::wanted`] changed.
    pub fn observe(&mut self, now: Duration, bytes: u64, open: usize, backlog: bool) -> bool {
        if self.fixed {
            return false;
        }
        if let Some(last) = self.last {
            self.busy += now.saturating_sub(last).min(GAP);
            self.bytes += bytes;
        }
        self.last = backlog.then_some(now);
        if open < self.wanted {
            self.restart(self.phase);
            return false;
        }
        let window = if matches!(self.phase, Phase::Settle { .. }) {
            SETTLE
        } else {
            WINDOW
        };
        if self.busy < window || self.bytes < WINDOW_BYTES * self.wanted as u64 {
            return false;
        }
        match self.phase {
            Phase::Settle { from, base } => {
                self.restart(Phase::Trial { from, base });
                false
            }
            Phase::Base => self.try_more(now),
            Phase::Trial { base, .. } if self.rate() >= base * GAIN || !Guard::Gain.holds() => {
                self.hold = HOLD;
                self.try_more(now)
            }
            Phase::Trial { from, .. } => {
                self.give_up(now, from);
                true
            }
        }
    }

    /// A stripe could not be opened: stay with those that are open.
    pub fn cannot_open(&mut self, now: Duration, open: usize) {
        if !self.fixed {
            self.give_up(now, open.max(1));
        }
    }

    fn rate(&self) -> f64 {
        self.bytes as f64 / self.busy.as_secs_f64()
    }

    /// The window before `now` is a base: try the double, unless a trial has just failed.
    fn try_more(&mut self, now: Duration) -> bool {
        let base = self.rate();
        let more = match Guard::StripeLimit.holds() {
            true => (self.wanted * 2).min(self.limit),
            false => self.wanted * 2,
        };
        if more == self.wanted || now < self.held_until {
            self.restart(Phase::Base);
            return false;
        }
        let from = self.wanted;
        self.wanted = more;
        self.restart(Phase::Settle { from, base });
        true
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
