//! A task of higher priority takes the place of one that was sent to a worker and has not begun.
//!
//! What was sent beyond the slots of workers keeps these busy, and would run before anything that
//! comes later. That is as it should be, unless a user wants the later one to run first.

use smallvec::SmallVec;
use treadle_types::{TaskId, WorkerId};

use crate::Effects;
use crate::Guard;
use crate::dispatch::alive;
use crate::queue::Entry;
use crate::scheduler::Scheduler;
use crate::task::{LOOKS, Phase, QueueId};

impl Scheduler {
    /// Notes a task that has to wait, if there may be one that is less urgent to its user.
    #[inline]
    pub(crate) fn note_urgent(&mut self, id: TaskId) {
        if self.tasks[id].priority.user < self.least_urgent {
            self.work.urgent.push(id);
        }
    }

    /// Asks a worker to give back a task for one that is more urgent; whether there is such a pair.
    pub(crate) fn overtake(&mut self, effects: &mut Effects) -> bool {
        while let Some(worker) = self.work.answered.pop() {
            self.note_heads(worker);
        }
        while let Some(id) = self.work.urgent.pop() {
            let places = self.where_it_waits(id);
            let pair = places.into_iter().find_map(|worker| {
                let slower = self.less_urgent(id, worker)?;
                self.would_take(id, slower, worker)
                    .then_some((slower, worker))
            });
            if let Some((slower, worker)) = pair {
                self.retract(slower, worker, effects);
                return true;
            }
        }
        false
    }

    /// Notes the first tasks that wait for a worker. One that was asked back for one of them may have
    /// started, or made room for another one; and while it was asked back, nothing else was.
    fn note_heads(&mut self, worker: WorkerId) {
        let Some(at) = self.workers.get_mut(worker) else {
            return;
        };
        let of = |queue| alive(&self.tasks, queue);
        let own = at.own.head(|_| true, of(QueueId::Own(worker)));
        let common = self.common.head(|_| true, of(QueueId::Common));
        let mut heads: SmallVec<[Entry; 8]> =
            own.into_iter().chain(common).map(|(e, _)| e).collect();
        for &id in &at.classes {
            let class = self.classes.get_mut(id);
            let head = class.and_then(|class| class.queue.head(|_| true, of(QueueId::Class(id))));
            heads.extend(head.map(|(entry, _)| entry));
        }
        for entry in heads {
            self.note_urgent(entry.task);
        }
    }

    /// Workers that have something beyond their slots, and at which a ready task would run as soon
    /// as there is room: some of them, where there are many.
    fn where_it_waits(&mut self, id: TaskId) -> SmallVec<[WorkerId; LOOKS]> {
        self.refresh_levels();
        let Some(task) = self.tasks.get(id) else {
            return SmallVec::new();
        };
        let admitted = |worker: &WorkerId| self.permits(task, *worker) && self.reaches(id, *worker);
        match task.phase {
            Phase::Ready(QueueId::Own(worker)) => {
                Some(worker).into_iter().filter(admitted).collect()
            }
            Phase::Ready(QueueId::Common) => {
                let loaded = self.workers.loaded.iter_highest().take(LOOKS);
                loaded.filter(admitted).collect()
            }
            Phase::Ready(QueueId::Class(class)) => {
                let class = self.classes.get(class).into_iter();
                let eligible = class.flat_map(|class| class.eligible());
                let loaded = eligible.filter(|&id| self.workers.loaded.level(id).is_some());
                loaded.filter(admitted).take(LOOKS).collect()
            }
            _ => SmallVec::new(),
        }
    }

    /// Whether a worker takes a ready task as soon as another one has come back from there: else that
    /// one would go there again.
    fn would_take(&self, id: TaskId, slower: TaskId, worker: WorkerId) -> bool {
        let (task, slower) = (&self.tasks[id], &self.tasks[slower]);
        let Some(at) = self.workers.get(worker).filter(|at| at.is_running()) else {
            return false;
        };
        // What may run anywhere runs where there is memory.
        let anywhere = task.phase == Phase::Ready(QueueId::Common);
        let full = Guard::Budget.holds() && anywhere && at.is_full();
        let closed = at.is_closed() && self.creates_data(task);
        // Those of one class use the same resources.
        let class = self.classes.get(task.class);
        let has_free = class.is_none_or(|class| at.has_free(&class.constraint.resources));
        !full && !closed && (has_free || task.class == slower.class)
    }

    /// The last task sent to a worker that has not begun, as far as is known, and that its user wants
    /// less than `id`.
    fn less_urgent(&mut self, id: TaskId, worker: WorkerId) -> Option<TaskId> {
        let urgency = self.tasks[id].priority.user;
        let at = self.workers.get_mut(worker)?;
        if at.extra() == 0 || at.least_urgent <= urgency {
            return None;
        }
        let whole = at.sent.len() <= LOOKS;
        let mut least = urgency;
        for sent in self.tasks.latest(&at.sent, worker).take(LOOKS) {
            let task = &self.tasks[sent];
            least = least.max(task.priority.user);
            if task.priority.user > urgency && task.is_queued() {
                return Some(sent);
            }
        }
        if whole {
            at.least_urgent = least;
        }
        None
    }
}
