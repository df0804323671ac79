//! What is where, what it costs, and what leaves memory next. No IO, no clock, no threads.
//!
//! The ledger names the *content* of an object by a [`Key`] that is never used again: an id that
//! is overwritten or freed while somebody reads the old content gets a new key, and the old one is
//! an *orphan* until its last pin goes.

use std::collections::{BTreeMap, HashMap};

use treadle_guards::{InvariantError, ensure, ensure_eq};

use crate::{ObjectInfo, StoredId};

mod entry;

use entry::{Entry, Io};

pub use entry::Totals;

/// One content of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key(pub u64);

/// What a form of an object costs, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cost {
    /// A live object.
    Live(u64),
    /// Frames of `bytes`, of which `own` are not the live object's memory.
    Frames {
        bytes: u64,
        /// What they add to the live object.
        own: u64,
    },
    /// Frames in shared memory.
    Shared(u64),
}

impl Cost {
    /// Bytes of managed memory that an object in this form alone takes.
    pub fn managed(self) -> u64 {
        match self {
            Cost::Live(bytes) | Cost::Frames { bytes, .. } => bytes,
            Cost::Shared(_) => 0,
        }
    }

    /// The size of the form.
    fn bytes(self) -> u64 {
        match self {
            Cost::Live(bytes) | Cost::Frames { bytes, .. } | Cost::Shared(bytes) => bytes,
        }
    }
}

/// There is no such object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unknown;

/// There is no room for an object now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full {
    /// It is larger than the limit: there will never be.
    pub never: bool,
}

/// A new content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    /// Its name.
    pub key: Key,
    /// The content that it overwrote, where that is gone.
    pub gone: Option<Key>,
}

/// How to come by a pinned content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It is in memory.
    Ready,
    /// The caller reads its file, and says so with [`Ledger::read_done`].
    Read {
        /// The length of the file.
        bytes: u64,
    },
    /// Somebody else reads its file: ask again when that is done.
    Wait,
}

/// What leaves memory next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// It has left: drop its live form and its frames. A file or a shared form has the value.
    Unloaded(Key),
    /// Write it to a file, and say so with [`Ledger::written`] or [`Ledger::write_failed`].
    Write(Key),
}

/// What became of a content that was written to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// Drop its live form and its frames.
    Unloaded,
    /// It stays in memory too.
    Kept,
    /// It was freed meanwhile, and the file is not needed.
    Gone,
}

/// The books of a store. Every operation takes time logarithmic in the number of objects.
#[derive(Debug)]
pub struct Ledger {
    target: u64,
    limit: u64,
    entries: HashMap<Key, Entry>,
    current: HashMap<StoredId, Key>,
    /// Candidates to leave memory, coldest first: those that need no writing, and the others.
    backed: BTreeMap<u64, Key>,
    unbacked: BTreeMap<u64, Key>,
    /// By size: how many wait to be put.
    waiting: BTreeMap<u64, u64>,
    totals: Totals,
    keys: u64,
    clock: u64,
}

impl Ledger {
    /// Empty books with a target and a limit for managed memory, in bytes.
    pub fn new(target: u64, limit: u64) -> Self {
        Ledger {
            target,
            limit,
            entries: HashMap::new(),
            current: HashMap::new(),
            backed: BTreeMap::new(),
            unbacked: BTreeMap::new(),
            waiting: BTreeMap::new(),
            totals: Totals::default(),
            keys: 0,
            clock: 0,
        }
    }

    /// The target, in bytes.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// Changes the target; above the limit it has no effect.
    pub fn set_target(&mut self, target: u64) {
        self.target = target;
    }

    /// The sums.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// How many wait to be put.
    pub fn waiting(&self) -> u64 {
        self.waiting.values().sum()
    }

    /// Whether anybody waits to be put.
    pub fn anybody_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether [`Ledger::next_victim`] has an answer.
    pub fn has_victim(&self, write: bool) -> bool {
        self.above_goal() && !(self.backed.is_empty() && (!write || self.unbacked.is_empty()))
    }

    /// Whether managed memory is above what the candidates are evicted down to: the target, or
    /// less where the largest object that waits to be put needs more room.
    pub fn above_goal(&self) -> bool {
        let largest = self
            .waiting
            .last_key_value()
            .map_or(0, |(&needed, _)| needed);
        self.totals.managed > self.target.min(self.limit.saturating_sub(largest))
    }

    /// A new object, or a new content for one that is there. It is kept until it is
    /// [removed](Self::remove), which is one reference however often it is put; those of others stay.
    ///
    /// # Errors
    /// [`Full`]; nothing has changed.
    pub fn put(&mut self, id: StoredId, cost: Cost) -> Result<Put, Full> {
        let needed = cost.managed();
        if needed > self.limit {
            return Err(Full { never: true });
        }
        let old = self.current.get(&id).copied();
        let freed = match old.map(|key| &self.entries[&key]) {
            Some(entry) if entry.pins == 0 && entry.io == Io::None => entry.managed(),
            _ => 0,
        };
        // What is in shared memory takes no room here, and is never refused.
        if needed > 0 && self.totals.managed - freed + needed > self.limit {
            return Err(Full { never: false });
        }
        let mut references = 1;
        let mut gone = None;
        if let Some(old) = old {
            let entry = &self.entries[&old];
            references = entry.references + u64::from(!entry.kept);
            if self.update(old, |entry| entry.orphan = true) {
                gone = Some(old);
            }
        }
        self.keys += 1;
        let key = Key(self.keys);
        let entry = Entry::new(id, cost, references, self.tick());
        self.current.insert(id, key);
        self.enter(key, entry);
        Ok(Put { key, gone })
    }

    /// Somebody waits to put an object that takes `needed` bytes.
    pub fn wait(&mut self, needed: u64) {
        *self.waiting.entry(needed).or_insert(0) += 1;
    }

    /// The end of one [`Ledger::wait`].
    pub fn end_wait(&mut self, needed: u64) {
        if let Some(count) = self.waiting.get_mut(&needed) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&needed);
            }
        }
    }

    /// One more reference.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn retain(&mut self, id: StoredId) -> Result<(), Unknown> {
        let key = self.key(id).ok_or(Unknown)?;
        self.update(key, |entry| entry.references += 1);
        Ok(())
    }

    /// One reference less of those that were [added](Self::retain). With the last one of all the
    /// object is gone; the answer is its content, if nobody reads or writes that.
    ///
    /// # Errors
    /// [`Unknown`], also where none was added.
    pub fn release(&mut self, id: StoredId) -> Result<Option<Key>, Unknown> {
        let key = self.key(id).ok_or(Unknown)?;
        let entry = &self.entries[&key];
        if entry.references == u64::from(entry.kept) {
            return Err(Unknown);
        }
        Ok(self.lessen(id, key))
    }

    /// Whoever put the object does not keep it any more: as [`release`](Self::release).
    ///
    /// # Errors
    /// [`Unknown`], also where only others have it.
    pub fn remove(&mut self, id: StoredId) -> Result<Option<Key>, Unknown> {
        let key = self.key(id).ok_or(Unknown)?;
        if !self.entries[&key].kept {
            return Err(Unknown);
        }
        self.update(key, |entry| entry.kept = false);
        Ok(self.lessen(id, key))
    }

    fn lessen(&mut self, id: StoredId, key: Key) -> Option<Key> {
        let mut freed = false;
        let gone = self.update(key, |entry| {
            entry.references -= 1;
            freed = entry.references == 0;
            entry.orphan = freed;
        });
        if freed {
            self.current.remove(&id);
        }
        gone.then_some(key)
    }

    /// The content of an object.
    pub fn key(&self, id: StoredId) -> Option<Key> {
        self.current.get(&id).copied()
    }

    /// Where an object stands.
    pub fn info(&self, id: StoredId) -> Option<ObjectInfo> {
        self.content(self.key(id)?)
    }

    /// Where a content stands.
    pub fn content(&self, key: Key) -> Option<ObjectInfo> {
        self.entries.get(&key).map(Entry::info)
    }

    /// Keeps the content of an object in memory, and makes it the most recently used.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn pin(&mut self, id: StoredId) -> Result<Key, Unknown> {
        let key = self.key(id).ok_or(Unknown)?;
        let used = self.tick();
        self.update(key, |entry| {
            entry.pins += 1;
            entry.used = used;
        });
        Ok(key)
    }

    /// The end of one [`Ledger::pin`]: whether the content is gone with it.
    pub fn unpin(&mut self, key: Key) -> bool {
        let used = self.tick();
        self.update(key, |entry| {
            entry.pins -= 1;
            entry.used = used;
        })
    }

    /// How to come by a content that the caller has pinned.
    pub fn access(&mut self, key: Key) -> Access {
        let entry = &self.entries[&key];
        debug_assert!(entry.pins > 0, "only what is pinned may be read");
        if entry.in_memory() {
            return Access::Ready;
        }
        if entry.io == Io::Reading {
            return Access::Wait;
        }
        let bytes = entry.file.unwrap_or(0);
        self.update(key, |entry| entry.io = Io::Reading);
        Access::Read { bytes }
    }

    /// The file of a content was read, and is in memory as frames now, or could not be.
    pub fn read_done(&mut self, key: Key, read: bool) {
        self.update(key, |entry| {
            entry.io = Io::None;
            if read && entry.frames.is_none() {
                entry.frames = entry.file.map(|bytes| (bytes, bytes));
            }
        });
    }

    /// A pinned content got another form: whether it had none of this kind, and so has it now.
    ///
    /// `overlap`: the live form's memory is that of the frames or of the shared form.
    pub fn attach(&mut self, key: Key, cost: Cost, overlap: bool) -> bool {
        let mut attached = false;
        self.update(key, |entry| attached = entry.attach(cost, overlap));
        attached
    }

    /// The memory of the shared form is no longer other processes': the form goes, or becomes
    /// frames where it is the only one.
    ///
    /// # Errors
    /// [`Unknown`], also where there is no shared form.
    pub fn unshare(&mut self, id: StoredId) -> Result<Key, Unknown> {
        let key = self.key(id).ok_or(Unknown)?;
        let shared = self.entries[&key].shared.ok_or(Unknown)?;
        self.update(key, |entry| {
            entry.shared = None;
            entry.live_in_shared = false;
            if !entry.in_memory() && entry.file.is_none() {
                entry.frames = Some((shared, shared));
            }
        });
        Ok(key)
    }

    /// The coldest candidate, if managed memory is above the goal; only such as need no writing
    /// unless `write`.
    pub fn next_victim(&mut self, write: bool) -> Option<Victim> {
        if !self.above_goal() {
            return None;
        }
        let backed = self.backed.first_key_value();
        let unbacked = if write {
            self.unbacked.first_key_value()
        } else {
            None
        };
        let (&used, &key) = match (backed, unbacked) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        if self.backed.contains_key(&used) {
            self.update(key, Entry::unload);
            Some(Victim::Unloaded(key))
        } else {
            self.update(key, |entry| entry.io = Io::Writing);
            Some(Victim::Write(key))
        }
    }

    /// A content is in a file of `bytes` now.
    pub fn written(&mut self, key: Key, bytes: u64) -> Written {
        let above = self.above_goal();
        let mut written = Written::Kept;
        let gone = self.update(key, |entry| {
            entry.io = Io::None;
            entry.file = Some(bytes);
            if above && entry.pins == 0 {
                entry.unload();
                written = Written::Unloaded;
            }
        });
        if gone { Written::Gone } else { written }
    }

    /// A content could not be written; `stuck`: because it cannot be serialised, so that there is
    /// no use in trying again. Whether it is gone, freed meanwhile.
    pub fn write_failed(&mut self, key: Key, stuck: bool) -> bool {
        self.update(key, |entry| {
            entry.io = Io::None;
            entry.stuck = stuck;
        })
    }

    /// Compares the sums and the order of eviction with the contents.
    ///
    /// # Errors
    /// [`InvariantError`]: they do not agree, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        let mut totals = Totals::default();
        let mut candidates = 0;
        for (key, entry) in &self.entries {
            totals.add(entry);
            let wrong = |what: &str| {
                Err(InvariantError::new(format_args!(
                    "{key:?}: {what}: {entry:?}"
                )))
            };
            let list = list_of(entry, &self.backed, &self.unbacked);
            if entry.evictable() {
                candidates += 1;
                if list.get(&entry.used) != Some(key) {
                    return wrong("a candidate that is not listed");
                }
            }
            if entry.orphan {
                if entry.pins == 0 && entry.io == Io::None {
                    return wrong("an orphan that nobody uses");
                }
            } else if entry.references == 0 || self.current.get(&entry.id) != Some(key) {
                return wrong("neither held nor an orphan");
            }
            if !entry.in_memory() && entry.file.is_none() {
                return wrong("no form");
            }
            if entry.io == Io::Reading && (entry.file.is_none() || entry.pins == 0) {
                return wrong("read without a file or a reader");
            }
            if entry.io == Io::Writing && (entry.file.is_some() || !entry.in_memory()) {
                return wrong("written without need or value");
            }
            if entry.live_in_shared && (entry.live.is_none() || entry.shared.is_none()) {
                return wrong("an overlap of forms that are not there");
            }
        }
        ensure_eq!(self.totals, totals, "sums");
        ensure_eq!(
            candidates,
            self.backed.len() + self.unbacked.len(),
            "candidates, and what is listed"
        );
        for (id, key) in &self.current {
            let entry = self.entries.get(key);
            ensure!(
                entry.is_some_and(|entry| entry.id == *id && !entry.orphan),
                "{id} is {key:?}, which is {entry:?}"
            );
        }
        ensure!(
            self.waiting.values().all(|&count| count > 0),
            "a size that nobody waits with"
        );
        Ok(())
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Changes one content, with the sums and the order of eviction: whether it is gone now.
    fn update(&mut self, key: Key, change: impl FnOnce(&mut Entry)) -> bool {
        let entry = self.entries.get_mut(&key).expect("a key of this ledger");
        self.totals.subtract(entry);
        if entry.evictable() {
            list_of(entry, &mut self.backed, &mut self.unbacked).remove(&entry.used);
        }
        change(entry);
        if entry.orphan && entry.pins == 0 && entry.io == Io::None {
            self.entries.remove(&key);
            return true;
        }
        self.totals.add(entry);
        if entry.evictable() {
            list_of(entry, &mut self.backed, &mut self.unbacked).insert(entry.used, key);
        }
        false
    }

    fn enter(&mut self, key: Key, entry: Entry) {
        self.totals.add(&entry);
        if entry.evictable() {
            list_of(&entry, &mut self.backed, &mut self.unbacked).insert(entry.used, key);
        }
        self.entries.insert(key, entry);
    }
}

/// The list that an entry belongs to while it is a candidate.
fn list_of<L>(entry: &Entry, backed: L, unbacked: L) -> L {
    if entry.backed() { backed } else { unbacked }
}
