//! Workers that are lost, and values that have to be computed again.

use treadle_scheduler::{Config, Event, Notice, State};
use treadle_types::{Cause, Command, Failure, ObjectId, Report, Returned, Symbol, WorkerId};

use crate::cluster::*;

#[test]
fn what_ran_runs_again_elsewhere() {
    let mut cluster = Cluster::new(2, 1);
    let ids = cluster.submit(vec![reads(&[]); 2]);
    cluster.start_all();
    cluster.lose(0);
    cluster.run();
    for id in ids {
        assert_eq!(cluster.state(id), State::Memory);
    }
}

#[test]
fn a_value_with_a_copy_is_not_lost() {
    let mut cluster = Cluster::new(2, 1);
    let value = cluster.one(reads(&[]).on(&[0]));
    cluster.size(value, 5_000);
    cluster.run();
    cluster.event(Event::Replicate {
        tasks: vec![value],
        copies: 2,
        among: Vec::new(),
    });
    cluster.run();
    assert_eq!(cluster.holders(value).len(), 2);
    cluster.lose(0);
    assert_eq!(cluster.state(value), State::Memory);
    assert_eq!(cluster.holders(value), [WorkerId(1)]);
    assert_eq!(cluster.assigned(value).len(), 1);
}

#[test]
fn a_lost_value_that_is_wanted_is_computed_again() {
    let mut cluster = Cluster::new(2, 1);
    let value = cluster.one(reads(&[]));
    cluster.size(value, 5_000);
    cluster.run();
    let holder = cluster.holders(value)[0];
    cluster.lose(holder.0);
    assert_eq!(cluster.last_notice(value), Some(&Notice::Pending));
    cluster.run();
    assert_eq!(cluster.state(value), State::Memory);
    assert!(matches!(
        cluster.last_notice(value),
        Some(Notice::Finished { .. })
    ));
}

#[test]
fn released_inputs_are_computed_again_too() {
    let mut cluster = Cluster::new(2, 1);
    let chain = cluster.chain(5);
    for &task in &chain {
        cluster.size(task, 5_000);
    }
    cluster.run();
    assert_eq!(cluster.state(chain[3]), State::Released);
    let holder = cluster.holders(chain[4])[0];
    cluster.lose(holder.0);
    cluster.run();
    assert_eq!(cluster.state(chain[4]), State::Memory);
    for &task in &chain {
        assert_eq!(cluster.assigned(task).len(), 2);
    }
    cluster.unwant(&chain[4..]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn small_values_live_here_and_cost_no_run() {
    let mut cluster = Cluster::new(2, 1);
    let value = cluster.one(reads(&[]));
    cluster.run();
    cluster.lose(0);
    cluster.lose(1);
    assert_eq!(cluster.state(value), State::Memory);
    assert_eq!(cluster.assigned(value).len(), 1);
}

#[test]
fn lineage_is_kept_as_long_as_it_could_be_needed_and_no_longer() {
    let mut cluster = Cluster::new(1, 1);
    let chain = cluster.chain(3);
    cluster.size(chain[0], 5_000);
    cluster.size(chain[1], 5_000);
    cluster.start_all();
    cluster.end(chain[0]);
    cluster.deliver();
    cluster.start_all();
    cluster.end(chain[1]);
    cluster.deliver();
    // The last one is still to run, and could need both again.
    assert_eq!(cluster.state(chain[0]), State::Released);
    cluster.run();
    // Its value is small and cannot be lost.
    assert_eq!(cluster.state(chain[0]), State::Forgotten);
    assert_eq!(cluster.state(chain[1]), State::Forgotten);
}

#[test]
fn losses_have_a_budget_and_causes() {
    let config = Config {
        allowed_losses: 2,
        ..Config::default()
    };
    let mut cluster = Cluster::with(config, 0, 0);
    let deadly = cluster.one(reads(&[]));
    for worker in 0..3 {
        cluster.join(worker, profile(worker, 1));
        cluster.start_all();
        cluster.nodes.clear();
        let cause = match worker {
            0 => Cause::OutOfMemory,
            1 => Cause::Signal(11),
            _ => Cause::Exited(3),
        };
        cluster.event(Event::WorkerLost {
            worker: WorkerId(worker),
            cause,
        });
    }
    let failure = cluster.failure(deadly);
    let Failure::WorkersLost { task, losses } = failure else {
        panic!("another failure: {failure:?}");
    };
    assert_eq!(*task, deadly);
    let causes: Vec<_> = losses.iter().map(|loss| loss.cause.clone()).collect();
    assert_eq!(
        causes,
        [Cause::OutOfMemory, Cause::Signal(11), Cause::Exited(3)]
    );
    assert_eq!(losses[1].worker, Symbol(1));
}

#[test]
fn what_only_waited_behind_the_culprit_is_not_blamed() {
    let config = Config {
        allowed_losses: 1,
        ..Config::default()
    };
    let mut cluster = Cluster::with(config, 0, 0);
    let ids = cluster.submit(vec![reads(&[]); 4]);
    for worker in 0..2 {
        cluster.join(worker, profile(worker, 1));
        cluster.start_all();
        cluster.lose(worker);
    }
    assert_eq!(cluster.state(ids[0]), State::Failed);
    cluster.join(2, profile(2, 1));
    cluster.run();
    for &id in &ids[1..] {
        assert_eq!(cluster.state(id), State::Memory);
    }
}

#[test]
fn a_worker_that_left_as_told_is_no_loss() {
    let config = Config {
        allowed_losses: 0,
        ..Config::default()
    };
    let mut cluster = Cluster::with(config, 2, 1);
    let ids = cluster.submit(vec![reads(&[]); 2]);
    cluster.start_all();
    cluster.event(Event::WorkerLost {
        worker: WorkerId(0),
        cause: Cause::Drained,
    });
    cluster.nodes.remove(&WorkerId(0));
    cluster.run();
    for id in ids {
        assert_eq!(cluster.state(id), State::Memory);
    }
}

#[test]
fn a_lost_worker_is_not_heard() {
    let mut cluster = Cluster::new(1, 1);
    let task = cluster.one(reads(&[]));
    cluster.start_all();
    let object = cluster.scheduler.task(task).expect("it").object();
    cluster.lose(0);
    cluster.report(
        0,
        Report::Finished {
            object,
            value: Returned {
                nbytes: 5_000,
                inline: None,
                kept: true,
                class: bytes::Bytes::new(),
            },
            duration: std::time::Duration::ZERO,
        },
    );
    assert_eq!(cluster.state(task), State::Ready);
    assert_eq!(cluster.scheduler.late_reports(), 1);
}

#[test]
fn a_copy_on_its_way_saves_a_lost_value() {
    let mut cluster = Cluster::new(2, 1);
    let value = cluster.one(reads(&[]).on(&[0]));
    cluster.size(value, 5_000);
    cluster.run();
    cluster.one(reads(&[value]).on(&[1]));
    // The reader has fetched it, and the scheduler has not heard.
    cluster.start_all();
    cluster.lose(0);
    assert_eq!(cluster.last_notice(value), Some(&Notice::Pending));
    cluster.run();
    assert_eq!(cluster.assigned(value).len(), 1);
    assert_eq!(cluster.holders(value), [WorkerId(1)]);
    assert!(matches!(
        cluster.last_notice(value),
        Some(Notice::Finished { .. })
    ));
}

#[test]
fn a_file_that_is_gone_is_a_lost_copy() {
    let mut cluster = Cluster::new(1, 1);
    let value = cluster.one(reads(&[]));
    cluster.size(value, 5_000);
    cluster.run();
    let object = cluster.scheduler.task(value).expect("it").object();
    cluster
        .nodes
        .get_mut(&WorkerId(0))
        .expect("it")
        .store
        .clear();
    cluster.report(0, Report::Gone(object));
    cluster.run();
    assert_eq!(cluster.assigned(value).len(), 2);
    assert_eq!(cluster.state(value), State::Memory);
}

#[test]
fn a_plane_can_say_that_values_are_gone() {
    let mut cluster = Cluster::new(2, 1);
    let ids = cluster.chain(2);
    cluster.size(ids[0], 5_000);
    cluster.size(ids[1], 5_000);
    cluster.run();
    cluster.event(Event::Invalidate(vec![ids[1], ids[0]]));
    assert_eq!(cluster.last_notice(ids[1]), Some(&Notice::Pending));
    cluster.run();
    assert_eq!(cluster.state(ids[1]), State::Memory);
    assert_eq!(cluster.assigned(ids[0]).len(), 2);
    cluster.unwant(&ids[1..]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn attempts_go_on_counting_when_an_id_is_used_again() {
    let mut cluster = Cluster::new(1, 1);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..5 {
        let task = cluster.one(reads(&[]));
        cluster.run();
        cluster.unwant(&[task]);
        for (_, command) in std::mem::take(&mut cluster.log) {
            if let Command::Assign(assignment) = command {
                let object: ObjectId = assignment.object;
                assert_eq!(object.task, task);
                assert!(seen.insert(object), "{object:?} twice");
            }
        }
    }
    assert_eq!(seen.len(), 5);
}

#[test]
fn losing_all_workers_waits_for_another() {
    let mut cluster = Cluster::new(2, 2);
    let chain = cluster.chain(50);
    cluster.start_all();
    cluster.lose(0);
    cluster.lose(1);
    assert_eq!(cluster.state(chain[0]), State::Ready);
    cluster.join(2, profile(2, 1));
    cluster.run();
    assert_eq!(cluster.state(chain[49]), State::Memory);
}

#[test]
fn a_task_may_run_although_an_input_was_lost_since() {
    let mut cluster = Cluster::new(2, 1);
    let ids: Vec<_> = (0..3).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![reads(&[]), reads(&[]), reads(&ids[..2])];
    cluster.submit_as(C, &ids, specs, &ids[2..]);
    let (near, far, reader) = (ids[0], ids[1], ids[2]);
    cluster.size(far, 1000);
    cluster.start_all();
    cluster.end(far);
    while cluster.deliver() {}
    let home = cluster.worker_of(near);
    assert_eq!(cluster.worker_of(reader), home, "sent ahead of `near`");
    // The worker has its copy of `far` by now, and nobody was told.
    cluster.lose(1 - home.0);
    cluster.end(near);
    while cluster.deliver() {}
    let object = cluster.scheduler.task(reader).expect("it").object();
    cluster.report(home.0, Report::Seceded(object));
    let worker = cluster.scheduler.worker(home).expect("not dismissed");
    assert_eq!(worker.seceded(), 1);
}
