//! Sending many objects.

use super::sending::Outgoing;
use super::wait::{Limit, blocking, failed};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::time::Instant;
use treadle_net::Peer;
use treadle_serialise::{BYTES, PICKLE, encode_as_array};

/// The largest object that is sent together with others, in bytes.
const MAX_SMALL: usize = 32 * 1024;

/// Objects that leave together.
pub(crate) struct Batch<'a> {
    peer: &'a Peer,
    limit: Limit,
    /// Small ones, in order, with their kinds; all of them come before `large`'s last one or after
    /// it, as `flush` is called in between.
    small: Vec<(u32, Py<PyBytes>)>,
    bytes: usize,
    large: Vec<Outgoing>,
    /// Bytes of all of them.
    pub(crate) sent: u64,
}

impl<'a> Batch<'a> {
    /// Objects are collected up to so many bytes, or in number.
    const BYTES: usize = 1 << 20;
    const OBJECTS: usize = 4096;

    pub(crate) fn new(peer: &'a Peer, limit: Limit) -> Self {
        Self {
            peer,
            limit,
            small: Vec::new(),
            bytes: 0,
            large: Vec::new(),
            sent: 0,
        }
    }

    pub(crate) fn add(&mut self, py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(bytes) = object.cast_exact::<PyBytes>()
            && bytes.as_bytes().len() <= MAX_SMALL
        {
            return self.add_small(py, BYTES, bytes);
        }
        let began = Instant::now();
        let encoded = encode_as_array(object)?;
        if encoded.kind == PICKLE
            && let [stream] = &encoded.frames[..]
            && stream.len() <= MAX_SMALL
        {
            return self.add_small(py, PICKLE, &PyBytes::new(py, stream));
        }
        self.flush(py)?;
        self.sent += encoded.bytes();
        let doing = format!("sending to {}", self.peer.address());
        if !self.peer.has_room() {
            let peer = self.peer;
            blocking(py, self.limit, None, failed(&doing), |wait| {
                peer.wait_for_room(wait)
            })?;
        }
        self.large
            .push(Outgoing::start(py, self.peer, encoded, began)?);
        Ok(())
    }

    fn add_small(&mut self, py: Python<'_>, kind: u32, bytes: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.bytes += bytes.as_bytes().len();
        self.sent += bytes.as_bytes().len() as u64;
        self.small.push((kind, bytes.clone().unbind()));
        if self.bytes >= Self::BYTES || self.small.len() >= Self::OBJECTS {
            self.flush(py)?;
        }
        Ok(())
    }

    /// Sends the small ones.
    pub(crate) fn flush(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.small.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        let small = std::mem::take(&mut self.small);
        let slices: Vec<(u32, &[u8])> = small
            .iter()
            .map(|(kind, bytes)| (*kind, bytes.as_bytes(py)))
            .collect();
        let peer = self.peer;
        let doing = format!("sending to {}", peer.address());
        blocking(py, self.limit, None, failed(&doing), move |wait| {
            peer.send_many(slices.into_iter(), wait)
        })
    }

    /// Waits for the large ones.
    pub(crate) fn finish(&mut self, py: Python<'_>) -> PyResult<()> {
        for outgoing in &self.large {
            outgoing.wait(py, self.limit, None)?;
        }
        Ok(())
    }

    pub(crate) fn cancel(&self, py: Python<'_>) {
        for outgoing in &self.large {
            outgoing.cancel(py);
        }
    }
}
