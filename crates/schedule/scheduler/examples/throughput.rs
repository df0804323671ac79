//! What a task costs the scheduler alone: the machine is driven with graphs and with workers that
//! answer at once, and the processor time spent in `handle` is divided by the number of tasks.
//!
//! `cargo run --release -p treadle-scheduler --example throughput [tasks] [graph] [workers]`

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use treadle_scheduler::{
    Config, Effect, Effects, Event, Scheduler, State, Submission, WorkerProfile,
};
use treadle_types::{
    ClientId, Command, ObjectId, Options, Report, Returned, Symbol, TaskId, WorkerId,
};

const CLIENT: ClientId = ClientId(0);
/// How many tasks come in a batch.
const BATCH: usize = 4096;

#[derive(Clone, Copy, PartialEq)]
enum Graph {
    /// Tasks without inputs, all wanted.
    Flat,
    /// Chains of 100, the last of each wanted.
    Chains,
    /// One binary tree, in depth-first order, the root wanted.
    Tree,
}

/// The inputs of each task, and which are wanted.
fn build(graph: Graph, count: usize) -> (Vec<Vec<usize>>, Vec<usize>) {
    match graph {
        Graph::Flat => (vec![Vec::new(); count], (0..count).collect()),
        Graph::Chains => {
            let inputs = (0..count).map(|i| if i % 100 == 0 { vec![] } else { vec![i - 1] });
            let last = (0..count).filter(|i| i % 100 == 99 || *i == count - 1);
            (inputs.collect(), last.collect())
        }
        Graph::Tree => {
            // Leaves come one by one, and what can be joined is joined: depth first.
            let mut inputs: Vec<Vec<usize>> = Vec::new();
            let mut open: Vec<(u32, usize)> = Vec::new();
            while inputs.len() < count {
                match open[..] {
                    [.., (a, left), (b, right)] if a == b => {
                        inputs.push(vec![left, right]);
                        open.truncate(open.len() - 2);
                        open.push((a + 1, inputs.len() - 1));
                    }
                    _ => {
                        inputs.push(Vec::new());
                        open.push((0, inputs.len() - 1));
                    }
                }
            }
            (inputs, open.into_iter().map(|(_, task)| task).collect())
        }
    }
}

/// The time that this thread has had a processor: wall time says little on a busy machine.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct Outcome {
    nanos: f64,
    peak_bytes: f64,
    commands: usize,
}

fn drive(graph: Graph, count: usize, workers: u32) -> Outcome {
    let (graph_inputs, graph_wanted) = build(graph, count);
    let mut readers = vec![0; count];
    for &input in graph_inputs.iter().flatten() {
        readers[input] += 1;
    }
    let recipe = Bytes::from(vec![0u8; 100]);
    let value = Bytes::from_static(&[3, 2]);
    let mut scheduler = Scheduler::new(Config::default());
    let mut effects = Effects::default();
    let mut spent = Duration::ZERO;
    let mut now = Duration::ZERO;
    let mut handle = |scheduler: &mut Scheduler, events: Vec<Event>, effects: &mut Effects| {
        let start = cpu_time();
        for event in events {
            now += Duration::from_nanos(100);
            scheduler
                .handle(event, now, effects)
                .expect("a sound event");
        }
        spent += cpu_time() - start;
    };
    for worker in 0..workers {
        let profile = WorkerProfile {
            name: Symbol(1000 + worker),
            host: Symbol(100_000 + worker / 4),
            aliases: Vec::new(),
            threads: 2,
            memory: 0,
            resources: Vec::new(),
        };
        let worker = WorkerId(worker);
        handle(
            &mut scheduler,
            vec![Event::WorkerJoined { worker, profile }],
            &mut effects,
        );
    }
    handle(
        &mut scheduler,
        vec![Event::ClientJoined(CLIENT)],
        &mut effects,
    );
    // Ready tasks of each worker, as it would run them.
    let mut queues: Vec<VecDeque<(ObjectId, bool)>> = vec![VecDeque::new(); workers as usize];
    let mut ids: Vec<TaskId> = Vec::with_capacity(count);
    let mut finished = 0;
    let mut commands = 0;
    let mut peak = 0;
    let mut sent = 0;
    let mut is_wanted = vec![false; count];
    for &task in &graph_wanted {
        is_wanted[task] = true;
    }
    while finished < count {
        // Batches come as fast as the scheduler takes them: all before the first report.
        while sent < count {
            let end = (sent + BATCH).min(count);
            let range = sent..end;
            ids.extend(range.clone().map(|_| scheduler.allocate()));
            let mut submission = Submission {
                client: CLIENT,
                number: 0,
                last: end == count,
                tasks: ids[range.clone()].to_vec(),
                offsets: vec![0],
                readers: readers[range.clone()].to_vec(),
                ranks: range.clone().map(|i| i as u32).collect(),
                functions: vec![Symbol(7); range.len()],
                recipes: vec![recipe.clone(); range.len()],
                options: vec![0; range.len()],
                option_sets: vec![Options::default()],
                ..Submission::default()
            };
            for task in range.clone() {
                submission
                    .inputs
                    .extend(graph_inputs[task].iter().map(|&i| ids[i]));
                submission.offsets.push(submission.inputs.len() as u32);
                if is_wanted[task] {
                    submission.wanted.push(ids[task]);
                }
            }
            sent = end;
            handle(
                &mut scheduler,
                vec![Event::Submit(submission)],
                &mut effects,
            );
        }
        for effect in effects.0.drain(..) {
            if let Effect::Command { worker, command } = effect {
                commands += 1;
                if let Command::Assign(assignment) = command {
                    queues[worker.0 as usize].push_back((assignment.object, assignment.keep));
                }
            }
        }
        // It grows no more once all tasks have come.
        if peak == 0 {
            peak = scheduler.memory();
        }
        for (worker, queue) in queues.iter_mut().enumerate() {
            // What was there when the queue drained, as over a socket.
            let mut reports = Vec::new();
            for _ in 0..queue.len().min(64) {
                let Some((object, kept)) = queue.pop_front() else {
                    break;
                };
                finished += 1;
                let report = Report::Finished {
                    object,
                    value: Returned {
                        nbytes: 28,
                        inline: Some(value.clone()),
                        kept,
                        class: Bytes::new(),
                    },
                    duration: Duration::from_micros(2),
                };
                let worker = WorkerId(worker as u32);
                reports.push(Event::Report { worker, report });
            }
            handle(&mut scheduler, reports, &mut effects);
        }
    }
    let tasks: Vec<_> = graph_wanted.iter().map(|&i| ids[i]).collect();
    let unwant = Event::Unwant {
        client: CLIENT,
        tasks,
    };
    handle(&mut scheduler, vec![unwant], &mut effects);
    for state in State::ALL {
        assert_eq!(scheduler.count(state), 0, "tasks are left in {state:?}");
    }
    Outcome {
        nanos: spent.as_nanos() as f64 / count as f64,
        peak_bytes: peak as f64 / count as f64,
        commands,
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count = arguments
        .next()
        .map_or(100_000, |n| n.parse().expect("a number of tasks"));
    let only = arguments.next();
    let workers: Option<u32> = arguments
        .next()
        .map(|n| n.parse().expect("a number of workers"));
    println!("graph   workers    tasks   ns/task   B/task   commands/task");
    for (name, graph) in [
        ("flat", Graph::Flat),
        ("chains", Graph::Chains),
        ("tree", Graph::Tree),
    ] {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        for workers in workers.map_or(vec![1, 2, 100, 1000], |n| vec![n]) {
            let outcome = drive(graph, count, workers);
            println!(
                "{name:<7} {workers:>7} {count:>8} {:>9.0} {:>8.0} {:>15.2}",
                outcome.nanos,
                outcome.peak_bytes,
                outcome.commands as f64 / count as f64
            );
        }
    }
}
