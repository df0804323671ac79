//! Tasks that take long keep all workers busy, however many there are; what things cost is paid.

use std::time::Duration;

use treadle_sim::scaling::{Cost, Parameters, Scaling, Workload, run};

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
