//! What workers report.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use treadle_types::{Cause, Command, Failure, ObjectId, Report, Returned, WorkerId};

use crate::Guard;
use crate::scheduler::Scheduler;
use crate::task::{Flags, Phase};
use crate::worker::{Health, Load, WorkerStatus};
use crate::{Effect, Effects};

/// What a report about an attempt can refer to.
enum Referent {
    /// A task that is at this worker.
    Present,
    /// A cancelled attempt that is still at this worker.
    Stopping,
    /// An attempt that is over, or was given to somebody else since.
    Past,
    /// An attempt that never was, or is another worker's.
    Impossible,
}

impl Scheduler {
    pub(crate) fn report(&mut self, worker: WorkerId, report: Report, effects: &mut Effects) {
        if self.workers.get(worker).is_none() && Guard::Incarnation.holds() {
            self.late += 1;
            return;
        }
        if let Some(at) = self.workers.get_mut(worker) {
            at.heard = self.now;
            // Health is told by the clock, whether tasks get on or not.
            if !matches!(report, Report::Health { .. }) {
                at.moved = self.now;
            }
        }
        match report {
            Report::Finished {
                object,
                value,
                duration,
            } => self.finished(worker, object, value, duration, effects),
            Report::Failed {
                object,
                error,
                duration,
            } => match self.referent(worker, object) {
                Referent::Present => {
                    let failure = Failure::Raised {
                        task: object.task,
                        error,
                    };
                    self.raised(object, failure, effects);
                    self.story.add_run(object.task, duration, 0);
                }
                other => self.over(other, worker, "failed", object, effects),
            },
            Report::Retracted(object) => match self.referent(worker, object) {
                Referent::Present => match self.tasks[object.task].phase {
                    Phase::Retracting { .. } => {
                        self.moved();
                        self.given_back(object.task, effects);
                    }
                    _ => self.misbehaves(worker, "gave back without being asked", object, effects),
                },
                other => self.over(other, worker, "gave back", object, effects),
            },
            Report::Started(object) => match self.referent(worker, object) {
                Referent::Present => self.started(object),
                Referent::Impossible => self.misbehaves(worker, "started", object, effects),
                Referent::Stopping | Referent::Past => self.late += 1,
            },
            Report::Stopped(object) => match self.referent(worker, object) {
                Referent::Present => self.misbehaves(worker, "stopped", object, effects),
                other => self.over(other, worker, "stopped", object, effects),
            },
            Report::Unavailable {
                object,
                input,
                tried,
            } => match self.referent(worker, object) {
                Referent::Present => self.unavailable(worker, object, input, &tried, effects),
                other => self.over(other, worker, "gave back", object, effects),
            },
            Report::GivenBack(object) => match self.referent(worker, object) {
                Referent::Present => self.run_elsewhere(worker, object.task, effects),
                other => self.over(other, worker, "gave back", object, effects),
            },
            Report::Immovable {
                object,
                input,
                error,
            } => match self.referent(worker, object) {
                Referent::Present => self.immovable(worker, object, input, error, effects),
                other => self.over(other, worker, "gave back", object, effects),
            },
            Report::Stored { object, nbytes } => self.stored(worker, object, nbytes, effects),
            Report::CopyFailed { object, tried } => {
                self.copy_failed(worker, object, &tried, effects);
            }
            Report::NotCopyable(object) => {
                self.fix(object);
                self.copy_failed(worker, object, &[], effects);
            }
            Report::Gone(object) => self.gone(worker, object, effects),
            Report::Seceded(object) => self.change_load(worker, object, true, effects),
            Report::Rejoined(object) => self.change_load(worker, object, false, effects),
            Report::Health {
                managed,
                process,
                spilled,
                paused,
            } => {
                let health = Health {
                    managed,
                    process,
                    spilled,
                    paused,
                };
                self.health(worker, health);
            }
        }
    }

    fn finished(
        &mut self,
        worker: WorkerId,
        object: ObjectId,
        value: Returned,
        duration: Duration,
        effects: &mut Effects,
    ) {
        let kept = value.kept;
        if !kept && value.inline.is_none() {
            let reason = format!("it finished {object:?} without a value");
            return self.dismiss(worker, reason, effects);
        }
        match self.referent(worker, object) {
            Referent::Present => {
                self.finish(object.task, worker, value, duration, effects);
            }
            Referent::Impossible => self.misbehaves(worker, "finished", object, effects),
            other => {
                if let Referent::Stopping = other {
                    self.stopped(worker, object);
                } else {
                    self.late += 1;
                }
                // The attempt is over, so nobody else would have the value dropped.
                if kept {
                    Self::tell(effects, worker, Command::Release(object));
                }
            }
        }
    }

    /// What a worker means by an attempt.
    fn referent(&self, worker: WorkerId, object: ObjectId) -> Referent {
        let Some(task) = self.tasks.slot(object.task) else {
            return Referent::Impossible;
        };
        let current = object.attempt == task.attempt;
        let here = task.phase.run().is_some_and(|run| run.worker == worker);
        if here && (current || !Guard::Attempt.holds()) {
            return Referent::Present;
        }
        let at = self.workers.get(worker);
        if at.is_some_and(|at| at.stopping.contains_key(&object)) {
            return Referent::Stopping;
        }
        if object.attempt > task.attempt || (current && task.phase.run().is_some()) {
            return Referent::Impossible;
        }
        Referent::Past
    }

    /// A report that ends an attempt which is none of the worker's present tasks.
    fn over(
        &mut self,
        referent: Referent,
        worker: WorkerId,
        what: &str,
        object: ObjectId,
        effects: &mut Effects,
    ) {
        match referent {
            Referent::Stopping => self.stopped(worker, object),
            Referent::Impossible => self.misbehaves(worker, what, object, effects),
            Referent::Past | Referent::Present => self.late += 1,
        }
    }

    /// A cancelled attempt is over.
    fn stopped(&mut self, worker: WorkerId, object: ObjectId) {
        let at = self.workers.get_mut(worker);
        if let Some(what) = at.and_then(|at| at.stopping.remove(&object)) {
            self.moved();
            self.leave_worker(worker, &what);
            self.leave_class(what.class);
        }
    }

    fn misbehaves(
        &mut self,
        worker: WorkerId,
        what: &str,
        object: ObjectId,
        effects: &mut Effects,
    ) {
        let reason = format!("it {what} {object:?}, which it does not have");
        self.dismiss(worker, reason, effects);
    }

    /// A worker that reports what cannot be is not heard any more.
    pub(crate) fn dismiss(&mut self, worker: WorkerId, reason: String, effects: &mut Effects) {
        effects.0.push(Effect::Dismiss {
            worker,
            reason: reason.clone(),
        });
        self.lose_worker(worker, Cause::Misbehaved(reason), effects);
    }

    /// A task raised: it runs again if it may, or has failed.
    fn raised(&mut self, object: ObjectId, failure: Failure, effects: &mut Effects) {
        let id = object.task;
        self.end_stay(id, true, effects);
        self.moved();
        let task = &mut self.tasks[id];
        if task.retries > 0 {
            task.retries -= 1;
            self.await_inputs(id);
        } else {
            self.work.failing.push((id, Arc::new(failure)));
        }
    }

    /// A worker that was asked to give a task back runs it already.
    fn started(&mut self, object: ObjectId) {
        let id = object.task;
        if let Phase::Retracting { run, thief } = self.tasks[id].phase {
            if let Some(thief) = self.workers.get_mut(thief) {
                thief.incoming = thief.incoming.saturating_sub(1);
            }
            self.enter(id, Phase::Assigned(run));
            self.work.hungry.push(thief);
            self.work.answered.push(run.worker);
        }
        self.tasks[id].flags.set(Flags::STARTED);
        self.moved();
    }

    /// A running task gives its slot away, or has one again.
    fn change_load(
        &mut self,
        worker: WorkerId,
        object: ObjectId,
        seceded: bool,
        effects: &mut Effects,
    ) {
        let (from, to) = match seceded {
            true => (Load::Runnable, Load::Seceded),
            false => (Load::Seceded, Load::Runnable),
        };
        match self.referent(worker, object) {
            Referent::Present => {
                let task = &mut self.tasks[object.task];
                // It may run ahead of an input that is counted as lost: the worker got that before
                // its last holder went.
                let runs = seceded || !task.flags.has(Flags::AHEAD);
                let Some(mut run) = task.phase.run().filter(|_| runs) else {
                    return self.misbehaves(worker, "ran", object, effects);
                };
                if task.flags.has(Flags::SECEDED) == seceded {
                    return;
                }
                let from = task.load();
                task.flags.clear(Flags::AHEAD);
                task.flags.put(Flags::SECEDED, seceded);
                task.flags.set(Flags::STARTED);
                self.workers.vacate(worker, from, run.estimate, run.output);
                run.estimate = match seceded {
                    true => 0,
                    false => self.learnt.estimate(task.function),
                };
                self.workers.occupy(worker, to, &run);
                if let Phase::Assigned(other) | Phase::Retracting { run: other, .. } =
                    &mut self.tasks[object.task].phase
                {
                    *other = run;
                }
            }
            Referent::Stopping => {
                let at = self.workers.get_mut(worker);
                let Some(entry) = at.and_then(|at| at.stopping.get_mut(&object)) else {
                    return;
                };
                if entry.load != from {
                    return;
                }
                entry.load = to;
                let estimate = core::mem::take(&mut entry.estimate);
                let output = core::mem::take(&mut entry.output);
                self.workers.vacate(worker, from, estimate, output);
                let run = crate::task::Run {
                    worker,
                    estimate: 0,
                    output: 0,
                };
                self.workers.occupy(worker, to, &run);
            }
            Referent::Past => self.late += 1,
            Referent::Impossible => return self.misbehaves(worker, "ran", object, effects),
        }
        self.moved();
        self.relevel(worker);
        self.work.hungry.push(worker);
    }

    fn health(&mut self, worker: WorkerId, health: Health) {
        let Some(at) = self.workers.get_mut(worker) else {
            return;
        };
        let before = at.status();
        at.health = health;
        at.bytes_then = at.bytes;
        let after = at.status();
        self.relevel(worker);
        if before != after {
            self.moved();
            self.count_slots();
            if after != WorkerStatus::Running {
                self.place_anew(worker);
            }
        }
        if after == WorkerStatus::Running {
            self.work.hungry.push(worker);
        }
    }

    /// What is queued here for a worker that gets no tasks for now goes elsewhere, if it can.
    pub(crate) fn place_anew(&mut self, worker: WorkerId) {
        let Some(at) = self.workers.get_mut(worker) else {
            return;
        };
        let mut entries = at.own.readers.take();
        entries.extend(at.own.creators.take());
        for entry in entries {
            self.place_entry_anew(entry, worker);
        }
        self.relevel(worker);
    }

    /// A task that waited in a worker's own queue, which is empty by now, is placed anew.
    pub(crate) fn place_entry_anew(&mut self, entry: crate::queue::Entry, worker: WorkerId) {
        let own = Phase::Ready(crate::task::QueueId::Own(worker));
        let task = &self.tasks[entry.task];
        if task.phase == own && task.priority == entry.priority {
            self.enter(entry.task, Phase::WAITING);
            self.work.ready.push(entry);
        }
    }
}
