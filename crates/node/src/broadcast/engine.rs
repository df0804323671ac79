//! Casts for the engine.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_broadcast::CastId;
use treadle_net::Frame;
use treadle_types::ClientId;

use super::payload;
use crate::lock;

/// What an engine is to do.
#[derive(Debug)]
pub struct Cast {
    /// Whose.
    pub client: ClientId,
    /// The client's number.
    pub number: u64,
    /// What the client sent. They are this engine's to write.
    pub frames: Vec<Frame>,
}

/// What a thread that waits for a cast gets.
#[derive(Debug)]
pub enum Next {
    /// A cast.
    Cast(Cast),
    /// Something else wants the thread.
    Nudged,
    /// Nothing came until the timeout, or there will be nothing.
    Nothing,
}

/// Casts whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Engine {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    casts: VecDeque<(CastId, Bytes)>,
    /// Whether a thread has asked for casts.
    attended: bool,
    /// A thread is to look elsewhere.
    nudged: bool,
    closed: bool,
}

impl Engine {
    /// Adds a cast; whether a thread will take it.
    pub(super) fn put(&self, cast: CastId, payload: Bytes) -> bool {
        let mut queue = lock(&self.queue);
        queue.casts.push_back((cast, payload));
        let is_attended = queue.attended;
        drop(queue);
        self.changed.notify_one();
        is_attended
    }

    pub(super) fn next(&self, timeout: Duration) -> Next {
        let deadline = Instant::now() + timeout;
        let mut queue = lock(&self.queue);
        queue.attended = true;
        let (cast, payload) = loop {
            if queue.closed {
                return Next::Nothing;
            }
            if std::mem::take(&mut queue.nudged) {
                return Next::Nudged;
            }
            if let Some(next) = queue.casts.pop_front() {
                break next;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Nothing;
            }
            let waited = self.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(queue);
        Next::Cast(Cast {
            client: cast.session,
            number: cast.number,
            // What is no payload was not made by this code: the engine makes of it what it can.
            frames: payload::unpack(&payload).unwrap_or_default(),
        })
    }

    /// Has a thread that waits, or the next one that would, look elsewhere.
    pub(super) fn nudge(&self) {
        lock(&self.queue).nudged = true;
        self.changed.notify_one();
    }

    /// Casts that wait.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.queue).casts.len()
    }

    /// Takes casts back that wait.
    pub(super) fn withdraw(&self, which: impl Fn(CastId) -> bool) -> VecDeque<(CastId, Bytes)> {
        let mut queue = lock(&self.queue);
        let casts = std::mem::take(&mut queue.casts);
        let (withdrawn, kept) = casts.into_iter().partition(|(cast, _)| which(*cast));
        queue.casts = kept;
        withdrawn
    }

    pub(super) fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }
}
