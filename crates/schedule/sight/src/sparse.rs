//! What of the events a history file needs.
//!
//! How a worker is, is told every second, and how much processor time it took twice as often: a file has it
//! only where it changed. So idle workers take next to nothing of it.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::batch::Batch;
use crate::event::{Event, Snapshot, WorkerState};
use crate::series::SECOND;

/// The part of a process's memory that makes no difference.
const MEMORY: u64 = 64;
/// The part of a processor that makes no difference.
const PROCESSOR: f64 = 0.05;
/// How long processor time is left out, in nanoseconds.
const LONGEST: u64 = 60 * SECOND;
/// Snapshots after which a worker's state is written though nothing changed: a block of a file may be damaged.
const TURNS: u64 = 1_024;

/// What the file has of a worker.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    state: Option<WorkerState>,
    /// Processor time, when it was written, and how many processors that were until then.
    processor: u64,
    when: u64,
    share: f64,
    /// A digest of what ran then; 0: nothing.
    running: u64,
}

/// Decides what is written.
#[derive(Debug, Default)]
pub struct Sparse {
    /// Those that are there, by id.
    workers: BTreeMap<u32, Written>,
    turn: u64,
}

impl Sparse {
    /// What is to be written of an event; `None`: nothing of it.
    pub fn need<'a, 'b>(&mut self, event: &'b Event<'a>, now: u64) -> Option<Cow<'b, Event<'a>>> {
        match event {
            Event::Snapshot(snapshot) => {
                let changes = self.changes(snapshot);
                return Some(Cow::Owned(Event::Changes(changes)));
            }
            Event::Batch { worker, bytes } if !self.needs_batch(worker.0, bytes, now) => {
                return None;
            }
            Event::Lost { worker, .. } => drop(self.workers.remove(&worker.0)),
            _ => {}
        }
        Some(Cow::Borrowed(event))
    }

    fn changes(&mut self, snapshot: &Snapshot) -> Snapshot {
        self.turn += 1;
        let mut workers = Vec::new();
        for state in &snapshot.workers {
            // Nobody asks a file how long a worker was silent.
            let state = WorkerState {
                silent: 0,
                ..*state
            };
            let written = self.workers.entry(state.worker).or_default();
            let is_turn = (self.turn + u64::from(state.worker)).is_multiple_of(TURNS);
            if is_turn || written.state.is_none_or(|old| differ(&old, &state)) {
                written.state = Some(state);
                workers.push(state);
            }
        }
        Snapshot {
            tasks: snapshot.tasks,
            workers,
        }
    }

    /// Whether a batch says more than that time passes.
    fn needs_batch(&mut self, worker: u32, bytes: &[u8], now: u64) -> bool {
        let Ok((head, is_empty, running)) = Batch::peek(bytes) else {
            return true;
        };
        let written = self.workers.entry(worker).or_default();
        let passed = now.saturating_sub(written.when);
        let taken = head.processor.saturating_sub(written.processor);
        let share = taken as f64 / passed.max(1) as f64;
        let is_same = (share - written.share).abs() < PROCESSOR && passed < LONGEST;
        let is_empty = is_empty && running.is_none_or(|running| running == written.running);
        if is_empty && head.lost == 0 && (head.processor == 0 || is_same) {
            return false;
        }
        written.running = running.unwrap_or(written.running);
        (written.processor, written.when, written.share) = (head.processor, now, share);
        true
    }
}

/// Whether a state says something new.
fn differ(old: &WorkerState, new: &WorkerState) -> bool {
    let is_near = old.process.abs_diff(new.process) <= old.process.max(new.process) / MEMORY;
    let same = WorkerState {
        process: old.process,
        ..*new
    };
    !is_near || *old != same
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use treadle_types::WorkerId;

    use super::*;
    use crate::history::{Blocks, MAGIC, put_block};
    use crate::{Beside, Head, Kind, Record, Running, Sight};

    fn state(worker: u32) -> WorkerState {
        WorkerState {
            worker,
            managed: 1_000,
            process: 1 << 28,
            silent: 7,
            ..WorkerState::default()
        }
    }

    fn joined(worker: u32) -> Event<'static> {
        Event::Joined {
            worker: WorkerId(worker),
            name: alloc::format!("w{worker}"),
            address: "a".into(),
            host: "h".into(),
            pid: 1,
            threads: 1,
            memory: 1 << 30,
        }
    }

    fn batch(processor: u64, records: &[Record]) -> Vec<u8> {
        let head = Head {
            processor,
            ..Head::default()
        };
        Batch::encode(head, &Beside::default(), records.iter().copied())
    }

    const RECORD: Record = Record {
        began: 5,
        read: 6,
        computed: 7,
        ended: 8,
        object: 1 << 32,
        bytes: 9,
        group: 0,
        lane: 0,
        kind: Kind::Task,
        failed: false,
    };

    #[test]
    fn an_hour_of_idle_workers_takes_little() {
        let mut sparse = Sparse::default();
        let mut size = |workers: u32| {
            let mut file = Vec::new();
            let mut write = |event: &Event<'_>, now| {
                if let Some(event) = sparse.need(event, now) {
                    put_block(now, &event, &mut file);
                }
            };
            for second in 1..=3_600 {
                let now = second * SECOND;
                let snapshot = Snapshot {
                    workers: (0..workers).map(state).collect(),
                    ..Snapshot::default()
                };
                write(&Event::Snapshot(snapshot), now);
                for worker in 0..workers {
                    for half in [0, SECOND / 2] {
                        let worker = WorkerId(worker);
                        let bytes = batch(second * SECOND / 100, &[]);
                        let event = Event::Batch {
                            worker,
                            bytes: &bytes,
                        };
                        write(&event, now + half);
                    }
                }
            }
            file.len()
        };
        let (few, many) = (size(10), size(110));
        assert!(few < 3_600 * 40, "{few}");
        // Bytes of a second of a worker.
        assert!(many - few < 3_600 * 100, "{}", many - few);
    }

    #[test]
    fn what_changes_is_written_and_what_does_not_is_not() {
        let mut sparse = Sparse::default();
        let mut written = |state: WorkerState| {
            let event = Event::Snapshot(Snapshot {
                workers: vec![state],
                ..Snapshot::default()
            });
            match sparse.need(&event, 0).map(Cow::into_owned) {
                Some(Event::Changes(changes)) => changes.workers,
                other => panic!("{other:?}"),
            }
        };
        let at_rest = WorkerState {
            silent: 0,
            ..state(1)
        };
        assert_eq!(written(state(1)), [at_rest]);
        assert_eq!(written(state(1)), []);
        let mut grown = state(1);
        grown.process += 1 << 20;
        assert_eq!(written(grown), []);
        grown.process += 1 << 23;
        assert_eq!(written(grown).len(), 1);
        for change in [
            |state: &mut WorkerState| state.status = 1,
            |state: &mut WorkerState| state.managed += 1,
            |state: &mut WorkerState| state.spilled += 1,
            |state: &mut WorkerState| state.tasks += 1,
            |state: &mut WorkerState| state.values += 1,
        ] {
            change(&mut grown);
            assert_eq!(written(grown).len(), 1);
            assert_eq!(written(grown), []);
        }
        // Now and then all the same.
        let again = (0..TURNS).filter(|_| !written(grown).is_empty()).count();
        assert_eq!(again, 1);
    }

    #[test]
    fn empty_batches_are_written_where_the_processor_time_changes() {
        let mut sparse = Sparse::default();
        let mut needed = |bytes: &[u8], now: u64| {
            let worker = WorkerId(1);
            let event = Event::Batch { worker, bytes };
            sparse.need(&event, now).is_some()
        };
        assert!(needed(&batch(SECOND, &[RECORD]), SECOND));
        // Idle from now on: one share, another, and the same again.
        assert!(needed(&batch(SECOND + 1, &[]), 2 * SECOND));
        assert!(!needed(&batch(SECOND + 2, &[]), 3 * SECOND));
        assert!(needed(&batch(SECOND + 3, &[RECORD]), 4 * SECOND));
        assert!(!needed(&batch(SECOND + 4, &[]), 5 * SECOND));
        assert!(needed(&batch(2 * SECOND, &[]), 6 * SECOND));
        let lost = Head {
            lost: 1,
            ..Head::default()
        };
        assert!(needed(
            &Batch::encode(lost, &Beside::default(), [].into_iter()),
            6 * SECOND
        ));
        // What has run for long is written where it changes.
        let running = |tasks: &[Running<'_>]| {
            let beside = Beside {
                running: Some(tasks.to_vec()),
                sampled: 7,
                ..Beside::default()
            };
            Batch::encode(Head::default(), &beside, [].into_iter())
        };
        let task = Running {
            object: 1 << 32,
            lane: 0,
            began: 5,
            key: b"x",
        };
        assert!(!needed(&running(&[]), 6 * SECOND));
        assert!(needed(&running(&[task]), 6 * SECOND));
        assert!(!needed(&running(&[task]), 6 * SECOND));
        assert!(needed(&running(&[]), 6 * SECOND));
        assert!(!needed(&running(&[]), 6 * SECOND));
        // What is none is for who reads to refuse.
        assert!(needed(b"what", 6 * SECOND));
    }

    #[test]
    fn who_reads_changes_knows_the_same() {
        let (mut sparse, mut live) = (Sparse::default(), Sight::new(1 << 20));
        let mut file = MAGIC.to_vec();
        let mut tell = |event: Event<'_>, now| {
            live.handle(&event, now).unwrap();
            if let Some(event) = sparse.need(&event, now) {
                put_block(now, &event, &mut file);
            }
        };
        for worker in 1..=3 {
            tell(joined(worker), 0);
        }
        for second in 1..=20 {
            let now = second * SECOND;
            let mut states: Vec<_> = (1..=3).map(state).collect();
            states[1].status = u8::from((5..9).contains(&second));
            states[2].managed *= second;
            if second == 15 {
                tell(
                    Event::Lost {
                        worker: WorkerId(1),
                        cause: "it was killed".into(),
                        drained: false,
                    },
                    now,
                );
            }
            let workers = states.split_off(usize::from(second >= 15));
            let tasks = [second, 0, 1, 0, 0];
            tell(Event::Snapshot(Snapshot { tasks, workers }), now);
        }
        let mut read = Sight::new(1 << 20);
        for (now, event) in Blocks::new(&file).flatten() {
            read.handle(&event, now).unwrap();
        }
        let (mut read, mut live) = (read.overview(0, false), live.overview(0, false));
        // Nobody has batches here.
        for row in read.workers.iter_mut().chain(&mut live.workers) {
            row.busy = None;
        }
        assert_eq!(read, live);
    }
}
