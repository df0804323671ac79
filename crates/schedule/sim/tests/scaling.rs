//! Tasks that take long keep all workers busy, however many there are; what things cost is paid.

use std::path::Path;
use std::time::Duration;

use treadle_sim::scaling::{Cost, Parameters, Recording, Scaling, Workload, replay, run};

const TASK: Duration = Duration::from_millis(100);
/// Twice what the scheduler may cost.
const COST: Cost = Cost::Fixed(Duration::from_micros(1));

fn with(workload: Workload, workers: usize, change: impl FnOnce(&mut Parameters)) -> Scaling {
    let mut parameters = Parameters::default();
    change(&mut parameters);
    run(workload, workers, TASK, parameters, COST)
}

#[test]
fn workers_are_busy_nearly_all_the_time() {
    for workers in [1, 8, 64] {
        let scaling = with(Workload::Flat(20), workers, |_| ());
        assert!(scaling.share > 0.98, "{workers} workers: {scaling:?}");
    }
}

#[test]
fn all_tasks_of_a_workload_run() {
    for (workload, tasks) in [
        (Workload::Flat(100), 400),
        (Workload::Tree, 511),
        (Workload::Neighbours, 79 + 78),
        // The sums of the 80 first, and of sums, however many come at a time.
        (Workload::Loop, 0),
    ] {
        let scaling = with(workload, 2, |_| ());
        assert!(
            tasks == 0 || scaling.tasks == tasks,
            "{workload:?}: {scaling:?}"
        );
        assert!(scaling.tasks >= 81, "{workload:?}: {scaling:?}");
        assert!(scaling.share > 0.8, "{workload:?}: {scaling:?}");
    }
}

#[test]
fn what_things_cost_is_paid() {
    let micros = Duration::from_micros;
    let took = |change: &dyn Fn(&mut Parameters)| with(Workload::Tree, 2, change).took;
    let free = took(&|_| ());
    // A client that makes 511 tasks in a millisecond each begins after half a second.
    let built = took(&|parameters| parameters.delayed = micros(1000));
    assert!(built > free + micros(500_000), "{free:?}, {built:?}");
    // 511 tasks of 110 ms on four slots.
    let over = took(&|parameters| parameters.over = micros(10_000));
    assert!(over > free + micros(1_200_000), "{free:?}, {over:?}");
    // On one core, 511 tasks take the workers' 50 ms each, one after the other.
    let crowded = took(&|parameters| (parameters.cores, parameters.worker) = (1, micros(50_000)));
    assert!(crowded > micros(511 * 50_000), "{free:?}, {crowded:?}");
    // Values of 10 MB at 100 MB/s, for those that are read elsewhere.
    let moved = took(&|parameters| (parameters.nbytes, parameters.bandwidth) = (10_000_000, 1e8));
    assert!(moved > free + micros(100_000), "{free:?}, {moved:?}");
}

#[test]
fn a_run_repeats() {
    let run = || {
        with(Workload::Loop, 4, |parameters| {
            parameters.notice = Duration::from_micros(7)
        })
    };
    assert_eq!(run().took, run().took);
}

#[test]
fn what_treadle_trace_has_recorded_is_replayed() {
    // Sixteen arrays of 160 kB are added up in pairs, on two workers of two threads.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded.json");
    let recording = Recording::read(&path).unwrap();
    assert_eq!((recording.workers, recording.threads), (2, 2));
    assert_eq!((recording.tasks(), recording.unfinished), (32, 0));
    let with = |workers, threads| {
        let parameters = Parameters::default();
        replay(&recording, workers, threads, parameters, COST)
    };
    let same = with(2, 2);
    let ratio = same.took.as_secs_f64() / recording.took.as_secs_f64();
    assert!((0.9..1.1).contains(&ratio), "{same:?}, {recording:?}");
    // On one thread they run one after the other.
    let alone = with(1, 1);
    assert!(alone.share > 0.95, "{alone:?}");
    assert!(alone.took >= recording.work(), "{alone:?}, {recording:?}");
    // Each value is at a worker of its own, and what is read elsewhere travels. A value waits for the one
    // before it: six tasks of 100 ms, one after the other, take the time whatever the number of workers.
    let many = with(32, 1);
    assert!(many.took > Duration::from_millis(600), "{many:?}");
    assert!(many.took < same.took, "{many:?}, {same:?}");
    assert_eq!(many.took, with(32, 1).took);
}
