//! What is in memory, and what goes to files.

use core::time::Duration;

use alloc::collections::{BTreeSet, VecDeque};
use alloc::format;
use alloc::string::ToString as _;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::server::fill::Fill;
use crate::server::ledger::{BATCH, Ledger};
use crate::server::storage::{Remote, Storage, Storages};
use crate::server::{Effects, Server, ServerEffect};
use crate::{ApplicationId, BatchId, GroupId, ShuffleError, ShuffleId, ToMaster};

/// Runs that are set aside since their disks do nothing, at most.
const MOST_STUCK: usize = 4;

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
    /// What the process takes.
    pub(super) ledger: Ledger,
    /// Bytes of the process's memory that pushes wait for at most, and the next read, and the copies that are
    /// filled.
    pub(super) pushes_want: u64,
    pub(super) reads_want: u64,
    pub(super) fills_want: u64,
    /// Bytes that were granted to put batches together again.
    pub(super) restoring: u64,
    /// What is being written: one run at a time, since disks are fast at large writes that follow one
    /// another.
    pub(super) spilling: Option<Spilling>,
    /// Runs at disks that do nothing: their batches are written elsewhere.
    stuck_spills: BTreeSet<u64>,
    /// Batches in memory of transfers that are partly in files, one of each: they keep their arena there.
    pub(super) rests: VecDeque<Rest>,
    next_run: u64,
    pub(super) storages: Storages,
}

/// What is left in memory of the transfers of a group.
pub(super) type Rest = (ShuffleId, GroupId, Vec<BatchId>);

/// A run that is being written.
#[derive(Debug)]
pub(super) struct Spilling {
    pub(super) run: u64,
    pub(super) shuffle: ShuffleId,
    pub(super) group: GroupId,
    storage: Storage,
    batches: Vec<BatchId>,
}

impl Memory {
    pub(super) fn new(remote: Remote) -> Self {
        Self {
            target: u64::MAX,
            limit: u64::MAX,
            resident: 0,
            arriving: 0,
            is_wanted: false,
            ledger: Ledger::default(),
            pushes_want: 0,
            reads_want: 0,
            fills_want: 0,
            restoring: 0,
            spilling: None,
            stuck_spills: BTreeSet::new(),
            rests: VecDeque::new(),
            next_run: 0,
            storages: Storages::new(remote),
        }
    }

    /// Whether a batch of this length can be let in, if so many percent are for others. One alone always
    /// can, as far as the process has room.
    pub(super) fn has_room(&self, length: u64, reserve: u64) -> bool {
        let taken = self.resident + self.arriving;
        let limit = self.limit - self.reserved(reserve);
        let is_within = taken == 0 || taken.saturating_add(length) <= limit;
        is_within && self.ledger.has_room(self.push_takes(length, reserve))
    }

    /// Whether batches of these lengths can all be let in, if so many percent are for others.
    pub(super) fn has_room_for_all(
        &self,
        lengths: impl Iterator<Item = u64>,
        reserve: u64,
    ) -> bool {
        let (mut bytes, mut takes) = (self.resident + self.arriving, 0_u64);
        for length in lengths {
            bytes = bytes.saturating_add(length);
            takes = takes.saturating_add(length).saturating_add(BATCH);
        }
        let is_within = bytes <= self.limit - self.reserved(reserve);
        is_within && self.ledger.has_room(self.push_takes(takes, reserve))
    }

    /// Bytes of which so many percent are for others.
    fn reserved(&self, reserve: u64) -> u64 {
        self.limit / 100 * reserve.min(100)
    }

    /// What the process must have room for, if a batch of this length is to be let in. What a read waits for is
    /// left to it.
    pub(super) fn push_takes(&self, length: u64, reserve: u64) -> u64 {
        let others = self.reserved(reserve).saturating_add(self.reads_want);
        length.saturating_add(BATCH).saturating_add(others)
    }

    /// A read waits, for so much of the process's memory if that is what it waits for.
    pub(super) fn want_to_read(&mut self, bytes: u64) {
        if self.reads_want == 0 && !self.ledger.has_room(bytes) {
            self.reads_want = bytes;
        }
    }

    /// Why no batch will have room, if so: files cannot be written, or rows take nothing and the process has no
    /// room.
    pub(super) fn failure(&self, is_idle: bool) -> Option<Arc<str>> {
        let is_full = is_idle && self.resident == 0 && self.ledger.is_fresh();
        let disks = self.storages.failure().map(|failure| {
            format!("its memory is full, and {failure}. Make room on them, or add servers")
        });
        let reason = disks.or_else(|| is_full.then(|| self.ledger.to_string()));
        reason.map(Into::into)
    }

    pub(super) fn retry_at(&self) -> Option<Duration> {
        let is_due = self.is_failing() && self.spilling.is_none();
        self.storages.retry_at().filter(|_| is_due)
    }

    /// Whether something is to be written, and could not be.
    pub(super) fn is_failing(&self) -> bool {
        let waits = self.is_short() || !self.rests.is_empty() || self.spilling.is_some();
        self.storages.is_failing() && waits
    }

    /// The first of so many numbers of runs that follow each other.
    pub(super) fn number(&mut self, count: u64) -> u64 {
        let first = self.next_run;
        self.next_run += count;
        first
    }

    /// Whether rows in memory are to go to files.
    fn is_short(&self) -> bool {
        let is_wanted = self.is_wanted || self.reads_want > 0 || self.fills_want > 0;
        self.resident > self.target || (is_wanted && self.resident > 0)
    }

    pub(super) fn spilling_of(&self, shuffle: ShuffleId, group: GroupId) -> Option<u64> {
        let spilling = self.spilling.as_ref()?;
        (spilling.shuffle == shuffle && spilling.group == group).then_some(spilling.run)
    }
}

impl Server {
    /// Bytes that were granted, and that may not be in memory yet.
    pub(super) fn open(&self) -> u64 {
        let arriving = self.memory.arriving + self.arriving.len() as u64 * BATCH;
        let filling: u64 = self.fills.values().map(Fill::bytes).sum();
        arriving + self.read_budget.taken() + filling + self.memory.restoring
    }

    /// Whether the process has room for a read that has waited since then. One that takes nothing needs none.
    /// One that is larger than all that can be given back begins without: it would wait forever. There is one of
    /// each application at most.
    pub(super) fn has_memory_for(
        &self,
        application: ApplicationId,
        bytes: u64,
        since: Duration,
    ) -> bool {
        let memory = &self.memory;
        if bytes == 0 {
            return true;
        }
        // A writer may be stopped in the middle of a batch.
        let can_come = memory.arriving > 0 && self.now < since + self.config.patience;
        let can_write = memory.resident > 0 && !memory.storages.is_failing();
        let can_wait = can_come || can_write || !memory.ledger.is_fresh();
        memory.ledger.has_room(bytes) || (!can_wait && self.read_budget.is_first(application))
    }

    /// Has the process measured, if something waits for its memory.
    pub(super) fn measure(&mut self, effects: &mut Effects) {
        let open = self.open();
        let memory = &mut self.memory;
        for bytes in [memory.reads_want, memory.pushes_want, memory.fills_want] {
            if bytes > 0
                && let Some(most) = memory.ledger.ask(bytes, open)
            {
                return effects.push(ServerEffect::Measure { most });
            }
        }
    }

    /// Begins to write the oldest transfers of the largest group, if there is more than the target, or
    /// what is left of transfers that are partly in files. All batches of a transfer go together, since
    /// they may be in one arena.
    pub(super) fn relieve(&mut self, effects: &mut Effects) {
        let memory = &self.memory;
        if memory.spilling.is_some() {
            return;
        }
        let Some(storage) = memory.storages.next(self.now) else {
            return;
        };
        let is_begun = memory.is_short() && self.spill_oldest(storage, effects);
        while !is_begun && let Some(rest) = self.memory.rests.pop_front() {
            if self.spill_rest(&rest, storage, effects) {
                return;
            }
        }
        if self.memory.spilling.is_none() && storage == Storage::Remote {
            self.spill_upload(effects);
        }
    }

    /// Begins to write what is to be in the remote store.
    fn spill_upload(&mut self, effects: &mut Effects) {
        let mut waiting = self.uploads.iter().filter(|&&(shuffle, group)| {
            let state = self.shuffles.get(&shuffle);
            let state = state.and_then(|held| held.groups.get(&group));
            state.is_some_and(|state| !state.idle.is_empty())
        });
        let Some(&(shuffle, group)) = waiting.next() else {
            return;
        };
        self.spill_of((shuffle, group), Storage::Remote, effects);
    }

    fn spill_oldest(&mut self, storage: Storage, effects: &mut Effects) -> bool {
        let groups = self.shuffles.iter().flat_map(|(&shuffle, held)| {
            let groups = held.groups.iter();
            groups.map(move |(&id, state)| (shuffle, id, state))
        });
        let largest = groups.max_by_key(|(.., state)| state.idle_bytes);
        match largest.map(|(shuffle, group, _)| (shuffle, group)) {
            Some(name) => self.spill_of(name, storage, effects),
            None => false,
        }
    }

    /// Begins to write the oldest transfers of a group.
    fn spill_of(
        &mut self,
        (shuffle, group): (ShuffleId, GroupId),
        storage: Storage,
        effects: &mut Effects,
    ) -> bool {
        let held = self.shuffles.get_mut(&shuffle);
        let Some(state) = held.and_then(|held| held.groups.get_mut(&group)) else {
            return false;
        };
        let run = self.memory.next_run;
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while bytes < self.config.run
            && let Some((_, oldest)) = state.idle.pop_first()
        {
            bytes += state.spill_attempt(oldest, run, &mut batches);
        }
        self.spill((shuffle, group), batches, storage, effects)
    }

    fn spill_rest(
        &mut self,
        (shuffle, group, rest): &Rest,
        storage: Storage,
        effects: &mut Effects,
    ) -> bool {
        let held = self.shuffles.get_mut(shuffle);
        let Some(state) = held.and_then(|held| held.groups.get_mut(group)) else {
            return false;
        };
        let mut batches = Vec::new();
        for &one in rest {
            state.spill_attempt(one, self.memory.next_run, &mut batches);
        }
        self.spill((*shuffle, *group), batches, storage, effects)
    }

    /// Begins to write the next run. Returns whether there is something to write.
    fn spill(
        &mut self,
        (shuffle, group): (ShuffleId, GroupId),
        batches: Vec<BatchId>,
        storage: Storage,
        effects: &mut Effects,
    ) -> bool {
        if batches.is_empty() {
            return false;
        }
        let run = self.memory.next_run;
        self.memory.next_run += 1;
        let tenant = self.tenant(shuffle);
        effects.push(ServerEffect::Spill {
            run,
            shuffle,
            group,
            storage,
            batches: batches.clone(),
            tenant,
        });
        self.memory.spilling = Some(Spilling {
            run,
            shuffle,
            group,
            storage,
            batches,
        });
        true
    }

    /// The disks of these runs do nothing: what is being written there is written elsewhere.
    pub(super) fn set_aside(&mut self, stuck: &BTreeSet<u64>, effects: &mut Effects) {
        if self.memory.stuck_spills.len() >= MOST_STUCK {
            return;
        }
        let spilling = &mut self.memory.spilling;
        let Some(spilling) = spilling.take_if(|spilling| stuck.contains(&spilling.run)) else {
            return;
        };
        let (shuffle, group) = (spilling.shuffle, spilling.group);
        self.memory.stuck_spills.insert(spilling.run);
        let held = self.shuffles.get_mut(&shuffle);
        if let Some(state) = held.and_then(|held| held.groups.get_mut(&group)) {
            // Otherwise it was dropped with its group.
            effects.push(ServerEffect::DropRun(spilling.run));
            let dropped = state.spilled(spilling.batches, None);
            self.drop_batches(shuffle, group, dropped, effects);
        }
    }

    /// A run is written, or could not be.
    pub(super) fn spilled(
        &mut self,
        run: u64,
        written: Result<(), Arc<str>>,
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        if self.memory.stuck_spills.remove(&run) {
            self.unpark(effects);
            return Ok(());
        }
        let Some(spilling) = self.memory.spilling.take_if(|spilling| spilling.run == run) else {
            return Err(ShuffleError::NotAwaited);
        };
        let is_written = written.is_ok();
        let storages = &mut self.memory.storages;
        match written {
            Ok(()) => storages.written(spilling.storage),
            Err(reason) => storages.failed(spilling.storage, reason, self.now, &self.config),
        }
        // Another storage may take what one does not.
        let is_failing = !is_written && storages.is_failing();
        let (shuffle, group) = (spilling.shuffle, spilling.group);
        let held = self.shuffles.get_mut(&shuffle);
        if let Some(state) = held.and_then(|held| held.groups.get_mut(&group)) {
            let dropped = state.spilled(spilling.batches, is_written.then_some(run));
            if is_written {
                state.runs.insert(run);
                state.has_files |= spilling.storage == Storage::Local;
            } else if is_failing && !state.role.is_sole && !state.is_poisoned {
                // The other copy goes on, and so can this one with what it has.
                state.is_poisoned = true;
                let poisoned = ToMaster::Poisoned { shuffle, group };
                self.report(shuffle, poisoned, effects);
            }
            self.drop_batches(shuffle, group, dropped, effects);
        }
        self.unpark(effects);
        Ok(())
    }
}
