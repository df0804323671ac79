//! Replays what fuzzing found for the decoders of batches and of history files (`fuzz/`).

#[path = "../../../../fuzz/corpus.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod corpus;

use treadle_sight::history::{Blocks, MAGIC, put_block};
use treadle_sight::{
    Batch, Beside, End, Event, Frame, Head, Kind, Line, Record, Running, Sight, Snapshot, States,
    System, Unnamed, WorkerState, fuzzing,
};
use treadle_types::WorkerId;

#[test]
fn the_corpus_is_replayed() {
    corpus::replay("recorded", fuzzing::batch);
    corpus::replay("history", fuzzing::history);
}

#[test]
fn a_history_whose_batches_are_of_the_version_before_opens() {
    let bytes = include_bytes!("../../../../fuzz/corpus/history/file-with-batches-of-version-3");
    let mut sight = Sight::new(1 << 20);
    for block in Blocks::new(bytes) {
        let (now, event) = block.unwrap();
        sight.handle(&event, now).unwrap();
    }
    let view = sight.overview(1 << 40, false);
    assert_eq!(view.workers[0].name, "one");
    let ran = view.groups.iter().find(|group| group.name == "inc");
    assert_eq!(ran.unwrap().runs, 1);
    // It was not told.
    let worker = &view.workers[0];
    assert_eq!((worker.native, worker.disk_read), (None, None));
    assert_eq!(worker.stalled, None);
}

#[test]
fn the_corpus_has_what_is_valid() {
    let head = Head {
        offset: -5,
        lost: 2,
        processor: 1 << 33,
        system: System {
            native: 1 << 28,
            read: 4_096,
            written: 8_192,
            received: 1 << 35,
            sent: 1 << 34,
            stalled: [700, 0, 90_000],
        },
    };
    let record = |kind, number: u64| Record {
        began: 1_000 + 70 * number,
        read: 1_010 + 70 * number,
        computed: 1_050 + 70 * number,
        ended: 1_060 + 70 * number,
        object: (7 + number) << 32 | 1,
        bytes: 1 << (4 * number),
        group: 1,
        lane: 2,
        kind,
        failed: number == 1,
    };
    let kinds = [
        Kind::Task,
        Kind::Fetch,
        Kind::Spill,
        Kind::Shuffle,
        Kind::Cast,
    ];
    let records = (0..).zip(kinds).map(|(number, kind)| record(kind, number));
    let records: Vec<Record> = records.collect();
    let keys = [(7 << 32 | 1, &b"\x05\x05inc-1"[..])];
    let beside = Beside {
        names: vec![(1, "inc")],
        keys: keys.into(),
        running: Some(vec![Running {
            object: 9 << 32 | 1,
            lane: 1,
            began: 1_500,
            key: b"\x05\x05inc-2",
        }]),
        unnamed: Unnamed {
            count: 2,
            began: 1_600,
        },
        frames: vec![
            Frame {
                parent: None,
                name: "inc",
                time: 0,
            },
            Frame {
                parent: Some(0),
                name: "inc job.py",
                time: 20,
            },
        ],
        sampled: 1_200,
        lines: vec![Line {
            time: 1_300,
            level: 3,
            text: "it is slow",
        }],
        lost_lines: 1,
    };
    let batch = Batch::encode(head, &beside, records.into_iter());
    corpus::compare("recorded", "batch", &batch);
    let worker = WorkerId(3);
    let events = [
        Event::Began {
            address: "treadle://127.0.0.1:7786".into(),
            id: "Scheduler-1".into(),
            version: "0.1.0".into(),
            unix: 1_700_000_000_000_000,
            clock: 900,
        },
        Event::Joined {
            worker,
            name: "one".into(),
            address: "treadle://127.0.0.1:7787".into(),
            host: "here".into(),
            pid: 42,
            threads: 2,
            memory: 1 << 33,
        },
        Event::Batch {
            worker,
            bytes: &batch,
        },
        Event::Snapshot(Snapshot {
            tasks: [1, 2, 3, 4, 5],
            workers: vec![WorkerState {
                worker: 3,
                status: 1,
                managed: 1 << 20,
                ..WorkerState::default()
            }],
        }),
        Event::Failed {
            object: 7 << 32 | 1,
            key: "inc-1".into(),
            worker,
            text: "ZeroDivisionError".into(),
            traceback: "in divide".into(),
        },
        Event::Submitted(vec![("inc".into(), 5)]),
        Event::Inputs {
            group: "sum".into(),
            inputs: vec!["inc".into()],
        },
        Event::Lost {
            worker,
            cause: "it was killed by signal 9".into(),
            drained: false,
        },
        Event::Doomed {
            key: "inc-3".into(),
            text: "KilledWorker".into(),
        },
        Event::Line {
            level: 4,
            text: "a worker is gone".into(),
        },
        Event::States(vec![(
            "inc".into(),
            States {
                waiting: 1,
                memory: 4,
                ..States::default()
            },
        )]),
        Event::Changes(Snapshot::default()),
        Event::Ended(End::Full(1 << 30)),
    ];
    let mut file = MAGIC.to_vec();
    for (now, event) in (0..).zip(&events) {
        put_block(now * 1_000, event, &mut file);
    }
    corpus::compare("history", "file", &file);
}
