//! Why a partition cannot be read.

use crate::{Refusal, ServerId, ShuffleId};

/// Why a partition cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// Rows were lost after the barrier. It runs again: give the task back.
    #[error("rows of shuffle {0:?} were lost: transfers and the barrier run again")]
    Superseded(ShuffleId),
    /// The shuffle is over, or was never registered.
    #[error("shuffle {0:?} has ended, or was never registered")]
    Ended(ShuffleId),
    /// Nobody wanted this partition when the shuffle was registered.
    #[error(
        "partition {partition} of shuffle {shuffle:?} is not among the outputs that were \
         registered: its rows were dropped"
    )]
    NotAnOutput { shuffle: ShuffleId, partition: u32 },
    /// The server cannot be reached. Another worker may reach it: give the task back.
    #[error(
        "server {server:?}, which has partition {partition} of shuffle {shuffle:?}, cannot be \
         reached"
    )]
    Unreachable {
        shuffle: ShuffleId,
        partition: u32,
        /// Who has it.
        server: ServerId,
    },
    /// The server does not return it, and nobody makes it again.
    #[error(
        "partition {partition} of shuffle {shuffle:?} is missing at server {server:?}: {reason}"
    )]
    Missing {
        shuffle: ShuffleId,
        partition: u32,
        /// Who should have it.
        server: ServerId,
        /// Why not.
        reason: Refusal,
    },
}
