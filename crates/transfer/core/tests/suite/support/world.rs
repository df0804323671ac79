//! The virtual network and clock.

use std::collections::BTreeMap;
use std::time::Duration;

use treadle_sim_kernel::{self as kernel, Kernel, Line, Random, Trace, World as _};
use treadle_transfer::{Effect, Event, Extent, Message, Pair, PairEnd, StripeId, TransferId};

use super::plan::{Fault, Plan, Promise, TIMEOUT};
use super::side::{Fate, Side, Stage};
use super::stripe::{Reader, Stripe};

const TICK: Duration = Duration::from_millis(50);

treadle_guards::guards! {
    /// What a peer does; the network acts in place of one that does not.
    pub enum Guard {
        /// A report claims no more than what arrived.
        ReportAll,
        /// A report claims all of what arrived.
        ReportLess,
        /// What a broken stripe carried is sent again when its end was reported.
        RequeueEarly,
        /// Each extent on the wire comes once.
        Duplicate,
        /// Offers keep their order.
        Reorder,
        /// Credit is given by somebody.
        FreeCredit,
        /// `Accept` and `Refuse` are said.
        NoAnswer,
        /// A damaged extent does not pass for an intact one.
        BlindChecksum,
        /// `Placed` is said when the object is complete.
        PlacedEarly,
    }
}

/// A stripe: the side that sends on it, and its number there.
pub(crate) type Key = (usize, StripeId);

#[derive(Clone, Debug)]
pub(crate) enum Packet {
    Message(Message),
    Closed,
}

/// What happens at a side.
#[derive(Debug)]
pub(crate) struct At(pub(crate) usize, pub(crate) Item);

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
    Allocated(TransferId),
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
    pub(crate) kernel: Kernel<At, usize>,
    /// It is watched for some time after it has settled, and since when.
    is_watched: bool,
    settled_at: Option<Duration>,
    pub(crate) sides: [Side; 2],
    pub(crate) stripes: BTreeMap<Key, Stripe>,
    /// What all stripes of a direction share.
    pub(crate) bottleneck: [Line; 2],
    pub(crate) flips: [u64; 2],
    pub(crate) control_cut: bool,
    pub(crate) held_offer: [Option<Message>; 2],
    pub(crate) summary: Summary,
}

/// Runs a plan. An error says what went wrong.
pub(crate) fn run(plan: Plan, seed: u64, trace: Trace) -> Result<Summary, String> {
    // Another stream than the plan's, so that a change here leaves the plans alone.
    let kernel = Kernel::new(Random::new(!seed), trace);
    let mut world = World::new(plan, kernel);
    world.simulate(World::live)?;
    Ok(world.summary)
}

impl World {
    fn new(plan: Plan, kernel: Kernel<At, usize>) -> Self {
        let sides = [0, 1].map(|side| {
            let peer_credit = plan.configs[1 - side].credit;
            let pair = Pair::new(&plan.configs[side], peer_credit, Duration::ZERO);
            Side::new(pair, plan.objects[side].len())
        });
        let mut world = Self {
            plan,
            kernel,
            is_watched: false,
            settled_at: None,
            sides,
            stripes: BTreeMap::new(),
            bottleneck: Default::default(),
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

    /// Schedules something at a side, `delay` from now.
    pub(crate) fn schedule(&mut self, side: usize, delay: Duration, item: Item) {
        self.kernel.schedule(delay, At(side, item));
    }

    pub(crate) fn schedule_at(&mut self, side: usize, at: Duration, item: Item) {
        self.kernel.schedule_at(at, At(side, item));
    }

    fn live(&mut self) -> Result<(), String> {
        self.is_watched = self.kernel.random.chance(10);
        let is_over = self.run()?;
        self.summary.steps = self.kernel.steps();
        match is_over {
            true => self.verify(),
            false => Err("nothing more happens".into()),
        }
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
                            .contains_key(&TransferId(index as u64))
                };
                self.sides[side].fates.iter().enumerate().all(offered)
            })
    }

    fn happen(&mut self, side: usize, item: Item) -> Result<(), String> {
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
                if self.sides[side].pair.due() <= self.kernel.now() {
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
            Item::Cancel(index) => self.event(side, Event::Cancel(TransferId(index as u64)))?,
            Item::Receive => self.receive(side)?,
            Item::Allocated(object) => self.allocated(side, object)?,
            Item::Fault(index) => self.fault(self.plan.faults[index].1)?,
        }
        Ok(())
    }

    pub(crate) fn event(&mut self, side: usize, event: Event) -> Result<(), String> {
        let mut effects = Vec::new();
        let result = self.sides[side]
            .pair
            .handle(event, self.kernel.now(), &mut effects);
        result.map_err(|violation| format!("side {side} reports: {violation}"))?;
        self.perform(side, effects)
    }

    pub(crate) fn perform(&mut self, side: usize, effects: Vec<Effect>) -> Result<(), String> {
        for effect in effects {
            self.kernel.tell(|| format!("{side} {effect:?}"));
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
                    let delay = self.kernel.random.micros(0, 3_000);
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
                        let pause = self.kernel.random.micros(0, self.plan.habits[side].receive);
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

impl kernel::World for World {
    type Item = At;
    type Node = usize;
    // Faults end early, and each delays what it hits by no more than the timeout.
    const LIMIT: (Duration, u64) = (Duration::from_secs(120), 5_000_000);

    fn kernel(&self) -> &Kernel<At, usize> {
        &self.kernel
    }

    fn kernel_mut(&mut self) -> &mut Kernel<At, usize> {
        &mut self.kernel
    }

    fn process(&self, At(side, item): &At) -> Option<usize> {
        let network = matches!(item, Item::Fault(_) | Item::Transmitted(..));
        (!network).then_some(*side)
    }

    fn step(&mut self, At(side, item): At) -> Result<(), String> {
        self.happen(side, item)?;
        match self.kernel.steps().is_multiple_of(self.plan.check_every) {
            true => self.check_side(side),
            false => Ok(()),
        }
    }

    fn is_over(&mut self) -> bool {
        let now = self.kernel.now();
        let over = self.sides.iter().all(|side| side.end.is_some());
        let last = self.plan.faults.last();
        let settled = self.sides.iter().all(Side::is_settled) && self.is_all_known();
        let must_end = self.plan.promise == Promise::End;
        if !settled || last.is_some_and(|(last, _)| *last >= now) || (must_end && !over) {
            return false;
        }
        // What is idle must stay as it is.
        let since = *self.settled_at.get_or_insert(now);
        !self.is_watched || now > since + TIMEOUT * 3
    }

    fn unresolved(&self) -> String {
        let fates = [0, 1].map(|side| &self.sides[side].fates);
        let order = [0, 1].map(|side| &self.sides[side].order);
        let ends = [0, 1].map(|side| &self.sides[side].end);
        format!("hangs: fates {fates:?}, to be received {order:?}, ends {ends:?}")
    }
}

impl kernel::Item for At {}
