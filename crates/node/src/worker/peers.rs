//! Values from other workers: one connection a peer, several requests on it at once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_net::{
    Address, Failure, Incoming, Lane, NetError, Peer, Poller, Received, Signal, Wait,
};
use treadle_store::Frames;
use treadle_types::{ObjectId, WorkerId};
use treadle_worker::Event;

use super::{Inner, tracing};
use crate::clock;
use crate::message::Data;
use crate::wire;
use crate::{caught, lock, thread};

/// A connection that nothing was asked on for so long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// How long connecting to a peer may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a value may wait for room in memory.
const ROOM: Duration = Duration::from_secs(30);
/// The pause after there was no memory to receive something.
const BREATH: Duration = Duration::from_secs(1);
/// The key of the signal in the poller.
const SIGNAL: usize = usize::MAX;

/// A value to get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) object: ObjectId,
    pub(super) from: WorkerId,
}

/// The queue of the fetching thread.
pub(super) struct Requests {
    queue: Mutex<VecDeque<Request>>,
    /// Connections that were made, or could not be.
    connected: Mutex<Vec<(WorkerId, Result<Peer, String>)>>,
    /// Where the workers are.
    addresses: Mutex<HashMap<WorkerId, String>>,
    poller: Arc<Poller>,
    signal: Signal,
}

impl Requests {
    pub(super) fn new(lane: &Lane) -> Self {
        let poller = Poller::on(lane);
        let signal = poller.signal(SIGNAL);
        Self {
            queue: Mutex::default(),
            connected: Mutex::default(),
            addresses: Mutex::default(),
            poller,
            signal,
        }
    }

    pub(super) fn push(&self, request: Request) {
        lock(&self.queue).push_back(request);
        self.signal.set();
    }

    pub(super) fn met(&self, worker: WorkerId, address: String) {
        lock(&self.addresses).insert(worker, address);
    }

    pub(super) fn lost(&self, worker: WorkerId) {
        lock(&self.addresses).remove(&worker);
        self.signal.set();
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

struct Connection {
    worker: WorkerId,
    peer: Peer,
    /// Requests that were not answered, by number.
    asked: HashMap<u64, Asked>,
    /// Answers whose bytes are on their way, oldest first.
    coming: VecDeque<Incoming>,
    used: Instant,
}

/// The fetching thread.
pub(super) struct Fetching {
    connections: BTreeMap<usize, Connection>,
    by_worker: HashMap<WorkerId, usize>,
    /// What waits for a connection that is being made.
    connecting: HashMap<WorkerId, Vec<ObjectId>>,
    next_key: usize,
    next_request: u64,
}

impl Fetching {
    pub(super) fn new() -> Self {
        Self {
            connections: BTreeMap::new(),
            by_worker: HashMap::new(),
            connecting: HashMap::new(),
            next_key: 0,
            next_request: 0,
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
                    let key = turn.key();
                    self.serve(&inner, key);
                    drop(turn);
                }
                Err(_) => self.close_idle(),
            }
        }
    }

    /// Sends the requests that wait, and gives up those of workers that are lost.
    fn begin(&mut self, inner: &Inner) {
        let lost: Vec<usize> = {
            let addresses = lock(&inner.requests.addresses);
            let gone = |(_, connection): &(&usize, &Connection)| {
                !addresses.contains_key(&connection.worker)
            };
            let connections = self.connections.iter().filter(gone);
            connections.map(|(key, _)| *key).collect()
        };
        for key in lost {
            self.give_up(inner, key, Fault::Theirs);
        }
        let connected = std::mem::take(&mut *lock(&inner.requests.connected));
        for (worker, outcome) in connected {
            let waiting = self.connecting.remove(&worker).unwrap_or_default();
            match outcome {
                Ok(peer) => {
                    self.add(inner, worker, peer);
                    for object in waiting {
                        self.ask(
                            inner,
                            Request {
                                object,
                                from: worker,
                            },
                        );
                    }
                }
                Err(reason) => {
                    for object in waiting {
                        failed(
                            inner,
                            Request {
                                object,
                                from: worker,
                            },
                            &reason,
                        );
                    }
                }
            }
        }
        loop {
            let Some(request) = lock(&inner.requests.queue).pop_front() else {
                return;
            };
            if self.by_worker.contains_key(&request.from) {
                self.ask(inner, request);
            } else if let Some(waiting) = self.connecting.get_mut(&request.from) {
                waiting.push(request.object);
            } else if let Err(reason) = connect(inner, request.from) {
                failed(inner, request, &reason);
            } else {
                self.connecting.insert(request.from, vec![request.object]);
            }
        }
    }

    /// Sends a request on the connection that is there.
    fn ask(&mut self, inner: &Inner, request: Request) {
        let connection = self.by_worker.get(&request.from);
        let Some(connection) = connection.and_then(|key| self.connections.get_mut(key)) else {
            failed(inner, request, "the connection broke");
            return;
        };
        let number = self.next_request;
        self.next_request += 1;
        let get = Data::Get {
            request: number,
            worker: request.from,
            object: request.object.to_u64(),
        };
        match connection
            .peer
            .send(Data::GET, &[wire::encode_data(&get).into()])
        {
            Ok(_) => {
                let began = match inner.tracing.is_on() {
                    true => clock::monotonic(),
                    false => 0,
                };
                let object = request.object;
                connection.asked.insert(number, Asked { object, began });
                connection.used = Instant::now();
            }
            Err(error) => failed(inner, request, &error.to_string()),
        }
    }

    fn add(&mut self, inner: &Inner, worker: WorkerId, peer: Peer) {
        let key = self.next_key;
        self.next_key += 1;
        peer.watch(&inner.requests.poller, key);
        self.by_worker.insert(worker, key);
        let connection = Connection {
            worker,
            peer,
            asked: HashMap::new(),
            coming: VecDeque::new(),
            used: Instant::now(),
        };
        self.connections.insert(key, connection);
    }

    /// Takes what has come.
    fn serve(&mut self, inner: &Inner, key: usize) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        loop {
            match connection.peer.try_next() {
                Ok(Some(incoming)) => match incoming.accept(Vec::new()) {
                    Ok(_) => connection.coming.push_back(incoming),
                    Err(error) => {
                        inner.log(format_args!("a value could not be received: {error}"));
                        self.give_up(inner, key, Fault::of(&error));
                        return;
                    }
                },
                Ok(None) => break,
                Err(_) => {
                    self.give_up(inner, key, Fault::Theirs);
                    return;
                }
            }
        }
        while connection.coming.front().is_some_and(Incoming::is_done) {
            let incoming = connection.coming.pop_front().expect("just looked");
            let taken = match incoming.take() {
                Ok(received) => arrived(received, &mut connection.asked).ok_or(Fault::Theirs),
                Err(error) => Err(Fault::of(&error)),
            };
            let (Asked { object, began }, arrived) = match taken {
                Ok(taken) => taken,
                Err(fault) => {
                    self.give_up(inner, key, fault);
                    return;
                }
            };
            let from = connection.worker;
            let nbytes = match arrived {
                Arrived::Value(frames) => {
                    let nbytes = frames.nbytes();
                    match inner.values.put_frames(object, frames, ROOM) {
                        Ok(()) => Some(nbytes),
                        Err(error) => {
                            inner.log(format_args!("no room for {object:?}: {}", error.error));
                            inner.handle(Event::NoRoom { object, from });
                            continue;
                        }
                    }
                }
                Arrived::Unserialisable(error) => {
                    inner.handle(Event::Immovable {
                        object,
                        from,
                        error,
                    });
                    continue;
                }
                Arrived::Nothing(reason) => {
                    // Whoever read it may have been taken back, and the value released since.
                    if lock(&inner.machine).core.wants(object) {
                        inner.log(format_args!("{from:?} has not got {object:?}: {reason}"));
                    }
                    None
                }
            };
            if began > 0 && inner.tracing.is_on() {
                inner.tracing.add(tracing::Event::Fetched {
                    object,
                    from,
                    began,
                    nbytes,
                    ended: clock::monotonic(),
                });
            }
            inner.handle(Event::Fetched {
                object,
                from,
                nbytes,
            });
        }
    }

    /// The connection is of no use any more: what was asked for does not come.
    fn give_up(&mut self, inner: &Inner, key: usize, fault: Fault) {
        let Some(connection) = self.connections.remove(&key) else {
            return;
        };
        self.by_worker.remove(&connection.worker);
        let from = connection.worker;
        let mut objects: Vec<ObjectId> = connection
            .asked
            .into_values()
            .map(|asked| asked.object)
            .collect();
        objects.sort_unstable();
        if fault == Fault::Ours {
            // The next attempt would fare no better before something is released.
            std::thread::sleep(BREATH);
        }
        for object in objects {
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

    fn close_idle(&mut self) {
        let idle = |connection: &Connection| {
            connection.asked.is_empty() && connection.used.elapsed() > IDLE
        };
        let by_worker = &mut self.by_worker;
        self.connections.retain(|_, connection| {
            let keep = !idle(connection);
            if !keep {
                by_worker.remove(&connection.worker);
            }
            keep
        });
    }
}

fn failed(inner: &Inner, request: Request, reason: &str) {
    let Request { object, from } = request;
    inner.log(format_args!(
        "cannot get {object:?} from {from:?}: {reason}"
    ));
    inner.handle(Event::Fetched {
        object,
        from,
        nbytes: None,
    });
}

/// Starts to connect, in a thread of its own: a peer that does not answer must not keep the others
/// waiting.
fn connect(inner: &Inner, worker: WorkerId) -> Result<(), String> {
    let address = lock(&inner.requests.addresses).get(&worker).cloned();
    let address = address.ok_or("the worker is gone")?;
    let address: Address = address.parse().map_err(|error| format!("{error}"))?;
    let options = treadle_net::Options {
        lane: Some(inner.data_lane.clone()),
        connect_timeout: CONNECT,
        ..inner.options.net.clone()
    };
    let requests = Arc::clone(&inner.requests);
    let spawned = thread::start("treadle-dial", move || {
        let mut wait = Wait {
            deadline: None,
            interrupted: None,
        };
        let outcome = caught(|| Peer::connect(&address, &options, &mut wait));
        let outcome = outcome.and_then(|outcome| outcome.map_err(|error| error.to_string()));
        lock(&requests.connected).push((worker, outcome));
        requests.signal.set();
    });
    spawned.map(drop).map_err(|error| error.to_string())
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
fn arrived(received: Received, asked: &mut HashMap<u64, Asked>) -> Option<(Asked, Arrived)> {
    let mut frames = received.frames.into_iter();
    let head = frames.next()?;
    let (number, rest) = head.as_slice().split_first_chunk::<8>()?;
    let asked = asked.remove(&u64::from_le_bytes(*number))?;
    let arrived = match received.kind {
        Data::VALUE => {
            let kind = u32::from_le_bytes(rest.try_into().ok()?);
            let parts: Vec<Bytes> = frames.map(treadle_net::Frame::into_bytes).collect();
            Arrived::Value(Frames::new(kind, parts))
        }
        Data::UNSERIALISABLE => Arrived::Unserialisable(Bytes::copy_from_slice(rest)),
        Data::NO_VALUE => Arrived::Nothing(String::from_utf8_lossy(rest).into_owned()),
        _ => return None,
    };
    Some((asked, arrived))
}
