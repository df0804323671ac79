//! Tasks that raise.

use treadle_scheduler::{Event, Notice, State};

use crate::cluster::*;

#[test]
fn dependents_fail_with_the_culprit() {
    let mut cluster = Cluster::new(2, 2);
    let first = cluster.one(reads(&[]));
    let second = cluster.one(reads(&[first]));
    let third = cluster.one(reads(&[second]));
    cluster.start_all();
    cluster.raise(first);
    cluster.run();
    for task in [first, second, third] {
        assert_eq!(cluster.failure(task).culprit(), first);
        assert_eq!(cluster.state(task), State::Failed);
    }
}

#[test]
fn a_dependent_that_comes_later_fails_at_once() {
    let mut cluster = Cluster::new(1, 1);
    let first = cluster.one(reads(&[]));
    cluster.start_all();
    cluster.raise(first);
    cluster.run();
    let ids: Vec<_> = (0..2).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![reads(&[first]), reads(&ids[..1])];
    cluster.submit_as(C, &ids, specs, &ids);
    for task in ids {
        assert_eq!(cluster.failure(task).culprit(), first);
        assert_eq!(cluster.assigned(task), []);
    }
}

#[test]
fn who_wants_it_later_hears_that_it_has_failed() {
    let mut cluster = Cluster::new(1, 1);
    let task = cluster.one(reads(&[]));
    cluster.start_all();
    cluster.raise(task);
    cluster.run();
    let other = treadle_types::ClientId(4);
    cluster.event(Event::ClientJoined(other));
    cluster.event(Event::Want {
        client: other,
        tasks: vec![task],
    });
    let heard = cluster.notices[&(other, task)].last();
    assert!(matches!(heard, Some(Notice::Failed(_))));
}

#[test]
fn a_task_runs_again_as_often_as_it_may() {
    let mut cluster = Cluster::new(1, 1);
    let task = cluster.one(reads(&[]).retries(2));
    for run in 0..3 {
        assert_eq!(cluster.state(task), State::Assigned, "run {run}");
        cluster.start_all();
        cluster.raise(task);
        cluster.deliver();
    }
    assert_eq!(cluster.state(task), State::Failed);
    assert_eq!(cluster.assigned(task).len(), 3);
}

#[test]
fn a_retry_computes_inputs_that_were_lost_again() {
    let mut cluster = Cluster::new(2, 1);
    let value = cluster.one(reads(&[]).on(&[0]).or_others());
    cluster.size(value, 5_000);
    cluster.run();
    let reader = cluster.one(reads(&[value]).retries(1).on(&[1]));
    cluster.unwant(&[value]);
    cluster.start_all();
    // The reader has its copy. Both are lost before it raises.
    cluster.deliver();
    cluster.lose(0);
    let object = cluster.scheduler.task(value).expect("it").object();
    let node = cluster
        .nodes
        .get_mut(&treadle_types::WorkerId(1))
        .expect("it");
    node.store.remove(&object);
    node.outbox.push_back(treadle_types::Report::Gone(object));
    cluster.deliver();
    cluster.raise(reader);
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    assert_eq!(cluster.assigned(value).len(), 2);
}

#[test]
fn a_client_tries_again() {
    let mut cluster = Cluster::new(1, 1);
    let first = cluster.one(reads(&[]));
    let second = cluster.one(reads(&[first]));
    let third = cluster.one(reads(&[second]));
    cluster.start_all();
    cluster.raise(first);
    cluster.run();
    // Also what it depends on, and what failed with it.
    cluster.event(Event::Retry {
        client: C,
        tasks: vec![second],
    });
    assert_eq!(cluster.last_notice(first), Some(&Notice::Pending));
    cluster.run();
    for task in [first, second, third] {
        assert_eq!(cluster.state(task), State::Memory);
    }
}

#[test]
fn failed_tasks_go_when_nobody_wants_them() {
    let mut cluster = Cluster::new(1, 1);
    let first = cluster.one(reads(&[]));
    let second = cluster.one(reads(&[first]));
    cluster.start_all();
    cluster.raise(first);
    cluster.run();
    cluster.unwant(&[first]);
    assert_eq!(
        cluster.state(first),
        State::Failed,
        "its dependent may be tried again"
    );
    cluster.unwant(&[second]);
    cluster.assert_empty();
}

#[test]
fn siblings_go_on() {
    let mut cluster = Cluster::new(1, 2);
    let ids = cluster.submit(vec![reads(&[]); 2]);
    let both = cluster.one(reads(&ids));
    let one = cluster.one(reads(&ids[1..]));
    cluster.start_all();
    cluster.raise(ids[0]);
    cluster.run();
    assert_eq!(cluster.state(both), State::Failed);
    assert_eq!(cluster.state(one), State::Memory);
}
