//! `treadle.transfer`: connections between processes, as Python sees them.
//!
//! | module | what |
//! | --- | --- |
//! | `options`, `certs` | settings, in Python's types |
//! | `listener`, `connection` | the two ends |
//! | `sending`, `receiving`, `batch` | one transfer; many |
//! | `wait`, `progress` | waiting without the interpreter's lock, but not without Ctrl-C |
//! | `timeline` | how long the stages took |

mod batch;
mod certs;
mod connection;
mod error;
mod listener;
mod options;
mod progress;
mod receiving;
mod sending;
mod timeline;
mod wait;

pub(crate) use listener::parse;
pub(crate) use options::Settings;
pub(crate) use wait::{Limit, attach, blocking, failed, is_main_thread};

use pyo3::prelude::*;

/// For Python code that is about to make a connection, with a loop and processes around it.
#[pyfunction]
fn refuse_forked() -> PyResult<()> {
    treadle_interpreter::refuse_forked()
}

/// Seconds for which threads of this process have looked again and again for what did not come.
#[pyfunction]
fn spun_seconds() -> f64 {
    treadle_reactor::spun().as_secs_f64()
}

/// Adds the functions and classes of this folder to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // A client's connection to a cluster has the plain name.
    let connection = module.py().get_type::<connection::TransferConnection>();
    module.add("TransferConnection", connection)?;
    module.add_class::<listener::Listener>()?;
    module.add_class::<sending::Transfer>()?;
    module.add_class::<receiving::Receiving>()?;
    module.add_class::<treadle_serialise::Memory>()?;
    module.add_class::<treadle_serialise::ForeignMemory>()?;
    module.add_class::<treadle_serialise::Apart>()?;
    module.add_function(wrap_pyfunction!(listener::transfer_listen, module)?)?;
    module.add_function(wrap_pyfunction!(refuse_forked, module)?)?;
    module.add_function(wrap_pyfunction!(spun_seconds, module)?)?;
    module.add_function(wrap_pyfunction!(connection::transfer_connect, module)?)?;
    module.add_function(wrap_pyfunction!(connection::transfer_close_all, module)?)?;
    module.add_function(wrap_pyfunction!(certs::create_certs, module)?)
}
