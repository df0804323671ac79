//! Sealed copies in the remote store: one there is enough, since another server can adopt it.
//!
//! ```text
//!   sealed ──▶ wanted ──all rows are there──▶ writing the inventory ──▶ done, and the master knows
//!                                                                        ▲
//!   a plan with an upload, to who has nothing ──▶ adopting ──compared───┘
//! ```

use core::time::Duration;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::config::{Guard, pause};
use crate::server::counts::Counts;
use crate::server::group::{Attempt, Batch, GroupState};
use crate::server::memory::Memory;
use crate::server::{Effects, Place, Remote, Server, ServerEffect, Storage};
use crate::{
    BatchId, Expected, Generation, Group, GroupId, Seal, ShuffleId, Tally, ToMaster, Uploaded,
};

/// How often an inventory is written, if the store does not take it.
const TRIES: u32 = 6;
/// The runs of a copy that is adopted, at most.
const MOST_RUNS: u64 = 1 << 20;

/// What a copy consists of, beside its runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inventory {
    pub shuffle: ShuffleId,
    /// The epoch of its group.
    pub epoch: Generation,
    /// What it was sealed with.
    pub expected: Expected,
    /// So many maps with consecutive numbers are counted together.
    pub stripe: u32,
    /// What all of its batches have, with half of the digest, by stripe and position of the partition.
    pub counts: Vec<((u32, u32), Tally)>,
}

/// What was found in the remote store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adopted {
    pub inventory: Inventory,
    /// The batches of each run, with their tallies and lengths.
    pub runs: Vec<Vec<(BatchId, Tally, u64)>>,
}

/// How far a copy is on its way to the remote store, or from there.
#[derive(Debug)]
pub(super) enum Upload {
    Not,
    Wanted {
        at: Duration,
    },
    /// Its inventory is being written, under this number.
    Writing(u64),
    /// It is there, with an inventory of this number.
    Done(u64),
    Adopting(Adopting),
}

/// A copy that is being adopted: nothing of it is here yet.
#[derive(Debug)]
pub(super) struct Adopting {
    /// The number of the inventory.
    first: u64,
    mark: u64,
    /// A comparison that the master waits for.
    pub(super) seal: Option<Seal>,
}

impl Server {
    /// A copy may have to be in the remote store: one that is complete, and from which others are filled.
    pub(super) fn want_upload(&mut self, shuffle: ShuffleId, group: GroupId) {
        let held = self.shuffles.get_mut(&shuffle);
        let Some(state) = held.and_then(|held| held.groups.get_mut(&group)) else {
            return;
        };
        let is_wanted = self.config.remote == Remote::First
            && state.sealed.is_some()
            && state.role.is_first
            && !state.has_files;
        if is_wanted && matches!(state.upload, Upload::Not) {
            let at = Duration::ZERO;
            state.upload = Upload::Wanted { at };
            self.uploads.insert((shuffle, group));
        }
    }

    /// Writes what is to be in the remote store, and says what is there.
    pub(super) fn pump_uploads(&mut self, effects: &mut Effects) {
        if self.uploads.is_empty() {
            return;
        }
        if self.memory.storages.next(self.now) == Some(Storage::Remote) {
            self.relieve(effects);
        }
        let mut gone = Vec::new();
        for &(shuffle, group) in &self.uploads {
            let held = self.shuffles.get_mut(&shuffle);
            let state = held.and_then(|held| held.groups.get_mut(&group));
            let Some(state) = state.filter(|state| !state.has_files) else {
                gone.push((shuffle, group));
                continue;
            };
            let Upload::Wanted { at } = state.upload else {
                continue;
            };
            let is_spilling = self.memory.spilling_of(shuffle, group).is_some();
            let is_whole = state.idle.is_empty() && !is_spilling;
            if at <= self.now && (is_whole || !Guard::Whole.holds()) {
                let number = self.memory.number(1);
                effects.extend(state.write_inventory((shuffle, group), number));
            }
        }
        for name in gone {
            self.uploads.remove(&name);
        }
    }

    /// When something is to be tried again.
    pub(super) fn uploads_due(&self) -> Option<Duration> {
        let waiting = self.uploads.iter().filter_map(|(shuffle, group)| {
            let state = self.shuffles.get(shuffle)?.groups.get(group)?;
            match state.upload {
                Upload::Wanted { at } if state.idle.is_empty() => Some(at),
                Upload::Wanted { .. } => Some(self.memory.storages.upload_at()),
                _ => None,
            }
        });
        waiting.filter(|&at| at > self.now).min()
    }

    /// An inventory is in the store, or could not be written.
    pub(super) fn inventory_written(
        &mut self,
        (shuffle, group): (ShuffleId, GroupId),
        number: u64,
        written: Result<Arc<str>, Arc<str>>,
        effects: &mut Effects,
    ) {
        let held = self.shuffles.get_mut(&shuffle);
        let Some(state) = held.and_then(|held| held.groups.get_mut(&group)) else {
            return;
        };
        let (Upload::Writing(awaited), Some(expected)) = (&state.upload, &state.sealed) else {
            return;
        };
        if *awaited != number {
            return;
        }
        let tries = state.upload_tries;
        match written {
            Ok(inventory) => {
                let mark = expected.mark();
                state.upload = Upload::Done(number);
                self.uploads.remove(&(shuffle, group));
                let uploaded = Uploaded { inventory, mark };
                let report = ToMaster::Uploaded {
                    shuffle,
                    group,
                    uploaded,
                };
                self.report(shuffle, report, effects);
            }
            Err(_) if tries < TRIES => {
                let at = self.now + pause(&self.config, tries);
                state.upload_tries += 1;
                state.upload = Upload::Wanted { at };
            }
            // The other copy stays.
            Err(_) => {
                state.upload = Upload::Not;
                self.uploads.remove(&(shuffle, group));
            }
        }
    }

    /// An inventory was read.
    pub(super) fn inventory_read(
        &mut self,
        (shuffle, group): (ShuffleId, GroupId),
        first: u64,
        found: Result<Adopted, u64>,
        effects: &mut Effects,
    ) {
        let opened = match &found {
            Ok(found) => 1 + found.runs.len() as u64,
            Err(opened) => *opened,
        };
        let numbers = first..first + opened;
        let held = self.shuffles.get_mut(&shuffle);
        let held = held.and_then(|held| Some((held.groups.get_mut(&group)?, &held.plan)));
        let adopting = held.and_then(|(state, plan)| match &mut state.upload {
            Upload::Adopting(adopting) if adopting.first == first => {
                let (mark, seal) = (adopting.mark, adopting.seal.take());
                Some((state, plan, mark, seal))
            }
            _ => None,
        });
        let Some((state, plan, mark, seal)) = adopting else {
            // It is not wanted any more. Others may want it.
            return effects.extend(numbers.map(ServerEffect::LeaveRun));
        };
        let source = plan.group_of_epoch(group.epoch);
        let source = source.map_or(group, |source| group.at(source.copies[0]));
        state.upload = Upload::Not;
        let is_whole = found.is_ok();
        let is_adopted = found.is_ok_and(|found| {
            let is_it = (found.inventory.shuffle, found.inventory.epoch) == (shuffle, group.epoch);
            is_it && state.adopt(first, mark, found)
        });
        if !is_adopted {
            // Whoever has it now still needs it, and others may be able to adopt it.
            let is_left = is_whole || Guard::Opened.holds();
            effects.extend(numbers.map(|run| match is_left {
                true => ServerEffect::LeaveRun(run),
                false => ServerEffect::DropRun(run),
            }));
        }
        match (seal, is_adopted) {
            (Some(seal), _) => self.seal(seal, effects),
            (None, false) => self.report(shuffle, ToMaster::Damaged { shuffle, group }, effects),
            (None, true) => {}
        }
        if is_adopted {
            let filled = ToMaster::Filled {
                shuffle,
                group,
                source,
                is_sealed: true,
            };
            self.report(shuffle, filled, effects);
        }
    }
}

impl GroupState {
    /// Whether nothing of it is here yet.
    pub(super) fn is_adopting(&self) -> bool {
        matches!(self.upload, Upload::Adopting(_))
    }

    /// A new copy, as the plan says: it begins to adopt what is in the remote store, if something is.
    pub(super) fn adopting(
        mut self,
        (shuffle, copy): (ShuffleId, GroupId),
        group: &Group,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Self {
        let Some(uploaded) = &group.uploaded else {
            return self;
        };
        let first = memory.number(1 + MOST_RUNS);
        self.upload = Upload::Adopting(Adopting {
            first,
            mark: uploaded.mark,
            seal: None,
        });
        effects.push(ServerEffect::ReadInventory {
            shuffle,
            group: copy,
            first,
            name: Arc::clone(&uploaded.inventory),
        });
        self
    }

    fn write_inventory(
        &mut self,
        (shuffle, group): (ShuffleId, GroupId),
        number: u64,
    ) -> Option<ServerEffect> {
        let expected = self.sealed.clone()?;
        self.upload = Upload::Writing(number);
        let counts = self.counts.iter();
        let counts = counts.map(|((stripe, at), tally)| ((stripe, at as u32), tally));
        Some(ServerEffect::WriteInventory {
            shuffle,
            group,
            number,
            inventory: Inventory {
                shuffle,
                epoch: group.epoch,
                expected,
                stripe: self.counts.stripe(),
                counts: counts.collect(),
            },
            runs: self.runs.iter().copied().collect(),
        })
    }

    /// What was found is the copy, if it is what was sealed. Otherwise nothing has changed.
    fn adopt(&mut self, first: u64, mark: u64, found: Adopted) -> bool {
        let Inventory {
            expected,
            stripe,
            counts,
            ..
        } = found.inventory;
        let Some(counts) = Counts::adopted(&self.partitions, stripe, &counts) else {
            return false;
        };
        let mut adopted = Self::new(self.partitions.clone(), stripe.max(1));
        let mut whole = Tally::default();
        for (run, batches) in (first + 1..).zip(found.runs) {
            adopted.runs.insert(run);
            for (id, tally, length) in batches {
                whole.add(&tally);
                adopted.stored = adopted.stored.saturating_add(length);
                let attempt = adopted.attempts.entry((id.map, id.attempt));
                let attempt = attempt.or_insert_with(|| Attempt {
                    is_lost: expected.winners.get(id.map) != Some(id.attempt),
                    ..Attempt::default()
                });
                attempt.tally.add(&tally);
                let batch = Batch {
                    tally,
                    length,
                    arrival: 0,
                    table: None,
                    place: Place::Run(run),
                };
                if attempt.batches.insert(id.number, batch).is_some() {
                    return false;
                }
            }
        }
        let is_it = expected.mark() == mark
            && counts.whole().narrow() == whole.narrow()
            && adopted.compare(&expected, true) == crate::Verdict::Complete
            && adopted.runs.len() as u64 <= MOST_RUNS;
        if !is_it && Guard::Adopted.holds() {
            return false;
        }
        (adopted.role, adopted.counts) = (self.role, counts);
        (adopted.sealed, adopted.is_full) = (Some(expected), true);
        adopted.upload = Upload::Done(first);
        *self = adopted;
        true
    }

    /// The runs of a copy go, and its inventory. `is_left`: what is in the remote store as a whole stays there.
    pub(super) fn drop_runs(&self, is_left: bool) -> impl Iterator<Item = ServerEffect> {
        let (inventory, is_whole) = match self.upload {
            Upload::Writing(number) => (Some(number), false),
            Upload::Done(number) => (Some(number), true),
            _ => (None, false),
        };
        let runs: Vec<u64> = self.runs.iter().copied().chain(inventory).collect();
        runs.into_iter().map(move |run| match is_left && is_whole {
            true => ServerEffect::LeaveRun(run),
            false => ServerEffect::DropRun(run),
        })
    }

    /// What is in the store as a whole is nowhere else.
    pub(super) fn check_upload(&self) -> Result<(), &'static str> {
        match &self.upload {
            Upload::Adopting(_) if !self.attempts.is_empty() => Err("it is adopted, and has rows"),
            Upload::Writing(_) | Upload::Done(_) if self.has_files || self.sealed.is_none() => {
                Err("it is in the remote store, and not as a whole")
            }
            Upload::Done(_) if !self.idle.is_empty() && Guard::Whole.holds() => {
                Err("it is in the remote store, and rows are in memory")
            }
            _ => Ok(()),
        }
    }
}
