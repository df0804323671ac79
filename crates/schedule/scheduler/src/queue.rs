//! Queues of ready tasks, the most urgent first.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use treadle_types::{Priority, TaskId};

/// A task in a queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Entry {
    pub(crate) priority: Priority,
    pub(crate) task: TaskId,
}

/// A priority queue for tasks that mostly come in the order in which they leave.
///
/// What comes in order is appended to a sorted run, in constant time; the rest goes to a heap, which
/// stays small, since a task that comes out of order is mostly an urgent one. Tasks that leave
/// otherwise than by being popped stay as dead entries, until they come to the front or are half
/// of the queue; the caller says which entries are alive.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    run: VecDeque<Entry>,
    heap: BinaryHeap<Reverse<Entry>>,
    live: usize,
}

impl Queue {
    /// How many tasks wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// About how many tasks wait that are more urgent than one of this priority.
    fn before(&self, priority: Priority) -> usize {
        let is_before = |entry: &Entry| entry.priority < priority;
        let heap = match self.heap.peek() {
            Some(Reverse(entry)) if is_before(entry) => self.heap.len(),
            _ => 0,
        };
        (self.run.partition_point(is_before) + heap).min(self.live)
    }

    /// How many entries there are, dead ones included.
    fn entries(&self) -> usize {
        self.run.len() + self.heap.len()
    }

    /// Adds a task.
    pub(crate) fn push(&mut self, entry: Entry) {
        self.live += 1;
        match (self.run.front(), self.run.back()) {
            (_, Some(back)) if *back <= entry => self.run.push_back(entry),
            (Some(front), _) if entry <= *front => self.run.push_front(entry),
            (None, _) => self.run.push_back(entry),
            _ => self.heap.push(Reverse(entry)),
        }
    }

    /// The most urgent task, which stays.
    pub(crate) fn peek(&mut self, alive: impl Fn(&Entry) -> bool) -> Option<Entry> {
        if self.live == 0 {
            // Only dead entries are left.
            self.run.clear();
            self.heap.clear();
            return None;
        }
        loop {
            let entry = match (self.run.front(), self.heap.peek()) {
                (Some(run), Some(Reverse(heap))) => *run.min(heap),
                (Some(entry), None) | (None, Some(Reverse(entry))) => *entry,
                (None, None) => return None,
            };
            // Where no entry is dead, the task need not be looked at.
            if self.entries() == self.live || alive(&entry) {
                return Some(entry);
            }
            self.drop_front();
        }
    }

    fn drop_front(&mut self) {
        match (self.run.front(), self.heap.peek()) {
            (Some(run), Some(Reverse(heap))) if heap < run => {
                self.heap.pop();
            }
            (None, _) => {
                self.heap.pop();
            }
            _ => {
                self.run.pop_front();
            }
        }
    }

    /// Takes the most urgent task out.
    pub(crate) fn pop(&mut self, alive: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let entry = self.peek(alive)?;
        self.drop_front();
        self.live -= 1;
        Some(entry)
    }

    /// Takes a task out that is alive; mostly the most urgent one.
    pub(crate) fn take_out(&mut self, entry: Entry, alive: impl Fn(&Entry) -> bool) {
        if self.peek(&alive) == Some(entry) {
            self.pop(alive);
        } else {
            self.run.retain(|other| *other != entry);
            self.heap.retain(|Reverse(other)| *other != entry);
            self.live -= 1;
        }
    }

    /// Takes a task out that is not urgent: the last one, as far as that is cheap to know.
    pub(crate) fn pop_back(&mut self, alive: impl Fn(&Entry) -> bool) -> Option<Entry> {
        while self.live > 0 {
            let entry = self
                .run
                .pop_back()
                .or_else(|| self.heap.pop().map(|Reverse(entry)| entry))?;
            if self.entries() + 1 == self.live || alive(&entry) {
                self.live -= 1;
                return Some(entry);
            }
        }
        None
    }

    /// A task that waited here does so no more.
    pub(crate) fn remove(&mut self, alive: impl Fn(&Entry) -> bool) {
        self.live -= 1;
        if self.entries() > 2 * self.live + 64 {
            self.run.retain(&alive);
            self.heap.retain(|Reverse(entry)| alive(entry));
        }
    }

    /// Takes everything out, the most urgent first. Dead entries come, too.
    pub(crate) fn take(&mut self) -> Vec<Entry> {
        self.live = 0;
        let mut entries: Vec<_> = self.run.drain(..).collect();
        entries.extend(self.heap.drain().map(|Reverse(entry)| entry));
        entries.sort_unstable();
        // A task that left and came back has two entries.
        entries.dedup();
        entries
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        (self.run.capacity() + self.heap.capacity()) * size_of::<Entry>()
    }

    /// The entries, dead ones included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> + Clone {
        let heap = self.heap.iter().map(|Reverse(entry)| entry);
        self.run.iter().chain(heap)
    }
}

/// Tasks that wait for the same workers: those that read values which workers hold, and those that
/// only create data, which wait for memory, too.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(crate) readers: Queue,
    pub(crate) creators: Queue,
}

impl Queues {
    pub(crate) fn len(&self) -> usize {
        self.readers.len() + self.creators.len()
    }

    /// About how many tasks wait that are more urgent than one of this priority.
    pub(crate) fn before(&self, priority: Priority) -> usize {
        self.readers.before(priority) + self.creators.before(priority)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn of(&mut self, creators: bool) -> &mut Queue {
        if creators {
            &mut self.creators
        } else {
            &mut self.readers
        }
    }

    /// The most urgent task, and whether it is a creator; the first of those counts only if `admits`
    /// says so.
    pub(crate) fn head(
        &mut self,
        admits: impl Fn(&Entry) -> bool,
        alive: impl Fn(&Entry) -> bool,
    ) -> Option<(Entry, bool)> {
        let reader = self.readers.peek(&alive).map(|entry| (entry, false));
        let creator = self.creators.peek(&alive).filter(admits);
        let creator = creator.map(|entry| (entry, true));
        match (reader, creator) {
            (Some(reader), Some(creator)) => Some(reader.min(creator)),
            (head, None) | (None, head) => head,
        }
    }

    /// The most urgent of the tasks for which `is_meant` holds, and whether it is a creator, by a
    /// search; creators count only if `admits` says so.
    pub(crate) fn first(
        &self,
        is_meant: impl Fn(&Entry) -> bool,
        admits: impl Fn(&Entry) -> bool,
    ) -> Option<(Entry, bool)> {
        let reader = self.readers.iter().filter(|entry| is_meant(entry)).min();
        let creators = self.creators.iter().filter(|entry| is_meant(entry));
        let creator = creators.filter(|entry| admits(entry)).min();
        let both = [(reader, false), (creator, true)].into_iter();
        let both = both.filter_map(|(entry, of_creators)| Some((*entry?, of_creators)));
        both.min()
    }

    /// How many entries there are, dead ones included.
    pub(crate) fn entries(&self) -> usize {
        self.readers.entries() + self.creators.entries()
    }

    /// The entries, dead ones included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.readers.iter().chain(self.creators.iter())
    }

    pub(crate) fn memory(&self) -> usize {
        self.readers.memory() + self.creators.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    fn entry(rank: u32) -> Entry {
        Entry {
            priority: Priority {
                rank,
                ..Priority::default()
            },
            task: TaskId(rank),
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_set(steps in prop::collection::vec((0u8..5, 0u32..200), 1..400)) {
            let mut queue = Queue::default();
            let mut model = BTreeSet::new();
            for (step, rank) in steps {
                match step {
                    0 | 1 => if model.insert(entry(rank)) {
                        queue.push(entry(rank));
                    },
                    2 => if model.remove(&entry(rank)) {
                        let alive = model.clone();
                        queue.remove(|e| alive.contains(e));
                    },
                    3 => {
                        let alive = model.clone();
                        prop_assert_eq!(queue.pop(|e| alive.contains(e)), model.pop_first());
                    }
                    _ => {
                        let alive = model.clone();
                        match queue.pop_back(|e| alive.contains(e)) {
                            Some(e) => prop_assert!(model.remove(&e)),
                            None => prop_assert!(model.is_empty()),
                        }
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
            }
            let left: Vec<_> = queue.take().into_iter().filter(|e| model.contains(e)).collect();
            prop_assert_eq!(left, model.into_iter().collect::<Vec<_>>());
        }
    }
}
