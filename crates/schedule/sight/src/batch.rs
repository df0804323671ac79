//! What a worker recorded, as bytes: for the wire and for the history file alike.
//!
//! A head, names of groups that were not said before, keys of long tasks, then records, each as
//! differences to the one before: a short task takes about 17 bytes. Integers are varints.

use alloc::vec::Vec;

use treadle_types::varint::zigzag;

use crate::reader::{Malformed, Reader, put, put_signed, put_slice};
use crate::span::Kind;

/// The version of the format.
const VERSION: u8 = 1;
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
}

/// A batch that was checked, to read.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// What is said once.
    pub head: Head,
    /// Numbers of groups, and their names.
    pub names: Vec<(u32, &'a str)>,
    /// Values, and the encoded keys of their tasks.
    pub keys: Vec<(u64, &'a [u8])>,
    records: Vec<Record>,
}

/// Writes a batch.
fn write(
    head: Head,
    names: &[(u32, &str)],
    keys: &[(u64, &[u8])],
    records: impl ExactSizeIterator<Item = Record>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + 20 * records.len());
    bytes.push(VERSION);
    put_signed(head.offset, &mut bytes);
    put(head.lost, &mut bytes);
    put(head.processor, &mut bytes);
    put(names.len() as u64, &mut bytes);
    for (number, name) in names {
        put(u64::from(*number), &mut bytes);
        put_slice(name.as_bytes(), &mut bytes);
    }
    put(keys.len() as u64, &mut bytes);
    for (object, key) in keys {
        put(*object, &mut bytes);
        put_slice(key, &mut bytes);
    }
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
        names: &[(u32, &str)],
        keys: &[(u64, &[u8])],
        records: impl ExactSizeIterator<Item = Record>,
    ) -> Vec<u8> {
        write(head, names, keys, records)
    }

    /// Reads one.
    ///
    /// # Errors
    /// When the bytes are none: of another version, cut off, with more behind it, or with numbers that
    /// cannot be.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let head = head(&mut reader)?;
        let count = reader.count(2)?;
        let mut names = Vec::with_capacity(count);
        for _ in 0..count {
            names.push((reader.small()?, reader.text()?));
        }
        let count = reader.count(2)?;
        let mut keys = Vec::with_capacity(count);
        for _ in 0..count {
            keys.push((reader.number()?, reader.slice()?));
        }
        let count = reader.count(LEAST)?;
        let mut records = Vec::with_capacity(count);
        let (mut time, mut task) = (0_u64, 0_i64);
        for _ in 0..count {
            records.push(record(&mut reader, &mut time, &mut task)?);
        }
        reader.end()?;
        Ok(Self {
            head,
            names,
            keys,
            records,
        })
    }

    /// What is said once, and whether there is nothing else: all counts that follow are 0.
    ///
    /// # Errors
    /// When the bytes are none, as far as they were looked at.
    pub fn peek(bytes: &[u8]) -> Result<(Head, bool), Malformed> {
        let mut reader = Reader::new(bytes);
        let head = head(&mut reader)?;
        Ok((head, reader.rest().iter().all(|byte| *byte == 0)))
    }

    /// What the worker did.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
}

fn head(reader: &mut Reader<'_>) -> Result<Head, Malformed> {
    if reader.byte()? != VERSION {
        return Err(Malformed(0));
    }
    Ok(Head {
        offset: reader.signed()?,
        lost: reader.number()?,
        processor: reader.number()?,
    })
}

#[inline]
fn record(reader: &mut Reader<'_>, time: &mut u64, task: &mut i64) -> Result<Record, Malformed> {
    let first = reader.byte()?;
    let kind = Kind::of(first & !FAILED).ok_or_else(|| reader.wrong())?;
    let lane = reader.small()?;
    let lane = lane.try_into().map_err(|_| reader.wrong())?;
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
        let kind = prop::sample::select(&[Kind::Task, Kind::Fetch, Kind::Spill, Kind::Shuffle][..]);
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

    proptest! {
        #[test]
        fn what_was_written_is_read(
            records in prop::collection::vec(any_record(), 0..40),
            offset in any::<i64>(),
        ) {
            let head = Head { offset, lost: 3, processor: 5 };
            let (names, keys) = ([(1, "inc"), (2, "")], [(9, &b"\x05\x01x"[..])]);
            let bytes = Batch::encode(head, &names, &keys, records.iter().copied());
            let batch = Batch::decode(&bytes).unwrap();
            prop_assert_eq!(batch.head, head);
            prop_assert_eq!(&batch.names[..], &names[..]);
            prop_assert_eq!(&batch.keys[..], &keys[..]);
            prop_assert_eq!(batch.records(), &records[..]);
            for end in 0..bytes.len() {
                prop_assert!(Batch::decode(&bytes[..end]).is_err());
            }
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
            &[],
            &[],
            (0..1_000_u32).map(|number| record(number.into())),
        );
        assert!(bytes.len() <= 17_000, "{}", bytes.len());
    }
}
