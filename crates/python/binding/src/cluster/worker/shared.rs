//! What the threads of a worker share.

use super::executor::{self, Current, Definitions};
use super::live::Keeper;
use super::service::{Service, ServiceJob, ServiceThread};
use super::stages::Lanes;
use super::steps::Steps;
use crate::cluster::class::class_bytes;
use bytes::Bytes;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use treadle_interpreter::{fork, lock};
use treadle_node_worker::Worker as Node;
use treadle_reactor::thread::{self, caught};
use treadle_recipe::Definition;
use treadle_types::{ClientId, ObjectId};

/// How long the end of a worker waits for the tasks that run.
const LAST_TASKS: Duration = Duration::from_secs(5);
/// Types whose pickle is remembered.
const CLASSES: usize = 4096;

/// What the threads of a worker share.
pub(super) struct WorkerShared {
    /// The fork generation of the process whose worker it is.
    pub(super) generation: u64,
    pub(super) node: Node,
    pub(super) service: Arc<Service>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) service_thread: OnceLock<Arc<ServiceThread>>,
    pub(super) definitions: Mutex<Definitions>,
    /// The keys of the values that are here.
    pub(super) keys: Mutex<HashMap<ObjectId, Bytes>>,
    pub(super) actors: Mutex<HashSet<ObjectId>>,
    /// Tasks that run, by `threading.get_ident()`.
    pub(super) running: Mutex<HashMap<u64, Current>>,
    /// Pickles of types, by their address; the types are kept alive.
    pub(super) classes: Mutex<HashMap<usize, (Py<PyAny>, Bytes)>>,
    /// Threads that were asked for before the Python side had started.
    pub(super) early: Mutex<Option<usize>>,
    pub(super) threads: AtomicUsize,
    /// Threads that could not be started since the last one that could.
    pub(super) failures: AtomicUsize,
    pub(super) lanes: Mutex<Lanes>,
    /// Whether the service wants to hear of each task.
    pub(super) observed: AtomicBool,
    /// What it has not heard yet.
    pub(super) steps: Steps,
    pub(super) none: (Mutex<()>, Condvar),
}

impl WorkerShared {
    /// Whether this process was forked from the worker's. Nothing here is its own then: the locks may
    /// be held for ever, and the sockets are the parent's.
    pub(super) fn is_parents(&self) -> bool {
        self.generation != fork::generation()
    }

    pub(super) fn keys(&self) -> MutexGuard<'_, HashMap<ObjectId, Bytes>> {
        lock(&self.keys)
    }

    pub(super) fn actors(&self) -> MutexGuard<'_, HashSet<ObjectId>> {
        lock(&self.actors)
    }

    pub(super) fn enter(&self, thread: u64, current: &Current) {
        lock(&self.running).insert(thread, current.clone());
    }

    pub(super) fn leave(&self, thread: u64) {
        lock(&self.running).remove(&thread);
    }

    /// Tells the service about a task, if it wants to know.
    pub(super) fn observe(
        &self,
        py: Python<'_>,
        key: &Bytes,
        start: &'static str,
        finish: &'static str,
    ) {
        if !self.observed.load(Ordering::Relaxed) {
            return;
        }
        self.steps.push(key.clone(), start, finish);
        if !self.steps.tell_all(py, &self.service) {
            self.log("a plugin does not return from `transition`: tasks go on, and plugins hear of them later");
        }
    }

    pub(super) fn log(&self, line: &str) {
        let name = &*self.node.options().name;
        tracing::warn!(target: treadle_log::WORKER, worker = name, "{line}");
        self.node.tracing().line(30, line);
    }

    pub(super) fn definition(
        &self,
        py: Python<'_>,
        client: ClientId,
        number: u32,
    ) -> PyResult<Py<PyAny>> {
        let known = lock(&self.definitions).get(&(client, number)).cloned();
        if let Some(definition) = known {
            return definition.get(py);
        }
        let bytes = self.node.definition(client, number).ok_or_else(|| {
            PyRuntimeError::new_err(format!("definition {number} of {client:?} has not come"))
        })?;
        let definition = Arc::new(Definition::new(bytes));
        let definition = {
            let mut definitions = lock(&self.definitions);
            let entry = definitions.entry((client, number));
            Arc::clone(entry.or_insert(definition))
        };
        definition.get(py)
    }

    /// Has definitions dropped where Python may run.
    pub(super) fn forget(&self, definitions: Vec<Arc<Definition>>) {
        if let Some(thread) = self.service_thread.get() {
            thread.push(ServiceJob::Forget(definitions));
        }
    }

    /// The pickle of a value's type; its name where it has none.
    pub(super) fn class_of(&self, class: &Bound<'_, PyType>) -> Bytes {
        let address = class.as_ptr().addr();
        if let Some((_, bytes)) = lock(&self.classes).get(&address) {
            return bytes.clone();
        }
        let bytes = class_bytes(class);
        let mut classes = lock(&self.classes);
        if classes.len() < CLASSES {
            classes.insert(address, (class.clone().into_any().unbind(), bytes.clone()));
        }
        bytes
    }

    /// Starts an executor thread, now or with [`Worker::start`]; whether there is one.
    pub(super) fn spawn(self: &Arc<Self>) -> bool {
        if let Some(early) = &mut *lock(&self.early) {
            *early += 1;
            return true;
        }
        let shared = Arc::clone(self);
        // Before it starts: `finish` waits for it, too.
        self.threads.fetch_add(1, Ordering::SeqCst);
        let spawned = thread::start("treadle-executor", move || {
            lock(&shared.lanes).enter();
            if let Err(reason) = caught(|| executor::serve(&shared)) {
                shared.node.fail(&reason.to_string());
            }
            lock(&shared.lanes).leave();
            shared.left();
        });
        let Err(error) = spawned else {
            self.failures.store(0, Ordering::Relaxed);
            return true;
        };
        self.left();
        // It is tried again and again: once is enough to say so.
        if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
            self.log(&format!("no thread for a task: {error}; it is tried again"));
        }
        false
    }

    fn left(&self) {
        if self.threads.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Who has counted the threads, and does not wait yet, holds this lock.
            drop(lock(&self.none.0));
            self.none.1.notify_all();
        }
    }

    /// Waits until no executor is left, or for a while; whether none is.
    pub(super) fn finish(&self) -> bool {
        let deadline = Instant::now() + LAST_TASKS;
        let mut guard = lock(&self.none.0);
        while self.threads.load(Ordering::SeqCst) > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.none.1.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
