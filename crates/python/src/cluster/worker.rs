//! `treadle._core.Worker`: a worker in this process.

mod casts;
mod embedder;
mod executor;
mod live;
mod service;
mod stages;

pub(super) use executor::split;
pub(crate) use live::{Keeper, read};
pub(crate) use service::plain;

use super::class::class_bytes;
use super::error::raised;
use super::security::Credentials;
use crate::fork;
use crate::recipe::{self, Definition};
use crate::transfer::{Limit, blocking, enter, parse};
use bytes::Bytes;
use embedder::Embedder;
use executor::{Current, Definitions};
use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};
use service::{Desk, Job, Service};
use stages::Lanes;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use treadle_net::thread::{self, caught};
use treadle_node::message::{Answer, Call};
use treadle_node::worker::{Options, Worker as Node};
use treadle_node::{SCHEDULER_TIMEOUT, log};
use treadle_types::{Cause, ClientId, ObjectId};

/// How long the end of a worker waits for the tasks that run.
const LAST_TASKS: Duration = Duration::from_secs(5);
/// How long values wait for room in memory while the disk fails.
const DISK: Duration = Duration::from_secs(10);
/// Types whose pickle is remembered.
const CLASSES: usize = 4096;

/// What the threads of a worker share.
pub(super) struct Shared {
    /// The fork generation of the process whose worker it is.
    generation: u64,
    node: Node,
    service: Arc<Service>,
    keeper: Arc<Keeper>,
    desk: OnceLock<Arc<Desk>>,
    definitions: Mutex<Definitions>,
    /// The keys of the values that are here.
    keys: Mutex<HashMap<ObjectId, Bytes>>,
    actors: Mutex<HashSet<ObjectId>>,
    /// Tasks that run, by `threading.get_ident()`.
    running: Mutex<HashMap<u64, Current>>,
    /// Pickles of types, by their address; the types are kept alive.
    classes: Mutex<HashMap<usize, (Py<PyAny>, Bytes)>>,
    /// Threads that were asked for before the Python side had started.
    early: Mutex<Option<usize>>,
    threads: AtomicUsize,
    /// Threads that could not be started since the last one that could.
    failures: AtomicUsize,
    lanes: Mutex<Lanes>,
    /// Whether the service wants to hear of each task.
    observed: AtomicBool,
    none: (Mutex<()>, Condvar),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Whether this process was forked from the worker's. Nothing here is its own then: the locks may
    /// be held for ever, and the sockets are the parent's.
    fn is_parents(&self) -> bool {
        self.generation != fork::generation()
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<ObjectId, Bytes>> {
        lock(&self.keys)
    }

    fn actors(&self) -> MutexGuard<'_, HashSet<ObjectId>> {
        lock(&self.actors)
    }

    fn enter(&self, thread: u64, current: &Current) {
        lock(&self.running).insert(thread, current.clone());
    }

    fn leave(&self, thread: u64) {
        lock(&self.running).remove(&thread);
    }

    /// Tells the service about a task, if it wants to know.
    fn observe(&self, py: Python<'_>, key: &Bytes, start: &str, finish: &str) {
        if !self.observed.load(Ordering::Relaxed) {
            return;
        }
        let told = recipe::decode_key(py, key).and_then(|key| {
            self.service
                .call(py, intern!(py, "transition"), (key, start, finish))
        });
        if let Err(error) = told {
            error.write_unraisable(py, None);
        }
    }

    fn log(&self, line: &str) {
        let name = &*self.node.options().name;
        tracing::warn!(target: log::WORKER, worker = name, "{line}");
    }

    fn definition(&self, py: Python<'_>, client: ClientId, number: u32) -> PyResult<Py<PyAny>> {
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
    fn forget(&self, definitions: Vec<Arc<Definition>>) {
        if let Some(desk) = self.desk.get() {
            desk.push(Job::Forget(definitions));
        }
    }

    /// The pickle of a value's type; its name where it has none.
    fn class_of(&self, class: &Bound<'_, PyType>) -> Bytes {
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
    fn spawn(self: &Arc<Self>) -> bool {
        if let Some(early) = &mut *lock(&self.early) {
            *early += 1;
            return true;
        }
        let shared = Arc::clone(self);
        self.threads.fetch_add(1, Ordering::SeqCst);
        let spawned = thread::start("treadle-executor", move || {
            lock(&shared.lanes).enter();
            if let Err(reason) = caught(|| executor::serve(&shared)) {
                shared.node.fail(&reason);
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
            drop(lock(&self.none.0));
            self.none.1.notify_all();
        }
    }

    /// Waits until no executor is left, or for a while; whether none is.
    fn finish(&self) -> bool {
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

/// The name of this machine.
fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// A worker, as native threads of this process. The executor threads run Python.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Worker(Arc<Shared>);

#[pymethods]
impl Worker {
    /// Registers at the scheduler. `service` is its Python side, a `treadle.worker.Service`.
    #[new]
    #[pyo3(signature = (scheduler, *, name, nthreads, memory_limit, directory, resources, service,
                        listen=None, secret=None, certificates=None, insecure=false, contact=None,
                        cluster=None, timeout=30.0, info=None, terminate=0.0,
                        scheduler_timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        scheduler: &str,
        name: String,
        nthreads: u32,
        memory_limit: u64,
        directory: PathBuf,
        resources: HashMap<String, f64>,
        service: Py<PyAny>,
        listen: Option<&str>,
        secret: Option<&Bound<'_, PyAny>>,
        certificates: Option<HashMap<String, String>>,
        insecure: bool,
        contact: Option<String>,
        cluster: Option<&str>,
        timeout: f64,
        info: Option<&Bound<'_, PyAny>>,
        terminate: f64,
        scheduler_timeout: Option<f64>,
    ) -> PyResult<Self> {
        enter()?;
        if nthreads == 0 {
            return Err(PyValueError::new_err(
                "nthreads=0: a worker needs one thread",
            ));
        }
        let mut resources: Vec<_> = resources.into_iter().collect();
        resources.sort_by(|one, other| one.0.cmp(&other.0));
        let limit = match memory_limit {
            0 => u64::MAX / 4,
            limit => limit,
        };
        let limit_of_wait = Limit::new(Some(timeout))?;
        let listen = listen.unwrap_or(match certificates {
            Some(_) => "treadle+tls://127.0.0.1:0",
            None => "treadle://127.0.0.1:0",
        });
        let credentials = Credentials {
            secret,
            certificates,
            insecure,
            contact: contact.into_iter().collect(),
            cluster,
        };
        let version = py.version_info();
        let scheduler_timeout = scheduler_timeout.map_or(SCHEDULER_TIMEOUT, |seconds| {
            Duration::from_secs_f64(seconds.clamp(0.001, 1e9))
        });
        let options = Options {
            scheduler: parse(scheduler)?,
            scheduler_timeout,
            listen: parse(listen)?,
            net: credentials.options(Duration::from_secs_f64(timeout.clamp(0.001, 1e6)))?,
            name,
            host: host_name(),
            python: format!("{}.{}", version.major, version.minor),
            threads: nthreads,
            memory: memory_limit,
            terminate,
            resources,
            info: info.map(plain).transpose()?.unwrap_or_default(),
            store: treadle_store::Options {
                sync: false,
                patience: Some(DISK),
                ..treadle_store::Options::new(directory, limit)
            },
        };
        let doing = format!("connecting to the scheduler at {scheduler}");
        log::init();
        let refused = |error| raised(error, &doing);
        let node = blocking(py, limit_of_wait, None, refused, move |wait| {
            Node::connect(options, wait)
        })?;
        let service = Service::new(service);
        let keeper = Keeper::new(Arc::clone(&service));
        Ok(Self(Arc::new(Shared {
            generation: fork::generation(),
            node,
            service,
            keeper,
            desk: OnceLock::new(),
            definitions: Mutex::default(),
            keys: Mutex::default(),
            actors: Mutex::default(),
            running: Mutex::default(),
            classes: Mutex::default(),
            early: Mutex::new(Some(0)),
            threads: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
            lanes: Mutex::default(),
            observed: AtomicBool::new(false),
            none: (Mutex::new(()), Condvar::new()),
        })))
    }

    /// Starts the Python side, then the tasks.
    fn start(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, shared) = (slf.py(), &slf.get().0);
        let weak = Arc::downgrade(shared);
        let failed = move |reason: &str| {
            if let Some(shared) = weak.upgrade() {
                shared.node.fail(reason);
            }
        };
        let desk = Desk::open(Arc::clone(&shared.service), failed)?;
        let _ = shared.desk.set(desk);
        let host = Arc::new(Embedder(Arc::downgrade(shared)));
        py.detach(|| shared.node.start(host));
        shared.service.call(py, intern!(py, "start"), (slf,))?;
        let early = lock(&shared.early).take();
        let wanted = early.unwrap_or(0) + shared.node.staff();
        let failed = (0..wanted).filter(|_| !shared.spawn()).count();
        shared.node.not_coming(failed);
        if wanted > 0 && failed == wanted {
            return Err(PyRuntimeError::new_err(
                "the system has no thread for this worker's tasks: raise the limit of processes \
                 (`ulimit -u`, `pids.max` of the container), or start fewer workers",
            ));
        }
        Ok(())
    }

    /// Waits until the worker has ended; why. `None`: it has not within `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<String>> {
        const LOOK: Duration = Duration::from_millis(100);
        self.own()?;
        let limit = Limit::new(timeout)?;
        loop {
            let left = limit.deadline.map_or(LOOK, |deadline| {
                deadline.saturating_duration_since(Instant::now()).min(LOOK)
            });
            let end = py.detach(|| self.0.node.wait(left));
            py.check_signals()?;
            self.0.keeper.collect(py);
            let over = limit
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline);
            if end.is_some() || over {
                return Ok(end);
            }
        }
    }

    /// Why it ended, if it has.
    #[getter]
    fn ended(&self) -> PyResult<Option<String>> {
        Ok(self.own()?.node.ended())
    }

    /// Ends it: tells the scheduler why, and with which status its process ends, and waits for the
    /// tasks that run, for a few seconds.
    #[pyo3(signature = (reason="it was closed", status=0))]
    fn close(&self, py: Python<'_>, reason: &str, status: i32) -> PyResult<()> {
        let service = &self.own()?.service;
        let log = service.call(py, intern!(py, "log"), ());
        let log = log.and_then(|log| log.extract(py)).unwrap_or_default();
        let is_idle = py.detach(|| {
            self.0.node.close(reason, Cause::Exited(status), log);
            self.0.finish()
        });
        if let Some(desk) = self.0.desk.get() {
            desk.close(py, reason);
        }
        self.0.keeper.collect(py);
        if is_idle {
            self.0.service.let_go();
        }
        Ok(())
    }

    #[getter]
    fn address(&self) -> &str {
        self.0.node.address()
    }

    #[getter]
    fn id(&self) -> u32 {
        self.0.node.id().0
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.node.options().name
    }

    #[getter]
    fn scheduler(&self) -> String {
        self.0.node.options().scheduler.to_string()
    }

    #[getter]
    fn nthreads(&self) -> u32 {
        self.0.node.options().threads
    }

    #[getter]
    fn memory_limit(&self) -> u64 {
        self.0.node.options().memory
    }

    #[getter]
    fn directory(&self) -> String {
        let directory = &self.0.node.options().store.directory;
        directory.display().to_string()
    }

    /// Removes its directory: the process is about to end, whatever else runs here.
    fn remove_directory(&self, py: Python<'_>) {
        if !self.0.is_parents() {
            let directory = &self.0.node.options().store.directory;
            py.detach(|| treadle_volume::remove_directory(directory));
        }
    }

    #[getter]
    fn resources(&self) -> HashMap<String, f64> {
        self.0.node.options().resources.iter().cloned().collect()
    }

    /// What the scheduler says about itself.
    #[getter]
    fn info(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        recipe::decode_value(py, self.0.node.scheduler_info())
    }

    /// Bytes of memory: `managed` by the store, `process`, `spilled` to disk.
    fn health<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let shared = self.own()?;
        let health = py.detach(|| shared.node.health());
        let dict = PyDict::new(py);
        dict.set_item("managed", health.managed)?;
        dict.set_item("process", health.process)?;
        dict.set_item("spilled", health.spilled)?;
        Ok(dict)
    }

    /// The key of the calling thread's task.
    fn current_key(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let key = |current: Current| Ok(recipe::decode_key(py, &current.key)?.unbind());
        executor::current().map(key).transpose()
    }

    /// When the calling thread's task began, on the clock of `time.time`.
    fn started(&self) -> Option<f64> {
        executor::current().map(|current| current.started)
    }

    /// Gives the slot of the calling thread's task away; whether it had one.
    fn secede(&self, py: Python<'_>) -> PyResult<bool> {
        let shared = self.own()?;
        let Some(current) = executor::current() else {
            return Ok(false);
        };
        let changed = executor::set_seceded(true);
        if changed {
            py.detach(|| shared.node.secede(current.object));
        }
        Ok(changed)
    }

    /// Takes a slot again, if the calling thread's task has none.
    fn rejoin(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.own()?;
        let Some(current) = executor::current() else {
            return Ok(());
        };
        if executor::set_seceded(false) {
            py.detach(|| shared.node.rejoin(current.object));
        }
        Ok(())
    }

    /// Whether the service wants to hear of each task.
    fn observe(&self, wanted: bool) {
        self.0.observed.store(wanted, Ordering::Relaxed);
    }

    /// `threading.get_ident()` and key of each task that runs.
    fn running<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let running: Vec<_> = {
            let running = lock(&self.own()?.running);
            running
                .iter()
                .map(|(thread, current)| (*thread, current.key.clone()))
                .collect()
        };
        let dict = PyDict::new(py);
        for (thread, key) in running {
            dict.set_item(thread, recipe::decode_key(py, &key)?)?;
        }
        Ok(dict)
    }

    /// The keys of the values that are here.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let keys: Vec<Bytes> = self.own()?.keys().values().cloned().collect();
        let list = PyList::empty(py);
        for key in keys {
            list.append(recipe::decode_key(py, &key)?)?;
        }
        Ok(list)
    }

    fn has(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.find(key)?.is_some())
    }

    /// The value of a key that is here.
    fn get(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let missing = || PyKeyError::new_err(key.clone().unbind());
        let object = self.find(key)?.ok_or_else(missing)?;
        let shared = self.own()?;
        let value = py.detach(|| shared.node.value(object));
        read(py, value.map_err(|_| missing())?, &self.0.keeper)
    }

    /// Answers a call of another node.
    #[pyo3(signature = (id, result, error=None))]
    fn answer(
        &self,
        py: Python<'_>,
        id: u64,
        result: &Bound<'_, PyAny>,
        error: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if self.0.is_parents() {
            fork::end_returned(py, "a call", None);
        }
        let result = match error {
            None => Ok(plain(result)?),
            Some(error) => Err(plain(error)?),
        };
        py.detach(|| self.0.node.answer(Answer { id, result }))
            .map_err(|error| raised(error, "answering"))
    }

    /// Asks another node; `done(result, error)` is called in a native thread.
    fn call(
        &self,
        py: Python<'_>,
        node: String,
        operation: String,
        argument: &Bound<'_, PyAny>,
        done: Py<PyAny>,
    ) -> PyResult<()> {
        let argument = plain(argument)?;
        let desk = self.own()?.desk.get();
        let desk = desk.ok_or_else(|| PyRuntimeError::new_err("the worker has not started"))?;
        let id = desk.ask(done);
        let call = Call {
            id,
            node,
            operation,
            argument,
        };
        if let Err(error) = py.detach(|| self.0.node.call(call)) {
            desk.unask(id);
            return Err(raised(error, "asking"));
        }
        // It may have ended before the question was noted.
        if let Some(reason) = self.0.node.ended() {
            desk.close(py, &reason);
        }
        Ok(())
    }

    /// The next cast for this worker's engine, in each client's order: the client, its number, and the
    /// frames, which are the engine's to write. `None`: none came within `timeout` seconds, or the
    /// worker has ended. The one after it comes when it is finished.
    fn next_cast<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Option<casts::Taken<'py>>> {
        self.take_cast(py, timeout)
    }

    /// Has `next_cast` return nothing, now or the next time.
    fn nudge_engine(&self) -> PyResult<()> {
        self.own()?.node.nudge_engine();
        Ok(())
    }

    /// How many casts the engine has not begun.
    fn casts_waiting(&self, py: Python<'_>) -> PyResult<usize> {
        let shared = self.own()?;
        Ok(py.detach(|| shared.node.casts_waiting()))
    }

    /// Sends what the engine has put out while it runs a cast.
    fn cast_output(
        &self,
        py: Python<'_>,
        client: u32,
        number: u64,
        output: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let shared = self.own()?;
        let output = super::connection::buffer(output)?;
        py.detach(|| shared.node.cast_output(ClientId(client), number, output));
        Ok(())
    }

    /// Sends the result of a cast, and when it began and ended: the last word about it.
    #[pyo3(signature = (client, number, frames, times=None))]
    fn finish_cast(
        &self,
        py: Python<'_>,
        client: u32,
        number: u64,
        frames: Vec<Bound<'_, PyAny>>,
        times: Option<(f64, f64)>,
    ) -> PyResult<()> {
        if self.0.is_parents() {
            fork::end_returned(py, "a cast", None);
        }
        self.end_cast(py, client, number, &frames, times)
    }

    /// What was sent to other engines and to clients so far: messages, bytes through sockets, bytes as
    /// shared memory; and what came from them: messages, and bytes.
    fn cast_traffic(&self, py: Python<'_>) -> PyResult<[u64; 5]> {
        let shared = self.own()?;
        Ok(py.detach(|| shared.node.cast_traffic()).into())
    }

    /// Asks to be let go; its values move elsewhere first.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.own()?;
        py.detach(|| shared.node.drain());
        Ok(())
    }

    fn __repr__(&self) -> String {
        let node = &self.0.node;
        format!("<Worker {:?} at {}>", node.options().name, node.address())
    }
}

impl Worker {
    /// What its threads share, in the process whose worker it is.
    ///
    /// # Errors
    /// In a forked child.
    fn own(&self) -> PyResult<&Arc<Shared>> {
        if self.0.is_parents() {
            return Err(PyRuntimeError::new_err(
                "this worker belongs to the parent process, from which this one was forked: a \
                 forked child cannot use it. Return what the child has made to the task, which is \
                 in the parent",
            ));
        }
        Ok(&self.0)
    }

    fn find(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<ObjectId>> {
        let mut bytes = Vec::new();
        recipe::encode_key(key.as_borrowed(), &mut bytes)?;
        let keys = self.own()?.keys();
        let found = keys.iter().find(|(_, key)| key[..] == bytes[..]);
        Ok(found.map(|(object, _)| *object))
    }
}
