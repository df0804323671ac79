//! Which of the threads that wait leads: takes what comes, and processes it.

use std::sync::{Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Instant;

use treadle_net::{NetError, Wait};

use crate::lock;

/// A role that one thread has at a time. That thread may take it again: what it processes may run
/// code that waits, too.
#[derive(Debug, Default)]
pub(super) struct Role {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    holder: Option<ThreadId>,
    depth: u32,
    /// How often it was given back.
    rounds: u64,
    waiting: usize,
}

impl Role {
    /// How often somebody has processed something.
    pub(super) fn rounds(&self) -> u64 {
        lock(&self.state).rounds
    }

    /// Whether a thread has it.
    pub(super) fn is_taken(&self) -> bool {
        lock(&self.state).holder.is_some()
    }

    /// Takes the role if it is free; how often this thread has it now.
    pub(super) fn try_take(&self) -> Option<u32> {
        let state = &mut *lock(&self.state);
        let own = std::thread::current().id();
        if state.holder.is_some_and(|holder| holder != own) {
            return None;
        }
        state.holder = Some(own);
        state.depth += 1;
        Some(state.depth)
    }

    /// Waits for the role. Nothing: another thread has processed something since there were `seen`
    /// rounds.
    pub(super) fn take(&self, seen: u64, wait: &mut Wait<'_>) -> Result<Option<u32>, NetError> {
        let own = std::thread::current().id();
        loop {
            let mut state = lock(&self.state);
            // First: what this thread waits for may have come in another's round, and then nothing
            // else may come to end its own.
            if state.rounds != seen {
                return Ok(None);
            }
            if state.holder.is_none_or(|holder| holder == own) {
                state.holder = Some(own);
                state.depth += 1;
                return Ok(Some(state.depth));
            }
            state.waiting += 1;
            let (mut state, timeout) = self
                .changed
                .wait_timeout(state, wait.look())
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            state.waiting -= 1;
            drop(state);
            if timeout.timed_out() {
                if wait.is_interrupted() {
                    return Err(NetError::Interrupted);
                }
                let late = |deadline| Instant::now() >= deadline;
                if wait.deadline.is_some_and(late) {
                    return Err(NetError::Timeout);
                }
            }
        }
    }

    /// Gives it back.
    pub(super) fn leave(&self) {
        let mut state = lock(&self.state);
        state.rounds += 1;
        state.depth -= 1;
        if state.depth == 0 {
            state.holder = None;
        }
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.changed.notify_all();
        }
    }
}
