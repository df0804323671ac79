//! Casts that are not the engine's: values to keep, and calls of the Python side.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use treadle_broadcast::CastId;
use treadle_broadcast_node::{unpack, values};
use treadle_messages::{Answer, Call};
use treadle_reactor::thread::{self, caught, lock};
use treadle_store::Frames;
use treadle_types::ObjectId;

use super::Inner;

/// How long a value may wait for room in memory.
const ROOM: Duration = Duration::from_secs(30);
/// Calls that came as casts have numbers from here on; those that the scheduler routes are counted
/// from 0.
const FIRST: u64 = 1 << 63;

/// Calls that came as casts and were not answered.
#[derive(Debug, Default)]
pub(super) struct CastCalls(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    count: u64,
    by_id: HashMap<u64, CastId>,
    /// They came before the embedder was there.
    early: Vec<Call>,
}

impl Inner {
    /// A client has brought values: keeps them, in a thread of its own, since they may wait for room.
    pub(super) fn keep_cast(self: Arc<Self>, cast: CastId, payload: Bytes) {
        let keep = Arc::new(move || {
            let kept = caught(|| self.keep_values(&payload));
            let answer = kept
                .unwrap_or_else(|reason| vec![values::failure(values::ALL, &reason.to_string())]);
            self.plane.finished(cast.session, cast.number, answer);
        });
        let body = Arc::clone(&keep);
        if thread::start("treadle-keep", move || body()).is_err() {
            keep();
        }
    }

    /// What is to be answered.
    fn keep_values(&self, payload: &Bytes) -> Vec<Bytes> {
        let name = &self.options.name;
        let Some(packed) = values::unpack(payload) else {
            let reason = format!("worker {name} got something else than values");
            return vec![values::failure(values::ALL, &reason)];
        };
        let mut failures = Vec::new();
        for (position, value) in packed.into_iter().enumerate() {
            let object = ObjectId::from_u64(value.object);
            let frames = Frames::new(value.kind, value.frames);
            let nbytes = frames.nbytes();
            match self.values.put(object, frames, ROOM) {
                Ok(()) => self.brought(object, nbytes),
                Err(error) => {
                    let reason = format!("worker {name}: {}", error.error);
                    failures.push(values::failure(position, &reason));
                }
            }
        }
        failures
    }

    /// A client asks the Python side something.
    pub(super) fn call_cast(&self, cast: CastId, payload: &Bytes) {
        let mut frames = unpack(payload).unwrap_or_default().into_iter();
        let [operation, argument] = [frames.next(), frames.next()]
            .map(|frame| frame.map_or_else(Bytes::new, treadle_net::Frame::into_bytes));
        let mut open = lock(&self.cast_calls.0);
        let call = Call {
            id: FIRST + open.count,
            node: format!("{:?}", cast.session),
            operation: String::from_utf8_lossy(&operation).into_owned(),
            argument,
        };
        open.count += 1;
        open.by_id.insert(call.id, cast);
        let Some(embedder) = self.embedder.get() else {
            open.early.push(call);
            return;
        };
        drop(open);
        embedder.call(call);
    }

    /// The embedder is there.
    pub(super) fn call_early(&self) {
        let early = std::mem::take(&mut lock(&self.cast_calls.0).early);
        for call in early {
            if let Some(embedder) = self.embedder.get() {
                embedder.call(call);
            }
        }
    }

    /// Answers a call that came as a cast; gives other answers back.
    pub(super) fn answer_cast(&self, answer: Answer) -> Option<Answer> {
        let cast = lock(&self.cast_calls.0).by_id.remove(&answer.id);
        let Some(cast) = cast else {
            return Some(answer);
        };
        let (is_error, bytes) = match answer.result {
            Ok(value) => (0_u8, value),
            Err(error) => (1, error),
        };
        let frames = vec![Bytes::copy_from_slice(&[is_error]), bytes];
        self.plane.finished(cast.session, cast.number, frames);
        None
    }
}
