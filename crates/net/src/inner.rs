//! What a pair's lock protects: the state machine, its objects, its connections.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_memory::MemoryError;
use treadle_transfer::layout::Place;
use treadle_transfer::{
    Config, Effect, Event, Extent, Failure, Message, ObjectId, Pair, PairEnd, StripeId, Violation,
};

use crate::control::Control;
use crate::driver::{Driver, Token};
use crate::error::NetError;
use crate::incoming::InStripe;
use crate::memory::{Region, Target};
use crate::outgoing::OutStripe;
use crate::peer::{Completion, MAX_QUEUED, Received, Shared, Timings, frames};
use crate::poller::Watch;
use crate::segments::{Channel, Exports, Mappings};
use crate::stream::Stream;
use crate::wire::{self, Header};

/// Objects that are taken in one go, at most this many bytes of them.
const MAX_TAKE: usize = 1 << 20;
/// Objects that need more fresh memory than this are compared with what there is, before they get
/// any.
const PLENTY: u64 = 256 << 20;
/// Objects whose descriptors are here before their headers: a sender has fewer offers open.
const MAX_EARLY: usize = 512;

/// An object on its way out.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Its frame on the control connection; empty once it is written.
    pub(crate) header: Vec<u8>,
    pub(crate) regions: Vec<Bytes>,
    pub(crate) exports: Option<Exports>,
    pub(crate) started: Instant,
    pub(crate) accepted: Option<Instant>,
    pub(crate) completion: Option<Arc<Completion>>,
}

/// How far an incoming object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Offered,
    Accepted,
    Complete,
    Failed(Failure),
}

/// An object on its way in.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) header: Header,
    pub(crate) inline: Bytes,
    pub(crate) regions: Vec<Arc<Region>>,
    pub(crate) state: State,
    started: Instant,
    accepted: Option<Instant>,
    finished: Option<Instant>,
    claimed: bool,
    /// Somebody waits for it to come as shared memory.
    wanted: bool,
}

/// What must be dropped outside of the lock.
#[derive(Debug)]
pub(crate) enum Garbage {
    Outbound(#[allow(dead_code, reason = "held only to be dropped")] Outbound),
    Regions(#[allow(dead_code, reason = "held only to be dropped")] Vec<Arc<Region>>),
}

/// What must be done outside of the lock.
#[derive(Debug)]
pub(crate) enum Action {
    Notify,
    Signal(Arc<OwnedFd>),
    Queue(Arc<Watch>),
    Dial { stripe: StripeId, sends: bool },
    Close(Arc<Driver>, Token, Box<Stream>),
}

#[derive(Debug)]
pub(crate) struct Inner {
    pair: Pair,
    effects: Vec<Effect>,
    pub(crate) control: Control,
    next_object: u64,
    /// Bytes of headers in `outgoing` that are not written yet.
    held: usize,
    outgoing: HashMap<ObjectId, Outbound>,
    incoming: HashMap<ObjectId, Inbound>,
    /// Incoming objects that nobody has claimed, in order.
    order: VecDeque<ObjectId>,
    /// The last object whose header arrived.
    last_incoming: ObjectId,
    out_stripes: HashMap<StripeId, Arc<OutStripe>>,
    in_stripes: HashMap<StripeId, Arc<InStripe>>,
    pub(crate) channel: Option<Arc<Channel>>,
    /// Mapped for objects whose header is not here yet.
    mapped: HashMap<ObjectId, Mappings>,
    /// Segments that the other side has mapped.
    pub(crate) lent: crate::segments::Lent,
    pub(crate) notifier: Option<Arc<OwnedFd>>,
    pub(crate) watch: Option<Arc<Watch>>,
    changed: bool,
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
            control: Control::new(stream, driver, token),
            next_object: 0,
            held: 0,
            outgoing: HashMap::new(),
            incoming: HashMap::new(),
            order: VecDeque::new(),
            last_incoming: ObjectId(0),
            out_stripes: HashMap::new(),
            in_stripes: HashMap::new(),
            channel: None,
            mapped: HashMap::new(),
            lent: crate::segments::Lent::default(),
            notifier: None,
            watch: None,
            changed: false,
            backlog: false,
            garbage: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Starts to read the control connection.
    pub(crate) fn listen(&mut self, _shared: &Arc<Shared>) {
        self.control.listen();
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
                    .push(|out| wire::encode_message(&Message::Goodbye, out));
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

    pub(crate) fn shares_memory(&self) -> bool {
        self.channel.is_some()
    }

    pub(crate) fn next_object(&mut self) -> ObjectId {
        self.next_object += 1;
        ObjectId(self.next_object)
    }

    /// Whether no header waits for credit.
    pub(crate) fn all_offered(&self) -> bool {
        self.held == 0
    }

    /// Bytes of headers that wait to be written.
    pub(crate) fn queued(&self) -> usize {
        self.held + self.control.queued()
    }

    pub(crate) fn send(
        &mut self,
        object: ObjectId,
        outbound: Outbound,
        event: Event,
        now: Duration,
    ) {
        self.held += outbound.header.len();
        self.outgoing.insert(object, outbound);
        self.handle(event, now);
    }

    /// Sends an object of one frame that fits into its header.
    pub(crate) fn send_small(&mut self, kind: u32, bytes: &[u8], now: Duration) {
        let object = self.next_object();
        let mut header = Vec::with_capacity(bytes.len() + 64);
        let inline = [bytes].into_iter();
        let sizes = [bytes.len() as u64];
        let cost = wire::encode_object(object, kind, &sizes, false, inline, &mut header);
        let event = Event::Send {
            object,
            regions: Vec::new(),
            cost,
            shared: false,
        };
        let outbound = Outbound {
            header,
            regions: Vec::new(),
            exports: None,
            started: Instant::now(),
            accepted: None,
            completion: None,
        };
        self.send(object, outbound, event, now);
    }

    /// An object's header arrived.
    pub(crate) fn offered(&mut self, header: Header, inline: Bytes, now: Duration) {
        let object = header.object;
        let event = Event::Told(Message::Offer {
            object,
            regions: header.layout.regions.clone(),
            cost: header.cost,
            shared: header.shared,
        });
        let inbound = Inbound {
            header,
            inline,
            regions: Vec::new(),
            state: State::Offered,
            started: Instant::now(),
            accepted: None,
            finished: None,
            claimed: false,
            wanted: false,
        };
        if self.pair.ended().is_some() {
            return;
        }
        if self.incoming.contains_key(&object) {
            self.violated(&Violation::Order(object.0, object.0));
            return;
        }
        let shared = inbound.header.shared;
        self.incoming.insert(object, inbound);
        self.order.push_back(object);
        self.last_incoming = object;
        self.handle(event, now);
        if self.pair.ended().is_some() {
            // It was a violation, so nobody will receive it.
            self.incoming.remove(&object);
            return;
        }
        if shared && let Some(mappings) = self.mapped.remove(&object) {
            self.map(object, mappings, now);
        }
    }

    /// Descriptors of an object's regions arrived and were mapped; if not, there are none.
    pub(crate) fn mapped(&mut self, object: ObjectId, mappings: Mappings, now: Duration) {
        if self.incoming.contains_key(&object) {
            self.map(object, mappings, now);
        } else if object > self.last_incoming && self.mapped.len() < MAX_EARLY {
            self.mapped.insert(object, mappings);
        } else {
            let regions = mappings.into_iter().map(Arc::new).collect();
            self.garbage.push(Garbage::Regions(regions));
            if object > self.last_incoming
                && let Some(channel) = &self.channel
            {
                // Nobody may send so many. What was dropped comes in bytes.
                channel.cut();
            }
        }
    }

    fn map(&mut self, object: ObjectId, mappings: Mappings, now: Duration) {
        let Some(inbound) = self.incoming.get_mut(&object) else {
            return;
        };
        let lengths = mappings.iter().map(|region| region.len() as u64);
        if inbound.state == State::Offered
            && inbound.header.shared
            && lengths.eq(inbound.header.layout.regions.iter().copied())
        {
            inbound.regions = mappings.into_iter().map(Arc::new).collect();
            inbound.accepted = Some(Instant::now());
            self.handle(Event::Mapped(object), now);
        } else {
            self.garbage.push(Garbage::Regions(
                mappings.into_iter().map(Arc::new).collect(),
            ));
            self.not_mapped(object);
        }
    }

    /// An object that was offered as shared memory has to come in bytes.
    fn not_mapped(&mut self, object: ObjectId) {
        let Some(inbound) = self.incoming.get_mut(&object) else {
            return;
        };
        if inbound.header.shared && inbound.state == State::Offered {
            inbound.header.shared = false;
            if inbound.wanted {
                self.allocate(object);
            }
        }
    }

    /// The descriptor connection is gone.
    pub(crate) fn channel_ended(&mut self, channel: &Arc<Channel>) {
        if self
            .channel
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, channel))
        {
            self.channel = None;
            let shared: Vec<_> = self
                .incoming
                .iter()
                .filter(|(_, inbound)| inbound.header.shared)
                .map(|(object, _)| *object)
                .collect();
            for object in shared {
                self.not_mapped(object);
            }
        }
    }

    /// The next object that nobody has claimed; the error when there will be none.
    pub(crate) fn claim(&mut self) -> Option<Result<ObjectId, NetError>> {
        while let Some(object) = self.order.pop_front() {
            let Some(inbound) = self.incoming.get_mut(&object) else {
                continue;
            };
            if inbound.state == State::Failed(Failure::Cancelled) {
                let inbound = self.incoming.remove(&object).expect("found above");
                self.garbage.push(Garbage::Regions(inbound.regions));
                continue;
            }
            inbound.claimed = true;
            return Some(Ok(object));
        }
        self.ended().map(|end| Err(NetError::Ended(end)))
    }

    pub(crate) fn unclaim(&mut self, object: ObjectId) {
        let Some(inbound) = self.incoming.get_mut(&object) else {
            return;
        };
        inbound.claimed = false;
        if matches!(inbound.state, State::Failed(_)) {
            let inbound = self.incoming.remove(&object).expect("found above");
            self.garbage.push(Garbage::Regions(inbound.regions));
            return;
        }
        let at = self.order.partition_point(|other| *other < object);
        self.order.insert(at, object);
        self.changed = true;
    }

    pub(crate) fn inbound(&self, object: ObjectId) -> &Inbound {
        &self.incoming[&object]
    }

    pub(crate) fn state(&self, object: ObjectId) -> State {
        self.incoming[&object].state.clone()
    }

    /// Gives an offered object its memory. Targets that are not used come back.
    pub(crate) fn accept(
        &mut self,
        object: ObjectId,
        mut targets: Vec<Option<Target>>,
    ) -> Result<Vec<Option<Target>>, NetError> {
        let inbound = self
            .incoming
            .get_mut(&object)
            .expect("claimed objects exist");
        for (target, size) in targets.iter().zip(&inbound.header.sizes) {
            if let Some(target) = target
                && target.len() as u64 != *size
            {
                return Err(NetError::Target {
                    target: target.len() as u64,
                    frame: *size,
                });
            }
        }
        if inbound.state != State::Offered {
            return Ok(targets);
        }
        if inbound.header.shared && self.channel.is_some() {
            inbound.wanted = true;
            return Ok(targets);
        }
        let layout = &inbound.header.layout;
        let mut places: Vec<Option<usize>> = vec![None; layout.regions.len()];
        for (index, place) in layout.places.iter().enumerate() {
            if let Place::Region { region, .. } = *place
                && layout.regions[region as usize] == inbound.header.sizes[index]
            {
                places[region as usize] = Some(index);
            }
        }
        let has_target = |frame: &Option<usize>| {
            frame.is_some_and(|index| targets.get(index).is_some_and(Option::is_some))
        };
        let fresh: u64 = layout
            .regions
            .iter()
            .zip(&places)
            .filter(|(_, frame)| !has_target(frame))
            .map(|(length, _)| length)
            .sum();
        afford(fresh)?;
        let mut regions = Vec::with_capacity(layout.regions.len());
        for (length, frame) in layout.regions.iter().zip(places) {
            let target = frame.and_then(|index| targets.get_mut(index)?.take());
            regions.push(Arc::new(match target {
                Some(target) => Region::target(target),
                None => Region::allocate(*length)?,
            }));
        }
        self.accepted(object, regions);
        Ok(targets)
    }

    fn accepted(&mut self, object: ObjectId, regions: Vec<Arc<Region>>) {
        let inbound = self
            .incoming
            .get_mut(&object)
            .expect("accepted objects exist");
        inbound.regions = regions;
        inbound.state = State::Accepted;
        inbound.accepted = Some(Instant::now());
        self.effects_of(Event::Accept(object));
    }

    /// Handles an event whose time does not matter.
    fn effects_of(&mut self, event: Event) {
        self.handle(event, Duration::ZERO);
    }

    pub(crate) fn refuse(&mut self, object: ObjectId, event: Event, now: Duration) {
        if let Some(inbound) = self.incoming.remove(&object) {
            self.garbage.push(Garbage::Regions(inbound.regions));
        }
        self.handle(event, now);
    }

    pub(crate) fn take(&mut self, object: ObjectId, now: Duration) -> Result<Received, NetError> {
        match self.state(object) {
            State::Complete => {}
            State::Failed(failure) => return Err(failure.into()),
            State::Offered | State::Accepted => return Err(NetError::Timeout),
        }
        let inbound = self.incoming.remove(&object).expect("its state is known");
        self.handle(Event::Take(object), now);
        Ok(received(inbound))
    }

    /// Takes the next objects as long as they came in their headers alone.
    pub(crate) fn take_small(&mut self, most: usize, now: Duration, into: &mut Vec<Received>) {
        let mut bytes = 0;
        while into.len() < most && bytes < MAX_TAKE {
            let Some(object) = self.order.front() else {
                return;
            };
            let small = |inbound: &Inbound| {
                inbound.state == State::Complete && inbound.header.layout.regions.is_empty()
            };
            if !self.incoming.get(object).is_some_and(small) {
                return;
            }
            let object = self.order.pop_front().expect("the front");
            let inbound = self.incoming.remove(&object).expect("found above");
            bytes += inbound.inline.len();
            self.handle(Event::Take(object), now);
            into.push(received(inbound));
        }
    }

    pub(crate) fn progress(&self, object: ObjectId) -> (u64, u64) {
        let total = self.incoming[&object].header.layout.body();
        self.pair.progress(object).unwrap_or((total, total))
    }

    /// The next extents for a stripe, with their bytes.
    pub(crate) fn next_extents(
        &mut self,
        stripe: StripeId,
        most: usize,
        now: Duration,
        into: &mut VecDeque<(Extent, Bytes)>,
    ) {
        while into.len() < most
            && let Some(extent) = self.pair.next_extent(stripe, now)
        {
            let Some(outbound) = self.outgoing.get(&extent.object) else {
                continue;
            };
            let range = extent.offset as usize..(extent.offset + extent.length) as usize;
            let bytes = outbound.regions[extent.region as usize].slice(range);
            if let Some(completion) = &outbound.completion {
                completion
                    .written
                    .fetch_add(extent.length, Ordering::Relaxed);
            }
            into.push_back((extent, bytes));
        }
    }

    /// Where the bytes of an extent belong; `None`: nowhere, they are dropped.
    pub(crate) fn destination(&mut self, stripe: StripeId, extent: &Extent) -> Option<Arc<Region>> {
        match self.pair.begin(stripe, extent) {
            Ok(true) => {
                let inbound = self.incoming.get(&extent.object)?;
                inbound.regions.get(extent.region as usize).cloned()
            }
            Ok(false) => None,
            Err(violation) => {
                self.violated(&violation);
                None
            }
        }
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
            for effect in std::mem::take(&mut self.effects) {
                self.apply_one(effect, shared);
            }
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
                self.answer(|out| wire::encode_message(&message, out));
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
            Effect::Complete(object) => {
                if let Some(inbound) = self.incoming.get_mut(&object) {
                    inbound.state = State::Complete;
                    inbound.finished = Some(Instant::now());
                    if inbound.header.shared {
                        let bytes = inbound.header.layout.body();
                        shared.bytes_shared.fetch_add(bytes, Ordering::Relaxed);
                    }
                }
                self.changed = true;
            }
            Effect::ReceiveFailed(object, failure) => {
                if let Some(inbound) = self.incoming.get_mut(&object) {
                    inbound.state = State::Failed(failure);
                    let regions = std::mem::take(&mut inbound.regions);
                    self.garbage.push(Garbage::Regions(regions));
                    if !inbound.claimed {
                        self.incoming.remove(&object);
                        if let Ok(at) = self.order.binary_search(&object) {
                            self.order.remove(at);
                        }
                    }
                }
                self.changed = true;
            }
            Effect::End(end) => {
                if matches!(end, PairEnd::Silent(_) | PairEnd::NoStripe(_)) {
                    // It may be there nevertheless.
                    self.control
                        .push(|out| wire::encode_message(&Message::Goodbye, out));
                }
                self.control.close();
                if let Some(channel) = self.channel.take() {
                    channel.cut();
                }
                self.lent.abandon();
                self.changed = true;
            }
        }
    }

    /// Tells what the other side gave cause to, unless it lets too much of that wait.
    pub(crate) fn answer(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        if !self.control.answer(encode) {
            let reason = "the peer does not read the answers to what it sends";
            self.end(PairEnd::Lost(reason.into()), true);
        }
    }

    /// Writes an object's header, and passes the descriptors of its memory.
    fn offer(&mut self, object: ObjectId) {
        let Some(outbound) = self.outgoing.get_mut(&object) else {
            return;
        };
        self.held -= outbound.header.len();
        let header = std::mem::take(&mut outbound.header);
        if let Some(exports) = &outbound.exports
            && let Some(channel) = &self.channel
        {
            self.lent.lend(exports);
            channel.send(object, exports);
        }
        self.control.push(|out| out.extend_from_slice(&header));
    }

    fn sent(&mut self, object: ObjectId, outcome: Result<(), Failure>, shared: &Arc<Shared>) {
        let Some(mut outbound) = self.outgoing.remove(&object) else {
            return;
        };
        self.held -= outbound.header.len();
        if let Some(completion) = outbound.completion.take() {
            let timings = Timings {
                started: outbound.started,
                accepted: outbound.accepted,
                finished: Instant::now(),
            };
            if outcome.is_ok() && outbound.exports.is_some() {
                let bytes: usize = outbound.regions.iter().map(Bytes::len).sum();
                let streamed = completion.written.load(Ordering::Relaxed) > 0;
                if !streamed {
                    shared
                        .bytes_shared
                        .fetch_add(bytes as u64, Ordering::Relaxed);
                }
            }
            let _ = completion.outcome.set(outcome.map(|()| timings));
            self.changed = true;
        }
        if !outbound.regions.is_empty() {
            self.garbage.push(Garbage::Outbound(outbound));
        }
    }

    /// The other side has memory for an object now.
    pub(crate) fn peer_accepted(&mut self, object: ObjectId) {
        if let Some(outbound) = self.outgoing.get_mut(&object) {
            outbound.accepted = Some(Instant::now());
        }
    }

    /// Memory for an object that nobody has asked for yet.
    fn allocate(&mut self, object: ObjectId) {
        let Some(inbound) = self.incoming.get(&object) else {
            return;
        };
        if inbound.state != State::Offered {
            return;
        }
        let layout = &inbound.header.layout;
        let regions: Result<Vec<_>, _> = afford(layout.body()).and_then(|()| {
            let lengths = layout.regions.iter();
            lengths
                .map(|length| Region::allocate(*length).map(Arc::new))
                .collect()
        });
        match regions {
            Ok(regions) => self.accepted(object, regions),
            Err(error) if inbound.wanted => {
                let reason = error.to_string();
                if let Some(inbound) = self.incoming.get_mut(&object) {
                    inbound.state = State::Failed(Failure::Refused(reason.clone()));
                }
                self.changed = true;
                self.effects_of(Event::Refuse(object, reason));
            }
            // It waits until it is asked for; whoever asks gets the error.
            Err(_) => {}
        }
    }

    /// Writes what waits for the control connection.
    pub(crate) fn flush(&mut self, shared: &Arc<Shared>) {
        let full = self.queued() >= MAX_QUEUED;
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
        let mut actions = std::mem::take(&mut self.actions);
        if std::mem::take(&mut self.changed) {
            actions.push(Action::Notify);
            if let Some(notifier) = &self.notifier {
                actions.push(Action::Signal(Arc::clone(notifier)));
            }
            if let Some(watch) = &self.watch {
                actions.push(Action::Queue(Arc::clone(watch)));
            }
        }
        (std::mem::take(&mut self.garbage), actions)
    }
}

/// Whether there can be so much memory. The system would let it be mapped, piece by piece, and end
/// the process later.
fn afford(bytes: u64) -> Result<(), MemoryError> {
    if bytes > PLENTY && bytes > treadle_memory::memory_limit() {
        return Err(MemoryError::OutOfMemory {
            len: usize::try_from(bytes).unwrap_or(usize::MAX),
            available: treadle_memory::memory_limit(),
        });
    }
    Ok(())
}

fn received(inbound: Inbound) -> Received {
    let header = &inbound.header;
    Received {
        kind: header.kind,
        frames: frames(
            &header.sizes,
            &header.layout,
            &inbound.inline,
            &inbound.regions,
        ),
        timings: Timings {
            started: inbound.started,
            accepted: inbound.accepted,
            finished: inbound.finished.unwrap_or(inbound.started),
        },
    }
}
