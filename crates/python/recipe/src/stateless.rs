//! Whether a callable stays what it is, whatever calls of it do.
//!
//! distributed unpickles the function of a task for each run, so what it changes in its closure, its
//! default arguments, or the object whose method it is, the next task does not see. Unpickling takes
//! longer than most small tasks: what cannot change, a worker unpickles once.

use crate::class::Class;
use crate::guard::{Guard, cached, is_atom, is_constant, is_named};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyFunction, PyList, PyModule, PyTuple, PyType};

/// So deep are partial functions of partial functions looked at.
const DEEPEST: u32 = 8;

/// Whether all tasks of a worker may share a callable, whose pickle this is. It is looked at in
/// order to find objects that are pickled by name alone; without it, none are.
///
/// # Errors
/// What Python raises while attributes are read.
pub(crate) fn is_stateless(object: &Bound<'_, PyAny>, pickle: &[u8]) -> PyResult<bool> {
    Ok(is_name(pickle) || is_stateless_within(object, DEEPEST)?)
}

fn is_stateless_within(object: &Bound<'_, PyAny>, depth: u32) -> PyResult<bool> {
    let py = object.py();
    if depth == 0 {
        return Ok(false);
    }
    if is_atom(object) || object.is_instance_of::<PyType>() || is_named(object)? {
        return Ok(true);
    }
    if object.is_exact_instance_of::<PyFunction>() {
        return Ok(Guard::of(object)?.is_some_and(|guard| guard.has_no_writes()));
    }
    if let Some(function) = cached(object)? {
        return is_stateless_within(&function, depth - 1);
    }
    let all = |items: &Bound<'_, PyAny>| -> PyResult<bool> {
        for item in items.try_iter()? {
            if !is_stateless_within(&item?, depth - 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let attribute = |name: &str| object.getattr(name);
    if object.is_exact_instance_of::<PyTuple>() {
        return all(object);
    }
    if object.is_instance_of::<PyModule>() {
        return Ok(true);
    }
    if object.is_exact_instance_of::<PyCFunction>() {
        return is_stateless_within(&attribute("__self__")?, depth - 1);
    }
    let class = object.get_type();
    let module = class.getattr(intern!(py, "__module__"))?.to_string();
    let name = class.getattr(intern!(py, "__qualname__"))?.to_string();
    match (module.as_str(), name.as_str()) {
        ("builtins", "method") => {
            let parts = (attribute("__func__")?, attribute("__self__")?);
            Ok(is_stateless_within(&parts.0, depth - 1)?
                && is_stateless_within(&parts.1, depth - 1)?)
        }
        ("functools", "partial") => {
            let attributes = attribute("__dict__")?;
            let keywords = attribute("keywords")?.cast_into::<PyDict>()?;
            Ok(attributes.len()? == 0
                && is_stateless_within(&attribute("func")?, depth - 1)?
                && all(&attribute("args")?)?
                && all(keywords.values().as_any())?)
        }
        // Those of `toolz` and `cytoolz`.
        (_, "Compose") => {
            let functions = attribute("funcs")?;
            Ok(
                (functions.is_instance_of::<PyTuple>() || functions.is_instance_of::<PyList>())
                    && is_stateless_within(&attribute("first")?, depth - 1)?
                    && all(&functions)?,
            )
        }
        // That of Dask keeps the name of a method; it is there once for each name.
        ("dask.utils", "methodcaller") => Ok(true),
        _ => Ok(is_constant(object)? || Class::of(&class)? == Class::Named),
    }
}

/// Whether a pickle is nothing but a name in a module.
fn is_name(pickle: &[u8]) -> bool {
    /// `PROTO 5`, `FRAME` and its length.
    const HEAD: usize = 11;
    /// `STACK_GLOBAL`, `MEMOIZE`, `STOP`.
    const END: &[u8] = &[0x93, MEMOIZE, b'.'];
    let rest = pickle.get(HEAD..).and_then(after_text);
    rest.and_then(after_text) == Some(END)
}

const MEMOIZE: u8 = 0x94;

/// What follows a `SHORT_BINUNICODE` that is remembered.
fn after_text(pickle: &[u8]) -> Option<&[u8]> {
    let [0x8c, length, rest @ ..] = pickle else {
        return None;
    };
    match rest.get(usize::from(*length)..)? {
        [MEMOIZE, rest @ ..] => Some(rest),
        _ => None,
    }
}
