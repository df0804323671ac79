//! Why a transfer, a barrier or a read fails.

use std::error::Error;

/// Why a task of a shuffle fails. The texts name shuffles and servers by their numbers.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Rows were lost, or a server cannot be reached from here. Give the task back: it runs again, here or
    /// elsewhere.
    #[error("{0}")]
    Again(String),
    /// The shuffle was committed again, and the read has an earlier generation.
    #[error("{0}")]
    Superseded(String),
    /// The shuffle was committed with other rows of the map. Those stay.
    #[error("{0}")]
    Late(String),
    /// A server has no room, neither in memory nor on its disks.
    #[error("{0}")]
    NoRoom(String),
    /// Rows are not those that were sent.
    #[error("{0}")]
    Damaged(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
    /// The rows could not be gathered.
    #[error("{0}")]
    Source(Box<dyn Error + Send + Sync>),
    /// The task was cancelled, or the worker ends.
    #[error("the task was interrupted")]
    Interrupted,
}

impl Failure {
    /// The same for another task, of what concerns all of a process.
    pub(crate) fn of_all(&self) -> Self {
        match self {
            Self::Again(reason) => Self::Again(reason.clone()),
            Self::Failed(reason) => Self::Failed(reason.clone()),
            _ => Self::Interrupted,
        }
    }
}
