//! The processes of a cluster.
//!
//! | module | what |
//! | --- | --- |
//! | [`message`] | what nodes say to each other |
//! | [`wire`] | the same as bytes |
//! | [`server`] | the scheduler's process |
//! | [`worker`] | a worker's process |
//! | [`client`] | the native end of a client |
//! | `broadcast` | the broadcast plane's end of both |
//!
//! Linux only: it stands on `treadle-net`.

mod broadcast;
pub mod client;
mod clock;
mod error;
pub mod message;
pub mod server;
pub mod wire;
pub mod worker;

pub use error::NodeError;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a panic elsewhere, which left the data before or after a whole step.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
