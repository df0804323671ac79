//! Servers that leave again and again.

use std::time::Duration;

use super::{Config, Guard};

/// How often a server has left lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Flaps {
    departures: u32,
    last: Duration,
}

impl Flaps {
    /// It has left, or begun another life.
    pub(super) fn depart(&mut self, config: &Config, now: Duration) {
        if self.are_forgotten(config, now) {
            self.departures = 0;
        }
        self.departures = self.departures.saturating_add(1);
        self.last = now;
    }

    /// How often it has left within the window.
    pub(super) fn departures(&self) -> u32 {
        self.departures
    }

    /// Until when a server that is there now is held back.
    pub(super) fn hold(&self, config: &Config, now: Duration) -> Option<Duration> {
        if self.are_forgotten(config, now) || !Guard::Flapping.holds() {
            return None;
        }
        let doublings = self.departures.checked_sub(config.flaps)?;
        let hold = config.hold.saturating_mul(1 << doublings.min(31));
        let until = self.last + hold.min(config.longest_hold);
        (until > now).then_some(until)
    }

    /// When all this is forgotten.
    pub(super) fn forgotten_at(&self, config: &Config) -> Duration {
        self.last + config.window
    }

    fn are_forgotten(&self, config: &Config, now: Duration) -> bool {
        self.departures == 0 || now >= self.forgotten_at(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_often_waits_longer_each_time_and_is_forgiven() {
        let config = Config::default();
        let mut flaps = Flaps::default();
        let mut now = Duration::ZERO;
        let mut holds = Vec::new();
        for _ in 0..12 {
            now += Duration::from_secs(1);
            flaps.depart(&config, now);
            holds.push(
                flaps
                    .hold(&config, now)
                    .map_or(0, |until| (until - now).as_secs()),
            );
        }
        assert_eq!(holds, [0, 0, 0, 0, 30, 60, 120, 240, 300, 300, 300, 300]);
        assert_eq!(flaps.hold(&config, now + config.longest_hold), None);
        flaps.depart(&config, now + config.window);
        assert_eq!(flaps.departures(), 1);
    }
}
