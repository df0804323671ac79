//! Two pairs on a virtual network with seeded faults: whatever happens, objects arrive whole, once
//! and in order, or fail by name.
//!
//! `SEED=7` replays one simulation with its trace, `SEEDS=100000` runs more of them.

mod support;

use support::plan::{Habits, Network, Plan, Planned, Promise, TIMEOUT};
use support::random::Random;
use support::world::{Mutation, Summary, run};
use treadle_transfer::Config;

/// Simulations of an ordinary test run.
const SEEDS: u64 = 2_000;
/// After this many that fail it stops.
const SHOWN: usize = 20;

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} must be a number")),
    )
}

fn simulate(seed: u64, mutation: Mutation, trace: bool) -> Result<Summary, String> {
    run(Plan::draw(&mut Random::new(seed)), seed, mutation, trace)
}

#[test]
fn seeds() {
    if let Some(seed) = variable("SEED") {
        println!("{:?}", simulate(seed, Mutation::None, true));
        return;
    }
    let count = variable("SEEDS").unwrap_or(SEEDS);
    let (mut received, mut failed, mut replaced, mut corrupt, mut ended) = (0, 0, 0, 0, 0);
    let (mut steps, mut most) = (0, 0);
    let mut wrong = Vec::new();
    for seed in 0..count {
        let summary = match simulate(seed, Mutation::None, false) {
            Ok(summary) => summary,
            Err(error) => {
                wrong.push((seed, error));
                if wrong.len() == SHOWN {
                    break;
                }
                continue;
            }
        };
        steps += summary.steps;
        received += summary.received.iter().sum::<usize>();
        failed += summary.failed.iter().sum::<usize>();
        replaced += summary.replaced.iter().sum::<u64>();
        corrupt += summary.corrupt.iter().sum::<u64>();
        ended += u64::from(summary.ends[0].is_some());
        most = most.max(summary.most[0]).max(summary.most[1]);
    }
    println!(
        "{steps} steps; objects: {received} received, {failed} failed; stripes: {replaced} \
         replaced, at most {most}; {corrupt} damaged extents; {ended} pairs ended"
    );
    for (seed, error) in &wrong {
        println!("seed {seed}: {error}");
    }
    if let Some((seed, _)) = wrong.first() {
        panic!(
            "{} of at most {count} seeds fail; replay one: SEED={seed} cargo test -p treadle-transfer \
             --test simulation seeds -- --nocapture",
            wrong.len()
        );
    }
    // Simulations in which nothing happens prove nothing.
    let happened = received > 1_000 && failed > 100 && replaced > 100 && corrupt > 20 && ended > 20;
    assert!(happened || count < SEEDS, "too little happened");
}

/// The first of `seeds` simulations in which a mutation is noticed.
fn first_noticed(mutation: Mutation, seeds: u64) -> (u64, String) {
    (0..seeds)
        .find_map(|seed| Some((seed, simulate(seed, mutation, false).err()?)))
        .unwrap_or_else(|| panic!("{mutation:?} is not noticed within {seeds} seeds"))
}

#[test]
fn a_peer_with_a_guard_missing_is_noticed() {
    let hangs = "hangs";
    let mutations = [
        (Mutation::ReportAll, 50, hangs),
        (Mutation::ReportLess, 50, "arrived twice"),
        (Mutation::RequeueEarly, 50, "arrived twice"),
        (Mutation::Duplicate, 5, "arrived twice"),
        (Mutation::Reorder, 5, "was offered after"),
        (Mutation::FreeCredit, 50, "exceed the credit"),
        (Mutation::NoAnswer, 5, hangs),
        (Mutation::BlindChecksum, 50, "complete, yet extent"),
        (Mutation::PlacedEarly, 5, "a complete object"),
    ];
    for (mutation, seeds, symptom) in mutations {
        let (seed, error) = first_noticed(mutation, seeds);
        println!("{mutation:?}: seed {seed}, {error}");
        assert!(error.contains(symptom), "{mutation:?} shows as {error}");
    }
}

/// 1.5 GB in each of the directions `senders`, between sockets that do `rate` bytes a second each
/// and `bottleneck` together.
fn transfer(senders: &[usize], rate: u64, bottleneck: u64) -> Summary {
    const OBJECT: u64 = 250_000_000;
    let mut random = Random::new(1);
    let mut plan = Plan::draw(&mut random);
    plan.faults.clear();
    plan.promise = Promise::Delivery;
    plan.check_every = 1_000;
    plan.network = Network {
        rate: (rate, rate),
        bottleneck: Some(bottleneck),
        latency: (100, 100),
        buffer: (1 << 20, 1 << 20),
        control: (50, 50),
        bad_opens: [0; 2],
    };
    for side in 0..2 {
        plan.configs[side] = Config {
            dials: side == 0,
            timeout: TIMEOUT,
            prefetch: 4 * OBJECT,
            ..Config::default()
        };
        plan.habits[side] = Habits::prompt();
        plan.objects[side].clear();
        if senders.contains(&side) {
            plan.objects[side].extend((0..6).map(|_| Planned::of(vec![OBJECT])));
        }
    }
    run(plan, 1, Mutation::None, false).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn slow_sockets_get_the_stripes_that_fill_the_network() {
    for senders in [&[0][..], &[1], &[0, 1]] {
        let summary = transfer(senders, 175_000_000, 1_250_000_000);
        for &side in senders {
            assert_eq!(
                summary.last[side], 8,
                "side {side} of {senders:?} is the sender"
            );
        }
    }
}

#[test]
fn a_socket_that_fills_the_network_stays_alone() {
    for senders in [&[0][..], &[1], &[0, 1]] {
        let summary = transfer(senders, 3_000_000_000, 1_250_000_000);
        for &side in senders {
            // One trial, which is given up.
            assert_eq!(
                summary.most[side], 2,
                "side {side} of {senders:?} is the sender"
            );
            assert_eq!(
                summary.last[side], 1,
                "side {side} of {senders:?} is the sender"
            );
        }
    }
}
