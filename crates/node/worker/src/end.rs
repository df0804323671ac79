//! Why a worker ends.

use treadle_messages::Leave;

/// What has ended a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndCause {
    /// The scheduler told it to end.
    Told(Leave),
    /// There is no connection to the scheduler any more.
    Lost,
    /// Something in the worker has failed.
    Failed,
    /// Its process closed it.
    Closed,
    /// Its process closed it, and another shall replace it.
    Restarted,
    /// Its tasks took more memory than its limit.
    Overflowed,
}

impl EndCause {
    /// Its name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Told(Leave::Drained) => "drained",
            Self::Told(Leave::Asked) => "asked",
            Self::Told(Leave::Over) => "over",
            Self::Told(Leave::Dismissed) => "dismissed",
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::Closed => "closed",
            Self::Restarted => "restarted",
            Self::Overflowed => "overflowed",
        }
    }
}

/// Why a worker has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct End {
    /// What has ended it.
    pub cause: EndCause,
    /// The same in words.
    pub reason: String,
}

impl End {
    /// An end.
    pub fn new(cause: EndCause, reason: &str) -> Self {
        Self {
            cause,
            reason: reason.to_owned(),
        }
    }
}
