//! What the threads of a worker do together.
//!
//! Three locks, in this order: who takes in what the scheduler says, who sends, and the machine. No
//! Python runs and nothing waits under any of them, but for sending, which does not wait either.
//!
//! Two of the [recorder](recording) are beside them: who sends what was recorded, before the machine, and what
//! was recorded, after it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_broadcast_node::Plane;
use treadle_host::ServiceHost;
use treadle_memory::Registration;
use treadle_messages::{Definition, FromWorker, ToWorker};
use treadle_net::{Lane, Peer, Wait};
use treadle_reactor::thread::{caught, lock};
use treadle_schedule_wire::NodeError;
use treadle_schedule_wire::{self as wire, Packet};
use treadle_shuffle::AttemptId;
use treadle_shuffle_node::{self as shuffle};
use treadle_types::{Cause, ClientId, Command, ObjectId, WorkerId};
use treadle_worker::{Effect, Effects, Event, Outcome};

use super::casting::CastCalls;
use super::end::{End, EndCause};
use super::parker::Parker;
use super::peers::{Request, Requests};
use super::recording;
use super::runs::{Input, Runs, Task};
use super::tracing::{self, Tracing};
use super::values::Values;
use super::watched::Watched;
use super::{Embedder, Options};

/// Reports leave at the latest when so much time has passed since the last ones left and another
/// task is about to run.
const REPORT_EVERY: Duration = Duration::from_micros(50);
/// A thread that is one too many ends when it has waited so long.
const SURPLUS: Duration = Duration::from_secs(5);
/// A worker that gets no thread at all ends after so long: elsewhere its tasks may find one.
const NO_THREADS: Duration = Duration::from_secs(10);
/// Packets taken in at a time.
const PACKETS: usize = 64;

/// A worker.
pub(super) struct Inner {
    pub(super) this: Weak<Inner>,
    pub(super) options: Options,
    pub(super) id: WorkerId,
    pub(super) info: Bytes,
    pub(super) address: String,
    pub(super) scheduler: Peer,
    pub(super) control_lane: Lane,
    pub(super) data_lane: Lane,
    pub(super) machine: Mutex<Machine>,
    /// Who holds this takes in what the scheduler says; taken before `machine`.
    pub(super) inbox: Mutex<Link>,
    /// Who holds this sends; taken before `machine`.
    pub(super) sender: Mutex<Sender>,
    pub(super) runs: Mutex<Runs>,
    /// A task got its slot back, or the worker is over.
    pub(super) resumed: Condvar,
    pub(super) values: Values,
    /// Those that keep some as long as the worker lives.
    pub(super) _memory: [Registration; 3],
    pub(super) requests: Arc<Requests>,
    /// What others connect to.
    pub(super) services: Arc<ServiceHost>,
    /// That of the control thread.
    pub(super) parker: Arc<Parker>,
    pub(super) plane: Plane,
    pub(super) shuffles: shuffle::Plane,
    pub(super) definitions: Mutex<HashMap<(ClientId, u32), Definition>>,
    pub(super) cast_calls: CastCalls,
    pub(super) tracing: Arc<Tracing>,
    pub(super) embedder: OnceLock<Arc<dyn Embedder>>,
    pub(super) over: AtomicBool,
    /// Whether somebody wants no task to start; see [`Worker::hold`](super::Worker::hold).
    pub(super) held: AtomicBool,
    /// The scheduler is to be told at once how it is.
    pub(super) is_news: AtomicBool,
    /// Whether the embedder wants to hear of each task; see [`Worker::watch`](super::Worker::watch).
    pub(super) watched: AtomicBool,
    /// Why it is about to say goodbye: the end of the connection is its own doing then.
    pub(super) leaving: OnceLock<End>,
    pub(super) end: Mutex<Option<End>>,
    pub(super) ended: Condvar,
}

/// The connection to the scheduler: one for each direction, over the same peer.
pub(super) type Link = wire::Link<ToWorker, FromWorker>;

/// What is decided under one lock.
pub(super) struct Machine {
    pub(super) core: treadle_worker::Worker,
    pub(super) effects: Effects,
    pub(super) outbox: Vec<FromWorker>,
    pub(super) paused: bool,
    pub(super) watched: Watched,
    /// How many tasks have run.
    pub(super) ended: u64,
}

/// The sending side of the connection.
pub(super) struct Sender {
    pub(super) link: Link,
    /// When the last reports left.
    pub(super) left: Instant,
}

impl Inner {
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The embedder, if it wants to hear of each task.
    fn watcher(&self) -> Option<&dyn Embedder> {
        let watched = self.watched.load(Ordering::Relaxed);
        let embedder = watched.then(|| self.embedder.get()).flatten();
        embedder.map(|embedder| &**embedder)
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    pub(super) fn log(&self, line: fmt::Arguments<'_>) {
        let name = &*self.options.name;
        ::tracing::warn!(target: treadle_log::WORKER, worker = name, "{line}");
        self.tracing.line(30, &line.to_string());
    }

    pub(super) fn end(&self, end: End) {
        let end = self.leaving.get().cloned().unwrap_or(end);
        let reason = end.reason.clone();
        // Who sees that it is over may ask why.
        lock(&self.end).get_or_insert(end);
        self.over.store(true, Ordering::Release);
        self.plane.end();
        self.shuffles.end();
        if let Some(embedder) = self.embedder.get() {
            embedder.ended(&reason);
        }
        self.ended.notify_all();
        self.resumed.notify_all();
        self.control_lane.notify();
        self.requests.wake();
        self.leave();
    }

    /// Ends, since there is no connection to the scheduler any more.
    fn lost(&self, error: &dyn fmt::Display) {
        let reason = format!("the connection to the scheduler ended: {error}");
        self.end(End::new(EndCause::Lost, &reason));
    }

    /// Ends, since something here has failed: another process in its place may do better.
    pub(super) fn fail(&self, reason: &str) {
        if self.is_over() {
            return;
        }
        let name = &*self.options.name;
        ::tracing::error!(target: treadle_log::WORKER, worker = name, "{reason}: it ends");
        // The scheduler hears of it from the system at the latest.
        let end = End::new(EndCause::Failed, reason);
        let _ = caught(|| self.close(end.clone(), Cause::Exited(1), reason.to_owned()));
        self.end(end);
    }

    /// The life of a thread: the worker ends with it if it panics.
    pub(super) fn guard(worker: &Weak<Self>, body: impl FnOnce()) {
        if let Err(reason) = caught(body)
            && let Some(inner) = worker.upgrade()
        {
            inner.fail(&reason.to_string());
        }
    }

    /// The threads that serve others have nothing left to do.
    fn leave(&self) {
        self.services.end();
        self.parker.notify();
    }

    pub(super) fn next(&self, first: bool) -> Option<Task> {
        let since = Instant::now();
        let mut runs = lock(&self.runs);
        if first {
            runs.coming = runs.coming.saturating_sub(1);
            runs.threads += 1;
            runs.alone = None;
            // The control thread hears the scheduler until there is one.
            self.control_lane.notify();
        }
        loop {
            if self.is_over() {
                runs.threads -= 1;
                return None;
            }
            if let Some(task) = runs.queue.pop_front() {
                runs.taken += 1;
                self.parker.notify_begun();
                return Some(task);
            }
            let surplus = runs.threads > self.options.threads as usize;
            if surplus && since.elapsed() > SURPLUS {
                runs.threads -= 1;
                return None;
            }
            runs.idle += 1;
            drop(runs);
            // What its last task has left may be unsent, and it is about to sleep.
            self.flush();
            let mut done =
                || self.is_over() || !lock(&self.runs).queue.is_empty() || self.has_news();
            let waited = self.control_lane.wait(
                &mut done,
                &mut Wait {
                    deadline: Some(Instant::now() + SURPLUS),
                    interrupted: None,
                },
            );
            lock(&self.runs).idle -= 1;
            if waited.is_ok() {
                self.drain(1);
            }
            runs = lock(&self.runs);
        }
    }

    /// Whether the scheduler has said something. Whoever holds the inbox looks by itself.
    pub(super) fn has_news(&self) -> bool {
        self.scheduler.has_next() || self.inbox.try_lock().is_ok_and(|inbox| inbox.has_arrived())
    }

    /// Takes in what the scheduler has said.
    pub(super) fn drain(&self, taking: usize) {
        let Some(embedder) = self.embedder.get() else {
            return;
        };
        let mut others = Vec::new();
        let outcome = {
            let mut inbox = lock(&self.inbox);
            let mut packets = Vec::new();
            let mut outcome = Ok(true);
            while matches!(outcome, Ok(true)) {
                outcome = inbox.receive(PACKETS, &mut packets);
                for packet in packets.drain(..) {
                    if let Err(error) = self.take_in(packet, &**embedder, &mut others, taking) {
                        outcome = Err(error);
                        break;
                    }
                    // In their order, which only who has the inbox knows.
                    others = self.tell_shuffles(others);
                }
            }
            outcome
        };
        for message in others {
            match message {
                ToWorker::Call(_) => tracing::start(self),
                ToWorker::ForgetClient(client) => embedder.undefine(client),
                ToWorker::Withdraw { client, numbers } => embedder.withdraw(client, &numbers),
                ToWorker::Leave { cause, reason } => {
                    recording::send(self, true);
                    self.flush();
                    self.end(End::new(EndCause::Told(cause), &reason));
                }
                // Why, only clients are told, and want to know.
                ToWorker::PeerLost(worker) => self.plane.gone(worker, Cause::Unreachable),
                ToWorker::SessionOver(client) => self.plane.client_gone(client),
                ToWorker::Settled { client, settled } => self.plane.settled_is(client, settled),
                _ => {}
            }
        }
        if let Err(error) = outcome {
            self.lost(&error);
        }
    }

    /// What concerns the shuffle plane goes there; returns what is for others, too.
    fn tell_shuffles(&self, messages: Vec<ToWorker>) -> Vec<ToWorker> {
        let mut others = Vec::new();
        for message in messages {
            match message {
                ToWorker::ToNode(message) => self.shuffles.hear(message),
                ToWorker::Peer { worker, address } => self.shuffles.met(worker, address),
                ToWorker::PeerLost(worker) => {
                    self.shuffles.lost(worker);
                    others.push(message);
                }
                message => others.push(message),
            }
        }
        others
    }

    fn take_in(
        &self,
        packet: Packet,
        embedder: &dyn Embedder,
        others: &mut Vec<ToWorker>,
        taking: usize,
    ) -> Result<(), NodeError> {
        let mut machine = lock(&self.machine);
        for message in Link::decode(packet)? {
            self.take_message(message?, &mut machine, embedder, others);
        }
        self.carry_out_unsent(machine, taking);
        Ok(())
    }

    /// Takes in one message; what may take long, or locks more, is put aside, for when no lock is held.
    fn take_message(
        &self,
        message: ToWorker,
        machine: &mut Machine,
        embedder: &dyn Embedder,
        others: &mut Vec<ToWorker>,
    ) {
        match message {
            ToWorker::Command(command) => self.command(command, machine),
            ToWorker::Define(definition) => {
                let name = (definition.client, definition.number);
                lock(&self.definitions).insert(name, definition);
            }
            ToWorker::Peer {
                worker,
                ref address,
            } => {
                self.requests.met(worker, address.clone());
                others.push(message);
            }
            ToWorker::PeerLost(worker) => {
                self.requests.lost(worker);
                others.push(message);
            }
            ToWorker::ForgetClient(client) => {
                lock(&self.definitions).retain(|(whose, _), _| *whose != client);
                others.push(message);
            }
            ToWorker::Withdraw {
                client,
                ref numbers,
            } => {
                let mut definitions = lock(&self.definitions);
                for &number in numbers {
                    definitions.remove(&(client, number));
                }
                drop(definitions);
                others.push(message);
            }
            ToWorker::Answer(answer) if tracing::is_answer(&answer) => {
                self.tracing.answered(&answer);
            }
            ToWorker::Answer(answer) if recording::is_answer(&answer) => {
                self.tracing.recorder.answered(&answer);
            }
            ToWorker::Call(ref call) if tracing::is_told(call) => {
                // At once: what was sent behind it is to be recorded.
                self.tracing.switched(call);
                others.push(message);
            }
            ToWorker::Leave { cause, ref reason } => {
                // At once: behind it the connection ends, which another thread may take in first.
                let _ = self.leaving.set(End::new(EndCause::Told(cause), reason));
                others.push(message);
            }
            // In their order, which only who has the inbox knows: methods of an actor, for example.
            ToWorker::Call(call) => embedder.call(call),
            ToWorker::Answer(answer) => embedder.answer(answer),
            ToWorker::ToNode(_) | ToWorker::SessionOver(_) | ToWorker::Settled { .. } => {
                others.push(message);
            }
        }
    }

    fn command(&self, command: Command, machine: &mut Machine) {
        if self.watched.load(Ordering::Relaxed)
            && let Command::Assign(task) = &command
        {
            machine.watched.assigned(task.object, &task.recipe);
        }
        let event = Event::Command(command);
        if let Err(error) = machine.core.handle(event, &mut machine.effects) {
            self.log(format_args!(
                "the scheduler's command makes no sense: {error}"
            ));
        }
    }

    /// Hands the machine an event.
    pub(super) fn handle(&self, event: Event) {
        let mut machine = lock(&self.machine);
        self.handle_with(&mut machine, event);
        self.carry_out_unsent(machine, 0);
    }

    /// As [`handle`](Self::handle); what follows from it is to be carried out.
    pub(super) fn handle_with(&self, machine: &mut Machine, event: Event) {
        if let Err(error) = machine.core.handle(event, &mut machine.effects) {
            self.log(format_args!("{error}"));
        }
    }

    /// As [`carry_out`](Self::carry_out). The control thread sends what is to be sent, unless another
    /// thread does before.
    pub(super) fn carry_out_unsent(&self, machine: MutexGuard<'_, Machine>, taking: usize) {
        if self.carry_out(machine, taking) {
            self.parker.notify();
        }
    }

    /// Does what the machine says, and lets go of it. What may take long is left to other threads.
    /// The calling thread is about to take `taking` tasks itself: one, or none. Whether something is to
    /// be sent: the caller does that, or notifies the control thread.
    #[must_use]
    pub(super) fn carry_out(&self, mut machine: MutexGuard<'_, Machine>, taking: usize) -> bool {
        let machine_ = &mut *machine;
        let mut ready = 0;
        let mut dropped = Vec::new();
        for effect in machine_.effects.0.drain(..) {
            match effect {
                Effect::Run(run) => {
                    let input = |(object, inline): (ObjectId, Option<Bytes>)| match inline {
                        Some(bytes) => Input::Inline(object, bytes),
                        // Under the machine's lock: what is released next must not take it away.
                        None => match self.values.hold(object) {
                            Some(held) => Input::Held(object, held),
                            None => Input::Missing(object),
                        },
                    };
                    let task = Task {
                        object: run.object,
                        client: run.client,
                        recipe: run.recipe,
                        keep: run.keep,
                        actor: run.actor,
                        inputs: run.inputs.into_iter().map(input).collect(),
                    };
                    lock(&self.runs).queue.push_back(task);
                    ready += 1;
                }
                Effect::Resume(object) => {
                    lock(&self.runs).resumed.insert(object);
                    self.resumed.notify_all();
                }
                Effect::Interrupt(object) => {
                    lock(&self.runs).interrupted.insert(object);
                }
                Effect::Fetch { object, from, .. } => {
                    self.requests.push(Request { object, from });
                }
                Effect::Drop(object) => {
                    self.values.drop_value(object);
                    if let Some(embedder) = self.watcher() {
                        machine_.watched.dropped(object, embedder);
                    }
                    dropped.push(object);
                }
                Effect::Report(report) => machine_.outbox.push(FromWorker::Report(report)),
            }
        }
        if let Some(embedder) = self.watcher() {
            machine_.watched.look(&machine_.core, embedder);
        }
        let has_reports = !machine_.outbox.is_empty();
        drop(machine);
        if ready > 0 {
            self.recruit(taking);
        }
        if let Some(embedder) = self.embedder.get() {
            for object in dropped {
                embedder.dropped(object);
            }
        }
        has_reports
    }

    /// Sees to it that somebody runs what is ready, beyond what the calling thread takes.
    fn recruit(&self, taking: usize) {
        let mut runs = lock(&self.runs);
        let missing = runs.recruit(taking, self.options.threads as usize);
        let (idle, waiting) = (runs.idle, runs.queue.len());
        drop(runs);
        if idle > 0 && waiting > taking {
            self.control_lane.notify();
        }
        self.spawn(missing);
    }

    /// Asks for so many threads.
    pub(super) fn spawn(&self, missing: usize) {
        if let Some(embedder) = self.embedder.get() {
            let failed = (0..missing).filter(|_| !embedder.spawn()).count();
            if failed == 0 {
                return;
            }
            let since = lock(&self.runs).not_coming(failed);
            if since.is_some_and(|since| since.elapsed() > NO_THREADS) {
                let limit = NO_THREADS.as_secs();
                self.fail(&format!(
                    "a thread of the engine is missing: for {limit} s there was none to run a task"
                ));
            }
        }
    }

    pub(super) fn done(&self, task: &Task, outcome: Outcome, duration: Duration) -> bool {
        for input in &task.inputs {
            if let Input::Held(_, held) = input {
                self.values.release(held);
            }
        }
        let long = duration > REPORT_EVERY;
        let is_ok = matches!(outcome, Outcome::Returned(_));
        let mut machine = lock(&self.machine);
        let machine_ = &mut *machine;
        machine_.ended += 1;
        if let Some(embedder) = self.watcher() {
            let watched = &mut machine_.watched;
            watched.ended(task.object, &task.recipe, &outcome, embedder);
        }
        let event = Event::Ran {
            object: task.object,
            outcome,
            duration,
        };
        if let Err(error) = machine_.core.handle(event, &mut machine_.effects) {
            self.log(format_args!("{error}"));
        }
        let waiting = machine_.outbox.len();
        let has_reports = self.carry_out(machine, 1);
        if self.shuffles.has_transferred() {
            self.shuffles
                .finished(AttemptId(task.object.to_u64()), is_ok);
        }
        let mut runs = lock(&self.runs);
        if !runs.interrupted.is_empty() {
            runs.interrupted.remove(&task.object);
        }
        if !runs.seceded.is_empty() {
            runs.seceded.remove(&task.object);
        }
        let last = runs.queue.is_empty();
        drop(runs);
        let is_due = last || long || waiting > 512 || {
            let sender = self.sender.try_lock();
            sender.is_ok_and(|sender| sender.left.elapsed() > REPORT_EVERY)
        };
        if has_reports && !is_due {
            self.parker.notify();
        }
        is_due
    }

    /// Says something to the scheduler, at once.
    pub(super) fn say(&self, message: FromWorker) {
        lock(&self.machine).outbox.push(message);
        self.flush();
        // A task may wait for the answer, and its thread was the one that heard the scheduler.
        self.parker.hurry();
    }

    pub(super) fn flush(&self) {
        let mut sender = lock(&self.sender);
        let outbox = std::mem::take(&mut lock(&self.machine).outbox);
        if outbox.is_empty() && sender.link.waiting() == 0 {
            return;
        }
        for message in &outbox {
            sender.link.push(message);
        }
        let sent = sender.link.flush();
        sender.left = Instant::now();
        let is_all = sender.link.waiting() == 0;
        drop(sender);
        match is_all {
            true => self.parker.notify_begun(),
            // The control thread tries again.
            false => self.parker.notify(),
        }
        // Of a connection that has ended, the last words are taken in first.
        if let Err(error) = sent
            && self.scheduler.ended().is_none()
        {
            self.lost(&error);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // They hold weak references.
        self.leave();
    }
}
