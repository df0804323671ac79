//! How tasks come to need their inputs, get a value, lose it, fail, and are forgotten.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_types::{Command, Failure, Returned, TaskId, WorkerId};

use crate::Guard;
use crate::queue::Entry;
use crate::scheduler::Scheduler;
use crate::task::{Flags, Holder, Outcome, Phase, QueueId, Run};
use crate::worker::{Load, Stopping};
use crate::{Effect, Effects, Notice};

impl Scheduler {
    /// A released task is needed: it waits for its inputs, and those that were released are needed
    /// in turn.
    pub(crate) fn activate(&mut self, first: TaskId) {
        // Not by recursion: chains are longer than the stack is deep.
        let mut more = Vec::new();
        let mut next = Some(first);
        while let Some(id) = next {
            if self.tasks[id].phase == Phase::Released {
                self.enter(id, Phase::WAITING);
                if self.tasks[id].flags.has(Flags::PUT) {
                    self.await_bringing(id);
                    next = more.pop();
                    continue;
                }
                for index in 0..self.tasks[id].inputs.len() {
                    let input = self.tasks[id].inputs[index].task;
                    let task = &mut self.tasks[input];
                    task.readers += 1;
                    if task.phase == Phase::Released {
                        more.push(input);
                    }
                }
                self.await_inputs(id);
            }
            next = more.pop();
        }
    }

    /// Counts what a waiting task waits for, and says what follows.
    pub(crate) fn await_inputs(&mut self, id: TaskId) {
        let mut missing = 0;
        let (mut near, mut here) = (WorkerId(u32::MAX), 0);
        for edge in &self.tasks[id].inputs {
            let input = &self.tasks[edge.task];
            match input.phase {
                Phase::Memory { .. } => continue,
                Phase::Failed => {
                    if let Some(failure) = input.failure() {
                        self.work.failing.push((id, failure.clone()));
                    }
                }
                Phase::Assigned(run) if input.flags.has(Flags::KEEP) => {
                    if here == 0 {
                        near = run.worker;
                    }
                    here += u32::from(near == run.worker);
                }
                _ => {}
            }
            missing += 1;
        }
        let task = &mut self.tasks[id];
        task.missing = missing;
        // Without `enter`: the task waits already, and only the numbers change.
        task.phase = Phase::Waiting { near, here };
        if missing == 0 {
            self.work.ready.push(Entry {
                priority: task.priority,
                task: id,
            });
        } else if here == missing {
            self.work.ahead.push(id);
        }
    }

    /// An active task reads its inputs no more.
    pub(crate) fn release_inputs(&mut self, id: TaskId) {
        for index in 0..self.tasks[id].inputs.len() {
            let input = self.tasks[id].inputs[index].task;
            let task = &mut self.tasks[input];
            task.readers -= 1;
            if task.readers == 0 {
                self.work.unneeded.push(input);
            }
        }
    }

    /// A worker returned the value of a task that it ran.
    pub(crate) fn finish(
        &mut self,
        id: TaskId,
        worker: WorkerId,
        value: Returned,
        duration: Duration,
        effects: &mut Effects,
    ) {
        // `end_run` clears the flag.
        let kept_here = self.tasks[id].flags.has(Flags::KEEP);
        self.end_run(id, None);
        self.moved();
        if let Some(at) = self.workers.get_mut(worker) {
            at.finishes(self.now);
        }
        if !self.trouble.is_empty() {
            self.trouble.remove(&id);
        }
        let inline = value.inline.is_some();
        self.learnt
            .observe(self.tasks[id].function, duration, value.nbytes, inline);
        self.enter(
            id,
            Phase::Memory {
                nbytes: value.nbytes,
                inline,
            },
        );
        self.story.add_run(id, duration, value.nbytes);
        // Once the phase has changed: only then the attempt counts as over.
        self.trim_sent(worker);
        let task = &mut self.tasks[id];
        let mut recipe = None;
        match value.inline {
            Some(bytes) => {
                recipe = Some(core::mem::replace(&mut task.payload, bytes));
                task.outcome = None;
            }
            None => task.outcome = Some(Box::new(Outcome::Class(value.class))),
        }
        self.note_performed(id, worker, recipe);
        if value.kept {
            self.add_holder(id, worker);
        }
        self.notify_finished(id, effects);
        self.supply_dependents(id, kept_here.then_some(worker));
        self.release_inputs(id);
        if inline && !self.tasks[id].flags.has(Flags::ACTOR) && !self.keeps_lineage(id) {
            // The value cannot be lost, so what led to it is not needed for its sake.
            while let Some(input) = self.tasks.unlink_last(id) {
                if self.tasks[input].dependents.is_empty() {
                    self.work.unneeded.push(input);
                }
            }
        }
        if !self.tasks[id].is_needed() {
            self.work.unneeded.push(id);
        }
    }

    /// A task has a value now, which dependents may have waited for; `from`, if it was counted as
    /// being on its way there.
    pub(crate) fn supply_dependents(&mut self, id: TaskId, from: Option<WorkerId>) {
        for index in 0..self.tasks[id].dependents.len() {
            let dependent = self.tasks[id].dependents[index].task;
            let task = &mut self.tasks[dependent];
            match &mut task.phase {
                Phase::Waiting { near, here } => {
                    if Some(*near) == from {
                        *here = here.saturating_sub(1);
                    }
                    task.missing -= 1;
                    if task.missing == 0 {
                        self.work.ready.push(Entry {
                            priority: task.priority,
                            task: dependent,
                        });
                    } else if *here == task.missing {
                        self.work.ahead.push(dependent);
                    }
                }
                Phase::Assigned(run) | Phase::Retracting { run, .. } => {
                    task.missing -= 1;
                    if task.missing == 0 && task.flags.has(Flags::AHEAD) {
                        task.flags.clear(Flags::AHEAD);
                        let before = run.estimate;
                        run.estimate = self.learnt.estimate(task.function);
                        let run = *run;
                        self.workers
                            .vacate(run.worker, Load::Ahead, before, run.output);
                        self.workers.occupy(run.worker, Load::Runnable, &run);
                        self.relevel(run.worker);
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes a task from its worker; the caller moves it to another phase at once. With `stopping`,
    /// the worker is told to stop it, and what it takes there stays taken under that name.
    fn end_run(&mut self, id: TaskId, stopping: Option<&mut Effects>) {
        let task = &mut self.tasks[id];
        let Some(run) = task.phase.run() else {
            return;
        };
        let load = task.load();
        let class = task.class;
        let object = treadle_types::ObjectId::new(id, task.attempt);
        if let Phase::Retracting { thief, .. } = task.phase
            && let Some(thief) = self.workers.get_mut(thief)
        {
            thief.incoming = thief.incoming.saturating_sub(1);
        }
        task.flags.clear(Flags::OF_RUN);
        if self.workers.get(run.worker).is_none() {
            return;
        }
        let mut what = Stopping {
            load,
            estimate: run.estimate,
            output: run.output,
            class,
        };
        if let Some(effects) = stopping {
            Self::tell(effects, run.worker, Command::Cancel(object));
            if Guard::Cancellation.holds() {
                if load == Load::Ahead {
                    // Nobody looks for the end of its inputs any more: it may run by now.
                    let estimate = self.learnt.estimate(self.tasks[id].function);
                    let now = Run { estimate, ..run };
                    self.workers
                        .vacate(run.worker, load, run.estimate, run.output);
                    self.workers.occupy(run.worker, Load::Runnable, &now);
                    self.relevel(run.worker);
                    (what.load, what.estimate) = (Load::Runnable, estimate);
                }
                if let Some(worker) = self.workers.get_mut(run.worker) {
                    worker.stopping.insert(object, what);
                }
                // What is in use has to be given back by the same constraint.
                if let Some(class) = self.classes.get_mut(class) {
                    class.tasks += 1;
                }
                return;
            }
        }
        self.leave_worker(run.worker, &what);
    }

    /// Drops attempts from the front of a worker's list that are over by now.
    fn trim_sent(&mut self, worker: WorkerId) {
        let Some(at) = self.workers.get_mut(worker) else {
            return;
        };
        let tasks = &self.tasks;
        while let Some(&front) = at.sent.front()
            && !tasks.is_at_worker(front, worker)
        {
            at.sent.pop_front();
        }
        if at.sent.len() > 2 * at.tasks() + 64 {
            at.sent.retain(|&object| tasks.is_at_worker(object, worker));
        }
    }

    /// What a task took at a worker is free.
    pub(crate) fn leave_worker(&mut self, worker: WorkerId, what: &Stopping) {
        self.workers
            .vacate(worker, what.load, what.estimate, what.output);
        if let Some(class) = self.classes.get(what.class)
            && let Some(worker) = self.workers.get_mut(worker)
        {
            worker.take(&class.constraint.resources, -1.0);
        }
        self.relevel(worker);
        // Many tasks of a worker end in a row.
        if self.work.hungry.last() != Some(&worker) {
            self.work.hungry.push(worker);
        }
    }

    /// A stay at a worker ends without a value: the worker has said so (`over`), or is told to stop.
    /// What was sent to it behind the task cannot run there, and comes back, too.
    pub(crate) fn end_stay(&mut self, id: TaskId, over: bool, effects: &mut Effects) {
        let mut tail = Vec::new();
        let mut next = Some((id, over));
        while let Some((id, over)) = next {
            let task = &self.tasks[id];
            let (run, kept) = (task.phase.run(), task.flags.has(Flags::KEEP));
            self.end_run(id, if over { None } else { Some(&mut *effects) });
            self.enter(id, Phase::WAITING);
            if let Some(run) = run {
                self.trim_sent(run.worker);
            }
            if let (Some(run), true) = (run, kept) {
                for index in 0..self.tasks[id].dependents.len() {
                    let dependent = self.tasks[id].dependents[index].task;
                    let task = &mut self.tasks[dependent];
                    match &mut task.phase {
                        Phase::Waiting { near, here } if *near == run.worker => {
                            *here = here.saturating_sub(1);
                        }
                        Phase::Assigned(other)
                            if other.worker == run.worker && task.flags.has(Flags::AHEAD) =>
                        {
                            tail.push(dependent);
                        }
                        _ => {}
                    }
                }
            }
            next = None;
            while let Some(dependent) = tail.pop() {
                // A task with several inputs in the tail is met more than once.
                if matches!(self.tasks[dependent].phase, Phase::Assigned(_)) {
                    next = Some((dependent, false));
                    break;
                }
            }
        }
    }

    /// An active task leaves wherever it is on its way to a value.
    pub(crate) fn leave(&mut self, id: TaskId, effects: &mut Effects) {
        match self.tasks[id].phase {
            Phase::Ready(_) => self.dequeue(id),
            Phase::Assigned(_) | Phase::Retracting { .. } => self.end_stay(id, false, effects),
            _ => {}
        }
    }

    /// Takes a ready task out of its queue; it waits then.
    pub(crate) fn dequeue(&mut self, id: TaskId) {
        let Phase::Ready(queue) = self.tasks[id].phase else {
            return;
        };
        let creators = self.tasks[id].flags.has(Flags::CREATOR);
        self.enter(id, Phase::WAITING);
        let tasks = &self.tasks;
        let alive = |entry: &Entry| {
            let task = &tasks[entry.task];
            task.phase == Phase::Ready(queue) && task.priority == entry.priority
        };
        match queue {
            QueueId::Common => self.common.of(creators).remove(alive),
            QueueId::Own(worker) => {
                if let Some(worker) = self.workers.get_mut(worker) {
                    worker.own.of(creators).remove(alive);
                }
                self.relevel(worker);
            }
            QueueId::Class(class) => {
                if let Some(class) = self.classes.get_mut(class) {
                    class.queue.of(creators).remove(alive);
                }
            }
            QueueId::Parked => self.parked.retain(|&parked| parked != id),
        }
    }

    /// A task will not get a value. Those that wait for it will not, either.
    pub(crate) fn fail(&mut self, id: TaskId, failure: Arc<Failure>, effects: &mut Effects) {
        let phase = self.tasks[id].phase;
        let lost = matches!(&*failure, Failure::DataLost { task, .. } if *task == id)
            && matches!(phase, Phase::Memory { .. });
        if phase.is_active() {
            self.leave(id, effects);
            self.release_inputs(id);
        } else if !lost {
            // It has failed already, or is not needed any more.
            return;
        }
        self.moved();
        self.enter(id, Phase::Failed);
        // Who runs already may have got a value before it was lost.
        for index in 0..self.tasks[id].dependents.len() {
            let dependent = self.tasks[id].dependents[index].task;
            let task = &self.tasks[dependent];
            let runs = task.phase.run().is_some() && !task.flags.has(Flags::AHEAD);
            if task.phase.is_active() && !(lost && runs) {
                self.work.failing.push((dependent, failure.clone()));
            }
        }
        self.notify(id, Notice::Failed(failure.clone()), effects);
        let task = &mut self.tasks[id];
        task.outcome = Some(Box::new(Outcome::Failure(failure)));
        if !task.is_needed() {
            self.work.unneeded.push(id);
        }
    }

    /// Drops what nobody needs: a value, the way to one, or all memory of a task.
    pub(crate) fn reconsider(&mut self, id: TaskId, effects: &mut Effects) {
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        if task.is_needed() {
            return self.drop_read_copies(id, effects);
        }
        let known = !task.dependents.is_empty();
        match task.phase {
            phase if phase.is_active() => {
                self.leave(id, effects);
                self.enter(id, Phase::Released);
                self.release_inputs(id);
                self.brought.coming.remove(&id);
            }
            // A value that cannot be computed again stays as long as one could be computed from it.
            Phase::Memory { inline: false, .. } if !(known && task.flags.has(Flags::PUT)) => {
                self.drop_holders(id, effects);
                self.let_go(id, known, effects);
            }
            Phase::Memory { inline: true, .. } => {
                self.drop_holders(id, effects);
                if known && (self.has_performed_in_vain(id) || self.can_be_made_anew(id)) {
                    self.let_go(id, known, effects);
                }
            }
            _ => {}
        }
        if !known {
            self.forget(id, effects);
        }
    }

    /// Drops a value that can be computed again.
    fn let_go(&mut self, id: TaskId, known: bool, effects: &mut Effects) {
        self.forget_performed(id);
        self.tasks[id].outcome = None;
        if known {
            self.enter(id, Phase::Released);
            if self.tasks[id].flags.has(Flags::EFFECTS) {
                effects.0.push(Effect::LetGo(id));
            }
        }
    }

    /// Nobody can refer to a task any more.
    fn forget(&mut self, id: TaskId, effects: &mut Effects) {
        self.forget_performed(id);
        while let Some(input) = self.tasks.unlink_last(id) {
            if self.tasks[input].dependents.is_empty() {
                self.work.unneeded.push(input);
            }
        }
        self.leave_class(self.tasks[id].class);
        if !self.trouble.is_empty() {
            self.trouble.remove(&id);
        }
        self.forget_kept(id, effects);
        self.forget_located(id);
        if self.tasks[id].flags.has(Flags::ACTOR) {
            self.actors.remove(&id);
        }
        if !self.lasting.is_empty() {
            self.lasting.remove(&id);
        }
        self.enter(id, Phase::Vacant);
        self.tasks.vacate(id);
        effects.0.push(Effect::Forgotten(id));
    }

    /// A worker has a copy of a value that is in memory.
    pub(crate) fn add_holder(&mut self, id: TaskId, worker: WorkerId) {
        let task = &mut self.tasks[id];
        if task.is_at(worker) {
            return;
        }
        let Some(at) = self.workers.get_mut(worker) else {
            return;
        };
        task.holders.push(Holder {
            worker,
            slot: at.held.len() as u32,
        });
        at.held.push(id);
        at.bytes += task.nbytes();
        if at.profile.memory > 0 {
            self.relevel(worker);
        }
    }

    /// A worker has no copy any more; whether it had one.
    pub(crate) fn remove_holder(&mut self, id: TaskId, worker: WorkerId) -> bool {
        let task = &mut self.tasks[id];
        let Some(index) = task.holders.iter().position(|h| h.worker == worker) else {
            return false;
        };
        let slot = task.holders.remove(index).slot as usize;
        let nbytes = task.nbytes();
        if let Some(at) = self.workers.get_mut(worker) {
            at.bytes -= nbytes;
            at.held.swap_remove(slot);
            if let Some(&moved) = at.held.get(slot) {
                let holders = &mut self.tasks[moved].holders;
                if let Some(holder) = holders.iter_mut().find(|h| h.worker == worker) {
                    holder.slot = slot as u32;
                }
            }
            if at.profile.memory > 0 {
                self.relevel(worker);
                self.work.hungry.push(worker);
            }
        }
        true
    }

    /// All holders are told to drop a value.
    pub(crate) fn drop_holders(&mut self, id: TaskId, effects: &mut Effects) {
        let object = self.tasks.object(id);
        while let Some(&Holder { worker, .. }) = self.tasks[id].holders.last() {
            self.remove_holder(id, worker);
            Self::tell(effects, worker, Command::Release(object));
        }
    }

    /// No worker has the value of a task any more; `worker` was the last to have it. Unless it lives
    /// here, it is gone.
    pub(crate) fn lose_value(&mut self, id: TaskId, worker: WorkerId, effects: &mut Effects) {
        let phase = self.tasks[id].phase;
        if matches!(phase, Phase::Memory { inline: false, .. }) {
            self.lose(id, worker, effects);
        }
    }

    /// The value of a task is gone, which came from `worker`, and is at no worker any more. It is
    /// computed, or brought, again if it is needed and can be.
    pub(crate) fn lose(&mut self, id: TaskId, worker: WorkerId, effects: &mut Effects) {
        self.forget_performed(id);
        let task = &self.tasks[id];
        debug_assert!(task.holders.is_empty());
        let is_put = task.flags.has(Flags::PUT);
        let gone = (is_put && !self.is_kept(id)) || task.flags.has(Flags::ACTOR);
        let name = self.workers.name(worker);
        let name = name.unwrap_or(treadle_types::Symbol(0));
        let recalled = self.hold_up_readers(id, effects);
        if gone {
            let failure = Failure::DataLost {
                task: id,
                worker: name,
                actor: self.tasks[id].flags.has(Flags::ACTOR),
            };
            self.work.failing.push((id, Arc::new(failure)));
            return;
        }
        self.note_loss(id, name);
        self.enter(id, Phase::Released);
        // A copy that turns up would not bring back what the task did beside it.
        let revives = !self.tasks[id].flags.has(Flags::EFFECTS);
        self.tasks[id].flags.put(Flags::LOST, revives);
        for reader in recalled {
            // Another input may have failed while it ran.
            self.await_inputs(reader);
        }
        if self.tasks[id].is_needed() {
            self.notify(id, Notice::Pending, effects);
            self.activate(id);
        } else {
            self.work.unneeded.push(id);
        }
    }

    /// Those that read a value that is gone wait for it. Who was sent to a worker may have it, and goes
    /// on, unless there is more to it than the value: then it is cancelled there, and returned.
    fn hold_up_readers(&mut self, id: TaskId, effects: &mut Effects) -> Vec<TaskId> {
        let recalls = Guard::Recall.holds() && self.tasks[id].flags.has(Flags::EFFECTS);
        let mut recalled = Vec::new();
        for index in 0..self.tasks[id].dependents.len() {
            let dependent = self.tasks[id].dependents[index].task;
            let phase = self.tasks[dependent].phase;
            if !phase.is_active() {
                continue;
            }
            if recalls && phase.run().is_some() {
                self.end_stay(dependent, false, effects);
                recalled.push(dependent);
            }
            self.dequeue(dependent);
            self.tasks[dependent].missing += 1;
        }
        recalled
    }

    /// A copy of a lost value has turned up, before another attempt began.
    pub(crate) fn revive(
        &mut self,
        id: TaskId,
        worker: WorkerId,
        nbytes: u64,
        effects: &mut Effects,
    ) {
        self.leave(id, effects);
        self.brought.coming.remove(&id);
        let inline = false;
        self.enter(id, Phase::Memory { nbytes, inline });
        self.tasks[id].flags.clear(Flags::LOST);
        self.add_holder(id, worker);
        self.notify_finished(id, effects);
        self.supply_dependents(id, None);
        self.release_inputs(id);
    }
}
