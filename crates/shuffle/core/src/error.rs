//! Events that are refused, and invariants that are broken.

use crate::{BatchId, GroupId, ServerId, ShuffleId};

/// An event that is refused: a bug of the caller. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShuffleError {
    /// The number of a shuffle that is registered.
    #[error("shuffle {0:?} is registered already: a number is used for one shuffle only")]
    Registered(ShuffleId),
    /// Outputs that are not partitions, or no outputs.
    #[error("shuffle {0:?} has no outputs, or one of them is not among its partitions")]
    Outputs(ShuffleId),
    /// Two shuffles whose outputs are read together, but whose numbers of partitions differ.
    #[error("shuffles {0:?} and {1:?} cannot be read together: their numbers of partitions differ")]
    Aligned(ShuffleId, ShuffleId),
    /// A server that has joined.
    #[error("server {0:?} has joined already")]
    Joined(ServerId),
    /// A transfer or a read that has begun already.
    #[error("the transfer or read has begun already")]
    Begun,
    /// Batches that the writer did not ask for.
    #[error("the writer did not ask for batches of group {0:?}")]
    NotAsked(GroupId),
    /// The bytes of a push, or a file, that the server does not wait for.
    #[error("the server does not wait for this push or file")]
    NotAwaited,
}

/// An invariant that does not hold: a bug of this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// A partition that is in no group, or in two, or in one and not wanted.
    #[error("{shuffle:?}: {what}")]
    Plan {
        shuffle: ShuffleId,
        /// What is wrong.
        what: &'static str,
    },
    /// A group that is kept and not assigned, or the other way round.
    #[error("{shuffle:?}, {group:?}: {what}")]
    Group {
        shuffle: ShuffleId,
        group: GroupId,
        /// What is wrong.
        what: &'static str,
    },
    /// A batch that is counted wrongly.
    #[error("{shuffle:?}, {group:?}, {batch:?}: {what}")]
    Batch {
        shuffle: ShuffleId,
        group: GroupId,
        batch: BatchId,
        /// What is wrong.
        what: &'static str,
    },
    /// A sum that is not the sum.
    #[error("{what}: {counted} is counted, and there are {found}")]
    Sum {
        what: &'static str,
        /// What the machine believes.
        counted: u64,
        /// What was added up.
        found: u64,
    },
}

impl Broken {
    /// # Errors
    /// What is counted is not what was found.
    pub(crate) fn unless_equal(what: &'static str, counted: u64, found: u64) -> Result<(), Self> {
        match counted == found {
            true => Ok(()),
            false => Err(Self::Sum {
                what,
                counted,
                found,
            }),
        }
    }
}
