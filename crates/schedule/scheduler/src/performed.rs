//! Tasks with effects: those that do more than return a value, as the transfers of a shuffle do, which
//! send rows to other workers. What they did can be lost while their value is not. So they keep what
//! led to a small value, too, and run again. When nobody needs the value, what they did can go, too.
//!
//! What they do need not be the same each time: the inputs of a shuffle may have other rows. Then nothing
//! that was computed from it is valid ([`Event::Discard`](crate::Event::Discard)). So tasks that read
//! them, directly or not, are *derived*: their small values keep what led to them, too. Otherwise such a
//! value could neither be found nor be made anew, and a result would mix what was done at two times.
//!
//! While somebody follows the steps of tasks, all that come are taken for derived
//! ([`Scheduler::keep_lineage`]): who looks at a task sees what it was made from.

use alloc::vec::Vec;

use bytes::Bytes;
use treadle_types::{TaskId, WorkerId};

use crate::Effects;
use crate::Guard;
use crate::scheduler::Scheduler;
use crate::task::{Flags, Phase, Task};

/// What is known beside its value of a task with effects, and of a derived one with a small value, as
/// long as it has one.
#[derive(Debug)]
pub(crate) struct Performed {
    /// Who ran it.
    pub(crate) worker: WorkerId,
    /// Its recipe, where the value has taken that one's place.
    pub(crate) recipe: Option<Bytes>,
}

impl Scheduler {
    /// Has the tasks that come from now on keep what led to their small values, or not any more: those
    /// that have come stay as they are. Then such a value is let go when nobody needs it, as a large
    /// one is, since it could be made anew.
    pub fn keep_lineage(&mut self, wanted: bool) {
        self.config.lineage = wanted;
    }

    /// Finds out which of the tasks that have come are derived. An input may have come after its reader.
    pub(crate) fn derive(&mut self, fresh: impl Iterator<Item = TaskId>) {
        if !Guard::Derived.holds() {
            return;
        }
        let mut next = Vec::new();
        let all = self.config.lineage;
        for id in fresh {
            let mut inputs = self.tasks[id].inputs.iter();
            let is_source = |task: &Task| task.flags.has(Flags::EFFECTS | Flags::DERIVED);
            if all || inputs.any(|edge| is_source(&self.tasks[edge.task])) {
                next.push(id);
            }
        }
        while let Some(id) = next.pop() {
            let task = &mut self.tasks[id];
            if !task.flags.has(Flags::DERIVED) {
                task.flags.set(Flags::DERIVED);
                next.extend(task.dependents.iter().map(|edge| edge.task));
            }
        }
    }

    /// Whether a task with a small value keeps what led to it.
    #[inline]
    pub(crate) fn keeps_lineage(&self, id: TaskId) -> bool {
        self.tasks[id].flags.has(Flags::EFFECTS | Flags::DERIVED)
    }

    /// A task has a value: what is known of it beside that is kept, if need be.
    #[inline]
    pub(crate) fn note_performed(&mut self, id: TaskId, worker: WorkerId, recipe: Option<Bytes>) {
        let flags = self.tasks[id].flags;
        if flags.has(Flags::EFFECTS) || (flags.has(Flags::DERIVED) && recipe.is_some()) {
            self.performed.insert(id, Performed { worker, recipe });
        }
    }

    /// A task has no value any more: its recipe is where it was before. Those of the inputs of one with
    /// effects may not be needed, either.
    #[inline]
    pub(crate) fn forget_performed(&mut self, id: TaskId) {
        if self.keeps_lineage(id) {
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

    /// Whether a small value that nobody needs is let go: only while all tasks keep what led to theirs.
    pub(crate) fn can_be_made_anew(&self, id: TaskId) -> bool {
        self.config.lineage
            && !self.tasks[id].flags.has(Flags::EFFECTS)
            && self.performed.contains_key(&id)
    }

    /// A worker is gone, and with it what its tasks with effects did, unless that is elsewhere. Copies of
    /// their values do not help.
    pub(crate) fn lose_performed(&mut self, worker: WorkerId, effects: &mut Effects) {
        if !Guard::Effects.holds() {
            return;
        }
        let performed = self.performed.iter();
        let lost = performed.filter(|(_, performed)| performed.worker == worker);
        // A derived value is here, and stays.
        let lost = lost.filter(|&(&id, _)| {
            self.tasks[id].flags.has(Flags::EFFECTS) && !self.lasting.contains(&id)
        });
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

    /// Values are gone, and what is `derived` from them is not valid any more: neither are the values of
    /// these tasks, nor what those of them return that run.
    pub(crate) fn discard(&mut self, gone: &[TaskId], derived: &[TaskId], effects: &mut Effects) {
        let mut recalled = Vec::new();
        for &id in derived {
            let task = self.tasks.get(id);
            if Guard::Recall.holds() && task.is_some_and(|task| task.phase.run().is_some()) {
                self.end_stay(id, false, effects);
                recalled.push(id);
            }
        }
        self.invalidate(gone, effects);
        self.invalidate(derived, effects);
        for &id in derived {
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
