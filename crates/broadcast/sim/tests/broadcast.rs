//! The broadcast plane survives what its seed does to it, and each of its guards is needed.

use std::time::Duration;

use treadle_broadcast::{Guard, Tree};
use treadle_broadcast_sim::figures::{cost_of_call, paused, push};
use treadle_broadcast_sim::{Plan, simulate, simulate_plan};
use treadle_sim_kernel::{Trace, assert_happened, assert_noticed, run_seeds};

const REPLAY: &str = "cargo run -p treadle-sim --release -- --broadcast --seed $N";

fn run(seeds: std::ops::Range<u64>) {
    let sum = run_seeds(seeds, REPLAY, simulate);
    let happened = [
        (sum.finished, 20_000),
        (sum.aborted, 300),
        (sum.early, 50),
        (sum.refused, 500),
        (sum.lost, 500),
        (sum.unreachable, 10),
        (sum.repairs, 2_000),
        (sum.declined, 1_000),
        (sum.asked, 20),
        (sum.wanted, 2_000),
        (sum.outputs, 2_000),
    ];
    assert_happened(&sum, &happened);
}

#[test]
fn each_call_runs_once_in_order_and_nothing_is_left() {
    run(0..1_000);
}

#[test]
fn each_call_runs_once_in_order_and_nothing_is_left_again() {
    run(1_000..2_000);
}

#[test]
fn ten_thousand_engines_lose_relays() {
    let summary = simulate_plan(Plan::large(1, 10_000, 12), Trace::Off).unwrap();
    println!("{summary:?}");
    assert!(summary.finished > 15_000 && summary.repairs > 20);
}

#[test]
fn who_is_paused_holds_up_nobody_else() {
    let silence = treadle_broadcast::Config::default().silence;
    for (engines, crowd) in [(2, 1), (12, 1), (12, 12), (40, 4)] {
        for victim in [0, 1, 5, 11].into_iter().filter(|&victim| victim < engines) {
            // Before it has heard of the push, and while this goes on.
            for at in [0, 150, 500, 1_500, 4_000] {
                for size in [100, 4 << 20] {
                    let at = Duration::from_micros(at);
                    let [push, first, second] =
                        paused(engines, crowd, size, victim as usize, at).unwrap();
                    let case = format!("{victim} of {engines}, {crowd} a host, {size} at {at:?}");
                    // Who takes over may have to find out how far the payload has come.
                    assert!(push <= 3 * silence, "{case}: {push:?}");
                    assert!(first <= 3 * silence, "{case}: {first:?}");
                    assert!(second <= Duration::from_millis(100), "{case}: {second:?}");
                }
            }
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 8, 12] {
        let [one, other] = [(), ()].map(|()| format!("{:?}", simulate(seed, Trace::Off)));
        assert_eq!(one, other);
    }
}

#[test]
fn without_a_guard_a_promise_is_broken() {
    let guards = [
        (Guard::Order, 50, &["and did not run"][..]),
        (Guard::SettleOrder, 50, &["and did not run"][..]),
        (Guard::Once, 100, &["and ran it before"][..]),
        (Guard::Keeping, 100, &["goes round in circles"][..]),
        (Guard::Responsibility, 50, &["is not complete"][..]),
        (Guard::Window, 50, &["are under way"][..]),
        (
            Guard::Dead,
            100,
            &["which is gone", "is dead and connected"][..],
        ),
        (Guard::Version, 1_000, &["goes round in circles"][..]),
    ];
    assert_eq!(guards.len(), Guard::ALL.len(), "each of them is proved");
    for (guard, seeds, symptoms) in guards {
        assert_noticed(guard.path(), seeds, symptoms, simulate);
    }
}

#[test]
fn a_push_takes_a_time_that_grows_with_the_logarithm_and_costs_the_client_the_same() {
    let pushes = [8, 64, 512].map(|engines| push(engines, 1 << 20, Tree::default()).unwrap());
    println!("{pushes:#?}");
    // Each factor of 8 takes about as much more.
    let [first, second, third] = [0, 1, 2].map(|index| pushes[index].time);
    assert!(third - second < 2 * (second - first).max(Duration::from_millis(1)));
    for push in &pushes {
        assert!(push.most <= 1.0, "{push:?}");
        assert!(
            push.sent.1 < (1 << 20) + 4_096,
            "the payload is sent once: {push:?}"
        );
        assert_eq!(push.sent, pushes[0].sent, "{push:?}");
        assert!(push.received.0 <= 8, "{push:?}");
    }
}

#[test]
fn a_call_costs_the_client_the_same_to_all() {
    // No figure: it says that nothing is in proportion to the engines.
    let [few, many] = [32, 10_000].map(|engines| cost_of_call(engines, 2_000));
    assert!(many < 20 * few, "{few:?} and {many:?}");
}
