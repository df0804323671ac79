//! A virtual data connection: a first-in, first-out pipe with a rate, a latency and a buffer.

use std::time::Duration;

use treadle_sim_kernel::Link;
use treadle_transfer::Extent;

/// What the sending driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    Opening,
    Open,
    Closed,
}

/// What the receiving driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Not connected yet.
    Pending,
    Reading,
    /// Ended, or never to be connected.
    Closed,
}

pub(crate) struct Stripe {
    pub(crate) rate: u64,
    pub(crate) latency: Duration,
    pub(crate) buffer: u64,
    pub(crate) writer: Writer,
    pub(crate) reader: Reader,
    /// A black hole: what is under way never arrives, and nobody learns about it.
    pub(crate) stalled: bool,
    /// Its connection cannot be made any more.
    pub(crate) broken: bool,
    /// Close after what was handed to it.
    pub(crate) retiring: bool,
    /// Extents handed to it.
    pub(crate) handed: u64,
    /// The extent that the driver is writing and whose bytes the buffer does not take yet.
    pub(crate) writing: Option<Extent>,
    pub(crate) buffered: u64,
    /// When the network is done with what was buffered.
    pub(crate) free_at: Duration,
    pub(crate) link: Link,
    /// What arrives later is lost.
    pub(crate) lost_after: Option<Duration>,
    /// The extent whose bytes are arriving, and whether they go into memory.
    pub(crate) arriving: Option<(Extent, bool)>,
}

impl Stripe {
    /// Whether something that arrives now does.
    pub(crate) fn carries(&self, now: Duration) -> bool {
        self.reader == Reader::Reading
            && !self.stalled
            && self.lost_after.is_none_or(|limit| now <= limit)
    }

    pub(crate) fn has_room(&self, length: u64) -> bool {
        self.buffered == 0 || self.buffered + length <= self.buffer
    }

    pub(crate) fn lose_after(&mut self, limit: Duration) {
        self.lost_after = Some(self.lost_after.map_or(limit, |before| before.min(limit)));
    }
}
