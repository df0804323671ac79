//! The broadcast plane's node: `treadle-broadcast` with sockets, memory and an engine's queue around
//! it. The design is `docs/internals/broadcast.md`.
//!
//! | module | what |
//! | --- | --- |
//! | `node` | the machine, and what it decides about |
//! | `links`, `service` | connections to neighbours, and those that neighbours make |
//! | `store` | payloads and results |
//! | `payload` | the memory of a payload, and its frames |
//! | `values` | values in a payload |
//! | `attached` | messages with what comes with them, as frames |
//! | `engine` | casts for the engine |
//! | `serving` | what comes on connections, and what is due |
//! | `watched` | when casts came, and were done |
//!
//! Any thread may hand the machine an event: it takes one lock, for short, and what may take long is
//! done after that. One thread at a time leads (see `treadle_reactor::leader`): it waits for what comes on
//! connections and for time to pass. The engine's thread leads while it waits for a cast, as most of
//! what comes is for it. The node's own, `treadle-relay`, stands by; it is started with the first
//! connection or cast.

mod attached;
mod engine;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod links;
mod node;
mod payload;
mod service;
mod serving;
mod store;
pub mod values;
mod watched;

pub use engine::{Cast, Next};
pub use links::Traffic;
pub use payload::{snapshot, unpack};
pub use watched::{For, Had};

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
pub use treadle_broadcast::Tree;
use treadle_broadcast::{CastId, Event, Me, Member, Neighbour, Runs, Settled};
use treadle_memory::{Consumer, Usage};
use treadle_net::pool::Pool;
use treadle_net::{Frame, Lane, NetError, Options, Peer, Poller, Signal, Wait};
use treadle_types::{Cause, ClientId, WorkerId};

use engine::Engine;
use links::Link;
use node::{Deferred, Node, Own};
use payload::Kind;
use serving::Upkeep;
use treadle_reactor::leader::{Grace, Handover, Leadership};
use treadle_reactor::thread::{self, caught, lock};

/// What connections between neighbours are for, in their handshake.
pub const SERVICE: u32 = 1;
/// The signal's key in the poller; connections begin at 1.
const SIGNAL: usize = 0;
/// The part of the memory that a client's payloads may take before the next cast waits.
const PAYLOADS: u64 = 4;
/// They may take so many bytes in any case: to read how much memory there is takes longer than a cast.
const LITTLE: u64 = 64 << 20;
/// When the engine's thread has been away for so long, the node's own leads: a call that is shorter
/// costs no switch between threads, and what comes meanwhile is handled after it.
const GRACE: Grace = Grace {
    period: Duration::from_micros(500),
    is_stopped: true,
};
/// How often a cast that waits for room looks whether it was interrupted.
const INTERRUPT: Duration = Duration::from_millis(25);
/// Nobody waits longer for a cast: a clock may not reach what is later.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Something for the client.
#[derive(Debug)]
pub struct Arrival {
    /// The cast.
    pub number: u64,
    /// What it is for.
    pub purpose: Purpose,
    /// Ids of the workers of which this is true; none for [`What::Complete`].
    pub engines: Runs,
    /// What arrived. Frames and text are those of a single worker.
    pub what: What,
}

/// What a client casts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Engines run it, each in the client's order.
    Run,
    /// Workers keep values; the number is the client's for them.
    Keep(u64),
    /// The Python sides of workers are asked something, at once; the number is the client's for that.
    Call(u64),
}

impl Purpose {
    fn kind(self) -> Kind {
        match self {
            Self::Run => Kind::Run,
            Self::Keep(_) => Kind::Keep,
            Self::Call(_) => Kind::Call,
        }
    }
}

/// What came of a cast at an engine.
#[derive(Debug)]
pub enum What {
    /// The engine wrote something, and goes on.
    Output(Bytes),
    /// The frames of its result.
    Finished(Vec<Frame>),
    /// The payload did not fit into its memory; why.
    Refused(String),
    /// It was aborted before the engine began.
    Aborted,
    /// The engine is gone; why.
    Lost(String),
    /// Every engine has its result.
    Complete,
}

/// The code around a node.
pub trait Callbacks: Send + Sync {
    /// [`Plane::take_arrivals`] has something.
    fn arrived(&self) {}
    /// Ask a client through the scheduler what is settled; see [`Plane::settled_is`].
    fn ask(&self, _client: ClientId) {}
    /// A cast waits for the engine, and no thread has ever asked for one.
    fn cast_came(&self) {}
    /// Keep the [`values`] of a payload, and say that the cast is [finished](Plane::finished). The
    /// thread that serves connections may call this.
    fn keep(&self, _cast: CastId, _payload: Bytes) {}
    /// The same of a call of the Python side, whose frames [are](unpack) an operation and an argument.
    fn call(&self, _cast: CastId, _payload: Bytes) {}
    /// A worker is done with a cast.
    fn had(&self, _had: &Had) {}
    /// Interrupt what the engine runs.
    fn interrupt(&self, _client: ClientId, _number: u64) {}
    /// A thread of the node has panicked, which ends the node; what to say.
    fn panicked(&self, reason: String);
    /// A line for the log.
    fn log(&self, line: fmt::Arguments<'_>);
}

/// A node. Clones are the same one.
#[derive(Clone)]
pub struct Plane(Arc<Inner>);

struct Inner {
    me: Neighbour,
    /// Where connections live; a client that never casts has none.
    lane: OnceLock<Lane>,
    options: Options,
    callbacks: Box<dyn Callbacks>,
    node: Mutex<Node>,
    /// The client may cast again.
    room: Condvar,
    engine: Arc<Engine>,
    wires: OnceLock<Wires>,
    /// Held while they are made.
    making: Mutex<()>,
    /// When the thread wakes by itself; nothing while it is awake.
    wakes: Mutex<Option<Instant>>,
}

struct Wires {
    poller: Arc<Poller>,
    signal: Signal,
    leadership: Arc<Leadership>,
    /// The leader's.
    upkeep: Arc<Mutex<Upkeep>>,
}

/// A machine's number: nodes with the same share memory. Of two machines with the same number, which
/// is unlikely, payloads come in one piece instead of many.
pub fn host_number(host: &str) -> u32 {
    // FNV-1a.
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    host.as_bytes().iter().fold(0x811c_9dc5, step)
}

/// The name of this machine.
pub fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

impl Plane {
    /// An engine's node. Payloads take at most `limit` bytes of its memory; 0: as much as they like.
    pub fn of_engine(
        member: Member,
        name: String,
        limit: u64,
        lane: Lane,
        options: Options,
        callbacks: Box<dyn Callbacks>,
    ) -> Self {
        let own = Own {
            who: Neighbour::Worker(member.worker),
            host: member.host,
            name,
            limit,
        };
        let me = Me::Engine(member);
        Self::new(me, own, OnceLock::from(lane), options, callbacks)
    }

    /// The top of a client's session, on the machine called `host`.
    pub fn of_client(
        session: ClientId,
        host: &str,
        options: Options,
        callbacks: Box<dyn Callbacks>,
    ) -> Self {
        let own = Own {
            who: Neighbour::Top(session),
            host: host_number(host),
            name: String::new(),
            limit: 0,
        };
        let me = Me::Top {
            session,
            host: Some(own.host),
        };
        Self::new(me, own, OnceLock::new(), options, callbacks)
    }

    fn new(
        me: Me,
        own: Own,
        lane: OnceLock<Lane>,
        options: Options,
        callbacks: Box<dyn Callbacks>,
    ) -> Self {
        let engine = Arc::new(Engine::default());
        Self(Arc::new(Inner {
            me: own.who,
            lane,
            options,
            callbacks,
            node: Mutex::new(Node::new(me, own, Arc::clone(&engine))),
            room: Condvar::new(),
            engine,
            wires: OnceLock::new(),
            making: Mutex::default(),
            wakes: Mutex::new(None),
        }))
    }

    // for both

    /// The scheduler says that a worker is gone.
    pub fn gone(&self, worker: WorkerId, cause: Cause) {
        self.0
            .with(|node, deferred| node.gone(worker, cause, deferred));
    }

    /// Bytes of memory that payloads take of this process.
    fn bytes(&self) -> u64 {
        lock(&self.0.node).bytes()
    }

    /// Casts whose payloads this worker has, and that are not done.
    pub fn casts(&self) -> Vec<Had> {
        lock(&self.0.node).casts()
    }

    /// What was sent to neighbours so far.
    pub fn traffic(&self) -> Traffic {
        lock(&self.0.node).traffic()
    }

    /// Nothing happens any more.
    pub fn end(&self) {
        self.0.with(|node, deferred| node.end(deferred));
        self.0.engine.close();
        self.0.wake();
        if let Some(wires) = self.0.wires.get() {
            wires.leadership.call_standby();
        }
    }

    // for engines

    /// A neighbour has connected.
    fn adopt(&self, peer: &Peer, who: Neighbour) {
        if self.0.wires().is_some() {
            let peer = peer.clone();
            self.0
                .with(|node, deferred| node.adopt(peer, who, deferred));
        }
    }

    /// The next cast for the engine; nothing: none came until the timeout. There will be none when
    /// the node is over.
    pub fn next_cast(&self, timeout: Duration) -> Next {
        let inner = &self.0;
        let deadline = Instant::now() + timeout.min(LONGEST);
        match (inner.engine.take(), inner.wires.get()) {
            (Some(next), _) => next,
            (None, Some(wires)) => inner.lead_for_engine(wires, deadline),
            (None, _) => inner.engine.wait(deadline),
        }
    }

    /// Has [`Plane::next_cast`] return, now or the next time.
    pub fn nudge(&self) {
        self.0.engine.nudge();
        self.0.call_engine();
    }

    /// Casts that the engine has not begun.
    pub fn waiting(&self) -> usize {
        lock(&self.0.node).waiting() + self.0.engine.waiting()
    }

    /// The engine wrote something while it runs a cast.
    pub fn wrote(&self, client: ClientId, number: u64, text: Bytes) {
        let cast = CastId {
            session: client,
            number,
        };
        let event = Event::Wrote { cast, text };
        self.0.with(|node, deferred| node.handle(event, deferred));
    }

    /// The engine has finished a cast.
    pub fn finished(&self, client: ClientId, number: u64, result: Vec<Bytes>) {
        let cast = CastId {
            session: client,
            number,
        };
        self.0
            .with(|node, deferred| node.ran(cast, result, deferred));
    }

    /// A client is gone.
    pub fn client_gone(&self, client: ClientId) {
        self.0
            .with(|node, deferred| node.client_gone(client, deferred));
    }

    /// A client's answer to [`Callbacks::ask`].
    pub fn settled_is(&self, session: ClientId, settled: Settled) {
        let event = Event::Settled { session, settled };
        self.0.with(|node, deferred| node.handle(event, deferred));
    }

    // for clients

    /// Workers that the scheduler knows.
    pub fn introduce(&self, members: Vec<Member>) {
        let event = Event::Introduce(members);
        self.0.with(|node, deferred| node.handle(event, deferred));
    }

    /// Sends frames to workers; the cast's number. Waits while too many casts, or too many bytes, are
    /// not settled.
    ///
    /// # Errors
    /// When there is no memory for them, an engine is unknown, there is no such tree, or the wait ends.
    pub fn cast(
        &self,
        members: &Runs,
        (purpose, tree): (Purpose, Tree),
        frames: &[Bytes],
        wait: &mut Wait<'_>,
    ) -> Result<u64, CastError> {
        let inner = &self.0;
        let Neighbour::Top(session) = inner.me else {
            return Err(CastError::Refused("only clients cast".to_owned()));
        };
        inner.wires().ok_or(CastError::NoThread)?;
        let payload = payload::pack(purpose.kind(), frames)?;
        let is_too_much = |held: u64| {
            let both = held + payload.len() as u64;
            held > 0 && both > LITTLE && both > treadle_memory::memory_limit() / PAYLOADS
        };
        let mut node = lock(&inner.node);
        while !node.has_room() || is_too_much(node.bytes()) {
            if wait.deadline.is_some_and(|limit| Instant::now() >= limit) {
                return Err(NetError::Timeout.into());
            }
            let waited = inner.room.wait_timeout(node, INTERRUPT);
            node = waited.unwrap_or_else(PoisonError::into_inner).0;
            if node.is_over() {
                break;
            }
            drop(node);
            if wait.is_interrupted() {
                return Err(NetError::Interrupted.into());
            }
            node = lock(&inner.node);
        }
        if node.is_over() {
            return Err(CastError::Refused("the client is closed".to_owned()));
        }
        let mut deferred = Deferred::default();
        let outcome = node.cast(
            session,
            members.clone(),
            (purpose, tree),
            payload,
            &mut deferred,
        );
        node.flush();
        let due = node.due();
        drop(node);
        inner.finish(deferred, due);
        outcome.map_err(|violation| CastError::Refused(violation.to_string()))
    }

    /// Engines that have not begun these casts are not to; the others are interrupted, if wanted.
    pub fn abort(&self, numbers: &[u64], interrupt: bool) {
        self.0.with(|node, deferred| {
            for &number in numbers {
                node.handle(Event::Abort { number, interrupt }, deferred);
            }
        });
    }

    /// What has arrived.
    pub fn take_arrivals(&self) -> Vec<Arrival> {
        lock(&self.0.node).arrivals.drain(..).collect()
    }

    /// What is settled of this client's casts.
    pub fn settled(&self) -> Settled {
        match self.0.me {
            Neighbour::Top(session) => lock(&self.0.node).settled(session),
            Neighbour::Worker(_) => Settled::default(),
        }
    }
}

/// Payloads stay until their casts are settled.
impl Consumer for Plane {
    fn usage(&self) -> Usage {
        Usage::fixed(self.bytes())
    }
}

/// Why a cast was not made.
#[derive(Debug, thiserror::Error)]
pub enum CastError {
    /// There is no memory for its payload.
    #[error("no memory for what is cast: {0}")]
    Memory(#[from] treadle_memory::MemoryError),
    /// It makes no sense.
    #[error("{0}")]
    Refused(String),
    /// The system has no more threads or descriptors.
    #[error("no thread or descriptor is left for connections to engines")]
    NoThread,
    /// The wait for room ended.
    #[error(transparent)]
    Wait(#[from] NetError),
}

impl Inner {
    /// Does something under the lock, and after that what is not done under it.
    fn with(self: &Arc<Self>, act: impl FnOnce(&mut Node, &mut Deferred)) {
        let mut deferred = Deferred::default();
        let mut node = lock(&self.node);
        act(&mut node, &mut deferred);
        node.flush();
        let due = node.due();
        drop(node);
        self.finish(deferred, due);
    }

    fn finish(self: &Arc<Self>, deferred: Deferred, due: Option<Instant>) {
        for line in &deferred.log {
            self.callbacks.log(format_args!("{line}"));
        }
        for (cast, payload) in deferred.keep {
            self.callbacks.keep(cast, payload);
        }
        for (cast, payload) in deferred.call {
            self.callbacks.call(cast, payload);
        }
        if deferred.put {
            match self.engine.is_attended() {
                true => self.call_engine(),
                false => self.callbacks.cast_came(),
            }
        }
        for had in &deferred.had {
            self.callbacks.had(had);
        }
        for cast in &deferred.interrupt {
            self.callbacks.interrupt(cast.session, cast.number);
        }
        for client in &deferred.ask {
            self.callbacks.ask(*client);
        }
        if deferred.arrived {
            self.callbacks.arrived();
        }
        if deferred.room {
            self.room.notify_all();
        }
        for member in &deferred.dial {
            self.dial(member);
        }
        // Memory of others: dropping it may take other locks.
        drop(deferred.garbage);
        if let Some(due) = due {
            // The leader would sleep past it.
            let is_late = lock(&self.wakes).is_some_and(|wakes| due < wakes);
            if is_late {
                self.wake();
            }
        }
    }

    /// There is something for the engine: if its thread serves, it is to look.
    fn call_engine(&self) {
        if let Some(wires) = self.wires.get()
            && wires.leadership.is_led_elsewhere()
        {
            wires.signal.set();
        }
    }

    fn wake(&self) {
        if let Some(wires) = self.wires.get() {
            wires.signal.set();
        }
    }

    /// What connections need, with the thread that serves them. `None`: the system has no more now.
    fn wires(self: &Arc<Self>) -> Option<&Wires> {
        let start = || {
            if self.lane.get().is_none() {
                let _ = self.lane.set(Lane::attended().ok()?);
            }
            let lane = self.lane.get()?.clone();
            let poller = Poller::on(&lane);
            let signal = poller.signal(SIGNAL);
            let interrupt = signal.clone();
            let leadership =
                Leadership::with_standby(Handover::Next, GRACE, move || interrupt.set());
            let leadership = Arc::new(leadership.ok()?);
            let upkeep = Arc::<Mutex<Upkeep>>::default();
            let pool = Pool::new(
                Options {
                    lane: Some(lane),
                    service: SERVICE,
                    ..self.options.clone()
                },
                Arc::clone(&poller),
                Link::key,
                {
                    let signal = signal.clone();
                    move || signal.set()
                },
            );
            lock(&self.node).attach(pool);
            let wires = Wires {
                poller: Arc::clone(&poller),
                signal,
                leadership: Arc::clone(&leadership),
                upkeep: Arc::clone(&upkeep),
            };
            let weak = Arc::downgrade(self);
            thread::start("treadle-relay", move || {
                let mut turn = || serving::turn(&weak, &poller, None, &mut lock(&upkeep));
                let panicked = caught(|| leadership.stand_by(&mut turn)).err();
                if let (Some(reason), Some(inner)) = (panicked, weak.upgrade()) {
                    inner.callbacks.panicked(reason.to_string());
                }
            })
            .ok()?;
            Some(wires)
        };
        if let Some(wires) = self.wires.get() {
            return Some(wires);
        }
        let _making = lock(&self.making);
        if self.wires.get().is_none() {
            let _ = self.wires.set(start()?);
        }
        self.wires.get()
    }

    /// Starts to connect to an engine; the leader learns what came of it.
    fn dial(self: &Arc<Self>, member: &Member) {
        match self.wires() {
            Some(_) => self.with(|node, _| node.dial(member)),
            None => {
                let (worker, reason) = (member.worker, CastError::NoThread.to_string());
                self.with(|node, deferred| node.unreachable(worker, &reason, deferred));
            }
        }
    }
}

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plane({:?})", self.0.me)
    }
}
