//! What is always true of a node.

use treadle_guards::{InvariantError, ensure, ensure_eq};

use crate::Guard;
use crate::relay::Relay;
use crate::relay::cast::{Cast, Flow, Own};
use crate::relay::timers::Timer;
use crate::{CastId, Neighbour, Runs};

impl Relay {
    /// Verifies the invariants.
    ///
    /// # Errors
    /// [`InvariantError`]: one does not hold, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        for (&id, session) in &self.sessions {
            let most = self.config.outstanding;
            ensure!(session.casts.len() <= most, "{id:?} has too many casts");
            for (&number, cast) in &session.casts {
                let id = CastId {
                    session: id,
                    number,
                };
                let is_settled = Guard::Once.holds() && session.settled.contains(number);
                ensure!(!is_settled, "{id:?} is kept, and settled");
                self.check_cast(id, cast)?;
            }
            for number in &session.dirty {
                ensure!(
                    session.casts.contains_key(number),
                    "{id:?}.{number} is dirty"
                );
            }
            let pending = !session.dirty.is_empty() || !session.outputs.is_empty();
            let is_armed = self.timers.armed().any(|timer| timer == Timer::Flush(id));
            ensure!(!pending || is_armed, "results of {id:?} will not go up");
        }
        for timer in self.timers.armed() {
            let (Timer::Flush(session) | Timer::Settle(session) | Timer::Ask(session)) = timer
            else {
                continue;
            };
            ensure!(self.sessions.contains_key(&session), "{timer:?} of nothing");
        }
        let casts: usize = self.sessions.values().map(|s| s.casts.len()).sum();
        let most = 2 + 3 * self.sessions.len() + 2 * casts;
        ensure!(self.timers.len() <= most, "more than {most} timers");
        for who in self.links.keys() {
            if let Neighbour::Worker(worker) = who {
                let is_dead = self.gone.contains(u64::from(worker.0));
                ensure!(!is_dead, "{worker:?} is dead and connected");
            }
        }
        ensure_eq!(
            self.known.len(),
            self.directory.len() as u64,
            "nodes that are known, and in the directory"
        );
        ensure!(self.known.is_disjoint(&self.gone), "the dead are known");
        Ok(())
    }

    fn check_cast(&self, id: CastId, cast: &Cast) -> Result<(), InvariantError> {
        ensure!(
            cast.waiting.is_subset(&cast.members),
            "{id:?} waits for strangers"
        );
        ensure!(cast.payload.have <= cast.size, "{id:?} has more than all");
        let counted = cast
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
        ensure!(!keeps || all.len() == counted, "{id:?} has a result twice");
        ensure!(
            all.is_disjoint(&cast.waiting),
            "{id:?} waits for what it has"
        );
        if self.top.is_none() && keeps {
            ensure!(done.is_subset(&all), "{id:?} has lost a result");
        }
        if let Some(top) = &self.top {
            let skips = !cast.skipped.is_empty();
            ensure!(
                cast.skipped.is_subset(&done),
                "{id:?} skips what it waits for"
            );
            ensure_eq!(
                skips,
                top.skipping.contains(&id.number),
                "{id:?} is listed as skipping"
            );
            ensure!(
                skips || !cast.waiting.is_empty(),
                "{id:?} is kept for nothing"
            );
        }
        self.check_responsibility(id, cast)?;
        for parent in &cast.parents {
            ensure!(
                self.links.contains_key(&parent.who),
                "{id:?} has a lost parent"
            );
            ensure!(
                parent.reported <= cast.log.len(),
                "{id:?}: a parent was told more than is known"
            );
        }
        for child in &cast.children {
            let who = Neighbour::Worker(child.who);
            let link = self.links.get(&who);
            ensure!(link.is_some(), "{id:?} has a lost child");
            let is_connected = link.is_some_and(|link| link.is_connected);
            let sent = child.given.iter().all(|given| given.sent);
            ensure!(sent || !is_connected, "{id:?} did not offer to {who:?}");
            if let Flow::Chunks { sent, acked } = child.flow {
                ensure!(acked <= sent, "{who:?} has what was not sent");
                let is_bounded = sent - acked <= self.config.window;
                ensure!(
                    !Guard::Window.holds() || is_bounded,
                    "too much is on the way to {who:?}"
                );
            }
        }
        if let Some(source) = cast.payload.source {
            let is_parent = cast.parents.iter().any(|parent| parent.who == source);
            ensure!(is_parent, "{id:?} is to come from {source:?}");
        }
        Ok(())
    }

    /// Each member that has no result is somebody's: this node's, one child's, or it waits.
    fn check_responsibility(&self, id: CastId, cast: &Cast) -> Result<(), InvariantError> {
        if !Guard::Responsibility.holds() {
            return Ok(());
        }
        let mut someones = cast.parked.intersection(&cast.waiting);
        for child in &cast.children {
            let given = child.responsible().intersection(&cast.waiting);
            ensure!(
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
        ensure!(
            nobodys.is_empty(),
            "{id:?}: nobody is responsible for {nobodys:?}"
        );
        Ok(())
    }
}
