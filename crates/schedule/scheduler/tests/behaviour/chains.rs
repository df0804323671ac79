//! Tasks that are sent ahead of their inputs.

use std::time::Duration;

use crate::cluster::*;
use treadle_scheduler::{Event, State};
use treadle_types::{Command, Place, WorkerId};

#[test]
fn a_chain_of_a_thousand_is_sent_at_once() {
    let mut cluster = Cluster::new(2, 2);
    let chain = cluster.chain(1000);
    let first = cluster.worker_of(chain[0]);
    for &task in &chain {
        assert_eq!(cluster.worker_of(task), first);
    }
    cluster.run();
    assert_eq!(cluster.count(|c| matches!(c, Command::Assign(_))), 1000);
    assert_eq!(cluster.state(chain[999]), State::Memory);
    assert_eq!(cluster.forgotten.len(), 999);
}

#[test]
fn a_chain_leaves_other_slots_free() {
    let mut cluster = Cluster::new(1, 2);
    cluster.chain(500);
    let other = cluster.one(reads(&[]));
    assert_eq!(cluster.state(other), State::Assigned);
    cluster.start_all();
    assert_eq!(cluster.nodes[&WorkerId(0)].running.len(), 2);
}

#[test]
fn a_longer_chain_goes_in_pieces() {
    let mut cluster = Cluster::new(1, 1);
    let chain = cluster.chain(5000);
    assert_eq!(
        cluster.scheduler.worker(WorkerId(0)).expect("it").ahead(),
        1024
    );
    cluster.run();
    assert_eq!(cluster.state(chain[4999]), State::Memory);
}

#[test]
fn a_join_goes_ahead_if_all_its_inputs_do() {
    let mut cluster = Cluster::new(1, 2);
    let ids: Vec<_> = (0..3).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![reads(&[]), reads(&[]), reads(&ids[..2])];
    cluster.submit_as(C, &ids, specs, &ids[2..]);
    assert_eq!(cluster.state(ids[2]), State::Assigned);
    assert!(cluster.scheduler.task(ids[2]).expect("it").is_ahead());

    let mut cluster = Cluster::new(2, 1);
    let ids: Vec<_> = (0..3).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![reads(&[]), reads(&[]), reads(&ids[..2])];
    cluster.submit_as(C, &ids, specs, &ids[2..]);
    assert_eq!(
        cluster.state(ids[2]),
        State::Waiting,
        "its inputs are apart"
    );
    cluster.run();
    assert_eq!(cluster.state(ids[2]), State::Memory);
}

#[test]
fn what_was_sent_before_its_reader_was_known_is_not_relied_on() {
    let mut cluster = Cluster::new(1, 1);
    let first = cluster.one(reads(&[]));
    let second = cluster.one(reads(&[first]));
    assert_eq!(cluster.state(second), State::Waiting);
    cluster.run();
    assert_eq!(cluster.state(second), State::Memory);
}

#[test]
fn a_reader_of_a_running_task_follows_it() {
    let mut cluster = Cluster::new(1, 2);
    let ids = cluster.chain(2);
    cluster.start_all();
    let third = cluster.one(reads(&ids[..1]));
    assert_eq!(cluster.worker_of(third), WorkerId(0));
    cluster.run();
    assert_eq!(cluster.state(third), State::Memory);
}

#[test]
fn a_chain_that_comes_in_two_batches_is_one() {
    let mut cluster = Cluster::new(1, 1);
    let ids: Vec<_> = (0..20).map(|_| cluster.scheduler.allocate()).collect();
    let specs = |range: std::ops::Range<usize>| {
        let specs = range.map(|i| reads(&ids[i.saturating_sub(1)..i]));
        specs.collect::<Vec<_>>()
    };
    let mut first = batch(C, 7, false, &ids[..10], specs(0..10), &[]);
    first.readers[9] = 1;
    cluster.event(Event::Submit(first));
    cluster.start_all();
    let second = batch(C, 7, true, &ids[10..], specs(10..20), &ids[19..]);
    cluster.event(Event::Submit(second));
    assert_eq!(cluster.state(ids[19]), State::Assigned);
    cluster.run();
    assert_eq!(cluster.state(ids[19]), State::Memory);
}

#[test]
fn an_error_at_the_head_ends_the_tail() {
    let mut cluster = Cluster::new(1, 1);
    let chain = cluster.chain(10);
    cluster.start_all();
    cluster.raise(chain[0]);
    cluster.run();
    assert_eq!(cluster.state(chain[9]), State::Failed);
    assert!(cluster.nodes[&WorkerId(0)].queued.is_empty());
    cluster.unwant(&chain[9..]);
    cluster.assert_empty();
}

#[test]
fn a_retry_at_the_head_sends_the_tail_again() {
    let mut cluster = Cluster::new(1, 1);
    let ids: Vec<_> = (0..3).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![reads(&[]).retries(1), reads(&ids[..1]), reads(&ids[1..2])];
    cluster.submit_as(C, &ids, specs, &ids[2..]);
    cluster.start_all();
    cluster.raise(ids[0]);
    cluster.run();
    assert_eq!(cluster.state(ids[2]), State::Memory);
    assert_eq!(cluster.assigned(ids[2]).len(), 2);
}

#[test]
fn a_wide_fan_of_unknown_tasks_does_not_go_to_one_worker() {
    let mut cluster = Cluster::new(4, 1);
    let ids: Vec<_> = (0..41).map(|_| cluster.scheduler.allocate()).collect();
    let mut specs = vec![reads(&[])];
    specs.extend((0..40).map(|_| reads(&ids[..1])));
    cluster.submit_as(C, &ids, specs, &ids[1..]);
    let ahead = cluster
        .scheduler
        .worker(cluster.worker_of(ids[0]))
        .expect("it")
        .ahead();
    assert!(ahead <= 1, "{ahead} of 40 went ahead");
}

#[test]
fn long_steps_are_not_sent_far_ahead() {
    let mut cluster = Cluster::new(1, 1);
    cluster.duration = Duration::from_secs(1);
    let task = cluster.one(reads(&[]));
    cluster.run();
    cluster.unwant(&[task]);
    let chain = cluster.chain(10);
    let sent = chain
        .iter()
        .filter(|&&id| cluster.state(id) == State::Assigned);
    assert!(sent.count() <= 3);
    cluster.run();
    assert_eq!(cluster.state(chain[9]), State::Memory);
}

#[test]
fn inputs_that_are_on_their_way_here_are_so_named() {
    let mut cluster = Cluster::new(1, 1);
    let chain = cluster.chain(2);
    let places: Vec<_> = cluster
        .log
        .iter()
        .filter_map(|(_, command)| match command {
            Command::Assign(a) if a.object.task == chain[1] => Some(a.inputs[0].place.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(places, [Place::Here]);
}
