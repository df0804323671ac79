//! The plane's part of the worker's memory.

use treadle_memory::{Consumer, Usage};
use treadle_net::thread::lock;
use treadle_shuffle::ServerEvent;

use crate::Plane;
use crate::machines::Step;

/// What the server may take beyond its target while rows are being written to a file, in bytes.
const WRITING: u64 = 64 << 20;

impl Consumer for Plane {
    /// Stored rows can go to files. Those of transfers that run cannot.
    fn usage(&self) -> Usage {
        let stats = self.stats();
        Usage {
            fixed: stats.gathered,
            reclaimable: Some(stats.resident),
        }
    }

    fn set_target(&self, bytes: u64) {
        // What transfers keep is part of it.
        let target = bytes.saturating_sub(self.stats().gathered);
        let before = std::mem::replace(&mut *lock(&self.0.target), target);
        if before != target {
            let limit = target.saturating_add(WRITING);
            let budget = ServerEvent::Budget { target, limit };
            self.0
                .with(|machines| machines.steps.push_back(Step::Server(budget)));
        }
    }
}
