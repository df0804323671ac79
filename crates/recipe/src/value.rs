//! Small values as bytes: results that travel inside messages.

use crate::plain::{put_atom, references};
use crate::{pickle, scalar};
use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet, PyList, PySet, PyString, PyTuple, PyType};
use treadle_types::value::{MAX_DEPTH, put_head, tag};

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// The encoding of a value, if it takes at most `limit` bytes.
///
/// Objects of exactly the built-in types are written natively; of others, those whose parts look
/// small enough are pickled, and never for much longer than the limit. What comes back from
/// [`decode_value`](crate::decode_value) is what a pickle would bring back: an object that occurs
/// twice inside is still one.
///
/// # Errors
/// Only for what ends programs, such as `KeyboardInterrupt`. A value that cannot be pickled is not
/// small, either.
pub fn encode_value(value: &Bound<'_, PyAny>, limit: usize) -> PyResult<Option<Vec<u8>>> {
    let mut writer = Writer {
        bytes: Vec::new(),
        limit,
        seen: Vec::new(),
    };
    match writer.write(value.as_borrowed(), 0, 0) {
        Ok(()) => return Ok((writer.bytes.len() <= limit).then_some(writer.bytes)),
        Err(NotNative::TooLong) => return Ok(None),
        Err(NotNative::NotPlain) => {}
    }
    let mut bytes = writer.bytes;
    bytes.clear();
    if let Some(pickle) = scalar::pickle(value) {
        put_head(tag::PICKLE, pickle.len(), &mut bytes);
        bytes.extend_from_slice(&pickle);
        return Ok((bytes.len() <= limit).then_some(bytes));
    }
    let mut budget = Budget {
        // A pickle may be shorter than the object, but seldom by that much.
        bytes: limit.saturating_mul(4) as isize,
        seen: Vec::new(),
    };
    match budget.spend(value) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(error) if error.is_instance_of::<PyException>(value.py()) => return Ok(None),
        Err(error) => return Err(error),
    }
    let Some(pickle) = pickle::limited(value, limit)? else {
        return Ok(None);
    };
    put_head(tag::PICKLE, pickle.len(), &mut bytes);
    bytes.extend_from_slice(&pickle);
    Ok((bytes.len() <= limit).then_some(bytes))
}

/// NotNative a value was not written natively.
enum NotNative {
    TooLong,
    NotPlain,
}

struct Writer {
    bytes: Vec<u8>,
    limit: usize,
    /// Lists and dictionaries that could be met again.
    seen: Vec<*mut ffi::PyObject>,
}

impl Writer {
    /// `held` references to the value are this function's callers' own.
    fn write(&mut self, value: Object<'_, '_>, held: isize, depth: usize) -> Result<(), NotNative> {
        if self.bytes.len() > self.limit || is_longer(value, self.limit) {
            return Err(NotNative::TooLong);
        }
        if put_atom(value, &mut self.bytes) {
            return Ok(());
        }
        if depth == MAX_DEPTH {
            return Err(NotNative::NotPlain);
        }
        if let Ok(items) = value.cast_exact::<PyTuple>() {
            put_head(tag::TUPLE, items.len(), &mut self.bytes);
            for item in items.iter_borrowed() {
                self.write(item, 0, depth + 1)?;
            }
        } else if let Ok(items) = value.cast_exact::<PyList>() {
            self.meet(value, held)?;
            put_head(tag::LIST, items.len(), &mut self.bytes);
            for item in items.iter() {
                self.write(item.as_borrowed(), 1, depth + 1)?;
            }
        } else if let Ok(entries) = value.cast_exact::<PyDict>() {
            self.meet(value, held)?;
            put_head(tag::DICT, entries.len(), &mut self.bytes);
            for (key, item) in entries.iter() {
                self.write(key.as_borrowed(), 1, depth + 1)?;
                self.write(item.as_borrowed(), 1, depth + 1)?;
            }
        } else {
            return Err(NotNative::NotPlain);
        }
        Ok(())
    }

    fn meet(&mut self, object: Object<'_, '_>, held: isize) -> Result<(), NotNative> {
        if references(object) - held > 1 {
            if self.seen.contains(&object.as_ptr()) {
                return Err(NotNative::NotPlain);
            }
            self.seen.push(object.as_ptr());
        }
        Ok(())
    }
}

/// Whether it is text or bytes that are longer than that; they need not be copied to see it.
#[inline]
pub(crate) fn is_longer(value: Object<'_, '_>, limit: usize) -> bool {
    let class = value.get_type_ptr();
    // SAFETY: the class is compared before an object is read as one of it.
    let length = unsafe {
        if class == &raw mut ffi::PyUnicode_Type {
            ffi::PyUnicode_GET_LENGTH(value.as_ptr())
        } else if class == &raw mut ffi::PyBytes_Type {
            ffi::Py_SIZE(value.as_ptr())
        } else {
            0
        }
    };
    length as usize > limit
}

/// A look at an object that ends as soon as it looks large.
struct Budget {
    bytes: isize,
    /// Objects that were looked at, by address.
    seen: Vec<usize>,
}

impl Budget {
    /// Whether the object fits.
    fn spend(&mut self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        /// Objects of more parts are not small.
        const MOST: usize = 256;
        let py = object.py();
        let address = object.as_ptr() as usize;
        if self.seen.contains(&address) {
            return Ok(true);
        }
        if self.seen.len() == MOST {
            return Ok(false);
        }
        self.seen.push(address);
        if object.is_instance_of::<PyType>() {
            // Pickled by its name, if at all.
            return Ok(true);
        }
        // Arrays of any kind, tables of Arrow, xarray's objects.
        if let Ok(Some(nbytes)) = object.getattr_opt(intern!(py, "nbytes")) {
            let Ok(nbytes) = nbytes.extract::<isize>() else {
                return Ok(false);
            };
            self.bytes = self.bytes.saturating_sub(nbytes);
            return Ok(self.bytes >= 0);
        }
        if is_table(object)? {
            return Ok(false);
        }
        let own = object.call_method0(intern!(py, "__sizeof__"));
        let own = own.and_then(|size| size.extract::<isize>());
        self.bytes = self.bytes.saturating_sub(own.unwrap_or(isize::MAX));
        if self.bytes < 0 {
            return Ok(false);
        }
        if let Ok(entries) = object.cast::<PyDict>() {
            // Sizes are asked of Python, which may change the dictionary meanwhile.
            let (keys, values) = (entries.keys(), entries.values());
            for item in keys.iter().chain(values.iter()) {
                if !self.spend(&item)? {
                    return Ok(false);
                }
            }
        } else if is_collection(object) {
            for item in object.try_iter()? {
                if !self.spend(&item?)? {
                    return Ok(false);
                }
            }
        }
        match object.getattr_opt(intern!(py, "__dict__")) {
            Ok(Some(attributes)) if attributes.is_exact_instance_of::<PyDict>() => {
                self.spend(&attributes)
            }
            _ => Ok(true),
        }
    }
}

/// Lists, tuples, sets and frozen sets, and their subclasses.
fn is_collection(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>()
        || object.is_instance_of::<PyTuple>()
        || object.is_instance_of::<PySet>()
        || object.is_instance_of::<PyFrozenSet>()
}

/// Whether it is of pandas with rows: it takes longer to pickle than to fetch.
fn is_table(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    let module = object.get_type().getattr(intern!(py, "__module__"))?;
    let Ok(module) = module.cast::<PyString>() else {
        return Ok(false);
    };
    let is_pandas = module.to_string_lossy().starts_with("pandas");
    Ok(is_pandas && object.hasattr(intern!(py, "_mgr"))?)
}
