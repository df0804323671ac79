//! Workers by level of load, so that the least or most loaded one is found without a scan.

use alloc::vec::Vec;
use treadle_types::WorkerId;

/// The number of levels.
pub(crate) const LEVELS: usize = 16;

const ABSENT: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Seat {
    level: u8,
    slot: u32,
}

const NOWHERE: Seat = Seat {
    level: ABSENT,
    slot: 0,
};

/// A set of workers, each at a level. Every operation takes constant time.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    sets: [Vec<WorkerId>; LEVELS],
    /// Bit `l` says that level `l` is not empty.
    mask: u16,
    /// By worker.
    seats: Vec<Seat>,
}

impl Default for Levels {
    fn default() -> Self {
        Self {
            sets: core::array::from_fn(|_| Vec::new()),
            mask: 0,
            seats: Vec::new(),
        }
    }
}

impl Levels {
    /// Puts a worker at a level, or out of the set.
    #[inline]
    pub(crate) fn set(&mut self, worker: WorkerId, level: Option<u8>) {
        let level = level.unwrap_or(ABSENT);
        let seat = self.seats.get(worker.0 as usize).copied();
        if seat.unwrap_or(NOWHERE).level != level {
            self.reseat(worker, seat.unwrap_or(NOWHERE), level);
        }
    }

    fn reseat(&mut self, worker: WorkerId, seat: Seat, level: u8) {
        if self.seats.len() <= worker.0 as usize {
            self.seats.resize(worker.0 as usize + 1, NOWHERE);
        }
        if seat.level != ABSENT {
            let set = &mut self.sets[usize::from(seat.level)];
            set.swap_remove(seat.slot as usize);
            if let Some(moved) = set.get(seat.slot as usize) {
                self.seats[moved.0 as usize].slot = seat.slot;
            }
            if set.is_empty() {
                self.mask &= !(1 << seat.level);
            }
        }
        let mut slot = 0;
        if level != ABSENT {
            let set = &mut self.sets[usize::from(level)];
            slot = set.len() as u32;
            set.push(worker);
            self.mask |= 1 << level;
        }
        self.seats[worker.0 as usize] = Seat { level, slot };
    }

    /// A worker of the lowest level that is not empty.
    #[inline]
    pub(crate) fn lowest(&self) -> Option<WorkerId> {
        let set = self.sets.get(self.mask.trailing_zeros() as usize)?;
        set.first().copied()
    }

    /// A worker of the highest level that is not empty.
    #[inline]
    pub(crate) fn highest(&self) -> Option<WorkerId> {
        let set = self
            .sets
            // An empty mask means level 0, which has nobody then.
            .get((15 - self.mask.leading_zeros().min(15)) as usize)?;
        set.first().copied()
    }

    /// All workers of the set, the least loaded first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.sets.iter().flatten().copied()
    }

    /// The same, the most loaded first.
    pub(crate) fn iter_highest(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.sets.iter().rev().flatten().copied()
    }

    /// The level of a worker.
    pub(crate) fn level(&self, worker: WorkerId) -> Option<u8> {
        let seat = self.seats.get(worker.0 as usize)?;
        (seat.level != ABSENT).then_some(seat.level)
    }
}
