//! What is always true of a master.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use treadle_types::Runs;

use crate::config::Guard;
use crate::master::{GroupState, Master, Phase, Shuffle};
use crate::{Broken, ShuffleId};

impl Master {
    /// Verifies the invariants.
    ///
    /// # Errors
    /// [`Broken`]: one does not hold.
    pub fn check(&self) -> Result<(), Broken> {
        let mut users = BTreeMap::<ShuffleId, u32>::new();
        for (&id, shuffle) in &self.shuffles {
            *users.entry(shuffle.layout).or_default() += 1;
            self.check_shuffle(id, shuffle)?;
        }
        self.check_loads()?;
        for (id, layout) in &self.layouts {
            let found = users.get(id).copied().unwrap_or(0);
            if found == 0 || found != layout.users {
                return Err(Broken::Sum {
                    what: "shuffles of a layout",
                    counted: u64::from(layout.users),
                    found: u64::from(found),
                });
            }
        }
        Ok(())
    }

    fn check_shuffle(&self, id: ShuffleId, shuffle: &Shuffle) -> Result<(), Broken> {
        let broken = |what| Err(Broken::Plan { shuffle: id, what });
        let mut assigned = Runs::new();
        // By the first partition: the partitions, and whether one of the groups is open.
        let mut chains = BTreeMap::<u64, (&Runs, bool)>::new();
        let has_twice = |state: &GroupState| {
            let holders: Vec<_> = state.holders().collect();
            (1..holders.len()).any(|end| holders[..end].contains(&holders[end]))
        };
        for (&group, state) in &shuffle.groups {
            let first = state.partitions.first().unwrap_or_default();
            let chain = chains.entry(first).or_insert((&state.partitions, false));
            let is_chained = *chain.0 == state.partitions && !(chain.1 && state.is_open);
            chain.1 |= state.is_open;
            let may_share = shuffle.has_epochs && is_chained;
            let what = if state.partitions.is_empty() {
                "it has no partitions"
            } else if !may_share && !state.partitions.is_disjoint(&assigned) {
                "another group has one of its partitions"
            } else if !state
                .holders()
                .all(|holder| self.servers.contains_key(&holder))
            {
                "its server is gone"
            } else if state.copies.is_empty() || has_twice(state) {
                "it has no copy, or one server has two"
            } else if state
                .uploaded
                .as_ref()
                .is_some_and(|it| !state.copies.contains(&it.owner))
            {
                "nobody keeps what is in the remote store"
            } else if group.epoch > shuffle.generation {
                "it is of a generation that has not begun"
            } else if state.touched.last().is_some_and(|map| map >= shuffle.maps) {
                "maps have rows here that do not exist"
            } else if !state
                .holders()
                .all(|holder| shuffle.followers.contains(&holder))
            {
                "its server was not told"
            } else {
                assigned = assigned.union(&state.partitions);
                continue;
            };
            return Err(Broken::Group {
                shuffle: id,
                group,
                what,
            });
        }
        let layout = &self.layouts[&shuffle.layout];
        for (group, state) in shuffle.groups.iter().filter(|_| !shuffle.has_epochs) {
            let mut partitions = state.partitions.iter();
            if !partitions.all(|partition| layout.home(partition as u32) == Some(group.server)) {
                return broken("a partition is not at its home");
            }
        }
        if layout.partitions() != shuffle.partitions {
            return broken("its layout has another number of partitions");
        }
        if let Some(plan) = &shuffle.plan {
            let same = plan.groups.iter().map(|group| {
                (
                    group.id,
                    &group.partitions,
                    group.holders().collect::<Vec<_>>(),
                )
            });
            let groups = shuffle.groups.iter();
            let groups = groups
                .map(|(&id, state)| (id, &state.partitions, state.holders().collect::<Vec<_>>()));
            if !same.eq(groups) {
                return broken("others were told something else");
            }
            if assigned != shuffle.outputs || plan.generation != shuffle.generation {
                return broken("not every output is in a group");
            }
            let takes = shuffle.groups.values().filter(|group| group.is_open);
            let takes = takes.fold(Runs::new(), |all, group| all.union(&group.partitions));
            if matches!(shuffle.phase, Phase::Open) && takes != shuffle.outputs {
                return broken("an output is in no group that takes rows");
            }
        }
        let live = shuffle
            .followers
            .iter()
            .all(|f| self.servers.contains_key(f));
        if Guard::Incarnation.holds() && !live {
            return broken("who was told is gone");
        }
        if let Phase::Sealing(sealing) = &shuffle.phase {
            let mut awaited = sealing.awaited.keys();
            if sealing.awaited.is_empty() || !awaited.all(|&g| shuffle.name_of(g).is_some()) {
                return broken("a barrier waits for what cannot come");
            }
        }
        Ok(())
    }
}
