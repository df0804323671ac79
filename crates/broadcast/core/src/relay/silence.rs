//! Neighbours that are there, and say nothing: paused processes, or those whose machine hangs.
//!
//! A connection to such a one does not break, and the scheduler takes its time. Who has taken others
//! says that it is there as long as it owes their results. If it does not, they are given to somebody
//! else, and it keeps only itself: when it goes on, all is as if it were one more parent of those
//! below it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_types::ClientId;

use crate::relay::Relay;
use crate::relay::cast::Child;
use crate::relay::timers::Timer;
use crate::{Effects, Message, Neighbour, Runs};

impl Relay {
    /// Says to those to whom results of others are owed that the node is there.
    pub(super) fn beat(&mut self, out: &mut Effects) {
        let me = self.id();
        let mut owed: BTreeMap<Neighbour, ClientId> = BTreeMap::new();
        for (&id, session) in &self.sessions {
            for cast in session.casts.values() {
                for parent in &cast.parents {
                    let open = parent.asked.intersection(&cast.waiting);
                    if open.len() > u64::from(open.contains(me)) {
                        // Any session does: it is the connection that is heard.
                        owed.insert(parent.who, id);
                    }
                }
            }
        }
        if !owed.is_empty() {
            self.timers.arm(Timer::Beat, self.now + self.config.beat);
        }
        for (who, session) in owed {
            let results = Vec::new();
            out.send(who, Message::Results { session, results });
        }
    }

    /// Gives those whom silent children have taken to others, at a time that was set for `at`.
    pub(super) fn pass_over(&mut self, at: Duration, out: &mut Effects) {
        // Who comes so late was itself stopped, or had no processor: what others have said meanwhile
        // waits in its sockets.
        if self.now > at + self.config.beat {
            let again = self.now + self.config.silence / 2;
            self.timers.arm(Timer::Silence, again);
            return;
        }
        if let Some(at) = self.find_silent() {
            self.timers.arm(Timer::Silence, at);
        }
        let (silent, by) = (self.silent(), self.maker());
        for id in self.all_casts() {
            let Some(cast) = self.cast(id) else { continue };
            let mut members = Runs::new();
            for child in &mut cast.children {
                if silent.contains(u64::from(child.who.0)) {
                    members = members.union(&child.take(&child.others(), None));
                }
            }
            let members = members.intersection(&cast.waiting);
            if !members.is_empty() {
                cast.repairs += 1;
                let version = cast.next_version(by);
                self.place(id, &members, version, false, out);
            }
        }
    }

    /// Notes who is silent; when to look again.
    fn find_silent(&mut self) -> Option<Duration> {
        let Self {
            sessions, links, ..
        } = self;
        let casts = sessions.values().flat_map(|session| session.casts.values());
        let mut next: Option<Duration> = None;
        for cast in casts {
            for child in &cast.children {
                let Some(link) = links.get_mut(&Neighbour::Worker(child.who)) else {
                    continue;
                };
                if link.is_silent || child.others().is_disjoint(&cast.waiting) {
                    continue;
                }
                let since = child.given.iter().map(|given| given.since).max();
                let due = since.unwrap_or_default().max(link.heard) + self.config.silence;
                link.is_silent = due <= self.now;
                if !link.is_silent {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
            }
        }
        next
    }

    pub(super) fn silent(&self) -> Runs {
        let silent = self.links.iter().filter(|(_, link)| link.is_silent);
        let workers = silent.filter_map(|(who, _)| match who {
            Neighbour::Worker(worker) => Some(u64::from(worker.0)),
            Neighbour::Top(_) => None,
        });
        workers.collect()
    }
}

impl Child {
    /// Those besides itself for whom it is responsible.
    fn others(&self) -> Runs {
        let mut others = self.responsible();
        others.remove(u64::from(self.who.0));
        others
    }
}
