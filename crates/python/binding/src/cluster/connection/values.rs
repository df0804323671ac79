//! Values: small ones that came along, others from workers, and those that clients bring.

use super::deliver::{is_ordinary, was_called};
use super::{Client, ClientConnection, EncodedKeys};
use crate::cluster::class::class_bytes;
use crate::cluster::worker::{object_at, pass};
use bytes::Bytes;
use pyo3::exceptions::{PyConnectionError, PyKeyError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::sync::Mutex;
use treadle_interpreter::lock;
use treadle_messages::Data;
use treadle_net::{ClusterId, Frame};
use treadle_node_client::{Contained, Content, Destination, Fetched};
use treadle_node_worker::PASSED;
use treadle_recipe as recipe;
use treadle_serialise as serialise;
use treadle_types::INLINE;

/// Values that Python waits for.
pub(super) struct Fetch {
    keys: Py<PyList>,
    values: Py<PyDict>,
    errors: Py<PyDict>,
    /// By index: whether it has come.
    came: Vec<bool>,
    left: usize,
    done: Py<PyAny>,
}

impl Fetch {
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.keys)?;
        visit.call(&self.values)?;
        visit.call(&self.errors)?;
        visit.call(&self.done)
    }
}

/// A value to put, and where.
fn content(
    value: &Bound<'_, PyAny>,
    cluster: Option<ClusterId>,
    mut destination: Destination,
) -> PyResult<(Content, Destination)> {
    if let Some(small) = recipe::encode_data(value, INLINE)? {
        let content = Content {
            nbytes: small.len() as u64,
            class: Bytes::new(),
            value: Contained::Inline(small.into()),
        };
        return Ok((content, destination));
    }
    let (nbytes, value_of) = match serialise::encode(value) {
        Ok(encoded) => {
            let nbytes = encoded.bytes();
            (nbytes, Contained::Frames(encoded.kind, encoded.frames))
        }
        Err(error) if is_ordinary(value.py(), &error) && destination.copies == 1 => {
            // To a worker of this process it passes as it is.
            let nbytes = treadle_dask::size_of(value)?;
            let passed = pass(value, nbytes, cluster, &destination.workers)?;
            let (frame, address) = passed.ok_or(error)?;
            destination.workers = vec![address];
            (nbytes, Contained::Frames(PASSED, vec![frame]))
        }
        Err(error) => return Err(error),
    };
    let content = Content {
        nbytes,
        class: class_bytes(&value.get_type()),
        value: value_of,
    };
    Ok((content, destination))
}

fn decode(py: Python<'_>, kind: u32, mut frames: Vec<Frame>) -> PyResult<Bound<'_, PyAny>> {
    if kind != Data::SMALL {
        return serialise::decode_value(py, kind, frames);
    }
    let value = frames.pop();
    let value = value.as_ref().map_or(&[][..], |frame| frame.as_slice());
    Ok(recipe::decode_value(py, value)?.into_bound(py))
}

/// A value that has come. Whoever waits for it decodes it: that may run any code, which is to find itself in that
/// thread.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Undecoded(Mutex<Option<(u32, Vec<Frame>)>>);

#[pymethods]
impl ClientConnection {
    /// The object of a value that has come, once.
    fn decode<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, Undecoded>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some((kind, frames)) = lock(&value.get().0).take() else {
            return Err(PyKeyError::new_err(key.clone().unbind()));
        };
        let decoded = self.with_client_current(py, || decode(py, kind, frames));
        decoded.inspect_err(|error| name(py, error, key))
    }

    /// Brings values to workers; the states are notified when they are there.
    #[pyo3(signature = (keys, states, values, *, workers=Vec::new(), copies=1))]
    fn put(
        &self,
        py: Python<'_>,
        keys: Vec<Bound<'_, PyAny>>,
        states: Vec<Py<PyAny>>,
        values: Vec<Bound<'_, PyAny>>,
        workers: Vec<String>,
        copies: u32,
    ) -> PyResult<()> {
        let client = self.client()?;
        let destination = || Destination {
            workers: workers.clone(),
            copies,
        };
        let keys = keys.iter().map(super::encoded);
        let keys = keys.collect::<PyResult<Vec<_>>>()?;
        // All of them first: what cannot be pickled shall leave nothing behind.
        let contents = values
            .iter()
            .map(|value| content(value, client.cluster(), destination()))
            .collect::<PyResult<Vec<_>>>()?;
        for ((key, state), (content, destination)) in keys.iter().zip(states).zip(contents) {
            let before = py.detach(|| client.put(key, state, content, &destination));
            drop(before.map_err(self.failed())?);
        }
        Ok(())
    }

    /// Gets the values of keys, and calls `done(values, errors)` with two dictionaries. Values from workers are
    /// [`Undecoded`]. The ticket is
    /// a number that is used once: the fetch can be cancelled whenever a signal interrupts this.
    fn fetch(
        &self,
        py: Python<'_>,
        ticket: u64,
        keys: &Bound<'_, PyAny>,
        done: Py<PyAny>,
    ) -> PyResult<()> {
        let client = self.client()?;
        let keys = PyList::new(py, keys.try_iter()?.collect::<PyResult<Vec<_>>>()?)?;
        if keys.is_empty() {
            done.call1(py, (PyDict::new(py), PyDict::new(py)))?;
            return Ok(());
        }
        let encoded = EncodedKeys::new(keys.as_any())?;
        let fetch = Fetch {
            came: vec![false; keys.len()],
            left: keys.len(),
            keys: keys.clone().unbind(),
            values: PyDict::new(py).unbind(),
            errors: PyDict::new(py).unbind(),
            done,
        };
        // First: another thread may process what comes at once.
        self.callbacks().fetches.insert(ticket, fetch);
        let started = py.detach(|| client.fetch(ticket, encoded.iter()));
        started.map_err(|index| {
            drop(self.callbacks().fetches.remove(&ticket));
            let key = keys.get_item(index).map(Bound::unbind);
            PyKeyError::new_err(key.unwrap_or_else(|_| py.None()))
        })
    }

    /// Stops a fetch that nobody waits for: values that were not sent are not sent, and `done` is not
    /// called.
    fn cancel_fetch(&self, py: Python<'_>, ticket: u64) {
        let fetch = self.callbacks().fetches.remove(&ticket);
        if let (Some(_), Ok(client)) = (&fetch, self.client()) {
            py.detach(|| client.cancel_fetch(ticket));
        }
    }
}

impl ClientConnection {
    /// A value has come, or never will.
    pub(super) fn fetched(
        &self,
        py: Python<'_>,
        client: &Client,
        ticket: u64,
        index: usize,
        outcome: &mut Fetched,
    ) -> PyResult<()> {
        let of_ticket = {
            let callbacks = self.callbacks();
            callbacks.fetches.get(&ticket).map(|fetch| {
                let (values, errors) = (fetch.values.clone_ref(py), fetch.errors.clone_ref(py));
                (fetch.keys.clone_ref(py), fetch.came[index], values, errors)
            })
        };
        let Some((keys, came, values, errors)) = of_ticket else {
            return Ok(());
        };
        // An earlier delivery may have been interrupted after this.
        if !came {
            let key = keys.bind(py).get_item(index)?;
            match self.value_of(py, client, &key, outcome)? {
                Ok(value) => values.bind(py).set_item(&key, value)?,
                Err(error) => errors.bind(py).set_item(&key, error.into_value(py))?,
            }
        }
        let over = {
            let mut callbacks = self.callbacks();
            let Some(fetch) = callbacks.fetches.get_mut(&ticket) else {
                return Ok(());
            };
            if !std::mem::replace(&mut fetch.came[index], true) {
                fetch.left -= 1;
            }
            (fetch.left == 0).then(|| fetch.done.clone_ref(py))
        };
        let Some(done) = over else {
            return Ok(());
        };
        let outcome = done.call1(py, (values, errors)).map(drop);
        if was_called(py, &outcome) {
            drop(self.callbacks().fetches.remove(&ticket));
        }
        outcome
    }

    /// The value of a key, or why there is none.
    ///
    /// # Errors
    /// What came in between.
    fn value_of<'py>(
        &self,
        py: Python<'py>,
        client: &Client,
        key: &Bound<'py, PyAny>,
        outcome: &mut Fetched,
    ) -> PyResult<PyResult<Bound<'py, PyAny>>> {
        let value = match outcome {
            Fetched::Inline(value) => self.decode_small(py, value).map(|v| v.into_bound(py)),
            Fetched::Frames(received) => {
                let came = (received.kind, std::mem::take(&mut received.frames));
                let came = Undecoded(Mutex::new(Some(came)));
                Bound::new(py, came).map(Bound::into_any)
            }
            Fetched::Failed => return Ok(Err(self.why_failed(py, client, key)?)),
            Fetched::Unknown => {
                return Ok(Err(PyKeyError::new_err(key.clone().unbind())));
            }
            Fetched::Unserialisable {
                worker,
                object,
                error,
            } => {
                // What needs no pickle passes within a process.
                if let Some(value) = object_at(py, client.cluster(), *worker, *object) {
                    return Ok(Ok(value.into_bound(py)));
                }
                let errors = py.import("treadle.errors._pickled")?;
                let loaded = errors.call_method1("load", (PyBytes::new(py, error),))?;
                let error = PyErr::from_value(loaded.get_item(0)?);
                name(py, &error, key);
                return Ok(Err(error));
            }
            Fetched::Unreachable(reason) => Err(PyConnectionError::new_err(format!(
                "the value of {} could not be got from the workers that have it: {reason}",
                treadle_interpreter::repr(key.as_borrowed())
            ))),
        };
        match value {
            Err(error) if !is_ordinary(py, &error) => Err(error),
            Err(error) => {
                name(py, &error, key);
                Ok(Err(error))
            }
            value => Ok(value),
        }
    }

    /// Calls something with this client as the current one: what asks for a client while it is
    /// unpickled, as actors do, gets this one, whichever is the default one.
    ///
    /// No Python code runs between the call and what is around it: a signal handler that raises
    /// there would leave this client the current one for ever.
    fn with_client_current<T>(
        &self,
        py: Python<'_>,
        call: impl FnOnce() -> PyResult<T>,
    ) -> PyResult<T> {
        let Some(handlers) = self.handlers(py) else {
            return call();
        };
        let handlers = handlers.bind(py);
        let current = handlers.getattr(intern!(py, "current_client"))?;
        let client = handlers.getattr(intern!(py, "client"))?.call0()?;
        let before = current.call_method1(intern!(py, "set"), (client,))?;
        let called = call();
        current.call_method1(intern!(py, "reset"), (before,))?;
        called
    }

    /// The object of a value that came along with other things. Only what was pickled asks for a client.
    pub(super) fn decode_small(&self, py: Python<'_>, value: &[u8]) -> PyResult<Py<PyAny>> {
        let decode = || recipe::decode_value(py, value);
        match recipe::may_unpickle(value) {
            true => self.with_client_current(py, decode),
            false => decode(),
        }
    }

    /// Why a key has no value: what its state knows.
    fn why_failed(
        &self,
        py: Python<'_>,
        client: &Client,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<PyErr> {
        let state = client.owner(&super::encoded(key)?, |state| state.clone_ref(py));
        if let Some(state) = state {
            let exception = state.bind(py).getattr(intern!(py, "exception"))?;
            if !exception.is_none() {
                return Ok(PyErr::from_value(exception));
            }
        }
        Ok(PyKeyError::new_err(key.clone().unbind()))
    }
}

/// Says in a note which value an error is about.
fn name(py: Python<'_>, error: &PyErr, key: &Bound<'_, PyAny>) {
    let note = format!(
        "This is about the value of {}.",
        treadle_interpreter::repr(key.as_borrowed())
    );
    // Exceptions have notes from Python 3.11 on.
    let _ = error
        .value(py)
        .call_method1(intern!(py, "add_note"), (note,));
}
