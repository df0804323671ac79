//! The plane's part of the worker's memory.

use treadle_memory::{Consumer, Usage};
use treadle_reactor::thread::lock;
use treadle_shuffle::ServerEvent;

use crate::Plane;
use crate::machines::Step;

/// Bytes that the server may take beyond its target while it writes rows to a file.
const WRITING: u64 = 64 << 20;

impl Consumer for Plane {
    /// Stored rows can go to files. Rows of running transfers cannot.
    fn usage(&self) -> Usage {
        let stats = self.stats();
        Usage {
            fixed: stats.gathered,
            reclaimable: Some(stats.resident),
        }
    }

    fn set_target(&self, bytes: u64) {
        // The target includes the arenas of transfers.
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
