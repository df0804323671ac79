//! All that is taken in.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use treadle_types::WorkerId;

use crate::reader::{Malformed, Reader, put, put_slice};

/// Characters of an error's text that are kept.
const LONGEST: usize = 2_000;
/// Bytes of a traceback that are kept: the end of it.
const LONGEST_TRACEBACK: usize = 4_096;

/// The first bytes of what only files have.
const CHANGES: u8 = 20;
const ENDED: u8 = 21;
const PACKED: u8 = 22;

/// How a worker is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WorkerState {
    /// Its id.
    pub worker: u32,
    /// 0: running, 1: paused, 2: draining.
    pub status: u8,
    /// Bytes of its values.
    pub managed: u64,
    /// Bytes of its process.
    pub process: u64,
    /// Bytes on disk.
    pub spilled: u64,
    /// Tasks that were sent to it.
    pub tasks: u64,
    /// Values that it has.
    pub values: u64,
    /// Milliseconds since it said anything.
    pub silent: u64,
}

/// The cluster at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Snapshot {
    /// Tasks by state: waiting, ready, assigned, in memory, failed.
    pub tasks: [u64; 5],
    /// Those that are there.
    pub workers: Vec<WorkerState>,
}

/// What a shuffle does, or how it ended.
pub const SHUFFLE_STATES: [&str; 7] = [
    "waiting",
    "transfer",
    "barrier",
    "read",
    "finished",
    "failed",
    "cancelled",
];
/// Quantiles and bars of a shuffle that are kept.
const MOST_SIZES: usize = 64;

/// A shuffle, as the scheduler knows it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Shuffle {
    /// Its number: one that runs again has another.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// The place of what it does in [`SHUFFLE_STATES`].
    pub state: u8,
    /// How many inputs it has, and how many of them were pushed.
    pub inputs: u64,
    /// See `inputs`.
    pub transferred: u64,
    /// Bytes that were pushed.
    pub bytes: u64,
    /// How many partitions it has.
    pub partitions: u64,
    /// Bytes of the largest one; 0: not known.
    pub largest: u64,
    /// Servers that hold partitions.
    pub servers: u64,
    /// Servers that were lost with some.
    pub losses: u64,
    /// Shares of partitions in percent, and the bytes that so many do not exceed; none: not known.
    pub quantiles: Vec<(u64, u64)>,
    /// The bytes of the largest partition of each range of neighbours, and of how many partitions a range is.
    pub bars: Vec<u64>,
    /// See `bars`.
    pub bar: u64,
}

/// How many tasks of a group are in each state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct States {
    /// Without a value, and nobody needs one.
    pub released: u64,
    /// For their inputs.
    pub waiting: u64,
    /// In a queue of the scheduler.
    pub ready: u64,
    /// Sent to a worker.
    pub assigned: u64,
    /// With a value.
    pub memory: u64,
    /// Without one for good.
    pub failed: u64,
    /// Not known any more: how many there have been.
    pub forgotten: u64,
}

impl States {
    fn row(&self) -> [u64; 7] {
        [
            self.released,
            self.waiting,
            self.ready,
            self.assigned,
            self.memory,
            self.failed,
            self.forgotten,
        ]
    }

    fn of(
        [
            released,
            waiting,
            ready,
            assigned,
            memory,
            failed,
            forgotten,
        ]: [u64; 7],
    ) -> Self {
        Self {
            released,
            waiting,
            ready,
            assigned,
            memory,
            failed,
            forgotten,
        }
    }

    /// Those of two groups together.
    pub(crate) fn and(self, other: &Self) -> Self {
        let mut row = self.row();
        for (count, other) in row.iter_mut().zip(other.row()) {
            *count = count.saturating_add(other);
        }
        Self::of(row)
    }

    /// All that there have been.
    pub(crate) fn total(&self) -> u64 {
        self.row().into_iter().fold(0, u64::saturating_add)
    }
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// What this is a history of: address and id of the scheduler, its version, and when it began, in
    /// microseconds since 1970.
    Began {
        /// Where it listens.
        address: String,
        /// Its id.
        id: String,
        /// Of Treadle.
        version: String,
        /// When.
        unix: u64,
        /// What the scheduler's clock showed then, on which workers align theirs.
        clock: u64,
    },
    /// A worker has joined.
    Joined {
        /// Its id.
        worker: WorkerId,
        /// Its name.
        name: String,
        /// Where it listens.
        address: String,
        /// Its machine.
        host: String,
        /// Its process; 0: not known.
        pid: u64,
        /// How many tasks it runs at once.
        threads: u32,
        /// Bytes of memory that it may use; 0: no limit.
        memory: u64,
    },
    /// A worker is gone.
    Lost {
        /// Its id.
        worker: WorkerId,
        /// Why.
        cause: String,
        /// Whether that was as it should be.
        drained: bool,
    },
    /// What a worker recorded: a [`Batch`](crate::Batch).
    Batch {
        /// Its id.
        worker: WorkerId,
        /// The batch.
        bytes: &'a [u8],
    },
    /// How the cluster is, once a second.
    Snapshot(Snapshot),
    /// A task raised.
    Failed {
        /// The value that it did not make.
        object: u64,
        /// Its key, for people.
        key: String,
        /// Where.
        worker: WorkerId,
        /// What.
        text: String,
        /// From where; empty: not known.
        traceback: String,
    },
    /// Tasks were submitted: how many of each group.
    Submitted(Vec<(String, u64)>),
    /// A group's tasks read those of others.
    Inputs {
        /// The name of the group.
        group: String,
        /// Those of the others.
        inputs: Vec<String>,
    },
    /// Batches that nobody had time for.
    Dropped(u64),
    /// A shuffle's state.
    Shuffle(Shuffle),
    /// A task was given up: the workers that ran it were lost, for one.
    Doomed {
        /// Its key, for people.
        key: String,
        /// Why.
        text: String,
    },
    /// The scheduler's log has a line more.
    Line {
        /// As in [`Line`](crate::Line).
        level: u8,
        /// What.
        text: String,
    },
    /// How the tasks of groups are: of those of which it has changed.
    States(Vec<(String, States)>),
    /// How the cluster is, of workers only those for which that changed: see [`Sparse`](crate::Sparse).
    Changes(Snapshot),
    /// The history ends here.
    Ended(End),
    /// Blocks of a history that whoever wrote it has compressed.
    Packed {
        /// How many bytes they have.
        length: u64,
        /// They, compressed.
        bytes: &'a [u8],
    },
}

/// How a history ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// With its scheduler.
    Closed,
    /// It had as many bytes as it may.
    Full(u64),
    /// It could not be written: why.
    Failed(String),
}

/// The text of an error, cut to what is kept.
pub fn about_error(text: &str) -> String {
    let end = text
        .char_indices()
        .nth(LONGEST)
        .map_or(text.len(), |(at, _)| at);
    text[..end].to_owned()
}

/// A traceback, cut to what is kept: where it was raised is at its end.
pub fn about_traceback(text: &str) -> String {
    let begin = text.len().saturating_sub(LONGEST_TRACEBACK);
    let begin = (begin..=text.len()).find(|begin| text.is_char_boundary(*begin));
    text[begin.unwrap_or(text.len())..].to_owned()
}

fn put_text(text: &str, into: &mut Vec<u8>) {
    put_slice(text.as_bytes(), into);
}

impl Event<'_> {
    /// Appends the bytes of it.
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::Began {
                address,
                id,
                version,
                unix,
                clock,
            } => {
                into.push(0);
                for text in [address, id, version] {
                    put_text(text, into);
                }
                put(*unix, into);
                put(*clock, into);
            }
            Self::Joined {
                worker,
                name,
                address,
                host,
                pid,
                threads,
                memory,
            } => {
                into.push(1);
                put(worker.0.into(), into);
                for text in [name, address, host] {
                    put_text(text, into);
                }
                put(*pid, into);
                put((*threads).into(), into);
                put(*memory, into);
            }
            Self::Lost {
                worker,
                cause,
                drained,
            } => {
                into.push(2);
                put(worker.0.into(), into);
                put_text(cause, into);
                into.push((*drained).into());
            }
            Self::Batch { worker, bytes } => {
                into.push(3);
                put(worker.0.into(), into);
                into.extend_from_slice(bytes);
            }
            Self::Snapshot(snapshot) => {
                into.push(4);
                put_snapshot(snapshot, into);
            }
            Self::Failed {
                object,
                key,
                worker,
                text,
                traceback,
            } => {
                into.push(5);
                put(*object, into);
                put_text(key, into);
                put(worker.0.into(), into);
                put_text(text, into);
                put_text(traceback, into);
            }
            Self::Submitted(counts) => {
                into.push(6);
                put(counts.len() as u64, into);
                for (name, count) in counts {
                    put_text(name, into);
                    put(*count, into);
                }
            }
            Self::Inputs { group, inputs } => {
                into.push(7);
                put_text(group, into);
                put(inputs.len() as u64, into);
                for name in inputs {
                    put_text(name, into);
                }
            }
            Self::Dropped(count) => {
                into.push(8);
                put(*count, into);
            }
            Self::Shuffle(shuffle) => {
                into.push(9);
                put_text(&shuffle.name, into);
                into.push(shuffle.state);
                let numbers = [
                    shuffle.number,
                    shuffle.inputs,
                    shuffle.transferred,
                    shuffle.bytes,
                    shuffle.partitions,
                    shuffle.largest,
                    shuffle.servers,
                    shuffle.losses,
                    shuffle.bar,
                ];
                for number in numbers {
                    put(number, into);
                }
                put(shuffle.quantiles.len() as u64, into);
                for (percent, bytes) in &shuffle.quantiles {
                    put(*percent, into);
                    put(*bytes, into);
                }
                put(shuffle.bars.len() as u64, into);
                for bytes in &shuffle.bars {
                    put(*bytes, into);
                }
            }
            Self::Doomed { key, text } => {
                into.push(11);
                put_text(key, into);
                put_text(text, into);
            }
            Self::Line { level, text } => {
                into.push(12);
                into.push(*level);
                put_text(text, into);
            }
            Self::States(groups) => {
                into.push(10);
                put(groups.len() as u64, into);
                for (name, states) in groups {
                    put_text(name, into);
                    for count in states.row() {
                        put(count, into);
                    }
                }
            }
            Self::Changes(snapshot) => {
                into.push(CHANGES);
                put_snapshot(snapshot, into);
            }
            Self::Packed { length, bytes } => {
                into.push(PACKED);
                put(*length, into);
                into.extend_from_slice(bytes);
            }
            Self::Ended(end) => {
                into.push(ENDED);
                match end {
                    End::Closed => into.push(0),
                    End::Full(limit) => {
                        into.push(1);
                        put(*limit, into);
                    }
                    End::Failed(why) => {
                        into.push(2);
                        put_text(why, into);
                    }
                }
            }
        }
    }
}

fn put_snapshot(snapshot: &Snapshot, into: &mut Vec<u8>) {
    for count in snapshot.tasks {
        put(count, into);
    }
    put(snapshot.workers.len() as u64, into);
    for state in &snapshot.workers {
        put(state.worker.into(), into);
        into.push(state.status);
        let numbers = [
            state.managed,
            state.process,
            state.spilled,
            state.tasks,
            state.values,
            state.silent,
        ];
        for number in numbers {
            put(number, into);
        }
    }
}

impl<'a> Event<'a> {
    /// Reads one.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let reader = &mut Reader::new(bytes);
        let worker = |reader: &mut Reader<'_>| reader.small().map(WorkerId);
        let event = match reader.byte()? {
            0 => Self::Began {
                address: reader.string()?,
                id: reader.string()?,
                version: reader.string()?,
                unix: reader.number()?,
                clock: reader.number()?,
            },
            1 => Self::Joined {
                worker: worker(reader)?,
                name: reader.string()?,
                address: reader.string()?,
                host: reader.string()?,
                pid: reader.number()?,
                threads: reader.small()?,
                memory: reader.number()?,
            },
            2 => Self::Lost {
                worker: worker(reader)?,
                cause: reader.string()?,
                drained: reader.byte()? != 0,
            },
            3 => Self::Batch {
                worker: worker(reader)?,
                bytes: reader.rest(),
            },
            4 => Self::Snapshot(snapshot(reader)?),
            5 => Self::Failed {
                object: reader.number()?,
                key: reader.string()?,
                worker: worker(reader)?,
                text: reader.string()?,
                traceback: reader.string()?,
            },
            6 => {
                let count = reader.count(2)?;
                let counts = (0..count).map(|_| Ok((reader.string()?, reader.number()?)));
                Self::Submitted(counts.collect::<Result<_, Malformed>>()?)
            }
            7 => {
                let group = reader.string()?;
                let count = reader.count(1)?;
                let inputs = (0..count).map(|_| reader.string());
                let inputs = inputs.collect::<Result<_, _>>()?;
                Self::Inputs { group, inputs }
            }
            8 => Self::Dropped(reader.number()?),
            9 => Self::Shuffle(shuffle(reader)?),
            11 => Self::Doomed {
                key: reader.string()?,
                text: reader.string()?,
            },
            12 => Self::Line {
                level: reader.byte()?,
                text: reader.string()?,
            },
            10 => {
                let count = reader.count(8)?;
                let groups = (0..count).map(|_| {
                    let name = reader.string()?;
                    let mut row = [0; 7];
                    for count in &mut row {
                        *count = reader.number()?;
                    }
                    Ok((name, States::of(row)))
                });
                Self::States(groups.collect::<Result<_, Malformed>>()?)
            }
            CHANGES => Self::Changes(snapshot(reader)?),
            PACKED => Self::Packed {
                length: reader.number()?,
                bytes: reader.rest(),
            },
            ENDED => Self::Ended(match reader.byte()? {
                0 => End::Closed,
                1 => End::Full(reader.number()?),
                2 => End::Failed(reader.string()?),
                _ => return Err(reader.wrong()),
            }),
            _ => return Err(Malformed(0)),
        };
        reader.end()?;
        Ok(event)
    }
}

fn shuffle(reader: &mut Reader<'_>) -> Result<Shuffle, Malformed> {
    let (name, state) = (reader.string()?, reader.byte()?);
    let [
        number,
        inputs,
        transferred,
        bytes,
        partitions,
        largest,
        servers,
        losses,
        bar,
    ] = reader.numbers()?;
    let count = reader.count(2)?;
    let quantiles = (0..count).map(|_| Ok((reader.number()?, reader.number()?)));
    let quantiles: Vec<_> = quantiles.collect::<Result<_, Malformed>>()?;
    let count = reader.count(1)?;
    let bars = (0..count).map(|_| reader.number());
    let bars: Vec<_> = bars.collect::<Result<_, Malformed>>()?;
    if quantiles.len() > MOST_SIZES || bars.len() > MOST_SIZES {
        return Err(reader.wrong());
    }
    Ok(Shuffle {
        number,
        name,
        state,
        inputs,
        transferred,
        bytes,
        partitions,
        largest,
        servers,
        losses,
        quantiles,
        bars,
        bar,
    })
}

fn snapshot(reader: &mut Reader<'_>) -> Result<Snapshot, Malformed> {
    let tasks = reader.numbers()?;
    let count = reader.count(8)?;
    let workers = (0..count).map(|_| {
        Ok(WorkerState {
            worker: reader.small()?,
            status: reader.byte()?,
            managed: reader.number()?,
            process: reader.number()?,
            spilled: reader.number()?,
            tasks: reader.number()?,
            values: reader.number()?,
            silent: reader.number()?,
        })
    });
    let workers = workers.collect::<Result<_, Malformed>>()?;
    Ok(Snapshot { tasks, workers })
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let worker = WorkerId(7);
        let events = [
            Event::Began {
                address: "treadle://127.0.0.1:1".into(),
                id: "Scheduler-1".into(),
                version: "0.1".into(),
                unix: 1_700_000_000_000_000,
                clock: 5,
            },
            Event::Joined {
                worker,
                name: "0".into(),
                address: "a".into(),
                host: "h".into(),
                pid: 5,
                threads: 2,
                memory: 1 << 40,
            },
            Event::Lost {
                worker,
                cause: "it was killed".into(),
                drained: false,
            },
            Event::Batch {
                worker,
                bytes: b"whatever",
            },
            Event::Snapshot(Snapshot {
                tasks: [1, 2, 3, 4, 1 << 40],
                workers: vec![WorkerState {
                    worker: 7,
                    status: 1,
                    managed: 9,
                    process: 10,
                    spilled: 11,
                    tasks: 12,
                    values: 13,
                    silent: 14,
                }],
            }),
            Event::Failed {
                object: 1 << 33,
                key: "<b>x</b>".into(),
                worker,
                text: "ZeroDivisionError".into(),
                traceback: "in divide".into(),
            },
            Event::Submitted(vec![("inc".into(), 5)]),
            Event::Inputs {
                group: "sum".into(),
                inputs: vec!["inc".into(), "dec".into()],
            },
            Event::Dropped(3),
            Event::Doomed {
                key: "x".into(),
                text: "KilledWorker".into(),
            },
            Event::Line {
                level: 30,
                text: "a line".into(),
            },
            Event::States(vec![(
                "inc".into(),
                States::of([1, 2, 3, 4, 5, 6, 1 << 40]),
            )]),
            Event::Shuffle(Shuffle {
                number: 6,
                name: "s".into(),
                state: 4,
                inputs: 7,
                transferred: 8,
                bytes: 1,
                partitions: 2,
                largest: 3,
                servers: 4,
                losses: 5,
                quantiles: vec![(0, 1), (50, 1 << 20)],
                bars: vec![1, 1 << 40],
                bar: 9,
            }),
            Event::Changes(Snapshot::default()),
            Event::Packed {
                length: 1 << 20,
                bytes: b"fewer",
            },
            Event::Ended(End::Closed),
            Event::Ended(End::Full(1 << 30)),
            Event::Ended(End::Failed("no space left".into())),
        ];
        for event in events {
            let mut bytes = Vec::new();
            event.encode(&mut bytes);
            assert_eq!(Event::decode(&bytes), Ok(event.clone()));
            if !matches!(event, Event::Batch { .. } | Event::Packed { .. }) {
                for end in 0..bytes.len() {
                    assert!(Event::decode(&bytes[..end]).is_err(), "{event:?} {end}");
                }
            }
        }
    }

    #[test]
    fn texts_of_errors_are_cut_at_a_character() {
        let text = "ä".repeat(LONGEST + 5);
        assert_eq!(about_error(&text).chars().count(), LONGEST);
        assert_eq!(about_error("short"), "short".to_string());
        assert_eq!(about_traceback("short"), "short".to_string());
        let text = alloc::format!("{}y", "ä".repeat(LONGEST_TRACEBACK));
        let kept = about_traceback(&text);
        assert!(kept.len() <= LONGEST_TRACEBACK && kept.ends_with("äy"));
    }
}
