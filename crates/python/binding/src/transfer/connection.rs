//! A connection to another process.

mod receive;

use super::batch::Batch;
use super::error::ConnectionClosed;
use super::listener::{notify, parse};
use super::options::Settings;
use super::progress::Progress;
use super::sending::{Outgoing, Transfer};
use super::timeline::{Stages, Track};
use super::wait::{Limit, blocking, detached, failed};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;
use treadle_interpreter::{ProcessLocal, lock, refuse_forked};
use treadle_net::{Peer, Waker};
use treadle_serialise::encode_as_array;

/// Connects to `address`. See `treadle.transfer.connect`.
#[pyfunction]
pub(crate) fn transfer_connect(
    py: Python<'_>,
    address: &str,
    settings: Settings,
) -> PyResult<TransferConnection> {
    refuse_forked()?;
    let address = parse(address)?;
    let options = settings.into_options()?;
    let doing = format!("connecting to {address}");
    let peer = blocking(py, Limit::NONE, None, failed(&doing), |wait| {
        Peer::connect(&address, &options, wait)
    })?;
    Ok(TransferConnection::new(py, peer))
}

/// Those of this process that may be open.
static OPEN: Mutex<Vec<Weak<Peer>>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<Weak<Peer>>> {
    lock(&OPEN)
}

/// Closes every connection, before the interpreter ends.
#[pyfunction]
pub(crate) fn transfer_close_all(py: Python<'_>) {
    if refuse_forked().is_err() {
        return;
    }
    py.detach(|| {
        let peers: Vec<_> = open().drain(..).filter_map(|peer| peer.upgrade()).collect();
        for peer in &peers {
            // All begin first, so that they close at the same time.
            peer.start_close();
        }
        for peer in &peers {
            peer.close();
        }
    });
    treadle_serialise::release_all(py);
    treadle_serialise::stop_releasing();
}

/// A connection to another process; made by :func:`treadle.transfer.connect` and
/// ``Listener.accept``.
///
/// Both sides send and receive, from any number of threads. Objects arrive whole, and in the order
/// in which they were sent. As a context manager it is closed at the end of the block.
#[pyclass(frozen, weakref, name = "Connection", module = "treadle.transfer")]
pub(crate) struct TransferConnection {
    peer: ProcessLocal<Arc<Peer>>,
    address: String,
    track: Track,
    closed: AtomicBool,
    last: Mutex<Option<Stages>>,
    notifier: Mutex<Option<Waker>>,
}

impl TransferConnection {
    pub(crate) fn new(py: Python<'_>, peer: Peer) -> Self {
        let peer = Arc::new(peer);
        py.detach(|| {
            let mut open = open();
            open.retain(|peer| peer.strong_count() > 0);
            open.push(Arc::downgrade(&peer));
        });
        Self {
            address: peer.address().to_owned(),
            track: Track::new(peer.address()),
            peer: ProcessLocal::new(peer),
            closed: AtomicBool::new(false),
            last: Mutex::new(None),
            notifier: Mutex::new(None),
        }
    }

    fn peer(&self) -> PyResult<&Peer> {
        self.peer.get().map(|peer| &**peer)
    }

    /// For sending.
    fn open_peer(&self) -> PyResult<&Peer> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(ConnectionClosed::new_err(format!(
                "the connection to {} was closed here",
                self.address
            )));
        }
        self.peer()
    }

    fn remember(&self, stages: Stages) {
        stages.record(&self.track);
        *lock(&self.last) = Some(stages);
    }
}

#[pymethods]
impl TransferConnection {
    /// The other side, as people write it.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Send an object; returns when its memory may be used again.
    ///
    /// NumPy arrays, tensors of torch, Arrow data, and whatever pickle's protocol 5 can take out of its
    /// stream go from their own memory, without a copy, and must not be written to meanwhile. An array that
    /// is not contiguous is copied once. Arrays of other libraries with DLPack, in the CPU's memory, arrive
    /// as those of the library if it has a namespace of the array API standard, and as NumPy's otherwise.
    ///
    /// Parameters
    /// ----------
    /// obj
    ///     Anything that can be pickled, or that ``cloudpickle`` can pickle.
    /// timeout : float, optional
    ///     Seconds until it is given up, on both sides. So it is by Ctrl-C.
    /// progress : bool or callable, optional
    ///     ``True`` draws a bar (which needs ``rich``); a callable gets ``(done, total)`` in bytes a
    ///     few times a second.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     It took too long; the receiver has no part of it.
    /// ConnectionEnded
    ///     The peer is gone (``ConnectionClosed``: in order).
    /// CorruptData
    ///     Its bytes were damaged on the way again and again.
    /// TypeError
    ///     It cannot be pickled, or a tensor in it is on a device.
    #[pyo3(signature = (obj, *, timeout=None, progress=None))]
    fn send(
        &self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let began = Instant::now();
        let limit = Limit::new(timeout)?;
        let peer = self.open_peer()?;
        let mut progress = Progress::new(progress, "Sending")?;
        let outgoing = Outgoing::start(py, peer, encode_as_array(obj)?, began)?;
        let sent = match &mut progress {
            None => outgoing.wait(py, limit, None),
            Some(progress) => {
                let mut look = |py: Python<'_>| progress.report(py, || outgoing.progress());
                outgoing.wait(py, limit, Some(&mut look))
            }
        };
        let stages = match sent {
            Ok(stages) => stages,
            Err(error) => {
                outgoing.cancel(py);
                // It may have arrived in time after all.
                match outgoing.stages_if_sent() {
                    Some(stages) if error.is_instance_of::<PyTimeoutError>(py) => stages,
                    _ => return Err(error),
                }
            }
        };
        self.remember(stages);
        match progress {
            Some(progress) => progress.finish(py, stages.bytes),
            None => Ok(()),
        }
    }

    /// Begin to send an object; returns a :class:`Transfer` at once.
    ///
    /// Its memory must not be written to before the transfer is done. Waits only while several MiB of
    /// small objects have not left yet.
    fn start_send(&self, py: Python<'_>, obj: &Bound<'_, PyAny>) -> PyResult<Transfer> {
        let began = Instant::now();
        let peer = self.open_peer()?;
        let encoded = encode_as_array(obj)?;
        if !peer.has_room() {
            let doing = format!("sending to {}", self.address);
            blocking(py, Limit::NONE, None, failed(&doing), |wait| {
                peer.wait_for_room(wait)
            })?;
        }
        let outgoing = Outgoing::start(py, peer, encoded, began)?;
        outgoing.record(&self.track);
        Ok(Transfer::new(outgoing))
    }

    /// Send many objects, in order; returns when their memory may be used again.
    ///
    /// Small ``bytes`` leave in batches, and cost about a microsecond each.
    ///
    /// Parameters
    /// ----------
    /// objects : list
    /// timeout : float, optional
    ///     Seconds until what has not left is given up.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     Some objects, from the first one on, were sent.
    #[pyo3(signature = (objects, timeout=None))]
    fn send_many(
        &self,
        py: Python<'_>,
        objects: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let limit = Limit::new(timeout)?;
        let peer = self.open_peer()?;
        let began = Instant::now();
        let mut batch = Batch::new(peer, limit);
        let result = objects
            .try_iter()?
            .try_for_each(|object| batch.add(py, &object?))
            .and_then(|()| batch.flush(py))
            .and_then(|()| batch.finish(py));
        match &result {
            Ok(()) => Stages::batch(true, batch.sent, began).record(&self.track),
            Err(_) => batch.cancel(py),
        }
        result
    }

    /// Counts about the connection, in bytes and seconds.
    ///
    /// ``bytes_sent`` counts data connections only, ``bytes_received`` the control connection, too.
    /// ``bytes_shared`` were passed as shared memory, in either direction. ``stripes``: data connections in use for sending.
    /// ``control_rtt``: a round trip on the control connection, measured at its beginning and after
    /// silences; a busy connection keeps its first value. ``replaced_stripes`` broke
    /// and were replaced. ``corrupt_extents`` arrived damaged. ``pending`` objects are being sent.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let peer = self.peer()?;
        let stats = detached(py, || peer.stats());
        let dict = PyDict::new(py);
        dict.set_item("bytes_sent", stats.bytes_sent)?;
        dict.set_item("bytes_received", stats.bytes_received)?;
        dict.set_item("bytes_shared", stats.bytes_shared)?;
        dict.set_item("stripes", stats.pair.stripes)?;
        let round_trip = stats.pair.round_trip.map(|time| time.as_secs_f64());
        dict.set_item("control_rtt", round_trip)?;
        dict.set_item("replaced_stripes", stats.pair.replaced)?;
        dict.set_item("corrupt_extents", stats.pair.corrupt)?;
        dict.set_item("pending", stats.pair.sending)?;
        Ok(dict)
    }

    /// Seconds that the stages of the last ``send``, ``recv`` or ``recv_into`` took, and its
    /// ``bytes``.
    ///
    /// ``prepare`` (sender): getting hold of the memory. ``serialise`` (sender): pickling.
    /// ``accept``: until the receiver's memory was ready, from the sender's call, or, at the
    /// receiver, from the header's arrival. ``wire``: from then until the last byte was in place.
    /// ``place`` (receiver): getting the memory, and making the object of it. ``total``.
    #[getter]
    fn last_timings<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let last = *lock(&self.last);
        last.map(|stages| stages.to_dict(py)).transpose()
    }

    /// Whether the connection is over, on whichever side that began.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        let peer = self.peer()?;
        Ok(detached(py, || peer.ended().is_some()))
    }

    /// Close the connection, when what was sent has left, or after five seconds.
    ///
    /// Objects that are already here can still be received.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let peer = self.peer()?;
        self.closed.store(true, Ordering::Relaxed);
        detached(py, || peer.close());
        Ok(())
    }

    /// Begins to close; does not wait.
    fn _start_close(&self, py: Python<'_>) -> PyResult<()> {
        let peer = self.peer()?;
        self.closed.store(true, Ordering::Relaxed);
        detached(py, || peer.start_close());
        Ok(())
    }

    /// Whether closing is done.
    fn _is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        let peer = self.peer()?;
        Ok(detached(py, || peer.is_closed()))
    }

    /// Whether `start_send` would return at once.
    fn _has_room(&self, py: Python<'_>) -> PyResult<bool> {
        let peer = self.open_peer()?;
        Ok(detached(py, || peer.has_room()))
    }

    /// A descriptor that becomes readable whenever something changes. Read it, then look.
    fn _notifier(&self, py: Python<'_>) -> PyResult<i32> {
        let peer = self.peer()?;
        notify(py, &self.notifier, |waker| peer.set_waker(waker))
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

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = match self.peer.peek() {
            None => "of the parent process",
            Some(peer) if detached(py, || peer.ended().is_some()) => "closed",
            Some(_) => "open",
        };
        format!("<treadle.transfer.Connection to {}, {state}>", self.address)
    }
}
