//! A device that has files of a server: whose request is next there, and what the device does.
//!
//! ```text
//!  Asked ──▶ a queue for each application ──▶ Begin: a turn ──▶ Done: what it took
//!                                              │ the application that was given least for its priority
//! ```
//!
//! What is shared is the device's time: a request costs what an operation takes, and what its bytes take at the
//! rate that was measured. So many small reads of one application do not slow down the long reads
//! of another. Applications that want less than their share are next.
//!
//! If reads take too long, the device says how many each application may have there
//! ([`DeviceEffect::Limits`]): as many as its share of the device does within the time that is acceptable.

mod check;
mod queue;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_shuffle_rates::{Latency, Pace, WINDOW};

use crate::config::Guard;
use crate::device::queue::{Queue, Waiting};
use crate::server::Shares;
use crate::{ApplicationId, Config, ShuffleError, Tenant};

/// How often it is looked whether reads take too long.
const LOOK: Duration = Duration::from_millis(100);
/// Fewer reads than this in the measured time say nothing.
const FEW: u64 = 16;
/// A turn takes as long as so many bytes that follow one another, at most, unless its first request takes longer.
const TURN: u64 = 4 << 20;
/// A device is slow while it takes so many times as long as it usually did.
const SLOWER: u64 = 4;
/// What a device is compared by: a write of this size.
const REFERENCE: u64 = 4 << 20;
/// For how long a failure counts, and that there was no room.
const FAILED: Duration = Duration::from_secs(60);
/// Applications of which it is kept what they were given, beside those that wait.
const MOST_SERVED: usize = 256;

/// Settings of a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Turns that are carried out at once.
    pub depth: usize,
    /// Whether it takes time to move from one place to another: then the reads of a turn are ordered by place.
    pub is_rotational: bool,
    /// Requests that wait, at most.
    pub most: usize,
    /// Nine of ten reads are to take no longer than this, with their time in the queue.
    pub read_latency: Duration,
    /// A read that has waited for so long is next of its application, wherever it is.
    pub oldest: Duration,
}

impl DeviceOptions {
    /// Those of a device of a server.
    pub fn new(config: &Config, is_rotational: bool) -> Self {
        Self {
            depth: if is_rotational { 1 } else { 4 },
            is_rotational,
            most: config.parked,
            read_latency: config.read_latency,
            oldest: config.read_latency * 4,
        }
    }
}

/// Whether a request reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
}

/// Something that is to be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Chosen by the host, unique among those that are not done.
    pub number: u64,
    /// Who pays.
    pub tenant: Tenant,
    pub access: Access,
    /// Which file: those with neighbouring numbers are near each other.
    pub file: u64,
    /// Where in the file it begins.
    pub offset: u64,
    pub bytes: u64,
}

/// What came of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// The device has no room.
    Full,
    /// The device has failed otherwise.
    Failed,
    /// Nobody wanted it any more.
    Nothing,
}

/// What happens to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// Somebody wants something.
    Asked(Request),
    /// A turn is over.
    Done { turn: u64, outcome: Outcome },
}

/// What a device wants done.
#[derive(Clone, PartialEq, Debug)]
pub enum DeviceEffect {
    /// Carry these out, in this order, and say [`DeviceEvent::Done`].
    Begin { turn: u64, requests: Vec<u64> },
    /// Too many wait: this one is not taken. It may be asked again later.
    Refuse(u64),
    /// Reads take too long: the applications that wait may have so many reads here. Each time all of them are
    /// named. None: reads are as fast as they should be.
    Limits(Vec<Limit>),
}

/// What an application may have at a slow device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    pub application: ApplicationId,
    /// Reads that wait or are carried out, at most; at least 1.
    pub most: u32,
    /// How long one of its reads takes if it gets its share.
    pub each: Duration,
}

/// What an application was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// Its requests that are done.
    pub requests: u64,
    pub bytes: u64,
    /// What they have cost, in microseconds of the device.
    pub cost: u64,
    /// Its requests that wait.
    pub waiting: u64,
}

/// How a device does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceStanding {
    /// Requests that wait.
    pub waiting: u64,
    /// Nine of ten reads of the last seconds took no longer, with their time in the queue.
    pub read_latency: Duration,
    /// Bytes a second, of long reads and long writes. 0: not measured.
    pub read_rate: u64,
    pub write_rate: u64,
    /// What a small read takes. 0: not measured.
    pub operation: Duration,
    /// Whether it takes far longer than it did before.
    pub is_slow: bool,
    /// Whether it had no room for the last write.
    pub is_full: bool,
    /// Turns that failed, since the start.
    pub failures: u64,
    /// Whether reads are limited.
    pub is_limiting: bool,
    pub applications: Vec<(ApplicationId, Served)>,
}

#[derive(Debug)]
struct Turn {
    requests: Vec<Waiting>,
    began: Duration,
    cost: u64,
    operations: u64,
}

/// The device's machine.
#[derive(Debug)]
pub struct Device {
    options: DeviceOptions,
    now: Duration,
    shares: Shares,
    /// None is empty.
    queues: BTreeMap<ApplicationId, Queue>,
    waiting: usize,
    turns: BTreeMap<u64, Turn>,
    last: u64,
    /// When a turn was over last.
    done_at: Duration,
    /// Where the last read ended.
    head: (u64, u64),
    reads: Pace,
    writes: Pace,
    latency: Latency,
    served: BTreeMap<ApplicationId, (Served, Duration, u64)>,
    failures: u64,
    failed_at: Option<Duration>,
    failed_in_a_row: u32,
    full_at: Option<Duration>,
    looked_at: Duration,
    is_limiting: bool,
}

type Effects = Vec<DeviceEffect>;

impl Device {
    /// A device of which nothing is known.
    pub fn new(options: DeviceOptions) -> Self {
        let (reads, writes) = (
            Pace::new(options.is_rotational),
            Pace::new(options.is_rotational),
        );
        Self {
            options,
            now: Duration::ZERO,
            shares: Shares::default(),
            queues: BTreeMap::new(),
            waiting: 0,
            turns: BTreeMap::new(),
            last: 0,
            done_at: Duration::ZERO,
            head: (0, 0),
            reads,
            writes,
            latency: Latency::default(),
            served: BTreeMap::new(),
            failures: 0,
            failed_at: None,
            failed_in_a_row: 0,
            full_at: None,
            looked_at: Duration::ZERO,
            is_limiting: false,
        }
    }

    /// Takes an event in; what follows is appended to `effects`. `now` is a time that does not go back.
    ///
    /// # Errors
    /// [`ShuffleError`]: the event cannot be. Nothing has changed.
    pub fn handle(
        &mut self,
        event: DeviceEvent,
        now: Duration,
        effects: &mut Effects,
    ) -> Result<(), ShuffleError> {
        self.now = self.now.max(now);
        match event {
            DeviceEvent::Asked(request) => self.asked(request, effects),
            DeviceEvent::Done { turn, outcome } => self.done(turn, outcome)?,
        }
        self.begin(effects);
        self.limit(effects);
        Ok(())
    }

    fn asked(&mut self, request: Request, effects: &mut Effects) {
        if self.waiting >= self.options.most.max(1) {
            return effects.push(DeviceEffect::Refuse(request.number));
        }
        self.last += 1;
        let waiting = Waiting {
            request,
            asked: self.now,
            order: self.last,
        };
        let queue = queue_of(request.tenant.application);
        self.queues.entry(queue).or_default().push(waiting);
        self.waiting += 1;
        self.account(request.tenant);
    }

    /// Begins turns: of the application that was given least for its priority.
    fn begin(&mut self, effects: &mut Effects) {
        while self.turns.len() < self.options.depth.max(1) {
            let queues = self.queues.iter();
            let next = queues
                .min_by_key(|(application, queue)| (self.shares.tag(**application), queue.first()));
            let Some((&application, _)) = next else {
                return;
            };
            let Some(queue) = self.queues.get_mut(&application) else {
                return;
            };
            let late = self.now.saturating_sub(self.options.oldest);
            let late = Some(late).filter(|_| Guard::Oldest.holds());
            let by_place = self.options.is_rotational.then_some(self.head);
            let pace = &self.reads;
            let fits = |operations, bytes| pace.cost(operations, bytes) <= pace.cost(1, TURN);
            let requests = queue.take(by_place, late, fits);
            if queue.is_empty() {
                self.queues.remove(&application);
            }
            let Some(first) = requests.first() else {
                return;
            };
            self.waiting -= requests.len();
            let bytes = requests.iter().map(|one| one.request.bytes).sum();
            let operations = operations(&requests);
            let cost = self.pace(first.request.access).cost(operations, bytes);
            let tenant = Tenant {
                application,
                ..first.request.tenant
            };
            self.shares.serve(tenant, cost.div_ceil(1_000));
            if let Some(last) = requests.last() {
                self.head = (last.request.file, last.end());
            }
            self.last += 1;
            let numbers = requests.iter().map(|one| one.request.number).collect();
            let turn = Turn {
                requests,
                began: self.now,
                cost,
                operations,
            };
            self.turns.insert(self.last, turn);
            effects.push(DeviceEffect::Begin {
                turn: self.last,
                requests: numbers,
            });
        }
    }

    fn done(&mut self, number: u64, outcome: Outcome) -> Result<(), ShuffleError> {
        let turn = self.turns.remove(&number).ok_or(ShuffleError::NotAwaited)?;
        let Some(first) = turn.requests.first().map(|one| one.request) else {
            return Ok(());
        };
        let bytes: u64 = turn.requests.iter().map(|one| one.request.bytes).sum();
        match outcome {
            Outcome::Done => {
                // Before that the device did something else.
                let since = turn.began.max(self.done_at);
                let took = self.now.saturating_sub(since).as_nanos() as u64;
                let pace = match first.access {
                    Access::Read => &mut self.reads,
                    Access::Write => &mut self.writes,
                };
                pace.learn(turn.operations, bytes, took);
                if first.access == Access::Write {
                    self.full_at = None;
                }
                self.failed_in_a_row = 0;
            }
            Outcome::Full => self.full_at = Some(self.now),
            Outcome::Nothing => {}
            Outcome::Failed => {
                self.failures += 1;
                self.failed_in_a_row += 1;
                self.failed_at = Some(self.now);
            }
        }
        self.done_at = self.now;
        if first.access == Access::Read && outcome != Outcome::Nothing {
            for one in &turn.requests {
                self.latency
                    .add(self.now, self.now.saturating_sub(one.asked));
            }
        }
        self.account(first.tenant);
        if let Some((served, ..)) = self.served.get_mut(&first.tenant.application) {
            served.requests += turn.requests.len() as u64;
            served.bytes += bytes;
            served.cost += turn.cost.div_ceil(1_000);
        }
        Ok(())
    }

    /// Notes that an application uses the device.
    fn account(&mut self, tenant: Tenant) {
        let account = (Served::default(), self.now, tenant.weight());
        let account = self
            .served
            .entry(tenant.application)
            .or_insert_with(|| account);
        (account.1, account.2) = (self.now, tenant.weight());
        if self.served.len() > MOST_SERVED {
            let queues = &self.queues;
            let idle = self.served.iter();
            let idle = idle.filter(|(application, _)| !queues.contains_key(application));
            let oldest = idle.min_by_key(|(_, (_, used, _))| *used);
            if let Some(oldest) = oldest.map(|(application, _)| *application) {
                self.served.remove(&oldest);
            }
        }
    }

    /// Says how many reads applications may have here, if reads take too long.
    fn limit(&mut self, effects: &mut Effects) {
        if self.now < self.looked_at + LOOK {
            return;
        }
        self.looked_at = self.now;
        let limits = match self.is_overloaded() && Guard::Throttle.holds() {
            true => self.limits(),
            false => Vec::new(),
        };
        if !limits.is_empty() || self.is_limiting {
            self.is_limiting = !limits.is_empty();
            effects.push(DeviceEffect::Limits(limits));
        }
    }

    fn is_overloaded(&self) -> bool {
        // Limits hold until there is no need for them: with them reads take about as long as they may.
        let most = self.options.read_latency / if self.is_limiting { 2 } else { 1 };
        self.read_latency() > most
    }

    /// What nine of ten reads take at most, of those that ended in the last seconds or wait.
    fn read_latency(&self) -> Duration {
        let waiting = self.queues.values().flat_map(Queue::reads);
        let ages = waiting.map(|one| self.now.saturating_sub(one.asked));
        self.latency.most(self.now, ages, FEW)
    }

    /// How many each application that waits may have, if there are several.
    fn limits(&self) -> Vec<Limit> {
        let since = self.now.saturating_sub(WINDOW);
        let active = self.served.iter().filter(|(application, (_, used, _))| {
            *used >= since || self.queues.contains_key(application)
        });
        let (mut weights, mut count) = (0, 0);
        for (_, (.., priority)) in active {
            weights += *priority;
            count += 1;
        }
        if count < 2 {
            return Vec::new();
        }
        let mut limits = Vec::new();
        for (&application, queue) in &self.queues {
            let (reads, bytes) = queue.reads().fold((0, 0), |(reads, bytes), one| {
                (reads + 1, bytes + one.request.bytes)
            });
            let account = self.served.get(&application);
            let (true, Some((.., priority))) = (reads > 0, account) else {
                continue;
            };
            // Of the whole device, as long as all want their share.
            let each = self.reads.cost(1, bytes / reads).saturating_mul(weights);
            let each = each / *priority;
            let most = self.options.read_latency.as_nanos() as u64 / each.max(1);
            limits.push(Limit {
                application,
                most: u32::try_from(most).unwrap_or(u32::MAX).max(1),
                each: Duration::from_nanos(each),
            });
        }
        limits
    }

    fn pace(&self, access: Access) -> &Pace {
        match access {
            Access::Read => &self.reads,
            Access::Write => &self.writes,
        }
    }

    /// The files of which something is to be read or written, if a turn has taken so long.
    pub fn stuck(&self, now: Duration, age: Duration) -> Vec<u64> {
        let is_stuck = |turn: &Turn| now.saturating_sub(turn.began) >= age;
        if !self.turns.values().any(is_stuck) {
            return Vec::new();
        }
        let begun = self.turns.values().flat_map(|turn| &turn.requests);
        let waiting = self.queues.values().flat_map(Queue::all);
        let files = begun.chain(waiting).map(|one| one.request.file);
        files.collect()
    }

    /// Whether it takes far longer than it did before.
    fn is_slow(&self) -> bool {
        let hangs = self.turns.values().any(|turn| {
            let took = self.now.saturating_sub(turn.began).as_nanos() as u64;
            took > turn.cost.max(1_000_000_000) * SLOWER * self.options.depth.max(1) as u64
        });
        hangs || self.reads.is_slow(SLOWER) || self.writes.is_slow(SLOWER)
    }

    /// Whether it had no room a short while ago: only a file that is given to it shows that there is room again.
    fn is_full(&self) -> bool {
        self.full_at.is_some_and(|at| self.now < at + FAILED)
    }

    /// How many of the new files it is to have, compared with other devices: its rate, half of that for each
    /// time that it has failed in a row, and the least if it is full.
    pub fn weight(&self) -> u32 {
        let failed = self.failed_at.is_some_and(|at| self.now < at + FAILED);
        let failures = if failed {
            self.failed_in_a_row.min(16)
        } else {
            0
        };
        let each = self.writes.cost(1, REFERENCE).max(1);
        let rate = (REFERENCE * 1_000_000_000 / each) >> 10 >> failures;
        match self.is_full() {
            true => 1,
            false => u32::try_from(rate).unwrap_or(u32::MAX).max(1),
        }
    }

    /// How it does.
    pub fn standing(&self) -> DeviceStanding {
        let applications = self.served.iter().map(|(&application, (served, ..))| {
            let queue = self.queues.get(&application);
            let waiting = queue.map_or(0, Queue::len) as u64;
            (application, Served { waiting, ..*served })
        });
        DeviceStanding {
            waiting: self.waiting as u64,
            read_latency: self.read_latency(),
            read_rate: self.reads.rate(),
            write_rate: self.writes.rate(),
            operation: self.reads.operation(),
            is_slow: self.is_slow(),
            is_full: self.is_full(),
            failures: self.failures,
            is_limiting: self.is_limiting,
            applications: applications.collect(),
        }
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether nothing waits or is carried out.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.turns.is_empty()
    }
}

/// Without the guard all wait in one queue.
fn queue_of(application: ApplicationId) -> ApplicationId {
    match Guard::Shares.holds() {
        true => application,
        false => ApplicationId::default(),
    }
}

/// How often a device has to move for these requests.
fn operations(requests: &[Waiting]) -> u64 {
    let pairs = requests.windows(2);
    let follow = pairs.filter(|pair| pair[0].is_before(&pair[1]));
    (requests.len() - follow.count()) as u64
}
