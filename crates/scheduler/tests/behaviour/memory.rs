//! Workers that are full, and workers that have paused.

use std::time::Duration;

use treadle_scheduler::{Event, State, Stuck};
use treadle_types::{Report, WorkerId};

use crate::cluster::*;

fn with_memory(worker: u32, memory: u64) -> treadle_scheduler::WorkerProfile {
    let mut profile = profile(worker, 1);
    profile.memory = memory;
    profile
}

fn pause(cluster: &mut Cluster, worker: u32, paused: bool) {
    cluster.report(
        worker,
        Report::Health {
            managed: 0,
            process: 0,
            spilled: 0,
            paused,
        },
    );
}

#[test]
fn what_only_creates_data_waits_for_memory() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_memory(0, 1_000_000));
    let value = cluster.one(reads(&[]));
    cluster.size(value, 1_000_000);
    cluster.run();
    // Something runs, so there is no need to exceed the budget.
    let reader = cluster.one(reads(&[value]));
    let creator = cluster.one(reads(&[]));
    assert_eq!(cluster.state(reader), State::Assigned, "it may free memory");
    assert_eq!(cluster.state(creator), State::Ready);
    cluster.start_all();
    cluster.unwant(&[value]);
    cluster.end(reader);
    cluster.deliver();
    assert_eq!(cluster.state(creator), State::Assigned);
}

#[test]
fn the_first_task_runs_if_nothing_else_does() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_memory(0, 1_000_000));
    let ids = cluster.submit(vec![reads(&[]); 5]);
    for &id in &ids {
        cluster.size(id, 1_000_000);
    }
    cluster.run();
    for id in ids {
        assert_eq!(cluster.state(id), State::Memory);
    }
}

#[test]
fn what_tasks_will_return_counts() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_memory(0, 10_000_000));
    cluster.duration = Duration::from_micros(10);
    let first = cluster.one(reads(&[]));
    cluster.size(first, 4_000_000);
    cluster.run();
    let ids = cluster.submit(vec![reads(&[]); 100]);
    let sent = ids
        .iter()
        .filter(|&&id| cluster.state(id) == State::Assigned);
    assert_eq!(sent.count(), 2);
}

#[test]
fn a_worker_with_memory_gets_them_instead() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_memory(0, 1_000));
    let value = cluster.one(reads(&[]));
    cluster.size(value, 1_000_000);
    cluster.run();
    cluster.join(1, with_memory(1, 10_000_000));
    let ids = cluster.submit(vec![reads(&[]); 3]);
    cluster.run();
    for id in ids {
        assert_eq!(cluster.assigned(id), [WorkerId(1)]);
    }
}

#[test]
fn what_is_taken_back_keeps_to_the_budget_too() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_memory(0, 1_000_000));
    let full = cluster.one(reads(&[]).on(&[0]));
    cluster.size(full, 1_000_000);
    cluster.run();
    // Another worker runs a chain; the head of its tail was sent ahead.
    cluster.join(1, profile(1, 1));
    let chain = cluster.chain(3);
    let busy = cluster.one(reads(&[]).on(&[1]));
    assert_eq!(cluster.worker_of(chain[1]), WorkerId(1));
    cluster.event(Event::Tick);
    cluster.run();
    for task in [chain[0], chain[1], chain[2], busy] {
        assert!(cluster.log.iter().all(|(worker, command)| {
            let sent =
                matches!(command, treadle_types::Command::Assign(a) if a.object.task == task);
            !sent || *worker == WorkerId(1)
        }));
    }
}

#[test]
fn a_paused_worker_gets_nothing() {
    let mut cluster = Cluster::new(2, 1);
    pause(&mut cluster, 0, true);
    let ids = cluster.submit(vec![reads(&[]); 4]);
    cluster.run();
    for id in ids {
        assert_eq!(cluster.assigned(id), [WorkerId(1)]);
    }
    pause(&mut cluster, 1, true);
    let task = cluster.one(reads(&[]));
    assert_eq!(cluster.state(task), State::Ready);
    cluster.tick_after(Duration::from_secs(31));
    assert_eq!(cluster.stuck, [(vec![task], Stuck::Memory)]);
    pause(&mut cluster, 0, false);
    assert_eq!(cluster.worker_of(task), WorkerId(0));
}

#[test]
fn what_waits_at_a_paused_worker_is_taken_back() {
    let mut cluster = Cluster::new(2, 1);
    let ids = cluster.submit(vec![reads(&[]).on(&[0, 1]); 2]);
    pause(&mut cluster, 0, true);
    // The other one is done with its task.
    cluster.start(WorkerId(1));
    let running = cluster.nodes[&WorkerId(1)].running[0].object.task;
    cluster.end(running);
    cluster.deliver();
    cluster.event(Event::Tick);
    cluster.deliver();
    for &id in &ids {
        if cluster.state(id) != State::Memory {
            assert_eq!(cluster.worker_of(id), WorkerId(1));
        }
    }
}

#[test]
fn nothing_runs_without_workers() {
    let mut cluster = Cluster::new(0, 0);
    let task = cluster.one(reads(&[]));
    cluster.tick_after(Duration::from_secs(29));
    assert_eq!(cluster.stuck, []);
    cluster.tick_after(Duration::from_secs(2));
    assert_eq!(cluster.stuck, [(vec![task], Stuck::NoWorkers)]);
}

#[test]
fn a_silent_worker_is_named_and_a_busy_one_is_not() {
    let mut cluster = Cluster::new(1, 1);
    let task = cluster.one(reads(&[]));
    cluster.start_all();
    cluster.tick_after(Duration::from_secs(20));
    pause(&mut cluster, 0, false);
    cluster.tick_after(Duration::from_secs(20));
    assert_eq!(cluster.stuck, [], "it was heard 20 s ago");
    cluster.tick_after(Duration::from_secs(40));
    assert_eq!(cluster.stuck, [(vec![task], Stuck::Silence)]);
}
