//! The keys that a client has futures of.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use treadle_guards::{InvariantError, ensure, ensure_eq};
use treadle_messages::Standing;
use treadle_types::WorkerId;

use crate::error::Exhausted;

/// What is known of a value.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// It is being made.
    Pending,
    /// It is here, encoded.
    Inline(Bytes),
    /// It is at workers.
    Remote {
        holder: Option<WorkerId>,
        /// Its name.
        object: u64,
    },
    /// There will be none: the task failed or was cancelled, and the application was told.
    Failed,
    /// The scheduler does not know the key.
    Unknown,
}

/// A key.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    key: Arc<[u8]>,
    /// What the application keeps of it, as long as it has futures.
    pub(crate) owner: Option<T>,
    /// How many other things need it.
    holds: u32,
    /// The number of its latest loss: see [`Keys::losses`].
    lost: u32,
    pub(crate) known: Known,
}

/// Keys, by their encoding and by their local ids. An id is an index for the length of a
/// connection, and is not used twice.
#[derive(Debug)]
pub(crate) struct Keys<T> {
    by_key: HashMap<Arc<[u8]>, u32, FixedState>,
    entries: Entries<T>,
    /// Further ids of keys, for keys that were named again.
    aliases: BTreeMap<u32, u32>,
    /// By the id of a key that was named again: its further ids, in order.
    names: BTreeMap<u32, Vec<u32>>,
    next: u32,
    /// How often a key had a value, and has none any more; 0, and not counted, as long as all values are
    /// the same each time that they are made.
    losses: u32,
}

/// What is left of a key that was let go.
#[derive(Debug)]
pub(crate) struct Released<T> {
    /// To be dropped without any lock.
    pub(crate) owner: Option<T>,
    /// The id, if nobody needs the key any more: the scheduler is to be told.
    pub(crate) id: Option<u32>,
}

impl<T> Keys<T> {
    pub(crate) fn new() -> Self {
        Self {
            by_key: HashMap::default(),
            entries: Entries(HashMap::default()),
            aliases: BTreeMap::new(),
            names: BTreeMap::new(),
            next: 0,
            losses: 0,
        }
    }

    /// As after so many keys.
    #[cfg(test)]
    pub(crate) fn after(next: u32) -> Self {
        Self {
            next,
            ..Self::new()
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// What is known of the value of a key that is here.
    #[inline]
    pub(crate) fn known(&self, id: u32) -> Option<&Known> {
        Some(&self.entries.get(id)?.known)
    }

    /// What the application keeps of a key, while it has futures of it.
    #[inline]
    pub(crate) fn owner(&self, id: u32) -> Option<&T> {
        self.entries.get(id)?.owner.as_ref()
    }

    pub(crate) fn by_key(&self, key: &[u8]) -> Option<&Entry<T>> {
        self.entries.get(*self.by_key.get(key)?)
    }

    /// The id of the key that is named next.
    pub(crate) fn next_id(&self) -> u32 {
        self.next
    }

    /// Whether so many keys can be named still. Who names several asks before the first: those that
    /// were named would wait for what is never sent.
    pub(crate) fn check_room(&self, count: usize) -> Result<(), Exhausted> {
        let room = (u32::MAX - self.next) as usize;
        (count <= room).then_some(()).ok_or(Exhausted)
    }

    /// Names a key that is not kept.
    pub(crate) fn name(&mut self) -> Result<u32, Exhausted> {
        let id = self.next;
        self.next = id.checked_add(1).ok_or(Exhausted)?;
        Ok(id)
    }

    /// Names a key that is here once more: the scheduler says of the new id how it stands.
    pub(crate) fn name_again(&mut self, id: u32) -> Result<u32, Exhausted> {
        let alias = self.name()?;
        self.aliases.insert(alias, id);
        self.names.entry(id).or_default().push(alias);
        if let Some(entry) = self.entries.get_mut(id) {
            entry.known = Known::Pending;
        }
        Ok(alias)
    }

    /// What the scheduler is to be told instead of the id under which a key is kept: the task that
    /// an earlier name stood for may be forgotten.
    #[inline]
    pub(crate) fn named(&self, id: u32) -> u32 {
        let names = self.names.get(&id);
        let name = names.and_then(|names| names.last());
        name.map_or(id, |name| *name)
    }

    /// The id under which a key is kept that was named so last. Nothing: it has another name since.
    #[inline]
    pub(crate) fn last_named(&self, name: u32) -> Option<u32> {
        let id = self.ever_named(name);
        (self.named(id) == name).then_some(id)
    }

    /// The id under which a key is kept that was named so, now or before.
    pub(crate) fn ever_named(&self, name: u32) -> u32 {
        self.aliases.get(&name).copied().unwrap_or(name)
    }

    /// The further ids of a key that is not here any more: they are not needed either.
    pub(crate) fn take_aliases(&mut self, id: u32) -> Vec<u32> {
        let names = self.names.remove(&id).unwrap_or_default();
        for name in &names {
            self.aliases.remove(name);
        }
        names
    }

    /// Names a key that is not here, and keeps it.
    pub(crate) fn add(&mut self, key: &[u8], owner: Option<T>) -> Result<u32, Exhausted> {
        let id = self.name()?;
        let key: Arc<[u8]> = key.into();
        let entry = Entry {
            key: Arc::clone(&key),
            holds: u32::from(owner.is_none()),
            lost: 0,
            owner,
            known: Known::Pending,
        };
        self.entries.insert(id, entry);
        self.by_key.insert(key, id);
        Ok(id)
    }

    /// The application has futures of a key that is here. Returns what it kept of it before.
    pub(crate) fn own(&mut self, id: u32, owner: T) -> Option<T> {
        self.entries.get_mut(id)?.owner.replace(owner)
    }

    /// Something else needs the key until [`Keys::release_hold`].
    pub(crate) fn hold(&mut self, id: u32) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.holds += 1;
        }
    }

    pub(crate) fn release_hold(&mut self, id: u32) -> Option<u32> {
        let entry = self.entries.get_mut(id)?;
        entry.holds = entry.holds.saturating_sub(1);
        self.forget_if_unused(id)
    }

    /// The application has no futures of the key any more.
    pub(crate) fn disown(&mut self, key: &[u8]) -> Option<Released<T>> {
        let id = self.find(key)?;
        let owner = self.entries.get_mut(id)?.owner.take();
        Some(Released {
            owner,
            id: self.forget_if_unused(id),
        })
    }

    fn forget_if_unused(&mut self, id: u32) -> Option<u32> {
        let entry = self.entries.get(id)?;
        if entry.owner.is_some() || entry.holds > 0 {
            return None;
        }
        let entry = self.entries.remove(id)?;
        self.by_key.remove(&entry.key);
        Some(id)
    }

    /// Notes how a task stands. `false`: nobody wants to know any more.
    #[inline]
    pub(crate) fn note(&mut self, id: u32, standing: &Standing) -> bool {
        let Some(entry) = self.entries.get_mut(id) else {
            return false;
        };
        let had_value = matches!(entry.known, Known::Inline(_) | Known::Remote { .. });
        if self.losses > 0 && had_value && !matches!(standing, Standing::Finished { .. }) {
            self.losses = self.losses.saturating_add(1);
            entry.lost = self.losses;
        }
        entry.known = match standing {
            Standing::Finished {
                inline: Some(value),
                ..
            } => Known::Inline(value.clone()),
            Standing::Finished { holder, object, .. } => Known::Remote {
                holder: *holder,
                object: *object,
            },
            Standing::Pending => Known::Pending,
            Standing::Failed(_) | Standing::Cancelled(_) => Known::Failed,
            Standing::Unknown => Known::Unknown,
        };
        true
    }

    /// From now on, a value that is made anew may be another one.
    pub(crate) fn count_losses(&mut self) {
        self.losses = self.losses.max(1);
    }

    /// How often a key had a value, and has none any more, as far as that is counted.
    #[inline]
    pub(crate) fn losses(&self) -> u32 {
        self.losses
    }

    /// Whether a key has lost its value since there were so many losses.
    pub(crate) fn is_lost_since(&self, key: &[u8], losses: u32) -> bool {
        let entry = self.find(key).and_then(|id| self.entries.get(id));
        entry.is_some_and(|entry| entry.lost > losses)
    }

    /// The client cancels a key.
    pub(crate) fn cancel(&mut self, id: u32) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.known = Known::Failed;
        }
    }

    /// Another worker has the value.
    pub(crate) fn moved(&mut self, id: u32, to: WorkerId) {
        if let Some(Known::Remote { holder, .. }) =
            self.entries.get_mut(id).map(|entry| &mut entry.known)
        {
            *holder = Some(to);
        }
    }

    /// By how many things beside futures a key is needed, if it is here.
    pub(crate) fn holds(&self, id: u32) -> Option<u32> {
        Some(self.entries.get(id)?.holds)
    }

    /// Verifies that the tables agree.
    #[allow(clippy::disallowed_methods, reason = "the order does not matter")]
    pub(crate) fn check(&self) -> Result<(), InvariantError> {
        for (key, &id) in &self.by_key {
            let entry = self.entries.get(id);
            let of_entry = entry.map(|entry| &entry.key);
            ensure_eq!(of_entry, Some(key), "key {key:?} and its entry under {id}");
            let is_needed = entry.is_some_and(|entry| entry.owner.is_some() || entry.holds > 0);
            ensure!(is_needed, "nobody needs key {key:?}");
            ensure!(id < self.next, "id {id} was never given out");
        }
        let pages = self.entries.0.values();
        let mut count = 0;
        for page in pages {
            let live = page.entries.iter().flatten().count();
            ensure!(live == page.live && live > 0, "a page counts wrong");
            count += live;
        }
        ensure_eq!(count, self.by_key.len(), "entries without keys");
        let mut aliases = 0;
        for (id, names) in &self.names {
            ensure!(
                self.entries.get(*id).is_some(),
                "id {id} has names, and no entry"
            );
            ensure!(names.is_sorted() && !names.is_empty(), "{id}: {names:?}");
            for name in names {
                ensure_eq!(self.aliases.get(name), Some(id), "alias {name}");
                ensure!(*name < self.next, "alias {name} was never given out");
            }
            aliases += names.len();
        }
        ensure_eq!(aliases, self.aliases.len(), "aliases of keys that are gone");
        Ok(())
    }

    /// The encoding of a key that is here.
    pub(crate) fn key(&self, id: u32) -> Option<Arc<[u8]>> {
        Some(Arc::clone(&self.entries.get(id)?.key))
    }
}

/// Entries of a page.
const PAGE: usize = 64;

/// Entries by id. Those of neighbouring ids, which are mostly asked for one after the other, lie
/// together.
#[derive(Debug)]
struct Entries<T>(HashMap<u32, Box<Page<T>>, FixedState>);

#[derive(Debug)]
struct Page<T> {
    live: usize,
    entries: [Option<Entry<T>>; PAGE],
}

impl<T> Entries<T> {
    /// The page of an id, and the place there.
    fn split(id: u32) -> (u32, usize) {
        (id / PAGE as u32, id as usize % PAGE)
    }

    #[inline]
    fn get(&self, id: u32) -> Option<&Entry<T>> {
        let (page, place) = Self::split(id);
        self.0.get(&page)?.entries[place].as_ref()
    }

    #[inline]
    fn get_mut(&mut self, id: u32) -> Option<&mut Entry<T>> {
        let (page, place) = Self::split(id);
        self.0.get_mut(&page)?.entries[place].as_mut()
    }

    fn insert(&mut self, id: u32, entry: Entry<T>) {
        let (page, place) = Self::split(id);
        let page = self.0.entry(page).or_insert_with(|| {
            Box::new(Page {
                live: 0,
                entries: [const { None }; PAGE],
            })
        });
        let before = page.entries[place].replace(entry);
        page.live += usize::from(before.is_none());
    }

    fn remove(&mut self, id: u32) -> Option<Entry<T>> {
        let (number, place) = Self::split(id);
        let page = self.0.get_mut(&number)?;
        let entry = page.entries[place].take()?;
        page.live -= 1;
        if page.live == 0 {
            self.0.remove(&number);
        }
        Some(entry)
    }
}
