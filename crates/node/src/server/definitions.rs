//! Functions and other objects that recipes share.

use std::collections::HashMap;

use bytes::Bytes;
use smallvec::SmallVec;
use treadle_types::{ClientId, Symbol};

use super::keys::NO_DEFINITIONS;

/// A definition, as the server keeps it.
#[derive(Debug)]
pub(super) struct Defined {
    pub(super) client: ClientId,
    pub(super) number: u32,
    pub(super) name: Symbol,
    pub(super) pickle: Bytes,
}

/// A set of small numbers.
#[derive(Debug, Default)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    #[inline]
    pub(super) fn has(&self, at: u32) -> bool {
        let word = self.0.get(at as usize / 64);
        word.is_some_and(|word| word >> (at % 64) & 1 != 0)
    }

    /// Whether it is new.
    #[inline]
    pub(super) fn insert(&mut self, at: u32) -> bool {
        if self.has(at) {
            return false;
        }
        let word = at as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (at % 64);
        true
    }

    pub(super) fn remove(&mut self, at: u32) {
        if let Some(word) = self.0.get_mut(at as usize / 64) {
            *word &= !(1 << (at % 64));
        }
    }
}

/// Set in what a task says about its definitions: they are a list.
const LIST: u32 = 1 << 31;

type List = SmallVec<[u32; 4]>;

/// The definitions of one client, which stay as long as a task needs them.
#[derive(Debug, Default)]
struct Owner {
    by_number: HashMap<u32, u32>,
    lists: HashMap<List, u32>,
    /// Tasks whose recipes are this client's.
    tasks: usize,
    left: bool,
}

/// All definitions. Their contents are kept once, whoever defined them.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    all: Vec<Option<Defined>>,
    vacant: Vec<u32>,
    lists: Vec<List>,
    vacant_lists: Vec<u32>,
    /// By client.
    owners: Vec<Option<Box<Owner>>>,
    contents: HashMap<Bytes, usize>,
}

/// The definitions that one task uses.
#[derive(Debug)]
pub(super) enum Used<'a> {
    None,
    One(u32),
    Many(&'a [u32]),
}

impl Definitions {
    pub(super) fn join(&mut self, client: ClientId) {
        let place = client.0 as usize;
        self.owners.resize_with(place + 1, || None);
        self.owners[place] = Some(Box::default());
    }

    fn owner(&mut self, client: ClientId) -> Option<&mut Owner> {
        self.owners.get_mut(client.0 as usize)?.as_deref_mut()
    }

    /// A client defines something. `false`: it did before, under the same number.
    pub(super) fn define(&mut self, defined: Defined) -> bool {
        let place = self.vacant.last().copied().unwrap_or(self.all.len() as u32);
        let Some(owner) = self.owner(defined.client) else {
            return false;
        };
        if owner.by_number.contains_key(&defined.number) {
            return false;
        }
        owner.by_number.insert(defined.number, place);
        self.vacant.pop();
        let pickle = match self.contents.get_key_value(&defined.pickle) {
            Some((known, _)) => known.clone(),
            None => defined.pickle,
        };
        *self.contents.entry(pickle.clone()).or_default() += 1;
        let defined = Some(Defined { pickle, ..defined });
        if place as usize == self.all.len() {
            self.all.push(defined);
        } else {
            self.all[place as usize] = defined;
        }
        true
    }

    pub(super) fn get(&self, place: u32) -> Option<&Defined> {
        self.all.get(place as usize)?.as_ref()
    }

    /// What to note with a task that uses these numbers of its client's. `None`: one is not defined.
    pub(super) fn note(&mut self, client: ClientId, numbers: &[u32]) -> Option<u32> {
        let owner = self.owners.get_mut(client.0 as usize)?.as_deref_mut()?;
        match numbers {
            [] => Some(NO_DEFINITIONS),
            [number] => owner.by_number.get(number).copied(),
            numbers => {
                let places: Option<List> = numbers
                    .iter()
                    .map(|number| owner.by_number.get(number).copied())
                    .collect();
                let places = places?;
                if let Some(list) = owner.lists.get(&places) {
                    return Some(list | LIST);
                }
                let list = self.vacant_lists.pop().unwrap_or(self.lists.len() as u32);
                if list as usize == self.lists.len() {
                    self.lists.push(places.clone());
                } else {
                    self.lists[list as usize] = places.clone();
                }
                owner.lists.insert(places, list);
                Some(list | LIST)
            }
        }
    }

    /// What a note means.
    #[inline]
    pub(super) fn used(&self, note: u32) -> Used<'_> {
        if note == NO_DEFINITIONS {
            Used::None
        } else if note & LIST == 0 {
            Used::One(note)
        } else {
            let list = self.lists.get((note & !LIST) as usize);
            list.map_or(Used::None, |list| Used::Many(list))
        }
    }

    /// The name of the first one, the task's function.
    pub(super) fn function(&self, note: u32) -> Symbol {
        let first = match self.used(note) {
            Used::None => None,
            Used::One(place) => self.get(place),
            Used::Many(places) => places.first().and_then(|place| self.get(*place)),
        };
        first.map_or(Symbol(0), |defined| defined.name)
    }

    /// A task with a recipe of this client's is there.
    #[inline]
    pub(super) fn hold(&mut self, client: ClientId) {
        if let Some(owner) = self.owner(client) {
            owner.tasks += 1;
        }
    }

    /// One is gone. Returns the places of the definitions that go with the last one of a client
    /// that is gone, too.
    #[inline]
    pub(super) fn release(&mut self, client: ClientId) -> Option<Vec<u32>> {
        let owner = self.owner(client)?;
        owner.tasks -= 1;
        if owner.left {
            self.drop_unused(client)
        } else {
            None
        }
    }

    /// A client is gone. Returns the places of its definitions, if they go, too.
    pub(super) fn leave(&mut self, client: ClientId) -> Option<Vec<u32>> {
        self.owner(client)?.left = true;
        self.drop_unused(client)
    }

    fn drop_unused(&mut self, client: ClientId) -> Option<Vec<u32>> {
        if self.owner(client)?.tasks > 0 {
            return None;
        }
        let owner = self.owners.get_mut(client.0 as usize)?.take()?;
        for list in owner.lists.into_values() {
            self.lists[list as usize] = List::new();
            self.vacant_lists.push(list);
        }
        let places: Vec<u32> = owner.by_number.into_values().collect();
        for &place in &places {
            self.vacant.push(place);
            let Some(defined) = self.all[place as usize].take() else {
                continue;
            };
            if let Some(uses) = self.contents.get_mut(&defined.pickle) {
                *uses -= 1;
                if *uses == 0 {
                    self.contents.remove(&defined.pickle);
                }
            }
        }
        Some(places)
    }

    /// How many definitions there are, and bytes of their contents.
    pub(super) fn totals(&self) -> (usize, usize) {
        let count = self.all.len() - self.vacant.len();
        (count, self.contents.keys().map(Bytes::len).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defined(client: u32, number: u32, pickle: &'static str) -> Defined {
        Defined {
            client: ClientId(client),
            number,
            name: Symbol(number),
            pickle: pickle.into(),
        }
    }

    #[test]
    fn contents_are_kept_once_and_as_long_as_a_task_needs_them() {
        let mut definitions = Definitions::default();
        for client in [1, 2] {
            definitions.join(ClientId(client));
            assert!(definitions.define(defined(client, 0, "same")));
            assert!(definitions.define(defined(client, 1, "same")));
            assert!(!definitions.define(defined(client, 1, "again")));
        }
        assert_eq!(definitions.totals(), (4, 4));
        assert!(definitions.note(ClientId(1), &[2]).is_none());
        let note = definitions.note(ClientId(1), &[1, 0]).unwrap();
        assert_eq!(definitions.note(ClientId(1), &[1, 0]), Some(note));
        assert_eq!(definitions.function(note), Symbol(1));
        definitions.hold(ClientId(1));
        assert!(definitions.leave(ClientId(1)).is_none());
        assert!(matches!(definitions.used(note), Used::Many([_, _])));
        assert_eq!(definitions.release(ClientId(1)).unwrap().len(), 2);
        assert_eq!(definitions.totals(), (2, 4));
        assert_eq!(definitions.leave(ClientId(2)).unwrap().len(), 2);
        assert_eq!(definitions.totals(), (0, 0));
    }

    #[test]
    fn bits() {
        let mut bits = Bits::default();
        assert!(bits.insert(130) && !bits.insert(130) && bits.has(130));
        assert!(!bits.has(129));
        bits.remove(130);
        bits.remove(9999);
        assert!(!bits.has(130));
    }
}
