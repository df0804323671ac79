//! Reports of a worker, in columns. How it is ([`Report::Health`]) is a message of its own.

use std::time::Duration;

use bytes::Bytes;
use treadle_types::{Attempt, Holders, ObjectId, Report, Returned, TaskId};

use super::WireError;
use super::column::{Cells, Column};
use super::commands::holders;
use super::family::{Family, Rows};
use super::keep::{Keeper, Kept};
use crate::wire::proto;

const FINISHED: u64 = 0;
const FAILED: u64 = 1;
const RETRACTED: u64 = 2;
const STARTED: u64 = 3;
const STOPPED: u64 = 4;
const UNAVAILABLE: u64 = 5;
const STORED: u64 = 6;
const COPY_FAILED: u64 = 7;
const GONE: u64 = 8;
const SECEDED: u64 = 9;
const REJOINED: u64 = 10;
const GIVEN_BACK: u64 = 11;
const IMMOVABLE: u64 = 12;
const NOT_COPYABLE: u64 = 13;

pub(super) const VALUE: u64 = 1;
const KEPT: u64 = 2;
pub(super) const SAME_CLASS: u64 = 4;
pub(super) const CLASS: u64 = 8;

#[derive(Debug, Default)]
pub struct Reports {
    kinds: Column,
    tasks: Column,
    attempts: Column,
    durations: Column,
    nbytes: Column,
    flags: Column,
    lengths: Column,
    blobs: Column,
    input_tasks: Column,
    input_attempts: Column,
    tried_counts: Column,
    tried: Column,
    class: Bytes,
}

impl Reports {
    fn columns(&mut self) -> [&mut Column; 12] {
        [
            &mut self.kinds,
            &mut self.tasks,
            &mut self.attempts,
            &mut self.durations,
            &mut self.nbytes,
            &mut self.flags,
            &mut self.lengths,
            &mut self.blobs,
            &mut self.input_tasks,
            &mut self.input_attempts,
            &mut self.tried_counts,
            &mut self.tried,
        ]
    }

    /// `false`: it is not one of these.
    pub(super) fn push(&mut self, report: &Report) -> bool {
        match report {
            Report::Finished {
                object,
                value,
                duration,
            } => {
                self.object(FINISHED, *object);
                self.duration(*duration);
                self.returned(value);
            }
            Report::Failed {
                object,
                error,
                duration,
            } => {
                self.object(FAILED, *object);
                self.duration(*duration);
                put_blob(error, &mut self.lengths, &mut self.blobs);
            }
            Report::Retracted(object) => self.object(RETRACTED, *object),
            Report::Started(object) => self.object(STARTED, *object),
            Report::Stopped(object) => self.object(STOPPED, *object),
            Report::Unavailable {
                object,
                input,
                tried,
            } => {
                self.object(UNAVAILABLE, *object);
                self.input(*input);
                self.tried(tried);
            }
            Report::GivenBack(object) => self.object(GIVEN_BACK, *object),
            Report::Immovable {
                object,
                input,
                error,
            } => {
                self.object(IMMOVABLE, *object);
                self.input(*input);
                put_blob(error, &mut self.lengths, &mut self.blobs);
            }
            Report::Stored { object, nbytes } => {
                self.object(STORED, *object);
                self.nbytes.put(*nbytes);
            }
            Report::CopyFailed { object, tried } => {
                self.object(COPY_FAILED, *object);
                self.tried(tried);
            }
            Report::NotCopyable(object) => self.object(NOT_COPYABLE, *object),
            Report::Gone(object) => self.object(GONE, *object),
            Report::Seceded(object) => self.object(SECEDED, *object),
            Report::Rejoined(object) => self.object(REJOINED, *object),
            Report::Health { .. } => return false,
        }
        true
    }

    #[inline]
    fn object(&mut self, kind: u64, object: ObjectId) {
        self.kinds.put(kind);
        self.tasks.put_delta(object.task.0.into());
        self.attempts.put_delta(object.attempt.0.into());
    }

    fn input(&mut self, input: ObjectId) {
        self.input_tasks.put_delta(input.task.0.into());
        self.input_attempts.put_delta(input.attempt.0.into());
    }

    #[inline]
    fn duration(&mut self, duration: Duration) {
        // 584 years are enough.
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.durations.put(nanoseconds);
    }

    #[inline]
    fn returned(&mut self, returned: &Returned) {
        let Returned {
            nbytes,
            inline,
            kept,
            class,
        } = returned;
        self.nbytes.put(*nbytes);
        let mut flags = if *kept { KEPT } else { 0 };
        if let Some(value) = inline {
            flags |= VALUE;
            put_blob(value, &mut self.lengths, &mut self.blobs);
        }
        flags |= put_class(class, &mut self.class, &mut self.lengths, &mut self.blobs);
        self.flags.put(flags);
    }

    fn tried(&mut self, tried: &Holders) {
        self.tried_counts.put(tried.len() as u64);
        for holder in tried {
            self.tried.put(holder.0.into());
        }
    }

    /// An upper bound of what a report adds, in bytes.
    pub(super) fn cost(report: &Report) -> usize {
        match report {
            Report::Finished { value, .. } => {
                64 + value.inline.as_ref().map_or(0, Bytes::len) + value.class.len()
            }
            Report::Failed { error, .. } | Report::Immovable { error, .. } => 48 + error.len(),
            Report::Unavailable { tried, .. } | Report::CopyFailed { tried, .. } => {
                48 + 5 * tried.len()
            }
            _ => 32,
        }
    }
}

#[inline]
pub(super) fn put_blob(blob: &Bytes, lengths: &mut Column, blobs: &mut Column) {
    lengths.put(blob.len() as u64);
    blobs.put_bytes(blob);
}

/// Writes a class unless it is the one before. Returns the flags that say so.
#[inline]
pub(super) fn put_class(
    class: &Bytes,
    before: &mut Bytes,
    lengths: &mut Column,
    blobs: &mut Column,
) -> u64 {
    if class.is_empty() {
        return 0;
    }
    if class == before {
        return SAME_CLASS;
    }
    before.clone_from(class);
    put_blob(class, lengths, blobs);
    CLASS
}

impl Family for Reports {
    const FIELD: u32 = 2;

    fn is_empty(&self) -> bool {
        self.kinds.len() == 0
    }

    fn written(&mut self) -> usize {
        let columns = self.columns().into_iter().zip(1..);
        columns.map(|(column, field)| column.written(field)).sum()
    }

    fn write(&mut self, into: &mut Vec<u8>) {
        self.class = Bytes::new();
        for (column, field) in self.columns().into_iter().zip(1..) {
            column.write(field, into);
        }
    }
}

#[derive(Debug)]
pub struct ReportRows {
    kinds: Cells,
    tasks: Cells,
    attempts: Cells,
    durations: Cells,
    nbytes: Cells,
    flags: Cells,
    lengths: Cells,
    blobs: Kept,
    input_tasks: Cells,
    input_attempts: Cells,
    tried_counts: Cells,
    tried: Cells,
    class: Bytes,
}

impl ReportRows {
    pub(super) fn new(section: proto::Reports, keeper: Keeper) -> Self {
        Self {
            kinds: Cells::new("kinds", section.kinds),
            tasks: Cells::new("tasks", section.tasks),
            attempts: Cells::new("attempts", section.attempts),
            durations: Cells::new("durations", section.durations),
            nbytes: Cells::new("nbytes", section.nbytes),
            flags: Cells::new("flags", section.flags),
            lengths: Cells::new("lengths", section.lengths),
            blobs: keeper.column(Cells::new("blobs", section.blobs)),
            input_tasks: Cells::new("input_tasks", section.input_tasks),
            input_attempts: Cells::new("input_attempts", section.input_attempts),
            tried_counts: Cells::new("tried_counts", section.tried_counts),
            tried: Cells::new("tried", section.tried),
            class: Bytes::new(),
        }
    }

    #[inline]
    fn duration(&mut self) -> Result<Duration, WireError> {
        Ok(Duration::from_nanos(self.durations.get()?))
    }

    #[inline]
    fn blob(&mut self) -> Result<Bytes, WireError> {
        let length = self.lengths.get()?;
        self.blobs.next(length)
    }

    #[inline]
    fn returned(&mut self) -> Result<Returned, WireError> {
        let nbytes = self.nbytes.get()?;
        let flags = self.flags.get_flags(VALUE | KEPT | SAME_CLASS | CLASS)?;
        let inline = match flags & VALUE {
            0 => None,
            _ => Some(self.blob()?),
        };
        if flags & CLASS != 0 {
            self.class = self.blob()?;
        }
        Ok(Returned {
            nbytes,
            inline,
            kept: flags & KEPT != 0,
            class: match flags & (CLASS | SAME_CLASS) {
                0 => Bytes::new(),
                _ => self.class.clone(),
            },
        })
    }

    fn input(&mut self) -> Result<ObjectId, WireError> {
        let task = TaskId(self.input_tasks.get_delta_u32()?);
        let attempt = Attempt(self.input_attempts.get_delta_u32()?);
        Ok(ObjectId::new(task, attempt))
    }

    fn tried(&mut self) -> Result<Holders, WireError> {
        let count = self.tried_counts.get()?;
        holders(&mut self.tried, count)
    }
}

impl Rows for ReportRows {
    type Message = Report;

    #[inline]
    fn next(&mut self) -> Result<Option<Report>, WireError> {
        if self.kinds.is_done() {
            return Ok(None);
        }
        let kind = self.kinds.get()?;
        let task = TaskId(self.tasks.get_delta_u32()?);
        let attempt = Attempt(self.attempts.get_delta_u32()?);
        let object = ObjectId::new(task, attempt);
        Ok(Some(match kind {
            FINISHED => Report::Finished {
                object,
                duration: self.duration()?,
                value: self.returned()?,
            },
            FAILED => Report::Failed {
                object,
                duration: self.duration()?,
                error: self.blob()?,
            },
            RETRACTED => Report::Retracted(object),
            STARTED => Report::Started(object),
            STOPPED => Report::Stopped(object),
            UNAVAILABLE => Report::Unavailable {
                object,
                input: self.input()?,
                tried: self.tried()?,
            },
            GIVEN_BACK => Report::GivenBack(object),
            IMMOVABLE => Report::Immovable {
                object,
                input: self.input()?,
                error: self.blob()?,
            },
            STORED => Report::Stored {
                object,
                nbytes: self.nbytes.get()?,
            },
            COPY_FAILED => Report::CopyFailed {
                object,
                tried: self.tried()?,
            },
            NOT_COPYABLE => Report::NotCopyable(object),
            GONE => Report::Gone(object),
            SECEDED => Report::Seceded(object),
            REJOINED => Report::Rejoined(object),
            value => {
                return Err(WireError::Range {
                    column: "kinds",
                    value,
                });
            }
        }))
    }

    fn end(&self) -> Result<(), WireError> {
        self.blobs.end()?;
        for column in [
            &self.tasks,
            &self.attempts,
            &self.durations,
            &self.nbytes,
            &self.flags,
            &self.lengths,
            &self.input_tasks,
            &self.input_attempts,
            &self.tried_counts,
            &self.tried,
        ] {
            column.end()?;
        }
        Ok(())
    }
}
