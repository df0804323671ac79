//! How long the stages of a transfer took.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use treadle_engine::trace::{Lookup, Recorders, Transfer};
use treadle_interpreter::clock;
use treadle_net::Timings;

/// A connection, as the timeline names it.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    number: u64,
    peer: String,
}

impl Track {
    pub(crate) fn new(peer: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            peer: peer.to_owned(),
        }
    }
}

/// The stages of one transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    sent: bool,
    pub(crate) bytes: u64,
    /// The call began, or, receiving, the object's header arrived.
    began: Instant,
    /// Sender: pickling.
    serialise: Duration,
    /// Sender: getting hold of the memory, copying what is not contiguous.
    prepare: Duration,
    /// Sender: the object was handed over. Receiver: its header arrived.
    started: Instant,
    /// The receiver's memory is ready.
    accepted: Instant,
    /// Every byte is in place.
    finished: Instant,
    /// Receiver: getting the memory, before `accepted`.
    allocation: Duration,
    /// Receiver: making the object, before `ended`.
    place: Duration,
    ended: Instant,
}

impl Stages {
    /// Those of an object that was sent.
    pub(crate) fn sent(
        bytes: u64,
        began: Instant,
        serialise: Duration,
        prepare: Duration,
        timings: Timings,
    ) -> Self {
        Self {
            sent: true,
            bytes,
            began,
            serialise,
            prepare,
            started: timings.started,
            accepted: timings.accepted.unwrap_or(timings.started),
            finished: timings.finished,
            allocation: Duration::ZERO,
            place: Duration::ZERO,
            ended: timings.finished,
        }
    }

    /// Those of an object that was received, and that is being made since `taken`.
    pub(crate) fn received(
        bytes: u64,
        timings: Timings,
        allocation: Duration,
        taken: Instant,
    ) -> Self {
        let ended = Instant::now();
        Self {
            sent: false,
            bytes,
            began: timings.started,
            serialise: Duration::ZERO,
            prepare: Duration::ZERO,
            started: timings.started,
            accepted: timings.accepted.unwrap_or(timings.started),
            finished: timings.finished,
            allocation,
            place: ended - taken,
            ended,
        }
    }

    /// Those of objects that went together, between `began` and now.
    pub(crate) fn batch(sent: bool, bytes: u64, began: Instant) -> Self {
        let ended = Instant::now();
        Self {
            sent,
            bytes,
            began,
            serialise: Duration::ZERO,
            prepare: Duration::ZERO,
            started: began,
            accepted: began,
            finished: ended,
            allocation: Duration::ZERO,
            place: Duration::ZERO,
            ended,
        }
    }

    /// In seconds.
    pub(crate) fn to_dict<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("bytes", self.bytes)?;
        let stages = [
            ("prepare", self.prepare),
            ("serialise", self.serialise),
            ("accept", self.accepted - self.started),
            ("wire", self.finished - self.accepted),
            ("place", self.allocation + self.place),
            ("total", self.ended - self.began),
        ];
        for (name, duration) in stages {
            dict.set_item(name, duration.as_secs_f64())?;
        }
        Ok(dict)
    }

    fn transfer(self, track: &Track) -> Transfer {
        let (now, on_clock) = (Instant::now(), clock::now());
        let time = |instant: Instant| on_clock - (now - instant).as_nanos() as u64;
        let serialised = self.began + self.serialise;
        let spans = [
            ("serialise", self.began, serialised),
            ("prepare", serialised, serialised + self.prepare),
            ("wait for accept", self.started, self.accepted),
            ("wire", self.accepted, self.finished),
            ("place", self.ended - self.place, self.ended),
        ];
        Transfer {
            sent: self.sent,
            peer: track.peer.clone(),
            connection: track.number,
            bytes: self.bytes,
            start: time(self.began),
            end: time(self.ended),
            stages: spans
                .into_iter()
                .filter(|(_, start, end)| end > start)
                .map(|(name, start, end)| (name, time(start), time(end)))
                .collect(),
        }
    }

    /// Tells the recordings that are switched on.
    pub(crate) fn record(self, track: &Track) {
        record_later(track, move || Some(self));
    }
}

/// Tells the recordings that are switched on of a transfer, to ask about it when they end.
pub(crate) fn record_later(track: &Track, look: impl Fn() -> Option<Stages> + Send + 'static) {
    let recorders = Recorders::active();
    if recorders.any() {
        let track = track.clone();
        let lookup: Lookup = Box::new(move || look().map(|stages| stages.transfer(&track)));
        recorders.transfer(lookup);
    }
}
