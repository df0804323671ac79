use super::{STRATEGIES, Survey, Walk, order};
use crate::{Graph, GraphError, TaskId};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// A graph from the dependencies of each task.
fn graph<T: AsRef<[u32]>>(tasks: &[T]) -> Graph {
    let mut graph = Graph::default();
    let mut batch = graph.add(tasks.len()).unwrap();
    for dependencies in tasks {
        for &dependency in dependencies.as_ref() {
            batch.depend(TaskId(dependency)).unwrap();
        }
        batch.next();
    }
    batch.finish();
    graph
}

fn ids(tasks: impl IntoIterator<Item = u32>) -> Vec<TaskId> {
    tasks.into_iter().map(TaskId).collect()
}

/// Runs the sequence naively, each task once and after its dependencies: the peak of live values.
fn replay(graph: &Graph, targets: &[TaskId], known: &[TaskId], sequence: &[TaskId]) -> usize {
    let (mut live, mut peak): (Vec<TaskId>, usize) = (Vec::new(), 0);
    for (position, &task) in sequence.iter().enumerate() {
        assert!(!known.contains(&task), "{task:?} was known");
        assert!(!sequence[..position].contains(&task), "{task:?} runs twice");
        for dependency in graph.dependencies(task) {
            assert!(
                known.contains(dependency) || live.contains(dependency),
                "{task:?} runs without {dependency:?}"
            );
        }
        live.push(task);
        peak = peak.max(live.len());
        let rest = &sequence[position + 1..];
        let is_read = |value: &TaskId| rest.iter().any(|&t| graph.dependencies(t).contains(value));
        live.retain(|value| targets.contains(value) || is_read(value));
    }
    peak
}

/// The peak of the order of a whole graph.
fn peak(graph: &Graph, targets: &[TaskId]) -> usize {
    replay(
        graph,
        targets,
        &[],
        &order(graph, targets, |_| false).unwrap(),
    )
}

#[test]
fn finishes_one_branch_before_starting_the_next() {
    // Two chains into one sum: never more than one value of each chain.
    let graph = graph(&[&[][..], &[0], &[1], &[], &[3], &[4], &[2, 5]]);
    let order = order(&graph, &ids([6]), |_| false).unwrap();
    assert_eq!(order, ids([3, 4, 5, 0, 1, 2, 6]));
}

#[test]
fn the_most_demanding_input_comes_first() {
    // Task 6 needs three leaves at once, task 0 is a leaf: 0 first would keep it alive in vain.
    let graph = graph(&[&[][..], &[], &[], &[], &[1, 2, 3], &[4], &[0, 5]]);
    assert_eq!(peak(&graph, &ids([6])), 4);
}

#[test]
fn several_reductions_of_the_same_data_advance_together() {
    // 64 chunks, each read by three partial results; each kind is summed as a chain.
    let (chunks, kinds) = (64u32, 3u32);
    let mut tasks: Vec<Vec<u32>> = (0..chunks).map(|_| vec![]).collect();
    let mut targets = Vec::new();
    for _ in 0..kinds {
        let first = tasks.len() as u32;
        tasks.extend((0..chunks).map(|chunk| vec![chunk]));
        let mut sum = first;
        for chunk in 1..chunks {
            tasks.push(vec![sum, first + chunk]);
            sum = tasks.len() as u32 - 1;
        }
        targets.push(TaskId(sum));
    }
    let peak = peak(&graph(&tasks), &targets);
    assert!(
        peak <= 10,
        "{peak} values alive: the chunks wait for one reduction after another"
    );
}

#[test]
fn a_chain_of_a_million_tasks_is_an_ordinary_graph() {
    let n = 1_000_000;
    let mut graph = Graph::with_capacity(n, n);
    let mut batch = graph.add(n).unwrap();
    for task in 0..n as u32 {
        // Backwards, so that the survey has to go all the way down before anything is finished.
        if task + 1 < n as u32 {
            batch.depend(TaskId(task + 1)).unwrap();
        }
        batch.next();
    }
    batch.finish();
    let order = order(&graph, &ids([0]), |_| false).unwrap();
    assert!(order.iter().rev().copied().eq(graph.tasks()));
}

#[test]
fn a_cycle_is_named_in_order() {
    let graph = graph(&[&[1][..], &[2], &[3], &[1], &[]]);
    let cycle = order(&graph, &ids([4, 0]), |_| false).unwrap_err();
    assert_eq!(cycle, GraphError::Cycle(ids([1, 2, 3])));
    let itself = graph_of_one_that_reads_itself();
    assert_eq!(
        order(&itself, &ids([0]), |_| false).unwrap_err(),
        GraphError::Cycle(ids([0]))
    );
}

fn graph_of_one_that_reads_itself() -> Graph {
    graph(&[[0]])
}

#[test]
fn dense_graphs_are_ordered_too() {
    // 40 tasks that read 40 others each, in two layers.
    let mut tasks: Vec<Vec<u32>> = vec![vec![]; 40];
    tasks.extend((0..80).map(|i| (0..40).map(|j| i / 40 * 40 + j).collect()));
    let targets = ids(80..120);
    assert_eq!(peak(&graph(&tasks), &targets), 80);
}

#[test]
fn only_what_is_needed_is_ordered() {
    let graph = graph(&[&[][..], &[0], &[1], &[1], &[3]]);
    assert_eq!(order(&graph, &ids([2]), |_| false).unwrap(), ids([0, 1, 2]));
    let known = order(&graph, &ids([4, 4]), |task| task.0 == 1).unwrap();
    assert_eq!(known, ids([3, 4]));
    assert_eq!(order(&graph, &[], |_| false).unwrap(), []);
}

/// Graphs of every shape: the dependencies of a task are among the `reach` tasks before it.
fn graphs() -> impl proptest::strategy::Strategy<Value = Vec<Vec<u32>>> {
    (1usize..40, 1u32..40).prop_flat_map(|(n, reach)| {
        (0..n as u32)
            .map(|task| {
                let from = task.saturating_sub(reach);
                prop::collection::vec(from..task.max(from + 1), 0..4)
                    .prop_map(move |d| d.into_iter().filter(|&d| d < task).collect::<Vec<_>>())
            })
            .collect::<Vec<_>>()
    })
}

proptest! {
    #[test]
    fn every_strategy_is_topological_and_counts_its_peak(
        tasks in graphs(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
        known in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let graph = graph(&tasks);
        graph.check().unwrap();
        let pick = |picks: &[prop::sample::Index]| -> Vec<TaskId> {
            picks.iter().map(|i| TaskId(i.index(tasks.len()) as u32)).collect()
        };
        let (targets, known) = (pick(&picks), pick(&known));
        let order = order(&graph, &targets, |task| known.contains(&task)).unwrap();
        let survey = Survey::new(&graph, &targets, |task| known.contains(&task)).unwrap();
        replay(&graph, &targets, &known, &survey.depth_first);
        let mut least = usize::MAX;
        for strategy in STRATEGIES {
            let walk = Walk::new(&graph, &survey, strategy, usize::MAX).run(&targets).unwrap();
            prop_assert_eq!(replay(&graph, &targets, &known, &walk.sequence), walk.peak);
            prop_assert!(survey.least_peak <= walk.peak);
            least = least.min(walk.peak);
        }
        prop_assert!(replay(&graph, &targets, &known, &order) <= least.saturating_add(1));
        for target in targets {
            prop_assert!(known.contains(&target) || order.contains(&target));
        }
    }

    #[test]
    fn trees_get_their_optimal_peak(parents in prop::collection::vec(any::<prop::sample::Index>(), 0..60)) {
        // Task i > 0 is read by one earlier task, so the Sethi-Ullman number is the optimum.
        let n = parents.len() + 1;
        let mut tasks = vec![vec![]; n];
        for (child, parent) in parents.iter().enumerate() {
            tasks[parent.index(child + 1)].push(child as u32 + 1);
        }
        let mut numbers = vec![0; n];
        for task in (0..n).rev() {
            let mut inputs: Vec<usize> = tasks[task].iter().map(|&d| numbers[d as usize]).collect();
            inputs.sort_unstable_by(|a, b| b.cmp(a));
            let while_computing = inputs.iter().enumerate().map(|(alive, d)| d + alive).max();
            numbers[task] = while_computing.unwrap_or(0).max(inputs.len() + 1);
        }
        prop_assert_eq!(peak(&graph(&tasks), &ids([0])), numbers[0]);
    }
}
