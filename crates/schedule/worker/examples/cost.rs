//! What the state machine costs: nanoseconds a task, for tasks that do nothing.
//!
//! `cargo run --release -p treadle-worker --example cost`

use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_types::{
    Assignment, Attempt, ClientId, Command, Input, ObjectId, Place, Priority, Returned, TaskId,
};
use treadle_worker::{Config, Effect, Effects, Event, Outcome, Worker};

const TASKS: u32 = 1_000_000;
/// Tasks that the scheduler sends ahead.
const AHEAD: u32 = 1_000;

fn object(number: u32) -> ObjectId {
    ObjectId::new(TaskId(number), Attempt(1))
}

fn assign(number: u32, inputs: Vec<Input>) -> Event {
    Event::Command(Command::Assign(Assignment {
        object: object(number),
        priority: Priority {
            rank: number,
            ..Priority::default()
        },
        client: ClientId(1),
        recipe: Bytes::from_static(b"recipe"),
        inputs: inputs.into(),
        keep: false,
        actor: false,
    }))
}

fn ran(number: ObjectId, kept: bool) -> Event {
    Event::Ran {
        object: number,
        outcome: Outcome::Returned(Returned {
            nbytes: 8,
            inline: (!kept).then(|| Bytes::from_static(b"12345678")),
            kept,
            class: Bytes::new(),
        }),
        duration: Duration::from_micros(1),
    }
}

/// Assigns the tasks, ends each that starts, and releases what `release` says.
fn measure(
    name: &str,
    kept: bool,
    inputs: impl Fn(u32) -> Vec<Input>,
    release: impl Fn(u32) -> Option<u32>,
) {
    let mut worker = Worker::new(Config {
        threads: 2,
        ..Config::default()
    });
    let mut effects = Effects::default();
    let mut running = Vec::new();
    let begun = Instant::now();
    let (mut assigned, mut ended) = (0, 0);
    while ended < TASKS {
        let event = if assigned < TASKS && assigned - ended < AHEAD {
            assigned += 1;
            assign(assigned - 1, inputs(assigned - 1))
        } else {
            ended += 1;
            ran(running.pop().expect("something runs"), kept)
        };
        let has_ended = matches!(event, Event::Ran { .. });
        worker
            .handle(event, &mut effects)
            .expect("nothing is wrong");
        for effect in effects.0.drain(..) {
            if let Effect::Run(run) = effect {
                running.push(run.object);
            }
        }
        if has_ended && let Some(number) = release(ended - 1) {
            let release = Event::Command(Command::Release(object(number)));
            worker
                .handle(release, &mut effects)
                .expect("nothing is wrong");
        }
    }
    let each = begun.elapsed().as_nanos() as f64 / f64::from(TASKS);
    println!("{name:<40} {each:>6.0} ns a task");
}

fn main() {
    let here = |number: u32| Input {
        object: object(number),
        nbytes: 8,
        place: Place::Here,
    };
    let none = |_| None;
    measure("flat, small values", false, |_| vec![], none);
    measure("flat, values kept", true, |_| vec![], none);
    let chain = |number: u32| match number {
        0 => vec![],
        _ => vec![here(number - 1)],
    };
    measure("a chain", true, chain, |ended| ended.checked_sub(1));
}
