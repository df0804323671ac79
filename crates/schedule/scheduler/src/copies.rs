//! Copies of values: replicas, moves, those that a worker leaves behind, and ways around cuts.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_types::{Attempt, Command, Failure, ObjectId, TaskId, WorkerId};

use crate::Guard;
use crate::queue::Entry;
use crate::scheduler::Scheduler;
use crate::task::{Flags, Holder, Phase, QueueId};
use crate::worker::WorkerStatus;
use crate::{Effect, Effects, SchedulerError};

/// The how-manieth time that an input is out of reach makes the task fail.
const UNAVAILABLE: u32 = 8;

/// How often inputs are computed again for a task that cannot get at them.
const RECOMPUTED: u32 = 2;

/// What a copy is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// There shall be more of it.
    Replica,
    /// The one at this worker is dropped then.
    Move(WorkerId),
    /// This worker leaves.
    Drain(WorkerId),
    /// Tasks that cannot get at the value otherwise.
    Relay,
}

/// A copy that a worker was told to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copying {
    pub(crate) attempt: Attempt,
    pub(crate) purpose: Purpose,
}

/// Copies that are being made, by value and worker.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    pub(crate) pending: BTreeMap<(TaskId, WorkerId), Copying>,
}

impl Copies {
    fn of(&self, task: TaskId) -> impl Iterator<Item = (WorkerId, Copying)> + '_ {
        let all = (task, WorkerId(0))..=(task, WorkerId(u32::MAX));
        self.pending.range(all).map(|(&(_, to), &copy)| (to, copy))
    }
}

impl Scheduler {
    /// Tells a worker to make a copy.
    fn copy(&mut self, id: TaskId, to: WorkerId, purpose: Purpose, effects: &mut Effects) {
        let task = &self.tasks[id];
        let command = Command::Copy {
            object: self.tasks.object(id),
            nbytes: task.nbytes(),
            holders: self.holders_for(task, to),
        };
        let copying = Copying {
            attempt: task.attempt,
            purpose,
        };
        // A copy that was awaited there already serves this purpose from now on.
        let before = self.copies.pending.insert((id, to), copying);
        self.count_drain(before, false);
        self.count_drain(Some(copying), true);
        Self::tell(effects, to, command);
        self.moved();
    }

    /// Counts a copy that is made for a worker that leaves, or is no more.
    fn count_drain(&mut self, copying: Option<Copying>, begins: bool) {
        if let Some(Purpose::Drain(leaving)) = copying.map(|copying| copying.purpose)
            && let Some(at) = self.workers.get_mut(leaving)
            && let Some(drain) = &mut at.drain
        {
            match begins {
                true => drain.copies += 1,
                false => drain.copies -= 1,
            }
        }
    }

    /// The worker with the fewest bytes among those that can take a copy.
    fn target(&self, id: TaskId, among: &[WorkerId]) -> Option<WorkerId> {
        let task = &self.tasks[id];
        let fits = |worker: WorkerId| {
            let at = self.workers.get(worker)?;
            let able = at.status() != WorkerStatus::Draining
                && !task.is_at(worker)
                && !self.copies.pending.contains_key(&(id, worker))
                && self.reaches_value(id, worker);
            able.then_some((at.health.paused, at.bytes, worker))
        };
        let best = match among {
            [] => self
                .workers
                .iter()
                .filter_map(|(worker, _)| fits(worker))
                .min(),
            some => some.iter().filter_map(|&worker| fits(worker)).min(),
        };
        best.map(|(_, _, worker)| worker)
    }

    /// The value of a task that copies can be made of.
    fn is_copyable(&self, id: TaskId) -> bool {
        let task = self.tasks.get(id);
        task.is_some_and(|task| {
            matches!(task.phase, Phase::Memory { inline: false, .. })
                && !task.flags.has(Flags::ACTOR | Flags::IMMOVABLE)
        })
    }

    pub(crate) fn replicate(
        &mut self,
        tasks: &[TaskId],
        copies: u32,
        among: &[WorkerId],
        effects: &mut Effects,
    ) {
        let counts = |worker| among.is_empty() || among.contains(&worker);
        for &id in tasks {
            if !self.is_copyable(id) {
                continue;
            }
            let task = &mut self.tasks[id];
            task.flags.put(Flags::REPLICATED, copies > 1);
            let holders = task.holders.iter().map(|holder| holder.worker);
            let holders: Vec<_> = holders.filter(|&worker| counts(worker)).collect();
            let coming = self.copies.of(id).filter(|&(worker, _)| counts(worker));
            let mut count = holders.len() + coming.count();
            let copies = copies as usize;
            while count < copies
                && let Some(to) = self.target(id, among)
            {
                self.copy(id, to, Purpose::Replica, effects);
                count += 1;
            }
            for worker in holders.into_iter().rev() {
                if count <= copies || self.tasks[id].holders.len() == 1 {
                    break;
                }
                if self.drop_copy(id, worker, effects) {
                    count -= 1;
                }
            }
        }
    }

    /// Drops a copy that is not the last one and that no task at the worker is about to read; whether
    /// it was dropped.
    fn drop_copy(&mut self, id: TaskId, worker: WorkerId, effects: &mut Effects) -> bool {
        let task = &self.tasks[id];
        let read = task.dependents.iter().any(|edge| {
            let run = self.tasks[edge.task].phase.run();
            run.is_some_and(|run| run.worker == worker)
        });
        if read || task.holders.len() < 2 || !self.remove_holder(id, worker) {
            return false;
        }
        let object = self.tasks.object(id);
        Self::tell(effects, worker, Command::Release(object));
        true
    }

    /// Drops the copies of a value that were made for tasks that read it, when the last of these is
    /// done: somebody still wants the value, and one is enough for that. The oldest one stays.
    ///
    /// What is read again later is copied again, and then the copies stay, so that whoever submits
    /// reader after reader does not move the value each time. So do all copies of what a client
    /// brought.
    pub(crate) fn drop_read_copies(&mut self, id: TaskId, effects: &mut Effects) {
        let task = &self.tasks[id];
        let stays = Flags::REPLICATED | Flags::UNCOPIED | Flags::PUT | Flags::MORE_UNSENT;
        // A worker that leaves counts on the copies that there are.
        let leaves = |holder: &Holder| {
            let at = self.workers.get(holder.worker);
            at.is_none_or(|at| at.status() == WorkerStatus::Draining)
        };
        if task.readers + task.unsent > 0
            || task.holders.len() < 2
            || task.flags.has(stays)
            || task.holders.iter().any(leaves)
        {
            return;
        }
        let object = self.tasks.object(id);
        while let &[_, .., Holder { worker, .. }] = &self.tasks[id].holders[..] {
            self.remove_holder(id, worker);
            Self::tell(effects, worker, Command::Release(object));
        }
        self.tasks[id].flags.set(Flags::UNCOPIED);
    }

    pub(crate) fn move_value(
        &mut self,
        id: TaskId,
        from: WorkerId,
        to: WorkerId,
        effects: &mut Effects,
    ) -> Result<(), SchedulerError> {
        for worker in [from, to] {
            if self.workers.get(worker).is_none() {
                return Err(SchedulerError::UnknownWorker(worker));
            }
        }
        if !self.is_copyable(id) || !self.tasks[id].is_at(from) || from == to {
            return Ok(());
        }
        if self.tasks[id].is_at(to) {
            self.drop_copy(id, from, effects);
        } else {
            self.copy(id, to, Purpose::Move(from), effects);
        }
        Ok(())
    }

    /// A worker has a value: it was told to get it, or has read it for a task.
    pub(crate) fn stored(
        &mut self,
        worker: WorkerId,
        object: ObjectId,
        nbytes: u64,
        effects: &mut Effects,
    ) {
        let id = object.task;
        let copying = self.copies.pending.get(&(id, worker)).copied();
        let copying = copying.filter(|copy| copy.attempt == object.attempt);
        if copying.is_some() {
            self.copies.pending.remove(&(id, worker));
        }
        let task = match self.tasks.slot(id) {
            Some(task) if object.attempt <= task.attempt => task,
            _ => {
                let reason = format!("it stored {object:?}, which never was");
                return self.dismiss(worker, reason, effects);
            }
        };
        let current = object.attempt == task.attempt || !Guard::Attempt.holds();
        match task.phase {
            Phase::Memory { .. } if current => {
                self.add_holder(id, worker);
                if self.tasks[id].readers == 0 {
                    // Who was to read it has been cancelled.
                    self.work.unneeded.push(id);
                }
            }
            // It was lost while this copy was on its way, and is not being computed yet.
            Phase::Waiting { .. } | Phase::Ready(_) if current && task.flags.has(Flags::LOST) => {
                self.revive(id, worker, nbytes, effects);
            }
            _ => {
                self.late += 1;
                Self::tell(effects, worker, Command::Release(object));
                return self.copied(copying, effects);
            }
        }
        self.moved();
        match copying.map(|copying| copying.purpose) {
            Some(Purpose::Move(from)) => {
                self.drop_copy(id, from, effects);
            }
            Some(Purpose::Relay) => self.unpark(),
            _ => {}
        }
        if !self.parked.is_empty() {
            self.unpark();
        }
        self.copied(copying, effects);
    }

    /// A copy was made, or could not be: whoever leaves may have waited for it.
    fn copied(&mut self, copying: Option<Copying>, effects: &mut Effects) {
        if let Some(Copying {
            purpose: Purpose::Drain(leaving),
            ..
        }) = copying
        {
            self.count_drain(copying, false);
            self.advance_drain(leaving, effects);
        }
    }

    pub(crate) fn copy_failed(
        &mut self,
        worker: WorkerId,
        object: ObjectId,
        tried: &[WorkerId],
        effects: &mut Effects,
    ) {
        for &holder in tried {
            if holder != worker {
                self.cuts.add(worker, holder, self.now);
            }
        }
        let key = (object.task, worker);
        let copying = self.copies.pending.get(&key).copied();
        let Some(copying) = copying.filter(|copy| copy.attempt == object.attempt) else {
            self.late += 1;
            return;
        };
        self.copies.pending.remove(&key);
        self.moved();
        if let Purpose::Replica = copying.purpose
            && self.is_copyable(object.task)
            && let Some(to) = self.target(object.task, &[])
        {
            self.copy(object.task, to, Purpose::Replica, effects);
        }
        self.unpark();
        self.copied(Some(copying), effects);
    }

    /// A worker is gone, and with it the copies that it was to make.
    pub(crate) fn copies_lost(&mut self, worker: WorkerId, effects: &mut Effects) {
        let lost = self.copies.pending.iter();
        let lost: Vec<_> = lost
            .filter(|((_, to), _)| *to == worker)
            .map(|(&key, &copying)| (key, copying))
            .collect();
        for (key, copying) in lost {
            self.copies.pending.remove(&key);
            self.copied(Some(copying), effects);
        }
    }

    /// A value that a worker had cannot be read any more.
    pub(crate) fn gone(&mut self, worker: WorkerId, object: ObjectId, effects: &mut Effects) {
        let current = self.tasks.slot(object.task).map(|task| task.attempt);
        match current {
            Some(attempt) if object.attempt == attempt => {
                self.lose_copy(object.task, worker, effects);
            }
            Some(attempt) if object.attempt < attempt => self.late += 1,
            _ => {
                let reason = format!("it lost {object:?}, which never was");
                self.dismiss(worker, reason, effects);
            }
        }
    }

    /// A worker has a value no more.
    fn lose_copy(&mut self, id: TaskId, worker: WorkerId, effects: &mut Effects) {
        if self.remove_holder(id, worker) {
            self.moved();
            if self.tasks[id].holders.is_empty() {
                self.lose_value(id, worker, effects);
            }
        }
    }

    /// A worker gave a task back because it could not get an input.
    pub(crate) fn unavailable(
        &mut self,
        worker: WorkerId,
        object: ObjectId,
        input: ObjectId,
        tried: &[WorkerId],
        effects: &mut Effects,
    ) {
        let id = object.task;
        self.end_stay(id, true, effects);
        self.moved();
        for &holder in tried {
            if holder != worker {
                self.cuts.add(worker, holder, self.now);
            }
        }
        let known = self.tasks[id].inputs.iter().any(|e| e.task == input.task);
        // If it was listed as a holder of the input, it is none.
        if known && self.tasks[input.task].attempt == input.attempt {
            self.lose_copy(input.task, worker, effects);
        }
        let trouble = self.trouble.entry(id).or_default();
        trouble.unavailable += 1;
        if trouble.unavailable >= UNAVAILABLE {
            let failure = Failure::Unavailable {
                task: id,
                input: input.task,
            };
            self.work.failing.push((id, Arc::new(failure)));
        } else {
            self.await_inputs(id);
        }
    }

    /// No worker can get all inputs of a task: a third one makes a copy, or an input is computed
    /// again, or the task waits until the cuts are forgotten.
    pub(crate) fn bridge(&mut self, id: TaskId, effects: &mut Effects) {
        self.enqueue(id, QueueId::Parked);
        if self.relay(id, effects) {
            return;
        }
        let trouble = self.trouble.entry(id).or_default();
        trouble.recomputed += 1;
        if trouble.recomputed > RECOMPUTED {
            return;
        }
        let Some(input) = self.obstacle(id) else {
            return;
        };
        let flags = self.tasks[input].flags;
        if flags.has(Flags::PUT) || flags.has(Flags::ACTOR) {
            return;
        }
        let last = self.tasks[input].holders.last().map(|holder| holder.worker);
        self.drop_holders(input, effects);
        if let Some(last) = last {
            self.lose_value(input, last, effects);
        }
    }

    /// An input of a task that some worker, who may run the task, cannot get.
    fn obstacle(&self, id: TaskId) -> Option<TaskId> {
        let inputs = || self.tasks[id].inputs.iter().map(|edge| edge.task);
        let workers = self.workers.iter();
        let mut permitted = workers
            .filter(|(worker, at)| at.is_running() && self.permits(&self.tasks[id], *worker));
        permitted.find_map(|(worker, _)| inputs().find(|&input| !self.reaches_value(input, worker)))
    }

    /// Has a worker that reaches a holder, and is reached by one that may run the task, make a copy
    /// of what that one cannot get; whether there is a copy on its way.
    fn relay(&mut self, id: TaskId, effects: &mut Effects) -> bool {
        let mut found = None;
        'search: for (reader, at) in self.workers.iter() {
            if !at.is_running() || !self.permits(&self.tasks[id], reader) {
                continue;
            }
            for edge in &self.tasks[id].inputs {
                let input = edge.task;
                if self.reaches_value(input, reader) || !self.is_copyable(input) {
                    continue;
                }
                for (relay, at) in self.workers.iter() {
                    if at.status() == WorkerStatus::Draining
                        || relay == reader
                        || self.tasks[input].is_at(relay)
                        || self.cuts.has(reader, relay)
                        || !self.reaches_value(input, relay)
                    {
                        continue;
                    }
                    found = Some((input, relay));
                    break 'search;
                }
            }
        }
        let Some((input, relay)) = found else {
            return false;
        };
        if !self.copies.pending.contains_key(&(input, relay)) {
            self.copy(input, relay, Purpose::Relay, effects);
        }
        true
    }

    /// Something has changed about who can get what: tasks that waited for that are placed again.
    pub(crate) fn unpark(&mut self) {
        for id in core::mem::take(&mut self.parked) {
            let task = &self.tasks[id];
            if task.phase == Phase::Ready(QueueId::Parked) {
                let priority = task.priority;
                self.enter(id, Phase::WAITING);
                self.work.ready.push(Entry { priority, task: id });
            }
        }
    }

    /// The workers that were told to leave.
    pub(crate) fn draining(&self) -> Vec<WorkerId> {
        let workers = self.workers.iter();
        let draining = workers.filter(|(_, at)| at.drain.is_some());
        draining.map(|(worker, _)| worker).collect()
    }

    /// Has the needed values of a worker that leaves copied, and says when nothing is left.
    pub(crate) fn advance_drain(&mut self, worker: WorkerId, effects: &mut Effects) {
        let Some(at) = self.workers.get(worker) else {
            return;
        };
        let Some(drain) = at.drain.filter(|drain| !drain.reported) else {
            return;
        };
        if drain.copies > 0 {
            return;
        }
        let only_here: Vec<_> = at
            .held
            .iter()
            .copied()
            .filter(|&id| self.is_only_at_leaving(id))
            .collect();
        let mut stranded = 0;
        for id in only_here {
            match self.target(id, &[]) {
                Some(to) => self.copy(id, to, Purpose::Drain(worker), effects),
                None => stranded += 1,
            }
        }
        let Some(at) = self.workers.get_mut(worker) else {
            return;
        };
        let idle = at.tasks() == 0 && at.stopping.is_empty();
        // Where nobody can take them, the values are not worth more than somebody's patience.
        let waited = self.now.saturating_sub(drain.since) > self.config.patience;
        if let Some(drain) = &mut at.drain
            && idle
            && drain.copies == 0
            && (stranded == 0 || waited)
        {
            drain.reported = true;
            effects.0.push(Effect::Drained(worker));
        }
    }

    /// Whether a value is needed and would be lost if all workers left that were told to.
    fn is_only_at_leaving(&self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        let stays = |worker| {
            let at = self.workers.get(worker);
            at.is_some_and(|at| at.status() != WorkerStatus::Draining)
        };
        let needed = task.is_needed() || task.flags.has(Flags::PUT);
        needed && self.is_copyable(id) && !task.holders.iter().any(|holder| stays(holder.worker))
    }

    /// Forgets cuts that are old.
    pub(crate) fn expire_cuts(&mut self) {
        if self.cuts.expire(self.now) {
            self.unpark();
        }
    }

    /// How long ago something happened.
    pub(crate) fn since(&self, then: Duration) -> Duration {
        self.now.saturating_sub(then)
    }
}
