//! Disks that several applications use, simulated.

use treadle_shuffle::Guard;
use treadle_shuffle_sim::disks::{DiskSummary, Disks, count_disk, simulate_disk};
use treadle_sim_kernel::assert_noticed;

const SEEDS: u64 = 100;

fn simulate_all(disks: Disks, seeds: u64) -> Vec<DiskSummary> {
    let one = |seed| {
        simulate_disk(disks, seed).unwrap_or_else(|error| panic!("{disks:?}, seed {seed}: {error}"))
    };
    (0..seeds).map(one).collect()
}

#[test]
fn a_disk_is_shared_by_priority_whatever_the_requests_are() {
    simulate_all(Disks::Shared, SEEDS);
    let symptoms = ["another share than its priority says"];
    let without = |seed, _| simulate_disk(Disks::Shared, seed);
    assert_noticed(Guard::Shares.path(), 5, &symptoms, without);
}

#[test]
fn a_read_is_not_passed_by_for_ever() {
    simulate_all(Disks::Sweep, SEEDS);
    let without = |seed, _| simulate_disk(Disks::Sweep, seed);
    assert_noticed(
        Guard::Oldest.path(),
        5,
        &["who wants little waits"],
        without,
    );
}

#[test]
fn a_disk_with_too_many_reads_becomes_fast_again() {
    for summary in simulate_all(Disks::Crowd, SEEDS / 10) {
        assert!(summary.limited.0, "{summary:?}");
    }
    let without = |seed, _| simulate_disk(Disks::Crowd, seed);
    assert_noticed(Guard::Throttle.path(), 5, &["reads take too long"], without);
}

/// What the published system claims of jobs that are throttled: they are not slower, and ask again more rarely.
#[test]
fn who_is_told_to_pause_gets_as_much() {
    for seed in 0..SEEDS / 10 {
        let count = || count_disk(Disks::Crowd, seed).unwrap();
        let with = count();
        let without = {
            let _missing = treadle_guards::without(Some(Guard::Throttle.path()));
            count()
        };
        assert!(with.limited.0 && !without.limited.0, "seed {seed}");
        assert!(
            with.done * 100 >= without.done * 98,
            "seed {seed}: {with:?}, {without:?}"
        );
        assert!(
            with.late * 10 < without.late,
            "seed {seed}: {with:?}, {without:?}"
        );
    }
}
