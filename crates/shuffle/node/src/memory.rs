//! The plane's part of the worker's memory, and the memory of a process that is a server.

use std::sync::atomic::{AtomicU64, Ordering};

use treadle_memory::{Consumer, Pool, Usage, occupied, shrink, trim_heap};
use treadle_reactor::thread::lock;
use treadle_shuffle::ServerEvent;

use crate::held::Held;
use crate::machines::Step;
use crate::{Plane, Stats};

/// Bytes that the server may take beyond its target while it writes rows to a file.
const WRITING: u64 = 64 << 20;
/// The allocator is asked for memory when it may have a part in so many of the limit.
const KEPT: u64 = 64;

/// What a server of a process that may take `limit` bytes may take beyond its target while it writes rows to a
/// file. 0: there is no limit.
pub fn writing(limit: u64) -> u64 {
    match limit {
        0 => WRITING,
        limit => WRITING.min(limit / 8),
    }
}

/// The memory of a process that is a server.
#[derive(Debug, Default)]
pub(crate) struct ProcessMemory {
    /// Bytes that are let in up to. 0: nobody said.
    limit: AtomicU64,
    /// What the process took beside rows when the allocator had given back all it could.
    least: AtomicU64,
}

impl ProcessMemory {
    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// What the server is told. `is_least`: nobody uses memory that could be given back.
    pub(crate) fn measured(&self, is_least: bool) -> ServerEvent {
        ServerEvent::Measured {
            process: occupied().unwrap_or(0),
            limit: match self.limit() {
                0 => u64::MAX,
                limit => limit,
            },
            is_least,
        }
    }

    /// Gives back what nobody uses, until the process takes no more than `most` bytes.
    pub(crate) fn give_back(&self, most: u64, held: &Held) {
        let least = self.least.load(Ordering::Relaxed);
        if shrink(most) > 0 && others(held) > least + self.limit() / KEPT {
            trim_heap();
            self.least.store(others(held), Ordering::Relaxed);
        }
    }
}

/// What the process takes beside rows and buffers that are kept.
fn others(held: &Held) -> u64 {
    let rows = held.bytes().saturating_sub(held.borrowed());
    let kept = Pool::global().idle_bytes() as u64;
    occupied().unwrap_or(0).saturating_sub(rows + kept)
}

impl Plane {
    /// From now on rows are let in and read only as far as the process takes no more than `limit` bytes with
    /// them.
    pub fn keep_below(&self, limit: u64) {
        self.0.process.limit.store(limit, Ordering::Relaxed);
        self.measure();
    }

    /// Has the server know what the process takes now.
    pub fn measure(&self) {
        self.0.measure(false);
    }
}

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
            let limit = target.saturating_add(writing(self.0.process.limit()));
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
