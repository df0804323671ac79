//! Events that cannot happen.

use treadle_types::{ObjectId, WorkerId};

use crate::Status;

/// An event that cannot happen: a bug of whoever reports it. The worker is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WorkerError {
    /// The scheduler assigned an attempt that is here already.
    #[error("{object:?} was assigned to this worker, where it is {status:?} already")]
    AssignedTwice {
        /// The attempt.
        object: ObjectId,
        /// Where it stands.
        status: Status,
    },
    /// The object is in no state for this event.
    #[error("{object:?} is {status:?}: it cannot have {event}")]
    Impossible {
        object: ObjectId,
        /// Where it stands; `None`: it is unknown here.
        status: Option<Status>,
        /// What was said to have happened.
        event: &'static str,
    },
    /// A fetch ended that is not under way.
    #[error("a fetch of {object:?} from {from:?} ended that was not under way")]
    NotFetched {
        /// The value.
        object: ObjectId,
        /// Who was said to have been asked.
        from: WorkerId,
    },
}
