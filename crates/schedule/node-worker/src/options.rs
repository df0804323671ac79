//! Settings of a worker.

use std::time::Duration;

use bytes::Bytes;
use treadle_net::Address;

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the scheduler is.
    pub scheduler: Address,
    /// A scheduler that says nothing for so long is gone; see
    /// [`SCHEDULER_TIMEOUT`](treadle_schedule_wire::SCHEDULER_TIMEOUT).
    pub scheduler_timeout: Duration,
    /// Where to listen for those who want values.
    pub listen: Address,
    /// Security and limits of all connections. The first of its contact addresses is what others
    /// are told to connect to.
    pub net: treadle_net::Options,
    /// Its name, unique in the cluster.
    pub name: String,
    /// The machine's name.
    pub host: String,
    /// `major.minor` of its Python.
    pub python: String,
    /// How many tasks run at once.
    pub threads: u32,
    /// Bytes of memory that the process may take; 0: no limit.
    pub memory: u64,
    /// The share of `memory` that the process may take beyond its values before
    /// [`Embedder::overflow`]; 0: as much as it likes.
    pub terminate: f64,
    /// Abstract resources.
    pub resources: Vec<(String, f64)>,
    /// What else is to be known of it: an encoded value.
    pub info: Bytes,
    /// Bytes of what it did that wait to be sent, for the dashboard; 0: as many as by default.
    pub recording: u64,
    /// Where its values are kept.
    pub store: treadle_store::Options,
}

/// Bytes that the store of a worker may take which has this memory limit (0: none).
pub fn store_limit(memory: u64) -> u64 {
    match memory {
        0 => u64::MAX / 4,
        memory => memory,
    }
}
