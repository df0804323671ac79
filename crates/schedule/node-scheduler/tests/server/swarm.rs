//! Workers without Python: they take what the scheduler's wire says, run recipes that are sums, and
//! report. Any number of them lives on one thread.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_broadcast::Settled;
use treadle_messages::{Answer, FromWorker, Hello, Leave, Role, ToWorker};
use treadle_net::{Address, Lane, Options, Peer, Poller, Signal, Wait};
use treadle_schedule_wire::{Link, Packet, introduce};
use treadle_types::value::Reader;
use treadle_types::{
    Assignment, Cause, ClientId, Command, Input, ObjectId, Place, Report, Returned, Value, WorkerId,
};

pub(crate) const PYTHON: &str = "3.11";

/// How a worker presents itself.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) threads: u32,
    pub(crate) memory: u64,
    pub(crate) resources: Vec<(String, f64)>,
    pub(crate) info: Value,
    pub(crate) python: String,
    /// Whether it runs tasks, or keeps them until it is told to go on.
    pub(crate) runs: bool,
    /// Whether it says how it is.
    pub(crate) breathes: bool,
}

impl Profile {
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            host: "here".into(),
            threads: 1,
            memory: 0,
            resources: Vec::new(),
            info: Value::None,
            python: PYTHON.into(),
            runs: true,
            breathes: true,
        }
    }
}

/// What to do with a worker.
enum Instruction {
    Add(Profile, Sender<Result<WorkerId, String>>),
    /// Close its connection, having said this.
    Drop(WorkerId, Option<(Cause, String)>),
    /// Go on running, or stop to.
    Run(WorkerId, bool),
    Drain(WorkerId),
    Say(WorkerId, FromWorker),
}

/// Does something with the worker of a key.
type Act = Box<dyn FnOnce(&mut Reactor, usize)>;

/// What others may look at.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Tasks that ran, by worker.
    pub(crate) ran: HashMap<WorkerId, u64>,
    /// Definitions that came.
    pub(crate) defined: Vec<(WorkerId, ClientId, u32)>,
    pub(crate) undefined: Vec<(WorkerId, ClientId)>,
    pub(crate) withdrawn: Vec<(WorkerId, ClientId, u32)>,
    pub(crate) peers: Vec<(WorkerId, WorkerId)>,
    pub(crate) lost: Vec<(WorkerId, WorkerId)>,
    pub(crate) left: Vec<(WorkerId, Leave)>,
    /// Clients whose casts are over.
    pub(crate) over: Vec<(WorkerId, ClientId)>,
    /// What clients say to be settled.
    pub(crate) settled: Vec<(WorkerId, ClientId, Settled)>,
    /// Answers to questions of workers.
    pub(crate) answers: Vec<(WorkerId, Answer)>,
    /// Things that must not be.
    pub(crate) wrong: Vec<String>,
}

/// The values of all workers: fetching is a look into it.
type Store = HashMap<(WorkerId, ObjectId), i64>;

/// Workers on one thread.
pub(crate) struct Swarm {
    instructions: Sender<Instruction>,
    signal: Signal,
    pub(crate) seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
    over: Arc<std::sync::atomic::AtomicBool>,
}

impl Swarm {
    pub(crate) fn new(scheduler: &Address, options: &Options) -> Self {
        let (instructions, received) = channel();
        let lane = Lane::new().unwrap();
        let poller = Poller::on(&lane);
        let signal = poller.signal(usize::MAX);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut reactor = Reactor {
            scheduler: scheduler.clone(),
            options: Options {
                lane: Some(lane),
                ..options.clone()
            },
            poller,
            instructions: received,
            workers: HashMap::new(),
            store: Store::new(),
            seen: Arc::clone(&seen),
            over: Arc::clone(&over),
            packets: Vec::new(),
        };
        let thread = std::thread::spawn(move || reactor.run());
        Self {
            instructions,
            signal,
            seen,
            thread: Some(thread),
            over,
        }
    }

    fn instruct(&self, instruction: Instruction) {
        self.instructions.send(instruction).unwrap();
        self.signal.set();
    }

    pub(crate) fn try_add(&self, profile: Profile) -> Result<WorkerId, String> {
        let (reply, answer) = channel();
        self.instruct(Instruction::Add(profile, reply));
        answer.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    pub(crate) fn add(&self, profile: Profile) -> WorkerId {
        self.try_add(profile).unwrap()
    }

    /// So many plain workers of one thread each.
    pub(crate) fn add_many(&self, count: usize) -> Vec<WorkerId> {
        let add = |number| self.add(Profile::named(format!("w{number}")));
        (0..count).map(add).collect()
    }

    /// Its connection ends without a word.
    pub(crate) fn kill(&self, worker: WorkerId) {
        self.instruct(Instruction::Drop(worker, None));
    }

    pub(crate) fn leave(&self, worker: WorkerId, cause: Cause, log: &str) {
        self.instruct(Instruction::Drop(worker, Some((cause, log.to_owned()))));
    }

    pub(crate) fn run(&self, worker: WorkerId, runs: bool) {
        self.instruct(Instruction::Run(worker, runs));
    }

    pub(crate) fn drain(&self, worker: WorkerId) {
        self.instruct(Instruction::Drain(worker));
    }

    pub(crate) fn say(&self, worker: WorkerId, message: FromWorker) {
        self.instruct(Instruction::Say(worker, message));
    }

    /// Looks until something is so.
    pub(crate) fn wait_for(&self, what: &str, mut so: impl FnMut(&Seen) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !so(&self.seen.lock().unwrap()) {
            assert!(
                Instant::now() < until,
                "{what}: {:?}",
                self.seen.lock().unwrap()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        self.over.store(true, std::sync::atomic::Ordering::Relaxed);
        self.signal.set();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
                assert_eq!(self.seen.lock().unwrap().wrong, Vec::<String>::new());
            }
        }
    }
}

struct Worker {
    id: WorkerId,
    link: Link<ToWorker, FromWorker>,
    profile: Profile,
    queue: Vec<Assignment>,
    definitions: BTreeSet<(ClientId, u32)>,
    peers: BTreeSet<WorkerId>,
    breathed: Instant,
}

struct Reactor {
    scheduler: Address,
    options: Options,
    poller: Arc<Poller>,
    instructions: Receiver<Instruction>,
    workers: HashMap<usize, Worker>,
    store: Store,
    seen: Arc<Mutex<Seen>>,
    over: Arc<std::sync::atomic::AtomicBool>,
    packets: Vec<Packet>,
}

impl Reactor {
    fn run(&mut self) {
        let over = Arc::clone(&self.over);
        let mut interrupted = || over.load(std::sync::atomic::Ordering::Relaxed);
        let mut breathe = Instant::now();
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            let mut wait = Wait {
                deadline: Some(breathe + Duration::from_millis(200)),
                interrupted: Some(&mut interrupted),
            };
            if let Ok(turn) = self.poller.next(&mut wait) {
                match turn.key() {
                    usize::MAX => {
                        drop(turn);
                        self.take_instructions();
                    }
                    key => {
                        if self.turn(key) {
                            turn.again();
                        }
                    }
                }
            }
            if breathe.elapsed() >= Duration::from_millis(200) {
                breathe = Instant::now();
                for worker in self.workers.values_mut() {
                    if worker.profile.breathes
                        && worker.breathed.elapsed() >= Duration::from_millis(900)
                    {
                        worker.breathed = breathe;
                        worker.link.push(&FromWorker::Report(Report::Health {
                            managed: 0,
                            process: 1 << 20,
                            spilled: 0,
                            paused: false,
                        }));
                        let _ = worker.link.flush();
                    }
                }
            }
        }
    }

    fn take_instructions(&mut self) {
        while let Ok(instruction) = self.instructions.try_recv() {
            let (id, act): (WorkerId, Act) = match instruction {
                Instruction::Add(profile, reply) => {
                    let _ = reply.send(self.add(profile));
                    continue;
                }
                Instruction::Drop(id, word) => (
                    id,
                    Box::new(|own, key| {
                        let mut worker = own.workers.remove(&key).unwrap();
                        if let Some((cause, log)) = word {
                            worker.link.push(&FromWorker::Leaving { cause, log });
                            let _ = worker.link.flush();
                        }
                        own.store.retain(|(holder, _), _| *holder != worker.id);
                        worker.link.peer().start_close();
                    }),
                ),
                Instruction::Run(id, runs) => (
                    id,
                    Box::new(move |own, key| {
                        own.workers.get_mut(&key).unwrap().profile.runs = runs;
                        own.turn(key);
                    }),
                ),
                Instruction::Drain(id) => {
                    (id, Box::new(|own, key| own.say(key, &FromWorker::Drain)))
                }
                Instruction::Say(id, message) => {
                    (id, Box::new(move |own, key| own.say(key, &message)))
                }
            };
            let key = id.0 as usize;
            if self.workers.contains_key(&key) {
                act(self, key);
            }
        }
    }

    fn say(&mut self, key: usize, message: &FromWorker) {
        let worker = self.workers.get_mut(&key).unwrap();
        worker.link.push(message);
        let _ = worker.link.flush();
    }

    fn add(&mut self, profile: Profile) -> Result<WorkerId, String> {
        let mut wait = Wait {
            deadline: Some(Instant::now() + Duration::from_secs(60)),
            interrupted: None,
        };
        let failed = |error: treadle_net::NetError| error.to_string();
        let peer = Peer::connect(&self.scheduler, &self.options, &mut wait).map_err(failed)?;
        let hello = Hello {
            role: Role::Worker {
                address: format!("sim://{}", profile.name),
                host: profile.host.clone(),
                threads: profile.threads,
                memory: profile.memory,
                resources: profile.resources.clone(),
            },
            name: profile.name.clone(),
            python: profile.python.clone(),
            version: "0".into(),
            info: profile.info.to_bytes().into(),
        };
        let (id, _) = introduce(&peer, &hello, &mut wait).map_err(|error| error.to_string())?;
        let id = WorkerId(id);
        let key = id.0 as usize;
        peer.watch(&self.poller, key);
        self.workers.insert(
            key,
            Worker {
                id,
                link: Link::new(peer, 1 << 30),
                profile,
                queue: Vec::new(),
                definitions: BTreeSet::new(),
                peers: BTreeSet::new(),
                breathed: Instant::now(),
            },
        );
        Ok(id)
    }

    fn turn(&mut self, key: usize) -> bool {
        let Some(worker) = self.workers.get_mut(&key) else {
            return false;
        };
        let mut seen = self.seen.lock().unwrap();
        let flushed = worker.link.flush().map(|_| ());
        let received = flushed.and_then(|()| worker.link.receive(16, &mut self.packets));
        for packet in self.packets.drain(..) {
            for message in Link::<ToWorker, FromWorker>::decode(packet).unwrap() {
                worker.hear(message.unwrap(), &mut self.store, &mut seen);
            }
        }
        if worker.profile.runs {
            for assignment in std::mem::take(&mut worker.queue) {
                worker.execute(&assignment, &mut self.store, &mut seen);
            }
        }
        let _ = worker.link.flush();
        if received.is_err() {
            self.workers.remove(&key);
        }
        received.unwrap_or(false)
    }
}

impl Worker {
    fn report(&mut self, report: Report) {
        self.link.push(&FromWorker::Report(report));
    }

    fn hear(&mut self, message: ToWorker, store: &mut Store, seen: &mut Seen) {
        match message {
            ToWorker::Command(command) => self.command(command, store),
            ToWorker::Define(definition) => {
                let name = (definition.client, definition.number);
                if !self.definitions.insert(name) {
                    seen.wrong
                        .push(format!("{name:?} was defined twice at {:?}", self.id));
                }
                seen.defined.push((self.id, name.0, name.1));
            }
            ToWorker::ForgetClient(client) => {
                self.definitions.retain(|(of, _)| *of != client);
                seen.undefined.push((self.id, client));
            }
            ToWorker::Withdraw { client, numbers } => {
                for number in numbers {
                    if !self.definitions.remove(&(client, number)) {
                        seen.wrong.push(format!(
                            "{client:?}, {number} was not defined at {:?}",
                            self.id
                        ));
                    }
                    seen.withdrawn.push((self.id, client, number));
                }
            }
            ToWorker::Peer { worker, address } => {
                if address.is_empty() {
                    seen.wrong.push(format!("{worker:?} has no address"));
                }
                self.peers.insert(worker);
                seen.peers.push((self.id, worker));
            }
            ToWorker::PeerLost(worker) => {
                self.peers.remove(&worker);
                seen.lost.push((self.id, worker));
            }
            ToWorker::SessionOver(client) => seen.over.push((self.id, client)),
            ToWorker::Settled { client, settled } => {
                seen.settled.push((self.id, client, settled));
            }
            ToWorker::Call(call) => {
                let argument = Value::from_bytes(&call.argument).unwrap();
                let result = match call.operation.as_str() {
                    "echo" => Some(Ok(Value::Tuple(vec![Value::Str(call.node), argument]))),
                    "raise" => Some(Err(argument)),
                    // Never answered.
                    _ => None,
                };
                if let Some(result) = result {
                    let bytes = |value: Value| Bytes::from(value.to_bytes());
                    self.link.push(&FromWorker::Answer(Answer {
                        id: call.id,
                        result: result.map(bytes).map_err(bytes),
                    }));
                }
            }
            ToWorker::Answer(answer) => seen.answers.push((self.id, answer)),
            // It has no part in shuffles.
            ToWorker::ToNode(_) => {}
            ToWorker::Leave { cause, .. } => {
                seen.left.push((self.id, cause));
                self.link.peer().start_close();
            }
        }
    }

    fn command(&mut self, command: Command, store: &mut Store) {
        match command {
            Command::Assign(assignment) => self.queue.push(assignment),
            Command::Retract(object) => {
                let before = self.queue.len();
                self.queue.retain(|assignment| assignment.object != object);
                if self.queue.len() < before {
                    self.report(Report::Retracted(object));
                }
            }
            Command::Cancel(object) => {
                let before = self.queue.len();
                self.queue.retain(|assignment| assignment.object != object);
                if self.queue.len() < before {
                    self.report(Report::Stopped(object));
                }
            }
            Command::Release(object) => {
                store.remove(&(self.id, object));
            }
            Command::Copy {
                object,
                nbytes,
                holders,
            } => {
                let found = holders
                    .iter()
                    .find_map(|holder| store.get(&(*holder, object)));
                match found.copied() {
                    Some(value) => {
                        store.insert((self.id, object), value);
                        self.report(Report::Stored { object, nbytes });
                    }
                    None => self.report(Report::CopyFailed {
                        object,
                        tried: holders,
                    }),
                }
            }
        }
    }

    fn input(&mut self, input: &Input, store: &mut Store, seen: &mut Seen) -> Option<i64> {
        match &input.place {
            Place::Here => store.get(&(self.id, input.object)).copied(),
            Place::Inline(value) => match Value::from_bytes(value) {
                Ok(Value::Int(value)) => Some(value),
                other => panic!("{other:?}"),
            },
            Place::At(holders) => {
                for holder in holders {
                    if !self.peers.contains(holder) {
                        seen.wrong
                            .push(format!("{:?} was not told where {holder:?} is", self.id));
                    }
                }
                let found = holders
                    .iter()
                    .find_map(|holder| store.get(&(*holder, input.object)));
                let value = *found?;
                store.insert((self.id, input.object), value);
                self.report(Report::Stored {
                    object: input.object,
                    nbytes: input.nbytes,
                });
                Some(value)
            }
        }
    }

    /// A recipe is a key, and (what to do, a number, the definitions that it uses).
    fn execute(&mut self, assignment: &Assignment, store: &mut Store, seen: &mut Seen) {
        let object = assignment.object;
        let mut reader = Reader::new(&assignment.recipe);
        reader.blob().unwrap();
        let Ok(Value::Tuple(recipe)) = Value::decode(&mut reader) else {
            panic!("{assignment:?}");
        };
        let (Value::Str(what), Value::Int(number), Value::List(definitions)) =
            (&recipe[0], &recipe[1], &recipe[2])
        else {
            panic!("{recipe:?}");
        };
        for definition in definitions {
            let Value::Int(definition) = definition else {
                panic!("{definition:?}");
            };
            let name = (assignment.client, *definition as u32);
            if !self.definitions.contains(&name) {
                seen.wrong
                    .push(format!("{name:?} is not defined at {:?}", self.id));
            }
        }
        let mut sum = *number;
        for input in &assignment.inputs {
            let Some(value) = self.input(input, store, seen) else {
                let tried = match &input.place {
                    Place::At(holders) => holders.clone(),
                    _ => treadle_types::Holders::new(),
                };
                return self.report(Report::Unavailable {
                    object,
                    input: input.object,
                    tried,
                });
            };
            sum = sum.wrapping_add(value);
        }
        *seen.ran.entry(self.id).or_default() += 1;
        let duration = Duration::from_micros(1);
        match what.as_str() {
            "small" => {
                if assignment.keep {
                    store.insert((self.id, object), sum);
                }
                self.report(Report::Finished {
                    object,
                    value: Returned {
                        nbytes: 28,
                        inline: Some(Value::Int(sum).to_bytes().into()),
                        kept: assignment.keep,
                        class: Bytes::new(),
                    },
                    duration,
                });
            }
            "large" => {
                store.insert((self.id, object), sum);
                self.report(Report::Finished {
                    object,
                    value: Returned {
                        nbytes: 1 << 20,
                        inline: None,
                        kept: true,
                        class: Bytes::from_static(b"large"),
                    },
                    duration,
                });
            }
            "raise" => self.report(Report::Failed {
                object,
                error: Value::Int(sum).to_bytes().into(),
                duration,
            }),
            other => panic!("{other}"),
        }
    }
}
