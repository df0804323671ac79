//! Tasks that are cancelled, or that nobody wants any more.

use crate::cluster::*;
use treadle_scheduler::{Event, Notice, State};
use treadle_types::{ClientId, Command, Report, Returned, TaskId, WorkerId};

fn cancel(cluster: &mut Cluster, client: ClientId, tasks: &[TaskId], force: bool) {
    cluster.event(Event::Cancel {
        client,
        tasks: tasks.to_vec(),
        force,
    });
}

#[test]
fn a_cancelled_task_keeps_its_slot_until_it_has_stopped() {
    let mut cluster = Cluster::new(1, 1);
    cluster.duration = std::time::Duration::from_secs(1);
    let known = cluster.one(reads(&[]));
    cluster.run();
    cluster.unwant(&[known]);
    let task = cluster.one(reads(&[]));
    let next = cluster.one(reads(&[]));
    cluster.start_all();
    assert_eq!(cluster.state(next), State::Ready);
    cancel(&mut cluster, C, &[task], false);
    assert_eq!(cluster.last_notice(task), Some(&Notice::Cancelled));
    assert_eq!(cluster.state(task), State::Forgotten);
    assert_eq!(cluster.state(next), State::Ready, "the slot is taken");
    cluster.end(task);
    cluster.deliver();
    assert_eq!(cluster.state(next), State::Assigned);
}

#[test]
fn a_cancelled_task_that_was_sent_ahead_may_run_and_takes_a_slot() {
    let mut cluster = Cluster::new(1, 1);
    cluster.duration = std::time::Duration::from_secs(1);
    let known = cluster.one(reads(&[]));
    cluster.run();
    cluster.unwant(&[known]);
    let chain = cluster.chain(2);
    cluster.start_all();
    // It has begun when the command to stop it comes.
    cluster.end(chain[0]);
    cluster.start_all();
    cluster.unwant(&chain[1..]);
    let next = cluster.one(reads(&[]));
    cluster.deliver();
    assert_eq!(cluster.state(next), State::Ready, "the slot is taken");
    cluster.end(chain[1]);
    cluster.deliver();
    assert_eq!(cluster.state(next), State::Assigned);
    cluster.run();
    cluster.unwant(&[next]);
    cluster.assert_empty();
}

#[test]
fn a_task_that_was_submitted_again_is_another_attempt() {
    let mut cluster = Cluster::new(1, 2);
    let task = cluster.one(reads(&[]));
    let reader = cluster.one(reads(&[task]));
    cluster.start_all();
    let before = cluster.scheduler.task(task).expect("it").attempt();
    // Somebody else wants its reader, so it stays known and is run again.
    let other = ClientId(1);
    cluster.event(Event::ClientJoined(other));
    cancel(&mut cluster, C, &[reader, task], false);
    assert_eq!(cluster.state(task), State::Forgotten);
    let again = cluster.scheduler.allocate();
    cluster.submit_as(other, &[again], vec![reads(&[])], &[again]);
    let after = cluster.scheduler.task(again).expect("it").attempt();
    assert_eq!(cluster.state(again), State::Assigned, "it waits for no one");
    assert!(again != task || after > before);
    cluster.end(task);
    cluster.run();
    assert_eq!(cluster.state(again), State::Memory);
}

#[test]
fn dependents_are_cancelled_too() {
    let mut cluster = Cluster::new(1, 1);
    let first = cluster.one(reads(&[]));
    let second = cluster.one(reads(&[first]));
    let third = cluster.one(reads(&[second]));
    cancel(&mut cluster, C, &[first], false);
    for task in [first, second, third] {
        assert_eq!(cluster.last_notice(task), Some(&Notice::Cancelled));
    }
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn what_another_client_wants_goes_on() {
    let mut cluster = Cluster::new(1, 1);
    let other = ClientId(1);
    cluster.event(Event::ClientJoined(other));
    let task = cluster.one(reads(&[]));
    cluster.event(Event::Want {
        client: other,
        tasks: vec![task],
    });
    cancel(&mut cluster, C, &[task], false);
    assert_eq!(cluster.last_notice(task), Some(&Notice::Cancelled));
    cluster.run();
    assert_eq!(cluster.state(task), State::Memory);
    let heard = cluster.notices[&(other, task)].last();
    assert!(matches!(heard, Some(Notice::Finished { .. })));
}

#[test]
fn force_cancels_it_for_all() {
    let mut cluster = Cluster::new(1, 1);
    let other = ClientId(1);
    cluster.event(Event::ClientJoined(other));
    let task = cluster.one(reads(&[]));
    cluster.event(Event::Want {
        client: other,
        tasks: vec![task],
    });
    cancel(&mut cluster, C, &[task], true);
    assert_eq!(cluster.notices[&(other, task)], [Notice::Cancelled]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn what_ends_although_it_was_cancelled_is_dropped() {
    let mut cluster = Cluster::new(1, 1);
    let task = cluster.one(reads(&[]));
    cluster.size(task, 10_000);
    cluster.start_all();
    // It ends before it hears that it is cancelled.
    cluster.end(task);
    cancel(&mut cluster, C, &[task], false);
    cluster.deliver();
    assert_eq!(cluster.count(|c| matches!(c, Command::Release(_))), 1);
    cluster.assert_empty();
}

#[test]
fn a_late_value_of_an_earlier_attempt_changes_nothing() {
    let mut cluster = Cluster::new(1, 2);
    let task = cluster.one(reads(&[]));
    cluster.start_all();
    let object = cluster.scheduler.task(task).expect("it").object();
    cancel(&mut cluster, C, &[task], false);
    let again = cluster.one(reads(&[]));
    assert_eq!(again, task, "the id is used again");
    assert_ne!(cluster.scheduler.task(again).expect("it").object(), object);
    cluster.report(
        0,
        Report::Finished {
            object,
            value: Returned {
                nbytes: 5,
                inline: Some(bytes::Bytes::from_static(b"old")),
                kept: false,
                class: bytes::Bytes::new(),
            },
            duration: std::time::Duration::ZERO,
        },
    );
    assert_eq!(cluster.state(again), State::Assigned);
    let node = cluster.nodes.get_mut(&WorkerId(0)).expect("it");
    node.running.retain(|a| a.object != object);
    node.cancelled.clear();
    cluster.run();
    assert_eq!(cluster.state(again), State::Memory);
}

#[test]
fn a_queued_task_that_nobody_wants_is_stopped() {
    let mut cluster = Cluster::new(1, 1);
    let ids = cluster.submit(vec![reads(&[]); 3]);
    cluster.unwant(&ids[1..]);
    assert_eq!(cluster.forgotten.len(), 2);
    cluster.run();
    cluster.unwant(&ids[..1]);
    cluster.assert_empty();
}

#[test]
fn restart_drops_everything_and_keeps_workers() {
    let mut cluster = Cluster::new(2, 1);
    let done = cluster.one(reads(&[]));
    cluster.size(done, 5_000);
    cluster.run();
    let ids = cluster.submit(vec![reads(&[done]); 5]);
    cluster.start_all();
    cluster.event(Event::Restart);
    for &task in ids.iter().chain([&done]) {
        assert_eq!(cluster.last_notice(task), Some(&Notice::Cancelled));
    }
    cluster.run();
    cluster.assert_empty();
    assert_eq!(cluster.scheduler.workers().count(), 2);
    let task = cluster.one(reads(&[]));
    cluster.run();
    assert_eq!(cluster.state(task), State::Memory);
}
