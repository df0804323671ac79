//! What can go wrong in a process of the service.

use treadle_net::NetError;

/// An error of a process of the service.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The connection, or the address.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The master does not take this process, or does not do what it was asked.
    #[error("{0}")]
    Refused(String),
    /// The master is gone, or this process has left it.
    #[error("{0}")]
    Over(String),
    /// Nothing was heard for so long.
    #[error("the shuffle master has not answered in time")]
    Late,
    /// A thread, a directory or the pages.
    #[error("{what}: {source}")]
    System {
        /// What failed.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
}
