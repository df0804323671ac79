//! What a worker recorded, as bytes: for the wire and for the history file alike.
//!
//! A head, what is beside records (names of groups that were not said before, keys of long tasks, what runs,
//! where threads were, lines of the log), then records, each as differences to the one before: a short task takes
//! about 17 bytes. Integers are varints.

use alloc::vec::Vec;

use treadle_types::varint::zigzag;

use crate::reader::{Malformed, Reader, put, put_signed, put_slice};
use crate::span::Kind;

/// The version of the format.
const VERSION: u8 = 4;
/// The one before, which has no [`System`]: histories are of it.
const EARLIER: u8 = 3;
/// The least bytes of a record.
const LEAST: usize = 10;
/// The bit of a record's first byte of what failed.
const FAILED: u8 = 0x80;

/// One thing that a worker did. Times are nanoseconds of its own clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When it began.
    pub began: u64,
    /// When a task's inputs were there, as objects.
    pub read: u64,
    /// When a task's function had returned.
    pub computed: u64,
    /// When it was over.
    pub ended: u64,
    /// The value that it is about, as [`ObjectId::to_u64`](treadle_types::ObjectId::to_u64).
    pub object: u64,
    /// Bytes of the value, or of rows.
    pub bytes: u64,
    /// The worker's number of a group; of a fetch, the id of the worker that had the value.
    pub group: u32,
    /// Which executor thread did it, or one of [`lane`](crate::lane).
    pub lane: u16,
    /// What was done.
    pub kind: Kind,
    /// Whether it raised, or brought nothing.
    pub failed: bool,
}

/// What is said once in a batch.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Head {
    /// The scheduler's clock less the worker's, in nanoseconds.
    pub offset: i64,
    /// Records that were lost for lack of room, since the last batch.
    pub lost: u64,
    /// Processor time that the worker's process has taken, in nanoseconds; 0: not known.
    pub processor: u64,
    /// What the system counts.
    pub system: System,
}

/// What the system counts of a worker's process and of its machine, since either began; 0: not known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct System {
    /// Bytes of memory that the process takes now beside its values and what it received: those of other libraries.
    pub native: u64,
    /// Bytes that the process has read from disks.
    pub read: u64,
    /// Bytes that the process has written to disks.
    pub written: u64,
    /// Bytes that the machine's network has received.
    pub received: u64,
    /// Bytes that the machine's network has sent.
    pub sent: u64,
    /// Microseconds for which something on the machine waited for processors, for memory, and for disks: the `some` of
    /// Linux' pressure stall information.
    pub stalled: [u64; 3],
}

impl System {
    fn numbers(&self) -> [u64; 8] {
        let [processors, memory, disks] = self.stalled;
        let Self {
            native,
            read,
            written,
            received,
            sent,
            ..
        } = *self;
        [
            native, read, written, received, sent, processors, memory, disks,
        ]
    }

    fn of(
        [
            native,
            read,
            written,
            received,
            sent,
            processors,
            memory,
            disks,
        ]: [u64; 8],
    ) -> Self {
        let stalled = [processors, memory, disks];
        Self {
            native,
            read,
            written,
            received,
            sent,
            stalled,
        }
    }
}

/// A task that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Running<'a> {
    /// The value that it will make.
    pub object: u64,
    /// Which executor thread runs it.
    pub lane: u16,
    /// Since when, by the worker's clock.
    pub began: u64,
    /// The encoded key.
    pub key: &'a [u8],
}

/// Tasks that run and are not named.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Unnamed {
    /// How many.
    pub count: u64,
    /// Since when, on average, by the worker's clock.
    pub began: u64,
}

impl Unnamed {
    /// Of when they began.
    pub fn of(began: impl Iterator<Item = u64>) -> Self {
        let (mut count, mut sum) = (0, 0_u128);
        for began in began {
            count += 1;
            sum += u128::from(began);
        }
        Self {
            count,
            began: (sum / u128::from(count.max(1))) as u64,
        }
    }
}

/// A place in programs where threads were: a node of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The place that called it, by its position: before this one. `None`: it is a group of tasks.
    pub parent: Option<u32>,
    /// A function and its file, or a group.
    pub name: &'a str,
    /// For how long threads were here, and nowhere deeper: microseconds.
    pub time: u64,
}

/// A line of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line<'a> {
    /// When, by the worker's clock.
    pub time: u64,
    /// As Python's `logging` has it, in tens: 30 is a warning.
    pub level: u8,
    /// What.
    pub text: &'a str,
}

/// What a batch has beside its records.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Beside<'a> {
    /// Numbers of groups, and their names.
    pub names: Vec<(u32, &'a str)>,
    /// Values, and the encoded keys of their tasks.
    pub keys: Vec<(u64, &'a [u8])>,
    /// The tasks that have run for long; `None`: nothing is said about them.
    pub running: Option<Vec<Running<'a>>>,
    /// Others of them, which keep threads busy: said with `running` alone.
    pub unnamed: Unnamed,
    /// Where threads were since the time of `sampled`.
    pub frames: Vec<Frame<'a>>,
    /// By the worker's clock.
    pub sampled: u64,
    /// The log.
    pub lines: Vec<Line<'a>>,
    /// Lines that were left out before them.
    pub lost_lines: u64,
}

impl<'a> Beside<'a> {
    fn put(&self, bytes: &mut Vec<u8>) {
        put(self.names.len() as u64, bytes);
        for (number, name) in &self.names {
            put(u64::from(*number), bytes);
            put_slice(name.as_bytes(), bytes);
        }
        put(self.keys.len() as u64, bytes);
        for (object, key) in &self.keys {
            put(*object, bytes);
            put_slice(key, bytes);
        }
        match &self.running {
            None => put(0, bytes),
            Some(running) => {
                put(running.len() as u64 + 1, bytes);
                for task in running {
                    put(task.object, bytes);
                    put(task.lane.into(), bytes);
                    put(task.began, bytes);
                    put_slice(task.key, bytes);
                }
                put(self.unnamed.count, bytes);
                put(self.unnamed.began, bytes);
            }
        }
        put(self.frames.len() as u64, bytes);
        for frame in &self.frames {
            put(
                frame.parent.map_or(0, |parent| u64::from(parent) + 1),
                bytes,
            );
            put_slice(frame.name.as_bytes(), bytes);
            put(frame.time, bytes);
        }
        // A batch that says nothing has zeros alone.
        let sampled = if self.frames.is_empty() {
            0
        } else {
            self.sampled
        };
        put(sampled, bytes);
        put(self.lines.len() as u64, bytes);
        for line in &self.lines {
            put(line.time, bytes);
            bytes.push(line.level);
            put_slice(line.text.as_bytes(), bytes);
        }
        put(self.lost_lines, bytes);
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count = reader.count(2)?;
        let names = (0..count).map(|_| Ok((reader.small()?, reader.text()?)));
        let names = names.collect::<Result<_, Malformed>>()?;
        let count = reader.count(2)?;
        let keys = (0..count).map(|_| Ok((reader.number()?, reader.slice()?)));
        let keys = keys.collect::<Result<_, Malformed>>()?;
        let mut unnamed = Unnamed::default();
        let running = match reader.number()?.checked_sub(1) {
            None => None,
            Some(count) => {
                let count = reader.fitting(count, 4)?;
                let running = (0..count).map(|_| {
                    Ok(Running {
                        object: reader.number()?,
                        lane: reader.short()?,
                        began: reader.number()?,
                        key: reader.slice()?,
                    })
                });
                let running = running.collect::<Result<_, Malformed>>()?;
                unnamed.count = reader.number()?;
                unnamed.began = reader.number()?;
                Some(running)
            }
        };
        let count = reader.count(3)?;
        let frames = (0..count).map(|place| {
            let parent = reader.small()?.checked_sub(1);
            if parent.is_some_and(|parent| parent as usize >= place) {
                return Err(reader.wrong());
            }
            Ok(Frame {
                parent,
                name: reader.text()?,
                time: reader.number()?,
            })
        });
        let frames = frames.collect::<Result<_, Malformed>>()?;
        let sampled = reader.number()?;
        let count = reader.count(3)?;
        let lines = (0..count).map(|_| {
            Ok(Line {
                time: reader.number()?,
                level: reader.byte()?,
                text: reader.text()?,
            })
        });
        Ok(Self {
            names,
            keys,
            running,
            unnamed,
            frames,
            sampled,
            lines: lines.collect::<Result<_, Malformed>>()?,
            lost_lines: reader.number()?,
        })
    }
}

/// A batch that was checked, to read.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// What is said once.
    pub head: Head,
    /// What is no record.
    pub beside: Beside<'a>,
    records: Vec<Record>,
}

/// Writes a batch.
fn write(
    head: Head,
    beside: &Beside<'_>,
    records: impl ExactSizeIterator<Item = Record>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + 20 * records.len());
    bytes.push(VERSION);
    put_signed(head.offset, &mut bytes);
    put(head.lost, &mut bytes);
    put(head.processor, &mut bytes);
    for number in head.system.numbers() {
        put(number, &mut bytes);
    }
    beside.put(&mut bytes);
    put(records.len() as u64, &mut bytes);
    let (mut time, mut task) = (0_u64, 0_i64);
    for record in records {
        let failed = if record.failed { FAILED } else { 0 };
        bytes.push(record.kind as u8 | failed);
        put(u64::from(record.lane), &mut bytes);
        put(u64::from(record.group), &mut bytes);
        put(zigzag(record.began.wrapping_sub(time) as i64), &mut bytes);
        time = record.began;
        // In order, whatever the clocks said.
        let read = record.read.max(record.began);
        let computed = record.computed.max(read);
        let ended = record.ended.max(computed);
        put(read - record.began, &mut bytes);
        put(computed - read, &mut bytes);
        put(ended - computed, &mut bytes);
        let number = (record.object >> 32) as i64;
        put_signed(number - task, &mut bytes);
        task = number;
        put(record.object & u64::from(u32::MAX), &mut bytes);
        put(record.bytes, &mut bytes);
    }
    bytes
}

impl<'a> Batch<'a> {
    /// The bytes of a batch.
    pub fn encode(
        head: Head,
        beside: &Beside<'_>,
        records: impl ExactSizeIterator<Item = Record>,
    ) -> Vec<u8> {
        write(head, beside, records)
    }

    /// Reads one.
    ///
    /// # Errors
    /// When the bytes are none: of another version, cut off, with more behind it, or with numbers that
    /// cannot be.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let head = head(&mut reader)?;
        let beside = Beside::read(&mut reader)?;
        let count = reader.count(LEAST)?;
        let mut records = Vec::with_capacity(count);
        let (mut time, mut task) = (0_u64, 0_i64);
        for _ in 0..count {
            records.push(record(&mut reader, &mut time, &mut task)?);
        }
        reader.end()?;
        Ok(Self {
            head,
            beside,
            records,
        })
    }

    /// What is said once, whether there is nothing else but what runs, and a digest of that, if it is said.
    /// The records are not looked at.
    ///
    /// # Errors
    /// When the bytes are none, as far as they were looked at.
    pub fn peek(bytes: &[u8]) -> Result<(Head, bool, Option<u64>), Malformed> {
        let mut reader = Reader::new(bytes);
        let head = head(&mut reader)?;
        let beside = Beside::read(&mut reader)?;
        let is_empty = beside.names.is_empty()
            && beside.keys.is_empty()
            && beside.frames.is_empty()
            && beside.lines.is_empty()
            && beside.lost_lines == 0
            && reader.number()? == 0;
        let unnamed = beside.unnamed;
        let running = beside.running.map(|running| {
            let numbers = running.iter();
            let numbers = numbers.flat_map(|task| [task.object, task.lane.into(), task.began]);
            let unnamed = (unnamed.count > 0).then_some([unnamed.count, unnamed.began]);
            let numbers = numbers.chain(unnamed.into_iter().flatten());
            numbers.fold(0, |sum: u64, number| {
                (sum ^ number)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .wrapping_add(1)
            })
        });
        Ok((head, is_empty, running))
    }

    /// What the worker did.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
}

fn head(reader: &mut Reader<'_>) -> Result<Head, Malformed> {
    let version = reader.byte()?;
    if !(EARLIER..=VERSION).contains(&version) {
        return Err(Malformed(0));
    }
    let (offset, lost, processor) = (reader.signed()?, reader.number()?, reader.number()?);
    let mut system = [0; 8];
    if version != EARLIER {
        for number in &mut system {
            *number = reader.number()?;
        }
    }
    Ok(Head {
        offset,
        lost,
        processor,
        system: System::of(system),
    })
}

#[inline]
fn record(reader: &mut Reader<'_>, time: &mut u64, task: &mut i64) -> Result<Record, Malformed> {
    let first = reader.byte()?;
    let kind = Kind::of(first & !FAILED).ok_or_else(|| reader.wrong())?;
    let lane = reader.short()?;
    let group = reader.small()?;
    let began = time.wrapping_add(reader.signed()? as u64);
    *time = began;
    let mut next = began;
    let mut later = |reader: &mut Reader<'_>| {
        let offset = reader.number()?;
        next = next.checked_add(offset).ok_or_else(|| reader.wrong())?;
        Ok(next)
    };
    let read = later(reader)?;
    let computed = later(reader)?;
    let ended = later(reader)?;
    let number = task.checked_add(reader.signed()?);
    let number = number.filter(|number| u32::try_from(*number).is_ok());
    *task = number.ok_or_else(|| reader.wrong())?;
    let attempt = reader.small()?;
    Ok(Record {
        began,
        read,
        computed,
        ended,
        object: (*task as u64) << 32 | u64::from(attempt),
        bytes: reader.number()?,
        group,
        lane,
        kind,
        failed: first & FAILED != 0,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn any_record() -> impl Strategy<Value = Record> {
        let kinds = &[
            Kind::Task,
            Kind::Fetch,
            Kind::Spill,
            Kind::Shuffle,
            Kind::Cast,
        ];
        let kind = prop::sample::select(&kinds[..]);
        let times = (
            0..1_u64 << 40,
            0..1_u64 << 34,
            0..1_u64 << 34,
            0..1_u64 << 34,
        );
        (
            times,
            any::<u64>(),
            any::<u64>(),
            0..20_u32,
            any::<u16>(),
            kind,
            any::<bool>(),
        )
            .prop_map(
                |((began, read, computed, ended), object, bytes, group, lane, kind, failed)| {
                    Record {
                        began,
                        read: began + read,
                        computed: began + read + computed,
                        ended: began + read + computed + ended,
                        object,
                        bytes,
                        group,
                        lane,
                        kind,
                        failed,
                    }
                },
            )
    }

    #[test]
    fn a_batch_of_the_version_before_is_read() {
        let head = Head {
            offset: -3,
            lost: 2,
            processor: 9,
            system: System::default(),
        };
        let mut bytes = Batch::encode(head, &Beside::default(), [].into_iter());
        // Where those numbers are.
        assert_eq!(bytes[4..12], [0; 8]);
        bytes.drain(4..12);
        bytes[0] = EARLIER;
        assert_eq!(Batch::decode(&bytes).unwrap().head, head);
        bytes[0] = EARLIER - 1;
        Batch::decode(&bytes).unwrap_err();
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            records in prop::collection::vec(any_record(), 0..40),
            offset in any::<i64>(),
        ) {
            let system = System::of([1, 2, 3, 4, 5, 6, 7, 8]);
            let head = Head { offset, lost: 3, processor: 5, system };
            let running = Running { object: 1 << 33, lane: 3, began: 5, key: b"key" };
            let frame = |parent, name| Frame { parent, name, time: 1 << 20 };
            let beside = Beside {
                names: vec![(1, "inc"), (2, "")],
                keys: vec![(9, &b"\x05\x01x"[..])],
                running: (offset % 3 != 0).then(|| vec![running; offset as usize % 2]),
                unnamed: if offset % 3 == 0 { Unnamed::default() } else { Unnamed { count: 2, began: 9 } },
                frames: vec![frame(None, "inc"), frame(Some(0), "f (a.py:1)"), frame(Some(0), "")],
                sampled: 7,
                lines: vec![Line { time: 5, level: 30, text: "line" }],
                lost_lines: 2,
            };
            let bytes = Batch::encode(head, &beside, records.iter().copied());
            let batch = Batch::decode(&bytes).unwrap();
            prop_assert_eq!(batch.head, head);
            prop_assert_eq!(&batch.beside, &beside);
            prop_assert_eq!(batch.records(), &records[..]);
            for end in 0..bytes.len() {
                prop_assert!(Batch::decode(&bytes[..end]).is_err());
            }
        }
    }

    #[test]
    fn a_place_is_called_by_one_before_it() {
        for parent in [1, 2, u32::MAX - 1] {
            let frame = |parent| Frame {
                parent,
                name: "f",
                time: 1,
            };
            let beside = Beside {
                frames: vec![frame(None), frame(Some(parent))],
                ..Beside::default()
            };
            let bytes = Batch::encode(Head::default(), &beside, [].into_iter());
            assert!(Batch::decode(&bytes).is_err(), "{parent}");
        }
    }

    #[test]
    fn a_short_task_takes_few_bytes() {
        const LATE: u64 = 1 << 50;
        let record = |number: u64| Record {
            began: LATE + number * 50_000,
            read: LATE + number * 50_000 + 400,
            computed: LATE + number * 50_000 + 5_000,
            ended: LATE + number * 50_000 + 6_000,
            object: (1_000 + number) << 32 | 1,
            bytes: 28,
            group: 1,
            lane: 0,
            kind: Kind::Task,
            failed: false,
        };
        let bytes = Batch::encode(
            Head::default(),
            &Beside::default(),
            (0..1_000_u32).map(|number| record(number.into())),
        );
        assert!(bytes.len() <= 17_000, "{}", bytes.len());
    }
}
