//! What is always true of a node.

use crate::Guard;
use crate::relay::Relay;
use crate::relay::cast::{Cast, Flow, Own};
use crate::relay::timers::Timer;
use crate::{CastId, Neighbour, Runs};

impl Relay {
    /// Verifies the invariants.
    ///
    /// # Panics
    /// If one is broken.
    pub fn check(&self) {
        for (&id, session) in &self.sessions {
            let most = self.config.outstanding;
            assert!(session.casts.len() <= most, "{id:?} has too many casts");
            for (&number, cast) in &session.casts {
                let id = CastId {
                    session: id,
                    number,
                };
                let is_settled = Guard::Once.holds() && session.settled.contains(number);
                assert!(!is_settled, "{id:?} is kept, and settled");
                self.check_cast(id, cast);
            }
            for number in &session.dirty {
                assert!(
                    session.casts.contains_key(number),
                    "{id:?}.{number} is dirty"
                );
            }
            let pending = !session.dirty.is_empty() || !session.outputs.is_empty();
            let is_armed = self.timers.armed().any(|timer| timer == Timer::Flush(id));
            assert!(!pending || is_armed, "results of {id:?} will not go up");
        }
        for timer in self.timers.armed() {
            let (Timer::Flush(session) | Timer::Settle(session) | Timer::Ask(session)) = timer
            else {
                continue;
            };
            assert!(self.sessions.contains_key(&session), "{timer:?} of nothing");
        }
        let casts: usize = self.sessions.values().map(|s| s.casts.len()).sum();
        assert!(self.timers.len() <= 2 + 3 * self.sessions.len() + 2 * casts);
        for who in self.links.keys() {
            if let Neighbour::Worker(worker) = who {
                let is_dead = self.gone.contains(u64::from(worker.0));
                assert!(!is_dead, "{worker:?} is dead and connected");
            }
        }
        assert_eq!(self.known.len(), self.directory.len() as u64);
        assert!(self.known.is_disjoint(&self.gone), "the dead are known");
    }

    fn check_cast(&self, id: CastId, cast: &Cast) {
        assert!(
            cast.waiting.is_subset(&cast.members),
            "{id:?} waits for strangers"
        );
        assert!(cast.payload.have <= cast.size, "{id:?} has more than all");
        let told = cast
            .log
            .iter()
            .map(|(engines, _)| engines.len())
            .sum::<u64>();
        let done = cast.members.difference(&cast.waiting);
        let mut all = Runs::new();
        for (engines, _) in &cast.log {
            all = all.union(engines);
        }
        let keeps = Guard::Keeping.holds() && Guard::Once.holds();
        assert!(!keeps || all.len() == told, "{id:?} has a result twice");
        assert!(
            all.is_disjoint(&cast.waiting),
            "{id:?} waits for what it has"
        );
        if self.top.is_none() && keeps {
            assert!(done.is_subset(&all), "{id:?} has lost a result");
        }
        if let Some(top) = &self.top {
            let skips = !cast.skipped.is_empty();
            assert!(
                cast.skipped.is_subset(&done),
                "{id:?} skips what it waits for"
            );
            assert_eq!(skips, top.skipping.contains(&id.number), "{id:?}");
            assert!(
                skips || !cast.waiting.is_empty(),
                "{id:?} is kept for nothing"
            );
        }
        self.check_responsibility(id, cast);
        for parent in &cast.parents {
            assert!(
                self.links.contains_key(&parent.who),
                "{id:?} has a lost parent"
            );
            assert!(parent.told <= cast.log.len());
        }
        for child in &cast.children {
            let who = Neighbour::Worker(child.who);
            let link = self.links.get(&who);
            assert!(link.is_some(), "{id:?} has a lost child");
            let is_connected = link.is_some_and(|link| link.is_connected);
            let sent = child.given.iter().all(|given| given.sent);
            assert!(sent || !is_connected, "{id:?} did not offer to {who:?}");
            if let Flow::Chunks { sent, acked } = child.flow {
                assert!(acked <= sent, "{who:?} has what was not sent");
                let is_bounded = sent - acked <= self.config.window;
                assert!(
                    !Guard::Window.holds() || is_bounded,
                    "too much is on the way to {who:?}"
                );
            }
        }
        if let Some(source) = cast.payload.source {
            let is_parent = cast.parents.iter().any(|parent| parent.who == source);
            assert!(is_parent, "{id:?} is to come from {source:?}");
        }
    }

    /// Each member that has no result is somebody's: this node's, one child's, or it waits.
    fn check_responsibility(&self, id: CastId, cast: &Cast) {
        if !Guard::Responsibility.holds() {
            return;
        }
        let mut someones = cast.parked.intersection(&cast.waiting);
        for child in &cast.children {
            let given = child.responsible().intersection(&cast.waiting);
            assert!(
                given.is_disjoint(&someones),
                "{id:?}: two children for one member"
            );
            someones = someones.union(&given);
        }
        for placement in &cast.deferred {
            someones = someones.union(&placement.members.intersection(&cast.waiting));
        }
        if self.engine.is_some() && cast.own.is_some_and(|own| own != Own::Done) {
            someones.insert(self.id());
        }
        let nobodys = cast.waiting.difference(&someones);
        assert!(
            nobodys.is_empty(),
            "{id:?}: nobody is responsible for {nobodys:?}"
        );
    }
}
