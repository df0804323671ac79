//! The server: it holds the partitions of its groups, as batches in memory and in files.
//!
//! ```text
//!  Push ──▶ parked ──▶ admitted ──▶ in memory ──▶ spilling ──▶ in a file (a run)
//!             │  until the plan is known and there is room        │
//!             └─▶ refused                                         ▼
//!                                   Seal: compared with the receipts; then it can be read
//! ```

mod check;
mod counts;
mod event;
mod fill;
mod group;
mod ledger;
mod masters;
mod members;
mod memory;
mod pushes;
mod read_budget;
mod read_limits;
mod read_queue;
mod reads;
mod sealing;
mod shares;
mod storage;
mod upload;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_shuffle_rates::{Gauge, Intake};
use treadle_types::Runs;

use crate::config::Guard;
use crate::server::fill::Fills;
use crate::server::group::{GroupState, Role};
use crate::server::masters::Masters;
use crate::server::members::Members;
use crate::server::memory::Memory;
use crate::server::pushes::{Coming, Parked};
use crate::server::read_budget::ReadBudget;
use crate::server::read_limits::ReadLimits;
use crate::server::read_queue::ReadQueue;
use crate::server::reads::Reading;
use crate::{
    BatchId, Config, Group, GroupId, Plan, Refusal, ServerId, ShuffleError, ShuffleId, Tenant,
    ToServer,
};

pub use event::{ConnectionId, Place, Sent, ServerEffect, ServerEvent, ToSend};
pub use masters::LinkId;
pub(crate) use shares::Shares;
pub use storage::{Remote, Storage};
pub use upload::{Adopted, Inventory};

/// The server's machine.
#[derive(Debug)]
pub struct Server {
    masters: Masters,
    config: Config,
    now: Duration,
    shuffles: BTreeMap<ShuffleId, Held>,
    memory: Memory,
    parked: VecDeque<Parked>,
    /// What was let in and has not arrived.
    arriving: BTreeMap<Arriving, Coming>,
    /// Of these, the ones of transfers that were abandoned since.
    unwanted: BTreeSet<Arriving>,
    /// Shuffles that the master was asked for.
    asked: BTreeSet<ShuffleId>,
    /// What applications were given: of room for pushes, and of reads of files.
    pushed: Shares,
    read: Shares,
    readings: BTreeMap<u64, Reading>,
    /// Reads that are looked for together begin, and those of them of which all is here.
    are_together: bool,
    ready: Vec<u64>,
    read_budget: ReadBudget,
    /// Reads that wait for their turn.
    waiting: ReadQueue,
    limits: ReadLimits,
    /// Runs at disks that do nothing.
    stuck: BTreeSet<u64>,
    /// Reads that were told to pause while a disk was slow.
    slept: u64,
    next_load: u64,
    fills: Fills,
    gauge: Gauge,
    members: Members,
    /// Sealed copies that are to be in the remote store.
    uploads: BTreeSet<(ShuffleId, GroupId)>,
}

/// What is held of a shuffle.
#[derive(Debug)]
struct Held {
    /// The link of the master that governs it, and what this server is called there.
    link: LinkId,
    me: ServerId,
    plan: Arc<Plan>,
    groups: BTreeMap<GroupId, GroupState>,
}

/// A batch that is on its way.
type Arriving = (ConnectionId, ShuffleId, GroupId, BatchId);

type Effects = Vec<ServerEffect>;

impl Server {
    /// A server of one master, [`LinkId::ONLY`], which ends with it.
    pub fn new(me: ServerId, config: Config) -> Self {
        Self {
            masters: Masters::only(me, config.lease),
            ..Self::of_any(config)
        }
    }

    /// A server that any master may use.
    pub fn of_any(config: Config) -> Self {
        Self {
            masters: Masters::none(config.lease),
            memory: Memory::new(config.remote),
            config,
            now: Duration::ZERO,
            shuffles: BTreeMap::new(),
            parked: VecDeque::new(),
            arriving: BTreeMap::new(),
            unwanted: BTreeSet::new(),
            asked: BTreeSet::new(),
            pushed: Shares::default(),
            read: Shares::default(),
            readings: BTreeMap::new(),
            are_together: false,
            ready: Vec::new(),
            read_budget: ReadBudget::default(),
            waiting: ReadQueue::default(),
            limits: ReadLimits::default(),
            stuck: BTreeSet::new(),
            slept: 0,
            next_load: 0,
            fills: Fills::new(),
            gauge: Gauge::default(),
            members: Members::default(),
            uploads: BTreeSet::new(),
        }
    }

    /// Takes an event in; what follows is appended to `effects`. `now` is a time that does not go back.
    ///
    /// # Errors
    /// [`ShuffleError`]: the event cannot be. Nothing has changed.
    pub fn handle(
        &mut self,
        event: ServerEvent,
        now: Duration,
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        self.now = self.now.max(now);
        if may_free(&event) {
            self.memory.ledger.freed();
        }
        match event {
            ServerEvent::Connected { from, member } => self.connected(from, member, effects),
            ServerEvent::Gone(member) => self.gone(member, effects),
            ServerEvent::Message { from, message } => match message {
                ToServer::Push(push) => self.offered(from, push, effects),
                ToServer::Pushes { pushes } => self.offered_together(from, &pushes, effects),
                ToServer::Ask(ask) => self.asked(from, ask, effects),
                ToServer::Abandon { group, transfer } => {
                    self.abandoned(from, group, transfer, effects);
                }
                ToServer::Fetch(fetch) => self.fetch(from, fetch, effects),
                ToServer::Cancel { read } => self.cancel_read(from, read, effects),
                ToServer::Adopt {
                    shuffle,
                    group,
                    source,
                    expected,
                } => self.adopt(from, shuffle, (group, source), expected, effects),
            },
            ServerEvent::Fetches { from, fetches } => {
                self.fetch_together(from, fetches, effects);
            }
            ServerEvent::Arrived { from, push, table } => {
                self.arrived(from, push, table, effects)?;
            }
            ServerEvent::Disconnected(from) => self.disconnected(from, effects),
            ServerEvent::Governed {
                link,
                me,
                application,
            } => self.governed(link, me, application, effects),
            ServerEvent::Heard(link) => self.masters.heard(link, self.now),
            ServerEvent::Ungoverned(link) => self.ungoverned(link, effects),
            ServerEvent::Master { link, message } => self.told(link, message, effects),
            ServerEvent::Budget { target, limit } => {
                (self.memory.target, self.memory.limit) = (target, limit.max(target));
                self.unpark(effects);
            }
            ServerEvent::Measured {
                process,
                limit,
                is_least,
            } => {
                let open = self.open();
                let ledger = &mut self.memory.ledger;
                ledger.measured(process, limit, open, is_least);
                self.unpark(effects);
            }
            ServerEvent::Stuck(runs) => self.stuck(runs, effects),
            ServerEvent::Spilled { run, written } => self.spilled(run, written, effects)?,
            ServerEvent::InventoryWritten {
                shuffle,
                group,
                number,
                written,
            } => self.inventory_written((shuffle, group), number, written, effects),
            ServerEvent::InventoryRead {
                shuffle,
                group,
                first,
                found,
            } => self.inventory_read((shuffle, group), first, found, effects),
            ServerEvent::Loaded { load, run, pieces } => {
                self.loaded(load, run, pieces, effects);
            }
            ServerEvent::Unloaded { load } => self.unloaded(load, effects),
            ServerEvent::Limited { disk, limits } => self.limited(disk, limits, effects),
            ServerEvent::Sent { load } => self.read_budget.give_back(load),
            ServerEvent::Peer(message) => self.peer(message, effects),
            ServerEvent::Unreached(server) => self.unreached(server),
            ServerEvent::Tick => {
                self.expire_masters(effects);
                self.unpark(effects);
            }
        }
        self.pump_reads(effects);
        self.pump_fills(effects);
        self.pump_uploads(effects);
        if self.memory.reads_want > 0 || self.memory.fills_want > 0 {
            self.relieve(effects);
        }
        self.measure(effects);
        Ok(())
    }

    /// When [`ServerEvent::Tick`] is due; `None`: not before another event.
    pub fn next_deadline(&self) -> Option<Duration> {
        let parked = self.parked.iter().map(|parked| parked.until).min();
        let disk = self.memory.retry_at();
        let due = parked.into_iter().chain(disk).chain(self.fills_due());
        let due = due.chain(self.uploads_due());
        due.chain(self.masters.next_deadline()).min()
    }

    /// Bytes of rows in memory, and bytes that are on their way into it.
    pub fn resident(&self) -> u64 {
        self.memory.resident + self.memory.arriving
    }

    /// Requests that wait: pushes for room or a plan, and reads for their turn.
    pub fn waiting(&self) -> usize {
        self.parked.len() + self.waiting.len()
    }

    /// How fast it takes what is pushed.
    pub fn intake(&self) -> Intake {
        self.gauge.intake(self.now)
    }

    /// Reads that were told to pause while a disk was slow, since the start.
    pub fn slept(&self) -> u64 {
        self.slept
    }

    /// Whether rows are to go to files, and the last write of some failed.
    pub fn is_failing(&self) -> bool {
        self.memory.is_failing()
    }

    /// The partitions of a copy, and the bytes of each: of what won, if it is complete, and of what is in
    /// files beside that.
    pub fn sizes(&self, shuffle: ShuffleId, group: GroupId) -> Option<(Runs, Vec<u64>)> {
        let state = self.shuffles.get(&shuffle)?.groups.get(&group)?;
        let bytes = |partition: u64| {
            let partition = u32::try_from(partition).ok();
            partition.map_or(0, |partition| state.counts.of(partition, None).bytes)
        };
        let sizes = state.partitions.iter().map(bytes).collect();
        Some((state.partitions.clone(), sizes))
    }

    /// Whether nothing is held, waits or is read.
    pub fn is_empty(&self) -> bool {
        self.shuffles.is_empty()
            && self.parked.is_empty()
            && self.arriving.is_empty()
            && self.readings.is_empty()
            && self.read_budget.is_empty()
            && self.waiting.is_empty()
    }

    /// A plan, or a newer one. Groups that it does not have are gone; nobody will ask for them.
    fn plan(&mut self, link: LinkId, plan: Arc<Plan>, effects: &mut Effects) {
        let Some(me) = self.masters.me(link) else {
            return;
        };
        let id = plan.shuffle;
        self.asked.remove(&id);
        let held = self.shuffles.entry(id).or_insert_with(|| Held {
            link,
            me,
            plan: plan.clone(),
            groups: BTreeMap::new(),
        });
        if plan.generation < held.plan.generation {
            return;
        }
        held.plan = plan.clone();
        let mine: Vec<(GroupId, Role, &Group)> = mine(held.me, &plan).collect();
        let is_gone = |copy: &&GroupId| !mine.iter().any(|(mine, ..)| mine == *copy);
        let gone: Vec<GroupId> = held.groups.keys().filter(is_gone).copied().collect();
        for group in gone {
            let reason = Refusal::Stale(plan.generation);
            // Others have what is in the remote store.
            let is_there = |other: &&Group| other.id.epoch == group.epoch;
            let left = plan.groups.iter().find(is_there);
            let is_left = left.is_some_and(|group| group.uploaded.is_some());
            self.drop_group((id, group), &reason, is_left, effects);
        }
        let stripe = plan.maps.div_ceil(self.config.stripes.max(1)).max(1);
        if let Some(held) = self.shuffles.get_mut(&id) {
            for (copy, role, group) in mine {
                let state = || {
                    let state = GroupState::new(group.partitions.clone(), stripe);
                    state.adopting((id, copy), group, &mut self.memory, effects)
                };
                held.groups.entry(copy).or_insert_with(state).role = role;
            }
            for group in held.groups.keys().copied().collect::<Vec<_>>() {
                self.want_upload(id, group);
            }
        }
        self.plan_fills(id, &plan);
        self.unpark(effects);
    }

    /// A shuffle is over, or there is none.
    fn close(&mut self, id: ShuffleId, is_left: bool, effects: &mut Effects) {
        self.asked.remove(&id);
        if let Some(held) = self.shuffles.get(&id) {
            for group in held.groups.keys().copied().collect::<Vec<_>>() {
                self.drop_group((id, group), &Refusal::Unknown, is_left, effects);
            }
            self.shuffles.remove(&id);
        }
        let parked = core::mem::take(&mut self.parked);
        for parked in parked {
            match parked.push.shuffle == id {
                true => self.refuse(parked.from, &parked.push, Refusal::Unknown, effects),
                false => self.parked.push_back(parked),
            }
        }
        self.unpark(effects);
    }

    /// A group goes, and all that is in it.
    fn drop_group(
        &mut self,
        (shuffle, group): (ShuffleId, GroupId),
        reason: &Refusal,
        is_left: bool,
        effects: &mut Effects,
    ) {
        let Some(held) = self.shuffles.get_mut(&shuffle) else {
            return;
        };
        let Some(state) = held.groups.remove(&group) else {
            return;
        };
        for (batch, length) in state.resident() {
            self.memory.resident -= length;
            effects.push(ServerEffect::Drop {
                shuffle,
                group,
                batch,
            });
        }
        self.fills.remove(&(shuffle, group));
        self.uploads.remove(&(shuffle, group));
        effects.extend(state.drop_runs(is_left && Guard::Left.holds()));
        let spilling = self.memory.spilling_of(shuffle, group);
        effects.extend(spilling.map(ServerEffect::DropRun));
        self.end_reads(shuffle, group, reason, effects);
    }

    /// Whose a shuffle is. One that is not known here has the least priority.
    fn tenant(&self, shuffle: ShuffleId) -> Tenant {
        let held = self.shuffles.get(&shuffle);
        held.map_or_else(Tenant::default, |held| held.plan.tenant)
    }

    /// The group that is meant, if it is here.
    fn resolve(&self, shuffle: ShuffleId, group: GroupId) -> Result<GroupId, Refusal> {
        let Some(held) = self.shuffles.get(&shuffle) else {
            return Err(match self.masters.link_of(group.server) {
                Some(_) => Refusal::Unknown,
                None => Refusal::Stranger(self.masters.like(group.server)),
            });
        };
        if !is_it(held.me, group.server) {
            return Err(Refusal::Stranger(held.me));
        }
        if held.groups.contains_key(&group) {
            return Ok(group);
        }
        match held.groups.keys().next_back() {
            Some(&last) if !Guard::Generation.holds() => Ok(last),
            _ => Err(Refusal::Stale(held.plan.generation)),
        }
    }
}

/// The copies of a plan that are of this server, which is called `me` in it.
fn mine(me: ServerId, plan: &Plan) -> impl Iterator<Item = (GroupId, Role, &Group)> {
    plan.groups.iter().filter_map(move |group| {
        let mut copies = group.holders().map(|holder| group.id.at(holder));
        let copy = copies.find(|copy| is_it(me, copy.server))?;
        let role = Role {
            takes: group.takes() || group.filling == Some(copy.server),
            is_first: group.copies.first() == Some(&copy.server),
            is_sole: group.copies.len() < 2,
            has_siblings: plan.chain(group).nth(1).is_some(),
        };
        Some((copy, role, group))
    })
}

/// Whether a server that is called `me` is meant.
fn is_it(me: ServerId, meant: ServerId) -> bool {
    match Guard::Incarnation.holds() {
        true => meant == me,
        false => meant.node == me.node,
    }
}

/// Whether memory may be free after an event.
fn may_free(event: &ServerEvent) -> bool {
    !matches!(
        event,
        ServerEvent::Message {
            message: ToServer::Push(_)
                | ToServer::Pushes { .. }
                | ToServer::Ask(_)
                | ToServer::Fetch(_),
            ..
        } | ServerEvent::Fetches { .. }
            | ServerEvent::Budget { .. }
            | ServerEvent::Measured { .. }
            | ServerEvent::Heard(_)
            | ServerEvent::Tick
    )
}
