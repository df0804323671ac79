//! What is lost, and what follows.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use treadle_types::Runs;

use crate::config::Guard;
use crate::master::{Effects, GroupState, Master, Member, Phase, Shuffle, Standing, weights};
use crate::{
    CommitError, GroupId, MapSet, MasterEffect, Plan, ServerId, ShuffleError, ShuffleId, ToNode,
};

impl Master {
    /// A server is there. If there was another process at its place, that one is gone.
    pub(super) fn joined(
        &mut self,
        server: ServerId,
        standing: Standing,
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        if self.servers.contains_key(&server) {
            return Err(ShuffleError::Joined(server));
        }
        let mut others = self.servers.keys().copied();
        let other = others.find(|other| other.node == server.node);
        match other {
            Some(other) if Guard::Incarnation.holds() => self.lost(other, effects),
            Some(_) => return Ok(()),
            None => {}
        }
        let member = Member {
            standing,
            is_leaving: false,
            share: weights::MIDDLE,
        };
        self.is_unweighed = true;
        self.servers.insert(server, member);
        self.settle_waiting(effects);
        Ok(())
    }

    /// There may be room for what had none.
    pub(super) fn settle_waiting(&mut self, effects: &mut Effects) {
        let waiting = self.shuffles.iter();
        let waiting = waiting.filter(|(_, shuffle)| shuffle.plan.is_none());
        let waiting = waiting.filter(|(_, shuffle)| !shuffle.followers.is_empty());
        for id in waiting.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.settle(id, effects);
        }
        self.settle_copied(effects);
    }

    /// A server is gone, with all that it held.
    pub(super) fn lost(&mut self, server: ServerId, effects: &mut Effects) {
        self.servers.remove(&server);
        self.is_unweighed = true;
        for layout in self.layouts.values_mut() {
            layout.lose(server);
        }
        for id in self.shuffles.keys().copied().collect::<Vec<_>>() {
            let Some(shuffle) = self.shuffles.get_mut(&id) else {
                continue;
            };
            shuffle.followers.remove(&server);
            if let Phase::Sealing(sealing) = &mut shuffle.phase
                && sealing.asker == server
            {
                let late = mem::take(&mut sealing.late);
                shuffle.phase = Phase::Open;
                shuffle.tell_late(late, false, effects);
            }
            let groups = shuffle.groups.iter();
            let held = groups.filter(|(_, group)| group.holders().any(|holder| holder == server));
            let held: Vec<GroupId> = held.map(|(id, _)| id.at(server)).collect();
            if !held.is_empty() {
                self.lose_copies(id, &held, effects);
            }
        }
    }

    /// Rows of a group cannot be read, or are not what they were. They are made again, a few times.
    pub(super) fn damaged(&mut self, id: ShuffleId, group: GroupId, effects: &mut Effects) {
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        let Some(name) = shuffle.name_of(group) else {
            return;
        };
        // What a copy lacks that is being filled, the others have.
        let is_filling = shuffle.groups[&name].filling == Some(group.server);
        if is_filling || !shuffle.is_sole(name) {
            return self.lose_copies(id, &[group], effects);
        }
        if shuffle.repairs < self.config.repairs {
            shuffle.repairs += 1;
            self.lose_groups(id, &[name], effects);
        }
    }

    /// A server, or a transfer that asked it, says that a map has other rows than before.
    pub(super) fn differs(
        &mut self,
        id: ShuffleId,
        group: GroupId,
        map: Option<u32>,
        effects: &mut Effects,
    ) {
        let shuffle = self.shuffles.get(&id);
        if shuffle.is_some_and(|shuffle| shuffle.name_of(group).is_some()) {
            self.restart(id, map, effects);
        }
    }

    /// An attempt that nobody waits for has other rows than another one of its map. While what that one has is
    /// committed, that stays. During a comparison it is not known yet.
    pub(super) fn differs_late(
        &mut self,
        from: ServerId,
        id: ShuffleId,
        (group, map): (GroupId, Option<u32>),
        effects: &mut Effects,
    ) {
        let shuffle = self.shuffles.get_mut(&id);
        if shuffle.is_some_and(|shuffle| shuffle.is_written(from, effects)) {
            self.differs(id, group, map, effects);
        }
    }

    /// A map has other rows than those that may have been read. Rows of before and rows of now do not
    /// fit together, so that all of it is made again, and what was read, too.
    pub(super) fn restart(&mut self, id: ShuffleId, map: Option<u32>, effects: &mut Effects) {
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        shuffle.groups.clear();
        shuffle.committed = None;
        shuffle.transferred = MapSet::new();
        shuffle.begin_generation(id, effects);
        let maps = Runs::range(0, u64::from(shuffle.maps));
        effects.push(MasterEffect::NotDeterministic { shuffle: id, map });
        effects.push(MasterEffect::Invalidate {
            shuffle: id,
            maps,
            outputs: true,
        });
        self.settle(id, effects);
    }

    /// Groups are gone. Their partitions get a home anew, and the maps that had rows there run again.
    pub(super) fn lose_groups(&mut self, id: ShuffleId, lost: &[GroupId], effects: &mut Effects) {
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        let lost = lost.iter().filter_map(|group| shuffle.groups.remove(group));
        let lost: Vec<GroupState> = lost.collect();
        let touched = lost.iter().map(|group| group.touched.to_runs());
        let mut maps = touched.fold(Runs::new(), |maps, touched| maps.union(&touched));
        if maps.is_empty() && matches!(shuffle.phase, Phase::Committed) && shuffle.maps > 0 {
            // The barrier may be about to return what it was told before. The host engine begins it
            // anew only if one of its inputs is gone.
            maps.insert(0);
        }
        for group in shuffle.groups.values_mut() {
            // What is complete takes no rows: those of the lost group go to a new one. Also elsewhere, a map
            // that runs again may find that rows are missing at copies that were not heard any more.
            let is_beside = lost.iter().any(|lost| lost.partitions == group.partitions);
            if is_beside || (group.compared.is_some() && shuffle.has_epochs) {
                group.close();
            }
        }
        for map in maps.iter() {
            shuffle.transferred.remove(map as u32);
        }
        shuffle.begin_generation(id, effects);
        // Also without maps: the partitions have to be sealed at their new home.
        effects.push(MasterEffect::Invalidate {
            shuffle: id,
            maps,
            outputs: false,
        });
        self.settle(id, effects);
    }
}

impl Shuffle {
    /// Whether rows may still be written. Otherwise a process that has some learns that what was committed stays,
    /// as soon as that is so.
    pub(super) fn is_written(&mut self, from: ServerId, effects: &mut Effects) -> bool {
        match &mut self.phase {
            Phase::Open => return true,
            Phase::Sealing(sealing) => _ = sealing.late.insert(from),
            Phase::Committed => self.tell_late([from], true, effects),
        }
        false
    }

    /// Tells processes that have other rows whether what was committed stays. If it does not, they go on.
    pub(super) fn tell_late(
        &self,
        all: impl IntoIterator<Item = ServerId>,
        is_final: bool,
        effects: &mut Effects,
    ) {
        let Some(plan) = &self.plan else {
            return;
        };
        let plan = Arc::new(Plan {
            is_final,
            ..Plan::clone(plan)
        });
        effects.extend(all.into_iter().map(|to| MasterEffect::Send {
            to,
            message: ToNode::Plan(Arc::clone(&plan)),
        }));
    }

    pub(super) fn begin_generation(&mut self, id: ShuffleId, effects: &mut Effects) {
        self.generation = self.generation.next();
        let phase = mem::replace(&mut self.phase, Phase::Open);
        if let Phase::Sealing(sealing) = phase {
            sealing.answer(id, Err(CommitError::Again(id)), effects);
        }
    }
}
