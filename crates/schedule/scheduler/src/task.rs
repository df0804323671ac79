//! The table of tasks.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{BitOr, Index, IndexMut};

use bytes::Bytes;
use smallvec::SmallVec;
use treadle_types::{Attempt, ClientId, Failure, ObjectId, Priority, Symbol, TaskId, WorkerId};

use crate::class::ClassId;
use crate::client::OpenId;
use crate::few::Few;
use crate::vacant::Vacant;
use crate::worker::Load;

/// An id whose attempts have come so far is not handed out again: an attempt is never used twice.
/// One task cannot use up those that are left, at a message to a worker and back for each.
const RETIRED: Attempt = Attempt(u32::MAX / 2);

/// How many of the tasks that were sent to a worker are looked at for one to take back.
pub(crate) const LOOKS: usize = 64;

/// One end of an edge between a task and an input of it: the task at the other end, and the position
/// of the edge there. Both ends know each other, so that an edge goes in constant time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Edge {
    pub(crate) task: TaskId,
    pub(crate) slot: u32,
}

/// A worker that has a value, and the position of the value in the worker's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) worker: WorkerId,
    pub(crate) slot: u32,
}

/// A stay of a task at a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) worker: WorkerId,
    /// How long it is expected to run, in microseconds.
    pub(crate) estimate: u32,
    /// How much memory its value is expected to take, in KiB.
    pub(crate) output: u32,
}

/// Which queue of the scheduler a ready task waits in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueId {
    /// For whoever comes first.
    Common,
    Own(WorkerId),
    /// Of those who satisfy a constraint.
    Class(ClassId),
    /// Of tasks with an input that no worker can get at the moment.
    Parked,
}

/// Where a task stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Phase {
    /// The id is free.
    Vacant,
    /// The id was handed out, for a task that is still to come.
    Allocated,
    /// Known; it has no value, and nobody needs one.
    Released,
    /// Some inputs have no value. At least `here` of those without one were sent to worker `near`.
    Waiting { near: WorkerId, here: u32 },
    /// In a queue of the scheduler.
    Ready(QueueId),
    /// Sent to a worker.
    Assigned(Run),
    /// Sent to a worker, and asked back on behalf of another one.
    Retracting { run: Run, thief: WorkerId },
    /// It has a value.
    Memory { nbytes: u64, inline: bool },
    /// It will not get a value by itself.
    Failed,
}

impl Phase {
    /// Waiting, with nothing known about where.
    pub(crate) const WAITING: Self = Self::Waiting {
        near: WorkerId(u32::MAX),
        here: 0,
    };

    /// Whether the task is on its way to a value: it reads its inputs.
    pub(crate) fn is_active(self) -> bool {
        matches!(
            self,
            Self::Waiting { .. } | Self::Ready(_) | Self::Assigned(_) | Self::Retracting { .. }
        )
    }

    /// The stay at a worker, if the task is at one.
    pub(crate) fn run(self) -> Option<Run> {
        match self {
            Self::Assigned(run) | Self::Retracting { run, .. } => Some(run),
            _ => None,
        }
    }
}

/// Facts about a task, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Flags(u16);

impl Flags {
    pub(crate) const NONE: Self = Self(0);
    /// No task computes the value.
    pub(crate) const PUT: Self = Self(1);
    /// The value is an actor.
    pub(crate) const ACTOR: Self = Self(1 << 1);
    /// An input is an actor, or was found to be immovable: the task runs where that is.
    pub(crate) const PINNED: Self = Self(1 << 2);
    /// The worker was told to keep the value even if it is small.
    pub(crate) const KEEP: Self = Self(1 << 3);
    /// At a worker that does not have all inputs yet.
    pub(crate) const AHEAD: Self = Self(1 << 4);
    /// Runs, and has given its slot away.
    pub(crate) const SECEDED: Self = Self(1 << 5);
    /// The worker said that it has started.
    pub(crate) const STARTED: Self = Self(1 << 6);
    /// Reads nothing that is in a worker's memory.
    pub(crate) const CREATOR: Self = Self(1 << 7);
    /// Tasks of more than one submission that are still to come will read it.
    pub(crate) const MORE_UNSENT: Self = Self(1 << 8);

    /// The value of the latest attempt was lost; a copy may be on its way to somewhere.
    pub(crate) const LOST: Self = Self(1 << 9);

    /// The worker that has the value cannot serialise it.
    pub(crate) const IMMOVABLE: Self = Self(1 << 10);

    /// A client asked for several copies: they stay.
    pub(crate) const REPLICATED: Self = Self(1 << 11);

    /// Copies went with their last reader once, and stay if they are made again.
    pub(crate) const UNCOPIED: Self = Self(1 << 12);

    /// The task does more than return its value: see `performed`.
    pub(crate) const EFFECTS: Self = Self(1 << 13);

    /// It reads something that is no value: see `located`.
    pub(crate) const LOCATED: Self = Self(1 << 14);

    /// It was computed from what a task with effects did, directly or not, or somebody wants to see
    /// what it was made from: see `performed`.
    pub(crate) const DERIVED: Self = Self(1 << 15);

    /// What belongs to a stay at a worker.
    pub(crate) const OF_RUN: Self =
        Self(Self::KEEP.0 | Self::AHEAD.0 | Self::SECEDED.0 | Self::STARTED.0);

    #[inline]
    pub(crate) fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flag: Self) {
        self.0 |= flag.0;
    }

    #[inline]
    pub(crate) fn clear(&mut self, flag: Self) {
        self.0 &= !flag.0;
    }

    #[inline]
    pub(crate) fn put(&mut self, flag: Self, on: bool) {
        if on { self.set(flag) } else { self.clear(flag) }
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What came of a task, beyond what its phase says.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The type of a value that is not inline.
    Class(Bytes),
    /// Why it failed.
    Failure(Arc<Failure>),
}

/// A task.
///
/// Three cache lines: how it stands, what it runs, its neighbours. Whoever adds a field makes each
/// step of every task slower.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Task {
    pub(crate) phase: Phase,
    /// The latest attempt. When the task is in memory, the one that the value is named by.
    pub(crate) attempt: Attempt,
    pub(crate) flags: Flags,
    /// How often it may still raise.
    pub(crate) retries: u16,
    /// Inputs without a value. Meaningful while the task is active.
    pub(crate) missing: u32,
    /// Edges to dependents that are active.
    pub(crate) readers: u32,
    /// Reads of tasks that are still to come in submission `open`.
    pub(crate) unsent: u32,
    pub(crate) open: OpenId,
    /// The recipe; in a task that has an inline value, that. The recipe of one with effects, or of one
    /// that is derived, is in `performed` then.
    pub(crate) payload: Bytes,
    pub(crate) priority: Priority,
    /// Whose definitions the recipe refers to.
    pub(crate) client: ClientId,
    pub(crate) function: Symbol,
    pub(crate) class: ClassId,
    pub(crate) outcome: Option<Box<Outcome>>,
    pub(crate) inputs: SmallVec<[Edge; 2]>,
    pub(crate) dependents: SmallVec<[Edge; 2]>,
    /// Clients that want it, in the order in which they did.
    pub(crate) wanted: Few<ClientId>,
    pub(crate) holders: Few<Holder>,
}

const _: () = assert!(size_of::<Task>() <= 192);

impl Task {
    fn vacant() -> Self {
        Self {
            phase: Phase::Vacant,
            attempt: Attempt(0),
            flags: Flags::NONE,
            retries: 0,
            priority: Priority::default(),
            client: ClientId(0),
            function: Symbol(0),
            class: ClassId::NONE,
            missing: 0,
            readers: 0,
            unsent: 0,
            open: OpenId::NONE,
            payload: Bytes::new(),
            outcome: None,
            inputs: SmallVec::new(),
            dependents: SmallVec::new(),
            wanted: Few::None,
            holders: Few::None,
        }
    }

    /// Whether it was sent to a worker, has its inputs there, and has not begun, as far as is known:
    /// the worker can give it back.
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.phase, Phase::Assigned(_))
            && !self
                .flags
                .has(Flags::AHEAD | Flags::SECEDED | Flags::STARTED)
    }

    /// Whether somebody will read the value.
    #[inline]
    pub(crate) fn is_needed(&self) -> bool {
        self.readers > 0
            || !self.wanted.is_empty()
            || self.unsent > 0
            || self.flags.has(Flags::MORE_UNSENT)
    }

    /// Whether somebody can refer to it.
    #[inline]
    pub(crate) fn exists(&self) -> bool {
        !matches!(self.phase, Phase::Vacant | Phase::Allocated)
    }

    /// Whether `worker` has the value.
    #[inline]
    pub(crate) fn is_at(&self, worker: WorkerId) -> bool {
        self.holders.iter().any(|holder| holder.worker == worker)
    }

    /// How it counts at its worker, if it is at one.
    #[inline]
    pub(crate) fn load(&self) -> Load {
        if self.flags.has(Flags::AHEAD) {
            Load::Ahead
        } else if self.flags.has(Flags::SECEDED) {
            Load::Seceded
        } else {
            Load::Runnable
        }
    }

    /// The size of the value; 0 as long as there is none.
    pub(crate) fn nbytes(&self) -> u64 {
        match self.phase {
            Phase::Memory { nbytes, .. } => nbytes,
            _ => 0,
        }
    }

    /// Why it failed.
    pub(crate) fn failure(&self) -> Option<&Arc<Failure>> {
        match self.outcome.as_deref() {
            Some(Outcome::Failure(failure)) => Some(failure),
            _ => None,
        }
    }

    /// The type of a value that is not inline.
    pub(crate) fn value_class(&self) -> Bytes {
        match self.outcome.as_deref() {
            Some(Outcome::Class(class)) => class.clone(),
            _ => Bytes::new(),
        }
    }
}

/// All tasks, dense by id. Ids of forgotten tasks are handed out again; their attempts go on
/// counting, up to [`RETIRED`].
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    tasks: Vec<Task>,
    vacant: Vacant,
}

impl Tasks {
    /// An id for a new task.
    pub(crate) fn allocate(&mut self) -> TaskId {
        if let Some(id) = self.vacant.take() {
            self[id].phase = Phase::Allocated;
            return id;
        }
        let id = TaskId(self.tasks.len() as u32);
        let mut task = Task::vacant();
        task.phase = Phase::Allocated;
        self.tasks.push(task);
        id
    }

    /// See [`Scheduler::touch`](crate::Scheduler::touch).
    pub(crate) fn touch(&self, ids: impl Iterator<Item = TaskId> + Clone) {
        // Something of each of an entry's cache lines.
        let lines = |id: TaskId| {
            self.tasks.get(id.index()).map_or(0, |task| {
                task.attempt.0 as usize
                    ^ task.payload.len()
                    ^ task.inputs.len()
                    ^ task.dependents.len()
                    ^ task.holders.len()
                    ^ task.wanted.len()
            })
        };
        let mut read = 0;
        for id in ids.clone() {
            read ^= lines(id);
        }
        for task in ids.filter_map(|id| self.tasks.get(id.index())) {
            for edge in task.inputs.iter().chain(&task.dependents).take(4) {
                read ^= lines(edge.task);
            }
        }
        core::hint::black_box(read);
    }

    /// Takes back an id that was handed out.
    pub(crate) fn vacate(&mut self, id: TaskId) {
        let task = &mut self.tasks[id.index()];
        debug_assert!(task.inputs.is_empty() && task.dependents.is_empty());
        debug_assert!(task.holders.is_empty() && task.wanted.is_empty());
        task.phase = Phase::Vacant;
        task.payload = Bytes::new();
        task.outcome = None;
        task.flags = Flags::NONE;
        task.class = ClassId::NONE;
        // What grew on the heap goes; a next task rarely needs it.
        task.inputs = SmallVec::new();
        task.dependents = SmallVec::new();
        task.holders = Few::None;
        task.wanted = Few::None;
        if task.attempt < RETIRED {
            self.vacant.add(id);
        }
    }

    /// The task, if it exists.
    #[inline]
    pub(crate) fn get(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(id.index()).filter(|task| task.exists())
    }

    /// The entry, whatever its phase, if the id was ever handed out.
    #[inline]
    pub(crate) fn slot(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(id.index())
    }

    /// How many ids there are, vacant ones included.
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// The tasks that exist, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        let ids = (0..).map(TaskId);
        ids.zip(&self.tasks).filter(|(_, task)| task.exists())
    }

    /// The latest attempt of a task, with its id.
    #[inline]
    pub(crate) fn object(&self, id: TaskId) -> ObjectId {
        ObjectId::new(id, self[id].attempt)
    }

    /// Whether an attempt is the latest of its task, and at a worker.
    #[inline]
    pub(crate) fn is_at_worker(&self, object: ObjectId, worker: WorkerId) -> bool {
        let task = &self[object.task];
        task.attempt == object.attempt && task.phase.run().is_some_and(|r| r.worker == worker)
    }

    /// Those of the attempts sent to a worker that are there, the last one first.
    pub(crate) fn latest<'a>(
        &'a self,
        sent: &'a VecDeque<ObjectId>,
        worker: WorkerId,
    ) -> impl Iterator<Item = TaskId> + 'a {
        let latest = sent.iter().rev();
        let latest = latest.filter(move |&&object| self.is_at_worker(object, worker));
        latest.map(|object| object.task)
    }

    /// Says that `task` reads `input`.
    pub(crate) fn link(&mut self, task: TaskId, input: TaskId) {
        let here = self[task].inputs.len() as u32;
        let there = self[input].dependents.len() as u32;
        self[task].inputs.push(Edge {
            task: input,
            slot: there,
        });
        self[input].dependents.push(Edge { task, slot: here });
    }

    /// Removes the last edge from `task` to an input, and says which input that was.
    pub(crate) fn unlink_last(&mut self, task: TaskId) -> Option<TaskId> {
        let Edge { task: input, slot } = self[task].inputs.pop()?;
        let dependents = &mut self[input].dependents;
        dependents.swap_remove(slot as usize);
        if let Some(&moved) = dependents.get(slot as usize) {
            self[moved.task].inputs[moved.slot as usize].slot = slot;
        }
        Some(input)
    }

    /// Bytes of memory of the table, recipes and values not counted. What its entries have on the
    /// heap is estimated from some of them, so that to ask takes no longer with more tasks.
    pub(crate) fn memory(&self) -> usize {
        const SOME: usize = 1024;
        let heap = |task: &Task| {
            let spilled = |spilled: bool, bytes: usize| if spilled { bytes } else { 0 };
            spilled(task.inputs.spilled(), task.inputs.capacity() * 8)
                + spilled(task.dependents.spilled(), task.dependents.capacity() * 8)
                + task.holders.memory()
                + task.wanted.memory()
        };
        let step = self.tasks.len() / SOME + 1;
        let some = self.tasks.iter().step_by(step);
        let count = some.len().max(1);
        let mean = some.map(heap).sum::<usize>() as f64 / count as f64;
        self.tasks.capacity() * size_of::<Task>()
            + self.vacant.memory()
            + (mean * self.tasks.len() as f64) as usize
    }
}

impl Index<TaskId> for Tasks {
    type Output = Task;

    #[inline]
    fn index(&self, id: TaskId) -> &Task {
        &self.tasks[id.index()]
    }
}

impl IndexMut<TaskId> for Tasks {
    #[inline]
    fn index_mut(&mut self, id: TaskId) -> &mut Task {
        &mut self.tasks[id.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_whose_attempts_run_out_is_not_used_again() {
        let mut tasks = Tasks::default();
        let id = tasks.allocate();
        tasks[id].attempt = Attempt(RETIRED.0 - 1);
        tasks.vacate(id);
        assert_eq!(tasks.allocate(), id);
        tasks[id].attempt = tasks[id].attempt.next();
        tasks.vacate(id);
        let others: Vec<_> = (0..3).map(|_| tasks.allocate()).collect();
        assert!(!others.contains(&id));
        assert!(!tasks[id].exists());
    }
}
