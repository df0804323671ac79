//! Objects that many recipes share: numbered and pickled once by the client, unpickled once by each
//! worker.

use crate::{pickle, run};
use bytes::Bytes;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first byte of a definition: what follows, and whether tasks may share the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A pickle of something that tasks do not write to: a function, a class, a dtype.
    Shared = 0,
    /// A pickle; each task that reads it gets an object of its own.
    Fresh = 1,
    /// A tuple of names of keyword arguments.
    Names = 2,
    /// A constant expression that tasks do not write to.
    SharedValue = 3,
    /// A constant expression.
    FreshValue = 4,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [
            Kind::Shared,
            Kind::Fresh,
            Kind::Names,
            Kind::SharedValue,
            Kind::FreshValue,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// A definition, at a worker.
pub struct Definition {
    bytes: Bytes,
    shared: PyOnceLock<Py<PyAny>>,
    /// It was unpickled once, so the modules that it needs are here.
    imported: AtomicBool,
}

impl Definition {
    /// From what [`Encoder::take_definitions`](crate::Encoder::take_definitions) gave.
    pub fn new(bytes: Bytes) -> Self {
        Definition {
            bytes,
            shared: PyOnceLock::new(),
            imported: AtomicBool::new(false),
        }
    }

    /// The object: the same one each time, unless tasks could write to it.
    ///
    /// # Errors
    /// What unpickling raises: a module that is not installed here, for example.
    #[inline]
    pub fn get(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.shared.get(py) {
            Some(object) => Ok(object.clone_ref(py)),
            None => self.load(py),
        }
    }

    #[cold]
    fn load(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let kind = self.bytes.split_first().and_then(|(&kind, rest)| {
            let kind = Kind::of(kind)?;
            Some((kind, rest))
        });
        let Some((kind, bytes)) = kind else {
            return Err(PyRuntimeError::new_err(
                "A definition cannot be read. Run the same version of Treadle everywhere.",
            ));
        };
        let object = match kind {
            Kind::Fresh if self.imported.load(Ordering::Relaxed) => {
                pickle::loads(py, bytes)?.unbind()
            }
            Kind::Shared | Kind::Fresh => {
                let object = pickle::loads_first(py, bytes)?.unbind();
                self.imported.store(true, Ordering::Relaxed);
                object
            }
            Kind::Names => names(py, bytes)?,
            Kind::SharedValue | Kind::FreshValue => {
                let none = |what: String| {
                    let error = format!("A definition refers to {what}.");
                    Err(PyRuntimeError::new_err(error))
                };
                let own = |number| none(format!("input {number}"));
                let definition = |number| none(format!("definition {number}"));
                run::execute(py, bytes, &[], &own, &definition)?
            }
        };
        if matches!(kind, Kind::Fresh | Kind::FreshValue) {
            return Ok(object);
        }
        // Two threads may have got here; tasks see one object.
        Ok(self.shared.get_or_init(py, || object).clone_ref(py))
    }
}

/// The tuple of names, interned: calls compare names of arguments by identity first.
fn names(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    let names = run::decode_value(py, bytes)?;
    let names = names.bind(py).cast::<PyTuple>()?;
    let interned = names.iter().map(|name| {
        let mut pointer = name.into_ptr();
        // SAFETY: an owned reference, which the call replaces by another; what is no string it
        // leaves alone.
        unsafe {
            if ffi::PyUnicode_CheckExact(pointer) != 0 {
                ffi::PyUnicode_InternInPlace(&mut pointer);
            }
            Bound::from_owned_ptr(py, pointer)
        }
    });
    let interned: Vec<_> = interned.collect();
    Ok(PyTuple::new(py, interned)?.into_any().unbind())
}
