//! `treadle.transfer`: connections between processes, as Python sees them.
//!
//! | module | what |
//! | --- | --- |
//! | `options`, `certs` | settings, in Python's types |
//! | `listener`, `connection` | the two ends |
//! | `sending`, `receiving`, `batch` | one transfer; many |
//! | `encode`, `decode`, `array` | objects to frames and back |
//! | `held`, `memory` | memory of Python that is sent, memory received that Python uses |
//! | `wait`, `progress` | waiting without the interpreter's lock, but not without Ctrl-C |
//! | `timeline` | how long the stages took |
//! | `origin` | forks |

mod array;
mod batch;
mod certs;
mod connection;
mod decode;
mod encode;
mod error;
mod held;
mod listener;
mod memory;
mod options;
mod origin;
mod progress;
mod receiving;
mod sending;
mod timeline;
mod wait;

pub(crate) use array::is_array;
pub(crate) use decode::{decode_own, decode_parts, decode_value, memories, memory};
pub(crate) use encode::{Encoded, encode, encode_view};
pub(crate) use held::{Held, release_all};
pub(crate) use listener::parse;
pub(crate) use options::Settings;
pub(crate) use origin::{Own, enter};
pub(crate) use wait::{Limit, blocking, failed, is_main_thread};

use pyo3::prelude::*;

/// Adds the functions and classes of this folder to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // A client's connection to a cluster has the plain name.
    let connection = module.py().get_type::<connection::Connection>();
    module.add("TransferConnection", connection)?;
    module.add_class::<listener::Listener>()?;
    module.add_class::<sending::Transfer>()?;
    module.add_class::<receiving::Receiving>()?;
    module.add_class::<memory::Memory>()?;
    module.add_function(wrap_pyfunction!(listener::transfer_listen, module)?)?;
    module.add_function(wrap_pyfunction!(origin::refuse_forked, module)?)?;
    module.add_function(wrap_pyfunction!(connection::transfer_connect, module)?)?;
    module.add_function(wrap_pyfunction!(connection::transfer_close_all, module)?)?;
    module.add_function(wrap_pyfunction!(certs::create_certs, module)?)
}
