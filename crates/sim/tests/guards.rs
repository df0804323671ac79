//! Each guard is proved by its absence: without it, an invariant is found broken within so many
//! seeds, and for the right reason.

use treadle_sim::kernel::{Trace, assert_noticed};
use treadle_sim::{Mutation, simulate};

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
        assert_noticed(&mutation, 0..seeds, symptoms, |seed| {
            simulate(seed, mutation, Trace::Off)
        });
    }
}
