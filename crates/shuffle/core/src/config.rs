//! Settings, and the guards.

use core::time::Duration;

use crate::server::Remote;

/// Settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes that one process pushes and that are not acknowledged, to all servers together. A batch
    /// that is larger goes alone.
    pub window: u64,
    /// The same to one server.
    pub server_window: u64,
    /// The least that [`server_window`](Self::server_window) shrinks to while answers take longer than
    /// before. 0: it does not shrink, since servers make writers wait by admitting nothing.
    pub least_window: u64,
    /// Bytes that one server writes to a file at once, about.
    pub run: u64,
    /// Announced pushes that a server keeps waiting, at most. Others are told to come later.
    pub parked: usize,
    /// For how long something may be waited for: a plan that a push is ahead of, room for a batch, a
    /// server that cannot be reached.
    pub patience: Duration,
    /// The pause before something is tried again; it doubles each time, up to 32 of it.
    pub pause: Duration,
    /// For how long a push to one of several copies may fail. Then the epoch of its group is closed, and
    /// the rows go to a new one at other servers.
    pub poison: Duration,
    /// How far a server may fall behind the others in answering pushes. Then the epochs of its groups are
    /// closed, and their rows go to new ones at other servers, if there are some.
    pub lag: Duration,
    /// After how long without an answer a reader tries another copy.
    pub hedge: Duration,
    /// A copy of a group with so many bytes takes no rows of further transfers: those go to the next
    /// epoch.
    pub split: u64,
    /// Reads for which a server loads rows from files at once. Others wait until it is their turn.
    pub reads: usize,
    /// A server with a request that has waited for so long, and with requests of other applications, tells
    /// the application of that one to pause.
    pub slow: Duration,
    /// Nine of ten reads of a disk are to take no longer than this. Otherwise applications with more reads than
    /// their share are told to pause.
    pub read_latency: Duration,
    /// In how many ranges of maps a server counts the rows of a partition. Readers that share a partition
    /// read whole ranges, and so not much more than what is theirs. 1: each reads the whole partition.
    pub stripes: u32,
    /// Percent of a server's limit that only pushes to second copies may use. Otherwise servers that are
    /// full of first copies would wait for each other.
    pub reserve: u64,
    /// How often the rows of one shuffle may be found damaged before its barrier fails.
    pub repairs: u32,
    /// A server drops a master of which it has not heard for so long, with its shuffles.
    pub lease: Duration,
    /// Whether a server has a remote store for rows, and what for.
    pub remote: Remote,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 64 << 20,
            server_window: 16 << 20,
            least_window: 0,
            run: 64 << 20,
            parked: 1 << 16,
            patience: Duration::from_secs(30),
            pause: Duration::from_millis(10),
            poison: Duration::from_secs(5),
            lag: Duration::from_millis(200),
            hedge: Duration::from_secs(10),
            split: u64::MAX,
            reads: 64,
            slow: Duration::from_millis(200),
            read_latency: Duration::from_millis(200),
            stripes: 1,
            reserve: 10,
            repairs: 5,
            lease: Duration::from_secs(60),
            remote: Remote::None,
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
        /// Each of several batches that are announced together is answered.
        Each,
        /// What an application that is gone has left behind is cleaned.
        Lease,
        /// Each batch is read by one of the readers that share a partition.
        Ownership,
        /// Applications are served in proportion to their priorities, and told to pause if they want more.
        Shares,
        /// Reads are charged to who reads, not to whose the shuffle is.
        Readers,
        /// A process that the master has dropped is gone at each server.
        Gone,
        /// An attempt with other rows that comes after the commit changes nothing.
        Late,
        /// Servers get rows in proportion to what they take.
        Weights,
        /// A copy that cannot take a push ends its epoch: rows go on to other servers.
        Poison,
        /// Rows that one storage does not take go to the other one.
        Elsewhere,
        /// A copy counts as one in the remote store when all of it is there.
        Whole,
        /// Objects that another server has adopted stay.
        Left,
        /// Objects of a copy that could be adopted in part only stay.
        Opened,
        /// What is adopted is compared with what was sealed.
        Adopted,
        /// A server takes words about a shuffle from the master that governs it alone.
        Governor,
        /// An application has one master at a server.
        OneMaster,
        /// A read that has waited for long is next on its disk, wherever it is.
        Oldest,
        /// While a disk is slow, an application has as many reads there as its share does in time.
        Throttle,
    }
}

/// How often a server may say that the bytes of a batch are not those that were announced, and get them
/// again: a bit may flip on its way.
pub(crate) const RESENDS: u32 = 3;

/// The pause before the next try, after so many in vain.
pub(crate) fn pause(config: &Config, tries: u32) -> Duration {
    config.pause * (1 << tries.min(5))
}
