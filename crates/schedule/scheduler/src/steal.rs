//! Workers without work take it from others: first what waits for those here, then what was sent.

use alloc::vec::Vec;
use core::time::Duration;

use smallvec::SmallVec;
use treadle_types::{Command, TaskId, WorkerId};

use crate::Effects;
use crate::Guard;
use crate::class::ClassId;
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

/// At how many workers, and at how many of the tasks that wait here for each, a tick looks for what
/// others may run.
const VICTIMS: usize = 16;
const INSIDE: usize = 1024;

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
        let wait = from.wait_seen(self.now);
        let full = Guard::Budget.holds() && to.is_full();
        let has_relief = self.relieves(to, wait);
        let most = from
            .own
            .len()
            .div_ceil(2)
            .min(to.profile.threads as usize * 32);
        let mut moved = 0;
        for creators in [true, false] {
            let most = match creators && full {
                true => usize::from(has_relief),
                false => most,
            };
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
                // Those before it are likely to be bound to the place, too.
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

    /// Whether a worker whose memory is full takes a task that creates data from another one, where it
    /// would begin after `wait` microseconds.
    fn relieves(&self, thief: &Worker, wait: u64) -> bool {
        !thief.is_closed() && u128::from(wait) >= self.config.relief.as_micros()
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
            self.take_back(victim, LOOKS, thief, wait, effects);
        }
    }

    /// Takes what waits here for a worker, and may run at one without work, from anywhere in the
    /// queue: the last ones may all be bound to the place. Looks at a part of the queues each time.
    pub(crate) fn steal_inside(&mut self, thieves: &[WorkerId], effects: &mut Effects) {
        let ticks = self.ticks();
        let victims: Vec<_> = self.workers.queued.iter().collect();
        let first = ticks % victims.len().max(1);
        let (before, after) = victims.split_at(first);
        for &victim in after.iter().chain(before).take(VICTIMS) {
            let Some(from) = self.workers.get(victim) else {
                continue;
            };
            let wait = from.wait_seen(self.now);
            let entries = from.own.entries();
            let skipped = ticks * INSIDE % entries.max(1);
            let all = from.own.iter().cycle().skip(skipped);
            let some: Vec<_> = all.take(INSIDE.min(entries)).copied().collect();
            for entry in some {
                let own = Phase::Ready(QueueId::Own(victim));
                let task = &self.tasks[entry.task];
                if task.phase != own || task.priority != entry.priority {
                    continue;
                }
                let thief = thieves.iter().copied().find(|&thief| {
                    thief != victim
                        && self.can_take(entry.task, thief)
                        && self.is_worth(entry.task, thief, wait)
                });
                if let Some(thief) = thief {
                    self.dequeue(entry.task);
                    self.assign(entry.task, thief, effects);
                }
            }
        }
    }

    /// Does the same with workers of which nothing was heard for a while: what they run takes longer
    /// than was estimated, and may even wait for what is queued behind it.
    pub(crate) fn steal_late(&mut self, thieves: &[WorkerId], effects: &mut Effects) {
        let late = self.workers.iter();
        let late = late.filter(|(_, at)| at.extra() > 0 && self.since(at.moved) > LATE);
        let mut late: Vec<_> = late
            .map(|(victim, at)| (victim, self.since(at.moved)))
            .collect();
        // Others each time.
        let first = self.ticks() * VICTIMS % late.len().max(1);
        late.rotate_left(first);
        for (index, (victim, since)) in late.into_iter().enumerate() {
            let micros = since.as_micros() as u64;
            let searches = index < VICTIMS && Guard::Search.holds();
            let looks = if searches { usize::MAX } else { LOOKS };
            for &thief in thieves.iter().take(THIEVES) {
                self.take_back(victim, looks, thief, micros, effects);
            }
        }
    }

    /// Asks `victim` to give back some of what takes `wait` microseconds to begin there. So many tasks
    /// are looked at.
    fn take_back(
        &mut self,
        victim: WorkerId,
        looks: usize,
        thief: WorkerId,
        wait: u64,
        effects: &mut Effects,
    ) {
        let (Some(from), Some(to)) = (self.workers.get(victim), self.workers.get(thief)) else {
            return;
        };
        let wanted = to.free().saturating_sub(to.incoming);
        if victim == thief || wanted == 0 || !to.is_running() {
            return;
        }
        let full = Guard::Budget.holds() && to.is_full();
        // Of those that create data it takes one then, or none.
        let mut has_relief = to.incoming == 0 && self.relieves(to, wait);
        let extra = from.extra();
        let most = extra.div_ceil(2).min(BATCH).max(wanted.min(extra));
        // The last ones sent are likely to be the last ones to run.
        let latest: SmallVec<[TaskId; LOOKS]> =
            self.tasks.latest(&from.sent, victim).take(looks).collect();
        let mut left = most;
        let mut claimed = SmallVec::<[ClassId; BATCH as usize]>::new();
        for id in latest {
            if left == 0 {
                break;
            }
            let task = &self.tasks[id];
            let class = task.class;
            let has_free = self.has_free_beside(&claimed, class, thief);
            let fills = full && self.creates_data(task);
            let blocked = fills && !has_relief;
            if task.is_queued() && has_free && !blocked && self.is_worth(id, thief, wait) {
                has_relief &= !fills;
                claimed.push(class);
                self.retract(id, thief, effects);
                left -= 1;
            }
        }
    }

    /// Whether a worker has the resources for a task of a class and for those of others that it is to
    /// get.
    fn has_free_beside(&self, others: &[ClassId], class: ClassId, worker: WorkerId) -> bool {
        let Some(class) = self
            .classes
            .get(class)
            .filter(|class| class.uses_resources())
        else {
            return true;
        };
        let others = others.iter().filter_map(|&other| self.classes.get(other));
        let claimed = others.flat_map(|other| &other.constraint.resources);
        let needed = class
            .constraint
            .resources
            .iter()
            .map(|&(resource, amount)| {
                let same = claimed.clone().filter(|(other, _)| *other == resource);
                (
                    resource,
                    amount + same.map(|(_, amount)| amount).sum::<f64>(),
                )
            });
        let needed: SmallVec<[_; 2]> = needed.collect();
        let at = self.workers.get(worker).filter(|_| Guard::Scarcity.holds());
        at.is_some_and(|at| at.has_free(&needed))
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
        if !Guard::Retraction.holds() {
            self.given_back(id, effects);
        }
    }

    /// A task that was asked back has come: to the worker that it was asked for, or to a better one.
    pub(crate) fn given_back(&mut self, id: TaskId, effects: &mut Effects) {
        let Phase::Retracting { run, thief } = self.tasks[id].phase else {
            return;
        };
        self.end_stay(id, true, effects);
        self.work.answered.push(run.worker);
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
            && taker.is_some_and(|at| at.free() > 0)
            && self.can_take(id, thief)
            && self.permits(task, thief)
            && self.reaches(id, thief)
        {
            self.offer(id, thief, effects);
        } else {
            self.await_inputs(id);
        }
    }
}
