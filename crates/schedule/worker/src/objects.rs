//! What a worker knows, by object.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;

use bytes::Bytes;
use smallvec::SmallVec;
use treadle_guards::{InvariantError, ensure_eq};
use treadle_types::{Assignment, Holders, ObjectId, WorkerId};

use crate::ready::Key;

/// No entry: the input came in the message.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// A task that has not started.
pub(crate) struct Pending {
    pub(crate) assignment: Assignment,
    /// For each input the slot of its entry, or [`NOWHERE`].
    pub(crate) sources: SmallVec<[u32; 4]>,
    /// How many inputs are not there yet. None: the task is ready.
    pub(crate) missing: u32,
}

/// What a task that has started is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activity {
    /// It has a slot.
    Running,
    /// It has given its slot away.
    Seceded,
    /// It wants a slot again.
    Rejoining,
}

/// A value that comes from another worker.
pub(crate) struct Fetch {
    /// Who can be asked.
    pub(crate) untried: Holders,
    /// Who was asked in vain.
    pub(crate) tried: Holders,
    /// Who is being asked.
    pub(crate) from: Option<WorkerId>,
    pub(crate) nbytes: u64,
    /// Its size, if a client has put it into the store meanwhile.
    pub(crate) put: Option<u64>,
    /// Its place among those that wait for their turn.
    pub(crate) key: Key,
}

pub(crate) enum State {
    Pending(Box<Pending>),
    Started {
        activity: Activity,
        cancelled: bool,
    },
    Fetching(Box<Fetch>),
    Stored,
    /// The entry is not in use.
    Vacant,
}

pub(crate) struct Entry {
    pub(crate) object: ObjectId,
    pub(crate) state: State,
    /// While there is no value: tasks that wait for it.
    pub(crate) waiters: Vec<u32>,
    /// While there is one: how many tasks that have not started will read it.
    pub(crate) readers: u32,
    /// The scheduler wants to hear when the value is here, or that it cannot be.
    pub(crate) copy: bool,
}

/// Entries by slot, and slots by object.
#[derive(Default)]
pub(crate) struct Objects {
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    slots: HashMap<u64, u32, BuildHasherDefault<Folding>>,
}

impl Objects {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn find(&self, object: ObjectId) -> Option<u32> {
        self.slots.get(&object.to_u64()).copied()
    }

    #[inline]
    pub(crate) fn at(&self, slot: u32) -> &Entry {
        &self.entries[slot as usize]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u32) -> &mut Entry {
        &mut self.entries[slot as usize]
    }

    /// Adds an object that is not there.
    #[inline]
    pub(crate) fn insert(&mut self, object: ObjectId, state: State) -> u32 {
        let slot = self.vacant.pop().unwrap_or(self.entries.len() as u32);
        match self.entries.get_mut(slot as usize) {
            Some(entry) => {
                entry.object = object;
                entry.state = state;
            }
            None => self.entries.push(Entry {
                object,
                state,
                waiters: Vec::new(),
                readers: 0,
                copy: false,
            }),
        }
        let before = self.slots.insert(object.to_u64(), slot);
        debug_assert!(before.is_none(), "{object:?} is known");
        slot
    }

    /// Forgets an object that nothing waits for any more.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> State {
        let entry = &mut self.entries[slot as usize];
        debug_assert!(entry.waiters.is_empty() && entry.readers == 0 && !entry.copy);
        let state = core::mem::replace(&mut entry.state, State::Vacant);
        self.slots.remove(&entry.object.to_u64());
        self.vacant.push(slot);
        state
    }

    /// Every object, in no particular but the same order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let entries = (0..).zip(&self.entries);
        entries.filter(|(_, entry)| !matches!(entry.state, State::Vacant))
    }

    pub(crate) fn check(&self) -> Result<(), InvariantError> {
        let mut count = 0;
        for (slot, entry) in self.iter() {
            count += 1;
            ensure_eq!(
                self.find(entry.object),
                Some(slot),
                "slot of {:?}",
                entry.object
            );
        }
        ensure_eq!(count, self.slots.len(), "objects");
        ensure_eq!(count + self.vacant.len(), self.entries.len(), "entries");
        Ok(())
    }
}

impl Entry {
    /// Whether a task or the scheduler waits for the value.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.waiters.is_empty() || self.copy
    }
}

impl Pending {
    /// Puts a value that came inline in the place of an input.
    pub(crate) fn fill(&mut self, input: ObjectId, value: &Bytes) {
        for (entry, source) in self.assignment.inputs.iter_mut().zip(&mut self.sources) {
            if entry.object == input && *source != NOWHERE {
                entry.place = treadle_types::Place::Inline(value.clone());
                *source = NOWHERE;
                self.missing -= 1;
            }
        }
    }
}

/// A hash of one integer: both halves of its product with an odd constant, folded, so that all bits
/// of the result depend on all bits of the integer. The scheduler chooses the ids, so nobody can
/// make them collide on purpose.
#[derive(Default)]
struct Folding(u64);

impl Hasher for Folding {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are integers");
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        let product = u128::from(n ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
