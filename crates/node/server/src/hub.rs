//! What the scheduler's thread holds, and what it does with what arrives.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tracing::warn;
use treadle_messages::{Definition, FromClient, FromWorker};
use treadle_net::{NetError, Peer, awake};
use treadle_node_wire::NodeError;
use treadle_node_wire::{HELLO, LARGEST_MESSAGE, LONGEST_HELLO, Link, Packet};
use treadle_scheduler::{Effects, Event, Scheduler, SchedulerError};
use treadle_types::{Cause, ClientId, Report, TaskId, WorkerId};

use super::awaited::Awaited;
use super::calls::Calls;
use super::definitions::{Defined, Definitions};
use super::keys::Keys;
use super::members::Audience;
use super::metrics::Counters;
use super::nodes::{Clients, Node, Workers};
use super::shuffles::Shuffles;
use super::stream::Stream;
use super::symbols::Symbols;
use super::tracing::Tracing;
use super::waiting::Waiting;

/// Packets taken from one node in a turn, before the others have theirs.
const TURN: usize = 16;
/// Reports that the core takes at a time: what follows from them shall fit into the processor's
/// caches.
const TOGETHER: usize = 64;
/// Bytes that may wait to be sent to one node.
const MOST_WAITING: usize = 4 * LARGEST_MESSAGE as usize;
/// How long a node may take for its first words.
const GREETING: Duration = Duration::from_secs(10);

/// What the hub needs to know of its surroundings.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) id: String,
    pub(super) address: String,
    pub(super) http: Option<(String, u16)>,
    /// `major.minor`; of the first node, if it was not given.
    pub(super) python: Option<String>,
    pub(super) worker_timeout: Duration,
    pub(super) largest_message: u64,
    pub(super) started: SystemTime,
}

/// What a connection of the poller is.
#[derive(Debug)]
pub(super) enum Connection {
    /// It has not said who it is.
    Stranger(Box<Link<FromClient, treadle_messages::ToClient>>, Duration),
    Node(Node),
}

/// A node broke the protocol: it is thrown out.
#[derive(Debug)]
pub(super) struct Broken(pub(super) String);

impl Broken {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl From<SchedulerError> for Broken {
    fn from(error: SchedulerError) -> Self {
        Self(error.to_string())
    }
}

impl From<treadle_node_wire::WireError> for Broken {
    fn from(error: treadle_node_wire::WireError) -> Self {
        Self(error.to_string())
    }
}

impl From<NodeError> for Broken {
    fn from(error: NodeError) -> Self {
        Self(error.to_string())
    }
}

/// All that the scheduler's thread holds.
pub(super) struct Hub {
    pub(super) settings: Settings,
    pub(super) core: Scheduler,
    pub(super) effects: Effects,
    /// Tasks that are to be forgotten.
    pub(super) forgotten: Vec<TaskId>,
    /// Events that follow from effects.
    pub(super) later: VecDeque<Event>,
    epoch: Duration,
    /// Since the server started.
    pub(super) now: Duration,
    pub(super) keys: Keys,
    pub(super) symbols: Symbols,
    pub(super) definitions: Definitions,
    pub(super) workers: Workers,
    pub(super) clients: Clients,
    pub(super) audience: Audience,
    pub(super) calls: Calls,
    /// By their keys in the poller.
    pub(super) connections: HashMap<usize, Connection, foldhash::fast::RandomState>,
    /// Nodes to which something is to be sent.
    pub(super) dirty: Vec<Node>,
    /// When to look next for workers that are gone.
    pub(super) look_at: Duration,
    /// When the last tick was.
    pub(super) ticked: Duration,
    /// Stops of this process that were taken into account.
    pub(super) stops: u64,
    /// Workers that were found to be gone.
    pub(super) losing: Vec<(WorkerId, Cause, String)>,
    /// Connections that are being closed.
    pub(super) closing: Vec<Peer>,
    /// Of the cancellation at hand.
    pub(super) reason: Bytes,
    /// Small values that people asked to be at several workers.
    pub(super) spread: HashMap<TaskId, Vec<WorkerId>>,
    /// Counts values that were placed.
    pub(super) turn: u32,
    pub(super) waiting: Waiting,
    pub(super) awaited: Awaited,
    pub(super) shuffles: Shuffles,
    pub(super) stream: Stream,
    pub(super) tracing: Tracing,
    /// Whether clients shall tell the sidecar what they submit.
    pub(super) observed: bool,
    pub(super) counters: Counters,
    pub(super) is_ending: bool,
    packets: Vec<Packet>,
    /// The reports of a packet.
    reports: Vec<Report>,
}

impl Hub {
    pub(super) fn new(settings: Settings, core: Scheduler) -> Self {
        Self {
            settings,
            core,
            effects: Effects::default(),
            forgotten: Vec::new(),
            later: VecDeque::new(),
            reports: Vec::new(),
            spread: HashMap::new(),
            epoch: awake::now(),
            now: Duration::ZERO,
            keys: Keys::default(),
            symbols: Symbols::new(),
            definitions: Definitions::default(),
            workers: Workers::default(),
            clients: Clients::default(),
            audience: Audience::default(),
            calls: Calls::default(),
            connections: HashMap::default(),
            dirty: Vec::new(),
            look_at: Duration::ZERO,
            ticked: Duration::ZERO,
            stops: awake::stops(),
            losing: Vec::new(),
            closing: Vec::new(),
            reason: Bytes::new(),
            turn: 0,
            waiting: Waiting::default(),
            awaited: Awaited::default(),
            shuffles: Shuffles::default(),
            stream: Stream::default(),
            tracing: Tracing::default(),
            observed: false,
            counters: Counters::default(),
            is_ending: false,
            packets: Vec::new(),
        }
    }

    pub(super) fn look_at_clock(&mut self) {
        self.now = awake::now().saturating_sub(self.epoch);
    }

    /// Whether a worker gets tasks.
    pub(super) fn is_running(&self, worker: WorkerId) -> bool {
        let worker = self.core.worker(worker);
        worker.is_some_and(|worker| worker.status() == treadle_scheduler::WorkerStatus::Running)
    }

    /// Somebody connected.
    pub(super) fn accept(&mut self, key: usize, peer: Peer) {
        let link = Box::new(Link::new(peer, LONGEST_HELLO as u64));
        self.connections
            .insert(key, Connection::Stranger(link, self.now));
    }

    /// Something happened on a connection. Returns whether there may be more.
    pub(super) fn turn(&mut self, key: usize) -> bool {
        let more = match self.connections.get_mut(&key) {
            None => false,
            Some(Connection::Stranger(..)) => self.turn_of_stranger(key),
            Some(Connection::Node(Node::Worker(worker))) => {
                let worker = *worker;
                self.turn_of_worker(worker)
            }
            Some(Connection::Node(Node::Client(client))) => {
                let client = *client;
                self.turn_of_client(client)
            }
        };
        self.lose_workers();
        more
    }

    fn turn_of_stranger(&mut self, key: usize) -> bool {
        let mut packets = std::mem::take(&mut self.packets);
        let Some(Connection::Stranger(link, _)) = self.connections.get_mut(&key) else {
            return false;
        };
        let outcome = link.receive(1, &mut packets);
        let peer = link.peer().clone();
        let has_spoken = !packets.is_empty();
        if let Some(packet) = packets.pop() {
            if packet.kind == HELLO {
                self.greet(key, &peer, &packet.bytes);
            } else {
                self.drop_stranger(key);
            }
        } else if outcome.is_err() {
            self.drop_stranger(key);
        }
        self.packets = packets;
        // What it said after that is read by the node's own link.
        has_spoken
    }

    fn drop_stranger(&mut self, key: usize) {
        if let Some(Connection::Stranger(link, _)) = self.connections.remove(&key) {
            link.peer().start_close();
            self.closing.push(link.peer().clone());
        }
    }

    fn turn_of_worker(&mut self, worker: WorkerId) -> bool {
        let mut packets = std::mem::take(&mut self.packets);
        let now = self.now;
        let Some(node) = self.workers.get_mut(worker) else {
            return false;
        };
        let received = node
            .link
            .flush()
            .and_then(|_| node.link.receive(TURN, &mut packets));
        if !packets.is_empty() {
            node.heard = now;
        }
        let mut outcome = Ok(());
        for packet in packets.drain(..) {
            if outcome.is_ok() {
                outcome = self.packet_of_worker(worker, packet);
            }
        }
        // Of a packet that broke the protocol.
        self.reports.clear();
        self.packets = packets;
        if let Err(Broken(reason)) = outcome {
            self.losing
                .push((worker, Cause::Misbehaved(reason), String::new()));
            return false;
        }
        match received {
            Ok(more) => more,
            Err(NodeError::Net(_)) => {
                self.worker_broke(worker);
                false
            }
            Err(error) => {
                let cause = Cause::Misbehaved(error.to_string());
                self.losing.push((worker, cause, String::new()));
                false
            }
        }
    }

    fn packet_of_worker(&mut self, worker: WorkerId, packet: Packet) -> Result<(), Broken> {
        for message in Link::<FromWorker, treadle_messages::ToWorker>::decode(packet)? {
            let message = message?;
            if let FromWorker::Report(report) = message {
                self.reports.push(report);
                continue;
            }
            self.handle_reports(worker);
            match message {
                FromWorker::Report(_) => {}
                FromWorker::AskSettled(client) => self.ask_settled(worker, client),
                FromWorker::ToMaster(message) => self.message_to_master(worker, message),
                FromWorker::Drain => {
                    self.server_leaves(worker);
                    self.feed_own(Event::Drain(worker));
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
        self.handle_reports(worker);
        Ok(())
    }

    /// Handles the reports that came in a row.
    fn handle_reports(&mut self, worker: WorkerId) {
        let mut reports = std::mem::take(&mut self.reports);
        if reports.len() > 1 {
            let objects = reports.iter().filter_map(Report::object);
            self.core.touch(objects.map(|object| object.task));
        }
        for report in &reports {
            self.note(worker, report);
        }
        let mut rest = reports.drain(..);
        while rest.len() > 0 {
            let some = rest.by_ref().take(TOGETHER);
            self.core
                .handle_reports(worker, some, self.now, &mut self.effects);
            self.act_on_effects();
        }
        drop(rest);
        self.reports = reports;
        self.forget();
    }

    /// Where a value is, as far as people are concerned: a small one at the worker that made it.
    pub(super) fn whereabouts(&self, task: TaskId) -> Vec<WorkerId> {
        let Some(view) = self.core.task(task) else {
            return Vec::new();
        };
        let holders: Vec<WorkerId> = view.holders().collect();
        if !holders.is_empty() || view.inline().is_none() {
            return holders;
        }
        if let Some(workers) = self.spread.get(&task) {
            let alive = |worker: &&WorkerId| self.core.worker(**worker).is_some();
            let workers: Vec<WorkerId> = workers.iter().filter(alive).copied().collect();
            if !workers.is_empty() {
                return workers;
            }
        }
        let maker = self
            .keys
            .maker(task)
            .filter(|maker| self.core.worker(*maker).is_some());
        let any = || self.core.workers().next().map(|worker| worker.id());
        maker.or_else(any).into_iter().collect()
    }

    /// Keeps what a report says that the core does not.
    #[inline]
    fn note(&mut self, worker: WorkerId, report: &Report) {
        if let Report::Finished { object, value, .. } = report
            && value.inline.is_some()
        {
            self.keys.set_maker(object.task, worker);
        }
        self.counters.reports += 1;
        if self.stream.is_on() {
            self.stream_report(worker, report);
        }
        if let Report::Health { .. } = report
            && let Some(node) = self.workers.get_mut(worker)
        {
            node.promised = 0;
        }
    }

    fn turn_of_client(&mut self, client: ClientId) -> bool {
        let mut packets = std::mem::take(&mut self.packets);
        let Some(node) = self.clients.get_mut(client) else {
            return false;
        };
        let received = match node.link.flush() {
            // It does not read what it is told: nothing more is taken from it until it does.
            Ok(false) => Ok(false),
            Ok(true) => node.link.receive(TURN, &mut packets),
            Err(error) => Err(error),
        };
        let mut outcome = Ok(());
        for packet in packets.drain(..) {
            if outcome.is_ok() {
                outcome = self.packet_of_client(client, packet);
            }
        }
        self.packets = packets;
        let outcome = outcome.and_then(|()| match received {
            Ok(more) => Ok(more),
            Err(NodeError::Net(error)) => {
                self.client_broke(client, &error);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        });
        outcome.unwrap_or_else(|Broken(reason)| {
            self.throw_out(client, &reason);
            false
        })
    }

    fn client_broke(&mut self, client: ClientId, error: &NetError) {
        if self.clients.get(client).is_some_and(|node| !node.leaves) {
            let name = self.called(Node::Client(client));
            warn!(target: treadle_log::SCHEDULER, "client {name} is lost: {error}");
        }
        self.lose_client(client);
    }

    fn throw_out(&mut self, client: ClientId, reason: &str) {
        let name = self.called(Node::Client(client));
        warn!(target: treadle_log::SCHEDULER, "client {name} is thrown out: {reason}");
        self.lose_client(client);
    }

    fn packet_of_client(&mut self, client: ClientId, packet: Packet) -> Result<(), Broken> {
        for message in Link::<FromClient, treadle_messages::ToClient>::decode(packet)? {
            self.message_of_client(client, message?)?;
            self.lose_workers();
        }
        Ok(())
    }

    fn message_of_client(&mut self, client: ClientId, message: FromClient) -> Result<(), Broken> {
        match message {
            FromClient::Define(definition) => self.define(client, definition)?,
            FromClient::Register(shuffle) => self.register_shuffle(client, shuffle)?,
            FromClient::Undefine(numbers) => self.definitions.undefine(client, &numbers),
            FromClient::Submit(batch) => {
                let traced = self.trace_clock(&batch);
                self.submit(client, batch)?;
                if let Some((began, batch)) = traced {
                    self.trace_submission(client, began, batch);
                }
            }
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
                let fed = self.feed(Event::Cancel {
                    client,
                    tasks,
                    force,
                });
                self.reason = Bytes::new();
                fed?;
            }
            FromClient::Retry(ids) => {
                let tasks = self.meant(client, &ids)?;
                self.feed(Event::Retry { client, tasks })?;
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

    /// Gives workers what they can take after what was reported.
    fn distribute(&mut self) {
        let mut more = true;
        while more {
            more = self.core.distribute(&mut self.effects);
            self.act_on_effects();
        }
        self.forget();
    }

    /// Sends what was pushed, and to workers what they can take by now.
    pub(super) fn flush(&mut self) {
        self.lose_workers();
        self.distribute();
        // Nobody waits for releases: they leave last.
        let mut later = Vec::new();
        while let Some(node) = self.dirty.pop().or_else(|| later.pop()) {
            let (flushed, waiting) = match node {
                Node::Worker(worker) => match self.workers.get_mut(worker) {
                    Some(node) => {
                        if std::mem::take(&mut node.only_releases) {
                            later.push(Node::Worker(worker));
                            continue;
                        }
                        node.dirty = false;
                        (node.link.flush(), node.link.waiting())
                    }
                    None => continue,
                },
                Node::Client(client) => match self.clients.get_mut(client) {
                    Some(node) => {
                        node.dirty = false;
                        (node.link.flush(), node.link.kept())
                    }
                    None => continue,
                },
            };
            let reason = match flushed {
                Err(error) => error.to_string(),
                Ok(_) if waiting > MOST_WAITING => {
                    format!("it does not read: {waiting} bytes wait to be sent to it")
                }
                Ok(_) => continue,
            };
            match node {
                Node::Worker(worker) => {
                    self.losing
                        .push((worker, Cause::Misbehaved(reason), String::new()));
                    self.lose_workers();
                }
                Node::Client(client) => self.throw_out(client, &reason),
            }
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self) {
        self.feed_own(Event::Tick);
        self.trace_tick();
        self.trim_definitions();
        self.look_after_workers();
        self.lose_workers();
        self.look_after_waiting();
        let now = self.now;
        let silent: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                matches!(connection, Connection::Stranger(_, since) if now >= *since + GREETING)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in silent {
            self.drop_stranger(key);
        }
        self.closing.retain(|peer| !peer.is_closed());
    }
}
