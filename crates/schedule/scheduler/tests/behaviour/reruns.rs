//! Tasks that ask to run elsewhere, and values that cannot be serialised where they are.

use crate::cluster::*;
use bytes::Bytes;
use treadle_scheduler::{Config, Event, Notice, State};
use treadle_types::{Command, Failure, ObjectId, Report, TaskId, WorkerId};

const ERROR: Bytes = Bytes::from_static(b"cannot be serialised");

impl Cluster {
    /// A running task asks to run elsewhere; who says so.
    fn ask_elsewhere(&mut self, task: TaskId) -> WorkerId {
        let worker = self.worker_of(task);
        let node = self.nodes.get_mut(&worker).expect("a worker");
        let is_it = |a: &treadle_types::Assignment| a.object.task == task;
        let index = node.running.iter().position(is_it).expect("a running task");
        let object = node.running.remove(index).object;
        self.report(worker.0, Report::GivenBack(object));
        worker
    }

    /// The worker of a task is told that it cannot have an input.
    fn refuse(&mut self, task: TaskId, input: TaskId) {
        let worker = self.worker_of(task);
        let node = self.nodes.get_mut(&worker).expect("a worker");
        let is_it = |a: &treadle_types::Assignment| a.object.task == task;
        let index = node.queued.iter().position(is_it).expect("a queued task");
        let object = node.queued.remove(index).object;
        let input = self.object(input);
        let error = ERROR;
        self.report(
            worker.0,
            Report::Immovable {
                object,
                input,
                error,
            },
        );
    }

    fn object(&self, task: TaskId) -> ObjectId {
        self.scheduler.task(task).expect("a task").object()
    }

    /// A value at a worker that cannot be sent from there.
    fn fixed_at(&mut self, worker: u32) -> TaskId {
        let task = self.one(reads(&[]).on(&[worker]).or_others());
        self.size(task, 5_000);
        self.run();
        assert_eq!(self.holders(task), [WorkerId(worker)]);
        task
    }

    /// A worker is busy for long with something else.
    fn occupy(&mut self, worker: u32) {
        self.duration = std::time::Duration::from_secs(10);
        let first = self.one(reads(&[]).on(&[worker]).function(9));
        self.start_all();
        self.end(first);
        self.deliver();
        self.one(reads(&[]).on(&[worker]).function(9));
        self.start_all();
    }
}

#[test]
fn a_task_that_asks_to_run_elsewhere_does() {
    let mut cluster = Cluster::new(3, 1);
    let task = cluster.one(reads(&[]));
    cluster.start_all();
    let first = cluster.ask_elsewhere(task);
    cluster.start_all();
    let second = cluster.ask_elsewhere(task);
    cluster.start_all();
    assert_ne!(first, second);
    assert_ne!(cluster.worker_of(task), second);
    cluster.run();
    assert_eq!(cluster.state(task), State::Memory);
    cluster.unwant(&[task]);
    cluster.assert_empty();
}

#[test]
fn with_nobody_else_it_runs_where_it_was() {
    let mut cluster = Cluster::new(2, 1);
    let task = cluster.one(reads(&[]).on(&[1]));
    cluster.start_all();
    cluster.ask_elsewhere(task);
    cluster.run();
    assert_eq!(cluster.assigned(task), [WorkerId(1), WorkerId(1)]);
    assert_eq!(cluster.state(task), State::Memory);
}

#[test]
fn asking_is_neither_a_retry_nor_a_loss() {
    let config = Config {
        allowed_losses: 0,
        ..Config::default()
    };
    let mut cluster = Cluster::with(config, 2, 1);
    let task = cluster.one(reads(&[]).retries(1));
    for _ in 0..50 {
        cluster.start_all();
        cluster.ask_elsewhere(task);
    }
    assert_eq!(cluster.last_notice(task), None);
    cluster.start_all();
    cluster.raise(task);
    cluster.deliver();
    cluster.run();
    assert_eq!(cluster.state(task), State::Memory);
}

#[test]
fn what_was_sent_behind_a_task_that_asks_to_run_elsewhere_follows_it() {
    let mut cluster = Cluster::new(2, 1);
    let chain = cluster.chain(3);
    cluster.start_all();
    cluster.ask_elsewhere(chain[0]);
    cluster.run();
    assert_eq!(cluster.state(chain[2]), State::Memory);
    assert_eq!(cluster.dismissed, []);
}

#[test]
fn a_reader_of_what_cannot_be_sent_runs_where_it_is() {
    let mut cluster = Cluster::new(2, 1);
    let value = cluster.fixed_at(0);
    cluster.occupy(0);
    let reader = cluster.one(reads(&[value]));
    assert_eq!(cluster.worker_of(reader), WorkerId(1));
    cluster.refuse(reader, value);
    // It waits for the worker that is busy, and nobody takes it away.
    cluster.tick_after(std::time::Duration::from_secs(1));
    assert_eq!(cluster.assigned(reader)[0], WorkerId(1));
    cluster.run();
    assert_eq!(cluster.assigned(reader), [WorkerId(1), WorkerId(0)]);
    assert_eq!(cluster.state(reader), State::Memory);
    assert_eq!(cluster.assigned(value).len(), 1);
}

#[test]
fn a_reader_that_may_not_run_there_fails_with_what_the_holder_said() {
    let mut cluster = Cluster::new(2, 1);
    let value = cluster.fixed_at(0);
    let reader = cluster.one(reads(&[value]).on(&[1]).retries(5));
    let last = cluster.one(reads(&[reader]));
    cluster.refuse(reader, value);
    let failure = Failure::Raised {
        task: reader,
        error: ERROR,
    };
    for task in [reader, last] {
        assert_eq!(*cluster.failure(task), failure);
    }
    assert_eq!(cluster.assigned(reader).len(), 1);
    assert_eq!(cluster.state(value), State::Memory);
}

#[test]
fn values_that_cannot_meet_fail_their_reader() {
    let mut cluster = Cluster::new(2, 1);
    let (one, other) = (cluster.fixed_at(0), cluster.fixed_at(1));
    let reader = cluster.one(reads(&[one, other]));
    let missing = match cluster.worker_of(reader) {
        WorkerId(0) => other,
        _ => one,
    };
    let there = if missing == one { other } else { one };
    cluster.refuse(reader, missing);
    // It goes to the other's holder, where the first is what cannot be had.
    cluster.refuse(reader, there);
    assert!(matches!(
        cluster.last_notice(reader),
        Some(Notice::Failed(_))
    ));
}

#[test]
fn a_value_that_is_made_anew_may_be_sent() {
    let mut cluster = Cluster::new(2, 1);
    let value = cluster.fixed_at(0);
    cluster.occupy(0);
    let reader = cluster.one(reads(&[value]));
    cluster.refuse(reader, value);
    cluster.lose(0);
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    assert_eq!(cluster.holders(value), [WorkerId(1)]);
}

#[test]
fn a_worker_leaves_although_a_value_cannot_be_copied() {
    let mut cluster = Cluster::new(2, 1);
    let value = cluster.fixed_at(0);
    cluster.event(Event::Drain(WorkerId(0)));
    let copies = |command: &Command| matches!(command, Command::Copy { .. });
    assert_eq!(cluster.count(copies), 1);
    // The cluster's worker has made the copy; this one could not.
    let node = cluster.nodes.get_mut(&WorkerId(1)).expect("a worker");
    node.outbox.clear();
    node.store.clear();
    let object = cluster.object(value);
    cluster.report(1, Report::NotCopyable(object));
    assert_eq!(cluster.count(copies), 1);
    assert_eq!(cluster.drained, [WorkerId(0)]);
    cluster.lose(0);
    cluster.run();
    assert_eq!(cluster.holders(value), [WorkerId(1)]);
}
