//! Copies, moves, drains, and cuts between workers.

use std::time::Duration;

use treadle_scheduler::{Event, Notice, State};
use treadle_types::{Cause, Command, Failure, TaskId, WorkerId};

use crate::cluster::*;

fn value_at(cluster: &mut Cluster, worker: u32) -> TaskId {
    let task = cluster.one(reads(&[]).on(&[worker]).or_others());
    cluster.size(task, 5_000);
    cluster.run();
    assert_eq!(cluster.holders(task), [WorkerId(worker)]);
    task
}

fn replicate(cluster: &mut Cluster, task: TaskId, copies: u32, among: &[u32]) {
    cluster.event(Event::Replicate {
        tasks: vec![task],
        copies,
        among: among.iter().map(|&worker| WorkerId(worker)).collect(),
    });
    cluster.run();
}

#[test]
fn a_value_is_at_as_many_workers_as_told() {
    let mut cluster = Cluster::new(5, 1);
    let task = value_at(&mut cluster, 0);
    replicate(&mut cluster, task, 3, &[]);
    assert_eq!(cluster.holders(task).len(), 3);
    replicate(&mut cluster, task, 9, &[]);
    assert_eq!(cluster.holders(task).len(), 5);
    replicate(&mut cluster, task, 1, &[]);
    assert_eq!(cluster.holders(task).len(), 1);
    replicate(&mut cluster, task, 2, &[3, 4]);
    assert!(cluster.holders(task).contains(&WorkerId(3)));
    assert!(cluster.holders(task).contains(&WorkerId(4)));
    cluster.unwant(&[task]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn the_last_copy_is_not_dropped() {
    let mut cluster = Cluster::new(2, 1);
    let task = value_at(&mut cluster, 0);
    replicate(&mut cluster, task, 0, &[]);
    assert_eq!(cluster.holders(task).len(), 1);
}

#[test]
fn a_value_moves() {
    let mut cluster = Cluster::new(2, 1);
    let task = value_at(&mut cluster, 0);
    cluster.event(Event::Move {
        task,
        from: WorkerId(0),
        to: WorkerId(1),
    });
    assert_eq!(cluster.holders(task), [WorkerId(0)]);
    cluster.run();
    assert_eq!(cluster.holders(task), [WorkerId(1)]);
    assert!(cluster.nodes[&WorkerId(0)].store.is_empty());
}

#[test]
fn a_copy_of_what_is_released_meanwhile_is_dropped() {
    let mut cluster = Cluster::new(2, 1);
    let task = value_at(&mut cluster, 0);
    cluster.event(Event::Move {
        task,
        from: WorkerId(0),
        to: WorkerId(1),
    });
    cluster.unwant(&[task]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn a_worker_that_leaves_leaves_its_values_behind() {
    let mut cluster = Cluster::new(3, 1);
    let values: Vec<_> = (0..5).map(|_| value_at(&mut cluster, 0)).collect();
    let unneeded = value_at(&mut cluster, 0);
    let small = cluster.one(reads(&[]).on(&[0]));
    cluster.run();
    cluster.unwant(&[unneeded]);
    cluster.event(Event::Drain(WorkerId(0)));
    assert_eq!(cluster.drained, []);
    cluster.run();
    assert_eq!(cluster.drained, [WorkerId(0)]);
    let copies = cluster.count(|c| matches!(c, Command::Copy { .. }));
    assert_eq!(copies, values.len(), "what nobody needs is not copied");
    cluster.nodes.remove(&WorkerId(0));
    cluster.event(Event::WorkerLost {
        worker: WorkerId(0),
        cause: Cause::Drained,
    });
    for task in values.into_iter().chain([small]) {
        assert_eq!(cluster.state(task), State::Memory);
        assert_eq!(cluster.assigned(task).len(), 1);
    }
}

#[test]
fn a_worker_that_leaves_ends_what_runs_and_gives_back_the_rest() {
    let mut cluster = Cluster::new(2, 1);
    let ids = cluster.submit(vec![reads(&[]); 8]);
    cluster.start_all();
    let running = cluster.nodes[&WorkerId(0)].running[0].object.task;
    cluster.event(Event::Drain(WorkerId(0)));
    cluster.deliver();
    for &id in &ids {
        if id != running {
            let worker = cluster.scheduler.task(id).expect("it").worker();
            assert_ne!(worker, Some(WorkerId(0)));
        }
    }
    assert_eq!(cluster.drained, []);
    cluster.run();
    assert_eq!(cluster.drained, [WorkerId(0)]);
    assert_eq!(cluster.assigned(running), [WorkerId(0)]);
    for id in ids {
        assert_eq!(cluster.state(id), State::Memory);
    }
}

#[test]
fn the_last_worker_waits_for_another_to_take_its_values() {
    let mut cluster = Cluster::new(1, 1);
    let task = value_at(&mut cluster, 0);
    cluster.event(Event::Drain(WorkerId(0)));
    cluster.tick_after(Duration::from_secs(1));
    assert_eq!(cluster.drained, []);
    cluster.join(1, profile(1, 1));
    cluster.run();
    assert_eq!(cluster.holders(task).len(), 2);
    assert_eq!(cluster.drained, [WorkerId(0)]);

    let mut cluster = Cluster::new(1, 1);
    value_at(&mut cluster, 0);
    cluster.event(Event::Drain(WorkerId(0)));
    cluster.tick_after(Duration::from_secs(31));
    assert_eq!(cluster.drained, [WorkerId(0)], "patience ends");
}

#[test]
fn a_drain_goes_on_when_the_taker_is_lost() {
    let mut cluster = Cluster::new(2, 1);
    let task = value_at(&mut cluster, 0);
    cluster.event(Event::Drain(WorkerId(0)));
    cluster.lose(1);
    cluster.join(2, profile(2, 1));
    cluster.run();
    assert_eq!(cluster.drained, [WorkerId(0)]);
    assert!(cluster.holders(task).contains(&WorkerId(2)));
}

#[test]
fn another_holder_is_asked() {
    let mut cluster = Cluster::new(3, 1);
    let task = value_at(&mut cluster, 0);
    replicate(&mut cluster, task, 2, &[0, 1]);
    cluster.cut.insert((WorkerId(2), WorkerId(0)));
    let reader = cluster.one(reads(&[task]).on(&[2]));
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    assert_eq!(cluster.assigned(task).len(), 1);
}

#[test]
fn the_task_goes_to_the_holder() {
    let mut cluster = Cluster::new(2, 1);
    let first = value_at(&mut cluster, 0);
    let second = value_at(&mut cluster, 1);
    cluster.size(second, 6_000);
    cluster.cut.insert((WorkerId(1), WorkerId(0)));
    let reader = cluster.one(reads(&[first, second]));
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    assert_eq!(cluster.assigned(reader).last(), Some(&WorkerId(0)));
    assert_eq!(
        cluster.scheduler.workers().count(),
        2,
        "nobody was declared dead"
    );
}

#[test]
fn a_third_worker_makes_a_copy() {
    let mut cluster = Cluster::new(3, 1);
    let task = value_at(&mut cluster, 0);
    cluster.cut.insert((WorkerId(1), WorkerId(0)));
    let reader = cluster.one(reads(&[task]).on(&[1]));
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    assert_eq!(cluster.assigned(task).len(), 1, "it was not computed again");
    assert_eq!(cluster.holders(task), [WorkerId(0)], "the copies went");
}

#[test]
fn a_copy_that_was_read_goes_with_its_last_reader() {
    let mut cluster = Cluster::new(2, 1);
    let value = value_at(&mut cluster, 0);
    let first = cluster.one(reads(&[value]).on(&[1]));
    let last = cluster.one(reads(&[value, first]).on(&[1]));
    cluster.start_all();
    cluster.deliver();
    assert_eq!(
        cluster.holders(value).len(),
        2,
        "the last reader still needs it"
    );
    cluster.run();
    assert_eq!(cluster.state(last), State::Memory);
    assert_eq!(cluster.holders(value), [WorkerId(0)]);
    // A value that is read again and again does not move each time.
    for _ in 0..2 {
        cluster.one(reads(&[value]).on(&[1]));
        cluster.run();
        assert_eq!(cluster.holders(value).len(), 2);
    }
    cluster.unwant(&[value]);
    cluster.run();
}

#[test]
fn copies_that_were_asked_for_stay_after_their_readers() {
    let mut cluster = Cluster::new(3, 1);
    let value = value_at(&mut cluster, 0);
    replicate(&mut cluster, value, 2, &[]);
    cluster.one(reads(&[value]).on(&[1]));
    cluster.run();
    assert!(cluster.holders(value).len() >= 2);
}

#[test]
fn a_call_of_an_actor_gets_its_other_inputs_over_a_third_worker() {
    let mut cluster = Cluster::new(3, 1);
    let actor = cluster.one(reads(&[]).on(&[0]).actor());
    cluster.size(actor, 10);
    cluster.run();
    let value = value_at(&mut cluster, 1);
    cluster.cut.insert((WorkerId(0), WorkerId(1)));
    let call = cluster.one(reads(&[actor, value]));
    cluster.run();
    assert_eq!(cluster.state(call), State::Memory);
    assert_eq!(cluster.assigned(call).last(), Some(&WorkerId(0)));
    assert_eq!(cluster.holders(actor), [WorkerId(0)]);
    assert_eq!(cluster.assigned(value).len(), 1);
}

#[test]
fn the_input_is_computed_again() {
    let mut cluster = Cluster::new(2, 1);
    let task = value_at(&mut cluster, 0);
    cluster.cut.insert((WorkerId(1), WorkerId(0)));
    let reader = cluster.one(reads(&[task]).on(&[1]));
    cluster.start_all();
    cluster.deliver();
    assert_eq!(cluster.last_notice(task), Some(&Notice::Pending));
    cluster.run();
    let runs = cluster.assigned(task).len();
    assert!((2..=3).contains(&runs), "{runs} runs");
    cluster.cut.clear();
    cluster.tick_after(Duration::from_secs(6));
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    assert_eq!(cluster.assigned(task).len(), runs);
}

#[test]
fn what_stays_out_of_reach_fails_by_name() {
    let mut cluster = Cluster::new(2, 1);
    let task = cluster.one(reads(&[]).on(&[0]));
    cluster.size(task, 5_000);
    cluster.run();
    cluster.cut.insert((WorkerId(1), WorkerId(0)));
    let reader = cluster.one(reads(&[task]).on(&[1]));
    for _ in 0..60 {
        cluster.run();
        cluster.tick_after(Duration::from_secs(1));
    }
    let expected = Failure::Unavailable {
        task: reader,
        input: task,
    };
    assert_eq!(*cluster.failure(reader), expected);
    assert_eq!(cluster.state(task), State::Memory);
}

#[test]
fn a_cut_is_forgotten() {
    let mut cluster = Cluster::new(2, 1);
    let task = cluster.one(reads(&[]).on(&[0]));
    cluster.size(task, 5_000);
    cluster.run();
    cluster.cut.insert((WorkerId(1), WorkerId(0)));
    let reader = cluster.one(reads(&[task]).on(&[1]));
    cluster.run();
    assert_eq!(
        cluster.state(reader),
        State::Ready,
        "it waits for the cut to heal"
    );
    cluster.cut.clear();
    cluster.tick_after(Duration::from_secs(6));
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
}
