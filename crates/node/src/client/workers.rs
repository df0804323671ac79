//! Connections to workers, for values: each is made when it is first needed, and closed when it was
//! not used for a while.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_net::{Address, Options, Peer, Poller, Sending, Signal, Wait};
use treadle_types::WorkerId;

use super::fetch::Item;
use super::link::Link;
use crate::message::Data;
use crate::wire::encode_data;
use crate::{caught, lock, thread};

/// A connection that was not used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// How long connecting to a worker may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Requests to one worker that were not answered.
const WINDOW: usize = 64;
/// Connections that are made at once: each takes a thread.
const DIALLING: usize = 16;

/// Something to do with a worker.
#[derive(Debug)]
pub(super) enum Job {
    /// Get a value from it.
    Get { item: Item, object: u64 },
    /// Bring a value to it.
    Bring(Load),
}

/// A value for a worker.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// The id that the scheduler knows it by.
    pub(super) name: u32,
    /// The value's name.
    pub(super) object: u64,
    /// Of the serialised value.
    pub(super) kind: u32,
    pub(super) frames: Vec<Bytes>,
}

/// What became of a load.
#[derive(Debug)]
pub(super) struct Delivery {
    /// The load's.
    pub(super) name: u32,
    pub(super) outcome: Result<(), String>,
}

/// What came of a step.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Values, with the kind of the serialised value and without the head.
    pub(super) values: Vec<(Item, treadle_net::Received)>,
    /// Requests that came to nothing, the worker that was asked, and why.
    pub(super) misses: Vec<(Item, WorkerId, String)>,
    /// Values that cannot be sent, and the errors that say so.
    pub(super) unserialisable: Vec<(Item, Bytes)>,
    pub(super) deliveries: Vec<Delivery>,
}

#[derive(Debug, Default)]
struct Worker {
    /// Nothing: it is lost, or was never heard of.
    address: Option<String>,
    state: State,
    /// What has not been sent.
    waiting: VecDeque<Job>,
    /// Requests that were not answered, by number.
    asked: HashMap<u64, Item>,
    /// Loads that were not answered, by the value's name.
    brought: HashMap<u64, (u32, Sending)>,
    used: Option<Instant>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Closed,
    Dialling,
    Open(Link),
}

impl Worker {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.asked.is_empty() && self.brought.is_empty()
    }
}

/// What dialling threads leave behind.
#[derive(Debug)]
struct Dialled {
    outcomes: Mutex<Vec<(WorkerId, Result<Peer, String>)>>,
    signal: Signal,
    notifier: Arc<OwnedFd>,
}

/// The workers, as the client knows them.
#[derive(Debug)]
pub(super) struct Workers {
    workers: HashMap<WorkerId, Worker>,
    /// Those that something is wanted of: they alone tell event loops of what comes.
    busy: BTreeSet<WorkerId>,
    options: Options,
    poller: Arc<Poller>,
    dialled: Arc<Dialled>,
    dialling: usize,
    /// Workers that are to be dialled when others have answered.
    queue: VecDeque<WorkerId>,
    next_request: u64,
    swept: Instant,
    muted: bool,
}

impl Workers {
    /// Connections get `options`; those that have something get turns of the poller.
    pub(super) fn new(
        options: Options,
        poller: Arc<Poller>,
        signal: Signal,
        notifier: Arc<OwnedFd>,
    ) -> Self {
        Self {
            workers: HashMap::new(),
            busy: BTreeSet::new(),
            options: Options {
                connect_timeout: CONNECT,
                ..options
            },
            poller,
            dialled: Arc::new(Dialled {
                outcomes: Mutex::default(),
                signal,
                notifier,
            }),
            dialling: 0,
            queue: VecDeque::new(),
            next_request: 0,
            swept: Instant::now(),
            muted: false,
        }
    }

    /// A connection's key in the poller; 0 is the scheduler's.
    fn poller_key(worker: WorkerId) -> usize {
        worker.0 as usize + 1
    }

    pub(super) fn by_poller_key(key: usize) -> Option<WorkerId> {
        u32::try_from(key.checked_sub(1)?).ok().map(WorkerId)
    }

    /// Where a worker is.
    pub(super) fn met(&mut self, worker: WorkerId, address: String) {
        self.workers.entry(worker).or_default().address = Some(address);
    }

    /// A worker is gone.
    pub(super) fn lost(&mut self, worker: WorkerId, news: &mut News) {
        self.give_up(worker, "the worker is gone", news);
        self.workers.remove(&worker);
    }

    /// The worker at an address.
    pub(super) fn at(&self, address: &str) -> Option<WorkerId> {
        let is_there = |worker: &Worker| worker.address.as_deref() == Some(address);
        let mut workers = self.workers.iter();
        workers.find_map(|(id, worker)| is_there(worker).then_some(*id))
    }

    /// Adds something to do; [`Workers::send`] begins with it.
    pub(super) fn push(&mut self, worker: WorkerId, job: Job) {
        let entry = self.workers.entry(worker).or_default();
        entry.waiting.push_back(job);
        entry.used = Some(Instant::now());
        if self.busy.insert(worker)
            && let State::Open(link) = &entry.state
            && !self.muted
        {
            link.peer
                .set_notifier(Some(Arc::clone(&self.dialled.notifier)));
        }
    }

    /// Notes that nothing is wanted of a worker, if that is so.
    fn rest(&mut self, worker: WorkerId) {
        let entry = self.workers.get(&worker);
        if entry.is_some_and(|entry| !entry.is_idle()) {
            return;
        }
        self.busy.remove(&worker);
        if let Some(State::Open(link)) = entry.map(|entry| &entry.state) {
            link.peer.set_notifier(None);
        }
    }

    /// Sends what waits for a worker, as far as that may be sent now; connects first.
    pub(super) fn send(&mut self, worker: WorkerId, news: &mut News) {
        let Some(entry) = self.workers.get_mut(&worker) else {
            return;
        };
        match &entry.state {
            State::Dialling => return,
            State::Closed if entry.waiting.is_empty() => return,
            State::Closed => {
                if entry.address.is_none() {
                    self.give_up(worker, "the worker is gone", news);
                } else {
                    entry.state = State::Dialling;
                    self.queue.push_back(worker);
                    self.dial(news);
                }
                return;
            }
            State::Open(_) => {}
        }
        let State::Open(link) = &entry.state else {
            return;
        };
        let mut requests: Vec<Bytes> = Vec::new();
        let mut broken = None;
        while let Some(job) = entry.waiting.pop_front() {
            match job {
                Job::Get { item, object } if entry.asked.len() < WINDOW => {
                    let request = self.next_request;
                    self.next_request += 1;
                    let get = Data::Get {
                        request,
                        worker,
                        object,
                    };
                    requests.push(encode_data(&get).into());
                    entry.asked.insert(request, item);
                }
                job @ Job::Get { .. } => {
                    entry.waiting.push_front(job);
                    break;
                }
                Job::Bring(load) => {
                    let mut head = load.object.to_le_bytes().to_vec();
                    head.extend_from_slice(&load.kind.to_le_bytes());
                    head.extend_from_slice(&worker.0.to_le_bytes());
                    let mut frames = Vec::with_capacity(1 + load.frames.len());
                    frames.push(Bytes::from(head));
                    frames.extend(load.frames);
                    match link.peer.send(Data::PUT, &frames) {
                        Ok(sending) => {
                            entry.brought.insert(load.object, (load.name, sending));
                        }
                        Err(error) => {
                            news.deliveries.push(Delivery {
                                name: load.name,
                                outcome: Err(error.to_string()),
                            });
                        }
                    }
                }
            }
            entry.used = Some(Instant::now());
        }
        let mut requests = requests
            .iter()
            .map(|bytes| (Data::GET, &bytes[..]))
            .peekable();
        while requests.peek().is_some() {
            link.peer.send_batch(&mut requests);
        }
        if let Some(end) = link.peer.ended() {
            broken = Some(end.to_string());
        }
        if let Some(reason) = broken {
            self.give_up(worker, &reason, news);
        }
    }

    /// Takes what has come from a worker.
    pub(super) fn take(&mut self, worker: WorkerId, news: &mut News) {
        let Some(entry) = self.workers.get_mut(&worker) else {
            return;
        };
        let State::Open(link) = &mut entry.state else {
            return;
        };
        let mut received = Vec::new();
        let mut outcome = link
            .take(usize::MAX, &mut received)
            .map_err(|error| error.to_string());
        for object in received {
            entry.used = Some(Instant::now());
            if answered(object, worker, &mut entry.asked, &mut entry.brought, news).is_none() {
                outcome = Err("the worker broke the protocol".into());
            }
        }
        let refused: Vec<u64> = entry
            .brought
            .iter()
            .filter(|(_, (_, sending))| matches!(sending.outcome(), Some(Err(_))))
            .map(|(object, _)| *object)
            .collect();
        for object in refused {
            if let Some((name, sending)) = entry.brought.remove(&object)
                && let Some(Err(failure)) = sending.outcome()
            {
                news.deliveries.push(Delivery {
                    name,
                    outcome: Err(failure.to_string()),
                });
            }
        }
        match outcome {
            Ok(()) => self.send(worker, news),
            Err(reason) => self.give_up(worker, &reason, news),
        }
        self.rest(worker);
    }

    /// Takes the connections that were made, or could not be.
    pub(super) fn connected(&mut self, news: &mut News) {
        let outcomes = std::mem::take(&mut *lock(&self.dialled.outcomes));
        for (worker, outcome) in outcomes {
            self.dialling -= 1;
            let Some(entry) = self.workers.get_mut(&worker) else {
                continue;
            };
            match outcome {
                Ok(peer) => {
                    if !self.muted {
                        peer.set_notifier(Some(Arc::clone(&self.dialled.notifier)));
                    }
                    peer.watch(&self.poller, Self::poller_key(worker));
                    entry.state = State::Open(Link::new(peer));
                    entry.used = Some(Instant::now());
                    self.send(worker, news);
                }
                Err(reason) => self.give_up(worker, &reason, news),
            }
        }
        self.dial(news);
    }

    fn dial(&mut self, news: &mut News) {
        while self.dialling < DIALLING
            && let Some(worker) = self.queue.pop_front()
        {
            let address = self
                .workers
                .get(&worker)
                .and_then(|entry| entry.address.clone());
            let Some(address) = address else {
                self.give_up(worker, "the worker is gone", news);
                continue;
            };
            let options = self.options.clone();
            let dialled = Arc::clone(&self.dialled);
            let spawned = thread::start("treadle-dial", move || {
                let outcome = caught(|| connect(&address, &options)).and_then(|outcome| outcome);
                lock(&dialled.outcomes).push((worker, outcome));
                dialled.signal.set();
                let _ = rustix::io::write(&*dialled.notifier, &1u64.to_ne_bytes());
            });
            match spawned {
                Ok(_) => self.dialling += 1,
                Err(error) => self.give_up(worker, &error.to_string(), news),
            }
        }
    }

    /// The connection is of no use any more.
    fn give_up(&mut self, worker: WorkerId, reason: &str, news: &mut News) {
        let Some(entry) = self.workers.get_mut(&worker) else {
            return;
        };
        if !matches!(entry.state, State::Dialling) || !self.queue.contains(&worker) {
            entry.state = State::Closed;
        }
        let mut missed = |item| news.misses.push((item, worker, reason.to_owned()));
        for (_, item) in entry.asked.drain() {
            missed(item);
        }
        let mut undelivered = |name| {
            news.deliveries.push(Delivery {
                name,
                outcome: Err(reason.to_owned()),
            });
        };
        for (_, (id, _)) in entry.brought.drain() {
            undelivered(id);
        }
        for job in entry.waiting.drain(..) {
            match job {
                Job::Get { item, .. } => missed(item),
                Job::Bring(load) => undelivered(load.name),
            }
        }
        self.rest(worker);
    }

    /// The connections of those that something is wanted of.
    fn busy_links(&self) -> impl Iterator<Item = &Link> {
        let workers = self.busy.iter().filter_map(|id| self.workers.get(id));
        workers.filter_map(|worker| match &worker.state {
            State::Open(link) => Some(link),
            _ => None,
        })
    }

    /// Whether connections tell event loops of what comes: not while a thread waits for it. `false`:
    /// it was so already.
    pub(super) fn mute(&mut self, mute: bool) -> bool {
        if std::mem::replace(&mut self.muted, mute) == mute {
            return false;
        }
        for link in self.busy_links() {
            let notifier = (!mute).then(|| Arc::clone(&self.dialled.notifier));
            link.peer.set_notifier(notifier);
        }
        true
    }

    /// Whether something has come that was not taken.
    pub(super) fn has_something(&self) -> bool {
        !lock(&self.dialled.outcomes).is_empty() || self.busy_links().any(Link::has_something)
    }

    /// Closes connections that nobody uses; when to look again, if there are some.
    pub(super) fn sweep(&mut self, now: Instant) -> Option<Instant> {
        let mut next = None;
        if now < self.swept + IDLE / 4 {
            let open = |worker: &Worker| matches!(worker.state, State::Open(_));
            return self
                .workers
                .values()
                .any(open)
                .then_some(self.swept + IDLE / 4);
        }
        self.swept = now;
        for worker in self.workers.values_mut() {
            if !matches!(worker.state, State::Open(_)) {
                continue;
            }
            if worker.is_idle() && worker.used.is_none_or(|used| now - used >= IDLE) {
                worker.state = State::Closed;
            } else {
                next = Some(now + IDLE / 4);
            }
        }
        next
    }

    /// Closes everything.
    pub(super) fn close(&mut self, news: &mut News) {
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        for worker in workers {
            self.give_up(worker, "this client is closed", news);
        }
        self.workers.clear();
        self.busy.clear();
        self.queue.clear();
    }
}

fn connect(address: &str, options: &Options) -> Result<Peer, String> {
    let address: Address = address.parse().map_err(|error| format!("{error}"))?;
    let mut wait = Wait {
        deadline: None,
        interrupted: None,
    };
    Peer::connect(&address, options, &mut wait).map_err(|error| error.to_string())
}

/// Takes an answer; nothing: it is none.
fn answered(
    mut received: treadle_net::Received,
    worker: WorkerId,
    asked: &mut HashMap<u64, Item>,
    brought: &mut HashMap<u64, (u32, Sending)>,
    news: &mut News,
) -> Option<()> {
    if received.frames.is_empty() {
        return None;
    }
    let head = received.frames.remove(0);
    let (number, rest) = head.as_slice().split_first_chunk::<8>()?;
    let number = u64::from_le_bytes(*number);
    let reason = || String::from_utf8_lossy(rest).into_owned();
    match received.kind {
        Data::VALUE => {
            let item = asked.remove(&number)?;
            received.kind = u32::from_le_bytes(rest.try_into().ok()?);
            news.values.push((item, received));
        }
        Data::NO_VALUE => {
            let item = asked.remove(&number)?;
            news.misses.push((item, worker, reason()));
        }
        Data::UNSERIALISABLE => {
            let item = asked.remove(&number)?;
            let error = Bytes::copy_from_slice(rest);
            news.unserialisable.push((item, error));
        }
        Data::TAKEN => {
            let (name, _) = brought.remove(&number)?;
            let outcome = if rest.is_empty() {
                Ok(())
            } else {
                Err(reason())
            };
            news.deliveries.push(Delivery { name, outcome });
        }
        _ => return None,
    }
    Some(())
}
