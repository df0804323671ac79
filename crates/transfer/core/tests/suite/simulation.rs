//! Two pairs on a virtual network with seeded faults: whatever happens, objects arrive whole, once
//! and in order, or fail by name.
//!
//! `SEED=7` replays one simulation with its trace, `SEEDS=100000` runs more of them.

use crate::support::plan::{Habits, Network, Plan, Planned, Promise, TIMEOUT};
use crate::support::world::{Guard, Summary, run};
use treadle_sim_kernel::{Random, Trace, assert_happened, assert_noticed, run_seeds};
use treadle_transfer::Config;

/// Simulations of an ordinary test run.
const SEEDS: u64 = 2_000;
const REPLAY: &str = "SEED=$N cargo test -p treadle-transfer --test suite seeds -- --nocapture";

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} must be a number")),
    )
}

treadle_sim_kernel::counters! {
    /// What a number of simulations amounted to.
    pub struct Sum {
        /// Things that happened.
        pub steps: u64,
        /// Objects.
        pub received: u64,
        /// Objects that failed, for a reason that there was.
        pub failed: u64,
        /// Stripes.
        pub replaced: u64,
        /// Extents that arrived damaged.
        pub corrupt: u64,
        /// Pairs that ended.
        pub ended: u64,
    }
}

pub(super) fn simulate(seed: u64, trace: Trace) -> Result<Sum, String> {
    let summary = run(Plan::draw(&mut Random::new(seed)), seed, trace)?;
    Ok(Sum {
        steps: summary.steps,
        received: summary.received.iter().sum::<usize>() as u64,
        failed: summary.failed.iter().sum::<usize>() as u64,
        replaced: summary.replaced.iter().sum(),
        corrupt: summary.corrupt.iter().sum(),
        ended: u64::from(summary.ends[0].is_some()),
    })
}

#[test]
fn seeds() {
    if let Some(seed) = variable("SEED") {
        println!("{:?}", simulate(seed, Trace::Print));
        return;
    }
    let count = variable("SEEDS").unwrap_or(SEEDS);
    let sum = run_seeds(0..count, REPLAY, simulate);
    let happened = [
        (sum.received, 1_000),
        (sum.failed, 100),
        (sum.replaced, 100),
        (sum.corrupt, 20),
        (sum.ended, 20),
    ];
    if count >= SEEDS {
        assert_happened(&sum, &happened);
    }
}

#[test]
fn a_peer_with_a_guard_missing_is_noticed() {
    let hangs = "hangs";
    let guards = [
        (Guard::ReportAll, 50, hangs),
        (Guard::ReportLess, 50, "arrived twice"),
        (Guard::RequeueEarly, 50, "arrived twice"),
        (Guard::Duplicate, 5, "arrived twice"),
        (Guard::Reorder, 5, "was offered after"),
        (Guard::FreeCredit, 50, "exceed the credit"),
        (Guard::NoAnswer, 5, hangs),
        (Guard::BlindChecksum, 50, "complete, yet extent"),
        (Guard::PlacedEarly, 5, "a complete object"),
    ];
    assert_eq!(guards.len(), Guard::ALL.len(), "each of them is proved");
    for (guard, seeds, symptom) in guards {
        assert_noticed(guard.path(), seeds, &[symptom], simulate);
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
    run(plan, 1, Trace::Off).unwrap_or_else(|error| panic!("{error}"))
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
