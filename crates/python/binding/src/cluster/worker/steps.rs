//! How tasks go on, for a service that wants to hear of it.

use super::service::Service;
use bytes::Bytes;
use pyo3::intern;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use treadle_interpreter::lock;
use treadle_recipe as recipe;

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
        while let Some(step) = self.begin() {
            Self::say(py, service, step);
            self.end();
        }
    }

    /// The same; returns when all that was added before was told.
    pub(super) fn tell_all(&self, py: Python<'_>, service: &Service) {
        let last = lock(&self.queue).added;
        loop {
            self.tell(py, service);
            let all = py.detach(|| {
                let queue = lock(&self.queue);
                // If nobody tells, this thread does, in the next round.
                if queue.told >= last || !queue.is_telling {
                    return queue.told >= last;
                }
                let waited = self.moved.wait(queue);
                waited.unwrap_or_else(PoisonError::into_inner).told >= last
            });
            if all {
                return;
            }
        }
    }

    fn begin(&self) -> Option<Step> {
        let mut queue = lock(&self.queue);
        if queue.is_telling {
            return None;
        }
        let step = queue.waiting.pop_front()?;
        queue.is_telling = true;
        Some(step)
    }

    fn end(&self) {
        let mut queue = lock(&self.queue);
        queue.told += 1;
        queue.is_telling = false;
        drop(queue);
        self.moved.notify_all();
    }

    fn say(py: Python<'_>, service: &Service, (key, from, to): Step) {
        let outcome = recipe::decode_key(py, &key)
            .and_then(|key| service.call(py, intern!(py, "transition"), (key, from, to)));
        if let Err(error) = outcome {
            error.write_unraisable(py, None);
        }
    }
}
