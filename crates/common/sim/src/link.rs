//! What lies between two nodes: links keep the order, lines take a time for each byte.

use std::time::Duration;

/// One direction of a connection: what is sent arrives in order.
#[derive(Clone, Copy, Default, Debug)]
pub struct Link {
    last: Duration,
}

impl Link {
    /// When something arrives that would be there at `at`, if nothing was before it.
    pub fn arrival(&mut self, at: Duration) -> Duration {
        self.last = self.last.max(at);
        self.last
    }

    /// When the last of what was sent arrives.
    pub fn last(&self) -> Duration {
        self.last
    }
}

/// A line that sends one thing after the other: a network card, a socket, a disk.
#[derive(Clone, Copy, Default, Debug)]
pub struct Line {
    free: Duration,
}

impl Line {
    /// Sends what takes `time`. Returns when it begins and when it ends.
    pub fn send(&mut self, now: Duration, time: Duration) -> (Duration, Duration) {
        let begins = self.free.max(now);
        self.free = begins + time;
        (begins, self.free)
    }
}
