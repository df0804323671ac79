//! What a pair's lock protects: the state machine, its objects, its connections.

mod inbound;
mod outbound;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use treadle_memory::{Foreign, Handover};
use treadle_reactor::thread::lock;
use treadle_reactor::{Driver, Token, Waker};
use treadle_transfer::{
    Config, Effect, Event, Message, Pair, PairEnd, StripeId, TransferId, Violation,
};

use crate::control::Control;
use crate::incoming::InStripe;
use crate::memory::Region;
use crate::outgoing::OutStripe;
use crate::peer::{MAX_QUEUED, Shared};
use crate::poller::Watch;
use crate::segments::{Channel, Kept, Mappings};
use crate::stream::Stream;
use crate::wire;

pub(crate) use inbound::{Inbound, State};
pub(crate) use outbound::Outbound;

/// Segments that are reported in one frame.
const REPORTED: usize = 1000;

/// What must be dropped outside of the lock.
#[derive(Debug)]
pub(crate) enum Garbage {
    Outbound(#[allow(dead_code, reason = "held only to be dropped")] Outbound),
    Regions(#[allow(dead_code, reason = "held only to be dropped")] Vec<Arc<Region>>),
    Handovers(#[allow(dead_code, reason = "held only to be dropped")] Vec<Handover>),
    Files(#[allow(dead_code, reason = "held only to be dropped")] Vec<Arc<Foreign>>),
}

/// What must be done outside of the lock.
#[derive(Debug)]
pub(crate) enum Action {
    Notify,
    Wake(Waker),
    Queue(Arc<Watch>),
    Dial {
        stripe: StripeId,
        sends: bool,
    },
    /// Have the driver call at this time.
    Call(Duration),
    Close(Arc<Driver>, Token, Box<Stream>),
}

#[derive(Debug)]
pub(crate) struct Inner {
    pair: Pair,
    effects: Vec<Effect>,
    /// An empty one, for its memory.
    spare: Vec<Effect>,
    pub(crate) control: Control,
    /// When the driver will call.
    pub(crate) called_at: Duration,
    next_object: u64,
    /// Who sends this object learns what came of it before anybody can wait for it.
    pub(crate) just_sent: Option<TransferId>,
    /// Who sends it says when to write it.
    pub(crate) corked: bool,
    /// Bytes of headers in `outgoing` that are not written yet.
    held: usize,
    outgoing: HashMap<TransferId, Outbound, RandomState>,
    incoming: HashMap<TransferId, Inbound, RandomState>,
    /// Incoming objects that nobody has claimed, in order.
    order: VecDeque<TransferId>,
    /// The last object whose header arrived.
    last_incoming: TransferId,
    /// Whether an object that its sender gave up stays in its place, for whoever claims it.
    pub(crate) is_gapless: bool,
    out_stripes: HashMap<StripeId, Arc<OutStripe>>,
    in_stripes: HashMap<StripeId, Arc<InStripe>>,
    pub(crate) channel: Option<Arc<Channel>>,
    /// The other side maps what comes on it.
    pub(crate) maps: bool,
    /// It has descriptors of objects whose headers are about to be written.
    descriptors: bool,
    /// Mapped for objects whose header is not here yet.
    mapped: HashMap<TransferId, Mappings>,
    /// Segments that the other side has mapped.
    pub(crate) lent: crate::segments::Lent,
    /// Files of the other side that need not be passed again.
    kept: Kept,
    pub(crate) waker: Option<Waker>,
    pub(crate) watch: Option<Arc<Watch>>,
    pub(crate) changed: bool,
    /// Headers waited for credit when the lock was last released.
    backlog: bool,
    garbage: Vec<Garbage>,
    actions: Vec<Action>,
}

impl Inner {
    pub(crate) fn new(
        config: &Config,
        peer_credit: u64,
        stream: Stream,
        driver: Arc<Driver>,
        token: Token,
    ) -> Self {
        Self {
            pair: Pair::new(config, peer_credit, Duration::ZERO),
            effects: Vec::new(),
            spare: Vec::new(),
            control: Control::new(stream, driver, token),
            called_at: Duration::MAX,
            next_object: 0,
            just_sent: None,
            corked: false,
            held: 0,
            outgoing: HashMap::default(),
            incoming: HashMap::default(),
            order: VecDeque::new(),
            last_incoming: TransferId(0),
            is_gapless: false,
            out_stripes: HashMap::new(),
            in_stripes: HashMap::new(),
            channel: None,
            maps: false,
            descriptors: false,
            mapped: HashMap::new(),
            lent: crate::segments::Lent::default(),
            kept: Kept::default(),
            waker: None,
            watch: None,
            changed: false,
            backlog: false,
            garbage: Vec::new(),
            actions: Vec::new(),
        }
    }

    pub(crate) fn handle(&mut self, event: Event, now: Duration) {
        if let Err(violation) = self.pair.handle(event, now, &mut self.effects) {
            self.violated(&violation);
        }
    }

    /// The other side broke the protocol.
    fn violated(&mut self, violation: &Violation) {
        let reason = format!("the peer broke the protocol: {violation}");
        self.end(PairEnd::Lost(reason), true);
    }

    /// Ends the pair; `farewell` says whether the other side can still be told.
    pub(crate) fn end(&mut self, end: PairEnd, farewell: bool) {
        if self.pair.ended().is_none() {
            if farewell {
                self.control
                    .push(true, |out| wire::encode_message(&Message::Goodbye, out));
            }
            self.pair.end(end, &mut self.effects);
        }
    }

    pub(crate) fn ended(&self) -> Option<PairEnd> {
        self.pair.ended().cloned()
    }

    /// Whether the control connection is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.control.is_closed()
    }

    pub(crate) fn stats(&self) -> treadle_transfer::Stats {
        self.pair.stats()
    }

    /// The other side does not have these segments mapped any more, and keeps these files.
    pub(crate) fn released(&mut self, segments: &[u64], files: &[u64], now: Duration) {
        self.lent.keeps(files, now);
        let returned = self.lent.release(segments);
        if !returned.is_empty() {
            self.garbage.push(Garbage::Handovers(returned));
        }
    }

    /// Tells what was unmapped here, with whatever else is written.
    pub(crate) fn report(&mut self, shared: &Shared) {
        let unmapped = std::mem::take(&mut *lock(&shared.released));
        if self.pair.ended().is_some() {
            // Nobody sends anything in these any more.
            let files = unmapped.into_iter().filter_map(|unmapped| unmapped.file);
            let files = files.map(|(_, file)| file).collect();
            self.garbage.push(Garbage::Files(files));
            return;
        }
        let now = shared.now();
        let mut dropped = self.kept.expire(now);
        for part in unmapped.chunks(REPORTED) {
            let segments = part.iter().map(|unmapped| unmapped.segment).collect();
            let files = part.iter().filter_map(|unmapped| unmapped.file.as_ref());
            let files = self.kept.keep(files, now, &mut dropped);
            self.answer(false, |out| wire::encode_released(segments, files, out));
        }
        if !dropped.is_empty() {
            self.garbage.push(Garbage::Files(dropped));
        }
    }

    pub(crate) fn shares_memory(&self) -> bool {
        self.channel.is_some() && self.maps
    }

    /// Handles an event whose time does not matter.
    fn effects_of(&mut self, event: Event) {
        self.handle(event, Duration::ZERO);
    }

    pub(crate) fn opened(&mut self, stripe: StripeId, source: Arc<OutStripe>, now: Duration) {
        if self.out_stripes.contains_key(&stripe) {
            source.cut();
            self.violated(&Violation::Stripe(stripe.0));
            return;
        }
        self.out_stripes.insert(stripe, source);
        self.handle(Event::Opened(stripe), now);
    }

    pub(crate) fn joined(&mut self, stripe: StripeId, source: Arc<InStripe>, now: Duration) {
        if self.in_stripes.contains_key(&stripe) {
            source.cut();
            self.violated(&Violation::Stripe(stripe.0));
            return;
        }
        let joined = Event::Joined(stripe);
        if let Err(violation) = self.pair.handle(joined, now, &mut self.effects) {
            // The pair does not know it, and would not close it.
            source.cut();
            self.violated(&violation);
            return;
        }
        self.in_stripes.insert(stripe, source);
    }

    pub(crate) fn stripe_ended(&mut self, stripe: StripeId, now: Duration) {
        self.in_stripes.remove(&stripe);
        self.handle(Event::Ended(stripe), now);
    }

    pub(crate) fn stripe_lost(&mut self, stripe: StripeId, now: Duration) {
        self.out_stripes.remove(&stripe);
        self.handle(Event::Lost(stripe), now);
    }

    /// A retired stripe has sent everything and is closed.
    pub(crate) fn stripe_closed(&mut self, stripe: StripeId) {
        self.out_stripes.remove(&stripe);
    }

    /// Does what the state machine asked for.
    pub(crate) fn apply(&mut self, shared: &Arc<Shared>) {
        while !self.effects.is_empty() {
            let mut effects = std::mem::replace(&mut self.effects, std::mem::take(&mut self.spare));
            for effect in effects.drain(..) {
                self.apply_one(effect, shared);
            }
            self.spare = effects;
        }
    }

    fn apply_one(&mut self, effect: Effect, shared: &Arc<Shared>) {
        match effect {
            Effect::Tell(Message::Offer { object, .. }) => self.offer(object),
            Effect::Tell(message) => {
                if let Message::Accept { object } = message
                    && let Some(inbound) = self.incoming.get_mut(&object)
                {
                    inbound.header.shared = false;
                }
                let urgent = !self.may_wait(&message, shared);
                self.answer(urgent, |out| wire::encode_message(&message, out));
            }
            Effect::Dial(stripe) => self.actions.push(Action::Dial {
                stripe,
                sends: true,
            }),
            Effect::DialForPeer(stripe) if shared.remote.is_some() => {
                self.actions.push(Action::Dial {
                    stripe,
                    sends: false,
                });
            }
            Effect::DialForPeer(_) => {
                self.end(
                    PairEnd::Lost("the peer asked a listener to dial".into()),
                    true,
                );
            }
            Effect::Wake(stripe) => {
                if let Some(source) = self.out_stripes.get(&stripe) {
                    source.wake();
                }
            }
            Effect::Retire(stripe) => {
                if let Some(source) = self.out_stripes.get(&stripe) {
                    source.retire();
                }
            }
            Effect::Drop(stripe) => {
                if let Some(source) = self.out_stripes.remove(&stripe) {
                    source.cut();
                }
            }
            Effect::DropIncoming(stripe) => {
                if let Some(source) = self.in_stripes.get(&stripe) {
                    source.cut();
                }
            }
            Effect::Sent(object) => self.sent(object, Ok(()), shared),
            Effect::SendFailed(object, failure) => self.sent(object, Err(failure), shared),
            Effect::Offered(_) => self.changed = true,
            Effect::Allocate(object) => self.allocate(object),
            Effect::Complete(object) => self.completed(object, shared),
            Effect::ReceiveFailed(object, failure) => self.receive_failed(object, failure),
            Effect::End(end) => {
                if matches!(end, PairEnd::Silent(_) | PairEnd::NoStripe(_)) {
                    // It may be there nevertheless.
                    self.control
                        .push(true, |out| wire::encode_message(&Message::Goodbye, out));
                }
                self.control.close();
                if let Some(channel) = self.channel.take() {
                    channel.cut();
                }
                self.lent.abandon();
                let files = std::mem::take(&mut self.kept).into_files();
                self.garbage.push(Garbage::Files(files));
                self.changed = true;
            }
        }
    }

    /// Whether a message can go with the next that is sent. That an object was mapped says nothing
    /// that somebody waits for, between those who do not wait.
    fn may_wait(&self, message: &Message, shared: &Shared) -> bool {
        let Message::Placed { object } = message else {
            return false;
        };
        let is_mapped = |inbound: &Inbound| inbound.header.shared;
        !shared.driver.spins() && self.incoming.get(object).is_some_and(is_mapped)
    }

    /// Tells what the other side gave cause to, unless it lets too much of that wait.
    pub(crate) fn answer(&mut self, urgent: bool, encode: impl FnOnce(&mut Vec<u8>)) {
        if !self.control.answer(urgent, encode) {
            let reason = "the peer does not read the answers to what it sends";
            self.end(PairEnd::Lost(reason.into()), true);
        }
    }

    /// Writes what waits for the control connection.
    pub(crate) fn flush(&mut self, shared: &Arc<Shared>) {
        let full = self.queued() >= MAX_QUEUED;
        if self.control.is_urgent() {
            // The other side wakes anyway.
            self.report(shared);
            self.apply(shared);
        }
        // Just before the headers: the other side wakes once for both.
        if self.descriptors && !self.control.has_time() {
            self.descriptors = false;
            if let Some(channel) = &self.channel {
                channel.flush();
            }
        }
        if let Err(error) = self.control.flush() {
            self.broke(&error.to_string());
            self.apply(shared);
        }
        // Somebody may wait for room.
        self.changed |= full && self.queued() < MAX_QUEUED;
        // Or for the last header to be on its way.
        self.changed |= self.backlog && self.held == 0;
        self.backlog = self.held > 0;
        if let Some((driver, token, stream)) = self.control.finish() {
            self.actions.push(Action::Close(driver, token, stream));
            self.changed = true;
        }
    }

    /// The control connection does not work any more.
    pub(crate) fn broke(&mut self, reason: &str) {
        let reason = format!("the connection to the peer broke: {reason}");
        self.end(PairEnd::Lost(reason), false);
        self.control.abort();
    }

    /// What is left to do when the lock is released.
    pub(crate) fn leave(&mut self) -> (Vec<Garbage>, Vec<Action>) {
        self.just_sent = None;
        let mut actions = std::mem::take(&mut self.actions);
        let is_due = self.control.is_closing() || (self.control.has_time() && !self.corked);
        // Zero has passed already: the driver calls at its next tick.
        let due = match is_due {
            true => Duration::ZERO,
            false => self.pair.due(),
        };
        self.corked = false;
        if due < self.called_at {
            self.called_at = due;
            actions.push(Action::Call(due));
        }
        if std::mem::take(&mut self.changed) {
            // Before the others: whoever they wake may ask the poller for what there is to do, and
            // would not be woken again.
            if let Some(watch) = &self.watch {
                actions.push(Action::Queue(Arc::clone(watch)));
            }
            actions.push(Action::Notify);
            if let Some(waker) = &self.waker {
                actions.push(Action::Wake(waker.clone()));
            }
        }
        (std::mem::take(&mut self.garbage), actions)
    }
}
