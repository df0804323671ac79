//! What a cluster did, and which verdict follows: whole runs, made up.

mod joined;

use joined::joined;
use treadle_sight::history::{Blocks, MAGIC, put_block};
use treadle_sight::{
    Batch, Beside, Event, Head, Kind, Record, Sight, Snapshot, Sparse, WorkerState,
};
use treadle_types::WorkerId;

const MEMORY: u64 = 1 << 30;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A batch with a name for group 1.
fn named(name: &str) -> Beside<'_> {
    Beside {
        names: vec![(1, name)],
        ..Beside::default()
    }
}

/// A cluster of workers of so many threads each.
fn cluster(workers: u32, threads: u32) -> Sight {
    let mut sight = Sight::new(1 << 20);
    for worker in 1..=workers {
        sight.handle(&joined(worker, threads, MEMORY), 0).unwrap();
    }
    sight
}

/// A worker ran tasks of a group one after the other, each for so long.
fn ran(sight: &mut Sight, worker: u32, times: impl Iterator<Item = u64>, processor: u64) {
    let mut now = 0;
    let records: Vec<Record> = times
        .map(|time| {
            let began = now;
            now += time;
            Record {
                began,
                read: began,
                computed: now,
                ended: now,
                object: 1 << 32,
                bytes: 8,
                group: 1,
                lane: 0,
                kind: Kind::Task,
                failed: false,
            }
        })
        .collect();
    let head = Head {
        processor,
        ..Head::default()
    };
    let bytes = Batch::encode(head, &named("inc"), records.into_iter());
    let event = Event::Batch {
        worker: WorkerId(worker),
        bytes: &bytes,
    };
    sight.handle(&event, now.max(60 * SECOND)).unwrap();
}

fn rules(sight: &Sight) -> Vec<&'static str> {
    let overview = sight.overview(0, false);
    overview.verdicts.iter().map(|one| one.rule).collect()
}

#[test]
fn a_worker_that_takes_longer_for_all_tasks_is_slow() {
    let mut sight = cluster(3, 1);
    ran(&mut sight, 1, (0..100).map(|n| (20 + n % 30) * MS), 0);
    ran(&mut sight, 2, (0..100).map(|n| (20 + n % 30) * MS), 0);
    ran(&mut sight, 3, (0..40).map(|n| (60 + 3 * (n % 30)) * MS), 0);
    assert_eq!(rules(&sight), ["slow-worker"]);
}

#[test]
fn a_worker_that_had_longer_tasks_is_not() {
    let mut sight = cluster(2, 1);
    // Of the same function, with other arguments: ten of them took a second.
    ran(&mut sight, 1, (0..200).map(|_| 10 * MS), 0);
    let some = (0..200).map(|n| if n % 20 == 0 { SECOND } else { 10 * MS });
    ran(&mut sight, 2, some, 0);
    let spoken = rules(&sight);
    assert!(!spoken.contains(&"slow-worker"), "{spoken:?}");
}

#[test]
fn few_that_run_while_many_wait_are_the_critical_path() {
    let critical = |assigned: u64| {
        let mut sight = cluster(2, 2);
        for second in 1..=10 {
            let worker = |worker| WorkerState {
                worker,
                tasks: assigned / 2,
                ..WorkerState::default()
            };
            let snapshot = Snapshot {
                tasks: [200, 0, assigned, 0, 0],
                workers: vec![worker(1), worker(2)],
            };
            let event = Event::Snapshot(snapshot);
            sight.handle(&event, second * SECOND).unwrap();
        }
        rules(&sight).contains(&"critical-path")
    };
    // One that runs, and the next of its chain, which is sent ahead.
    assert!(critical(1));
    assert!(critical(2));
    assert!(!critical(3));
    assert!(!critical(4));
}

#[test]
fn busy_threads_that_use_one_processor_hold_the_lock() {
    let held = |processors: u64| {
        let mut sight = cluster(1, 2);
        for half in 1..=120_u64 {
            let now = half * SECOND / 2;
            let head = Head {
                processor: 1 + processors * half * SECOND / 2 / 100,
                ..Head::default()
            };
            let record = |lane| Record {
                began: now - SECOND / 2,
                read: now - SECOND / 2,
                computed: now,
                ended: now,
                object: 1 << 32,
                bytes: 8,
                group: 1,
                lane,
                kind: Kind::Task,
                failed: false,
            };
            let records = [record(0), record(1)].into_iter();
            let bytes = Batch::encode(head, &named("spin"), records);
            let event = Event::Batch {
                worker: WorkerId(1),
                bytes: &bytes,
            };
            sight.handle(&event, now).unwrap();
        }
        rules(&sight).contains(&"lock-held")
    };
    assert!(held(102));
    assert!(!held(0));
    assert!(!held(60));
    assert!(!held(185));
}

#[test]
fn first_tasks_that_import_are_neither_skew_nor_a_slow_worker() {
    let mut sight = cluster(2, 1);
    // Each worker's first one imports what the others need.
    for (worker, import) in [(1, 4), (2, 9)] {
        let first = core::iter::once(import * SECOND);
        let others = (0..40).map(move |n| (20 + 10 * (n % 3) + 2 * u64::from(worker)) * MS);
        ran(&mut sight, worker, first.chain(others), 0);
    }
    assert_eq!(rules(&sight), [""; 0]);
}

#[test]
fn one_task_that_takes_far_longer_is_skew() {
    let mut sight = cluster(2, 1);
    ran(&mut sight, 1, (0..40).map(|_| 50 * MS), 0);
    let times = (0..40).map(|n| if n == 7 { 4 * SECOND } else { 50 * MS });
    ran(&mut sight, 2, times, 0);
    assert_eq!(rules(&sight), ["skew"]);
}

/// A worker has written so much to its disk.
fn spilled(bytes: u64, now: u64) -> Vec<u8> {
    let record = Record {
        began: now,
        read: now,
        computed: now,
        ended: now,
        object: 0,
        bytes,
        group: 1,
        lane: 0,
        kind: Kind::Spill,
        failed: false,
    };
    Batch::encode(Head::default(), &named("disk"), [record].into_iter())
}

/// An hour that begins with spills, as blocks of a file, and as it is told.
fn an_hour(sight: &mut Sight, mut write: impl FnMut(&Event<'_>, u64)) {
    for second in 1..=3_600_u64 {
        let now = second * SECOND;
        if (100..130).contains(&second) {
            let bytes = spilled((second - 99) * 1_000_000, now);
            let event = Event::Batch {
                worker: WorkerId(1),
                bytes: &bytes,
            };
            write(&event, now);
            sight.handle(&event, now).unwrap();
        }
        let snapshot = Snapshot {
            workers: vec![WorkerState {
                worker: 1,
                ..WorkerState::default()
            }],
            ..Snapshot::default()
        };
        let event = Event::Snapshot(snapshot);
        write(&event, now);
        sight.handle(&event, now).unwrap();
    }
}

#[test]
fn what_is_over_is_remembered_and_a_history_says_the_same() {
    let mut sight = cluster(1, 1);
    let (mut sparse, mut file) = (Sparse::default(), MAGIC.to_vec());
    put_block(0, &joined(1, 1, MEMORY), &mut file);
    an_hour(&mut sight, |event, now| {
        if let Some(event) = sparse.need(event, now) {
            put_block(now, &event, &mut file);
        }
    });
    sight.check();
    let live = sight.overview(0, false);
    assert_eq!(rules(&sight), [""; 0]);
    let [spilling] = &live.earlier[..] else {
        panic!("{:?}", live.earlier);
    };
    assert_eq!(spilling.rule, "spilling");
    // From the fourth second on there were ten megabytes, and for a minute after the last.
    assert_eq!(spilling.first, 103 * SECOND);
    assert!(
        (129..=129 + 60).contains(&(spilling.last / SECOND)),
        "{}",
        spilling.last
    );
    // All of it: 1 + 2 + … + 30 MB.
    assert!(spilling.text.starts_with("465 MB"), "{}", spilling.text);
    let mut read = Sight::new(1 << 20);
    for block in Blocks::new(&file) {
        let (now, event) = block.unwrap();
        read.handle(&event, now).unwrap();
    }
    assert_eq!(read.overview(0, false).earlier, live.earlier);
}

#[test]
fn a_slow_worker_that_is_gone_was_slow_before() {
    let mut sight = cluster(3, 1);
    ran(&mut sight, 1, (0..100).map(|n| (20 + n % 30) * MS), 0);
    ran(&mut sight, 2, (0..100).map(|n| (20 + n % 30) * MS), 0);
    ran(&mut sight, 3, (0..40).map(|n| (60 + 3 * (n % 30)) * MS), 0);
    let event = Event::Snapshot(Snapshot::default());
    sight.handle(&event, 61 * SECOND).unwrap();
    let verdict = &sight.overview(0, false).verdicts[0];
    assert_eq!((verdict.rule, verdict.first), ("slow-worker", 61 * SECOND));
    let left = Event::Lost {
        worker: WorkerId(3),
        cause: "it left".into(),
        drained: true,
    };
    sight.handle(&left, 70 * SECOND).unwrap();
    assert_eq!(rules(&sight), [""; 0]);
    let earlier = sight.overview(0, false).earlier;
    assert_eq!(earlier.len(), 1);
    assert_eq!(
        (earlier[0].rule, earlier[0].place.worker),
        ("slow-worker", Some(3))
    );
}
