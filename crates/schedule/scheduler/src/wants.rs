//! What clients want, want no more, cancel, and want to be tried again.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use treadle_types::{ClientId, TaskId};

use crate::scheduler::Scheduler;
use crate::task::Phase;
use crate::{Effects, Notice, SchedulerError};

impl Scheduler {
    fn expect_client(&self, client: ClientId) -> Result<(), SchedulerError> {
        match self.clients.get(client) {
            Some(_) => Ok(()),
            None => Err(SchedulerError::UnknownClient(client)),
        }
    }

    /// A client has a future of a task. What it hears at once is how the task stands, if it is done.
    pub(crate) fn want(&mut self, client: ClientId, id: TaskId, effects: &mut Effects) {
        let is_new = self
            .clients
            .get_mut(client)
            .is_some_and(|client| client.wants.insert(id));
        if is_new {
            self.tasks[id].wanted.push(client);
        }
        self.inform(client, id, effects);
    }

    pub(crate) fn want_all(
        &mut self,
        client: ClientId,
        tasks: &[TaskId],
        effects: &mut Effects,
    ) -> Result<(), SchedulerError> {
        self.expect_client(client)?;
        if let Some(&unknown) = tasks.iter().find(|&&id| self.tasks.get(id).is_none()) {
            return Err(SchedulerError::UnknownTask(unknown));
        }
        for &id in tasks {
            self.want(client, id, effects);
            if self.tasks[id].phase == Phase::Released {
                self.activate(id);
            }
        }
        Ok(())
    }

    pub(crate) fn unwant_all(
        &mut self,
        client: ClientId,
        tasks: &[TaskId],
    ) -> Result<(), SchedulerError> {
        self.expect_client(client)?;
        for &id in tasks {
            self.unwant(client, id);
        }
        Ok(())
    }

    /// A client has no future of a task any more; whether it had one.
    fn unwant(&mut self, client: ClientId, id: TaskId) -> bool {
        let had = self
            .clients
            .get_mut(client)
            .is_some_and(|client| client.wants.remove(id));
        if had {
            self.no_longer_wanted_by(client, id);
        }
        had
    }

    fn no_longer_wanted_by(&mut self, client: ClientId, id: TaskId) {
        self.unwanted_by_bringer(id, client);
        let task = &mut self.tasks[id];
        task.wanted.retain(|wanting| *wanting != client);
        if !task.is_needed() {
            self.work.unneeded.push(id);
        }
    }

    pub(crate) fn client_left(&mut self, client: ClientId) -> Result<(), SchedulerError> {
        let Some(left) = self.clients.leave(client) else {
            return Err(SchedulerError::UnknownClient(client));
        };
        for &open in left.submissions.values() {
            self.close_submission(open);
        }
        self.unkeep_everything(client);
        for id in left.wants.iter() {
            self.no_longer_wanted_by(client, id);
        }
        Ok(())
    }

    pub(crate) fn cancel(
        &mut self,
        client: ClientId,
        tasks: &[TaskId],
        force: bool,
        effects: &mut Effects,
    ) -> Result<(), SchedulerError> {
        self.expect_client(client)?;
        let mut cancelled = BTreeSet::new();
        let mut stack: Vec<_> = tasks.to_vec();
        while let Some(id) = stack.pop() {
            let Some(task) = self.tasks.get(id) else {
                continue;
            };
            let others = task.wanted.iter().any(|&wanting| wanting != client);
            if !cancelled.insert(id) || (others && !force) {
                continue;
            }
            let dependents = task.dependents.iter().map(|edge| edge.task);
            stack.extend(
                // What has its value has read its inputs.
                dependents.filter(|&id| !matches!(self.tasks[id].phase, Phase::Memory { .. })),
            );
        }
        for id in cancelled {
            let whose = match force {
                true => self.tasks[id].wanted.to_vec(),
                false => vec![client],
            };
            for client in whose {
                let wants = self
                    .clients
                    .get(client)
                    .is_some_and(|c| c.wants.contains(id));
                if wants {
                    self.revoke(id, client, effects);
                    self.unwant(client, id);
                    effects.0.push(crate::Effect::Notify {
                        client,
                        task: id,
                        notice: Notice::Cancelled,
                    });
                }
            }
        }
        self.moved();
        Ok(())
    }

    pub(crate) fn retry(
        &mut self,
        client: ClientId,
        tasks: &[TaskId],
        effects: &mut Effects,
    ) -> Result<(), SchedulerError> {
        self.expect_client(client)?;
        // The failed tasks that these depend on, and those that failed with them.
        let failed = |id: TaskId| {
            let task = self.tasks.get(id)?;
            (task.phase == Phase::Failed && !task.flags.has(crate::task::Flags::PUT))
                .then_some(task)
        };
        let mut again = BTreeSet::new();
        let mut stack: Vec<_> = tasks.to_vec();
        while let Some(id) = stack.pop() {
            if let Some(task) = failed(id)
                && again.insert(id)
            {
                stack.extend(task.inputs.iter().map(|edge| edge.task));
            }
        }
        let mut stack: Vec<_> = again.iter().copied().collect();
        while let Some(id) = stack.pop() {
            for edge in &self.tasks[id].dependents {
                if failed(edge.task).is_some() && again.insert(edge.task) {
                    stack.push(edge.task);
                }
            }
        }
        for &id in &again {
            self.trouble.remove(&id);
            self.tasks[id].outcome = None;
            // All of them first: to activate one looks at its inputs.
            self.enter(id, Phase::Released);
        }
        for &id in &again {
            if self.tasks[id].is_needed() {
                self.notify(id, Notice::Pending, effects);
                self.activate(id);
            } else {
                self.work.unneeded.push(id);
            }
        }
        self.moved();
        Ok(())
    }

    /// Everything is cancelled and dropped.
    pub(crate) fn restart(&mut self, effects: &mut Effects) {
        let open: Vec<_> = self.clients.submissions().map(|(id, _)| id).collect();
        for id in open {
            // Tasks would wait for readers that do not come any more.
            self.close_submission(id);
        }
        let clients: Vec<_> = self.clients.iter().map(|(id, _)| id).collect();
        for client in clients {
            let Some(entry) = self.clients.get_mut(client) else {
                continue;
            };
            entry.submissions.clear();
            let wants = core::mem::take(&mut entry.wants);
            for id in wants.iter() {
                self.revoke(id, client, effects);
                self.no_longer_wanted_by(client, id);
                effects.0.push(crate::Effect::Notify {
                    client,
                    task: id,
                    notice: Notice::Cancelled,
                });
            }
        }
        self.moved();
    }
}
