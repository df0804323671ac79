//! Tasks that read what is no value: a partition of a shuffle, for one.

use alloc::collections::BTreeMap;

use treadle_types::TaskId;

use crate::Located;
use crate::scheduler::Scheduler;
use crate::task::Flags;

impl Scheduler {
    /// A plane says where tasks read.
    pub(crate) fn locate(&mut self, all: &[Located]) {
        for &located in all {
            if self.tasks.get(located.task).is_some() {
                self.tasks[located.task].flags.set(Flags::LOCATED);
                self.located.insert(located.task, located);
            }
        }
    }

    /// Counts what a task reads so.
    #[inline]
    pub(crate) fn weigh_located(&mut self, id: TaskId) {
        if self.tasks[id].flags.has(Flags::LOCATED)
            && let Some(Located { worker, nbytes, .. }) = self.located.get(&id)
            && let Some(worker) = *worker
            && let Some(at) = self.workers.get(worker)
        {
            self.weights.add(*nbytes, [(worker, at.host)].into_iter());
        }
    }

    /// A task is forgotten.
    pub(crate) fn forget_located(&mut self, id: TaskId) {
        if self.tasks[id].flags.has(Flags::LOCATED) {
            self.located.remove(&id);
        }
    }
}

pub(crate) type ByTask = BTreeMap<TaskId, Located>;
