//! The payload of a cast: where it comes from, and to whom it goes.

use alloc::sync::Arc;

use treadle_types::WorkerId;

use crate::Guard;
use crate::relay::cast::{Flow, Memory, Parent};
use crate::relay::timers::Timer;
use crate::relay::{Relay, Violation};
use crate::{CastId, Effect, Effects, Message, Neighbour};

impl Relay {
    /// Takes the payload from a parent; `flows`: it sends it anyway.
    pub(super) fn take_from(&mut self, id: CastId, who: Neighbour, flows: bool, out: &mut Effects) {
        let now = self.now;
        let Some(cast) = self.cast(id) else { return };
        let Some(mapped) = cast.parent(who).map(|parent| parent.mapped) else {
            return;
        };
        let (size, payload) = (cast.size, &mut cast.payload);
        payload.source = Some(who);
        payload.progress = now;
        match &mut payload.memory {
            Memory::Asked { wants, .. } => *wants = true,
            Memory::Granted { mapped: false } => Self::want(id, payload.have, who, flows, out),
            Memory::Granted { .. } if mapped => Self::want(id, payload.have, who, flows, out),
            // Granted for a mapping, it has no bytes to put pieces into.
            Memory::None | Memory::Granted { .. } => {
                let wants = !flows;
                payload.memory = Memory::Asked { mapped, wants };
                let cast = id;
                out.push(Effect::Reserve { cast, size, mapped });
            }
            Memory::Refused(_) => {}
        }
        self.watch(id);
    }

    /// With two parents or more, a payload that stalls is asked for elsewhere.
    pub(super) fn watch(&mut self, id: CastId) {
        let (now, stall) = (self.now, self.config.stall);
        let Some(cast) = self.cast(id) else { return };
        let at = now + cast.payload.patience(stall);
        if cast.parents.len() > 1 && cast.needs_payload() {
            self.timers.arm(Timer::Stall(id), at);
        }
    }

    fn want(id: CastId, offset: u64, from: Neighbour, flows: bool, out: &mut Effects) {
        if !flows {
            let cast = id;
            out.send(from, Message::Want { cast, offset });
        }
    }

    /// Takes what is missing from another parent, if there is one.
    pub(super) fn lose_source(&mut self, id: CastId, out: &mut Effects) {
        let Some(cast) = self.cast(id) else { return };
        cast.payload.source = None;
        let last = cast.parents.last().map(|parent| parent.who);
        if let Some(who) = last
            && cast.needs_payload()
        {
            self.take_from(id, who, false, out);
        }
    }

    /// The source sends no more.
    pub(super) fn stop_source(&mut self, id: CastId, out: &mut Effects) {
        let Some(cast) = self.cast(id) else { return };
        let size = cast.size;
        if let Some(source) = cast.payload.source.take() {
            Self::want(id, size, source, false, out);
        }
    }

    /// If nothing came for long, another parent is asked.
    pub(super) fn stall(&mut self, id: CastId, out: &mut Effects) {
        let (now, stall) = (self.now, self.config.stall);
        let Some(cast) = self.cast(id) else { return };
        let has_stalled = now >= cast.payload.progress + cast.payload.patience(stall);
        let is_granted = matches!(cast.payload.memory, Memory::Granted { .. });
        if cast.needs_payload() && cast.parents.len() > 1 && has_stalled && is_granted {
            let source = cast.payload.source;
            let is_it = |parent: &Parent| Some(parent.who) == source;
            let position = cast.parents.iter().position(is_it).unwrap_or(0);
            let next = cast.parents[(position + 1) % cast.parents.len()].who;
            cast.payload.stalls += 1;
            self.stop_source(id, out);
            self.take_from(id, next, false, out);
        }
        self.watch(id);
    }

    pub(super) fn reserved(&mut self, id: CastId, result: Result<(), Arc<str>>, out: &mut Effects) {
        let Some(cast) = self.cast(id) else { return };
        let Memory::Asked { mapped, wants } = cast.payload.memory else {
            return;
        };
        let deferred = core::mem::take(&mut cast.deferred);
        if let Err(reason) = result {
            cast.payload.memory = Memory::Refused(reason);
            let waiting = cast.waiting.clone();
            self.stop_source(id, out);
            self.decline_others(id, waiting, out);
            self.try_run(id, out);
            return;
        }
        cast.payload.memory = Memory::Granted { mapped };
        if let Some(source) = cast.payload.source
            && cast.needs_payload()
        {
            self.take_from(id, source, !wants, out);
        }
        for placement in deferred {
            let (members, version) = (&placement.members, placement.version);
            self.place(id, members, version, placement.fresh, out);
        }
    }

    fn decline_others(&mut self, id: CastId, mut members: crate::Runs, out: &mut Effects) {
        members.remove(self.id());
        if !members.is_empty() {
            self.decline(id, &members, out);
        }
    }

    /// See [`Relay::wants_chunk`].
    pub(super) fn is_next(&self, from: Neighbour, id: CastId, offset: u64, length: u32) -> bool {
        let session = self.sessions.get(&id.session);
        let cast = session.and_then(|session| session.casts.get(&id.number));
        cast.is_some_and(|cast| {
            let payload = &cast.payload;
            payload.source == Some(from)
                && cast.needs_payload()
                && matches!(payload.memory, Memory::Granted { .. })
                // A parent that was asked to go on from somewhere does not know what was on the way:
                // a part of what it sends may be here.
                && offset <= payload.have
                && payload.have < offset.saturating_add(length.into())
                && offset.saturating_add(length.into()) <= cast.size
        })
    }

    pub(super) fn chunk(
        &mut self,
        from: Neighbour,
        id: CastId,
        offset: u64,
        length: u32,
        out: &mut Effects,
    ) -> Result<(), Violation> {
        let is_next = self.is_next(from, id, offset, length);
        let (now, quarter) = (self.now, self.config.window / 4);
        let Some(cast) = self.cast(id) else {
            return Ok(());
        };
        let end = offset.checked_add(u64::from(length));
        if length == 0 || end.is_none_or(|end| end > cast.size) {
            let reason = "it sends what is not part of the payload";
            return Err(Violation::protocol(from, reason));
        }
        if !is_next {
            // It is thrown away, so it is asked for once there is memory.
            if let Memory::Asked { wants, .. } = &mut cast.payload.memory {
                *wants = true;
            }
            return Ok(());
        }
        let is_whole = offset + u64::from(length) == cast.size;
        let payload = &mut cast.payload;
        payload.have = offset + u64::from(length);
        payload.progress = now;
        // It goes on: the next time that nothing comes, another parent is asked as soon as at first.
        let has_stalled = core::mem::take(&mut payload.stalls) > 0;
        if payload.have - payload.acked >= quarter || is_whole {
            payload.acked = payload.have;
            let (cast, offset) = (id, payload.have);
            out.send(from, Message::Have { cast, offset });
        }
        if has_stalled {
            // It is set for the longer patience, and `watch` leaves it so.
            self.timers.cancel(Timer::Stall(id));
            self.watch(id);
        }
        self.pump(id, out);
        if is_whole {
            self.whole(id, out);
        }
        Ok(())
    }

    pub(super) fn mapping(&mut self, from: Neighbour, id: CastId, out: &mut Effects) {
        let Some(cast) = self.cast(id) else { return };
        if cast.parent(from).is_none() || !cast.needs_payload() {
            return;
        }
        match &mut cast.payload.memory {
            Memory::Granted { .. } => {}
            Memory::Asked { wants, .. } => {
                *wants = true;
                return;
            }
            Memory::None | Memory::Refused(_) => return,
        }
        cast.payload.have = cast.size;
        out.push(Effect::StorePayload(id));
        if self
            .cast(id)
            // Otherwise the other one would go on sending pieces.
            .is_some_and(|cast| cast.payload.source != Some(from))
        {
            self.stop_source(id, out);
        }
        self.pump(id, out);
        self.whole(id, out);
    }

    fn whole(&mut self, id: CastId, out: &mut Effects) {
        self.timers.cancel(Timer::Stall(id));
        if let Some(cast) = self.cast(id) {
            cast.payload.source = None;
        }
        self.try_run(id, out);
    }

    pub(super) fn wanted(
        &mut self,
        from: Neighbour,
        id: CastId,
        offset: u64,
        out: &mut Effects,
    ) -> Result<(), Violation> {
        let Neighbour::Worker(who) = from else {
            return Ok(());
        };
        let is_near = self.is_near(who);
        let Some(cast) = self.cast(id) else {
            return Ok(());
        };
        let size = cast.size;
        let Some(child) = cast.child(from) else {
            return Ok(());
        };
        if offset > size {
            let reason = "it wants what is not part of the payload";
            return Err(Violation::protocol(from, reason));
        }
        child.flow = match is_near {
            _ if offset == size => Flow::None,
            true => Flow::Mapping,
            false => Flow::Chunks {
                sent: offset,
                acked: offset,
            },
        };
        self.pump(id, out);
        Ok(())
    }

    pub(super) fn has(&mut self, from: Neighbour, id: CastId, offset: u64, out: &mut Effects) {
        let Some(cast) = self.cast(id) else { return };
        let size = cast.size;
        let Some(child) = cast.child(from) else {
            return;
        };
        if let Flow::Chunks { sent, acked } = &mut child.flow {
            // What was sent before it asked again counts too.
            *acked = offset.min(size).max(*acked);
            *sent = (*sent).max(*acked);
            self.pump(id, out);
        }
    }

    /// Sends children what is here and they are ready for, in turns.
    pub(super) fn pump(&mut self, id: CastId, out: &mut Effects) {
        let window = match Guard::Window.holds() {
            true => self.config.window,
            false => u64::MAX,
        };
        let Self {
            sessions, links, ..
        } = self;
        let session = sessions.get_mut(&id.session);
        let Some(cast) = session.and_then(|session| session.casts.get_mut(&id.number)) else {
            return;
        };
        if cast.aborted {
            return;
        }
        let (have, size) = (cast.payload.have, cast.size);
        // What the client sends does not depend on the tree. From far away, bytes that do not travel
        // in their message wait a round trip to be let in, and the link is idle meanwhile. So the first
        // do, and only where there are many more a part of the link's time is lost.
        let shaped = u64::from(cast.shape.chunk);
        let (first, later) = match self.top {
            Some(_) => (
                self.config.inline.max(1 << 14),
                (size / 32).next_power_of_two().clamp(1 << 16, 1 << 20),
            ),
            None => (shaped, shaped),
        };
        // Some must fit into the window, so that the next is on the way before the last is acknowledged.
        let most = (self.config.window / 4).max(1);
        let is_connected = |who: WorkerId| {
            let link = links.get(&Neighbour::Worker(who));
            link.is_some_and(|link| link.is_connected)
        };
        let mut is_moving = true;
        while is_moving {
            is_moving = false;
            for child in &mut cast.children {
                let to = Neighbour::Worker(child.who);
                match &mut child.flow {
                    Flow::None => {}
                    Flow::Mapping if have == size && is_connected(child.who) => {
                        child.flow = Flow::None;
                        out.send(to, Message::Mapping { cast: id });
                    }
                    Flow::Mapping => {}
                    Flow::Chunks { sent, acked } => {
                        let free = window - (*sent - *acked).min(window);
                        let is_first = *sent < self.config.ahead;
                        let chunk = if is_first { first } else { later }.min(most);
                        let length = chunk.min(have.saturating_sub(*sent)).min(free);
                        // Half a chunk is not worth a message, if more will follow anyway.
                        let is_part = length < chunk && *sent + length < have;
                        if length == 0 || is_part || !is_connected(child.who) {
                            continue;
                        }
                        let (cast, offset) = (id, *sent);
                        *sent += length;
                        let length = length as u32;
                        is_moving = true;
                        out.send(
                            to,
                            Message::Chunk {
                                cast,
                                offset,
                                length,
                            },
                        );
                    }
                }
            }
        }
    }
}
