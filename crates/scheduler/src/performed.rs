//! Tasks with effects: those that do more than return a value, as the transfers of a shuffle do, which
//! send rows to other workers. What they did can be lost while their value is not. So they keep what
//! led to a small value, too, and run again. When nobody needs the value, what they did can go, too.

use alloc::vec::Vec;

use bytes::Bytes;
use treadle_types::{TaskId, WorkerId};

use crate::Effects;
use crate::Guard;
use crate::scheduler::Scheduler;
use crate::task::{Flags, Phase, Task};

/// What is known of a task with effects beside its value, as long as it has one.
#[derive(Debug)]
pub(crate) struct Performed {
    /// Who ran it.
    pub(crate) worker: WorkerId,
    /// Its recipe, where the value has taken that one's place.
    pub(crate) recipe: Option<Bytes>,
}

impl Scheduler {
    /// A task with effects has no value any more: its recipe is where it was before. Those of its
    /// inputs may not be needed, either.
    #[inline]
    pub(crate) fn forget_performed(&mut self, id: TaskId) {
        if self.tasks[id].flags.has(Flags::EFFECTS) {
            self.undo_performed(id);
        }
    }

    #[cold]
    fn undo_performed(&mut self, id: TaskId) {
        if let Some(performed) = self.performed.remove(&id) {
            if let Some(recipe) = performed.recipe {
                self.tasks[id].payload = recipe;
            }
            let inputs = self.tasks[id].inputs.iter().map(|edge| edge.task);
            let inputs = inputs.filter(|&input| self.tasks[input].flags.has(Flags::EFFECTS));
            self.work.unneeded.extend(inputs);
        }
    }

    /// Whether nobody needs what a task did any more, which has a small value that nobody reads. It is
    /// needed as long as a task with effects that has read it has a value: that one may run again, and
    /// then it need not.
    pub(crate) fn has_performed_in_vain(&self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        let is_kept_by = |reader: &Task| {
            reader.flags.has(Flags::EFFECTS) && matches!(reader.phase, Phase::Memory { .. })
        };
        let mut readers = task.dependents.iter().map(|edge| &self.tasks[edge.task]);
        task.flags.has(Flags::EFFECTS)
            && self.performed.contains_key(&id)
            && !readers.any(is_kept_by)
    }

    /// A worker is gone, and with it what its tasks with effects did. Copies of their values do not
    /// help.
    pub(crate) fn lose_performed(&mut self, worker: WorkerId, effects: &mut Effects) {
        if !Guard::Effects.holds() {
            return;
        }
        let performed = self.performed.iter();
        let lost = performed.filter(|(_, performed)| performed.worker == worker);
        let lost: Vec<TaskId> = lost.map(|(&id, _)| id).collect();
        for id in lost {
            self.drop_holders(id, effects);
            self.lose(id, worker, effects);
        }
    }

    /// Values are gone, says the plane that made them.
    pub(crate) fn invalidate(&mut self, tasks: &[TaskId], effects: &mut Effects) {
        for &id in tasks {
            if let Some(worker) = self.source(id) {
                self.drop_holders(id, effects);
                self.lose(id, worker, effects);
            }
        }
    }

    /// What tasks were computed from is not valid any more: neither are their values, nor what those of
    /// them return that run.
    pub(crate) fn discard(&mut self, tasks: &[TaskId], effects: &mut Effects) {
        let mut recalled = Vec::new();
        for &id in tasks {
            let task = self.tasks.get(id);
            if Guard::Recall.holds() && task.is_some_and(|task| task.phase.run().is_some()) {
                self.end_stay(id, false, effects);
                recalled.push(id);
            }
        }
        self.invalidate(tasks, effects);
        for &id in tasks {
            let task = self.tasks.get(id);
            if task.is_some_and(|task| !task.flags.has(Flags::PUT)) {
                // A copy of an earlier value may turn up.
                self.tasks[id].flags.clear(Flags::LOST);
            }
        }
        for id in recalled {
            self.await_inputs(id);
        }
    }

    /// A worker that a value came from, if the value can be lost: one that has it, or ran the task.
    fn source(&self, id: TaskId) -> Option<WorkerId> {
        let task = self.tasks.get(id)?;
        match task.phase {
            Phase::Memory { inline: false, .. } => task.holders.last().map(|holder| holder.worker),
            Phase::Memory { inline: true, .. } if Guard::Invalidation.holds() => {
                self.performed.get(&id).map(|performed| performed.worker)
            }
            _ => None,
        }
    }
}
