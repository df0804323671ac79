//! Names of things.

use core::fmt;

use treadle_types::WorkerId;

/// A shuffle. Whoever registers it chooses a number that was never used before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ShuffleId(pub u64);

/// One process that holds partitions. A process that ends and comes back at the same place has
/// another incarnation, and is another server.
///
/// In a Treadle worker the node is the worker's id, which is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServerId {
    /// The place: an address.
    pub node: u32,
    /// Which process at this place.
    pub incarnation: u32,
}

/// Which assignment of the partitions of a shuffle. Each change of the assignment raises it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u32);

/// One run of a map (Dask: of a transfer). Unique in the cluster: Treadle's `ObjectId::to_u64`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AttemptId(pub u64);

/// The partitions that one server was assigned at one time. What was assigned to it later is another
/// group, so that rows for an earlier assignment are never taken for rows of a later one.
///
/// A group with several copies is named by its first one. What is said to a server names the copy there
/// ([`GroupId::at`]), and so the incarnation that is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupId {
    /// The generation in which the partitions were assigned.
    pub epoch: Generation,
    /// To whom.
    pub server: ServerId,
}

/// A batch of a group: the unit that is pushed, acknowledged, deduplicated and ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BatchId {
    /// Position of the map among the inputs of the shuffle.
    pub map: u32,
    /// Which run of the map.
    pub attempt: AttemptId,
    /// Position among the batches that this attempt has for the group.
    pub number: u32,
}

/// One run of one map of one shuffle. (A task may run maps of several shuffles.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Transfer {
    pub shuffle: ShuffleId,
    /// Position of the map among the inputs of the shuffle.
    pub map: u32,
    /// Which run of the map.
    pub attempt: AttemptId,
}

impl Transfer {
    /// One of its batches.
    pub fn batch(self, number: u32) -> BatchId {
        BatchId {
            map: self.map,
            attempt: self.attempt,
            number,
        }
    }
}

impl GroupId {
    /// The copy of this group at a server.
    #[must_use]
    pub fn at(self, server: ServerId) -> Self {
        Self { server, ..self }
    }
}

impl From<WorkerId> for ServerId {
    /// The server in a Treadle worker: an id of a worker is never used again.
    fn from(worker: WorkerId) -> Self {
        Self {
            node: worker.0,
            incarnation: 1,
        }
    }
}

impl Generation {
    /// The generation after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Debug for ShuffleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}.{}", self.node, self.incarnation)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a{}", self.0)
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}@{:?}", self.server, self.epoch)
    }
}

impl fmt::Debug for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}{:?}:{}", self.map, self.attempt, self.number)
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}m{}{:?}", self.shuffle, self.map, self.attempt)
    }
}
