//! Shares of applications: while requests wait, applications are served in proportion to their
//! priorities (start-time fair queueing; Goyal, Vin and Cheng, 1996).
//!
//! An application that wants no more than its share finds its requests served next. Those of one that
//! wants more wait: as soon as one has waited for [`Config::slow`](crate::Config::slow), its further
//! requests are told to come later. What waits already goes on waiting, so that nothing is idle.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::config::Guard;
use crate::server::Server;
use crate::{ApplicationId, Config, Tenant};

/// What applications have been given of something.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// The virtual time: that at which the last request began.
    clock: u64,
    /// When the next request of an application begins. It is not here if that is not after the clock.
    tags: BTreeMap<ApplicationId, u64>,
}

impl Shares {
    /// In which order requests of an application are served, compared with those of others.
    pub(crate) fn tag(&self, application: ApplicationId) -> u64 {
        let tag = self.tags.get(&application);
        tag.map_or(self.clock, |tag| self.clock.max(*tag))
    }

    /// A request of this size is served.
    pub(crate) fn serve(&mut self, tenant: Tenant, bytes: u64) {
        let start = self.tag(tenant.application);
        let cost = bytes.saturating_mul(1 << 10) / tenant.weight();
        self.clock = start;
        self.tags
            .insert(tenant.application, start.saturating_add(cost.max(1)));
        self.tags.retain(|_, tag| *tag > start);
    }
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) since: Duration,
    /// How many of its application waited when it came.
    pub(super) ahead: u32,
}

impl Turn {
    /// Of a request that comes now, when so many of its application wait.
    pub(super) fn new(ahead: usize, now: Duration) -> Self {
        Self {
            since: now,
            ahead: ahead as u32,
        }
    }
}

impl Server {
    /// Whether shuffles of several applications are here. As long as it is not, nothing has to look at all
    /// that waits.
    pub(super) fn is_shared(&self) -> bool {
        let mut held = self.shuffles.values();
        let first = held.next().map(|held| held.plan.tenant.application);
        held.any(|held| Some(held.plan.tenant.application) != first)
    }

    /// How many of those that wait are of an application.
    pub(super) fn ahead(
        &self,
        application: ApplicationId,
        waiting: impl ExactSizeIterator<Item = (ApplicationId, Turn)>,
    ) -> usize {
        match self.is_shared() {
            true => waiting.filter(|(other, _)| *other == application).count(),
            false => waiting.len(),
        }
    }

    /// For how long the application of a new request is to pause, if it has more than its share.
    pub(super) fn pause_of(
        &self,
        application: ApplicationId,
        waiting: impl Iterator<Item = (ApplicationId, Turn)>,
    ) -> Option<Duration> {
        if !(Guard::Shares.holds() && self.is_shared()) {
            return None;
        }
        let (mut oldest, mut count, mut has_others) = (None, 0, false);
        for (other, turn) in waiting {
            match other == application {
                true => {
                    oldest.get_or_insert(turn);
                    count += 1;
                }
                false => has_others = true,
            }
        }
        let oldest = oldest.filter(|_| has_others)?;
        pause_of((oldest, count), self.now, &self.config)
    }
}

/// For how long an application is to pause that has so many requests waiting, beside those of others, if
/// it has more than its share.
pub(super) fn pause_of(
    (oldest, count): (Turn, usize),
    now: Duration,
    config: &Config,
) -> Option<Duration> {
    let waited = now.saturating_sub(oldest.since);
    if waited < config.slow {
        return None;
    }
    // Those ahead of the oldest were served meanwhile. By then half of what waits is, too, so that nothing
    // is idle.
    let half = waited * (count as u32) / oldest.ahead.max(1) / 2;
    Some(half.max(config.pause).min(config.patience / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(application: u64, priority: u32) -> Tenant {
        Tenant {
            application: ApplicationId(application),
            priority,
        }
    }

    #[test]
    fn no_priority_is_above_the_highest_that_counts() {
        let mut shares = Shares::default();
        let (greedy, other) = (tenant(1, u32::MAX), tenant(2, 1));
        let highest = u64::from(crate::MOST_PRIORITY);
        let mut served = [0_u64; 2];
        for _ in 0..4 * highest {
            let next = match shares.tag(ApplicationId(1)) <= shares.tag(ApplicationId(2)) {
                true => (greedy, 0),
                false => (other, 1),
            };
            shares.serve(next.0, 1 << 20);
            served[next.1] += 1;
        }
        assert!(served[1] >= 3, "{served:?}");
    }

    #[test]
    fn who_waits_is_served_by_priority_and_who_was_idle_has_no_credit() {
        let mut shares = Shares::default();
        let tenants = [tenant(1, 1), tenant(2, 3)];
        let mut serve = |tenants: &[Tenant], times: u64| {
            let mut served = BTreeMap::<ApplicationId, u64>::new();
            for _ in 0..times {
                let next = tenants
                    .iter()
                    .min_by_key(|tenant| shares.tag(tenant.application));
                let next = *next.unwrap();
                shares.serve(next, 1_000);
                *served.entry(next.application).or_default() += 1;
            }
            served.into_values().collect::<alloc::vec::Vec<u64>>()
        };
        assert_eq!(serve(&tenants[..1], 1_000), [1_000]);
        // The first one has had its last request already.
        let served = serve(&tenants, 400);
        assert!(served[0].abs_diff(100) <= 1, "{served:?}");
        assert!(shares.tags.len() <= 2);
    }
}
