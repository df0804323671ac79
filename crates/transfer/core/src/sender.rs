//! The sending half of a pair: the objects that go out, and the stripes that carry their extents.

mod objects;
mod stripes;

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_guards::InvariantError;

use self::objects::Objects;
use self::stripes::{Stripe, StripeState, Stripes};
use crate::Guard;
use crate::event::{
    Config, Effect, Extent, Failure, Message, PairEnd, StripeId, TransferId, Violation,
};

#[derive(Debug)]
pub(crate) struct Sender {
    objects: Objects,
    stripes: Stripes,
}

impl Sender {
    pub(crate) fn new(config: &Config, credit: u64) -> Self {
        Self {
            objects: Objects::new(credit),
            stripes: Stripes::new(config),
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
        self.objects.send(object, regions, cost, shared, effects);
    }

    pub(crate) fn cancel(&mut self, object: TransferId, effects: &mut Vec<Effect>) {
        if !self.objects.is_known(object) {
            return;
        }
        if self.objects.is_offered(object) {
            effects.push(Effect::Tell(Message::Cancel { object }));
        }
        self.fail(object, Failure::Cancelled, effects);
    }

    fn fail(&mut self, object: TransferId, failure: Failure, effects: &mut Vec<Effect>) {
        if Guard::FailsOnce.holds() {
            self.forget(object);
        }
        effects.push(Effect::SendFailed(object, failure));
        self.objects.offer(effects);
    }

    fn forget(&mut self, object: TransferId) {
        let Self { objects, stripes } = self;
        if objects.remove(object) {
            stripes.forget_done(|object| objects.is_known(object));
        }
    }

    pub(crate) fn accepted(
        &mut self,
        object: TransferId,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if self.objects.accepted(object)? {
            self.provide(now, effects);
            self.stripes.wake(effects);
        }
        Ok(())
    }

    pub(crate) fn placed(
        &mut self,
        object: TransferId,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if self.objects.check_placed(object)? {
            self.forget(object);
            if self.stripes.placed(self.objects.is_active(), now) {
                self.provide(now, effects);
            }
            self.stripes.succeeded();
            effects.push(Effect::Sent(object));
            self.objects.offer(effects);
        }
        Ok(())
    }

    pub(crate) fn refused(
        &mut self,
        object: TransferId,
        reason: String,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if self.objects.check_spoken_of(object)? {
            self.fail(object, Failure::Refused(reason), effects);
        }
        Ok(())
    }

    pub(crate) fn credited(&mut self, bytes: u64, effects: &mut Vec<Effect>) {
        self.objects.credited(bytes, effects);
    }

    /// The next extent for a stripe whose socket has room.
    pub(crate) fn next_extent(&mut self, stripe: StripeId, now: Duration) -> Option<Extent> {
        if !self.stripes.is_open(stripe) {
            return None;
        }
        let (index, extent) = self.objects.next_extent()?;
        self.stripes.carry(stripe, (extent.object, index), now);
        Some(extent)
    }

    pub(crate) fn drained(
        &mut self,
        stripe: StripeId,
        bytes: u64,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) {
        let is_active = self.objects.is_active();
        if self.stripes.drained(stripe, bytes, is_active, now) {
            self.provide(now, effects);
        }
    }

    pub(crate) fn retransmitted(&mut self, stripe: StripeId, bytes: u64) {
        self.stripes.retransmitted(stripe, bytes);
    }

    pub(crate) fn opened(&mut self, stripe: StripeId, now: Duration, effects: &mut Vec<Effect>) {
        if self.stripes.opened(stripe, now, effects) {
            self.provide(now, effects);
        }
    }

    pub(crate) fn open_failed(
        &mut self,
        stripe: StripeId,
        reason: String,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) {
        if self.stripes.open_failed(stripe, effects) {
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
        let Some(entry) = self.stripes.take_undialled(stripe)? else {
            return Ok(());
        };
        if entry.link != StripeState::Lost {
            effects.push(Effect::Drop(stripe));
        }
        if Guard::DialFailed.holds() {
            self.send_again(&entry, 0);
        }
        self.failed(reason, now, effects);
        self.stripes.wake(effects);
        Ok(())
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
        // `again` is a stack: what was sent first goes out first.
        for &(object, index) in stripe.sent.iter().skip(skipped).rev() {
            any |= self.objects.send_again(object, index);
        }
        any
    }

    /// Something about a stripe failed: fewer of them, or another attempt later, or none.
    fn failed(&mut self, reason: String, now: Duration, effects: &mut Vec<Effect>) {
        if self.stripes.failed(now) {
            self.provide(now, effects);
        } else {
            effects.push(Effect::End(PairEnd::NoStripe(reason)));
        }
    }

    pub(crate) fn lost(&mut self, stripe: StripeId, now: Duration, effects: &mut Vec<Effect>) {
        match self.stripes.lost(stripe, effects) {
            Some(StripeState::Opening) => {
                self.failed("it broke while it was opened".into(), now, effects);
            }
            Some(StripeState::Open | StripeState::Retired) => self.provide(now, effects),
            Some(StripeState::Lost) | None => {}
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
        let Some(entry) = self.stripes.take(stripe)? else {
            // Given up before it joined, and reported twice.
            return Ok(());
        };
        let handed = entry.base + entry.sent.len() as u64;
        if extents > handed && Guard::ReportedExtents.holds() {
            return Err(Violation::Unknown("an extent"));
        }
        if entry.link != StripeState::Lost {
            effects.push(Effect::Drop(stripe));
            self.stripes.replaced += u64::from(entry.link == StripeState::Open);
        }
        if extents > 0 {
            self.stripes.succeeded();
        }
        let missing = self.send_again(&entry, extents);
        if corrupt {
            self.damaged(&entry, extents, effects);
        }
        if entry.link == StripeState::Opening && Guard::FailedOpening.holds() {
            self.failed("it broke while it was opened".into(), now, effects);
        } else if entry.link != StripeState::Retired && extents == 0 && missing {
            let reason = "it breaks before the first extent is through";
            self.failed(reason.into(), now, effects);
        } else {
            self.provide(now, effects);
        }
        self.stripes.wake(effects);
        Ok(())
    }

    /// The extent of a stripe after its first `extents` arrived damaged.
    fn damaged(&mut self, stripe: &Stripe, extents: u64, effects: &mut Vec<Effect>) {
        let is_blamed = |object| Guard::Blame.holds() || self.objects.is_known(object);
        if let Some(after) = extents.checked_sub(stripe.base)
            && let mut later = stripe.sent.iter().skip(after as usize)
            && let Some(&(object, _)) = later.find(|(object, _)| is_blamed(*object))
            && let Some(failure) = self.objects.damaged(object)
        {
            effects.push(Effect::Tell(Message::Cancel { object }));
            self.fail(object, failure, effects);
        }
    }

    /// Whether time alone brings nothing about.
    pub(crate) fn is_resting(&self) -> bool {
        !self.objects.is_active() && self.stripes.is_resting()
    }

    pub(crate) fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        for stripe in self.stripes.stalled(self.objects.is_active(), now) {
            self.lost(stripe, now, effects);
        }
        self.provide(now, effects);
        self.stripes.ticked(self.objects.is_active());
    }

    /// Opens or retires stripes until there are as many as are wanted.
    fn provide(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        self.stripes.provide(self.objects.is_active(), now, effects);
    }

    /// The number of connected stripes in use.
    pub(crate) fn open(&self) -> usize {
        self.stripes.open()
    }

    /// Stripes that broke and were replaced.
    pub(crate) fn replaced(&self) -> u64 {
        self.stripes.replaced
    }

    pub(crate) fn end(&mut self, end: &PairEnd, effects: &mut Vec<Effect>) {
        self.stripes.end(effects);
        self.objects.end(end, effects);
    }

    pub(crate) fn pending(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn check(&self) -> Result<(), InvariantError> {
        self.objects.check(self.stripes.under_way())
    }
}
