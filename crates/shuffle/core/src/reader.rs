//! The reader: it gets the rows of a partition, and returns them only if they are all of them, as they
//! were written, in the order of their inputs.

mod check;
mod copies;
mod error;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::config::{Guard, pause};
use crate::{
    Config, Fetch, FromServer, Generation, GroupId, MapRange, Plan, ReadPiece, Refusal, ServerId,
    ShuffleError, ShuffleId, Tally, Tenant, ToMaster, ToNode, ToServer,
};

pub use error::ReadError;

/// What happens to a reader.
#[derive(Clone, PartialEq, Debug)]
pub enum ReaderEvent {
    /// A partition is wanted.
    Begin {
        /// Chosen by the host, unique in its process.
        read: u64,
        shuffle: ShuffleId,
        /// What its barrier returned.
        generation: Generation,
        partition: u32,
        /// Rows of these maps only, if several readers share the partition. `None`: of all.
        maps: Option<MapRange>,
    },
    /// It is not wanted any more.
    Cancel(u64),
    /// A server answers. In [`FromServer::Rows`] the digests of the pieces are those that the host
    /// computed from the bytes which came, and `computed` says so.
    Server {
        from: ServerId,
        message: FromServer,
        /// The digests of the bytes that came, one a piece.
        computed: Vec<u32>,
    },
    /// Bytes have come from a server, of whatever it sends.
    Heard(ServerId),
    /// The connection to a server is gone, or cannot be made.
    Disconnected(ServerId),
    /// The master says something.
    Master(ToNode),
    /// Time has passed.
    Tick,
}

/// What a reader wants done.
#[derive(Clone, PartialEq, Debug)]
pub enum ReaderEffect {
    /// Tell a server something.
    Send {
        /// Whom.
        to: ServerId,
        message: ToServer,
    },
    /// Keep the rows that came last: those of other groups follow.
    Keep { read: u64 },
    /// Return the rows that came last. If some were kept, all of them together, in the order of their
    /// maps: no map has rows in two groups.
    Return {
        read: u64,
        /// What they are together, with half of the digest.
        tally: Tally,
    },
    /// A read has failed. Nothing of what came is returned.
    Failed {
        read: u64,
        /// Why.
        error: ReadError,
    },
    /// Tell the master.
    Report(ToMaster),
}

/// The reader's machine: all reads of a process.
#[derive(Debug)]
pub struct Reader {
    config: Config,
    /// Who reads.
    tenant: Tenant,
    now: Duration,
    plans: BTreeMap<ShuffleId, Arc<Plan>>,
    asked: BTreeSet<ShuffleId>,
    reads: BTreeMap<u64, Read>,
}

#[derive(Debug)]
struct Read {
    shuffle: ShuffleId,
    generation: Generation,
    partition: u32,
    maps: Option<MapRange>,
    step: Step,
    /// Since when nothing has come.
    since: Duration,
    tries: u32,
    /// When a server that may not have the plan yet is asked again.
    again_at: Option<Duration>,
    /// Groups that are still to be read, the next one last.
    groups: Vec<GroupId>,
    /// Servers that did not return the rows of the group that is read now.
    failed: BTreeSet<ServerId>,
    /// When the server was asked, or bytes of it came last.
    heard_at: Duration,
    /// What came of the groups that were read.
    tally: Tally,
    /// How often a server was asked for another group, or another one for the same.
    turns: u64,
}

/// Bits of [`Fetch::read`] that name the read. The others number its turns, so that a late answer of a
/// server that was given up is not taken for another one.
const READ_BITS: u32 = 40;

#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    /// For a plan.
    Planning,
    /// A server was asked.
    Fetching(GroupId),
    /// It could not be reached, and is asked again.
    Retrying(GroupId, Duration),
    /// It does not return the rows. The master will say what happens, if anything does.
    Waiting(GroupId, Refusal),
}

type Effects = Vec<ReaderEffect>;

impl Reader {
    /// A reader without reads, of this application.
    pub fn new(tenant: Tenant, config: Config) -> Self {
        Self {
            config,
            tenant,
            now: Duration::ZERO,
            plans: BTreeMap::new(),
            asked: BTreeSet::new(),
            reads: BTreeMap::new(),
        }
    }

    /// Takes an event in; what follows is appended to `effects`. `now` is a time that does not go back.
    ///
    /// # Errors
    /// [`ShuffleError`]: the event cannot be. Nothing has changed.
    pub fn handle(
        &mut self,
        event: ReaderEvent,
        now: Duration,
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        self.now = self.now.max(now);
        match event {
            ReaderEvent::Begin {
                read,
                shuffle,
                generation,
                partition,
                maps,
            } => {
                if self.reads.contains_key(&read) {
                    return Err(ShuffleError::Begun);
                }
                let begun = Read {
                    shuffle,
                    generation,
                    partition,
                    maps,
                    step: Step::Planning,
                    since: self.now,
                    tries: 0,
                    again_at: None,
                    groups: Vec::new(),
                    failed: BTreeSet::new(),
                    heard_at: self.now,
                    tally: Tally::default(),
                    turns: 0,
                };
                self.reads.insert(read, begun);
                match self.plans.contains_key(&shuffle) {
                    true => self.advance(read, effects),
                    false => self.ask(shuffle, effects),
                }
            }
            ReaderEvent::Cancel(read) => {
                self.give_up(read, effects);
                self.reads.remove(&read);
            }
            ReaderEvent::Heard(server) => self.heard(server),
            ReaderEvent::Server {
                from,
                message,
                computed,
            } => self.hear(from, message, &computed, effects),
            ReaderEvent::Disconnected(server) => self.disconnected(server, effects),
            ReaderEvent::Master(ToNode::Plan(plan)) => self.plan(plan, effects),
            ReaderEvent::Master(ToNode::Close(shuffle)) => {
                self.plans.remove(&shuffle);
                self.asked.remove(&shuffle);
                for read in self.reads_of(shuffle) {
                    self.fail(read, ReadError::Ended(shuffle), effects);
                }
            }
            ReaderEvent::Master(_) => {}
            ReaderEvent::Tick => self.tick(effects),
        }
        Ok(())
    }

    /// When [`ReaderEvent::Tick`] is due; `None`: not before another event.
    pub fn next_deadline(&self) -> Option<Duration> {
        let due = |read: &Read| {
            let patience = read.since + self.config.patience;
            match read.step {
                Step::Fetching(group) => {
                    self.other_copy(read, group)?;
                    Some(read.heard_at + self.config.hedge)
                }
                Step::Retrying(_, at) => Some(at.min(patience)),
                Step::Planning => Some(patience),
                Step::Waiting(..) => Some(read.again_at.map_or(patience, |at| at.min(patience))),
            }
        };
        self.reads.values().filter_map(due).min()
    }

    /// The read that a server answers, from the number of its answer.
    pub fn read_of(number: u64) -> u64 {
        number & ((1 << READ_BITS) - 1)
    }

    /// The read that is answered, if this is the answer that it waits for.
    fn awaits(&self, number: u64) -> Option<u64> {
        let id = Self::read_of(number);
        let read = self.reads.get(&id)?;
        (read.number(id) == number).then_some(id)
    }

    /// Whether nothing is read.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    fn ask(&mut self, shuffle: ShuffleId, effects: &mut Effects) {
        if self.asked.insert(shuffle) {
            effects.push(ReaderEffect::Report(ToMaster::Join(shuffle)));
        }
    }

    fn reads_of(&self, shuffle: ShuffleId) -> Vec<u64> {
        let reads = self.reads.iter();
        let reads = reads.filter(|(_, read)| read.shuffle == shuffle);
        reads.map(|(&id, _)| id).collect()
    }

    fn plan(&mut self, plan: Arc<Plan>, effects: &mut Effects) {
        let shuffle = plan.shuffle;
        self.asked.remove(&shuffle);
        let known = self.plans.get(&shuffle);
        if known.is_some_and(|known| known.generation > plan.generation) {
            return;
        }
        self.plans.insert(shuffle, plan);
        for read in self.reads_of(shuffle) {
            self.advance(read, effects);
        }
    }

    /// Asks the server of the partition, if the plan is known.
    fn advance(&mut self, id: u64, effects: &mut Effects) {
        let Some(read) = self.reads.get_mut(&id) else {
            return;
        };
        let (shuffle, partition) = (read.shuffle, read.partition);
        let Some(plan) = self.plans.get(&shuffle) else {
            return;
        };
        if Guard::Generation.holds() {
            if plan.generation < read.generation {
                return;
            }
            if plan.generation > read.generation {
                return self.fail(id, ReadError::Superseded(shuffle), effects);
            }
        }
        match &read.step {
            Step::Planning => {
                let groups = plan.groups_of(partition).map(|group| group.id);
                read.groups = groups.collect();
                if read.groups.is_empty() {
                    let error = ReadError::NotAnOutput { shuffle, partition };
                    return self.fail(id, error, effects);
                }
                // The last one is read first.
                read.groups.reverse();
                self.fetch_next(id, effects);
            }
            // The copy that is read is gone, and another one is there.
            Step::Fetching(group) | Step::Retrying(group, _) | Step::Waiting(group, _)
                if plan.group_of_copy(*group).is_none() =>
            {
                self.give_up(id, effects);
                if let Some(read) = self.reads.get_mut(&id) {
                    read.turns += 1;
                    read.failed.clear();
                }
                self.fetch_next(id, effects);
            }
            _ => {}
        }
    }

    fn hear(
        &mut self,
        from: ServerId,
        message: FromServer,
        computed: &[u32],
        effects: &mut Effects,
    ) {
        self.heard(from);
        match message {
            FromServer::Rows {
                read,
                tally,
                pieces,
            } => {
                if let Some(read) = self.awaits(read) {
                    self.rows(from, read, (&tally, &pieces), computed, effects);
                }
            }
            FromServer::Unread { read, reason } => {
                let Some(read) = self.awaits(read) else {
                    return;
                };
                let step = self.reads.get(&read).map(|state| &state.step);
                let Some(&Step::Fetching(group)) = step else {
                    return;
                };
                if group.server != from {
                    return;
                }
                if let Refusal::Sleep(_) | Refusal::Busy = reason
                    && let Some(state) = self.reads.get_mut(&read)
                {
                    let pause = match reason {
                        Refusal::Sleep(pause) => pause,
                        _ => pause(&self.config, state.tries),
                    };
                    state.since = self.now;
                    state.step = Step::Retrying(group, self.now + pause);
                    return;
                }
                if self.switch(read, group, effects) {
                    return;
                }
                if let Some(state) = self.reads.get_mut(&read) {
                    if state.tries == 0 {
                        state.since = self.now;
                    }
                    // Who adopts a copy may learn it after this process.
                    let is_behind = matches!(reason, Refusal::Unknown | Refusal::Stale(_));
                    state.again_at = is_behind.then(|| {
                        let pause = pause(&self.config, state.tries);
                        state.tries += 1;
                        self.now + pause
                    });
                    state.step = Step::Waiting(group, reason);
                    let shuffle = state.shuffle;
                    self.ask(shuffle, effects);
                }
            }
            _ => {}
        }
    }

    /// Rows came: are they all, as they were, in order?
    fn rows(
        &mut self,
        from: ServerId,
        id: u64,
        (tally, pieces): (&Tally, &[ReadPiece]),
        computed: &[u32],
        effects: &mut Effects,
    ) {
        let Some(read) = self.reads.get_mut(&id) else {
            return;
        };
        let Step::Fetching(group) = read.step else {
            return;
        };
        if group.server != from {
            return;
        }
        let sum: Tally = pieces.iter().map(ReadPiece::tally).sum();
        let is_whole = sum.narrow() == tally.narrow();
        let is_ordered = pieces.is_sorted_by(|a, b| a.batch < b.batch);
        let said = pieces.iter().map(|piece| piece.digest);
        let is_same = said.eq(computed.iter().copied());
        let compares = Guard::Receipts.holds();
        let orders = Guard::Order.holds();
        let digests = Guard::Digest.holds();
        let owns = Guard::Ownership.holds();
        let is_own =
            |piece: &ReadPiece| read.maps.is_none_or(|maps| maps.contains(piece.batch.map));
        let is_own = pieces.iter().all(is_own) || !owns;
        let is_right =
            is_own && (is_whole || !compares) && (is_ordered || !orders) && (is_same || !digests);
        if is_right {
            read.tally.add(&sum);
            read.groups.pop();
            read.turns += 1;
            read.failed.clear();
            read.tries = 0;
            let tally = read.tally.narrow();
            if read.groups.is_empty() {
                self.reads.remove(&id);
                return effects.push(ReaderEffect::Return { read: id, tally });
            }
            effects.push(ReaderEffect::Keep { read: id });
            return self.fetch_next(id, effects);
        }
        let shuffle = read.shuffle;
        effects.push(ReaderEffect::Report(ToMaster::Damaged { shuffle, group }));
        if !self.switch(id, group, effects)
            && let Some(read) = self.reads.get_mut(&id)
        {
            read.step = Step::Waiting(group, Refusal::Damaged);
            read.again_at = None;
            read.since = self.now;
        }
    }

    fn disconnected(&mut self, server: ServerId, effects: &mut Effects) {
        for id in self.reads.keys().copied().collect::<Vec<_>>() {
            let Some(read) = self.reads.get_mut(&id) else {
                continue;
            };
            let (Step::Fetching(group) | Step::Retrying(group, _)) = read.step else {
                continue;
            };
            if group.server != server {
                continue;
            }
            if read.tries == 0 {
                read.since = self.now;
            }
            // Whoever waits before it tries again goes on waiting.
            let is_asked = matches!(read.step, Step::Fetching(_));
            if is_asked && self.switch(id, group, effects) {
                continue;
            }
            if let Some(read) = self.reads.get_mut(&id) {
                read.failed.clear();
                read.step = Step::Retrying(group, self.now + pause(&self.config, read.tries));
                read.tries += 1;
            }
        }
    }

    fn tick(&mut self, effects: &mut Effects) {
        let (now, patience) = (self.now, self.config.patience);
        for id in self.reads.keys().copied().collect::<Vec<_>>() {
            let Some(read) = self.reads.get_mut(&id) else {
                continue;
            };
            let (shuffle, partition) = (read.shuffle, read.partition);
            let is_late = read.since + patience <= now;
            match read.step.clone() {
                Step::Fetching(group) if read.heard_at + self.config.hedge <= now => {
                    self.hedge(id, group, effects);
                }
                Step::Retrying(group, _) if is_late => {
                    let error = ReadError::Unreachable {
                        shuffle,
                        partition,
                        server: group.server,
                    };
                    self.fail(id, error, effects);
                }
                Step::Retrying(_, at) if at <= now => self.fetch_next(id, effects),
                Step::Waiting(group, reason) if is_late => {
                    let error = ReadError::Missing {
                        shuffle,
                        partition,
                        server: group.server,
                        reason,
                    };
                    self.fail(id, error, effects);
                }
                Step::Waiting(..) if read.again_at.is_some_and(|at| at <= now) => {
                    self.fetch_next(id, effects);
                }
                Step::Planning if is_late => {
                    self.fail(id, ReadError::Superseded(shuffle), effects);
                }
                _ => {}
            }
        }
    }

    fn fail(&mut self, read: u64, error: ReadError, effects: &mut Effects) {
        self.give_up(read, effects);
        if self.reads.remove(&read).is_some() {
            effects.push(ReaderEffect::Failed { read, error });
        }
    }
}

impl Read {
    /// The number of the fetch that it waits for.
    fn number(&self, id: u64) -> u64 {
        id | (self.turns << READ_BITS)
    }

    fn fetch(&self, id: u64, group: GroupId, reader: Tenant) -> ReaderEffect {
        let fetch = Fetch {
            read: self.number(id),
            shuffle: self.shuffle,
            generation: self.generation,
            group,
            partition: self.partition,
            maps: self.maps,
            reader: Some(reader),
        };
        ReaderEffect::Send {
            to: group.server,
            message: ToServer::Fetch(fetch),
        }
    }
}
