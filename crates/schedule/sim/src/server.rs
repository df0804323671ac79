//! The scheduler's process: the production core, with connections around it.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use foldhash::fast::SeedableRandomState;
use treadle_gateway::{Core, Effect, Effects, Event, Node, Settings};
use treadle_messages::{Call, FromClient, FromWorker, Hello, Role, ToClient, ToWorker};
use treadle_scheduler::{Scheduler, TICK};
use treadle_types::{Cause, ClientId, Command, Holders, Place, Report, TaskId, Value, WorkerId};

use crate::client::{decode_key, encode_key};
use crate::network::Message;
use crate::plan::{Plan, RESOURCE, TIMEOUT, text};
use crate::universe::{DEFINITIONS, Key, key_of_task};
use crate::world::{Item, World};

/// A worker that has registered.
pub(crate) struct Registration {
    connection: usize,
    pub(crate) machine: usize,
    pub(crate) is_lost: bool,
    /// The workers whose address it was told.
    met: BTreeSet<WorkerId>,
    /// The definitions that it has.
    defined: BTreeSet<(ClientId, u32)>,
}

/// A client that is connected.
pub(crate) struct Session {
    pub(crate) connection: usize,
    /// The keys of its local ids.
    pub(crate) keys: BTreeMap<u32, Key>,
}

pub(crate) struct Server {
    pub(crate) core: Core,
    /// Tasks that the core knows, as of the last event.
    pub(crate) tasks: BTreeMap<Key, TaskId>,
    pub(crate) keys: BTreeMap<TaskId, Key>,
    pub(crate) workers: BTreeMap<WorkerId, Registration>,
    pub(crate) clients: BTreeMap<ClientId, Session>,
    /// Who is at the other end of a connection.
    at: BTreeMap<usize, Node>,
    /// In whose name things are asked that no client asks.
    sidecar: ClientId,
    calls: u64,
    /// The last reason why nothing moved.
    pub(crate) stuck: Option<String>,
    /// Reports that the core takes before it gives workers anything, and before anything else
    /// happens to it.
    together: Vec<(WorkerId, Report)>,
}

/// How many reports the core takes in one go, at most, and how likely another one joins them.
const TOGETHER: usize = 8;
const JOINS: u64 = 50;

/// The first words of a node.
fn hello(role: Role, name: String) -> Hello {
    Hello {
        role,
        name,
        python: "3.11".into(),
        version: String::new(),
        info: Value::None.to_bytes().into(),
    }
}

impl Server {
    pub(crate) fn new(plan: &Plan) -> Self {
        let settings = Settings {
            id: "Scheduler".into(),
            address: "sim://scheduler".into(),
            http: None,
            sight: false,
            python: None,
            worker_timeout: TIMEOUT,
            started: Duration::ZERO,
            idle_definitions: plan.idle_definitions,
            hasher: SeedableRandomState::fixed(),
        };
        let mut core = Core::new(settings, plan.config.clone());
        let sidecar = hello(Role::Sidecar, "sidecar".into());
        let sidecar = match core.admit(sidecar, Duration::ZERO, &mut Effects::new()) {
            Ok(Node::Client(sidecar)) => sidecar,
            other => panic!("the first node is {other:?}"),
        };
        Self {
            core,
            tasks: BTreeMap::new(),
            keys: BTreeMap::new(),
            workers: BTreeMap::new(),
            clients: BTreeMap::new(),
            at: BTreeMap::new(),
            sidecar,
            calls: 0,
            stuck: None,
            together: Vec::new(),
        }
    }

    pub(crate) fn scheduler(&self) -> &Scheduler {
        self.core.scheduler()
    }

    /// The worker of a machine that is there.
    pub(crate) fn worker_of(&self, machine: usize) -> Option<WorkerId> {
        let mut workers = self.workers.iter();
        let found = workers.find(|(_, entry)| entry.machine == machine && !entry.is_lost);
        found.map(|(&worker, _)| worker)
    }

    pub(crate) fn there(&self) -> Vec<WorkerId> {
        let there = self.workers.iter().filter(|(_, entry)| !entry.is_lost);
        there.map(|(&worker, _)| worker).collect()
    }

    /// The workers that have the value of a task.
    pub(crate) fn holders(&self, task: TaskId) -> Vec<WorkerId> {
        let view = self.scheduler().task(task);
        view.map(|view| view.holders().collect())
            .unwrap_or_default()
    }

    /// The key of a task, and who holds its value.
    pub(crate) fn find(&self, task: TaskId) -> Option<(Key, Vec<WorkerId>)> {
        let &key = self.keys.get(&task)?;
        Some((key, self.holders(task)))
    }

    pub(crate) fn address(&self, worker: WorkerId) -> Value {
        let node = self.core.worker(worker);
        Value::Str(node.map_or_else(String::new, |node| node.address.clone()))
    }

    /// A call to the scheduler itself.
    fn call(&mut self, operation: &str, argument: &Value) -> Call {
        self.calls += 1;
        Call {
            // No client's own.
            id: 1 << 40 | self.calls,
            node: String::new(),
            operation: operation.into(),
            argument: argument.to_bytes().into(),
        }
    }

    /// Looks what the core knows.
    fn look(&mut self) {
        let tasks = self.core.tasks();
        let keys = tasks.filter_map(|task| {
            let (key, _) = self.core.key_and_function(task)?;
            Some((task, decode_key(key)?))
        });
        self.keys = keys.collect();
        self.tasks = self.keys.iter().map(|(&task, &key)| (key, task)).collect();
    }
}

/// Keywords of a call.
pub(crate) fn keywords<'a>(words: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let words = words.into_iter();
    Value::Dict(
        words
            .map(|(name, value)| (Value::Str(name.to_owned()), value))
            .collect(),
    )
}

/// Keys, as a call has them.
pub(crate) fn key_values(keys: impl IntoIterator<Item = Key>) -> Value {
    let keys = keys.into_iter().map(encode_key);
    let keys = keys.filter_map(|key| Value::from_bytes(&key).ok());
    Value::List(keys.collect())
}

impl World {
    /// Tells the core what has happened, and does what it says.
    pub(crate) fn server_event(&mut self, event: Event) -> Result<(), String> {
        if !matches!(event, Event::Tick { .. }) {
            self.kernel.tell(|| format!("scheduler hears {event:?}"));
        }
        let mut effects = Effects::new();
        self.server
            .core
            .handle(event, self.kernel.now(), &mut effects);
        self.follow(effects)
    }

    /// Does what the core has said, and checks it.
    fn follow(&mut self, mut effects: Effects) -> Result<(), String> {
        self.perform_all(&mut effects)?;
        match self.kernel.steps().is_multiple_of(self.plan.check_every) {
            true => self.server.core.check(),
            false => Ok(()),
        }
        .map_err(|error| format!("the scheduler is broken: {error}"))
    }

    fn perform_all(&mut self, effects: &mut Effects) -> Result<(), String> {
        for effect in effects.drain(..) {
            self.kernel.tell(|| format!("scheduler: {effect:?}"));
            self.perform(effect)?;
        }
        self.server.look();
        self.oracle.forget_all_but(&self.server.keys);
        Ok(())
    }

    pub(crate) fn server_tick(&mut self) -> Result<(), String> {
        self.hand_in_reports()?;
        self.server_event(Event::Tick { was_stopped: false })?;
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
        match (message, self.server.at.get(&connection).copied()) {
            (Message::Register(machine), _) => self.register(connection, machine),
            (Message::Hello, _) => {
                let name = format!("client-{connection}");
                let (node, effects) = self.admit(hello(Role::Client, name))?;
                if let Node::Client(client) = node {
                    let keys = BTreeMap::new();
                    let session = Session { connection, keys };
                    self.server.clients.insert(client, session);
                }
                self.server.at.insert(connection, node);
                self.follow(effects)
            }
            (message, Some(Node::Worker(worker))) => self.told_by_worker(worker, message),
            (message, Some(Node::Client(client))) => self.told_by_client(client, message),
            (_, None) => Ok(()),
        }
    }

    fn admit(&mut self, hello: Hello) -> Result<(Node, Effects), String> {
        let mut effects = Effects::new();
        let now = self.kernel.now();
        let admitted = self.server.core.admit(hello, now, &mut effects);
        Ok((admitted.map_err(|refused| refused.to_string())?, effects))
    }

    fn register(&mut self, connection: usize, machine: usize) -> Result<(), String> {
        let plan = self.plan.machines[machine].clone();
        let mut name = text(plan.name);
        if !self.plan.replaces {
            name = format!("{name}-{connection}");
        } else if let Some(before) = self.server.worker_of(machine) {
            self.server_event(Event::WorkerGone(before, Cause::Unreachable))?;
        }
        let role = Role::Worker {
            // Its host is what tasks call the machine.
            address: format!("sim://{}:{connection}", text(plan.name)),
            host: text(plan.host),
            threads: plan.threads,
            memory: plan.memory,
            resources: match plan.resource > 0.0 {
                true => vec![(text(RESOURCE), plan.resource)],
                false => Vec::new(),
            },
        };
        let (node, effects) = self.admit(hello(role, name))?;
        let Node::Worker(worker) = node else {
            return Err("a worker is a client".into());
        };
        let registration = Registration {
            connection,
            machine,
            is_lost: false,
            met: BTreeSet::new(),
            defined: BTreeSet::new(),
        };
        self.server.workers.insert(worker, registration);
        self.server.at.insert(connection, node);
        self.places.insert(worker, machine);
        self.oracle.joined(worker, plan.memory);
        self.send_from_server(connection, Message::Welcome(worker));
        self.follow(effects)
    }

    /// A machine's worker is asked to leave.
    pub(crate) fn drain(&mut self, machine: usize) -> Result<(), String> {
        self.hand_in_reports()?;
        match self.server.worker_of(machine) {
            Some(worker) => {
                self.oracle.drains(worker);
                self.server_event(Event::FromWorker(worker, FromWorker::Drain))
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
        let keys = key_values(tasks.iter().map(|task| self.server.keys[task]));
        self.ask(self.server.sidecar, "invalidate", &keys)
    }

    /// Some tasks that have ended would return something else now.
    pub(crate) fn discard(&mut self) -> Result<(), String> {
        self.hand_in_reports()?;
        let tasks: Vec<_> = self
            .server
            .keys
            .iter()
            .map(|(&id, &key)| (id, key))
            .collect();
        let keys = self.oracle.changeable(&tasks);
        let keys = self.kernel.random.some(&keys, 40);
        self.summary.changed += keys.len() as u64;
        self.oracle.versions.change(&keys, &self.plan.universe);
        let meant = |(id, key): &(TaskId, Key)| keys.contains(key).then_some(*id);
        let meant: Vec<_> = tasks.iter().filter_map(meant).collect();
        self.oracle.invalidated(&meant);
        let argument = keywords([("keys", key_values(keys)), ("outputs", Value::Bool(true))]);
        self.ask(self.server.sidecar, "invalidate", &argument)
    }

    pub(crate) fn restart(&mut self) -> Result<(), String> {
        self.hand_in_reports()?;
        self.oracle.has_restarted = true;
        self.ask(self.server.sidecar, "restart", &keywords([]))
    }

    /// Somebody asks the scheduler.
    pub(crate) fn ask(
        &mut self,
        client: ClientId,
        operation: &str,
        argument: &Value,
    ) -> Result<(), String> {
        let call = self.server.call(operation, argument);
        self.server_event(Event::FromClient(client, FromClient::Call(call)))
    }

    fn told_by_worker(&mut self, worker: WorkerId, message: Message) -> Result<(), String> {
        match message {
            // Also what a worker says that was lost: it is the core's to ignore it.
            Message::Report(report) => self.reported(worker, report),
            Message::FromWorker(message) => self.server_event(Event::FromWorker(worker, *message)),
            Message::Closed => self.server_event(Event::WorkerGone(worker, Cause::Signal(9))),
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
        let (mut effects, now) = (Effects::new(), self.kernel.now());
        for (worker, report) in mem::take(&mut self.server.together) {
            self.kernel
                .tell(|| format!("scheduler hears {worker:?} report {report:?}"));
            self.oracle.heard(worker, &report, now)?;
            let mut reports = vec![report];
            let core = &mut self.server.core;
            core.reports(worker, &mut reports.drain(..), now, &mut effects);
            self.perform_all(&mut effects)?;
        }
        while self.server.core.distribute(now, &mut effects) {}
        self.follow(effects)
    }

    fn perform(&mut self, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Command(worker, command) => self.command(worker, command),
            Effect::ToWorker(worker, message) => self.tell_worker(worker, message),
            Effect::ToClient(client, message) => self.tell_client(client, message),
            Effect::WorkerLost(worker, lost) => {
                if let Cause::Misbehaved(reason) = lost.cause {
                    return Err(format!("{worker:?} is dismissed: {reason}"));
                }
                let Some(registration) = self.server.workers.get_mut(&worker) else {
                    return Err(format!("{worker:?} is lost, and was never there"));
                };
                if mem::replace(&mut registration.is_lost, true) {
                    return Err(format!("{worker:?} is lost twice"));
                }
                let connection = registration.connection;
                self.summary.lost += 1;
                self.oracle.lost(worker);
                self.close(connection, false, Duration::ZERO);
                Ok(())
            }
            Effect::ClientLost { client, why, .. } => {
                self.server.clients.remove(&client);
                match why.filter(|why| why != LEFT) {
                    Some(why) => Err(format!("{client:?} {why}")),
                    None => Ok(()),
                }
            }
            // The client is told, too.
            Effect::Doomed(..) => Ok(()),
            // Of what an input of a shuffle has.
            Effect::Warn(_) if self.may_differ() => {
                self.summary.differences += 1;
                Ok(())
            }
            Effect::End | Effect::Warn(_) => Err("the scheduler ends, or warns".into()),
            Effect::Fault(error) => Err(format!("the scheduler says: {error}")),
        }
    }

    fn command(&mut self, worker: WorkerId, command: Command) -> Result<(), String> {
        let now = self.kernel.now();
        self.oracle.said(worker, &command, &self.server.keys, now)?;
        let Some(registration) = self.server.workers.get(&worker) else {
            return Err(format!(
                "{worker:?} never registered, and is told {command:?}"
            ));
        };
        registration.must_have_met(&command)?;
        if let Command::Assign(assignment) = &command
            && let Some(key) = key_of_task(&assignment.recipe)
        {
            let uses = self.plan.universe.spec(key).definitions();
            registration.must_have_defined(key, &uses)?;
        }
        self.send_from_server(registration.connection, Message::Command(command));
        Ok(())
    }

    fn tell_worker(&mut self, worker: WorkerId, message: ToWorker) -> Result<(), String> {
        let Some(registration) = self.server.workers.get_mut(&worker) else {
            return Err(format!(
                "{worker:?} never registered, and is told {message:?}"
            ));
        };
        match message {
            ToWorker::Define(definition) => {
                let name = (definition.client, definition.number);
                if !registration.defined.insert(name) {
                    return Err(format!("{worker:?} is sent {name:?} twice"));
                }
            }
            ToWorker::ForgetClient(client) => {
                registration.defined.retain(|(owner, _)| *owner != client);
            }
            ToWorker::Withdraw { client, numbers } => {
                let is_meant = |(owner, number): &(ClientId, u32)| {
                    *owner == client && numbers.contains(number)
                };
                registration.defined.retain(|name| !is_meant(name));
            }
            ToWorker::Peer { worker: other, .. } if !registration.met.insert(other) => {
                return Err(format!("{worker:?} is told twice where {other:?} is"));
            }
            ToWorker::Leave { .. } => {
                let connection = registration.connection;
                self.send_from_server(connection, Message::Leave);
            }
            ToWorker::ToNode(_) | ToWorker::PeerLost(_) | ToWorker::Answer(_)
                if self.shuffles.is_some() =>
            {
                let connection = registration.connection;
                self.send_from_server(connection, Message::ToWorker(Box::new(message)));
            }
            _ => {}
        }
        Ok(())
    }

    /// Says something to a client.
    fn tell_client(&mut self, client: ClientId, message: ToClient) -> Result<(), String> {
        let other_stream = match &message {
            ToClient::Notice { id, standing } => {
                self.verify_notice(client, *id, standing)?;
                false
            }
            ToClient::Place { .. } | ToClient::Bring(_) | ToClient::Unkeep(_) => false,
            ToClient::Stuck { keys, reason } => {
                let keys: Vec<_> = keys.iter().map(|key| decode_key(key)).collect();
                self.server.stuck = Some(format!("{reason:?}: {keys:?}"));
                true
            }
            // What is known by calls, and leaves the rest alone.
            _ => true,
        };
        // Nobody listens at the sidecar's.
        if let Some(session) = self.server.clients.get(&client) {
            let (connection, message) = (session.connection, Message::ToClient(Box::new(message)));
            match other_stream {
                true => self.send_with_other_stream(connection, false, message),
                false => self.send_from_server(connection, message),
            }
        }
        Ok(())
    }
}

/// How the end of a client's connection is told that left.
pub(crate) const LEFT: &str = "has left";

impl Registration {
    /// Whoever a command names, the worker was told where that is.
    fn must_have_met(&self, command: &Command) -> Result<(), String> {
        let met = |holders: &Holders| holders.iter().all(|holder| self.met.contains(holder));
        let has_met = match command {
            Command::Assign(assignment) => {
                let mut inputs = assignment.inputs.iter();
                inputs.all(|input| !matches!(&input.place, Place::At(holders) if !met(holders)))
            }
            Command::Copy { holders, .. } => met(holders),
            _ => true,
        };
        match has_met {
            true => Ok(()),
            false => Err(format!(
                "{command:?} names somebody, and nobody said where that is"
            )),
        }
    }

    /// What a task uses, the worker was sent by some client.
    fn must_have_defined(&self, key: Key, uses: &[u32]) -> Result<(), String> {
        let mut clients = self.defined.iter().map(|(client, _)| *client);
        let has_all = |client: ClientId| {
            let mut uses = uses.iter();
            uses.all(|&place| {
                let is_it = |&(owner, number): &(ClientId, u32)| {
                    owner == client && number % DEFINITIONS == place
                };
                self.defined.iter().any(is_it)
            })
        };
        match clients.any(has_all) {
            true => Ok(()),
            false => Err(format!("{key:?} runs where nobody has defined {uses:?}")),
        }
    }
}
