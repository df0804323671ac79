//! What an allocator of shared memory has: segments in use, parked, and idle.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rustix::fd::AsFd;
use rustix::process::{Resource, getrlimit};

use super::SegmentId;
use crate::file::File;
use crate::idle::Idle;
use crate::region::Region;
use crate::{MemoryError, memfd};

#[derive(Default)]
pub(super) struct State {
    /// By first address.
    pub(super) live: BTreeMap<usize, Live>,
    pub(super) live_bytes: usize,
    /// Where the live segments are that were exported.
    pub(super) exported: HashMap<SegmentId, usize>,
    /// Freed here, and not yet by their receivers. The first is the oldest.
    pub(super) parked: BTreeMap<SegmentId, Parked>,
    pub(super) parked_bytes: usize,
    pub(super) idle: Idle<Spare>,
    pub(super) last_id: u64,
}

/// In use here.
pub(super) struct Live {
    pub(super) id: SegmentId,
    pub(super) file: Arc<File>,
    pub(super) region: Region,
    pub(super) len: usize,
    /// Bytes from the start on whose pages are in place.
    pub(super) placed: usize,
    pub(super) frozen: bool,
    /// Nobody writes to it any more.
    pub(super) constant: bool,
    /// If frozen: to write into the file again, once nobody else has it.
    pub(super) shared: Option<Region>,
    /// Another process may have the file mapped for as long as it likes: never used again.
    pub(super) retired: bool,
    pub(super) holds: Holds,
}

pub(super) struct Parked {
    pub(super) spare: Spare,
    pub(super) class: usize,
    pub(super) holds: Holds,
}

/// Reasons not to write into the file.
#[derive(Clone, Copy, Default)]
pub(super) struct Holds {
    pub(super) exports: u32,
    pub(super) lends: u32,
}

impl Holds {
    pub(super) fn any(self) -> bool {
        self.exports + self.lends > 0
    }
}

/// Ready for reuse.
pub(super) struct Spare {
    pub(super) file: Arc<File>,
    /// Mapped to write into the file, if it still is.
    pub(super) shared: Option<Region>,
    /// Bytes from the start on whose pages are in place.
    pub(super) placed: usize,
}

/// Memory to give back, outside of the lock: unmapping takes long.
#[derive(Default)]
pub(super) struct Doomed {
    pub(super) live: Option<Live>,
    pub(super) region: Option<Region>,
    pub(super) spares: Vec<Spare>,
    pub(super) parked: Vec<Parked>,
}

impl Live {
    pub(super) fn freeze(&mut self) -> Result<(), MemoryError> {
        self.shared = memfd::freeze(&self.region, self.file.as_fd())?;
        self.frozen = true;
        Ok(())
    }
}

impl State {
    pub(super) fn segments(&self) -> usize {
        self.live.len() + self.idle.len() + self.parked.len()
    }

    pub(super) fn find(&mut self, start: *const u8, len: usize) -> Option<&mut Live> {
        let (&first, live) = self.live.range_mut(..=start.addr()).next_back()?;
        let offset = start.addr() - first;
        let end = offset.checked_add(len)?;
        (offset < live.len && end <= live.len).then_some(live)
    }

    pub(super) fn live_of(&mut self, segment: SegmentId) -> Option<&mut Live> {
        let address = self.exported.get(&segment)?;
        self.live.get_mut(address)
    }

    pub(super) fn holds(&mut self, segment: SegmentId) -> Option<&mut Holds> {
        if self.exported.contains_key(&segment) {
            return self.live_of(segment).map(|live| &mut live.holds);
        }
        self.parked
            .get_mut(&segment)
            .map(|parked| &mut parked.holds)
    }

    pub(super) fn unpark(&mut self, segment: SegmentId) -> Option<Parked> {
        let parked = self.parked.remove(&segment)?;
        self.parked_bytes -= parked.spare.placed;
        Some(parked)
    }

    pub(super) fn unpark_oldest(&mut self) -> Option<Parked> {
        let (&oldest, _) = self.parked.first_key_value()?;
        self.unpark(oldest)
    }

    /// Keeps at most `limit` bytes. Parked segments go first: their memory is in use anyway, and
    /// only a descriptor is given up.
    pub(super) fn shrink(&mut self, limit: usize, doomed: &mut Doomed) {
        while self.parked_bytes + self.idle.bytes() > limit
            && let Some(parked) = self.unpark_oldest()
        {
            doomed.parked.push(parked);
        }
        doomed.spares.extend(self.idle.shrink(limit));
    }

    /// Sees to it that one more descriptor may be opened.
    pub(super) fn make_room(&mut self, doomed: &mut Doomed) -> Result<(), MemoryError> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(limit / 4).unwrap_or(usize::MAX);
        while self.segments() >= most {
            if let Some(parked) = self.unpark_oldest() {
                doomed.parked.push(parked);
            } else if let Some(spare) = self.idle.evict() {
                doomed.spares.push(spare);
            } else {
                return Err(MemoryError::TooManySegments { most });
            }
        }
        Ok(())
    }
}
