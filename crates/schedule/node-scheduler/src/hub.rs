//! What the scheduler's thread holds, and what it does with what arrives.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tracing::{debug, error, warn};
use treadle_gateway::{Core, Effect, Effects, Event, Node, error_text};
use treadle_host::pages::Reply;
use treadle_messages::{Answer, Call, FromClient, FromWorker, Leave, ToClient, ToWorker, Welcome};
use treadle_net::{NetError, Peer};
use treadle_reactor::awake;
use treadle_schedule_wire::{
    HELLO, LARGEST_MESSAGE, Link, NodeError, Packet, WELCOME, decode_hello, encode_welcome,
};
use treadle_types::{Cause, ClientId, Report, WorkerId};

use super::links::{ClientLink, Connection, Links, WorkerLink};
use super::metrics::Rates;
use super::sight::{Inbox, Question};
use super::stream::Stream;
use super::tracing::Tracing;
use super::watching::Told;
use treadle_sight::Event as Happened;

/// Packets taken from one node in a turn, before the others have theirs.
const TURN: usize = 16;
/// Bytes that may wait to be sent to one node.
const MOST_WAITING: usize = 4 * LARGEST_MESSAGE as usize;
/// As many times the largest message may wait for a node; then no questions and answers are added: the
/// node itself stays.
const MOST_ASKED: usize = 2;

/// All that the scheduler's thread holds.
pub(super) struct Hub {
    pub(super) core: Core,
    /// What the core said, and is not done yet.
    effects: Effects,
    epoch: Duration,
    /// When that was, by the wall clock.
    pub(super) started: SystemTime,
    /// Since the server started.
    pub(super) now: Duration,
    pub(super) links: Links,
    largest_message: u64,
    /// Stops of this process that were taken into account.
    stops: u64,
    pub(super) stream: Stream,
    pub(super) tracing: Tracing,
    /// Where it is left what is done; `None`: nobody watches.
    pub(super) sight: Option<Arc<Inbox>>,
    /// When the cluster was looked at last, for that.
    pub(super) watched: Duration,
    /// What was told then of the groups of tasks.
    pub(super) told: Told,
    pub(super) rates: Rates,
    pub(super) is_ending: bool,
    packets: Vec<Packet>,
    /// The reports of a packet.
    reports: Vec<Report>,
}

impl Hub {
    pub(super) fn new(core: Core, largest_message: u64, sight: Option<Arc<Inbox>>) -> Self {
        let started = SystemTime::UNIX_EPOCH + core.settings().started;
        Self {
            core,
            effects: Effects::new(),
            epoch: awake::now(),
            started,
            now: Duration::ZERO,
            links: Links::default(),
            largest_message,
            stops: awake::stops(),
            stream: Stream::default(),
            tracing: Tracing::default(),
            sight,
            watched: Duration::ZERO,
            told: Told::default(),
            rates: Rates::default(),
            is_ending: false,
            packets: Vec::new(),
            reports: Vec::new(),
        }
    }

    pub(super) fn look_at_clock(&mut self) {
        self.now = awake::now().saturating_sub(self.epoch);
    }

    /// Tells the core what has happened, and does what it says.
    fn handle(&mut self, event: Event) {
        self.core.handle(event, self.now, &mut self.effects);
        self.follow();
    }

    /// Does what the core has said.
    #[inline]
    fn follow(&mut self) {
        let mut effects = mem::take(&mut self.effects);
        // By reference: they are large to move.
        for effect in &effects {
            match effect {
                Effect::Command(worker, command) => self.links.command(*worker, command),
                Effect::ToWorker(worker, message) => self.links.tell_worker(*worker, message),
                Effect::ToClient(client, message) => self.links.tell_client(*client, message),
                other => self.follow_rare(other),
            }
        }
        effects.clear();
        // Its memory is used again.
        self.effects = effects;
    }

    fn follow_rare(&mut self, effect: &Effect) {
        match effect {
            Effect::Command(..) | Effect::ToWorker(..) | Effect::ToClient(..) => {}
            Effect::WorkerLost(worker, lost) => {
                let (name, address, cause) = (&lost.name, &lost.address, &lost.cause);
                if matches!(cause, Cause::Drained | Cause::Exited(0)) {
                    debug!(
                        target: treadle_log::SCHEDULER,
                        "worker {name} at {address} has left: {cause}"
                    );
                } else {
                    self.warn(format!("worker {name} at {address} is lost: {cause}"));
                }
                self.links.end_worker(*worker);
                self.trace_loss(*worker, cause);
                self.watch_loss(*worker, cause);
            }
            Effect::ClientLost { client, name, why } => {
                if let Some(why) = why {
                    self.warn(format!("client {name} {why}"));
                }
                self.stop_tracing(*client, None);
                if self
                    .links
                    .end_client(*client)
                    .is_some_and(|link| link.streams)
                {
                    self.stream.subscribe(false);
                }
            }
            Effect::Doomed(key, text) => self.watch_doom(key, text),
            Effect::End => self.is_ending = true,
            Effect::Warn(text) => self.warn(text.clone()),
            Effect::Fault(error) => {
                error!(
                    target: treadle_log::SCHEDULER,
                    "an event of the server's own was refused: {error}"
                );
            }
        }
    }

    /// Somebody connected.
    pub(super) fn accept(&mut self, key: usize, peer: Peer) {
        self.links.accept(key, peer, self.now);
    }

    /// Something happened on a connection. Returns whether there may be more.
    pub(super) fn turn(&mut self, key: usize) -> bool {
        let mut packets = mem::take(&mut self.packets);
        let more = match self.links.connection(key) {
            None => false,
            Some(Connection::Stranger(..)) => self.turn_of_stranger(key, &mut packets),
            Some(Connection::Node(Node::Worker(worker))) => {
                let worker = *worker;
                self.turn_of_worker(worker, &mut packets)
            }
            Some(Connection::Node(Node::Client(client))) => {
                let client = *client;
                self.turn_of_client(client, &mut packets)
            }
        };
        packets.clear();
        self.packets = packets;
        more
    }

    fn turn_of_stranger(&mut self, key: usize, packets: &mut Vec<Packet>) -> bool {
        let Some(Connection::Stranger(link, _)) = self.links.connection(key) else {
            return false;
        };
        let outcome = link.receive(1, packets);
        let peer = link.peer().clone();
        match packets.pop() {
            Some(packet) if packet.kind == HELLO => self.greet(key, &peer, &packet.bytes),
            // What it said after that is read by the node's own link.
            Some(_) => self.links.drop_stranger(key),
            None if outcome.is_err() => {
                self.links.drop_stranger(key);
                return false;
            }
            None => return false,
        }
        true
    }

    /// A node has introduced itself.
    fn greet(&mut self, key: usize, peer: &Peer, words: &[u8]) {
        let (admitted, welcome) = match self.admit(words) {
            Ok(node) => {
                let id = match node {
                    Node::Worker(worker) => worker.0,
                    Node::Client(client) => client.0,
                };
                let info = self.core.about().to_bytes().into();
                (Some(node), Welcome::Accepted { id, info })
            }
            Err(reason) => {
                self.warn(format!("{} was refused: {reason}", peer.address()));
                (None, Welcome::Refused(reason))
            }
        };
        // Fails where the connection ended, which is noticed elsewhere.
        let _ = peer.send(WELCOME, &[encode_welcome(&welcome).into()]);
        let Some(node) = admitted else {
            return self.links.drop_stranger(key);
        };
        // Before what the core says is followed: some of it is for this link.
        self.links.add(key, node, peer, self.largest_message);
        match node {
            Node::Worker(worker) => {
                if let Some(node) = self.core.worker(worker) {
                    debug!(
                        target: treadle_log::SCHEDULER,
                        "worker {} at {} has joined", node.name, node.address
                    );
                }
                self.follow();
                self.trace_join(worker);
                self.watch_join(worker);
            }
            Node::Client(client) => {
                if let Some(node) = self.core.client(client) {
                    debug!(target: treadle_log::SCHEDULER, "client {} has connected", node.name);
                }
                self.follow();
            }
        }
    }

    /// Has the core let a node in; or, why it does not.
    fn admit(&mut self, words: &[u8]) -> Result<Node, String> {
        let hello = decode_hello(words).map_err(|error| error.to_string())?;
        if let Some(before) = self.core.find_worker(&hello.name)
            && self.links.has_ended(before)
        {
            // Nobody has said why.
            self.handle(Event::WorkerGone(before, Cause::Unreachable));
        }
        let admitted = self.core.admit(hello, self.now, &mut self.effects);
        admitted.map_err(|refused| refused.to_string())
    }

    fn turn_of_worker(&mut self, worker: WorkerId, packets: &mut Vec<Packet>) -> bool {
        let Some(WorkerLink { link, .. }) = self.links.worker(worker) else {
            return false;
        };
        let received = link.flush().and_then(|_| link.receive(TURN, packets));
        for packet in packets.drain(..) {
            if let Err(error) = self.packet_of_worker(worker, packet) {
                self.reports.clear();
                let cause = Cause::Misbehaved(error.to_string());
                self.handle(Event::WorkerGone(worker, cause));
                return false;
            }
        }
        // What came before the connection broke was taken in.
        match received {
            Ok(more) => more,
            Err(NodeError::Net(_)) => {
                self.handle(Event::WorkerBroke(worker));
                false
            }
            Err(error) => {
                let cause = Cause::Misbehaved(error.to_string());
                self.handle(Event::WorkerGone(worker, cause));
                false
            }
        }
    }

    fn packet_of_worker(&mut self, worker: WorkerId, packet: Packet) -> Result<(), NodeError> {
        self.core.hears(worker, self.now);
        for message in Link::<FromWorker, ToWorker>::decode(packet)? {
            let message = message?;
            if let FromWorker::Report(report) = message {
                if let Report::Failed { object, error, .. } = &report {
                    self.watch_failure(worker, *object, error);
                }
                self.reports.push(report);
                continue;
            }
            // In the order in which the worker said it.
            self.handle_reports(worker);
            match message {
                FromWorker::Call(call) => self.call(Node::Worker(worker), call),
                FromWorker::Answer(answer) => {
                    let answer = self.fitting(answer);
                    self.handle(Event::FromWorker(worker, FromWorker::Answer(answer)));
                }
                other => self.handle(Event::FromWorker(worker, other)),
            }
        }
        self.handle_reports(worker);
        Ok(())
    }

    /// Handles the reports that came in a row.
    fn handle_reports(&mut self, worker: WorkerId) {
        let mut reports = mem::take(&mut self.reports);
        self.rates.reports += reports.len() as u64;
        if self.stream.is_on() {
            for report in &reports {
                self.stream_report(worker, report);
            }
        }
        let mut rest = reports.drain(..);
        while rest.len() > 0 {
            self.core
                .reports(worker, &mut rest, self.now, &mut self.effects);
            self.follow();
        }
        drop(rest);
        self.reports = reports;
    }

    fn turn_of_client(&mut self, client: ClientId, packets: &mut Vec<Packet>) -> bool {
        let Some(ClientLink { link, .. }) = self.links.client(client) else {
            return false;
        };
        let received = match link.flush() {
            // It does not read what it is told: nothing more is taken from it until it does.
            Ok(false) => Ok(false),
            Ok(true) => link.receive(TURN, packets),
            Err(error) => Err(error),
        };
        for packet in packets.drain(..) {
            if let Err(error) = self.packet_of_client(client, packet) {
                self.throw_out(client, &error.to_string());
                return false;
            }
        }
        match received {
            Ok(more) => more,
            Err(NodeError::Net(error)) => {
                self.client_broke(client, &error);
                false
            }
            Err(error) => {
                self.throw_out(client, &error.to_string());
                false
            }
        }
    }

    fn client_broke(&mut self, client: ClientId, error: &NetError) {
        self.handle(Event::ClientGone(client, format!("is lost: {error}")));
    }

    fn throw_out(&mut self, client: ClientId, reason: &str) {
        let how = format!("is thrown out: {reason}");
        self.handle(Event::ClientGone(client, how));
    }

    fn packet_of_client(&mut self, client: ClientId, packet: Packet) -> Result<(), NodeError> {
        for message in Link::<FromClient, ToClient>::decode(packet)? {
            match message? {
                FromClient::Submit(batch) => {
                    let traced = self.trace_clock(&batch);
                    self.watch_submission(client, &batch);
                    self.handle(Event::FromClient(client, FromClient::Submit(batch)));
                    if let Some((began, batch)) = traced {
                        self.trace_submission(client, began, batch);
                        self.trace_shuffles();
                    }
                }
                FromClient::Call(call) => self.call(Node::Client(client), call),
                FromClient::Answer(answer) => {
                    let answer = self.fitting(answer);
                    self.handle(Event::FromClient(client, FromClient::Answer(answer)));
                }
                other => self.handle(Event::FromClient(client, other)),
            }
        }
        Ok(())
    }

    /// A node asks something: what was watched is known here, all else to the core.
    fn call(&mut self, asker: Node, call: Call) {
        self.rates.calls += 1;
        if call.node.is_empty()
            && let Some(answer) = self
                .take_records(asker, &call)
                .or_else(|| self.answer_about_past(asker, &call))
        {
            let answer = answer.map(|value| value.to_bytes().into());
            let result = answer.map_err(|error| error_text(error.to_string()));
            return self.answer(asker, call.id, result);
        }
        let bytes = call.argument.len();
        if let Some(target) = self.core.resolve(&call.node)
            && !self.has_room(target, bytes)
        {
            let text = crowded(&call.node, bytes);
            return self.answer(asker, call.id, Err(error_text(text)));
        }
        self.handle(match asker {
            Node::Worker(worker) => Event::FromWorker(worker, FromWorker::Call(call)),
            Node::Client(client) => Event::FromClient(client, FromClient::Call(call)),
        });
        // A worker that asks for a shuffle may have made it begin anew.
        self.trace_shuffles();
    }

    /// The answer of a node, or an error in its place that takes less room.
    fn fitting(&mut self, answer: Answer) -> Answer {
        let bytes = answer.result.as_ref().map_or(0, Bytes::len);
        match self.core.asker(&answer) {
            Some(asker) if !self.has_room(asker, bytes) => {
                let text = crowded(&self.core.called(asker), bytes);
                let result = Err(error_text(text));
                Answer { result, ..answer }
            }
            _ => answer,
        }
    }

    fn answer(&mut self, asker: Node, id: u64, result: Result<Bytes, Bytes>) {
        let answer = Answer { id, result };
        match asker {
            Node::Worker(worker) => self.links.tell_worker(worker, &ToWorker::Answer(answer)),
            Node::Client(client) => self.links.tell_client(client, &ToClient::Answer(answer)),
        }
    }

    /// Whether a node has been sent so much less than it reads that this can wait for it, too.
    fn has_room(&mut self, node: Node, bytes: usize) -> bool {
        let most = MOST_ASKED * self.largest_message as usize;
        bytes == 0 || self.links.kept(node) + bytes <= most
    }

    /// Sends what was pushed, and to workers what they can take by now.
    pub(super) fn flush(&mut self) {
        let mut more = true;
        while more {
            more = self.core.distribute(self.now, &mut self.effects);
            self.follow();
        }
        while let Some(failed) = self.links.flush(MOST_WAITING) {
            match failed {
                (Node::Worker(worker), reason) => {
                    let cause = Cause::Misbehaved(reason);
                    self.handle(Event::WorkerGone(worker, cause));
                }
                (Node::Client(client), reason) => self.throw_out(client, &reason),
            }
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self) {
        let now = self.now;
        // A worker whose large message is on its way says nothing else meanwhile.
        if now >= self.core.next_look() {
            for worker in self.links.arriving() {
                self.core.hears(worker, now);
            }
        }
        let stops = awake::stops();
        let was_stopped = mem::replace(&mut self.stops, stops) != stops;
        self.handle(Event::Tick { was_stopped });
        self.trace_tick();
        self.watch_ended_shuffles();
        self.watch_tick();
        self.links.look_after_strangers(now);
        self.rates.tick(now);
    }

    /// The log has a line more, and whoever watches is told of it.
    fn warn(&self, text: String) {
        warn!(target: treadle_log::SCHEDULER, "{text}");
        if let Some(sight) = &self.sight {
            sight.event(Happened::Line { level: 30, text });
        }
    }

    /// Somebody asks what was done.
    pub(super) fn ask_sight(&self, question: Question, reply: Reply) {
        if let Some(sight) = &self.sight {
            sight.ask(question, reply);
        }
    }

    /// Tells everybody that the scheduler ends. Returns the connections, which are being closed.
    pub(super) fn farewell(&mut self) -> Vec<Peer> {
        self.watch_ended_shuffles();
        let leave = ToWorker::Leave {
            cause: Leave::Over,
            reason: "the scheduler ends".into(),
        };
        let workers: Vec<WorkerId> = self.core.workers().map(|node| node.id).collect();
        for worker in workers {
            self.links.tell_worker(worker, &leave);
        }
        self.flush();
        self.links.close()
    }
}

fn crowded(node: &str, bytes: usize) -> String {
    format!(
        "{bytes} bytes for {node:?} were dropped, since it has not read those before: ask for less \
         at a time, or scatter large values and pass their futures"
    )
}
