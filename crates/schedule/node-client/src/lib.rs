//! The native end of a client, without Python: `treadle-client`, the state machine, with sockets.
//!
//! | module | what |
//! | --- | --- |
//! | `requests` | what the application wants of the state machine |
//! | `sender` | what goes to the scheduler, in order |
//! | `lead` | which thread takes what comes |
//! | `delivery` | what that thread is at, and whether it gets on |
//! | `engine` | what it does with it natively; the rest waits for the application as [`Event`]s |
//! | `workers` | connections to workers, for values |
//! | `casts`, `spread` | what goes to many engines at once, and values for many workers |
//! | `notifier` | a descriptor for event loops |
//!
//! Any number of threads may use a client. One that waits leads (see `treadle_reactor::leader`): it moves
//! the bytes of the control connection and processes what comes itself, so that an answer meets the
//! thread that wants it without a hand-over. While nobody waits, the lane's own thread moves them, and
//! the descriptor becomes readable.
//!
//! The state machine is under one lock, `core`, held for short, never while the application is called
//! or something is sent. Locks are taken in the order engine (the connections, of the thread that
//! leads), core, sender. Whoever has something to send takes the sender's lock before it gives the
//! core's back: so messages leave in the order in which the core made them.

mod casts;
mod delivery;
mod engine;
mod error;
mod lead;
mod notifier;
mod requests;
mod sender;
mod spread;
mod workers;

pub use error::ClientError;
pub use lead::Lead;
pub use treadle_broadcast_node::{Arrival, CastError, Purpose, Traffic, Tree, What};
pub use treadle_client::{
    Change, Contained, Content, Destination, Input, IsIntact, NewTask, Submission,
};
pub use treadle_scheduler::Stuck;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_client::{Core, Effect, Effects};
use treadle_messages::{FromClient, Hello};
use treadle_net::{
    Address, ClusterId, Lane, NetError, Options, Peer, Poller, Received, Signal, Wait,
};
use treadle_reactor::leader::{Handover, Leadership};
use treadle_reactor::thread::lock;
use treadle_schedule_wire::NodeError;
use treadle_schedule_wire::{LARGEST_MESSAGE, Link, introduce};
use treadle_schedule_wire::{SCHEDULER_TIMEOUT, to_scheduler};
use treadle_types::ClientId;

use self::casts::Casts;
use self::delivery::Delivery;
use self::engine::Engine;
use self::notifier::Notifier;
use self::sender::Sender;
use self::workers::Workers;

/// What became of a value that was asked for. Frames come with the kind of the serialised value.
pub type Fetched = treadle_client::Fetched<Received>;
/// What came of casts; see [`Client::cast`].
pub type Arrivals = Vec<Arrival>;
/// Something for the application.
pub type Event<T> = treadle_client::Notification<T, Received, Arrivals>;
/// The state machine.
type State<T> = Core<T, Received, Arrivals>;
/// What happens to it.
type Incoming = treadle_client::Event<Received, Arrivals>;

/// The control connection in the poller.
const CONTROL: usize = 0;
/// Connections that were made, in the poller.
const SIGNAL: usize = usize::MAX;
/// Constants are kept up to this part of the memory that this process may use.
const KEPT: u64 = 4;
/// Bytes of messages that wait to be sent, above which submitters wait.
const WAITING: usize = 1 << 20;

/// A client of a scheduler. `T` is what the application keeps of each key that it has futures of.
#[derive(Debug)]
pub struct Client<T> {
    address: String,
    id: u32,
    info: Bytes,
    peer: Peer,
    lane: Lane,
    poller: Arc<Poller>,
    signal: Signal,
    notifier: Notifier,
    leadership: Arc<Leadership>,
    delivery: Delivery,
    /// How often a thread has stopped to lead.
    rounds: AtomicU64,
    /// The descriptor was reset by a thread that could not lead.
    was_reset: AtomicBool,
    casts: Casts,
    engine: Mutex<Engine>,
    core: Mutex<State<T>>,
    sender: Mutex<Sender>,
    /// The moment from which the core's time counts.
    start: Instant,
    ended: OnceLock<String>,
    woken: AtomicBool,
}

impl<T> Client<T> {
    /// Connects to a scheduler. Connections to workers get the same options.
    ///
    /// # Errors
    /// When there is no connection, the scheduler refuses the client, or the wait ends.
    pub fn connect(
        address: &Address,
        options: &Options,
        hello: &Hello,
        wait: &mut Wait<'_>,
    ) -> Result<Self, ClientError> {
        let lane = Lane::new()?;
        let options = Options {
            lane: Some(lane.clone()),
            patience: SCHEDULER_TIMEOUT,
            ..options.clone()
        };
        let control = Options {
            shared_memory: false,
            ..to_scheduler(&options, SCHEDULER_TIMEOUT)
        };
        let peer = Peer::connect(address, &control, wait)?;
        // The workers are of the same cluster.
        let options = Options {
            cluster: peer.cluster(),
            ..options
        };
        let (id, info) = introduce(&peer, hello, wait)?;
        let notifier = Notifier::new().map_err(|source| NodeError::System {
            what: "making a descriptor for event loops",
            source,
        })?;
        let poller = Poller::on(&lane);
        let signal = poller.signal(SIGNAL);
        let leadership = Arc::new(Leadership::new(Handover::All));
        let casts = Casts::new(
            ClientId(id),
            options.clone(),
            Arc::clone(&leadership),
            signal.clone(),
            notifier.waker(),
        );
        let workers = Workers::new(
            options,
            Arc::clone(&poller),
            signal.clone(),
            notifier.waker(),
        );
        peer.set_waker(Some(notifier.waker()));
        peer.watch(&poller, CONTROL);
        Ok(Self {
            address: address.to_string(),
            id,
            info,
            engine: Mutex::new(Engine {
                control: Link::new(peer.clone(), LARGEST_MESSAGE),
                workers,
                sweep: None,
                timer: None,
            }),
            core: Mutex::new(Core::new(treadle_memory::memory_limit() / KEPT)),
            sender: Mutex::new(Sender::new(peer.clone())),
            start: Instant::now(),
            peer,
            lane,
            poller,
            signal,
            notifier,
            leadership,
            delivery: Delivery::default(),
            rounds: AtomicU64::new(0),
            was_reset: AtomicBool::new(false),
            casts,
            ended: OnceLock::new(),
            woken: AtomicBool::new(false),
        })
    }

    /// The scheduler's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A thread that is at the same thing for so long, and not for a quarter of a second, is stuck: another one leads.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.delivery.grace = grace;
        self
    }

    /// The id of the scheduler's cluster.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.peer.cluster()
    }

    /// The number that the scheduler gave this client.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What the scheduler says about itself: an encoded value.
    pub fn info(&self) -> &Bytes {
        &self.info
    }

    /// Why the connection is over, if it is.
    pub fn ended_reason(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// A descriptor that is readable while there is something to process and no thread leads.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.notifier.descriptor()
    }

    /// Leads and takes what is here, for an event loop: the descriptor becomes readable again with
    /// what comes from now on. Nothing: another thread leads, and the descriptor becomes readable once
    /// that has stopped, if something is left.
    pub fn process(&self) -> Option<Lead<'_, T>> {
        self.notifier.reset();
        self.look();
        let lead = self.try_lead().or_else(|| {
            // That may have been what the other thread told of what it leaves. It looks at this after
            // it has stopped to lead, which it may have done by now.
            self.was_reset.store(true, Ordering::SeqCst);
            self.try_lead()
        });
        match &lead {
            Some(lead) => lead.poll(),
            None => self.flush_now(),
        }
        lead
    }

    /// Has the thread that leads come back.
    pub fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        self.signal.set();
    }

    fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::SeqCst)
    }

    fn check(&self) -> Result<(), ClientError> {
        match self.ended_reason() {
            None => Ok(()),
            Some(reason) => Err(ClientError::Ended {
                address: self.address.clone(),
                reason: reason.to_owned(),
            }),
        }
    }

    /// Has the core do something. What it says to the scheduler leaves, in order; the rest of what is
    /// to be done is returned. `failed` becomes what made a message impossible to send, once.
    fn step<R>(
        &self,
        step: impl FnOnce(&mut State<T>, &mut Effects) -> R,
        failed: Option<&mut Option<NodeError>>,
    ) -> (R, Effects) {
        let mut effects = Effects::new();
        let mut core = lock(&self.core);
        let result = step(&mut core, &mut effects);
        let sends = |effect: &Effect| matches!(effect, Effect::Send(_));
        let mut sender = effects.iter().any(sends).then(|| lock(&self.sender));
        // After the sender was taken: messages leave in the order in which the core made them.
        drop(core);
        let (mut rest, mut wakes) = (Effects::new(), false);
        for effect in effects {
            match (effect, &mut sender) {
                (Effect::Send(message), Some(sender)) => sender.push(&message),
                (Effect::Wake, _) => wakes = true,
                (effect, _) => rest.push(effect),
            }
        }
        if let Some(mut sender) = sender {
            sender.flush();
            if let Some(failed) = failed {
                *failed = sender.failed();
            }
        }
        if wakes {
            self.notifier.notify();
            // One that leads waits for what comes, and looks for what is there before it waits.
            if self.leadership.is_led_elsewhere() {
                self.signal.set();
            }
        }
        (result, rest)
    }

    /// Has the core do something that concerns the scheduler and the application alone.
    fn act<R>(&self, step: impl FnOnce(&mut State<T>, &mut Effects) -> R) -> R {
        let (result, rest) = self.step(step, None);
        debug_assert!(rest.is_empty(), "nobody does {rest:?}");
        result
    }

    /// Sends a message after everything that was sent before.
    fn post(&self, message: FromClient) {
        self.act(|core, effects| core.send(message, effects));
    }

    /// Sends what waits for the next message, and what could not leave before. `true`: that was all.
    fn flush_all(&self) -> bool {
        self.act(Core::flush);
        lock(&self.sender).flush()
    }

    /// Sends what waits for the next message.
    pub fn flush_now(&self) {
        self.flush_all();
    }

    /// Something is about to be submitted, and its encoding will take longer than sending a word:
    /// the scheduler, if it sleeps, wakes up meanwhile, unless it spins still. What was released
    /// is said, so that what follows from it is done by then.
    pub fn announce(&self) {
        if lock(&self.sender).is_active() {
            return;
        }
        self.act(Core::flush);
        lock(&self.sender).announce();
    }

    /// Says goodbye and closes the connection, after what was sent before has left and values that were
    /// put are at workers, or the wait has ended.
    pub fn close(&self, wait: &mut Wait<'_>) {
        if self.ended_reason().is_none() {
            // Otherwise the connection ends, too, or the wait.
            let _ = self.settle(wait);
            self.post(FromClient::Goodbye);
            while !self.flush_all() && self.peer.ended().is_none() {
                if self.peer.wait_for_room(wait).is_err() {
                    break;
                }
            }
            self.end(&mut lock(&self.engine), "it was closed here");
        }
        self.peer.start_close();
        let peer = &self.peer;
        let closed = self.lane.wait(&mut || peer.is_closed(), wait);
        debug_assert!(!matches!(closed, Err(NetError::Ended(_))));
        self.wake();
    }
}
