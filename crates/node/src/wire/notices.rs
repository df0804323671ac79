//! How tasks stand, for a client, in columns. Failures and cancellations are messages of their own.

use bytes::Bytes;
use treadle_types::{Attempt, ObjectId, TaskId, WorkerId};

use super::WireError;
use super::column::{Cells, Column};
use super::family::{Family, Rows};
use super::keep::{Keeper, Kept};
use super::reports::{CLASS, SAME_CLASS, VALUE, put_blob, put_class};
use crate::message::Standing;
use crate::wire::proto;

const FINISHED: u64 = 0;
const PENDING: u64 = 1;
const UNKNOWN: u64 = 2;

const HOLDER: u64 = 16;

/// A [`Standing::Finished`], by reference.
#[derive(Debug)]
pub(crate) struct Finished<'a> {
    pub(crate) nbytes: u64,
    pub(crate) inline: Option<&'a Bytes>,
    pub(crate) class: &'a Bytes,
    pub(crate) holder: Option<WorkerId>,
    pub(crate) object: ObjectId,
}

impl<'a> Finished<'a> {
    fn of(standing: &'a Standing) -> Option<Self> {
        let Standing::Finished {
            nbytes,
            inline,
            class,
            holder,
            object,
        } = standing
        else {
            return None;
        };
        Some(Self {
            nbytes: *nbytes,
            inline: inline.as_ref(),
            class,
            holder: *holder,
            object: ObjectId::from_u64(*object),
        })
    }
}

#[derive(Debug, Default)]
pub struct Notices {
    kinds: Column,
    ids: Column,
    nbytes: Column,
    flags: Column,
    lengths: Column,
    blobs: Column,
    holders: Column,
    tasks: Column,
    attempts: Column,
    class: Bytes,
}

impl Notices {
    fn columns(&mut self) -> [&mut Column; 9] {
        [
            &mut self.kinds,
            &mut self.ids,
            &mut self.nbytes,
            &mut self.flags,
            &mut self.lengths,
            &mut self.blobs,
            &mut self.holders,
            &mut self.tasks,
            &mut self.attempts,
        ]
    }

    /// `false`: it is not one of these.
    pub(super) fn push(&mut self, id: u32, standing: &Standing) -> bool {
        match standing {
            Standing::Finished { .. } => {
                if let Some(finished) = Finished::of(standing) {
                    self.push_finished(id, &finished);
                }
            }
            Standing::Pending => self.head(PENDING, id),
            Standing::Unknown => self.head(UNKNOWN, id),
            Standing::Failed(_) | Standing::Cancelled(_) => return false,
        }
        true
    }

    #[inline]
    fn head(&mut self, kind: u64, id: u32) {
        self.kinds.put(kind);
        self.ids.put_delta(id.into());
    }

    #[inline]
    pub(super) fn push_finished(&mut self, id: u32, finished: &Finished<'_>) {
        self.head(FINISHED, id);
        self.nbytes.put(finished.nbytes);
        let mut flags = 0;
        if let Some(value) = finished.inline {
            flags |= VALUE;
            put_blob(value, &mut self.lengths, &mut self.blobs);
        }
        flags |= put_class(
            finished.class,
            &mut self.class,
            &mut self.lengths,
            &mut self.blobs,
        );
        if let Some(holder) = finished.holder {
            flags |= HOLDER;
            self.holders.put(holder.0.into());
        }
        self.flags.put(flags);
        self.tasks.put_delta(finished.object.task.0.into());
        self.attempts.put_delta(finished.object.attempt.0.into());
    }

    /// An upper bound of what a notice adds, in bytes.
    pub(super) fn cost(standing: &Standing) -> usize {
        Finished::of(standing).map_or(16, |finished| Self::cost_of(&finished))
    }

    /// As [`Notices::cost`].
    #[inline]
    pub(super) fn cost_of(finished: &Finished<'_>) -> usize {
        72 + finished.inline.map_or(0, Bytes::len) + finished.class.len()
    }
}

impl Family for Notices {
    const FIELD: u32 = 3;

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
pub struct NoticeRows {
    kinds: Cells,
    ids: Cells,
    nbytes: Cells,
    flags: Cells,
    lengths: Cells,
    blobs: Kept,
    holders: Cells,
    tasks: Cells,
    attempts: Cells,
    class: Bytes,
}

impl NoticeRows {
    pub(super) fn new(section: proto::Notices, keeper: Keeper) -> Self {
        Self {
            kinds: Cells::new("kinds", section.kinds),
            ids: Cells::new("ids", section.ids),
            nbytes: Cells::new("nbytes", section.nbytes),
            flags: Cells::new("flags", section.flags),
            lengths: Cells::new("lengths", section.lengths),
            blobs: keeper.column(Cells::new("blobs", section.blobs)),
            holders: Cells::new("holders", section.holders),
            tasks: Cells::new("tasks", section.tasks),
            attempts: Cells::new("attempts", section.attempts),
            class: Bytes::new(),
        }
    }

    #[inline]
    fn blob(&mut self) -> Result<Bytes, WireError> {
        let length = self.lengths.get()?;
        self.blobs.next(length)
    }

    #[inline]
    fn finished(&mut self) -> Result<Standing, WireError> {
        let nbytes = self.nbytes.get()?;
        let flags = self.flags.get_flags(VALUE | SAME_CLASS | CLASS | HOLDER)?;
        let inline = match flags & VALUE {
            0 => None,
            _ => Some(self.blob()?),
        };
        if flags & CLASS != 0 {
            self.class = self.blob()?;
        }
        let class = match flags & (CLASS | SAME_CLASS) {
            0 => Bytes::new(),
            _ => self.class.clone(),
        };
        let holder = match flags & HOLDER {
            0 => None,
            _ => Some(WorkerId(self.holders.get_u32()?)),
        };
        let task = TaskId(self.tasks.get_delta_u32()?);
        let attempt = Attempt(self.attempts.get_delta_u32()?);
        Ok(Standing::Finished {
            nbytes,
            inline,
            class,
            holder,
            object: ObjectId::new(task, attempt).to_u64(),
        })
    }
}

impl Rows for NoticeRows {
    type Message = (u32, Standing);

    #[inline]
    fn next(&mut self) -> Result<Option<(u32, Standing)>, WireError> {
        if self.kinds.is_done() {
            return Ok(None);
        }
        let kind = self.kinds.get()?;
        let id = self.ids.get_delta_u32()?;
        let standing = match kind {
            FINISHED => self.finished()?,
            PENDING => Standing::Pending,
            UNKNOWN => Standing::Unknown,
            value => {
                return Err(WireError::Range {
                    column: "kinds",
                    value,
                });
            }
        };
        Ok(Some((id, standing)))
    }

    fn end(&self) -> Result<(), WireError> {
        self.blobs.end()?;
        for column in [
            &self.ids,
            &self.nbytes,
            &self.flags,
            &self.lengths,
            &self.holders,
            &self.tasks,
            &self.attempts,
        ] {
            column.end()?;
        }
        Ok(())
    }
}
