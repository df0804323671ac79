//! The requests of an application that wait for a device.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::device::{Access, Request};

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) asked: Duration,
    /// Unique, and greater than those of requests before it.
    pub(super) order: u64,
}

impl Waiting {
    pub(super) fn end(&self) -> u64 {
        self.request.offset.saturating_add(self.request.bytes)
    }

    /// Whether another one begins where this one ends.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        (self.request.file, self.end()) == (other.request.file, other.request.offset)
    }

    fn place(&self) -> (u64, u64, u64) {
        (self.request.file, self.request.offset, self.order)
    }
}

/// Those of one application. Writes are next: memory waits for them.
#[derive(Debug, Default)]
pub(super) struct Queue {
    writes: BTreeMap<u64, Waiting>,
    reads: BTreeMap<u64, Waiting>,
    /// The reads by file, offset and order.
    places: BTreeSet<(u64, u64, u64)>,
}

impl Queue {
    pub(super) fn push(&mut self, waiting: Waiting) {
        match waiting.request.access {
            Access::Write => {
                self.writes.insert(waiting.order, waiting);
            }
            Access::Read => {
                self.places.insert(waiting.place());
                self.reads.insert(waiting.order, waiting);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.writes.values().chain(self.reads.values())
    }

    pub(super) fn reads(&self) -> impl Iterator<Item = &Waiting> {
        self.reads.values()
    }

    /// The order of what came first.
    pub(super) fn first(&self) -> u64 {
        let first = self.writes.keys().next().into_iter();
        let first = first.chain(self.reads.keys().next()).min();
        first.copied().unwrap_or(u64::MAX)
    }

    /// Takes the requests of a turn. `from`: reads are ordered by their places, from this file and offset on, as
    /// many as `fits` says. A read that was asked for before `late` is the first.
    pub(super) fn take(
        &mut self,
        from: Option<(u64, u64)>,
        late: Option<Duration>,
        fits: impl Fn(u64, u64) -> bool,
    ) -> Vec<Waiting> {
        if let Some((_, write)) = self.writes.pop_first() {
            return vec![write];
        }
        let oldest = self.reads.values().next().copied();
        let Some(oldest) = oldest else {
            return Vec::new();
        };
        let Some((file, offset)) = from else {
            return self.remove(oldest.place()).into_iter().collect();
        };
        let is_late = late.is_some_and(|late| oldest.asked < late);
        let start = match is_late {
            true => oldest.place(),
            false => (file, offset, 0),
        };
        let first = self.places.range(start..).next();
        let mut next = first.or_else(|| self.places.first()).copied();
        let mut turn: Vec<Waiting> = Vec::new();
        let (mut operations, mut bytes) = (0, 0u64);
        while let Some(place) = next
            && let Some(&one) = self.reads.get(&place.2)
        {
            let last = turn.last();
            let is_near = last.is_none_or(|last| last.request.file == one.request.file);
            operations += u64::from(last.is_none_or(|last| !last.is_before(&one)));
            bytes = bytes.saturating_add(one.request.bytes);
            let fits = turn.is_empty() || (is_near && fits(operations, bytes));
            if !fits {
                break;
            }
            turn.extend(self.remove(place));
            next = self.places.range(place..).next().copied();
        }
        turn
    }

    fn remove(&mut self, place: (u64, u64, u64)) -> Option<Waiting> {
        self.places.remove(&place);
        self.reads.remove(&place.2)
    }

    /// Whether each read has its place.
    pub(super) fn is_consistent(&self) -> bool {
        let places: BTreeSet<_> = self.reads.values().map(Waiting::place).collect();
        places == self.places
    }
}
