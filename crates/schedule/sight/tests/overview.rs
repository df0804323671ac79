//! What an overview says of workers, errors and shuffles: whole runs, made up.

mod joined;

use joined::joined;
use treadle_sight::{Event, Shuffle, Sight, Snapshot, WorkerState};
use treadle_types::WorkerId;

const SECOND: u64 = 1_000_000_000;

/// A cluster of workers of two threads and 4 GB each.
fn cluster(workers: u32) -> Sight {
    let mut sight = Sight::new(1 << 20);
    for worker in 1..=workers {
        sight.handle(&joined(worker, 2, 4_000), 0).unwrap();
    }
    sight
}

/// All of these have so much memory; each tenth one is paused.
fn looked_at(sight: &mut Sight, workers: impl Iterator<Item = u32>) {
    let state = |worker: u32| WorkerState {
        worker,
        status: u8::from(worker.is_multiple_of(10)),
        managed: 10,
        process: 1_000,
        spilled: 100,
        ..WorkerState::default()
    };
    let snapshot = Snapshot {
        workers: workers.map(state).collect(),
        ..Snapshot::default()
    };
    sight.handle(&Event::Snapshot(snapshot), SECOND).unwrap();
}

fn lost(sight: &mut Sight, worker: u32) {
    let event = Event::Lost {
        worker: WorkerId(worker),
        cause: "it was killed".into(),
        drained: worker.is_multiple_of(2),
    };
    sight.handle(&event, 2 * SECOND).unwrap();
}

#[test]
fn totals_are_of_those_that_are_there() {
    let mut sight = cluster(3);
    looked_at(&mut sight, 1..=3);
    lost(&mut sight, 2);
    lost(&mut sight, 3);
    let view = sight.overview(0, true);
    assert_eq!(view.workers.len(), 3);
    assert_eq!((view.totals.workers, view.totals.gone), (1, 2));
    assert_eq!((view.totals.threads, view.totals.paused), (2, 0));
    assert_eq!(view.totals.memory_limit, Some(4_000));
    assert_eq!(view.totals.process, Some(1_000));
    assert_eq!(view.totals.managed, Some(10));
    assert_eq!(view.totals.spilled, Some(100));
}

#[test]
fn totals_are_of_all_though_not_all_have_a_row() {
    let mut sight = cluster(600);
    looked_at(&mut sight, 1..=600);
    for worker in 1..=20 {
        lost(&mut sight, worker);
    }
    let view = sight.overview(0, true);
    assert_eq!((view.workers.len(), view.more_workers), (500, 100));
    assert_eq!((view.totals.workers, view.totals.gone), (580, 20));
    assert_eq!((view.totals.threads, view.totals.paused), (1_160, 58));
    assert_eq!(view.totals.memory_limit, Some(580 * 4_000));
    assert_eq!(view.totals.process, Some(580_000));
    assert_eq!(view.totals.spilled, Some(58_000));
}

#[test]
fn a_worker_that_has_no_row_is_found_by_its_text_or_its_number() {
    let mut sight = cluster(600);
    looked_at(&mut sight, 1..=600);
    lost(&mut sight, 1);
    let shown = sight.overview(0, true).workers;
    assert!(shown.iter().all(|row| row.id != 577 && row.id != 1));
    let found = |find: &str, worker| {
        let rows = sight.workers(find, worker, 0, true);
        let ids: Vec<u32> = rows.workers.iter().map(|row| row.id).collect();
        (ids, rows.more_workers)
    };
    assert_eq!(found("W577", None), (vec![577], 0));
    assert_eq!(found("gone", None), (vec![1], 0));
    assert_eq!(found("", Some(577)), (vec![577], 0));
    assert_eq!(found("w577", Some(576)), (vec![], 0));
    assert_eq!(found("no such worker", None), (vec![], 0));
    let (all, more) = found("", None);
    assert_eq!((all.len(), more), (500, 100));
    // Those with a row in the overview are as they are there.
    let same = sight.workers("w12", Some(12), 0, true).workers;
    assert_eq!(Some(&same[0]), shown.iter().find(|row| row.id == 12));
}

#[test]
fn what_no_worker_has_said_is_not_known() {
    let mut sight = cluster(2);
    let view = sight.overview(0, true);
    assert_eq!((view.totals.process, view.totals.spilled), (None, None));
    assert_eq!(view.totals.memory_limit, Some(8_000));
    sight.handle(&joined(3, 4, 0), 0).unwrap();
    let view = sight.overview(0, true);
    assert_eq!((view.totals.threads, view.totals.memory_limit), (8, None));
}

#[test]
fn a_shuffle_has_a_row_with_its_end_and_one_that_runs_again_another() {
    let mut sight = cluster(1);
    let shuffle = |number: u64, state: u8| Shuffle {
        number,
        name: "s".into(),
        state,
        inputs: 4,
        transferred: 4,
        bytes: 1_000_000_000,
        partitions: 10,
        largest: if state < 3 { 0 } else { 900_000_000 },
        quantiles: vec![(50, 10)],
        bars: vec![10, 900_000_000],
        bar: 5,
        ..Shuffle::default()
    };
    for (number, state) in [(1, 1), (1, 4), (2, 1)] {
        sight
            .handle(&Event::Shuffle(shuffle(number, state)), SECOND)
            .unwrap();
    }
    let view = sight.overview(0, true);
    let rows: Vec<_> = view
        .shuffles
        .iter()
        .map(|one| (one.number, one.state))
        .collect();
    assert_eq!(rows, [(2, "transfer"), (1, "finished")]);
    assert_eq!((view.shuffles[1].bars.len(), view.shuffles[1].bar), (2, 5));
    // It ended before anybody looked, and is skewed.
    let verdict = &view.verdicts[0];
    assert_eq!(verdict.rule, "skewed-shuffle");
    assert_eq!(verdict.place.shuffle.as_deref(), Some("s"));
    for number in 3..=120 {
        sight
            .handle(&Event::Shuffle(shuffle(number, 6)), SECOND)
            .unwrap();
    }
    sight.check();
    let view = sight.overview(0, true);
    assert_eq!((view.shuffles.len(), view.more_shuffles), (100, 20));
}
