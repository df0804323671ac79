//! Accepting connections.

use super::connection::TransferConnection;
use super::options::Settings;
use super::wait::{Limit, blocking, detached, failed};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use treadle_interpreter::{ProcessLocal, lock, refuse_forked};
use treadle_net::{Address, NetError, Waker};

/// Listens at `address`. See `treadle.transfer.listen`.
#[pyfunction]
pub(crate) fn transfer_listen(
    py: Python<'_>,
    address: &str,
    settings: Settings,
) -> PyResult<Listener> {
    refuse_forked()?;
    let address = parse(address)?;
    let options = settings.into_options()?;
    let bound = detached(py, || treadle_net::Listener::bind(&address, &options));
    let listener = bound.map_err(failed("listening"))?;
    let address = listener.address().to_string();
    Ok(Listener {
        listener: ProcessLocal::new(listener),
        address,
        notifier: Mutex::new(None),
    })
}

/// # Errors
/// For what is no address.
pub(crate) fn parse(address: &str) -> PyResult<Address> {
    address
        .parse()
        .map_err(|error: treadle_net::address::AddressError| {
            PyValueError::new_err(error.to_string())
        })
}

/// Accepts connections; made by :func:`treadle.transfer.listen`.
///
/// Iterating over it accepts one connection after another, until it is closed. As a context manager
/// it is closed at the end of the block.
#[pyclass(frozen, weakref, module = "treadle.transfer")]
pub(crate) struct Listener {
    listener: ProcessLocal<treadle_net::Listener>,
    address: String,
    notifier: Mutex<Option<Waker>>,
}

#[pymethods]
impl Listener {
    /// Where it listens, with its port: what others connect to.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Wait for the next connection, whose handshake is done.
    ///
    /// Parameters
    /// ----------
    /// timeout : float, optional
    ///     Seconds to wait.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     Nobody came.
    /// ConnectionClosed
    ///     The listener is closed.
    #[pyo3(signature = (timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<TransferConnection> {
        let listener = self.listener.get()?;
        let doing = format!("accepting at {}", self.address);
        let peer = blocking(py, Limit::new(timeout)?, None, failed(&doing), |wait| {
            listener.accept(wait)
        })?;
        Ok(TransferConnection::new(py, peer))
    }

    /// A connection that waits to be accepted, if there is one.
    fn _try_accept(&self, py: Python<'_>) -> PyResult<Option<TransferConnection>> {
        let listener = self.listener.get()?;
        let peer = detached(py, || listener.try_accept());
        let peer = peer.map_err(failed(&self.address))?;
        Ok(peer.map(|peer| TransferConnection::new(py, peer)))
    }

    /// A descriptor that becomes readable whenever somebody waits to be accepted. Read it, then
    /// look.
    fn _notifier(&self, py: Python<'_>) -> PyResult<i32> {
        let listener = self.listener.get()?;
        notify(py, &self.notifier, |waker| listener.set_waker(waker))
    }

    /// Stop listening. Connections that were accepted stay open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let listener = self.listener.get()?;
        detached(py, || listener.close());
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<TransferConnection>> {
        let listener = self.listener.get()?;
        let doing = format!("accepting at {}", self.address);
        let peer = blocking(py, Limit::NONE, None, failed(&doing), |wait| match listener
            .accept(wait)
        {
            Ok(peer) => Ok(Some(peer)),
            Err(NetError::ListenerClosed) => Ok(None),
            Err(error) => Err(error),
        })?;
        Ok(peer.map(|peer| TransferConnection::new(py, peer)))
    }

    fn __repr__(&self) -> String {
        format!("<treadle.transfer.Listener at {}>", self.address)
    }
}

/// Gives `set` a waker, and keeps it; the number of its descriptor.
pub(crate) fn notify(
    py: Python<'_>,
    kept: &Mutex<Option<Waker>>,
    set: impl FnOnce(Option<Waker>) + Send,
) -> PyResult<i32> {
    let waker = Waker::new()?;
    let number = waker.as_fd().as_raw_fd();
    let shared = waker.clone();
    detached(py, || set(Some(shared)));
    *lock(kept) = Some(waker);
    Ok(number)
}
