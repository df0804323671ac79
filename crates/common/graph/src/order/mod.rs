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

use alloc::vec::Vec;

mod survey;
mod walk;

use crate::{Graph, GraphError, TaskId};
use survey::Survey;
use walk::{Direction, Eagerness, Strategy, Walk, Walked};

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

/// Above this number of dependencies a task, depth first has to do: a walk would cost more than
/// the tasks, and in dense graphs nearly everything is alive whatever one does.
const DENSE: usize = 16;

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
) -> Result<Vec<TaskId>, GraphError> {
    let survey = Survey::new(graph, targets, known)?;
    if survey.dependencies > DENSE * survey.depth_first.len() {
        return Ok(survey.depth_first);
    }
    let mut best: Option<Walked> = None;
    for strategy in STRATEGIES {
        // One value less is not worth another order: the first is the one that people expect.
        let limit = best.as_ref().map_or(usize::MAX, |walked| walked.peak - 1);
        if let Some(walked) = Walk::new(graph, &survey, strategy, limit).run(targets) {
            let optimal = walked.peak <= survey.least_peak + 1;
            best = Some(walked);
            if optimal {
                break;
            }
        }
    }
    Ok(best.expect("the first walk has no limit").sequence)
}

#[cfg(test)]
mod tests;
