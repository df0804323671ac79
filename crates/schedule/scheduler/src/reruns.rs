//! Tasks that a worker gives back although nothing was lost and nobody is cut off: those that ask to
//! run elsewhere, and those that read what cannot be serialised.

use alloc::sync::Arc;

use bytes::Bytes;
use treadle_types::{Failure, ObjectId, TaskId, WorkerId};

use crate::Effects;
use crate::scheduler::Scheduler;
use crate::task::{Flags, Phase};

impl Scheduler {
    /// A task asked to run again, elsewhere if possible. That may be as often as it likes, and is
    /// neither a loss nor one of its retries.
    pub(crate) fn run_elsewhere(&mut self, worker: WorkerId, id: TaskId, effects: &mut Effects) {
        self.end_stay(id, true, effects);
        self.moved();
        self.trouble.entry(id).or_default().shunned = Some(worker);
        self.await_inputs(id);
    }

    /// A worker gave a task back, since whoever has an input cannot serialise it: the task runs
    /// there, or nowhere.
    pub(crate) fn immovable(
        &mut self,
        worker: WorkerId,
        object: ObjectId,
        input: ObjectId,
        error: Bytes,
        effects: &mut Effects,
    ) {
        let id = object.task;
        let reads = self.tasks[id].inputs.iter().any(|e| e.task == input.task);
        if !reads || !self.fix(input) {
            // It was made anew meanwhile.
            return self.unavailable(worker, object, input, &[], effects);
        }
        self.end_stay(id, true, effects);
        self.moved();
        if self.can_meet(id) {
            self.tasks[id].flags.set(Flags::PINNED);
            self.await_inputs(id);
        } else {
            let failure = Failure::Raised { task: id, error };
            self.work.failing.push((id, Arc::new(failure)));
        }
    }

    /// A value cannot be serialised where it is; whether it is there yet.
    pub(crate) fn fix(&mut self, object: ObjectId) -> bool {
        let current = self.tasks.get(object.task).is_some_and(|task| {
            task.attempt == object.attempt
                && matches!(task.phase, Phase::Memory { inline: false, .. })
        });
        if current {
            self.tasks[object.task].flags.set(Flags::IMMOVABLE);
        }
        current
    }

    /// Whether all that a task reads and that cannot travel is at one worker, who may run it.
    fn can_meet(&self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        let fixed = || {
            let inputs = task.inputs.iter().map(|edge| &self.tasks[edge.task]);
            inputs.filter(|input| input.flags.has(Flags::ACTOR | Flags::IMMOVABLE))
        };
        let holders = fixed().flat_map(|input| input.holders.first());
        holders
            .map(|holder| holder.worker)
            .any(|worker| self.admits(task, worker) && fixed().all(|input| input.is_at(worker)))
    }
}
