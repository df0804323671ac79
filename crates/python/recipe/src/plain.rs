//! Objects of exactly the built-in types, as `treadle_types::value` writes them.

use pyo3::ffi;
use pyo3::prelude::*;
use treadle_types::value::{put_float, put_head, put_int, tag};

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// Writes an object that has no parts; whether it is one that can be written. Large integers and
/// text with lone surrogates cannot.
#[inline]
pub(crate) fn put_atom(object: Object<'_, '_>, into: &mut Vec<u8>) -> bool {
    let (pointer, class) = (object.as_ptr(), object.get_type_ptr());
    // SAFETY: the class is compared before an object is read as one of it.
    unsafe {
        if class == &raw mut ffi::PyLong_Type {
            return match integer(object) {
                Some(value) => {
                    put_int(value, into);
                    true
                }
                None => false,
            };
        }
        if class == &raw mut ffi::PyUnicode_Type {
            return match text(object) {
                Some(text) => {
                    put_head(tag::STR, text.len(), into);
                    into.extend_from_slice(text);
                    true
                }
                None => false,
            };
        }
        if pointer == ffi::Py_None() {
            into.push(tag::NONE);
        } else if pointer == ffi::Py_True() {
            into.push(tag::TRUE);
        } else if pointer == ffi::Py_False() {
            into.push(tag::FALSE);
        } else if class == &raw mut ffi::PyFloat_Type {
            put_float(ffi::PyFloat_AS_DOUBLE(pointer), into);
        } else if class == &raw mut ffi::PyBytes_Type {
            let bytes = bytes(object);
            put_head(tag::BYTES, bytes.len(), into);
            into.extend_from_slice(bytes);
        } else {
            return false;
        }
    }
    true
}

/// The value of an integer that fits 64 bits.
///
/// # Safety
/// `object` is an `int`, or of a subclass.
#[inline]
pub(crate) unsafe fn integer(object: Object<'_, '_>) -> Option<i64> {
    let mut overflow = 0;
    // SAFETY: by contract an integer, for which the call does not fail.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(object.as_ptr(), &mut overflow) };
    (overflow == 0).then_some(value)
}

/// The text of a string as UTF-8, if it can be written so.
///
/// # Safety
/// `object` is a `str`, or of a subclass.
#[inline]
pub(crate) unsafe fn text<'a>(object: Object<'a, '_>) -> Option<&'a [u8]> {
    let mut length = 0;
    // SAFETY: by contract a string, which keeps its UTF-8 as long as it lives.
    unsafe {
        let start = ffi::PyUnicode_AsUTF8AndSize(object.as_ptr(), &mut length);
        if start.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(std::slice::from_raw_parts(start.cast(), length as usize))
    }
}

/// # Safety
/// `object` is a `bytes`, or of a subclass.
#[inline]
pub(crate) unsafe fn bytes<'a>(object: Object<'a, '_>) -> &'a [u8] {
    // SAFETY: by contract; bytes do not change.
    unsafe {
        let length = ffi::Py_SIZE(object.as_ptr()) as usize;
        std::slice::from_raw_parts(ffi::PyBytes_AsString(object.as_ptr()).cast(), length)
    }
}

/// How often an object is referred to. One that only its container refers to cannot be met again.
#[inline]
pub(crate) fn references(object: Object<'_, '_>) -> isize {
    // SAFETY: a live object.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) as isize }
}
