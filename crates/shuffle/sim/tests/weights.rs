//! Servers of unequal speed, simulated.

use treadle_shuffle::Guard;
use treadle_shuffle_sim::weights::simulate_weights;
use treadle_sim_kernel::assert_noticed;

#[test]
fn servers_of_four_kinds_are_used_as_they_are() {
    for seed in 0..20 {
        let result = simulate_weights(seed);
        let summary = result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("{seed}: {summary:?}");
    }
    let symptoms = ["a shuffle takes too long"];
    let without = |seed, _| simulate_weights(seed);
    assert_noticed(Guard::Weights.path(), 3, &symptoms, without);
}
