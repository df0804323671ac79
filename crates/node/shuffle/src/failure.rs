//! Why a transfer, a barrier or a read does not succeed.

use std::error::Error;

/// Why a task of a shuffle does not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something was lost, or cannot be reached from here. Give the task back: it runs again, here or
    /// elsewhere.
    #[error("{0}")]
    Again(String),
    /// A server has no room, in memory and on its disks.
    #[error("{0}")]
    NoRoom(String),
    /// Rows are not what they were when they were made.
    #[error("{0}")]
    Damaged(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
    /// The rows could not be gathered.
    #[error("{0}")]
    Source(Box<dyn Error + Send + Sync>),
    /// The task is not to go on.
    #[error("the task was interrupted")]
    Interrupted,
}
