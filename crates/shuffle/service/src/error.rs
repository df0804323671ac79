//! What can go wrong in a process of the service.

use treadle_net::NetError;
use treadle_shuffle_registry::RegistryError;

use crate::server::WORKING;

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
    /// The application has a master already, at this address.
    #[error("the application has a master already, at {0}")]
    Elsewhere(String),
    /// A registry refuses, or does not answer.
    #[error("{0}")]
    Registry(String),
    /// A registry cannot be used so.
    #[error(transparent)]
    Unusable(#[from] RegistryError),
    /// Nothing was heard for so long.
    #[error("the shuffle master has not answered in time")]
    Late,
    /// A server could not keep this limit.
    #[error(
        "a server cannot keep a memory limit of {} MiB: it takes {} MiB before there are rows, and works with \
         {WORKING} MiB more at least. Give {} MiB or more", .limit >> 20, .takes >> 20, (.takes >> 20) + WORKING
    )]
    TooLittleMemory {
        /// In bytes.
        limit: u64,
        /// What the process takes now, in bytes.
        takes: u64,
    },
    /// A thread, a directory or the pages.
    #[error("{what}: {source}")]
    System {
        /// What failed.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
}

impl ServiceError {
    /// A thread could not be started.
    pub(crate) fn no_thread(source: std::io::Error) -> Self {
        Self::System {
            what: "starting a thread",
            source,
        }
    }
}
