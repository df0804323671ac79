//! What happens to the scheduler's process.

use alloc::string::String;

use treadle_messages::{FromClient, FromWorker};
use treadle_types::{Cause, ClientId, WorkerId};

/// Something that has happened.
#[derive(Debug)]
pub enum Event {
    /// A worker says something. What one says that is gone changes nothing.
    FromWorker(WorkerId, FromWorker),
    /// A client says something.
    FromClient(ClientId, FromClient),
    /// The connection of a worker broke: somebody may say why.
    WorkerBroke(WorkerId),
    /// A worker counts as gone.
    WorkerGone(WorkerId, Cause),
    /// The connection of a client is over; how, as the log has it.
    ClientGone(ClientId, String),
    /// Time has passed. Comes at least every [`TICK`](treadle_scheduler::TICK).
    Tick {
        /// The process was stopped meanwhile: it has heard nobody.
        was_stopped: bool,
    },
}
