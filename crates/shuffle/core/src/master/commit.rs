//! Whether all rows are there: what servers have is compared with what the receipts say.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem;

use crate::config::Guard;
use crate::master::{Effects, Master, Phase};
use crate::{
    Commit, CommitError, Expected, Generation, GroupId, MapSet, MasterEffect, Seal, ServerId,
    ShuffleId, Tally, ToNode, Verdict,
};

/// A barrier waits until all servers have compared.
#[derive(Debug)]
pub(super) struct Sealing {
    pub(super) asker: ServerId,
    ask: u64,
    /// Copies that have not answered, and what their receipts say.
    pub(super) awaited: BTreeMap<GroupId, Tally>,
    /// What all of them have together.
    total: Tally,
    /// Processes that have found other rows meanwhile.
    pub(super) late: BTreeSet<ServerId>,
}

impl Sealing {
    pub(super) fn answer(
        self,
        shuffle: ShuffleId,
        result: Result<Generation, CommitError>,
        effects: &mut Effects,
    ) {
        effects.push(MasterEffect::Send {
            to: self.asker,
            message: ToNode::Committed {
                shuffle,
                ask: self.ask,
                result,
            },
        });
    }
}

impl Master {
    /// A barrier has all receipts.
    pub(super) fn commit(
        &mut self,
        asker: ServerId,
        ask: u64,
        mut commit: Commit,
        effects: &mut Effects,
    ) {
        let id = commit.shuffle;
        let mut sealing = Sealing {
            asker,
            ask,
            awaited: BTreeMap::new(),
            total: commit.groups.values().map(|group| group.tally).sum(),
            late: BTreeSet::new(),
        };
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return sealing.answer(id, Err(CommitError::Ended(id)), effects);
        };
        let gone = |group: &&GroupId| !shuffle.groups.contains_key(group);
        let gone: BTreeSet<GroupId> = commit.groups.keys().filter(gone).copied().collect();
        if Guard::Generation.holds() && (shuffle.plan.is_none() || !gone.is_empty()) {
            let gone = gone.iter().flat_map(|&group| commit.maps_of(group));
            let maps: MapSet = gone.collect();
            effects.push(MasterEffect::Invalidate {
                shuffle: id,
                maps: maps.to_runs(),
                outputs: false,
            });
            return sealing.answer(id, Err(CommitError::Again(id)), effects);
        }
        if shuffle
            .committed
            .is_some_and(|before| before != sealing.total)
        {
            let is_late = commit.keeps && matches!(shuffle.phase, Phase::Committed);
            if is_late && Guard::Late.holds() {
                return sealing.answer(id, Err(CommitError::Late(id)), effects);
            }
            sealing.answer(id, Err(CommitError::Again(id)), effects);
            return self.restart(id, None, effects);
        }
        match shuffle.phase {
            Phase::Open => {}
            // A barrier that was cancelled may come late: these receipts are of other attempts, with the same
            // rows. Others were committed, and only those are kept.
            Phase::Committed => {
                return sealing.answer(id, Ok(shuffle.generation), effects);
            }
            // One of two barriers is late, and nobody knows which.
            Phase::Sealing(_) => return sealing.answer(id, Err(CommitError::Again(id)), effects),
        }
        let groups = shuffle.groups.keys();
        let groups: Vec<_> = groups.map(|&name| (name, commit.take(name))).collect();
        let is_other = |(name, expected): &&(GroupId, Expected)| {
            let before = shuffle.groups[name].compared;
            before.is_some_and(|before| before != expected.mark())
        };
        let others: Vec<GroupId> = groups
            .iter()
            .filter(is_other)
            .map(|(name, _)| *name)
            .collect();
        if !others.is_empty() {
            // Copies may have dropped what counts now.
            sealing.answer(id, Err(CommitError::Again(id)), effects);
            return self.lose_groups(id, &others, effects);
        }
        shuffle.round += 1;
        for (name, expected) in groups {
            let Some(state) = shuffle.groups.get_mut(&name) else {
                continue;
            };
            state.compared = Some(expected.mark());
            for &server in &state.copies {
                let group = name.at(server);
                sealing.awaited.insert(group, expected.tally);
                let seal = Seal {
                    shuffle: id,
                    generation: shuffle.generation,
                    group,
                    round: shuffle.round,
                    expected: expected.clone(),
                };
                effects.push(MasterEffect::Send {
                    to: server,
                    message: ToNode::Seal(seal),
                });
            }
        }
        shuffle.phase = Phase::Sealing(sealing);
    }

    /// A server has compared.
    pub(super) fn sealed(
        &mut self,
        id: ShuffleId,
        (group, round): (GroupId, u32),
        verdict: Verdict,
        effects: &mut Effects,
    ) {
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        let Phase::Sealing(sealing) = &mut shuffle.phase else {
            return;
        };
        if round != shuffle.round {
            return;
        }
        let Some(expected) = sealing.awaited.remove(&group) else {
            return;
        };
        match verdict {
            Verdict::Complete => self.conclude(id, effects),
            Verdict::Short { .. } if !shuffle.is_sole_copy(group) => {
                // What is short on one is read from the other.
                self.lose_copies(id, &[group], effects);
            }
            Verdict::Short { found, missing } if shuffle.repairs >= self.config.repairs => {
                let error = CommitError::Damaged {
                    shuffle: id,
                    group,
                    expected,
                    found,
                    missing,
                };
                if let Phase::Sealing(mut sealing) = mem::replace(&mut shuffle.phase, Phase::Open) {
                    shuffle.tell_late(mem::take(&mut sealing.late), false, effects);
                    sealing.answer(id, Err(error), effects);
                }
            }
            Verdict::Short { .. } => self.damaged(id, group, effects),
            Verdict::Differs => self.differs(id, group, None, effects),
        }
    }

    /// Ends a barrier if nothing is awaited any more.
    pub(super) fn conclude(&mut self, id: ShuffleId, effects: &mut Effects) {
        let Some(shuffle) = self.shuffles.get_mut(&id) else {
            return;
        };
        if !matches!(&shuffle.phase, Phase::Sealing(sealing) if sealing.awaited.is_empty()) {
            return;
        }
        let generation = shuffle.generation;
        let phase = mem::replace(&mut shuffle.phase, Phase::Committed);
        if let Phase::Sealing(mut sealing) = phase {
            shuffle.committed = Some(sealing.total);
            shuffle.shrink();
            shuffle.tell_late(mem::take(&mut sealing.late), true, effects);
            sealing.answer(id, Ok(generation), effects);
        }
        // From now on one copy in the remote store is enough.
        if shuffle
            .groups
            .values()
            .any(|group| group.uploaded.is_some())
        {
            self.settle(id, effects);
        }
    }
}
