//! Figures: how the time of a push grows with the number of engines, and what a client pays.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use treadle_broadcast::{
    CastResult, Config, Effect, Effects, Event, Me, Member, Message, Neighbour, Outcome, Relay,
    Runs, Tree,
};
use treadle_types::{ClientId, WorkerId};

use crate::plan::Plan;
use crate::world::{World, run};
use treadle_sim_kernel::Trace;

/// What came of a push to engines that each have a host of their own, and that have been called
/// before.
#[derive(Clone, Debug)]
pub struct Push {
    /// The degree of the tree.
    pub degree: u64,
    /// Until the last engine had all of it.
    pub time: Duration,
    /// Until the client had all results.
    pub round: Duration,
    /// The most bytes of the payload that a node sent, over degree × size.
    pub most: f64,
    /// What the client sent: messages and bytes.
    pub sent: (u64, u64),
    pub received: (u64, u64),
}

/// A push of `size` bytes to so many engines, through the tree of the planner or one that was asked for.
///
/// # Errors
/// What went wrong, for people.
pub fn push(engines: u32, size: u64, tree: Tree) -> Result<Push, String> {
    let plan = |times| Plan {
        tree,
        ..Plan::push(engines, size, times)
    };
    let before = run(plan(1), Trace::Off)?;
    let after = run(plan(2), Trace::Off)?;
    let cast = after.oracle.casts.last_key_value().expect("it was made").1;
    let most = cast.sent.values().copied().max().unwrap_or(0);
    let client = |world: &World| {
        let client = &world.procs[0];
        (client.sent, client.received)
    };
    let (before, after) = (client(&before), client(&after));
    let less = |one: (u64, u64), other: (u64, u64)| (one.0 - other.0, one.1 - other.1);
    Ok(Push {
        degree: cast.degree,
        time: cast.ran - cast.begun,
        round: cast.completed - cast.begun,
        most: most as f64 / (cast.degree * size) as f64,
        sent: less(after.0, before.0),
        received: less(after.1, before.1),
    })
}

/// Prints how long pushes take with trees of the planner and of depths 0 to 5, a line of JSON each: until
/// the last engine had all of it. Engines have hosts of their own.
///
/// # Panics
/// If a simulation fails.
pub fn sweep() {
    let planned = [Tree::default()];
    let depths = (0..=5).map(|depth| Tree {
        depth: Some(depth),
        degree: None,
    });
    for engines in [8, 16, 32, 64, 128, 256, 512] {
        for size in [8, 32 << 10, 2 << 20, 20 << 20] {
            for tree in planned.into_iter().chain(depths.clone()) {
                let push = push(engines, size, tree).expect("nothing goes wrong");
                let depth = tree
                    .depth
                    .map_or("null".to_owned(), |depth| depth.to_string());
                println!(
                    "{{\"engines\": {engines}, \"size\": {size}, \"depth\": {depth}, \"degree\": {}, \
                     \"seconds\": {:.9}, \"round\": {:.9}}}",
                    push.degree,
                    push.time.as_secs_f64(),
                    push.round.as_secs_f64(),
                );
            }
        }
    }
}

/// How long the results of others take the client while one engine is paused, and that engine's own
/// when it goes on: a push, and two calls later. See [`Plan::paused`].
///
/// # Errors
/// What went wrong, for people.
pub fn paused(
    engines: u32,
    crowd: u32,
    size: u64,
    victim: usize,
    at: Duration,
) -> Result<[Duration; 3], String> {
    let world = run(Plan::paused(engines, crowd, size, victim, at), Trace::Off)?;
    let summary = &world.summary;
    if summary.lost + summary.unreachable > 0 {
        return Err("who was paused has no result".into());
    }
    let victim = u64::from(world.members[victim].worker.0);
    let mut casts = world.oracle.casts.values();
    let mut wait = || {
        let cast = casts.next().expect("they were made");
        let others = cast.heard.iter().filter(|(id, _)| **id != victim);
        let last = others.map(|(_, &at)| at).max().unwrap_or_default();
        last - cast.begun
    };
    Ok([wait(), wait(), wait()])
}

/// The processor's time that an empty call to so many engines takes at the client's end, with all
/// its answers; the mean over `calls`.
pub fn cost_of_call(engines: u32, calls: u64) -> Duration {
    let session = ClientId(0);
    let members = Runs::range(0, u64::from(engines));
    let mut effects = Effects::default();
    let me = Me::Top {
        session,
        host: None,
    };
    let mut top = Relay::new(me, Config::default());
    let mut handle = |event| {
        top.handle(event, Duration::ZERO, &mut effects)
            .expect("it is allowed");
        std::mem::take(&mut effects.0)
    };
    let member = |id| Member {
        worker: WorkerId(id),
        host: id,
        address: "host:1".into(),
    };
    handle(Event::Introduce((0..engines).map(member).collect()));
    let root = Neighbour::Worker(WorkerId(0));
    let mut begun = processor_time();
    for number in 1..=calls {
        if number == 2 {
            // The first one makes the connection and introduces everybody.
            begun = processor_time();
        }
        let members = members.clone();
        let cast = Event::Cast {
            number,
            members: members.clone(),
            size: 100,
            unordered: false,
            tree: Tree::default(),
        };
        handle(cast);
        if number == 1 {
            handle(Event::Connected(root));
        }
        let outcome = Outcome::Finished { size: 0 };
        let results = vec![CastResult {
            number,
            engines: members,
            outcome,
        }];
        let effects = handle(Event::Message(root, Message::Results { session, results }));
        let is_complete = |effect: &Effect| matches!(effect, Effect::Complete { .. });
        assert!(effects.iter().any(is_complete), "call {number} is complete");
    }
    (processor_time() - begun) / (calls - 1) as u32
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Prints the figures.
///
/// # Panics
/// If a simulation fails.
pub fn report() {
    println!("2 MB to engines on hosts of their own (1.1 GB/s, 100 µs, 10 µs a message)");
    println!(
        "{:>7} {:>6} {:>9} {:>14} {:>9} {:>14} {:>16} {:>16}",
        "engines",
        "degree",
        "all have",
        "ms per doubling",
        "round",
        "most ÷ share",
        "client sends",
        "client gets"
    );
    for engines in [8, 16, 32, 64, 128, 256, 512, 10_000] {
        let push = push(engines, 2 << 20, Tree::default()).expect("nothing goes wrong");
        let time = push.time.as_secs_f64() * 1e3;
        println!(
            "{engines:>7} {:>6} {time:>6.2} ms {:>14.2} {:>6.2} ms {:>14.2} {:>6} {:>9} {:>6} {:>9}",
            push.degree,
            time / f64::from(engines).log2(),
            push.round.as_secs_f64() * 1e3,
            push.most,
            push.sent.0,
            push.sent.1,
            push.received.0,
            push.received.1,
        );
    }
    for engines in [1, 32, 512, 10_000] {
        let cost = cost_of_call(engines, 100_000);
        println!("an empty call to {engines} engines costs the client's core {cost:.2?}");
    }
}
