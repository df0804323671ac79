//! How long a thread waits for something, and the threads that do.

use std::sync::Mutex;
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::thread::lock;

/// A waiting thread looks at least this often whether it was interrupted.
const INTERRUPT: Duration = Duration::from_millis(25);
/// And this often for what it waits for, should nobody wake it.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// How long to wait, and what may interrupt it.
pub struct Wait<'a> {
    /// When to give up.
    pub deadline: Option<Instant>,
    /// Asked now and then, without any lock held: `true` ends the wait.
    pub interrupted: Option<&'a mut dyn FnMut() -> bool>,
}

/// Why a wait ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Early {
    /// It is too late.
    Deadline,
    /// It was interrupted.
    Interrupted,
}

impl Wait<'_> {
    /// A wait that gives up after `most`.
    #[must_use]
    pub fn within(most: Duration) -> Self {
        Self {
            // One that is longer than clocks count has no end.
            deadline: Instant::now().checked_add(most),
            interrupted: None,
        }
    }

    /// A wait as long as this one, which `interrupted` may end earlier.
    #[must_use]
    pub fn unless(self, interrupted: &mut dyn FnMut() -> bool) -> Wait<'_> {
        Wait {
            deadline: self.deadline,
            interrupted: Some(interrupted),
        }
    }

    /// Whether something ends it now.
    pub fn is_interrupted(&mut self) -> bool {
        self.interrupted
            .as_mut()
            .is_some_and(|interrupted| interrupted())
    }

    /// Whether it is time to give up.
    pub fn is_late(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// It was interrupted, or it is too late.
    pub fn check(&mut self) -> Result<(), Early> {
        if self.is_interrupted() {
            return Err(Early::Interrupted);
        }
        match self.is_late() {
            true => Err(Early::Deadline),
            false => Ok(()),
        }
    }

    /// The same wait, which ends at `limit` at the latest.
    pub fn until(&mut self, limit: Option<Instant>) -> Wait<'_> {
        Wait {
            deadline: match (self.deadline, limit) {
                (Some(deadline), Some(limit)) => Some(deadline.min(limit)),
                (deadline, limit) => deadline.or(limit),
            },
            interrupted: match &mut self.interrupted {
                Some(interrupted) => Some(&mut **interrupted),
                None => None,
            },
        }
    }

    /// How long to sleep before it is time to look whether it has ended.
    pub fn look(&self) -> Duration {
        self.look_within(LOOK)
    }

    /// The same, where it is time after `idle` if nobody is to be asked.
    pub(crate) fn look_within(&self, idle: Duration) -> Duration {
        let most = match self.interrupted {
            Some(_) => INTERRUPT,
            None => idle,
        };
        match self.deadline {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()).min(most),
            None => most,
        }
    }
}

impl std::fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait")
            .field("deadline", &self.deadline)
            .finish()
    }
}

/// The threads that wait for one thing.
#[derive(Debug, Default)]
pub struct Waiters(Mutex<Vec<Thread>>);

impl Waiters {
    /// Wakes all of them.
    pub fn wake(&self) {
        for thread in &*lock(&self.0) {
            thread.unpark();
        }
    }

    /// Whether no thread waits.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// The calling thread is one of them until the result is dropped.
    pub fn enter(&self) -> Waiting<'_> {
        lock(&self.0).push(std::thread::current());
        Waiting(self)
    }
}

/// See [`Waiters::enter`].
pub struct Waiting<'a>(&'a Waiters);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let own = std::thread::current().id();
        let mut waiting = lock(&self.0.0);
        if let Some(at) = waiting.iter().position(|thread| thread.id() == own) {
            waiting.swap_remove(at);
        }
    }
}
