//! Weak scaling: how much of the ideal is left when workers and tasks grow together.
//!
//! The network has a latency, and each event costs the scheduler the CPU time that its core takes on
//! this machine: while it works on one, others wait. Workers cost nothing.

use std::time::Duration;

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use treadle_scheduler::{Config, Effect, Effects, Event, Scheduler, Submission, WorkerProfile};
use treadle_types::{ClientId, ObjectId, Options, Report, Returned, Symbol, TaskId, WorkerId};
use treadle_worker::{Outcome, Worker};

use crate::kernel::{self, Kernel, Random, Trace, World as _};

/// One way.
const LATENCY: Duration = Duration::from_micros(100);
/// Tasks that a client sends at once.
const BATCH: u32 = 1_000;
/// How often a worker says how it is.
const HEARTBEAT: Duration = Duration::from_millis(500);
const THREADS: u32 = 2;

/// What an event costs the scheduler.
#[derive(Clone, Copy, Debug)]
pub enum Cost {
    /// The CPU time that its core takes here and now.
    Measured,
    /// The same for each: such runs repeat exactly.
    Fixed(Duration),
}

/// What came of a run.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    /// The time that the tasks would take if no slot was ever free, over the time that they took.
    pub share: f64,
    /// The scheduler's CPU time a task.
    pub cpu: Duration,
}

/// What arrives somewhere.
#[derive(Debug)]
enum Arrival {
    Server(Event),
    Worker(usize, treadle_types::Command),
    Done(usize, ObjectId),
    Heartbeat(usize),
    Batch(u32),
    Tick,
}

struct Cluster {
    scheduler: Scheduler,
    cost: Cost,
    /// When the scheduler is done with what it has heard.
    free: Duration,
    cpu: Duration,
    workers: Vec<Worker>,
    kernel: Kernel<Arrival, ()>,
    task: Duration,
    tasks: u32,
    sent: u32,
    finished: u32,
}

/// Runs `per_slot` tasks of this duration for each slot of so many workers of two threads.
pub fn run(workers: usize, task: Duration, per_slot: u32, cost: Cost) -> Scaling {
    let mut cluster = Cluster {
        scheduler: Scheduler::new(Config::default()),
        cost,
        free: Duration::ZERO,
        cpu: Duration::ZERO,
        workers: Vec::new(),
        kernel: Kernel::new(Random::new(0), Trace::Off),
        task,
        tasks: workers as u32 * THREADS * per_slot,
        sent: 0,
        finished: 0,
    };
    cluster.hear(Event::ClientJoined(ClientId(0)));
    for worker in 0..workers {
        cluster.workers.push(Worker::new(treadle_worker::Config {
            threads: THREADS,
            ..treadle_worker::Config::default()
        }));
        let name = Symbol(1_000 + worker as u32);
        let profile = WorkerProfile {
            name,
            // Two workers a host.
            host: Symbol(10_000 + worker as u32 / 2),
            aliases: Vec::new(),
            threads: THREADS,
            memory: 0,
            resources: Vec::new(),
        };
        let worker = WorkerId(worker as u32);
        cluster.hear(Event::WorkerJoined { worker, profile });
    }
    // The cluster stands before the clock starts.
    (cluster.free, cluster.cpu) = (Duration::ZERO, Duration::ZERO);
    cluster.kernel.schedule(Duration::ZERO, Arrival::Batch(0));
    cluster
        .kernel
        .schedule(treadle_scheduler::TICK, Arrival::Tick);
    for worker in 0..workers {
        let offset = HEARTBEAT * worker as u32 / workers as u32;
        cluster.kernel.schedule(offset, Arrival::Heartbeat(worker));
    }
    let is_over = cluster.run().expect("it comes to its end");
    assert!(is_over, "nothing moves: {}", cluster.unresolved());
    let took = cluster.free.max(cluster.kernel.now());
    let ideal = task * per_slot;
    Scaling {
        share: ideal.as_secs_f64() / took.as_secs_f64(),
        cpu: cluster.cpu / cluster.tasks,
    }
}

/// Prints a table for 1 to 512 workers.
pub fn report() {
    println!("workers   100 ms tasks           1 s tasks");
    for exponent in 0..10 {
        let workers = 1 << exponent;
        let short = run(workers, Duration::from_millis(100), 50, Cost::Measured);
        let long = run(workers, Duration::from_secs(1), 20, Cost::Measured);
        println!(
            "{workers:>7}   {:>6.2} % {:>8.2?} CPU   {:>6.2} % {:>8.2?} CPU",
            100.0 * short.share,
            short.cpu,
            100.0 * long.share,
            long.cpu
        );
    }
}

impl Cluster {
    fn arrive(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Server(event) => {
                if let Event::Report {
                    report: Report::Finished { .. },
                    ..
                } = &event
                {
                    self.finished += 1;
                }
                self.hear(event);
            }
            Arrival::Worker(worker, command) => {
                self.work(worker, treadle_worker::Event::Command(command));
            }
            Arrival::Done(worker, object) => {
                let returned = Returned {
                    nbytes: 8,
                    inline: Some(Bytes::from_static(b"12345678")),
                    kept: false,
                    class: Bytes::new(),
                };
                let ran = treadle_worker::Event::Ran {
                    object,
                    outcome: Outcome::Returned(returned),
                    duration: self.task,
                };
                self.work(worker, ran);
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
            Arrival::Batch(first) => {
                let count = BATCH.min(self.tasks - first);
                let begun = cpu_time();
                let tasks: Vec<_> = (0..count).map(|_| self.scheduler.allocate()).collect();
                self.charge(cpu_time() - begun);
                self.sent += count;
                let last = self.sent == self.tasks;
                self.hear(Event::Submit(submission(tasks, first, last)));
                if !last {
                    // The client is no faster than the scheduler takes its tasks.
                    let pause = self.free.saturating_sub(self.kernel.now());
                    self.kernel.schedule(pause, Arrival::Batch(first + count));
                }
            }
            Arrival::Tick => {
                self.hear(Event::Tick);
                self.kernel.schedule(treadle_scheduler::TICK, Arrival::Tick);
            }
        }
    }

    /// The scheduler was busy with one thing for so long.
    fn charge(&mut self, time: Duration) {
        let time = match self.cost {
            Cost::Measured => time,
            Cost::Fixed(time) => time,
        };
        self.free = self.free.max(self.kernel.now()) + time;
        self.cpu += time;
    }

    fn hear(&mut self, event: Event) {
        let mut effects = Effects::default();
        let now = self.free.max(self.kernel.now());
        let begun = cpu_time();
        let handled = self.scheduler.handle(event, now, &mut effects);
        self.charge(cpu_time() - begun);
        handled.expect("the events are those of a real cluster");
        for effect in effects.0 {
            if let Effect::Command { worker, command } = effect {
                let arrival = Arrival::Worker(worker.0 as usize, command);
                self.kernel.schedule_at(self.free + LATENCY, arrival);
            }
        }
    }

    fn work(&mut self, worker: usize, event: treadle_worker::Event) {
        let mut effects = treadle_worker::Effects::default();
        let handled = self.workers[worker].handle(event, &mut effects);
        handled.expect("the events are those of a real worker");
        for effect in effects.0 {
            match effect {
                treadle_worker::Effect::Run(run) => {
                    self.kernel
                        .schedule(self.task, Arrival::Done(worker, run.object));
                }
                treadle_worker::Effect::Report(report) => self.report(worker, report),
                _ => {}
            }
        }
    }

    fn report(&mut self, worker: usize, report: Report) {
        let worker = WorkerId(worker as u32);
        let event = Event::Report { worker, report };
        self.kernel.schedule(LATENCY, Arrival::Server(event));
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
        self.finished == self.tasks
    }

    fn unresolved(&self) -> String {
        format!("{} of {} tasks ran", self.finished, self.tasks)
    }
}

impl kernel::Item for Arrival {}

/// What this thread has used of a CPU: who else runs on the machine does not matter.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Tasks that read nothing.
fn submission(tasks: Vec<TaskId>, first: u32, last: bool) -> Submission {
    let count = tasks.len();
    Submission {
        client: ClientId(0),
        number: 0,
        last,
        offsets: vec![0; count + 1],
        inputs: Vec::new(),
        readers: vec![0; count],
        ranks: (first..first + count as u32).collect(),
        functions: vec![Symbol(1); count],
        recipes: vec![Bytes::from_static(b"recipe"); count],
        options: vec![0; count],
        option_sets: vec![Options::default()],
        constraints: Vec::new(),
        wanted: tasks.clone(),
        located: Vec::new(),
        tasks,
    }
}
