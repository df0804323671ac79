//! The end of a server: whether it is over, and why.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use treadle_reactor::thread::lock;

#[derive(Debug, Default)]
pub(super) struct End {
    why: Mutex<Option<String>>,
    changed: Condvar,
}

impl End {
    /// Ends the server. What was said first counts.
    pub(super) fn end(&self, reason: &str) {
        lock(&self.why).get_or_insert_with(|| reason.into());
        self.changed.notify_all();
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.why).is_some()
    }

    /// Waits until it is over. `None`: the time has passed.
    pub(super) fn wait(&self, most: Duration) -> Option<String> {
        self.wait_or(most, || false)
    }

    /// The same; `None` also when `is_so`, which is asked again after each [`Self::call`].
    pub(super) fn wait_or(&self, most: Duration, is_so: impl Fn() -> bool) -> Option<String> {
        let why = lock(&self.why);
        let waited = self
            .changed
            .wait_timeout_while(why, most, |why| why.is_none() && !is_so());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// What somebody waits for beside the end may be so.
    pub(super) fn call(&self) {
        // Who has just asked waits by now.
        drop(lock(&self.why));
        self.changed.notify_all();
    }
}
