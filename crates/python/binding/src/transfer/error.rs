//! From what can go wrong in a transfer to Python's exceptions.

use pyo3::exceptions::{PyMemoryError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use treadle_net::{Failure, NetError, PairEnd};
use treadle_serialise::CorruptData;

pyo3::import_exception!(treadle.transfer._errors, TransferError);
pyo3::import_exception!(treadle.transfer._errors, ConnectionClosed);
pyo3::import_exception!(treadle.transfer._errors, ConnectionEnded);
pyo3::import_exception!(treadle.transfer._errors, HandshakeError);
pyo3::import_exception!(treadle.transfer._errors, TransferCancelled);
pyo3::import_exception!(treadle.transfer._errors, TransferRefused);

/// The exception for an error; `doing` says what failed, with the peer's address.
pub(crate) fn raised(error: NetError, doing: &str) -> PyErr {
    let text = format!("{doing}: {error}");
    match error {
        NetError::Address(_) | NetError::Insecure(_) | NetError::Layout(_) => {
            PyValueError::new_err(error.to_string())
        }
        NetError::Target { .. } => PyValueError::new_err(text),
        NetError::Secret(_) | NetError::Tls(_) => PyValueError::new_err(error.to_string()),
        NetError::Io { ref source, .. } => match source.raw_os_error() {
            Some(number) => TransferError::new_err((number, error.to_string())),
            None => TransferError::new_err(error.to_string()),
        },
        NetError::Handshake { error: ref why, .. } if why.is_unanswered() => {
            HandshakeError::new_err((libc::ECONNREFUSED, error.to_string()))
        }
        NetError::Handshake { .. } => HandshakeError::new_err(error.to_string()),
        NetError::Ended(end) => ended(&end, text),
        NetError::Failed(failure) => failed(failure, text),
        NetError::Memory(_) => PyMemoryError::new_err(text),
        NetError::ListenerClosed => ConnectionClosed::new_err(error.to_string()),
        NetError::Timeout => PyTimeoutError::new_err(text),
        // Somebody's exception was raised instead; there is none only while Python ends.
        NetError::Interrupted => TransferCancelled::new_err(text),
    }
}

/// The exception for a transfer that failed.
pub(crate) fn failed(failure: Failure, text: String) -> PyErr {
    match failure {
        Failure::Refused(_) => TransferRefused::new_err(text),
        Failure::Cancelled => TransferCancelled::new_err(text),
        Failure::Header { .. } => PyValueError::new_err(text),
        Failure::Corrupt(_) => CorruptData::new_err(text),
        Failure::Pair(end) => ended(&end, text),
    }
}

fn ended(end: &PairEnd, text: String) -> PyErr {
    match end {
        PairEnd::Goodbye => ConnectionClosed::new_err(text),
        PairEnd::Silent(_) | PairEnd::Lost(_) | PairEnd::NoStripe(_) => {
            ConnectionEnded::new_err(text)
        }
    }
}
