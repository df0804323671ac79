//! Slots: what runs, in which order, and what is said when it ends.

mod support;

use bytes::Bytes;
use support::*;
use treadle_types::{Priority, Report};
use treadle_worker::{Effect, Event, Outcome, Status, WorkerError};

#[test]
fn a_task_without_inputs_runs_at_once_and_is_reported() {
    let mut worker = Bench::new(1);
    assert_eq!(worker.assign(task(1, vec![])), [run(1)]);
    assert_eq!(worker.status(1), Some(Status::Running));
    assert_eq!(worker.ran(1, small(b"x")), [finished(1, small(b"x"))]);
    assert!(worker.0.is_empty());
}

#[test]
fn a_value_that_is_kept_stays_until_it_is_released() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    assert_eq!(worker.ran(1, kept(9)), [finished(1, kept(9))]);
    assert_eq!(worker.status(1), Some(Status::Stored));
    assert_eq!(worker.release(1), [Effect::Drop(object(1))]);
    assert!(worker.0.is_empty());
}

#[test]
fn no_more_tasks_run_than_there_are_slots() {
    let mut worker = Bench::new(2);
    assert_eq!(worker.assign(task(1, vec![])), [run(1)]);
    assert_eq!(worker.assign(task(2, vec![])), [run(2)]);
    assert_eq!(worker.assign(task(3, vec![])), []);
    assert_eq!((worker.0.busy(), worker.0.ready()), (2, 1));
    assert_eq!(worker.ran(2, kept(1)), [finished(2, kept(1)), run(3)]);
}

#[test]
fn the_user_s_priority_goes_before_the_submission_and_the_rank() {
    let mut worker = Bench::new(1);
    worker.assign(task(0, vec![]));
    let order = [(-5, 9, 9), (0, 1, 7), (0, 2, 1), (0, 2, 3), (4, 0, 0)];
    // Not in this order.
    for index in [3, 1, 4, 0, 2] {
        let (user, submission, rank) = order[index];
        let mut assignment = task(index as u32 + 1, vec![]);
        assignment.priority = Priority {
            user,
            submission,
            rank,
        };
        assert_eq!(worker.assign(assignment), []);
    }
    for number in 0..5 {
        let effects = worker.ran(number, kept(1));
        assert_eq!(effects[1], run(number + 1));
    }
}

#[test]
fn a_dependent_starts_when_its_input_is_made_here() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    assert_eq!(worker.assign(task(2, vec![here(1)])), []);
    assert_eq!(worker.assign(task(3, vec![here(1), here(2)])), []);
    assert_eq!(worker.0.waiting(), 2);
    assert_eq!(
        worker.ran(1, kept(9)),
        [finished(1, kept(9)), run_with(2, &[1])].map(|effect| keeping(effect, 2))
    );
    assert_eq!(
        worker.ran(2, kept(9)),
        [finished(2, kept(9)), run_with(3, &[1, 2])]
    );
}

/// The same effect; the run of `number` keeps its value.
fn keeping(effect: Effect, number: u32) -> Effect {
    match effect {
        Effect::Run(mut run) if run.object == object(number) => {
            run.keep = true;
            Effect::Run(run)
        }
        effect => effect,
    }
}

#[test]
fn a_dependent_reads_a_small_value_from_the_report_if_it_was_not_kept() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    // It is known too late for the value to be kept.
    worker.assign(task(2, vec![here(1)]));
    let effects = worker.ran(1, small(b"x"));
    assert_eq!(effects[0], finished(1, small(b"x")));
    let Effect::Run(run) = &effects[1] else {
        panic!("{effects:?}")
    };
    assert_eq!(run.inputs, [(object(1), Some(Bytes::from_static(b"x")))]);
    assert_eq!(worker.status(1), None);
}

#[test]
fn inputs_are_in_the_order_of_the_recipe() {
    let mut worker = Bench::new(1);
    worker.put(5);
    let effects = worker.assign(task(
        9,
        vec![inline(7, b"seven"), here(5), inline(3, b"three")],
    ));
    let Effect::Run(run) = &effects[0] else {
        panic!("{effects:?}")
    };
    let seven = Some(Bytes::from_static(b"seven"));
    let three = Some(Bytes::from_static(b"three"));
    assert_eq!(
        run.inputs,
        [(object(7), seven), (object(5), None), (object(3), three)]
    );
}

#[test]
fn a_task_that_raised_is_reported_and_its_dependents_are_given_back() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.assign(task(2, vec![here(1)]));
    worker.assign(task(3, vec![here(2)]));
    worker.assign(task(4, vec![]));
    let failed = report(Report::Failed {
        object: object(1),
        error: Bytes::from_static(b"error"),
        duration: TIME,
    });
    assert_eq!(
        worker.raised(1),
        [
            failed,
            unavailable(2, 1, &[]),
            unavailable(3, 2, &[]),
            run(4)
        ]
    );
}

#[test]
fn a_task_whose_input_cannot_be_read_is_given_back_after_the_input() {
    let mut worker = Bench::new(1);
    worker.put(1);
    worker.assign(task(2, vec![here(1)]));
    worker.assign(task(3, vec![here(1)]));
    assert_eq!(
        worker.ended(2, Outcome::Missing(object(1))),
        [
            Effect::Drop(object(1)),
            report(Report::Gone(object(1))),
            unavailable(3, 1, &[]),
            unavailable(2, 1, &[]),
        ]
    );
    assert!(worker.0.is_empty());
}

#[test]
fn a_task_that_secedes_gives_its_slot_away_and_gets_the_next_one_back() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.assign(task(2, vec![]));
    worker.assign(task(3, vec![]));
    assert_eq!(
        worker.event(Event::Seceded(object(1))),
        [report(Report::Seceded(object(1))), run(2)]
    );
    assert_eq!(worker.event(Event::Rejoining(object(1))), []);
    assert_eq!(worker.status(1), Some(Status::Rejoining));
    assert_eq!(
        worker.ran(2, kept(1)),
        [
            finished(2, kept(1)),
            Effect::Resume(object(1)),
            report(Report::Rejoined(object(1)))
        ]
    );
    assert_eq!(worker.ran(1, kept(1)), [finished(1, kept(1)), run(3)]);
}

#[test]
fn a_task_that_has_seceded_may_end_without_a_slot() {
    let mut worker = Bench::new(1);
    for number in 1..=2 {
        worker.assign(task(number, vec![]));
        worker.event(Event::Seceded(object(number)));
    }
    worker.assign(task(3, vec![]));
    worker.event(Event::Rejoining(object(2)));
    assert_eq!(worker.ran(1, kept(1)), [finished(1, kept(1))]);
    // It was told to give up while it waited for its slot.
    assert_eq!(worker.ran(2, kept(1)), [finished(2, kept(1))]);
    assert_eq!(worker.0.busy(), 1);
    assert_eq!(worker.ran(3, kept(1)), [finished(3, kept(1))]);
    assert_eq!(worker.0.busy(), 0);
}

#[test]
fn a_paused_worker_runs_one_task_at_a_time() {
    let mut worker = Bench::new(2);
    assert_eq!(worker.event(Event::Paused(true)), []);
    assert_eq!(worker.assign(task(1, vec![])), [run(1)]);
    assert_eq!(worker.assign(task(2, vec![])), []);
    assert_eq!(worker.ran(1, kept(1)), [finished(1, kept(1)), run(2)]);
    assert_eq!(worker.assign(task(3, vec![])), []);
    assert_eq!(worker.event(Event::Paused(false)), [run(3)]);
}

#[test]
fn a_held_worker_starts_no_task() {
    let mut worker = Bench::new(2);
    assert_eq!(worker.assign(task(1, vec![])), [run(1)]);
    assert_eq!(worker.event(Event::Held(true)), []);
    assert_eq!(worker.assign(task(2, vec![])), []);
    assert_eq!(worker.ran(1, kept(1)), [finished(1, kept(1))]);
    assert_eq!(worker.event(Event::Held(false)), [run(2)]);
}

#[test]
fn a_held_worker_lets_a_seceded_task_go_on() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.event(Event::Seceded(object(1)));
    worker.event(Event::Held(true));
    let effects = worker.event(Event::Rejoining(object(1)));
    assert_eq!(effects[0], Effect::Resume(object(1)));
}

#[test]
fn a_paused_worker_runs_a_task_that_a_seceded_one_waits_for() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.event(Event::Paused(true));
    worker.assign(task(2, vec![]));
    assert_eq!(
        worker.event(Event::Seceded(object(1))),
        [report(Report::Seceded(object(1))), run(2)]
    );
    worker.event(Event::Rejoining(object(1)));
    let effects = worker.ran(2, kept(1));
    assert_eq!(effects[1], Effect::Resume(object(1)));
}

#[test]
fn what_cannot_happen_is_refused_and_changes_nothing() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    assert_eq!(
        worker.attempt(Event::Command(treadle_types::Command::Assign(task(
            1,
            vec![]
        )))),
        Err(WorkerError::AssignedTwice {
            object: object(1),
            status: Status::Running,
        })
    );
    let ran = |number, value| Event::Ran {
        object: object(number),
        outcome: Outcome::Returned(value),
        duration: TIME,
    };
    let nowhere = treadle_types::Returned {
        inline: None,
        ..small(b"x")
    };
    for event in [
        ran(2, kept(1)),
        ran(1, nowhere),
        Event::Seceded(object(2)),
        Event::Rejoining(object(1)),
        Event::Put {
            object: object(1),
            nbytes: 1,
        },
        Event::Fetched {
            object: object(1),
            from: treadle_types::WorkerId(3),
            nbytes: Some(1),
        },
    ] {
        assert!(worker.attempt(event.clone()).is_err(), "{event:?}");
    }
    assert_eq!(worker.ran(1, kept(1)), [finished(1, kept(1))]);
}

#[test]
fn a_task_that_asks_to_run_elsewhere_takes_those_with_it_that_wait_for_its_value() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    worker.assign(task(2, vec![here(1)]));
    assert_eq!(
        worker.ended(1, Outcome::GivenBack),
        [report(Report::GivenBack(object(1))), unavailable(2, 1, &[])]
    );
    assert!(worker.0.is_empty());
    // Where it may come back to.
    worker.assign(task(3, vec![]));
    worker.cancel(3);
    assert_eq!(
        worker.ended(3, Outcome::GivenBack),
        [report(Report::Stopped(object(3)))]
    );
}
