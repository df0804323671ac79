//! What can go wrong, for whoever uses a connection.

use std::io;

use treadle_security::secret::SecretError;
use treadle_security::tls::TlsError;
use treadle_transfer::layout::LayoutError;
use treadle_transfer::{Failure, PairEnd};

use crate::address::AddressError;
use crate::handshake::HandshakeError;

/// An error of the transfer plane.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The address cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The secret cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// TLS is needed, or asked for without certificates.
    #[error("{0}")]
    Insecure(String),
    /// A socket call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, with the address.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// No connection came about.
    #[error("{address}: {error}")]
    Handshake {
        /// The other side.
        address: String,
        /// Why.
        error: HandshakeError,
    },
    /// The connection is over.
    #[error("{0}")]
    Ended(PairEnd),
    /// The object did not arrive.
    #[error("{0}")]
    Failed(Failure),
    /// The object cannot be sent.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// Memory for a target has another length than the frame.
    #[error("the target has {target} bytes, the frame {frame}")]
    Target {
        /// Bytes of the target.
        target: u64,
        /// Bytes of the frame.
        frame: u64,
    },
    /// There is no memory to receive an object.
    #[error(transparent)]
    Memory(#[from] treadle_memory::MemoryError),
    /// The listener was closed.
    #[error("the listener is closed")]
    ListenerClosed,
    /// The deadline passed.
    #[error("timed out")]
    Timeout,
    /// The wait was interrupted.
    #[error("interrupted")]
    Interrupted,
}

impl NetError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }
}

impl From<treadle_reactor::Early> for NetError {
    fn from(early: treadle_reactor::Early) -> Self {
        match early {
            treadle_reactor::Early::Deadline => Self::Timeout,
            treadle_reactor::Early::Interrupted => Self::Interrupted,
        }
    }
}
