//! Keys as bytes: equal keys are equal bytes.
//!
//! Python finds keys by `==` and `hash`, to which `True`, `1`, `1.0` and `numpy.int64(1)` are one
//! key, so numbers are written by value, not by type. A key of another type is written as its
//! pickle without memo (with it, two equal keys differ when one of them holds the same string
//! twice). Sets inside keys may still be pickled in different orders.

use crate::pickle;
use crate::plain;
use crate::run;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyTuple};
use treadle_types::value::{MAX_DEPTH, Reader, put_float, put_head, put_int, tag};

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// The longest encoding of a key. A message has each key of its tasks up to twice.
const LONGEST: usize = 16 << 20;

/// Appends the encoding of a key.
///
/// # Errors
/// For one that is longer than 16 MiB, and what pickling a key of an unusual type raises.
#[inline]
pub fn encode_key(key: Object<'_, '_>, into: &mut Vec<u8>) -> PyResult<()> {
    let before = into.len();
    encode_at(key, into, 0)?;
    match into.len() - before {
        ..=LONGEST => Ok(()),
        bytes => Err(PyValueError::new_err(format!(
            "a key takes {bytes} bytes, and may take {LONGEST} at most: give the task a shorter name"
        ))),
    }
}

/// The key.
///
/// # Errors
/// For bytes that are not a key's encoding, and what unpickling raises.
pub fn decode_key<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    run::decode_value(py, bytes).map(|key| key.into_bound(py))
}

/// Reads a key in front of other things.
pub(crate) fn read_key(py: Python<'_>, reader: &mut Reader<'_>) -> PyResult<Py<PyAny>> {
    run::read_value(py, reader)
}

fn encode_at(key: Object<'_, '_>, into: &mut Vec<u8>, depth: usize) -> PyResult<()> {
    let class = key.get_type_ptr();
    if class == &raw mut ffi::PyTuple_Type {
        return encode_tuple(key, into, depth);
    }
    if class == &raw mut ffi::PyFloat_Type {
        // SAFETY: a float.
        encode_float(unsafe { ffi::PyFloat_AS_DOUBLE(key.as_ptr()) }, into);
        return Ok(());
    }
    if class == &raw mut ffi::PyBool_Type {
        put_int(key.is_truthy()?.into(), into);
        return Ok(());
    }
    if plain::put_atom(key, into) {
        return Ok(());
    }
    encode_unusual(key, into, depth)
}

fn encode_tuple(key: Object<'_, '_>, into: &mut Vec<u8>, depth: usize) -> PyResult<()> {
    if depth == MAX_DEPTH {
        return encode_pickle(key, into);
    }
    let items = key.cast::<PyTuple>()?;
    put_head(tag::TUPLE, items.len(), into);
    for item in items.iter_borrowed() {
        encode_at(item, into, depth + 1)?;
    }
    Ok(())
}

fn encode_float(value: f64, into: &mut Vec<u8>) {
    const LIMIT: f64 = (1u64 << 63) as f64;
    if value.trunc() == value && (-LIMIT..LIMIT).contains(&value) {
        put_int(value as i64, into);
    } else {
        put_float(value, into);
    }
}

/// Subclasses of the usual types that compare like them, other kinds of numbers, and whatever else
/// can be hashed.
#[cold]
fn encode_unusual(key: Object<'_, '_>, into: &mut Vec<u8>, depth: usize) -> PyResult<()> {
    // SAFETY: the class is asked before an object is read as one of it.
    unsafe {
        let hash_of = |class: *mut ffi::PyTypeObject| (*class).tp_hash.map(|hash| hash as usize);
        // A subclass with a hash of its own may have other equals, too.
        let own = hash_of(key.get_type_ptr());
        let is = |flag, class| {
            ffi::PyType_HasFeature(key.get_type_ptr(), flag) != 0 && own == hash_of(class)
        };
        if is(
            ffi::Py_TPFLAGS_UNICODE_SUBCLASS,
            &raw mut ffi::PyUnicode_Type,
        ) {
            if let Some(text) = plain::text(key) {
                put_head(tag::STR, text.len(), into);
                into.extend_from_slice(text);
                return Ok(());
            }
        } else if is(ffi::Py_TPFLAGS_BYTES_SUBCLASS, &raw mut ffi::PyBytes_Type) {
            let bytes = plain::bytes(key);
            put_head(tag::BYTES, bytes.len(), into);
            into.extend_from_slice(bytes);
            return Ok(());
        } else if is(ffi::Py_TPFLAGS_TUPLE_SUBCLASS, &raw mut ffi::PyTuple_Type) {
            return encode_tuple(key, into, depth);
        } else if is(ffi::Py_TPFLAGS_LONG_SUBCLASS, &raw mut ffi::PyLong_Type)
            && let Some(value) = plain::integer(key)
        {
            put_int(value, into);
            return Ok(());
        }
    }
    match as_float(&key) {
        Ok(Some(value)) => {
            encode_float(value, into);
            Ok(())
        }
        Ok(None) => encode_pickle(key, into),
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyException>(key.py()) => {
            encode_pickle(key, into)
        }
        Err(error) => Err(error),
    }
}

/// The float that a number of another kind is equal to: of NumPy, a `Decimal`, a `Fraction`, a
/// complex or a large integer.
fn as_float(key: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    let py = key.py();
    let class = key.get_type();
    // Before Python 3.11 complex numbers have no `__complex__`.
    let is_number = key.is_instance_of::<PyComplex>()
        || class.hasattr(intern!(py, "__float__"))?
        || class.hasattr(intern!(py, "__complex__"))?;
    if !is_number {
        return Ok(None);
    }
    let number =
        if key.hasattr(intern!(py, "imag"))? && !key.getattr(intern!(py, "imag"))?.is_truthy()? {
            key.getattr(intern!(py, "real"))?
        } else {
            key.clone()
        };
    let value: f64 = number.extract()?;
    let float = value.into_pyobject(py)?.into_any();
    Ok((float.eq(key)? && float.hash()? == key.hash()?).then_some(value))
}

fn encode_pickle(key: Object<'_, '_>, into: &mut Vec<u8>) -> PyResult<()> {
    let pickled = pickle::without_memo(&key)?;
    let bytes = pickled.as_bytes();
    put_head(tag::PICKLE, bytes.len(), into);
    into.extend_from_slice(bytes);
    Ok(())
}
