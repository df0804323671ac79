//! Memory of Python objects that is being sent or received into.
//!
//! It is let go by native threads, which never take the interpreter's lock. So what they let go is
//! put on a list, and released by the next thread that is attached: one that comes from a call of
//! this module, or the main thread, which the interpreter is asked to have do it.

use bytes::Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use treadle_interpreter::fork;

/// A buffer of a Python object, contiguous in C's or Fortran's order.
pub struct ExportedBuffer {
    view: Box<ffi::Py_buffer>,
}

// SAFETY: the memory does not move while the buffer is exported, and the object itself is only
// touched by threads that are attached.
unsafe impl Send for ExportedBuffer {}
// SAFETY: as above.
unsafe impl Sync for ExportedBuffer {}

impl ExportedBuffer {
    /// The buffer of `object`.
    ///
    /// # Errors
    /// When the object has no buffer, its buffer is not contiguous, or it may not be written and
    /// `writable` asks for that.
    pub fn new(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        let mut flags = ffi::PyBUF_ANY_CONTIGUOUS | ffi::PyBUF_ND;
        if writable {
            flags |= ffi::PyBUF_WRITABLE;
        }
        // SAFETY: attached, with a valid place for the answer.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let held = ExportedBuffer { view };
        if held.view.len < 0 {
            return Err(PyBufferError::new_err("a buffer of negative length"));
        }
        Ok(held)
    }

    /// Its length, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.view.len as usize
    }

    /// Its first byte.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.view.buf.cast()
    }

    /// Whether it can be written through this object.
    pub fn is_readonly(&self) -> bool {
        self.view.readonly != 0
    }

    /// The lengths of the dimensions.
    pub(crate) fn shape(&self) -> &[ffi::Py_ssize_t] {
        if self.view.shape.is_null() {
            return &[];
        }
        // SAFETY: so many were asked for and filled in.
        unsafe { std::slice::from_raw_parts(self.view.shape, self.view.ndim as usize) }
    }

    /// Whether the last dimension is the one that varies fastest.
    pub(crate) fn is_c_contiguous(&self) -> bool {
        self.is_contiguous(b'C')
    }

    pub(crate) fn is_contiguous(&self, order: u8) -> bool {
        // SAFETY: a valid buffer.
        unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.view, order as _) != 0 }
    }

    /// The bytes, which keep the object alive; few of them are copied instead.
    pub fn into_bytes(self) -> Bytes {
        /// A copy costs less than to come back for the release.
        const SMALL: usize = 4096;
        if self.len() <= SMALL {
            let bytes = Bytes::copy_from_slice(self.as_ref());
            self.release();
            return bytes;
        }
        Bytes::from_owner(self)
    }

    /// Lets it go on a thread that is attached, as that of everybody who can name a `Bound`.
    pub fn release(mut self) {
        // SAFETY: as said; the view is forgotten afterwards.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
        // A released view has no object, and is not put on the list.
    }
}

impl AsRef<[u8]> for ExportedBuffer {
    fn as_ref(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps it there. That nobody writes to it meanwhile is what callers
        // of `send` are told; if they do, a checksum may not agree, and the transfer is repeated
        // or fails.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len()) }
    }
}

impl Drop for ExportedBuffer {
    fn drop(&mut self) {
        if self.view.obj.is_null() {
            return;
        }
        let view = std::mem::replace(&mut self.view, Box::new(ffi::Py_buffer::new()));
        let node = Box::into_raw(Box::new(Node {
            view,
            generation: fork::generation(),
            next: null_mut(),
        }));
        let mut head = LIST.load(Ordering::Relaxed);
        loop {
            // SAFETY: nobody else has the node yet.
            unsafe { (*node).next = head };
            match LIST.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if head.is_null() && !ENDING.load(Ordering::Acquire) {
            // SAFETY: may be called by any thread while the interpreter is there. Where it takes no
            // more calls, the next call of this module does it.
            unsafe { ffi::Py_AddPendingCall(Some(release_pending), null_mut()) };
        }
    }
}

struct Node {
    view: Box<ffi::Py_buffer>,
    generation: u64,
    next: *mut Node,
}

/// What was let go: without a lock, so that a forked child does not meet one that is held for ever.
static LIST: AtomicPtr<Node> = AtomicPtr::new(null_mut());
static ENDING: AtomicBool = AtomicBool::new(false);

/// The interpreter is about to end: what is let go now is left to the system.
pub fn stop_releasing() {
    ENDING.store(true, Ordering::Release);
}

extern "C" fn release_pending(_: *mut c_void) -> c_int {
    // SAFETY: the interpreter calls this on an attached thread.
    release_all(unsafe { Python::assume_attached() });
    0
}

/// Releases what native threads have let go.
pub fn release_all(_py: Python<'_>) {
    if LIST.load(Ordering::Relaxed).is_null() {
        return;
    }
    let mut next = LIST.swap(null_mut(), Ordering::Acquire);
    let here = fork::generation();
    while !next.is_null() {
        // SAFETY: the whole list is this thread's now; nodes were made by `Box::into_raw`.
        let mut node = unsafe { Box::from_raw(next) };
        next = node.next;
        if node.generation == here {
            // SAFETY: attached; the view is released once.
            unsafe { ffi::PyBuffer_Release(&raw mut *node.view) };
        } else {
            std::mem::forget(node);
        }
    }
}
