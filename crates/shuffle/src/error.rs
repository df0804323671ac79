//! Events that cannot be, and invariants that are broken.

use crate::{BatchId, GroupId, ServerId, ShuffleId};

/// An event that cannot be: a bug of the caller. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShuffleError {
    /// A number of a shuffle that is in use.
    #[error("{0:?} is registered already: numbers of shuffles are used once")]
    Registered(ShuffleId),
    /// Outputs beyond the partitions, or no outputs.
    #[error("{0:?} cannot be: its outputs are not among its partitions")]
    Outputs(ShuffleId),
    /// Two shuffles that are to share their outputs, and have other numbers of partitions.
    #[error("{0:?} and {1:?} cannot share outputs: they have other numbers of partitions")]
    Aligned(ShuffleId, ShuffleId),
    /// A server that is there.
    #[error("{0:?} has joined already")]
    Joined(ServerId),
    /// A transfer or a read that has begun already.
    #[error("this has begun already")]
    Begun,
    /// Batches that were not asked for.
    #[error("batches of {0:?} were not asked for")]
    NotAsked(GroupId),
    /// A read whose pieces nobody waits for.
    #[error("nobody waits for this")]
    NotAwaited,
}

/// An invariant that does not hold: a bug of this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// A partition that is in no group, or in two, or in one and not wanted.
    #[error("{shuffle:?}: {what}")]
    Plan {
        /// The shuffle.
        shuffle: ShuffleId,
        /// What is wrong.
        what: &'static str,
    },
    /// A group that is kept and not assigned, or the other way round.
    #[error("{shuffle:?}, {group:?}: {what}")]
    Group {
        /// The shuffle.
        shuffle: ShuffleId,
        /// The group.
        group: GroupId,
        /// What is wrong.
        what: &'static str,
    },
    /// A batch that is counted wrongly.
    #[error("{shuffle:?}, {group:?}, {batch:?}: {what}")]
    Batch {
        /// The shuffle.
        shuffle: ShuffleId,
        /// The group.
        group: GroupId,
        /// The batch.
        batch: BatchId,
        /// What is wrong.
        what: &'static str,
    },
    /// A sum that is not the sum.
    #[error("{what}: {counted} is counted, and there are {found}")]
    Sum {
        /// Of what.
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
