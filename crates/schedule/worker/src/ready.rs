//! Tasks that may start.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use treadle_guards::{InvariantError, ensure_eq};
use treadle_types::Priority;

/// A task's place in a queue: its priority, ties by its slot. One integer, since comparing is all
/// that a queue does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key(u128);

impl Key {
    /// After every task.
    pub(crate) fn last(slot: u32) -> Self {
        Self(u128::MAX << 32 | u128::from(slot))
    }

    pub(crate) fn new(priority: Priority, slot: u32) -> Self {
        let Priority {
            user,
            submission,
            rank,
        } = priority;
        // Flipping the sign bit makes the order of the bits that of the numbers.
        let user = user as u32 ^ 1 << 31;
        Self(
            u128::from(user) << 96
                | u128::from(submission) << 64
                | u128::from(rank) << 32
                | u128::from(slot),
        )
    }

    pub(crate) fn slot(self) -> u32 {
        self.0 as u32
    }
}

/// A queue by priority. Tasks that are taken back leave their key behind, so who pops asks whether
/// it is still valid.
#[derive(Default)]
pub(crate) struct Ready {
    heap: BinaryHeap<Reverse<Key>>,
    len: usize,
}

impl Ready {
    /// Number of tasks that are ready.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn push(&mut self, key: Key) {
        self.heap.push(Reverse(key));
        self.len += 1;
    }

    /// The most urgent task, which is no longer in the queue.
    #[inline]
    pub(crate) fn pop(&mut self, is_valid: impl Fn(Key) -> bool) -> Option<u32> {
        while let Some(Reverse(key)) = self.heap.pop() {
            if is_valid(key) {
                self.len -= 1;
                return Some(key.slot());
            }
        }
        None
    }

    /// A task was taken back: its key is not valid any more.
    pub(crate) fn forget(&mut self, is_valid: impl Fn(Key) -> bool) {
        self.len -= 1;
        if self.heap.len() > 2 * self.len + 64 {
            self.heap.retain(|&Reverse(key)| is_valid(key));
        }
    }

    pub(crate) fn check(&self, is_valid: impl Fn(Key) -> bool) -> Result<(), InvariantError> {
        let keys = self.heap.iter().map(|&Reverse(key)| key);
        // A slot can be used again with the same priority before the old key is popped: the key is
        // then there twice, and the second is invalid when it is popped.
        let mut valid: Vec<_> = keys.filter(|&key| is_valid(key)).collect();
        valid.sort_unstable();
        valid.dedup();
        ensure_eq!(valid.len(), self.len, "ready tasks");
        Ok(())
    }
}
