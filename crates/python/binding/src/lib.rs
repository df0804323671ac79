//! `treadle._core`: the engine, as Python sees it.

#[cfg(target_os = "linux")]
mod cluster;
#[cfg(target_os = "linux")]
mod load;
mod rows;
mod shared;
#[cfg(target_os = "linux")]
mod transfer;

use pyo3::prelude::*;
use std::cell::RefCell;

/// For Python code that finds itself in a forked child: ends it, and says so.
#[pyfunction]
fn end_forked_child(py: Python<'_>, what: &str) {
    treadle_interpreter::fork::end_returned(py, what, None)
}

/// A block in which the thread pickles something for Treadle.
#[pyclass(module = "treadle._core", unsendable)]
struct Pickling(RefCell<Option<treadle_interpreter::Pickling>>);

#[pymethods]
impl Pickling {
    #[new]
    fn new() -> Self {
        Self(RefCell::default())
    }

    fn __enter__(&self) {
        self.0.replace(Some(treadle_interpreter::Pickling::new()));
    }

    fn __exit__(
        &self,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.0.take();
    }
}

/// Whether the thread is in such a block, or pickles natively.
#[pyfunction]
fn is_pickling() -> bool {
    treadle_interpreter::is_pickling()
}

// No build of Python without the lock was tested: there, the interpreter turns the lock on, and says so.
// Slots of Dask's nodes are read by their offsets, which needs it.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(end_forked_child, module)?)?;
    module.add_class::<Pickling>()?;
    module.add_function(wrap_pyfunction!(is_pickling, module)?)?;
    treadle_engine::register(module)?;
    #[cfg(target_os = "linux")]
    {
        transfer::register(module)?;
        load::register(module)?;
        cluster::register(module)?;
        #[cfg(feature = "testing")]
        {
            treadle_recipe::register(module)?;
            // What checksums and digests cost is measured with processes that all do without.
            let omits = std::env::var_os("TREADLE_TESTING_OMIT_CHECKS").is_some();
            if omits {
                treadle_guards::checks::omit();
            }
            module.add("_omits_checks", omits)?;
        }
    }
    rows::register(module)?;
    shared::register(module)
}
