//! What the process takes, and what was granted since that was measured: a limit of the process holds by
//! admission.
//!
//! Memory that is granted comes to be used later: bytes that were let in arrive, rows that are read are
//! loaded and sent. So what a grant may take counts until a measurement has it. What was freed counts until a
//! measurement shows that it is gone: an allocator may keep it. Both err on the side of the limit.

use core::fmt;

use alloc::format;
use alloc::string::String;

/// Bytes that a batch takes beside its length: what is known of it, in some lists.
pub(super) const BATCH: u64 = 1 << 10;

/// The memory of the process.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Bytes that it may take. `u64::MAX`: nobody measures.
    limit: u64,
    /// Bytes that it took when it was measured last.
    measured: u64,
    /// The least that it ever took.
    least: u64,
    /// Bytes of grants that may not be part of that.
    granted: u64,
    /// Nothing was granted or freed since it was measured, with all given back that nobody uses.
    is_fresh: bool,
    /// That was asked for.
    is_asked: bool,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            limit: u64::MAX,
            measured: 0,
            least: u64::MAX,
            granted: 0,
            is_fresh: false,
            is_asked: false,
        }
    }
}

impl Ledger {
    /// Whether there is room for so many bytes more.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let taken = self.measured.saturating_add(self.granted);
        taken.saturating_add(bytes) <= self.limit
    }

    /// Why so many bytes will never have room, if so: they do not fit beside the least that the process ever took.
    pub(super) fn too_large(&self, bytes: u64) -> Option<String> {
        let mib = |bytes: u64| bytes >> 20;
        let never = self.limit < u64::MAX && self.least.saturating_add(bytes) > self.limit;
        never.then(|| {
            format!(
                "rows of {} MiB that travel together do not fit into the {} MiB that the process may take, of which it \
                 takes {} MiB without any: write smaller rows, or raise its memory limit",
                mib(bytes),
                mib(self.limit),
                mib(self.least)
            )
        })
    }

    /// Whether nothing can be found by another measurement.
    pub(super) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// So many bytes come to be used from now on. Who grants them has asked whether there is room.
    pub(super) fn grant(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_add(bytes);
        self.is_fresh = false;
    }

    /// Something may have been freed.
    pub(super) fn freed(&mut self) {
        self.is_fresh = false;
    }

    /// The process takes so much. `open`: bytes of the grants that have not ended.
    pub(super) fn measured(&mut self, process: u64, limit: u64, open: u64, is_least: bool) {
        (self.measured, self.limit, self.granted) = (process, limit, open);
        self.least = self.least.min(process);
        if is_least {
            (self.is_fresh, self.is_asked) = (true, false);
        }
    }

    /// Whether to measure, since there is no room for so many bytes, and there may be by now: what the process
    /// may take then for that.
    pub(super) fn ask(&mut self, bytes: u64, open: u64) -> Option<u64> {
        if self.has_room(bytes) || self.is_fresh || self.is_asked {
            return None;
        }
        self.is_asked = true;
        Some(self.limit.saturating_sub(open).saturating_sub(bytes))
    }
}

/// Why there is no room where no rows are in memory.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        let (takes, limit) = (mib(self.measured), mib(self.limit));
        write!(
            f,
            "without rows the process takes {takes} of the {limit} MiB that it may take: raise its memory limit"
        )
    }
}
