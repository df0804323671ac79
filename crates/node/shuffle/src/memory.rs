//! The plane's part of the worker's memory.

use treadle_memory::{Consumer, Usage};
use treadle_reactor::thread::lock;
use treadle_shuffle::ServerEvent;

use crate::machines::Step;
use crate::{Plane, Stats};

/// Bytes that the server may take beyond its target while it writes rows to a file.
const WRITING: u64 = 64 << 20;

impl Consumer for Plane {
    /// Stored rows can go to files. Those of running transfers and reads cannot.
    fn usage(&self) -> Usage {
        let stats = self.stats();
        Usage {
            fixed: fixed(&stats),
            reclaimable: Some(stats.resident),
        }
    }

    fn set_target(&self, bytes: u64) {
        let target = bytes.saturating_sub(fixed(&self.stats()));
        let before = std::mem::replace(&mut *lock(&self.0.target), target);
        if before != target {
            let limit = target.saturating_add(WRITING);
            let budget = ServerEvent::Budget { target, limit };
            self.0
                .with(|machines| machines.steps.push_back(Step::Server(budget)));
        }
    }
}

/// Bytes of rows that are not stored, or that stay in memory when they are written to a file: arenas of
/// transfers, what was loaded or came for a read, and batches of an arena that others are in, too.
fn fixed(stats: &Stats) -> u64 {
    stats.held.saturating_sub(stats.resident)
}
