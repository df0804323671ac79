//! What is in memory, and what goes to files.

use core::time::Duration;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::config::pause;
use crate::server::{Effects, Place, Server, ServerEffect};
use crate::{BatchId, GroupId, ShuffleError, ShuffleId, ToMaster};

/// How much there is, and how much there may be.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) target: u64,
    pub(super) limit: u64,
    /// Bytes of batches in memory.
    pub(super) resident: u64,
    /// Bytes that were let in and have not arrived.
    pub(super) arriving: u64,
    /// Whether something waits for room.
    pub(super) is_wanted: bool,
    /// What is being written: one run at a time, since disks are fast at large writes that follow one
    /// another.
    pub(super) spilling: Option<Spilling>,
    /// Batches in memory of transfers that are partly in files, one of each: they keep their arena there.
    pub(super) rests: VecDeque<Rest>,
    next_run: u64,
    /// Writes that failed in a row, why the last one did, and when the next one is due.
    failures: u32,
    failure: Option<Arc<str>>,
    retry_at: Duration,
}

/// What is left in memory of the transfers of a group.
pub(super) type Rest = (ShuffleId, GroupId, Vec<BatchId>);

/// A run that is being written.
#[derive(Debug)]
pub(super) struct Spilling {
    pub(super) run: u64,
    pub(super) shuffle: ShuffleId,
    pub(super) group: GroupId,
    batches: Vec<BatchId>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            target: u64::MAX,
            limit: u64::MAX,
            resident: 0,
            arriving: 0,
            is_wanted: false,
            spilling: None,
            rests: VecDeque::new(),
            next_run: 0,
            failures: 0,
            failure: None,
            retry_at: Duration::ZERO,
        }
    }
}

impl Memory {
    /// Whether a batch of this length can be let in, if so many percent are for others. One alone always
    /// can.
    pub(super) fn has_room(&self, length: u64, reserve: u64) -> bool {
        let taken = self.resident + self.arriving;
        let limit = self.limit - self.limit / 100 * reserve.min(100);
        taken == 0 || taken.saturating_add(length) <= limit
    }

    /// Why files cannot be written, if they cannot.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.failure.clone()
    }

    pub(super) fn retry_at(&self) -> Option<Duration> {
        let is_due = self.is_failing() && self.spilling.is_none();
        is_due.then_some(self.retry_at)
    }

    /// Whether something is to be written, and could not be.
    pub(super) fn is_failing(&self) -> bool {
        let waits = self.is_short() || !self.rests.is_empty() || self.spilling.is_some();
        self.failure.is_some() && waits
    }

    /// Whether rows in memory are to go to files.
    fn is_short(&self) -> bool {
        self.resident > self.target || (self.is_wanted && self.resident > 0)
    }

    pub(super) fn spilling_of(&self, shuffle: ShuffleId, group: GroupId) -> Option<u64> {
        let spilling = self.spilling.as_ref()?;
        (spilling.shuffle == shuffle && spilling.group == group).then_some(spilling.run)
    }
}

impl Server {
    /// Begins to write the oldest transfers of the largest group, if there is more than the target, or
    /// what is left of transfers that are partly in files. All batches of a transfer go together, since
    /// they may be in one arena.
    pub(super) fn relieve(&mut self, effects: &mut Effects) {
        let memory = &self.memory;
        let waits = memory.failure.is_some() && self.now < memory.retry_at;
        if memory.spilling.is_some() || waits {
            return;
        }
        let is_begun = memory.is_short() && self.spill_oldest(effects);
        while !is_begun && let Some(rest) = self.memory.rests.pop_front() {
            if self.spill_rest(&rest, effects) {
                return;
            }
        }
    }

    fn spill_oldest(&mut self, effects: &mut Effects) -> bool {
        let groups = self.shuffles.iter_mut().flat_map(|(&shuffle, held)| {
            let groups = held.groups.iter_mut();
            groups.map(move |(&id, state)| (shuffle, id, state))
        });
        let largest = groups.max_by_key(|(.., state)| state.idle_bytes);
        let Some((shuffle, group, state)) = largest else {
            return false;
        };
        let run = self.memory.next_run;
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while bytes < self.config.run
            && let Some((_, oldest)) = state.idle.pop_first()
        {
            bytes += state.spill_attempt(oldest, run, &mut batches);
        }
        self.spill(shuffle, group, batches, effects)
    }

    fn spill_rest(&mut self, (shuffle, group, rest): &Rest, effects: &mut Effects) -> bool {
        let held = self.shuffles.get_mut(shuffle);
        let Some(state) = held.and_then(|held| held.groups.get_mut(group)) else {
            return false;
        };
        let mut batches = Vec::new();
        for &one in rest {
            state.spill_attempt(one, self.memory.next_run, &mut batches);
        }
        self.spill(*shuffle, *group, batches, effects)
    }

    /// Begins to write the next run. Returns whether there is something to write.
    fn spill(
        &mut self,
        shuffle: ShuffleId,
        group: GroupId,
        batches: Vec<BatchId>,
        effects: &mut Effects,
    ) -> bool {
        if batches.is_empty() {
            return false;
        }
        let run = self.memory.next_run;
        self.memory.next_run += 1;
        effects.push(ServerEffect::Spill {
            run,
            shuffle,
            group,
            batches: batches.clone(),
        });
        self.memory.spilling = Some(Spilling {
            run,
            shuffle,
            group,
            batches,
        });
        true
    }

    /// A run is written, or could not be.
    pub(super) fn spilled(
        &mut self,
        run: u64,
        written: Result<(), Arc<str>>,
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        let Some(spilling) = self.memory.spilling.take_if(|spilling| spilling.run == run) else {
            return Err(ShuffleError::NotAwaited);
        };
        let is_written = written.is_ok();
        if is_written {
            self.memory.failures = 0;
        } else {
            self.memory.retry_at = self.now + pause(&self.config, self.memory.failures);
            self.memory.failures += 1;
        }
        self.memory.failure = written.err();
        let (shuffle, group) = (spilling.shuffle, spilling.group);
        let held = self.shuffles.get_mut(&shuffle);
        if let Some(state) = held.and_then(|held| held.groups.get_mut(&group)) {
            let mut dropped = Vec::new();
            for id in spilling.batches {
                let Some(batch) = state.batch_mut(id) else {
                    continue;
                };
                let (length, arrival) = (batch.length, batch.arrival);
                if is_written {
                    batch.place = Place::Run(run);
                    batch.table = None;
                    dropped.push((id, length));
                    continue;
                }
                batch.place = Place::Memory;
                state.make_idle(id, length, arrival);
                let attempt = state.attempts.get(&(id.map, id.attempt));
                if attempt.is_some_and(|attempt| attempt.is_lost) {
                    dropped.extend(state.lose_attempt(id.map, id.attempt));
                }
            }
            if is_written {
                state.runs.insert(run);
            } else if !state.role.is_sole && !state.is_poisoned {
                // The other copy goes on, and so can this one with what it has.
                state.is_poisoned = true;
                let poisoned = ToMaster::Poisoned { shuffle, group };
                effects.push(ServerEffect::Report(poisoned));
            }
            self.drop_batches(shuffle, group, dropped, effects);
        }
        self.unpark(effects);
        Ok(())
    }
}
