//! The scheduler's process: the production core, with the tables of keys and connections that the
//! server keeps around it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_messages::{FromClient, ToClient};
use treadle_scheduler::{Effect, Effects, Event, Scheduler, TICK, WorkerProfile};
use treadle_types::{Cause, ClientId, ObjectId, Report, TaskId, WorkerId};

use crate::network::Message;
use crate::plan::{Plan, RESOURCE, TIMEOUT};
use crate::sessions::address;
use crate::universe::Key;
use crate::world::{Item, World};

/// A worker that has registered.
pub(crate) struct Registration {
    connection: usize,
    pub(crate) machine: usize,
    heard: Duration,
    pub(crate) is_lost: bool,
    is_leaving: bool,
}

/// A client that is connected.
pub(crate) struct Session {
    pub(crate) connection: usize,
    /// The keys of its local ids, and the first id that it has not used.
    pub(crate) keys: BTreeMap<u32, Key>,
    pub(crate) next: u32,
    /// Tasks by the ids under which the client wants them, and the other way round.
    pub(crate) tasks: BTreeMap<u32, TaskId>,
    pub(crate) futures: BTreeMap<TaskId, u32>,
    /// Values that the client keeps, with the number under which it put them last.
    pub(crate) kept: BTreeMap<TaskId, u32>,
    /// Submissions of which a batch was refused.
    pub(crate) refused: BTreeSet<u32>,
}

pub(crate) struct Server {
    pub(crate) core: Scheduler,
    /// Tasks that the scheduler knows.
    pub(crate) tasks: BTreeMap<Key, TaskId>,
    pub(crate) keys: BTreeMap<TaskId, Key>,
    pub(crate) workers: BTreeMap<WorkerId, Registration>,
    pub(crate) clients: BTreeMap<ClientId, Session>,
    /// Who is at the other end of a connection.
    worker_at: BTreeMap<usize, WorkerId>,
    client_at: BTreeMap<usize, ClientId>,
    next_worker: u32,
    next_client: u32,
    /// Values that clients want to bring, while there is no worker.
    pub(crate) unplaced: Vec<(ClientId, Key)>,
    /// The last reason why nothing moved.
    pub(crate) stuck: Option<String>,
    /// Reports that the core takes before it gives workers anything, and before anything else
    /// happens to it.
    together: Vec<(WorkerId, Report)>,
}

/// How many reports the core takes in one go, at most, and how likely another one joins them.
const TOGETHER: usize = 8;
const JOINS: u64 = 50;

impl Server {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            core: Scheduler::new(plan.config.clone()),
            tasks: BTreeMap::new(),
            keys: BTreeMap::new(),
            workers: BTreeMap::new(),
            clients: BTreeMap::new(),
            worker_at: BTreeMap::new(),
            client_at: BTreeMap::new(),
            next_worker: 0,
            next_client: 0,
            unplaced: Vec::new(),
            stuck: None,
            together: Vec::new(),
        }
    }

    /// The worker of a machine that is there.
    pub(crate) fn worker_of(&self, machine: usize) -> Option<WorkerId> {
        let mut workers = self.workers.iter();
        let found = workers.find(|(_, entry)| entry.machine == machine && !entry.is_lost);
        found.map(|(&worker, _)| worker)
    }

    pub(crate) fn there(&self) -> Vec<WorkerId> {
        let workers = self.workers.iter();
        let there = workers.filter(|(_, entry)| !entry.is_lost && !entry.is_leaving);
        there.map(|(&worker, _)| worker).collect()
    }

    /// The name of an object of the task, for clients that bring or read it.
    pub(crate) fn object(&self, task: TaskId) -> ObjectId {
        let view = self.core.task(task);
        view.map_or(ObjectId::from_u64(u64::MAX), |view| view.object())
    }

    /// The workers that have the value of a task.
    pub(crate) fn holders(&self, task: TaskId) -> Vec<WorkerId> {
        let view = self.core.task(task);
        view.map(|view| view.holders().collect())
            .unwrap_or_default()
    }

    /// The task of a key, a new one if there is none; and whether it is new.
    pub(crate) fn task(&mut self, key: Key) -> (TaskId, bool) {
        if let Some(&task) = self.tasks.get(&key) {
            return (task, false);
        }
        let task = self.core.allocate();
        self.tasks.insert(key, task);
        self.keys.insert(task, key);
        (task, true)
    }
}

impl World {
    pub(crate) fn server_tick(&mut self) -> Result<(), String> {
        self.hand_in_reports()?;
        let silent =
            |entry: &Registration| !entry.is_lost && self.kernel.now() > entry.heard + TIMEOUT;
        let workers = self.server.workers.iter();
        let silent: Vec<_> = workers
            .filter(|(_, entry)| silent(entry))
            .map(|(&worker, _)| worker)
            .collect();
        for worker in silent {
            self.lose(worker, Cause::Unreachable)?;
        }
        self.core_event(Event::Tick)?;
        self.verify_liveness()?;
        self.kernel.schedule(TICK, Item::ServerTick);
        Ok(())
    }

    pub(crate) fn server_told(
        &mut self,
        connection: usize,
        message: Message,
    ) -> Result<(), String> {
        // Questions change nothing.
        let is_question = match &message {
            Message::Client(message) => matches!(**message, FromClient::Call(_)),
            _ => false,
        };
        if !matches!(message, Message::Report(_)) && !is_question {
            self.hand_in_reports()?;
        }
        if let Message::Register(machine) = message {
            return self.register(connection, machine);
        }
        if let Message::Hello = message {
            let client = ClientId(self.server.next_client);
            self.server.next_client += 1;
            self.server.client_at.insert(connection, client);
            let session = Session {
                connection,
                keys: BTreeMap::new(),
                next: 0,
                tasks: BTreeMap::new(),
                futures: BTreeMap::new(),
                kept: BTreeMap::new(),
                refused: BTreeSet::new(),
            };
            self.server.clients.insert(client, session);
            for worker in self.server.there() {
                self.introduce(client, worker);
            }
            return self.core_event(Event::ClientJoined(client));
        }
        if let Some(&worker) = self.server.worker_at.get(&connection) {
            return self.told_by_worker(worker, message);
        }
        match self.server.client_at.get(&connection) {
            Some(&client) => self.told_by_client(client, message),
            None => Ok(()),
        }
    }

    fn register(&mut self, connection: usize, machine: usize) -> Result<(), String> {
        if self.plan.replaces
            && let Some(before) = self.server.worker_of(machine)
        {
            self.lose(before, Cause::Unreachable)?;
        }
        let worker = WorkerId(self.server.next_worker);
        self.server.next_worker += 1;
        let plan = self.plan.machines[machine].clone();
        let registration = Registration {
            connection,
            machine,
            heard: self.kernel.now(),
            is_lost: false,
            is_leaving: false,
        };
        self.server.workers.insert(worker, registration);
        self.server.worker_at.insert(connection, worker);
        self.places.insert(worker, machine);
        for client in self.server.clients.keys().copied().collect::<Vec<_>>() {
            self.introduce(client, worker);
        }
        self.oracle.joined(worker, plan.memory);
        self.send_from_server(connection, Message::Welcome(worker));
        let profile = WorkerProfile {
            name: plan.name,
            host: plan.host,
            aliases: Vec::new(),
            threads: plan.threads,
            memory: plan.memory,
            resources: match plan.resource > 0.0 {
                true => vec![(RESOURCE, plan.resource)],
                false => Vec::new(),
            },
        };
        self.core_event(Event::WorkerJoined { worker, profile })?;
        for (client, key) in std::mem::take(&mut self.server.unplaced) {
            self.place(client, key);
        }
        Ok(())
    }

    /// Tells a client where a worker is.
    fn introduce(&mut self, client: ClientId, worker: WorkerId) {
        let address = address(worker);
        self.tell_client(client, ToClient::Peer { worker, address }, true);
    }

    fn lose(&mut self, worker: WorkerId, cause: Cause) -> Result<(), String> {
        let Some(registration) = self.server.workers.get_mut(&worker) else {
            return Ok(());
        };
        if std::mem::replace(&mut registration.is_lost, true) {
            return Ok(());
        }
        let connection = registration.connection;
        self.summary.lost += 1;
        self.oracle.lost(worker);
        self.close(connection, false, Duration::ZERO);
        for client in self.server.clients.keys().copied().collect::<Vec<_>>() {
            self.tell_client(client, ToClient::PeerLost(worker), true);
        }
        self.core_event(Event::WorkerLost { worker, cause })
    }

    /// A machine's worker is asked to leave.
    pub(crate) fn drain(&mut self, machine: usize) -> Result<(), String> {
        self.hand_in_reports()?;
        match self.server.worker_of(machine) {
            Some(worker) => {
                self.oracle.drains(worker);
                self.core_event(Event::Drain(worker))
            }
            None => Ok(()),
        }
    }

    /// A plane says that the values of some tasks are gone.
    pub(crate) fn invalidate(&mut self) -> Result<(), String> {
        self.hand_in_reports()?;
        let tasks: Vec<_> = self.server.tasks.values().copied().collect();
        let tasks = self.kernel.random.some(&tasks, 20);
        self.oracle.invalidated(&tasks);
        self.core_event(Event::Invalidate(tasks))
    }

    pub(crate) fn restart(&mut self) -> Result<(), String> {
        self.hand_in_reports()?;
        self.oracle.has_restarted = true;
        self.core_event(Event::Restart)
    }

    fn told_by_worker(&mut self, worker: WorkerId, message: Message) -> Result<(), String> {
        let Some(registration) = self.server.workers.get_mut(&worker) else {
            return Ok(());
        };
        registration.heard = self.kernel.now();
        match message {
            // Also what a worker says that was lost: it is the core's to ignore it.
            Message::Report(report) => self.reported(worker, report),
            Message::Closed => {
                let cause = match registration.is_leaving {
                    true => Cause::Drained,
                    false => Cause::Signal(9),
                };
                self.lose(worker, cause)
            }
            _ => Err("a worker says what only clients say".into()),
        }
    }

    /// A report goes to the core by itself, or with those that follow.
    fn reported(&mut self, worker: WorkerId, report: Report) -> Result<(), String> {
        self.server.together.push((worker, report));
        if self.server.together.len() < TOGETHER && self.kernel.random.chance(JOINS) {
            return Ok(());
        }
        self.hand_in_reports()
    }

    /// The core takes the reports that wait for others. Called before anything else happens at the
    /// server, which may be about what they lead to.
    fn hand_in_reports(&mut self) -> Result<(), String> {
        if self.server.together.is_empty() {
            return Ok(());
        }
        let mut effects = Effects::default();
        for (worker, report) in std::mem::take(&mut self.server.together) {
            self.kernel
                .tell(|| format!("scheduler hears {worker:?} report {report:?}"));
            self.oracle.heard(worker, &report, self.kernel.now())?;
            let core = &mut self.server.core;
            core.handle_reports(
                worker,
                std::iter::once(report),
                self.kernel.now(),
                &mut effects,
            );
            self.perform_all(&mut effects)?;
        }
        while self.server.core.distribute(&mut effects) {}
        self.follow(effects)
    }

    pub(crate) fn core_event(&mut self, event: Event) -> Result<(), String> {
        if !matches!(event, Event::Tick) {
            self.kernel.tell(|| format!("scheduler hears {event:?}"));
        }
        let mut effects = Effects::default();
        let handled = self
            .server
            .core
            .handle(event, self.kernel.now(), &mut effects);
        handled.map_err(|error| format!("the scheduler says: {error}"))?;
        self.follow(effects)
    }

    /// Checks the core, and does what it has said.
    fn follow(&mut self, mut effects: Effects) -> Result<(), String> {
        let checked = match self.kernel.steps().is_multiple_of(self.plan.check_every) {
            true => self.server.core.check(),
            false => Ok(()),
        };
        self.perform_all(&mut effects)?;
        checked.map_err(|error| format!("the scheduler is broken: {error}"))
    }

    fn perform_all(&mut self, effects: &mut Effects) -> Result<(), String> {
        for effect in effects.0.drain(..) {
            self.kernel.tell(|| format!("scheduler: {effect:?}"));
            self.perform(effect)?;
        }
        Ok(())
    }

    fn perform(&mut self, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Command { worker, command } => {
                self.oracle.said(worker, &command, self.kernel.now())?;
                let connection = self.server.workers[&worker].connection;
                self.send_from_server(connection, Message::Command(command));
            }
            Effect::Notify {
                client,
                task,
                notice,
            } => self.notify(client, task, notice)?,
            Effect::Bring { client, task } => {
                let bring = ToClient::Bring(vec![self.keeping(client, task)?]);
                self.tell_client(client, bring, false);
            }
            Effect::Unkeep { client, task } => {
                let name = self.keeping(client, task)?;
                if let Some(session) = self.server.clients.get_mut(&client) {
                    session.kept.remove(&task);
                }
                self.tell_client(client, ToClient::Unkeep(vec![name]), false);
            }
            Effect::Forgotten(task) => {
                let mut sessions = self.server.clients.values();
                if sessions.any(|session| session.kept.contains_key(&task)) {
                    return Err(format!("{task:?} is forgotten, and a client keeps it"));
                }
                self.oracle.forgotten(task);
                if let Some(key) = self.server.keys.remove(&task) {
                    self.server.tasks.remove(&key);
                }
                for session in self.server.clients.values_mut() {
                    if let Some(future) = session.futures.remove(&task) {
                        session.tasks.remove(&future);
                    }
                }
            }
            Effect::Drained(worker) => {
                if let Some(registration) = self.server.workers.get_mut(&worker) {
                    registration.is_leaving = true;
                    let connection = registration.connection;
                    self.send_from_server(connection, Message::Leave);
                }
            }
            Effect::Dismiss { worker, reason } => {
                return Err(format!("{worker:?} is dismissed: {reason}"));
            }
            Effect::Stuck { tasks, reason } => {
                self.server.stuck = Some(format!("{reason:?}: {tasks:?}"));
            }
        }
        Ok(())
    }
}

impl World {
    /// The id under which a client put a value that it keeps.
    fn keeping(&self, client: ClientId, task: TaskId) -> Result<u32, String> {
        let session = self.server.clients.get(&client);
        let kept = session.and_then(|session| session.kept.get(&task).copied());
        kept.ok_or_else(|| format!("{client:?} does not keep {task:?}, and hears of it"))
    }
}

impl Server {
    /// The key of a task, and who holds its value.
    pub(crate) fn find(&self, task: TaskId) -> Option<(Key, Vec<WorkerId>)> {
        let &key = self.keys.get(&task)?;
        Some((key, self.holders(task)))
    }
}
