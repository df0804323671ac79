//! Taking batches in: announced, parked, admitted, arrived.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::block::Table;
use crate::config::Guard;
use crate::server::ledger::BATCH;
use crate::server::shares::Turn;
use crate::server::{ConnectionId, Effects, Server, ServerEffect};
use crate::{
    Answer, ApplicationId, Ask, BatchId, FromServer, GroupId, Push, Refusal, ShuffleError,
    ShuffleId, ToMaster, Transfer,
};

/// An announced push that waits.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) from: ConnectionId,
    pub(super) push: Push,
    pub(super) turn: Turn,
    pub(super) until: Duration,
}

/// A push that was let in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coming {
    pub(super) length: u64,
    /// When it was announced.
    since: Duration,
}

/// What waits for room, with its place among all that waits.
type Awaiting = BTreeMap<(bool, ApplicationId), VecDeque<(usize, Parked)>>;

/// What is done about a push.
enum Decision {
    Admit,
    /// It is there already.
    Have,
    /// Its plan is not known yet.
    AwaitPlan,
    /// There is no room yet.
    AwaitRoom,
    Refuse(Refusal),
}

impl Server {
    /// A batch waits to be let in.
    pub(super) fn offered(&mut self, from: ConnectionId, push: Push, effects: &mut Effects) {
        // If it was announced before and waits, it is announced anew: only the latest one brings bytes.
        self.parked
            .retain(|parked| parked.from != from || parked.push.name() != push.name());
        // Whoever came first is let in first.
        let decision = match self.decide(&push) {
            Decision::Admit if self.parked.iter().any(|p| self.awaits_room(&p.push)) => {
                Decision::AwaitRoom
            }
            decision => decision,
        };
        match decision {
            Decision::AwaitPlan => self.park(from, push, effects),
            Decision::AwaitRoom => {
                let application = self.tenant(push.shuffle).application;
                match self.pause_of(application, self.turns()) {
                    Some(pause) => self.refuse(from, &push, Refusal::Sleep(pause), effects),
                    None => self.park(from, push, effects),
                }
                self.memory.is_wanted = true;
                self.want_to_push(&push);
                self.relieve(effects);
            }
            decision => self.carry_out(decision, (from, self.now), push, effects),
        }
    }

    /// Several batches wait to be let in. Their bytes come together: so all are let in, or none is. Each is
    /// answered by itself, and those that could be let in alone come again.
    pub(super) fn offered_together(
        &mut self,
        from: ConnectionId,
        pushes: &[Push],
        effects: &mut Effects,
    ) {
        self.parked.retain(|parked| {
            let mut names = pushes.iter().map(Push::name);
            parked.from != from || names.all(|name| name != parked.push.name())
        });
        let lengths = pushes.iter().map(|push| push.length);
        let reserve = pushes.iter().map(|push| self.reserve(push)).max();
        let come_in = pushes
            .iter()
            .all(|push| matches!(self.decide(push), Decision::Admit))
            && self.memory.has_room_for_all(lengths, reserve.unwrap_or(0));
        // Whoever came first is let in first.
        let come_in = come_in && !self.parked.iter().any(|p| self.awaits_room(&p.push));
        let answered = if Guard::Each.holds() { pushes.len() } else { 1 };
        for push in pushes.iter().take(answered) {
            let decision = match self.decide(push) {
                Decision::Admit if come_in => Decision::Admit,
                Decision::Admit | Decision::AwaitRoom | Decision::AwaitPlan => {
                    Decision::Refuse(Refusal::Alone)
                }
                decision => decision,
            };
            self.carry_out(decision, (from, self.now), *push, effects);
        }
    }

    fn park(&mut self, from: ConnectionId, push: Push, effects: &mut Effects) {
        if self.parked.len() >= self.config.parked {
            return self.refuse(from, &push, Refusal::Busy, effects);
        }
        self.want_plan(push.shuffle, push.group, effects);
        let application = self.tenant(push.shuffle).application;
        let ahead = self.ahead(application, self.turns());
        self.parked.push_back(Parked {
            from,
            push,
            turn: Turn::new(ahead, self.now),
            until: self.now + self.config.patience,
        });
    }

    /// What waits, and whose it is.
    fn turns(&self) -> impl ExactSizeIterator<Item = (ApplicationId, Turn)> + '_ {
        self.parked.iter().map(|parked| {
            let tenant = self.tenant(parked.push.shuffle);
            (tenant.application, parked.turn)
        })
    }

    /// Asks the master that is meant for the plan of a shuffle that is not known here, once.
    fn want_plan(&mut self, shuffle: ShuffleId, group: GroupId, effects: &mut Effects) {
        if !self.shuffles.contains_key(&shuffle)
            && let Some(link) = self.masters.link_of(group.server)
            && self.asked.insert(shuffle)
        {
            let message = ToMaster::Join(shuffle);
            effects.push(ServerEffect::Report { link, message });
        }
    }

    fn awaits_room(&self, push: &Push) -> bool {
        matches!(self.decide(push), Decision::AwaitRoom)
    }

    /// What is done about a push, as things are now.
    fn decide(&self, push: &Push) -> Decision {
        let group = match self.resolve(push.shuffle, push.group) {
            Ok(group) => group,
            Err(Refusal::Unknown) => return Decision::AwaitPlan,
            Err(Refusal::Stale(generation)) if push.group.epoch > generation => {
                return Decision::AwaitPlan;
            }
            Err(reason) => return Decision::Refuse(reason),
        };
        let state = &self.shuffles[&push.shuffle].groups[&group];
        if Guard::Duplicates.holds() && state.batch(push.batch).is_some() {
            return Decision::Have;
        }
        if state.is_adopting() {
            return Decision::Refuse(Refusal::Busy);
        }
        if state.sealed.is_some() && Guard::Attempt.holds() {
            return Decision::Refuse(Refusal::Sealed);
        }
        if !state.role.takes && Guard::Generation.holds() {
            return Decision::Refuse(Refusal::Stale(self.shuffles[&push.shuffle].plan.generation));
        }
        if state.is_poisoned && Guard::Poison.holds() {
            return Decision::Refuse(Refusal::Damaged);
        }
        // It would wait forever, and all others behind it.
        if let Some(reason) = self.memory.ledger.too_large(push.length) {
            return Decision::Refuse(Refusal::NoRoom(reason.into()));
        }
        if !self.memory.has_room(push.length, self.reserve(push)) {
            return Decision::AwaitRoom;
        }
        Decision::Admit
    }

    /// The percent of the room that are not for this push.
    fn reserve(&self, push: &Push) -> u64 {
        match self.has_reserve(push) {
            true => 0,
            false => self.config.reserve,
        }
    }

    /// A push waits for room, perhaps among others: one that needs less does not hide what they need.
    fn want_to_push(&mut self, push: &Push) {
        let takes = self.memory.push_takes(push.length, self.reserve(push));
        let memory = &mut self.memory;
        memory.pushes_want = memory.pushes_want.max(takes);
    }

    fn carry_out(
        &mut self,
        decision: Decision,
        (from, since): (ConnectionId, Duration),
        push: Push,
        effects: &mut Effects,
    ) {
        match decision {
            Decision::Admit => {
                // If it was announced twice, the answer to the first is the answer to both.
                let key = (from, push.shuffle, push.group, push.batch);
                self.unwanted.remove(&key);
                if let Entry::Vacant(place) = self.arriving.entry(key) {
                    place.insert(Coming {
                        length: push.length,
                        since,
                    });
                    let tenant = self.tenant(push.shuffle);
                    self.pushed.serve(tenant, push.length);
                    self.memory.arriving += push.length;
                    self.memory.ledger.grant(push.length + BATCH);
                    effects.push(ServerEffect::Admit { from, push });
                }
            }
            Decision::Have => acknowledge(from, &push, effects),
            Decision::Refuse(reason) => self.refuse(from, &push, reason, effects),
            Decision::AwaitPlan | Decision::AwaitRoom => {}
        }
    }

    /// Looks at what waits once more, and makes room.
    pub(super) fn unpark(&mut self, effects: &mut Effects) {
        self.memory.is_wanted = false;
        self.memory.pushes_want = 0;
        let is_idle = self.open() == 0;
        // By whether the reserve is theirs, and application: what waits for room, with its place.
        let mut waiting = Awaiting::new();
        let parked = core::mem::take(&mut self.parked);
        for (at, parked) in parked.into_iter().enumerate() {
            let is_late = parked.until <= self.now;
            let until = match is_late {
                true => self.now + self.config.patience,
                false => parked.until,
            };
            match self.decide(&parked.push) {
                Decision::AwaitPlan if is_late => {
                    self.asked.remove(&parked.push.shuffle);
                    self.refuse(parked.from, &parked.push, Refusal::Unknown, effects);
                }
                Decision::AwaitPlan => self.parked.push_back(parked),
                Decision::AwaitRoom => match self.memory.failure(is_idle).filter(|_| is_late) {
                    Some(reason) => {
                        let reason = Refusal::NoRoom(reason);
                        self.refuse(parked.from, &parked.push, reason, effects);
                    }
                    None => self.await_room(at, Parked { until, ..parked }, &mut waiting),
                },
                Decision::Admit => self.await_room(at, Parked { until, ..parked }, &mut waiting),
                decision => {
                    let announced = (parked.from, parked.turn.since);
                    self.carry_out(decision, announced, parked.push, effects);
                }
            }
        }
        self.admit_waiting(&mut waiting, effects);
        let mut rest: Vec<(usize, Parked)> = waiting.into_values().flatten().collect();
        rest.sort_unstable_by_key(|(at, _)| *at);
        self.memory.is_wanted = !rest.is_empty();
        // What waits for a plan stays before them.
        self.parked
            .extend(rest.into_iter().map(|(_, parked)| parked));
        self.relieve(effects);
    }

    fn await_room(&self, at: usize, parked: Parked, waiting: &mut Awaiting) {
        let key = match Guard::Shares.holds() {
            true => {
                let application = self.tenant(parked.push.shuffle).application;
                (self.has_reserve(&parked.push), application)
            }
            false => (true, ApplicationId::default()),
        };
        waiting.entry(key).or_default().push_back((at, parked));
    }

    /// Lets in what there is room for: of the application that was given least compared with its
    /// priority, whoever came first. What the reserve is for does not wait for the others.
    fn admit_waiting(&mut self, waiting: &mut Awaiting, effects: &mut Effects) {
        let mut is_full = false;
        loop {
            let open = waiting.iter().filter(|((has_reserve, _), queue)| {
                !queue.is_empty() && (*has_reserve || !is_full)
            });
            let next = open.min_by_key(|((has_reserve, application), queue)| {
                let place = queue.front().map(|(at, _)| *at);
                (self.pushed.tag(*application), !*has_reserve, place)
            });
            let Some(&key) = next.map(|(key, _)| key) else {
                return;
            };
            let Some((at, parked)) = waiting.get_mut(&key).and_then(VecDeque::pop_front) else {
                return;
            };
            match self.decide(&parked.push) {
                Decision::AwaitRoom | Decision::AwaitPlan => {
                    self.want_to_push(&parked.push);
                    let queue = waiting.entry(key).or_default();
                    queue.push_front((at, parked));
                    if key.0 {
                        return;
                    }
                    is_full = true;
                }
                decision => {
                    let announced = (parked.from, parked.turn.since);
                    self.carry_out(decision, announced, parked.push, effects);
                }
            }
        }
    }

    /// Whether a push may use the reserve: it is for a second copy, or the only one.
    fn has_reserve(&self, push: &Push) -> bool {
        let held = self.shuffles.get(&push.shuffle);
        let group = self.resolve(push.shuffle, push.group).ok();
        let state = held
            .zip(group)
            .and_then(|(held, group)| held.groups.get(&group));
        state.is_none_or(|state| !state.role.is_first || state.role.is_sole)
    }

    /// The bytes of a push are here.
    pub(super) fn arrived(
        &mut self,
        from: ConnectionId,
        push: Push,
        table: Option<Table>,
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        let key = (from, push.shuffle, push.group, push.batch);
        let coming = self.arriving.remove(&key);
        let Coming { length, since } = coming.ok_or(ShuffleError::NotAwaited)?;
        self.memory.arriving -= length;
        self.gauge.arrived(length, since, self.now);
        if self.unwanted.remove(&key) {
            self.unpark(effects);
            return Ok(());
        }
        let mut push = push;
        match (self.decide(&push), table) {
            // Room was made when it was let in.
            (Decision::Admit | Decision::AwaitRoom, Some(table)) => {
                let group = self.resolve(push.shuffle, push.group).unwrap_or(push.group);
                self.store(from, (&mut push, group), table, effects);
            }
            (Decision::Admit | Decision::AwaitRoom, None) => {
                self.refuse(from, &push, Refusal::Malformed, effects);
            }
            (Decision::AwaitPlan, _) => self.refuse(from, &push, Refusal::Unknown, effects),
            (decision, _) => self.carry_out(decision, (from, since), push, effects),
        }
        self.unpark(effects);
        Ok(())
    }

    fn store(
        &mut self,
        from: ConnectionId,
        (push, group): (&mut Push, GroupId),
        table: Table,
        effects: &mut Effects,
    ) {
        let shuffle = push.shuffle;
        let Some(state) = self.shuffles.get_mut(&shuffle) else {
            return;
        };
        let Some(state) = state.groups.get_mut(&group) else {
            return;
        };
        if Guard::Generation.holds() && !state.covers(&table) {
            return self.refuse(from, push, Refusal::Malformed, effects);
        }
        let announced = *push;
        // Without the guard a batch that comes again is one more.
        while state.batch(push.batch).is_some() {
            push.batch.number += 1 << 24;
        }
        state.add(push, table);
        let attempt = (push.batch.map, push.batch.attempt);
        if let Some(attempt) = state.attempts.get_mut(&attempt) {
            attempt.from.get_or_insert(from);
        }
        self.memory.resident += push.length;
        effects.push(ServerEffect::Store {
            shuffle,
            group,
            batch: push.batch,
        });
        acknowledge(from, &announced, effects);
        if state.stored >= self.config.split && !state.is_full {
            state.is_full = true;
            self.report(shuffle, ToMaster::Full { shuffle, group }, effects);
        }
    }

    pub(super) fn refuse(
        &self,
        to: ConnectionId,
        push: &Push,
        reason: Refusal,
        effects: &mut Effects,
    ) {
        let message = FromServer::Refused {
            shuffle: push.shuffle,
            group: push.group,
            batch: push.batch,
            reason,
        };
        effects.push(ServerEffect::Reply { to, message });
    }

    /// Whether the rows of a transfer are here already.
    pub(super) fn asked(&mut self, from: ConnectionId, ask: Ask, effects: &mut Effects) {
        let answer = self.answer(&ask);
        self.want_plan(ask.transfer.shuffle, ask.group, effects);
        effects.push(ServerEffect::Reply {
            to: from,
            message: FromServer::Answer {
                group: ask.group,
                transfer: ask.transfer,
                answer,
            },
        });
    }

    fn answer(&mut self, ask: &Ask) -> Answer {
        let shuffle = ask.transfer.shuffle;
        let group = match self.resolve(shuffle, ask.group) {
            Ok(group) => group,
            Err(Refusal::Unknown) => {
                return Answer::Refused(Refusal::Busy);
            }
            Err(reason) => return Answer::Refused(reason),
        };
        let state = self.shuffles.get_mut(&shuffle);
        let Some(state) = state.and_then(|held| held.groups.get_mut(&group)) else {
            return Answer::Missing;
        };
        if state.is_adopting() {
            return Answer::Refused(Refusal::Busy);
        }
        let map = ask.transfer.map;
        let winner = state.winner(map);
        if state.sealed.is_some() {
            let same = winner.filter(|&winner| {
                let attempt = state.attempts.get(&(map, winner));
                attempt.is_some_and(|attempt| attempt.tally == ask.tally)
            });
            let is_alone = state.role.is_sole && !state.role.has_siblings;
            return match (same, winner) {
                (Some(winner), _) if is_alone => Answer::Have(winner),
                (Some(winner), _) => Answer::Won(winner),
                (None, None) if state.role.has_siblings => Answer::Missing,
                (None, _) => Answer::Differs,
            };
        }
        let all = (map, crate::AttemptId(0))..=(map, crate::AttemptId(u64::MAX));
        let mut attempts = state.attempts.range_mut(all);
        let same = attempts.find(|(_, attempt)| !attempt.is_lost && attempt.tally == ask.tally);
        match same {
            Some((&(_, attempt), state)) => {
                state.is_pinned = true;
                Answer::Have(attempt)
            }
            None => Answer::Missing,
        }
    }

    /// A transfer has failed. What it pushed goes, unless somebody relies on it; so does what is on its way.
    pub(super) fn abandoned(
        &mut self,
        from: ConnectionId,
        group: GroupId,
        transfer: Transfer,
        effects: &mut Effects,
    ) {
        let shuffle = transfer.shuffle;
        let Ok(group) = self.resolve(shuffle, group) else {
            return;
        };
        let Some(held) = self.shuffles.get_mut(&shuffle) else {
            return;
        };
        let Some(state) = held.groups.get_mut(&group) else {
            return;
        };
        let attempt = state.attempts.get(&(transfer.map, transfer.attempt));
        let is_used = attempt.is_some_and(|attempt| attempt.is_pinned);
        let is_own = attempt.is_some_and(|attempt| attempt.from == Some(from));
        if is_used || state.winner(transfer.map) == Some(transfer.attempt) {
            return;
        }
        if is_own {
            let lost = state.lose_attempt(transfer.map, transfer.attempt);
            self.drop_batches(shuffle, group, lost, effects);
        }
        let is_its = |by: ConnectionId, of: ShuffleId, to: GroupId, batch: BatchId| {
            (by, of, to) == (from, shuffle, group) && transfer.batch(batch.number) == batch
        };
        let arriving = self.arriving.keys();
        let unwanted = arriving.filter(|(by, of, to, batch)| is_its(*by, *of, *to, *batch));
        self.unwanted.extend(unwanted.copied());
        for parked in core::mem::take(&mut self.parked) {
            let push = &parked.push;
            match is_its(parked.from, push.shuffle, push.group, push.batch) {
                true => self.refuse(parked.from, push, Refusal::Busy, effects),
                false => self.parked.push_back(parked),
            }
        }
        self.unpark(effects);
    }

    /// Batches are dropped from memory.
    pub(super) fn drop_batches(
        &mut self,
        shuffle: ShuffleId,
        group: GroupId,
        batches: alloc::vec::Vec<(crate::BatchId, u64)>,
        effects: &mut Effects,
    ) {
        for (batch, length) in batches {
            self.memory.resident -= length;
            effects.push(ServerEffect::Drop {
                shuffle,
                group,
                batch,
            });
        }
    }

    pub(super) fn disconnected(&mut self, from: ConnectionId, effects: &mut Effects) {
        self.parked.retain(|parked| parked.from != from);
        let memory = &mut self.memory;
        self.unwanted.retain(|(of, ..)| *of != from);
        self.arriving.retain(|key, coming| {
            if key.0 == from {
                memory.arriving -= coming.length;
            }
            key.0 != from
        });
        self.members.disconnected(from);
        self.waiting.retain(|waiting| waiting.to != from);
        self.drop_readings(effects, |reading| reading.to == from);
        self.unpark(effects);
    }
}

fn acknowledge(to: ConnectionId, push: &Push, effects: &mut Effects) {
    let message = FromServer::Acked {
        shuffle: push.shuffle,
        group: push.group,
        batch: push.batch,
    };
    effects.push(ServerEffect::Reply { to, message });
}
