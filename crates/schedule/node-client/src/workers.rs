//! Connections to workers, for values: each is made when it is first needed, and closed when it was
//! not used for a while.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use treadle_client::Load;
use treadle_messages::Data;
use treadle_net::pool::{Connection, Pool};
use treadle_net::{Options, Poller, Received, Sending, Signal, Waker};
use treadle_schedule_wire::{data, decode_data, encode_data};
use treadle_types::WorkerId;

use super::Incoming;

/// Something to do with a worker.
#[derive(Debug)]
pub(super) enum Job {
    /// Ask it for a value.
    Get {
        /// The number of the request.
        request: u64,
        /// The value's name.
        object: u64,
    },
    /// Bring a value to it.
    Bring(Load),
}

/// What comes of a step.
pub(super) type News = Vec<Incoming>;

fn missed(request: u64, reason: &str) -> Incoming {
    Incoming::Missed {
        request,
        reason: reason.to_owned(),
    }
}

fn not_brought(name: u32, reason: &str) -> Incoming {
    Incoming::Brought {
        name,
        outcome: Err(reason.to_owned()),
    }
}

/// What is wanted of a worker, but for requests that its connection keeps.
#[derive(Debug, Default)]
struct Worker {
    /// What has not been sent.
    waiting: VecDeque<Job>,
    /// Loads that were not answered, by the value's name.
    brought: HashMap<u64, (u32, Sending)>,
}

/// The workers, as the client knows them.
#[derive(Debug)]
pub(super) struct Workers {
    pool: Pool<WorkerId, u64>,
    workers: HashMap<WorkerId, Worker>,
    /// Those that something is wanted of: they alone tell event loops of what comes.
    busy: BTreeSet<WorkerId>,
    waker: Waker,
    muted: bool,
}

impl Workers {
    /// Connections get `options`; those that have something get turns of the poller, and `signal` and
    /// `waker` tell when some were made.
    pub(super) fn new(options: Options, poller: Arc<Poller>, signal: Signal, waker: Waker) -> Self {
        let event_loop = waker.clone();
        let wake = move || {
            signal.set();
            event_loop.wake();
        };
        Self {
            pool: Pool::new(options, poller, Self::poller_key, wake),
            workers: HashMap::new(),
            busy: BTreeSet::new(),
            waker,
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
        self.pool.introduce(worker, address, true);
    }

    /// A worker is gone.
    pub(super) fn lost(&mut self, worker: WorkerId, news: &mut News) {
        let asked = self.pool.forget(worker);
        self.give_up(worker, asked, "the worker is gone", news);
    }

    /// Adds something to do; [`Workers::send`] begins with it.
    pub(super) fn push(&mut self, worker: WorkerId, job: Job) {
        self.workers
            .entry(worker)
            .or_default()
            .waiting
            .push_back(job);
        if self.busy.insert(worker)
            && let Some(connection) = self.pool.get(worker)
            && !self.muted
        {
            connection.peer.set_waker(Some(self.waker.clone()));
        }
    }

    /// Drops requests that were not sent. What was sent is answered.
    pub(super) fn cancel(&mut self, requests: &BTreeSet<u64>) {
        let is_wanted = |job: &Job| match job {
            Job::Get { request, .. } => !requests.contains(request),
            Job::Bring(_) => true,
        };
        for worker in self.workers.values_mut() {
            worker.waiting.retain(is_wanted);
        }
        for worker in self.workers.keys().copied().collect::<Vec<_>>() {
            self.rest(worker);
        }
    }

    /// Notes that nothing is wanted of a worker, if that is so.
    fn rest(&mut self, worker: WorkerId) {
        let has_work = |worker: &Worker| !worker.waiting.is_empty() || !worker.brought.is_empty();
        let connection = self.pool.get(worker);
        if self.workers.get(&worker).is_some_and(has_work)
            || connection
                .as_ref()
                .is_some_and(|connection| connection.is_waiting())
        {
            return;
        }
        self.workers.remove(&worker);
        self.busy.remove(&worker);
        if let Some(connection) = connection {
            connection.peer.set_waker(None);
        }
    }

    /// Sends what waits for a worker, as far as that may be sent now; connects first.
    pub(super) fn send(&mut self, worker: WorkerId, news: &mut News) {
        let Some(entry) = self.workers.get_mut(&worker) else {
            return;
        };
        if entry.waiting.is_empty() {
            return;
        }
        let connection = match self.pool.open(worker) {
            Ok(Some(connection)) => connection,
            Ok(None) => return,
            Err(_) => return self.give_up(worker, Vec::new(), "the worker is gone", news),
        };
        let mut requests: Vec<Bytes> = Vec::new();
        while let Some(job) = entry.waiting.pop_front() {
            match job {
                Job::Get { request, object } if connection.has_window() => {
                    let worker = worker.0;
                    requests.push(encode_data(&data::Get {
                        request,
                        worker,
                        object,
                    }));
                    connection.asked(request, request);
                }
                job @ Job::Get { .. } => {
                    entry.waiting.push_front(job);
                    break;
                }
                Job::Bring(load) => {
                    let mut frames = Vec::with_capacity(1 + load.frames.len());
                    frames.push(encode_data(&data::Put {
                        object: load.object,
                        kind: load.kind,
                        worker: worker.0,
                    }));
                    frames.extend(load.frames);
                    match connection.peer.send(Data::PUT, &frames) {
                        Ok(sending) => {
                            entry.brought.insert(load.object, (load.name, sending));
                        }
                        Err(error) => news.push(not_brought(load.name, &error.to_string())),
                    }
                    connection.touch();
                }
            }
        }
        let mut requests = requests
            .iter()
            .map(|bytes| (Data::GET, &bytes[..]))
            .peekable();
        while requests.peek().is_some() {
            connection.peer.send_batch(&mut requests);
        }
        if let Some(end) = connection.peer.ended() {
            self.broke(worker, &end.to_string(), news);
        }
    }

    /// Takes what has come from a worker.
    pub(super) fn take(&mut self, worker: WorkerId, news: &mut News) {
        let Some(connection) = self.pool.get(worker) else {
            return;
        };
        let entry = self.workers.entry(worker).or_default();
        let mut received = Vec::new();
        let mut outcome = connection
            .take(usize::MAX, &mut received)
            .map_err(|error| error.to_string());
        for object in received {
            connection.touch();
            if answered(object, connection, &mut entry.brought, news).is_none() {
                outcome = Err("the worker broke the protocol".into());
            }
        }
        // A load that did not arrive is not answered.
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
                news.push(not_brought(name, &failure.to_string()));
            }
        }
        match outcome {
            Ok(()) => self.send(worker, news),
            Err(reason) => self.broke(worker, &reason, news),
        }
        self.rest(worker);
    }

    /// Takes the connections that were made, or could not be.
    pub(super) fn connected(&mut self, news: &mut News) {
        for (worker, outcome) in self.pool.outcomes() {
            match outcome {
                Ok(()) => {
                    if !self.muted
                        && let Some(connection) = self.pool.get(worker)
                    {
                        connection.peer.set_waker(Some(self.waker.clone()));
                    }
                    self.send(worker, news);
                }
                Err(error) => self.give_up(worker, Vec::new(), &error.to_string(), news),
            }
        }
    }

    /// A connection is of no use any more.
    fn broke(&mut self, worker: WorkerId, reason: &str, news: &mut News) {
        let asked = self.pool.close(worker);
        self.give_up(worker, asked, reason, news);
    }

    /// Nothing comes of what was `asked` of a worker, and of what waits for it.
    fn give_up(&mut self, worker: WorkerId, asked: Vec<u64>, reason: &str, news: &mut News) {
        news.extend(asked.into_iter().map(|request| missed(request, reason)));
        let entry = self.workers.remove(&worker).unwrap_or_default();
        let brought = entry.brought.into_values();
        news.extend(brought.map(|(name, _)| not_brought(name, reason)));
        let waiting = entry.waiting.into_iter();
        news.extend(waiting.map(|job| match job {
            Job::Get { request, .. } => missed(request, reason),
            Job::Bring(load) => not_brought(load.name, reason),
        }));
        self.rest(worker);
    }

    /// Whether connections tell event loops of what comes: not while a thread waits for it. `false`:
    /// it was so already.
    pub(super) fn mute(&mut self, mute: bool) -> bool {
        if std::mem::replace(&mut self.muted, mute) == mute {
            return false;
        }
        let waker = (!mute).then(|| self.waker.clone());
        for &worker in &self.busy {
            if let Some(connection) = self.pool.get(worker) {
                connection.peer.set_waker(waker.clone());
            }
        }
        true
    }

    /// Whether something has come that was not taken.
    pub(super) fn has_something(&mut self) -> bool {
        let pool = &mut self.pool;
        pool.has_outcomes()
            || self.busy.iter().any(|&worker| {
                let connection = pool.get(worker);
                connection.is_some_and(|connection| connection.has_something())
            })
    }

    /// Closes connections that nobody uses; when to look again, if there are some.
    pub(super) fn sweep(&mut self, now: Instant) -> Option<Instant> {
        let busy = &self.busy;
        self.pool.close_idle(now, |worker| busy.contains(&worker))
    }

    /// Closes everything.
    pub(super) fn close(&mut self, news: &mut News) {
        let workers: BTreeSet<WorkerId> = self.workers.keys().chain(&self.busy).copied().collect();
        for worker in workers {
            self.broke(worker, "this client is closed", news);
        }
        self.pool.close_all();
    }
}

/// Takes an answer; nothing: it is none.
fn answered(
    mut received: Received,
    connection: &mut Connection<u64>,
    brought: &mut HashMap<u64, (u32, Sending)>,
    news: &mut News,
) -> Option<()> {
    if received.frames.is_empty() {
        return None;
    }
    let head = received.frames.remove(0);
    let head = head.as_slice();
    match received.kind {
        Data::VALUE => {
            let data::Value { request, kind } = decode_data(head).ok()?;
            let request = connection.answered(request)?;
            received.kind = kind;
            news.push(Incoming::Got {
                request,
                value: received,
            });
        }
        Data::NO_VALUE => {
            let data::NoValue { request, reason } = decode_data(head).ok()?;
            let request = connection.answered(request)?;
            news.push(missed(request, &reason));
        }
        Data::UNSERIALISABLE => {
            let data::Unserialisable { request, error } = decode_data(head).ok()?;
            let request = connection.answered(request)?;
            news.push(Incoming::Unserialisable { request, error });
        }
        Data::TAKEN => {
            let data::Taken { object, refused } = decode_data(head).ok()?;
            let (name, _) = brought.remove(&object)?;
            let outcome = refused.map_or(Ok(()), Err);
            news.push(Incoming::Brought { name, outcome });
        }
        _ => return None,
    }
    Some(())
}
