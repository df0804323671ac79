//! Weak scaling: how long the report's workloads take when workers and tasks grow together.
//!
//! The cores are the production's. An event costs the scheduler the CPU time that its core takes on this
//! machine: while it works on one, others wait. What else things cost is said by [`Parameters`], which
//! `bench/scaling/simulated.py` learns from real runs.

mod client;
mod parameters;
mod replay;
mod workload;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use treadle_scheduler::{Config, Effect, Effects, Event, Scheduler, WorkerProfile};
use treadle_types::{ClientId, ObjectId, Report, Returned, Symbol, TaskId, WorkerId};
use treadle_worker::{Outcome, Worker};

use crate::kernel::{self, Kernel, Random, Trace, World as _};

use client::Client;
pub use parameters::Parameters;
use parameters::{Cores, SMALL};
pub use replay::{Recording, print_replay, replay};
pub use workload::Workload;

/// How often a worker says how it is.
const HEARTBEAT: Duration = Duration::from_millis(500);
const THREADS: u32 = 2;
/// When a worker does what nobody waits for, after a task has begun.
const LATER: Duration = Duration::from_millis(2);
/// Symbols of workers and of hosts begin here; those before are of functions.
const FIRST_NAME: u32 = 1 << 30;
const FIRST_HOST: u32 = 1 << 31;

/// What an event costs the scheduler's core.
#[derive(Clone, Copy, Debug)]
pub enum Cost {
    /// The CPU time that it takes here and now.
    Measured,
    /// The same for each: such runs repeat exactly.
    Fixed(Duration),
}

impl Cost {
    fn of(self, measured: Duration) -> Duration {
        match self {
            Self::Measured => measured,
            Self::Fixed(time) => time,
        }
    }
}

/// What came of a run.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    /// From the client's first call until it knows that all is done.
    pub took: Duration,
    /// The time that the tasks would take if no slot was ever free, over the time that they took.
    pub share: f64,
    /// The scheduler's CPU time a task.
    pub cpu: Duration,
    /// How many tasks there were.
    pub tasks: u32,
}

/// What arrives somewhere.
#[derive(Debug)]
enum Arrival {
    Server(Message),
    /// The scheduler takes what has come.
    Turn,
    Worker(usize, treadle_types::Command),
    /// A task has run.
    Done(usize, ObjectId),
    /// Its worker takes note of that.
    Ran(usize, ObjectId),
    /// A worker has time for what nobody waits for.
    Spent,
    Fetched(usize, ObjectId, WorkerId, u64),
    Heartbeat(usize),
    /// The client hears that these tasks have finished, in one message.
    Notice(Vec<TaskId>),
    /// The client looks at what has come.
    Look,
    Tick,
}

/// What comes to the scheduler.
#[derive(Debug)]
enum Message {
    Event(Box<Event>),
    /// The client has made so many tasks of a call.
    Batch(client::Batch),
}

struct Cluster {
    scheduler: Scheduler,
    cost: Cost,
    parameters: Parameters,
    cores: Cores,
    /// When the scheduler is done with what it has taken.
    free: Duration,
    cpu: Duration,
    /// What has come to it, and what it sends at the end of its turn.
    inbox: Vec<Message>,
    outbox: Outbox,
    workers: Vec<Worker>,
    /// When each worker has sent what it was asked for.
    lines: Vec<kernel::Line>,
    client: Client,
    /// By number, as the client counts; and back.
    tasks: Vec<TaskId>,
    numbers: HashMap<TaskId, u32, foldhash::fast::RandomState>,
    kernel: Kernel<Arrival, ()>,
    /// By number, how long each task runs and how many bytes its value has.
    amounts: Amounts,
}

/// What the scheduler sends at the end of a turn.
#[derive(Default)]
struct Outbox {
    commands: Vec<(WorkerId, treadle_types::Command)>,
    /// Tasks of which the client hears.
    finished: Vec<TaskId>,
}

/// What tasks amount to.
enum Amounts {
    Same(Duration, u64),
    Each(Vec<(Duration, u64)>),
}

impl Amounts {
    fn of(&self, number: u32) -> (Duration, u64) {
        match self {
            Self::Same(time, nbytes) => (*time, *nbytes),
            Self::Each(amounts) => amounts[number as usize],
        }
    }

    /// Seconds that so many tasks take.
    fn seconds(&self, tasks: u32) -> f64 {
        (0..tasks)
            .map(|number| self.of(number).0.as_secs_f64())
            .sum()
    }
}

/// Runs a workload with tasks of this duration on so many workers of two threads.
pub fn run(
    workload: Workload,
    workers: usize,
    task: Duration,
    parameters: Parameters,
    cost: Cost,
) -> Scaling {
    let client = Client::new(workload, workers as u32 * THREADS);
    let amounts = Amounts::Same(task, parameters.nbytes);
    let mut cluster = Cluster::new((workers, THREADS), client, amounts, parameters, cost);
    cluster.make_batch();
    cluster.finish(workers as u32 * THREADS)
}

/// Prints a table for 1 to 512 workers.
pub fn report() {
    let parameters = Parameters::default();
    println!("workers   100 ms tasks           1 s tasks");
    for exponent in 0..10 {
        let workers = 1 << exponent;
        let run = |each, millis| {
            let task = Duration::from_millis(millis);
            run(
                Workload::Flat(each),
                workers,
                task,
                parameters,
                Cost::Measured,
            )
        };
        let (short, long) = (run(50, 100), run(20, 1000));
        println!(
            "{workers:>7}   {:>6.2} % {:>8.2?} CPU   {:>6.2} % {:>8.2?} CPU",
            100.0 * short.share,
            short.cpu,
            100.0 * long.share,
            long.cpu
        );
    }
}

/// Prints the report's workloads on these numbers of workers, as lines of JSON.
pub fn points(workers: &[usize], parameters: Parameters) {
    for workload in Workload::ALL {
        for &workers in workers {
            let task = Duration::from_millis(100);
            let point = run(workload, workers, task, parameters, Cost::Measured);
            println!(
                "{{\"workload\": \"{}\", \"workers\": {workers}, \"tasks\": {}, \"seconds\": {:.6}, \"cpu\": {:.9}}}",
                workload.name(),
                point.tasks,
                point.took.as_secs_f64(),
                point.cpu.as_secs_f64(),
            );
        }
    }
}

impl Cluster {
    /// So many workers, with so many threads each, that nobody has given work yet.
    fn new(
        (workers, threads): (usize, u32),
        client: Client,
        amounts: Amounts,
        parameters: Parameters,
        cost: Cost,
    ) -> Self {
        let mut cluster = Self {
            scheduler: Scheduler::new(Config::default()),
            cost,
            parameters,
            cores: Cores::new(parameters.cores),
            free: Duration::ZERO,
            cpu: Duration::ZERO,
            inbox: Vec::new(),
            outbox: Outbox::default(),
            workers: Vec::new(),
            lines: vec![kernel::Line::default(); workers],
            client,
            tasks: Vec::new(),
            numbers: HashMap::default(),
            kernel: Kernel::new(Random::new(0), Trace::Off),
            amounts,
        };
        cluster.hear(Event::ClientJoined(ClientId(0)));
        for worker in 0..workers {
            cluster.workers.push(Worker::new(treadle_worker::Config {
                threads,
                ..treadle_worker::Config::default()
            }));
            let profile = WorkerProfile {
                name: Symbol(FIRST_NAME + worker as u32),
                // Two workers a host.
                host: Symbol(FIRST_HOST + worker as u32 / 2),
                aliases: Vec::new(),
                threads,
                memory: 0,
                resources: Vec::new(),
            };
            let worker = WorkerId(worker as u32);
            cluster.hear(Event::WorkerJoined { worker, profile });
        }
        cluster.send();
        // The cluster stands before the clock starts.
        (cluster.free, cluster.cpu) = (Duration::ZERO, Duration::ZERO);
        cluster.cores = Cores::new(parameters.cores);
        cluster
            .kernel
            .schedule(treadle_scheduler::TICK, Arrival::Tick);
        for worker in 0..workers {
            let offset = HEARTBEAT * worker as u32 / workers as u32;
            cluster.kernel.schedule(offset, Arrival::Heartbeat(worker));
        }
        cluster
    }

    /// Runs until the client has what it waits for.
    fn finish(mut self, slots: u32) -> Scaling {
        let is_over = self.run().expect("it comes to its end");
        assert!(is_over, "nothing moves: {}", self.unresolved());
        let took = self.client.free.max(self.kernel.now());
        let tasks = self.tasks.len() as u32;
        let ideal = self.amounts.seconds(tasks) / f64::from(slots);
        Scaling {
            took,
            share: ideal / took.as_secs_f64(),
            cpu: self.cpu / tasks,
            tasks,
        }
    }

    /// How long a task runs, and how many bytes its value has.
    fn amounts(&self, object: ObjectId) -> (Duration, u64) {
        self.amounts.of(self.numbers[&object.task])
    }

    fn arrive(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Server(message) => {
                if self.inbox.is_empty() {
                    self.turn_when_free();
                }
                self.inbox.push(message);
            }
            Arrival::Turn => self.turn(),
            Arrival::Worker(worker, command) => {
                self.work(worker, treadle_worker::Event::Command(command));
            }
            Arrival::Done(worker, object) => {
                let noted = self.cores.work(self.kernel.now(), self.parameters.start);
                self.kernel.schedule_at(noted, Arrival::Ran(worker, object));
            }
            Arrival::Spent => {
                self.cores.work(self.kernel.now(), self.parameters.worker);
            }
            Arrival::Ran(worker, object) => {
                let (duration, nbytes) = self.amounts(object);
                let is_small = nbytes <= SMALL;
                let inline = is_small.then(|| Bytes::from(vec![0; nbytes as usize]));
                let returned = Returned {
                    nbytes,
                    inline,
                    kept: !is_small,
                    class: Bytes::new(),
                };
                let ran = treadle_worker::Event::Ran {
                    object,
                    outcome: Outcome::Returned(returned),
                    duration,
                };
                self.work(worker, ran);
            }
            Arrival::Fetched(worker, object, from, nbytes) => {
                let fetched = treadle_worker::Event::Fetched {
                    object,
                    from,
                    nbytes: Some(nbytes),
                };
                self.work(worker, fetched);
            }
            Arrival::Heartbeat(worker) => {
                let health = Report::Health {
                    managed: 0,
                    process: 0,
                    spilled: 0,
                    paused: false,
                };
                self.report(worker, health);
                self.kernel.schedule(HEARTBEAT, Arrival::Heartbeat(worker));
            }
            Arrival::Notice(tasks) => {
                self.charge_client(self.parameters.notice);
                for task in tasks {
                    self.client.heard(self.numbers[&task]);
                }
                if !self.client.is_awake {
                    self.look_after(self.parameters.look);
                }
            }
            Arrival::Look => self.look(),
            Arrival::Tick => {
                self.hear(Event::Tick);
                self.send();
                self.kernel.schedule(treadle_scheduler::TICK, Arrival::Tick);
            }
        }
    }

    /// The scheduler was busy with one thing for so long.
    fn charge(&mut self, time: Duration) {
        let begins = self.free.max(self.kernel.now());
        self.free = self.cores.work(begins, time);
        self.cpu += time;
    }

    /// The client was.
    fn charge_client(&mut self, time: Duration) {
        let begins = self.client.free.max(self.kernel.now());
        self.client.free = self.cores.work(begins, time);
    }

    fn turn_when_free(&mut self) {
        let at = self.free.max(self.kernel.now());
        self.kernel.schedule_at(at, Arrival::Turn);
    }

    /// The scheduler takes all that has come since it had time last, and then sends what follows.
    fn turn(&mut self) {
        if self.free > self.kernel.now() {
            return self.turn_when_free();
        }
        self.charge(self.parameters.turn);
        for message in std::mem::take(&mut self.inbox) {
            match message {
                Message::Event(event) => self.hear(*event),
                Message::Batch(batch) => self.submit(&batch),
            }
        }
        self.send();
    }

    fn hear(&mut self, event: Event) {
        let mut effects = Effects::default();
        let now = self.free.max(self.kernel.now());
        let begun = cpu_time();
        let handled = self.scheduler.handle(event, now, &mut effects);
        self.charge(self.cost.of(cpu_time() - begun));
        handled.expect("the events are those of a real cluster");
        for effect in effects.0 {
            match effect {
                Effect::Command { worker, command } => self.outbox.commands.push((worker, command)),
                Effect::Notify { task, .. } => self.outbox.finished.push(task),
                _ => {}
            }
        }
    }

    /// The scheduler sends each connection what there is for it, in one piece.
    fn send(&mut self) {
        let Outbox { commands, finished } = std::mem::take(&mut self.outbox);
        let to: BTreeSet<WorkerId> = commands.iter().map(|(worker, _)| *worker).collect();
        let connections = to.len() + usize::from(!finished.is_empty());
        self.charge(self.parameters.write * connections as u32);
        let arrives = self.free.max(self.kernel.now()) + self.parameters.latency;
        for (worker, command) in commands {
            let arrival = Arrival::Worker(worker.0 as usize, command);
            self.kernel.schedule_at(arrives, arrival);
        }
        if !finished.is_empty() {
            self.kernel.schedule_at(arrives, Arrival::Notice(finished));
        }
    }

    fn work(&mut self, worker: usize, event: treadle_worker::Event) {
        let mut effects = treadle_worker::Effects::default();
        let handled = self.workers[worker].handle(event, &mut effects);
        handled.expect("the events are those of a real worker");
        let now = self.kernel.now();
        for effect in effects.0 {
            match effect {
                treadle_worker::Effect::Run(run) => {
                    let begins = self.cores.work(now, self.parameters.start);
                    let (time, _) = self.amounts(run.object);
                    let ends = begins + time + self.over();
                    self.kernel
                        .schedule_at(ends, Arrival::Done(worker, run.object));
                    self.kernel.schedule_at(begins + LATER, Arrival::Spent);
                }
                treadle_worker::Effect::Fetch {
                    object,
                    from,
                    nbytes,
                } => {
                    let asked = now + self.parameters.latency;
                    let time = Duration::from_secs_f64(nbytes as f64 / self.parameters.bandwidth);
                    let (_, sent) = self.lines[from.0 as usize].send(asked, time);
                    let arrival = Arrival::Fetched(worker, object, from, nbytes);
                    self.kernel
                        .schedule_at(sent + self.parameters.latency, arrival);
                }
                treadle_worker::Effect::Report(report) => self.report(worker, report),
                _ => {}
            }
        }
    }

    /// How much longer than its own time a task keeps its slot. A part of it varies, as independent delays
    /// do: with an exponential distribution. Tasks that begin together end together only if nothing varies.
    fn over(&mut self) -> Duration {
        let Parameters { over, spread, .. } = self.parameters;
        let spread = spread.min(over);
        let uniform = (self.kernel.random.below(1 << 32) as f64 + 0.5) / 2_f64.powi(32);
        over - spread + spread.mul_f64(-uniform.ln())
    }

    fn report(&mut self, worker: usize, report: Report) {
        let worker = WorkerId(worker as u32);
        let report = Message::Event(Box::new(Event::Report { worker, report }));
        self.kernel
            .schedule(self.parameters.latency, Arrival::Server(report));
    }

    /// The client makes the next tasks of what it calls at once, if there are any left.
    fn make_batch(&mut self) {
        if let Some((batch, each)) = self.client.next_batch(&self.parameters) {
            self.charge_client(each);
            let sent = self.client.free + self.parameters.latency;
            self.kernel
                .schedule_at(sent, Arrival::Server(Message::Batch(batch)));
            if self.client.is_making() {
                self.make_batch();
            }
        }
    }

    /// Tasks have come to the scheduler.
    fn submit(&mut self, batch: &client::Batch) {
        let begun = cpu_time();
        let new: Vec<_> = batch.tasks().map(|_| self.scheduler.allocate()).collect();
        self.charge(self.cost.of(cpu_time() - begun));
        for (number, task) in batch.tasks().zip(new) {
            self.tasks.push(task);
            self.numbers.insert(task, number);
        }
        let submission = self.client.submission(batch, &self.tasks);
        self.hear(Event::Submit(submission));
    }

    /// The client looks at what it has heard, so long after it has time.
    fn look_after(&mut self, time: Duration) {
        self.client.is_awake = true;
        let at = self.client.free.max(self.kernel.now());
        self.kernel.schedule_at(at + time, Arrival::Look);
    }

    fn look(&mut self) {
        if self.client.free > self.kernel.now() {
            return self.look_after(Duration::ZERO);
        }
        self.client.is_awake = false;
        if let Some(batch) = self.client.sum() {
            self.charge_client(self.parameters.submit);
            let sent = self.client.free + self.parameters.latency;
            self.kernel
                .schedule_at(sent, Arrival::Server(Message::Batch(batch)));
            self.look_after(Duration::ZERO);
        }
    }
}

impl kernel::World for Cluster {
    type Item = Arrival;
    type Node = ();
    const LIMIT: (Duration, u64) = (Duration::MAX, u64::MAX);

    fn kernel(&self) -> &Kernel<Arrival, ()> {
        &self.kernel
    }

    fn kernel_mut(&mut self) -> &mut Kernel<Arrival, ()> {
        &mut self.kernel
    }

    fn step(&mut self, arrival: Arrival) -> Result<(), String> {
        self.arrive(arrival);
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        self.client.is_done()
    }

    fn unresolved(&self) -> String {
        format!("{:?} of {} tasks", self.client, self.tasks.len())
    }
}

impl kernel::Item for Arrival {}

/// What this thread has used of a CPU: who else runs on the machine does not matter.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
