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

/// For Python code that finds itself in a forked child: ends it, and says so.
#[pyfunction]
fn end_forked_child(py: Python<'_>, what: &str) {
    treadle_interpreter::fork::end_returned(py, what, None)
}

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(end_forked_child, module)?)?;
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
