//! Waiting for any of many pairs.
//!
//! A [`Poller`] queues the pairs of which something changed, each at most once, and hands each to
//! one thread at a time. One of the threads that wait leads the driver (see `driver`); it serves
//! what it finds itself, without a hand-over, and wakes another thread only if there is more.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::Instant;

use crate::driver::{Driver, Wait, Waiters, drivers};
use crate::error::NetError;
use crate::lane::Lane;

/// A queue of pairs that want attention; [`Peer::watch`](crate::Peer::watch) adds one.
#[derive(Debug)]
pub struct Poller {
    driver: Arc<Driver>,
    /// The thread that waits at the driver.
    leader: Waiters,
    queue: Mutex<Queue>,
    /// The other threads that wait.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    ready: VecDeque<Arc<Watch>>,
    /// Who waits at the driver.
    leader: Option<ThreadId>,
    idle: usize,
}

/// A pair in a poller.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Weak, since the poller holds what is queued: what nobody polls any more goes.
    poller: Weak<Poller>,
    key: usize,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Queued,
    /// A thread has it.
    Taken,
    /// A thread has it, and something changed since.
    TakenAndChanged,
}

impl Poller {
    /// An empty one.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub fn new() -> Result<Arc<Self>, NetError> {
        let drivers = drivers().map_err(|source| NetError::io("starting to poll", source))?;
        Ok(Self::with(&drivers[0]))
    }

    /// An empty one for pairs in a lane, which the threads that wait here drive.
    pub fn on(lane: &Lane) -> Arc<Self> {
        Self::with(lane.driver())
    }

    /// Something of the application that gets turns as `key` too; none yet.
    pub fn signal(self: &Arc<Self>, key: usize) -> Signal {
        Signal(Watch::new(self, key))
    }

    fn with(driver: &Arc<Driver>) -> Arc<Self> {
        Arc::new(Self {
            driver: Arc::clone(driver),
            leader: Waiters::default(),
            queue: Mutex::default(),
            idle: Condvar::new(),
        })
    }

    /// Waits for a pair of which something changed, the one that has waited longest. No other
    /// thread gets it before the turn is dropped.
    ///
    /// # Errors
    /// When the wait ends.
    pub fn next(&self, wait: &mut Wait<'_>) -> Result<Turn, NetError> {
        loop {
            let mut queue = self.queue();
            if let Some(watch) = queue.ready.pop_front() {
                if queue.idle > 0 && !queue.ready.is_empty() {
                    self.idle.notify_one();
                }
                drop(queue);
                watch.set(State::Taken);
                return Ok(Turn(watch));
            }
            if queue.leader.is_some() {
                queue.idle += 1;
                let (mut queue, timeout) = self
                    .idle
                    .wait_timeout(queue, wait.look())
                    .unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
                drop(queue);
                if timeout.timed_out() {
                    if wait.is_interrupted() {
                        return Err(NetError::Interrupted);
                    }
                    if wait
                        .deadline
                        .is_some_and(|deadline| Instant::now() >= deadline)
                    {
                        return Err(NetError::Timeout);
                    }
                }
                continue;
            }
            queue.leader = Some(std::thread::current().id());
            drop(queue);
            let mut done = || !self.queue().ready.is_empty();
            let waited = self.driver.wait(&self.leader, &mut done, wait);
            let mut queue = self.queue();
            queue.leader = None;
            if let Err(early) = waited {
                if queue.idle > 0 {
                    self.idle.notify_one();
                }
                return Err(early.into());
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, watch: Arc<Watch>) {
        let mut queue = self.queue();
        queue.ready.push_back(watch);
        let (leader, idle) = (queue.leader, queue.idle);
        drop(queue);
        match leader {
            // It looks at the queue after each turn of the driver.
            Some(thread) if thread == std::thread::current().id() => {}
            Some(_) => {
                self.leader.wake();
                self.driver.ring();
            }
            None if idle > 0 => self.idle.notify_one(),
            None => {}
        }
    }
}

impl Watch {
    pub(crate) fn new(poller: &Arc<Poller>, key: usize) -> Arc<Self> {
        Arc::new(Self {
            poller: Arc::downgrade(poller),
            key,
            state: Mutex::new(State::Idle),
        })
    }

    /// Something changed.
    pub(crate) fn changed(self: &Arc<Self>) {
        let mut state = self.state();
        match *state {
            State::Idle => {
                *state = State::Queued;
                drop(state);
                self.queue();
            }
            State::Taken => *state = State::TakenAndChanged,
            State::Queued | State::TakenAndChanged => {}
        }
    }

    fn queue(self: &Arc<Self>) {
        if let Some(poller) = self.poller.upgrade() {
            poller.push(Arc::clone(self));
        }
    }

    fn set(&self, state: State) {
        *self.state() = state;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queues a key of the application's own in a poller.
#[derive(Clone, Debug)]
pub struct Signal(Arc<Watch>);

impl Signal {
    /// The key gets a turn.
    pub fn set(&self) {
        self.0.changed();
    }
}

/// A pair that a thread has to itself.
#[derive(Debug)]
pub struct Turn(Arc<Watch>);

impl Turn {
    /// What the pair was added as.
    pub fn key(&self) -> usize {
        self.0.key
    }

    /// There is more to do: the pair gets another turn, after the others.
    pub fn again(self) {
        self.0.set(State::TakenAndChanged);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if *state == State::TakenAndChanged {
            *state = State::Queued;
            drop(state);
            self.0.queue();
        } else {
            *state = State::Idle;
        }
    }
}
