//! Why a worker does not connect.

use treadle_net::NetError;
use treadle_schedule_wire::NodeError;
use treadle_store::StoreError;

/// An error of [`Worker::connect`](crate::Worker::connect).
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The scheduler, or what this process needs of the system.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The directory of its values.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<NetError> for ConnectError {
    fn from(error: NetError) -> Self {
        Self::Node(error.into())
    }
}
