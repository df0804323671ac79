//! The virtual network and clock.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use treadle_transfer::{Effect, Event, Extent, Message, ObjectId, Pair, PairEnd, StripeId};

use super::plan::{Fault, Plan, Promise, TIMEOUT};
use super::random::Random;
use super::side::{Fate, Side, Stage};
use super::stripe::{Reader, Stripe};

const TICK: Duration = Duration::from_millis(50);
/// Every simulation must be over by then: faults end early, and each delays what it hits by no more
/// than the timeout.
const DEADLINE: Duration = Duration::from_secs(120);

/// What the network does to the messages, in place of a peer with a guard missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// A report claims every extent that was handed to the stripe.
    ReportAll,
    /// A report claims one extent less than there were.
    ReportLess,
    /// What a broken stripe carried is sent again before its end was reported.
    RequeueEarly,
    /// Each extent on the wire comes twice.
    Duplicate,
    /// Two offers change places.
    Reorder,
    /// Credit that nobody gave.
    FreeCredit,
    /// `Accept` and `Refuse` get lost.
    NoAnswer,
    /// A damaged extent passes for an intact one.
    BlindChecksum,
    /// `Placed` is said when the object is accepted.
    PlacedEarly,
}

/// A stripe: the side that sends on it, and its number there.
pub(crate) type Key = (usize, StripeId);

#[derive(Clone, Debug)]
pub(crate) enum Packet {
    Message(Message),
    Closed,
}

#[derive(Clone, Debug)]
pub(crate) enum Item {
    Control(Packet),
    Tick,
    Pump(Key),
    Transmitted(Key, u64),
    Begin(Key, Extent),
    Arrive(Key, bool),
    Joined(Key),
    Opened(Key),
    OpenFailed(Key),
    DialFailed(Key),
    /// The reader sees the end; `local` when it closed the connection itself.
    Ended {
        key: Key,
        local: bool,
    },
    /// The writer sees the end.
    Lost(Key),
    Send(usize),
    Cancel(usize),
    Receive,
    Allocated(ObjectId),
    Fault(usize),
}

/// What a simulation amounted to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) steps: u64,
    pub(crate) received: [usize; 2],
    pub(crate) failed: [usize; 2],
    pub(crate) replaced: [u64; 2],
    pub(crate) corrupt: [u64; 2],
    /// The most stripes that were in use at a time, and those at the last extent.
    pub(crate) most: [usize; 2],
    pub(crate) last: [usize; 2],
    pub(crate) ends: [Option<PairEnd>; 2],
    /// When the last object was received.
    pub(crate) finished: Duration,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    pub(crate) mutation: Mutation,
    pub(crate) trace: bool,
    pub(crate) now: Duration,
    pub(crate) number: u64,
    /// What happens when, in order, and at which side.
    pub(crate) agenda: BTreeMap<(Duration, u64), (usize, Item)>,
    pub(crate) sides: [Side; 2],
    pub(crate) stripes: BTreeMap<Key, Stripe>,
    /// When a shared bottleneck is free again, for each direction.
    pub(crate) bottleneck_free: [Duration; 2],
    pub(crate) flips: [u64; 2],
    pub(crate) control_cut: bool,
    pub(crate) held_offer: [Option<Message>; 2],
    pub(crate) summary: Summary,
}

/// Runs a plan. An error says what went wrong.
pub(crate) fn run(
    plan: Plan,
    seed: u64,
    mutation: Mutation,
    trace: bool,
) -> Result<Summary, String> {
    let mut world = World::new(plan, seed, mutation, trace);
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(result) => result.map(|()| world.summary.clone()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("?")))
        }
    }
    .map_err(|error| format!("at {:?}: {error}", world.now))
}

impl World {
    fn new(plan: Plan, seed: u64, mutation: Mutation, trace: bool) -> Self {
        let sides = [0, 1].map(|side| {
            let peer_credit = plan.configs[1 - side].credit;
            let pair = Pair::new(&plan.configs[side], peer_credit, Duration::ZERO);
            Side::new(pair, plan.objects[side].len())
        });
        let mut world = Self {
            plan,
            // Another stream than the plan's, so that a change here leaves the plans alone.
            random: Random::new(!seed),
            mutation,
            trace,
            now: Duration::ZERO,
            number: 0,
            agenda: BTreeMap::new(),
            sides,
            stripes: BTreeMap::new(),
            bottleneck_free: [Duration::ZERO; 2],
            flips: [0; 2],
            control_cut: false,
            held_offer: [None, None],
            summary: Summary::default(),
        };
        for side in 0..2 {
            world.schedule(side, TICK, Item::Tick);
            let starts = world.plan.habits[side].starts;
            world.schedule(side, starts, Item::Receive);
            for index in 0..world.plan.objects[side].len() {
                let object = &world.plan.objects[side][index];
                let (at, cancel) = (object.at, object.cancel);
                world.schedule(side, at, Item::Send(index));
                if let Some(cancel) = cancel {
                    world.schedule(side, cancel, Item::Cancel(index));
                }
            }
        }
        for index in 0..world.plan.faults.len() {
            let (at, fault) = world.plan.faults[index];
            let side = match fault {
                Fault::Goodbye { side } => side,
                _ => 0,
            };
            world.schedule(side, at, Item::Fault(index));
        }
        world
    }

    /// Schedules something `delay` from now.
    pub(crate) fn schedule(&mut self, side: usize, delay: Duration, item: Item) {
        self.schedule_at(side, self.now + delay, item);
    }

    pub(crate) fn schedule_at(&mut self, side: usize, at: Duration, item: Item) {
        self.number += 1;
        self.agenda
            .insert((at.max(self.now), self.number), (side, item));
    }

    fn run(&mut self) -> Result<(), String> {
        let quiet = self.random.chance(10);
        let mut settled_at = None;
        while let Some(((at, number), (side, item))) = self.agenda.pop_first() {
            self.now = at;
            let network = matches!(item, Item::Fault(_) | Item::Transmitted(..));
            let paused_until = self.sides[side].paused_until;
            if !network && paused_until > self.now {
                // The number keeps the order of what waits.
                self.agenda.insert((paused_until, number), (side, item));
                continue;
            }
            if self.trace {
                println!("{at:>12?} {side} {item:?}");
            }
            self.summary.steps += 1;
            self.step(side, item)?;
            if self.summary.steps.is_multiple_of(self.plan.check_every) {
                self.check(side)?;
            }
            let over = self.sides.iter().all(|side| side.end.is_some());
            let faults_over = self
                .plan
                .faults
                .last()
                .is_none_or(|(last, _)| *last < self.now);
            let settled = self.sides.iter().all(Side::is_settled) && self.is_all_known();
            let must_end = self.plan.promise == Promise::End;
            if settled && faults_over && (over || !must_end) {
                let since = *settled_at.get_or_insert(self.now);
                // What is idle must stay as it is.
                if !quiet || self.now > since + TIMEOUT * 3 {
                    return self.verify();
                }
            }
            if self.now > DEADLINE {
                return Err(self.stuck());
            }
        }
        Err("nothing more happens".into())
    }

    /// Whether nothing that concerns an object is under way.
    fn is_all_known(&self) -> bool {
        let ended = self.sides.iter().any(|side| side.end.is_some());
        ended
            || [0, 1].iter().all(|&side| {
                let offered = |(index, fate): (usize, &Fate)| {
                    *fate != Fate::Sent
                        || self.sides[1 - side]
                            .inbox
                            .contains_key(&ObjectId(index as u64))
                };
                self.sides[side].fates.iter().enumerate().all(offered)
            })
    }

    fn stuck(&self) -> String {
        let fates = [0, 1].map(|side| &self.sides[side].fates);
        let order = [0, 1].map(|side| &self.sides[side].order);
        let ends = [0, 1].map(|side| &self.sides[side].end);
        format!("hangs: fates {fates:?}, to be received {order:?}, ends {ends:?}")
    }

    fn step(&mut self, side: usize, item: Item) -> Result<(), String> {
        match item {
            Item::Control(Packet::Message(message)) => self.told(side, message)?,
            Item::Control(Packet::Closed) => {
                let mut effects = Vec::new();
                let lost = PairEnd::Lost("the control connection was closed".into());
                self.sides[side].pair.end(lost, &mut effects);
                self.perform(side, effects)?;
            }
            Item::Tick => {
                // As the driver of real sockets does.
                if self.sides[side].pair.due() <= self.now {
                    self.event(side, Event::Tick)?;
                }
                self.schedule(side, TICK, Item::Tick);
            }
            Item::Pump(key) => self.pump(key)?,
            Item::Transmitted(key, bytes) => {
                // What a black hole swallows is never acknowledged, and stays in the buffer.
                if let Some(stripe) = self.stripes.get_mut(&key)
                    && !stripe.stalled
                {
                    stripe.buffered -= bytes;
                    self.schedule(key.0, Duration::ZERO, Item::Pump(key));
                }
            }
            Item::Begin(key, extent) => self.begin(key, extent)?,
            Item::Arrive(key, intact) => self.arrive(key, intact)?,
            Item::Joined(key) => self.joined(key)?,
            Item::Opened(key) => self.opened(key)?,
            Item::OpenFailed(key) => self.open_failed(key)?,
            Item::DialFailed(key) => {
                let stripe = self.stripes.get_mut(&key).expect("it was dialled");
                if stripe.reader == Reader::Pending {
                    stripe.reader = Reader::Closed;
                    let failed = Event::DialFailed(key.1, "the network says so".into());
                    self.event(side, failed)?;
                }
            }
            Item::Ended { key, local } => self.ended(key, local)?,
            Item::Lost(key) => self.lost(key)?,
            Item::Send(index) => self.send(side, index)?,
            Item::Cancel(index) => self.event(side, Event::Cancel(ObjectId(index as u64)))?,
            Item::Receive => self.receive(side)?,
            Item::Allocated(object) => self.allocated(side, object)?,
            Item::Fault(index) => self.fault(self.plan.faults[index].1)?,
        }
        Ok(())
    }

    pub(crate) fn event(&mut self, side: usize, event: Event) -> Result<(), String> {
        let mut effects = Vec::new();
        let result = self.sides[side].pair.handle(event, self.now, &mut effects);
        result.map_err(|violation| format!("side {side} reports: {violation}"))?;
        self.perform(side, effects)
    }

    pub(crate) fn perform(&mut self, side: usize, effects: Vec<Effect>) -> Result<(), String> {
        for effect in effects {
            if self.trace {
                println!("{:>12} {side}   {effect:?}", "");
            }
            match effect {
                Effect::Tell(message) => self.tell(side, message),
                Effect::Dial(stripe) => self.connect((side, stripe), true),
                Effect::DialForPeer(stripe) => self.connect((1 - side, stripe), false),
                Effect::Wake(stripe) => {
                    self.schedule(side, Duration::ZERO, Item::Pump((side, stripe)));
                }
                Effect::Retire(stripe) => {
                    if let Some(entry) = self.stripes.get_mut(&(side, stripe)) {
                        entry.retiring = true;
                    }
                    self.schedule(side, Duration::ZERO, Item::Pump((side, stripe)));
                }
                Effect::Drop(stripe) => self.close((side, stripe)),
                Effect::DropIncoming(stripe) => {
                    let delay = self.random.micros(0, 3_000);
                    let key = (1 - side, stripe);
                    self.schedule(side, delay, Item::Ended { key, local: true });
                }
                Effect::Sent(object) => self.sides[side].settle(object, Fate::Sent)?,
                Effect::SendFailed(object, failure) => {
                    self.sides[side].settle(object, Fate::Failed(failure))?;
                }
                Effect::Offered(object) => {
                    self.sides[side].order.push_back(object);
                    if std::mem::take(&mut self.sides[side].waits) {
                        let pause = self.random.micros(0, self.plan.habits[side].receive);
                        self.schedule(side, pause, Item::Receive);
                    }
                }
                Effect::Allocate(object) => {
                    let inbound = self.sides[side].inbound(object)?;
                    if inbound.stage == Stage::Header {
                        inbound.prefetched = true;
                        self.allocate(side, object)?;
                    }
                }
                Effect::Complete(object) => self.completed(side, object)?,
                Effect::ReceiveFailed(object, failure) => {
                    let inbound = self.sides[side].inbound(object)?;
                    if matches!(
                        inbound.stage,
                        Stage::Complete | Stage::Taken | Stage::Failed
                    ) {
                        return Err(format!("{object:?} fails after it was {:?}", inbound.stage));
                    }
                    if inbound.stage == Stage::Refused {
                        return Err(format!("{object:?} was refused, and fails with {failure}"));
                    }
                    inbound.stage = Stage::Failed;
                    self.wake_receiver(side, object);
                }
                Effect::End(end) => {
                    if self.sides[side].end.replace(end).is_some() {
                        return Err("it ended twice".into());
                    }
                    // The driver closes the control connection.
                    self.packet(side, Packet::Closed);
                }
            }
        }
        Ok(())
    }
}
