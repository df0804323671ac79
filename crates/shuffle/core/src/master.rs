//! The master: which server holds what, whether all of it is there, and what has to run again.
//!
//! ```text
//!            Commit                   all Complete
//!   open ───────────────▶ sealing ───────────────▶ committed
//!    ▲                       │                          │
//!    └───────────────────────┴──────────────────────────┘
//!     a server or a group is lost: the next generation
//! ```
//!
//! What it keeps for a shuffle is proportional to servers and partitions, and a set of maps for each
//! group. It keeps no receipt.

mod check;
mod commit;
mod copies;
mod event;
mod loads;
mod loss;
mod weights;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::mem;

use treadle_types::Runs;

pub use event::{MasterEffect, MasterEvent, Progress, Spec, Standing};

use crate::config::Guard;
use crate::layout::Layout;
use crate::master::loads::Loads;
use crate::{
    Config, Generation, GroupId, Intake, MapSet, Plan, ServerId, ShuffleError, ShuffleId, Tally,
    Tenant, ToMaster, ToNode, Transfer, Uploaded,
};

/// Groups that a server's partitions are in when they are assigned, at most.
const MOST_GROUPS: usize = 4;
/// A shuffle is at one more server for so many bytes, with all copies, as far as it is known how many it has.
const BYTES_OF_SERVER: u64 = 64 << 20;
/// What a partition counts as if that is not known.
const BYTES_OF_PARTITION: u64 = 1 << 20;

/// The master's machine.
#[derive(Debug)]
pub struct Master {
    config: Config,
    /// Servers that are there.
    servers: BTreeMap<ServerId, Member>,
    /// Some server takes more or less than when shares were computed.
    is_unweighed: bool,
    shuffles: BTreeMap<ShuffleId, Shuffle>,
    /// By the first shuffle that used it.
    layouts: BTreeMap<ShuffleId, Layout>,
    registered: usize,
    loads: Loads,
}

/// A server that is there.
#[derive(Clone, Copy, Debug)]
struct Member {
    standing: Standing,
    is_leaving: bool,
    /// How much it is to have by what it does.
    share: u32,
}

impl Member {
    /// How much it is to have compared to others. 0: nothing.
    fn weight(&self) -> u64 {
        u64::from(self.standing.weight) * u64::from(self.share)
    }
}

#[derive(Debug)]
struct Shuffle {
    tenant: Tenant,
    maps: u32,
    partitions: u32,
    outputs: Runs,
    copies: u32,
    /// Bytes that it is expected to have, without copies. 0: that is not known.
    expected: u64,
    /// Each group has an epoch of its own, so that any server can get a copy of it.
    has_epochs: bool,
    layout: ShuffleId,
    generation: Generation,
    opened: Generation,
    groups: BTreeMap<GroupId, GroupState>,
    /// What its groups are counted as at servers.
    counted: BTreeMap<ServerId, u128>,
    /// What others are told. `None`: some partition has no home, since there is no server.
    plan: Option<Arc<Plan>>,
    /// Who was told, and is told what changes.
    followers: BTreeSet<ServerId>,
    /// Servers that have fallen behind the others, or are to be avoided: they get partitions if there are no others.
    slow: BTreeSet<ServerId>,
    /// Shares that were below the middle when partitions were assigned.
    shares: BTreeMap<ServerId, u32>,
    phase: Phase,
    /// Number of the last round of comparisons.
    round: u32,
    /// What all groups had together when it was committed, since everything was made anew. Parts of it
    /// may have been read, so that it has to be the same whenever it is committed again.
    committed: Option<Tally>,
    /// How often rows were found damaged.
    repairs: u32,
    transferred: MapSet,
    tally: Tally,
}

#[derive(Debug)]
struct GroupState {
    partitions: Runs,
    /// Bytes that it is expected to have.
    load: u64,
    /// Maps that have rows here.
    touched: MapSet,
    /// Servers that have all rows, and one that is getting them.
    copies: Vec<ServerId>,
    filling: Option<ServerId>,
    /// Servers that had a copy, or could not take pushes: they get none of these partitions any more.
    spoiled: BTreeSet<ServerId>,
    is_open: bool,
    is_split: bool,
    /// The [mark](crate::Expected::mark) of what its copies were asked to compare with. Some may be complete
    /// by that, and take no more.
    compared: Option<u64>,
    uploaded: Option<InStore>,
}

/// A copy in a remote store.
#[derive(Debug)]
struct InStore {
    /// The server that keeps it there.
    owner: ServerId,
    store: u64,
    uploaded: Uploaded,
}

impl GroupState {
    fn new(partitions: Runs, load: u64, copies: Vec<ServerId>) -> Self {
        Self {
            partitions,
            load,
            touched: MapSet::new(),
            copies,
            filling: None,
            spoiled: BTreeSet::new(),
            is_open: true,
            is_split: false,
            compared: None,
            uploaded: None,
        }
    }

    /// It takes no rows any more.
    fn close(&mut self) {
        (self.is_open, self.is_split) = (false, false);
    }

    fn holders(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.copies.iter().copied().chain(self.filling)
    }
}

impl Shuffle {
    /// Bytes that so many of its partitions are expected to have.
    fn load(&self, partitions: u64) -> u64 {
        let all = u64::from(self.partitions.max(1));
        let each = match self.expected {
            0 => BYTES_OF_PARTITION,
            expected => (expected / all).max(1),
        };
        each.saturating_mul(partitions)
    }

    /// At how many servers it is to be.
    fn spread(&self) -> usize {
        let bytes = self.expected.saturating_mul(self.copies.into());
        let count = bytes.div_ceil(BYTES_OF_SERVER).max(self.copies.into());
        match self.expected {
            0 => usize::MAX,
            _ => usize::try_from(count).unwrap_or(usize::MAX),
        }
    }

    /// No more transfers are expected.
    fn shrink(&mut self) {
        for group in self.groups.values_mut() {
            group.touched.shrink();
        }
        self.transferred.shrink();
    }

    fn footprint(&self) -> u64 {
        let runs = |runs: &Runs| size_of_val(runs.ranges());
        let of_group = |group: &GroupState| {
            let lists =
                size_of_val(&group.copies[..]) + group.spoiled.len() * size_of::<ServerId>();
            let here = size_of::<(GroupId, GroupState)>() + runs(&group.partitions) + lists;
            here as u64 + group.touched.footprint()
        };
        let groups = self.groups.values().map(of_group);
        // What others were told.
        let told = self.plan.iter().flat_map(|plan| &plan.groups);
        let told = told.map(|group| {
            let lists = size_of_val(&group.copies[..]) + runs(&group.partitions);
            (size_of_val(group) + lists) as u64
        });
        let followers = (self.followers.len() + self.shares.len()) * size_of::<ServerId>();
        let awaited = match &self.phase {
            Phase::Sealing(sealing) => sealing.awaited.len() * size_of::<(GroupId, Tally)>(),
            _ => 0,
        };
        let counted = self.counted.len() * size_of::<(ServerId, u128)>();
        let rest = followers + awaited + counted + runs(&self.outputs);
        groups.chain(told).sum::<u64>() + rest as u64 + self.transferred.footprint()
    }
}

#[derive(Debug)]
enum Phase {
    Open,
    Sealing(commit::Sealing),
    Committed,
}

/// What follows from an event.
type Effects = Vec<MasterEffect>;

impl Master {
    /// A master without servers and shuffles.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            servers: BTreeMap::new(),
            is_unweighed: false,
            shuffles: BTreeMap::new(),
            layouts: BTreeMap::new(),
            registered: 0,
            loads: Loads::default(),
        }
    }

    /// One whose first shuffle begins at the server with this position among all. Masters that do not know of each
    /// other begin at different ones.
    pub fn beginning(config: Config, at: usize) -> Self {
        Self {
            registered: at,
            ..Self::new(config)
        }
    }

    /// Takes an event in; what follows is appended to `effects`.
    ///
    /// # Errors
    /// [`ShuffleError`]: the event cannot be. Nothing has changed.
    pub fn handle(
        &mut self,
        event: MasterEvent,
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        match event {
            MasterEvent::Joined(server) => {
                let standing = Standing {
                    domain: server.node,
                    weight: 1,
                    intake: Intake::default(),
                    store: 0,
                };
                self.joined(server, standing, effects)?;
            }
            MasterEvent::Standing { server, standing } => {
                let Some(member) = self.servers.get_mut(&server) else {
                    return self.joined(server, standing, effects);
                };
                let before = mem::replace(&mut member.standing, standing);
                self.is_unweighed |= before.intake != standing.intake;
                // What is placed stays. What found no place may find one where there was none.
                if (before.weight == 0 && standing.weight > 0) || before.domain != standing.domain {
                    self.settle_waiting(effects);
                }
            }
            MasterEvent::Draining(server) => {
                if let Some(member) = self.servers.get_mut(&server) {
                    member.is_leaving = true;
                    self.settle_copied(effects);
                    self.tell_drained(effects);
                }
            }
            MasterEvent::Lost(server) => self.lost(server, effects),
            MasterEvent::Register { shuffle, spec } => self.register(shuffle, spec)?,
            MasterEvent::Avoid { shuffle, servers } => {
                if let Some(shuffle) = self.shuffles.get_mut(&shuffle) {
                    shuffle.slow.extend(servers);
                }
            }
            MasterEvent::End(shuffle) => self.end(shuffle, effects),
            MasterEvent::Message { from, message } => self.hear(from, message, effects),
        }
        Ok(())
    }

    /// Where a partition is, for placing the task that reads it.
    pub fn home(&self, shuffle: ShuffleId, partition: u32) -> Option<ServerId> {
        let shuffle = self.shuffles.get(&shuffle)?;
        if shuffle.has_epochs {
            let mut groups = shuffle.groups.values().rev();
            let group = groups.find(|group| group.partitions.contains(u64::from(partition)))?;
            return group.copies.first().copied();
        }
        self.layouts[&shuffle.layout].home(partition)
    }

    /// What a server gets by what it takes, in percent of the one in the middle.
    pub fn share(&self, server: ServerId) -> u32 {
        let share = self.servers.get(&server).map(|member| member.share);
        share.unwrap_or(weights::MIDDLE) * 100 / weights::MIDDLE
    }

    /// How far a shuffle is.
    pub fn progress(&self, shuffle: ShuffleId) -> Option<Progress> {
        let shuffle = self.shuffles.get(&shuffle)?;
        Some(Progress {
            generation: shuffle.generation,
            maps: shuffle.maps,
            partitions: shuffle.partitions,
            outputs: shuffle.outputs.len(),
            transferred: shuffle.transferred.len(),
            tally: shuffle.tally,
            is_committed: matches!(shuffle.phase, Phase::Committed),
        })
    }

    /// What all outputs of a shuffle have together, if some may have been read.
    pub fn committed(&self, shuffle: ShuffleId) -> Option<Tally> {
        self.shuffles.get(&shuffle)?.committed
    }

    /// Bytes that it keeps for shuffles, about. For `m` maps and `g` groups that is at most `m g / 8` beyond
    /// what is proportional to partitions, servers and groups, and nothing of that once all maps have rows
    /// in all groups.
    pub fn footprint(&self) -> u64 {
        let layouts = self.layouts.values().map(Layout::footprint);
        let shuffles = self.shuffles.values().map(Shuffle::footprint);
        layouts.chain(shuffles).sum()
    }

    /// The shuffles that have not ended.
    pub fn shuffles(&self) -> impl Iterator<Item = ShuffleId> + '_ {
        self.shuffles.keys().copied()
    }

    fn register(&mut self, id: ShuffleId, spec: Spec) -> Result<(), ShuffleError> {
        if self.shuffles.contains_key(&id) {
            return Err(ShuffleError::Registered(id));
        }
        let all = Runs::range(0, u64::from(spec.partitions));
        if spec.outputs.is_empty() || !spec.outputs.is_subset(&all) {
            return Err(ShuffleError::Outputs(id));
        }
        let aligned = spec.aligned.and_then(|other| self.shuffles.get(&other));
        let key = match aligned {
            Some(other) if other.partitions != spec.partitions => {
                return Err(ShuffleError::Aligned(id, spec.aligned.unwrap_or(id)));
            }
            Some(other) => other.layout,
            None => {
                let layout = Layout::new(spec.partitions, spec.preferred, self.registered);
                self.registered += 1;
                self.layouts.insert(id, layout);
                id
            }
        };
        if let Some(layout) = self.layouts.get_mut(&key) {
            layout.users += 1;
        }
        let shuffle = Shuffle {
            tenant: spec.tenant,
            maps: spec.maps,
            partitions: spec.partitions,
            outputs: spec.outputs,
            copies: spec.copies,
            expected: spec.expected,
            has_epochs: spec.copies > 1 || spec.is_handed_over,
            layout: key,
            generation: Generation(1),
            opened: Generation(1),
            groups: BTreeMap::new(),
            counted: BTreeMap::new(),
            plan: None,
            followers: BTreeSet::new(),
            slow: BTreeSet::new(),
            shares: BTreeMap::new(),
            phase: Phase::Open,
            round: 0,
            committed: spec.committed,
            repairs: 0,
            transferred: MapSet::new(),
            tally: Tally::default(),
        };
        self.shuffles.insert(id, shuffle);
        Ok(())
    }

    fn hear(&mut self, from: ServerId, message: ToMaster, effects: &mut Effects) {
        if Guard::Incarnation.holds() && !self.servers.contains_key(&from) {
            return;
        }
        match message {
            ToMaster::Join(shuffle) => self.join(from, shuffle, effects),
            ToMaster::Transferred {
                transfer,
                groups,
                tally,
            } => self.transferred(transfer, &groups, &tally, effects),
            ToMaster::Commit { ask, commit } => self.commit(from, ask, commit, effects),
            ToMaster::Sealed {
                shuffle,
                group,
                round,
                verdict,
            } => self.sealed(shuffle, (group, round), verdict, effects),
            ToMaster::Differs {
                shuffle,
                group,
                map,
                is_late,
            } => match is_late && Guard::Late.holds() {
                true => self.differs_late(from, shuffle, (group, map), effects),
                false => self.differs(shuffle, group, map, effects),
            },
            ToMaster::Damaged { shuffle, group } => self.damaged(shuffle, group, effects),
            ToMaster::Poisoned { shuffle, group } => {
                self.poisoned(from, shuffle, group, effects);
            }
            ToMaster::Slow {
                shuffle,
                server,
                times,
            } => self.slow(shuffle, (server, times), effects),
            ToMaster::Filled {
                shuffle,
                group,
                source,
                is_sealed,
            } => self.filled(shuffle, (group, source), is_sealed, effects),
            ToMaster::Uploaded {
                shuffle,
                group,
                uploaded,
            } => self.uploaded(shuffle, group, uploaded, effects),
            ToMaster::Full { shuffle, group } => self.full(shuffle, group, effects),
            // For the recorder.
            ToMaster::Measured { .. } | ToMaster::Used { .. } => {}
        }
    }

    /// A process asks for a plan. The first one makes the shuffle have one.
    fn join(&mut self, from: ServerId, id: ShuffleId, effects: &mut Effects) {
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            let message = ToNode::Close(id);
            return effects.push(MasterEffect::Send { to: from, message });
        };
        shuffle.followers.insert(from);
        match &shuffle.plan {
            Some(plan) => effects.push(MasterEffect::Send {
                to: from,
                message: ToNode::Plan(plan.clone()),
            }),
            None => self.settle(id, effects),
        }
    }

    /// A transfer has ended well, as the host engine knows.
    fn transferred(
        &mut self,
        transfer: Transfer,
        groups: &[GroupId],
        tally: &Tally,
        effects: &mut Effects,
    ) {
        let Some(shuffle) = self.shuffles.get_mut(&transfer.shuffle) else {
            return;
        };
        let is_here = |group: &GroupId| shuffle.groups.contains_key(group);
        if transfer.map >= shuffle.maps {
            return;
        }
        if Guard::Generation.holds() && !groups.iter().all(is_here) {
            // Rows of it were lost before this was known.
            effects.push(MasterEffect::Invalidate {
                shuffle: transfer.shuffle,
                maps: Runs::one(u64::from(transfer.map)),
                outputs: false,
            });
            return;
        }
        for group in groups {
            if let Some(group) = shuffle.groups.get_mut(group) {
                group.touched.insert(transfer.map);
            }
        }
        shuffle.transferred.insert(transfer.map);
        shuffle.tally.add(tally);
    }

    /// Computes shares anew if servers take more or less than before.
    fn weigh(&mut self) {
        if !mem::take(&mut self.is_unweighed) || !Guard::Weights.holds() {
            return;
        }
        let members = self.servers.values();
        let members = members.filter(|member| member.standing.weight > 0);
        let middle = weights::middle(members.map(|member| member.standing.intake.rate));
        for member in self.servers.values_mut() {
            member.share = weights::share(member.share, member.standing.intake, middle);
        }
    }

    /// Servers that may be assigned partitions, and their weights.
    fn eligible(&self) -> Vec<(ServerId, u64)> {
        let members = self
            .servers
            .iter()
            .map(|(&server, member)| (server, member));
        let members = members.filter(|(_, member)| member.weight() > 0);
        let all: Vec<_> = members
            .map(|(s, m)| (s, m.weight(), m.is_leaving))
            .collect();
        let is_all = all.iter().all(|&(.., is_leaving)| is_leaving);
        let staying = all
            .into_iter()
            .filter(|&(.., is_leaving)| is_all || !is_leaving);
        staying
            .map(|(server, weight, _)| (server, weight))
            .collect()
    }

    /// Gives partitions without a home one, and tells who takes part. Whatever changes groups ends here.
    fn settle(&mut self, id: ShuffleId, effects: &mut Effects) {
        self.count_loads(id);
        self.assign(id, effects);
        self.count_loads(id);
    }

    fn assign(&mut self, id: ShuffleId, effects: &mut Effects) {
        self.weigh();
        let mut servers = self.eligible();
        let mut places = self.places();
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        if servers
            .iter()
            .any(|(server, _)| !shuffle.slow.contains(server))
        {
            servers.retain(|(server, _)| !shuffle.slow.contains(server));
        }
        places.prefer_others(&shuffle.slow);
        let Some(layout) = self.layouts.get_mut(&shuffle.layout) else {
            return;
        };
        // Few of the servers could be without those that are preferred.
        if shuffle.groups.is_empty() && !layout.has_preferred(&servers) {
            let wanted = (shuffle.spread(), shuffle.copies);
            places.keep_to(&mut servers, wanted, layout.place());
        }
        let is_new = shuffle.groups.is_empty();
        let assigned = shuffle.groups.values().map(|group| &group.partitions);
        let assigned = assigned.fold(Runs::new(), |all, group| all.union(group));
        let homeless = shuffle.outputs.difference(&assigned);
        if !homeless.is_empty() {
            let members = self.servers.iter();
            let low = members.filter(|(_, member)| member.share < weights::MIDDLE);
            shuffle.shares = low
                .map(|(&server, member)| (server, member.share))
                .collect();
        }
        layout.assign(&homeless, &servers);
        let mut homes = BTreeMap::<ServerId, Vec<u64>>::new();
        for partition in homeless.iter() {
            match layout.home(partition as u32) {
                Some(server) => homes.entry(server).or_default().push(partition),
                None => return shuffle.plan = None,
            }
        }
        let mut homes: Vec<(ServerId, Vec<u64>)> = homes.into_iter().collect();
        // Those with most weight first: second copies of theirs are at the others, and those of the others
        // with them.
        homes.sort_by_key(|(server, _)| Reverse(places.weight(*server)));
        let least = homes.last().map_or(1, |(server, _)| places.weight(*server));
        let times = |weight: u64| ((weight + least / 2) / least) as usize;
        let first = homes
            .first()
            .map_or(1, |(server, _)| places.weight(*server));
        // Where all have about as much, those whose turn is to come get second copies before.
        let is_even = times(first) == 1;
        for (server, partitions) in homes.iter().filter(|_| !is_even) {
            places.take(*server, shuffle.load(partitions.len() as u64));
        }
        for (server, partitions) in homes {
            if is_even {
                places.take(server, shuffle.load(partitions.len() as u64));
            }
            // Second copies are of whole groups: those of a server that has more than others must not all be
            // at one of the others.
            let most = if shuffle.has_epochs { MOST_GROUPS } else { 1 };
            let groups = times(places.weight(server)).clamp(1, most);
            for part in partitions.chunks(partitions.len().div_ceil(groups)) {
                shuffle.open_group(server, part.iter().copied().collect(), &mut places);
            }
        }
        places.keep_to_none();
        if shuffle.has_epochs && !shuffle.settle_copies(&mut places) {
            return shuffle.plan = None;
        }
        if is_new {
            shuffle.opened = shuffle.generation;
        }
        shuffle.tell(id, effects);
        if let Phase::Sealing(sealing) = &shuffle.phase {
            let gone = sealing
                .awaited
                .keys()
                .filter(|&&copy| shuffle.name_of(copy).is_none());
            let gone: Vec<GroupId> = gone.copied().collect();
            if let Phase::Sealing(sealing) = &mut shuffle.phase {
                sealing.awaited.retain(|copy, _| !gone.contains(copy));
            }
            self.conclude(id, effects);
        }
    }

    fn end(&mut self, id: ShuffleId, effects: &mut Effects) {
        let Some(mut shuffle) = self.shuffles.remove(&id) else {
            return;
        };
        if let Some(layout) = self.layouts.get_mut(&shuffle.layout) {
            layout.users -= 1;
            if layout.users == 0 {
                self.layouts.remove(&shuffle.layout);
            }
        }
        self.forget_loads(&shuffle);
        let phase = mem::replace(&mut shuffle.phase, Phase::Open);
        if let Phase::Sealing(sealing) = phase {
            sealing.answer(id, Err(crate::CommitError::Ended(id)), effects);
        }
        for to in shuffle.followers {
            let message = ToNode::Close(id);
            effects.push(MasterEffect::Send { to, message });
        }
        self.tell_drained(effects);
    }

    /// Says which servers that are to leave hold nothing, and forgets that it was asked.
    fn tell_drained(&mut self, effects: &mut Effects) {
        let shuffles = &self.shuffles;
        let is_empty = |server: ServerId| {
            let mut groups = shuffles
                .values()
                .flat_map(|shuffle| shuffle.groups.values());
            groups.all(|group| group.holders().all(|holder| holder != server))
        };
        let leaving = self.servers.iter().filter(|(_, member)| member.is_leaving);
        let drained = leaving.filter(|&(&server, _)| is_empty(server));
        effects.extend(drained.map(|(&server, _)| MasterEffect::Drained(server)));
    }
}
