//! How tasks go on, for a service that wants to hear of it.

use super::service::Service;
use bytes::Bytes;
use pyo3::intern;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use treadle_interpreter::lock;
use treadle_recipe as recipe;

/// How long a task waits until the service has heard of it. A plugin that does not return keeps one thread.
const PATIENCE: Duration = Duration::from_secs(60);

/// The key of a task, encoded, and the states before and after.
type Step = (Bytes, &'static str, &'static str);

/// The steps of tasks that the service has not heard of yet, in their order.
///
/// Native threads add to them without the interpreter; who has it tells them, one thread at a time.
#[derive(Default)]
pub(super) struct Steps {
    queue: Mutex<Queue>,
    /// A step was told, or nobody tells any more.
    moved: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Step>,
    /// How many were added, and how many of these were told.
    added: u64,
    told: u64,
    is_telling: bool,
}

impl Steps {
    /// Adds a step; whether it is the only one that waits.
    pub(super) fn push(&self, key: Bytes, from: &'static str, to: &'static str) -> bool {
        let mut queue = lock(&self.queue);
        queue.waiting.push_back((key, from, to));
        queue.added += 1;
        queue.waiting.len() == 1
    }

    /// Tells what waits, unless another thread does so.
    pub(super) fn tell(&self, py: Python<'_>, service: &Service) {
        while let Some((step, telling)) = self.begin() {
            Self::say(py, service, step);
            drop(telling);
        }
    }

    /// The same; returns when all that was added before was told. `false`: another thread has not
    /// told it in time, and still will.
    pub(super) fn tell_all(&self, py: Python<'_>, service: &Service) -> bool {
        let last = lock(&self.queue).added;
        let until = Instant::now() + PATIENCE;
        loop {
            self.tell(py, service);
            let left = until.saturating_duration_since(Instant::now());
            let all = py.detach(|| {
                // If nobody tells, this thread does, in the next round.
                let waits = |queue: &mut Queue| queue.told < last && queue.is_telling;
                let waited = self
                    .moved
                    .wait_timeout_while(lock(&self.queue), left, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0.told >= last
            });
            if all {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    fn begin(&self) -> Option<(Step, Telling<'_>)> {
        let mut queue = lock(&self.queue);
        if queue.is_telling {
            return None;
        }
        let step = queue.waiting.pop_front()?;
        queue.is_telling = true;
        Some((step, Telling(self)))
    }

    fn say(py: Python<'_>, service: &Service, (key, from, to): Step) {
        let outcome = recipe::decode_key(py, &key)
            .and_then(|key| service.call(py, intern!(py, "transition"), (key, from, to)));
        if let Err(error) = outcome {
            error.write_unraisable(py, None);
        }
    }
}

/// A thread tells a step. It ends with this value, after a panic, too: others wait for it.
struct Telling<'a>(&'a Steps);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        queue.told += 1;
        queue.is_telling = false;
        drop(queue);
        self.0.moved.notify_all();
    }
}
