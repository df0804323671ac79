//! What follows from an event.

use alloc::string::String;
use alloc::vec::Vec;

use treadle_messages::{LostWorker, ToClient, ToWorker};
use treadle_types::{ClientId, Command, WorkerId};

/// What is to be done, in order.
pub type Effects = Vec<Effect>;

/// Something to do.
#[derive(Debug)]
pub enum Effect {
    /// Tell a worker to do something.
    Command(WorkerId, Command),
    /// Tell a worker something else.
    ToWorker(WorkerId, ToWorker),
    /// Tell a client.
    ToClient(ClientId, ToClient),
    /// A worker is gone: its connection ends after what it was told before.
    WorkerLost(WorkerId, LostWorker),
    /// A client is gone: its connection ends after what it was told before.
    ClientLost {
        client: ClientId,
        name: String,
        /// What the log says of that; nothing where it said goodbye.
        why: Option<String>,
    },
    /// The scheduler was told to end.
    End,
    /// A task will not get a value, and nothing was raised: its encoded key, and why.
    Doomed(Vec<u8>, String),
    /// Something that people should know.
    Warn(String),
    /// A core within refused an event that this one made sure of: a bug.
    Fault(String),
}
