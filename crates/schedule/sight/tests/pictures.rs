//! Reduced pictures against naive ones, on random runs.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use treadle_sight::{
    Batch, Beside, By, Event, Head, Kind, Record, Running, Sight, Snapshot, Window, WorkerState,
};
use treadle_types::{ObjectId, WorkerId};

/// Nanoseconds.
const RUN: u64 = 1_000_000;

#[derive(Clone, Debug)]
struct Done {
    worker: u32,
    lane: u16,
    group: u32,
    began: u64,
    reading: u64,
    length: u64,
    fetch: bool,
    failed: bool,
}

fn beside<'a>(names: &[(u32, &'a str)], keys: &[(u64, &'a [u8])]) -> Beside<'a> {
    Beside {
        names: names.into(),
        keys: keys.into(),
        ..Beside::default()
    }
}

fn any_done() -> impl Strategy<Value = Done> {
    let length = prop_oneof![0..300_u64, 0..20_000_u64, 0..RUN];
    let tags = (any::<bool>(), any::<bool>());
    (0..4_u32, 0..3_u16, 0..5_u32, 0..RUN, 0..RUN, length, tags).prop_map(
        |(worker, lane, group, began, reading, length, (fetch, failed))| Done {
            worker,
            lane,
            group,
            began,
            reading: reading.min(length),
            length,
            fetch: fetch && group < 4,
            failed,
        },
    )
}

fn run(done: &[Done]) -> Sight {
    let mut sight = Sight::new(64 << 20);
    for worker in 0..4 {
        let names: Vec<String> = (0..5).map(|group| format!("group-{}", group * 2)).collect();
        let names: Vec<(u32, &str)> = (0..).zip(names.iter().map(String::as_str)).collect();
        let own = done.iter().filter(|done| done.worker == worker);
        let records: Vec<Record> = own
            .map(|done| Record {
                began: done.began,
                read: done.began + done.reading,
                computed: done.began + done.length,
                ended: done.began + done.length,
                object: 1 << 32,
                bytes: 10,
                group: done.group,
                lane: done.lane,
                kind: if done.fetch { Kind::Fetch } else { Kind::Task },
                failed: done.failed,
            })
            .collect();
        let bytes = Batch::encode(Head::default(), &beside(&names, &[]), records.into_iter());
        let event = Event::Batch {
            worker: WorkerId(worker),
            bytes: &bytes,
        };
        sight.handle(&event, 10 * RUN).unwrap();
        sight.check();
    }
    sight
}

fn column(time: u64, from: u64, to: u64, width: u32) -> u64 {
    (time.clamp(from, to) - from) * u64::from(width) / (to - from)
}

proptest! {
    #[test]
    fn a_picture_has_all_spans_and_no_more_than_its_pixels(
        done in prop::collection::vec(any_done(), 0..300),
        from in 0..RUN,
        length in 1..RUN,
        width in 1..200_u32,
    ) {
        let sight = run(&done);
        let to = from + length;
        let window = Window { from, to, width, by: By::Worker, group: None, worker: None };
        let picture = sight.picture(window, 0);
        let inside: Vec<&Done> = done
            .iter()
            .filter(|done| done.began <= to && done.began + done.length >= from)
            .collect();
        prop_assert_eq!(picture.count, inside.len() as u64);
        // A task whose inputs took at least a pixel is two rectangles.
        let is_long = |start: u64, end: u64| {
            let inside = end.clamp(from, to) - start.clamp(from, to);
            inside * u64::from(width) >= length
        };
        let halves = inside
            .iter()
            .filter(|done| !done.fetch && is_long(done.began, done.began + done.reading))
            .count();
        let counted: u64 = picture.rectangles.iter().map(|one| u64::from(one.count)).sum();
        prop_assert_eq!(counted, (inside.len() + halves) as u64);
        // In order, and at most one short one for each row and pixel.
        let mut short = BTreeSet::new();
        let pixel = 1.0 / f64::from(width);
        for pair in picture.rectangles.windows(2) {
            prop_assert!((pair[0].lane, pair[0].start) <= (pair[1].lane, pair[1].start));
        }
        for one in &picture.rectangles {
            prop_assert!(one.start >= 0.0 && one.start + one.length <= 1.0 + 1e-5);
            prop_assert!((one.lane as usize) < picture.lanes.len());
            if one.count > 1 {
                prop_assert!(f64::from(one.length) <= pixel * 2.0);
                prop_assert!(!picture.exact);
                let place = (f64::from(one.start) * f64::from(width) + 1e-3) as u64;
                short.insert((one.lane, place));
            }
        }
        // The pixels in which rectangles begin are those in which spans begin.
        let lanes: BTreeMap<u32, (u32, u16)> = (0..)
            .zip(picture.lanes.iter().map(|lane| (lane.worker, lane.lane)))
            .collect();
        for done in &inside {
            let lane = if done.fetch { 0x8000 } else { done.lane };
            let row = lanes.iter().find(|(_, place)| **place == (done.worker, lane));
            let row = *row.expect("each has a row").0;
            let start = column(done.began, from, to, width) as f64 * pixel;
            let covered = picture.rectangles.iter().filter(|one| one.lane == row).any(|one| {
                f64::from(one.start) <= start + pixel + 1e-5
                    && f64::from(one.start + one.length) >= start - 1e-5
            });
            prop_assert!(covered, "{done:?}");
        }
        let by_group = sight.picture(Window { by: By::Group, ..window }, 0);
        let tasks = inside.iter().filter(|done| !done.fetch);
        prop_assert_eq!(by_group.count, tasks.clone().count() as u64);
        let mut columns: BTreeMap<(String, u64), u64> = BTreeMap::new();
        for done in tasks {
            let first = column(done.began, from, to, width).min(u64::from(width) - 1);
            let last = column(done.began + done.length, from, to, width).min(u64::from(width) - 1);
            for place in first..=last {
                *columns.entry((format!("group-{}", done.group * 2), place)).or_default() += 1;
            }
        }
        let mut drawn: BTreeMap<(String, u64), u64> = BTreeMap::new();
        for one in &by_group.rectangles {
            let name = &by_group.lanes[one.lane as usize].name;
            let first = (one.start * width as f32).round() as u64;
            let count = (one.length * width as f32).round() as u64;
            for place in first..first + count {
                drawn.insert((name.clone(), place), u64::from(one.count));
            }
        }
        prop_assert_eq!(
            columns.keys().collect::<Vec<_>>(),
            drawn.keys().collect::<Vec<_>>()
        );
        for (place, count) in &columns {
            // Within a factor of two: neighbours alike are one.
            prop_assert_eq!(count.ilog2(), drawn[place].ilog2());
        }
    }

    #[test]
    fn events_in_any_order_keep_the_invariants_and_come_back_from_a_file(
        steps in prop::collection::vec((any_done(), 0..8_u8, 0..3 * RUN), 0..60),
    ) {
        let mut sight = Sight::new(1 << 20);
        let mut file = treadle_sight::history::MAGIC.to_vec();
        for (done, what, now) in &steps {
            let worker = WorkerId(done.worker);
            let record = Record {
                began: done.began,
                read: done.began,
                computed: done.began,
                ended: done.began + done.length,
                object: u64::from(done.group) << 32,
                bytes: done.length,
                group: done.group,
                lane: done.lane,
                kind: [Kind::Task, Kind::Fetch, Kind::Spill, Kind::Shuffle][usize::from(*what % 4)],
                failed: done.failed,
            };
            let head = Head { offset: done.reading as i64 - 500, lost: 1, processor: *now, system: Default::default() };
            let names = [(done.group, "a"), (7, "b-c")];
            let keys = [(record.object, &b"\x05\x01x"[..])];
            let bytes = Batch::encode(head, &beside(&names, &keys), [record].into_iter());
            let text = format!("name {}", done.group);
            let event = match what {
                0..4 => Event::Batch { worker, bytes: &bytes },
                4 => Event::Joined {
                    worker, name: text.clone(), address: text, host: "h".into(),
                    pid: 1, threads: 2, memory: 3,
                },
                5 => Event::Lost { worker, cause: text, drained: done.fetch },
                6 => Event::Snapshot(Snapshot {
                    tasks: [1, 2, 3, 4, 5],
                    workers: vec![WorkerState {
                        worker: done.worker,
                        status: done.group as u8 % 3,
                        ..WorkerState::default()
                    }],
                }),
                _ => Event::Inputs { group: "a".into(), inputs: vec![text] },
            };
            sight.handle(&event, *now).unwrap();
            sight.check();
            treadle_sight::history::put_block(*now, &event, &mut file);
        }
        let mut again = Sight::new(1 << 20);
        for block in treadle_sight::history::Blocks::new(&file) {
            let (now, event) = block.unwrap();
            again.handle(&event, now).unwrap();
        }
        prop_assert_eq!(again.overview(0, false), sight.overview(0, false));
        prop_assert_eq!(again.matrix(), sight.matrix());
        prop_assert_eq!(again.spans_of(ObjectId::from_u64(0), 1, 9), sight.spans_of(ObjectId::from_u64(0), 1, 9));
    }
}

#[test]
fn many_rows_are_drawn_with_wider_pixels() {
    let mut sight = Sight::new(64 << 20);
    for worker in 0..1_000 {
        let records = (0..1_000).map(|number| Record {
            began: number * 1_000,
            read: number * 1_000,
            computed: number * 1_000 + 400,
            ended: number * 1_000 + 400,
            object: number << 32,
            bytes: 1,
            group: 0,
            lane: 0,
            kind: Kind::Task,
            failed: false,
        });
        let records: Vec<Record> = records.collect();
        let bytes = Batch::encode(
            Head::default(),
            &beside(&[(0, "x")], &[]),
            records.into_iter(),
        );
        let event = Event::Batch {
            worker: WorkerId(worker),
            bytes: &bytes,
        };
        sight.handle(&event, RUN).unwrap();
    }
    let window = Window {
        from: 0,
        to: RUN,
        width: 2_000,
        by: By::Worker,
        group: None,
        worker: None,
    };
    let picture = sight.picture(window, 0);
    assert_eq!(picture.count, 1_000_000);
    assert_eq!(picture.lanes.len(), 1_000);
    assert!(picture.rectangles.len() <= 200_000);
    let counted: u64 = picture
        .rectangles
        .iter()
        .map(|one| u64::from(one.count))
        .sum();
    assert_eq!(counted, 1_000_000);
    let near = sight.span(500_450, 7, 0, 100).expect("one is near");
    assert_eq!((near.from, near.to), (500_000, 500_400));
    assert_eq!(sight.span(500_700, 7, 0, 10), None);
    assert_eq!(near.group, "x");
}

const SECOND: u64 = 1_000_000_000;
const FIRST_SECONDS: Window = Window {
    from: 0,
    to: 10 * SECOND,
    width: 1_000,
    by: By::Worker,
    group: None,
    worker: None,
};

/// A worker says that it has done some things, and that tasks of these lanes run since these times.
fn say(sight: &mut Sight, records: &[Record], running: &[(u16, u64)], now: u64) {
    let key = treadle_types::Value::Str("inc-7".into()).to_bytes();
    let running = running.iter().map(|&(lane, began)| Running {
        object: u64::from(lane + 1) << 32,
        lane,
        began,
        key: &key,
    });
    let beside = Beside {
        running: Some(running.collect()),
        ..beside(&[(1, "inc")], &[])
    };
    let bytes = Batch::encode(Head::default(), &beside, records.iter().copied());
    let event = Event::Batch {
        worker: WorkerId(7),
        bytes: &bytes,
    };
    sight.handle(&event, now).unwrap();
    sight.check();
}

#[test]
fn what_runs_is_drawn_until_now_and_found() {
    let mut sight = Sight::new(1 << 20);
    say(&mut sight, &[], &[(0, SECOND), (1, 2 * SECOND)], 4 * SECOND);
    let window = FIRST_SECONDS;
    let drawn = |picture: &treadle_sight::Picture| -> Vec<_> {
        let all = picture.rectangles.iter();
        all.map(|one| (one.lane, one.kind, one.start, one.length))
            .collect()
    };
    let running = Kind::Running as u16;
    let picture = sight.picture(window, 5 * SECOND);
    assert_eq!(
        drawn(&picture),
        [(0, running, 0.1, 0.4), (1, running, 0.2, 0.3)]
    );
    assert_eq!((picture.count, picture.exact), (2, true));
    let inc = picture.rectangles[0].group;
    assert_eq!(picture.groups[&inc], "inc");
    // No later than anything that is known, and where it is asked for.
    assert_eq!(drawn(&sight.picture(window, 0))[0].3, 0.3);
    let of = |group, worker| {
        let window = Window {
            group,
            worker,
            ..window
        };
        sight.picture(window, 0).count
    };
    assert_eq!(of(Some(inc as u16), Some(7)), 2);
    assert_eq!((of(Some(0), None), of(None, Some(8))), (0, 0));
    let early = Window {
        to: SECOND / 2,
        ..window
    };
    assert_eq!(sight.picture(early, 0).count, 0);
    let groups = Window {
        by: By::Group,
        ..window
    };
    let groups = sight.picture(groups, 5 * SECOND);
    let most = groups.rectangles.iter().map(|one| one.count).max();
    assert_eq!(most, Some(2));
    // The seconds in which threads were busy, up to the one that has just begun.
    let series = sight.overview(4 * SECOND, true).series;
    let busy = &series.values[1];
    assert_eq!(series.to, 5 * SECOND);
    assert_eq!(busy[busy.len() - 5..], [0.0, 1.0, 2.0, 2.0, 0.0]);
    let found = sight.span(3 * SECOND, 7, 1, 1).expect("it runs");
    assert_eq!((found.from, found.to), (2 * SECOND, 4 * SECOND));
    assert_eq!(
        (found.key.as_deref(), found.kind, found.running),
        (Some("inc-7"), "task", true)
    );
    assert_eq!(sight.span(SECOND, 7, 1, 1), None);
}

#[test]
fn what_has_ended_is_drawn_once() {
    let mut sight = Sight::new(1 << 20);
    let ended = Record {
        began: SECOND,
        read: SECOND,
        computed: 3 * SECOND,
        ended: 3 * SECOND,
        object: 1 << 32,
        bytes: 10,
        group: 1,
        lane: 0,
        kind: Kind::Task,
        failed: false,
    };
    // It ended after the worker looked, and before it said so.
    say(
        &mut sight,
        &[ended],
        &[(0, SECOND), (1, SECOND)],
        4 * SECOND,
    );
    let window = FIRST_SECONDS;
    let kinds = |sight: &Sight| -> Vec<u16> {
        let picture = sight.picture(window, 0);
        picture.rectangles.iter().map(|one| one.kind).collect()
    };
    assert_eq!(kinds(&sight), [Kind::Task as u16, Kind::Running as u16]);
    let found = sight.span(2 * SECOND, 7, 0, 1).expect("it ran");
    assert!(!found.running);
    say(&mut sight, &[], &[], 5 * SECOND);
    assert_eq!(kinds(&sight), [Kind::Task as u16]);
}

#[test]
fn before_single_spans_there_are_sums_by_group() {
    const MS: u64 = SECOND / 1_000;
    // Two threads run tasks of a millisecond for a hundred seconds: there is room for a fraction.
    let mut sight = Sight::new(1 << 20);
    for second in 0..100 {
        let records = (0..2_000).map(|number: u64| {
            let began = second * SECOND + number / 2 * MS;
            Record {
                began,
                read: began,
                computed: began + MS,
                ended: began + MS,
                object: number << 32,
                bytes: 1,
                group: 1,
                lane: (number % 2) as u16,
                kind: Kind::Task,
                failed: false,
            }
        });
        let records: Vec<Record> = records.collect();
        say(&mut sight, &records, &[], (second + 1) * SECOND);
    }
    let kept = sight.overview(0, false).spans;
    assert!(kept.older > 150_000 && kept.from > 80 * SECOND, "{kept:?}");
    assert_eq!((kept.lost, kept.dropped), (0, 0));
    let window = Window {
        to: 100 * SECOND,
        by: By::Group,
        ..FIRST_SECONDS
    };
    let picture = sight.picture(window, 0);
    assert!(!picture.exact);
    assert_eq!(picture.count, kept.kept);
    assert_eq!(picture.lanes.len(), 1);
    // All of the run, two at a time.
    let length: f32 = picture.rectangles.iter().map(|one| one.length).sum();
    assert!((0.99..=1.01).contains(&length), "{length}");
    let early = picture.rectangles.iter().filter(|one| one.start < 0.7);
    assert!(early.clone().count() > 0);
    assert!(early.into_iter().all(|one| (2..4).contains(&one.count)));
    // By worker there is nothing but single ones, and of one worker there are no sums.
    let by_worker = Window {
        by: By::Worker,
        ..window
    };
    let first = sight.picture(by_worker, 0).rectangles[0].start;
    assert!(first > 0.8, "{first}");
    let of_one = Window {
        worker: Some(7),
        ..window
    };
    assert!(sight.picture(of_one, 0).rectangles[0].start > 0.8);
}
