//! What the scheduler tells a worker.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{ClientId, ObjectId, Priority, WorkerId};

/// Workers that hold a value.
pub type Holders = SmallVec<[WorkerId; 2]>;

/// One instruction. They are carried out in the order in which they were sent.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Run a task, once its inputs are there. Answered by [`Finished`](crate::Report::Finished),
    /// [`Failed`](crate::Report::Failed), [`GivenBack`](crate::Report::GivenBack),
    /// [`Unavailable`](crate::Report::Unavailable) or [`Immovable`](crate::Report::Immovable).
    Assign(Assignment),
    /// Give an assigned task back unless it has started. Answered by
    /// [`Retracted`](crate::Report::Retracted) or [`Started`](crate::Report::Started); by nothing
    /// beyond its own report if that was sent before.
    Retract(ObjectId),
    /// Nobody wants the task any more. Answered by [`Stopped`](crate::Report::Stopped) as soon as
    /// its slot is free, which for a running function is when it returns; by nothing beyond its own
    /// report if that was sent before.
    Cancel(ObjectId),
    /// Drop a value.
    Release(ObjectId),
    /// Get a value from one of the holders and keep it. Answered by
    /// [`Stored`](crate::Report::Stored), [`CopyFailed`](crate::Report::CopyFailed) or
    /// [`NotCopyable`](crate::Report::NotCopyable). Where the value is already, the report that said
    /// so is the answer.
    Copy {
        /// The value.
        object: ObjectId,
        /// Its size in bytes.
        nbytes: u64,
        holders: Holders,
    },
}

/// A task to run.
#[derive(Clone, PartialEq, Debug)]
pub struct Assignment {
    /// The task and the attempt, which names its value too.
    pub object: ObjectId,
    /// Which of the tasks that are ready runs first.
    pub priority: Priority,
    /// Whose definitions (functions, shared constants) the recipe refers to.
    pub client: ClientId,
    /// What to call with which arguments; opaque to all but the code that runs it.
    pub recipe: Bytes,
    /// The values that the task reads, in the order in which the recipe refers to them.
    pub inputs: Inputs,
    /// Whether to keep the value here even if it travels inline: somebody will read it here.
    pub keep: bool,
    /// Whether the value is an actor, which never travels.
    pub actor: bool,
}

/// The values that a task reads: most read no more than two.
pub type Inputs = SmallVec<[Input; 2]>;

/// A value that a task reads.
#[derive(Clone, PartialEq, Debug)]
pub struct Input {
    /// The value.
    pub object: ObjectId,
    /// Its size in bytes; 0 if it is not known yet.
    pub nbytes: u64,
    /// Where to get it.
    pub place: Place,
}

/// Where a value is.
#[derive(Clone, PartialEq, Debug)]
pub enum Place {
    /// The worker has it, is getting it, or has been told to make it.
    Here,
    /// In the message.
    Inline(Bytes),
    /// At other workers. The one that reads it keeps a copy, and reports it
    /// ([`Stored`](crate::Report::Stored)).
    At(Holders),
}
