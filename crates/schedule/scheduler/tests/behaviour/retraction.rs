//! Work that is taken back from one worker for another.

use std::time::Duration;

use crate::cluster::*;
use treadle_scheduler::{Event, State};
use treadle_types::{Command, WorkerId};

/// One busy worker with a task queued behind, and a second worker that joins.
fn two() -> (Cluster, Vec<treadle_types::TaskId>) {
    let mut cluster = Cluster::new(1, 1);
    let ids = cluster.submit(vec![reads(&[]); 2]);
    cluster.start_all();
    cluster.join(1, profile(1, 1));
    (cluster, ids)
}

#[test]
fn an_idle_worker_gets_what_another_has_not_started() {
    let (mut cluster, ids) = two();
    assert_eq!(cluster.state(ids[1]), State::Retracting);
    assert_eq!(
        cluster.assigned(ids[1]),
        [WorkerId(0)],
        "nothing is sent before the answer"
    );
    cluster.deliver();
    assert_eq!(cluster.worker_of(ids[1]), WorkerId(1));
    cluster.run();
    assert_eq!(cluster.state(ids[1]), State::Memory);
}

#[test]
fn a_task_that_has_started_stays() {
    let mut cluster = Cluster::new(1, 1);
    let ids = cluster.submit(vec![reads(&[]); 2]);
    cluster.start_all();
    // The first one ends and the second one starts, which the scheduler has not heard of.
    cluster.end(ids[0]);
    cluster.start_all();
    cluster.join(1, profile(1, 1));
    let retracts = cluster.count(|c| matches!(c, Command::Retract(_)));
    cluster.run();
    assert!(retracts <= 2);
    assert_eq!(cluster.state(ids[0]), State::Memory);
    assert_eq!(cluster.state(ids[1]), State::Memory);
    assert_eq!(cluster.assigned(ids[1]), [WorkerId(0)]);
}

#[test]
fn a_task_that_ends_while_it_is_asked_back_is_done() {
    let mut cluster = Cluster::new(1, 1);
    let ids = cluster.submit(vec![reads(&[]); 2]);
    let node = cluster.nodes.get_mut(&WorkerId(0)).expect("it");
    node.threads = 2;
    cluster.start_all();
    cluster.end(ids[0]);
    cluster.end(ids[1]);
    cluster.join(1, profile(1, 1));
    cluster.run();
    for id in ids {
        assert_eq!(cluster.state(id), State::Memory);
        assert_eq!(cluster.assigned(id), [WorkerId(0)]);
    }
}

#[test]
fn what_waits_at_the_scheduler_is_taken_first() {
    let mut cluster = Cluster::new(1, 1);
    cluster.duration = Duration::from_secs(1);
    let known = cluster.one(reads(&[]));
    cluster.run();
    cluster.unwant(&[known]);
    let ids = cluster.submit(vec![reads(&[]); 4]);
    cluster.start_all();
    cluster.join(1, profile(1, 1));
    assert_eq!(cluster.count(|c| matches!(c, Command::Retract(_))), 0);
    let sent = ids
        .iter()
        .filter(|&&id| cluster.state(id) == State::Assigned);
    assert_eq!(sent.count(), 2);
}

#[test]
fn the_tail_of_a_task_that_goes_elsewhere_follows() {
    let mut cluster = Cluster::new(1, 1);
    let first = cluster.one(reads(&[]));
    let chain = cluster.chain(5);
    cluster.start_all();
    assert_eq!(cluster.state(chain[4]), State::Assigned);
    cluster.join(1, profile(1, 1));
    assert_eq!(cluster.state(chain[0]), State::Retracting);
    cluster.deliver();
    for &task in &chain {
        assert_eq!(cluster.worker_of(task), WorkerId(1));
    }
    cluster.run();
    assert_eq!(cluster.state(chain[4]), State::Memory);
    cluster.unwant(&[first, chain[4]]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn a_worker_is_lost_while_it_is_asked() {
    let (mut cluster, ids) = two();
    cluster.lose(0);
    assert_eq!(cluster.worker_of(ids[1]), WorkerId(1));
    cluster.run();
    assert_eq!(cluster.state(ids[0]), State::Memory);
    assert_eq!(cluster.state(ids[1]), State::Memory);
}

#[test]
fn the_one_who_asked_is_lost() {
    let (mut cluster, ids) = two();
    cluster.lose(1);
    cluster.run();
    assert_eq!(cluster.state(ids[1]), State::Memory);
}

#[test]
fn a_task_is_unwanted_while_it_is_asked_back() {
    let (mut cluster, ids) = two();
    cluster.unwant(&ids);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn tiny_leftovers_are_not_worth_the_way() {
    let mut cluster = Cluster::new(1, 1);
    cluster.duration = Duration::from_micros(1);
    let known = cluster.one(reads(&[]));
    cluster.run();
    cluster.unwant(&[known]);
    cluster.submit(vec![reads(&[]); 10]);
    cluster.join(1, profile(1, 1));
    assert_eq!(cluster.count(|c| matches!(c, Command::Retract(_))), 0);
}

#[test]
fn a_tick_finds_work_for_idle_workers() {
    let (mut cluster, _) = two();
    cluster.run();
    let ids = cluster.submit(vec![reads(&[]); 20]);
    cluster.start_all();
    cluster.event(Event::Tick);
    cluster.run();
    for id in ids {
        assert_eq!(cluster.state(id), State::Memory);
    }
}

#[test]
fn a_short_task_does_not_stay_behind_a_long_one() {
    let mut cluster = Cluster::new(2, 1);
    cluster.duration = Duration::from_micros(10);
    let known = cluster.one(reads(&[]));
    cluster.run();
    cluster.unwant(&[known]);
    // Each takes some microseconds, as far as anybody knows: nothing is worth the way back.
    let ids = cluster.submit(vec![reads(&[]); 3]);
    cluster.start_all();
    let behind = |cluster: &Cluster| {
        let of = |worker| {
            let at = |&&id: &&_| cluster.worker_of(id) == WorkerId(worker);
            ids.iter().filter(at).copied().collect::<Vec<_>>()
        };
        [of(0), of(1)].into_iter().find(|ids| ids.len() == 2)
    };
    let [long, short] = behind(&cluster).expect("one waits behind another")[..] else {
        unreachable!()
    };
    let other = ids.iter().find(|&&id| id != long && id != short);
    cluster.end(*other.expect("the third one"));
    cluster.deliver();
    assert_eq!(cluster.count(|c| matches!(c, Command::Retract(_))), 0);
    cluster.tick_after(Duration::from_millis(100));
    assert_eq!(cluster.state(short), State::Retracting);
    cluster.deliver();
    assert_ne!(cluster.worker_of(short), cluster.worker_of(long));
    cluster.run();
    assert_eq!(cluster.state(long), State::Memory);
}
