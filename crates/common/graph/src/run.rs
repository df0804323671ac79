//! The state machine of an execution.

use treadle_guards::{InvariantError, ensure, ensure_eq};

use crate::{Graph, GraphError, ReadySet, TaskId, order};
use alloc::vec;
use alloc::vec::Vec;

/// Where a task stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// Nobody wants it so far.
    Idle,
    /// Wanted; some of its dependencies have no value yet.
    Waiting,
    /// It may start.
    Ready,
    /// It was started.
    Running,
    /// Its value is there.
    Done,
    /// Its value was there and nobody needed it any more. Wanted again, it runs again.
    Released,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The values of these tasks are wanted, and held until [`Event::Dropped`]. Whatever they
    /// need is planned now; tasks that were added to the graph since are included.
    Wanted(&'a [TaskId]),
    /// The value of an idle task is there without running it.
    Known(TaskId),
    /// Somebody is free to run a task.
    Free,
    /// A running task returned its value.
    Finished(TaskId),
    /// The value of a task is no longer held.
    Dropped(TaskId),
}

/// What follows from an event. The vectors are appended to; clear them when you have acted.
#[derive(Default, Debug)]
pub struct Effects {
    /// Start this task: the answer to [`Event::Free`], unless nothing is ready.
    pub start: Option<TaskId>,
    /// Values that nobody needs any more.
    pub released: Vec<TaskId>,
}

/// An event that cannot happen: a bug of the caller, or a cycle among the wanted tasks. The run
/// is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The tasks cannot be ordered.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The task is in no state for this event.
    #[error("{task:?} is {status:?}: it cannot be {event}")]
    Impossible {
        task: TaskId,
        /// Where it stands.
        status: Status,
        /// What was said to have happened.
        event: &'static str,
    },
}

const UNRANKED: u32 = u32::MAX;

/// An execution of a [`Graph`]: which tasks may start, in the planned order, and which values
/// nobody needs any more.
///
/// Time plays no part in it, so [`Run::handle`] takes no clock. One event costs time in proportion
/// to the dependencies that it concerns.
pub struct Run {
    graph: Graph,
    status: Vec<Status>,
    /// Whether somebody outside of the graph holds the value.
    held: Vec<bool>,
    /// By task: dependencies without a value. Meaningful while the task is waiting.
    waiting: Vec<u32>,
    /// By task: dependencies of planned tasks on its value that were not consumed yet, plus one
    /// while it is held.
    readers: Vec<u32>,
    /// By task: its place in the planned order.
    rank: Vec<u32>,
    /// By rank: the task.
    sequence: Vec<TaskId>,
    ready: ReadySet,
    unfinished: usize,
}

impl Run {
    /// An execution of `graph` in which nothing is wanted yet.
    pub fn new(graph: Graph) -> Self {
        let mut run = Run {
            graph,
            status: Vec::new(),
            held: Vec::new(),
            waiting: Vec::new(),
            readers: Vec::new(),
            rank: Vec::new(),
            sequence: Vec::new(),
            ready: ReadySet::with_capacity(0),
            unfinished: 0,
        };
        run.cover_graph();
        run
    }

    #[inline]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph, to add tasks while the run goes on. They take part once they are wanted.
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// Where `task` stands.
    #[inline]
    pub fn status(&self, task: TaskId) -> Status {
        self.status
            .get(task.index())
            .copied()
            .unwrap_or(Status::Idle)
    }

    /// Number of tasks that may start now.
    #[inline]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Number of planned tasks that have not finished.
    #[inline]
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// The planned order, tasks that have run included.
    pub fn sequence(&self) -> &[TaskId] {
        &self.sequence
    }

    /// Takes an event in; what follows from it is appended to `effects`.
    ///
    /// # Errors
    /// [`RunError`]; the run is then as it was before.
    #[inline]
    pub fn handle(&mut self, event: Event<'_>, effects: &mut Effects) -> Result<(), RunError> {
        match event {
            Event::Wanted(tasks) => self.want(tasks),
            Event::Known(task) => self.know(task),
            Event::Free => {
                effects.start = self.start();
                Ok(())
            }
            Event::Finished(task) => self.finish(task, effects),
            Event::Dropped(task) => self.drop_hold(task, effects),
        }
    }

    fn cover_graph(&mut self) {
        let n = self.graph.len();
        self.status.resize(n, Status::Idle);
        self.held.resize(n, false);
        self.waiting.resize(n, 0);
        self.readers.resize(n, 0);
        self.rank.resize(n, UNRANKED);
    }

    fn want(&mut self, tasks: &[TaskId]) -> Result<(), RunError> {
        self.cover_graph();
        // Tasks that are planned already will have a value without our doing.
        let planned =
            |task: TaskId| !matches!(self.status[task.index()], Status::Idle | Status::Released);
        let order = order(&self.graph, tasks, planned)?;
        let first = self.sequence.len();
        self.unfinished += order.len();
        // The first plan, usually the only one, is taken over as it is.
        if first == 0 {
            self.sequence = order;
        } else {
            self.sequence.extend(order);
        }
        self.ready.grow(self.sequence.len());
        for rank in first..self.sequence.len() {
            let task = self.sequence[rank];
            let mut waiting = 0;
            for &dependency in self.graph.dependencies(task) {
                self.readers[dependency.index()] += 1;
                waiting += u32::from(self.status[dependency.index()] != Status::Done);
            }
            self.waiting[task.index()] = waiting;
            self.rank[task.index()] = rank as u32;
            self.status[task.index()] = Status::Waiting;
            if waiting == 0 {
                self.status[task.index()] = Status::Ready;
                self.ready.insert(rank as u32);
            }
        }
        for &task in tasks {
            if !core::mem::replace(&mut self.held[task.index()], true) {
                self.readers[task.index()] += 1;
            }
        }
        Ok(())
    }

    fn know(&mut self, task: TaskId) -> Result<(), RunError> {
        self.cover_graph();
        self.expect(task, Status::Idle, "known")?;
        self.status[task.index()] = Status::Done;
        Ok(())
    }

    #[inline]
    fn start(&mut self) -> Option<TaskId> {
        let task = self.sequence[self.ready.pop()? as usize];
        self.status[task.index()] = Status::Running;
        Some(task)
    }

    #[inline]
    fn finish(&mut self, task: TaskId, effects: &mut Effects) -> Result<(), RunError> {
        self.expect(task, Status::Running, "finished")?;
        self.status[task.index()] = Status::Done;
        self.unfinished -= 1;
        for dependent in self.graph.dependents(task) {
            let d = dependent.index();
            // A graph that grew has dependents that nobody wants yet.
            if self.status.get(d) == Some(&Status::Waiting) {
                self.waiting[d] -= 1;
                if self.waiting[d] == 0 {
                    self.status[d] = Status::Ready;
                    self.ready.insert(self.rank[d]);
                }
            }
        }
        for &dependency in self.graph.dependencies(task) {
            let d = dependency.index();
            self.readers[d] -= 1;
            if self.readers[d] == 0 {
                self.status[d] = Status::Released;
                effects.released.push(dependency);
            }
        }
        if self.readers[task.index()] == 0 {
            self.status[task.index()] = Status::Released;
            effects.released.push(task);
        }
        Ok(())
    }

    fn drop_hold(&mut self, task: TaskId, effects: &mut Effects) -> Result<(), RunError> {
        self.cover_graph();
        let t = task.index();
        if !self.held[t] {
            let status = self.status[t];
            return Err(RunError::Impossible {
                task,
                status,
                event: "dropped: nobody holds it",
            });
        }
        self.held[t] = false;
        self.readers[t] -= 1;
        if self.readers[t] == 0 && self.status[t] == Status::Done {
            self.status[t] = Status::Released;
            effects.released.push(task);
        }
        Ok(())
    }

    #[inline]
    fn expect(&self, task: TaskId, status: Status, event: &'static str) -> Result<(), RunError> {
        match self.status(task) {
            actual if actual == status => Ok(()),
            actual => Err(RunError::Impossible {
                task,
                status: actual,
                event,
            }),
        }
    }

    /// Verifies every invariant against a recount from the graph.
    ///
    /// # Errors
    /// [`InvariantError`]: one does not hold, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        self.ready.check()?;
        let n = self.status.len();
        let planned = |s: Status| matches!(s, Status::Waiting | Status::Ready | Status::Running);
        let mut readers = vec![0; n];
        let (mut unfinished, mut ready) = (0, 0);
        for task in self.graph.tasks().take(n) {
            let t = task.index();
            let status = self.status[t];
            let dependencies = self.graph.dependencies(task);
            let missing = dependencies
                .iter()
                .filter(|d| self.status[d.index()] != Status::Done)
                .count();
            if planned(status) {
                unfinished += 1;
                ensure_eq!(
                    self.sequence[self.rank[t] as usize],
                    task,
                    "rank of {task:?}"
                );
                ensure_eq!(
                    missing == 0,
                    status != Status::Waiting,
                    "{task:?} is {status:?} and misses {missing} values"
                );
                for dependency in dependencies {
                    readers[dependency.index()] += 1;
                }
            }
            if status == Status::Waiting {
                ensure_eq!(self.waiting[t] as usize, missing, "what {task:?} waits for");
            }
            let is_ready = status == Status::Ready;
            ready += usize::from(is_ready);
            ensure_eq!(
                self.rank[t] != UNRANKED && self.ready.contains(self.rank[t]),
                is_ready,
                "the ready set and {task:?} disagree"
            );
            readers[t] += u32::from(self.held[t]);
        }
        ensure_eq!(self.readers, readers, "readers");
        ensure_eq!(self.unfinished, unfinished, "unfinished tasks");
        ensure_eq!(self.ready.len(), ready, "ready tasks");
        for task in self.graph.tasks().take(n) {
            let released = self.status[task.index()] == Status::Released;
            ensure!(
                !(released && readers[task.index()] > 0),
                "{task:?} was released too early"
            );
        }
        ensure!(
            unfinished == 0
                || (0..n).any(|t| matches!(self.status[t], Status::Ready | Status::Running)),
            "nothing can go on"
        );
        Ok(())
    }
}
