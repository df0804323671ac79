//! Small values as bytes: results that travel inside messages.

use crate::data::is_small_data;
use crate::plain::{put_atom, references};
use crate::{pickle, scalar};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use treadle_types::value::{MAX_DEPTH, put_head, tag};

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// The encoding of an object, if it takes at most `limit` bytes.
///
/// Objects of exactly the built-in types are written natively; others are pickled, and never for much
/// longer than the limit. What comes back from [`decode_value`](crate::decode_value) is what a pickle
/// would bring back: an object that occurs twice inside is still one.
///
/// # Errors
/// Only for what ends programs, such as `KeyboardInterrupt`. A value that cannot be pickled has no
/// encoding.
pub fn encode_value(value: &Bound<'_, PyAny>, limit: usize) -> PyResult<Option<Vec<u8>>> {
    encode(value, limit, |_| Ok(true))
}

/// The encoding of a value that is [nothing but data](is_small_data), if it takes at most `limit`
/// bytes: it says all that there is to say of the value. Of any other value there may be more to keep
/// than a pickle: futures, locks, files, what a finaliser does.
///
/// # Errors
/// As [`encode_value`].
pub fn encode_data(value: &Bound<'_, PyAny>, limit: usize) -> PyResult<Option<Vec<u8>>> {
    encode(value, limit, |value| is_small_data(value, limit))
}

fn encode(
    value: &Bound<'_, PyAny>,
    limit: usize,
    is_pickled: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<bool>,
) -> PyResult<Option<Vec<u8>>> {
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
    let pickle = match scalar::pickle(value) {
        Some(pickle) => Some(pickle),
        None if is_pickled(value)? => pickle::limited(value, limit)?,
        None => None,
    };
    Ok(pickle.and_then(|pickle| {
        let mut bytes = writer.bytes;
        bytes.clear();
        put_head(tag::PICKLE, pickle.len(), &mut bytes);
        bytes.extend_from_slice(&pickle);
        (bytes.len() <= limit).then_some(bytes)
    }))
}

/// Why a value was not written natively.
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
