//! What follows from an event.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_types::{ClientId, Command, Failure, TaskId, WorkerId};

/// Something to do, in this order.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Tell a worker.
    Command {
        worker: WorkerId,
        /// What to tell it.
        command: Command,
    },
    /// Tell a client that wants a task how the task stands.
    Notify {
        client: ClientId,
        task: TaskId,
        /// How it stands.
        notice: Notice,
    },
    /// Ask a client for a value that it keeps: it [puts](crate::Event::Put) it again, or says that it
    /// [cannot](crate::Event::Unkept).
    Bring {
        client: ClientId,
        /// The task whose value is meant.
        task: TaskId,
    },
    /// A client need not keep a value any more: nobody can refer to it, or it was cancelled. Comes
    /// before [`Effect::Forgotten`].
    Unkeep {
        client: ClientId,
        /// The task whose value is meant.
        task: TaskId,
    },
    /// Nobody needs what a task with [effects](treadle_types::Options::effects) did. It has no value
    /// any more, and runs again if somebody needs it later.
    LetGo(TaskId),
    /// Nobody can refer to a task any more: its id may be allocated anew.
    Forgotten(TaskId),
    /// A worker that was told to leave has nothing left that is needed.
    Drained(WorkerId),
    /// A worker broke the protocol, and was counted as lost: close its connection.
    Dismiss {
        worker: WorkerId,
        /// What it did.
        reason: String,
    },
    /// Tasks are ready, and nothing has moved for a while.
    Stuck {
        /// Some of the tasks.
        tasks: Vec<TaskId>,
        /// Why they cannot run.
        reason: Stuck,
    },
}

/// How a task stands, for a client that wants it.
#[derive(Clone, PartialEq, Debug)]
pub enum Notice {
    /// It has a value.
    Finished {
        /// The size in bytes.
        nbytes: u64,
        /// The value, where it is small.
        inline: Option<Bytes>,
        /// The type of a value that is not inline, opaque here.
        class: Bytes,
        /// A worker that has it, where it is not inline.
        holder: Option<WorkerId>,
    },
    /// It has none, and will not get one by itself.
    Failed(Arc<Failure>),
    /// It was cancelled by a client.
    Cancelled,
    /// Its value is lost, or it was told to run again: wait for the next notice.
    Pending,
}

/// Why nothing moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stuck {
    /// There are no workers.
    NoWorkers,
    /// No worker satisfies the tasks' restrictions.
    Restrictions,
    /// No worker has as much of a resource as a task needs.
    Resources,
    /// Every worker that could run them has paused, for lack of memory.
    Memory,
    /// They run, or were sent to workers, and nothing has been heard of them.
    Silence,
    /// Other tasks take every slot that they could have, and none of those has ended.
    Slots,
}

impl Stuck {
    /// Every reason.
    pub(crate) const ALL: [Self; 6] = [
        Self::NoWorkers,
        Self::Restrictions,
        Self::Resources,
        Self::Memory,
        Self::Silence,
        Self::Slots,
    ];
}

/// The effects of one or more events, in order.
#[derive(Debug, Default)]
pub struct Effects(pub Vec<Effect>);
