//! What is always true of a server.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::config::Guard;
use crate::server::fill::Fill;
use crate::server::group::GroupState;
use crate::server::{Held, Server, mine};
use crate::{Broken, GroupId, Place, ShuffleId, Tally};

impl Server {
    /// Verifies the invariants.
    ///
    /// # Errors
    /// [`Broken`]: one does not hold.
    pub fn check(&self) -> Result<(), Broken> {
        let mut resident = 0;
        for (&shuffle, held) in &self.shuffles {
            self.check_plan(shuffle, held)?;
            for (&group, state) in &held.groups {
                let broken = |what| Broken::Group {
                    shuffle,
                    group,
                    what,
                };
                self.check_group(shuffle, group, state)?;
                state.check(Guard::Receipts.holds()).map_err(broken)?;
                state.check_upload().map_err(broken)?;
                resident += state.resident().map(|(_, length)| length).sum::<u64>();
            }
        }
        Broken::unless_equal("bytes in memory", self.memory.resident, resident)?;
        let arriving = self.arriving.values().map(|coming| coming.length).sum();
        Broken::unless_equal("bytes that arrive", self.memory.arriving, arriving)?;
        let mut unwanted = self.unwanted.iter();
        let is_there = unwanted.all(|batch| self.arriving.contains_key(batch));
        Broken::unless_equal("unwanted batches that do not arrive", 1, is_there.into())?;
        for (counted, found) in self.fills.values().map(Fill::sums) {
            Broken::unless_equal("bytes under way to a copy", counted, found)?;
        }
        let most = self.config.parked as u64;
        Broken::unless_equal(
            "parked beyond the bound",
            0,
            (self.parked.len() as u64).saturating_sub(most),
        )?;
        let parked = self.parked.iter();
        let names: BTreeSet<_> = parked
            .map(|parked| (parked.from, parked.push.name()))
            .collect();
        let (all, different) = (self.parked.len() as u64, names.len() as u64);
        Broken::unless_equal("parked pushes of one name", all, different)?;
        let waiting = self.waiting.len() as u64;
        Broken::unless_equal("reads beyond the bound", 0, waiting.saturating_sub(most))?;
        if self.read_budget.is_empty() && self.memory.reads_want == 0 {
            Broken::unless_equal("reads that could begin", 0, waiting)?;
        }
        self.read_budget.check()?;
        self.masters.check()?;
        for (&load, reading) in &self.readings {
            let held = self.shuffles.get(&reading.fetch.shuffle);
            let is_there = held.is_some_and(|held| held.groups.contains_key(&reading.group));
            let is_counted = self.read_budget.has(load);
            if !is_there || !is_counted || reading.loaded.values().all(Option::is_some) {
                return Err(Broken::Group {
                    shuffle: reading.fetch.shuffle,
                    group: reading.group,
                    what: "a read waits for nothing",
                });
            }
        }
        Ok(())
    }

    fn check_plan(&self, shuffle: ShuffleId, held: &Held) -> Result<(), Broken> {
        let mine: BTreeMap<GroupId, _> = mine(held.me, &held.plan)
            .map(|(copy, _, group)| (copy, &group.partitions))
            .collect();
        let groups = held.groups.iter();
        let groups = groups.map(|(&id, state)| (id, &state.partitions));
        let broken = |what| Err(Broken::Plan { shuffle, what });
        if self.masters.me(held.link) != Some(held.me) {
            return broken("its master is gone");
        }
        match mine.into_iter().eq(groups) {
            true => Ok(()),
            false => broken("a server has other groups than its plan"),
        }
    }

    fn check_group(
        &self,
        shuffle: ShuffleId,
        group: GroupId,
        state: &GroupState,
    ) -> Result<(), Broken> {
        for (batch, stored) in state.batches() {
            let what = match stored.place {
                Place::Memory if state.idle.get(&stored.arrival) != Some(&batch) => {
                    "it is in memory, and will never be written"
                }
                Place::Spilling(run) if self.memory.spilling_of(shuffle, group) != Some(run) => {
                    "it is being written, and nothing is"
                }
                Place::Run(run) if !state.runs.contains(&run) => {
                    "it is in a file that is not there"
                }
                Place::Run(_) if stored.table.is_some() => "it is in a file, and its table is kept",
                Place::Memory | Place::Spilling(_) if stored.table.is_none() => {
                    "it is in memory without its table"
                }
                _ => continue,
            };
            return Err(Broken::Batch {
                shuffle,
                group,
                batch,
                what,
            });
        }
        Ok(())
    }
}

impl GroupState {
    fn check(&self, compares: bool) -> Result<(), &'static str> {
        let (mut idle, mut all) = (0, Tally::default());
        let mut in_memory = self.counts.emptied();
        let mut is_all_in_memory = true;
        for attempt in self.attempts.values() {
            let tally: Tally = attempt.batches.values().map(|batch| batch.tally).sum();
            if tally != attempt.tally || attempt.batches.is_empty() {
                return Err("an attempt has other batches than are counted");
            }
            all.add(&tally);
        }
        for (id, batch) in self.batches() {
            if batch.place == Place::Memory {
                idle += batch.length;
            }
            is_all_in_memory &= batch.table.is_some();
            if let Some(table) = &batch.table {
                in_memory.add(id.map, table);
            }
        }
        if idle != self.idle_bytes {
            return Err("more or fewer bytes can be written than are counted");
        }
        if self.counts.whole().narrow() != all.narrow() {
            return Err("partitions have other rows than batches");
        }
        if is_all_in_memory && !in_memory.iter().eq(self.counts.iter()) {
            return Err("a partition has other rows than its batches");
        }
        if let Some(index) = &self.index
            && *index != self.make_index()
        {
            return Err("it is read from other batches than are there");
        }
        if let Some(sealed) = &self.sealed
            && compares
        {
            let winners = sealed.winners.iter();
            let winners = winners.filter_map(|winner| self.attempts.get(&winner));
            let found: Tally = winners.map(|attempt| attempt.tally).sum();
            if found != sealed.tally {
                return Err("it is sealed, and has other rows");
            }
        }
        Ok(())
    }
}
