//! Shuffles survive what their seed does to them, and each guard is needed.

use treadle_shuffle::Guard;
use treadle_shuffle_sim::{Summary, simulate};
use treadle_sim_kernel::{Trace, assert_happened, assert_noticed, run_seeds};

const REPLAY: &str = "cargo run -p treadle-sim --release -- --shuffle --seed $N";

fn run(seeds: std::ops::Range<u64>) -> Summary {
    run_seeds(seeds, REPLAY, simulate)
}

fn assert_that_much_happened(sum: &Summary) {
    let counts = [
        (sum.finished, 1_000),
        (sum.failed, 100),
        (sum.transfers, 8_000),
        (sum.reused, 300),
        (sum.outputs, 10_000),
        (sum.spills, 500),
        (sum.full_disks, 100),
        (sum.loads, 1_000),
        (sum.losses, 500),
        (sum.invalidations, 500),
        (sum.damages, 100),
        (sum.repairs, 50),
        (sum.differences, 5),
        (sum.given_back, 100),
        (sum.raised, 100),
        (sum.unreached, 500),
    ];
    assert_happened(sum, &counts);
}

#[test]
fn every_row_comes_once_in_order_or_an_error_names_what_is_missing() {
    assert_that_much_happened(&run(0..1_000));
}

#[test]
fn every_row_comes_once_in_order_or_an_error_names_what_is_missing_again() {
    assert_that_much_happened(&run(1_000..2_000));
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 8, 12] {
        let [one, other] = [(), ()].map(|()| format!("{:?}", simulate(seed, Trace::Off)));
        assert_eq!(one, other);
    }
}

/// How a violation shows: rows that are not those of the inputs, or rows that were found wrong although
/// nothing had made them wrong, or missing where nothing was lost.
const SYMPTOMS: [&str; 7] = [
    "partitions have other rows than batches",
    "which are not those that it holds",
    "is not in the order of its inputs",
    "nothing was damaged, and yet",
    "is said not to be",
    "does not end",
    "is missing at",
];

/// They need the stand-alone service, whose test has them.
const OF_THE_SERVICE: [Guard; 18] = [
    Guard::Each,
    Guard::Ownership,
    Guard::Poison,
    Guard::Elsewhere,
    Guard::Whole,
    Guard::Left,
    Guard::Opened,
    Guard::Adopted,
    Guard::Lease,
    Guard::Shares,
    Guard::Readers,
    Guard::Gone,
    Guard::Late,
    Guard::Governor,
    Guard::OneMaster,
    Guard::Oldest,
    Guard::Throttle,
    Guard::Weights,
];

#[test]
fn without_a_guard_a_promise_is_broken() {
    for guard in Guard::ALL
        .iter()
        .filter(|guard| !OF_THE_SERVICE.contains(guard))
    {
        assert_noticed(guard.path(), 300, &SYMPTOMS, simulate);
    }
}
