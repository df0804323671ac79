//! What time alone brings about.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use treadle_types::{TaskId, WorkerId};

use crate::Guard;
use crate::scheduler::Scheduler;
use crate::task::{Phase, QueueId};
use crate::worker::WorkerStatus;
use crate::{Effect, Effects, State, Stuck, TICK};

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
            self.relieve();
            self.rebalance(effects);
        }
        if self.since(self.progress.max(self.watched)) > self.config.patience {
            self.watch(effects);
        }
    }

    /// About how many ticks there were.
    pub(crate) fn ticks(&self) -> usize {
        (self.now.as_micros() / TICK.as_micros()) as usize
    }

    /// A worker with a free slot and no memory gets a task that creates data now and then: what it
    /// runs may be long, or wait for that very task.
    fn relieve(&mut self) {
        let workers = self.workers.iter();
        let due = workers.filter(|(_, at)| {
            !at.relieved
                && at.free() > 0
                && at.is_full()
                && self.since(at.created) >= self.config.relief
        });
        let due: Vec<_> = due.map(|(worker, _)| worker).collect();
        for worker in due {
            if let Some(at) = self.workers.get_mut(worker) {
                at.relieved = true;
            }
            self.relevel(worker);
            self.work.hungry.push(worker);
        }
    }

    /// Workers without work take some, and those without memory give some back.
    fn rebalance(&mut self, effects: &mut Effects) {
        self.refresh_levels();
        let open = self.workers.open.iter();
        let has_free = |worker: &_| self.workers.get(*worker).is_some_and(|at| at.free() > 0);
        let mut idle: Vec<_> = open.take_while(has_free).collect();
        // Others each time: those that look may not be those that may run what waits.
        let first = self.ticks() * IDLE % idle.len().max(1);
        idle.rotate_left(first);
        idle.truncate(IDLE);
        for worker in self.paused_with_tasks() {
            let Some(&thief) = idle.first() else {
                break;
            };
            self.take_from_paused(worker, thief, effects);
        }
        self.steal_late(&idle, effects);
        if !idle.is_empty() && Guard::Search.holds() {
            self.steal_inside(&idle, effects);
        }
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
        let is_first = self.watched <= self.progress;
        // The next report comes after as long again.
        self.watched = self.now;
        if ready + sent == 0 {
            return;
        }
        let mut stuck = Stuck::ALL.map(|reason| (reason, Vec::new()));
        let behind = self.tasks_behind_others();
        for (id, task) in self.tasks.iter() {
            let reason = match task.phase {
                Phase::Ready(queue) => self.reason(id, queue),
                Phase::Assigned(run) | Phase::Retracting { run, .. } => {
                    let heard = self.workers.get(run.worker).map(|at| at.heard);
                    let silent =
                        heard.is_some_and(|heard| self.since(heard) > self.config.patience);
                    silent
                        .then_some(Stuck::Silence)
                        .or_else(|| behind.get(&id).copied())
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
            // Tasks may be long: it is said once.
            let is_news = is_first || reason != Stuck::Slots;
            if !tasks.is_empty() && is_news {
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
        let mut runs = able.filter(|(worker, at)| {
            pinned.is_none_or(|pinned| pinned == *worker) && at.status() == WorkerStatus::Running
        });
        let Some(first) = runs.next() else {
            return Some(Stuck::Memory);
        };
        if core::iter::once(first)
            .chain(runs)
            .all(|(_, at)| at.free() == 0)
        {
            return Some(Stuck::Slots);
        }
        match class.is_some_and(|class| class.uses_resources()) {
            true => Some(Stuck::Resources),
            false => None,
        }
    }

    /// Tasks that were sent to workers and cannot begin there, as far as is known: others run, and do
    /// not end.
    fn tasks_behind_others(&self) -> BTreeMap<TaskId, Stuck> {
        let mut behind = BTreeMap::new();
        for (worker, at) in self.workers.iter() {
            let (reason, slots) = match at.status() {
                // It runs one at a time, at most.
                WorkerStatus::Paused => (Stuck::Memory, 1),
                _ => (Stuck::Slots, at.profile.threads),
            };
            let extra = at.runnable.saturating_sub(slots) as usize;
            let queued = self.tasks.latest(&at.sent, worker);
            let queued = queued.filter(|&id| self.tasks[id].is_queued());
            behind.extend(queued.take(extra.min(NAMED)).map(|id| (id, reason)));
        }
        behind
    }
}
