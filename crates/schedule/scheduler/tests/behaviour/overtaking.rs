//! Tasks of higher priority, which come when less urgent ones have been sent.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use crate::cluster::*;
use treadle_scheduler::State;
use treadle_types::{Command, TaskId, WorkerId};

/// Starts, reports and delivers until everything is done; the order in which tasks were started.
fn order(cluster: &mut Cluster, ids: &[TaskId]) -> Vec<TaskId> {
    let mut order = Vec::new();
    while order.len() < ids.len() {
        cluster.deliver();
        cluster.start_all();
        let running = |id: &&TaskId| {
            let mut running = cluster.nodes.values().flat_map(|node| &node.running);
            running.any(|assignment| assignment.object.task == **id)
        };
        let begun: Vec<_> = ids.iter().filter(running).copied().collect();
        assert!(!begun.is_empty(), "something runs");
        for id in begun {
            order.push(id);
            cluster.end(id);
        }
    }
    order
}

/// A worker with one slot, and the task that runs there. Tasks are known to take so long that one in
/// reserve is enough.
fn busy() -> (Cluster, TaskId) {
    let mut cluster = Cluster::new(1, 1);
    cluster.duration = Duration::from_millis(20);
    cluster.one(reads(&[]));
    cluster.run();
    let runs = cluster.one(reads(&[]));
    cluster.start_all();
    (cluster, runs)
}

#[test]
fn what_was_sent_in_reserve_lets_the_urgent_one_pass() {
    let (mut cluster, runs) = busy();
    let low = cluster.one(reads(&[]).priority(-1));
    assert_eq!(cluster.state(low), State::Assigned);
    let high = cluster.one(reads(&[]).priority(1));
    assert_eq!(cluster.state(low), State::Retracting);
    assert_eq!(order(&mut cluster, &[runs, low, high]), [runs, high, low],);
}

#[test]
fn what_can_run_nowhere_else_lets_it_pass_too() {
    let (mut cluster, runs) = busy();
    let mut ids = vec![runs];
    for priority in [-1, 0, 1] {
        ids.push(cluster.one(reads(&[]).priority(priority).on(&[0])));
    }
    let wanted = [ids[0], ids[3], ids[2], ids[1]];
    assert_eq!(order(&mut cluster, &ids), wanted);
}

#[test]
fn several_pass() {
    let mut cluster = Cluster::new(1, 1);
    let runs = cluster.one(reads(&[]));
    cluster.start_all();
    let low = cluster.submit(vec![reads(&[]); 3]);
    let high = cluster.submit(vec![reads(&[]).priority(1); 3]);
    let all = [&[runs][..], &low, &high].concat();
    let wanted = [&[runs][..], &high, &low].concat();
    assert_eq!(order(&mut cluster, &all), wanted);
}

#[test]
fn one_that_may_not_run_there_takes_nothing_back() {
    let mut cluster = Cluster::new(1, 1);
    cluster.one(reads(&[]));
    cluster.start_all();
    let low = cluster.one(reads(&[]).priority(-1));
    // Nobody has this name.
    let high = cluster.one(reads(&[]).priority(1).on(&[99]));
    assert_eq!(cluster.state(high), State::Ready);
    assert_eq!(cluster.worker_of(low), WorkerId(0));
    assert_eq!(cluster.count(|c| matches!(c, Command::Retract(_))), 0);
}

#[test]
fn equals_take_nothing_from_each_other() {
    let mut cluster = Cluster::new(1, 1);
    cluster.submit(vec![reads(&[]).priority(-3); 2]);
    cluster.start_all();
    cluster.submit(vec![reads(&[]).priority(-3); 4]);
    assert_eq!(cluster.count(|c| matches!(c, Command::Retract(_))), 0);
}

/// What comes to the scheduler.
#[derive(Clone, Debug)]
enum Step {
    /// A task of a priority, bound to a worker or not.
    Submit(i32, Option<u32>),
    /// The next thing that a worker has to say.
    Hear,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// However submissions and answers of workers are mixed: when all answers are in, what waits here
    /// for one worker is not more urgent than what was sent there and waits behind a running task.
    #[test]
    fn what_was_sent_is_at_least_as_urgent_as_what_waits(
        steps in vec(prop_oneof![
            2 => (-3..4, of(0..2u32)).prop_map(|(priority, name)| Step::Submit(priority, name)),
            1 => Just(Step::Hear),
        ], 2..24),
        // From one task in reserve to all of them.
        duration in 1..12u64,
    ) {
        let mut cluster = Cluster::new(2, 1);
        cluster.duration = Duration::from_millis(duration);
        cluster.submit(vec![reads(&[]); 2]);
        cluster.run();
        cluster.submit(vec![reads(&[]).priority(100); 2]);
        cluster.start_all();
        let mut ids = Vec::new();
        for step in steps {
            match step {
                Step::Submit(priority, name) => {
                    let task = reads(&[]).priority(priority);
                    let task = name.map_or(task.clone(), |name| task.on(&[name]));
                    ids.push((cluster.one(task), name));
                }
                Step::Hear => {
                    cluster.deliver_one();
                }
            }
        }
        cluster.deliver();
        let urgency = |id| cluster.scheduler.task(id).expect("a task").priority().user;
        for (worker, node) in &cluster.nodes {
            let waits = ids.iter().filter(|&&(id, name)| {
                cluster.state(id) == State::Ready && name == Some(worker.0)
            });
            let first = waits.map(|&(id, _)| urgency(id)).min();
            let last = node.queued.iter().map(|assignment| assignment.priority.user).max();
            if let (Some(first), Some(last)) = (first, last) {
                prop_assert!(last <= first, "{worker:?} has {last}, and {first} waits");
            }
        }
    }
}
