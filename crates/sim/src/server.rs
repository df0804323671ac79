//! The scheduler's process: the production core, with the tables of keys and connections that the
//! server keeps around it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_scheduler::{
    Effect, Effects, Event, Notice, Scheduler, Submission, TICK, WorkerProfile,
};
use treadle_types::{
    Cause, ClientId, Failure, ObjectId, Options, TaskId, WorkerId,
};

use crate::client::Batch;
use crate::network::{Message, News};
use crate::plan::{Plan, RESOURCE, TIMEOUT};
use crate::universe::{Key, Raises, decode, encode, key_of, recipe};
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
struct Session {
    connection: usize,
    /// Tasks by the numbers of the client's futures, and the other way round.
    tasks: BTreeMap<u32, TaskId>,
    futures: BTreeMap<TaskId, u32>,
    /// Submissions of which a batch was refused.
    refused: BTreeSet<u32>,
}

pub(crate) struct Server {
    pub(crate) core: Scheduler,
    /// Tasks that the scheduler knows.
    pub(crate) tasks: BTreeMap<Key, TaskId>,
    keys: BTreeMap<TaskId, Key>,
    pub(crate) workers: BTreeMap<WorkerId, Registration>,
    clients: BTreeMap<ClientId, Session>,
    /// Who is at the other end of a connection.
    worker_at: BTreeMap<usize, WorkerId>,
    client_at: BTreeMap<usize, ClientId>,
    next_worker: u32,
    next_client: u32,
    /// Values that clients want to bring, while there is no worker.
    unplaced: Vec<(ClientId, Key)>,
    /// The last reason why nothing moved.
    pub(crate) stuck: Option<String>,
}

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
        }
    }

    /// The worker of a machine that is there.
    pub(crate) fn worker_of(&self, machine: usize) -> Option<WorkerId> {
        let mut workers = self.workers.iter();
        let found = workers.find(|(_, entry)| entry.machine == machine && !entry.is_lost);
        found.map(|(&worker, _)| worker)
    }

    fn there(&self) -> Vec<WorkerId> {
        let workers = self.workers.iter();
        let there = workers.filter(|(_, entry)| !entry.is_lost && !entry.is_leaving);
        there.map(|(&worker, _)| worker).collect()
    }

    /// The name of an object of the task, for clients that bring or read it.
    fn object(&self, task: TaskId) -> ObjectId {
        let view = self.core.task(task);
        view.map_or(ObjectId::from_u64(u64::MAX), |view| view.object())
    }

    /// The workers that have the value of a task.
    pub(crate) fn holders(&self, task: TaskId) -> Vec<WorkerId> {
        let view = self.core.task(task);
        view.map(|view| view.holders().collect()).unwrap_or_default()
    }

    /// The task of a key, a new one if there is none; and whether it is new.
    fn task(&mut self, key: Key) -> (TaskId, bool) {
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
        let silent = |entry: &Registration| !entry.is_lost && self.now > entry.heard + TIMEOUT;
        let workers = self.server.workers.iter();
        let silent: Vec<_> = workers
            .filter(|(_, entry)| silent(entry))
            .map(|(&worker, _)| worker)
            .collect();
        for worker in silent {
            self.lose(worker, Cause::Unreachable)?;
        }
        self.core_event(Event::Tick)?;
        self.schedule(TICK, Item::ServerTick);
        Ok(())
    }

    pub(crate) fn server_told(
        &mut self,
        connection: usize,
        message: Message,
    ) -> Result<(), String> {
        if let Message::Register(machine) = message {
            return self.register(connection, machine);
        }
        if let Message::Hello = message {
            let client = ClientId(self.server.next_client);
            self.server.next_client += 1;
            self.server.client_at.insert(connection, client);
            let session = Session {
                connection,
                tasks: BTreeMap::new(),
                futures: BTreeMap::new(),
                refused: BTreeSet::new(),
            };
            self.server.clients.insert(client, session);
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
            heard: self.now,
            is_lost: false,
            is_leaving: false,
        };
        self.server.workers.insert(worker, registration);
        self.server.worker_at.insert(connection, worker);
        self.places.insert(worker, machine);
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
        self.core_event(Event::WorkerLost { worker, cause })
    }

    /// A machine's worker is asked to leave.
    pub(crate) fn drain(&mut self, machine: usize) -> Result<(), String> {
        match self.server.worker_of(machine) {
            Some(worker) => {
                self.oracle.drains(worker);
                self.core_event(Event::Drain(worker))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn restart(&mut self) -> Result<(), String> {
        self.oracle.has_restarted = true;
        self.core_event(Event::Restart)
    }

    fn told_by_worker(&mut self, worker: WorkerId, message: Message) -> Result<(), String> {
        let Some(registration) = self.server.workers.get_mut(&worker) else {
            return Ok(());
        };
        registration.heard = self.now;
        match message {
            // Also what a worker says that was lost: it is the core's to ignore it.
            Message::Report(report) => {
                self.oracle.heard(worker, &report);
                self.core_event(Event::Report { worker, report })
            }
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

    fn told_by_client(&mut self, client: ClientId, message: Message) -> Result<(), String> {
        let Some(session) = self.server.clients.get_mut(&client) else {
            return Ok(());
        };
        let known = |session: &Session, futures: &[u32]| -> Vec<TaskId> {
            let tasks = futures.iter().map(|future| session.tasks.get(future));
            tasks.flatten().copied().collect()
        };
        match message {
            Message::Submit(batch) => self.submitted(client, batch),
            Message::Put(future, key) => self.put_by(client, future, key),
            Message::Want(future, key) => {
                let Some(&task) = self.server.tasks.get(&key) else {
                    let connection = session.connection;
                    let news = Message::News(future, News::Cancelled);
                    self.oracle.cancelled.insert(key);
                    self.send_from_server(connection, news);
                    return Ok(());
                };
                self.bind(client, future, task);
                let tasks = vec![task];
                self.core_event(Event::Want { client, tasks })
            }
            Message::Unwant(futures) => {
                let tasks = known(session, &futures);
                for task in &tasks {
                    session.futures.remove(task);
                    self.oracle.asks(client, *task);
                }
                for future in &futures {
                    session.tasks.remove(future);
                }
                self.core_event(Event::Unwant { client, tasks })
            }
            Message::Cancel(futures, force) => {
                let tasks = known(session, &futures);
                self.core_event(Event::Cancel {
                    client,
                    tasks,
                    force,
                })
            }
            Message::Retry(futures) => {
                let tasks = known(session, &futures);
                for &task in &tasks {
                    self.oracle.asks(client, task);
                }
                self.core_event(Event::Retry { client, tasks })
            }
            Message::Replicate(future, copies) => {
                let tasks = known(session, &[future]);
                let among = match self.random.chance(50) {
                    true => Vec::new(),
                    false => self.random.some(&self.server.there(), 50),
                };
                self.core_event(Event::Replicate {
                    tasks,
                    copies,
                    among,
                })
            }
            Message::Move(future) => {
                let task = session.tasks.get(&future).copied();
                let there = self.server.there();
                match task {
                    Some(task) if !there.is_empty() => {
                        let holders = self.server.holders(task);
                        let from = holders.first().copied();
                        let to = self.random.pick(&there);
                        match from {
                            Some(from) => self.core_event(Event::Move { task, from, to }),
                            None => Ok(()),
                        }
                    }
                    _ => Ok(()),
                }
            }
            Message::Closed => {
                self.server.clients.remove(&client);
                self.core_event(Event::ClientLeft(client))
            }
            _ => Err("a client says what only workers say".into()),
        }
    }

    /// A client has a future of a task.
    fn bind(&mut self, client: ClientId, future: u32, task: TaskId) {
        self.oracle.asks(client, task);
        if let Some(session) = self.server.clients.get_mut(&client) {
            session.tasks.insert(future, task);
            session.futures.insert(task, future);
        }
    }

    fn submitted(&mut self, client: ClientId, batch: Batch) -> Result<(), String> {
        let session = self.server.clients.get(&client);
        if session.is_some_and(|session| session.refused.contains(&batch.number)) {
            self.cancel_wanted(client, &batch);
            return Ok(());
        }
        let own: Vec<_> = batch.tasks.iter().map(|task| task.0).collect();
        for &key in &own {
            for input in &self.plan.universe.spec(key).inputs {
                if !self.server.tasks.contains_key(input) && !own.contains(input) {
                    return self.refuse(client, &batch, *input);
                }
            }
        }
        let mut submission = Submission {
            client,
            number: batch.number,
            last: batch.last,
            offsets: vec![0],
            constraints: self.plan.constraints.clone(),
            ..Submission::default()
        };
        for &(key, readers, rank) in &batch.tasks {
            let (task, _) = self.server.task(key);
            let spec = self.plan.universe.spec(key);
            submission.tasks.push(task);
            submission.readers.push(readers);
            submission.ranks.push(rank);
            submission.functions.push(spec.function);
            submission.recipes.push(recipe(key));
            submission.options.push(submission.option_sets.len() as u16);
            submission.option_sets.push(Options {
                priority: spec.priority,
                retries: spec.retries,
                constraint: spec.constraint,
                actor: false,
            });
        }
        for key in &own {
            let inputs = &self.plan.universe.spec(*key).inputs;
            let inputs = inputs.iter().map(|input| self.server.tasks[input]);
            submission.inputs.extend(inputs);
            submission.offsets.push(submission.inputs.len() as u32);
        }
        for &(future, key) in &batch.wanted {
            let task = self.server.tasks[&key];
            submission.wanted.push(task);
            self.bind(client, future, task);
        }
        self.core_event(Event::Submit(submission))
    }

    /// A batch refers to a task that is not known any more: the futures of the submission are
    /// cancelled.
    fn refuse(&mut self, client: ClientId, batch: &Batch, input: Key) -> Result<(), String> {
        let lineage = &self.plan.universe.spec(input).lineage;
        let is_excused = self.oracle.has_restarted || !self.oracle.cancelled.is_disjoint(lineage);
        if !is_excused {
            return Err(format!("{input:?} is forgotten, and {client:?} refers to it"));
        }
        self.tell(|| format!("{input:?} is unknown: the submission is refused"));
        if let Some(session) = self.server.clients.get_mut(&client) {
            session.refused.insert(batch.number);
        }
        self.cancel_wanted(client, batch);
        // What came of it before waits for no more readers.
        self.core_event(Event::Submit(Submission {
            client,
            number: batch.number,
            last: true,
            offsets: vec![0],
            ..Submission::default()
        }))
    }

    fn cancel_wanted(&mut self, client: ClientId, batch: &Batch) {
        let connection = self.server.clients[&client].connection;
        for &(future, key) in &batch.wanted {
            self.oracle.cancelled.insert(key);
            let news = Message::News(future, News::Cancelled);
            self.send_from_server(connection, news);
        }
    }

    fn put_by(&mut self, client: ClientId, future: u32, key: Key) -> Result<(), String> {
        let (task, _) = self.server.task(key);
        self.bind(client, future, task);
        let spec = self.plan.universe.spec(key);
        let is_small = spec.is_small();
        let put = Event::Put {
            client,
            task,
            nbytes: spec.nbytes,
            inline: is_small.then(|| encode(spec.value)),
            class: bytes::Bytes::new(),
            holders: Vec::new(),
        };
        self.core_event(put)?;
        if !is_small {
            self.place(client, key);
        }
        Ok(())
    }

    /// Tells a client where to bring a value.
    fn place(&mut self, client: ClientId, key: Key) {
        let there = self.server.there();
        let (Some(session), Some(&task)) =
            (self.server.clients.get(&client), self.server.tasks.get(&key))
        else {
            return;
        };
        if there.is_empty() {
            self.server.unplaced.push((client, key));
            return;
        }
        let connection = session.connection;
        let object = self.server.object(task);
        let mut workers = vec![self.random.pick(&there)];
        let other = self.random.pick(&there);
        if self.random.chance(30) && !workers.contains(&other) {
            workers.push(other);
        }
        self.send_from_server(connection, Message::Place(key, object, workers));
    }

    pub(crate) fn core_event(&mut self, event: Event) -> Result<(), String> {
        if !matches!(event, Event::Tick) {
            self.tell(|| format!("scheduler hears {event:?}"));
        }
        let mut effects = Effects::default();
        let handled = self.server.core.handle(event, self.now, &mut effects);
        for effect in &effects.0 {
            self.tell(|| format!("scheduler: {effect:?}"));
        }
        if self.summary.steps.is_multiple_of(self.plan.check_every) {
            let checked = self.server.core.check();
            checked.map_err(|error| format!("the scheduler is broken: {error}"))?;
        }
        handled.map_err(|error| format!("the scheduler says: {error}"))?;
        for effect in effects.0 {
            self.perform(effect)?;
        }
        Ok(())
    }

    fn perform(&mut self, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Command { worker, command } => {
                self.oracle.said(worker, &command)?;
                let connection = self.server.workers[&worker].connection;
                self.send_from_server(connection, Message::Command(command));
            }
            Effect::Notify {
                client,
                task,
                notice,
            } => self.notify(client, task, notice)?,
            Effect::Forgotten(task) => {
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

    fn notify(&mut self, client: ClientId, task: TaskId, notice: Notice) -> Result<(), String> {
        let Some(session) = self.server.clients.get(&client) else {
            return Err(format!("{client:?} has left, and hears about {task:?}"));
        };
        let connection = session.connection;
        let Some(&future) = session.futures.get(&task) else {
            return Err(format!("{client:?} hears about {task:?}, which it does not want"));
        };
        let key = self.server.keys[&task];
        let lineage = &self.plan.universe.spec(key).lineage;
        let news = match notice {
            Notice::Finished { inline, holder, .. } => {
                self.oracle.finished(client, task, holder)?;
                let raises = |key: &Key| self.plan.universe.spec(*key).raises == Raises::Always;
                if lineage.iter().any(raises) {
                    return Err(format!("{key:?} has a value, and always raises"));
                }
                News::Finished {
                    inline: inline.and_then(|inline| decode(&inline)),
                    holder: holder.map(|holder| (holder, self.server.object(task))),
                }
            }
            Notice::Failed(failure) => {
                self.oracle.asks(client, task);
                self.check_failure(key, &failure)?;
                News::Failed
            }
            Notice::Cancelled => {
                self.oracle.asks(client, task);
                let is_meant = self.oracle.has_restarted
                    || !self.oracle.cancelled.is_disjoint(lineage);
                if !is_meant {
                    return Err(format!("nobody has cancelled {key:?}, and it is"));
                }
                // The scheduler has forgotten that the client wants it.
                if let Some(session) = self.server.clients.get_mut(&client) {
                    session.futures.remove(&task);
                    session.tasks.remove(&future);
                }
                News::Cancelled
            }
            Notice::Pending => {
                self.oracle.asks(client, task);
                News::Pending
            }
        };
        self.send_from_server(connection, Message::News(future, news));
        Ok(())
    }

    /// Whether there is a reason for a failure.
    fn check_failure(&self, key: Key, failure: &Failure) -> Result<(), String> {
        let spec = self.plan.universe.spec(key);
        let culprit = match failure {
            Failure::Raised { error, .. } => key_of(error),
            _ => self.server.keys.get(&failure.culprit()).copied(),
        };
        // The one at fault may be forgotten by now.
        if let Some(culprit) = culprit
            && !spec.lineage.contains(&culprit)
        {
            return Err(format!("{key:?} fails for {culprit:?}, which it does not read"));
        }
        let is_founded = match failure {
            Failure::Raised { .. } => culprit.is_some_and(|culprit| {
                let culprit = self.plan.universe.spec(culprit);
                match culprit.raises {
                    Raises::Never => false,
                    Raises::Times(times) => times > culprit.retries,
                    Raises::Always => true,
                }
            }),
            Failure::WorkersLost { losses, .. } => {
                losses.len() as u32 > self.plan.config.allowed_losses
                    && losses.len() <= self.oracle.losses
            }
            Failure::DataLost { .. } => {
                let is_data = |culprit: Key| self.plan.universe.spec(culprit).is_data;
                culprit.is_none_or(is_data)
                    && (self.oracle.losses > 0 || self.summary.gone > 0)
            }
            Failure::Unavailable { .. } => self.summary.unfetched > 0,
        };
        match is_founded {
            true => Ok(()),
            false => Err(format!("{key:?} fails without a reason: {failure:?}")),
        }
    }
}

impl Server {
    /// The key of a task, and who holds its value.
    pub(crate) fn find(&self, task: TaskId) -> Option<(Key, Vec<WorkerId>)> {
        let &key = self.keys.get(&task)?;
        Some((key, self.holders(task)))
    }
}
