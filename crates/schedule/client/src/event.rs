//! What happens to a client, and what its application is told.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_broadcast::Runs;
use treadle_messages::{Answer, Call, Failed, ToClient};
use treadle_scheduler::Stuck;

use crate::fetch::Fetched;

/// Something that has happened. `V` is a value that came from a worker, `A` what came of casts.
#[derive(Debug)]
pub enum Event<V, A> {
    /// The scheduler says something.
    Received(ToClient),
    /// A worker sends a value.
    Got {
        /// The number of [`Effect::Get`](crate::Effect::Get).
        request: u64,
        value: V,
    },
    /// A worker does not send a value.
    Missed {
        /// The number of [`Effect::Get`](crate::Effect::Get).
        request: u64,
        /// Why.
        reason: String,
    },
    /// A worker cannot serialise a value.
    Unserialisable {
        /// The number of [`Effect::Get`](crate::Effect::Get).
        request: u64,
        /// The error, as that of a task.
        error: Bytes,
    },
    /// A worker has taken a value that was brought to it, or not.
    Brought {
        /// The load's name.
        name: u32,
        /// Whether, or why not.
        outcome: Result<(), String>,
    },
    /// All workers that a value was spread to have answered.
    Spread {
        /// The load's name.
        name: u32,
        /// Those that keep it.
        taken: Runs,
        /// Why another one does not.
        reason: String,
    },
    /// What was kept under a name is what it was, or not.
    Verified(u32, bool),
    /// Something came of casts.
    Arrived(A),
    /// Time has passed; see [`Core::next_due`](crate::Core::next_due).
    Tick,
    /// The connection to the scheduler is over; why.
    Ended(String),
}

/// How a key stands now. The value itself, if it came along, is in
/// [`Core::value`](crate::Core::value).
#[derive(Debug)]
pub enum Change {
    /// It has a value.
    Finished {
        /// The type of a value that is not inline, as workers name it.
        class: Bytes,
    },
    /// It has none.
    Failed(Box<Failed>),
    /// It was cancelled; reason and message, an encoded value.
    Cancelled(Bytes),
    /// It is being made, again.
    Pending,
    /// The scheduler does not know the key, and nobody is making it.
    Unknown,
}

/// Something for the application. `T` is what it keeps of a key.
#[derive(Debug)]
pub enum Notification<T, V, A> {
    /// A key stands otherwise.
    Standing {
        /// What the application keeps of it.
        owner: T,
        change: Change,
    },
    /// A value that was [asked for](crate::Core::fetch).
    Fetched {
        /// The number that the fetch was given.
        ticket: u64,
        /// Which of its keys.
        index: usize,
        /// What became of it.
        outcome: Fetched<V>,
    },
    /// A question, to be answered.
    Call(Call),
    /// An answer to a question.
    Answer(Answer),
    /// Nothing moves.
    Stuck {
        /// Keys of some of the tasks, encoded.
        keys: Vec<Bytes>,
        /// Why.
        reason: Stuck,
    },
    /// Definitions that no task uses: the application shall define anew what it needs again, and
    /// say that it does not use them.
    Unused(Vec<u32>),
    /// What came of casts.
    Arrived(A),
    /// Everything was cancelled and dropped.
    Restarted,
    /// The connection is over; why. What was asked for and has not come will not come.
    Closed(String),
}

/// What waits for the application.
#[derive(Debug)]
pub(crate) enum Item<T, V, A> {
    /// A key, by its id, stands otherwise: whoever has futures of it by then is told.
    Standing(u32, Change),
    Ready(Notification<T, V, A>),
}
