//! A scheduler, workers whose engines are Rust closures, and clients: all of them real, in this
//! process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;
use treadle_messages::{Answer, Call, Hello, Role};
use treadle_net::{Address, Wait};
use treadle_node_client::{
    Change, Client, Contained, Content, Destination, Event, Traffic, Tree, What,
};
use treadle_node_scheduler::{self as server, Server};
use treadle_node_worker::{Cast, Embedder, End, EndCause, Next, Options, Worker, store_limit};
use treadle_security::secret::Secret;
use treadle_types::{ClientId, ObjectId, Value};

/// Long enough for any machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn soon() -> Wait<'static> {
    Wait {
        deadline: Some(Instant::now() + LONG),
        interrupted: None,
    }
}

fn net() -> treadle_net::Options {
    treadle_net::Options {
        secret: Some(Secret::new([9; 32]).unwrap()),
        ..treadle_net::Options::default()
    }
}

/// What an engine does with a cast; its result.
pub(crate) type Run = Arc<dyn Fn(&Node, &Cast) -> Vec<Bytes> + Send + Sync>;

/// A worker, as its engine sees it.
pub(crate) struct Node {
    pub(crate) worker: Worker,
    interrupted: Arc<Mutex<Vec<(ClientId, u64)>>>,
}

impl Node {
    /// Waits until a cast is interrupted.
    pub(crate) fn until_interrupted(&self, cast: &Cast) {
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            let interrupted = self.interrupted.lock().unwrap();
            if interrupted.contains(&(cast.client, cast.number)) {
                return;
            }
            drop(interrupted);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A worker with an engine.
pub(crate) struct Engine {
    pub(crate) worker: Worker,
    over: Arc<AtomicBool>,
    /// Numbers of casts, in the order in which they ran.
    pub(crate) ran: Arc<Mutex<Vec<(ClientId, u64)>>>,
    _directory: TempDir,
}

/// Notes what is to be interrupted, and that casts wait.
#[derive(Default)]
pub(crate) struct Notes {
    interrupted: Arc<Mutex<Vec<(ClientId, u64)>>>,
    pub(crate) came: AtomicBool,
}

impl Embedder for Notes {
    fn cast_came(&self) {
        self.came.store(true, Ordering::SeqCst);
    }

    fn interrupt_cast(&self, client: ClientId, number: u64) {
        self.interrupted.lock().unwrap().push((client, number));
    }

    fn spawn(&self) -> bool {
        false
    }
    fn call(&self, _call: Call) {}
    fn answer(&self, _answer: Answer) {}
    fn undefine(&self, _client: ClientId) {}
    fn withdraw(&self, _client: ClientId, _numbers: &[u32]) {}
    fn dropped(&self, _object: ObjectId) {}
}

/// A worker that was not started, with its directory.
pub(crate) fn worker(
    scheduler: &Address,
    name: &str,
    host: &str,
    memory: u64,
) -> (Worker, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        scheduler: scheduler.clone(),
        listen: "127.0.0.1:0".parse().unwrap(),
        net: net(),
        name: name.to_owned(),
        host: host.to_owned(),
        python: "3.11".to_owned(),
        threads: 1,
        memory,
        terminate: 0.0,
        recording: 0,
        resources: Vec::new(),
        info: Bytes::new(),
        scheduler_timeout: treadle_schedule_wire::SCHEDULER_TIMEOUT,
        store: treadle_store::Options::new(directory.path(), store_limit(memory)),
    };
    treadle_log::init();
    let worker = Worker::connect(options, &mut soon()).unwrap();
    (worker, directory)
}

impl Engine {
    pub(crate) fn new(server: &Server, name: &str, host: &str, memory: u64, run: Run) -> Self {
        Self::connect(server.address(), name, host, memory, run)
    }

    pub(crate) fn connect(
        scheduler: &Address,
        name: &str,
        host: &str,
        memory: u64,
        run: Run,
    ) -> Self {
        let (worker, directory) = worker(scheduler, name, host, memory);
        let notes = Notes::default();
        let interrupted = Arc::clone(&notes.interrupted);
        worker.start(Arc::new(notes));
        let over = Arc::new(AtomicBool::new(false));
        let ran = Arc::new(Mutex::new(Vec::new()));
        let node = Node {
            worker: worker.clone(),
            interrupted,
        };
        let (is_over, order) = (Arc::clone(&over), Arc::clone(&ran));
        std::thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                let Next::Cast(cast) = node.worker.next_cast(Duration::from_millis(50)) else {
                    continue;
                };
                order.lock().unwrap().push((cast.client, cast.number));
                let result = run(&node, &cast);
                node.worker.finish_cast(cast.client, cast.number, result);
            }
        });
        Self {
            worker,
            over,
            ran,
            _directory: directory,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.worker.id().0
    }

    /// Ends it as a process that is killed does: nobody is told.
    pub(crate) fn kill(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.worker.close(
            End::new(EndCause::Closed, "killed"),
            treadle_types::Cause::Signal(9),
            String::new(),
        );
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn server() -> Server {
    let options = server::Options {
        net: net(),
        http: None,
        // Who is paused is not gone.
        worker_timeout: LONG,
        ..server::Options::default()
    };
    treadle_log::init();
    Server::start(options).unwrap()
}

/// What came of a cast, by engine.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) results: BTreeMap<u32, Result<Vec<Bytes>, String>>,
    pub(crate) outputs: Vec<(u32, Bytes)>,
    pub(crate) complete: bool,
}

/// A client that casts.
pub(crate) struct Caster {
    pub(crate) client: Client<()>,
    outcomes: BTreeMap<u64, Outcome>,
    changes: Vec<Change>,
    answers: Vec<Answer>,
}

impl Caster {
    pub(crate) fn new(server: &Server, name: &str) -> Self {
        let hello = Hello {
            role: Role::Client,
            name: name.to_owned(),
            python: "3.11".to_owned(),
            version: String::new(),
            info: Bytes::new(),
        };
        let client = Client::connect(server.address(), &net(), &hello, &mut soon()).unwrap();
        Self {
            client,
            outcomes: BTreeMap::new(),
            changes: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Waits until the client knows so many engines; their ids.
    pub(crate) fn engines(&mut self, count: usize) -> Vec<u32> {
        loop {
            let members = self.client.members().unwrap().unwrap_or_default();
            if members.len() == count {
                return members.iter().map(|member| member.worker.0).collect();
            }
            self.process();
        }
    }

    pub(crate) fn cast(&self, engines: &[u32], frames: &[Bytes]) -> u64 {
        self.client
            .cast(engines, frames, Tree::default(), &mut soon())
            .unwrap()
    }

    fn process(&mut self) {
        let seen = self.client.rounds();
        let Some(lead) = self.client.lead(seen, &mut soon()).unwrap() else {
            return;
        };
        let mut short = Wait {
            deadline: Some(Instant::now() + Duration::from_millis(100)),
            interrupted: None,
        };
        let _ = lead.receive(&mut short);
        while let Some(event) = lead.next(|()| ()) {
            let arrivals = match event {
                Event::Arrived(arrivals) => arrivals,
                Event::Standing { change, .. } => {
                    self.changes.push(change);
                    continue;
                }
                Event::Answer(answer) => {
                    self.answers.push(answer);
                    continue;
                }
                _ => continue,
            };
            for arrival in arrivals {
                let outcome = self.outcomes.entry(arrival.number).or_default();
                let engines = arrival.engines.iter().map(|engine| engine as u32);
                let result = match arrival.what {
                    What::Output(text) => {
                        outcome
                            .outputs
                            .extend(engines.map(|engine| (engine, text.clone())));
                        continue;
                    }
                    What::Complete => {
                        outcome.complete = true;
                        continue;
                    }
                    What::Finished(frames) => {
                        let bytes = frames.into_iter().map(treadle_net::Frame::into_bytes);
                        Ok(bytes.collect())
                    }
                    What::Refused(reason) => Err(format!("refused: {reason}")),
                    What::Aborted => Err("aborted".to_owned()),
                    What::Lost(reason) => Err(format!("lost: {reason}")),
                };
                for engine in engines {
                    let before = outcome.results.insert(engine, result.clone());
                    assert!(before.is_none(), "two results of {engine}");
                }
            }
        }
    }

    /// Brings a value to all workers, or to so many; how it stands then.
    pub(crate) fn put(&mut self, key: &str, bytes: Bytes, copies: u32) -> Change {
        let content = Content {
            nbytes: bytes.len() as u64,
            class: Bytes::new(),
            value: Contained::Frames(1, vec![bytes]),
        };
        let destination = Destination {
            workers: Vec::new(),
            copies,
        };
        let key = Value::str(key.to_owned()).to_bytes();
        self.client.put(&key, (), content, &destination).unwrap();
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(change) = self.changes.pop() {
                return change;
            }
            assert!(Instant::now() < deadline, "the value stands nowhere");
            self.process();
        }
    }

    /// Waits for so many results of a cast; whose they are.
    pub(crate) fn some(&mut self, number: u64, count: usize) -> Vec<u32> {
        let deadline = Instant::now() + LONG;
        loop {
            let outcome = self.outcomes.entry(number).or_default();
            if outcome.results.len() >= count {
                return outcome.results.keys().copied().collect();
            }
            assert!(Instant::now() < deadline, "{outcome:?}");
            self.process();
        }
    }

    /// Where the scheduler says that a value is.
    pub(crate) fn who_has(&mut self, key: &str) -> Vec<String> {
        let key = Value::str(key.to_owned());
        let call = Call {
            id: self.client.new_number(),
            node: String::new(),
            operation: "who_has".to_owned(),
            argument: Value::List(vec![key]).to_bytes().into(),
        };
        self.client.call(call).unwrap();
        let deadline = Instant::now() + LONG;
        let answer = loop {
            if let Some(answer) = self.answers.pop() {
                break answer.result.unwrap();
            }
            assert!(Instant::now() < deadline, "the scheduler does not answer");
            self.process();
        };
        let Value::Dict(entries) = Value::from_bytes(&answer).unwrap() else {
            panic!("not a dictionary");
        };
        let (_, Value::List(addresses)) = &entries[0] else {
            panic!("not a list");
        };
        let mut addresses: Vec<String> = addresses
            .iter()
            .map(|address| match address {
                Value::Str(address) => address.clone(),
                other => panic!("no address: {other:?}"),
            })
            .collect();
        addresses.sort();
        addresses
    }

    /// Waits for all results of a cast.
    pub(crate) fn outcome(&mut self, number: u64) -> Outcome {
        let deadline = Instant::now() + LONG;
        loop {
            let is_complete = |outcome: &Outcome| outcome.complete;
            if self.outcomes.get(&number).is_some_and(is_complete) {
                return self.outcomes.remove(&number).unwrap();
            }
            assert!(
                Instant::now() < deadline,
                "{:?}",
                self.outcomes.get(&number)
            );
            self.process();
        }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.client.cast_traffic()
    }
}
