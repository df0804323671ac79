//! A scheduler that says what a test tells it to, and workers whose tasks are Rust closures.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_messages::{Answer, Call, FromWorker, ToWorker, Welcome};
use treadle_net::{Listener, Peer, Wait};
use treadle_node_worker::{Embedder, Options, Task, Value, Worker};
use treadle_schedule_wire::{self as wire, HELLO, Link, WELCOME};
use treadle_security::secret::Secret;
use treadle_store::{Frames, Live};
use treadle_types::{
    Assignment, Attempt, ClientId, Command, Input, ObjectId, Place, Priority, Returned, TaskId,
};
use treadle_worker::Outcome;

pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn soon() -> Wait<'static> {
    Wait {
        deadline: Some(Instant::now() + LONG),
        interrupted: None,
    }
}

pub(crate) fn net() -> treadle_net::Options {
    treadle_net::Options {
        secret: Some(Secret::new([9; 32]).unwrap()),
        ..treadle_net::Options::default()
    }
}

/// The scheduler's end of a worker's connection.
pub(crate) struct Script {
    pub(crate) link: Link<FromWorker, ToWorker>,
    pub(crate) address: String,
    heard: std::collections::VecDeque<FromWorker>,
}

pub(crate) struct Scheduler {
    pub(crate) listener: Listener,
    next: u32,
}

impl Scheduler {
    pub(crate) fn new() -> Self {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &net()).unwrap();
        Self { listener, next: 0 }
    }

    /// Lets the next worker in.
    pub(crate) fn admit(&mut self) -> Script {
        let peer: Peer = self.listener.accept(&mut soon()).unwrap();
        let incoming = peer.next(&mut soon()).unwrap();
        incoming.accept(Vec::new()).unwrap();
        incoming.wait(&mut soon()).unwrap();
        let received = incoming.take().unwrap();
        assert_eq!(received.kind, HELLO);
        let hello = wire::decode_hello(received.frames[0].as_slice()).unwrap();
        let treadle_messages::Role::Worker { address, .. } = hello.role else {
            panic!("not a worker");
        };
        let welcome = Welcome::Accepted {
            id: self.next,
            info: Bytes::new(),
        };
        self.next += 1;
        peer.send(WELCOME, &[wire::encode_welcome(&welcome).into()])
            .unwrap();
        Script {
            link: Link::new(peer, 1 << 30),
            address,
            heard: std::collections::VecDeque::new(),
        }
    }
}

impl Script {
    pub(crate) fn say(&mut self, messages: impl IntoIterator<Item = ToWorker>) {
        for message in messages {
            self.link.push(&message);
        }
        assert!(self.link.flush().unwrap());
    }

    /// The next message but health.
    pub(crate) fn hear(&mut self) -> FromWorker {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(message) = self.heard.pop_front() {
                if matches!(
                    message,
                    FromWorker::Report(treadle_types::Report::Health { .. })
                ) {
                    continue;
                }
                return message;
            }
            let mut packets = Vec::new();
            let received = self.link.receive(16, &mut packets);
            for packet in packets {
                for message in Link::<FromWorker, ToWorker>::decode(packet).unwrap() {
                    self.heard.push_back(message.unwrap());
                }
            }
            // What was said before the end comes first.
            assert!(!self.heard.is_empty() || received.is_ok(), "{received:?}");
            assert!(Instant::now() < deadline, "the worker says nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next message, which is a report.
    pub(crate) fn report(&mut self) -> treadle_types::Report {
        match self.hear() {
            FromWorker::Report(report) => report,
            other => panic!("not a report: {other:?}"),
        }
    }
}

pub(crate) fn object(task: u32) -> ObjectId {
    ObjectId::new(TaskId(task), Attempt(1))
}

/// A task that runs the function of this name on its inputs.
pub(crate) fn assign(task: u32, function: &str, inputs: Vec<(u32, Place)>) -> ToWorker {
    ToWorker::Command(Command::Assign(Assignment {
        object: object(task),
        priority: Priority {
            rank: task,
            ..Priority::default()
        },
        client: ClientId(0),
        recipe: Bytes::copy_from_slice(function.as_bytes()),
        inputs: inputs
            .into_iter()
            .map(|(task, place)| Input {
                object: object(task),
                nbytes: 8,
                place,
            })
            .collect(),
        keep: true,
        actor: false,
    }))
}

/// A value of a task: bytes in memory of their own.
pub(crate) struct Blob(pub(crate) Bytes);

impl Live for Blob {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn nbytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn frames(&self) -> Result<Frames, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Frames::new(7, vec![self.0.clone()]).viewing_live(0))
    }
}

pub(crate) type Function =
    Arc<dyn Fn(&Worker, &Task, Vec<Bytes>) -> Result<Bytes, Bytes> + Send + Sync>;

/// Runs tasks on threads: the recipe names a function.
pub(crate) struct Functions {
    pub(crate) worker: OnceLock<Worker>,
    pub(crate) functions: HashMap<&'static str, Function>,
    pub(crate) calls: Mutex<Vec<Call>>,
    pub(crate) called: Condvar,
    /// How many threads cannot be had before there are some.
    pub(crate) no_threads: std::sync::atomic::AtomicUsize,
    pub(crate) weak: OnceLock<std::sync::Weak<Functions>>,
}

impl Functions {
    /// Waits until so many calls have come.
    pub(crate) fn has_calls(&self, count: usize) {
        let calls = self.calls.lock().unwrap();
        let waited = self
            .called
            .wait_timeout_while(calls, LONG, |calls| calls.len() < count);
        assert!(!waited.unwrap().1.timed_out(), "a call never came");
    }
}

impl Embedder for Functions {
    fn spawn(&self) -> bool {
        let refuse = |left: usize| left.checked_sub(1);
        let order = std::sync::atomic::Ordering::SeqCst;
        if self.no_threads.fetch_update(order, order, refuse).is_ok() {
            return false;
        }
        let this = self.weak.get().unwrap().upgrade().unwrap();
        std::thread::spawn(move || {
            let worker = this.worker.get().unwrap().clone();
            let mut next = worker.next(true);
            while let Some(task) = next {
                let began = Instant::now();
                let outcome = this.run(&worker, &task);
                if worker.done(&task, outcome, began.elapsed()) {
                    worker.flush();
                }
                next = worker.next(false);
            }
        });
        true
    }

    fn call(&self, call: Call) {
        assert!(call.operation != "panic", "it was told to");
        self.calls.lock().unwrap().push(call);
        self.called.notify_all();
    }

    fn answer(&self, _: Answer) {}
    fn undefine(&self, _: ClientId) {}
    fn withdraw(&self, _: ClientId, _: &[u32]) {}
    fn dropped(&self, _: ObjectId) {}
}

fn bytes(value: Value) -> Bytes {
    match value {
        Value::Small(bytes) => bytes,
        Value::Stored(mut pinned) => pinned.frames().unwrap().parts()[0].clone(),
    }
}

impl Functions {
    fn run(&self, worker: &Worker, task: &Task) -> Outcome {
        let inputs = match worker.inputs(task) {
            Ok(inputs) => inputs.into_iter().map(bytes).collect(),
            Err((object, _)) => return Outcome::Missing(object),
        };
        let name = std::str::from_utf8(&task.recipe).unwrap();
        let value = match (self.functions[name])(worker, task, inputs) {
            Ok(value) => value,
            Err(error) => return Outcome::Raised(error),
        };
        let nbytes = value.len() as u64;
        let small = value.len() <= treadle_types::INLINE;
        if small {
            worker.keep_small(task.object, value.clone());
        } else {
            worker
                .keep(task.object, Arc::new(Blob(value.clone())), LONG)
                .unwrap();
        }
        Outcome::Returned(Returned {
            nbytes,
            inline: small.then_some(value),
            kept: true,
            class: Bytes::new(),
        })
    }
}

/// Starts a worker with these functions.
pub(crate) fn worker(
    scheduler: &mut Scheduler,
    name: &str,
    threads: u32,
    functions: Vec<(&'static str, Function)>,
) -> (Worker, Script, Arc<Functions>, tempfile::TempDir) {
    worker_with(scheduler, name, threads, functions, |_| {})
}

/// Starts a worker with these functions, whose store has other options than usual.
pub(crate) fn worker_with(
    scheduler: &mut Scheduler,
    name: &str,
    threads: u32,
    functions: Vec<(&'static str, Function)>,
    change: impl FnOnce(&mut treadle_store::Options),
) -> (Worker, Script, Arc<Functions>, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut store = treadle_store::Options::new(directory.path(), 1 << 30);
    change(&mut store);
    let options = Options {
        scheduler: scheduler.listener.address().clone(),
        listen: "127.0.0.1:0".parse().unwrap(),
        net: net(),
        name: name.into(),
        host: "here".into(),
        python: "3.11".into(),
        threads,
        memory: 0,
        terminate: 0.0,
        recording: 0,
        resources: Vec::new(),
        info: Bytes::new(),
        scheduler_timeout: treadle_schedule_wire::SCHEDULER_TIMEOUT,
        store,
    };
    let connecting = std::thread::spawn(move || Worker::connect(options, &mut soon()).unwrap());
    let script = scheduler.admit();
    let worker = connecting.join().unwrap();
    let host = Arc::new(Functions {
        worker: OnceLock::new(),
        functions: functions.into_iter().collect(),
        calls: Mutex::default(),
        called: Condvar::new(),
        no_threads: std::sync::atomic::AtomicUsize::new(0),
        weak: OnceLock::new(),
    });
    host.worker.set(worker.clone()).unwrap();
    host.weak.set(Arc::downgrade(&host)).unwrap();
    worker.start(Arc::clone(&host) as Arc<dyn Embedder>);
    (worker, script, host, directory)
}
