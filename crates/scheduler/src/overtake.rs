//! A task of higher priority takes the place of one that was sent to a worker and has not begun.
//!
//! What was sent beyond the slots of workers keeps these busy, and would run before anything that
//! comes later. That is as it should be, unless a user wants the later one to run first.

use treadle_types::{TaskId, WorkerId};

use crate::Effects;
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
        while let Some(id) = self.work.urgent.pop() {
            let Some(worker) = self.where_it_waits(id) else {
                continue;
            };
            if let Some(slower) = self.less_urgent(id, worker) {
                self.retract(slower, worker, effects);
                return true;
            }
        }
        false
    }

    /// A worker at which a ready task would run as soon as there is room.
    fn where_it_waits(&mut self, id: TaskId) -> Option<WorkerId> {
        self.refresh_levels();
        let task = self.tasks.get(id)?;
        let Phase::Ready(queue) = task.phase else {
            return None;
        };
        let worker = match queue {
            QueueId::Own(worker) => worker,
            QueueId::Common | QueueId::Class(_) => self.workers.loaded.highest()?,
            QueueId::Parked => return None,
        };
        (self.permits(task, worker) && self.reaches(id, worker)).then_some(worker)
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
