//! What the scheduler says, to whom it concerns.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use bytes::Bytes;
use treadle_messages::{
    Definition, Failed, FailedKind, Leave, LostWorker, Standing, ToClient, ToWorker,
};
use treadle_scheduler::{self as scheduler, Event, Notice, SchedulerError, Stuck};
use treadle_types::{
    Assignment, Cause, ClientId, Command, Failure, Place, Symbol, TaskId, WorkerId,
};

use crate::definitions::Used;
use crate::effect::Effect;
use crate::guard::Guard;
use crate::keys::NO_DEFINITIONS;
use crate::state::Core;

/// In whose name clients want what shall run even if they do not wait for it.
const FIRE_AND_FORGET: &str = "fire-and-forget";

impl Core {
    /// Hands an event to the scheduler, and acts on what follows.
    ///
    /// # Errors
    /// When the event cannot be; nothing has changed then.
    #[inline]
    pub(crate) fn feed(&mut self, event: Event) -> Result<(), SchedulerError> {
        self.scheduler.handle(event, self.now, &mut self.followed)?;
        self.follow();
        self.forget();
        Ok(())
    }

    /// As [`Core::feed`], for an event that the server made sure of.
    #[inline]
    pub(crate) fn feed_own(&mut self, event: Event) {
        if let Err(error) = self.feed(event) {
            self.out.push(Effect::Fault(error.to_string()));
        }
    }

    /// Does what the scheduler has said; the caller has tasks forgotten, before anybody looks at keys.
    pub(crate) fn follow(&mut self) {
        loop {
            if self.watched {
                self.tell_steps();
            }
            let mut effects = mem::take(&mut self.followed.0);
            for effect in effects.drain(..) {
                self.act(effect);
            }
            // Its memory is used again.
            self.followed.0 = effects;
            let Some(event) = self.later.pop_front() else {
                return;
            };
            let handled = self.scheduler.handle(event, self.now, &mut self.followed);
            if let Err(error) = handled {
                self.out.push(Effect::Fault(error.to_string()));
            }
        }
    }

    #[inline(always)]
    fn act(&mut self, effect: scheduler::Effect) {
        use scheduler::Effect as Said;
        match effect {
            Said::Command { worker, command } => self.command(worker, command),
            Said::Notify {
                client,
                task,
                notice,
            } => self.notify(client, task, notice),
            Said::Bring { client, task } => {
                let node = self.clients.get(client);
                if let Some(&id) = node.and_then(|node| node.kept.get(&task)) {
                    self.tell_client(client, ToClient::Bring(vec![id]));
                }
            }
            Said::Unkeep { client, task } => {
                let node = self.clients.get_mut(client);
                if let Some(id) = node.and_then(|node| node.kept.remove(&task)) {
                    self.tell_client(client, ToClient::Unkeep(vec![id]));
                }
            }
            // Together, and after the others, which may name it.
            Said::Forgotten(task) => self.forgotten.push(task),
            Said::LetGo(task) => self.barrier_let_go(task),
            Said::Drained(worker) => self.drained(worker),
            Said::Dismiss { worker, reason } => self.dismissed(worker, reason),
            Said::Stuck { tasks, reason } => self.stuck(&tasks, reason),
        }
    }

    #[inline(always)]
    fn command(&mut self, worker: WorkerId, command: Command) {
        self.counts.commands += 1;
        match &command {
            Command::Assign(assignment) => {
                self.define_for(worker, assignment);
                for input in &assignment.inputs {
                    if let Place::At(holders) = &input.place {
                        self.introduce(worker, holders);
                    }
                }
            }
            Command::Copy { holders, .. } => self.introduce(worker, holders),
            Command::Retract(_) | Command::Cancel(_) | Command::Release(_) => {}
        }
        self.out.push(match self.workers.get(worker) {
            Some(_) => Effect::Command(worker, command),
            None => Effect::Fault(format!("{worker:?} is not there, and is told {command:?}")),
        });
    }

    /// Sends the definitions that a task uses, unless the worker has them.
    #[inline]
    fn define_for(&mut self, worker: WorkerId, assignment: &Assignment) {
        let note = self
            .keys
            .get(assignment.object.task)
            .map_or(NO_DEFINITIONS, |entry| entry.definitions);
        let Some(node) = self.workers.get_mut(worker) else {
            return;
        };
        let one;
        let places: &[u32] = match self.definitions.used(note) {
            Used::None => return,
            Used::One(place) => {
                if node.defined.has(place) {
                    return;
                }
                one = [place];
                &one
            }
            Used::Many(places) => places,
        };
        for &place in places {
            if !node.defined.insert(place) || !Guard::Definition.holds() {
                continue;
            }
            let Some(defined) = self.definitions.get(place) else {
                continue;
            };
            let definition = Definition {
                client: defined.client,
                number: defined.number,
                name: self.symbols.text(defined.name).to_owned(),
                pickle: defined.pickle.clone(),
            };
            let define = ToWorker::Define(definition);
            self.out.push(Effect::ToWorker(worker, define));
        }
    }

    /// Tells a worker where others are, before it hears of them.
    pub(super) fn introduce(&mut self, worker: WorkerId, others: &[WorkerId]) {
        for &other in others {
            let is_known = |node: &crate::nodes::WorkerNode| node.knows.has(other.0);
            if self.workers.get(worker).is_none_or(is_known) {
                continue;
            }
            let Some(address) = self.workers.get(other).map(|node| node.address.clone()) else {
                continue;
            };
            if let Some(node) = self.workers.get_mut(worker) {
                node.knows.insert(other.0);
                let peer = ToWorker::Peer {
                    worker: other,
                    address,
                };
                self.out.push(Effect::ToWorker(worker, peer));
            }
        }
    }

    /// The same for a client.
    pub(crate) fn introduce_to_client(&mut self, client: ClientId, others: &[WorkerId]) {
        for &other in others {
            let Some(address) = self.workers.get(other).map(|node| node.address.clone()) else {
                continue;
            };
            if let Some(node) = self.clients.get_mut(client)
                && node.knows.insert(other.0)
            {
                let peer = ToClient::Peer {
                    worker: other,
                    address,
                };
                self.out.push(Effect::ToClient(client, peer));
            }
        }
    }

    /// Tells a worker something, if it is there.
    #[inline]
    pub(crate) fn tell_worker(&mut self, worker: WorkerId, message: ToWorker) {
        if self.workers.get(worker).is_some() {
            self.out.push(Effect::ToWorker(worker, message));
        }
    }

    /// Tells a client something, if it is there.
    #[inline]
    pub(crate) fn tell_client(&mut self, client: ClientId, message: ToClient) {
        if self.clients.get(client).is_some() {
            self.out.push(Effect::ToClient(client, message));
        }
    }

    fn notify(&mut self, client: ClientId, task: TaskId, notice: Notice) {
        self.counts.notices += 1;
        if let Notice::Failed(failure) = &notice {
            self.note_failure(failure);
            self.note_doom(failure);
        }
        let Some(node) = self.clients.get_mut(client) else {
            return self.notify_stand_in(client, task, &notice);
        };
        let Some(id) = node.locals.wanted(task) else {
            return;
        };
        let standing = match notice {
            Notice::Finished {
                nbytes,
                inline,
                class,
                holder,
            } => {
                if let Some(holder) = holder
                    && !node.knows.has(holder.0)
                {
                    self.introduce_to_client(client, &[holder]);
                }
                let Some(view) = self.scheduler.task(task) else {
                    return;
                };
                Standing::Finished {
                    nbytes,
                    inline,
                    class,
                    holder,
                    object: view.object().to_u64(),
                }
            }
            Notice::Failed(failure) => Standing::Failed(self.failed(&failure)),
            Notice::Cancelled => {
                // From now on the client does not want it, under whatever id.
                node.locals.unwant(task);
                Standing::Cancelled(self.reason.clone())
            }
            Notice::Pending => Standing::Pending,
        };
        self.tell_client(client, ToClient::Notice { id, standing });
    }

    /// Nobody waits for a task that was fired and forgotten once it is over.
    fn notify_stand_in(&mut self, client: ClientId, task: TaskId, notice: &Notice) {
        if *notice != Notice::Pending
            && self.clients.stand_ins.get(FIRE_AND_FORGET) == Some(&client)
        {
            self.later.push_back(Event::Unwant {
                client,
                tasks: vec![task],
            });
        }
    }

    /// Whoever watches is told of a task that was given up; what was raised, workers tell.
    fn note_doom(&mut self, failure: &Arc<Failure>) {
        let is_known = self
            .doomed
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, failure));
        if !self.settings.sight || is_known || matches!(**failure, Failure::Raised { .. }) {
            return;
        }
        self.doomed = Some(Arc::clone(failure));
        let text = match self.failed(failure).kind {
            FailedKind::Raised(_) => return,
            FailedKind::WorkersLost(workers) => {
                let workers = workers
                    .iter()
                    .map(|lost| format!("{}: {}", lost.name, lost.cause));
                let workers: Vec<_> = workers.collect();
                let count = workers.len();
                format!(
                    "KilledWorker: {count} workers were lost while they ran it ({})",
                    workers.join("; ")
                )
            }
            FailedKind::DataLost(lost) => {
                format!(
                    "its value was scattered, and is lost with worker {}",
                    lost.name
                )
            }
            FailedKind::ActorLost(lost) => format!("the actor is lost with worker {}", lost.name),
            FailedKind::Unavailable(_) => {
                "no worker can get an input of it from those that hold it".into()
            }
        };
        let key = self.keys.key(failure.culprit()).to_vec();
        self.out.push(Effect::Doomed(key, text));
    }

    /// A failure, with keys and names.
    pub(crate) fn failed(&self, failure: &Failure) -> Failed {
        let key = |task: TaskId| Bytes::copy_from_slice(self.keys.key(task));
        let kind = match failure {
            Failure::Raised { error, .. } => FailedKind::Raised(error.clone()),
            Failure::WorkersLost { losses, .. } => FailedKind::WorkersLost(
                losses
                    .iter()
                    .map(|loss| self.lost_worker(loss.worker, Some(&loss.cause)))
                    .collect(),
            ),
            Failure::DataLost { worker, actor, .. } => {
                let lost = self.lost_worker(*worker, None);
                match actor {
                    true => FailedKind::ActorLost(lost),
                    false => FailedKind::DataLost(lost),
                }
            }
            Failure::Unavailable { input, .. } => FailedKind::Unavailable(key(*input)),
        };
        Failed {
            key: key(failure.culprit()),
            kind,
        }
    }

    fn lost_worker(&self, name: Symbol, cause: Option<&Cause>) -> LostWorker {
        let recalled = self.workers.recall(name, cause).cloned();
        let mut lost = recalled.unwrap_or_else(|| LostWorker {
            name: self.symbols.text(name).to_owned(),
            address: String::new(),
            cause: Cause::Unreachable,
            log: String::new(),
        });
        if let Some(cause) = cause {
            lost.cause.clone_from(cause);
        }
        lost
    }

    /// Forgets the tasks that nobody can refer to any more.
    #[inline]
    pub(crate) fn forget(&mut self) {
        if self.forgotten.is_empty() {
            return;
        }
        let mut unused = Vec::new();
        let (spread, definitions) = (&mut self.spread, &mut self.definitions);
        let (shuffles, mut barriers) = (&self.shuffles, Vec::new());
        self.keys.remove_all(&mut self.forgotten, |task, entry| {
            if !spread.is_empty() {
                spread.remove(&task);
            }
            if shuffles.has_barrier(task) {
                barriers.push(task);
            }
            if entry.owner != ClientId(0)
                && let Some(places) = definitions.release(entry.owner, entry.definitions)
            {
                unused.push((entry.owner, places));
            }
        });
        for (owner, places) in unused {
            self.undefine(owner, &places);
        }
        for barrier in barriers {
            self.barrier_forgotten(barrier);
        }
    }

    /// The definitions of a client are not needed any more.
    pub(crate) fn undefine(&mut self, client: ClientId, places: &[u32]) {
        if places.is_empty() {
            return;
        }
        for worker in self.workers.ids() {
            let Some(node) = self.workers.get_mut(worker) else {
                continue;
            };
            let had_any = places.iter().any(|place| node.defined.has(*place));
            for place in places {
                node.defined.remove(*place);
            }
            if had_any {
                self.tell_worker(worker, ToWorker::ForgetClient(client));
            }
        }
    }

    /// Has clients give up definitions that nobody uses, and workers forget those that were given up.
    pub(crate) fn trim_definitions(&mut self) {
        for (client, numbers) in self.definitions.surplus() {
            self.tell_client(client, ToClient::Unused(numbers));
        }
        let gone = self.definitions.take_gone();
        if gone.is_empty() {
            return;
        }
        for worker in self.workers.ids() {
            let Some(node) = self.workers.get_mut(worker) else {
                continue;
            };
            let mut had: BTreeMap<ClientId, Vec<u32>> = BTreeMap::new();
            for &(place, client, number) in &gone {
                if node.defined.has(place) {
                    node.defined.remove(place);
                    had.entry(client).or_default().push(number);
                }
            }
            for (client, numbers) in had {
                self.tell_worker(worker, ToWorker::Withdraw { client, numbers });
            }
        }
    }

    fn drained(&mut self, worker: WorkerId) {
        self.tell_worker(
            worker,
            ToWorker::Leave {
                cause: Leave::Drained,
                reason: "it was drained, and is not needed any more".into(),
            },
        );
        // After the effects at hand: they may name it.
        self.losing.push((worker, Cause::Drained, String::new()));
    }

    fn dismissed(&mut self, worker: WorkerId, reason: String) {
        let leave = ToWorker::Leave {
            cause: Leave::Dismissed,
            reason: format!("it is dismissed: {reason}"),
        };
        self.tell_worker(worker, leave);
        let cause = Cause::Misbehaved(reason);
        self.losing.push((worker, cause, String::new()));
    }

    fn stuck(&mut self, tasks: &[TaskId], reason: Stuck) {
        let keys: Vec<Bytes> = tasks
            .iter()
            .map(|task| Bytes::copy_from_slice(self.keys.key(*task)))
            .collect();
        let message = ToClient::Stuck { keys, reason };
        for client in self.clients.ids() {
            self.tell_client(client, message.clone());
        }
    }
}
