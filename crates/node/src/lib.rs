//! The processes of a cluster.
//!
//! | module | what |
//! | --- | --- |
//! | [`message`] | what nodes say to each other |
//! | [`wire`] | the same as bytes |
//! | [`log`] | lines for people, which nobody waits for |
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
pub mod log;
pub mod server;
pub mod wire;
pub mod worker;

pub use error::NodeError;
pub use treadle_messages as message;

use std::time::Duration;

use treadle_net::Options;
pub(crate) use treadle_net::thread::{self, caught, lock};

/// How long a scheduler may say nothing that workers and clients wait for. Longer than others: without
/// it nothing goes on, so whoever stopped it (Ctrl-Z, a debugger) finds all as it was. The scheduler
/// and the workers wait as long for a client that says nothing, for the same reason: its futures are
/// in use.
pub const SCHEDULER_TIMEOUT: Duration = Duration::from_secs(300);

/// The options of a connection to the scheduler.
pub(crate) fn to_scheduler(options: &Options, timeout: Duration) -> Options {
    let mut options = options.clone();
    options.pair.timeout = timeout;
    options
}
