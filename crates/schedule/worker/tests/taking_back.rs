//! Retraction, cancellation, and values that go.

mod support;

use support::*;
use treadle_types::Report;
use treadle_worker::{Effect, Event, Status};

fn retracted(number: u32) -> Effect {
    report(Report::Retracted(object(number)))
}

fn stopped(number: u32) -> Effect {
    report(Report::Stopped(object(number)))
}

#[test]
fn a_task_that_has_not_started_is_retracted() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.assign(task(2, vec![]));
    worker.assign(task(3, vec![at(9, &[7])]));
    assert_eq!(worker.retract(2), [retracted(2)]);
    assert_eq!(worker.retract(3), [retracted(3)]);
    assert_eq!(worker.ran(1, kept(1)), [finished(1, kept(1))]);
    assert_eq!(worker.status(2), None);
}

#[test]
fn a_task_that_runs_is_not() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    let started = [report(Report::Started(object(1)))];
    assert_eq!(worker.retract(1), started);
    worker.event(Event::Seceded(object(1)));
    assert_eq!(worker.retract(1), started);
    assert_eq!(worker.ran(1, kept(1)), [finished(1, kept(1))]);
}

#[test]
fn what_was_reported_is_not_answered_again() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.ran(1, kept(1));
    worker.assign(task(2, vec![]));
    worker.raised(2);
    for number in [1, 2, 3] {
        assert_eq!(worker.retract(number), []);
        assert_eq!(worker.cancel(number), []);
    }
    assert_eq!(worker.status(1), Some(Status::Stored));
    assert_eq!(worker.release(2), []);
}

#[test]
fn who_waits_for_a_task_that_is_taken_back_is_given_back() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    for head in [2, 4] {
        worker.assign(task(head, vec![]));
        worker.assign(task(head + 1, vec![here(head)]));
    }
    assert_eq!(worker.retract(2), [retracted(2), unavailable(3, 2, &[])]);
    assert_eq!(worker.cancel(4), [stopped(4), unavailable(5, 4, &[])]);
    assert_eq!(worker.cancel(5), []);
}

#[test]
fn an_id_comes_back_as_another_attempt() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.cancel(1);
    let mut again = task(1, vec![]);
    again.object.attempt = again.object.attempt.next();
    let object_again = again.object;
    assert_eq!(worker.assign(again), []);
    let effects = worker.ran(1, kept(5));
    assert_eq!(effects[..2], [Effect::Drop(object(1)), stopped(1)]);
    assert_eq!(worker.0.status(object_again), Some(Status::Running));
}

#[test]
fn a_running_task_that_is_cancelled_keeps_its_slot_until_it_ends() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.assign(task(2, vec![here(1)]));
    worker.assign(task(3, vec![]));
    assert_eq!(
        worker.cancel(1),
        [Effect::Interrupt(object(1)), unavailable(2, 1, &[])]
    );
    assert_eq!(worker.cancel(1), []);
    assert_eq!(worker.retract(1), []);
    assert_eq!(worker.0.busy(), 1);
    // Nobody can wait for it any more.
    assert_eq!(
        worker.assign(task(4, vec![here(1)])),
        [unavailable(4, 1, &[])]
    );
    assert_eq!(
        worker.ran(1, kept(5)),
        [Effect::Drop(object(1)), stopped(1), run(3)]
    );
}

#[test]
fn a_cancelled_task_may_raise_or_return_a_small_value() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.cancel(1);
    assert_eq!(worker.raised(1), [stopped(1)]);
    worker.assign(task(2, vec![]));
    worker.cancel(2);
    assert_eq!(worker.ran(2, small(b"x")), [stopped(2)]);
    assert!(worker.0.is_empty());
}

#[test]
fn a_cancelled_task_that_has_seceded_stops_without_a_slot() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.event(Event::Seceded(object(1)));
    worker.assign(task(2, vec![]));
    assert_eq!(worker.cancel(1), [Effect::Interrupt(object(1))]);
    worker.event(Event::Rejoining(object(1)));
    assert_eq!(worker.ran(1, small(b"x")), [stopped(1)]);
    assert_eq!(worker.0.busy(), 1);
}

#[test]
fn a_value_that_a_running_task_reads_can_be_released() {
    let mut worker = Bench::new(1);
    worker.put(1);
    worker.assign(task(2, vec![here(1)]));
    assert_eq!(worker.release(1), [Effect::Drop(object(1))]);
    assert_eq!(worker.ran(2, small(b"x")), [finished(2, small(b"x"))]);
}

#[test]
fn releasing_or_losing_a_value_gives_back_the_tasks_that_have_not_read_it() {
    let mut worker = Bench::new(1);
    worker.put(1);
    worker.put(2);
    worker.assign(task(3, vec![]));
    worker.assign(task(4, vec![here(1)]));
    worker.assign(task(5, vec![here(2)]));
    worker.assign(task(6, vec![here(1), here(2)]));
    assert_eq!(
        worker.release(1),
        [
            Effect::Drop(object(1)),
            unavailable(4, 1, &[]),
            unavailable(6, 1, &[])
        ]
    );
    assert_eq!(
        worker.gone(2),
        [
            Effect::Drop(object(2)),
            report(Report::Gone(object(2))),
            unavailable(5, 2, &[])
        ]
    );
    assert_eq!(worker.gone(2), []);
    assert_eq!(worker.gone(3), []);
    assert_eq!(worker.0.stored(), 0);
}

#[test]
fn a_value_that_is_released_on_its_way_is_dropped_when_it_comes() {
    let mut worker = Bench::new(1);
    worker.assign(task(2, vec![at(1, &[7])]));
    worker.copy(1, &[7]);
    let effects = worker.release(1);
    assert_eq!(effects, [copy_failed(1, &[]), unavailable(2, 1, &[])]);
    assert_eq!(worker.fetched(1, 7, 10), [Effect::Drop(object(1))]);
    assert!(worker.0.is_empty());
}

#[test]
fn a_value_that_is_released_before_its_turn_is_not_fetched() {
    let mut worker = Bench::new(1);
    for number in 1..=6 {
        worker.copy(number, &[7]);
    }
    assert_eq!(worker.release(6), [copy_failed(6, &[])]);
    assert_eq!(worker.fetched(1, 7, 10), [stored(1, 10), fetch(5, 7)]);
    assert_eq!(worker.fetched(2, 7, 10), [stored(2, 10)]);
}

#[test]
fn a_task_that_has_no_value_yet_cannot_be_released() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.assign(task(2, vec![]));
    assert_eq!(worker.release(1), []);
    assert_eq!(worker.release(2), []);
    assert_eq!(worker.ran(1, kept(1)), [finished(1, kept(1)), run(2)]);
}

#[test]
fn many_retractions_leave_nothing_behind_in_the_queue() {
    let mut worker = Bench::new(1);
    worker.assign(task(0, vec![]));
    for round in 0..50 {
        for number in 1..20 {
            let mut assignment = task(number, vec![]);
            assignment.object.attempt.0 += round;
            worker.assign(assignment);
        }
        for number in 1..20 {
            let mut id = object(number);
            id.attempt.0 += round;
            let retract = treadle_types::Command::Retract(id);
            assert_eq!(
                worker.event(Event::Command(retract)),
                [report(Report::Retracted(id))]
            );
        }
    }
    assert_eq!(worker.ran(0, kept(1)), [finished(0, kept(1))]);
    assert_eq!(worker.0.stored(), 1);
}
