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

/// A worker of two slots, of which one runs a reader and one is free, whose memory is full; and the
/// value that fills it.
fn full_beside_a_task() -> Cluster {
    let mut cluster = Cluster::new(0, 0);
    let mut profile = with_memory(0, 1_000_000);
    profile.threads = 2;
    cluster.join(0, profile);
    let value = cluster.one(reads(&[]));
    cluster.size(value, 1_200_000);
    cluster.run();
    cluster.one(reads(&[value]).function(1));
    cluster.start_all();
    cluster
}

/// What a worker says of values in its memory and on its disk.
fn values(cluster: &mut Cluster, worker: u32, managed: u64, spilled: u64) {
    let health = Report::Health {
        managed,
        process: managed,
        spilled,
        paused: false,
    };
    cluster.report(worker, health);
}

#[test]
fn a_full_worker_where_nothing_runs_gets_one_whatever_others_do() {
    let mut cluster = Cluster::new(0, 0);
    cluster.duration = Duration::from_secs(1);
    cluster.join(0, with_memory(0, 1_000_000));
    let value = cluster.one(reads(&[]));
    cluster.size(value, 1_200_000);
    cluster.run();
    cluster.join(1, profile(1, 1));
    let long = cluster.one(reads(&[]).on(&[1]));
    cluster.start_all();
    let ids = cluster.submit(vec![reads(&[]); 2]);
    assert_eq!(cluster.state(long), State::Assigned);
    assert_eq!(cluster.worker_of(ids[0]), WorkerId(0));
    assert_eq!(cluster.state(ids[1]), State::Ready, "one at a time");
}

#[test]
fn a_free_slot_beside_a_running_task_is_used_in_the_end() {
    let mut cluster = full_beside_a_task();
    let ids = cluster.submit(vec![reads(&[]).function(2); 2]);
    assert_eq!(
        cluster.state(ids[0]),
        State::Ready,
        "memory may become free"
    );
    cluster.tick_after(Duration::from_millis(400));
    assert_eq!(cluster.state(ids[0]), State::Ready);
    cluster.tick_after(Duration::from_millis(200));
    assert_eq!(cluster.state(ids[0]), State::Assigned);
    assert_eq!(cluster.state(ids[1]), State::Ready);
    cluster.start_all();
    cluster.end(ids[0]);
    cluster.deliver();
    assert_eq!(cluster.state(ids[1]), State::Assigned, "it was so small");
}

#[test]
fn a_full_worker_gets_one_at_a_time() {
    let mut cluster = full_beside_a_task();
    let ids = cluster.submit(vec![reads(&[]).function(2); 3]);
    for (index, &id) in ids.iter().enumerate() {
        cluster.size(id, 100_000);
        cluster.tick_after(Duration::from_millis(600));
        cluster.start_all();
        cluster.end(id);
        cluster.deliver();
        assert_eq!(cluster.state(id), State::Memory);
        let next = ids.get(index + 1).map(|&next| cluster.state(next));
        assert!(next.is_none_or(|next| next == State::Ready));
    }
}

#[test]
fn a_task_that_has_a_place_gets_the_free_slot_too() {
    for restricted in [false, true] {
        let mut cluster = full_beside_a_task();
        let small = cluster.one(reads(&[]).function(3).on(&[0]));
        cluster.tick_after(Duration::from_millis(600));
        cluster.start_all();
        cluster.end(small);
        cluster.deliver();
        let reader = reads(&[small]).function(2);
        let reader = cluster.one(if restricted { reader.on(&[0]) } else { reader });
        assert_eq!(cluster.state(reader), State::Ready);
        cluster.tick_after(Duration::from_millis(600));
        assert_eq!(cluster.state(reader), State::Assigned);
    }
}

#[test]
fn what_is_on_disk_takes_no_memory() {
    let mut cluster = full_beside_a_task();
    values(&mut cluster, 0, 600_000, 600_000);
    let first = cluster.one(reads(&[]).function(2));
    assert_eq!(cluster.state(first), State::Assigned);
    cluster.size(first, 500_000);
    cluster.start_all();
    cluster.end(first);
    cluster.deliver();
    let second = cluster.one(reads(&[]).function(3));
    assert_eq!(
        cluster.state(second),
        State::Ready,
        "what came since counts"
    );
    values(&mut cluster, 0, 600_000, 1_100_000);
    assert_eq!(cluster.state(second), State::Assigned);
}

#[test]
fn what_returns_little_does_not_wait_for_memory() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_memory(0, 1_000_000));
    let known = cluster.one(reads(&[]).function(7));
    // As small, but it stays at its worker.
    let object = cluster.one(reads(&[]).function(8));
    cluster.size(object, 8);
    cluster.run();
    let mut profile = with_memory(1, 1_000_000);
    profile.threads = 4;
    cluster.join(1, profile);
    let value = cluster.one(reads(&[]).on(&[1]));
    cluster.size(value, 1_200_000);
    cluster.run();
    let reader = cluster.one(reads(&[value]).function(1).on(&[1]));
    cluster.start_all();
    let large = cluster.one(reads(&[]).function(2).on(&[1]));
    let small = cluster.one(reads(&[]).function(7).on(&[1]).priority(1));
    let inline = cluster.one(reads(&[known]).function(7).on(&[1]).priority(1));
    assert_eq!(cluster.state(reader), State::Assigned);
    assert_eq!(cluster.state(large), State::Ready);
    assert_eq!(cluster.worker_of(small), WorkerId(1));
    assert_eq!(cluster.worker_of(inline), WorkerId(1));
    let object = cluster.one(reads(&[]).function(8).on(&[1]).priority(2));
    assert_eq!(cluster.state(object), State::Ready);
}

#[test]
fn tasks_behind_others_that_do_not_end_are_named() {
    let mut cluster = full_beside_a_task();
    // Two wait for something that only the third would do; the third was sent or was not.
    let waiter = cluster.one(reads(&[]).function(2));
    cluster.tick_after(Duration::from_secs(1));
    cluster.start_all();
    let setters = cluster.submit(vec![reads(&[]).function(2); 2]);
    for round in 0..3 {
        for _ in 0..31 {
            cluster.tick_after(Duration::from_secs(1));
            values(&mut cluster, 0, 1_200_000, 0);
        }
        assert_eq!(cluster.state(waiter), State::Assigned);
        assert_eq!(cluster.stuck, [(setters.clone(), Stuck::Slots)], "{round}");
    }
    // Whoever gets memory short has another reason.
    pause(&mut cluster, 0, true);
    for _ in 0..31 {
        cluster.tick_after(Duration::from_secs(1));
        pause(&mut cluster, 0, true);
    }
    let (tasks, reason) = cluster.stuck.last().expect("a report");
    assert_eq!(*reason, Stuck::Memory);
    assert!(setters.iter().all(|setter| tasks.contains(setter)));
}

#[test]
fn what_was_sent_behind_a_task_that_does_not_end_is_named() {
    let mut cluster = Cluster::new(1, 1);
    let ids = cluster.submit(vec![reads(&[]); 2]);
    cluster.start_all();
    for _ in 0..32 {
        cluster.tick_after(Duration::from_secs(1));
        pause(&mut cluster, 0, false);
    }
    assert_eq!(cluster.state(ids[1]), State::Assigned);
    assert_eq!(cluster.stuck, [(vec![ids[1]], Stuck::Slots)]);
}
