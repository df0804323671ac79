//! Telling states how their keys stand.

use super::deliver::is_ordinary;
use bytes::Bytes;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyType};
use std::collections::HashMap;
use std::sync::Mutex;
use treadle_dask::{Slot, slot};
use treadle_interpreter::{loaded_module, lock};
use treadle_messages::{Failed, FailedKind, LostWorker};
use treadle_node_client::Change;
use treadle_recipe as recipe;
use treadle_types::Cause;

/// Types that are remembered by their pickles.
const TYPES: usize = 1024;

/// How Python's states are notified.
#[derive(Default)]
pub(super) struct States {
    layout: PyOnceLock<Option<Layout>>,
    /// Types of values, by what workers call them.
    types: Mutex<HashMap<Bytes, Py<PyAny>>>,
}

/// Where `treadle.client._state.State` keeps what `finish` sets. It does nothing else unless
/// somebody waits, so it need not be called: a future costs no call of Python then.
struct Layout {
    class: Py<PyType>,
    status: Slot,
    type_: Slot,
    wakers: Slot,
    over: Slot,
    finished: Py<PyString>,
}

impl Layout {
    /// Nothing where the client is another one, or threads run Python at the same time.
    fn find(py: Python<'_>) -> PyResult<Option<Self>> {
        let sys = py.import("sys")?;
        if let Some(enabled) = sys.getattr_opt("_is_gil_enabled")?
            && !enabled.call0()?.is_truthy()?
        {
            return Ok(None);
        }
        let Some(module) = loaded_module(py, "treadle.client._state")? else {
            return Ok(None);
        };
        let class = module.getattr("State")?.cast_into::<PyType>()?;
        Ok(Some(Self {
            status: slot(&class, "status")?,
            type_: slot(&class, "type")?,
            wakers: slot(&class, "_wakers")?,
            over: slot(&class, "over")?,
            finished: PyString::intern(py, "finished").unbind(),
            class: class.unbind(),
        }))
    }

    /// `State.finish`, if that would call nobody and the client has not let go of it.
    fn finish(&self, state: &Bound<'_, PyAny>, class: Option<&Py<PyAny>>) -> bool {
        let py = state.py();
        if state.get_type_ptr() != self.class.as_ptr().cast() {
            return false;
        }
        // SAFETY: an instance of exactly the class that the slots were found in; this thread has the
        // interpreter's lock, which others need to come near it.
        unsafe {
            let none = |found: Borrowed<'_, '_, PyAny>| {
                found.is_none() || found.len().is_ok_and(|n| n == 0)
            };
            if !self.wakers.get(state.as_borrowed()).is_ok_and(none)
                || !self
                    .over
                    .get(state.as_borrowed())
                    .is_ok_and(|over| over.is_none())
            {
                return false;
            }
            if let Some(class) = class {
                self.type_
                    .replace(state.as_borrowed(), class.clone_ref(py).into_bound(py));
            }
            let finished = self.finished.clone_ref(py).into_bound(py).into_any();
            self.status.replace(state.as_borrowed(), finished);
        }
        true
    }
}

impl States {
    /// Tells a state. One that another thread lets go of meanwhile, to cancel it, ends: that comes
    /// last, whichever of the two threads says it.
    ///
    /// # Errors
    /// What its methods raise.
    pub(super) fn tell(&self, state: &Bound<'_, PyAny>, change: &Change) -> PyResult<()> {
        self.tell_change(state, change)?;
        let py = state.py();
        match state.getattr_opt(intern!(py, "over"))? {
            Some(why) if !why.is_none() => {
                state.call_method1(intern!(py, "end"), (why,))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn tell_change(&self, state: &Bound<'_, PyAny>, change: &Change) -> PyResult<()> {
        let py = state.py();
        match change {
            Change::Finished { class } => {
                let class = self.type_of(py, class)?;
                let layout = self.layout.get_or_try_init(py, || Layout::find(py))?;
                if let Some(layout) = layout
                    && layout.finish(state, class.as_ref())
                {
                    return Ok(());
                }
                state.call_method1(intern!(py, "finish"), (class,))?;
            }
            Change::Failed(failed) => {
                let (kind, key, payload) = failure(py, failed)?;
                state.call_method1(intern!(py, "native_failed"), (kind, key, payload))?;
            }
            Change::Cancelled(reason) => {
                let (reason, message) = cancelled(py, reason)?;
                state.call_method1(intern!(py, "native_cancelled"), (reason, message))?;
            }
            Change::Pending => {
                state.call_method0(intern!(py, "retry"))?;
            }
            Change::Unknown => {
                state.call_method0(intern!(py, "lose"))?;
            }
        }
        Ok(())
    }

    /// The type that a worker named: itself, or its name where it is not known here.
    fn type_of(&self, py: Python<'_>, class: &Bytes) -> PyResult<Option<Py<PyAny>>> {
        if class.is_empty() {
            return Ok(None);
        }
        if let Some(known) = lock(&self.types).get(class) {
            return Ok(Some(known.clone_ref(py)));
        }
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let loads = LOADS.import(py, "pickle", "loads")?;
        let loaded = match loads.call1((PyBytes::new(py, class),)) {
            Ok(found) if found.is_instance_of::<PyType>() => found.unbind(),
            Err(error) if !is_ordinary(py, &error) => return Err(error),
            // A name, or a module that this process does not have.
            _ => match std::str::from_utf8(class) {
                Ok(name) => PyString::new(py, name).into_any().unbind(),
                Err(_) => return Ok(None),
            },
        };
        let mut types = lock(&self.types);
        let forgotten = (types.len() >= TYPES).then(|| std::mem::take(&mut *types));
        let replaced = types.insert(class.clone(), loaded.clone_ref(py));
        drop(types);
        // After the lock: to drop a class may run Python.
        drop((forgotten, replaced));
        Ok(Some(loaded))
    }
}

/// The reason and the message of whoever cancelled.
///
/// # Errors
/// What came in between.
fn cancelled(py: Python<'_>, why: &Bytes) -> PyResult<(Option<String>, Option<String>)> {
    match recipe::decode_value(py, why).and_then(|pair| pair.extract(py)) {
        Err(error) if !is_ordinary(py, &error) => Err(error),
        pair => Ok(pair.unwrap_or((None, None))),
    }
}

type Failure<'py> = (&'static str, Bound<'py, PyAny>, Bound<'py, PyAny>);

fn failure<'py>(py: Python<'py>, failed: &Failed) -> PyResult<Failure<'py>> {
    let key = recipe::decode_key(py, &failed.key)?;
    let (kind, payload) = match &failed.kind {
        FailedKind::Raised(error) => ("raised", PyBytes::new(py, error).into_any()),
        FailedKind::WorkersLost(workers) => {
            let workers = workers.iter().map(|worker| lost(py, worker));
            let workers = workers.collect::<PyResult<Vec<_>>>()?;
            ("workers-lost", PyList::new(py, workers)?.into_any())
        }
        FailedKind::DataLost(worker) => ("data-lost", lost(py, worker)?.into_any()),
        FailedKind::ActorLost(worker) => ("actor-lost", lost(py, worker)?.into_any()),
        FailedKind::Unavailable(input) => ("unavailable", recipe::decode_key(py, input)?),
    };
    Ok((kind, key, payload))
}

fn lost<'py>(py: Python<'py>, worker: &LostWorker) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", &worker.name)?;
    dict.set_item("address", &worker.address)?;
    dict.set_item("cause", cause(&worker.cause))?;
    dict.set_item("log", &worker.log)?;
    Ok(dict)
}

/// Why a worker was lost, in words.
fn cause(cause: &Cause) -> String {
    match cause {
        Cause::OutOfMemory => "out of memory: killed by the kernel".into(),
        Cause::MemoryLimit => "out of memory: above its memory limit".into(),
        Cause::Signal(signal) => match signal_name(*signal) {
            Some(name) => format!("killed by signal {signal} ({name})"),
            None => format!("killed by signal {signal}"),
        },
        Cause::Exited(code) => format!("exited with code {code}"),
        Cause::Unreachable => "unreachable".into(),
        Cause::Drained => "drained".into(),
        Cause::Misbehaved(reason) => format!("broke the protocol: {reason}"),
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGTERM, "SIGTERM"),
    ]
    .into_iter()
    .find_map(|(number, name)| (number == signal).then_some(name))
}
