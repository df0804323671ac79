//! The in-process executor: `treadle.get`.
//!
//! | module | what |
//! | --- | --- |
//! | `get` | running a graph, as Python calls it |
//! | `held` | whether tasks hold the interpreter's lock |
//! | `job` | a loaded graph, and how far its execution has come |
//! | `run` | running tasks one after another |
//! | `team`, `pool` | the threads of one run; those of the process |
//! | `steps` | running a job step by step, somewhere else |
//! | `trace` | recording what ran where and when |

mod get;
mod held;
mod job;
mod pool;
mod run;
mod steps;
mod team;
pub mod trace;

use pyo3::prelude::*;
use treadle_dask::error;

/// Adds the functions and classes of this crate to `treadle._core`.
///
/// # Errors
/// What Python raises.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("CycleError", py.get_type::<error::CycleError>())?;
    let missing = py.get_type::<error::MissingDependencyError>();
    module.add("MissingDependencyError", missing)?;
    module.add_class::<get::PyTeam>()?;
    module.add_class::<steps::Steps>()?;
    module.add_class::<steps::Call>()?;
    module.add_class::<trace::Recorder>()?;
    module.add_function(wrap_pyfunction!(get::run_inline, module)?)?;
    module.add_function(wrap_pyfunction!(get::run_threads, module)?)?;
    module.add_function(wrap_pyfunction!(get::inside_a_task, module)?)?;
    module.add_function(wrap_pyfunction!(get::close_pool, module)?)?;
    module.add_function(wrap_pyfunction!(get::order, module)?)
}
