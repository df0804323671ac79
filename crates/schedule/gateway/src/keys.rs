//! The keys of tasks: from bytes to numbers, and back.
//!
//! The bytes of keys that came together lie together, a few KiB to an allocation, and the index holds
//! numbers and hashes only: a task costs its key's bytes and some forty more here.

use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::mem;

use bytes::Bytes;
use foldhash::fast::SeedableRandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;
use treadle_guards::{InvariantError, ensure, ensure_eq};
use treadle_types::{ClientId, TaskId, WorkerId};

/// Bytes of keys that share an allocation.
const BLOCK: usize = 4096;
/// Keys that are looked up together.
const BATCH: usize = 64;
/// The place of a key that has a block to itself.
const WHOLE: u16 = u16::MAX;

/// Keys that lie together.
#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    live: u32,
}

/// What the server knows of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    block: u32,
    start: u16,
    length: u16,
    hash: u32,
    /// Changes when the number is given to another task.
    pub(crate) generation: u32,
    /// Whose definitions the recipe refers to.
    pub(crate) owner: ClientId,
    pub(crate) definitions: u32,
    /// Who made its value, if that lives at the scheduler since it is small.
    maker: WorkerId,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    task: TaskId,
}

#[derive(Debug)]
pub(crate) struct Keys {
    entries: Vec<Entry>,
    index: HashTable<Slot>,
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    /// The block that is being filled.
    open: Option<u32>,
    /// Bytes that all blocks have.
    stored: usize,
    hasher: SeedableRandomState,
}

/// Nobody made it, or nobody knows who.
const NOBODY: WorkerId = WorkerId(u32::MAX);

/// No definitions.
pub(crate) const NO_DEFINITIONS: u32 = u32::MAX;

/// The index takes the upper bits of a hash as well as the lower ones.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl Keys {
    /// None. Hashes are seeded, so that nobody outside can choose keys that collide.
    pub(crate) fn new(hasher: SeedableRandomState) -> Self {
        Self {
            entries: Vec::new(),
            index: HashTable::new(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            open: None,
            stored: 0,
            hasher,
        }
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u32 {
        self.hasher.hash_one(key) as u32
    }

    fn bytes_of<'a>(entries: &[Entry], blocks: &'a [Block], task: TaskId) -> &'a [u8] {
        let Some(entry) = entries.get(task.0 as usize) else {
            return &[];
        };
        let Some(block) = blocks.get(entry.block as usize) else {
            return &[];
        };
        if entry.length == WHOLE {
            &block.bytes
        } else {
            &block.bytes[usize::from(entry.start)..][..usize::from(entry.length)]
        }
    }

    /// The key of a task; empty for one that has none.
    pub(crate) fn key(&self, task: TaskId) -> &[u8] {
        Self::bytes_of(&self.entries, &self.blocks, task)
    }

    /// The task of a key.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<TaskId> {
        self.find_hashed(key, self.hash(key))
    }

    #[inline]
    fn find_hashed(&self, key: &[u8], hash: u32) -> Option<TaskId> {
        let is_it = |slot: &Slot| {
            slot.hash == hash && Self::bytes_of(&self.entries, &self.blocks, slot.task) == key
        };
        self.index.find(spread(hash), is_it).map(|slot| slot.task)
    }

    /// The task of a key; one that `allocate` gives, and `true`, if it has none.
    #[inline]
    pub(crate) fn find_or_add(
        &mut self,
        key: &[u8],
        allocate: impl FnOnce(&[u8]) -> TaskId,
    ) -> (TaskId, bool) {
        let hash = self.hash(key);
        if let Some(task) = self.find_hashed(key, hash) {
            return (task, false);
        }
        let task = allocate(key);
        self.add(key, hash, task);
        (task, true)
    }

    fn add(&mut self, key: &[u8], hash: u32, task: TaskId) {
        let (block, start, length) = self.store(key);
        let place = task.0 as usize;
        if place >= self.entries.len() {
            let vacant = Entry {
                block: u32::MAX,
                start: 0,
                length: 0,
                hash: 0,
                generation: 0,
                owner: ClientId(0),
                definitions: NO_DEFINITIONS,
                maker: NOBODY,
            };
            self.entries.resize(place + 1, vacant);
        }
        let entry = &mut self.entries[place];
        *entry = Entry {
            block,
            start,
            length,
            hash,
            generation: entry.generation,
            owner: ClientId(0),
            definitions: NO_DEFINITIONS,
            maker: NOBODY,
        };
        let slot = Slot { hash, task };
        self.index
            .insert_unique(spread(hash), slot, |slot| spread(slot.hash));
    }

    fn store(&mut self, key: &[u8]) -> (u32, u16, u16) {
        // The block that it does not fit into any more would be left partly empty.
        if key.len() > BLOCK / 4 {
            let block = self.block(Block {
                bytes: key.to_vec(),
                live: 1,
            });
            return (block, 0, WHOLE);
        }
        let full = |block: &Block| block.bytes.len() + key.len() > BLOCK;
        let open = match self.open {
            Some(open) if !full(&self.blocks[open as usize]) => open,
            before => {
                let open = self.block(Block {
                    bytes: Vec::with_capacity(BLOCK),
                    live: 0,
                });
                self.open = Some(open);
                if let Some(before) = before {
                    let bytes = &mut self.blocks[before as usize].bytes;
                    self.stored -= bytes.capacity();
                    bytes.shrink_to_fit();
                    self.stored += bytes.capacity();
                    self.drop_if_empty(before);
                }
                open
            }
        };
        let block = &mut self.blocks[open as usize];
        let start = block.bytes.len() as u16;
        block.bytes.extend_from_slice(key);
        block.live += 1;
        (open, start, key.len() as u16)
    }

    fn block(&mut self, block: Block) -> u32 {
        self.stored += block.bytes.capacity();
        match self.vacant.pop() {
            Some(place) => {
                self.blocks[place as usize] = block;
                place
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        }
    }

    fn drop_if_empty(&mut self, place: u32) {
        if self.open != Some(place) && self.blocks[place as usize].live == 0 {
            let block = mem::take(&mut self.blocks[place as usize]);
            self.stored -= block.bytes.capacity();
            self.vacant.push(place);
        }
    }

    /// Remembers who made the value of a task.
    #[inline]
    pub(crate) fn set_maker(&mut self, task: TaskId, worker: WorkerId) {
        if let Some(entry) = self.get_mut(task)
            // A report may come after its task is forgotten.
            && entry.block != u32::MAX
        {
            entry.maker = worker;
        }
    }

    /// Who made the value of a task.
    pub(crate) fn maker(&self, task: TaskId) -> Option<WorkerId> {
        let maker = self.get(task)?.maker;
        (maker != NOBODY).then_some(maker)
    }

    /// Looks keys up whose hashes are known, for the processor's caches alone: what is looked up after
    /// each other misses them at the same time.
    fn touch(&self, hashes: impl Iterator<Item = u32>) {
        let found = hashes.filter(|&hash| {
            let slot = self.index.find(spread(hash), |slot| slot.hash == hash);
            slot.is_some()
        });
        core::hint::black_box(found.count());
    }

    /// As [`Keys::find_or_add`] for each of the keys, in order.
    pub(crate) fn find_or_add_all(
        &mut self,
        keys: &[Bytes],
        mut allocate: impl FnMut(&[u8]) -> TaskId,
        mut found: impl FnMut(&Self, TaskId, bool),
    ) {
        for keys in keys.chunks(BATCH) {
            let mut hashes = [0; BATCH];
            for (hash, key) in hashes.iter_mut().zip(keys) {
                *hash = self.hash(key);
            }
            self.touch(hashes[..keys.len()].iter().copied());
            for (key, &hash) in keys.iter().zip(&hashes) {
                let known = self.find_hashed(key, hash);
                let task = known.unwrap_or_else(|| {
                    let task = allocate(key);
                    self.add(key, hash, task);
                    task
                });
                found(self, task, known.is_none());
            }
        }
    }

    /// Forgets tasks. Each that was known is taken out of `tasks` with what was known of it.
    pub(crate) fn remove_all(
        &mut self,
        tasks: &mut Vec<TaskId>,
        mut each: impl FnMut(TaskId, Entry),
    ) {
        for tasks in tasks.chunks(BATCH) {
            let entries = tasks.iter().filter_map(|&task| self.get(task));
            let hashes: SmallVec<[u32; BATCH]> = entries.map(|entry| entry.hash).collect();
            self.touch(hashes.into_iter());
            for &task in tasks {
                if let Some(entry) = self.remove(task) {
                    each(task, entry);
                }
            }
        }
        tasks.clear();
    }

    /// Forgets a task. Returns what was known of it.
    pub(crate) fn remove(&mut self, task: TaskId) -> Option<Entry> {
        let entry = *self.entries.get(task.0 as usize)?;
        if entry.block == u32::MAX {
            return None;
        }
        let is_it = |slot: &Slot| slot.task == task;
        if let Ok(found) = self.index.find_entry(spread(entry.hash), is_it) {
            found.remove();
        }
        let vacant = &mut self.entries[task.0 as usize];
        vacant.generation = vacant.generation.wrapping_add(1);
        vacant.block = u32::MAX;
        self.blocks[entry.block as usize].live -= 1;
        self.drop_if_empty(entry.block);
        Some(entry)
    }

    /// What is known of a task.
    #[inline]
    pub(crate) fn get(&self, task: TaskId) -> Option<&Entry> {
        self.entries.get(task.0 as usize)
    }

    /// As [`Keys::get`], to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, task: TaskId) -> Option<&mut Entry> {
        self.entries.get_mut(task.0 as usize)
    }

    /// Which use of its number this task is.
    #[inline]
    pub(crate) fn generation(&self, task: TaskId) -> u32 {
        self.get(task).map_or(0, |entry| entry.generation)
    }

    /// All tasks that have a key.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.index.iter().map(|slot| slot.task)
    }

    /// Verifies that the index and the blocks say what the entries say.
    pub(crate) fn check(&self) -> Result<(), InvariantError> {
        let entries = self.entries.iter().filter(|entry| entry.block != u32::MAX);
        ensure_eq!(entries.clone().count(), self.index.len(), "keys, indexed");
        for task in self.tasks() {
            let found = self.find(self.key(task));
            ensure!(found == Some(task), "the key of {task:?} is {found:?}'s");
        }
        let live: u32 = self.blocks.iter().map(|block| block.live).sum();
        ensure_eq!(live as usize, self.index.len(), "keys, in blocks");
        Ok(())
    }

    /// Bytes of memory, about.
    pub(crate) fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.index.capacity() * (size_of::<Slot>() + 1)
            + self.blocks.capacity() * size_of::<Block>()
            + self.stored
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_are_found_until_they_are_removed(
            steps in prop::collection::vec((any::<bool>(), 0..40u8, 0..3u8), 1..200)
        ) {
            let mut keys = Keys::new(SeedableRandomState::fixed());
            let mut model: HashMap<Vec<u8>, TaskId> = HashMap::new();
            let mut vacant = Vec::new();
            let mut next = 0;
            for (adds, name, size) in steps {
                let key = vec![name; [3, 700, 5000][usize::from(size)]];
                if adds {
                    let (task, new) = keys.find_or_add(&key, |_| vacant.pop().unwrap_or_else(|| {
                        next += 1;
                        TaskId(next - 1)
                    }));
                    prop_assert_eq!(new, !model.contains_key(&key));
                    prop_assert_eq!(*model.entry(key).or_insert(task), task);
                } else if let Some(task) = model.remove(&key) {
                    let before = keys.generation(task);
                    prop_assert!(keys.remove(task).is_some());
                    prop_assert!(keys.remove(task).is_none());
                    prop_assert_ne!(keys.generation(task), before);
                    vacant.push(task);
                }
                prop_assert_eq!(keys.index.len(), model.len());
                for (key, task) in &model {
                    prop_assert_eq!(keys.find(key), Some(*task));
                    prop_assert_eq!(keys.key(*task), &key[..]);
                }
            }
        }
    }

    #[test]
    fn memory_of_removed_keys_is_given_back() {
        let mut keys = Keys::new(SeedableRandomState::fixed());
        for task in 0..10_000 {
            keys.find_or_add(format!("a-key-of-some-length-{task}").as_bytes(), |_| {
                TaskId(task)
            });
        }
        let full: usize = keys.blocks.iter().map(|block| block.bytes.capacity()).sum();
        for task in 0..10_000 {
            keys.remove(TaskId(task));
        }
        let left: usize = keys.blocks.iter().map(|block| block.bytes.capacity()).sum();
        assert_eq!(keys.stored, left);
        assert!(full > 250_000, "{full}");
        assert!(left <= BLOCK, "{left}");
    }
}
