//! Workers come, and are lost.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use treadle_types::{Cause, Failure, Loss, Symbol, TaskId, WorkerId};

use crate::class::ClassId;
use crate::scheduler::Scheduler;
use crate::task::{Flags, Phase};
use crate::worker::{Worker, WorkerStatus};
use crate::{Effects, SchedulerError, WorkerProfile};

/// A task may be lost so many times as often with workers that hardly ran it as with those that did.
const BYSTANDER: u32 = 16;

impl Scheduler {
    pub(crate) fn join(
        &mut self,
        worker: WorkerId,
        profile: WorkerProfile,
        effects: &mut Effects,
    ) -> Result<(), SchedulerError> {
        if !self.workers.admits(worker) {
            return Err(SchedulerError::WorkerId(worker));
        }
        self.admit(worker, profile, effects);
        Ok(())
    }

    /// Enters a worker into the table and all indices.
    pub(crate) fn admit(
        &mut self,
        worker: WorkerId,
        profile: WorkerProfile,
        effects: &mut Effects,
    ) {
        self.workers.join(worker, profile, self.now);
        self.moved();
        self.count_slots();
        self.relevel(worker);
        self.recount_classes();
        self.share_out();
        self.unpark();
        self.work.hungry.push(worker);
        for draining in self.draining() {
            self.advance_drain(draining, effects);
        }
    }

    /// A worker has other resources from now on.
    pub(crate) fn offer_resources(
        &mut self,
        worker: WorkerId,
        resources: Vec<(Symbol, f64)>,
    ) -> Result<(), SchedulerError> {
        let present = self.assigned_to(worker).into_iter();
        let mut classes: Vec<ClassId> = present.map(|id| self.tasks[id].class).collect();
        let Some(at) = self.workers.get_mut(worker) else {
            return Err(SchedulerError::UnknownWorker(worker));
        };
        classes.extend(at.stopping.values().map(|what| what.class));
        at.offer(resources);
        for class in classes {
            if let Some(class) = self.classes.get(class) {
                at.take(&class.constraint.resources, 1.0);
            }
        }
        self.moved();
        self.relevel(worker);
        self.recount_classes();
        // What it was to run next may be for others now.
        self.place_anew(worker);
        self.work.hungry.push(worker);
        Ok(())
    }

    /// Finds out anew who satisfies which constraints, after a worker came or went: others may have to
    /// stand in for a name that is gone.
    fn recount_classes(&mut self) {
        self.refresh_levels();
        for id in self.classes.ids() {
            self.recount_class(id);
        }
        let waiting = self
            .classes
            .iter()
            .filter(|(_, class)| !class.queue.is_empty());
        let hungry = waiting.flat_map(|(_, class)| class.open.iter());
        self.work.hungry.extend(hungry);
    }

    /// Counts the slots among which work is shared out.
    pub(crate) fn count_slots(&mut self) {
        let (mut threads, mut stopped) = (0, 0);
        for (_, at) in self.workers.iter() {
            if at.is_running() {
                threads += u64::from(at.profile.threads);
            } else {
                stopped += 1;
            }
        }
        self.workers.threads = threads;
        self.workers.stopped = stopped;
    }

    pub(crate) fn lose_worker(&mut self, worker: WorkerId, cause: Cause, effects: &mut Effects) {
        // Both look the worker up in the table, so before it leaves that.
        let assigned = self.assigned_to(worker);
        let suspects = match cause {
            // Who left as it was told did not die of what it ran.
            Cause::Drained => BTreeMap::new(),
            _ => self.suspects(worker, &assigned),
        };
        let Some(lost) = self.workers.lose(worker) else {
            return;
        };
        self.moved();
        self.cuts.forget(worker);
        for class in self.classes.ids() {
            if let Some(class) = self.classes.get_mut(class) {
                class.open.set(worker, None);
            }
        }
        self.count_slots();
        self.recount_classes();
        let Worker {
            profile,
            held,
            stopping,
            mut own,
            ..
        } = *lost;
        let loss = Loss {
            worker: profile.name,
            cause,
        };
        for entry in own.readers.take().into_iter().chain(own.creators.take()) {
            self.place_entry_anew(entry, worker);
        }
        // First all of them leave, so that none is taken for being on its way there.
        for &id in &assigned {
            self.detach(id);
        }
        for &id in &held {
            let task = &mut self.tasks[id];
            task.holders.retain(|holder| holder.worker != worker);
            if task.holders.is_empty() {
                self.lose_value(id, worker, effects);
            }
        }
        self.lose_performed(worker, effects);
        for &id in &assigned {
            let waits = matches!(self.tasks[id].phase, Phase::Waiting { .. });
            if waits && self.blame(id, &loss, suspects.get(&id).copied()) {
                self.await_inputs(id);
            }
        }
        // A class counts cancelled attempts until they are over.
        for what in stopping.values() {
            self.leave_class(what.class);
        }
        self.copies_lost(worker, effects);
        self.unpark();
        for draining in self.draining() {
            self.advance_drain(draining, effects);
        }
    }

    /// A task was at a worker that is gone.
    fn detach(&mut self, id: TaskId) {
        if let Phase::Retracting { thief, .. } = self.tasks[id].phase {
            if let Some(thief) = self.workers.get_mut(thief) {
                thief.incoming = thief.incoming.saturating_sub(1);
            }
            self.work.hungry.push(thief);
        }
        let task = &mut self.tasks[id];
        let kept = task.flags.has(Flags::KEEP);
        let worker = task.phase.run().map(|run| run.worker);
        task.flags.clear(Flags::OF_RUN);
        self.enter(id, Phase::WAITING);
        for index in 0..self.tasks[id].dependents.len() {
            let dependent = self.tasks[id].dependents[index].task;
            if let Phase::Waiting { near, here } = &mut self.tasks[dependent].phase
                && kept
                && Some(*near) == worker
            {
                *here = here.saturating_sub(1);
            }
        }
    }

    /// The tasks at a worker that it may have started, and whether it probably has. The scheduler
    /// does not know: a worker runs as many as it has slots, the most urgent first, and what has
    /// started stays. So it suspects the most urgent ones and the oldest ones, and hardly blames what
    /// only waited behind them.
    fn suspects(&self, worker: WorkerId, assigned: &[TaskId]) -> BTreeMap<TaskId, bool> {
        let slots = self.workers.get(worker).map_or(0, |at| at.profile.threads) as usize;
        let mut suspects = BTreeMap::new();
        let mut runnable = Vec::new();
        for &id in assigned {
            let flags = self.tasks[id].flags;
            if !flags.has(Flags::AHEAD) {
                suspects.insert(id, flags.has(Flags::SECEDED | Flags::STARTED));
                runnable.push(id);
            }
        }
        suspects.extend(runnable.iter().take(slots).map(|&id| (id, true)));
        runnable.sort_unstable_by_key(|&id| (self.tasks[id].priority, id));
        suspects.extend(runnable.iter().take(slots).map(|&id| (id, true)));
        suspects
    }

    /// Counts a loss against a task that is suspected, or was near; whether it may run again.
    fn blame(&mut self, id: TaskId, loss: &Loss, suspected: Option<bool>) -> bool {
        let Some(suspected) = suspected else {
            return true;
        };
        let allowed = self.config.allowed_losses;
        let trouble = self.trouble.entry(id).or_default();
        if suspected {
            trouble.losses.push(loss.clone());
        } else {
            trouble.bystander += 1;
        }
        let bystander = BYSTANDER.saturating_mul(allowed.saturating_add(1));
        if trouble.losses.len() as u64 <= u64::from(allowed) && trouble.bystander <= bystander {
            return true;
        }
        if !suspected {
            trouble.losses.push(loss.clone());
        }
        let failure = Failure::WorkersLost {
            task: id,
            losses: trouble.losses.clone(),
        };
        self.work.failing.push((id, Arc::new(failure)));
        false
    }

    /// A worker shall leave.
    pub(crate) fn drain(
        &mut self,
        worker: WorkerId,
        effects: &mut Effects,
    ) -> Result<(), SchedulerError> {
        let now = self.now;
        let Some(at) = self.workers.get_mut(worker) else {
            return Err(SchedulerError::UnknownWorker(worker));
        };
        if at.status() == WorkerStatus::Draining {
            return Ok(());
        }
        at.drain = Some(crate::worker::Drain {
            since: now,
            copies: 0,
            reported: false,
        });
        self.moved();
        self.count_slots();
        self.relevel(worker);
        self.recount_classes();
        self.place_anew(worker);
        for id in self.assigned_to(worker) {
            let task = &self.tasks[id];
            if !task.flags.has(Flags::SECEDED | Flags::STARTED) {
                self.retract(id, worker, effects);
            }
        }
        self.advance_drain(worker, effects);
        Ok(())
    }

    /// The tasks that were sent to a worker, the oldest first; cancelled ones are not among them.
    pub(crate) fn assigned_to(&self, worker: WorkerId) -> Vec<TaskId> {
        let sent = self.workers.get(worker).into_iter().flat_map(|at| &at.sent);
        let present = sent.filter(|&&object| self.tasks.is_at_worker(object, worker));
        present.map(|object| object.task).collect()
    }
}
