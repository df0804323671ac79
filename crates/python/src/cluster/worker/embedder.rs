//! What the native side of a worker calls in this process.

use super::service::Job;
use super::{Shared, lock};
use bytes::Bytes;
use std::sync::Arc;
use treadle_node::message::{Answer, Call};
use treadle_node::worker::Host;
use treadle_types::{Cause, ClientId, ObjectId};

/// Exit status of a process that took more memory than it may: `EX_OSERR`.
const OVERFLOWED: i32 = 71;

/// What the native side calls.
pub(super) struct Embedder(pub(super) Arc<Shared>);

impl Host for Embedder {
    fn spawn(&self) {
        self.0.spawn();
    }

    fn call(&self, call: Call) {
        if let Some(desk) = self.0.desk.get() {
            desk.push(Job::Call(call));
        }
    }

    fn answer(&self, answer: Answer) {
        if let Some(desk) = self.0.desk.get() {
            desk.push(Job::Answer(answer));
        }
    }

    fn ended(&self, reason: &str) {
        if let Some(desk) = self.0.desk.get() {
            desk.push(Job::End(reason.to_owned()));
        }
    }

    fn cast_came(&self) {
        if let Some(desk) = self.0.desk.get() {
            desk.push(Job::CastCame);
        }
    }

    fn interrupt_cast(&self, client: ClientId, number: u64) {
        if let Some(desk) = self.0.desk.get() {
            desk.push(Job::InterruptCast(client.0, number));
        }
    }

    fn undefine(&self, client: ClientId) {
        let mut gone = Vec::new();
        lock(&self.0.definitions).retain(|(whose, _), definition| {
            let keep = *whose != client;
            if !keep {
                gone.push(Arc::clone(definition));
            }
            keep
        });
        self.0.forget(gone);
    }

    fn withdraw(&self, client: ClientId, numbers: &[u32]) {
        let gone = {
            let mut definitions = lock(&self.0.definitions);
            let gone = numbers
                .iter()
                .filter_map(|&number| definitions.remove(&(client, number)));
            gone.collect()
        };
        self.0.forget(gone);
    }

    fn dropped(&self, object: ObjectId) {
        let key = self.0.keys().remove(&object);
        if self.0.actors().remove(&object)
            && let (Some(key), Some(desk)) = (key, self.0.desk.get())
        {
            desk.push(Job::DropActor(key));
        }
    }

    /// Ends the process, without the interpreter: a task that allocates may hold its lock.
    fn overflow(&self, used: u64) {
        let running: Vec<Bytes> = {
            let running = lock(&self.0.running);
            running
                .values()
                .map(|current| current.key.clone())
                .collect()
        };
        if running.is_empty() {
            // No task is at fault, and the next process would take as much.
            return;
        }
        let keys: Vec<String> = running.iter().map(|key| readable(key)).collect();
        let limit = self.0.node.options().memory;
        let line = format!(
            "{} MB of memory beside its values, of {} MB allowed, while it ran {}: it ends. Make \
             smaller pieces, or raise the memory limit",
            used / 1_000_000,
            limit / 1_000_000,
            keys.join(", ")
        );
        self.0.log(&line);
        self.0
            .node
            .close("it took too much memory", Cause::MemoryLimit, line);
        // SAFETY: it ends the process, whose memory nobody looks at afterwards.
        unsafe { libc::_exit(OVERFLOWED) }
    }
}

/// A key for people who read logs.
fn readable(key: &[u8]) -> String {
    match treadle_types::Value::from_bytes(key) {
        Ok(treadle_types::Value::Str(key)) => format!("{key:?}"),
        Ok(key) => format!("{key:?}"),
        Err(_) => "a task".to_owned(),
    }
}
