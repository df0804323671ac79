//! Each guard is proved by its absence: without it, an invariant is found broken within so many
//! seeds, and for the right reason.

use treadle_client::Guard as Client;
use treadle_gateway::Guard as Server;
use treadle_scheduler::Guard;
use treadle_sim::kernel::assert_noticed;
use treadle_sim::{Guard as Process, simulate};
use treadle_worker::Guard as Worker;

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
        (Guard::Incarnation.path(), 50, &["is not there"][..]),
        (Guard::Attempt.path(), 200, &resumed),
        (Guard::Retraction.path(), 50, &["is assigned before"]),
        (Guard::Cancellation.path(), 200, &["runs tasks that need"]),
        (Guard::Budget.path(), 200, &["creates more"]),
        (Guard::Relief.path(), 500, &["has had a free slot"]),
        (Guard::Scarcity.path(), 500, &["has had a free slot"]),
        (Guard::Search.path(), 5_000, &["has had a free slot"]),
        (Guard::Keeping.path(), 100, &["is lost, and"]),
        (Guard::Effects.path(), 200, &["effects are gone"]),
        (Guard::Invalidation.path(), 200, &["effects are gone"]),
        (Guard::Recall.path(), 200, &["effects are gone, and ends"]),
        (
            Guard::Derived.path(),
            500,
            &["computed from what is discarded"],
        ),
        (
            Server::Generation.path(),
            50,
            &["was not allocated", "hears of", "wants t", "does not exist"],
        ),
        (Server::Definition.path(), 50, &["nobody has defined"]),
        (Process::PeerAttempt.path(), 500, &["and gets Copied"]),
        (Process::Pin.path(), 20, &["ends without its input"]),
        (
            Worker::Stopped.path(),
            200,
            &["runs tasks that need", "has had a free slot"],
        ),
        (Worker::Started.path(), 500, &["runs tasks that need"]),
        (Worker::Dropped.path(), 100, &["a store holds"]),
        (Client::Named.path(), 3_000, &["hangs"]),
    ];
    let all = treadle_sim::guards().len();
    assert_eq!(guards.len(), all, "each of them is proved");
    for (guard, seeds, symptoms) in guards {
        assert_noticed(guard, seeds, symptoms, simulate);
    }
}
