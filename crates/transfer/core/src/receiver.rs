//! The receiving half of a pair: credit, memory, what arrived.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use treadle_guards::{InvariantError, ensure, ensure_eq};

use crate::Guard;
use crate::event::{
    Config, Effect, Extent, Failure, Message, PairEnd, StripeId, TransferId, Violation,
};
use crate::layout::{Grid, MAX_FRAMES};

/// The most incoming stripes of a pair, with those that are being connected for the sender.
pub(crate) const MAX_STRIPES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its header is here.
    Offered,
    /// Its regions have memory.
    Accepted,
    /// Every byte is in place.
    Complete,
}

/// What is known about an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Missing,
    Arriving,
    Placed,
}

#[derive(Debug)]
struct Incoming {
    grid: Grid,
    bytes: u64,
    cost: u64,
    shared: bool,
    state: State,
    slots: Vec<Slot>,
    missing: u64,
    prefetched: bool,
}

#[derive(Debug, Default)]
struct Stripe {
    extents: u64,
    corrupt: bool,
    /// The extent whose bytes are arriving.
    arriving: Option<(TransferId, u64)>,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    max_object: u64,
    total_credit: u64,
    /// What the sender may still spend on headers.
    credit: u64,
    /// Spent, taken by the application, and not given back yet.
    taken: u64,
    prefetch: u64,
    prefetched: u64,
    last: Option<TransferId>,
    objects: BTreeMap<TransferId, Incoming>,
    /// Objects that may be fetched ahead, in order; some are no longer offered.
    ahead: VecDeque<TransferId>,
    dials: bool,
    /// Stripes that are being connected for the sender.
    dialling: BTreeSet<StripeId>,
    stripes: BTreeMap<StripeId, Stripe>,
    /// Stripes that the sender gave up before they joined.
    buried: VecDeque<StripeId>,
    /// Extents that arrived damaged.
    pub(crate) corrupt: u64,
}

impl Receiver {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            max_object: config.max_object,
            total_credit: config.credit,
            credit: config.credit,
            taken: 0,
            prefetch: config.prefetch,
            prefetched: 0,
            last: None,
            objects: BTreeMap::new(),
            ahead: VecDeque::new(),
            dials: config.dials,
            dialling: BTreeSet::new(),
            stripes: BTreeMap::new(),
            buried: VecDeque::new(),
            corrupt: 0,
        }
    }

    pub(crate) fn offered(
        &mut self,
        object: TransferId,
        regions: &[u64],
        cost: u64,
        shared: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if let Some(last) = self.last
            && object <= last
            && Guard::OfferOrder.holds()
        {
            return Err(Violation::Order(object.0, last.0));
        }
        if regions.len() > MAX_FRAMES && Guard::Regions.holds() {
            return Err(Violation::Regions(regions.len()));
        }
        // The lengths are the peer's, and their sum may exceed 64 bits.
        let total: u128 = regions.iter().map(|length| u128::from(*length)).sum();
        let bytes = u64::try_from(total).unwrap_or(u64::MAX);
        if bytes > self.max_object && Guard::ObjectSize.holds() {
            return Err(Violation::TooLarge {
                bytes,
                limit: self.max_object,
            });
        }
        if cost > self.credit && Guard::ReceiverCredit.holds() {
            return Err(Violation::Credit(cost - self.credit));
        }
        self.credit -= cost;
        self.last = Some(object);
        let grid = Grid::new(regions);
        let complete = grid.is_empty();
        let incoming = Incoming {
            bytes,
            cost,
            shared,
            state: if complete {
                State::Complete
            } else {
                State::Offered
            },
            slots: Vec::new(),
            missing: grid.len(),
            prefetched: false,
            grid,
        };
        self.objects.insert(object, incoming);
        effects.push(Effect::Offered(object));
        if complete {
            effects.push(Effect::Complete(object));
        } else if !shared {
            self.ahead.push_back(object);
            self.fetch_ahead(effects);
        }
        Ok(())
    }

    /// Lets objects come before they are asked for, in order, within the budget.
    fn fetch_ahead(&mut self, effects: &mut Vec<Effect>) {
        while let Some(object) = self.ahead.front() {
            if let Some(incoming) = self.objects.get_mut(object)
                && incoming.state == State::Offered
            {
                if incoming.bytes > self.prefetch - self.prefetched && Guard::Prefetch.holds() {
                    return;
                }
                self.prefetched += incoming.bytes;
                incoming.prefetched = true;
                effects.push(Effect::Allocate(*object));
            }
            self.ahead.pop_front();
        }
    }

    pub(crate) fn accept(&mut self, object: TransferId, effects: &mut Vec<Effect>) {
        if let Some(incoming) = self.objects.get_mut(&object)
            && incoming.state == State::Offered
        {
            incoming.state = State::Accepted;
            incoming.slots = vec![Slot::Missing; incoming.grid.len() as usize];
            effects.push(Effect::Tell(Message::Accept { object }));
            // Those behind it need not wait for it any more.
            self.fetch_ahead(effects);
        }
    }

    pub(crate) fn mapped(&mut self, object: TransferId, effects: &mut Vec<Effect>) {
        if let Some(incoming) = self.objects.get_mut(&object)
            && incoming.state == State::Offered
            && incoming.shared
        {
            Self::complete(object, incoming, effects);
        }
    }

    fn complete(object: TransferId, incoming: &mut Incoming, effects: &mut Vec<Effect>) {
        incoming.state = State::Complete;
        incoming.missing = 0;
        incoming.slots = Vec::new();
        effects.push(Effect::Tell(Message::Placed { object }));
        effects.push(Effect::Complete(object));
    }

    /// The sender learns of it while bytes are missing. Of an object that was fetched ahead, all
    /// may be here: then the sender was told that it arrived, and it is only forgotten.
    pub(crate) fn refuse(&mut self, object: TransferId, reason: String, effects: &mut Vec<Effect>) {
        let Some(incoming) = self.objects.get(&object) else {
            return;
        };
        if incoming.state != State::Complete {
            effects.push(Effect::Tell(Message::Refuse { object, reason }));
        }
        self.remove(object, effects);
    }

    pub(crate) fn take(&mut self, object: TransferId, effects: &mut Vec<Effect>) {
        let complete = |incoming: &Incoming| incoming.state == State::Complete;
        if self.objects.get(&object).is_some_and(complete) {
            self.remove(object, effects);
        }
    }

    /// Forgets an object, and gives back its credit and budget.
    fn remove(&mut self, object: TransferId, effects: &mut Vec<Effect>) {
        let Some(incoming) = self.objects.remove(&object) else {
            return;
        };
        if Guard::CreditReturns.holds() {
            self.taken += incoming.cost;
        }
        // Not a message for each object. The sender allows for a quarter that is not back yet.
        if self.taken >= self.total_credit / 4 {
            self.credit += self.taken;
            effects.push(Effect::Tell(Message::Credit { bytes: self.taken }));
            self.taken = 0;
        }
        if incoming.prefetched && Guard::PrefetchReturns.holds() {
            self.prefetched -= incoming.bytes;
        }
        self.fetch_ahead(effects);
    }

    pub(crate) fn cancelled(&mut self, object: TransferId, effects: &mut Vec<Effect>) {
        // The sender was told that a complete one is placed: its `Cancel` has crossed that.
        let incomplete = |incoming: &Incoming| incoming.state != State::Complete;
        if self.objects.get(&object).is_some_and(incomplete) {
            self.remove(object, effects);
            effects.push(Effect::ReceiveFailed(object, Failure::Cancelled));
        }
    }

    /// The sender cannot dial, and wants a stripe.
    pub(crate) fn dial(
        &mut self,
        stripe: StripeId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if !self.dials {
            return Err(Violation::Unknown("a dialling side"));
        }
        let stripes = self.dialling.len() + self.stripes.len();
        if (stripes >= MAX_STRIPES && Guard::Dials.holds())
            || self.stripes.contains_key(&stripe)
            || !self.dialling.insert(stripe)
        {
            return Err(Violation::Stripe(stripe.0));
        }
        effects.push(Effect::DialForPeer(stripe));
        Ok(())
    }

    pub(crate) fn dial_failed(
        &mut self,
        stripe: StripeId,
        reason: String,
        effects: &mut Vec<Effect>,
    ) {
        if self.dialling.remove(&stripe) {
            effects.push(Effect::Tell(Message::DialFailed { stripe, reason }));
        }
    }

    pub(crate) fn joined(
        &mut self,
        stripe: StripeId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        self.dialling.remove(&stripe);
        if self.buried.contains(&stripe) && Guard::Buried.holds() {
            effects.push(Effect::DropIncoming(stripe));
            return Ok(());
        }
        let is_full = self.stripes.len() >= MAX_STRIPES && Guard::Stripes.holds();
        let is_known = self.stripes.contains_key(&stripe) && Guard::JoinedOnce.holds();
        if is_full || is_known {
            return Err(Violation::Stripe(stripe.0));
        }
        self.stripes.insert(stripe, Stripe::default());
        Ok(())
    }

    /// An extent's header arrived. `true`: its bytes belong into their place; `false`: they belong
    /// to an object that is gone, and nobody wants them.
    pub(crate) fn begin(&mut self, stripe: StripeId, extent: &Extent) -> Result<bool, Violation> {
        let Some(entry) = self.stripes.get_mut(&stripe) else {
            // Given up, and about to be closed.
            return Ok(false);
        };
        if entry.corrupt && Guard::CorruptBegin.holds() {
            // What follows damaged bytes goes again, and may be anything.
            return Ok(false);
        }
        let Some(incoming) = self.objects.get_mut(&extent.object) else {
            return if Some(extent.object) <= self.last {
                Ok(false)
            } else {
                Err(Violation::Unknown("an object"))
            };
        };
        let index = incoming
            .grid
            .index(extent.region, extent.offset, extent.length);
        // There are no slots before the object is accepted, so an extent that comes earlier is refused.
        let slot = index.and_then(|index| incoming.slots.get_mut(index as usize));
        let (Some(index), Some(slot)) = (index, slot) else {
            return Err(Violation::NoSuchExtent {
                object: extent.object.0,
                region: extent.region,
                offset: extent.offset,
                length: extent.length,
            });
        };
        if *slot != Slot::Missing && Guard::Missing.holds() {
            return Err(Violation::Twice(extent.object.0));
        }
        *slot = Slot::Arriving;
        entry.arriving = Some((extent.object, index));
        Ok(true)
    }

    pub(crate) fn arrived(&mut self, stripe: StripeId, intact: bool, effects: &mut Vec<Effect>) {
        let Some(entry) = self.stripes.get_mut(&stripe) else {
            return;
        };
        if entry.corrupt && Guard::CorruptArrival.holds() {
            // Bytes that were read before the stripe was closed: they go again.
            return;
        }
        if !intact && Guard::Checksum.holds() {
            entry.corrupt = true;
            self.corrupt += 1;
            Self::abandon(entry, &mut self.objects);
            effects.push(Effect::DropIncoming(stripe));
            return;
        }
        // Dropped extents count as well: the sender counts all that it handed to the stripe.
        entry.extents += if Guard::Count.holds() { 1 } else { 2 };
        let Some((object, index)) = entry.arriving.take() else {
            return;
        };
        if let Some(incoming) = self.objects.get_mut(&object)
            && incoming.state == State::Accepted
        {
            incoming.slots[index as usize] = Slot::Placed;
            incoming.missing -= 1;
            if incoming.missing == 0 {
                Self::complete(object, incoming, effects);
            }
        }
    }

    fn abandon(stripe: &mut Stripe, objects: &mut BTreeMap<TransferId, Incoming>) {
        if let Some((object, index)) = stripe.arriving.take()
            && let Some(incoming) = objects.get_mut(&object)
            && let Some(slot) = incoming.slots.get_mut(index as usize)
            && Guard::MissingAgain.holds()
        {
            *slot = Slot::Missing;
        }
    }

    /// The sender gave up a stripe: stop reading it. Its end is reported when it is reached.
    pub(crate) fn broken(&mut self, stripe: StripeId, effects: &mut Vec<Effect>) {
        if self.stripes.contains_key(&stripe) {
            effects.push(Effect::DropIncoming(stripe));
            return;
        }
        // It has not joined, and must not any more; or its end was reported, and the sender will
        // not mind to hear it again.
        if self.buried.len() == MAX_STRIPES {
            self.buried.pop_front();
        }
        self.buried.push_back(stripe);
        if Guard::ReportUnjoined.holds() {
            effects.push(Effect::Tell(Message::Report {
                stripe,
                extents: 0,
                corrupt: false,
            }));
        }
    }

    pub(crate) fn ended(&mut self, stripe: StripeId, effects: &mut Vec<Effect>) {
        if let Some(mut entry) = self.stripes.remove(&stripe) {
            Self::abandon(&mut entry, &mut self.objects);
            effects.push(Effect::Tell(Message::Report {
                stripe,
                extents: entry.extents,
                corrupt: entry.corrupt,
            }));
        }
    }

    pub(crate) fn end(&mut self, end: &PairEnd, effects: &mut Vec<Effect>) {
        for stripe in core::mem::take(&mut self.stripes).into_keys() {
            effects.push(Effect::DropIncoming(stripe));
        }
        // What is complete can still be taken.
        let incomplete: Vec<_> = self
            .objects
            .iter()
            .filter(|(_, incoming)| incoming.state != State::Complete)
            .map(|(object, _)| *object)
            .collect();
        for object in incomplete {
            if let Some(incoming) = self.objects.remove(&object)
                && incoming.prefetched
                && Guard::EndAccounts.holds()
            {
                self.prefetched -= incoming.bytes;
            }
            effects.push(Effect::ReceiveFailed(object, Failure::Pair(end.clone())));
        }
        self.ahead.clear();
        self.dialling.clear();
        self.buried.clear();
    }

    /// Bytes of an object's regions in place, and in total.
    pub(crate) fn progress(&self, object: TransferId) -> Option<(u64, u64)> {
        let incoming = self.objects.get(&object)?;
        if incoming.state == State::Complete {
            return Some((incoming.bytes, incoming.bytes));
        }
        let extents = incoming.grid.len();
        let placed = extents - incoming.missing;
        let done = (u128::from(incoming.bytes) * u128::from(placed) / u128::from(extents)) as u64;
        Some((done, incoming.bytes))
    }

    pub(crate) fn check(&self) -> Result<(), InvariantError> {
        let costs: u64 = self.objects.values().map(|incoming| incoming.cost).sum();
        ensure!(
            self.credit + self.taken + costs <= self.total_credit,
            "credit out of nothing"
        );
        let prefetched: u64 = self
            .objects
            .values()
            .filter(|incoming| incoming.prefetched)
            .map(|incoming| incoming.bytes)
            .sum();
        ensure_eq!(prefetched, self.prefetched, "bytes that are prefetched");
        ensure!(self.prefetched <= self.prefetch, "too much is prefetched");
        for incoming in self.objects.values() {
            if incoming.state == State::Accepted {
                let placed = incoming.slots.iter().filter(|slot| **slot == Slot::Placed);
                ensure_eq!(
                    placed.count() as u64 + incoming.missing,
                    incoming.grid.len(),
                    "extents, placed or missing"
                );
                ensure!(incoming.missing > 0, "complete, and not said");
            }
        }
        for stripe in self.stripes.values() {
            if let Some((object, index)) = stripe.arriving
                && let Some(incoming) = self.objects.get(&object)
                && incoming.state == State::Accepted
            {
                ensure_eq!(
                    incoming.slots[index as usize],
                    Slot::Arriving,
                    "extent {index} of {object:?}"
                );
            }
        }
        Ok(())
    }
}
