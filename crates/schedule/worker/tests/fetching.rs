//! Inputs and copies from other workers.

mod support;

use support::*;
use treadle_types::{Command, Report, WorkerId};
use treadle_worker::{Config, Effect, Event, Status};

#[test]
fn an_input_is_fetched_kept_and_reported_before_the_task_runs() {
    let mut worker = Bench::new(1);
    assert_eq!(worker.assign(task(2, vec![at(1, &[7])])), [fetch(1, 7)]);
    assert_eq!(worker.status(2), Some(Status::Waiting));
    assert_eq!(worker.fetched(1, 7, 12), [stored(1, 12), run_with(2, &[1])]);
    assert_eq!(worker.status(1), Some(Status::Stored));
}

#[test]
fn a_value_that_is_here_is_not_fetched_again() {
    let mut worker = Bench::new(1);
    worker.put(1);
    assert_eq!(
        worker.assign(task(2, vec![at(1, &[7])])),
        [run_with(2, &[1])]
    );
}

#[test]
fn tasks_share_a_fetch() {
    let mut worker = Bench::new(2);
    assert_eq!(worker.assign(task(2, vec![at(1, &[7])])), [fetch(1, 7)]);
    assert_eq!(worker.assign(task(3, vec![at(1, &[8])])), []);
    assert_eq!(worker.assign(task(4, vec![here(1)])), []);
    assert_eq!(
        worker.fetched(1, 7, 12),
        [stored(1, 12), run_with(2, &[1]), run_with(3, &[1])]
    );
    assert_eq!(worker.status(4), Some(Status::Ready));
}

#[test]
fn holders_are_asked_one_after_the_other() {
    let mut worker = Bench::new(1);
    assert_eq!(worker.assign(task(2, vec![at(1, &[7, 8])])), [fetch(1, 7)]);
    assert_eq!(worker.not_fetched(1, 7), [fetch(1, 8)]);
    assert_eq!(worker.fetched(1, 8, 12), [stored(1, 12), run_with(2, &[1])]);
}

#[test]
fn no_room_here_speaks_against_no_holder() {
    let mut worker = Bench::new(1);
    let no_room = |from| Event::NoRoom {
        object: object(1),
        from: WorkerId(from),
    };
    worker.assign(task(2, vec![at(1, &[7, 8, 9])]));
    assert_eq!(worker.not_fetched(1, 7), [fetch(1, 8)]);
    // Those that were asked before did not have it; the last one has, and did its part.
    assert_eq!(worker.event(no_room(8)), [unavailable(2, 1, &[7])]);
    assert!(worker.0.is_empty());
    // There may be room for it later.
    worker.assign(task(3, vec![at(1, &[8])]));
    assert_eq!(worker.fetched(1, 8, 12), [stored(1, 12), run_with(3, &[1])]);
    // A copy that was asked for will not be, and a value that nobody wants any more is forgotten.
    assert_eq!(worker.copy(4, &[8]), [fetch(4, 8)]);
    let no_copy = Effect::Report(Report::CopyFailed {
        object: object(4),
        tried: Default::default(),
    });
    let lost = Event::NoRoom {
        object: object(4),
        from: WorkerId(8),
    };
    assert_eq!(worker.event(lost), [no_copy]);
    assert!(worker.0.fetching() == (0, 0));
}

#[test]
fn when_nobody_has_it_every_task_is_given_back() {
    let mut worker = Bench::new(1);
    worker.assign(task(2, vec![at(1, &[7])]));
    worker.assign(task(3, vec![at(1, &[8]), at(4, &[9])]));
    worker.assign(task(5, vec![here(3)]));
    assert_eq!(worker.not_fetched(1, 7), [fetch(1, 8)]);
    assert_eq!(
        worker.not_fetched(1, 8),
        [
            unavailable(2, 1, &[7, 8]),
            unavailable(3, 1, &[7, 8]),
            unavailable(5, 3, &[]),
        ]
    );
    // What the third task wanted, too, is under way, and nobody waits for it.
    assert_eq!(worker.fetched(4, 9, 1), [Effect::Drop(object(4))]);
    assert!(worker.0.is_empty());
}

#[test]
fn an_input_that_should_be_here_and_is_not_gives_the_task_back() {
    let mut worker = Bench::new(1);
    assert_eq!(
        worker.assign(task(2, vec![at(4, &[9]), here(1)])),
        [unavailable(2, 1, &[])]
    );
    assert_eq!(
        worker.assign(task(3, vec![at(1, &[])])),
        [unavailable(3, 1, &[])]
    );
    assert!(worker.0.is_empty());
}

#[test]
fn a_peer_is_asked_for_a_few_values_at_a_time_the_most_urgent_first() {
    let mut worker = Bench::with(Config {
        fetches_per_peer: 2,
        ..Config::default()
    });
    assert_eq!(worker.assign(task(10, vec![at(1, &[7])])), [fetch(1, 7)]);
    assert_eq!(worker.assign(task(11, vec![at(2, &[7])])), [fetch(2, 7)]);
    assert_eq!(worker.assign(task(13, vec![at(3, &[7])])), []);
    assert_eq!(worker.assign(task(12, vec![at(4, &[7])])), []);
    assert_eq!(worker.assign(task(14, vec![at(5, &[8])])), [fetch(5, 8)]);
    // A copy waits for the tasks, unless one of them reads it.
    assert_eq!(worker.copy(6, &[7]), []);
    assert_eq!(worker.copy(9, &[7]), []);
    assert_eq!(worker.assign(task(8, vec![at(9, &[7])])), []);
    assert_eq!(worker.0.fetching(), (3, 30));
    assert_eq!(
        worker.fetched(2, 7, 10),
        [stored(2, 10), fetch(9, 7), run_with(11, &[2])]
    );
    assert_eq!(worker.fetched(9, 7, 10)[1..], [fetch(4, 7)]);
    assert_eq!(worker.fetched(4, 7, 10)[1..], [fetch(3, 7)]);
    assert_eq!(worker.fetched(3, 7, 10)[1..], [fetch(6, 7)]);
}

#[test]
fn of_several_holders_the_one_that_does_least_is_asked() {
    let mut worker = Bench::new(1);
    assert_eq!(worker.assign(task(10, vec![at(1, &[7])])), [fetch(1, 7)]);
    assert_eq!(worker.assign(task(11, vec![at(2, &[7, 8])])), [fetch(2, 8)]);
}

#[test]
fn bytes_under_way_are_bounded_and_a_larger_value_travels_alone() {
    let mut worker = Bench::with(Config {
        fetch_bytes: 100,
        ..Config::default()
    });
    worker.assign(task(10, vec![sized(1, &[7], 60)]));
    worker.assign(task(11, vec![sized(2, &[8], 500)]));
    worker.assign(task(12, vec![sized(3, &[9], 40)]));
    // The third would fit, but nothing overtakes the second.
    assert_eq!(worker.0.fetching(), (1, 60));
    worker.fetched(1, 7, 60);
    assert_eq!(worker.0.fetching(), (1, 500));
    worker.fetched(2, 8, 500);
    assert_eq!(worker.0.fetching(), (1, 40));
}

#[test]
fn a_task_that_is_taken_back_takes_its_fetches_with_it() {
    let mut worker = Bench::with(Config {
        fetches_per_peer: 1,
        ..Config::default()
    });
    worker.assign(task(10, vec![at(1, &[7]), at(2, &[7]), at(3, &[7])]));
    worker.assign(task(11, vec![at(3, &[7])]));
    worker.retract(10);
    assert_eq!(worker.status(2), None);
    // The one that has begun goes on, and is dropped: nobody waits for it.
    assert_eq!(
        worker.fetched(1, 7, 10),
        [Effect::Drop(object(1)), fetch(3, 7)]
    );
}

#[test]
fn a_fetch_that_nobody_waited_for_is_taken_over_by_the_next_task() {
    let mut worker = Bench::new(1);
    worker.assign(task(10, vec![at(1, &[7])]));
    worker.cancel(10);
    assert_eq!(worker.assign(task(11, vec![at(1, &[7])])), []);
    assert_eq!(
        worker.fetched(1, 7, 10),
        [stored(1, 10), run_with(11, &[1])]
    );
}

#[test]
fn a_fetch_that_nobody_waits_for_is_not_tried_elsewhere() {
    let mut worker = Bench::new(1);
    worker.assign(task(10, vec![at(1, &[7, 8])]));
    worker.cancel(10);
    assert_eq!(worker.not_fetched(1, 7), []);
    assert!(worker.0.is_empty());
}

#[test]
fn a_copy_is_made_and_reported_once() {
    let mut worker = Bench::new(1);
    assert_eq!(worker.copy(1, &[7]), [fetch(1, 7)]);
    assert_eq!(worker.assign(task(2, vec![here(1)])), []);
    assert_eq!(worker.fetched(1, 7, 12), [stored(1, 12), run_with(2, &[1])]);
    // It was said already, and the scheduler has asked before it heard.
    assert_eq!(worker.copy(1, &[7]), []);
}

#[test]
fn a_copy_that_cannot_be_made_is_reported() {
    let mut worker = Bench::new(1);
    assert_eq!(worker.copy(1, &[7]), [fetch(1, 7)]);
    assert_eq!(worker.not_fetched(1, 7), [copy_failed(1, &[7])]);
    assert_eq!(worker.copy(1, &[]), [copy_failed(1, &[])]);
    assert!(worker.0.is_empty());
}

#[test]
fn a_copy_of_what_is_made_here_is_answered_when_that_ends() {
    let mut worker = Bench::new(1);
    worker.assign(task(1, vec![]));
    assert_eq!(worker.copy(1, &[7]), []);
    assert_eq!(worker.ran(1, kept(9)), [finished(1, kept(9)), stored(1, 9)]);
    worker.assign(task(2, vec![]));
    worker.copy(2, &[7]);
    assert_eq!(worker.raised(2)[1..], [copy_failed(2, &[])]);
    worker.assign(task(3, vec![]));
    worker.copy(3, &[7]);
    assert_eq!(worker.cancel(3)[1..], [copy_failed(3, &[])]);
    assert_eq!(worker.copy(3, &[7]), [copy_failed(3, &[])]);
}

#[test]
fn a_value_that_a_client_puts_here_serves_those_that_wait_for_it() {
    let mut worker = Bench::with(Config {
        threads: 3,
        fetches_per_peer: 1,
        ..Config::default()
    });
    worker.assign(task(11, vec![at(1, &[7])]));
    worker.assign(task(12, vec![at(2, &[7])]));
    let put = |number| Event::Put {
        object: object(number),
        nbytes: 10,
    };
    // One waits for its turn, the other is under way.
    assert_eq!(worker.event(put(2)), [stored(2, 10), run_with(12, &[2])]);
    assert_eq!(worker.event(put(1)), []);
    assert_eq!(
        worker.not_fetched(1, 7),
        [stored(1, 10), run_with(11, &[1])]
    );
    // The scheduler has heard of it.
    assert_eq!(worker.event(put(1)), []);
    worker.copy(3, &[7]);
    worker.event(put(3));
    assert_eq!(
        worker.release(3),
        [Effect::Drop(object(3)), copy_failed(3, &[])]
    );
    assert_eq!(worker.not_fetched(3, 7), []);
    assert_eq!(worker.status(3), None);
}

#[test]
fn a_long_chain_is_given_back_without_deep_recursion() {
    let mut worker = treadle_worker::Worker::new(Config::default());
    let mut effects = treadle_worker::Effects::default();
    for number in 1..200_000 {
        let input = if number == 1 {
            at(0, &[7])
        } else {
            here(number - 1)
        };
        let assign = Event::Command(Command::Assign(task(number, vec![input])));
        worker
            .handle(assign, &mut effects)
            .expect("it can be assigned");
    }
    let failed = Event::Fetched {
        object: object(0),
        from: treadle_types::WorkerId(7),
        nbytes: None,
    };
    worker
        .handle(failed, &mut effects)
        .expect("the fetch can fail");
    assert!(worker.is_empty());
    assert_eq!(effects.0.len(), 200_000);
}

#[test]
fn what_its_holder_cannot_serialise_is_not_asked_of_others_and_gives_its_readers_back() {
    let mut worker = Bench::new(1);
    worker.assign(task(2, vec![at(1, &[7, 8])]));
    worker.assign(task(3, vec![at(1, &[7]), at(4, &[9])]));
    worker.assign(task(5, vec![here(3)]));
    assert_eq!(worker.copy(1, &[7]), []);
    assert_eq!(
        worker.immovable(1, 7),
        [
            report(Report::NotCopyable(object(1))),
            immovable(2, 1),
            immovable(3, 1),
            unavailable(5, 3, &[]),
        ]
    );
    // What the second task wanted, too, is under way, and nobody waits for it.
    assert_eq!(worker.immovable(4, 9), []);
    assert!(worker.0.is_empty());
}

#[test]
fn a_value_that_a_client_brought_meanwhile_needs_no_holder_that_can_serialise_it() {
    let mut worker = Bench::new(1);
    worker.assign(task(2, vec![at(1, &[7])]));
    let put = Event::Put {
        object: object(1),
        nbytes: 10,
    };
    assert_eq!(worker.event(put), []);
    assert_eq!(worker.immovable(1, 7), [stored(1, 10), run_with(2, &[1])]);
}
