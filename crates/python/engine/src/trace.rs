//! Recording what ran where and when.

use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use treadle_interpreter::{clock, lock};

/// One task that ran.
struct Event {
    key: Py<PyAny>,
    process: u32,
    thread: u64,
    start: u64,
    end: u64,
}

/// One transfer of an object. Times are those of [`clock::now`].
#[cfg(target_os = "linux")]
pub struct Transfer {
    /// Here, or to here.
    pub sent: bool,
    /// The address of the other end.
    pub peer: String,
    /// Tells connections apart.
    pub connection: u64,
    /// The length of the object.
    pub bytes: u64,
    /// When the transfer began, in nanoseconds.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// The name, the begin and the end of each stage.
    pub stages: Vec<(&'static str, u64, u64)>,
}

/// Finds out what became of a transfer; `None` as long as it is under way, or when it failed.
#[cfg(target_os = "linux")]
pub type Lookup = Box<dyn Fn() -> Option<Transfer> + Send>;

#[derive(Default)]
struct Record {
    events: Vec<Event>,
    #[cfg(target_os = "linux")]
    transfers: Vec<Arc<Mutex<Lookup>>>,
    /// Names of this process's threads, which may be gone when the recording ends.
    names: HashMap<u64, String>,
    /// Tasks that were planned.
    planned: usize,
    /// Nanoseconds.
    engine: u64,
}

/// A recording: every run that is loaded while it is switched on reports to it.
#[pyclass(frozen, module = "treadle._core")]
pub struct Recorder {
    record: Mutex<Record>,
}

/// The recordings that are switched on.
static ACTIVE: Mutex<Vec<Arc<Py<Recorder>>>> = Mutex::new(Vec::new());

fn active() -> MutexGuard<'static, Vec<Arc<Py<Recorder>>>> {
    lock(&ACTIVE)
}

/// The recordings of one run; nearly always none.
#[derive(Clone, Default)]
pub struct Recorders(Vec<Arc<Py<Recorder>>>);

impl Recorders {
    /// Those that are switched on now.
    pub fn active() -> Self {
        Recorders(active().clone())
    }

    /// Whether anybody records.
    #[inline]
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// So many tasks were planned.
    pub(crate) fn planned(&self, tasks: usize) {
        for recorder in &self.0 {
            recorder.get().lock().planned += tasks;
        }
    }

    /// A task ran on the thread with the identifier `thread` of a process.
    pub(crate) fn task(
        &self,
        key: Borrowed<'_, '_, PyAny>,
        process: u32,
        thread: u64,
        start: u64,
        end: u64,
    ) {
        for recorder in &self.0 {
            let recorder = recorder.get();
            if process == std::process::id() && !recorder.lock().names.contains_key(&thread) {
                // Asked before locking: this runs Python.
                let name = thread_name(key.py());
                recorder.lock().names.insert(thread, name);
            }
            let key = key.to_owned().unbind();
            recorder.lock().events.push(Event {
                key,
                process,
                thread,
                start,
                end,
            });
        }
    }

    /// An object is sent or was received.
    #[cfg(target_os = "linux")]
    pub fn transfer(&self, lookup: Lookup) {
        let lookup = Arc::new(Mutex::new(lookup));
        for recorder in &self.0 {
            recorder.get().lock().transfers.push(Arc::clone(&lookup));
        }
    }

    /// The engine was busy for so many nanoseconds.
    pub(crate) fn engine(&self, nanoseconds: u64) {
        for recorder in &self.0 {
            recorder.get().lock().engine += nanoseconds;
        }
    }
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Record> {
        lock(&self.record)
    }
}

/// The name of the calling thread.
fn thread_name(py: Python<'_>) -> String {
    let name = || -> PyResult<String> {
        let thread = py.import("threading")?.call_method0("current_thread")?;
        thread.getattr("name")?.extract()
    };
    name().unwrap_or_else(|_| "thread".to_owned())
}

#[pymethods]
impl Recorder {
    #[new]
    fn new() -> Self {
        Recorder {
            record: Mutex::default(),
        }
    }

    /// Switches the recording on for runs that start from now on; returns the time.
    fn start(slf: Py<Self>) -> u64 {
        active().push(Arc::new(slf));
        clock::now()
    }

    /// Switches the recording off for runs that start from now on.
    fn stop(slf: &Bound<'_, Self>) {
        // The references that this drops are dropped after the lock.
        let stopped: Vec<_> = active()
            .extract_if(.., |r| r.as_ptr() == slf.as_ptr())
            .collect();
        drop(stopped);
    }

    /// Number of tasks that were planned so far.
    #[getter]
    fn planned(&self) -> usize {
        self.lock().planned
    }

    /// Number of tasks that ran so far.
    #[getter]
    fn tasks(&self) -> usize {
        self.lock().events.len()
    }

    /// Nanoseconds that the engine itself was busy: loading, ordering, dispatching.
    #[getter]
    fn engine_ns(&self) -> u64 {
        self.lock().engine
    }

    /// The names of this process's threads that ran tasks, by identifier.
    #[getter]
    fn thread_names(&self) -> HashMap<u64, String> {
        self.lock().names.clone()
    }

    /// One `(key, process, thread, start_ns, end_ns)` a task, in the order of their ends.
    fn events(&self, py: Python<'_>) -> Vec<(Py<PyAny>, u32, u64, u64, u64)> {
        let record = self.lock();
        let event = |e: &Event| (e.key.clone_ref(py), e.process, e.thread, e.start, e.end);
        record.events.iter().map(event).collect()
    }

    /// One `(sent, peer, connection, bytes, start_ns, end_ns, stages)` a transfer that succeeded;
    /// `stages` are `(name, start_ns, end_ns)`.
    fn transfers(&self, py: Python<'_>) -> Vec<PyTransfer> {
        #[cfg(target_os = "linux")]
        {
            let lookups = self.lock().transfers.clone();
            // Lookups take the locks of connections, for which nobody waits while attached.
            let ended = py.detach(|| {
                let look = |lookup: &Arc<Mutex<Lookup>>| lock(lookup)();
                lookups.iter().filter_map(look).collect::<Vec<_>>()
            });
            let transfer = |t: Transfer| {
                (
                    t.sent,
                    t.peer,
                    t.connection,
                    t.bytes,
                    t.start,
                    t.end,
                    t.stages,
                )
            };
            ended.into_iter().map(transfer).collect()
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = py;
            Vec::new()
        }
    }
}

type PyTransfer = (
    bool,
    String,
    u64,
    u64,
    u64,
    u64,
    Vec<(&'static str, u64, u64)>,
);
