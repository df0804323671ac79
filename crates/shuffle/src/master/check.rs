//! What is always true of a master.

use alloc::collections::BTreeMap;

use treadle_types::Runs;

use crate::config::Guard;
use crate::master::{Master, Phase, Shuffle};
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
        let maps = Runs::range(0, u64::from(shuffle.maps));
        let mut assigned = Runs::new();
        for (&group, state) in &shuffle.groups {
            let what = if state.partitions.is_empty() {
                "it has no partitions"
            } else if !state.partitions.is_disjoint(&assigned) {
                "another group has one of its partitions"
            } else if !self.servers.contains_key(&group.server) {
                "its server is gone"
            } else if group.epoch > shuffle.generation {
                "it is of a generation that has not begun"
            } else if !state.touched.is_subset(&maps) {
                "maps have rows here that do not exist"
            } else if !shuffle.followers.contains(&group.server) {
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
        for (group, state) in &shuffle.groups {
            let mut partitions = state.partitions.iter();
            if !partitions.all(|partition| layout.home(partition as u32) == Some(group.server)) {
                return broken("a partition is not at its home");
            }
        }
        if layout.partitions() != shuffle.partitions {
            return broken("its layout has another number of partitions");
        }
        if let Some(plan) = &shuffle.plan {
            let same = plan
                .groups
                .iter()
                .map(|group| (group.id, &group.partitions));
            let groups = shuffle.groups.iter();
            if !same.eq(groups.map(|(&id, state)| (id, &state.partitions))) {
                return broken("others were told something else");
            }
            if assigned != shuffle.outputs || plan.generation != shuffle.generation {
                return broken("not every output is in a group");
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
            if sealing.awaited.is_empty() || !awaited.all(|g| shuffle.groups.contains_key(g)) {
                return broken("a barrier waits for what cannot come");
            }
        }
        Ok(())
    }
}
