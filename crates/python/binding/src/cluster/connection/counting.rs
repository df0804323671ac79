//! Counting futures, in steps that nothing comes between.
//!
//! Signal handlers run between any two instructions of Python on the main thread, and what they raise
//! ends what runs there. A count that is raised, and not lowered any more, is a key that is never
//! released. So each step is one call of native code, which only calls what is native too.

use super::{Client, ClientConnection};
use pyo3::exceptions::{PyAttributeError, PyKeyboardInterrupt};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyType};
use treadle_dask::{Slot, slot};

/// Where futures and states keep what `count` reads and sets. It is called for each future.
struct Layout {
    class: Py<PyType>,
    state_class: Py<PyType>,
    state: Slot,
    cleared: Slot,
    refs: Slot,
}

impl Layout {
    fn find(future: &Bound<'_, PyAny>, state: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (class, state_class) = (future.get_type(), state.get_type());
        Ok(Self {
            state: slot(&class, "_state")?,
            cleared: slot(&class, "_cleared")?,
            refs: slot(&state_class, "refs")?,
            class: class.unbind(),
            state_class: state_class.unbind(),
        })
    }
}

/// From now on the future is one of those of its state. Called under the client's lock.
#[pyfunction]
pub(crate) fn count(future: &Bound<'_, PyAny>) -> PyResult<()> {
    static LAYOUT: PyOnceLock<Layout> = PyOnceLock::new();
    let py = future.py();
    if let Some(layout) = LAYOUT.get(py)
        && future.get_type_ptr() == layout.class.as_ptr().cast()
    {
        // SAFETY: instances of exactly the classes that the slots were found in. The client's lock
        // keeps others from them.
        unsafe {
            let state = layout.state.get(future.as_borrowed())?;
            if state.get_type_ptr() == layout.state_class.as_ptr().cast() {
                let refs = layout.refs.get(state)?.extract::<i64>()? + 1;
                let refs = refs.into_pyobject(py)?.into_any();
                layout.refs.replace(state, refs);
                let cleared = PyBool::new(py, false).to_owned().into_any();
                layout.cleared.replace(future.as_borrowed(), cleared);
                return Ok(());
            }
        }
    }
    let state = future.getattr(intern!(py, "_state"))?;
    add(&state, 1)?;
    future.setattr(intern!(py, "_cleared"), false)?;
    LAYOUT.get_or_try_init(py, || Layout::find(future, &state))?;
    Ok(())
}

fn add(state: &Bound<'_, PyAny>, change: i64) -> PyResult<i64> {
    let name = intern!(state.py(), "refs");
    let refs = state.getattr(name)?.extract::<i64>()? + change;
    state.setattr(name, refs)?;
    Ok(refs)
}

/// The end of a future that counts: its client hears of it. In any thread, between any two
/// instructions, so without a lock.
#[pyfunction]
fn give_up(future: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = future.py();
    let given = || -> PyResult<Option<Bound<'_, PyAny>>> {
        if future.getattr(intern!(py, "_cleared"))?.is_truthy()? {
            return Ok(None);
        }
        let client = future.getattr(intern!(py, "_client"))?;
        let state = future.getattr(intern!(py, "_state"))?;
        let released = client.getattr(intern!(py, "_released"))?;
        future.setattr(intern!(py, "_cleared"), true)?;
        released.call_method1(intern!(py, "append"), (state,))?;
        let called = client.getattr(intern!(py, "_collecting"))?.is_truthy()?;
        Ok((!called).then_some(client))
    };
    let client = match given() {
        Ok(Some(client)) => client,
        Ok(None) => return Ok(()),
        // Its constructor raised.
        Err(error) if error.is_instance_of::<PyAttributeError>(py) => return Ok(()),
        Err(error) => return Err(error),
    };
    match client.call_method0(intern!(py, "_collect_soon")) {
        // What a finaliser raises is lost. Ctrl-C shall not be: it comes again, after this.
        Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => {
            // SAFETY: always safe to call.
            unsafe { ffi::PyErr_SetInterrupt() };
            Ok(())
        }
        outcome => outcome.map(drop),
    }
}

/// `give_up` as a method, for a class to have as its finaliser.
pub(crate) fn finaliser(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let function = wrap_pyfunction!(give_up, py)?;
    // SAFETY: of a callable; a new reference or an error.
    unsafe { Bound::from_owned_ptr_or_err(py, PyInstanceMethod_New(function.as_ptr())) }
}

// A part of CPython's interface that `pyo3::ffi` leaves out.
unsafe extern "C" {
    fn PyInstanceMethod_New(function: *mut ffi::PyObject) -> *mut ffi::PyObject;
}

#[pymethods]
impl ClientConnection {
    /// Takes the states of `released`: futures that are no more, under the client's lock. Those that
    /// have none left leave `futures`, the client's states by key, and are released as by `release`.
    /// Each is put into `ended` with `why`, unless nobody can be waiting for it.
    ///
    /// No signal handler's exception comes in between.
    fn collect(
        &self,
        released: &Bound<'_, PyAny>,
        futures: &Bound<'_, PyDict>,
        ended: &Bound<'_, PyAny>,
        why: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = released.py();
        let client = self.client()?;
        while released.is_truthy()? {
            let state = released.call_method0(intern!(py, "popleft"))?;
            if add(&state, -1)? > 0 {
                continue;
            }
            let key = state.getattr(intern!(py, "key"))?;
            let kept = futures.get_item(&key)?;
            if kept.as_ref().is_some_and(|kept| kept.is(&state)) {
                futures.del_item(&key)?;
            }
            release_state(client, &key, &state, kept)?;
            end(state, ended, why)?;
        }
        Ok(())
    }

    /// The same for the states of keys, however many futures they have.
    fn forget(
        &self,
        keys: &Bound<'_, PyAny>,
        futures: &Bound<'_, PyDict>,
        ended: &Bound<'_, PyAny>,
        why: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let client = self.client()?;
        for key in keys.try_iter()? {
            let key = key?;
            if let Some(state) = futures.get_item(&key)? {
                futures.del_item(&key)?;
                release_state(client, &key, &state, None)?;
                end(state, ended, why)?;
            }
        }
        Ok(())
    }

    /// Lets go of a state that was submitted after the client had let go of it: another one of its key
    /// among `futures` is notified instead.
    fn disown(&self, state: &Bound<'_, PyAny>, futures: &Bound<'_, PyDict>) -> PyResult<()> {
        let key = state.getattr(intern!(state.py(), "key"))?;
        let kept = futures.get_item(&key)?;
        release_state(self.client()?, &key, state, kept)
    }
}

/// Nobody is notified of the state any more; of `kept`, another one of the same key, still: the state may
/// have been submitted after the client had let go of it, and taken the place of that.
fn release_state(
    client: &Client,
    key: &Bound<'_, PyAny>,
    state: &Bound<'_, PyAny>,
    kept: Option<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let key = super::encoded(key)?;
    let before = match kept.filter(|kept| !kept.is(state)) {
        None => client.release_if(&key, |owner| owner.is(state)),
        Some(kept) if client.owner(&key, |owner| owner.is(state)) == Some(true) => {
            // An error is the end of the connection, of which all hear.
            client.watch(&key, kept.unbind()).ok().flatten()
        }
        Some(_) => None,
    };
    drop(before);
    Ok(())
}

/// A state has ended: who waits for it is notified by Python, which takes it from `ended`. Another thread
/// that is telling it something else sees that it is over.
fn end(state: Bound<'_, PyAny>, ended: &Bound<'_, PyAny>, why: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = state.py();
    state.setattr(intern!(py, "over"), why)?;
    let finished = state.getattr(intern!(py, "status"))?;
    if finished.eq(intern!(py, "finished"))?
        && !state.getattr(intern!(py, "_wakers"))?.is_truthy()?
    {
        state.setattr(intern!(py, "_failure"), why)?;
        return state.setattr(intern!(py, "status"), intern!(py, "cancelled"));
    }
    ended.call_method1(intern!(py, "append"), ((state, why),))?;
    Ok(())
}
