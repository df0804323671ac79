//! An object on its way to the peer.

use super::error;
use super::timeline::{Stages, Track, record_later};
use super::wait::{Limit, Look, blocking, detached, failed};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::{Duration, Instant};
use treadle_interpreter::ProcessLocal;
use treadle_net::{Failure, NetError, Peer, Sending, Timings};
use treadle_serialise::Encoded;

/// An object that is being sent.
pub(crate) struct Outgoing {
    sending: Sending,
    /// The connection stays open as long as somebody waits for this.
    _peer: Peer,
    doing: String,
    bytes: u64,
    began: Instant,
    prepare: Duration,
    serialise: Duration,
}

impl Outgoing {
    /// Begins to send an object.
    ///
    /// # Errors
    /// When it has too many frames.
    pub(crate) fn start(
        py: Python<'_>,
        peer: &Peer,
        encoded: Encoded,
        began: Instant,
    ) -> PyResult<Self> {
        let doing = format!("sending to {}", peer.address());
        let bytes = encoded.bytes();
        let Encoded {
            kind,
            frames,
            prepare,
            serialise,
            ..
        } = encoded;
        let sending = detached(py, move || peer.send(kind, &frames));
        Ok(Self {
            sending: sending.map_err(failed(&doing))?,
            _peer: peer.clone(),
            doing,
            bytes,
            began,
            prepare,
            serialise,
        })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.sending.is_done()
    }

    /// Bytes on their way, and in total.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let (done, total) = self.sending.progress();
        // Those in the header went with it.
        let header = self.bytes.saturating_sub(total);
        let first = if done > 0 || self.is_done() {
            header
        } else {
            0
        };
        (done + first, self.bytes)
    }

    /// Waits until the peer has it. On an error it goes on.
    pub(crate) fn wait(
        &self,
        py: Python<'_>,
        limit: Limit,
        look: Option<Look<'_>>,
    ) -> PyResult<Stages> {
        if let Some(outcome) = self.sending.outcome() {
            return self.judge(outcome);
        }
        let sending = &self.sending;
        blocking(py, limit, look, failed(&self.doing), |wait| {
            sending.wait(wait)
        })
        .map(|timings| self.stages(timings))
    }

    fn judge(&self, outcome: Result<Timings, Failure>) -> PyResult<Stages> {
        outcome
            .map(|timings| self.stages(timings))
            .map_err(|failure| error::raised(NetError::from(failure), &self.doing))
    }

    fn stages(&self, timings: Timings) -> Stages {
        Stages::sent(
            self.bytes,
            self.began,
            self.serialise,
            self.prepare,
            timings,
        )
    }

    pub(crate) fn stages_if_sent(&self) -> Option<Stages> {
        let timings = self.sending.outcome()?.ok()?;
        Some(self.stages(timings))
    }

    /// Tells recordings about it when it is over.
    pub(crate) fn record(&self, track: &Track) {
        let sending = ProcessLocal::new(self.sending.clone());
        let (bytes, began) = (self.bytes, self.began);
        let (serialise, prepare) = (self.serialise, self.prepare);
        record_later(track, move || {
            let timings = sending.peek()?.outcome()?.ok()?;
            Some(Stages::sent(bytes, began, serialise, prepare, timings))
        });
    }

    pub(crate) fn cancel(&self, py: Python<'_>) {
        detached(py, || self.sending.cancel());
    }
}

/// An object that is being sent, as ``Connection.start_send`` returns it.
///
/// It goes on whether or not anybody waits, also when this is dropped; it ends with the peer having
/// every byte, with :meth:`cancel`, or with the connection. Until then the object's memory must not
/// be written to.
#[pyclass(frozen, weakref, module = "treadle.transfer")]
pub(crate) struct Transfer(ProcessLocal<Outgoing>);

impl Transfer {
    pub(crate) fn new(outgoing: Outgoing) -> Self {
        Self(ProcessLocal::new(outgoing))
    }
}

#[pymethods]
impl Transfer {
    /// Whether the peer has it, or it has failed.
    fn done(&self) -> PyResult<bool> {
        Ok(self.0.get()?.is_done())
    }

    /// Wait until the peer has it.
    ///
    /// Parameters
    /// ----------
    /// timeout : float, optional
    ///     Seconds to wait.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     It takes longer; it goes on.
    /// TransferError
    ///     It failed: ``TransferCancelled``, ``TransferRefused``, ``ConnectionEnded``, …
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let outgoing = self.0.get()?;
        outgoing.wait(py, Limit::new(timeout)?, None).map(drop)
    }

    /// Wait until the peer has it; return what :meth:`result` would raise, or ``None``.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     It takes longer than ``timeout`` seconds.
    #[pyo3(signature = (timeout=None))]
    fn exception<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let outgoing = self.0.get()?;
        match outgoing.wait(py, Limit::new(timeout)?, None) {
            Ok(_) => Ok(None),
            Err(error) if outgoing.is_done() => {
                Ok(Some(error.into_value(py).into_bound(py).into_any()))
            }
            Err(error) => Err(error),
        }
    }

    /// Give it up, on both sides. Returns whether that is what becomes of it: ``False`` when the
    /// peer has it already, or it has failed.
    ///
    /// What of the object's memory was just being written to a socket, 512 KiB a stripe at most,
    /// may still be read for a moment.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.get()?.cancel(py);
        self.cancelled()
    }

    /// Whether it was given up.
    fn cancelled(&self) -> PyResult<bool> {
        let outcome = self.0.get()?.sending.outcome();
        Ok(matches!(outcome, Some(Err(Failure::Cancelled))))
    }

    /// ``(done, total)``: bytes that left, of so many.
    #[getter]
    fn progress(&self) -> PyResult<(u64, u64)> {
        Ok(self.0.get()?.progress())
    }

    /// Seconds that each stage took, when it is done; see ``Connection.last_timings``.
    #[getter]
    fn timings<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let outgoing = self.0.get()?;
        let stages = outgoing.stages_if_sent();
        stages.map(|stages| stages.to_dict(py)).transpose()
    }

    fn __repr__(&self) -> String {
        let Some(outgoing) = self.0.peek() else {
            return "<treadle.transfer.Transfer of the parent process>".into();
        };
        let state = match outgoing.sending.outcome() {
            None => "under way",
            Some(Ok(_)) => "done",
            Some(Err(Failure::Cancelled)) => "cancelled",
            Some(Err(_)) => "failed",
        };
        format!(
            "<treadle.transfer.Transfer {} of {} bytes, {state}>",
            outgoing.doing, outgoing.bytes
        )
    }
}
