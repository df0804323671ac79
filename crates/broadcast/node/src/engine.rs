//! Casts for the engine.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use treadle_broadcast::CastId;
use treadle_net::Frame;
use treadle_reactor::thread::lock;
use treadle_types::ClientId;

use super::payload::Payload;

/// What an engine is to do.
#[derive(Debug)]
pub struct Cast {
    pub client: ClientId,
    /// The client's number.
    pub number: u64,
    /// What the client sent. They are this engine's to write.
    pub frames: Vec<Frame>,
}

/// What a thread that waits for a cast gets.
#[derive(Debug)]
pub enum Next {
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

/// A cast that waits for the engine.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) cast: CastId,
    payload: Payload,
}

#[derive(Debug, Default)]
struct Queue {
    casts: VecDeque<Waiting>,
    /// Whether a thread has asked for casts.
    attended: bool,
    /// Whether one waits here.
    waits: bool,
    /// A thread is to look elsewhere.
    nudged: bool,
    closed: bool,
}

impl Engine {
    /// Adds a cast.
    pub(super) fn put(&self, cast: CastId, payload: Payload) {
        let mut queue = lock(&self.queue);
        queue.casts.push_back(Waiting { cast, payload });
        self.wake(queue);
    }

    /// Whether a thread has ever asked for casts.
    pub(super) fn is_attended(&self) -> bool {
        lock(&self.queue).attended
    }

    /// What there is for the thread that asks; nothing yet: `None`.
    pub(super) fn take(&self) -> Option<Next> {
        Self::take_locked(lock(&self.queue)).ok()
    }

    /// The same, once there is something, or when it is too late.
    pub(super) fn wait(&self, deadline: Instant) -> Next {
        let mut queue = lock(&self.queue);
        loop {
            queue = match Self::take_locked(queue) {
                Ok(next) => return next,
                Err(queue) => queue,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Nothing;
            }
            queue.waits = true;
            let waited = self.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            queue.waits = false;
        }
    }

    fn take_locked(mut queue: MutexGuard<'_, Queue>) -> Result<Next, MutexGuard<'_, Queue>> {
        queue.attended = true;
        if queue.closed {
            return Ok(Next::Nothing);
        }
        if std::mem::take(&mut queue.nudged) {
            return Ok(Next::Nudged);
        }
        let Some(waiting) = queue.casts.pop_front() else {
            return Err(queue);
        };
        drop(queue);
        let Waiting { cast, payload } = waiting;
        Ok(Next::Cast(Cast {
            client: cast.session,
            number: cast.number,
            // What is no payload was not made by this code: the engine makes of it what it can.
            frames: payload.into_frames().unwrap_or_default(),
        }))
    }

    fn wake(&self, queue: MutexGuard<'_, Queue>) {
        let waits = queue.waits;
        drop(queue);
        if waits {
            self.changed.notify_all();
        }
    }

    /// Has a thread that waits, or the next one that would, look elsewhere.
    pub(super) fn nudge(&self) {
        let mut queue = lock(&self.queue);
        queue.nudged = true;
        self.wake(queue);
    }

    /// Casts that wait.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.queue).casts.len()
    }

    /// Takes casts back that wait.
    pub(super) fn withdraw(&self, which: impl Fn(CastId) -> bool) -> VecDeque<Waiting> {
        let mut queue = lock(&self.queue);
        let casts = std::mem::take(&mut queue.casts);
        let (withdrawn, kept) = casts.into_iter().partition(|waiting| which(waiting.cast));
        queue.casts = kept;
        withdrawn
    }

    pub(super) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        self.wake(queue);
    }
}
