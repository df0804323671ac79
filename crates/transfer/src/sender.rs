//! The sending half of a pair: offers, extents, stripes.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_guards::{InvariantError, ensure, ensure_eq};

use crate::Guard;
use crate::event::{
    Config, Effect, Extent, Failure, Message, PairEnd, StripeId, TransferId, Violation,
};
use crate::layout::Grid;
use crate::ramp::Ramp;
use crate::receiver::MAX_STRIPES;

/// Offers with regions that wait for `Accept` or `Placed`; later ones wait here.
const MAX_OFFERS: usize = 256;
/// Objects that share the stripes at a time; later ones wait, so that the first are soon complete.
const MAX_ACTIVE: usize = 4;
/// Damaged extents of one object after which the network is to blame, not chance.
const MAX_CORRUPT: u32 = 5;
/// Rounds of attempts in a row to open a stripe, or to get one extent through it. What fails before
/// the pause after a round is over belongs to that round.
const MAX_FAILURES: u32 = 8;
/// The first pause between such attempts; each further one is twice as long.
const BACKOFF: Duration = Duration::from_millis(20);

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StripeState {
    /// Being connected.
    Opening,
    /// In use.
    Open,
    /// Given up by us; its last extents are under way.
    Retired,
    /// Broken; waits for the receiver's report.
    Lost,
}

#[derive(Debug)]
struct Stripe {
    link: StripeState,
    /// Extents before those in `sent`, all of them of objects that are done.
    base: u64,
    /// The extents handed to it, in order.
    sent: VecDeque<(TransferId, u64)>,
    /// When its socket last took bytes, or it got its first extent after a pause, or its link
    /// changed.
    progress: Duration,
}

#[derive(Debug)]
pub(crate) struct Sender {
    dials: bool,
    timeout: Duration,
    last: Option<TransferId>,
    last_offered: Option<TransferId>,
    objects: BTreeMap<TransferId, Outgoing>,
    /// Not offered yet, in order.
    waiting: VecDeque<TransferId>,
    /// Offered with regions, not placed yet.
    offered: usize,
    /// Accepted, with extents to hand out: the front is next.
    active: VecDeque<TransferId>,
    /// When a tick last found nothing to hand out.
    idle_at: Duration,
    /// The last tick left nothing to do for the next one, which may have been left out.
    rested: bool,
    stripes: BTreeMap<StripeId, Stripe>,
    next_stripe: u32,
    credit: u64,
    /// The most that a header may cost. The receiver gives credit back a quarter at a time, so the
    /// rest is what it is certain to come to.
    max_cost: u64,
    ramp: Ramp,
    failures: u32,
    retry_at: Duration,
    /// Stripes that broke and were replaced.
    pub(crate) replaced: u64,
}

impl Sender {
    pub(crate) fn new(config: &Config, credit: u64) -> Self {
        Self {
            dials: config.dials,
            timeout: config.timeout,
            last: None,
            last_offered: None,
            objects: BTreeMap::new(),
            waiting: VecDeque::new(),
            offered: 0,
            active: VecDeque::new(),
            idle_at: Duration::ZERO,
            rested: true,
            stripes: BTreeMap::new(),
            next_stripe: 0,
            credit,
            max_cost: match Guard::CreditAway.holds() {
                true => credit - credit / 4,
                false => credit,
            },
            ramp: Ramp::new(
                config.stripes.map(|stripes| stripes.min(MAX_STRIPES)),
                config.max_stripes.min(MAX_STRIPES),
            ),
            failures: 0,
            retry_at: Duration::ZERO,
            replaced: 0,
        }
    }

    pub(crate) fn send(
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
        self.objects.insert(object, outgoing);
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
    fn offer(&mut self, effects: &mut Vec<Effect>) {
        while let Some(&object) = self.waiting.front() {
            let outgoing = &self.objects[&object];
            let cost = outgoing.cost;
            if !self.may_offer(cost) {
                return;
            }
            let (regions, shared) = (outgoing.regions.clone(), outgoing.shared);
            let whole = outgoing.grid.is_empty();
            self.waiting.pop_front();
            self.offer_one(object, regions, cost, shared, effects);
            if whole {
                self.objects.remove(&object);
                effects.push(Effect::Sent(object));
            } else if let Some(outgoing) = self.objects.get_mut(&object) {
                outgoing.state = State::Offered;
                self.offered += 1;
            }
        }
    }

    pub(crate) fn cancel(&mut self, object: TransferId, effects: &mut Vec<Effect>) {
        let Some(outgoing) = self.objects.get(&object) else {
            return;
        };
        if outgoing.state != State::Waiting {
            effects.push(Effect::Tell(Message::Cancel { object }));
        }
        self.fail(object, Failure::Cancelled, effects);
    }

    fn fail(&mut self, object: TransferId, failure: Failure, effects: &mut Vec<Effect>) {
        if Guard::FailsOnce.holds() {
            self.forget(object);
        }
        effects.push(Effect::SendFailed(object, failure));
        self.offer(effects);
    }

    fn forget(&mut self, object: TransferId) {
        let Some(outgoing) = self.objects.remove(&object) else {
            return;
        };
        if outgoing.state == State::Waiting {
            self.waiting.retain(|other| *other != object);
        } else {
            self.offered -= 1;
        }
        self.active.retain(|other| *other != object);
        for stripe in self.stripes.values_mut() {
            while let Some((front, _)) = stripe.sent.front() {
                if self.objects.contains_key(front) {
                    break;
                }
                stripe.sent.pop_front();
                stripe.base += u64::from(Guard::Base.holds());
            }
        }
    }

    /// An object that the receiver speaks about. One that was cancelled meanwhile is no violation.
    fn spoken_of(&mut self, object: TransferId) -> Result<Option<&mut Outgoing>, Violation> {
        if Some(object) > self.last_offered && Guard::SpokenOf.holds() {
            return Err(Violation::Unknown("an object"));
        }
        Ok(self.objects.get_mut(&object))
    }

    pub(crate) fn accepted(
        &mut self,
        object: TransferId,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if let Some(outgoing) = self.spoken_of(object)?
            && outgoing.state == State::Offered
        {
            outgoing.state = State::Accepted;
            self.active.push_back(object);
            self.provide(now, effects);
            self.wake(effects);
        }
        Ok(())
    }

    pub(crate) fn placed(
        &mut self,
        object: TransferId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if let Some(outgoing) = self.spoken_of(object)? {
            let mapped = outgoing.shared && outgoing.state == State::Offered;
            let handed = outgoing.state == State::Accepted && !outgoing.has_extents();
            if !mapped && !handed && Guard::Placed.holds() {
                return Err(Violation::Unknown("a complete object"));
            }
            self.forget(object);
            self.failures = 0;
            effects.push(Effect::Sent(object));
            self.offer(effects);
        }
        Ok(())
    }

    pub(crate) fn refused(
        &mut self,
        object: TransferId,
        reason: String,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if self.spoken_of(object)?.is_some() {
            self.fail(object, Failure::Refused(reason), effects);
        }
        Ok(())
    }

    pub(crate) fn credited(&mut self, bytes: u64, effects: &mut Vec<Effect>) {
        self.credit = self.credit.saturating_add(bytes);
        self.offer(effects);
    }

    /// The next extent for a stripe whose socket has room.
    pub(crate) fn next_extent(&mut self, stripe: StripeId, now: Duration) -> Option<Extent> {
        let entry = self.stripes.get_mut(&stripe)?;
        if entry.link != StripeState::Open {
            return None;
        }
        let object = *self.active.front()?;
        let outgoing = self
            .objects
            .get_mut(&object)
            .expect("an active object exists");
        let index = outgoing.again.pop().unwrap_or_else(|| {
            outgoing.next += 1;
            outgoing.next - 1
        });
        let (region, offset, length) = outgoing.grid.extent(index);
        self.active.pop_front();
        if outgoing.has_extents() {
            let turn = self.active.len().min(MAX_ACTIVE - 1);
            self.active.insert(turn, object);
        }
        if entry.sent.is_empty() {
            entry.progress = now;
        }
        entry.sent.push_back((object, index));
        Some(Extent {
            object,
            region,
            offset,
            length,
        })
    }

    pub(crate) fn drained(
        &mut self,
        stripe: StripeId,
        bytes: u64,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(entry) = self.stripes.get_mut(&stripe) {
            entry.progress = now;
        }
        let open = self.open();
        let backlog = !self.active.is_empty();
        if self.ramp.observe(now, bytes, open, backlog) {
            self.provide(now, effects);
        }
    }

    pub(crate) fn opened(&mut self, stripe: StripeId, now: Duration, effects: &mut Vec<Effect>) {
        match self.stripes.get_mut(&stripe) {
            Some(entry) if entry.link == StripeState::Opening => {
                entry.link = StripeState::Open;
                entry.progress = now;
                effects.push(Effect::Wake(stripe));
                self.provide(now, effects);
            }
            _ => effects.push(Effect::Drop(stripe)),
        }
    }

    pub(crate) fn open_failed(
        &mut self,
        stripe: StripeId,
        reason: String,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(entry) = self.stripes.get_mut(&stripe)
            && entry.link == StripeState::Opening
        {
            // The other end may be connected nevertheless: the entry waits for its report.
            entry.link = StripeState::Lost;
            effects.push(Effect::Tell(Message::Broken { stripe }));
            self.failed(reason, now, effects);
        }
    }

    /// The other side could not dial. This end may be connected nevertheless, and have sent.
    pub(crate) fn dial_failed(
        &mut self,
        stripe: StripeId,
        reason: String,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if self.dials {
            return Err(Violation::Unknown("a stripe to dial"));
        }
        let Some(entry) = self.known(stripe)? else {
            return Ok(());
        };
        if entry.link != StripeState::Lost {
            effects.push(Effect::Drop(stripe));
        }
        if Guard::DialFailed.holds() {
            self.send_again(&entry, 0);
        }
        self.failed(reason, now, effects);
        self.wake(effects);
        Ok(())
    }

    /// Takes out a stripe that the receiver speaks about, if it is still there.
    fn known(&mut self, stripe: StripeId) -> Result<Option<Stripe>, Violation> {
        if stripe.0 >= self.next_stripe && Guard::ReportedStripe.holds() {
            return Err(Violation::Unknown("a stripe"));
        }
        Ok(self.stripes.remove(&stripe))
    }

    /// Hands out again what a stripe carried after its first `extents`. Returns whether anything is.
    fn send_again(&mut self, stripe: &Stripe, extents: u64) -> bool {
        let mut any = false;
        let arrived = extents.saturating_sub(stripe.base) as usize;
        let skipped = if Guard::OnlyMissing.holds() {
            arrived
        } else {
            0
        };
        for &(object, index) in stripe.sent.iter().skip(skipped).rev() {
            let Some(outgoing) = self.objects.get_mut(&object) else {
                continue;
            };
            if !outgoing.has_extents() && Guard::Rotation.holds() {
                self.active.push_front(object);
            }
            if Guard::Again.holds() {
                outgoing.again.push(index);
            }
            any = true;
        }
        any
    }

    /// Something about a stripe failed: fewer of them, or another attempt later, or none.
    fn failed(&mut self, reason: String, now: Duration, effects: &mut Vec<Effect>) {
        if now >= self.retry_at || !Guard::Rounds.holds() {
            let pause = BACKOFF * 2u32.pow(self.failures.min(MAX_FAILURES));
            if Guard::Pause.holds() {
                self.retry_at = now + pause;
            }
            self.failures += 1;
        }
        let open = self.open();
        if open > 0 {
            self.ramp.cannot_open(now, open);
        } else if self.usable() == 0 && self.failures >= MAX_FAILURES && Guard::LastAttempt.holds()
        {
            effects.push(Effect::End(PairEnd::NoStripe(reason)));
            return;
        }
        self.provide(now, effects);
    }

    pub(crate) fn lost(&mut self, stripe: StripeId, now: Duration, effects: &mut Vec<Effect>) {
        let Some(entry) = self.stripes.get_mut(&stripe) else {
            return;
        };
        match entry.link {
            StripeState::Opening => {
                effects.push(Effect::Drop(stripe));
                self.open_failed(stripe, "it broke while it was opened".into(), now, effects);
            }
            StripeState::Open | StripeState::Retired => {
                self.replaced += u64::from(entry.link == StripeState::Open);
                entry.link = StripeState::Lost;
                effects.push(Effect::Tell(Message::Broken { stripe }));
                effects.push(Effect::Drop(stripe));
                self.provide(now, effects);
            }
            StripeState::Lost => {}
        }
    }

    /// The receiver says how many extents of a stripe it has: the others go again.
    pub(crate) fn reported(
        &mut self,
        stripe: StripeId,
        extents: u64,
        corrupt: bool,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        let Some(entry) = self.known(stripe)? else {
            // Given up before it joined, and reported twice.
            return Ok(());
        };
        let handed = entry.base + entry.sent.len() as u64;
        if extents > handed && Guard::ReportedExtents.holds() {
            return Err(Violation::Unknown("an extent"));
        }
        if entry.link != StripeState::Lost {
            effects.push(Effect::Drop(stripe));
            self.replaced += u64::from(entry.link == StripeState::Open);
        }
        if extents > 0 {
            self.failures = 0;
        }
        let missing = self.send_again(&entry, extents);
        if let Some(after) = extents.checked_sub(entry.base)
            && corrupt
            && let Some(&(object, _)) = entry
                .sent
                .iter()
                .skip(after as usize)
                .find(|(object, _)| Guard::Blame.holds() || self.objects.contains_key(object))
            && let Some(outgoing) = self.objects.get_mut(&object)
        {
            outgoing.corrupt += 1;
            if outgoing.corrupt >= MAX_CORRUPT && Guard::Damage.holds() {
                let failure = Failure::Corrupt(outgoing.corrupt);
                effects.push(Effect::Tell(Message::Cancel { object }));
                self.fail(object, failure, effects);
            }
        }
        if entry.link == StripeState::Opening && Guard::FailedOpening.holds() {
            self.failed("it broke while it was opened".into(), now, effects);
        } else if entry.link != StripeState::Retired && extents == 0 && missing {
            self.failed(
                "it breaks before the first extent is through".into(),
                now,
                effects,
            );
        } else {
            self.provide(now, effects);
        }
        self.wake(effects);
        Ok(())
    }

    /// Whether time alone brings nothing about: nothing is under way, and there are as many stripes
    /// as are wanted.
    pub(crate) fn is_resting(&self) -> bool {
        let rests = |entry: &Stripe| entry.link == StripeState::Open && entry.sent.is_empty();
        self.active.is_empty()
            && self.stripes.values().all(rests)
            && (self.stripes.is_empty() || self.stripes.len() == self.ramp.wanted())
    }

    pub(crate) fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        // After a rest, there was none for some time, and nothing could stall.
        let is_idle = self.active.is_empty() || core::mem::take(&mut self.rested);
        if is_idle && Guard::Idle.holds() {
            self.idle_at = now;
        }
        let stalled: Vec<_> = self
            .stripes
            .iter()
            .filter(|(_, entry)| {
                let since = match entry.link {
                    StripeState::Open
                        if entry.sent.is_empty() && !Guard::StallCancelled.holds() =>
                    {
                        now
                    }
                    StripeState::Open if entry.sent.is_empty() => {
                        // It may be stuck with what was cancelled, and does not ask for more.
                        entry.progress.max(self.idle_at)
                    }
                    StripeState::Opening if !Guard::StallOpening.holds() => now,
                    StripeState::Retired if !Guard::StallRetired.holds() => now,
                    StripeState::Open | StripeState::Opening | StripeState::Retired => {
                        entry.progress
                    }
                    StripeState::Lost => now,
                };
                now.saturating_sub(since) > self.timeout && Guard::Stall.holds()
            })
            .map(|(stripe, _)| *stripe)
            .collect();
        for stripe in stalled {
            self.lost(stripe, now, effects);
        }
        self.provide(now, effects);
        self.rested = self.is_resting();
    }

    /// Opens or retires stripes until there are as many as are wanted.
    fn provide(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let mut usable = self.usable();
        if usable == 0 && self.active.is_empty() {
            return;
        }
        // Those whose report is under way still count at the receiver.
        let room =
            |stripes: &BTreeMap<_, _>| stripes.len() < MAX_STRIPES || !Guard::Waiting.holds();
        while usable < self.ramp.wanted() && now >= self.retry_at && room(&self.stripes) {
            let stripe = StripeId(self.next_stripe);
            self.next_stripe += 1;
            let entry = Stripe {
                link: StripeState::Opening,
                base: 0,
                sent: VecDeque::new(),
                progress: now,
            };
            self.stripes.insert(stripe, entry);
            effects.push(if self.dials {
                Effect::Dial(stripe)
            } else {
                Effect::Tell(Message::Dial { stripe })
            });
            usable += 1;
        }
        for (stripe, entry) in self.stripes.iter_mut().rev() {
            if usable <= self.ramp.wanted() {
                break;
            }
            if entry.link == StripeState::Open {
                entry.link = StripeState::Retired;
                entry.progress = now;
                effects.push(Effect::Retire(*stripe));
                usable -= 1;
            }
        }
    }

    fn wake(&self, effects: &mut Vec<Effect>) {
        for (stripe, entry) in &self.stripes {
            if entry.link == StripeState::Open {
                effects.push(Effect::Wake(*stripe));
            }
        }
    }

    fn usable(&self) -> usize {
        let usable =
            |entry: &&Stripe| matches!(entry.link, StripeState::Open | StripeState::Opening);
        self.stripes.values().filter(usable).count()
    }

    /// The number of connected stripes in use.
    pub(crate) fn open(&self) -> usize {
        let open = |entry: &&Stripe| entry.link == StripeState::Open;
        self.stripes.values().filter(open).count()
    }

    pub(crate) fn end(&mut self, end: &PairEnd, effects: &mut Vec<Effect>) {
        for stripe in core::mem::take(&mut self.stripes).into_keys() {
            effects.push(Effect::Drop(stripe));
        }
        self.waiting.clear();
        self.active.clear();
        self.offered = 0;
        for object in core::mem::take(&mut self.objects).into_keys() {
            effects.push(Effect::SendFailed(object, Failure::Pair(end.clone())));
        }
    }

    pub(crate) fn pending(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn check(&self) -> Result<(), InvariantError> {
        let regions = |object: &&TransferId| {
            let outgoing = &self.objects[*object];
            outgoing.state != State::Waiting
        };
        ensure_eq!(
            self.offered,
            self.objects.keys().filter(regions).count(),
            "objects that are offered"
        );
        for object in &self.waiting {
            let state = self.objects.get(object).map(|outgoing| outgoing.state);
            ensure_eq!(state, Some(State::Waiting), "{object:?} is in the queue");
        }
        for (object, outgoing) in &self.objects {
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
            for index in &outgoing.again {
                seen[*index as usize] += 1;
            }
            for (other, index) in self.stripes.values().flat_map(|stripe| &stripe.sent) {
                if other == object {
                    seen[*index as usize] += 1;
                }
            }
            ensure!(
                seen.iter().all(|count| *count <= 1),
                "an extent of {object:?} is in two places"
            );
        }
        for object in &self.active {
            ensure!(
                self.objects.contains_key(object),
                "{object:?} is gone, yet active"
            );
        }
        Ok(())
    }
}
