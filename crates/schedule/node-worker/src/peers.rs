//! Values from other workers: one connection a peer, several requests on it at once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_messages::Data;
use treadle_net::pool::{Connection, Pool};
use treadle_net::{Failure, NetError, Options, Poller, Received, Signal, Wait};
use treadle_reactor::clock;
use treadle_reactor::thread::lock;
use treadle_schedule_wire::{data, decode_data, encode_data};
use treadle_store::{Frames, StoreError};
use treadle_types::{ObjectId, WorkerId};
use treadle_worker::Event;

use super::{Inner, tracing};

/// How long a value may wait for room in memory.
const ROOM: Duration = Duration::from_secs(30);
/// The pause after there was no memory to receive something.
const BREATH: Duration = Duration::from_secs(1);
/// The key of the signal in the poller; a connection's is the number of the worker.
const SIGNAL: usize = usize::MAX;

/// A value to get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) object: ObjectId,
    pub(super) from: WorkerId,
}

/// Something for the fetching thread, in the order in which the worker learns it.
#[derive(Debug)]
enum Order {
    Get(Request),
    /// Where a worker is.
    Met(WorkerId, String),
    Lost(WorkerId),
}

/// The queue of the fetching thread.
pub(super) struct Requests {
    queue: Mutex<VecDeque<Order>>,
    poller: Arc<Poller>,
    signal: Signal,
}

impl Requests {
    pub(super) fn new(lane: &treadle_net::Lane) -> Self {
        let poller = Poller::on(lane);
        let signal = poller.signal(SIGNAL);
        Self {
            queue: Mutex::default(),
            poller,
            signal,
        }
    }

    fn put(&self, order: Order) {
        lock(&self.queue).push_back(order);
        self.signal.set();
    }

    pub(super) fn push(&self, request: Request) {
        self.put(Order::Get(request));
    }

    pub(super) fn met(&self, worker: WorkerId, address: String) {
        self.put(Order::Met(worker, address));
    }

    pub(super) fn lost(&self, worker: WorkerId) {
        self.put(Order::Lost(worker));
    }

    pub(super) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    pub(super) fn wake(&self) {
        self.signal.set();
    }
}

/// A value that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    object: ObjectId,
    /// When, on the clock of traces; 0: nobody traced.
    began: u64,
}

/// The fetching thread.
pub(super) struct Fetching {
    pool: Pool<WorkerId, Asked>,
    /// What waits for a connection, or for answers on it, and since when.
    waiting: HashMap<WorkerId, VecDeque<Asked>>,
    next_request: u64,
    received: Vec<Received>,
}

impl Fetching {
    pub(super) fn new(requests: &Requests, options: Options) -> Self {
        let signal = requests.signal.clone();
        let poller = Arc::clone(&requests.poller);
        Self {
            pool: Pool::new(
                options,
                poller,
                |worker| worker.0 as usize,
                move || signal.set(),
            ),
            waiting: HashMap::new(),
            next_request: 0,
            received: Vec::new(),
        }
    }

    /// Fetches until the worker ends.
    pub(super) fn run(mut self, inner: &Weak<Inner>, poller: &Arc<Poller>) {
        loop {
            let turn = poller.next(&mut Wait {
                deadline: Some(Instant::now() + Duration::from_secs(1)),
                interrupted: None,
            });
            let Some(inner) = inner.upgrade().filter(|inner| !inner.is_over()) else {
                return;
            };
            match turn {
                Ok(turn) if turn.key() == SIGNAL => {
                    drop(turn);
                    self.begin(&inner);
                }
                Ok(turn) => {
                    let worker = u32::try_from(turn.key()).map(WorkerId);
                    self.serve(&inner, worker.expect("only workers have other keys"));
                    drop(turn);
                }
                Err(_) => {
                    let waiting = &self.waiting;
                    let is_needed = |worker| waiting.contains_key(&worker);
                    self.pool.close_idle(Instant::now(), is_needed);
                }
            }
        }
    }

    /// Does what was ordered, and sends what waited for connections that are there now.
    fn begin(&mut self, inner: &Inner) {
        for (worker, outcome) in self.pool.outcomes() {
            match outcome {
                Ok(()) => self.send(inner, worker),
                Err(error) => self.fail(inner, worker, &error.to_string()),
            }
        }
        loop {
            let Some(order) = lock(&inner.requests.queue).pop_front() else {
                return;
            };
            match order {
                Order::Met(worker, address) => self.pool.introduce(worker, address, true),
                Order::Lost(worker) => {
                    let asked = self.pool.forget(worker);
                    self.give_up(inner, worker, asked, Fault::Theirs);
                }
                Order::Get(Request { object, from }) => {
                    let began = moment(inner);
                    let waiting = self.waiting.entry(from).or_default();
                    waiting.push_back(Asked { object, began });
                    match self.pool.open(from) {
                        Ok(Some(_)) => self.send(inner, from),
                        Ok(None) => {}
                        Err(_) => self.fail(inner, from, "the worker is gone"),
                    }
                }
            }
        }
    }

    /// Sends what waits for a worker, as far as its connection lets it.
    fn send(&mut self, inner: &Inner, worker: WorkerId) {
        let (Some(connection), Some(waiting)) =
            (self.pool.get(worker), self.waiting.get_mut(&worker))
        else {
            return;
        };
        while connection.has_window()
            && let Some(asked) = waiting.pop_front()
        {
            let object = asked.object;
            let number = self.next_request;
            self.next_request += 1;
            let get = data::Get {
                request: number,
                worker: worker.0,
                object: object.to_u64(),
            };
            let frames = [encode_data(&get)];
            if let Err(error) = connection.peer.send(Data::GET, &frames) {
                waiting.push_front(asked);
                return self.fail(inner, worker, &error.to_string());
            }
            let began = moment(inner);
            connection.asked(number, Asked { object, began });
        }
        if waiting.is_empty() {
            self.waiting.remove(&worker);
        }
    }

    /// What waits for a worker does not come.
    fn fail(&mut self, inner: &Inner, from: WorkerId, reason: &str) {
        for Asked { object, began } in self.waiting.remove(&from).unwrap_or_default() {
            trace(inner, object, from, began, None);
            inner.log(format_args!(
                "cannot get {object:?} from {from:?}: {reason}"
            ));
            inner.handle(Event::Fetched {
                object,
                from,
                nbytes: None,
            });
        }
    }

    /// Takes what has come.
    fn serve(&mut self, inner: &Inner, from: WorkerId) {
        loop {
            match self.take(from) {
                Ok(Some((asked, arrived))) => keep(inner, from, asked, arrived),
                Ok(None) => break,
                Err(error) => {
                    let fault = error.as_ref().map_or(Fault::Theirs, Fault::of);
                    if let (Fault::Ours, Some(error)) = (fault, error) {
                        inner.log(format_args!("a value could not be received: {error}"));
                    }
                    let asked = self.pool.close(from);
                    return self.give_up(inner, from, asked, fault);
                }
            }
        }
        self.send(inner, from);
    }

    /// The next answer of a worker, if it has come.
    ///
    /// # Errors
    /// The connection is over, or what came is no answer: then there is nothing to say of it.
    fn take(&mut self, from: WorkerId) -> Result<Option<(Asked, Arrived)>, Option<NetError>> {
        let Some(connection) = self.pool.get(from) else {
            return Ok(None);
        };
        // One at a time: each has its place in memory before the next one is taken.
        connection.take(1, &mut self.received).map_err(Some)?;
        let Some(received) = self.received.pop() else {
            return Ok(None);
        };
        connection.touch();
        arrived(received, connection).ok_or(None).map(Some)
    }

    /// The connection is of no use any more: what was asked for on it, and what waits for it, does not
    /// come.
    fn give_up(&mut self, inner: &Inner, from: WorkerId, asked: Vec<Asked>, fault: Fault) {
        let waiting = self.waiting.remove(&from).unwrap_or_default();
        if fault == Fault::Ours {
            // The next attempt would fare no better before something is released.
            std::thread::sleep(BREATH);
        }
        for Asked { object, began } in asked.into_iter().chain(waiting) {
            trace(inner, object, from, began, None);
            inner.handle(match fault {
                Fault::Ours => Event::NoRoom { object, from },
                Fault::Theirs => Event::Fetched {
                    object,
                    from,
                    nbytes: None,
                },
            });
        }
    }
}

/// What came of a request goes where it belongs.
fn keep(inner: &Inner, from: WorkerId, asked: Asked, arrived: Arrived) {
    let Asked { object, began } = asked;
    let nbytes = match arrived {
        Arrived::Value(frames) => {
            let nbytes = frames.nbytes();
            match inner.values.put(object, frames, ROOM) {
                Ok(()) => Some(nbytes),
                Err(error) => return no_room(inner, object, from, &error.error),
            }
        }
        Arrived::Unserialisable(error) => {
            let embedder = inner.embedder.get();
            let Some(live) = embedder.and_then(|embedder| embedder.live_at(from, object)) else {
                inner.handle(Event::Immovable {
                    object,
                    from,
                    error,
                });
                return;
            };
            let nbytes = live.nbytes();
            match inner.values.put(object, live, ROOM) {
                Ok(()) => Some(nbytes),
                Err(error) => return no_room(inner, object, from, &error.error),
            }
        }
        Arrived::Nothing(reason) => {
            // Whoever read it may have been taken back, and the value released since.
            if lock(&inner.machine).core.wants(object) {
                inner.log(format_args!("{from:?} has not got {object:?}: {reason}"));
            }
            None
        }
    };
    trace(inner, object, from, began, nbytes);
    inner.handle(Event::Fetched {
        object,
        from,
        nbytes,
    });
}

/// When something begins; 0: nobody wants to know.
fn moment(inner: &Inner) -> u64 {
    match inner.tracing.is_wanted() {
        true => clock::monotonic(),
        false => 0,
    }
}

/// Records that a value came, or did not.
fn trace(inner: &Inner, object: ObjectId, from: WorkerId, began: u64, nbytes: Option<u64>) {
    if began > 0 && inner.tracing.is_wanted() {
        inner.tracing.add(tracing::Event::Fetched {
            object,
            from,
            began,
            nbytes,
            ended: clock::monotonic(),
        });
    }
}

fn no_room(inner: &Inner, object: ObjectId, from: WorkerId, error: &StoreError) {
    inner.log(format_args!("no room for {object:?}: {error}"));
    inner.handle(Event::NoRoom { object, from });
}

/// At which end a connection went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// There is no memory for what comes.
    Ours,
    Theirs,
}

impl Fault {
    fn of(error: &NetError) -> Self {
        match error {
            // What comes in is refused here alone.
            NetError::Memory(_) | NetError::Failed(Failure::Refused(_)) => Self::Ours,
            _ => Self::Theirs,
        }
    }
}

/// What came of a request.
enum Arrived {
    Value(Frames),
    /// The holder cannot serialise it: the error, as that of a task.
    Unserialisable(Bytes),
    /// The reason.
    Nothing(String),
}

/// The answer to a request; nothing where it is none.
fn arrived(received: Received, connection: &mut Connection<Asked>) -> Option<(Asked, Arrived)> {
    let mut frames = received.frames.into_iter();
    let head = frames.next()?;
    let head = head.as_slice();
    let (request, arrived) = match received.kind {
        Data::VALUE => {
            let data::Value { request, kind } = decode_data(head).ok()?;
            let parts: Vec<Bytes> = frames.map(treadle_net::Frame::into_bytes).collect();
            (request, Arrived::Value(Frames::new(kind, parts)))
        }
        Data::UNSERIALISABLE => {
            let data::Unserialisable { request, error } = decode_data(head).ok()?;
            (request, Arrived::Unserialisable(error))
        }
        Data::NO_VALUE => {
            let data::NoValue { request, reason } = decode_data(head).ok()?;
            (request, Arrived::Nothing(reason))
        }
        _ => return None,
    };
    Some((connection.answered(request)?, arrived))
}
