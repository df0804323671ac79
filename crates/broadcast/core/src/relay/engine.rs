//! The node's own engine: in order, and once.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::Guard;
use crate::relay::Relay;
use crate::relay::cast::{Cast, Memory, Own};
use crate::{CastId, Effect, Effects, Member, Message, Neighbour, Outcome, Runs};

pub(crate) struct Engine {
    pub(crate) member: Member,
    pub(crate) running: Option<CastId>,
    /// Casts whose turn it is, oldest first; some are not to be run any more.
    pub(crate) ready: VecDeque<CastId>,
}

impl Relay {
    /// Gets a cast, and those that only waited for it, ready for the engine as far as it is their
    /// turn.
    pub(super) fn try_run(&mut self, id: CastId, out: &mut Effects) {
        if self.engine.is_none() {
            return;
        }
        let (me, order) = (self.id(), Guard::Order.holds());
        let mut next = Some(id);
        while let Some(id) = next.take() {
            let Some(session) = self.sessions.get_mut(&id.session) else {
                return;
            };
            let Some(cast) = session.casts.get(&id.number) else {
                return;
            };
            if cast.own != Some(Own::Waiting) {
                return;
            }
            let previous = cast.previous.get(me);
            let is_done = |number| {
                let cast = session.casts.get(&number);
                cast.is_some_and(|cast| cast.own == Some(Own::Done))
            };
            let is_turn = previous == 0 || session.settled.contains(previous) || is_done(previous);
            if order && !is_turn {
                // What is aborted is so at once, and keeps its place all the same.
                if cast.aborted && cast.waiting.contains(me) {
                    self.learn(id, Runs::one(me), Outcome::Aborted, out);
                }
                return;
            }
            let verdict = match &cast.payload.memory {
                _ if cast.aborted => Outcome::Aborted,
                Memory::Refused(reason) => Outcome::Refused(reason.clone()),
                // The engine's queue is for those that have a place in the order.
                _ if cast.is_whole() && cast.unordered => {
                    self.cast(id).expect("it is there").own = Some(Own::Running);
                    out.push(Effect::Run(id));
                    return;
                }
                _ if cast.is_whole() => {
                    self.cast(id).expect("it is there").own = Some(Own::Ready);
                    let engine = self.engine.as_mut().expect("it has one");
                    engine.ready.push_back(id);
                    return;
                }
                _ => return,
            };
            next = self.done(id, verdict, out);
        }
    }

    /// Casts that the engine has not begun.
    pub fn waiting(&self) -> usize {
        let casts = self
            .sessions
            .values()
            .flat_map(|session| session.casts.values());
        let is_waiting = |cast: &&Cast| {
            !cast.unordered && !cast.aborted && matches!(cast.own, Some(Own::Waiting | Own::Ready))
        };
        casts.filter(is_waiting).count()
    }

    /// The engine is done with a cast; returns which may be next.
    fn done(&mut self, id: CastId, outcome: Outcome, out: &mut Effects) -> Option<CastId> {
        let me = self.id();
        let cast = self.cast(id)?;
        cast.own = Some(Own::Done);
        // One that was aborted before its turn has said so then.
        if cast.waiting.contains(me) {
            self.learn(id, Runs::one(me), outcome, out);
        }
        let session = self.sessions.get(&id.session)?;
        let number = *session.after.get(&id.number)?;
        let session = id.session;
        Some(CastId { session, number })
    }

    /// What was to run has come to its end.
    pub(super) fn ran(&mut self, id: CastId, outcome: Outcome, out: &mut Effects) {
        let Some(engine) = self.engine.as_mut() else {
            return;
        };
        if engine.running == Some(id) {
            engine.running = None;
        }
        // It may have been settled in the meantime.
        let is_running = |cast: &mut Cast| cast.own == Some(Own::Running);
        if !self.cast(id).is_some_and(is_running) {
            return;
        }
        if let Some(next) = self.done(id, outcome, out) {
            self.try_run(next, out);
        }
    }

    /// Runs the next cast, if the engine is free.
    pub(super) fn start(&mut self, out: &mut Effects) {
        loop {
            let Some(engine) = self.engine.as_mut() else {
                return;
            };
            if engine.running.is_some() {
                return;
            }
            let Some(id) = engine.ready.pop_front() else {
                return;
            };
            let Some(cast) = self.cast(id) else { continue };
            if cast.own == Some(Own::Ready) {
                cast.own = Some(Own::Running);
                self.engine.as_mut().expect("it has one").running = Some(id);
                out.push(Effect::Run(id));
            }
        }
    }

    /// Members of a cast that have not begun are not to.
    pub(super) fn abort(&mut self, id: CastId, interrupt: bool, out: &mut Effects) {
        let Some(cast) = self.cast(id) else { return };
        let is_news = !cast.aborted || (interrupt && !cast.interrupted);
        if !is_news {
            return;
        }
        cast.aborted = true;
        cast.interrupted |= interrupt;
        match cast.own {
            Some(Own::Running) => {
                let cast = id;
                out.push(Effect::Stop { cast, interrupt });
            }
            // `try_run` ends it below. `start` passes over what is not ready.
            Some(Own::Ready) => cast.own = Some(Own::Waiting),
            _ => {}
        }
        let children = cast.children.iter().filter(|child| child.knows());
        for who in children.map(|child| child.who).collect::<Vec<_>>() {
            let cast = id;
            out.send(Neighbour::Worker(who), Message::Abort { cast, interrupt });
        }
        self.stop_source(id, out);
        self.try_run(id, out);
    }
}
