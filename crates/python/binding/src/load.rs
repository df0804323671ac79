//! The load of `treadle bench transfer --mode raw`, which runs without the interpreter.

use crate::transfer::{Limit, Settings, blocking, failed, parse};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Duration;
use treadle_interpreter::refuse_forked;
use treadle_net::Listener;
use treadle_net::load::{Histogram, Load, drive, serve};

/// Adds the functions of this file to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(load_serve, module)?)?;
    module.add_function(wrap_pyfunction!(load_drive, module)?)
}

/// Answers requests at `address` with `response_size` bytes each, on `threads` threads, until it is
/// interrupted. `started` is called with the address and its port.
#[pyfunction]
pub(crate) fn load_serve(
    py: Python<'_>,
    address: &str,
    settings: Settings,
    threads: usize,
    response_size: usize,
    started: &Bound<'_, PyAny>,
) -> PyResult<()> {
    refuse_forked()?;
    let address = parse(address)?;
    let options = settings.into_options()?;
    let listener = py
        .detach(|| Listener::bind(&address, &options))
        .map_err(failed("listening"))?;
    started.call1((listener.address().to_string(),))?;
    blocking(py, Limit::NONE, None, failed("serving"), |wait| {
        serve(&listener, threads, response_size, wait)
    })?;
    Ok(())
}

/// Asks the server at `address`, on so many `channels` with `concurrency` requests under way each,
/// and returns what was counted in `seconds` after `warmup`, times in seconds. `look` is called now
/// and then; what it raises ends the load.
#[pyfunction]
#[pyo3(signature = (address, settings, *, channels, concurrency, message_size, warmup, seconds, look))]
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
pub(crate) fn load_drive<'py>(
    py: Python<'py>,
    address: &str,
    settings: Settings,
    channels: usize,
    concurrency: usize,
    message_size: usize,
    warmup: f64,
    seconds: f64,
    look: Py<PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    refuse_forked()?;
    let address = parse(address)?;
    let options = settings.into_options()?;
    let load = Load {
        channels,
        concurrency,
        message_size,
        warmup: duration("warmup", warmup)?,
        duration: duration("seconds", seconds)?,
    };
    let doing = format!("asking {address}");
    let mut look = |py: Python<'_>| look.call0(py).map(drop);
    let report = blocking(py, Limit::NONE, Some(&mut look), failed(&doing), |wait| {
        drive(&address, &options, &load, wait)
    })?;
    let dict = PyDict::new(py);
    dict.set_item("seconds", report.elapsed.as_secs_f64())?;
    dict.set_item("requests", report.total.requests)?;
    dict.set_item("response_bytes", report.total.response_bytes)?;
    dict.set_item("latency", latency(py, &report.total.latencies)?)?;
    let each: Vec<u64> = report
        .channels
        .iter()
        .map(|channel| channel.requests)
        .collect();
    dict.set_item("channels", each)?;
    Ok(dict)
}

fn latency<'py>(py: Python<'py>, histogram: &Histogram) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        dict.set_item(name, histogram.quantile(share).as_secs_f64())?;
    }
    dict.set_item("max", histogram.max().as_secs_f64())?;
    Ok(dict)
}

fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if seconds < 1e6 => Ok(duration),
        _ => Err(PyValueError::new_err(format!(
            "{name}={seconds}: give seconds"
        ))),
    }
}
