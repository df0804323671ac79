//! What a worker tells the scheduler.

use core::time::Duration;

use bytes::Bytes;

use crate::{Holders, ObjectId};

/// One report. They are handled in the order in which they were sent.
#[derive(Clone, PartialEq, Debug)]
pub enum Report {
    /// A task ran.
    Finished {
        /// The task's attempt, and its value.
        object: ObjectId,
        value: Returned,
        /// How long the function ran.
        duration: Duration,
    },
    /// A task raised. Also when its recipe, an input or its value could not be decoded or encoded.
    Failed {
        /// The attempt.
        object: ObjectId,
        /// What was raised; opaque to the scheduler.
        error: Bytes,
        /// How long the function ran.
        duration: Duration,
    },
    /// A task was given back and will not run here.
    Retracted(ObjectId),
    /// A task that was to be given back has started.
    Started(ObjectId),
    /// A cancelled task is over, and its slot is free.
    Stopped(ObjectId),
    /// A task was given back, since one of its inputs could not be got.
    Unavailable {
        /// The attempt that was given back.
        object: ObjectId,
        input: ObjectId,
        /// Who was asked for it, in vain.
        tried: Holders,
    },
    /// A task asked to run again, elsewhere if possible, and has no value.
    GivenBack(ObjectId),
    /// A task was given back, since one of its inputs cannot be serialised where it is.
    Immovable {
        /// The attempt that was given back.
        object: ObjectId,
        input: ObjectId,
        /// What its holder said, as if the task had raised it; opaque to the scheduler.
        error: Bytes,
    },
    /// The worker has a copy of a value: it was told to make one, or has read it for a task.
    Stored {
        /// The value.
        object: ObjectId,
        /// Its size in bytes.
        nbytes: u64,
    },
    /// A copy could not be made.
    CopyFailed {
        /// The value.
        object: ObjectId,
        /// Who was asked for it, in vain.
        tried: Holders,
    },
    /// A copy can be made by nobody: the value cannot be serialised where it is.
    NotCopyable(ObjectId),
    /// A value that the worker held is gone: its file cannot be read any more.
    Gone(ObjectId),
    /// A running task has given its slot away: it waits for something, or said that it is long.
    Seceded(ObjectId),
    /// A task that had given its slot away has one again.
    Rejoined(ObjectId),
    /// How the worker is, now and then.
    Health {
        /// Bytes of memory that its values take.
        managed: u64,
        /// Bytes of memory that the process takes.
        process: u64,
        /// Bytes of its values that are on disk only.
        spilled: u64,
        /// Whether it starts no tasks until it has freed memory.
        paused: bool,
    },
}

impl Report {
    /// What it is about, unless that is the worker.
    pub fn object(&self) -> Option<ObjectId> {
        match self {
            Self::Finished { object, .. }
            | Self::Failed { object, .. }
            | Self::Retracted(object)
            | Self::GivenBack(object)
            | Self::Immovable { object, .. }
            | Self::NotCopyable(object)
            | Self::Started(object)
            | Self::Stopped(object)
            | Self::Unavailable { object, .. }
            | Self::Stored { object, .. }
            | Self::CopyFailed { object, .. }
            | Self::Gone(object)
            | Self::Seceded(object)
            | Self::Rejoined(object) => Some(*object),
            Self::Health { .. } => None,
        }
    }
}

/// What a task returned.
#[derive(Clone, PartialEq, Debug)]
pub struct Returned {
    /// The size of the value in bytes.
    pub nbytes: u64,
    /// The encoded value, if it is small; then it lives at the scheduler.
    pub inline: Option<Bytes>,
    /// Whether the worker holds it, too or alone.
    pub kept: bool,
    /// The type of a value that is not inline, as the worker names it; opaque to the scheduler.
    pub class: Bytes,
}
