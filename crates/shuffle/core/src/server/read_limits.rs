//! How many loads applications may have while a disk is slow.
//!
//! Those with more are told to pause, each of their reads until about when its turn would come. So requests wait
//! in their processes, and not here. Nobody else notices.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::{ApplicationId, Config, Limit};

/// A limit holds for so long, unless it is said again.
const HOLDS: Duration = Duration::from_secs(1);

/// The limits of applications, by the disk that says so.
#[derive(Debug, Default)]
pub(super) struct ReadLimits(BTreeMap<(ApplicationId, usize), Limited>);

#[derive(Debug)]
struct Limited {
    limit: Limit,
    until: Duration,
    /// When the turn of the read comes that was told to pause last.
    next: Duration,
}

impl ReadLimits {
    /// These limits of a disk hold from now on, and no others of it.
    pub(super) fn set(&mut self, disk: usize, limits: Vec<Limit>, now: Duration) {
        let is_over = limits.is_empty();
        self.0
            .retain(|&(_, of), limited| limited.until > now && !(is_over && of == disk));
        for limit in limits {
            let until = now + HOLDS;
            let limited = Limited {
                limit,
                until,
                next: now,
            };
            let limited = self.0.entry((limit.application, disk)).or_insert(limited);
            (limited.limit, limited.until) = (limit, until);
        }
    }

    /// The applications that have one.
    pub(super) fn applications(&self) -> Vec<ApplicationId> {
        let mut all: Vec<_> = self.0.keys().map(|&(application, _)| application).collect();
        all.dedup();
        all
    }

    /// How many loads an application may have now; `None`: as many as it wants.
    pub(super) fn most(&self, application: ApplicationId, now: Duration) -> Option<usize> {
        let least = self.least(application, now)?;
        Some(self.0.get(&least)?.limit.most as usize)
    }

    /// The least limit of an application.
    fn least(&self, application: ApplicationId, now: Duration) -> Option<(ApplicationId, usize)> {
        let limited = self.0.range((application, 0)..=(application, usize::MAX));
        let limited = limited.filter(|(_, limited)| limited.until > now);
        let least = limited.min_by_key(|(_, limited)| limited.limit.most);
        least.map(|(&key, _)| key)
    }

    /// A read of an application is told to pause: for so long.
    pub(super) fn pause(
        &mut self,
        application: ApplicationId,
        now: Duration,
        config: &Config,
    ) -> Duration {
        let least = self.least(application, now);
        let Some(limited) = least.and_then(|key| self.0.get_mut(&key)) else {
            return config.pause;
        };
        // Half of what may wait is done by then, so that the disk is not idle.
        let soon = limited.limit.each * (limited.limit.most / 2).max(1);
        let longest = config.patience / 8;
        // Those that come back too early are told again.
        let next = limited.next.clamp(now, now + longest) + limited.limit.each;
        limited.next = next;
        (soon.max(next - now)).clamp(config.pause, longest)
    }
}
