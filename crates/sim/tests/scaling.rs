//! Tasks that take long keep all workers busy, however many there are.

use std::time::Duration;

use treadle_sim::scaling::{Cost, run};

#[test]
fn workers_are_busy_nearly_all_the_time() {
    // Twice what the scheduler may cost.
    let cost = Cost::Fixed(Duration::from_micros(1));
    for workers in [1, 8, 64] {
        let scaling = run(workers, Duration::from_millis(100), 20, cost);
        assert!(scaling.share > 0.98, "{workers} workers: {scaling:?}");
    }
}
