//! Why a task has no value.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;

use crate::{Symbol, TaskId};

/// Why a worker was lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The kernel's out-of-memory killer.
    OutOfMemory,
    /// Its tasks took more memory than its limit.
    MemoryLimit,
    Signal(i32),
    /// It exited by itself, with this code.
    Exited(i32),
    /// Nothing was heard from it for the timeout, or its connection broke, and nobody knows more.
    Unreachable,
    /// It was asked to leave.
    Drained,
    /// It broke the protocol; the reason.
    Misbehaved(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("the kernel ended it for lack of memory"),
            Self::MemoryLimit => f.write_str("it took more memory than its limit"),
            Self::Signal(signal) => write!(f, "signal {signal} ended it"),
            Self::Exited(code) => write!(f, "it exited with code {code}"),
            Self::Unreachable => f.write_str("it is unreachable"),
            Self::Drained => f.write_str("it was drained"),
            Self::Misbehaved(reason) => f.write_str(reason),
        }
    }
}

/// A worker that was lost while it ran a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// The worker's name.
    pub worker: Symbol,
    /// Why.
    pub cause: Cause,
}

/// Why a task has no value, and will not get one by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The task's function raised, or its arguments or its value could not be handled: what the
    /// worker said about it, opaque here.
    Raised {
        /// The task that raised; another than the one that has no value if it depends on it.
        task: TaskId,
        /// What was raised.
        error: Bytes,
    },
    /// Each worker that ran the task was lost, once too often.
    WorkersLost {
        /// The task that was running.
        task: TaskId,
        /// The losses, oldest first.
        losses: Vec<Loss>,
    },
    /// A value that nobody can compute again (it was scattered, or is an actor) is gone with its
    /// workers.
    DataLost {
        /// The task whose value is gone.
        task: TaskId,
        /// The worker that was the last to hold it; [`Symbol`] 0 if none ever did.
        worker: Symbol,
        /// Whether it is an actor.
        actor: bool,
    },
    /// No worker could get an input from those that hold it, and running it again did not help.
    Unavailable {
        /// The task that has no value.
        task: TaskId,
        input: TaskId,
    },
}

impl Failure {
    /// The task at fault.
    pub fn culprit(&self) -> TaskId {
        match self {
            Self::Raised { task, .. }
            | Self::WorkersLost { task, .. }
            | Self::DataLost { task, .. }
            | Self::Unavailable { task, .. } => *task,
        }
    }
}
