//! Several copies of each group: in different failure domains, made anew when one is lost.
//!
//! ```text
//!   open ──poisoned, or a copy lost──▶ closed      rows go on in the next epoch
//!     │                                  │
//!     └─────── complete ─────────────────┴──▶ under-replicated: filled from a copy that is left
//! ```

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use treadle_types::Runs;

use crate::config::Guard;
use crate::master::weights;
use crate::master::{Effects, GroupState, InStore, Master, Member, Phase, Shuffle};
use crate::{Group, GroupId, MasterEffect, Plan, ServerId, ShuffleId, ToNode, Uploaded};

/// Where copies can be put.
#[derive(Debug)]
pub(super) struct Places {
    /// With the bytes that each is expected to have of the groups that it has copies of.
    servers: BTreeMap<ServerId, (Member, u64)>,
    /// Those that are chosen last.
    slow: BTreeSet<ServerId>,
    /// Those that are chosen first. Empty: all are alike.
    few: BTreeSet<ServerId>,
}

impl Places {
    fn domain(&self, server: ServerId) -> u32 {
        let place = self.servers.get(&server);
        place.map_or(server.node, |(member, _)| member.standing.domain)
    }

    /// Whether a copy stays there.
    fn is_firm(&self, server: ServerId) -> bool {
        let place = self.servers.get(&server);
        place.is_some_and(|(member, _)| !member.is_leaving)
    }

    /// These are chosen last.
    pub(super) fn prefer_others(&mut self, slow: &BTreeSet<ServerId>) {
        self.slow.clone_from(slow);
    }

    /// Keeps so many of `servers`: those with the least load for their weights, in as many failure domains as there
    /// are copies. They are chosen first. Where all have the same, `place` decides with whom it begins, in
    /// proportion to the weights: masters do not know of each other.
    pub(super) fn keep_to(
        &mut self,
        servers: &mut Vec<(ServerId, u64)>,
        (count, copies): (usize, u32),
        place: u64,
    ) {
        if count >= servers.len() {
            return;
        }
        let by_load = |&(server, weight): &(ServerId, u64)| {
            let load = self.servers.get(&server).map_or(0, |&(_, load)| load);
            (u128::from(load) << 48) / u128::from(weight.max(1))
        };
        let all: u128 = servers.iter().map(|&(_, weight)| u128::from(weight)).sum();
        let mut left = (u128::from(place) * all) >> 64;
        let first = servers.iter().position(|&(_, weight)| {
            let is_it = left < u128::from(weight);
            left = left.saturating_sub(weight.into());
            is_it
        });
        let mut sorted = servers.clone();
        sorted.rotate_left(first.unwrap_or_default());
        sorted.sort_by_key(by_load);
        let mut domains = BTreeSet::new();
        let (apart, rest): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|&(server, _)| {
            domains.len() < copies as usize && domains.insert(self.domain(server))
        });
        let kept = apart.into_iter().chain(rest).take(count);
        self.few = kept.map(|(server, _)| server).collect();
        servers.retain(|(server, _)| self.few.contains(server));
    }

    /// All are alike again.
    pub(super) fn keep_to_none(&mut self) {
        self.few.clear();
    }

    /// The server that then has the least load for its weight, in another domain than these copies. One that is
    /// slow only if there is no other.
    fn choose(
        &self,
        copies: &[ServerId],
        spoiled: &BTreeSet<ServerId>,
        more: u64,
    ) -> Option<ServerId> {
        self.choose_of(copies, spoiled, (more, None))
    }

    /// The same, of servers that have this remote store.
    fn choose_of(
        &self,
        copies: &[ServerId],
        spoiled: &BTreeSet<ServerId>,
        (more, store): (u64, Option<u64>),
    ) -> Option<ServerId> {
        let taken: BTreeSet<u32> = copies.iter().map(|&copy| self.domain(copy)).collect();
        let servers = self.servers.iter().filter(|&(server, (member, _))| {
            let is_apart = !taken.contains(&member.standing.domain);
            // What is adopted takes no room.
            let takes = (member.weight() > 0 || store.is_some()) && !member.is_leaving;
            let has_store = store.is_none_or(|store| member.standing.store == store);
            takes && is_apart && has_store && !spoiled.contains(server)
        });
        let scored = servers.map(|(server, &(member, load))| {
            let weight = u128::from(member.weight().max(1));
            let is_slow = self.slow.contains(server);
            let load = u128::from(load) + u128::from(more);
            let is_other = !self.few.is_empty() && !self.few.contains(server);
            (is_slow, is_other, (load << 48) / weight, *server)
        });
        scored.min().map(|(.., server)| server)
    }

    /// Adds copies until there are as many as wanted, or no other domain.
    fn complete(
        &self,
        copies: &mut Vec<ServerId>,
        wanted: u32,
        spoiled: &BTreeSet<ServerId>,
        more: u64,
    ) {
        while copies.len() < wanted as usize
            && let Some(server) = self.choose(copies, spoiled, more)
        {
            copies.push(server);
        }
    }

    pub(super) fn weight(&self, server: ServerId) -> u64 {
        let place = self.servers.get(&server);
        place.map_or(1, |(member, _)| member.weight().max(1))
    }

    pub(super) fn take(&mut self, server: ServerId, more: u64) {
        if let Some((_, load)) = self.servers.get_mut(&server) {
            *load = load.saturating_add(more);
        }
    }
}

impl Master {
    pub(super) fn places(&self) -> Places {
        let servers = self.servers.iter();
        let servers = servers.map(|(&server, &member)| (server, (member, self.loads.of(server))));
        Places {
            servers: servers.collect(),
            slow: BTreeSet::new(),
            few: BTreeSet::new(),
        }
    }

    /// Servers have come or are to leave: copies may be elsewhere.
    pub(super) fn settle_copied(&mut self, effects: &mut Effects) {
        let shuffles = self.shuffles.iter();
        let copied = shuffles.filter(|(_, shuffle)| shuffle.has_epochs && shuffle.plan.is_some());
        for id in copied.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.settle(id, effects);
        }
    }

    /// Copies are gone. A group without any is lost.
    pub(super) fn lose_copies(&mut self, id: ShuffleId, lost: &[GroupId], effects: &mut Effects) {
        let mut places = self.places();
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        let mut groups = Vec::new();
        for &copy in lost {
            let Some((name, group)) = shuffle.holder_mut(copy) else {
                continue;
            };
            group.copies.retain(|&server| server != copy.server);
            group.filling = group.filling.filter(|&server| server != copy.server);
            group.spoiled.insert(copy.server);
            // Whoever pushes to it still would have it at one server only.
            group.is_split = false;
            if group.copies.is_empty() {
                match group.adopter(&places) {
                    Some(server) => {
                        places.take(server, group.load);
                        group.adopted(server);
                        shuffle.followers.insert(server);
                    }
                    None => groups.push(name),
                }
            } else {
                group.forget_upload();
            }
            if let Phase::Sealing(sealing) = &mut shuffle.phase {
                sealing.awaited.remove(&copy);
            }
        }
        if !groups.is_empty() {
            return self.lose_groups(id, &groups, effects);
        }
        self.settle(id, effects);
        self.conclude(id, effects);
    }

    /// A copy cannot take what is pushed: the epoch of its group ends.
    pub(super) fn poisoned(
        &mut self,
        from: ServerId,
        id: ShuffleId,
        copy: GroupId,
        effects: &mut Effects,
    ) {
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        if !Guard::Poison.holds() || !shuffle.has_epochs {
            return;
        }
        if !shuffle.is_written(from, effects) {
            return;
        }
        let Some((_, group)) = shuffle.holder_mut(copy) else {
            return;
        };
        if !group.is_open && !group.is_split {
            return;
        }
        group.close();
        group.spoiled.insert(copy.server);
        self.settle(id, effects);
    }

    /// Whether a server that takes so many times as long as a typical one was given that little of a shuffle.
    pub fn has_its_share(&mut self, id: ShuffleId, (server, times): (ServerId, u32)) -> bool {
        self.weigh();
        let share = self.servers.get(&server).map(|member| member.share);
        let shuffle = self.shuffles.get(&id);
        let given = shuffle.and_then(|shuffle| shuffle.shares.get(&server));
        given.is_some_and(|&given| weights::is_fair(given, share, times))
    }

    /// A server has fallen behind the others, and takes so many times as long: the epochs of its groups end, as long
    /// as there are others for the next ones.
    pub(super) fn slow(&mut self, id: ShuffleId, slow: (ServerId, u32), effects: &mut Effects) {
        let has_its_share = self.has_its_share(id, slow);
        let (server, _) = slow;
        let places = self.places();
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        if !shuffle.has_epochs || !matches!(shuffle.phase, Phase::Open) {
            return;
        }
        if has_its_share {
            return;
        }
        shuffle.slow.insert(server);
        let open = shuffle.groups.iter();
        let open = open.filter(|(_, group)| group.is_open && group.copies.contains(&server));
        let closes = open.filter(|(_, group)| {
            let avoided = shuffle.spoiled(group).chain(shuffle.slow.iter().copied());
            let mut copies = Vec::new();
            places.complete(&mut copies, shuffle.copies, &avoided.collect(), group.load);
            copies.len() >= group.copies.len()
        });
        for name in closes.map(|(&name, _)| name).collect::<Vec<_>>() {
            if let Some(group) = shuffle.groups.get_mut(&name) {
                group.close();
            }
        }
        self.settle(id, effects);
    }

    /// A copy is filled. It counts from now on, unless the barrier relies on copies that were compared, or
    /// the one that it was filled from is none any more: the others may have more.
    pub(super) fn filled(
        &mut self,
        id: ShuffleId,
        (copy, source): (GroupId, GroupId),
        is_sealed: bool,
        effects: &mut Effects,
    ) {
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        let is_open = matches!(shuffle.phase, Phase::Open);
        let Some((_, group)) = shuffle.holder_mut(copy) else {
            return;
        };
        let is_whole = group.copies.first() == Some(&source.server);
        if group.filling != Some(copy.server) || !is_whole || !(is_sealed || is_open) {
            return;
        }
        group.filling = None;
        group.copies.push(copy.server);
        if let Some(uploaded) = &mut group.uploaded {
            uploaded.owner = copy.server;
        }
        self.settle(id, effects);
        self.tell_drained(effects);
    }

    /// A sealed copy is in the remote store. As soon as it is committed, that is enough.
    pub(super) fn uploaded(
        &mut self,
        id: ShuffleId,
        copy: GroupId,
        uploaded: Uploaded,
        effects: &mut Effects,
    ) {
        let member = self.servers.get(&copy.server);
        let store = member.map_or(0, |member| member.standing.store);
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        let has_epochs = shuffle.has_epochs;
        let Some((_, group)) = shuffle.holder_mut(copy) else {
            return;
        };
        let is_it = group.copies.contains(&copy.server) && group.compared == Some(uploaded.mark);
        if !has_epochs || !is_it || store == 0 || group.uploaded.is_some() {
            return;
        }
        // One that is being filled gets batches. Who adopts must have none.
        group.spoiled.extend(group.filling.take());
        group.uploaded = Some(InStore {
            owner: copy.server,
            store,
            uploaded,
        });
        self.settle(id, effects);
    }

    /// A copy is large: transfers that begin now push to another group.
    pub(super) fn full(&mut self, id: ShuffleId, copy: GroupId, effects: &mut Effects) {
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        if !shuffle.has_epochs || !matches!(shuffle.phase, Phase::Open) {
            return;
        }
        let Some((_, group)) = shuffle.holder_mut(copy) else {
            return;
        };
        if group.is_open {
            (group.is_open, group.is_split) = (false, true);
            self.settle(id, effects);
        }
    }
}

impl Shuffle {
    /// The group that a copy is of, and that has it.
    pub(super) fn name_of(&self, copy: GroupId) -> Option<GroupId> {
        let is_it = |(name, group): &(&GroupId, &GroupState)| {
            let has = group.holders().any(|holder| holder == copy.server);
            name.epoch == copy.epoch && has
        };
        let first = GroupId {
            server: ServerId::default(),
            ..copy
        };
        let found = self
            .groups
            .range(first..)
            .take_while(|(name, _)| name.epoch == copy.epoch);
        let mut found = found.filter(is_it);
        found.next().map(|(&name, _)| name)
    }

    fn holder_mut(&mut self, copy: GroupId) -> Option<(GroupId, &mut GroupState)> {
        let name = self.name_of(copy)?;
        Some((name, self.groups.get_mut(&name)?))
    }

    /// Servers that get no copy of a group, or of another one with its partitions.
    fn spoiled<'a>(&'a self, group: &'a GroupState) -> impl Iterator<Item = ServerId> + 'a {
        let groups = self.groups.values();
        let beside = groups.filter(|other| other.partitions.first() == group.partitions.first());
        beside.flat_map(|other| other.spoiled.iter().copied())
    }

    /// Whether a group has one copy only.
    pub(super) fn is_sole(&self, name: GroupId) -> bool {
        self.groups
            .get(&name)
            .is_none_or(|group| group.copies.len() < 2)
    }

    /// Whether a copy is the only one of its group.
    pub(super) fn is_sole_copy(&self, copy: GroupId) -> bool {
        self.name_of(copy).is_none_or(|name| self.is_sole(name))
    }

    /// Assigns partitions that were in no group. They are counted at this server already.
    pub(super) fn open_group(&mut self, server: ServerId, partitions: Runs, places: &mut Places) {
        let mut copies: Vec<ServerId> = [server].into();
        let load = self.load(partitions.len());
        if self.has_epochs {
            // So a server has one copy of it at most.
            self.generation = self.generation.next();
            places.complete(&mut copies, self.copies, &BTreeSet::new(), load);
            for &copy in &copies[1..] {
                places.take(copy, load);
            }
        }
        let epoch = self.generation;
        self.followers.extend(copies.iter().copied());
        let group = GroupState::new(partitions, load, copies);
        self.groups.insert(GroupId { epoch, server }, group);
    }

    /// Closes, opens and fills groups, so that all have as many copies as there should be. False: there
    /// is no server for some partitions.
    pub(super) fn settle_copies(&mut self, places: &mut Places) -> bool {
        let is_written = matches!(self.phase, Phase::Open);
        if is_written && !self.open_epochs(places) {
            return false;
        }
        let is_committed = matches!(self.phase, Phase::Committed);
        for group in self.groups.values_mut() {
            if is_committed && let Some(InStore { owner, .. }) = group.uploaded {
                group.copies = [owner].into();
            }
            let wanted = match group.uploaded {
                Some(_) => 1,
                None => self.copies as usize,
            };
            let firm = group.copies.iter().filter(|&&copy| places.is_firm(copy));
            let firm: Vec<ServerId> = firm.copied().collect();
            if firm.len() >= wanted {
                group.copies = firm;
                group.forget_upload();
            } else if group.filling.is_none() && !((group.is_open || group.is_split) && is_written)
            {
                let adopter = group.adopter(places);
                if adopter.is_none() {
                    // It is copied as others are.
                    group.uploaded = None;
                }
                group.filling =
                    adopter.or_else(|| places.choose(&firm, &group.avoided(), group.load));
                if let Some(server) = group.filling {
                    places.take(server, group.load);
                    self.followers.insert(server);
                }
            }
        }
        true
    }

    /// Ends epochs that have too few copies, if the next one can have more, and begins the next one.
    fn open_epochs(&mut self, places: &mut Places) -> bool {
        let mut sections = BTreeMap::<u64, Vec<GroupId>>::new();
        for (&name, group) in &self.groups {
            let first = group.partitions.first().unwrap_or_default();
            sections.entry(first).or_default().push(name);
        }
        for names in sections.into_values() {
            let groups = || names.iter().map(|name| &self.groups[name]);
            let open = groups().find(|group| group.is_open);
            let firm = open.map(|open| {
                let firm = open.copies.iter().filter(|&&copy| places.is_firm(copy));
                firm.count()
            });
            if firm.is_some_and(|firm| firm >= self.copies as usize) {
                continue;
            }
            let spoiled: BTreeSet<ServerId> = self.spoiled(&self.groups[&names[0]]).collect();
            let load = self.groups[&names[0]].load;
            let mut copies = Vec::new();
            places.complete(&mut copies, self.copies, &spoiled, load);
            if firm.is_some_and(|firm| firm >= copies.len()) {
                continue;
            }
            if copies.is_empty() {
                // Better one that could not take a push than none.
                places.complete(&mut copies, self.copies, &BTreeSet::new(), load);
            }
            let Some(&server) = copies.first() else {
                return false;
            };
            let partitions = self.groups[&names[0]].partitions.clone();
            for name in &names {
                if let Some(group) = self.groups.get_mut(name) {
                    group.is_open = false;
                }
            }
            for &copy in &copies {
                places.take(copy, load);
            }
            self.generation = self.generation.next();
            let epoch = self.generation;
            self.followers.extend(copies.iter().copied());
            let mut group = GroupState::new(partitions, load, copies);
            group.spoiled = spoiled;
            self.groups.insert(GroupId { epoch, server }, group);
        }
        true
    }

    /// Makes the plan, and tells it to all who take part.
    pub(super) fn tell(&mut self, id: ShuffleId, effects: &mut Effects) {
        let groups = self.groups.iter().map(|(&id, group)| Group {
            id,
            partitions: group.partitions.clone(),
            copies: group.copies.clone(),
            filling: group.filling,
            uploaded: group.uploaded.as_ref().map(|it| it.uploaded.clone()),
            is_open: group.is_open,
            is_split: group.is_split,
        });
        let plan = Plan {
            shuffle: id,
            generation: self.generation,
            opened: self.opened,
            tenant: self.tenant,
            maps: self.maps,
            partitions: self.partitions,
            is_final: false,
            groups: groups.collect(),
        };
        if self.has_epochs && self.plan.as_deref() == Some(&plan) {
            return;
        }
        let plan = Arc::new(plan);
        for &to in &self.followers {
            let message = ToNode::Plan(plan.clone());
            effects.push(MasterEffect::Send { to, message });
        }
        self.plan = Some(plan);
    }
}

impl GroupState {
    /// Who gets the copy that is in the remote store, if there is one.
    fn adopter(&self, places: &Places) -> Option<ServerId> {
        let store = self.uploaded.as_ref()?.store;
        let store = Some(store).filter(|&store| store != 0)?;
        let wanted = (self.load, Some(store));
        let other = || places.choose_of(&[], &self.avoided(), wanted);
        self.filling.or_else(other)
    }

    /// A server adopts what is in the remote store. It answers nothing before.
    fn adopted(&mut self, server: ServerId) {
        self.filling = None;
        self.copies = [server].into();
        if let Some(uploaded) = &mut self.uploaded {
            uploaded.owner = server;
        }
    }

    /// What is in the remote store is of no use if nobody keeps it there.
    fn forget_upload(&mut self) {
        let copies = &self.copies;
        let is_gone = |uploaded: &mut InStore| !copies.contains(&uploaded.owner);
        if self.uploaded.take_if(is_gone).is_some() {
            // It would have adopted that.
            self.spoiled.extend(self.filling.take());
        }
    }

    /// Servers that may not get a copy: those that had one, and those that have one.
    fn avoided(&self) -> BTreeSet<ServerId> {
        self.spoiled.iter().copied().chain(self.holders()).collect()
    }
}
