//! A run on paper: one strategy, its sequence of tasks, and the peak of live values.

use super::survey::Survey;
use crate::{Dependents, Graph, TaskId};
use alloc::vec;
use alloc::vec::Vec;

/// What to aim at next when nothing has to be run at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The next target, downwards: finish one result before starting another.
    Down,
    /// A reader of the latest value that is still needed, upwards: use what is alive.
    Up,
}

/// Which tasks to run as soon as they are ready, before going on with the aim.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Eagerness {
    /// The last reader of a value: it replaces at least one live value by its own, so waiting
    /// could never use less memory.
    LastReader,
    /// Also all readers of a value, when all of them are ready as soon as it is there. That costs
    /// as many values as there are readers, but frees what they read: the right choice where
    /// several reductions read the same data.
    AllReaders,
}

#[derive(Clone, Copy)]
pub(super) struct Strategy {
    direction: Direction,
    eagerness: Eagerness,
    /// Take targets and equally demanding dependencies in the opposite order.
    reversed: bool,
}

impl Strategy {
    pub(super) const fn new(direction: Direction, eagerness: Eagerness, reversed: bool) -> Self {
        Strategy {
            direction,
            eagerness,
            reversed,
        }
    }
}

/// A topological order.
#[derive(Debug)]
pub(super) struct Walked {
    /// The tasks, first to last.
    pub(super) sequence: Vec<TaskId>,
    /// The largest number of values that are alive at once when the tasks run one after another,
    /// counted when a task has finished and its inputs are not yet released. Known values are not
    /// counted.
    pub(super) peak: usize,
}

/// How many readers of a value are compared before one of them is aimed at: enough to see the
/// difference, few enough for linear time where thousands read one value.
const COMPARED: usize = 16;

pub(super) struct Walk<'a> {
    graph: &'a Graph,
    survey: &'a Survey,
    strategy: Strategy,
    /// Give up when the peak reaches this: another order is as good.
    limit: usize,
    done: Vec<bool>,
    waiting: Vec<u32>,
    readers: Vec<u32>,
    reader_xor: Vec<u32>,
    sequence: Vec<TaskId>,
    live: usize,
    peak: usize,
    /// Tasks to run before anything else.
    eager: Vec<TaskId>,
    /// Tasks aimed at, the nearest on top.
    aims: Vec<TaskId>,
    /// Values in the order in which they came to live, with their readers from the first on that
    /// may have to be run (upwards only).
    recent: Vec<(TaskId, Dependents<'a>)>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        survey: &'a Survey,
        strategy: Strategy,
        limit: usize,
    ) -> Self {
        Walk {
            graph,
            survey,
            strategy,
            limit,
            done: vec![false; graph.len()],
            waiting: survey.waiting.clone(),
            readers: survey.readers.clone(),
            reader_xor: survey.reader_xor.clone(),
            sequence: Vec::with_capacity(survey.depth_first.len()),
            live: 0,
            peak: 0,
            eager: Vec::new(),
            aims: Vec::new(),
            recent: Vec::new(),
        }
    }

    /// The order, or nothing if its peak would reach the limit.
    pub(super) fn run(mut self, targets: &[TaskId]) -> Option<Walked> {
        for i in 0..targets.len() {
            let i = if self.strategy.reversed {
                targets.len() - 1 - i
            } else {
                i
            };
            let target = targets[i];
            if !self.survey.is_needed(target) || self.done[target.index()] {
                continue;
            }
            match self.strategy.direction {
                Direction::Down => self.aim_at(target),
                Direction::Up => {
                    let first = self.first_leaf(target);
                    self.aim_at(first);
                    while let Some(reader) = self.nearest_reader() {
                        self.aim_at(reader);
                        if self.peak >= self.limit {
                            return None;
                        }
                    }
                }
            }
            if self.peak >= self.limit {
                return None;
            }
        }
        debug_assert_eq!(self.sequence.len(), self.survey.depth_first.len());
        Some(Walked {
            sequence: self.sequence,
            peak: self.peak,
        })
    }

    /// Runs `task` and all that it waits for.
    fn aim_at(&mut self, task: TaskId) {
        self.aims.push(task);
        while let Some(&aim) = self.aims.last() {
            // It was aimed at twice, or has run as an eager one.
            if self.done[aim.index()] {
                self.aims.pop();
            } else if self.waiting[aim.index()] == 0 {
                self.aims.pop();
                self.finish(aim);
                while let Some(task) = self.eager.pop() {
                    if !self.done[task.index()] {
                        self.finish(task);
                    }
                }
                if self.peak >= self.limit {
                    return;
                }
            } else {
                self.push_missing(aim);
            }
        }
    }

    /// Pushes the missing dependencies of `aim`, the most demanding on top.
    fn push_missing(&mut self, aim: TaskId) {
        let from = self.aims.len();
        for &dependency in self.graph.dependencies(aim) {
            if self.survey.is_needed(dependency) && !self.done[dependency.index()] {
                self.aims.push(dependency);
            }
        }
        let missing = &mut self.aims[from..];
        if self.strategy.reversed {
            missing.reverse();
        }
        if missing.len() > 1 {
            let demand = &self.survey.demand;
            missing.sort_by_key(|task| demand[task.index()]);
        }
    }

    /// Where the path of the most demanding dependencies below `task` ends.
    fn first_leaf(&self, mut task: TaskId) -> TaskId {
        let missing = |d: &TaskId| self.survey.is_needed(*d) && !self.done[d.index()];
        let demand = |d: &TaskId| self.survey.demand[d.index()];
        while let Some(next) = self
            .graph
            .dependencies(task)
            .iter()
            .rev()
            .copied()
            .filter(missing)
            .max_by_key(demand)
        {
            task = next;
        }
        task
    }

    /// Of the readers of the latest live value, the one that waits for the fewest others.
    fn nearest_reader(&mut self) -> Option<TaskId> {
        while let Some((value, readers)) = self.recent.last_mut() {
            if self.readers[value.index()] > 0 {
                let is_open = |r: &TaskId| self.survey.is_needed(*r) && !self.done[r.index()];
                // What has run stays so: the next look starts behind it.
                let mut rest = readers.clone();
                while rest.next().is_some_and(|r| !is_open(&r)) {
                    *readers = rest.clone();
                }
                let open = readers.clone().take(COMPARED).filter(is_open);
                if let Some(reader) = open.min_by_key(|r| self.waiting[r.index()]) {
                    return Some(reader);
                }
            }
            self.recent.pop();
        }
        None
    }

    /// Appends `task` and notes what becomes ready, what is released and what should follow.
    fn finish(&mut self, task: TaskId) {
        self.done[task.index()] = true;
        self.sequence.push(task);
        self.live += 1;
        self.peak = self.peak.max(self.live);
        if self.strategy.direction == Direction::Up {
            self.recent.push((task, self.graph.dependents(task)));
        }
        for &dependency in self.graph.dependencies(task) {
            let d = dependency.index();
            if !self.survey.is_needed(dependency) {
                continue;
            }
            self.readers[d] -= 1;
            self.reader_xor[d] ^= task.0;
            if self.survey.is_target(dependency) {
                continue;
            }
            match self.readers[d] {
                0 => self.live -= 1,
                1 => {
                    let last = TaskId(self.reader_xor[d]);
                    // A task that reads it twice is the last reader itself.
                    if last != task && self.waiting[last.index()] == 0 {
                        self.eager.push(last);
                    }
                }
                _ => {}
            }
        }
        let mut all_ready = true;
        for reader in self.graph.dependents(task) {
            if !self.survey.is_needed(reader) {
                continue;
            }
            self.waiting[reader.index()] -= 1;
            if self.waiting[reader.index()] > 0 {
                all_ready = false;
            } else if self.is_last_reader(reader) {
                self.eager.push(reader);
            }
        }
        if self.readers[task.index()] == 0 {
            if !self.survey.is_target(task) {
                self.live -= 1;
            }
        } else if all_ready
            && self.strategy.eagerness == Eagerness::AllReaders
            && !self.survey.is_target(task)
        {
            let needed = |r: &TaskId| self.survey.is_needed(*r);
            self.eager
                .extend(self.graph.dependents(task).filter(needed));
        }
    }

    /// Whether running `reader` releases one of its inputs.
    fn is_last_reader(&self, reader: TaskId) -> bool {
        self.graph.dependencies(reader).iter().any(|&dependency| {
            self.survey.is_needed(dependency)
                && self.readers[dependency.index()] == 1
                && !self.survey.is_target(dependency)
        })
    }
}
