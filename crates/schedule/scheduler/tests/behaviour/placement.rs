//! Where tasks run.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cluster::*;
use treadle_scheduler::{Event, Located, State};
use treadle_types::{Command, Place, Symbol, TaskId, WorkerId};

/// Runs one task of a function that takes so long, so that the scheduler knows.
fn learn(cluster: &mut Cluster, function: u32, duration: Duration) {
    cluster.duration = duration;
    let task = cluster.one(reads(&[]).function(function));
    cluster.run();
    cluster.unwant(&[task]);
}

#[test]
fn few_tasks_spread_evenly_over_many_slots() {
    for (tasks, workers, threads) in [(8, 4, 2), (2, 2, 2), (4, 4, 4), (16, 4, 1)] {
        let mut cluster = Cluster::new(workers, threads);
        let ids = cluster.submit(vec![reads(&[]); tasks]);
        for worker in 0..workers {
            let here = ids
                .iter()
                .filter(|&&id| cluster.worker_of(id) == WorkerId(worker));
            assert_eq!(here.count(), tasks / workers as usize, "at w{worker}");
        }
    }
}

#[test]
fn consecutive_tasks_go_to_the_same_worker() {
    let mut cluster = Cluster::new(2, 1);
    // 64 leaves, and a binary tree over them.
    let leaves: Vec<_> = (0..64).map(|_| cluster.scheduler.allocate()).collect();
    let pairs: Vec<_> = (0..32).map(|_| cluster.scheduler.allocate()).collect();
    let mut specs = vec![reads(&[]); 64];
    specs.extend((0..32).map(|i| reads(&leaves[2 * i..2 * i + 2])));
    let ids = [leaves.clone(), pairs.clone()].concat();
    for &leaf in &leaves {
        cluster.size(leaf, 100_000);
    }
    cluster.submit_as(C, &ids, specs, &pairs);
    cluster.run();
    let moved = cluster.count(|command| match command {
        Command::Assign(assignment) => {
            let mut inputs = assignment.inputs.iter();
            inputs.any(|input| matches!(input.place, Place::At(_)))
        }
        _ => false,
    });
    assert!(moved <= 4, "{moved} of 32 pairs were apart");
}

#[test]
fn a_task_goes_where_most_of_its_bytes_are() {
    let mut cluster = Cluster::new(3, 1);
    let [small, large] = [0, 1].map(|worker| cluster.one(reads(&[]).on(&[worker])));
    cluster.size(small, 1_000_000);
    cluster.size(large, 100_000_000);
    cluster.run();
    let reader = cluster.one(reads(&[small, large]));
    assert_eq!(cluster.worker_of(reader), WorkerId(1));
}

#[test]
fn a_host_that_has_the_value_comes_before_others() {
    let mut cluster = Cluster::new(0, 0);
    for (worker, host) in [(0, 100), (1, 101), (2, 100)] {
        let mut profile = profile(worker, 1);
        profile.host = Symbol(host);
        cluster.join(worker, profile);
    }
    learn(&mut cluster, 9, Duration::from_secs(10));
    let value = cluster.one(reads(&[]).on(&[0]));
    cluster.size(value, 100_000_000);
    cluster.run();
    // The holder is busy for long; of the two others, one is at its host.
    let busy = cluster.one(reads(&[]).function(9).on(&[0]));
    assert_eq!(cluster.worker_of(busy), WorkerId(0));
    let reader = cluster.one(reads(&[value]));
    assert_eq!(cluster.worker_of(reader), WorkerId(2));
}

#[test]
fn a_short_wait_is_better_than_a_long_transfer() {
    let mut cluster = Cluster::new(2, 1);
    learn(&mut cluster, 9, Duration::from_millis(20));
    let value = cluster.one(reads(&[]).on(&[0]));
    cluster.size(value, 1_000_000_000);
    cluster.run();
    cluster.one(reads(&[]).function(9).on(&[0]));
    let reader = cluster.one(reads(&[value]));
    let task = cluster.scheduler.task(reader).expect("a task");
    assert!(task.worker().is_none_or(|worker| worker == WorkerId(0)));
    cluster.run();
    assert_eq!(cluster.assigned(reader), [WorkerId(0)]);
}

/// Much that a task reads, at a worker.
fn at(task: TaskId, worker: u32) -> Located {
    Located {
        task,
        worker: Some(WorkerId(worker)),
        nbytes: 100_000_000,
    }
}

/// A task that waits for a small value, and reads much at a worker beside it.
fn located(cluster: &mut Cluster, spec: impl Fn(TaskId) -> Spec, worker: u32) -> TaskId {
    let ids: Vec<_> = (0..2).map(|_| cluster.scheduler.allocate()).collect();
    // The small value is made when it is known what else is read.
    let specs = vec![reads(&[]).on(&[9]), spec(ids[0])];
    cluster.submit_as(C, &ids, specs, &ids[1..]);
    let unknown = at(TaskId(1 << 20), 0);
    cluster.event(Event::Locate(vec![at(ids[1], worker), unknown]));
    let maker = 9 + ids[1].0;
    cluster.join(maker, profile(9, 1));
    cluster.run();
    cluster.lose(maker);
    ids[1]
}

#[test]
fn a_task_goes_to_what_it_reads_beside_values() {
    for worker in 0..3 {
        let mut cluster = Cluster::new(3, 1);
        let task = located(&mut cluster, |input| reads(&[input]), worker);
        assert_eq!(cluster.assigned(task), [WorkerId(worker)]);
    }
}

#[test]
fn what_it_reads_beside_values_does_not_bind_a_task() {
    let mut cluster = Cluster::new(3, 1);
    let elsewhere = located(&mut cluster, |input| reads(&[input]).on(&[1]), 2);
    assert_eq!(cluster.assigned(elsewhere), [WorkerId(1)]);
    // The worker is gone.
    cluster.lose(2);
    let task = located(&mut cluster, |input| reads(&[input]), 2);
    assert_eq!(cluster.assigned(task).len(), 1);
    cluster.unwant(&[elsewhere, task]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn a_long_wait_is_worse_than_reading_from_afar() {
    let mut cluster = Cluster::new(2, 1);
    learn(&mut cluster, 9, Duration::from_secs(100));
    let busy = cluster.one(reads(&[]).function(9).on(&[1]));
    let ids: Vec<_> = (0..2).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![reads(&[]), reads(&ids[..1])];
    cluster.submit_as(C, &ids, specs, &ids[1..]);
    cluster.event(Event::Locate(vec![at(ids[1], 1)]));
    assert_eq!(cluster.worker_of(busy), WorkerId(1));
    cluster.start_all();
    cluster.end(ids[0]);
    cluster.deliver();
    assert_eq!(cluster.worker_of(ids[1]), WorkerId(0));
}

#[test]
fn priorities_of_users_come_first_then_submissions_then_ranks() {
    let mut cluster = Cluster::new(0, 0);
    let late = cluster.one(reads(&[]).priority(-1));
    let ranks: Vec<_> = [2, 0, 1].map(Some).into_iter().collect();
    let specs = ranks.into_iter().map(|rank| Spec { rank, ..reads(&[]) });
    let ids = cluster.submit(specs.collect());
    let next = cluster.one(reads(&[]));
    let urgent = cluster.one(reads(&[]).priority(3));
    cluster.join(0, profile(0, 1));
    cluster.run();
    let order: Vec<_> = cluster
        .log
        .iter()
        .filter_map(|(_, command)| match command {
            Command::Assign(assignment) => Some(assignment.object.task),
            _ => None,
        })
        .collect();
    assert_eq!(order, [urgent, ids[1], ids[2], ids[0], next, late]);
}

#[test]
fn long_tasks_are_not_queued_behind_each_other() {
    let mut cluster = Cluster::new(1, 2);
    learn(&mut cluster, 1, Duration::from_secs(1));
    let ids = cluster.submit(vec![reads(&[]).function(1); 10]);
    let sent = ids
        .iter()
        .filter(|&&id| cluster.state(id) == State::Assigned);
    assert_eq!(sent.count(), 2);
}

#[test]
fn short_tasks_are_sent_ahead_by_time_and_by_count() {
    let mut cluster = Cluster::new(1, 1);
    learn(&mut cluster, 1, Duration::from_micros(100));
    let ids = cluster.submit(vec![reads(&[]).function(1); 5000]);
    let sent = |cluster: &Cluster| {
        let sent = ids
            .iter()
            .filter(|&&id| cluster.state(id) == State::Assigned);
        sent.count()
    };
    // 5 ms of 100 µs.
    assert!((40..=60).contains(&sent(&cluster)), "{}", sent(&cluster));
    let mut cluster = Cluster::new(1, 1);
    learn(&mut cluster, 1, Duration::from_nanos(100));
    let ids = cluster.submit(vec![reads(&[]).function(1); 5000]);
    let sent = ids
        .iter()
        .filter(|&&id| cluster.state(id) == State::Assigned);
    assert_eq!(sent.count(), 1025);
}

#[test]
fn the_choice_does_not_depend_on_chance() {
    let run = || {
        let mut cluster = Cluster::new(7, 3);
        let ids = cluster.submit(vec![reads(&[]); 50]);
        cluster.submit(ids.windows(3).map(reads).collect());
        cluster.run();
        cluster.log
    };
    assert_eq!(run(), run());
}

#[test]
fn every_worker_gets_some_of_many_tasks() {
    let mut cluster = Cluster::new(50, 2);
    let ids = cluster.submit(vec![reads(&[]); 500]);
    let workers: BTreeSet<_> = ids
        .iter()
        .filter_map(|&id: &TaskId| cluster.scheduler.task(id)?.worker())
        .collect();
    assert_eq!(workers.len(), 50);
}

#[test]
fn actors_are_spread_over_workers() {
    let mut cluster = Cluster::new(3, 1);
    let data = cluster.one(reads(&[]).on(&[1]));
    cluster.size(data, 1_000_000);
    cluster.run();
    // One after the other, or together; the first goes where its input is.
    let mut actors = Vec::new();
    for _ in 0..3 {
        let actor = cluster.one(reads(&[data]).actor());
        // Not small: it stays at its worker.
        cluster.size(actor, 100);
        cluster.run();
        actors.push(actor);
    }
    assert_eq!(cluster.assigned(actors[0]), [WorkerId(1)]);
    let together = cluster.submit(vec![reads(&[data]).actor(); 3]);
    for &actor in &together {
        cluster.size(actor, 100);
    }
    cluster.run();
    actors.extend(together);
    let mut places: Vec<_> = actors.iter().map(|&id| cluster.assigned(id)).collect();
    places.sort_unstable();
    let each = [0, 1, 2].map(|worker| [vec![WorkerId(worker)], vec![WorkerId(worker)]]);
    assert_eq!(places, each.concat());
    cluster.unwant(&[actors, vec![data]].concat());
    cluster.run();
    cluster.assert_empty();
}
