//! Connections to many others: each is made when it is first needed, and closed when it was not used
//! for a while.
//!
//! One thread at a time has a [`Pool`]. It gets turns of a [`Poller`] for connections on which
//! something has come, and calls [`Pool::outcomes`] when connections were made or could not be.
//! Connections that others made may be [added](Pool::adopt).

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use treadle_reactor::thread::lock;

use crate::error::NetError;
use crate::memory::Target;
use crate::objects::{Incoming, Received};
use crate::options::Options;
use crate::peer::Peer;
use crate::poller::Poller;

/// A connection that was not used for so long is closed.
pub const IDLE: Duration = Duration::from_secs(60);
/// How long connecting may take.
pub const CONNECT: Duration = Duration::from_secs(5);
/// Objects that are on their way at once on a connection, beyond those that came in their headers.
const COMING: usize = 64;
/// Requests on a connection that were not answered.
const WINDOW: usize = 64;
/// Connections that are made at once.
const DIALLING: usize = 64;

/// An open connection. `T` is what its requests are for.
#[derive(Debug)]
pub struct Connection<T> {
    /// The other side.
    pub peer: Peer,
    /// Objects on their way, oldest first.
    coming: VecDeque<Incoming>,
    /// Requests that were not answered, by number.
    asked: HashMap<u64, T>,
    used: Instant,
}

impl<T> Connection<T> {
    /// A connection that does not belong to a pool.
    pub fn new(peer: Peer) -> Self {
        // Messages come in order, or the connection ends: also if one arrived damaged again and again.
        peer.forbid_gaps();
        Self {
            peer,
            coming: VecDeque::new(),
            asked: HashMap::new(),
            used: Instant::now(),
        }
    }

    /// It is used now.
    pub fn touch(&mut self) {
        self.used = Instant::now();
    }

    /// Whether another request may be sent.
    pub fn has_window(&self) -> bool {
        self.asked.len() < WINDOW
    }

    /// Whether a request was not answered.
    pub fn is_waiting(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Request `number` was sent.
    pub fn asked(&mut self, number: u64, what: T) {
        self.asked.insert(number, what);
        self.touch();
    }

    /// Request `number` is answered; what it was for.
    pub fn answered(&mut self, number: u64) -> Option<T> {
        self.asked.remove(&number)
    }

    /// Takes what is here, at most so many objects, in the order in which they were sent.
    ///
    /// # Errors
    /// When the connection is over and everything was taken, or an object did not arrive.
    pub fn take(&mut self, most: usize, into: &mut Vec<Received>) -> Result<(), NetError> {
        let most = into.len() + most;
        while into.len() < most {
            if self.coming.is_empty() {
                let before = into.len();
                self.peer.take_small(most - before, into);
                if into.len() > before {
                    continue;
                }
            }
            match self.next(&mut |_| Vec::new())? {
                Some(received) => into.push(received),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Takes the next object, if it is here. `place` is asked where the frames of one that is to come
    /// go; see [`Incoming::accept`].
    ///
    /// # Errors
    /// As for [`Connection::take`].
    pub fn next(
        &mut self,
        place: &mut dyn FnMut(&Incoming) -> Vec<Option<Target>>,
    ) -> Result<Option<Received>, NetError> {
        while self.coming.len() < COMING {
            match self.peer.try_next() {
                Ok(Some(incoming)) => {
                    incoming.accept(place(&incoming))?;
                    self.coming.push_back(incoming);
                }
                Ok(None) => break,
                // Said again when what came before was taken.
                Err(_) if !self.coming.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        if !self.coming.front().is_some_and(Incoming::is_done) {
            return Ok(None);
        }
        let incoming = self.coming.pop_front().expect("just looked");
        incoming.take().map(Some)
    }

    /// Whether there is something to take, or to say.
    pub fn has_something(&self) -> bool {
        match self.coming.front() {
            Some(coming) => coming.is_done(),
            None => self.peer.has_next(),
        }
    }
}

/// Nobody knows where somebody is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownAddress;

#[derive(Debug)]
enum State<T> {
    /// The number of the attempt. It is waited for, or waits for others.
    Dialling(u64),
    Open(Connection<T>),
}

/// What came of an attempt to connect.
type Outcome<K> = (K, u64, Result<Peer, NetError>);

/// Attempts to connect that are over.
struct Outcomes<K> {
    list: Mutex<Vec<Outcome<K>>>,
    /// Has the pool's thread call [`Pool::outcomes`].
    wake: Box<dyn Fn() + Send + Sync>,
}

impl<K> Outcomes<K> {
    fn add(&self, outcome: Outcome<K>) {
        lock(&self.list).push(outcome);
        (self.wake)();
    }
}

impl<K> std::fmt::Debug for Outcomes<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outcomes").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Place {
    address: String,
    shares: bool,
}

/// Connections to others, which are called `K`.
#[derive(Debug)]
pub struct Pool<K, T> {
    options: Options,
    poller: Arc<Poller>,
    /// What somebody's connection is called in the poller.
    key: fn(K) -> usize,
    places: HashMap<K, Place>,
    connections: HashMap<K, State<T>>,
    outcomes: Arc<Outcomes<K>>,
    attempts: u64,
    /// Attempts that were begun and are not over.
    dialling: usize,
    /// Those that are to begin then.
    queue: VecDeque<(K, u64)>,
    swept: Instant,
}

impl<K: Copy + Eq + Hash + Send + 'static, T> Pool<K, T> {
    /// An empty one. Connections get `options` and turns of `poller` as `key`; `wake` is called when
    /// [`Pool::outcomes`] has something, by any thread, and must not block.
    pub fn new(
        options: Options,
        poller: Arc<Poller>,
        key: fn(K) -> usize,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            options: Options {
                connect_timeout: CONNECT,
                ..options
            },
            poller,
            key,
            places: HashMap::new(),
            connections: HashMap::new(),
            outcomes: Arc::new(Outcomes {
                list: Mutex::default(),
                wake: Box::new(wake),
            }),
            attempts: 0,
            dialling: 0,
            queue: VecDeque::new(),
            swept: Instant::now(),
        }
    }

    /// Says where somebody is, and whether memory may be shared with them, if it may be with anybody.
    pub fn introduce(&mut self, who: K, address: String, shares: bool) {
        self.places.insert(who, Place { address, shares });
    }

    /// Whether memory may be shared with somebody.
    pub fn shares_memory(&self, who: K) -> bool {
        let place = self.places.get(&who);
        self.options.shared_memory && place.is_none_or(|place| place.shares)
    }

    /// Adds a connection that somebody has made, in place of the one that is there.
    pub fn adopt(&mut self, who: K, peer: Peer) {
        peer.watch(&self.poller, (self.key)(who));
        let connection = State::Open(Connection::new(peer));
        self.connections.insert(who, connection);
    }

    /// Who is at an address.
    pub fn at(&self, address: &str) -> Option<K> {
        let mut all = self.places.iter();
        all.find_map(|(who, place)| (place.address == address).then_some(*who))
    }

    /// Somebody is gone: closes the connection. Returns what was asked and not answered.
    pub fn forget(&mut self, who: K) -> Vec<T> {
        self.places.remove(&who);
        self.close(who)
    }

    /// The connection to somebody. `None`: it is being made, and [`Pool::outcomes`] says when it is
    /// there.
    ///
    /// # Errors
    /// Nobody has [said](Pool::introduce) where that is.
    pub fn open(&mut self, who: K) -> Result<Option<&mut Connection<T>>, UnknownAddress> {
        if !self.connections.contains_key(&who) {
            if !self.places.contains_key(&who) {
                return Err(UnknownAddress);
            }
            self.attempts += 1;
            let attempt = self.attempts;
            self.connections.insert(who, State::Dialling(attempt));
            self.queue.push_back((who, attempt));
            self.dial();
        }
        Ok(self.get(who))
    }

    /// The connection to somebody, if it is open.
    pub fn get(&mut self, who: K) -> Option<&mut Connection<T>> {
        match self.connections.get_mut(&who)? {
            State::Open(connection) => Some(connection),
            State::Dialling(_) => None,
        }
    }

    /// Begins with attempts, as many as may be under way at once.
    fn dial(&mut self) {
        while self.dialling < DIALLING
            && let Some((who, attempt)) = self.queue.pop_front()
        {
            if !self.is_dialled(who, attempt) {
                continue;
            }
            self.dialling += 1;
            let outcomes = Arc::clone(&self.outcomes);
            let options = Options {
                shared_memory: self.shares_memory(who),
                ..self.options.clone()
            };
            let place = self
                .places
                .get(&who)
                .expect("who is forgotten is not dialled");
            match place.address.parse() {
                Ok(address) => Peer::dial(&address, &options, move |outcome| {
                    outcomes.add((who, attempt, outcome));
                }),
                Err(error) => outcomes.add((who, attempt, Err(NetError::from(error)))),
            }
        }
    }

    fn is_dialled(&self, who: K, attempt: u64) -> bool {
        matches!(self.connections.get(&who), Some(State::Dialling(number)) if *number == attempt)
    }

    /// Whose connections are open now, and whose could not be made.
    pub fn outcomes(&mut self) -> Vec<(K, Result<(), NetError>)> {
        let over = std::mem::take(&mut *lock(&self.outcomes.list));
        let mut outcomes = Vec::with_capacity(over.len());
        for (who, attempt, outcome) in over {
            self.dialling -= 1;
            if !self.is_dialled(who, attempt) {
                // Closed meanwhile.
                continue;
            }
            outcomes.push((
                who,
                match outcome {
                    Ok(peer) => {
                        self.adopt(who, peer);
                        Ok(())
                    }
                    Err(error) => {
                        self.connections.remove(&who);
                        Err(error)
                    }
                },
            ));
        }
        self.dial();
        outcomes
    }

    /// Whether [`Pool::outcomes`] has something to say.
    pub fn has_outcomes(&self) -> bool {
        !lock(&self.outcomes.list).is_empty()
    }

    /// Closes a connection, or stops making it. Returns what was asked and not answered, in order.
    pub fn close(&mut self, who: K) -> Vec<T> {
        match self.connections.remove(&who) {
            Some(State::Open(connection)) => {
                let mut asked: Vec<_> = connection.asked.into_iter().collect();
                asked.sort_unstable_by_key(|(number, _)| *number);
                asked.into_iter().map(|(_, what)| what).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Closes everything, and forgets everybody.
    pub fn close_all(&mut self) {
        self.places.clear();
        self.connections.clear();
        self.queue.clear();
    }

    /// Whose connections were not used for a while.
    pub fn idle(&self, now: Instant) -> impl Iterator<Item = K> + use<'_, K, T> {
        let is_idle = move |state: &State<T>| match state {
            State::Open(open) => {
                now.saturating_duration_since(open.used) >= IDLE && !open.is_waiting()
            }
            State::Dialling(_) => false,
        };
        let all = self.connections.iter();
        all.filter_map(move |(who, state)| is_idle(state).then_some(*who))
    }

    /// Closes connections that were not used for a while, unless `is_needed`. Returns when to look
    /// again, if some are open.
    pub fn close_idle(&mut self, now: Instant, is_needed: impl Fn(K) -> bool) -> Option<Instant> {
        let is_open = |state: &State<T>| matches!(state, State::Open(_));
        if now >= self.swept + IDLE / 4 {
            self.swept = now;
            for who in self.idle(now).collect::<Vec<_>>() {
                if !is_needed(who) {
                    self.connections.remove(&who);
                }
            }
        }
        let any = self.connections.values().any(is_open);
        any.then_some(self.swept + IDLE / 4)
    }
}
