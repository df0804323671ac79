//! The machine with what it decides about: all under one lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_broadcast::{
    CastId, Effect, Effects, Event, Me, Member, Message, Neighbour, Outcome, Relay, Runs, Tree,
    Violation,
};
use treadle_net::pool::Pool;
use treadle_net::{Frame, NetError, Peer, Received};
use treadle_reactor::awake;
use treadle_types::{Cause, ClientId, WorkerId};

use super::attached::{self, Attached, frames, taken};
use super::engine::Engine;
use super::links::{Link, Links, Traffic};
use super::payload::Kind;
use super::store::Store;
use super::watched::{Had, Watched};
use super::{Arrival, Purpose, What};

/// How long the way for shared memory may take, once there is a connection.
const DESCRIPTORS: Duration = Duration::from_millis(500);

/// Who speaks.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) who: Neighbour,
    /// The number of its host.
    pub(super) host: u32,
    /// The worker's name, for people.
    pub(super) name: String,
    /// Bytes that payloads may take; 0: as much as there is.
    pub(super) limit: u64,
}

/// What is left to do when the lock is released.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) dial: Vec<Member>,
    pub(super) ask: Vec<ClientId>,
    /// There is a cast for the engine.
    pub(super) put: bool,
    /// Values to keep, and calls, without the engine.
    pub(super) keep: Vec<(CastId, Bytes)>,
    pub(super) call: Vec<(CastId, Bytes)>,
    pub(super) interrupt: Vec<CastId>,
    /// Casts that this worker is done with.
    pub(super) had: Vec<Had>,
    pub(super) log: Vec<String>,
    /// Something arrived.
    pub(super) arrived: bool,
    /// The client may cast again.
    pub(super) room: bool,
    /// To be dropped.
    pub(super) garbage: Vec<Box<dyn Send>>,
}

/// A node of the broadcast plane.
pub(super) struct Node {
    relay: Relay,
    own: Own,
    store: Store,
    links: Links,
    engine: Arc<Engine>,
    watched: Watched,
    effects: Effects,
    /// Since when it is there, in the time that [`awake::now`] tells.
    epoch: Duration,
    /// What the client's casts are for that are not complete.
    purposes: HashMap<u64, Purpose>,
    /// For the client.
    pub(super) arrivals: VecDeque<Arrival>,
    opening: Vec<Opening>,
    over: bool,
}

/// A connection that is there, while the way for shared memory is not.
struct Opening {
    link: Link,
    /// From then on everything goes in bytes, which works too.
    until: Instant,
}

impl Node {
    pub(super) fn new(me: Me, own: Own, engine: Arc<Engine>) -> Self {
        let config = treadle_broadcast::Config {
            inline: super::payload::INLINE,
            processors: std::thread::available_parallelism().map_or(0, |count| count.get() as u64),
            ..treadle_broadcast::Config::default()
        };
        Self {
            relay: Relay::new(me, config),
            own,
            store: Store::default(),
            links: Links::default(),
            engine,
            watched: Watched::default(),
            effects: Effects::default(),
            epoch: awake::now(),
            purposes: HashMap::new(),
            arrivals: VecDeque::new(),
            opening: Vec::new(),
            over: false,
        }
    }

    pub(super) fn traffic(&mut self) -> Traffic {
        self.links.traffic()
    }

    /// Bytes of memory that payloads take of this process.
    pub(super) fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    /// Casts that are given and not done.
    pub(super) fn casts(&self) -> Vec<Had> {
        self.watched.open()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn waiting(&self) -> usize {
        self.relay.waiting()
    }

    pub(super) fn has_room(&self) -> bool {
        self.relay.has_room()
    }

    pub(super) fn settled(&self, session: ClientId) -> treadle_broadcast::Settled {
        self.relay.settled(session)
    }

    /// When [`Node::tick`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let relay = self.relay.next_deadline();
        let relay = relay.and_then(|due| awake::moment(self.epoch.saturating_add(due)));
        let opening = self.opening.iter().map(|opening| opening.until).min();
        relay.into_iter().chain(opening).min()
    }

    fn now(&self) -> Duration {
        awake::now().saturating_sub(self.epoch)
    }

    /// Hands the machine an event, and does what follows.
    pub(super) fn handle(&mut self, event: Event, deferred: &mut Deferred) {
        if let Err(violation) = self.feed(event, Attached::default(), deferred) {
            deferred.log.push(violation.to_string());
        }
    }

    fn feed(
        &mut self,
        event: Event,
        mut attached: Attached,
        deferred: &mut Deferred,
    ) -> Result<(), Violation> {
        if self.over {
            return Ok(());
        }
        // Events that effects cause wait until all effects of this one are done: they are in order.
        let mut later = VecDeque::new();
        let now = self.now();
        let outcome = self.relay.handle(event, now, &mut self.effects);
        self.act(&mut attached, &mut later, deferred);
        while let Some(event) = later.pop_front() {
            let now = self.now();
            if let Err(violation) = self.relay.handle(event, now, &mut self.effects) {
                deferred.log.push(violation.to_string());
            }
            self.act(&mut attached, &mut later, deferred);
        }
        outcome
    }

    fn act(
        &mut self,
        attached: &mut Attached,
        later: &mut VecDeque<Event>,
        deferred: &mut Deferred,
    ) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.0.drain(..) {
            self.act_one(effect, attached, later, deferred);
        }
        // For its memory.
        self.effects = effects;
    }

    fn act_one(
        &mut self,
        effect: Effect,
        attached: &mut Attached,
        later: &mut VecDeque<Event>,
        deferred: &mut Deferred,
    ) {
        match effect {
            Effect::Send(who, message) => {
                // What is gone was dropped after this was said: nobody waits for it.
                if let Some(frames) = frames(&message, &self.store)
                    && !self.links.send(who, &frames)
                    && self.links.remove(who, &mut self.store)
                {
                    later.push_back(Event::Broken(who));
                }
            }
            Effect::Connect(member) => deferred.dial.push(member),
            Effect::Reserve { cast, size, mapped } => {
                let result = self.reserve(cast, size, mapped).map_err(Arc::from);
                self.watched.comes(cast);
                later.push_back(Event::Reserved { cast, result });
            }
            Effect::StorePayload(cast) => {
                if let Some(payload) = attached.payload.take() {
                    self.store.came(cast, payload, attached.start.take());
                }
            }
            Effect::StoreResults { cast, engines } => {
                self.store.keep_results(cast, &engines, attached);
            }
            Effect::Run(cast) => match self.store.give(cast) {
                Some(payload) => {
                    let kind = payload.kind();
                    let size = payload.bytes.len() as u64;
                    self.watched.given(cast, kind.into(), size);
                    match kind {
                        Kind::Run => {
                            self.engine.put(cast, payload);
                            deferred.put = true;
                        }
                        Kind::Keep => deferred.keep.push((cast, payload.bytes)),
                        Kind::Call => deferred.call.push((cast, payload.bytes)),
                    }
                }
                None => later.push_back(Event::Ran { cast, size: 0 }),
            },
            Effect::Stop { cast, interrupt } => {
                let is_back = self.withdraw(|other| other == cast, later, deferred);
                if interrupt && !is_back {
                    deferred.interrupt.push(cast);
                }
            }
            Effect::Drop(cast) => {
                deferred.garbage.push(Box::new(self.store.drop_cast(cast)));
                self.watched.forget(cast);
                self.withdraw(|other| other == cast, later, deferred);
                // A top may have waited for its memory.
                deferred.room |= matches!(self.own.who, Neighbour::Top(_));
            }
            Effect::DropSession(session) => {
                deferred
                    .garbage
                    .push(Box::new(self.store.drop_session(session)));
                self.watched.drop_session(session);
                self.withdraw(|other| other.session == session, later, deferred);
            }
            Effect::Ask(session) => deferred.ask.push(session),
            Effect::Result {
                number,
                engines,
                outcome,
            } => {
                self.results(number, &engines, &outcome, attached);
                deferred.arrived = true;
            }
            Effect::Output(output) => {
                let engine = Runs::one(u64::from(output.engine.0));
                self.arrive(output.number, engine, What::Output(output.text));
                deferred.arrived = true;
            }
            Effect::Complete { number } => {
                self.arrive(number, Runs::new(), What::Complete);
                self.purposes.remove(&number);
                deferred.arrived = true;
            }
        }
    }

    /// Takes casts back that the engine has not begun; whether there was one.
    fn withdraw(
        &mut self,
        which: impl Fn(CastId) -> bool,
        later: &mut VecDeque<Event>,
        deferred: &mut Deferred,
    ) -> bool {
        let withdrawn = self.engine.withdraw(which);
        let is_back = !withdrawn.is_empty();
        for waiting in withdrawn {
            later.push_back(Event::Withdrawn(waiting.cast));
            deferred.garbage.push(Box::new(waiting));
        }
        is_back
    }

    fn results(&mut self, number: u64, engines: &Runs, outcome: &Outcome, attached: &mut Attached) {
        let what = match outcome {
            Outcome::Finished { size: 1.. } => {
                for engine in engines.iter() {
                    let frames = attached.take_result(number, WorkerId(engine as u32));
                    self.arrive(number, Runs::one(engine), What::Finished(frames));
                }
                return;
            }
            Outcome::Finished { .. } => What::Finished(Vec::new()),
            Outcome::Refused(reason) => What::Refused(reason.to_string()),
            Outcome::Aborted => What::Aborted,
            Outcome::Lost(cause) => What::Lost(cause.to_string()),
            Outcome::Unreachable => {
                What::Lost("nobody could reach it, although the scheduler can".to_owned())
            }
        };
        self.arrive(number, engines.clone(), what);
    }

    fn arrive(&mut self, number: u64, engines: Runs, what: What) {
        let purpose = self.purposes.get(&number).copied();
        self.arrivals.push_back(Arrival {
            number,
            purpose: purpose.unwrap_or(Purpose::Run),
            engines,
            what,
        });
    }

    fn reserve(&mut self, cast: CastId, size: u64, mapped: bool) -> Result<(), String> {
        let limit = self.own.limit;
        let taken = if mapped { 0 } else { self.store.bytes() };
        if limit > 0 && taken.saturating_add(size) > limit {
            let held = match taken {
                0 => String::new(),
                taken => format!(", of which other payloads take {taken}"),
            };
            return Err(format!(
                "a payload of {size} bytes does not fit into the memory limit of worker {}, {limit} \
                 bytes{held}",
                self.own.name
            ));
        }
        match mapped {
            true => Ok(()),
            false => self.store.reserve(cast, size),
        }
    }

    /// A client casts.
    pub(super) fn cast(
        &mut self,
        session: ClientId,
        members: Runs,
        (purpose, tree): (Purpose, Tree),
        payload: Bytes,
        deferred: &mut Deferred,
    ) -> Result<u64, Violation> {
        let number = self.relay.next_number();
        let size = payload.len() as u64;
        let cast = CastId { session, number };
        // First, since the event sends it.
        self.store.own(cast, payload);
        self.purposes.insert(number, purpose);
        let event = Event::Cast {
            number,
            members,
            size,
            unordered: purpose != Purpose::Run,
            tree,
        };
        let outcome = self.feed(event, Attached::default(), deferred);
        if outcome.is_err() {
            self.purposes.remove(&number);
            deferred.garbage.push(Box::new(self.store.drop_cast(cast)));
        }
        outcome.map(|()| number)
    }

    /// The engine has run a cast.
    pub(super) fn ran(&mut self, cast: CastId, result: Vec<Bytes>, deferred: &mut Deferred) {
        let Neighbour::Worker(engine) = self.own.who else {
            return;
        };
        deferred.had.extend(self.watched.done(cast));
        let size = result.iter().map(|frame| frame.len() as u64).sum();
        let mut attached = Attached::default();
        if size > 0 {
            let frames = result.into_iter().map(Frame::from).collect();
            attached.results.insert((cast.number, engine), frames);
        }
        if let Err(violation) = self.feed(Event::Ran { cast, size }, attached, deferred) {
            deferred.log.push(violation.to_string());
        }
    }

    /// There is a thread that serves connections.
    pub(super) fn attach(&mut self, pool: Pool<Link, ()>) {
        self.links.attach(pool);
    }

    /// Connects to an engine.
    pub(super) fn dial(&mut self, member: &Member) {
        if !self.over {
            let is_near = member.host == self.own.host;
            self.links.dial(member, is_near, &mut self.store);
        }
    }

    /// A neighbour has connected.
    pub(super) fn adopt(&mut self, peer: Peer, who: Neighbour, deferred: &mut Deferred) {
        if self.over {
            return;
        }
        let is_first = !self.links.has(who);
        let replaces = self.links.adopt(peer, who, &mut self.store);
        if replaces {
            self.handle(Event::Broken(who), deferred);
        }
        if is_first || replaces {
            self.handle(Event::Connected(who), deferred);
        }
    }

    /// Greets the engines that were reached, and adds connections whose way for shared memory is there,
    /// or does not come.
    pub(super) fn open(&mut self, deferred: &mut Deferred) {
        let now = Instant::now();
        for (link, outcome) in self.links.outcomes() {
            let Neighbour::Worker(worker) = link.who else {
                continue;
            };
            if let Err(error) = outcome.and_then(|()| self.greet(link, worker)) {
                self.unreachable(worker, &error.to_string(), deferred);
                continue;
            }
            let wait = match self.links.shares_memory(link) {
                true => DESCRIPTORS,
                false => Duration::ZERO,
            };
            let until = now + wait;
            self.opening.push(Opening { link, until });
        }
        let links = &mut self.links;
        let is_open = |opening: &mut Opening| {
            let peer = links.peer(opening.link);
            let is_ready = |peer: &Peer| peer.shares_memory() || peer.ended().is_some();
            now >= opening.until || peer.is_none_or(is_ready)
        };
        let open: Vec<_> = self.opening.extract_if(.., is_open).collect();
        for Opening { link, .. } in open {
            let is_first = !self.links.has(link.who);
            self.links.add(link);
            if is_first {
                self.handle(Event::Connected(link.who), deferred);
            }
            // What came earlier was left, as the connection carried no messages.
            self.take(link.key(), deferred);
        }
    }

    /// Says who connects, with the first object.
    fn greet(&mut self, link: Link, worker: WorkerId) -> Result<(), NetError> {
        let (kind, frames) = attached::greeting(self.own.who, worker);
        let peer = self.links.peer(link);
        peer.map_or(Ok(()), |peer| peer.send(kind, &frames).map(drop))
    }

    /// There is no way to an engine.
    pub(super) fn unreachable(&mut self, worker: WorkerId, reason: &str, deferred: &mut Deferred) {
        deferred
            .log
            .push(format!("cannot reach {worker:?}: {reason}"));
        self.handle(Event::Unreachable(worker), deferred);
    }

    /// Takes what has come on a connection.
    pub(super) fn take(&mut self, key: usize, deferred: &mut Deferred) {
        // Looked up each time: what was heard may have closed it.
        while let Some(link) = self.links.by_key(key) {
            match self.links.take(link, &mut self.store) {
                Ok(Some(received)) => {
                    if let Err(reason) = self.hear(link, received, deferred) {
                        deferred.log.push(reason);
                        self.broke(link.who, deferred);
                    }
                }
                Ok(None) => return,
                Err(_) => self.broke(link.who, deferred),
            }
        }
    }

    fn broke(&mut self, who: Neighbour, deferred: &mut Deferred) {
        self.links.remove(who, &mut self.store);
        self.handle(Event::Broken(who), deferred);
    }

    fn hear(
        &mut self,
        link: Link,
        received: Received,
        deferred: &mut Deferred,
    ) -> Result<(), String> {
        let from = link.who;
        let (message, attached) = taken(received.frames)
            .map_err(|error| format!("{from:?} broke the protocol: {error}"))?;
        if let Message::Chunk {
            cast,
            offset,
            length,
        } = message
            && let Some(piece) = &attached.payload
        {
            if self.relay.wants_chunk(from, cast, offset, length) {
                let added = self.store.add(cast, offset, piece, link.key());
                added.map_err(|error| format!("a piece of a cast is lost: {error}"))?;
            } else {
                self.store.skip(cast, link.key());
            }
        }
        self.feed(Event::Message(from, message), attached, deferred)
            .map_err(|violation| violation.to_string())
    }

    /// The scheduler says that a worker is gone.
    pub(super) fn gone(&mut self, worker: WorkerId, cause: Cause, deferred: &mut Deferred) {
        let who = Neighbour::Worker(worker);
        self.links.remove(who, &mut self.store);
        let is_dialled = true;
        self.links.forget(Link { who, is_dialled });
        self.opening.retain(|opening| opening.link.who != who);
        self.handle(Event::Gone(worker, cause), deferred);
    }

    /// The scheduler says that a client is gone.
    pub(super) fn client_gone(&mut self, client: ClientId, deferred: &mut Deferred) {
        self.links.remove(Neighbour::Top(client), &mut self.store);
        self.handle(Event::ClientGone(client), deferred);
    }

    /// Writes what was sent to neighbours.
    pub(super) fn flush(&mut self) {
        self.links.flush();
    }

    /// Closes connections that nobody uses.
    pub(super) fn sweep(&mut self, deferred: &mut Deferred) {
        for who in self.links.idle(Instant::now()) {
            if !self.relay.is_used(who) {
                self.broke(who, deferred);
            }
        }
    }

    /// Nothing happens any more.
    pub(super) fn end(&mut self, deferred: &mut Deferred) {
        self.over = true;
        self.opening.clear();
        self.links.close(&mut self.store);
        let store = std::mem::take(&mut self.store);
        deferred.garbage.push(Box::new(store));
        deferred.room = true;
    }
}
