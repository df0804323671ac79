//! The stripes of the sending half: how many there are, what each carries, and which of them stall.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::Guard;
use crate::event::{Config, Effect, Message, StripeId, TransferId, Violation};
use crate::ramp::Ramp;
use crate::receiver::MAX_STRIPES;

/// Rounds of attempts in a row to open a stripe, or to get one extent through it. What fails before
/// the pause after a round is over belongs to that round.
const MAX_FAILURES: u32 = 8;
/// The first pause between such attempts; each further one is twice as long.
const BACKOFF: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StripeState {
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
pub(super) struct Stripe {
    pub(super) link: StripeState,
    /// Extents before those in `sent`, all of them of objects that are done.
    pub(super) base: u64,
    /// The extents handed to it, in order.
    pub(super) sent: VecDeque<(TransferId, u64)>,
    /// When its socket last took bytes, or it got its first extent after a pause, or its link
    /// changed.
    progress: Duration,
}

#[derive(Debug)]
pub(super) struct Stripes {
    dials: bool,
    timeout: Duration,
    known: BTreeMap<StripeId, Stripe>,
    next: u32,
    ramp: Ramp,
    failures: u32,
    retry_at: Duration,
    /// When a tick last found nothing to hand out.
    idle_at: Duration,
    /// The last tick left nothing to do for the next one, which may have been left out.
    rested: bool,
    /// Stripes that broke and were replaced.
    pub(super) replaced: u64,
}

impl Stripes {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            dials: config.dials,
            timeout: config.timeout,
            known: BTreeMap::new(),
            next: 0,
            ramp: Ramp::new(
                config.stripes.map(|stripes| stripes.min(MAX_STRIPES)),
                config.max_stripes.min(MAX_STRIPES),
            ),
            failures: 0,
            retry_at: Duration::ZERO,
            idle_at: Duration::ZERO,
            rested: true,
            replaced: 0,
        }
    }

    /// Whether a stripe may be handed an extent.
    pub(super) fn is_open(&self, stripe: StripeId) -> bool {
        let entry = self.known.get(&stripe);
        entry.is_some_and(|entry| entry.link == StripeState::Open)
    }

    /// An extent of an object goes out on an open stripe.
    pub(super) fn carry(&mut self, stripe: StripeId, extent: (TransferId, u64), now: Duration) {
        if let Some(entry) = self.known.get_mut(&stripe) {
            if entry.sent.is_empty() {
                entry.progress = now;
            }
            entry.sent.push_back(extent);
        }
    }

    /// Its socket took bytes. Returns whether another number of stripes is wanted from now on.
    pub(super) fn drained(
        &mut self,
        stripe: StripeId,
        bytes: u64,
        is_active: bool,
        now: Duration,
    ) -> bool {
        if let Some(entry) = self.known.get_mut(&stripe) {
            entry.progress = now;
        }
        self.observe(bytes, is_active, now)
    }

    /// The network lost bytes of it, and they were sent again.
    pub(super) fn retransmitted(&mut self, stripe: StripeId, bytes: u64) {
        if self.is_open(stripe) {
            self.ramp.retransmitted(bytes);
        }
    }

    /// An object is placed. Returns whether another number of stripes is wanted from now on.
    pub(super) fn placed(&mut self, is_active: bool, now: Duration) -> bool {
        self.observe(0, is_active, now)
    }

    fn observe(&mut self, bytes: u64, is_active: bool, now: Duration) -> bool {
        // An object waits for its last extent: a stripe that lags costs time, though the others have
        // nothing to do.
        let is_carried = || self.under_way().next().is_some() && Guard::Tail.holds();
        let is_under_way = is_active || is_carried();
        self.ramp.observe(now, bytes, self.open(), is_under_way)
    }

    /// Extents at the front of a stripe whose objects are done need not be remembered.
    pub(super) fn forget_done(&mut self, is_known: impl Fn(TransferId) -> bool) {
        for stripe in self.known.values_mut() {
            while let Some(&(front, _)) = stripe.sent.front() {
                if is_known(front) {
                    break;
                }
                stripe.sent.pop_front();
                stripe.base += u64::from(Guard::Base.holds());
            }
        }
    }

    /// A stripe is connected. Returns whether it is used.
    pub(super) fn opened(
        &mut self,
        stripe: StripeId,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> bool {
        match self.known.get_mut(&stripe) {
            Some(entry) if entry.link == StripeState::Opening => {
                entry.link = StripeState::Open;
                entry.progress = now;
                effects.push(Effect::Wake(stripe));
                true
            }
            _ => {
                effects.push(Effect::Drop(stripe));
                false
            }
        }
    }

    /// A stripe could not be connected. Returns whether it was being connected.
    pub(super) fn open_failed(&mut self, stripe: StripeId, effects: &mut Vec<Effect>) -> bool {
        if let Some(entry) = self.known.get_mut(&stripe)
            && entry.link == StripeState::Opening
        {
            // The other end may be connected nevertheless: the entry waits for its report.
            entry.link = StripeState::Lost;
            effects.push(Effect::Tell(Message::Broken { stripe }));
            return true;
        }
        false
    }

    /// A stripe broke: it waits for the receiver's report. Returns what it was before.
    pub(super) fn lost(
        &mut self,
        stripe: StripeId,
        effects: &mut Vec<Effect>,
    ) -> Option<StripeState> {
        let entry = self.known.get_mut(&stripe)?;
        let before = entry.link;
        match before {
            StripeState::Opening => {
                effects.push(Effect::Drop(stripe));
                self.open_failed(stripe, effects);
            }
            StripeState::Open | StripeState::Retired => {
                self.replaced += u64::from(before == StripeState::Open);
                entry.link = StripeState::Lost;
                effects.push(Effect::Tell(Message::Broken { stripe }));
                effects.push(Effect::Drop(stripe));
            }
            StripeState::Lost => {}
        }
        Some(before)
    }

    /// Takes out a stripe that the receiver could not dial, if it is still there.
    pub(super) fn take_undialled(&mut self, stripe: StripeId) -> Result<Option<Stripe>, Violation> {
        if self.dials {
            return Err(Violation::Unknown("a stripe to dial"));
        }
        self.take(stripe)
    }

    /// Takes out a stripe that the receiver speaks about, if it is still there.
    pub(super) fn take(&mut self, stripe: StripeId) -> Result<Option<Stripe>, Violation> {
        if stripe.0 >= self.next && Guard::ReportedStripe.holds() {
            return Err(Violation::Unknown("a stripe"));
        }
        Ok(self.known.remove(&stripe))
    }

    /// An extent got through: attempts count from the beginning.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Something about a stripe failed: fewer of them, or another attempt later. Returns false if
    /// that was the last attempt.
    #[must_use]
    pub(super) fn failed(&mut self, now: Duration) -> bool {
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
            return true;
        }
        self.usable() > 0 || self.failures < MAX_FAILURES || !Guard::LastAttempt.holds()
    }

    /// Whether time alone brings nothing about, if there is nothing to hand out: nothing is under
    /// way, and there are as many stripes as are wanted.
    pub(super) fn is_resting(&self) -> bool {
        let rests = |entry: &Stripe| entry.link == StripeState::Open && entry.sent.is_empty();
        self.known.values().all(rests)
            && (self.known.is_empty() || self.known.len() == self.ramp.wanted())
    }

    /// A tick begins. Returns the stripes that made no progress for too long.
    pub(super) fn stalled(&mut self, is_active: bool, now: Duration) -> Vec<StripeId> {
        // After a rest, there was none for some time, and nothing could stall.
        let is_idle = !is_active || core::mem::take(&mut self.rested);
        if is_idle && Guard::Idle.holds() {
            self.idle_at = now;
        }
        let is_stalled = |entry: &Stripe| {
            let since = match entry.link {
                StripeState::Open if entry.sent.is_empty() && !Guard::StallCancelled.holds() => now,
                // It may be stuck with what was cancelled, and does not ask for more.
                StripeState::Open if entry.sent.is_empty() => entry.progress.max(self.idle_at),
                StripeState::Opening if !Guard::StallOpening.holds() => now,
                StripeState::Retired if !Guard::StallRetired.holds() => now,
                StripeState::Open | StripeState::Opening | StripeState::Retired => entry.progress,
                StripeState::Lost => now,
            };
            now.saturating_sub(since) > self.timeout && Guard::Stall.holds()
        };
        let stalled = self.known.iter().filter(|(_, entry)| is_stalled(entry));
        stalled.map(|(stripe, _)| *stripe).collect()
    }

    /// A tick is over.
    pub(super) fn ticked(&mut self, is_active: bool) {
        self.rested = !is_active && self.is_resting();
    }

    /// Opens or retires stripes until there are as many as are wanted.
    pub(super) fn provide(&mut self, is_active: bool, now: Duration, effects: &mut Vec<Effect>) {
        let mut usable = self.usable();
        if usable == 0 && !is_active {
            return;
        }
        // Those whose report is under way still count at the receiver.
        let room =
            |stripes: &BTreeMap<_, _>| stripes.len() < MAX_STRIPES || !Guard::Waiting.holds();
        while usable < self.ramp.wanted() && now >= self.retry_at && room(&self.known) {
            let stripe = StripeId(self.next);
            self.next += 1;
            let entry = Stripe {
                link: StripeState::Opening,
                base: 0,
                sent: VecDeque::new(),
                progress: now,
            };
            self.known.insert(stripe, entry);
            effects.push(if self.dials {
                Effect::Dial(stripe)
            } else {
                Effect::Tell(Message::Dial { stripe })
            });
            usable += 1;
        }
        for (stripe, entry) in self.known.iter_mut().rev() {
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

    pub(super) fn wake(&self, effects: &mut Vec<Effect>) {
        for (stripe, entry) in &self.known {
            if entry.link == StripeState::Open {
                effects.push(Effect::Wake(*stripe));
            }
        }
    }

    fn usable(&self) -> usize {
        let usable =
            |entry: &&Stripe| matches!(entry.link, StripeState::Open | StripeState::Opening);
        self.known.values().filter(usable).count()
    }

    /// The number of connected stripes in use.
    pub(super) fn open(&self) -> usize {
        let open = |entry: &&Stripe| entry.link == StripeState::Open;
        self.known.values().filter(open).count()
    }

    /// The extents that stripes carry, by object and index.
    pub(super) fn under_way(&self) -> impl Iterator<Item = &(TransferId, u64)> + Clone {
        self.known.values().flat_map(|stripe| &stripe.sent)
    }

    pub(super) fn end(&mut self, effects: &mut Vec<Effect>) {
        for stripe in core::mem::take(&mut self.known).into_keys() {
            effects.push(Effect::Drop(stripe));
        }
    }
}
