//! Pauses between attempts.

use std::time::Duration;

use super::Config;

/// How often something failed in a row. Clients with different seeds pause differently.
#[derive(Clone, Debug)]
pub(super) struct Attempts {
    failures: u32,
    seed: u64,
}

impl Attempts {
    pub(super) fn new(seed: u64) -> Self {
        Self { failures: 0, seed }
    }

    /// It has succeeded.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The pause after it has failed; after a refusal the longest.
    pub(super) fn pause(&mut self, config: &Config, is_refusal: bool) -> Duration {
        let doublings = if is_refusal {
            31
        } else {
            self.failures.min(31)
        };
        self.failures = self.failures.saturating_add(1);
        // A linear congruential generator (Knuth, The Art of Computer Programming, 3.3.4).
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005);
        self.seed = self.seed.wrapping_add(1_442_695_040_888_963_407);
        let part = (self.seed >> 48) as u32;
        let pause = config.first_pause.saturating_mul(1 << doublings);
        let half = pause.min(config.longest_pause) / 2;
        half + half * part / (1 << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_differ_between_clients() {
        let config = Config::default();
        let pauses = |seed| {
            let mut attempts = Attempts::new(seed);
            let pauses: Vec<_> = (0..40).map(|_| attempts.pause(&config, false)).collect();
            pauses
        };
        let mut full = config.first_pause;
        for pause in pauses(1) {
            assert!(full / 2 <= pause && pause <= full, "{pause:?} of {full:?}");
            full = (full * 2).min(config.longest_pause);
        }
        assert_ne!(pauses(1), pauses(2));
        assert!(Attempts::new(1).pause(&config, true) >= config.longest_pause / 2);
    }
}
