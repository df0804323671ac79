//! Applications with masters of their own share servers: the end of one ends its shuffles and no other's.

use treadle_shuffle::Guard;
use treadle_shuffle_sim::{Plan, Summary, simulate_masters, simulate_plan};
use treadle_sim_kernel::{Trace, assert_happened, assert_noticed, run_seeds};

const REPLAY: &str = "cargo run -p treadle-sim --release -- --masters --seed $N";

fn run(seeds: std::ops::Range<u64>) -> Summary {
    run_seeds(seeds, REPLAY, simulate_masters)
}

#[test]
fn the_end_of_one_master_ends_its_shuffles_and_no_others() {
    let sum = run(0..1_000);
    let counts = [
        (sum.finished, 1_000),
        (sum.orphaned, 200),
        (sum.dismissed, 500),
        (sum.strays, 500),
        (sum.losses, 500),
        (sum.invalidations, 200),
        (sum.outputs, 5_000),
        (sum.spills, 200),
        (sum.epochs, 100),
    ];
    assert_happened(&sum, &counts);
}

#[test]
fn masters_end_while_stores_and_disks_fail_and_servers_are_killed() {
    let replay = "Plan::masters_with_store($N)";
    let sum = run_seeds(0..400, replay, |seed, trace| {
        simulate_plan(Plan::masters_with_store(seed), trace)
    });
    let counts = [
        (sum.finished, 400),
        (sum.orphaned, 80),
        (sum.uploads, 300),
        (sum.inventories, 100),
        (sum.adopted, 10),
        (sum.full_disks, 100),
        (sum.damages, 20),
        (sum.outputs, 2_000),
    ];
    assert_happened(&sum, &counts);
}

#[test]
fn a_master_that_was_replaced_and_goes_on_harms_nobody() {
    let mut dismissed = 0;
    for at in 0..60 {
        let sum = simulate_plan(Plan::replaced(at), Trace::Off);
        let sum = sum.unwrap_or_else(|error| panic!("replaced after {at} × 100 µs: {error}"));
        assert_eq!(sum.failed, 0, "{at}: {sum:?}");
        dismissed += u64::from(sum.dismissed > 0);
    }
    assert!(dismissed > 30, "{dismissed}");
}

#[test]
fn without_a_guard_a_promise_is_broken() {
    let rows = "nothing was damaged, and yet";
    let symptoms: [(Guard, &[&str]); 3] = [
        (
            Guard::Governor,
            &["is disturbed by others", rows, "does not end"],
        ),
        (Guard::OneMaster, &["masters of one application"]),
        (Guard::Lease, &["keeps", "goes round in circles"]),
    ];
    for (guard, symptom) in symptoms {
        assert_noticed(guard.path(), 100, symptom, simulate_masters);
    }
}
