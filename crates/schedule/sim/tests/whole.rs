//! Shuffles whose tasks the scheduler, the worker and the client of production run survive what their seed
//! does to them.

use treadle_scheduler::Guard as Scheduler;
use treadle_shuffle::Guard as Shuffle;
use treadle_sim::kernel::{Trace, assert_happened, assert_noticed, run_seeds};
use treadle_sim::simulate_whole;

/// Simulations of an ordinary test run.
const SEEDS: u64 = 1_000;

const REPLAY: &str = "cargo run -p treadle-sim --release -- --whole --seed $N";

#[test]
fn every_output_has_its_rows_once_in_order_and_nothing_is_left_behind() {
    let sum = run_seeds(0..SEEDS, REPLAY, simulate_whole);
    let happened = [
        (sum.transfers, 5_000),
        (sum.reused, 100),
        (sum.outputs, 3_000),
        (sum.compared, 500),
        (sum.shuffles, 1_000),
        (sum.lost, 500),
        (sum.redone, 500),
        (sum.given_back, 300),
        (sum.interrupted, 300),
        (sum.retracted, 100),
        (sum.unreached, 300),
        (sum.spills, 100),
        (sum.overtaken, 1),
        (sum.differences, 1),
    ];
    assert_happened(&sum, &happened);
}

/// Seeds that failed once, each with what was wrong.
#[test]
fn what_failed_once_passes() {
    for seed in [
        // The barrier of a shuffle that had ended ran again with receipts that were kept: no transfer asked for
        // the shuffle, so that it did not begin anew, and the barrier was given back for ever.
        339, 1_260, 2_121,
        // A barrier came after an input of it was cancelled, and never was: its shuffle stayed for ever.
        947, 987, 1_361,
        // Transfers that ran while their shuffle ended returned receipts of it after it had begun anew.
        700, 1_023, 2_835, 5_787, 6_423,
    ] {
        if let Err(error) = simulate_whole(seed, Trace::Off) {
            panic!("seed {seed}: {error}");
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [7, 10] {
        let [one, other] = [(), ()].map(|()| format!("{:?}", simulate_whole(seed, Trace::Off)));
        assert_eq!(one, other);
    }
}

/// What one core leaves out, the others or the outputs show.
#[test]
fn without_a_guard_a_promise_is_broken() {
    let gone = ["effects are gone"];
    let discarded = ["computed from what is discarded"];
    let wrong = [
        "partitions have other rows than batches",
        "which are not those that it holds",
    ];
    let guards = [
        (Scheduler::Effects.path(), 50, &gone[..]),
        (Scheduler::Invalidation.path(), 50, &discarded),
        (Scheduler::Recall.path(), 50, &gone),
        (Scheduler::Derived.path(), 50, &discarded),
        (
            Shuffle::Order.path(),
            50,
            &["is not in the order of its inputs"],
        ),
        (Shuffle::Generation.path(), 300, &wrong),
        (Shuffle::Attempt.path(), 500, &wrong),
    ];
    for (guard, seeds, symptoms) in guards {
        assert_noticed(guard, seeds, symptoms, simulate_whole);
    }
}
