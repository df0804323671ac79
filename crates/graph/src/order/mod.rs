//! A static order of tasks whose purpose is a small memory footprint.
//!
//! Finding the order with the smallest number of simultaneously live values is NP-hard (it is
//! register sufficiency: Sethi, "Complete register allocation problems", 1975), so a few cheap
//! strategies are tried, each of them linear in tasks and dependencies, and the order with the
//! smallest peak is kept. A [`walk`] runs the graph on paper and counts live values as it goes, so
//! the comparison costs nothing extra. It stops early when a peak equals a lower bound: chains and
//! flat graphs, where scheduling is nearly all of the work, are ordered by a single walk.
//!
//! `bench/order` compares the result with `dask.order` on graphs of real collections.

mod survey;
mod walk;

use crate::{Graph, GraphError, TaskId};
use survey::Survey;
use walk::{Direction, Eagerness, Strategy, Walk};

/// The strategies, the best on average first. None is the best everywhere: eager splitting helps
/// where several reductions read the same data and hurts where data are repartitioned; following
/// the data upwards helps where outputs overlap and hurts where they should finish one by one.
const STRATEGIES: [Strategy; 6] = [
    Strategy::new(Direction::Down, Eagerness::LastReader, false),
    Strategy::new(Direction::Down, Eagerness::AllReaders, false),
    Strategy::new(Direction::Up, Eagerness::LastReader, false),
    Strategy::new(Direction::Up, Eagerness::AllReaders, false),
    Strategy::new(Direction::Down, Eagerness::LastReader, true),
    Strategy::new(Direction::Down, Eagerness::AllReaders, true),
];

/// Above this number of dependencies a task, only the first strategy is tried: the walks would
/// cost more than the tasks, and in dense graphs nearly everything is alive whatever one does.
const DENSE: usize = 8;

/// A topological order of some tasks of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The tasks, first to last.
    pub sequence: Vec<TaskId>,
    /// The largest number of values that are alive at once when the tasks run one after another
    /// in this order, counted when a task has finished and its inputs are not yet released.
    /// Values that were known beforehand are not counted.
    pub peak: usize,
}

/// Orders what is needed for `targets`: the targets themselves and everything that they depend
/// on, up to tasks that are `known` (their values are there already). The values of targets stay
/// alive to the end.
///
/// Takes time and memory linear in the number of tasks and dependencies.
///
/// # Errors
/// [`GraphError::Cycle`] names the tasks of a cycle, each of which depends on the next.
pub fn order(
    graph: &Graph,
    targets: &[TaskId],
    known: impl Fn(TaskId) -> bool,
) -> Result<Order, GraphError> {
    let survey = Survey::new(graph, targets, known)?;
    let strategies = if survey.dependencies > DENSE * survey.needed {
        &STRATEGIES[..1]
    } else {
        &STRATEGIES[..]
    };
    let mut best: Option<Order> = None;
    for &strategy in strategies {
        let limit = best.as_ref().map_or(usize::MAX, |order| order.peak);
        if let Some(order) = Walk::new(graph, &survey, strategy, limit).run(targets) {
            let optimal = order.peak <= survey.least_peak;
            best = Some(order);
            if optimal {
                break;
            }
        }
    }
    Ok(best.expect("the first walk has no limit"))
}

#[cfg(test)]
mod tests;
