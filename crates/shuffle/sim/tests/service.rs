//! The stand-alone shuffle service survives what its seed does to it, and each guard is needed.

use treadle_shuffle::Guard;
use treadle_shuffle_sim::large::{Large, simulate_large, simulate_many};
use treadle_shuffle_sim::overload::{Load, simulate_overload};
use treadle_shuffle_sim::{
    Plan, Summary, simulate_plan, simulate_remote, simulate_service, simulate_together,
};
use treadle_sim_kernel::{Trace, assert_happened, assert_noticed, run_seeds};

const REPLAY: &str = "cargo run -p treadle-sim --release -- --service --seed $N";

fn run(seeds: std::ops::Range<u64>) -> Summary {
    run_seeds(seeds, REPLAY, simulate_service)
}

fn assert_that_much_happened(sum: &Summary) {
    let counts = [
        (sum.finished, 1_000),
        (sum.failed, 50),
        (sum.transfers, 8_000),
        (sum.reused, 100),
        (sum.outputs, 10_000),
        (sum.spills, 500),
        (sum.ranged, 500),
        (sum.full_disks, 50),
        (sum.losses, 300),
        (sum.invalidations, 100),
        (sum.damages, 100),
        (sum.repairs, 50),
        (sum.epochs, 300),
        (sum.fills, 300),
        (sum.vanished, 20),
        (sum.weighed, 10_000),
        (sum.late, 100),
        (sum.unreached, 500),
    ];
    assert_happened(sum, &counts);
}

#[test]
fn rows_read_are_those_of_the_winning_attempts_or_an_error_names_what_is_missing() {
    assert_that_much_happened(&run(0..1_000));
}

#[test]
fn rows_read_are_those_of_the_winning_attempts_or_an_error_names_what_is_missing_again() {
    assert_that_much_happened(&run(1_000..2_000));
}

#[test]
fn pushes_that_are_announced_together_are_taken_or_not_each_by_itself() {
    const REPLAY: &str = "cargo run -p treadle-sim --release -- --together --seed $N";
    let sum = run_seeds(0..500, REPLAY, simulate_together);
    let counts = [
        (sum.together, 2_000),
        (sum.neighbours, 500),
        (sum.finished, 500),
        (sum.transfers, 4_000),
        (sum.outputs, 5_000),
        (sum.losses, 150),
        (sum.unreached, 250),
    ];
    assert_happened(&sum, &counts);
    assert_noticed(Guard::Each.path(), 300, &SYMPTOMS, simulate_together);
}

/// Each of these found a fault: rows that were pushed to a group of which one copy was complete (305840,
/// 310896), rows that only some copies had and a filled one was taken to have (257275, 226111, 439855), receipts
/// of a barrier that had been cancelled (459773, 459851), epochs that a busy server ended again and again (617644,
/// 618779). In the simulation only: looks at leases multiplied until there were too many steps (3000072), and rows
/// that came for a cancelled task counted as damaged (6029198).
#[test]
fn seeds_that_failed_once() {
    for seed in [
        305_840, 310_896, 257_275, 226_111, 439_855, 459_773, 459_851, 617_644, 618_779, 3_000_072,
        6_029_198,
    ] {
        run(seed..seed + 1);
    }
}

/// Cloud Shuffle Service with two replicas returned 7 of 16 partitions with rows missing, and no error.
#[test]
fn a_server_killed_and_restarted_at_the_same_address_between_two_maps_loses_no_row() {
    let mut lost_while_pushing = 0;
    for at in 0..60 {
        let sum = simulate_plan(Plan::restarted_between_maps(at), Trace::Off);
        let sum = sum.unwrap_or_else(|error| panic!("restarted after {at} × 100 µs: {error}"));
        assert_eq!((sum.finished, sum.failed), (1, 0), "{sum:?}");
        assert_eq!(sum.outputs, 16, "{sum:?}");
        // The other copies have all that the lost ones had: no map runs again.
        assert_eq!((sum.invalidations, sum.transfers), (0, 16), "{sum:?}");
        lost_while_pushing += u64::from(sum.epochs > 0);
    }
    assert!(lost_while_pushing > 10, "{lost_while_pushing}");
}

#[test]
fn a_server_that_is_drained_leaves_without_a_job_noticing() {
    for copies in [1, 2] {
        let mut filled = 0;
        for at in 0..60 {
            let sum = simulate_plan(Plan::drained(at, copies), Trace::Off);
            let sum = sum.unwrap_or_else(|error| {
                panic!("{copies} copies, drained after {at} × 100 µs: {error}")
            });
            // It has left, and not since it had to.
            assert_eq!((sum.finished, sum.losses), (1, 1), "{at}: {sum:?}");
            let noticed = (sum.transfers, sum.invalidations, sum.given_back);
            assert_eq!(noticed, (16, 0, 0), "{at}: {sum:?}");
            filled += u64::from(sum.fills > 0);
        }
        assert!(filled > 30, "{copies} copies: {filled}");
    }
}

/// In the end of each, nothing may be at a server: neither in memory nor in a file.
#[test]
fn an_application_that_is_gone_leaves_nothing_and_others_go_on() {
    let mut vanished = 0;
    for at in 0..60 {
        let sum = simulate_plan(Plan::vanished(at), Trace::Off);
        let sum = sum.unwrap_or_else(|error| panic!("gone after {at} × 100 µs: {error}"));
        assert_eq!(sum.finished + sum.failed, 3, "{at}: {sum:?}");
        assert!(sum.finished >= 2 && sum.spills > 0, "{at}: {sum:?}");
        vanished += sum.vanished;
    }
    assert!(vanished > 30, "{vanished}");
}

#[test]
fn an_attempt_that_comes_after_the_commit_changes_nothing() {
    let late = |seed, trace| simulate_plan(Plan::late(seed), trace);
    let mut refused = [0; 2];
    for seed in 0..60 {
        let sum = late(seed, Trace::Off).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let happened = (sum.finished, sum.outputs, sum.invalidations);
        assert_eq!(happened, (1, 16, 0), "{seed}: {sum:?}");
        refused[seed as usize % 2] += sum.late;
    }
    assert!(refused[0] > 100 && refused[1] > 100, "{refused:?}");
    assert_noticed(Guard::Late.path(), 10, &["is made again"], late);
}

#[test]
fn who_stands_still_holds_up_nobody_else() {
    for (guard, is_lost) in [(Guard::Readers, false), (Guard::Gone, true)] {
        let stopped = |at, trace| simulate_plan(Plan::stopped(at, is_lost), trace);
        for at in 0..60 {
            let sum = stopped(at, Trace::Off);
            let sum = sum.unwrap_or_else(|error| panic!("stopped after {at} × 100 µs: {error}"));
            assert_eq!(
                (sum.finished, sum.outputs >= 16),
                (1, true),
                "{at}: {sum:?}"
            );
        }
        assert_noticed(guard.path(), 60, &["stands still"], stopped);
    }
}

#[test]
fn rooms_that_change_make_nothing_anew() {
    let mut weighed = 0;
    for seed in 0..60 {
        let sum = simulate_plan(Plan::weighed(seed), Trace::Off);
        let sum = sum.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!((sum.finished, sum.outputs), (1, 16), "{seed}: {sum:?}");
        let noticed = (sum.transfers, sum.invalidations, sum.given_back);
        assert_eq!(noticed, (16, 0, 0), "{seed}: {sum:?}");
        weighed += sum.weighed;
    }
    assert!(weighed > 500, "{weighed}");
}

#[test]
fn a_server_that_cannot_write_holds_nobody_up() {
    for seed in 0..8 {
        let sum = simulate_plan(Plan::full_disk(seed), Trace::Off);
        let sum = sum.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(
            (sum.finished, sum.outputs, sum.epochs),
            (1, 16, 1),
            "{sum:?}"
        );
    }
    let without = |seed, trace| simulate_plan(Plan::full_disk(seed), trace);
    assert_noticed(Guard::Poison.path(), 8, &SYMPTOMS, without);
}

#[test]
fn a_disk_that_does_nothing_holds_nobody_up() {
    let mut spills = 0;
    for at in 0..60 {
        let sum = simulate_plan(Plan::stuck(at), Trace::Off);
        let sum = sum.unwrap_or_else(|error| panic!("after {at}: {error}"));
        assert_eq!(
            (sum.finished, sum.failed, sum.outputs),
            (1, 0, 16),
            "{sum:?}"
        );
        spills += sum.spills;
    }
    assert!(spills > 100, "{spills}");
}

#[test]
fn a_remote_store_takes_what_disks_do_not() {
    for seed in 0..8 {
        let sum = simulate_plan(Plan::full_disks(seed), Trace::Off);
        let sum = sum.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!((sum.finished, sum.outputs), (1, 16), "{sum:?}");
        assert!(sum.uploads > 0 && sum.full_disks > 0, "{sum:?}");
    }
    let without = |seed, trace| simulate_plan(Plan::full_disks(seed), trace);
    assert_noticed(Guard::Elsewhere.path(), 8, &SYMPTOMS, without);
}

#[test]
fn a_remote_store_may_be_slow_refuse_lose_and_alter() {
    let replay = "cargo run -p treadle-sim --release -- --remote --seed $N";
    let sum = run_seeds(0..600, replay, simulate_remote);
    let counts = [
        (sum.finished, 300),
        (sum.outputs, 3_000),
        (sum.uploads, 300),
        (sum.inventories, 300),
        (sum.adopted, 10),
        (sum.loads, 1_000),
        (sum.full_disks, 100),
        (sum.damages, 30),
    ];
    assert_happened(&sum, &counts);
}

#[test]
fn what_is_in_the_remote_store_outlives_its_servers() {
    let mut sum = Summary::default();
    for at in 0..60 {
        let of = simulate_plan(Plan::uploaded(at), Trace::Off);
        let of = of.unwrap_or_else(|error| panic!("after {at}: {error}"));
        assert_eq!((of.finished, of.failed), (1, 0), "after {at}: {of:?}");
        assert!(
            of.outputs >= 32,
            "after {at}: nothing is read again: {of:?}"
        );
        sum += of;
    }
    assert!(sum.adopted > 200, "{sum:?}");
    let without = |at, trace| simulate_plan(Plan::uploaded(at), trace);
    let symptoms = ["all rows are in the store", "nothing was damaged, and yet"];
    for guard in [Guard::Whole, Guard::Left] {
        assert_noticed(guard.path(), 60, &symptoms, without);
    }
    let mut in_part = 0;
    for at in 0..30 {
        let of = simulate_plan(Plan::adopted_in_part(at), Trace::Off);
        let of = of.unwrap_or_else(|error| panic!("adopted in part, after {at}: {error}"));
        assert_eq!((of.finished, of.failed), (1, 0), "after {at}: {of:?}");
        in_part += of.in_part;
    }
    assert!(in_part > 30, "{in_part}");
    let without = |at, trace| simulate_plan(Plan::adopted_in_part(at), trace);
    assert_noticed(Guard::Opened.path(), 30, &symptoms, without);
    for at in 0..20 {
        let of = simulate_plan(Plan::altered(at), Trace::Off);
        of.unwrap_or_else(|error| panic!("altered, after {at}: {error}"));
    }
    let without = |at, trace| simulate_plan(Plan::altered(at), trace);
    let symptoms = [
        "it is sealed, and has other rows",
        "which are not those that it holds",
    ];
    assert_noticed(Guard::Adopted.path(), 20, &symptoms, without);
}

#[test]
fn a_thousand_servers() {
    let sum = simulate_plan(Plan::thousand_servers(), Trace::Off);
    let sum = sum.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        (sum.finished, sum.failed, sum.invalidations),
        (1, 0, 0),
        "{sum:?}"
    );
    assert!(sum.losses >= 3, "{sum:?}");
}

#[test]
fn the_master_keeps_little_of_a_large_shuffle() {
    let of = |maps, servers| {
        let large = Large {
            maps,
            partitions: 4 * servers,
            servers,
        };
        let figures = simulate_large(large).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(figures.groups as u32, servers);
        figures
    };
    let (small, large) = (of(500, 20), of(4_000, 160));
    // Eight times as much of everything, and 64 times as many pairs of a map and a group.
    assert!(large.kept < 10 * small.kept, "{small:?} {large:?}");
    // While maps run, there is a bit for each pair, and no more.
    assert!(large.most - large.kept < 4_096 * 162 / 8, "{large:?}");
    // The earlier attempts of each 20th map are in half of the groups.
    let list = 16 * 4_200;
    assert!(large.commit < list + 160 * (4_200 / 8 + 200), "{large:?}");
}

#[test]
fn a_master_of_one_of_many_applications_is_small() {
    let large = Large {
        maps: 20,
        partitions: 1_000,
        servers: 1_000,
    };
    let shared = simulate_many(large, 4).unwrap_or_else(|error| panic!("{error}"));
    assert!(shared.most < 64 << 20, "{shared:?}");
}

#[test]
fn who_is_overloaded_serves_by_priority_and_who_wants_little_never_sleeps() {
    for load in [Load::Pushes, Load::Reads] {
        for seed in 0..2 {
            let result = simulate_overload(load, seed);
            let result = result.unwrap_or_else(|error| panic!("{load:?}, seed {seed}: {error}"));
            let slept: u64 = result.slept.iter().sum();
            assert!(slept > 10, "{load:?}, seed {seed}: {result:?}");
        }
        let symptoms = ["another share than its priority says", "has to wait"];
        let without = |seed, _| simulate_overload(load, seed);
        assert_noticed(Guard::Shares.path(), 1, &symptoms, without);
    }
}

/// How a violation shows.
const SYMPTOMS: [&str; 10] = [
    "the master keeps",
    "runs again and again",
    "which are not those that it holds",
    "is not in the order of its inputs",
    "nothing was damaged, and yet",
    "is said not to be",
    "does not end",
    "is missing at",
    "goes round in circles",
    "has no room for rows",
];

/// `Poison` is noticed above, and the others in the simulation with one copy (`tests/shuffle.rs`).
const NEEDED: [Guard; 6] = [
    Guard::Incarnation,
    Guard::Receipts,
    Guard::Duplicates,
    Guard::Digest,
    Guard::Ownership,
    Guard::Lease,
];

#[test]
fn without_a_guard_a_promise_is_broken() {
    for guard in NEEDED {
        assert_noticed(guard.path(), 600, &SYMPTOMS, simulate_service);
    }
}
