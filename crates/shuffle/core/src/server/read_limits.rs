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

/// The limits of applications.
#[derive(Debug, Default)]
pub(super) struct ReadLimits(BTreeMap<ApplicationId, Limited>);

#[derive(Debug)]
struct Limited {
    limit: Limit,
    until: Duration,
    /// When the turn of the read comes that was told to pause last.
    next: Duration,
}

impl ReadLimits {
    /// These limits hold from now on. None: no limit holds.
    pub(super) fn set(&mut self, limits: Vec<Limit>, now: Duration) {
        if limits.is_empty() {
            return self.0.clear();
        }
        self.0.retain(|_, limited| limited.until > now);
        for limit in limits {
            let until = now + HOLDS;
            let limited = Limited {
                limit,
                until,
                next: now,
            };
            let limited = self.0.entry(limit.application).or_insert(limited);
            (limited.limit, limited.until) = (limit, until);
        }
    }

    /// The applications that have one.
    pub(super) fn applications(&self) -> Vec<ApplicationId> {
        self.0.keys().copied().collect()
    }

    /// How many loads an application may have now; `None`: as many as it wants.
    pub(super) fn most(&self, application: ApplicationId, now: Duration) -> Option<usize> {
        let limited = self.0.get(&application);
        let limited = limited.filter(|limited| limited.until > now)?;
        Some(limited.limit.most as usize)
    }

    /// A read of an application is told to pause: for so long.
    pub(super) fn pause(
        &mut self,
        application: ApplicationId,
        now: Duration,
        config: &Config,
    ) -> Duration {
        let Some(limited) = self.0.get_mut(&application) else {
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
