//! What clients are told of the tasks that they want.

use treadle_types::{ClientId, TaskId};

use crate::scheduler::Scheduler;
use crate::task::Phase;
use crate::{Effect, Effects, Notice};

impl Scheduler {
    /// Tells each client that wants a task.
    pub(crate) fn notify(&self, id: TaskId, notice: Notice, effects: &mut Effects) {
        for &client in &self.tasks[id].wanted {
            effects.0.push(Effect::Notify {
                client,
                task: id,
                notice: notice.clone(),
            });
        }
    }

    pub(crate) fn notify_finished(&self, id: TaskId, effects: &mut Effects) {
        if !self.tasks[id].wanted.is_empty()
            && let Some(notice) = self.standing(id)
        {
            self.notify(id, notice, effects);
        }
    }

    /// Tells a client how a task stands, if that is final.
    pub(crate) fn inform(&self, client: ClientId, id: TaskId, effects: &mut Effects) {
        if let Some(notice) = self.standing(id) {
            effects.0.push(Effect::Notify {
                client,
                task: id,
                notice,
            });
        }
    }

    fn standing(&self, id: TaskId) -> Option<Notice> {
        let task = &self.tasks[id];
        match task.phase {
            Phase::Memory { nbytes, inline } => Some(Notice::Finished {
                nbytes,
                inline: inline.then(|| task.payload.clone()),
                class: task.value_class(),
                holder: match inline {
                    true => None,
                    false => task.holders.first().map(|holder| holder.worker),
                },
            }),
            Phase::Failed => task.failure().cloned().map(Notice::Failed),
            _ => None,
        }
    }
}
