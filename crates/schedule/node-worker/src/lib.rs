//! A worker's process, without Python: its machine, its values, its connections.
//!
//! | thread | what it does |
//! | --- | --- |
//! | executors, of the embedder | run tasks; the one that has none waits at the scheduler's connection, moves what comes there, and takes the first task without a hand-over |
//! | `treadle-control` | looks after the scheduler's connection while all executors are busy; tells how the worker is |
//! | `treadle-fetch` | gets values from other workers |
//! | `treadle-serve` | connections of others, and values for them |
//! | `treadle-bring`, one for a connection | what a client brings that has to wait for room in memory |
//! | `treadle-shuffle`, `treadle-shuffle-disk` | once there was a shuffle: see [`treadle_shuffle_node`] |
//! | `treadle-trace` | while somebody traces: sends what was recorded |
//!
//! None of them runs Python, except that serialising a value that others ask for does.

mod bringing;
mod callbacks;
mod casting;
mod connecting;
mod control;
mod embedder;
mod end;
mod error;
mod health;
mod inner;
mod options;
mod parker;
mod peers;
mod recording;
mod runs;
mod serving;
mod tracing;
mod values;
mod watched;

pub use embedder::{Embedder, PASSED};
pub use end::{End, EndCause};
pub use error::ConnectError;
pub use health::Health;
pub use options::{Options, store_limit};
pub use recording::{Place, Runs, Timed};
pub use runs::Task;
pub use tracing::{Ran, Tracing};
pub use treadle_broadcast_node::{Cast, Next, Traffic, snapshot};
pub use values::{Serving, Unserialisable, Value};

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use treadle_memory::Registration;
use treadle_messages::{Answer, Call, FromWorker};
use treadle_net::ClusterId;
use treadle_schedule_wire::{NodeError, answer_fits, call_fits};
use treadle_shuffle_node as shuffle;
use treadle_store::{Live, PutError, StoreError};
use treadle_types::{Cause, ClientId, ObjectId, WorkerId};
use treadle_worker::{Event, Outcome, Status};

use inner::Inner;
use runs::Input;
use treadle_reactor::thread::lock;

/// How long saying goodbye may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// A worker. Clones are the same one.
#[derive(Clone)]
pub struct Worker(Arc<Inner>);

impl Worker {
    /// Begins to take in what the scheduler says.
    pub fn start(&self, embedder: Arc<dyn Embedder>) {
        let _ = self.0.embedder.set(Arc::clone(&embedder));
        self.0.call_early();
        // What came before there was anybody to tell.
        if self.0.plane.waiting() > 0 {
            embedder.cast_came();
        }
        self.0.drain(0);
    }

    /// Its registration.
    pub fn id(&self) -> WorkerId {
        self.0.id
    }

    /// The scheduler's cluster.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.0.options.net.cluster
    }

    /// What the scheduler says about itself: an encoded value.
    pub fn scheduler_info(&self) -> &Bytes {
        &self.0.info
    }

    /// The address of its listener.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Its settings.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// How many threads to start beforehand, so that one is there when the first task comes.
    pub fn staff(&self) -> usize {
        lock(&self.0.runs).staff(self.0.options.threads as usize)
    }

    /// So many of the threads that were asked for cannot be had.
    pub fn not_coming(&self, count: usize) {
        lock(&self.0.runs).not_coming(count);
    }

    /// The next task for the calling thread, which was asked for by [`Embedder::spawn`] if `first`.
    /// `None`: the thread is not needed any more.
    pub fn next(&self, first: bool) -> Option<Task> {
        self.0.next(first)
    }

    /// The next task, if one is ready: for a thread that has just done one, and stays.
    pub fn try_next(&self) -> Option<Task> {
        if self.0.is_over() {
            return None;
        }
        lock(&self.0.runs).queue.pop_front()
    }

    pub fn definition(&self, client: ClientId, number: u32) -> Option<Bytes> {
        let definitions = lock(&self.0.definitions);
        let definition = definitions.get(&(client, number))?;
        Some(definition.pickle.clone())
    }

    /// A definition's name, for people.
    pub fn definition_name(&self, client: ClientId, number: u32) -> Option<String> {
        let definitions = lock(&self.0.definitions);
        let definition = definitions.get(&(client, number))?;
        Some(definition.name.clone())
    }

    /// What is recorded for those who trace the cluster.
    pub fn tracing(&self) -> &Arc<Tracing> {
        &self.0.tracing
    }

    /// The inputs of a task, in the order of its recipe. Reads back what is on disk.
    ///
    /// # Errors
    /// The input, and why it cannot be read: if [it is lost](StoreError::is_lost), the task's outcome
    /// is [`Outcome::Missing`].
    pub fn inputs(&self, task: &Task) -> Result<Vec<Value>, (ObjectId, StoreError)> {
        let read = |input: &Input| match input {
            Input::Inline(_, bytes) => Ok(Value::Small(bytes.clone())),
            Input::Held(object, held) => self.0.values.read(held).map_err(|error| (*object, error)),
            Input::Missing(object) => {
                let id = treadle_store::StoredId(object.to_u64());
                Err((*object, StoreError::Unknown { id }))
            }
        };
        task.inputs.iter().map(read).collect()
    }

    /// Keeps a value as it is encoded.
    pub fn keep_small(&self, object: ObjectId, value: Bytes) {
        self.0.values.keep_small(object, value);
    }

    /// Keeps a value. Waits for room; the caller must not hold the interpreter's lock.
    ///
    /// # Errors
    /// When there is no room, or the disk that is to make some fails.
    pub fn keep(
        &self,
        object: ObjectId,
        live: Arc<dyn Live>,
        timeout: Duration,
    ) -> Result<(), PutError> {
        self.0.values.put(object, live, timeout)
    }

    /// A value that is here.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] and others.
    pub fn value(&self, object: ObjectId) -> Result<Value, StoreError> {
        self.0.values.get(object)
    }

    pub fn shuffles(&self) -> &shuffle::Plane {
        &self.0.shuffles
    }

    /// The calling thread has run a task. Whether [`Worker::flush`] should be called, without the
    /// interpreter's lock.
    pub fn done(&self, task: &Task, outcome: Outcome, duration: Duration) -> bool {
        self.0.done(task, outcome, duration)
    }

    /// Sends what there is to be sent.
    pub fn flush(&self) {
        self.0.flush();
    }

    /// A running task gives its slot away.
    pub fn secede(&self, object: ObjectId) {
        lock(&self.0.runs).seceded.insert(object);
        self.0.handle(Event::Seceded(object));
        self.0.flush();
    }

    /// A running task that gave its slot away wants one again: waits until it has.
    pub fn rejoin(&self, object: ObjectId) {
        self.0.handle(Event::Rejoining(object));
        self.0.flush();
        let mut runs = lock(&self.0.runs);
        while !runs.resumed.remove(&object) && !self.0.is_over() {
            let waited = self
                .0
                .resumed
                .wait_timeout(runs, Duration::from_millis(250));
            runs = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        runs.seceded.remove(&object);
    }

    /// Has no further task start, and the scheduler send none, until it is let go again. What runs
    /// goes on.
    pub fn hold(&self, held: bool) {
        self.0.held.store(held, Ordering::Release);
        self.0.handle(Event::Held(held));
        self.0.is_news.store(true, Ordering::Release);
        self.0.parker.hurry();
    }

    /// Whether it starts no tasks: it is [held](Self::hold), or there is too little memory.
    pub fn is_paused(&self) -> bool {
        self.0.is_held() || lock(&self.0.machine).paused
    }

    /// Says whether [`Embedder::went`] shall be called.
    pub fn watch(&self, wanted: bool) {
        let mut machine = lock(&self.0.machine);
        machine.watched.forget();
        self.0.watched.store(wanted, Ordering::Release);
    }

    /// The recipes of the tasks that are here and have no thread yet, and whether all of their inputs
    /// are here.
    pub fn pending(&self) -> Vec<(Bytes, bool)> {
        let mut pending: Vec<_> = {
            let machine = lock(&self.0.machine);
            let tasks = machine.core.pending();
            tasks
                .map(|(task, status)| (task.recipe.clone(), status == Status::Ready))
                .collect()
        };
        let runs = lock(&self.0.runs);
        pending.extend(runs.queue.iter().map(|task| (task.recipe.clone(), true)));
        pending
    }

    /// How many tasks have run here so far.
    pub fn ended_tasks(&self) -> u64 {
        lock(&self.0.machine).ended
    }

    /// Whether a running task has given its slot away.
    pub fn is_seceded(&self, object: ObjectId) -> bool {
        lock(&self.0.runs).seceded.contains(&object)
    }

    /// Whether a running task was cancelled.
    pub fn is_interrupted(&self, object: ObjectId) -> bool {
        lock(&self.0.runs).interrupted.contains(&object)
    }

    /// The next cast for this worker's engine, in each client's order; nothing: none came until the
    /// timeout, or the worker is over. What was cast is finished with [`Worker::finish_cast`], and
    /// the next one comes after that.
    pub fn next_cast(&self, timeout: Duration) -> Next {
        self.0.plane.next_cast(timeout)
    }

    /// Has [`Worker::next_cast`] return, now or the next time.
    pub fn nudge_engine(&self) {
        self.0.plane.nudge();
    }

    /// Casts that the engine has not begun.
    pub fn casts_waiting(&self) -> usize {
        self.0.plane.waiting()
    }

    /// The engine has written something while it runs a cast.
    pub fn cast_output(&self, client: ClientId, number: u64, text: Bytes) {
        self.0.plane.wrote(client, number, text);
    }

    /// The engine has finished a cast, with this result, which is not to change any more; see
    /// [`snapshot`].
    pub fn finish_cast(&self, client: ClientId, number: u64, result: Vec<Bytes>) {
        self.0.plane.finished(client, number, result);
    }

    /// What was sent to neighbours in the broadcast plane so far.
    pub fn cast_traffic(&self) -> Traffic {
        self.0.plane.traffic()
    }

    /// Asks another node.
    ///
    /// # Errors
    /// For a question that is too long for a message.
    pub fn call(&self, call: Call) -> Result<(), NodeError> {
        call_fits(&call)?;
        self.0.say(FromWorker::Call(call));
        Ok(())
    }

    /// Answers another node.
    ///
    /// # Errors
    /// For an answer that is too long for a message; nothing is answered then.
    pub fn answer(&self, answer: Answer) -> Result<(), NodeError> {
        if let Some(answer) = self.0.answer_cast(answer) {
            answer_fits(&answer)?;
            self.0.say(FromWorker::Answer(answer));
        }
        Ok(())
    }

    /// Asks the scheduler to let it go, with its values moved elsewhere; then it ends.
    pub fn drain(&self) {
        self.0.say(FromWorker::Drain);
    }

    /// Ends, after telling the scheduler why.
    pub fn close(&self, end: End, cause: Cause, log: String) {
        self.0.close(end, cause, log);
    }

    /// Ends, since something here has failed.
    pub fn fail(&self, reason: &str) {
        self.0.fail(reason);
    }

    /// Why it ended, if it has.
    pub fn ended(&self) -> Option<End> {
        lock(&self.0.end).clone()
    }

    /// Waits until it has ended, for at most `timeout`; why.
    pub fn wait(&self, timeout: Duration) -> Option<End> {
        let end = lock(&self.0.end);
        let wait = self
            .0
            .ended
            .wait_timeout_while(end, timeout, |end| end.is_none());
        wait.unwrap_or_else(std::sync::PoisonError::into_inner)
            .0
            .clone()
    }

    /// What it has done for those that fetched values from it.
    pub fn serving(&self) -> Serving {
        self.0.values.serving()
    }

    pub fn health(&self) -> Health {
        Health::of(&self.0)
    }

    /// Counts what another shuffle plane of this process keeps as memory of the worker, as long as the
    /// registration is kept.
    pub fn account(&self, name: &'static str, plane: &shuffle::Plane) -> Registration {
        let memory = self.0.services.memory();
        memory.register(name, Arc::new(plane.clone()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The threads hold weak references: with the last worker they end.
        self.0.requests.wake();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("id", &self.0.id)
            .field("name", &self.0.options.name)
            .finish_non_exhaustive()
    }
}
