//! Each guard is proved by its absence: without it, an invariant is found broken within so many
//! seeds, and for the right reason.

use treadle_sim::{Mutation, simulate};

/// The first seed in which something is noticed, and what.
fn first_noticed(mutation: Mutation, seeds: u64) -> (u64, String) {
    let mut results = (0..seeds).map(|seed| (seed, simulate(seed, mutation, false)));
    let noticed = results.find_map(|(seed, result)| Some((seed, result.err()?)));
    noticed.unwrap_or_else(|| panic!("{mutation:?} is not noticed within {seeds} seeds"))
}

#[test]
fn without_a_guard_an_invariant_breaks() {
    // What is found first differs with each change of the cores; each of the symptoms says that what
    // the guard is there to prevent has happened.
    let resumed = [
        "is assigned before",
        "is finished, and",
        "is dismissed",
        "fails for",
        "and the scheduler does not know",
        // The end of one attempt frees what another one takes.
        "runs tasks that need",
    ];
    let guards = [
        (Mutation::Incarnation, 50, &["is not there"][..]),
        (Mutation::Attempt, 200, &resumed),
        (Mutation::Retraction, 50, &["is assigned before"]),
        (Mutation::Cancellation, 200, &["runs tasks that need"]),
        (Mutation::Budget, 200, &["creates more"]),
        (Mutation::Relief, 500, &["has had a free slot"]),
        (Mutation::Scarcity, 500, &["has had a free slot"]),
        (Mutation::Search, 5_000, &["has had a free slot"]),
        (Mutation::Keeping, 100, &["is lost, and"]),
        (Mutation::Effects, 200, &["effects are gone"]),
        (Mutation::Invalidation, 200, &["effects are gone"]),
        (Mutation::Recall, 200, &["effects are gone, and ends"]),
        (Mutation::PeerAttempt, 500, &["and gets Copied"]),
        (Mutation::Pin, 20, &["ends without its input"]),
        (
            Mutation::EarlyStop,
            200,
            &["runs tasks that need", "has had a free slot"],
        ),
    ];
    for (mutation, seeds, symptoms) in guards {
        let (seed, error) = first_noticed(mutation, seeds);
        println!("{mutation:?}: seed {seed}, {error}");
        let is_right = symptoms.iter().any(|symptom| error.contains(symptom));
        assert!(is_right, "{mutation:?} shows as {error}");
    }
}
