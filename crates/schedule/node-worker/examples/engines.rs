//! Engines without Python: workers of a scheduler, all in this process and each with sockets and
//! threads of its own. They answer every cast with the same frames.
//!
//! ```sh
//! cargo run --release -p treadle-node-worker --example engines -- ADDRESS SECRET-FILE PYTHON COUNT HOSTS [FRAME…]
//! ```
//!
//! `PYTHON` is the version that the cluster runs, as in `3.11`; `HOSTS` is on how many machines they are,
//! as far as any node knows; frames are hexadecimal. A line on standard input is the size of a
//! payload, and a number of hosts; they answer with the degree of the tree of such a cast, and how
//! many bytes each has sent to its neighbours since the line before. They leave with the end of
//! standard input. `bench/broadcast` uses them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;
use treadle_broadcast::{Network, Shape};
use treadle_messages::{Answer, Call};
use treadle_net::{Address, Wait};
use treadle_node_worker::{Embedder, End, EndCause, Next, Options, Worker, store_limit};
use treadle_security::secret::Secret;
use treadle_types::{Cause, ClientId, ObjectId};

/// They do nothing but run casts.
struct Idle;

impl Embedder for Idle {
    fn spawn(&self) -> bool {
        false
    }
    fn call(&self, _call: Call) {}
    fn answer(&self, _answer: Answer) {}
    fn undefine(&self, _client: ClientId) {}
    fn withdraw(&self, _client: ClientId, _numbers: &[u32]) {}
    fn dropped(&self, _object: ObjectId) {}
}

struct Arguments {
    scheduler: String,
    secret: Secret,
    python: String,
    count: usize,
    hosts: usize,
    frames: Vec<Bytes>,
}

fn arguments() -> Arguments {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("see the head of this file");
    Arguments {
        scheduler: next(),
        secret: Secret::from_file(next()).expect("a secret"),
        python: next(),
        count: next().parse().expect("a number of engines"),
        hosts: next().parse().expect("a number of hosts"),
        frames: arguments.map(|text| bytes_of(&text)).collect(),
    }
}

fn bytes_of(text: &str) -> Bytes {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

fn main() {
    let arguments = arguments();
    let directory = TempDir::new().expect("a directory");
    let engines: Vec<Worker> = (0..arguments.count)
        .map(|number| engine(number, &arguments, &directory))
        .collect();
    let over = Arc::new(AtomicBool::new(false));
    for engine in &engines {
        let (engine, over) = (engine.clone(), Arc::clone(&over));
        let frames = arguments.frames.clone();
        std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                if let Next::Cast(cast) = engine.next_cast(Duration::from_secs(5)) {
                    engine.finish_cast(cast.client, cast.number, frames.clone());
                }
            }
        });
    }
    println!("ready");
    let mut told = vec![0; engines.len()];
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let mut numbers = line.split(' ').map(|text| text.parse().expect("a number"));
        let (size, hosts) = (numbers.next(), numbers.next());
        let degree = degree(size.expect("a size"), hosts.expect("a number of hosts"));
        let sent: Vec<u64> = engines
            .iter()
            .map(|engine| engine.cast_traffic().bytes)
            .collect();
        let since = sent.iter().zip(&told).map(|(now, then)| now - then);
        let since: Vec<String> = since.map(|bytes| bytes.to_string()).collect();
        println!("{degree} {}", since.join(" "));
        told = sent;
    }
    over.store(true, Ordering::SeqCst);
    for engine in &engines {
        let end = End::new(EndCause::Closed, "it is not needed any more");
        engine.close(end, Cause::Drained, String::new());
    }
}

fn degree(size: u64, hosts: u64) -> u32 {
    let networks = (Network::default(), Network::within_host());
    Shape::new(size, hosts, 1, &networks.0, &networks.1).degree
}

fn engine(number: usize, arguments: &Arguments, directory: &TempDir) -> Worker {
    let own = directory.path().join(number.to_string());
    std::fs::create_dir(&own).expect("a directory");
    let here = std::process::id();
    let scheduler: Address = arguments.scheduler.parse().expect("an address");
    // Where the scheduler listens, too: a client of another machine dials no loopback address.
    let listen = Address {
        port: 0,
        ..scheduler.clone()
    };
    let options = Options {
        scheduler,
        listen,
        net: treadle_net::Options {
            secret: Some(arguments.secret.clone()),
            insecure: true,
            ..treadle_net::Options::default()
        },
        name: format!("engine-{here}-{number}"),
        host: format!("host-{here}-{}", number % arguments.hosts),
        python: arguments.python.clone(),
        threads: 1,
        memory: 0,
        terminate: 0.0,
        resources: Vec::new(),
        info: Bytes::new(),
        scheduler_timeout: treadle_schedule_wire::SCHEDULER_TIMEOUT,
        recording: 0,
        store: treadle_store::Options::new(&own, store_limit(0)),
    };
    let mut wait = Wait {
        deadline: Some(Instant::now() + Duration::from_secs(60)),
        interrupted: None,
    };
    treadle_log::init();
    let worker = Worker::connect(options, &mut wait).expect("a worker");
    worker.start(Arc::new(Idle));
    // As every worker has them, although no task will come.
    for _ in 0..worker.staff() {
        let executor = worker.clone();
        std::thread::spawn(move || {
            let mut is_first = true;
            while executor.next(is_first).is_some() {
                is_first = false;
            }
        });
    }
    worker
}
