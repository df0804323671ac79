//! What a worker asks of the process around it.

use std::sync::Arc;

use bytes::Bytes;
use treadle_messages::{Answer, Call};
use treadle_store::Live;
use treadle_types::{ClientId, ObjectId, WorkerId};

use super::recording::Runs;

/// The kind of the frames of a value that a client of this process passes as it is: one frame, a name
/// that [`Embedder::passed`] knows.
pub const PASSED: u32 = treadle_messages::Data::SMALL - 1;

/// The process around a worker: it runs the tasks and answers the calls.
pub trait Embedder: Send + Sync + 'static {
    /// More tasks are ready than threads wait for them: start a thread that calls
    /// [`Worker::next`] until that has no more. `false`: there is none to be had now; it is asked
    /// again as long as tasks wait.
    fn spawn(&self) -> bool;
    /// Another node asks something. Called in the order in which calls came, and under a lock: it must
    /// not wait, nor call the worker.
    fn call(&self, call: Call);
    /// Another node has answered. Called as [`Embedder::call`] is.
    fn answer(&self, answer: Answer);
    /// The worker has ended: what was not answered will not be.
    fn ended(&self, _reason: &str) {}
    /// A client is gone, and its definitions with it.
    fn undefine(&self, client: ClientId);
    /// No task uses these definitions of a client any more, nor will.
    fn withdraw(&self, client: ClientId, numbers: &[u32]);
    /// A cast waits for [`Worker::next_cast`], which no thread has ever called.
    fn cast_came(&self) {}
    /// Interrupt a cast, if the engine is running it.
    fn interrupt_cast(&self, _client: ClientId, _number: u64) {}
    /// A value of another worker, which cannot be serialised, if that worker is of this process.
    fn live_at(&self, _worker: WorkerId, _object: ObjectId) -> Option<Arc<dyn Live>> {
        None
    }
    /// What a client of this process passes under a name.
    fn passed(&self, _name: &[u8]) -> Option<Arc<dyn Live>> {
        None
    }
    /// The value of an actor was released.
    fn dropped(&self, object: ObjectId);
    /// A task with this recipe went from one state to another, by distributed's names; see
    /// [`Worker::watch`]. That it begins and ends, the embedder knows by itself. Called under a lock:
    /// it must not wait, nor call the worker.
    fn went(&self, _recipe: &Bytes, _from: &'static str, _to: &'static str) {}
    /// The tasks that run. Must not wait: not for the interpreter either, which a task may hold.
    fn running(&self) -> Vec<Runs> {
        Vec::new()
    }
    /// What runs in the process takes so many bytes of memory, more than it may. Called again and
    /// again while that is so.
    fn overflow(&self, _used: u64) {}
}
