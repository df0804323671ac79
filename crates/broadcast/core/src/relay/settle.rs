//! What need not be kept any more.

use alloc::vec::Vec;
use treadle_types::ClientId;

use crate::relay::Relay;
use crate::relay::timers::Timer;
use crate::{CastId, Effect, Effects, Message, Neighbour, Runs, Settled};

/// Somebody who has parents is asked so many times later.
const PATIENCE: u32 = 12;
/// Nobody is asked less often than after 2^this times the first time.
const DOUBLINGS: u32 = 6;

impl Relay {
    /// Forgets the casts of a session that are settled.
    pub(super) fn settle(&mut self, session: ClientId, settled: &Runs, out: &mut Effects) {
        let Some(known) = self.sessions.get_mut(&session) else {
            return;
        };
        if settled.is_subset(&known.settled) {
            return;
        }
        known.settled = known.settled.union(settled);
        let over = known.casts.range(..).map(|(&number, _)| number);
        let over: Vec<_> = over.filter(|&number| settled.contains(number)).collect();
        for number in over {
            self.forget(CastId { session, number }, out);
        }
        let Some(known) = self.sessions.get(&session) else {
            return;
        };
        // The top gives up on a member in the order of its casts, which it may never have heard of:
        // what comes after them is its turn.
        let next = known.after.iter();
        let next = next.filter(|&(&before, _)| settled.contains(before));
        for number in next.map(|(_, &number)| number).collect::<Vec<_>>() {
            self.try_run(CastId { session, number }, out);
        }
        let Some(known) = self.sessions.get(&session) else {
            return;
        };
        if !known.owes.is_empty() {
            let at = self.now + self.config.settle;
            self.timers.arm(Timer::Settle(session), at);
        }
    }

    fn forget(&mut self, id: CastId, out: &mut Effects) {
        let me = self.engine.as_ref().map(|_| self.id());
        let Some(session) = self.sessions.get_mut(&id.session) else {
            return;
        };
        let Some(cast) = session.casts.remove(&id.number) else {
            return;
        };
        session.dirty.remove(&id.number);
        for child in cast.children.iter().filter(|child| child.knows()) {
            session.owes.insert(Neighbour::Worker(child.who));
        }
        if let Some(me) = me {
            let previous = cast.previous.get(me);
            if session.after.get(&previous) == Some(&id.number) {
                session.after.remove(&previous);
            }
        }
        self.timers.cancel(Timer::Stall(id));
        self.timers.cancel(Timer::Retry(id));
        out.push(Effect::Drop(id));
    }

    /// Tells those who have not heard it with an offer.
    pub(super) fn tell_settled(&mut self, id: ClientId, out: &mut Effects) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        for who in core::mem::take(&mut session.owes) {
            if self.links.get(&who).is_some_and(|link| link.is_connected) {
                let settled = Settled(session.settled.clone());
                let session = id;
                out.send(who, Message::Settled { session, settled });
            }
        }
    }

    /// Asks the top, if there was no word from above for long; sooner if nobody would say it.
    pub(super) fn ask(&mut self, id: ClientId, out: &mut Effects) {
        let (now, ask) = (self.now, self.config.ask);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.casts.is_empty() || self.top.is_some() {
            return;
        }
        let is_orphan = session.casts.values().any(|cast| cast.parents.is_empty());
        let wait = match is_orphan {
            true => ask,
            false => ask * PATIENCE,
        };
        let due = session.heard + wait * (1 << session.asks.min(DOUBLINGS));
        if now >= due {
            session.asks += 1;
            out.push(Effect::Ask(id));
        }
        self.timers.arm(Timer::Ask(id), now + ask);
    }
}
