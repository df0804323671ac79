//! `treadle._core.Worker`: a worker in this process.

mod callbacks;
mod calls;
mod casts;
mod executor;
mod live;
mod process;
mod service;
mod shared;
pub(super) mod shuffles;
mod stages;
mod steps;
mod tasks;

pub(super) use executor::split;
pub(crate) use live::{Keeper, read};
pub(crate) use process::{object_at, pass};
pub(crate) use service::{answer, plain};

use super::error::raised;
use super::security::Credentials;
use crate::transfer::{Limit, blocking, parse};
use bytes::Bytes;
use callbacks::WorkerCallbacks;
use pyo3::exceptions::{PyKeyError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use service::{Service, ServiceThread};
use shared::WorkerShared;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};
use steps::Steps;
use treadle_interpreter::{fork, lock, refuse_forked};
use treadle_node_worker::{ConnectError, End, EndCause, Options, Worker as Node, store_limit};
use treadle_recipe as recipe;
use treadle_schedule_wire::SCHEDULER_TIMEOUT;
use treadle_types::{Cause, ObjectId};

/// How long values wait for room in memory while the disk fails.
const DISK: Duration = Duration::from_secs(10);

/// The name of this machine.
fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// What the native side needs of `treadle.common._worker_options.WorkerOptions`.
#[derive(FromPyObject)]
pub(crate) struct WorkerOptions {
    nthreads: u32,
    memory_limit: u64,
    resources: HashMap<String, f64>,
}

/// A worker, as native threads of this process. The executor threads run Python.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Worker(Arc<WorkerShared>);

#[pymethods]
impl Worker {
    /// Registers at the scheduler. `service` is its Python side, a `treadle.worker.Service`.
    #[new]
    #[pyo3(signature = (scheduler, options, *, name, directory, service, listen=None, secret=None,
                        certificates=None, insecure=false, contact=None, cluster=None,
                        timeout=30.0, info=None, terminate=0.0, scheduler_timeout=None, sight_memory=0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        scheduler: &str,
        options: WorkerOptions,
        name: String,
        directory: PathBuf,
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
        sight_memory: u64,
    ) -> PyResult<Self> {
        refuse_forked()?;
        let WorkerOptions {
            nthreads,
            memory_limit,
            resources,
        } = options;
        if nthreads == 0 {
            return Err(PyValueError::new_err(
                "nthreads=0: a worker needs one thread",
            ));
        }
        let mut resources: Vec<_> = resources.into_iter().collect();
        resources.sort_by(|one, other| one.0.cmp(&other.0));
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
            recording: sight_memory,
            store: treadle_store::Options {
                sync: false,
                patience: Some(DISK),
                ..treadle_store::Options::new(directory, store_limit(memory_limit))
            },
        };
        let doing = format!("connecting to the scheduler at {scheduler}");
        treadle_log::init();
        let refused = |error| match error {
            ConnectError::Node(error) => raised(error, &doing),
            ConnectError::Store(error) => PyOSError::new_err(format!("{doing}: {error}")),
        };
        let node = blocking(py, limit_of_wait, None, refused, move |wait| {
            Node::connect(options, wait)
        })?;
        let service = Service::new(service);
        let keeper = Keeper::new(Arc::clone(&service));
        Ok(Self(Arc::new(WorkerShared {
            generation: fork::generation(),
            node,
            service,
            keeper,
            service_thread: OnceLock::new(),
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
            steps: Steps::default(),
            none: (Mutex::new(()), Condvar::new()),
        })))
    }

    /// Starts the Python side, then the tasks.
    fn start(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, shared) = (slf.py(), &slf.get().0);
        let weak = Arc::downgrade(shared);
        let refuse = move |answer| {
            if let Some(shared) = weak.upgrade() {
                // One that has ended needs no answer.
                let _ = shared.node.answer(answer);
            }
        };
        let weak = Arc::downgrade(shared);
        let failed = move |reason: &str| {
            if let Some(shared) = weak.upgrade() {
                shared.node.fail(reason);
            }
        };
        let service_thread = ServiceThread::start(Arc::clone(&shared.service), refuse, failed)?;
        shared.keeper.attend(&service_thread);
        let _ = shared.service_thread.set(service_thread);
        process::add(shared);
        let callbacks = Arc::new(WorkerCallbacks(Arc::downgrade(shared)));
        py.detach(|| shared.node.start(callbacks));
        shared.service.call(py, intern!(py, "start"), (slf,))?;
        // From here on tasks run, as the Python side has started.
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

    /// Waits until the worker has ended; why: the cause by name, and in words. `None`: it has not
    /// within `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Option<(&'static str, String)>> {
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
                return Ok(end.map(|end| (end.cause.name(), end.reason)));
            }
        }
    }

    /// Why it ended, if it has.
    #[getter]
    fn ended(&self) -> PyResult<Option<String>> {
        Ok(self.own()?.node.ended().map(|end| end.reason))
    }

    /// Ends it: tells the scheduler why, and with which status its process ends, and waits for the
    /// tasks that run, for a few seconds. `cause` is "closed", "restarted" or "failed".
    #[pyo3(signature = (reason="it was closed", status=0, cause="closed"))]
    fn close(&self, py: Python<'_>, reason: &str, status: i32, cause: &str) -> PyResult<()> {
        let cause = [EndCause::Closed, EndCause::Restarted, EndCause::Failed]
            .into_iter()
            .find(|known| known.name() == cause)
            .ok_or_else(|| PyValueError::new_err(format!("cause={cause:?}")))?;
        let end = End::new(cause, reason);
        let service = &self.own()?.service;
        let log = service.call(py, intern!(py, "log"), ());
        let log = log.and_then(|log| log.extract(py)).unwrap_or_default();
        let is_idle = py.detach(|| {
            self.0.node.close(end, Cause::Exited(status), log);
            self.0.finish()
        });
        if let Some(service_thread) = self.0.service_thread.get() {
            service_thread.close(py, reason);
        }
        self.0.keeper.collect(py);
        // A task that still runs may call it.
        if is_idle {
            self.0.service.release();
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

    /// Values that others have `served` themselves with, the time that took (`serving`), and the time that
    /// threads `waited` for the locks of the tables of values, in seconds.
    fn serving<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let serving = self.own()?.node.serving();
        let dict = PyDict::new(py);
        dict.set_item("served", serving.served)?;
        dict.set_item("serving", serving.serving.as_secs_f64())?;
        dict.set_item("waited", serving.waited.as_secs_f64())?;
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

    /// A value that is here, by the name that the scheduler gives it: one that has come from elsewhere
    /// has no key here.
    fn get_object(&self, py: Python<'_>, object: u64) -> PyResult<Py<PyAny>> {
        let shared = self.own()?;
        let value = py.detach(|| shared.node.value(ObjectId::from_u64(object)));
        let value = value.map_err(|_| PyKeyError::new_err(object))?;
        read(py, value, &self.0.keeper)
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
    fn own(&self) -> PyResult<&Arc<WorkerShared>> {
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
