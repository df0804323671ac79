//! The reader: it gets the rows of a partition, and returns them only if they are all of them, as they
//! were written, in the order of their inputs.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::config::{Guard, pause};
use crate::{
    Broken, Config, Fetch, FromServer, Generation, GroupId, Plan, ReadPiece, Refusal, ServerId,
    ShuffleError, ShuffleId, Tally, ToMaster, ToNode, ToServer,
};

/// What happens to a reader.
#[derive(Clone, PartialEq, Debug)]
pub enum ReaderEvent {
    /// A partition is wanted.
    Begin {
        /// Chosen by the host, unique in its process.
        read: u64,
        /// The shuffle.
        shuffle: ShuffleId,
        /// What its barrier returned.
        generation: Generation,
        /// The partition.
        partition: u32,
    },
    /// It is not wanted any more.
    Cancel(u64),
    /// A server answers. In [`FromServer::Rows`] the digests of the pieces are those that the host
    /// computed from the bytes which came, and `computed` says so.
    Server {
        /// Who.
        from: ServerId,
        /// What.
        message: FromServer,
        /// The digests of the bytes that came, one a piece.
        computed: Vec<u32>,
    },
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
        /// What.
        message: ToServer,
    },
    /// Return the rows that came last, in the order in which they came.
    Return {
        /// Which read.
        read: u64,
        /// What they are together, with half of the digest.
        tally: Tally,
    },
    /// A read has failed. Nothing of what came is returned.
    Failed {
        /// Which.
        read: u64,
        /// Why.
        error: ReadError,
    },
    /// Tell the master.
    Report(ToMaster),
}

/// Why a partition cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// Rows were lost after the barrier. It runs again: give the task back.
    #[error("rows of shuffle {0:?} were lost: transfers and the barrier run again")]
    Superseded(ShuffleId),
    /// The shuffle is over, or was never registered.
    #[error("shuffle {0:?} has ended, or was never registered")]
    Ended(ShuffleId),
    /// Nobody wanted this partition when the shuffle was registered.
    #[error(
        "partition {partition} of shuffle {shuffle:?} is not among the outputs that were \
         registered: its rows were dropped"
    )]
    NotAnOutput {
        /// The shuffle.
        shuffle: ShuffleId,
        /// The partition.
        partition: u32,
    },
    /// The server cannot be reached. Another worker may reach it: give the task back.
    #[error(
        "server {server:?}, which has partition {partition} of shuffle {shuffle:?}, cannot be \
         reached"
    )]
    Unreachable {
        /// The shuffle.
        shuffle: ShuffleId,
        /// The partition.
        partition: u32,
        /// Who has it.
        server: ServerId,
    },
    /// The server does not return it, and nobody makes it again.
    #[error(
        "partition {partition} of shuffle {shuffle:?} is missing at server {server:?}: {reason}"
    )]
    Missing {
        /// The shuffle.
        shuffle: ShuffleId,
        /// The partition.
        partition: u32,
        /// Who should have it.
        server: ServerId,
        /// Why not.
        reason: Refusal,
    },
}

/// The reader's machine: all reads of a process.
#[derive(Debug)]
pub struct Reader {
    config: Config,
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
    step: Step,
    /// Since when nothing has come.
    since: Duration,
    tries: u32,
}

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
    /// A reader without reads.
    pub fn new(config: Config) -> Self {
        Self {
            config,
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
            } => {
                if self.reads.contains_key(&read) {
                    return Err(ShuffleError::Begun);
                }
                let begun = Read {
                    shuffle,
                    generation,
                    partition,
                    step: Step::Planning,
                    since: self.now,
                    tries: 0,
                };
                self.reads.insert(read, begun);
                match self.plans.contains_key(&shuffle) {
                    true => self.advance(read, effects),
                    false => self.ask(shuffle, effects),
                }
            }
            ReaderEvent::Cancel(read) => {
                self.reads.remove(&read);
            }
            ReaderEvent::Server {
                from,
                message,
                computed,
            } => self.hear(from, message, &computed, effects),
            ReaderEvent::Disconnected(server) => self.disconnected(server),
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
                Step::Fetching(_) => None,
                Step::Retrying(_, at) => Some(at.min(patience)),
                Step::Planning | Step::Waiting(..) => Some(patience),
            }
        };
        self.reads.values().filter_map(due).min()
    }

    /// Whether nothing is read.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Verifies the invariants.
    ///
    /// # Errors
    /// [`Broken`]: one does not hold.
    pub fn check(&self) -> Result<(), Broken> {
        for read in self.reads.values() {
            let (Step::Fetching(group) | Step::Retrying(group, _) | Step::Waiting(group, _)) =
                read.step
            else {
                continue;
            };
            let plan = self.plans.get(&read.shuffle);
            let is_planned = plan.is_some_and(|plan| plan.group(group).is_some());
            if Guard::Generation.holds() && !is_planned {
                return Err(Broken::Group {
                    shuffle: read.shuffle,
                    group,
                    what: "it is read from, and not in the plan",
                });
            }
        }
        Ok(())
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
        let Some(group) = plan.group_of(partition) else {
            let error = ReadError::NotAnOutput { shuffle, partition };
            return self.fail(id, error, effects);
        };
        if read.step != Step::Planning {
            return;
        }
        read.step = Step::Fetching(group.id);
        effects.push(read.fetch(id, group.id));
    }

    fn hear(
        &mut self,
        from: ServerId,
        message: FromServer,
        computed: &[u32],
        effects: &mut Effects,
    ) {
        match message {
            FromServer::Rows {
                read,
                tally,
                pieces,
            } => self.rows(from, read, (&tally, &pieces), computed, effects),
            FromServer::Unread { read, reason } => {
                let Some(state) = self.reads.get_mut(&read) else {
                    return;
                };
                if let Step::Fetching(group) = state.step
                    && group.server == from
                {
                    state.step = Step::Waiting(group, reason);
                    state.since = self.now;
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
        let is_right = (is_whole || !compares) && (is_ordered || !orders) && (is_same || !digests);
        if is_right {
            self.reads.remove(&id);
            let tally = sum.narrow();
            return effects.push(ReaderEffect::Return { read: id, tally });
        }
        read.step = Step::Waiting(group, Refusal::Damaged);
        read.since = self.now;
        effects.push(ReaderEffect::Report(ToMaster::Damaged {
            shuffle: read.shuffle,
            group,
        }));
    }

    fn disconnected(&mut self, server: ServerId) {
        for read in self.reads.values_mut() {
            let (Step::Fetching(group) | Step::Retrying(group, _)) = read.step else {
                continue;
            };
            if group.server != server {
                continue;
            }
            if read.tries == 0 {
                read.since = self.now;
            }
            read.step = Step::Retrying(group, self.now + pause(&self.config, read.tries));
            read.tries += 1;
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
                Step::Retrying(group, _) if is_late => {
                    let error = ReadError::Unreachable {
                        shuffle,
                        partition,
                        server: group.server,
                    };
                    self.fail(id, error, effects);
                }
                Step::Retrying(group, at) if at <= now => {
                    read.step = Step::Fetching(group);
                    effects.push(read.fetch(id, group));
                }
                Step::Waiting(group, reason) if is_late => {
                    let error = ReadError::Missing {
                        shuffle,
                        partition,
                        server: group.server,
                        reason,
                    };
                    self.fail(id, error, effects);
                }
                Step::Planning if is_late => {
                    self.fail(id, ReadError::Superseded(shuffle), effects);
                }
                _ => {}
            }
        }
    }

    fn fail(&mut self, read: u64, error: ReadError, effects: &mut Effects) {
        if self.reads.remove(&read).is_some() {
            effects.push(ReaderEffect::Failed { read, error });
        }
    }
}

impl Read {
    fn fetch(&self, read: u64, group: GroupId) -> ReaderEffect {
        let fetch = Fetch {
            read,
            shuffle: self.shuffle,
            generation: self.generation,
            group,
            partition: self.partition,
        };
        ReaderEffect::Send {
            to: group.server,
            message: ToServer::Fetch(fetch),
        }
    }
}
