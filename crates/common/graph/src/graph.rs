//! Who depends on whom.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use treadle_guards::{InvariantError, ensure_eq};

/// A task of one [`Graph`]: its position in the order in which tasks were added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

impl TaskId {
    /// The id as an index into a column that has one entry a task.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

/// Why a graph could not be built or ordered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// More tasks or dependencies than 32-bit ids can name.
    #[error("a graph holds at most {} tasks and as many dependencies", u32::MAX - 1)]
    TooLarge,
    /// A dependency on a task that was never added.
    #[error("{task:?} depends on {dependency:?}, but the graph has only {tasks} tasks")]
    UnknownTask {
        /// The task that names the dependency.
        task: TaskId,
        /// The unknown task.
        dependency: TaskId,
        /// Number of tasks of the graph.
        tasks: usize,
    },
    /// Tasks that wait for each other. Each depends on the next, and the last on the first.
    #[error("a cycle of {} tasks", .0.len())]
    Cycle(Vec<TaskId>),
}

const NONE: u32 = u32::MAX;

/// The dependents that one batch added to a task: a part of `Graph::dependents`.
#[derive(Clone, Copy)]
struct Readers {
    from: u32,
    to: u32,
    /// What earlier batches added, or `NONE`.
    earlier: u32,
}

/// Tasks and their dependencies, append-only, in 32-bit columns: 8 bytes a task, 12 more for a task
/// that is read, and 8 bytes a dependency.
///
/// A task that reads a value twice has two dependencies on it; every count in this crate counts
/// dependencies, so nobody has to look for duplicates.
#[derive(Default, Clone)]
pub struct Graph {
    /// `dependencies[offsets[t]..offsets[t + 1]]` are those of task `t`.
    offsets: Vec<u32>,
    dependencies: Vec<TaskId>,
    /// Readers of a task are together for each batch, so that walking them is fast and a graph can
    /// still grow while it runs: `heads[t]` is the latest entry of task `t` in `readers`.
    heads: Vec<u32>,
    readers: Vec<Readers>,
    dependents: Vec<TaskId>,
}

impl Graph {
    /// An empty graph with room for `tasks` tasks and `dependencies` dependencies.
    pub fn with_capacity(tasks: usize, dependencies: usize) -> Self {
        let mut offsets = Vec::with_capacity(tasks + 1);
        offsets.push(0);
        Graph {
            offsets,
            dependencies: Vec::with_capacity(dependencies),
            heads: Vec::with_capacity(tasks),
            readers: Vec::new(),
            dependents: Vec::new(),
        }
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether the graph has no tasks.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Number of dependencies, counted once for each time that a task reads a value.
    pub fn dependency_count(&self) -> usize {
        self.dependencies.len()
    }

    /// All tasks, in the order in which they were added.
    pub fn tasks(&self) -> impl DoubleEndedIterator<Item = TaskId> + ExactSizeIterator + use<> {
        (0..self.heads.len() as u32).map(TaskId)
    }

    /// What `task` reads, in the order in which it was added, duplicates included.
    #[inline]
    pub fn dependencies(&self, task: TaskId) -> &[TaskId] {
        let (from, to) = (self.offsets[task.index()], self.offsets[task.index() + 1]);
        &self.dependencies[from as usize..to as usize]
    }

    /// Who reads `task`: the latest batch first, duplicates included.
    #[inline]
    pub fn dependents(&self, task: TaskId) -> Dependents<'_> {
        Dependents {
            graph: self,
            batch: [].iter(),
            earlier: self.heads[task.index()],
        }
    }

    /// Adds `tasks` tasks at once, so that they may depend on each other in any direction. Give
    /// the dependencies of each through [`Batch::depend`] and [`Batch::next`].
    ///
    /// # Errors
    /// [`GraphError::TooLarge`] when 32-bit ids do not suffice; the graph is then unchanged.
    pub fn add(&mut self, tasks: usize) -> Result<Batch<'_>, GraphError> {
        let first = self.heads.len();
        if tasks >= NONE as usize - first {
            return Err(GraphError::TooLarge);
        }
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        let edges = self.dependencies.len();
        self.heads.resize(first + tasks, NONE);
        self.offsets.reserve(tasks);
        Ok(Batch {
            graph: self,
            first,
            edges,
        })
    }

    /// Verifies that both directions of every dependency agree.
    ///
    /// # Errors
    /// [`InvariantError`]: one does not hold, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        ensure_eq!(
            self.offsets.len(),
            self.len() + 1,
            "one offset a task and one more"
        );
        ensure_eq!(
            self.dependents.len(),
            self.dependencies.len(),
            "one dependent a dependency"
        );
        let mut backward: Vec<(TaskId, TaskId)> = self
            .tasks()
            .flat_map(|task| {
                self.dependents(task)
                    .map(move |dependent| (dependent, task))
            })
            .collect();
        let mut forward: Vec<(TaskId, TaskId)> = self
            .tasks()
            .flat_map(|task| self.dependencies(task).iter().map(move |&d| (task, d)))
            .collect();
        backward.sort_unstable();
        forward.sort_unstable();
        ensure_eq!(forward, backward, "dependencies and dependents disagree");
        Ok(())
    }
}

/// The dependents of a task.
#[derive(Clone)]
pub struct Dependents<'a> {
    graph: &'a Graph,
    batch: core::slice::Iter<'a, TaskId>,
    earlier: u32,
}

impl Iterator for Dependents<'_> {
    type Item = TaskId;

    #[inline]
    fn next(&mut self) -> Option<TaskId> {
        loop {
            if let Some(&dependent) = self.batch.next() {
                return Some(dependent);
            }
            // `NONE` is past the end, so one bounds check serves both purposes.
            let readers = self.graph.readers.get(self.earlier as usize)?;
            self.batch = self.graph.dependents[readers.from as usize..readers.to as usize].iter();
            self.earlier = readers.earlier;
        }
    }
}

/// Tasks that are being added; see [`Graph::add`]. Dropped before [`Batch::finish`], it takes all
/// its tasks back.
pub struct Batch<'a> {
    graph: &'a mut Graph,
    first: usize,
    edges: usize,
}

impl Batch<'_> {
    /// The task whose dependencies are given next.
    #[inline]
    pub fn current(&self) -> TaskId {
        TaskId(self.graph.offsets.len() as u32 - 1)
    }

    /// The current task reads `dependency`.
    ///
    /// # Errors
    /// [`GraphError::UnknownTask`] or [`GraphError::TooLarge`].
    #[inline]
    pub fn depend(&mut self, dependency: TaskId) -> Result<(), GraphError> {
        let tasks = self.graph.heads.len();
        if self.graph.dependencies.len() >= NONE as usize {
            return Err(GraphError::TooLarge);
        }
        if dependency.index() >= tasks {
            return Err(GraphError::UnknownTask {
                task: self.current(),
                dependency,
                tasks,
            });
        }
        self.graph.dependencies.push(dependency);
        Ok(())
    }

    /// The current task has all its dependencies; the next becomes current.
    ///
    /// # Panics
    /// When the batch has no further task.
    #[inline]
    pub fn next(&mut self) {
        assert!(
            self.current().index() < self.graph.heads.len(),
            "the batch is full"
        );
        self.graph
            .offsets
            .push(self.graph.dependencies.len() as u32);
    }

    /// Keeps the tasks. Those that [`Batch::next`] did not reach have no dependencies.
    ///
    /// # Panics
    /// When dependencies were added after the last task.
    pub fn finish(self) -> Range<u32> {
        let graph = &mut *self.graph;
        let edges = graph.dependencies.len() as u32;
        graph.offsets.resize(graph.heads.len() + 1, edges);
        assert_eq!(
            graph.offsets.last(),
            Some(&edges),
            "dependencies of no task: the batch was full"
        );
        let range = self.first as u32..graph.heads.len() as u32;
        let new_readers = graph.readers.len();
        // A counting sort of the batch's dependencies by what is read.
        for &dependency in &graph.dependencies[self.edges..] {
            let head = &mut graph.heads[dependency.index()];
            if *head == NONE || (*head as usize) < new_readers {
                let earlier = core::mem::replace(head, graph.readers.len() as u32);
                graph.readers.push(Readers {
                    from: 0,
                    to: 0,
                    earlier,
                });
            }
            graph.readers[*head as usize].to += 1;
        }
        let mut from = self.edges as u32;
        for readers in &mut graph.readers[new_readers..] {
            // `to` is where the next reader goes, until all are there.
            let count = core::mem::replace(&mut readers.to, from);
            readers.from = from;
            from += count;
        }
        graph.dependents.resize(edges as usize, TaskId(NONE));
        for task in range.clone() {
            let (from, to) = (
                graph.offsets[task as usize] as usize,
                graph.offsets[task as usize + 1] as usize,
            );
            for &dependency in &graph.dependencies[from..to] {
                let readers = &mut graph.readers[graph.heads[dependency.index()] as usize];
                graph.dependents[readers.to as usize] = TaskId(task);
                readers.to += 1;
            }
        }
        // To drop it would take its tasks back.
        core::mem::forget(self);
        range
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let graph = &mut *self.graph;
        graph.dependencies.truncate(self.edges);
        graph.heads.truncate(self.first);
        graph.offsets.truncate(self.first + 1);
    }
}
