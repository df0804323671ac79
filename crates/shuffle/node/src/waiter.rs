//! Threads that wait for their tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

/// The thread of a task. It is woken when something comes for its task, and not for those of other threads.
#[derive(Debug)]
pub struct Waiter {
    thread: Thread,
    is_called: AtomicBool,
}

impl Waiter {
    /// The calling thread.
    pub(crate) fn current() -> Arc<Self> {
        Arc::new(Self {
            thread: std::thread::current(),
            is_called: AtomicBool::new(false),
        })
    }

    /// Something has come. `true`: it must be [woken](Self::unpark) for that; else somebody does it already.
    pub(crate) fn call(&self) -> bool {
        !self.is_called.swap(true, Ordering::AcqRel)
    }

    /// Whether something has come since this was asked last.
    pub(crate) fn was_called(&self) -> bool {
        self.is_called.swap(false, Ordering::AcqRel)
    }

    /// Wakes it, if it is parked.
    pub fn unpark(&self) {
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_those_that_call_wakes_it() {
        let waiter = Waiter::current();
        assert!(!waiter.was_called());
        assert!(waiter.call());
        assert!(!waiter.call(), "it is being woken");
        assert!(waiter.was_called());
        assert!(!waiter.was_called());
        assert!(waiter.call(), "it may be parked again");
    }

    #[test]
    fn what_comes_before_it_parks_is_not_missed() {
        let waiter = Waiter::current();
        waiter.call();
        waiter.unpark();
        // It would stay here otherwise.
        std::thread::park();
        assert!(waiter.was_called());
    }
}
