//! A run against a naive model, with graphs that grow while they run.

use proptest::prelude::*;
use std::collections::BTreeSet;
use treadle_graph::{Effects, Event, Graph, GraphError, Run, RunError, Status, TaskId};

/// What a run has to do, recounted from scratch at each step.
#[derive(Default)]
struct Model {
    dependencies: Vec<Vec<u32>>,
    held: BTreeSet<u32>,
    values: BTreeSet<u32>,
    running: BTreeSet<u32>,
    planned: BTreeSet<u32>,
}

impl Model {
    fn plan(&mut self, target: u32) {
        let mut stack = vec![target];
        while let Some(task) = stack.pop() {
            if !self.values.contains(&task) && self.planned.insert(task) {
                stack.extend(&self.dependencies[task as usize]);
            }
        }
    }

    fn may_start(&self) -> BTreeSet<u32> {
        let has_inputs = |t: &u32| {
            self.dependencies[*t as usize]
                .iter()
                .all(|d| self.values.contains(d))
        };
        self.planned
            .iter()
            .copied()
            .filter(|t| !self.running.contains(t) && has_inputs(t))
            .collect()
    }

    /// Values that neither the outside nor a planned task needs.
    fn useless(&self) -> BTreeSet<u32> {
        let read: BTreeSet<u32> = self
            .planned
            .iter()
            .flat_map(|&t| self.dependencies[t as usize].clone())
            .collect();
        self.values
            .iter()
            .copied()
            .filter(|v| !self.held.contains(v) && !read.contains(v))
            .collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Grow(Vec<Vec<prop::sample::Index>>),
    Want(Vec<prop::sample::Index>),
    Start,
    Finish(prop::sample::Index),
    Drop(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<prop::sample::Index>;
    let task = prop::collection::vec(index(), 0..4);
    prop::collection::vec(
        prop_oneof![
            1 => prop::collection::vec(task, 1..12).prop_map(Step::Grow),
            2 => prop::collection::vec(index(), 0..4).prop_map(Step::Want),
            6 => Just(Step::Start),
            6 => index().prop_map(Step::Finish),
            1 => index().prop_map(Step::Drop),
        ],
        1..120,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn agrees_with_the_model(steps in steps()) {
        let mut model = Model::default();
        let mut run = Run::new(Graph::default());
        let mut effects = Effects::default();
        for step in steps {
            match step {
                Step::Grow(tasks) => {
                    let mut batch = run.graph_mut().add(tasks.len()).unwrap();
                    for picks in tasks {
                        let task = model.dependencies.len();
                        let picked = picks.iter().filter(|_| task > 0).map(|i| i.index(task) as u32);
                        let dependencies: Vec<u32> = picked.collect();
                        for &dependency in &dependencies {
                            batch.depend(TaskId(dependency)).unwrap();
                        }
                        batch.next();
                        model.dependencies.push(dependencies);
                    }
                    batch.finish();
                    run.graph().check().unwrap();
                }
                Step::Want(picks) => {
                    let n = model.dependencies.len();
                    let tasks: Vec<u32> =
                        picks.iter().filter(|_| n > 0).map(|i| i.index(n) as u32).collect();
                    let ids: Vec<TaskId> = tasks.iter().copied().map(TaskId).collect();
                    run.handle(Event::Wanted(&ids), &mut effects).unwrap();
                    for task in tasks {
                        model.plan(task);
                        model.held.insert(task);
                    }
                }
                Step::Start => {
                    let may_start = model.may_start();
                    prop_assert_eq!(run.ready(), may_start.len());
                    run.handle(Event::Free, &mut effects).unwrap();
                    match effects.start.take() {
                        Some(TaskId(task)) => {
                            prop_assert!(may_start.contains(&task));
                            model.running.insert(task);
                        }
                        None => prop_assert!(may_start.is_empty()),
                    }
                }
                Step::Finish(pick) => {
                    let running: Vec<u32> = model.running.iter().copied().collect();
                    if running.is_empty() { continue; }
                    let task = running[pick.index(running.len())];
                    run.handle(Event::Finished(TaskId(task)), &mut effects).unwrap();
                    model.running.remove(&task);
                    model.planned.remove(&task);
                    model.values.insert(task);
                }
                Step::Drop(pick) => {
                    let held: Vec<u32> = model.held.iter().copied().collect();
                    if held.is_empty() { continue; }
                    let task = held[pick.index(held.len())];
                    run.handle(Event::Dropped(TaskId(task)), &mut effects).unwrap();
                    model.held.remove(&task);
                }
            }
            run.check().unwrap();
            let useless = model.useless();
            let released: BTreeSet<u32> = effects.released.drain(..).map(|t| t.0).collect();
            prop_assert_eq!(&released, &useless, "released at once, once, and nothing else");
            model.values.retain(|v| !useless.contains(v));
            prop_assert_eq!(run.unfinished(), model.planned.len());
        }
    }
}

fn chain(n: u32) -> Graph {
    let mut graph = Graph::default();
    let mut batch = graph.add(n as usize).unwrap();
    for task in 0..n {
        if task > 0 {
            batch.depend(TaskId(task - 1)).unwrap();
        }
        batch.next();
    }
    batch.finish();
    graph
}

#[test]
fn known_values_are_not_computed() {
    let mut run = Run::new(chain(3));
    let mut effects = Effects::default();
    run.handle(Event::Known(TaskId(1)), &mut effects).unwrap();
    run.handle(Event::Wanted(&[TaskId(2)]), &mut effects)
        .unwrap();
    run.check().unwrap();
    assert_eq!(run.sequence(), [TaskId(2)]);
    run.handle(Event::Free, &mut effects).unwrap();
    run.handle(Event::Finished(TaskId(2)), &mut effects)
        .unwrap();
    assert_eq!(effects.released, [TaskId(1)]);
}

#[test]
fn a_released_value_that_is_wanted_again_is_computed_again() {
    let mut run = Run::new(chain(2));
    let mut effects = Effects::default();
    for _ in 0..2 {
        run.handle(Event::Wanted(&[TaskId(1)]), &mut effects)
            .unwrap();
        for task in [TaskId(0), TaskId(1)] {
            run.handle(Event::Free, &mut effects).unwrap();
            assert_eq!(effects.start, Some(task));
            run.handle(Event::Finished(task), &mut effects).unwrap();
            run.check().unwrap();
        }
        run.handle(Event::Dropped(TaskId(1)), &mut effects).unwrap();
        assert_eq!(
            std::mem::take(&mut effects.released),
            [TaskId(0), TaskId(1)]
        );
        assert_eq!(run.status(TaskId(1)), Status::Released);
    }
}

#[test]
fn the_planned_order_is_kept_when_something_finishes_late() {
    // Tasks 0 and 1 start together; 2 reads 0; 3 is independent and planned after 2.
    let mut graph = Graph::default();
    let mut batch = graph.add(4).unwrap();
    batch.next();
    batch.next();
    batch.depend(TaskId(0)).unwrap();
    batch.next();
    batch.next();
    batch.finish();
    let mut run = Run::new(graph);
    let mut effects = Effects::default();
    run.handle(Event::Wanted(&[0, 1, 2, 3].map(TaskId)), &mut effects)
        .unwrap();
    let start = |run: &mut Run, effects: &mut Effects| {
        run.handle(Event::Free, effects).unwrap();
        effects.start.take().unwrap()
    };
    let planned = run.sequence().to_vec();
    let first = [start(&mut run, &mut effects), start(&mut run, &mut effects)];
    run.handle(Event::Finished(first[0]), &mut effects).unwrap();
    let next = start(&mut run, &mut effects);
    let rank = |task| planned.iter().position(|&t| t == task).unwrap();
    assert!(rank(next) < rank(start(&mut run, &mut effects)));
}

#[test]
fn impossible_events_are_errors_that_change_nothing() {
    let mut run = Run::new(chain(2));
    let mut effects = Effects::default();
    run.handle(Event::Wanted(&[TaskId(1)]), &mut effects)
        .unwrap();
    let error = run
        .handle(Event::Finished(TaskId(0)), &mut effects)
        .unwrap_err();
    assert_eq!(error.to_string(), "t0 is Ready: it cannot be finished");
    assert!(run.handle(Event::Known(TaskId(0)), &mut effects).is_err());
    assert!(run.handle(Event::Dropped(TaskId(0)), &mut effects).is_err());
    run.check().unwrap();
    assert!(effects.released.is_empty());
}

#[test]
fn a_cycle_among_wanted_tasks_is_an_error() {
    let mut graph = Graph::default();
    let mut batch = graph.add(2).unwrap();
    batch.depend(TaskId(1)).unwrap();
    batch.next();
    batch.depend(TaskId(0)).unwrap();
    batch.finish();
    let mut run = Run::new(graph);
    let error = run
        .handle(Event::Wanted(&[TaskId(0)]), &mut Effects::default())
        .unwrap_err();
    assert_eq!(
        error,
        RunError::Graph(GraphError::Cycle(vec![TaskId(0), TaskId(1)]))
    );
    assert_eq!(run.unfinished(), 0);
}

#[test]
fn an_abandoned_or_wrong_batch_leaves_the_graph_as_it_was() {
    let mut graph = chain(3);
    {
        let mut batch = graph.add(2).unwrap();
        batch.depend(TaskId(0)).unwrap();
        batch.depend(TaskId(2)).unwrap();
        let error = batch.depend(TaskId(9)).unwrap_err();
        assert_eq!(
            error,
            GraphError::UnknownTask {
                task: TaskId(3),
                dependency: TaskId(9),
                tasks: 5
            }
        );
    }
    graph.check().unwrap();
    assert_eq!((graph.len(), graph.dependency_count()), (3, 2));
    assert!(matches!(
        graph.add(u32::MAX as usize),
        Err(GraphError::TooLarge)
    ));
    graph.check().unwrap();
}
