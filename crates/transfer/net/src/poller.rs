//! Waiting for any of many pairs.
//!
//! A [`Poller`] queues the pairs of which something changed, each at most once, and hands each to
//! one thread at a time. One of the threads that wait leads: it waits at the driver, which it may
//! lead too. It serves what it finds itself, without a hand-over, and another thread is called only
//! if there is more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use treadle_reactor::leader::{Handover, Leadership};
use treadle_reactor::thread::lock;
use treadle_reactor::{Driver, Wait, Waiters, drivers};

use crate::error::NetError;
use crate::lane::Lane;

/// A queue of pairs that want attention; [`Peer::watch`](crate::Peer::watch) adds one.
#[derive(Debug)]
pub struct Poller {
    driver: Arc<Driver>,
    ready: Mutex<VecDeque<Arc<Watch>>>,
    leadership: Leadership,
    /// The thread that leads here, while it waits at the driver.
    leader: Waiters,
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
            ready: Mutex::default(),
            leadership: Leadership::new(Handover::Nobody),
            leader: Waiters::default(),
        })
    }

    /// Waits for a pair of which something changed, the one that has waited longest. No other
    /// thread gets it before the turn is dropped.
    ///
    /// # Errors
    /// When the wait ends.
    pub fn next(&self, wait: &mut Wait<'_>) -> Result<ReadyGuard, NetError> {
        let mut found = lock(&self.ready).pop_front();
        while found.is_none() {
            let mut done = || {
                found = lock(&self.ready).pop_front();
                found.is_some()
            };
            if let Some(leader) = self.leadership.lead(&mut done, wait)? {
                let mut slice = Wait {
                    deadline: Some(Instant::now() + wait.look()),
                    interrupted: None,
                };
                let waited = self.driver.wait(&self.leader, &mut done, &mut slice);
                drop(leader);
                if waited.is_err() {
                    // Somebody else is to wait at the driver. What `wait` asks may wait here, too.
                    self.leadership.call();
                    wait.check()?;
                }
            }
        }
        if !lock(&self.ready).is_empty() {
            self.leadership.call();
        }
        let watch = found.expect("the wait ended with it");
        watch.set(State::Taken);
        Ok(ReadyGuard(watch))
    }

    fn push(&self, watch: Arc<Watch>) {
        lock(&self.ready).push_back(watch);
        match self.leadership.leader() {
            // It looks at the queue after each turn of the driver.
            Some(leader) if leader == std::thread::current().id() => {}
            Some(_) => {
                self.leader.wake();
                self.driver.wake();
            }
            None => self.leadership.call(),
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
        lock(&self.state)
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
pub struct ReadyGuard(Arc<Watch>);

impl ReadyGuard {
    /// What the pair was added as.
    pub fn key(&self) -> usize {
        self.0.key
    }

    /// There is more to do: the pair gets another turn, after the others.
    pub fn again(self) {
        self.0.set(State::TakenAndChanged);
    }
}

impl Drop for ReadyGuard {
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
