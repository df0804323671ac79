//! What time alone brings about.

use treadle_types::{TaskId, WorkerId};

use crate::scheduler::Scheduler;
use crate::task::{Phase, QueueId};
use crate::worker::WorkerStatus;
use crate::{Effect, Effects, State, Stuck};

/// How many tasks a [`Stuck`](Effect::Stuck) names.
const NAMED: usize = 16;

/// How many workers without work look for some at a tick.
const IDLE: usize = 64;

impl Scheduler {
    pub(crate) fn tick(&mut self, effects: &mut Effects) {
        self.expire_cuts();
        if !self.brought.coming.is_empty() {
            self.ask_others();
        }
        if self.workers.stopped > 0 {
            for worker in self.draining() {
                self.advance_drain(worker, effects);
            }
        }
        if self.counts[State::Ready as usize] + self.counts[State::Assigned as usize] > 0 {
            self.rebalance(effects);
        }
        if self.since(self.progress) > self.config.patience {
            self.watch(effects);
        }
    }

    /// Workers without work take some, and those without memory give some back.
    fn rebalance(&mut self, effects: &mut Effects) {
        self.refresh_levels();
        let idle: Vec<_> = self
            .workers
            .open
            .iter()
            .take(IDLE)
            .take_while(|&worker| self.workers.get(worker).is_some_and(|at| at.free() > 0))
            .collect();
        for worker in self.paused_with_tasks() {
            let Some(&thief) = idle.first() else {
                break;
            };
            self.take_from_paused(worker, thief, effects);
        }
        self.steal_late(&idle, effects);
        self.work.hungry.extend(idle);
    }

    fn paused_with_tasks(&self) -> Vec<WorkerId> {
        if self.workers.stopped == 0 {
            return Vec::new();
        }
        let workers = self.workers.iter();
        let paused =
            workers.filter(|(_, at)| at.status() == WorkerStatus::Paused && at.tasks() > 0);
        paused.map(|(worker, _)| worker).collect()
    }

    /// A worker that starts nothing is asked for what others may run.
    fn take_from_paused(&mut self, worker: WorkerId, thief: WorkerId, effects: &mut Effects) {
        use crate::task::Flags;
        for id in self.assigned_to(worker) {
            let task = &self.tasks[id];
            let queued = task.is_queued() && !task.flags.has(Flags::PINNED);
            if queued && self.permits(task, thief) {
                self.retract(id, thief, effects);
            }
        }
    }

    /// Nothing has moved for a while: says which tasks are stuck, by the reason.
    fn watch(&mut self, effects: &mut Effects) {
        let ready = self.counts[State::Ready as usize];
        let sent = self.counts[State::Assigned as usize] + self.counts[State::Retracting as usize];
        // The next report comes after as long again.
        self.progress = self.now;
        if ready + sent == 0 {
            return;
        }
        let mut stuck: [(Stuck, Vec<TaskId>); 5] = [
            (Stuck::NoWorkers, Vec::new()),
            (Stuck::Restrictions, Vec::new()),
            (Stuck::Resources, Vec::new()),
            (Stuck::Memory, Vec::new()),
            (Stuck::Silence, Vec::new()),
        ];
        for (id, task) in self.tasks.iter() {
            let reason = match task.phase {
                Phase::Ready(queue) => self.reason(id, queue),
                Phase::Assigned(run) | Phase::Retracting { run, .. } => {
                    let heard = self.workers.get(run.worker).map(|at| at.heard);
                    let silent =
                        heard.is_some_and(|heard| self.since(heard) > self.config.patience);
                    silent.then_some(Stuck::Silence)
                }
                _ => None,
            };
            for (stuck, tasks) in &mut stuck {
                if reason == Some(*stuck) && tasks.len() < NAMED {
                    tasks.push(id);
                }
            }
        }
        for (reason, tasks) in stuck {
            if !tasks.is_empty() {
                effects.0.push(Effect::Stuck { tasks, reason });
            }
        }
    }

    /// Why a ready task does not run, unless it only waits for a slot.
    fn reason(&self, id: TaskId, queue: QueueId) -> Option<Stuck> {
        let task = &self.tasks[id];
        if self.workers.len() == 0 {
            return Some(Stuck::NoWorkers);
        }
        let class = self.classes.get(task.class);
        let may = |worker: WorkerId| class.is_none_or(|class| class.admits(worker));
        let mut able = self
            .workers
            .iter()
            .filter(|(worker, _)| may(*worker))
            .peekable();
        if able.peek().is_none() {
            let class = class?;
            let names = !class.constraint.workers.is_empty();
            let restricted = names && !class.named && !class.constraint.allow_other;
            return Some(match restricted {
                true => Stuck::Restrictions,
                false => Stuck::Resources,
            });
        }
        let pinned = match queue {
            QueueId::Own(worker) => Some(worker),
            _ => None,
        };
        let mut runs = able.filter(|(worker, _)| pinned.is_none_or(|pinned| pinned == *worker));
        if runs.all(|(_, at)| at.status() != WorkerStatus::Running) {
            return Some(Stuck::Memory);
        }
        match class.is_some_and(|class| class.uses_resources()) {
            true => Some(Stuck::Resources),
            false => None,
        }
    }
}
