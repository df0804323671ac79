//! Workers without work take it from others: first what waits for those here, then what was sent.

use std::time::Duration;

use smallvec::SmallVec;
use treadle_types::{Command, TaskId, WorkerId};

use crate::Effects;
use crate::queue::Entry;
use crate::scheduler::Scheduler;
use crate::task::{Flags, LOOKS, Phase, QueueId};
use crate::worker::Worker;

/// What a worker has beyond its slots must take so long, in microseconds, to be worth the way back.
const GAIN: u64 = 1000;

/// A worker that says nothing of its tasks for so long runs longer ones than was estimated.
const LATE: Duration = Duration::from_millis(50);

/// How many workers without work are asked to take from one that is late.
const THIEVES: usize = 8;

/// How many tasks are taken back at once.
const BATCH: u32 = 16;

impl Scheduler {
    /// Moves half of the longest queue of a worker to that of a worker without work; whether there
    /// was something to move.
    pub(crate) fn steal_queued(&mut self, thief: WorkerId) -> bool {
        self.refresh_levels();
        let Some(victim) = self.workers.queued.highest() else {
            return false;
        };
        let (Some(from), Some(to)) = (self.workers.get(victim), self.workers.get(thief)) else {
            return false;
        };
        if victim == thief || to.free() == 0 {
            return false;
        }
        let full = self.config.guards.budget && to.is_full();
        let wait = from.wait();
        let most = from
            .own
            .len()
            .div_ceil(2)
            .min(to.profile.threads as usize * 32);
        let mut moved = 0;
        for creators in [true, false] {
            if creators && full {
                continue;
            }
            while moved < most {
                let tasks = &self.tasks;
                let own = QueueId::Own(victim);
                let alive = |entry: &Entry| {
                    let task = &tasks[entry.task];
                    task.phase == Phase::Ready(own) && task.priority == entry.priority
                };
                let Some(from) = self.workers.get_mut(victim) else {
                    break;
                };
                let Some(entry) = from.own.of(creators).pop_back(alive) else {
                    break;
                };
                if !self.is_worth(entry.task, thief, wait) {
                    self.put_into_queue(entry.task, own);
                    break;
                }
                self.put_into_queue(entry.task, QueueId::Own(thief));
                moved += 1;
            }
        }
        self.relevel(victim);
        moved > 0
    }

    /// Whether a task may run at `thief`, and would start there sooner than after `wait`
    /// microseconds.
    fn is_worth(&mut self, id: TaskId, thief: WorkerId, wait: u64) -> bool {
        let task = &self.tasks[id];
        !task.flags.has(Flags::PINNED)
            && self.permits(task, thief)
            && self.reaches(id, thief)
            && (task.inputs.is_empty() || self.transfer_of(id, thief) < wait)
    }

    /// Asks the worker with most beyond its slots to give some of it back, for a worker with free
    /// slots.
    pub(crate) fn steal_sent(&mut self, thief: WorkerId, effects: &mut Effects) {
        self.refresh_levels();
        let Some(victim) = self.workers.loaded.highest() else {
            return;
        };
        let wait = self.workers.get(victim).map_or(0, |from| from.backlog());
        if wait >= GAIN {
            self.take_back(victim, thief, wait, effects);
        }
    }

    /// Does the same with workers of which nothing was heard for a while: what they run takes longer
    /// than was estimated, and may even wait for what is queued behind it.
    pub(crate) fn steal_late(&mut self, thieves: &[WorkerId], effects: &mut Effects) {
        let late = self.workers.iter();
        let late = late.filter(|(_, at)| at.extra() > 0 && self.since(at.moved) > LATE);
        let late: Vec<_> = late
            .map(|(victim, at)| (victim, self.since(at.moved)))
            .collect();
        for (victim, since) in late {
            for &thief in thieves.iter().take(THIEVES) {
                self.take_back(victim, thief, since.as_micros() as u64, effects);
            }
        }
    }

    /// Asks `victim` to give back some of what takes `wait` microseconds to begin there.
    fn take_back(&mut self, victim: WorkerId, thief: WorkerId, wait: u64, effects: &mut Effects) {
        let (Some(from), Some(to)) = (self.workers.get(victim), self.workers.get(thief)) else {
            return;
        };
        let wanted = to.free().saturating_sub(to.incoming);
        if victim == thief || wanted == 0 || !to.is_running() {
            return;
        }
        let full = self.config.guards.budget && to.is_full();
        let most = from
            .extra()
            .div_ceil(2)
            .min(BATCH)
            .max(wanted.min(from.extra()));
        // The last ones sent are likely to be the last ones to run.
        let latest: SmallVec<[TaskId; LOOKS]> = self.tasks.latest(&from.sent, victim).collect();
        let mut left = most;
        for id in latest {
            if left == 0 {
                break;
            }
            let task = &self.tasks[id];
            let free = self
                .classes
                .get(task.class)
                .is_none_or(|class| !class.uses_resources());
            let blocked = full && task.flags.has(Flags::CREATOR);
            if task.is_queued() && free && !blocked && self.is_worth(id, thief, wait) {
                self.retract(id, thief, effects);
                left -= 1;
            }
        }
    }

    /// Asks a worker to give a task back for another one, or for a task that is more urgent (then it
    /// is its own thief). Until it answers, the task is nobody's.
    pub(crate) fn retract(&mut self, id: TaskId, thief: WorkerId, effects: &mut Effects) {
        let Phase::Assigned(run) = self.tasks[id].phase else {
            return;
        };
        let object = self.tasks.object(id);
        Self::tell(effects, run.worker, Command::Retract(object));
        if let Some(thief) = self.workers.get_mut(thief) {
            thief.incoming += 1;
        }
        self.enter(id, Phase::Retracting { run, thief });
        if !self.config.guards.retraction {
            self.given_back(id, effects);
        }
    }

    /// A task that was asked back has come: to the worker that it was asked for, or to a better one.
    pub(crate) fn given_back(&mut self, id: TaskId, effects: &mut Effects) {
        let Phase::Retracting { run, thief } = self.tasks[id].phase else {
            return;
        };
        self.end_stay(id, true, effects);
        // One that was sent ahead has not been looked at for this yet.
        let creator = self.is_creator(id);
        self.tasks[id].flags.put(Flags::CREATOR, creator);
        let task = &self.tasks[id];
        let taker = self.workers.get(thief);
        if task.missing == 0 && thief == run.worker && taker.is_some_and(Worker::is_running) {
            // Not placed anew: it would go back before the one that it made room for.
            self.enqueue(id, QueueId::Own(thief));
            self.work.hungry.push(thief);
        } else if task.missing == 0
            && taker.is_some_and(|at| at.free() > 0 && at.own.is_empty())
            && self.can_take(id, thief)
            && self.permits(task, thief)
            && self.reaches(id, thief)
        {
            self.assign(id, thief, effects);
        } else {
            self.await_inputs(id);
        }
    }
}
