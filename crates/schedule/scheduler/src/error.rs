//! Events that cannot be handled.

use treadle_types::{ClientId, TaskId, WorkerId};

/// An event that cannot be: a bug of the caller or a malformed submission of a client. The scheduler
/// is as it was before.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A task that was never submitted, or is forgotten.
    #[error("{0:?} does not exist: submit it first")]
    UnknownTask(TaskId),
    /// An id that [`Scheduler::allocate`](crate::Scheduler::allocate) did not hand out.
    #[error("{0:?} was not allocated: ids of new tasks come from Scheduler::allocate")]
    NotAllocated(TaskId),
    /// A worker that is not there.
    #[error("{0:?} is not registered, or was lost")]
    UnknownWorker(WorkerId),
    /// A worker's id that was used before, or is far beyond those used so far.
    #[error("{0:?} cannot register: ids of workers are used once, in ascending order")]
    WorkerId(WorkerId),
    /// A client that is not there.
    #[error("{0:?} is not connected")]
    UnknownClient(ClientId),
    /// A client's id that is in use.
    #[error("{0:?} is connected already")]
    ClientId(ClientId),
    /// Columns of a submission that do not fit together.
    #[error("the submission of {client:?} is malformed: {what}")]
    Malformed {
        /// Whose submission.
        client: ClientId,
        /// Which column is wrong, and how.
        what: &'static str,
    },
    /// Tasks of a submission that wait for each other.
    #[error("the submission of {client:?} has a cycle through {task:?}")]
    Cycle {
        /// Whose submission.
        client: ClientId,
        /// One of the tasks.
        task: TaskId,
    },
}
