//! The native end of a client, without Python.
//!
//! | module | what |
//! | --- | --- |
//! | `keys` | the keys that the application has futures of, by encoding and by local id |
//! | `submission`, `put` | tasks and values for the scheduler |
//! | `kept` | constants that it may ask for again |
//! | `sender` | what goes to the scheduler, in order |
//! | `lead` | which thread takes what comes |
//! | `engine` | what it does with it natively; the rest waits for the application as [`Event`]s |
//! | `fetch`, `workers`, `link` | values from workers |
//! | `casts`, `spread` | what goes to many engines at once, and values for many workers |
//! | `notifier` | a descriptor for event loops |
//!
//! Any number of threads may use a client. One that waits leads (see `treadle_net::leader`): it moves
//! the bytes of the control connection and processes what comes itself, so that an answer meets the
//! thread that wants it without a hand-over. While nobody waits, the lane's own thread moves them, and the
//! descriptor becomes readable.
//!
//! Locks are taken in the order engine, sender, keys, inbox; each for short, none while the
//! application is called. What the application could not process to its end it puts back.

mod casts;
mod engine;
mod error;
mod fetch;
mod kept;
mod keys;
mod lead;
mod notifier;
mod put;
mod sender;
mod spread;
mod submission;
mod workers;

pub use crate::broadcast::{Arrival, CastError, Purpose, Traffic, What};
pub use error::ClientError;
pub use fetch::Fetched;
pub use kept::IsIntact;
pub use lead::Lead;
pub use put::{Contained, Content, Whither};
pub use submission::{Input, NewTask, Submission};
pub use treadle_scheduler::Stuck;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use treadle_net::leader::{Handover, Leadership};
use treadle_net::{Address, ClusterId, Lane, NetError, Options, Peer, Poller, Signal, Wait};
use treadle_types::ClientId;

use self::casts::Casts;
use self::engine::Engine;
use self::fetch::Fetches;
use self::kept::Kept;
use self::keys::{Keys, Known};
use self::notifier::Notifier;
use self::put::Puts;
use self::sender::{RELEASES, Sender};
use self::workers::Workers;
use crate::error::NodeError;
use crate::error::{answer_fits, call_fits, fits};
use crate::message::{Answer, Call, Failed, FromClient, Hello};
use crate::wire::{LARGEST_MESSAGE, Link, introduce};
use crate::{SCHEDULER_TIMEOUT, lock, to_scheduler};

/// The control connection in the poller.
const CONTROL: usize = 0;
/// Connections that were made, in the poller.
const SIGNAL: usize = usize::MAX;
/// Constants are kept up to this part of the memory that this process may use.
const KEPT: u64 = 4;
/// Bytes of messages that wait to be sent, above which submitters wait.
const WAITING: usize = 1 << 20;

/// How a key stands now. The value itself, if it came along, is in [`Client::value`].
#[derive(Debug)]
pub enum Change {
    /// It has a value.
    Finished {
        /// The type of a value that is not inline, as workers name it.
        class: Bytes,
    },
    /// It has none.
    Failed(Box<Failed>),
    /// It was cancelled; reason and message, an encoded value.
    Cancelled(Bytes),
    /// It is being made, again.
    Pending,
    /// The scheduler does not know the key, and nobody is making it.
    Unknown,
}

/// Something for the application.
#[derive(Debug)]
pub enum Event<R> {
    /// A key stands otherwise.
    Standing {
        /// What the application keeps of it.
        owner: R,
        /// How.
        change: Change,
    },
    /// A value that was asked for ([`Client::fetch`]).
    Fetched {
        /// The number that `fetch` returned.
        ticket: u64,
        /// Which of its keys.
        index: usize,
        /// What became of it.
        outcome: Fetched,
    },
    /// A question, to be answered with [`Client::answer`].
    Call(Call),
    /// An answer to a question of [`Client::call`].
    Answer(Answer),
    /// Nothing moves.
    Stuck {
        /// Keys of some of the tasks, encoded.
        keys: Vec<Bytes>,
        /// Why.
        reason: Stuck,
    },
    /// Definitions that no task uses: the application shall define anew what it needs again, and
    /// [say so](Client::undefine).
    Unused(Vec<u32>),
    /// What came of casts; see [`Client::cast`].
    Arrived(casts::Arrivals),
    /// Everything was cancelled and dropped.
    Restarted,
    /// The connection is over; why. What was asked for and has not come will not come.
    Closed(String),
}

/// What waits for the application.
#[derive(Debug)]
enum Item {
    Standing(u32, Change),
    Fetched {
        ticket: u64,
        index: usize,
        outcome: Fetched,
    },
    Call(Call),
    Answer(Answer),
    Stuck(Vec<Bytes>, Stuck),
    Unused(Vec<u32>),
    Restarted,
    Closed(String),
}

/// A client of a scheduler. `T` is what the application keeps of each key that it has futures of.
#[derive(Debug)]
pub struct Client<T> {
    address: String,
    id: u32,
    info: Bytes,
    peer: Peer,
    lane: Lane,
    poller: std::sync::Arc<Poller>,
    signal: Signal,
    notifier: Notifier,
    leadership: Arc<Leadership>,
    /// How often a thread has stopped to lead.
    rounds: AtomicU64,
    casts: Casts,
    engine: Mutex<Engine>,
    sender: Mutex<Sender>,
    keys: Mutex<Keys<T>>,
    inbox: Mutex<VecDeque<Item>>,
    /// Events that were taken, and not processed to their end; they come before the inbox.
    returned: Mutex<VecDeque<Event<T>>>,
    ended: OnceLock<String>,
    woken: AtomicBool,
    numbers: AtomicU64,
    submissions: AtomicU32,
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
            std::sync::Arc::clone(&poller),
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
                fetches: Fetches::default(),
                puts: Puts::default(),
                kept: Kept::new(treadle_memory::memory_limit() / KEPT),
                sweep: None,
                timer: None,
            }),
            sender: Mutex::new(Sender::new(peer.clone())),
            peer,
            lane,
            poller,
            signal,
            notifier,
            leadership,
            rounds: AtomicU64::new(0),
            casts,
            keys: Mutex::new(Keys::new()),
            inbox: Mutex::default(),
            returned: Mutex::new(VecDeque::new()),
            ended: OnceLock::new(),
            woken: AtomicBool::new(false),
            numbers: AtomicU64::new(0),
            submissions: AtomicU32::new(0),
        })
    }

    /// The scheduler's address.
    pub fn address(&self) -> &str {
        &self.address
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

    /// To be called before [`Lead::poll`]: the descriptor becomes readable again with what comes
    /// from now on.
    pub fn silence(&self) {
        self.notifier.reset();
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

    /// Whether [`Client::wait_for_room`] would return at once.
    pub fn has_room(&self) -> bool {
        self.peer.has_room() && lock(&self.sender).waiting() < WAITING
    }

    /// Sends messages after everything that was sent before.
    fn post<const N: usize>(&self, messages: [FromClient; N]) {
        let sender = &mut *lock(&self.sender);
        for message in &messages {
            sender.push(message);
        }
        sender.flush();
    }

    /// A number for a call or a fetch, used once.
    pub fn new_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends what waits for the next message.
    pub fn flush_now(&self) {
        lock(&self.sender).flush();
    }

    /// Something is about to be submitted, and its encoding will take longer than sending a word:
    /// the scheduler, if it sleeps, wakes up meanwhile.
    pub fn announce(&self) {
        lock(&self.sender).announce();
    }

    fn next_submission(&self) -> u32 {
        self.submissions.fetch_add(1, Ordering::Relaxed)
    }

    /// An id is not needed any more. The scheduler is told with the next message; how many ids are
    /// waiting for that.
    fn unwanted(&self, id: u32) -> usize {
        let aliases = lock(&self.keys).take_aliases(id);
        let sender = &mut *lock(&self.sender);
        for alias in aliases {
            sender.release(alias);
        }
        let waiting = sender.release(id);
        if waiting >= RELEASES {
            sender.flush();
        }
        waiting
    }

    /// Something does not need a key any more. The scheduler is told with the next message, or when
    /// the descriptor, which becomes readable, is attended to.
    fn let_go(&self, id: u32) {
        let released = lock(&self.keys).let_go(id);
        if released.is_some_and(|id| self.unwanted(id) == 1) {
            self.notifier.notify();
        }
    }

    /// The application has futures of a key that somebody else makes, and keeps `owner`, which is
    /// told how the key stands. For a key that is here already, returns what was kept before.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn watch(&self, key: &[u8], owner: T) -> Result<Option<T>, ClientError> {
        self.check()?;
        let sender = &mut *lock(&self.sender);
        let mut before = None;
        let first = {
            let mut keys = lock(&self.keys);
            if let Some(id) = keys.find(key) {
                before = keys.own(id, owner);
                match keys.get(id).map(|entry| &entry.known) {
                    Some(Known::Failed | Known::Unknown) => keys.name_again(id)?,
                    Some(Known::Inline(_) | Known::Remote { .. }) => {
                        let class = Bytes::new();
                        let finished = Item::Standing(id, Change::Finished { class });
                        lock(&self.inbox).push_back(finished);
                        self.notifier.notify();
                        return Ok(before);
                    }
                    Some(Known::Pending) | None => return Ok(before),
                }
            } else {
                keys.add(key, Some(owner))?
            }
        };
        sender.push(&FromClient::Want {
            first,
            keys: vec![Bytes::copy_from_slice(key)],
        });
        sender.flush();
        Ok(before)
    }

    /// The application has no futures of a key any more. Returns what it kept. The scheduler is told
    /// with the next message, or by [`Client::flush_now`].
    pub fn release(&self, key: &[u8]) -> Option<T> {
        self.release_if(key, |_| true)
    }

    /// As [`Client::release`], if this is what the application keeps of the key. `is_it` is called
    /// under a lock, and must not call out.
    pub fn release_if(&self, key: &[u8], is_it: impl FnOnce(&T) -> bool) -> Option<T> {
        let released = {
            let mut keys = lock(&self.keys);
            keys.by_key(key)?
                .owner
                .as_ref()
                .filter(|owner| is_it(owner))?;
            keys.disown(key)?
        };
        if let Some(id) = released.id {
            self.unwanted(id);
        }
        released.owner
    }

    /// What the application keeps of a key. `read` is called under a lock, and must not call out.
    pub fn owner<R>(&self, key: &[u8], read: impl FnOnce(&T) -> R) -> Option<R> {
        lock(&self.keys).by_key(key)?.owner.as_ref().map(read)
    }

    /// The keys that the client needs, futures or not.
    pub fn key_count(&self) -> usize {
        lock(&self.keys).len()
    }

    /// How many constants are kept, in case that the scheduler asks for them again, and how many
    /// bytes they are.
    pub fn kept(&self) -> (usize, u64) {
        lock(&self.engine).kept.totals()
    }

    /// The encoded value of a key, if it came from the scheduler.
    pub fn value(&self, key: &[u8]) -> Option<Bytes> {
        match &lock(&self.keys).by_key(key)?.known {
            Known::Inline(value) => Some(value.clone()),
            _ => None,
        }
    }

    fn ids<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Vec<u32> {
        let known = lock(&self.keys);
        let ids = keys.filter_map(|key| known.find(key));
        ids.map(|id| known.named(id)).collect()
    }

    /// Cancels keys; those that the client has no futures of are left out. `reason` is an encoded
    /// value, for other clients.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn cancel<'a>(
        &self,
        keys: impl Iterator<Item = &'a [u8]>,
        force: bool,
        reason: Bytes,
    ) -> Result<(), ClientError> {
        self.check()?;
        fits(reason.len(), || "the reason of a cancellation".to_owned())?;
        let ids = {
            let mut known = lock(&self.keys);
            let ids: Vec<u32> = keys.filter_map(|key| known.find(key)).collect();
            // From now on they are made or put anew, however late the notice comes.
            for &id in &ids {
                known.cancel(id);
            }
            ids.into_iter().map(|id| known.named(id)).collect()
        };
        self.post([FromClient::Cancel { ids, force, reason }]);
        Ok(())
    }

    /// No batch that is sent from now on uses these definitions.
    pub fn undefine(&self, numbers: Vec<u32>) {
        self.post([FromClient::Undefine(numbers)]);
    }

    /// Runs failed keys again; those that the client has no futures of are left out.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn retry<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<(), ClientError> {
        self.check()?;
        let ids = self.ids(keys);
        self.post([FromClient::Retry(ids)]);
        Ok(())
    }

    /// Asks another node; the answer has the question's number, a [new one](Client::new_number).
    ///
    /// # Errors
    /// When the connection is over.
    pub fn call(&self, call: Call) -> Result<(), ClientError> {
        self.check()?;
        call_fits(&call)?;
        self.post([FromClient::Call(call)]);
        Ok(())
    }

    /// Answers a question.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn answer(&self, answer: Answer) -> Result<(), ClientError> {
        self.check()?;
        answer_fits(&answer)?;
        self.post([FromClient::Answer(answer)]);
        Ok(())
    }

    /// Says goodbye and closes the connection, after what was sent before has left or the wait has
    /// ended.
    pub fn close(&self, wait: &mut Wait<'_>) {
        if self.ended_reason().is_none() {
            self.post([FromClient::Goodbye]);
            while !lock(&self.sender).flush() && self.peer.ended().is_none() {
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
