//! Values that clients bring to workers, and bring again when they are lost.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_types::{ClientId, Failure, Symbol, TaskId};

use crate::Guard;
use crate::scheduler::Scheduler;
use crate::task::{Flags, Phase};
use crate::{Effect, Effects, SchedulerError};

/// A value that clients are to bring to workers.
#[derive(Debug)]
pub(crate) struct Coming {
    /// Those that have put it, or were asked for it.
    pub(crate) clients: Vec<ClientId>,
    /// When the last of them was.
    since: Duration,
    /// The name of the worker that had it last, if it was lost.
    lost: Option<Symbol>,
}

/// The clients that keep a value, and bring it when they are asked to.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// In the order in which they put it.
    pub(crate) clients: Vec<ClientId>,
    /// The name of the worker that had it last, when it was lost.
    lost: Option<Symbol>,
}

/// Values of clients. What is in neither table is at workers, and at nobody else's.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    /// Those that are to come.
    pub(crate) coming: BTreeMap<TaskId, Coming>,
    /// Those that clients keep, until nobody can refer to them any more.
    pub(crate) kept: BTreeMap<TaskId, Kept>,
}

impl Scheduler {
    /// Whether a client is to bring the value to a worker.
    pub(crate) fn is_coming(&self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        matches!(task.phase, Phase::Waiting { .. }) && task.flags.has(Flags::PUT)
    }

    /// Whether a client would bring the value again if it were lost.
    pub(crate) fn is_kept(&self, id: TaskId) -> bool {
        Guard::Keeping.holds() && self.brought.kept.contains_key(&id)
    }

    fn is_kept_by(&self, id: TaskId, client: ClientId) -> bool {
        let kept = self.brought.kept.get(&id);
        kept.is_some_and(|kept| kept.clients.contains(&client))
    }

    /// A client is about to bring a value.
    pub(crate) fn comes_from(&mut self, id: TaskId, client: ClientId) {
        let since = self.now;
        let coming = self.brought.coming.entry(id).or_insert_with(|| Coming {
            clients: Vec::new(),
            since,
            lost: None,
        });
        coming.since = since;
        if !coming.clients.contains(&client) {
            coming.clients.push(client);
        }
    }

    /// A client keeps a value from now on, unless a task has computed it already.
    pub(crate) fn keep(&mut self, id: TaskId, client: ClientId, effects: &mut Effects) {
        if !self.tasks[id].flags.has(Flags::PUT) {
            effects.0.push(Effect::Unkeep { client, task: id });
            return;
        }
        let kept = self.brought.kept.entry(id).or_default();
        if !kept.clients.contains(&client) {
            kept.clients.push(client);
        }
    }

    /// Clients do not keep values any more, or cannot bring them.
    pub(crate) fn unkeep_all(
        &mut self,
        client: ClientId,
        tasks: &[TaskId],
    ) -> Result<(), SchedulerError> {
        if self.clients.get(client).is_none() {
            return Err(SchedulerError::UnknownClient(client));
        }
        for &id in tasks {
            self.unkeep(id, client);
        }
        Ok(())
    }

    /// A client does not keep a value any more, and does not bring it.
    pub(crate) fn unkeep(&mut self, id: TaskId, client: ClientId) {
        if let Some(kept) = self.brought.kept.get_mut(&id) {
            kept.clients.retain(|&keeper| keeper != client);
            if kept.clients.is_empty() {
                self.brought.kept.remove(&id);
            }
        }
        self.not_from(id, client);
    }

    /// What a client keeps was cancelled: it need not keep it, and is not asked for it.
    pub(crate) fn revoke(&mut self, id: TaskId, client: ClientId, effects: &mut Effects) {
        if self.is_kept_by(id, client) {
            self.unkeep(id, client);
            effects.0.push(Effect::Unkeep { client, task: id });
        }
    }

    /// A client is gone.
    pub(crate) fn unkeep_everything(&mut self, client: ClientId) {
        let kept = self.brought.kept.iter();
        let kept = kept.filter(|(_, kept)| kept.clients.contains(&client));
        let kept: Vec<TaskId> = kept.map(|(&id, _)| id).collect();
        for id in kept {
            self.unkeep(id, client);
        }
    }

    /// A client does not want a value any more: it does not bring it, unless it keeps it anyway.
    pub(crate) fn unwanted_by_bringer(&mut self, id: TaskId, client: ClientId) {
        if self.brought.coming.contains_key(&id) && !self.is_kept_by(id, client) {
            self.not_from(id, client);
        }
    }

    fn not_from(&mut self, id: TaskId, client: ClientId) {
        if let Some(coming) = self.brought.coming.get_mut(&id) {
            coming.clients.retain(|&bringer| bringer != client);
            if coming.clients.is_empty() {
                self.work.absent.push(id);
            }
        }
    }

    /// The last copy of a value that clients keep is gone.
    pub(crate) fn note_loss(&mut self, id: TaskId, worker: Symbol) {
        if let Some(kept) = self.brought.kept.get_mut(&id) {
            kept.lost = Some(worker);
        }
    }

    /// A value is needed that no task computes: somebody is to bring it, under another name than
    /// before, which workers may just be told to drop.
    pub(crate) fn await_bringing(&mut self, id: TaskId) {
        let task = &mut self.tasks[id];
        task.attempt = task.attempt.next();
        task.missing = 0;
        task.flags.set(Flags::LOST);
        self.work.absent.push(id);
    }

    /// Asks a client that keeps a value, if nobody is about to bring it. If there is none, the value
    /// will not come.
    pub(crate) fn ask(&mut self, id: TaskId, effects: &mut Effects) {
        if !self.is_coming(id) {
            return;
        }
        let kept = self.brought.kept.get(&id);
        let lost = kept.and_then(|kept| kept.lost);
        let coming = self.brought.coming.entry(id).or_insert_with(|| Coming {
            clients: Vec::new(),
            since: self.now,
            lost,
        });
        let is_late = self.now.saturating_sub(coming.since) > self.config.patience;
        if !coming.clients.is_empty() && !is_late {
            return;
        }
        coming.since = self.now;
        let others = kept.into_iter().flat_map(|kept| &kept.clients);
        let mut others = others.filter(|client| !coming.clients.contains(client));
        if let Some(&client) = others.next() {
            coming.clients.push(client);
            effects.0.push(Effect::Bring { client, task: id });
        } else if coming.clients.is_empty() {
            let failure = Failure::DataLost {
                task: id,
                worker: coming.lost.unwrap_or(Symbol(0)),
                actor: false,
            };
            self.brought.coming.remove(&id);
            self.work.failing.push((id, Arc::new(failure)));
        }
    }

    /// Who was asked for a value may not answer: others are asked, too.
    pub(crate) fn ask_others(&mut self) {
        let (now, patience) = (self.now, self.config.patience);
        let coming = self.brought.coming.iter();
        let late = coming.filter(|(_, coming)| now.saturating_sub(coming.since) > patience);
        self.work.absent.extend(late.map(|(&id, _)| id));
    }

    /// Nobody can refer to a value any more: nobody need keep it.
    pub(crate) fn forget_kept(&mut self, id: TaskId, effects: &mut Effects) {
        let Some(kept) = self.brought.kept.remove(&id) else {
            return;
        };
        for client in kept.clients {
            effects.0.push(Effect::Unkeep { client, task: id });
        }
    }
}
