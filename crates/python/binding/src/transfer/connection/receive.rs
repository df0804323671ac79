//! Receiving from a connection.

use super::TransferConnection;
use crate::transfer::error::ConnectionClosed;
use crate::transfer::progress::Progress;
use crate::transfer::receiving::{Receiving, finish, finish_into};
use crate::transfer::timeline::Stages;
use crate::transfer::wait::{Limit, blocking, detached, failed};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use treadle_net::{Failure, Incoming, NetError, Peer, Received, Wait};
use treadle_serialise::{Destination, decode};

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

impl TransferConnection {
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

/// How many objects are received at most.
fn at_most(max: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
    let Some(max) = max else {
        return Ok(usize::MAX);
    };
    let py = max.py();
    let number = match max.extract::<usize>() {
        Err(error) if !error.is_instance_of::<PyOverflowError>(py) => {
            return Err(PyTypeError::new_err(format!(
                "max={}: give an integer, 1 or more",
                max.repr()?
            )));
        }
        Err(_) if max.gt(0)? => usize::MAX,
        other => other.unwrap_or(0),
    };
    match number {
        0 => Err(PyValueError::new_err(format!(
            "max={}: at least one object is received",
            max.repr()?
        ))),
        most => Ok(most),
    }
}

#[pymethods]
impl TransferConnection {
    /// Wait for the next object. What the peer gives up is left out.
    ///
    /// NumPy arrays and tensors can be written to, are aligned to 64 bytes, and have memory of their own; inside
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

    /// Wait for the next object, which must be an array or a tensor, and receive it into ``array``.
    ///
    /// Bytes go from the socket into the array. Only what came before anybody asked for it
    /// (``prefetch``, see :func:`treadle.transfer.connect`) is copied once, as is what came as shared
    /// memory.
    ///
    /// Parameters
    /// ----------
    /// array : numpy.ndarray, torch.Tensor, or another array that DLPack lets be written
    ///     Of the same dtype, shape, and order (C or Fortran) as the array that was sent. A tensor must
    ///     not require a gradient.
    /// timeout, progress
    ///     As for :meth:`recv`.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray or torch.Tensor
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
        max: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let most = at_most(max)?;
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
        most: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let most = at_most(most)?;
        let peer = self.peer()?;
        let received = detached(py, || {
            let mut received = Vec::new();
            peer.take_small(most, &mut received);
            received
        });
        self.decode_all(py, received)
    }

    /// The next object if its header is here.
    fn _try_next(&self, py: Python<'_>) -> PyResult<Option<Receiving>> {
        let peer = self.peer()?;
        let next = detached(py, || peer.try_next()).map_err(self.receive_failed())?;
        let receiving = |incoming| Receiving::new(incoming, self.receiving(), self.track.clone());
        Ok(next.map(receiving))
    }
}
