//! Settings, and the guards.

use core::time::Duration;

/// Settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes that one process pushes and that are not acknowledged, to all servers together. A batch
    /// that is larger goes alone.
    pub window: u64,
    /// The same to one server.
    pub server_window: u64,
    /// Bytes that one server writes to a file at once, about.
    pub run: u64,
    /// Announced pushes that a server keeps waiting, at most. Others are told to come later.
    pub parked: usize,
    /// For how long something may be waited for: a plan that a push is ahead of, room for a batch, a
    /// server that cannot be reached.
    pub patience: Duration,
    /// The pause before something is tried again; it doubles each time, up to 32 of it.
    pub pause: Duration,
    /// How often the rows of one shuffle may be found damaged before its barrier fails.
    pub repairs: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 64 << 20,
            server_window: 16 << 20,
            run: 64 << 20,
            parked: 1 << 16,
            patience: Duration::from_secs(30),
            pause: Duration::from_millis(10),
            repairs: 5,
        }
    }
}

treadle_guards::guards! {
    /// Checks that keep a shuffle correct.
    pub enum Guard {
        /// Only rows of the attempts that won are returned.
        Attempt,
        /// What was meant for another assignment of partitions is refused.
        Generation,
        /// What a server has is compared with the receipts.
        Receipts,
        /// Rows come in the order of their inputs.
        Order,
        /// Rows are compared with their digests when they are read.
        Digest,
        /// A process that comes back is another server.
        Incarnation,
        /// A batch that comes again changes nothing.
        Duplicates,
    }
}

/// The pause before the next try, after so many in vain.
pub(crate) fn pause(config: &Config, tries: u32) -> Duration {
    config.pause * (1 << tries.min(5))
}
