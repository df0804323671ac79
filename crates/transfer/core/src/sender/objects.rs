//! The objects of the sending half: offers under credit, and the order in which extents go out.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use treadle_guards::{InvariantError, ensure, ensure_eq};

use crate::Guard;
use crate::event::{Effect, Extent, Failure, Message, PairEnd, TransferId, Violation};
use crate::layout::Grid;

/// Offers with regions that wait for `Accept` or `Placed`; later ones wait here.
const MAX_OFFERS: usize = 256;
/// Objects that share the stripes at a time; later ones wait, so that the first are soon complete.
const MAX_ACTIVE: usize = 4;
/// Damaged extents of one object after which the network is to blame, not chance.
const MAX_CORRUPT: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not offered yet: credit, or too many offers.
    Waiting,
    /// The receiver knows it.
    Offered,
    /// The receiver has memory for it.
    Accepted,
}

#[derive(Debug)]
struct Outgoing {
    regions: Vec<u64>,
    grid: Grid,
    cost: u64,
    shared: bool,
    state: State,
    /// The first extent that was never handed to a stripe.
    next: u64,
    /// Extents to hand out again.
    again: Vec<u64>,
    corrupt: u32,
}

impl Outgoing {
    fn has_extents(&self) -> bool {
        (self.state == State::Accepted || !Guard::Accepted.holds())
            && (self.next < self.grid.len() || !self.again.is_empty())
    }
}

#[derive(Debug)]
pub(super) struct Objects {
    last: Option<TransferId>,
    last_offered: Option<TransferId>,
    known: BTreeMap<TransferId, Outgoing>,
    /// Not offered yet, in order.
    waiting: VecDeque<TransferId>,
    /// Offered with regions, not placed yet.
    offered: usize,
    /// Accepted, with extents to hand out: the front is next.
    active: VecDeque<TransferId>,
    credit: u64,
    /// The most that a header may cost. The receiver gives credit back a quarter at a time, so the
    /// rest is what it is certain to come to.
    max_cost: u64,
}

impl Objects {
    pub(super) fn new(credit: u64) -> Self {
        Self {
            last: None,
            last_offered: None,
            known: BTreeMap::new(),
            waiting: VecDeque::new(),
            offered: 0,
            active: VecDeque::new(),
            credit,
            max_cost: match Guard::CreditAway.holds() {
                true => credit - credit / 4,
                false => credit,
            },
        }
    }

    pub(super) fn send(
        &mut self,
        object: TransferId,
        regions: Vec<u64>,
        cost: u64,
        shared: bool,
        effects: &mut Vec<Effect>,
    ) {
        debug_assert!(self.last < Some(object), "objects are numbered in order");
        self.last = Some(object);
        if cost > self.max_cost && Guard::LargestHeader.holds() {
            let limit = self.max_cost;
            effects.push(Effect::SendFailed(object, Failure::Header { cost, limit }));
            return;
        }
        let grid = Grid::new(&regions);
        if grid.is_empty() && self.may_offer(cost) && self.waiting.is_empty() {
            // It is all in its header: nothing is left to remember.
            self.offer_one(object, regions, cost, shared, effects);
            effects.push(Effect::Sent(object));
            return;
        }
        let outgoing = Outgoing {
            regions,
            grid,
            cost,
            shared,
            state: State::Waiting,
            next: 0,
            again: Vec::new(),
            corrupt: 0,
        };
        self.known.insert(object, outgoing);
        self.waiting.push_back(object);
        self.offer(effects);
    }

    /// Whether credit and the number of open offers allow another offer.
    fn may_offer(&self, cost: u64) -> bool {
        (cost <= self.credit || !Guard::SenderCredit.holds()) && self.offered < MAX_OFFERS
    }

    fn offer_one(
        &mut self,
        object: TransferId,
        regions: Vec<u64>,
        cost: u64,
        shared: bool,
        effects: &mut Vec<Effect>,
    ) {
        self.credit -= cost;
        self.last_offered = Some(object);
        effects.push(Effect::Tell(Message::Offer {
            object,
            regions,
            cost,
            shared,
        }));
    }

    /// Offers what credit and the number of open offers allow, in order.
    pub(super) fn offer(&mut self, effects: &mut Vec<Effect>) {
        while let Some(&object) = self.waiting.front() {
            let outgoing = &self.known[&object];
            let cost = outgoing.cost;
            if !self.may_offer(cost) {
                return;
            }
            let (regions, shared) = (outgoing.regions.clone(), outgoing.shared);
            let whole = outgoing.grid.is_empty();
            self.waiting.pop_front();
            self.offer_one(object, regions, cost, shared, effects);
            if whole {
                self.known.remove(&object);
                effects.push(Effect::Sent(object));
            } else if let Some(outgoing) = self.known.get_mut(&object) {
                outgoing.state = State::Offered;
                self.offered += 1;
            }
        }
    }

    pub(super) fn credited(&mut self, bytes: u64, effects: &mut Vec<Effect>) {
        self.credit = self.credit.saturating_add(bytes);
        self.offer(effects);
    }

    pub(super) fn is_known(&self, object: TransferId) -> bool {
        self.known.contains_key(&object)
    }

    /// Whether the receiver was told of an object that is not done.
    pub(super) fn is_offered(&self, object: TransferId) -> bool {
        (self.known.get(&object)).is_some_and(|outgoing| outgoing.state != State::Waiting)
    }

    /// Returns whether it was there.
    pub(super) fn remove(&mut self, object: TransferId) -> bool {
        let Some(outgoing) = self.known.remove(&object) else {
            return false;
        };
        if outgoing.state == State::Waiting {
            self.waiting.retain(|other| *other != object);
        } else {
            self.offered -= 1;
        }
        self.active.retain(|other| *other != object);
        true
    }

    /// Checks an object that the receiver speaks about, and returns whether it is still there: one
    /// that was cancelled meanwhile is no violation.
    pub(super) fn check_spoken_of(&self, object: TransferId) -> Result<bool, Violation> {
        if Some(object) > self.last_offered && Guard::SpokenOf.holds() {
            return Err(Violation::Unknown("an object"));
        }
        Ok(self.is_known(object))
    }

    /// Returns whether there are extents to hand out now that there were not before.
    pub(super) fn accepted(&mut self, object: TransferId) -> Result<bool, Violation> {
        self.check_spoken_of(object)?;
        let Some(outgoing) = self.known.get_mut(&object) else {
            return Ok(false);
        };
        if outgoing.state != State::Offered {
            return Ok(false);
        }
        outgoing.state = State::Accepted;
        self.active.push_back(object);
        Ok(true)
    }

    /// Checks that the receiver can have all of an object, and returns whether it is still there.
    pub(super) fn check_placed(&self, object: TransferId) -> Result<bool, Violation> {
        self.check_spoken_of(object)?;
        let Some(outgoing) = self.known.get(&object) else {
            return Ok(false);
        };
        let mapped = outgoing.shared && outgoing.state == State::Offered;
        let handed = outgoing.state == State::Accepted && !outgoing.has_extents();
        if !mapped && !handed && Guard::Placed.holds() {
            return Err(Violation::Unknown("a complete object"));
        }
        Ok(true)
    }

    /// Whether there are extents to hand out.
    pub(super) fn is_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// The next extent, and its index in its object.
    pub(super) fn next_extent(&mut self) -> Option<(u64, Extent)> {
        let object = self.active.pop_front()?;
        let outgoing = (self.known.get_mut(&object)).expect("an active object exists");
        let index = outgoing.again.pop().unwrap_or_else(|| {
            outgoing.next += 1;
            outgoing.next - 1
        });
        let (region, offset, length) = outgoing.grid.extent(index);
        if outgoing.has_extents() {
            // Behind those that share the stripes, and before those that wait.
            let turn = self.active.len().min(MAX_ACTIVE - 1);
            self.active.insert(turn, object);
        }
        let extent = Extent {
            object,
            region,
            offset,
            length,
        };
        Some((index, extent))
    }

    /// Hands an extent out again, before all others. Returns whether its object is still there.
    pub(super) fn send_again(&mut self, object: TransferId, index: u64) -> bool {
        let Some(outgoing) = self.known.get_mut(&object) else {
            return false;
        };
        // Asked before the push: an object with extents to hand out is in the rotation already.
        if !outgoing.has_extents() && Guard::Rotation.holds() {
            self.active.push_front(object);
        }
        if Guard::Again.holds() {
            outgoing.again.push(index);
        }
        true
    }

    /// An extent of an object arrived damaged. Returns why the object fails, if that was one too many.
    pub(super) fn damaged(&mut self, object: TransferId) -> Option<Failure> {
        let outgoing = self.known.get_mut(&object)?;
        outgoing.corrupt += 1;
        let fails = outgoing.corrupt >= MAX_CORRUPT && Guard::Damage.holds();
        fails.then_some(Failure::Corrupt(outgoing.corrupt))
    }

    pub(super) fn end(&mut self, end: &PairEnd, effects: &mut Vec<Effect>) {
        self.waiting.clear();
        self.active.clear();
        self.offered = 0;
        for object in core::mem::take(&mut self.known).into_keys() {
            effects.push(Effect::SendFailed(object, Failure::Pair(end.clone())));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// `under_way`: the extents that stripes carry, by object and index.
    pub(super) fn check<'a>(
        &self,
        under_way: impl Iterator<Item = &'a (TransferId, u64)> + Clone,
    ) -> Result<(), InvariantError> {
        let is_offered = |outgoing: &&Outgoing| outgoing.state != State::Waiting;
        ensure_eq!(
            self.offered,
            self.known.values().filter(is_offered).count(),
            "objects that are offered"
        );
        for object in &self.waiting {
            let state = self.known.get(object).map(|outgoing| outgoing.state);
            ensure_eq!(state, Some(State::Waiting), "{object:?} is in the queue");
        }
        for (object, outgoing) in &self.known {
            let times = self.active.iter().filter(|other| *other == object).count();
            ensure_eq!(
                times,
                usize::from(outgoing.has_extents()),
                "{object:?} in the rotation"
            );
            if outgoing.state != State::Accepted {
                continue;
            }
            // Every extent is ahead, to be sent again, or on exactly one stripe that may carry it.
            let mut seen = vec![0u8; outgoing.grid.len() as usize];
            seen[outgoing.next as usize..].fill(1);
            let carried = under_way.clone().filter(|(other, _)| other == object);
            for index in outgoing.again.iter().chain(carried.map(|(_, index)| index)) {
                seen[*index as usize] += 1;
            }
            ensure!(
                seen.iter().all(|count| *count <= 1),
                "an extent of {object:?} is in two places"
            );
        }
        for object in &self.active {
            ensure!(
                self.known.contains_key(object),
                "{object:?} is gone, yet active"
            );
        }
        Ok(())
    }
}
