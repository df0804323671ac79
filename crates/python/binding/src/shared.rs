//! Arrays of NumPy in shared memory: a memory handler in the sense of NEP 49.
//!
//! <https://numpy.org/neps/nep-0049-data-allocation-strategies.html>

use pyo3::exceptions::{PyImportError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

/// The name that NumPy wants to see on the capsule.
const CAPSULE: &CStr = c"mem_handler";

/// Shared memory, where there is any.
#[cfg(target_os = "linux")]
mod memory {
    use std::ptr::NonNull;
    use treadle_memory::{Segments, Stats};

    pub(super) fn allocate(len: usize, zeroed: bool) -> Option<NonNull<u8>> {
        let segments = Segments::global();
        let start = if zeroed {
            segments.allocate_zeroed(len)
        } else {
            segments.allocate(len)
        };
        start.ok()
    }

    /// The length of a segment that starts at `start`.
    ///
    /// What comes from the C allocator rarely starts on a page, so that most addresses need no
    /// look at the table.
    pub(super) fn len_at(start: NonNull<u8>) -> Option<usize> {
        const SMALLEST_PAGE: usize = 4096;
        if start.addr().get().is_multiple_of(SMALLEST_PAGE) {
            Segments::global().len_at(start)
        } else {
            None
        }
    }

    pub(super) fn resize(start: NonNull<u8>, len: usize) -> bool {
        Segments::global().resize(start, len)
    }

    /// # Safety
    /// A segment starts at `start`, and nobody uses it any more.
    pub(super) unsafe fn free(start: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { Segments::global().free(start) };
    }

    pub(super) fn contains(start: usize, len: usize) -> bool {
        Segments::global().contains(std::ptr::without_provenance(start), len)
    }

    pub(super) fn trim() {
        Segments::global().trim();
    }

    pub(super) fn stats() -> [(&'static str, usize); 4] {
        let Stats {
            segments,
            live_bytes,
            idle_bytes,
            parked_bytes,
        } = Segments::global().stats();
        [
            ("segments", segments),
            ("live_bytes", live_bytes),
            ("idle_bytes", idle_bytes),
            ("parked_bytes", parked_bytes),
        ]
    }
}

/// No shared memory here: every array is private.
#[cfg(not(target_os = "linux"))]
mod memory {
    use std::ptr::NonNull;

    pub(super) fn allocate(_len: usize, _zeroed: bool) -> Option<NonNull<u8>> {
        None
    }

    pub(super) fn len_at(_start: NonNull<u8>) -> Option<usize> {
        None
    }

    pub(super) fn resize(_start: NonNull<u8>, _len: usize) -> bool {
        false
    }

    /// # Safety
    /// None: there is nothing to free.
    pub(super) unsafe fn free(_start: NonNull<u8>) {}

    pub(super) fn contains(_start: usize, _len: usize) -> bool {
        false
    }

    pub(super) fn trim() {}

    pub(super) fn stats() -> [(&'static str, usize); 4] {
        ["segments", "live_bytes", "idle_bytes", "parked_bytes"].map(|name| (name, 0))
    }
}

/// `PyDataMem_Handler`, version 1, with the context that its functions get. NumPy may call them
/// without Python's lock, and in a forked child.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    allocator: Allocator,
    /// What the allocator's context points to: arrays of so many bytes are shared.
    threshold: usize,
}

/// `PyDataMemAllocator`.
#[repr(C)]
struct Allocator {
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

impl Handler {
    /// Made for a capsule to own, see [`drop_handler`].
    fn leak(threshold: usize) -> *mut Self {
        let mut name = [0; 127];
        for (to, &from) in name.iter_mut().zip(b"treadle_shared") {
            *to = from as c_char;
        }
        let handler = Box::into_raw(Box::new(Handler {
            name,
            version: 1,
            allocator: Allocator {
                context: null_mut(),
                malloc,
                calloc,
                realloc,
                free,
            },
            threshold,
        }));
        // SAFETY: made above.
        unsafe { (*handler).allocator.context = (&raw mut (*handler).threshold).cast() };
        handler
    }
}

/// Shared memory for `len` bytes, if they are enough for it. Where none can be had, the array is
/// private like any other: slower to send, and no reason to fail.
///
/// # Safety
/// `context` is a handler's.
unsafe fn shared(context: *mut c_void, len: usize, zeroed: bool) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise; see `Handler::leak`.
    let threshold = unsafe { *context.cast::<usize>() };
    if len < threshold {
        return None;
    }
    memory::allocate(len, zeroed)
}

unsafe extern "C" fn malloc(context: *mut c_void, len: usize) -> *mut c_void {
    // SAFETY: called by NumPy with the handler's context.
    match unsafe { shared(context, len, false) } {
        Some(start) => start.as_ptr().cast(),
        // SAFETY: any length is allowed.
        None => unsafe { libc::malloc(len.max(1)) },
    }
}

unsafe extern "C" fn calloc(context: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(len) = count.checked_mul(size) else {
        return null_mut();
    };
    // SAFETY: called by NumPy with the handler's context.
    match unsafe { shared(context, len, true) } {
        Some(start) => start.as_ptr().cast(),
        // SAFETY: any length is allowed.
        None => unsafe { libc::calloc(len.max(1), 1) },
    }
}

/// Memory of the C allocator stays there, whatever it grows to: only that allocator knows how long
/// it was.
unsafe extern "C" fn realloc(context: *mut c_void, start: *mut c_void, len: usize) -> *mut c_void {
    let Some(old) = NonNull::new(start.cast::<u8>()) else {
        // SAFETY: as this function.
        return unsafe { malloc(context, len) };
    };
    let Some(old_len) = memory::len_at(old) else {
        // SAFETY: not a segment, so it is the C allocator's.
        return unsafe { libc::realloc(start, len.max(1)) };
    };
    if memory::resize(old, len) {
        return start;
    }
    // SAFETY: as this function.
    let new = unsafe { malloc(context, len) };
    if !new.is_null() {
        // SAFETY: both have so many bytes, and the new memory is nobody else's. The old one is not
        // used after `realloc`.
        unsafe {
            new.cast::<u8>()
                .copy_from_nonoverlapping(old.as_ptr(), old_len.min(len));
            memory::free(old);
        }
    }
    new
}

/// The length is not looked at: it is what the array has now, not what was asked for once.
unsafe extern "C" fn free(_context: *mut c_void, start: *mut c_void, _len: usize) {
    match NonNull::new(start.cast::<u8>()) {
        // SAFETY: a segment starts there, and its array is gone.
        Some(segment) if memory::len_at(segment).is_some() => unsafe { memory::free(segment) },
        // SAFETY: not a segment, so it is the C allocator's.
        _ => unsafe { libc::free(start) },
    }
}

/// Arrays keep their handler, so nobody needs it any more.
unsafe extern "C" fn drop_handler(capsule: *mut ffi::PyObject) {
    // SAFETY: only capsules that `shared_memory_handler` made have this destructor.
    unsafe {
        let handler = ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr());
        drop(Box::from_raw(handler.cast::<Handler>()));
    }
}

type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;

/// `PyDataMem_SetHandler` from NumPy's table of functions.
fn set_handler(py: Python<'_>) -> PyResult<SetHandler> {
    // Places in the table are for ever (numpy/__multiarray_api.h).
    const FEATURE_VERSION: usize = 211;
    const SET_HANDLER: usize = 304;
    /// `NPY_1_22_API_VERSION`.
    const FIRST_WITH_HANDLERS: c_uint = 0xf;

    static SET: PyOnceLock<SetHandler> = PyOnceLock::new();
    SET.get_or_try_init(py, || {
        let module = py
            .import("numpy._core._multiarray_umath")
            .or_else(|_| py.import("numpy.core._multiarray_umath"))
            .map_err(|cause| {
                let error = PyImportError::new_err(
                    "Shared arrays need NumPy, which cannot be imported: `pip install numpy`.",
                );
                error.set_cause(py, Some(cause));
                error
            })?;
        let capsule = module.getattr("_ARRAY_API")?;
        // SAFETY: the capsule of NumPy's table has no name, and lives as long as the process.
        let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
        if table.is_null() {
            return Err(PyErr::fetch(py));
        }
        let table = table.cast::<*const c_void>();
        // SAFETY: every NumPy since 1.4 has a function of this type here.
        let version = unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> c_uint>(
                *table.add(FEATURE_VERSION),
            )()
        };
        if version < FIRST_WITH_HANDLERS {
            return Err(PyImportError::new_err(
                "Shared arrays need NumPy 1.22 or newer: `pip install --upgrade numpy`.",
            ));
        }
        // SAFETY: from that version on the table has a function of this type here.
        Ok(unsafe { std::mem::transmute::<*const c_void, SetHandler>(*table.add(SET_HANDLER)) })
    })
    .copied()
}

/// A memory handler for NumPy: arrays of at least `threshold` bytes are in shared memory.
#[pyfunction]
fn shared_memory_handler(py: Python<'_>, threshold: usize) -> PyResult<Py<PyAny>> {
    /// No segment is smaller.
    const LOWEST: usize = 64 << 10;
    if threshold < LOWEST {
        return Err(PyValueError::new_err(format!(
            "threshold={threshold}: arrays below {LOWEST} bytes cannot be shared."
        )));
    }
    let handler = Handler::leak(threshold);
    // SAFETY: the capsule owns the handler; on failure it is freed here.
    unsafe {
        let capsule = ffi::PyCapsule_New(handler.cast(), CAPSULE.as_ptr(), Some(drop_handler));
        Bound::from_owned_ptr_or_err(py, capsule)
            .map(Bound::unbind)
            .inspect_err(|_| drop(Box::from_raw(handler)))
    }
}

/// Makes NumPy allocate through `handler` in the current context; returns what it used before.
#[pyfunction]
fn set_memory_handler(handler: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let py = handler.py();
    // SAFETY: may be asked of any object.
    let valid: c_int = unsafe { ffi::PyCapsule_IsValid(handler.as_ptr(), CAPSULE.as_ptr()) };
    if valid == 0 {
        return Err(PyTypeError::new_err(format!(
            "Not a memory handler: {}.",
            treadle_interpreter::repr(handler.as_borrowed())
        )));
    }
    let set = set_handler(py)?;
    // SAFETY: NumPy's function, with a capsule of a handler; it returns a new reference.
    unsafe { Bound::from_owned_ptr_or_err(py, set(handler.as_ptr())) }.map(Bound::unbind)
}

/// Whether `length` bytes from `address` on are in shared memory of this process.
#[pyfunction]
fn is_shared_memory(address: usize, length: usize) -> bool {
    memory::contains(address, length)
}

/// Counts of segments, and bytes in use, kept, and freed here but not by their receivers.
#[pyfunction]
fn shared_memory_stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let stats = PyDict::new(py);
    for (name, value) in memory::stats() {
        stats.set_item(name, value)?;
    }
    Ok(stats)
}

/// Gives memory that is kept for reuse back to the system.
#[pyfunction]
fn trim_memory(py: Python<'_>) {
    py.detach(|| {
        treadle_memory::Pool::global().trim();
        memory::trim();
    });
}

/// From now on memory that is kept for reuse goes back to the system before the process takes more than so many
/// bytes.
#[pyfunction]
fn keep_below(limit: u64) {
    #[cfg(target_os = "linux")]
    treadle_memory::keep_below(limit);
    #[cfg(not(target_os = "linux"))]
    let _ = limit;
}

/// Adds the functions of this file to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(shared_memory_handler, module)?)?;
    module.add_function(wrap_pyfunction!(set_memory_handler, module)?)?;
    module.add_function(wrap_pyfunction!(is_shared_memory, module)?)?;
    module.add_function(wrap_pyfunction!(shared_memory_stats, module)?)?;
    module.add_function(wrap_pyfunction!(trim_memory, module)?)?;
    module.add_function(wrap_pyfunction!(keep_below, module)?)
}
