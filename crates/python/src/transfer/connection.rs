//! A connection to another process.

use super::array::Destination;
use super::batch::Batch;
use super::decode::decode;
use super::encode::encode;
use super::error::ConnectionClosed;
use super::held;
use super::listener::parse;
use super::options::Settings;
use super::origin::{Own, enter};
use super::progress::Progress;
use super::receiving::{Receiving, finish, finish_into};
use super::sending::{Outgoing, Transfer};
use super::timeline::{Stages, Track};
use super::wait::{Limit, blocking, detached, failed};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use treadle_net::{Failure, Incoming, NetError, Peer, Received, Wait, Waker};

/// Connects to `address`. See `treadle.transfer.connect`.
#[pyfunction]
pub(crate) fn transfer_connect(
    py: Python<'_>,
    address: &str,
    settings: Settings,
) -> PyResult<Connection> {
    enter()?;
    let address = parse(address)?;
    let options = settings.into_options()?;
    let doing = format!("connecting to {address}");
    let limit = Limit { deadline: None };
    let peer = blocking(py, limit, None, failed(&doing), |wait| {
        Peer::connect(&address, &options, wait)
    })?;
    Ok(Connection::new(py, peer))
}

/// Those of this process that may be open.
static OPEN: Mutex<Vec<Weak<Peer>>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<Weak<Peer>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes every connection, before the interpreter ends.
#[pyfunction]
pub(crate) fn transfer_close_all(py: Python<'_>) {
    if enter().is_err() {
        return;
    }
    py.detach(|| {
        let peers: Vec<_> = open().drain(..).filter_map(|peer| peer.upgrade()).collect();
        for peer in &peers {
            peer.start_close();
        }
        for peer in &peers {
            peer.close();
        }
    });
    held::release_all(py);
    held::leave();
}

/// A connection to another process; made by :func:`treadle.transfer.connect` and
/// ``Listener.accept``.
///
/// Both sides send and receive, from any number of threads. Objects arrive whole, and in the order
/// in which they were sent. As a context manager it is closed at the end of the block.
#[pyclass(frozen, weakref, module = "treadle.transfer")]
pub(crate) struct Connection {
    peer: Own<Arc<Peer>>,
    address: String,
    track: Track,
    closed: AtomicBool,
    last: Mutex<Option<Stages>>,
    notifier: Mutex<Option<Waker>>,
}

/// An object that may be small enough to be whole already.
enum Arrival {
    Whole(Received),
    /// How long getting its memory took.
    Coming(Incoming, Duration),
}

impl Arrival {
    /// Waits for the next object that is not given up, and lets it come.
    fn wait(peer: &Peer, wait: &mut Wait<'_>) -> Result<Self, NetError> {
        loop {
            let incoming = peer.next(wait)?;
            let began = Instant::now();
            incoming.accept(Vec::new())?;
            if !incoming.is_done() {
                return Ok(Arrival::Coming(incoming, began.elapsed()));
            }
            if let Some(received) = unless_cancelled(incoming.take())? {
                return Ok(Arrival::Whole(received));
            }
        }
    }
}

/// An object that its sender gave up was never sent.
fn unless_cancelled<T>(result: Result<T, NetError>) -> Result<Option<T>, NetError> {
    match result {
        Err(NetError::Failed(Failure::Cancelled)) => Ok(None),
        result => result.map(Some),
    }
}

impl Connection {
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
            peer: Own::new(peer),
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
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(stages);
    }

    fn receiving(&self) -> String {
        format!("receiving from {}", self.address)
    }

    /// What an error of receiving becomes.
    fn receive_failed(&self) -> impl FnOnce(NetError) -> PyErr {
        let doing = self.receiving();
        let closed = self.closed.load(Ordering::Relaxed);
        move |error| match error {
            NetError::Ended(_) if closed => {
                ConnectionClosed::new_err(format!("{doing}: the connection was closed here"))
            }
            error => failed(&doing)(error),
        }
    }

    /// Waits for the rest of an object; `None` when the peer has given it up.
    fn complete(
        &self,
        py: Python<'_>,
        incoming: Incoming,
        limit: Limit,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Received>> {
        let failed = self.receive_failed();
        let Some(mut progress) = Progress::new(progress, "Receiving")? else {
            return blocking(py, limit, None, failed, move |wait| {
                unless_cancelled(incoming.wait(wait).and_then(|()| incoming.take()))
            });
        };
        let mut look = |py: Python<'_>| progress.report(py, || incoming.progress());
        let complete = blocking(py, limit, Some(&mut look), failed, |wait| {
            unless_cancelled(incoming.wait(wait))
        })?;
        if complete.is_none() {
            return Ok(None);
        }
        let (_, total) = incoming.progress();
        progress.finish(py, total)?;
        let taken = detached(py, move || incoming.take());
        taken.map(Some).map_err(self.receive_failed())
    }

    /// Small objects that came together.
    fn decode_all<'py>(
        &self,
        py: Python<'py>,
        received: Vec<Received>,
    ) -> PyResult<Bound<'py, PyList>> {
        let Some(first) = received.first().map(|object| object.timings.started) else {
            return Ok(PyList::empty(py));
        };
        let bytes = received
            .iter()
            .flat_map(|object| &object.frames)
            .map(|frame| frame.len() as u64)
            .sum();
        let mut objects = Vec::with_capacity(received.len());
        for received in received {
            objects.push(decode(py, received)?);
        }
        Stages::batch(false, bytes, first).record(&self.track);
        PyList::new(py, objects)
    }
}

#[pymethods]
impl Connection {
    /// The other side, as people write it.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Send an object; returns when its memory may be used again.
    ///
    /// NumPy arrays, Arrow data, and whatever pickle's protocol 5 can take out of its stream go from
    /// their own memory, without a copy, and must not be written to meanwhile. An array that is not
    /// contiguous is copied once. Objects of DLPack in the CPU's memory are sent as NumPy arrays.
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
        let outgoing = Outgoing::start(py, peer, encode(obj)?, began)?;
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
        let encoded = encode(obj)?;
        if !peer.has_room() {
            let doing = format!("sending to {}", self.address);
            let limit = Limit { deadline: None };
            blocking(py, limit, None, failed(&doing), |wait| {
                peer.wait_for_room(wait)
            })?;
        }
        let outgoing = Outgoing::start(py, peer, encoded, began)?;
        outgoing.record(&self.track);
        Ok(Transfer::new(outgoing))
    }

    /// Wait for the next object. What the peer gives up is left out.
    ///
    /// NumPy arrays can be written to, are aligned to 64 bytes, and have memory of their own; inside
    /// of other objects they are read-only if they were so at the sender. ``bytes`` and ``bytearray``
    /// are copied once. Arrow data are read-only.
    ///
    /// Parameters
    /// ----------
    /// timeout : float, optional
    ///     Seconds to wait for the object to be here.
    /// progress : bool or callable, optional
    ///     As for :meth:`send`.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     It took too long. Nothing is lost: the object goes on coming, and is still the next.
    /// ConnectionClosed
    ///     The peer closed the connection, and everything that it sent was received. Also an
    ///     ``EOFError``.
    /// ConnectionEnded
    ///     The peer is gone.
    /// CorruptData
    ///     The object's bytes were damaged on the way again and again.
    #[pyo3(signature = (*, timeout=None, progress=None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let peer = self.peer()?;
        let limit = Limit::new(timeout)?;
        let (received, allocation) = loop {
            let arrival = blocking(py, limit, None, self.receive_failed(), |wait| {
                Arrival::wait(peer, wait)
            })?;
            match arrival {
                Arrival::Whole(received) => break (received, Duration::ZERO),
                Arrival::Coming(incoming, allocation) => {
                    if let Some(received) = self.complete(py, incoming, limit, progress)? {
                        break (received, allocation);
                    }
                }
            }
        };
        let (object, stages) = finish(py, received, allocation)?;
        self.remember(stages);
        Ok(object)
    }

    /// Wait for the next object, which must be an array, and receive it into ``array``.
    ///
    /// Bytes go from the socket into the array. Only what came before anybody asked for it
    /// (``prefetch``, see :func:`treadle.transfer.connect`) is copied once, as is what came as shared
    /// memory.
    ///
    /// Parameters
    /// ----------
    /// array : numpy.ndarray
    ///     Writable, and of the same dtype, shape, and order (C or Fortran) as the array that was
    ///     sent.
    /// timeout, progress
    ///     As for :meth:`recv`.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///     ``array``.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     The next object is something else. It stays the next.
    /// TimeoutError
    ///     It took too long. The object goes on coming, into this array: do not use it before the
    ///     object was received by a later call. What ``recv`` then returns views this array's memory.
    #[pyo3(signature = (array, *, timeout=None, progress=None))]
    fn recv_into<'py>(
        &self,
        py: Python<'py>,
        array: Bound<'py, PyAny>,
        timeout: Option<f64>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let peer = self.peer()?;
        let limit = Limit::new(timeout)?;
        let destination = Destination::new(&array)?;
        let received = loop {
            let incoming = blocking(py, limit, None, self.receive_failed(), |wait| {
                peer.next(wait)
            })?;
            let targets = match destination.targets(py, &incoming) {
                Ok(targets) => targets,
                Err(error) => {
                    detached(py, move || drop(incoming));
                    return Err(error);
                }
            };
            let incoming = detached(py, move || incoming.accept(targets).map(|_| incoming))
                .map_err(self.receive_failed())?;
            if let Some(received) = self.complete(py, incoming, limit, progress)? {
                break received;
            }
        };
        self.remember(finish_into(py, received, &destination)?);
        Ok(array)
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

    /// Wait for the next object, and take those that came with it.
    ///
    /// Parameters
    /// ----------
    /// max : int, optional
    ///     At most so many.
    /// timeout : float, optional
    ///     Seconds to wait for the first one.
    ///
    /// Returns
    /// -------
    /// list
    ///     One object at least.
    #[pyo3(signature = (max=None, timeout=None))]
    fn recv_many<'py>(
        &self,
        py: Python<'py>,
        max: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let most = max.unwrap_or(usize::MAX);
        if most == 0 {
            return Err(PyValueError::new_err(
                "max=0: at least one object is received",
            ));
        }
        let peer = self.peer()?;
        let limit = Limit::new(timeout)?;
        loop {
            let (received, rest) = blocking(py, limit, None, self.receive_failed(), |wait| {
                let mut received = Vec::new();
                peer.take_small(most, &mut received);
                if !received.is_empty() {
                    return Ok((received, None));
                }
                match Arrival::wait(peer, wait)? {
                    Arrival::Whole(first) => received.push(first),
                    Arrival::Coming(incoming, _) => return Ok((received, Some(incoming))),
                }
                peer.take_small(most, &mut received);
                Ok((received, None))
            })?;
            let Some(incoming) = rest else {
                return self.decode_all(py, received);
            };
            if let Some(received) = self.complete(py, incoming, limit, None)? {
                let (object, stages) = finish(py, received, Duration::ZERO)?;
                self.remember(stages);
                return PyList::new(py, [object]);
            }
        }
    }

    /// The next objects if they are small and here.
    fn _take_small<'py>(
        &self,
        py: Python<'py>,
        most: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let peer = self.peer()?;
        let received = detached(py, || {
            let mut received = Vec::new();
            peer.take_small(most.unwrap_or(usize::MAX), &mut received);
            received
        });
        self.decode_all(py, received)
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
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The next object if its header is here.
    fn _try_next(&self, py: Python<'_>) -> PyResult<Option<Receiving>> {
        let peer = self.peer()?;
        let next = detached(py, || peer.try_next()).map_err(self.receive_failed())?;
        let receiving = |incoming| Receiving::new(incoming, self.receiving(), self.track.clone());
        Ok(next.map(receiving))
    }

    /// A descriptor that becomes readable whenever something changes. Read it, then look.
    fn _notifier(&self, py: Python<'_>) -> PyResult<i32> {
        let peer = self.peer()?;
        let waker = Waker::new()?;
        let number = waker.as_fd().as_raw_fd();
        let kept = waker.clone();
        detached(py, || peer.set_waker(Some(waker)));
        *self.notifier.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        Ok(number)
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
