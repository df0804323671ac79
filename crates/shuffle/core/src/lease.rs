//! Leases: what an application that is gone has left behind is cleaned.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use crate::ShuffleId;
use crate::config::Guard;

/// An application: whoever registers shuffles, and says again and again that it is there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ApplicationId(pub u64);

/// Whose a shuffle is, and how much it counts where several have to share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    pub application: ApplicationId,
    /// Its share of a server that is overloaded, compared to the priorities of others that want more than
    /// theirs. At least 1, which is the default. More than [`MOST_PRIORITY`] counts as that.
    pub priority: u32,
}

/// The highest priority that counts: nobody is starved by a larger number.
pub const MOST_PRIORITY: u32 = 1_000;

impl Tenant {
    /// What it counts compared with others.
    pub(crate) fn weight(self) -> u64 {
        self.priority.clamp(1, MOST_PRIORITY).into()
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self {
            application: ApplicationId::default(),
            priority: 1,
        }
    }
}

/// Who has to say again and again that it is there, and what ends if it does not: the shuffles of
/// applications at a master, where the host ends those that [`Leases::expire`] returns
/// ([`MasterEvent::End`](crate::MasterEvent::End)); the links of masters at a server.
#[derive(Debug)]
pub struct Leases<Who = ApplicationId, What = ShuffleId> {
    length: Duration,
    holders: BTreeMap<Who, Lease<What>>,
    /// When this machine was last asked something.
    awake: Duration,
}

#[derive(Debug)]
struct Lease<What> {
    until: Duration,
    what: BTreeSet<What>,
}

impl<Who: Copy + Ord, What: Copy + Ord> Leases<Who, What> {
    /// Leases that last for `length` after each heartbeat.
    pub fn new(length: Duration) -> Self {
        Self {
            length,
            holders: BTreeMap::new(),
            awake: Duration::ZERO,
        }
    }

    /// Somebody is there, and `what` ends with its lease.
    pub fn grant(&mut self, who: Who, what: What, now: Duration) {
        self.wake(now);
        let until = now + self.length;
        let lease = self.holders.entry(who).or_insert(Lease {
            until,
            what: BTreeSet::new(),
        });
        lease.until = until;
        lease.what.insert(what);
    }

    /// A heartbeat. False: there is no lease, and what was granted is gone.
    pub fn renew(&mut self, who: Who, now: Duration) -> bool {
        self.wake(now);
        let lease = self.holders.get_mut(&who);
        let is_known = lease.is_some();
        if let Some(lease) = lease {
            lease.until = now + self.length;
        }
        is_known
    }

    /// It has ended without that.
    pub fn end(&mut self, what: What) {
        self.holders.retain(|_, lease| {
            lease.what.remove(&what);
            !lease.what.is_empty()
        });
    }

    /// What was granted to those that have not renewed their leases. They have none any more.
    pub fn expire(&mut self, now: Duration) -> Vec<What> {
        self.wake(now);
        let mut ended = Vec::new();
        if Guard::Lease.holds() {
            self.holders.retain(|_, lease| {
                let is_over = lease.until <= now;
                if is_over {
                    ended.extend(lease.what.iter().copied());
                }
                !is_over
            });
        }
        ended
    }

    /// When [`Leases::expire`] is due; `None`: not before another call.
    pub fn next_deadline(&self) -> Option<Duration> {
        // Without the guard nothing is ever due.
        let due = self.holders.values().map(|lease| lease.until).min();
        due.filter(|_| Guard::Lease.holds())
    }

    /// A process that was stopped itself has not seen silence: all get a whole lease again.
    fn wake(&mut self, now: Duration) {
        let due = self.next_deadline();
        if due.is_some_and(|due| now > due + self.length / 2 && now > self.awake + self.length) {
            for lease in self.holders.values_mut() {
                lease.until = now + self.length;
            }
        }
        self.awake = self.awake.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ApplicationId = ApplicationId(1);
    const B: ApplicationId = ApplicationId(2);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn who_renews_keeps_its_shuffles_and_who_does_not_loses_them() {
        let mut leases = Leases::new(at(10));
        leases.grant(A, ShuffleId(1), at(0));
        leases.grant(A, ShuffleId(2), at(1));
        leases.grant(B, ShuffleId(3), at(1));
        assert!(leases.renew(B, at(8)));
        assert_eq!(leases.next_deadline(), Some(at(11)));
        assert_eq!(leases.expire(at(10)), []);
        assert_eq!(leases.expire(at(11)), [ShuffleId(1), ShuffleId(2)]);
        assert!(!leases.renew(A, at(12)), "it is told that they are gone");
        leases.end(ShuffleId(3));
        assert_eq!(leases.next_deadline(), None);
    }

    #[test]
    fn a_master_that_was_stopped_gives_everybody_a_whole_lease() {
        let mut leases = Leases::new(at(10));
        leases.grant(A, ShuffleId(1), at(0));
        assert_eq!(leases.expire(at(100)), []);
        assert_eq!(leases.next_deadline(), Some(at(110)));
        assert_eq!(leases.expire(at(110)), [ShuffleId(1)]);
    }
}
