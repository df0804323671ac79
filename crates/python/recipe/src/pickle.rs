//! Pickling, with the rules of `distributed.protocol.pickle.dumps`: `pickle` first, and by value
//! (`treadle.pickling._by_value`, which is `cloudpickle` and more) what it cannot do and what is defined in
//! `__main__`.

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList};
use treadle_interpreter::{Pickling, loaded_module};

const PROTOCOL: u8 = 5;

struct Modules {
    dumps: Py<PyAny>,
    loads: Py<PyAny>,
    loads_first: Py<PyAny>,
    pickler: Py<PyAny>,
    bytes_io: Py<PyAny>,
    protocol: Py<PyAny>,
}

fn modules(py: Python<'_>) -> PyResult<&'static Modules> {
    static MODULES: PyOnceLock<Modules> = PyOnceLock::new();
    MODULES.get_or_try_init(py, || {
        let (pickle, whole) = (
            py.import("pickle")?,
            py.import("treadle.pickling._lossless")?,
        );
        Ok(Modules {
            dumps: whole.getattr("dumps")?.unbind(),
            loads: pickle.getattr("loads")?.unbind(),
            loads_first: py
                .import("treadle.pickling._import_safe_loads")?
                .getattr("loads")?
                .unbind(),
            pickler: whole.getattr("Pickler")?.unbind(),
            bytes_io: py.import("io")?.getattr("BytesIO")?.unbind(),
            protocol: PROTOCOL.into_pyobject(py)?.into_any().unbind(),
        })
    })
}

/// The pickle of an object; `None` if it takes more than `limit` bytes, which is found out without
/// a copy of large buffers.
///
/// # Errors
/// What pickling by value raises.
pub(crate) fn dumps<'py>(
    object: &Bound<'py, PyAny>,
    limit: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let py = object.py();
    let _pickling = Pickling::new();
    let buffers = PyList::empty(py);
    let options = PyDict::new(py);
    options.set_item(intern!(py, "protocol"), PROTOCOL)?;
    options.set_item(
        intern!(py, "buffer_callback"),
        buffers.getattr(intern!(py, "append"))?,
    )?;
    let dump = |with: &Bound<'py, PyAny>, options: &Bound<'py, PyDict>| -> PyResult<_> {
        Ok(with
            .call((object,), Some(options))?
            .cast_into::<PyBytes>()?)
    };
    let plain = modules(py)?.dumps.bind(py);
    let mut with = plain.clone();
    let mut bytes = match dump(plain, &options) {
        Ok(bytes) if !names_main(object, bytes.as_bytes())? => Some(bytes),
        Ok(_) => None,
        Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
        Err(_) => None,
    };
    if bytes.is_none() {
        buffers.call_method0(intern!(py, "clear"))?;
        with = py
            .import("treadle.pickling._by_value")?
            .getattr(intern!(py, "dumps"))?;
        bytes = Some(dump(&with, &options)?);
    }
    let Some(bytes) = bytes else {
        return Ok(None);
    };
    let mut total = bytes.as_bytes().len();
    for buffer in &buffers {
        total = total.saturating_add(length(&buffer)?);
    }
    if total > limit {
        return Ok(None);
    }
    if buffers.is_empty() {
        return Ok(Some(bytes));
    }
    options.del_item(intern!(py, "buffer_callback"))?;
    dump(&with, &options).map(Some)
}

/// In `__main__`, and in what a process that `multiprocessing` has spawned calls the script of its parent.
const MAIN: &[u8] = b"_main__";
pub(crate) const SPAWNED_MAIN: &str = "__mp_main__";

/// Whether a pickle names what only exists in this process's script, or is in a module that the
/// user wants pickled by value.
fn names_main(object: &Bound<'_, PyAny>, bytes: &[u8]) -> PyResult<bool> {
    /// Longer pickles of data may well contain the word.
    const SHORT: usize = 1000;
    let names_main = contains(bytes, MAIN) && (bytes.len() < SHORT || !is_data(object)?);
    Ok(names_main || is_registered(object)?)
}

/// Text, bytes, arrays of NumPy, and pandas objects.
fn is_data(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    if object.is_instance_of::<pyo3::types::PyString>() || object.is_instance_of::<PyBytes>() {
        return Ok(true);
    }
    let modules = py.import("sys")?.getattr(intern!(py, "modules"))?;
    for (module, path) in [
        ("numpy", "ndarray"),
        ("pandas", "DataFrame"),
        ("pandas", "Series"),
    ] {
        if let Ok(module) = modules.get_item(module)
            && object.is_instance(&module.getattr(path)?)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether `cloudpickle.register_pickle_by_value` was called for the object's module.
fn is_registered(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    let Some(registered) = registered_modules(py)? else {
        return Ok(false);
    };
    let module = py.import("inspect")?.call_method1("getmodule", (object,))?;
    let name = module.getattr_opt(intern!(py, "__name__"))?;
    match name {
        Some(name) => registered.contains(name),
        None => Ok(false),
    }
}

/// The modules for which `cloudpickle.register_pickle_by_value` was called, if there are any.
pub(crate) fn registered_modules(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    // Nobody can have registered any with a module that is not loaded.
    let Some(cloudpickle) = loaded_module(py, intern!(py, "cloudpickle"))? else {
        return Ok(None);
    };
    let registered = cloudpickle.call_method0(intern!(py, "list_registry_pickle_by_value"))?;
    // What names it is found without looking at where each object is from.
    registered.call_method1(intern!(py, "discard"), (SPAWNED_MAIN,))?;
    Ok(registered.is_truthy()?.then_some(registered))
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

/// The bytes of a `pickle.PickleBuffer`.
fn length(buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = buffer.py();
    py.import("builtins")?
        .getattr("memoryview")?
        .call1((buffer,))?
        .getattr(intern!(py, "nbytes"))?
        .extract()
}

/// What `pickle` alone makes of an object.
///
/// # Errors
/// What `pickle` raises.
pub(crate) fn plainly<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let _pickling = Pickling::new();
    let modules = modules(object.py())?;
    let dumps = modules.dumps.bind(object.py());
    Ok(dumps.call1((object, &modules.protocol))?.cast_into()?)
}

/// A pickle that says the same thing again each time that it occurs.
///
/// # Errors
/// What `pickle` raises; an object that contains itself is a `RecursionError`.
pub(crate) fn without_memo<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let py = object.py();
    let _pickling = Pickling::new();
    let modules = modules(py)?;
    let file = modules.bytes_io.bind(py).call0()?;
    let pickler = modules.pickler.bind(py).call1((&file, &modules.protocol))?;
    pickler.setattr(intern!(py, "fast"), true)?;
    pickler.call_method1(intern!(py, "dump"), (object,))?;
    Ok(file
        .call_method0(intern!(py, "getvalue"))?
        .cast_into::<PyBytes>()?)
}

/// A file that takes so many bytes and no more.
#[pyclass(module = "treadle._core", name = "_Limited")]
pub(crate) struct Limited {
    bytes: Vec<u8>,
    limit: usize,
    /// Whether more came.
    full: bool,
}

#[pymethods]
impl Limited {
    fn write(&mut self, bytes: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut view = ffi::Py_buffer::new();
        // SAFETY: attached, with a valid place for the answer; released below.
        if unsafe { ffi::PyObject_GetBuffer(bytes.as_ptr(), &mut view, ffi::PyBUF_SIMPLE) } != 0 {
            return Err(PyErr::fetch(bytes.py()));
        }
        let length = view.len as usize;
        let fits = self.bytes.len() + length <= self.limit;
        if fits {
            // SAFETY: the memory of a contiguous buffer of this length.
            self.bytes
                .extend_from_slice(unsafe { std::slice::from_raw_parts(view.buf.cast(), length) });
        }
        // SAFETY: taken above.
        unsafe { ffi::PyBuffer_Release(&mut view) };
        if fits {
            return Ok(length);
        }
        self.full = true;
        Err(PyTypeError::new_err("the pickle is longer than the limit"))
    }
}

/// The pickle of an object by `pickle` alone, if it takes at most `limit` bytes. It stops soon after
/// it has passed the limit.
///
/// # Errors
/// Only for what ends programs, such as `KeyboardInterrupt`; an object that cannot be pickled so,
/// or that needs code of this process, has no such pickle.
pub(crate) fn limited(object: &Bound<'_, PyAny>, limit: usize) -> PyResult<Option<Vec<u8>>> {
    let py = object.py();
    let _pickling = Pickling::new();
    let modules = modules(py)?;
    let file = Bound::new(
        py,
        Limited {
            bytes: Vec::new(),
            limit,
            full: false,
        },
    )?;
    let pickled = modules
        .pickler
        .bind(py)
        .call1((&file, &modules.protocol))
        .and_then(|pickler| pickler.call_method1(intern!(py, "dump"), (object,)));
    match pickled {
        Ok(_) => {}
        Err(error) if error.is_instance_of::<PyException>(py) => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut file = file.borrow_mut();
    let fits = !file.full && !contains(&file.bytes, MAIN);
    Ok(fits.then(|| std::mem::take(&mut file.bytes)))
}

/// The object of a pickle that may be the first of this process to need a module, which another
/// thread may be importing.
///
/// # Errors
/// What unpickling raises.
pub(crate) fn loads_first<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    modules(py)?
        .loads_first
        .bind(py)
        .call1((PyBytes::new(py, bytes),))
}

/// The object of a pickle.
///
/// # Errors
/// What unpickling raises.
pub(crate) fn loads<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    modules(py)?
        .loads
        .bind(py)
        .call1((PyBytes::new(py, bytes),))
}
