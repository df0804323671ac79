//! What can go wrong for a client.

use treadle_net::NetError;
use treadle_schedule_wire::NodeError;

/// An error of the native end of a client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection to the scheduler.
    #[error(transparent)]
    Node(NodeError),
    /// A wait ended.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The connection is over.
    #[error("the connection to the scheduler at {address} is over: {reason}")]
    Ended {
        /// The scheduler.
        address: String,
        /// Why.
        reason: String,
    },
    /// There are no more local ids.
    #[error(transparent)]
    Exhausted(#[from] treadle_client::Exhausted),
}

impl From<NodeError> for ClientError {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Net(error) => Self::Net(error),
            error => Self::Node(error),
        }
    }
}
