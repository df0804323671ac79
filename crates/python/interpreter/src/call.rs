//! Calls of Python functions, from threads that may outlive the interpreter.
//!
//! When the interpreter ends, CPython before 3.14 ends each thread that wants its lock again, by
//! `pthread_exit`, which unwinds the stack of the thread. The first frame of Rust that catches panics
//! then aborts the process (`FATAL: exception not rethrown`). So the thread stops for ever in the frame
//! of the call. CPython does that itself from 3.14 on, and PyO3 where it takes the lock.

use std::hint::black_box;
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// CPython's `PY_VECTORCALL_ARGUMENTS_OFFSET`; `pyo3::ffi` has it from 3.12 on only.
const ARGUMENTS_OFFSET: usize = 1 << (usize::BITS - 1);

/// Calls `function` with `count` positional arguments, and with those that `names` gives a name after them.
///
/// # Errors
/// What it raises.
///
/// # Safety
/// `arguments` points to as many live objects as there are arguments. There is a writable entry before the
/// first one.
#[inline]
pub unsafe fn vectorcall<'py>(
    function: Borrowed<'_, 'py, PyAny>,
    arguments: *mut *mut ffi::PyObject,
    count: usize,
    names: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    unsafe extern "C-unwind" fn act(call: &mut Call) {
        // SAFETY: by the contract of `vectorcall`.
        call.result = unsafe {
            ffi::PyObject_Vectorcall(call.function, call.arguments, call.count, call.named)
        };
    }
    let call = Call {
        function: function.as_ptr(),
        arguments,
        count: count | ARGUMENTS_OFFSET,
        named: names.map_or(null_mut(), |names| names.as_ptr()),
        result: null_mut(),
    };
    // SAFETY: by contract.
    unsafe { call.carry_out(function.py(), act) }
}

/// The same with named arguments in a dictionary.
///
/// # Errors
/// What it raises.
///
/// # Safety
/// As for [`vectorcall`], for positional arguments.
#[inline]
pub unsafe fn vectorcall_dict<'py>(
    function: Borrowed<'_, 'py, PyAny>,
    arguments: *mut *mut ffi::PyObject,
    count: usize,
    named: Borrowed<'_, 'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    unsafe extern "C-unwind" fn act(call: &mut Call) {
        // SAFETY: by the contract of `vectorcall_dict`.
        call.result = unsafe {
            ffi::PyObject_VectorcallDict(call.function, call.arguments, call.count, call.named)
        };
    }
    let call = Call {
        function: function.as_ptr(),
        arguments,
        count: count | ARGUMENTS_OFFSET,
        named: named.as_ptr(),
        result: null_mut(),
    };
    // SAFETY: by contract.
    unsafe { call.carry_out(function.py(), act) }
}

/// Calls `function` with these arguments.
///
/// # Errors
/// What it raises.
pub fn call<'py>(
    function: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    unsafe extern "C-unwind" fn act(call: &mut Call) {
        // SAFETY: `named` is a tuple, for positional arguments.
        call.result = unsafe { ffi::PyObject_Call(call.function, call.named, null_mut()) };
    }
    let call = Call {
        function: function.as_ptr(),
        arguments: null_mut(),
        count: 0,
        named: arguments.as_ptr(),
        result: null_mut(),
    };
    // SAFETY: live objects.
    unsafe { call.carry_out(function.py(), act) }
}

/// A call, as functions of C want it.
struct Call {
    function: *mut ffi::PyObject,
    arguments: *mut *mut ffi::PyObject,
    count: usize,
    named: *mut ffi::PyObject,
    result: *mut ffi::PyObject,
}

impl Call {
    /// # Safety
    /// The pointers are what `act` wants, and it makes `result` a new reference, or null with an exception.
    #[inline]
    unsafe fn carry_out<'py>(
        mut self,
        py: Python<'py>,
        act: unsafe extern "C-unwind" fn(&mut Self),
    ) -> PyResult<Bound<'py, PyAny>> {
        // PyO3 declares the functions of C as ones that do not unwind. If the compiler knew which one is called
        // here, it would leave out what is to be done then.
        let act = black_box(act);
        let guard = StopForEver;
        // SAFETY: by contract.
        unsafe { act(&mut self) };
        std::mem::forget(guard);
        // SAFETY: by contract.
        unsafe { Bound::from_owned_ptr_or_err(py, self.result) }
    }
}

/// Stops the calling thread for ever where it is dropped: only while its stack is unwound by force, since
/// calls of Python do not panic.
struct StopForEver;

impl Drop for StopForEver {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}
