//! Workers that report what cannot be: they are dismissed, and nothing else notices.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use treadle_scheduler::{Event, SchedulerError, State};
use treadle_types::{Attempt, Holders, ObjectId, Report, Returned, TaskId, WorkerId};

use crate::cluster::*;

fn finished(object: ObjectId) -> Report {
    Report::Finished {
        object,
        value: Returned {
            nbytes: 1,
            inline: Some(Bytes::from_static(b"x")),
            kept: false,
            class: Bytes::new(),
        },
        duration: Duration::ZERO,
    }
}

fn reports(object: ObjectId) -> Vec<Report> {
    vec![
        finished(object),
        Report::Failed {
            object,
            error: Bytes::new(),
            duration: Duration::ZERO,
        },
        Report::Retracted(object),
        Report::Started(object),
        Report::Stopped(object),
        Report::Unavailable {
            object,
            input: object,
            tried: Holders::new(),
        },
        Report::GivenBack(object),
        Report::Immovable {
            object,
            input: object,
            error: Bytes::new(),
        },
        Report::Stored { object, nbytes: 1 },
        Report::Gone(object),
        Report::Seceded(object),
        Report::Rejoined(object),
    ]
}

#[test]
fn a_task_that_never_was_is_impossible() {
    let object = ObjectId::new(TaskId(1_000_000), Attempt(1));
    for report in reports(object) {
        let mut cluster = Cluster::new(2, 1);
        cluster.report(0, report);
        assert_eq!(cluster.dismissed, [WorkerId(0)]);
        assert!(cluster.scheduler.worker(WorkerId(0)).is_none());
    }
}

#[test]
fn an_attempt_that_never_was_is_impossible() {
    for index in 0..reports(ObjectId::new(TaskId(0), Attempt(0))).len() {
        let mut cluster = Cluster::new(2, 1);
        let task = cluster.one(reads(&[]));
        cluster.start_all();
        let worker = cluster.worker_of(task);
        let object = ObjectId::new(task, Attempt(50));
        cluster.report(worker.0, reports(object).swap_remove(index));
        assert_eq!(cluster.dismissed, [worker]);
        cluster.run();
        assert_eq!(cluster.state(task), State::Memory);
    }
}

#[test]
fn the_task_of_another_worker_is_impossible() {
    for index in 0..8 {
        let mut cluster = Cluster::new(2, 1);
        let task = cluster.one(reads(&[]));
        let worker = cluster.worker_of(task);
        let other = 1 - worker.0;
        let object = cluster.scheduler.task(task).expect("it").object();
        cluster.report(other, reports(object).swap_remove(index));
        assert_eq!(cluster.dismissed, [WorkerId(other)]);
        assert_eq!(cluster.worker_of(task), worker);
        cluster.run();
        assert_eq!(cluster.state(task), State::Memory);
    }
}

#[test]
fn a_value_nowhere_is_impossible() {
    let mut cluster = Cluster::new(1, 1);
    let task = cluster.one(reads(&[]));
    let object = cluster.scheduler.task(task).expect("it").object();
    cluster.report(
        0,
        Report::Finished {
            object,
            value: Returned {
                nbytes: 1,
                inline: None,
                kept: false,
                class: Bytes::new(),
            },
            duration: Duration::ZERO,
        },
    );
    assert_eq!(cluster.dismissed, [WorkerId(0)]);
}

#[test]
fn an_id_of_a_worker_is_used_once() {
    let mut cluster = Cluster::new(1, 1);
    let join = |worker| Event::WorkerJoined {
        worker: WorkerId(worker),
        profile: profile(5, 1),
    };
    assert_eq!(
        cluster.try_event(join(0)),
        Err(SchedulerError::WorkerId(WorkerId(0)))
    );
    cluster.lose(0);
    assert!(cluster.try_event(join(0)).is_err());
    assert!(cluster.try_event(join(u32::MAX)).is_err());
    cluster.event(join(1));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// One worker reports at random; the other one works.
    #[test]
    fn nothing_else_notices(lies in prop::collection::vec((0usize..10, 0u32..30, 0u32..4), 1..60)) {
        let mut cluster = Cluster::new(2, 2);
        let first = cluster.submit(vec![reads(&[]); 10]);
        let second = cluster.submit(first.windows(2).map(reads).collect());
        for (kind, task, attempt) in lies {
            let object = ObjectId::new(TaskId(task), Attempt(attempt));
            cluster.report(0, reports(object).swap_remove(kind));
            cluster.start(WorkerId(1));
            if cluster.dismissed.is_empty() {
                cluster.deliver();
            }
        }
        cluster.nodes.remove(&WorkerId(0));
        cluster.event(Event::WorkerLost {
            worker: WorkerId(0),
            cause: treadle_types::Cause::Unreachable,
        });
        cluster.run();
        for id in first.into_iter().chain(second) {
            prop_assert!(matches!(cluster.state(id), State::Memory | State::Failed));
        }
    }
}
