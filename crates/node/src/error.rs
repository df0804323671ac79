//! What can go wrong in a node.

use std::io;

use treadle_net::NetError;

use crate::wire::WireError;

/// An error of a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The connection, or the address.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The other side sent something that is no message.
    #[error("the other side broke the protocol: {0}")]
    Wire(#[from] WireError),
    /// The other side sent an object that does not belong here.
    #[error("the other side broke the protocol: an object of kind {0} is not expected here")]
    Kind(u32),
    /// A message is too large.
    #[error(
        "a message of {bytes} bytes, at most {most} are taken: scatter large values, and pass their \
         futures"
    )]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// The worker's values.
    #[error(transparent)]
    Store(#[from] treadle_store::StoreError),
    /// The scheduler does not take this node.
    #[error("the scheduler refused this node: {0}")]
    Refused(String),
    /// The HTTP server cannot be started.
    #[error("serving HTTP at {address}: {reason}")]
    Http {
        /// Where.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// The system has no more of something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
