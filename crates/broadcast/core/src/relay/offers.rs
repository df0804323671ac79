//! Offers that come.

use crate::Guard;
use crate::relay::cast::{Cast, Own};
use crate::relay::timers::Timer;
use crate::relay::{Relay, Violation};
use crate::{Effect, Effects, Member, Message, Neighbour, Offer, Runs, Settled};
use alloc::vec::Vec;

/// The most members that a node knows.
const MEMBERS: usize = 1 << 20;
/// The most sessions that a node knows.
const SESSIONS: usize = 1 << 12;

impl Relay {
    pub(super) fn introduced(
        &mut self,
        from: Option<Neighbour>,
        members: Vec<Member>,
    ) -> Result<(), Violation> {
        if self.directory.len() + members.len() > MEMBERS {
            return Err(match from {
                Some(from) => Violation::protocol(from, "it introduces too many members"),
                None => Violation::cast(0, "there are too many members"),
            });
        }
        let known = |relay: &Self, id| relay.gone.contains(id) || relay.known.contains(id);
        for member in members {
            let id = u64::from(member.worker.0);
            if !known(self, id) {
                self.known.insert(id);
                self.directory.insert(id, member);
            }
        }
        Ok(())
    }

    pub(super) fn offered(
        &mut self,
        from: Neighbour,
        offer: &Offer,
        out: &mut Effects,
    ) -> Result<(), Violation> {
        self.verify(from, offer)?;
        let (id, me) = (offer.cast, self.id());
        if self.gone_clients.contains(u64::from(id.session.0)) {
            return Ok(());
        }
        let session = self.sessions.entry(id.session).or_default();
        (session.heard, session.asks) = (self.now, 0);
        // This holds whether the offer is refused below or not.
        self.settle(id.session, &offer.settled.0, out);
        let session = self.sessions.get_mut(&id.session).expect("it is there");
        if Guard::Once.holds() && session.settled.contains(id.number) {
            // Who offers this has not heard it.
            let settled = Settled(session.settled.clone());
            let session = id.session;
            out.send(from, Message::Settled { session, settled });
            return Ok(());
        }
        let room = session.casts.len() < self.config.outstanding;
        match session.casts.get(&id.number) {
            None if !room => return Err(Violation::protocol(from, "it offers too many casts")),
            Some(cast) if cast.size != offer.size => {
                return Err(Violation::protocol(from, "a payload changes its size"));
            }
            Some(cast) if cast.unordered != offer.unordered => {
                return Err(Violation::protocol(
                    from,
                    "a cast changes its place in the order",
                ));
            }
            _ => {}
        }
        let is_first = !session.casts.contains_key(&id.number);
        let (shape, now) = (offer.shape, self.now);
        let cast = session.casts.entry(id.number);
        let cast = cast.or_insert_with(|| Cast::new(offer.size, offer.unordered, shape, now));
        cast.version = cast.version.max(offer.version);

        let members = offer.members.difference(&self.gone);
        if cast.is_asked(from, &members, offer.mapped) {
            session.dirty.insert(id.number);
        }

        let added = members.difference(&cast.members);
        cast.members = cast.members.union(&added);
        cast.waiting = cast.waiting.union(&added);
        let previous = &offer.previous;
        cast.previous.set_some(&offer.members, previous, &added);
        let mut taken = Runs::new();
        if Guard::Version.holds() {
            taken = cast.take_back(&members, offer.version);
        }

        let again = !Guard::Once.holds() && cast.own == Some(Own::Done);
        if added.contains(me) || again && members.contains(me) {
            cast.own = Some(Own::Waiting);
            if !cast.unordered {
                session.after.insert(cast.previous.get(me), id.number);
            }
        }
        // Who has taken others is expected to say that it is there.
        if members.len() > u64::from(members.contains(me)) {
            self.timers.arm(Timer::Beat, self.now + self.config.beat);
        }
        if is_first {
            self.timers
                .arm(Timer::Ask(id.session), self.now + self.config.ask);
            if offer.size <= self.config.inline {
                cast.payload.have = offer.size;
                out.push(Effect::StorePayload(id));
            }
        }
        if offer.aborted {
            self.abort(id, false, out);
        }
        self.sourced(from, offer, out);
        // Those that were taken back may have a part of the payload: they ask for what is missing.
        let fresh = offer.fresh && taken.is_empty();
        self.place(id, &added.union(&taken), offer.version, fresh, out);
        self.try_run(id, out);
        Ok(())
    }

    /// What an offer means for where the payload comes from.
    fn sourced(&mut self, from: Neighbour, offer: &Offer, out: &mut Effects) {
        if offer.size <= self.config.inline {
            return;
        }
        let id = offer.cast;
        let Some(cast) = self.cast(id) else { return };
        // A parent that offers again has forgotten what it sent.
        let source = cast.payload.source;
        let is_open = source.is_none() || (source == Some(from) && !offer.fresh);
        if cast.needs_payload() && is_open {
            return self.take_from(id, from, offer.fresh, out);
        }
        // It would send the payload a second time.
        if offer.fresh && cast.payload.source != Some(from) {
            let (cast, offset) = (id, offer.size);
            out.send(from, Message::Want { cast, offset });
        }
        self.watch(id);
    }

    fn verify(&self, from: Neighbour, offer: &Offer) -> Result<(), Violation> {
        let wrong = |reason| Err(Violation::protocol(from, reason));
        if self.top.is_some() {
            return wrong("it offers something to a client");
        }
        if let Neighbour::Top(session) = from
            && session != offer.cast.session
        {
            return wrong("it offers a cast of another session");
        }
        let shape = &offer.shape;
        if shape.degree == 0 || shape.local == 0 || shape.chunk == 0 {
            return wrong("a tree without a shape");
        }
        if offer.cast.number == 0 || offer.members.is_empty() {
            return wrong("a cast without a number, or to nobody");
        }
        if offer.previous.count() != offer.members.len() {
            return wrong("not one previous cast for each member");
        }
        let mut previous = offer.previous.0.iter();
        if offer.unordered && previous.any(|&(_, number)| number > 0) {
            return wrong("an unordered cast has one before it");
        }
        let mut strangers = offer.members.difference(&self.known);
        strangers.remove(self.id());
        if !strangers.is_subset(&self.gone) {
            return wrong("it has not introduced a member");
        }
        let is_new = !self.sessions.contains_key(&offer.cast.session);
        if is_new && self.sessions.len() >= SESSIONS {
            return wrong("there are too many sessions");
        }
        Ok(())
    }
}
