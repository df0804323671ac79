//! The machines of servers and masters on a virtual clock, around a registry that goes away, forgets, and is cut off.

mod claims;
mod master;
mod plan;
mod registry;
mod server;
mod world;

use treadle_shuffle_registry::Guard;
use treadle_sim_kernel::{Trace, assert_happened, assert_noticed, run_seeds};
use world::{Summary, simulate};

const REPLAY: &str = "REGISTRY_SEED=$N cargo test -p treadle-shuffle-registry --test simulation -- --nocapture one_seed";

#[test]
fn every_master_has_the_servers_that_are_there_and_knows_when_its_list_is_old() {
    let sum: Summary = run_seeds(0..1_000, REPLAY, simulate);
    let counts = [
        (sum.outages, 500),
        (sum.wiped, 200),
        (sum.cuts, 500),
        (sum.pauses, 500),
        (sum.restarts, 1_000),
        (sum.duplicates, 300),
        (sum.superseded, 200),
        (sum.withdrawn, 200),
        (sum.flapping, 100),
        (sum.held_back, 100),
        (sum.joined, 5_000),
        (sum.left, 1_000),
        (sum.stale, 1_000),
    ];
    assert_happened(&sum, &counts);
}

#[test]
fn an_application_has_one_master() {
    let replay = "the seed is $N";
    let sum: claims::Claims = run_seeds(0..1_000, replay, claims::simulate);
    let counts = [
        (sum.held, 1_000),
        (sum.elsewhere, 1_000),
        (sum.ended, 1_000),
        (sum.lost, 1_000),
        (sum.taken_over, 200),
    ];
    assert_happened(&sum, &counts);
    let symptoms = ["no master holds", "stands as"];
    assert_noticed(Guard::Renewal.path(), 500, &symptoms, claims::simulate);
}

#[test]
fn one_seed() {
    let seed = std::env::var("REGISTRY_SEED").map_or(Ok(0), |seed| seed.parse());
    let seed = seed.expect("REGISTRY_SEED is a number");
    let trace = match std::env::var_os("REGISTRY_SEED") {
        Some(_) => Trace::Print,
        None => Trace::Off,
    };
    let [one, other] = [trace, Trace::Off].map(|trace| simulate(seed, trace));
    assert!(one.is_ok(), "{one:?}");
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
}

#[test]
fn without_a_guard_a_promise_is_broken() {
    let symptoms = |guard| match guard {
        Guard::Incarnation => &["has a later one", "healthy"][..],
        Guard::Grace | Guard::Linger => &["healthy"],
        Guard::Flapping => &["joined"],
        Guard::Stale => &["called current"],
        Guard::Reread | Guard::Renewal => &["lists"],
        Guard::Rivals => &["stands as"],
    };
    for guard in Guard::ALL {
        assert_noticed(guard.path(), 500, symptoms(*guard), simulate);
    }
}
