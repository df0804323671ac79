//! Names of things, as integers.

use core::fmt;

pub use treadle_graph::TaskId;

/// Which run of a task. A task that is given to a worker again, after a loss, a failure or a
/// retraction, has the next attempt; and so has the next task that is given the same [`TaskId`]:
/// an attempt is never used twice for one id. The scheduler retires an id long before they run out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Attempt(pub u32);

impl Attempt {
    /// The attempt after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A value: what one attempt of a task returned. Also names the attempt itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    pub task: TaskId,
    pub attempt: Attempt,
}

impl ObjectId {
    /// The value that `attempt` of `task` returns.
    pub fn new(task: TaskId, attempt: Attempt) -> Self {
        Self { task, attempt }
    }

    /// One integer for both, say for a store.
    pub fn to_u64(self) -> u64 {
        u64::from(self.task.0) << 32 | u64::from(self.attempt.0)
    }

    /// The inverse of [`ObjectId::to_u64`].
    pub fn from_u64(id: u64) -> Self {
        Self {
            task: TaskId((id >> 32) as u32),
            attempt: Attempt(id as u32),
        }
    }
}

/// One registration of a worker at the scheduler. A worker that was lost and comes back is a
/// stranger and gets another id, so this is the worker's incarnation too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

/// One connection of a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClientId(pub u32);

/// A string that the scheduler's process has interned: the name of a worker, a host, a resource or
/// a function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol(pub u32);

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{:?}", self.task, self.attempt)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}
