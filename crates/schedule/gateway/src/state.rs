//! What the core holds, and what it does with what happens.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::{Drain, Vec};
use core::mem;
use core::time::Duration;

use bytes::Bytes;
use foldhash::fast::SeedableRandomState;
use treadle_messages::{Definition, FromClient, FromWorker};
use treadle_scheduler::{self as scheduler, Scheduler, SchedulerError, WorkerStatus};
use treadle_types::{Cause, ClientId, Failure, Report, Symbol, TaskId, WorkerId};

use crate::awaited::Awaited;
use crate::calls::Calls;
use crate::definitions::{Defined, Definitions};
use crate::effect::Effects;
use crate::event::Event;
use crate::groups::Groups;
use crate::keys::Keys;
use crate::members::Audience;
use crate::nodes::{ClientNode, Clients, Node, WorkerNode, Workers};
use crate::shuffles::Shuffles;
use crate::steps::Told;
use crate::symbols::Symbols;
use crate::waiting::Waiting;

/// Reports that the scheduler takes at a time.
const TOGETHER: usize = 64;

/// What the core is told of its surroundings.
#[derive(Debug)]
pub struct Settings {
    /// The cluster's name.
    pub id: String,
    /// Where the scheduler listens.
    pub address: String,
    /// The link to its pages, and their port.
    pub http: Option<(String, u16)>,
    /// `major.minor` of the cluster's Python; `None`: that of the first node.
    pub python: Option<String>,
    /// For how long a worker may say nothing.
    pub worker_timeout: Duration,
    /// Whether workers shall record what they do.
    pub sight: bool,
    /// When the process started, since the beginning of 1970.
    pub started: Duration,
    /// How many definitions that no task uses are kept: most are used again.
    pub idle_definitions: usize,
    /// Hashes keys. Nobody outside may know it, or they could choose keys that collide.
    pub hasher: SeedableRandomState,
}

/// A node broke the protocol: it is thrown out.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

impl Broken {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl From<SchedulerError> for Broken {
    fn from(error: SchedulerError) -> Self {
        Self(error.to_string())
    }
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Tasks that clients sent.
    pub submitted: u64,
    /// Commands to workers.
    pub commands: u64,
    /// Notices to clients.
    pub notices: u64,
}

/// The scheduler's end of a cluster.
///
/// What happens is [handled](Core::handle) as it comes. Each call appends [`Effect`]s.
#[derive(Debug)]
pub struct Core {
    pub(crate) settings: Settings,
    pub(crate) scheduler: Scheduler,
    /// Of the scheduler, between two calls of it.
    pub(crate) followed: scheduler::Effects,
    /// What follows from the event at hand.
    pub(crate) out: Effects,
    /// Tasks that are to be forgotten.
    pub(crate) forgotten: Vec<TaskId>,
    /// Events that follow from effects.
    pub(crate) later: VecDeque<scheduler::Event>,
    /// The time of the event at hand.
    pub(crate) now: Duration,
    pub(crate) keys: Keys,
    pub(crate) groups: Groups,
    pub(crate) symbols: Symbols,
    pub(crate) definitions: Definitions,
    pub(crate) workers: Workers,
    pub(crate) clients: Clients,
    pub(crate) audience: Audience,
    pub(crate) calls: Calls,
    /// When to look next for workers that are gone.
    pub(crate) look_at: Duration,
    /// When the last tick was.
    pub(crate) ticked: Duration,
    /// Workers that were found to be gone, and the last lines of their logs.
    pub(crate) losing: Vec<(WorkerId, Cause, String)>,
    /// Of the cancellation at hand.
    pub(crate) reason: Bytes,
    /// Small values that people asked to be at several workers.
    pub(crate) spread: BTreeMap<TaskId, Vec<WorkerId>>,
    /// Counts values that were placed.
    pub(crate) turn: u32,
    pub(crate) waiting: Waiting,
    pub(crate) awaited: Awaited,
    pub(crate) shuffles: Shuffles,
    /// Whether clients shall tell the sidecar what they submit.
    pub(crate) observed: bool,
    /// Whether the sidecar is told of each step of tasks.
    pub(crate) watched: bool,
    pub(crate) told: Told,
    pub(crate) counts: Counts,
    /// The failure that whoever watches was told of last.
    pub(crate) doomed: Option<Arc<Failure>>,
}

impl Core {
    /// A cluster without nodes.
    pub fn new(settings: Settings, config: scheduler::Config) -> Self {
        Self {
            keys: Keys::new(settings.hasher.clone()),
            groups: Groups::new(settings.sight, settings.hasher.clone()),
            definitions: Definitions::new(settings.idle_definitions),
            settings,
            scheduler: Scheduler::new(config),
            followed: scheduler::Effects::default(),
            out: Effects::new(),
            forgotten: Vec::new(),
            later: VecDeque::new(),
            spread: BTreeMap::new(),
            now: Duration::ZERO,
            symbols: Symbols::new(),
            workers: Workers::default(),
            clients: Clients::default(),
            audience: Audience::default(),
            calls: Calls::default(),
            look_at: Duration::ZERO,
            ticked: Duration::ZERO,
            losing: Vec::new(),
            reason: Bytes::new(),
            turn: 0,
            waiting: Waiting::default(),
            awaited: Awaited::default(),
            shuffles: Shuffles::default(),
            observed: false,
            watched: false,
            told: Told::default(),
            counts: Counts::default(),
            doomed: None,
        }
    }

    /// Does something at a time, which is that since any fixed moment; what follows from it is
    /// appended to `effects`.
    #[inline]
    pub(crate) fn step<R>(
        &mut self,
        now: Duration,
        effects: &mut Effects,
        act: impl FnOnce(&mut Self) -> R,
    ) -> R {
        self.now = now;
        mem::swap(&mut self.out, effects);
        let result = act(self);
        self.lose_workers();
        mem::swap(&mut self.out, effects);
        result
    }

    /// Takes in what has happened. `now` is the time since any fixed moment.
    pub fn handle(&mut self, event: Event, now: Duration, effects: &mut Effects) {
        self.step(now, effects, |core| match event {
            Event::FromWorker(worker, message) => core.message_of_worker(worker, message),
            Event::FromClient(client, message) => {
                if core.clients.get(client).is_some()
                    && let Err(Broken(reason)) = core.message_of_client(client, message)
                {
                    core.lose_client(client, Some(format!("is thrown out: {reason}")));
                }
            }
            Event::WorkerBroke(worker) => core.worker_broke(worker),
            Event::WorkerGone(worker, cause) => {
                core.losing.push((worker, cause, String::new()));
            }
            Event::ClientGone(client, how) => {
                let leaves = core.clients.get(client).is_some_and(|node| node.leaves);
                core.lose_client(client, (!leaves).then_some(how));
            }
            Event::Tick { was_stopped } => {
                core.feed_own(scheduler::Event::Tick);
                core.trim_definitions();
                core.look_after_workers(was_stopped);
                // Before those who wait: some of them wait for these to be gone.
                core.lose_workers();
                core.look_after_waiting();
                core.look_after_records();
            }
        });
    }

    /// Takes some of what a worker reported, in order: what follows from them shall fit into the
    /// processor's caches. Workers get what they can take after that from [`Core::distribute`].
    pub fn reports(
        &mut self,
        worker: WorkerId,
        reports: &mut Drain<'_, Report>,
        now: Duration,
        effects: &mut Effects,
    ) {
        self.step(now, effects, |core| {
            let some = &reports.as_slice()[..reports.len().min(TOGETHER)];
            if some.len() > 1 {
                let objects = some.iter().filter_map(Report::object);
                core.scheduler.touch(objects.map(|object| object.task));
            }
            for report in some {
                core.note(worker, report);
            }
            if let Some(node) = core.workers.get_mut(worker) {
                node.heard = now;
            }
            let some = reports.by_ref().take(TOGETHER);
            let followed = &mut core.followed;
            core.scheduler.handle_reports(worker, some, now, followed);
            core.follow();
            core.forget();
        });
    }

    /// Keeps what a report says that the scheduler does not.
    #[inline]
    fn note(&mut self, worker: WorkerId, report: &Report) {
        match report {
            Report::Finished { object, value, .. } if value.inline.is_some() => {
                self.keys.set_maker(object.task, worker);
            }
            Report::Health { .. } => {
                if let Some(node) = self.workers.get_mut(worker) {
                    node.promised = 0;
                }
            }
            _ => {}
        }
    }

    /// Gives workers some of what they can take after what was reported. Returns whether there may
    /// be more to give.
    pub fn distribute(&mut self, now: Duration, effects: &mut Effects) -> bool {
        self.step(now, effects, |core| {
            let more = core.scheduler.distribute(&mut core.followed);
            core.follow();
            core.forget();
            more
        })
    }

    fn message_of_worker(&mut self, worker: WorkerId, message: FromWorker) {
        let now = self.now;
        if let Some(node) = self.workers.get_mut(worker) {
            node.heard = now;
        }
        match message {
            FromWorker::Report(report) => {
                self.note(worker, &report);
                self.feed_own(scheduler::Event::Report { worker, report });
            }
            // Of one that is gone, only what it reports is left to the scheduler to ignore.
            _ if self.workers.get(worker).is_none() => {}
            FromWorker::AskSettled(client) => self.ask_settled(worker, client),
            FromWorker::ToMaster(message) => self.message_to_master(worker, message),
            FromWorker::Drain => {
                self.server_leaves(worker);
                self.feed_own(scheduler::Event::Drain(worker));
            }
            FromWorker::Call(call) => self.call(Node::Worker(worker), call),
            FromWorker::Answer(answer) => self.answered(Node::Worker(worker), answer),
            FromWorker::Leaving { cause, log } => {
                if let Some(node) = self.workers.get_mut(worker) {
                    node.goodbye = Some((cause, log));
                }
            }
        }
    }

    fn message_of_client(&mut self, client: ClientId, message: FromClient) -> Result<(), Broken> {
        match message {
            FromClient::Define(definition) => self.define(client, definition)?,
            FromClient::Register(shuffle) => self.register_shuffle(client, shuffle)?,
            FromClient::Undefine(numbers) => self.definitions.undefine(client, &numbers),
            FromClient::Submit(batch) => self.submit(client, batch)?,
            FromClient::Put {
                id,
                key,
                nbytes,
                inline,
                class,
                workers,
                copies,
                kept,
            } => {
                let destination = (&workers[..], copies);
                self.put(client, id, &key, nbytes, inline, class, destination, kept)?;
            }
            FromClient::Unkept(ids) => self.unkept(client, &ids)?,
            FromClient::Want { first, keys } => self.want(client, first, &keys)?,
            FromClient::Release(ids) => self.release(client, &ids)?,
            FromClient::Cancel { ids, force, reason } => {
                let tasks = self.meant(client, &ids)?;
                self.reason = reason;
                let fed = self.feed(scheduler::Event::Cancel {
                    client,
                    tasks,
                    force,
                });
                self.reason = Bytes::new();
                fed?;
            }
            FromClient::Retry(ids) => {
                let tasks = self.meant(client, &ids)?;
                self.feed(scheduler::Event::Retry { client, tasks })?;
            }
            FromClient::Members => self.tell_members(client),
            FromClient::SettledTold { worker, settled } => {
                self.tell_settled(client, worker, settled)
            }
            FromClient::Call(call) => self.call(Node::Client(client), call),
            FromClient::Answer(answer) => self.answered(Node::Client(client), answer),
            FromClient::Goodbye => {
                // Its connection ends by itself.
                if let Some(node) = self.clients.get_mut(client) {
                    node.leaves = true;
                }
            }
        }
        Ok(())
    }

    fn define(&mut self, client: ClientId, definition: Definition) -> Result<(), Broken> {
        let Definition {
            number,
            name,
            pickle,
            ..
        } = definition;
        let name = self.symbols.intern(&name);
        let defined = Defined {
            client,
            number,
            name,
            pickle,
        };
        if self.definitions.define(defined) {
            Ok(())
        } else {
            Err(Broken::new(format!("definition {number} was sent twice")))
        }
    }

    /// Where a value is, as far as people are concerned: a small one at the worker that made it.
    pub(crate) fn whereabouts(&self, task: TaskId) -> Vec<WorkerId> {
        let Some(view) = self.scheduler.task(task) else {
            return Vec::new();
        };
        let holders: Vec<WorkerId> = view.holders().collect();
        if !holders.is_empty() || view.inline().is_none() {
            return holders;
        }
        if let Some(workers) = self.spread.get(&task) {
            let alive = |worker: &&WorkerId| self.scheduler.worker(**worker).is_some();
            let workers: Vec<WorkerId> = workers.iter().filter(alive).copied().collect();
            if !workers.is_empty() {
                return workers;
            }
        }
        let maker = self
            .keys
            .maker(task)
            .filter(|maker| self.scheduler.worker(*maker).is_some());
        let any = || self.scheduler.workers().next().map(|worker| worker.id());
        maker.or_else(any).into_iter().collect()
    }

    /// Whether a worker gets tasks.
    pub(crate) fn is_running(&self, worker: WorkerId) -> bool {
        let worker = self.scheduler.worker(worker);
        worker.is_some_and(|worker| worker.status() == WorkerStatus::Running)
    }

    /// The scheduler within.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// What it was told of its surroundings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A worker that is connected.
    pub fn worker(&self, id: WorkerId) -> Option<&WorkerNode> {
        self.workers.get(id)
    }

    /// All workers that are connected, by name.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerNode> {
        self.workers.iter()
    }

    /// A worker by its address or its name.
    pub fn find_worker(&self, called: &str) -> Option<WorkerId> {
        self.workers.find(called)
    }

    /// A client that is connected.
    pub fn client(&self, id: ClientId) -> Option<&ClientNode> {
        self.clients.get(id)
    }

    /// All clients that are connected, the oldest first.
    pub fn clients(&self) -> impl Iterator<Item = &ClientNode> {
        let ids = self.clients.ids().into_iter();
        ids.filter_map(|id| self.clients.get(id))
    }

    /// Questions that were passed on and are not answered.
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// The name of a [group](Scheduler::groups) of tasks, whose keys begin with the same words; `None`: of
    /// all others.
    pub fn group_name(&self, group: u16) -> Option<&str> {
        self.groups.name(group)
    }

    /// The encoded key of a task, and the name of its function.
    pub fn key_and_function(&self, task: TaskId) -> Option<(&[u8], Symbol)> {
        let entry = self.keys.get(task)?;
        let function = self.definitions.function(entry.definitions);
        Some((self.keys.key(task), function))
    }

    /// The task of an encoded key.
    pub fn task(&self, key: &[u8]) -> Option<TaskId> {
        self.keys.find(key)
    }

    /// All tasks that have a key, in no order that means anything.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.keys.tasks()
    }

    /// A name by its number.
    pub fn text(&self, symbol: Symbol) -> &str {
        self.symbols.text(symbol)
    }

    /// How many definitions there are, and bytes of their contents, each kept once.
    pub fn definitions(&self) -> (usize, usize) {
        self.definitions.totals()
    }

    /// Bytes of memory for tasks and keys, about; recipes and small values not counted.
    pub fn memory(&self) -> usize {
        self.scheduler.memory() + self.keys.memory()
    }
}
