//! What the native side of a worker calls in this process.

use super::executor::split;
use super::process;
use super::service::ServiceJob;
use super::shared::WorkerShared;
use bytes::Bytes;
use std::sync::{Arc, Weak};
use treadle_interpreter::lock;
use treadle_messages::{Answer, Call};
use treadle_node_worker::{Embedder, End, EndCause, Runs};
use treadle_store::Live;
use treadle_types::{Cause, ClientId, ObjectId, WorkerId};

/// Exit status of a process that took more memory than it may: `EX_OSERR`.
const OVERFLOWED: i32 = 71;

/// What the native side calls. Weak, since the worker that it belongs to holds the native side.
pub(super) struct WorkerCallbacks(pub(super) Weak<WorkerShared>);

impl WorkerCallbacks {
    fn push(&self, job: ServiceJob) {
        if let Some(shared) = self.0.upgrade()
            && let Some(thread) = shared.service_thread.get()
        {
            thread.push(job);
        }
    }
}

impl Embedder for WorkerCallbacks {
    fn spawn(&self) -> bool {
        self.0.upgrade().is_some_and(|shared| shared.spawn())
    }

    fn call(&self, call: Call) {
        self.push(ServiceJob::Call(call));
    }

    fn answer(&self, answer: Answer) {
        self.push(ServiceJob::Answer(answer));
    }

    fn ended(&self, reason: &str) {
        self.push(ServiceJob::End(reason.to_owned()));
    }

    fn cast_came(&self) {
        self.push(ServiceJob::CastCame);
    }

    fn interrupt_cast(&self, client: ClientId, number: u64) {
        self.push(ServiceJob::InterruptCast(client.0, number));
    }

    fn undefine(&self, client: ClientId) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        let mut gone = Vec::new();
        lock(&shared.definitions).retain(|(whose, _), definition| {
            let keep = *whose != client;
            if !keep {
                gone.push(Arc::clone(definition));
            }
            keep
        });
        shared.forget(gone);
    }

    fn withdraw(&self, client: ClientId, numbers: &[u32]) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        let gone = {
            let mut definitions = lock(&shared.definitions);
            let gone = numbers
                .iter()
                .filter_map(|&number| definitions.remove(&(client, number)));
            gone.collect()
        };
        shared.forget(gone);
    }

    fn went(&self, recipe: &Bytes, from: &'static str, to: &'static str) {
        if let Some(shared) = self.0.upgrade()
            && let Some((key, _)) = split(recipe)
            && shared.steps.push(key, from, to)
        {
            self.push(ServiceJob::StepsCame);
        }
    }

    fn live_at(&self, worker: WorkerId, object: ObjectId) -> Option<Arc<dyn Live>> {
        let shared = self.0.upgrade()?;
        process::live_at(shared.node.cluster(), worker, object)
    }

    fn passed(&self, name: &[u8]) -> Option<Arc<dyn Live>> {
        process::passed(name)
    }

    fn dropped(&self, object: ObjectId) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        let key = shared.keys().remove(&object);
        if shared.actors().remove(&object)
            && let Some(key) = key
        {
            self.push(ServiceJob::DropActor(key, object));
        }
    }

    fn running(&self) -> Vec<Runs> {
        let Some(shared) = self.0.upgrade() else {
            return Vec::new();
        };
        let running = lock(&shared.running);
        let running = running.values().map(|current| Runs {
            lane: current.lane,
            object: current.object,
            began: current.began,
            key: current.key.clone(),
        });
        running.collect()
    }

    /// Ends the process, without the interpreter: a task that allocates may hold its lock.
    fn overflow(&self, used: u64) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        let running: Vec<Bytes> = {
            let running = lock(&shared.running);
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
        let limit = shared.node.options().memory;
        let line = format!(
            "{} MB of memory beside its values, of {} MB allowed, while it ran {}: it ends. Make \
             smaller pieces, or raise the memory limit",
            used / 1_000_000,
            limit / 1_000_000,
            keys.join(", ")
        );
        shared.log(&line);
        let end = End::new(EndCause::Overflowed, "it took too much memory");
        shared.node.close(end, Cause::MemoryLimit, line);
        treadle_volume::remove_directory(&shared.node.options().store.directory);
        treadle_log::flush();
        // SAFETY: it ends the process, whose memory nobody looks at afterwards.
        unsafe { libc::_exit(OVERFLOWED) }
    }
}

/// A key for people who read logs.
pub(super) fn readable(key: &[u8]) -> String {
    match treadle_types::Value::from_bytes(key) {
        Ok(treadle_types::Value::Str(key)) => format!("{key:?}"),
        Ok(key) => format!("{key:?}"),
        Err(_) => "a task".to_owned(),
    }
}
