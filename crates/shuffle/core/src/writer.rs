//! The writer: it pushes the rows of transfers to the servers of their partitions.
//!
//! For each group of the plan a transfer has a *part*:
//!
//! ```text
//!                 ┌─▶ asking ──Have──────────────────────▶ held
//!  gathering ─────┤     │ ▲                                 ▲
//!                 │ Missing │ Sealed                        │ all acknowledged
//!                 └─▶ pushing ──────────────────────────────┘
//!                       │ Stale: waiting for the next plan
//! ```
//!
//! A part is asked about first if the map may have run before: then its rows may be there already. A
//! transfer is done when all parts are held. Until then the host keeps its input, since another plan
//! may want other parts.

mod adopt;
mod check;
mod pace;
mod part;
mod peer;
mod replies;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_types::Runs;

use crate::writer::part::{Part, Running, Step};
use crate::writer::peer::{Peers, What};
use crate::{
    AttemptId, Config, FromServer, GroupId, Plan, Push, Receipt, Refusal, ServerId, Share,
    ShuffleError, ShuffleId, Tally, ToMaster, ToNode, ToServer, Transfer,
};

/// What the host has gathered for a part: the batches that its rows were put into.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gathered {
    /// What is in each, and its length in bytes. None: there are no rows.
    pub batches: Vec<(Tally, u64)>,
}

/// What happens to a writer.
#[derive(Clone, PartialEq, Debug)]
pub enum WriterEvent {
    /// A transfer begins: the rows of a map are here.
    Begin {
        transfer: Transfer,
        /// Whether the map has run before, as far as the host engine knows.
        again: bool,
        /// Whether it counts if its rows are others than those that were committed: then all of the shuffle
        /// is made again. Otherwise it fails.
        replaces: bool,
    },
    /// A transfer is not to go on.
    Cancel(Transfer),
    /// The rows of a part are in batches.
    Gathered {
        transfer: Transfer,
        group: GroupId,
        /// The batches.
        gathered: Gathered,
    },
    /// The rows of several parts are. What is to be pushed to a server may be said together.
    GatheredTogether(Vec<(Transfer, GroupId, Gathered)>),
    /// A server takes several pushes in a message.
    TakesTogether(ServerId),
    /// A server says something.
    Server { from: ServerId, message: FromServer },
    /// The connection to a server is gone, or cannot be made.
    Disconnected(ServerId),
    /// The master says something.
    Master(ToNode),
    /// Time has passed.
    Tick,
}

/// What a writer wants done.
#[derive(Clone, PartialEq, Debug)]
pub enum WriterEffect {
    /// Put the rows for these partitions into batches, and say [`WriterEvent::Gathered`]. Rows for
    /// partitions that no part has are dropped. Of what a transfer is asked for and has not freed, no two
    /// groups have a partition in common.
    Gather {
        transfer: Transfer,
        group: GroupId,
        partitions: Runs,
    },
    /// Tell a server something. A push has the bytes of its batch behind it, once they are let in.
    Send {
        /// Whom.
        to: ServerId,
        message: ToServer,
    },
    /// The batches of a part are not needed any more. If they have not been gathered yet, they need not be.
    Free { transfer: Transfer, group: GroupId },
    /// A transfer has ended well. Report the receipt as its result, and after that what follows.
    Done(Receipt),
    /// A transfer has failed.
    Failed {
        transfer: Transfer,
        /// Why.
        error: TransferError,
    },
    /// Tell the master.
    Report(ToMaster),
}

/// Why a transfer has failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransferError {
    /// The shuffle is over, or was never registered.
    #[error("shuffle {0:?} has ended, or was never registered")]
    Ended(ShuffleId),
    /// A server took nothing for too long. Another worker may reach it: give the task back.
    #[error(
        "server {server:?} cannot be reached, and input {} of shuffle {:?} has rows for it",
        .transfer.map,
        .transfer.shuffle
    )]
    Unreachable {
        /// Whose rows.
        transfer: Transfer,
        server: ServerId,
    },
    /// A server has no room.
    #[error(
        "server {server:?} has no room for rows of input {} of shuffle {:?}: {reason}",
        .transfer.map,
        .transfer.shuffle
    )]
    NoRoom {
        /// Whose rows.
        transfer: Transfer,
        server: ServerId,
        /// Why it cannot write.
        reason: Arc<str>,
    },
    /// The shuffle was committed with other rows of the map.
    #[error(
        "input {} of shuffle {:?} is late: another attempt of it was committed, with other rows. Those stay, and the \
         rows of this attempt are dropped. If these are to count, end the shuffle, and register another one",
        .0.map,
        .0.shuffle
    )]
    Late(Transfer),
    /// A server found that the bytes are no batch.
    #[error(
        "server {server:?} refused rows of input {} of shuffle {:?}: the bytes are not those of the \
         announced batch",
        .transfer.map,
        .transfer.shuffle
    )]
    Malformed {
        /// Whose rows.
        transfer: Transfer,
        server: ServerId,
    },
}

/// The writer's machine: all transfers of a process.
#[derive(Debug)]
pub struct Writer {
    config: Config,
    now: Duration,
    plans: BTreeMap<ShuffleId, Arc<Plan>>,
    /// Shuffles that the master was asked for.
    asked: BTreeSet<ShuffleId>,
    transfers: BTreeMap<Transfer, Running>,
    peers: Peers,
    /// When it is next looked for servers that answer nothing.
    look_at: Option<Duration>,
}

type Effects = Vec<WriterEffect>;

impl Writer {
    /// A writer without transfers.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            now: Duration::ZERO,
            plans: BTreeMap::new(),
            asked: BTreeSet::new(),
            transfers: BTreeMap::new(),
            peers: Peers::default(),
            look_at: None,
        }
    }

    /// Takes an event in; what follows is appended to `effects`. `now` is a time that does not go back.
    ///
    /// # Errors
    /// [`ShuffleError`]: the event cannot be. Nothing has changed.
    pub fn handle(
        &mut self,
        event: WriterEvent,
        now: Duration,
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        self.now = self.now.max(now);
        match event {
            WriterEvent::Begin {
                transfer,
                again,
                replaces,
            } => self.begin(transfer, (again, replaces), effects)?,
            WriterEvent::Cancel(transfer) => self.cancel(transfer, effects),
            WriterEvent::Gathered {
                transfer,
                group,
                gathered,
            } => self.gathered(transfer, group, gathered, effects)?,
            WriterEvent::GatheredTogether(parts) => {
                for (transfer, group, gathered) in parts {
                    self.gathered(transfer, group, gathered, effects)?;
                }
            }
            WriterEvent::TakesTogether(server) => self.peers.takes_together(server),
            WriterEvent::Server { from, message } => self.hear(from, message, effects),
            WriterEvent::Disconnected(server) => self.disconnected(server),
            WriterEvent::Master(ToNode::Plan(plan)) => self.plan(&plan, effects),
            WriterEvent::Master(ToNode::Close(shuffle)) => self.close(shuffle, effects),
            WriterEvent::Master(_) => {}
            WriterEvent::Tick => {
                self.look(effects);
                self.give_up(effects);
            }
        }
        self.pump(effects);
        if !self.peers.awaits() {
            self.look_at = None;
        } else if self.look_at.is_none() && self.has_copies() {
            self.look_at = Some(self.now + self.config.lag / 2);
        }
        Ok(())
    }

    /// When [`WriterEvent::Tick`] is due; `None`: not before another event.
    pub fn next_deadline(&self) -> Option<Duration> {
        let parts = self.transfers.values().flat_map(|t| t.parts.values());
        let due = parts.flat_map(|part| {
            let poison = part.trouble().map(|since| since + self.config.poison);
            let patience = part.stuck().map(|since| since + self.config.patience);
            poison.into_iter().chain(patience)
        });
        let retry = self.peers.retry_at(self.now);
        due.chain(retry).chain(self.look_at).min()
    }

    /// The plan of a shuffle that was told last.
    pub fn plan_of(&self, shuffle: ShuffleId) -> Option<&Arc<Plan>> {
        self.plans.get(&shuffle)
    }

    /// Whether no transfer runs.
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty() && self.peers.in_flight() == 0
    }

    /// Bytes that were pushed and are not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.peers.in_flight()
    }

    fn begin(
        &mut self,
        transfer: Transfer,
        (again, replaces): (bool, bool),
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        if self.transfers.contains_key(&transfer) {
            return Err(ShuffleError::Begun);
        }
        let running = Running {
            again,
            replaces,
            began: None,
            parts: BTreeMap::new(),
        };
        self.transfers.insert(transfer, running);
        match self.plans.get(&transfer.shuffle).cloned() {
            Some(plan) => self.adopt(transfer, &plan, effects),
            None => self.ask(transfer.shuffle, effects),
        }
        Ok(())
    }

    /// Asks the master for a plan, once.
    fn ask(&mut self, shuffle: ShuffleId, effects: &mut Effects) {
        if self.asked.insert(shuffle) {
            effects.push(WriterEffect::Report(ToMaster::Join(shuffle)));
        }
    }

    fn gathered(
        &mut self,
        transfer: Transfer,
        group: GroupId,
        gathered: Gathered,
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        let running = self.transfers.get_mut(&transfer);
        let plan = self.plans.get(&transfer.shuffle);
        let Some((asks, part)) = running.zip(plan).and_then(|(running, plan)| {
            let asks = running.asks(plan, plan.group(group)?, false);
            Some((asks, running.parts.get_mut(&group)?))
        }) else {
            // The plan has changed meanwhile.
            effects.push(WriterEffect::Free { transfer, group });
            return Ok(());
        };
        if part.is_moved {
            effects.push(WriterEffect::Free { transfer, group });
            return Ok(());
        }
        if part.step != Step::Gathering {
            return Err(ShuffleError::NotAsked(group));
        }
        part.tally = gathered.batches.iter().map(|(tally, _)| *tally).sum();
        for copy in &mut part.copies {
            copy.unacked = (0..gathered.batches.len() as u32).collect();
        }
        part.batches = gathered.batches;
        if part.batches.is_empty() {
            self.hold(transfer, group, group, transfer.attempt, effects);
        } else if !asks.is_empty() {
            part.ask(asks);
            self.peers.queue(part.questions(transfer, group));
        } else {
            part.step = Step::Pushing;
            self.peers.queue(part.pushes(transfer, group));
        }
        Ok(())
    }

    /// The rows of a part are at all copies of a group: its own, or an earlier one.
    fn hold(
        &mut self,
        transfer: Transfer,
        part: GroupId,
        group: GroupId,
        holder: AttemptId,
        effects: &mut Effects,
    ) {
        self.forget(transfer, part);
        let running = self.transfers.get_mut(&transfer);
        if let Some(running) = running
            && let Some(mut held) = running.parts.remove(&part)
        {
            held.step = Step::Held;
            held.holder = holder;
            held.waits = None;
            held.is_moved = part != group;
            held.copies.clear();
            held.asked.clear();
            running.parts.insert(group, held);
            let group = part;
            effects.push(WriterEffect::Free { transfer, group });
        }
        self.finish(transfer, effects);
    }

    /// Nothing is sent any more for a part.
    fn forget(&mut self, transfer: Transfer, part: GroupId) {
        let running = self.transfers.get(&transfer);
        let Some(state) = running.and_then(|running| running.parts.get(&part)) else {
            return;
        };
        for copy in &state.copies {
            self.peers.forget(transfer, part, copy.id);
        }
        for (copy, _) in &state.asked {
            self.peers.forget(transfer, part, *copy);
        }
    }

    /// Ends a transfer whose rows are all where they belong.
    fn finish(&mut self, transfer: Transfer, effects: &mut Effects) {
        let Some(running) = self.transfers.get(&transfer) else {
            return;
        };
        let mut parts = running.parts.values();
        if running.began.is_none() || !parts.all(|part| part.step == Step::Held) {
            return;
        }
        // Partitions whose groups are all closed get another one with the next plan.
        let plan = self.plans.get(&transfer.shuffle);
        if plan.is_none_or(|plan| running.parts.len() < plan.sections().len()) {
            return;
        }
        let parts = running.parts.iter();
        let shares = parts.filter(|(_, part)| !part.tally.is_empty());
        let shares = shares.map(|(&group, part)| Share {
            group,
            holder: part.holder,
            tally: part.tally,
        });
        let shares: Vec<Share> = shares.collect();
        let groups = shares.iter().map(|share| share.group).collect();
        let receipt = Receipt { transfer, shares };
        let tally = receipt.tally();
        self.transfers.remove(&transfer);
        effects.push(WriterEffect::Done(receipt));
        effects.push(WriterEffect::Report(ToMaster::Transferred {
            transfer,
            groups,
            tally,
        }));
    }

    fn cancel(&mut self, transfer: Transfer, effects: &mut Effects) {
        let Some(running) = self.transfers.get(&transfer) else {
            return;
        };
        for (part, copies) in running.pushed() {
            for group in copies {
                effects.push(WriterEffect::Send {
                    to: group.server,
                    message: ToServer::Abandon { group, transfer },
                });
            }
            self.drop_part(transfer, part, effects);
        }
        self.transfers.remove(&transfer);
    }

    fn fail(&mut self, transfer: Transfer, error: TransferError, effects: &mut Effects) {
        self.cancel(transfer, effects);
        effects.push(WriterEffect::Failed { transfer, error });
    }

    fn close(&mut self, shuffle: ShuffleId, effects: &mut Effects) {
        self.plans.remove(&shuffle);
        self.asked.remove(&shuffle);
        for transfer in self.transfers_of(shuffle) {
            self.fail(transfer, TransferError::Ended(shuffle), effects);
        }
    }

    fn transfers_of(&self, shuffle: ShuffleId) -> Vec<Transfer> {
        let first = Transfer {
            shuffle,
            ..Transfer::default()
        };
        let after = self.transfers.range(first..).map(|(&transfer, _)| transfer);
        after
            .take_while(|transfer| transfer.shuffle == shuffle)
            .collect()
    }

    fn part(&mut self, transfer: Transfer, group: GroupId) -> Option<&mut Part> {
        self.transfers.get_mut(&transfer)?.parts.get_mut(&group)
    }

    fn drop_part(&mut self, transfer: Transfer, group: GroupId, effects: &mut Effects) {
        self.forget(transfer, group);
        let running = self.transfers.get_mut(&transfer);
        let part = running.and_then(|running| running.parts.remove(&group));
        if part.is_some_and(|part| part.step != Step::Held) {
            effects.push(WriterEffect::Free { transfer, group });
        }
    }

    /// Sends what the windows allow.
    fn pump(&mut self, effects: &mut Effects) {
        let mut pushes = BTreeMap::<ServerId, Vec<Push>>::new();
        while let Some((server, item)) = self.peers.next(self.now) {
            let (transfer, group) = (item.transfer, item.at);
            let Some(part) = self.part(transfer, item.part) else {
                self.peers.skip(server);
                continue;
            };
            match item.what {
                What::Ask if part.step == Step::Asking && part.awaits(group) => {
                    let tally = part.tally;
                    self.peers.sent(server, item, 0, self.now);
                    let message = ToServer::Ask(crate::Ask {
                        group,
                        transfer,
                        tally,
                    });
                    effects.push(WriterEffect::Send {
                        to: server,
                        message,
                    });
                }
                What::Push(number) if part.step == Step::Pushing && part.lacks(group, number) => {
                    let (tally, length) = part.batches[number as usize];
                    if !self.peers.may_send(server, length, &self.config) {
                        continue;
                    }
                    self.peers.sent(server, item, length, self.now);
                    let push = Push {
                        shuffle: transfer.shuffle,
                        group,
                        batch: transfer.batch(number),
                        tally,
                        length,
                    };
                    if self.peers.tells_together(server) {
                        pushes.entry(server).or_default().push(push);
                        continue;
                    }
                    effects.push(WriterEffect::Send {
                        to: server,
                        message: ToServer::Push(push),
                    });
                }
                _ => self.peers.skip(server),
            }
        }
        self.peers.rest();
        for (to, pushes) in pushes {
            let messages = ToServer::together(&pushes).into_iter();
            effects.extend(messages.map(|message| WriterEffect::Send { to, message }));
        }
    }

    /// Whether rows of some shuffle could go elsewhere.
    fn has_copies(&self) -> bool {
        let first = self.plans.values().filter_map(|plan| plan.groups.first());
        first.into_iter().any(|group| group.copies.len() > 1)
    }

    /// Looks for servers that answer nothing, from time to time while pushes are under way.
    fn look(&mut self, effects: &mut Effects) {
        if self.look_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.look_at = None;
        for (server, times) in self.peers.silent(self.now, &self.config) {
            self.slow(server, times, effects);
        }
    }

    /// A server has fallen behind the others: it takes so many times as long. The master knows whether rows can go
    /// elsewhere.
    fn slow(&mut self, server: ServerId, times: u32, effects: &mut Effects) {
        let shuffles = self.plans.values().filter(|plan| {
            let mut open = plan.groups.iter().filter(|group| group.is_open);
            open.any(|group| group.copies.len() > 1 && group.copies.contains(&server))
        });
        effects.extend(shuffles.map(|plan| {
            let shuffle = plan.shuffle;
            WriterEffect::Report(ToMaster::Slow {
                shuffle,
                server,
                times,
            })
        }));
    }

    /// Ends the epochs of copies that take nothing, and fails the transfers that have waited too long.
    fn give_up(&mut self, effects: &mut Effects) {
        if let Some(limit) = self.now.checked_sub(self.config.poison) {
            let transfers = self.transfers.iter().flat_map(|(&transfer, running)| {
                let parts = running.parts.iter().filter(|(_, part)| part.may_poison());
                parts.map(move |(&id, part)| (transfer, id, part))
            });
            let bad = transfers.filter_map(|(transfer, id, part)| {
                let mut copies = part.copies.iter();
                let is_bad = |since: Duration| since <= limit;
                let copy = copies.find(|copy| copy.trouble.is_some_and(is_bad))?;
                Some((transfer, id, copy.id))
            });
            for (transfer, part, copy) in bad.collect::<Vec<_>>() {
                self.poison(transfer, part, copy, effects);
            }
        }
        let Some(limit) = self.now.checked_sub(self.config.patience) else {
            return;
        };
        let mut late = Vec::new();
        for (&transfer, running) in &self.transfers {
            let mut parts = running.parts.iter();
            let part = parts.find(|(_, part)| part.stuck().is_some_and(|since| since <= limit));
            late.extend(part.map(|(&group, part)| (transfer, part.blamed(group))));
        }
        for (transfer, server) in late {
            let error = TransferError::Unreachable { transfer, server };
            self.fail(transfer, error, effects);
        }
    }

    /// A copy cannot take the rows of a part: they go to another epoch, as soon as there is one.
    fn poison(&mut self, transfer: Transfer, part: GroupId, copy: GroupId, effects: &mut Effects) {
        self.forget(transfer, part);
        let now = self.now;
        if let Some(state) = self.part(transfer, part) {
            state.step = Step::Waiting;
            state.waits.get_or_insert(now);
            effects.push(WriterEffect::Report(ToMaster::Poisoned {
                shuffle: transfer.shuffle,
                group: copy,
            }));
        }
    }

    /// A refusal that ends the transfer.
    fn fatal(transfer: Transfer, server: ServerId, reason: &Refusal) -> Option<TransferError> {
        match reason {
            Refusal::NoRoom(reason) => Some(TransferError::NoRoom {
                transfer,
                server,
                reason: Arc::clone(reason),
            }),
            Refusal::Malformed => Some(TransferError::Malformed { transfer, server }),
            _ => None,
        }
    }
}
