//! What can go wrong in a node.

use std::io;
use std::net::SocketAddr;

use treadle_messages::{Answer, Call, TooLong, fits};
use treadle_net::NetError;

use crate::WireError;

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
    /// What somebody wants to say fits into no message, and was not sent.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// What this process says of itself is too long for the first message.
    #[error(
        "what {name:.60?} says of itself takes {bytes} bytes, and the scheduler takes {most} at most: \
         shorten its name, or give it fewer resources"
    )]
    Introduction {
        name: String,
        /// The length of the message.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// The scheduler does not take this node.
    #[error("the scheduler refused this node: {0}")]
    Refused(String),
    /// The HTTP server cannot be started.
    #[error("serving HTTP at {address}: {source}")]
    Http {
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
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

/// Whether a question fits into a call.
///
/// # Errors
/// For a question that is too long for a message.
pub fn call_fits(call: &Call) -> Result<(), NodeError> {
    let bytes = call.argument.len() + call.node.len() + call.operation.len();
    let what = || format!("the argument of {:.200?}", call.operation);
    Ok(fits(bytes, what)?)
}

/// Whether an answer fits into a call.
///
/// # Errors
/// For an answer that is too long for a message.
pub fn answer_fits(answer: &Answer) -> Result<(), NodeError> {
    let fits = match &answer.result {
        Ok(value) => fits(value.len(), || "the answer".to_owned()),
        Err(error) => fits(error.len(), || "the error that is the answer".to_owned()),
    };
    Ok(fits?)
}
