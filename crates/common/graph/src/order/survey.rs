//! One pass over the graph: what is needed, who reads what, and how demanding each task is.

use crate::{Graph, GraphError, TaskId};
use alloc::vec;
use alloc::vec::Vec;

/// How far the survey has come with a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Unseen,
    /// On the path that is being followed: meeting it again closes a cycle.
    Open,
    Needed,
    Known,
}

/// So many inputs of a task are ordered by their demands.
const FEW: usize = 64;

/// What all strategies need to know about a graph.
pub(super) struct Survey {
    marks: Vec<Mark>,
    targets: Vec<bool>,
    /// The tasks to order, each after its dependencies.
    pub(super) depth_first: Vec<TaskId>,
    /// Number of dependencies between tasks to order.
    pub(super) dependencies: usize,
    /// By task, the dependencies on needed tasks.
    pub(super) waiting: Vec<u32>,
    /// By task, the dependencies of needed tasks on it.
    pub(super) readers: Vec<u32>,
    /// By task, the ids of its readers combined with exclusive or, so that the last reader is
    /// known when all others were taken out again.
    pub(super) reader_xor: Vec<u32>,
    /// By task, its Sethi-Ullman number: the values that are alive at once when it is computed
    /// alone, as if the graph were a tree (Sethi and Ullman, "The generation of optimal code for
    /// arithmetic expressions", 1970).
    pub(super) demand: Vec<u32>,
    /// No order has a smaller peak.
    pub(super) least_peak: usize,
}

impl Survey {
    pub(super) fn new(
        graph: &Graph,
        targets: &[TaskId],
        known: impl Fn(TaskId) -> bool,
    ) -> Result<Self, GraphError> {
        let n = graph.len();
        let mut survey = Survey {
            marks: vec![Mark::Unseen; n],
            targets: vec![false; n],
            depth_first: Vec::new(),
            dependencies: 0,
            waiting: vec![0; n],
            readers: vec![0; n],
            reader_xor: vec![0; n],
            demand: vec![0; n],
            least_peak: 0,
        };
        let mut demands = Vec::new();
        // The path from a target: each task with the number of its dependencies looked at.
        let mut path: Vec<(TaskId, usize)> = Vec::new();
        for &target in targets {
            if survey.marks[target.index()] == Mark::Unseen {
                survey.open(target, &known, &mut path);
            }
            survey.targets[target.index()] = true;
            while let Some((task, looked_at)) = path.last_mut() {
                let task = *task;
                if let Some(&dependency) = graph.dependencies(task).get(*looked_at) {
                    *looked_at += 1;
                    match survey.marks[dependency.index()] {
                        Mark::Unseen => survey.open(dependency, &known, &mut path),
                        Mark::Open => return Err(cycle(&path, dependency)),
                        Mark::Needed | Mark::Known => {}
                    }
                    if survey.marks[dependency.index()] != Mark::Known {
                        survey.waiting[task.index()] += 1;
                        survey.readers[dependency.index()] += 1;
                        survey.reader_xor[dependency.index()] ^= task.0;
                    }
                } else {
                    path.pop();
                    survey.close(graph, task, &mut demands);
                }
            }
        }
        let wanted = targets_needed(&survey, targets);
        survey.least_peak = survey.least_peak.max(wanted);
        Ok(survey)
    }

    fn open(
        &mut self,
        task: TaskId,
        known: impl Fn(TaskId) -> bool,
        path: &mut Vec<(TaskId, usize)>,
    ) {
        if known(task) {
            self.marks[task.index()] = Mark::Known;
        } else {
            self.marks[task.index()] = Mark::Open;
            path.push((task, 0));
        }
    }

    /// All dependencies of `task` are surveyed.
    fn close(&mut self, graph: &Graph, task: TaskId, demands: &mut Vec<u32>) {
        self.marks[task.index()] = Mark::Needed;
        self.depth_first.push(task);
        let dependencies = graph.dependencies(task);
        self.dependencies += dependencies.len();
        // Its inputs and its value are alive together. Duplicates are next to each other often
        // enough; where they are not, the bound would be too high, so they are sought.
        demands.clear();
        let inputs = match dependencies {
            [] => 0,
            [one] => {
                demands.push(self.demand[one.index()]);
                usize::from(self.is_needed(*one))
            }
            // With so many, their own demands hardly matter, and sorting them would cost more than
            // anything else here.
            many if many.len() > FEW => {
                let demand = many.iter().map(|d| self.demand[d.index()]).max();
                demands.push(demand.unwrap_or(0).max(many.len() as u32));
                0
            }
            few => {
                demands.extend(few.iter().map(|d| d.0));
                demands.sort_unstable();
                demands.dedup();
                demands.retain(|&d| self.marks[d as usize] == Mark::Needed);
                for d in demands.iter_mut() {
                    *d = self.demand[*d as usize];
                }
                demands.sort_unstable_by(|a, b| b.cmp(a));
                demands.len()
            }
        };
        self.least_peak = self.least_peak.max(inputs + 1);
        // The most demanding input first: the i-th is computed while i others are alive.
        let demand = demands
            .iter()
            .zip(0u32..)
            .map(|(&d, alive)| d.saturating_add(alive))
            .max();
        self.demand[task.index()] = demand.unwrap_or(1).max(1);
    }

    #[inline]
    pub(super) fn is_needed(&self, task: TaskId) -> bool {
        self.marks[task.index()] == Mark::Needed
    }

    #[inline]
    pub(super) fn is_target(&self, task: TaskId) -> bool {
        self.targets[task.index()]
    }
}

/// Number of different targets that have to be computed.
fn targets_needed(survey: &Survey, targets: &[TaskId]) -> usize {
    if targets.len() == 1 {
        return usize::from(survey.is_needed(targets[0]));
    }
    let both = survey.targets.iter().zip(&survey.marks);
    both.filter(|&(&target, &mark)| target && mark == Mark::Needed)
        .count()
}

/// The part of the path that leads from `first` back to itself.
fn cycle(path: &[(TaskId, usize)], first: TaskId) -> GraphError {
    let from = path
        .iter()
        .position(|&(task, _)| task == first)
        .unwrap_or(0);
    GraphError::Cycle(path[from..].iter().map(|&(task, _)| task).collect())
}
