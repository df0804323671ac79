//! What can be asked of a scheduler.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;
use treadle_types::{
    Attempt, ClientId, Constraint, Failure, ObjectId, Priority, Symbol, TaskId, WorkerId,
};

use crate::performed::Performed;
use crate::scheduler::{Scheduler, state_of};
use crate::task::{Flags, Phase, Task};
use crate::worker::{Health, Worker, WorkerStatus};
use crate::{Counts, State, Step, Transition, WorkerProfile};

/// A task, to look at.
#[derive(Clone, Copy)]
pub struct TaskView<'a> {
    scheduler: &'a Scheduler,
    task: &'a Task,
    id: TaskId,
}

impl<'a> TaskView<'a> {
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        state_of(self.task.phase)
    }

    /// Its latest attempt; 0 before the first one.
    pub fn attempt(&self) -> Attempt {
        self.task.attempt
    }

    /// The name of its value, while it is in memory.
    pub fn object(&self) -> ObjectId {
        ObjectId::new(self.id, self.task.attempt)
    }

    /// Its place among others.
    pub fn priority(&self) -> Priority {
        self.task.priority
    }

    /// The function that it runs.
    pub fn function(&self) -> Symbol {
        self.task.function
    }

    /// The client that submitted it.
    pub fn client(&self) -> ClientId {
        self.task.client
    }

    /// What it runs; empty for a value that no task computes, and where the value is inline, unless
    /// the task has effects, is computed from what such tasks did, or came while
    /// [lineage](Scheduler::keep_lineage) is kept.
    pub fn recipe(&self) -> Bytes {
        match self.task.phase {
            Phase::Memory { inline: true, .. } => {
                let performed = self.scheduler.performed.get(&self.id);
                let recipe = performed.and_then(|performed| performed.recipe.clone());
                recipe.unwrap_or_default()
            }
            _ => self.task.payload.clone(),
        }
    }

    /// The tasks that it reads. Those of a task with an inline value are not known any more, where its
    /// [recipe](Self::recipe) is not.
    pub fn inputs(&self) -> impl Iterator<Item = TaskId> + 'a {
        self.task.inputs.iter().map(|edge| edge.task)
    }

    /// The tasks that read it, as far as they could have to be computed again.
    pub fn dependents(&self) -> impl Iterator<Item = TaskId> + 'a {
        self.task.dependents.iter().map(|edge| edge.task)
    }

    /// The workers that have its value.
    pub fn holders(&self) -> impl Iterator<Item = WorkerId> + 'a {
        self.task.holders.iter().map(|holder| holder.worker)
    }

    /// The clients that want it.
    pub fn wanted_by(&self) -> impl Iterator<Item = ClientId> + 'a {
        self.task.wanted.iter().copied()
    }

    /// The size of its value in bytes, while it is in memory.
    pub fn nbytes(&self) -> Option<u64> {
        match self.task.phase {
            Phase::Memory { nbytes, .. } => Some(nbytes),
            _ => None,
        }
    }

    /// Its value, where that lives here.
    pub fn inline(&self) -> Option<Bytes> {
        match self.task.phase {
            Phase::Memory { inline: true, .. } => Some(self.task.payload.clone()),
            _ => None,
        }
    }

    /// The type of its value, where that is not inline.
    pub fn class(&self) -> Bytes {
        self.task.value_class()
    }

    /// The worker that it was sent to.
    pub fn worker(&self) -> Option<WorkerId> {
        self.task.phase.run().map(|run| run.worker)
    }

    /// Whether it was sent to a worker ahead of its inputs.
    pub fn is_ahead(&self) -> bool {
        self.task.flags.has(Flags::AHEAD)
    }

    /// Whether it runs without a slot.
    pub fn is_seceded(&self) -> bool {
        self.task.flags.has(Flags::SECEDED)
    }

    /// Whether its value is an actor.
    pub fn is_actor(&self) -> bool {
        self.task.flags.has(Flags::ACTOR)
    }

    /// Whether a client brought its value.
    pub fn is_put(&self) -> bool {
        self.task.flags.has(Flags::PUT)
    }

    /// How often it may still raise.
    pub fn retries(&self) -> u32 {
        u32::from(self.task.retries)
    }

    /// Its restrictions and resources.
    pub fn constraint(&self) -> Option<&'a Constraint> {
        let class = self.scheduler.classes.get(self.task.class);
        class.map(|class| &class.constraint)
    }

    /// How many workers were lost while they ran it.
    pub fn losses(&self) -> usize {
        let trouble = self.scheduler.trouble.get(&self.id);
        trouble.map_or(0, |trouble| trouble.losses.len())
    }

    /// Why it failed.
    pub fn failure(&self) -> Option<&'a Arc<Failure>> {
        match self.task.phase {
            Phase::Failed => self.task.failure(),
            _ => None,
        }
    }
}

/// A worker, to look at.
#[derive(Clone, Copy)]
pub struct WorkerView<'a> {
    scheduler: &'a Scheduler,
    worker: &'a Worker,
    id: WorkerId,
}

impl<'a> WorkerView<'a> {
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// What it has to offer.
    pub fn profile(&self) -> &'a WorkerProfile {
        &self.worker.profile
    }

    /// Whether it takes part.
    pub fn status(&self) -> WorkerStatus {
        self.worker.status()
    }

    /// What it last said about its memory.
    pub fn health(&self) -> Health {
        self.worker.health
    }

    /// When it last said anything.
    pub fn heard(&self) -> Duration {
        self.worker.heard
    }

    /// The tasks that were sent to it, the oldest first.
    pub fn assigned(&self) -> Vec<TaskId> {
        self.scheduler.assigned_to(self.id)
    }

    /// How many tasks were sent to it.
    pub fn assigned_count(&self) -> usize {
        self.worker.tasks()
    }

    /// How many of them wait for others of this worker.
    pub fn ahead(&self) -> usize {
        self.worker.ahead as usize
    }

    /// How many run without a slot.
    pub fn seceded(&self) -> usize {
        self.worker.seceded as usize
    }

    /// Cancelled attempts that have not ended yet.
    pub fn stopping(&self) -> impl Iterator<Item = ObjectId> + 'a {
        self.worker.stopping.keys().copied()
    }

    /// How many ready tasks wait for it at the scheduler.
    pub fn queued(&self) -> usize {
        self.worker.own.len()
    }

    /// The tasks whose values it has.
    pub fn held(&self) -> &'a [TaskId] {
        &self.worker.held
    }

    /// The bytes of these values.
    pub fn bytes(&self) -> u64 {
        self.worker.bytes
    }

    /// How much of each of its resources is in use.
    pub fn used_resources(&self) -> impl Iterator<Item = (Symbol, f64)> + 'a {
        self.worker.used()
    }
}

impl Scheduler {
    /// A task, if it exists.
    pub fn task(&self, id: TaskId) -> Option<TaskView<'_>> {
        let task = self.tasks.get(id)?;
        Some(TaskView {
            scheduler: self,
            task,
            id,
        })
    }

    /// All tasks, by id.
    pub fn tasks(&self) -> impl Iterator<Item = TaskView<'_>> {
        self.tasks.iter().map(|(id, task)| TaskView {
            scheduler: self,
            task,
            id,
        })
    }

    /// A worker, if it is there.
    pub fn worker(&self, id: WorkerId) -> Option<WorkerView<'_>> {
        let worker = self.workers.get(id)?;
        Some(WorkerView {
            scheduler: self,
            worker,
            id,
        })
    }

    /// All workers that are there, by id.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView<'_>> {
        self.workers.iter().map(|(id, worker)| WorkerView {
            scheduler: self,
            worker,
            id,
        })
    }

    /// The name of a worker that is there or was.
    pub fn worker_name(&self, id: WorkerId) -> Option<Symbol> {
        self.workers.name(id)
    }

    /// The clients that are connected, by id.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.clients.iter().map(|(id, _)| id)
    }

    /// The tasks that a client wants, by id.
    pub fn wanted_by(&self, client: ClientId) -> impl Iterator<Item = TaskId> + '_ {
        let client = self.clients.get(client).into_iter();
        client.flat_map(|client| client.wants.iter())
    }

    /// How many tasks are in a state.
    pub fn count(&self, state: State) -> usize {
        match state {
            State::Forgotten => 0,
            state => self.counts[state as usize],
        }
    }

    /// How many tasks of each group are in each state, by group and state.
    pub fn groups(&self) -> &[Counts] {
        self.groups.counts()
    }

    /// Reports that came too late to matter, since the beginning.
    pub fn late_reports(&self) -> u64 {
        self.late
    }

    /// Events handled, since the beginning: the number of the latest, for [`Transition::cause`].
    pub fn events(&self) -> u64 {
        self.cause
    }

    /// What functions were seen to take, and to return in bytes, by function.
    pub fn learnt(&self) -> impl Iterator<Item = (Symbol, Duration, u64)> + '_ {
        self.learnt.iter()
    }

    /// The latest transitions of a task, as far as they are remembered, oldest first.
    pub fn story(&self, task: TaskId) -> Vec<Transition> {
        self.story.of(task)
    }

    /// Keeps each transition until [`Scheduler::take_steps`], from now on, or none any more.
    pub fn watch_steps(&mut self, wanted: bool) {
        self.story.watch(wanted);
    }

    /// What happened since the last call, oldest first, while that is [watched](Self::watch_steps).
    pub fn take_steps(&mut self) -> Vec<Step> {
        self.story.take()
    }

    /// Bytes of memory that tasks take here, recipes and inline values not counted.
    pub fn memory(&self) -> usize {
        let own = self.workers.iter().map(|(_, at)| {
            at.own.memory() + at.held.capacity() * 4 + at.sent.capacity() * size_of::<ObjectId>()
        });
        let performed = self.performed.len() * size_of::<(TaskId, Performed)>();
        self.tasks.memory() + self.common.memory() + own.sum::<usize>() + performed
    }
}
