//! What a task costs the scheduler: simulated workers and a client in another process, over real
//! sockets, with tasks that take no time.
//!
//! ```sh
//! cargo run --release -p treadle-node-scheduler --example tasks_per_second -- [shapes…] [tasks] [workers…]
//! ```
//!
//! The scheduler runs in this process and nothing else does, so its thread's processor time is told
//! apart; the workers and the client share a thread of the other process. With two cores, tasks a
//! second are those of whichever is the slower of the two.
//!
//! `--crowd ADDRESS SECRET-FILE WORKERS TASKS` is the workers and the client of another scheduler, which is told what
//! they do as by real ones, for as long as the standard input is open: `bench/sight/large.py`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_messages::{
    Batch, Call, Definition, FromClient, FromWorker, Hello, Role, Standing, ToClient, ToWorker,
};
use treadle_net::{Address, Lane, Options, Peer, Poller, Wait};
use treadle_node_scheduler::Server;
use treadle_reactor::clock;
use treadle_schedule_wire::trace::SIGHT;
use treadle_schedule_wire::{Link, Packet, introduce};
use treadle_security::secret::Secret;
use treadle_sight::{Beside, Head, Kind, Record};
use treadle_types::value::put_varint;
use treadle_types::{ClientId, Command as Instruction, Report, Returned, Value};

/// Tasks of a batch: about as many as fill a packet.
const BATCH: usize = 400;
/// Workers and client do nothing for so long: a peer that hears nothing asks every five seconds.
const IDLE: Duration = Duration::from_secs(10);
/// The client's key in the poller.
const CLIENT: usize = usize::MAX;

fn net() -> Options {
    Options {
        secret: Some(Secret::new([7; 32]).expect("32 bytes")),
        shared_memory: false,
        ..Options::default()
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--others") => return others(&arguments[1], number(&arguments[2])),
        Some("--crowd") => return crowd(&arguments[1..]),
        _ => {}
    }
    let is_shape = |text: &&str| ["flat", "tree", "chains"].contains(text);
    let texts = arguments.iter().map(String::as_str);
    let (mut shapes, numbers): (Vec<&str>, Vec<&str>) = texts.partition(is_shape);
    if shapes.is_empty() {
        // The first warms up.
        shapes = vec!["flat", "flat", "tree", "tree", "chains"];
    }
    let mut numbers = numbers
        .into_iter()
        .map(|text| text.parse().expect("a number"));
    let tasks: usize = numbers.next().unwrap_or(100_000);
    let mut workers: Vec<usize> = numbers.collect();
    if workers.is_empty() {
        workers = vec![2, 8, 100, 1000];
    }
    println!("workers  shape        tasks  CPU µs/task  of the process  tasks/s    B/task");
    for workers in workers {
        let server = Server::start(treadle_node_scheduler::Options {
            net: net(),
            // The workers say nothing while they do nothing.
            worker_timeout: Duration::from_secs(60),
            ..Default::default()
        })
        .expect("a scheduler");
        let mut others = Others::start(server.address(), workers);
        let thread = Thread::find("treadle-schedul");
        // After the first round trips.
        std::thread::sleep(Duration::from_secs(2));
        let idle = (thread.time(), process_time());
        std::thread::sleep(IDLE);
        let share = |now: Duration, before: Duration| (now - before).div_duration_f64(IDLE) * 100.0;
        println!(
            "{workers:7}  idle: {:.2} % of a core ({:.2} % with all threads of the process)",
            share(thread.time(), idle.0),
            share(process_time(), idle.1)
        );
        for (round, &shape) in shapes.iter().enumerate() {
            let memory = resident();
            let before = (thread.time(), process_time());
            let started = Instant::now();
            let held = others.run(shape, tasks, round);
            let elapsed = started.elapsed();
            let each = |time: Duration| time.as_secs_f64() * 1e6 / tasks as f64;
            let grown = held.map_or(0, |held| held.saturating_sub(memory));
            println!(
                "{workers:7}  {shape:8} {tasks:9}  {:11.3}  {:14.3}  {:9.0}  {:6.0}",
                each(thread.time() - before.0),
                each(process_time() - before.1),
                tasks as f64 / elapsed.as_secs_f64(),
                grown as f64 / tasks as f64,
            );
            others.say("release");
        }
        others.end();
        server.close();
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

/// A thread of this process.
struct Thread(String);

impl Thread {
    fn find(name: &str) -> Self {
        let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
        for task in tasks.flatten() {
            let path = task.path();
            let found = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            if found.trim_end() == name {
                return Self(path.join("schedstat").display().to_string());
            }
        }
        panic!("there is no thread {name}");
    }

    /// Processor time so far.
    fn time(&self) -> Duration {
        let text = std::fs::read_to_string(&self.0).expect("schedstat");
        let nanoseconds = text.split(' ').next().and_then(|first| first.parse().ok());
        Duration::from_nanos(nanoseconds.expect("a number"))
    }
}

fn process_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task")
        .expect("threads")
        .flatten();
    tasks
        .map(|task| Thread(task.path().join("schedstat").display().to_string()).time())
        .sum()
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: usize = text
        .split(' ')
        .nth(1)
        .and_then(|second| second.parse().ok())
        .expect("pages");
    pages * 4096
}

/// The other process.
struct Others {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Others {
    fn start(address: &Address, workers: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--others", &address.to_string(), &workers.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut others = Self {
            child,
            input,
            output,
        };
        assert_eq!(others.line(), "ready");
        others
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it listens");
        assert_eq!(self.line(), "done");
    }

    /// Runs a graph. Returns the resident memory while its results were held.
    fn run(&mut self, shape: &str, tasks: usize, round: usize) -> Option<usize> {
        self.say(&format!("{shape} {tasks} {round}"));
        (shape == "flat").then(resident)
    }

    fn end(mut self) {
        drop(self.input);
        let _ = self.child.wait();
    }
}

/// Another process: workers, and a client that does what it is told.
fn others(address: &str, workers: usize) {
    let address: Address = address.parse().expect("an address");
    let lane = Lane::new().expect("a lane");
    let options = Options {
        lane: Some(lane.clone()),
        ..net()
    };
    let mut crowd = Crowd::connect(&address, &options, &lane, workers);
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let mut words = line.split(' ');
        let shape = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        match shape {
            "release" => crowd.release(),
            shape => {
                let (tasks, round) = (number(), number());
                crowd.run(shape, tasks, round);
            }
        }
        println!("done");
    }
}

/// Workers and a client of a scheduler that runs elsewhere.
fn crowd(arguments: &[String]) {
    let [address, secret, workers, tasks] = arguments else {
        panic!("ADDRESS SECRET-FILE WORKERS TASKS");
    };
    let address: Address = address.parse().expect("an address");
    let lane = Lane::new().expect("a lane");
    let options = Options {
        secret: Some(Secret::from_file(secret).expect("a secret")),
        lane: Some(lane.clone()),
        ..net()
    };
    let workers = number(workers);
    let mut crowd = Crowd::connect(&address, &options, &lane, workers);
    crowd.recorded = Some(vec![Vec::new(); workers]);
    println!("ready");
    crowd.run("flat", number(tasks), 0);
    println!("done");
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lines().count();
        ended.send(()).expect("it is waited for");
    });
    while end.try_recv().is_err() {
        crowd.turn();
    }
}

/// A batch of what a worker did, as real ones send it.
fn batch(records: &[Record], is_first: bool) -> FromWorker {
    let head = Head {
        processor: clock::monotonic() / 4,
        ..Head::default()
    };
    let beside = Beside {
        names: match is_first {
            true => vec![(1, "inc")],
            false => Vec::new(),
        },
        ..Beside::default()
    };
    FromWorker::Call(Call {
        id: 1 << 63 | 1,
        node: String::new(),
        operation: SIGHT.into(),
        argument: treadle_sight::Batch::encode(head, &beside, records.iter().copied()).into(),
    })
}

struct Crowd {
    /// What each worker did since it said so, if that is to be told.
    recorded: Option<Vec<Vec<Record>>>,
    told: bool,
    poller: Arc<Poller>,
    workers: Vec<Link<ToWorker, FromWorker>>,
    client: Link<ToClient, FromClient>,
    packets: Vec<Packet>,
    next: u32,
    submissions: u32,
    held: Vec<u32>,
    /// Notices that are still to come.
    missing: usize,
    breathed: Instant,
}

impl Crowd {
    fn connect(address: &Address, options: &Options, lane: &Lane, workers: usize) -> Self {
        let poller = Poller::on(lane);
        let join = |name: String, role: Role, key: usize| {
            let mut wait = Wait {
                deadline: Some(Instant::now() + Duration::from_secs(30)),
                interrupted: None,
            };
            let peer = Peer::connect(address, options, &mut wait).expect("a connection");
            let hello = Hello {
                role,
                name,
                python: "3.11".into(),
                version: String::new(),
                info: Bytes::new(),
            };
            introduce(&peer, &hello, &mut wait).expect("a welcome");
            peer.watch(&poller, key);
            peer
        };
        let workers = (0..workers).map(|number| {
            let role = Role::Worker {
                address: format!("sim://{number}"),
                host: "here".into(),
                threads: 2,
                memory: 0,
                resources: Vec::new(),
            };
            Link::new(join(format!("w{number}"), role, number), 1 << 30)
        });
        let workers = workers.collect();
        let client = Link::new(join("client".into(), Role::Client, CLIENT), 1 << 30);
        let mut crowd = Self {
            recorded: None,
            told: false,
            poller,
            workers,
            client,
            packets: Vec::new(),
            next: 0,
            submissions: 0,
            held: Vec::new(),
            missing: 0,
            breathed: Instant::now(),
        };
        crowd.client.push(&FromClient::Define(Definition {
            client: ClientId(0),
            number: 0,
            name: "inc".into(),
            pickle: Bytes::from_static(b"inc"),
        }));
        crowd
    }

    fn release(&mut self) {
        self.client
            .push(&FromClient::Release(std::mem::take(&mut self.held)));
        while !self.client.flush().expect("sent") {
            self.turn();
        }
        // Until the scheduler has handled it.
        std::thread::sleep(Duration::from_millis(300));
    }

    fn run(&mut self, shape: &str, tasks: usize, round: usize) {
        // A tree has an odd number of them.
        let tasks = match shape {
            "tree" => tasks - 1 + tasks % 2,
            _ => tasks,
        };
        // Which of those before it each reads.
        let inputs = |number: usize| -> Vec<u32> {
            match shape {
                // A heap from its leaves: the last task is the root.
                "tree" if number >= tasks.div_ceil(2) => {
                    let child = 2 * (number - tasks.div_ceil(2));
                    vec![child as u32, child as u32 + 1]
                }
                "chains" if !number.is_multiple_of(1000) => vec![number as u32 - 1],
                _ => Vec::new(),
            }
        };
        let is_wanted = |number: usize| match shape {
            "tree" => number + 1 == tasks,
            "chains" => number % 1000 == 999 || number + 1 == tasks,
            _ => true,
        };
        let has_reader = |number: usize| match shape {
            "tree" => number + 1 < tasks,
            "chains" => number % 1000 < 999 && number + 1 < tasks,
            _ => false,
        };
        let first = self.next;
        self.missing = (0..tasks).filter(|number| is_wanted(*number)).count();
        for start in (0..tasks).step_by(BATCH) {
            let range = start..(start + BATCH).min(tasks);
            let mut batch = Batch {
                number: self.submissions,
                last: range.end == tasks,
                first: self.next,
                offsets: vec![0],
                definition_offsets: vec![0],
                option_sets: vec![Default::default()],
                ..Batch::default()
            };
            for number in range {
                let id = first + number as u32;
                let name = format!("inc-{round:08x}0123456789abcdef{number:08x}");
                let key = Bytes::from(Value::Str(name).to_bytes());
                let mut recipe = Vec::with_capacity(key.len() + 32);
                put_varint(key.len() as u64, &mut recipe);
                recipe.extend_from_slice(&key);
                recipe.extend_from_slice(&[7; 20]);
                batch.keys.push(key);
                batch.tasks.push(id);
                batch
                    .inputs
                    .extend(inputs(number).iter().map(|input| first + input));
                batch.offsets.push(batch.inputs.len() as u32);
                batch.readers.push(u32::from(has_reader(number)));
                batch.ranks.push(number as u32);
                batch.definitions.push(0);
                batch
                    .definition_offsets
                    .push(batch.definitions.len() as u32);
                batch.recipes.push(recipe.into());
                batch.options.push(0);
                if is_wanted(number) {
                    batch.wanted.push(id);
                    self.held.push(id);
                }
            }
            self.next += batch.tasks.len() as u32;
            self.client.push(&FromClient::Submit(batch));
            self.breathe();
            while !self.client.flush().expect("sent") {
                self.turn();
            }
        }
        self.submissions += 1;
        while self.missing > 0 {
            self.turn();
        }
    }

    /// Says once a second that the workers are there, and what they did.
    fn breathe(&mut self) {
        if self.breathed.elapsed() > Duration::from_secs(1) {
            self.breathed = Instant::now();
            if let Some(recorded) = &mut self.recorded {
                for (worker, records) in self.workers.iter_mut().zip(recorded) {
                    worker.push(&batch(records, !self.told));
                    records.clear();
                }
                self.told = true;
            }
            for worker in &mut self.workers {
                worker.push(&FromWorker::Report(Report::Health {
                    managed: 0,
                    process: 0,
                    spilled: 0,
                    paused: false,
                }));
                worker.flush().expect("sent");
            }
        }
    }

    /// Takes what is there, or waits for something.
    fn turn(&mut self) {
        self.breathe();
        let mut wait = Wait {
            deadline: Some(Instant::now() + Duration::from_millis(500)),
            interrupted: None,
        };
        let Ok(turn) = self.poller.next(&mut wait) else {
            return;
        };
        let key = turn.key();
        let more = if key == CLIENT {
            self.turn_of_client()
        } else {
            self.turn_of_worker(key)
        };
        if more {
            turn.again();
        }
    }

    fn turn_of_client(&mut self) -> bool {
        self.client.flush().expect("sent");
        let more = self
            .client
            .receive(64, &mut self.packets)
            .expect("received");
        for packet in self.packets.drain(..) {
            let messages = Link::<ToClient, FromClient>::decode(packet).expect("messages");
            for message in messages {
                match message.expect("a message") {
                    ToClient::Notice {
                        standing: Standing::Finished { .. },
                        ..
                    } => self.missing -= 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        more
    }

    fn turn_of_worker(&mut self, key: usize) -> bool {
        let link = &mut self.workers[key];
        let more = link.receive(64, &mut self.packets).expect("received");
        for packet in self.packets.drain(..) {
            let messages = Link::<ToWorker, FromWorker>::decode(packet).expect("messages");
            for message in messages {
                if let ToWorker::Command(command) = message.expect("a message") {
                    run(link, &command);
                    if let (Some(recorded), Instruction::Assign(assignment)) =
                        (&mut self.recorded, &command)
                    {
                        let ended = clock::monotonic();
                        recorded[key].push(Record {
                            began: ended - 200,
                            read: ended - 200,
                            computed: ended,
                            ended,
                            object: assignment.object.to_u64(),
                            bytes: 28,
                            group: 1,
                            lane: (ended % 2) as u16,
                            kind: Kind::Task,
                            failed: false,
                        });
                    }
                }
            }
        }
        link.flush().expect("sent");
        more
    }
}

fn run(link: &mut Link<ToWorker, FromWorker>, command: &Instruction) {
    let report = match command {
        Instruction::Assign(assignment) => Report::Finished {
            object: assignment.object,
            value: Returned {
                nbytes: 28,
                inline: Some(Bytes::from_static(b"\x03\x02")),
                kept: assignment.keep,
                class: Bytes::new(),
            },
            duration: Duration::from_nanos(200),
        },
        Instruction::Release(_) | Instruction::Retract(_) | Instruction::Cancel(_) => return,
        other => panic!("{other:?}"),
    };
    link.push(&FromWorker::Report(report));
}
