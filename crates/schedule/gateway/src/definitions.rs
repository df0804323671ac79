//! Functions and other objects that recipes share.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::mem;

use bytes::Bytes;
use smallvec::SmallVec;
use treadle_guards::{InvariantError, ensure, ensure_eq};
use treadle_types::{ClientId, Symbol};

use crate::keys::NO_DEFINITIONS;

/// A definition, as the server keeps it.
#[derive(Debug)]
pub(crate) struct Defined {
    pub(crate) client: ClientId,
    pub(crate) number: u32,
    pub(crate) name: Symbol,
    pub(crate) pickle: Bytes,
}

/// A set of small numbers.
#[derive(Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    #[inline]
    pub(crate) fn has(&self, at: u32) -> bool {
        let word = self.0.get(at as usize / 64);
        word.is_some_and(|word| word >> (at % 64) & 1 != 0)
    }

    /// Whether it is new.
    #[inline]
    pub(crate) fn insert(&mut self, at: u32) -> bool {
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

    pub(crate) fn remove(&mut self, at: u32) {
        if let Some(word) = self.0.get_mut(at as usize / 64) {
            *word &= !(1 << (at % 64));
        }
    }
}

/// How long a definition stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// As long as its client may use it.
    Known,
    /// It was found unused, and is in the queue of those.
    Idle,
    /// Its client was asked whether it needs it.
    Asked,
    /// Until the tasks are gone that use it: its client will not mention it again.
    Retired,
}

/// A definition, and who uses it.
#[derive(Debug)]
struct Entry {
    defined: Defined,
    /// Tasks that use it by itself, and lists with it that tasks use.
    uses: u32,
    stage: Stage,
}

/// Definitions that tasks use together.
#[derive(Debug, Default)]
struct Together {
    places: List,
    /// Tasks.
    uses: u32,
}

/// Set in what a task says about its definitions: they are a list.
const LIST: u32 = 1 << 31;

type List = SmallVec<[u32; 4]>;

/// The definitions of one client.
#[derive(Debug, Default)]
struct Owner {
    by_number: BTreeMap<u32, u32>,
    lists: BTreeMap<List, u32>,
    /// Tasks whose recipes are this client's.
    tasks: usize,
    left: bool,
}

/// All definitions. Their contents are kept once, whoever defined them. They go with their client
/// and its tasks; and before that, the longest unused first, when there are many that no task uses
/// and their client agrees that it will not mention them again.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    /// How many that no task uses are kept.
    kept: usize,
    all: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    lists: Vec<Together>,
    vacant_lists: Vec<u32>,
    /// Lists that were noted first since [`Definitions::noted`]: no task may hold them.
    fresh_lists: Vec<u32>,
    /// Those that were found unused, the longest first. Some are used again by now.
    idle: VecDeque<u32>,
    /// Places of those that went, with client and number: workers are to be told.
    gone: Vec<(u32, ClientId, u32)>,
    /// By client.
    owners: Vec<Option<Box<Owner>>>,
    contents: BTreeMap<Bytes, usize>,
    /// Bytes of all contents.
    bytes: usize,
}

/// The definitions that one task uses.
#[derive(Debug)]
pub(crate) enum Used<'a> {
    None,
    One(u32),
    Many(&'a [u32]),
}

impl Definitions {
    /// None, of which `kept` may stay that no task uses.
    pub(crate) fn new(kept: usize) -> Self {
        Self {
            kept,
            ..Self::default()
        }
    }

    pub(crate) fn join(&mut self, client: ClientId) {
        let place = client.0 as usize;
        self.owners.resize_with(place + 1, || None);
        self.owners[place] = Some(Box::default());
    }

    fn owner(&mut self, client: ClientId) -> Option<&mut Owner> {
        self.owners.get_mut(client.0 as usize)?.as_deref_mut()
    }

    /// A client defines something. `false`: it did before, under the same number.
    pub(crate) fn define(&mut self, defined: Defined) -> bool {
        // Taken out of the vacant ones below, once nothing can fail any more.
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
            None => {
                self.bytes += defined.pickle.len();
                defined.pickle
            }
        };
        *self.contents.entry(pickle.clone()).or_default() += 1;
        let defined = Some(Entry {
            defined: Defined { pickle, ..defined },
            uses: 0,
            stage: Stage::Idle,
        });
        self.idle.push_back(place);
        if place as usize == self.all.len() {
            self.all.push(defined);
        } else {
            self.all[place as usize] = defined;
        }
        true
    }

    pub(crate) fn get(&self, place: u32) -> Option<&Defined> {
        Some(&self.all.get(place as usize)?.as_ref()?.defined)
    }

    /// What to note with a task that uses these numbers of its client's. `None`: one is not defined.
    pub(crate) fn note(&mut self, client: ClientId, numbers: &[u32]) -> Option<u32> {
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
                let together = Together {
                    places: places.clone(),
                    uses: 0,
                };
                if list as usize == self.lists.len() {
                    self.lists.push(together);
                } else {
                    self.lists[list as usize] = together;
                }
                owner.lists.insert(places, list);
                self.fresh_lists.push(list);
                Some(list | LIST)
            }
        }
    }

    /// The tasks of a client that were to hold what was [noted](Self::note) do so by now: a list that
    /// none of them holds goes.
    pub(crate) fn noted(&mut self, client: ClientId) {
        for number in mem::take(&mut self.fresh_lists) {
            let list = &self.lists[number as usize];
            // It has no places if its tasks are gone already.
            if list.uses == 0 && !list.places.is_empty() {
                self.drop_list(client, number);
            }
        }
    }

    /// What a note means.
    #[inline]
    pub(crate) fn used(&self, note: u32) -> Used<'_> {
        if note == NO_DEFINITIONS {
            Used::None
        } else if note & LIST == 0 {
            Used::One(note)
        } else {
            let list = self.lists.get((note & !LIST) as usize);
            list.map_or(Used::None, |list| Used::Many(&list.places))
        }
    }

    /// The name of the first one, the task's function.
    pub(crate) fn function(&self, note: u32) -> Symbol {
        let first = match self.used(note) {
            Used::None => None,
            Used::One(place) => self.get(place),
            Used::Many(places) => places.first().and_then(|place| self.get(*place)),
        };
        first.map_or(Symbol(0), |defined| defined.name)
    }

    /// A task with a recipe of this client's is there, with a note.
    #[inline]
    pub(crate) fn hold(&mut self, client: ClientId, note: u32) {
        if let Some(owner) = self.owner(client) {
            owner.tasks += 1;
        }
        if note == NO_DEFINITIONS {
            return;
        }
        if note & LIST == 0 {
            return self.use_one(note);
        }
        let list = &mut self.lists[(note & !LIST) as usize];
        list.uses += 1;
        if list.uses == 1 {
            for place in list.places.clone() {
                self.use_one(place);
            }
        }
    }

    #[inline]
    fn use_one(&mut self, place: u32) {
        if let Some(Some(entry)) = self.all.get_mut(place as usize) {
            entry.uses += 1;
        }
    }

    /// One is gone. Returns the places of the definitions that go with the last one of a client
    /// that is gone, too.
    #[inline]
    pub(crate) fn release(&mut self, client: ClientId, note: u32) -> Option<Vec<u32>> {
        if note != NO_DEFINITIONS && note & LIST == 0 {
            self.unuse_one(note);
        } else if note != NO_DEFINITIONS {
            self.unuse_list(client, note & !LIST);
        }
        let owner = self.owner(client)?;
        owner.tasks -= 1;
        if owner.left {
            self.drop_unused(client)
        } else {
            None
        }
    }

    /// A client is gone. Returns the places of its definitions, if they go, too.
    pub(crate) fn leave(&mut self, client: ClientId) -> Option<Vec<u32>> {
        self.owner(client)?.left = true;
        self.drop_unused(client)
    }

    fn unuse_list(&mut self, client: ClientId, number: u32) {
        let list = &mut self.lists[number as usize];
        list.uses -= 1;
        if list.uses > 0 {
            return;
        }
        for place in self.drop_list(client, number) {
            self.unuse_one(place);
        }
    }

    /// Nobody uses a list. Returns its places.
    fn drop_list(&mut self, client: ClientId, number: u32) -> List {
        let places = mem::take(&mut self.lists[number as usize].places);
        self.vacant_lists.push(number);
        if let Some(owner) = self.owner(client) {
            owner.lists.remove(&places);
        }
        places
    }

    #[inline]
    fn unuse_one(&mut self, place: u32) {
        let Some(Some(entry)) = self.all.get_mut(place as usize) else {
            return;
        };
        entry.uses -= 1;
        if entry.uses > 0 {
            return;
        }
        match entry.stage {
            Stage::Known => {
                entry.stage = Stage::Idle;
                self.idle.push_back(place);
            }
            Stage::Idle | Stage::Asked => {}
            Stage::Retired => self.retire(place),
        }
    }

    /// The unused definitions that are too many, by client: it is to be asked whether it may mention
    /// them again.
    pub(crate) fn surplus(&mut self) -> BTreeMap<ClientId, Vec<u32>> {
        let mut surplus: BTreeMap<ClientId, Vec<u32>> = BTreeMap::new();
        while self.idle.len() > self.kept
            && let Some(place) = self.idle.pop_front()
        {
            // The place may be another definition's by now; that is in the queue, too.
            let Some(Some(entry)) = self.all.get_mut(place as usize) else {
                continue;
            };
            if entry.stage != Stage::Idle {
                continue;
            }
            if entry.uses > 0 {
                entry.stage = Stage::Known;
                continue;
            }
            entry.stage = Stage::Asked;
            let defined = &entry.defined;
            surplus
                .entry(defined.client)
                .or_default()
                .push(defined.number);
        }
        surplus
    }

    /// A client will not mention these numbers any more.
    pub(crate) fn undefine(&mut self, client: ClientId, numbers: &[u32]) {
        for number in numbers {
            let Some(owner) = self.owner(client) else {
                return;
            };
            let Some(place) = owner.by_number.remove(number) else {
                continue;
            };
            let Some(Some(entry)) = self.all.get_mut(place as usize) else {
                continue;
            };
            entry.stage = Stage::Retired;
            if entry.uses == 0 {
                self.retire(place);
            }
        }
    }

    /// Nobody uses a definition, and nobody will.
    fn retire(&mut self, place: u32) {
        if let Some(defined) = self.take(place) {
            self.gone.push((place, defined.client, defined.number));
        }
    }

    fn take(&mut self, place: u32) -> Option<Defined> {
        let defined = self.all.get_mut(place as usize)?.take()?.defined;
        if let Some(uses) = self.contents.get_mut(&defined.pickle) {
            *uses -= 1;
            if *uses == 0 {
                self.contents.remove(&defined.pickle);
                self.bytes -= defined.pickle.len();
            }
        }
        Some(defined)
    }

    /// Those that went since the last time: place, client and number. The caller has workers forget
    /// them at once, as the places are used again.
    pub(crate) fn take_gone(&mut self) -> Vec<(u32, ClientId, u32)> {
        let gone = mem::take(&mut self.gone);
        self.vacant.extend(gone.iter().map(|(place, ..)| *place));
        gone
    }

    fn drop_unused(&mut self, client: ClientId) -> Option<Vec<u32>> {
        if self.owner(client)?.tasks > 0 {
            return None;
        }
        let owner = self.owners.get_mut(client.0 as usize)?.take()?;
        for list in owner.lists.into_values() {
            self.lists[list as usize] = Together::default();
            self.vacant_lists.push(list);
        }
        let places: Vec<u32> = owner.by_number.into_values().collect();
        for &place in &places {
            self.vacant.push(place);
            self.take(place);
        }
        Some(places)
    }

    /// Verifies that what uses a definition is counted: `tasks` are those with recipes of each client's,
    /// `notes` how many tasks have each note.
    pub(crate) fn check(
        &self,
        tasks: &BTreeMap<ClientId, usize>,
        notes: &BTreeMap<u32, u32>,
    ) -> Result<(), InvariantError> {
        let mut uses: BTreeMap<u32, u32> = BTreeMap::new();
        for (&note, &count) in notes {
            match self.used(note) {
                Used::None => ensure!(note == NO_DEFINITIONS, "{note} is used, and unknown"),
                Used::One(place) => *uses.entry(place).or_default() += count,
                Used::Many(places) => {
                    let list = &self.lists[(note & !LIST) as usize];
                    ensure_eq!(list.uses, count, "tasks that use a list");
                    for &place in places {
                        *uses.entry(place).or_default() += 1;
                    }
                }
            }
        }
        for (place, entry) in (0..).zip(&self.all) {
            let counted = uses.remove(&place).unwrap_or(0);
            let known = entry.as_ref().map_or(0, |entry| entry.uses);
            ensure_eq!(known, counted, "uses of a definition");
        }
        ensure!(uses.is_empty(), "{uses:?} are used, and unknown");
        for (client, owner) in (0..).map(ClientId).zip(&self.owners) {
            let counted = tasks.get(&client).copied().unwrap_or(0);
            let known = owner.as_ref().map_or(0, |owner| owner.tasks);
            ensure_eq!(known, counted, "tasks with recipes of a client's");
            for &list in owner.iter().flat_map(|owner| owner.lists.values()) {
                let uses = self.lists[list as usize].uses;
                ensure!(uses > 0, "no task uses the list {list} of {client:?}");
            }
        }
        Ok(())
    }

    /// How many definitions there are, and bytes of their contents.
    pub(crate) fn totals(&self) -> (usize, usize) {
        let count = self.all.len() - self.vacant.len() - self.gone.len();
        (count, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: usize = 1024;

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
        let mut definitions = Definitions::new(IDLE);
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
        definitions.hold(ClientId(1), note);
        assert!(definitions.leave(ClientId(1)).is_none());
        assert!(matches!(definitions.used(note), Used::Many([_, _])));
        assert_eq!(definitions.release(ClientId(1), note).unwrap().len(), 2);
        assert_eq!(definitions.totals(), (2, 4));
        assert_eq!(definitions.leave(ClientId(2)).unwrap().len(), 2);
        assert_eq!(definitions.totals(), (0, 0));
    }

    /// Names for tests.
    const A: ClientId = ClientId(1);

    fn many(count: u32) -> Definitions {
        let mut definitions = Definitions::new(IDLE);
        definitions.join(A);
        for number in 0..count {
            assert!(definitions.define(Defined {
                client: A,
                number,
                name: Symbol(0),
                pickle: number.to_le_bytes().to_vec().into(),
            }));
        }
        definitions
    }

    #[test]
    fn what_is_unused_for_long_goes_when_its_client_agrees() {
        let mut definitions = many(IDLE as u32 + 4);
        let one = definitions.note(A, &[0]).unwrap();
        let both = definitions.note(A, &[1, 2]).unwrap();
        definitions.hold(A, one);
        definitions.hold(A, both);
        definitions.hold(A, both);
        // The first three are in use.
        assert_eq!(definitions.surplus(), BTreeMap::from([(A, vec![3])]));
        assert!(definitions.surplus().is_empty());
        definitions.undefine(A, &[3, 3, 77_777]);
        assert!(definitions.note(A, &[3]).is_none());
        let gone = definitions.take_gone();
        assert_eq!(gone, [(3, A, 3)]);
        assert_eq!(definitions.totals().0, IDLE + 3);
        // Its place is another's.
        assert!(definitions.define(defined(1, 5000, "new")));
        assert_eq!(definitions.get(3).unwrap().number, 5000);
        // Unused again, they are the last in the queue.
        assert!(definitions.release(A, both).is_none());
        assert!(definitions.release(A, both).is_none());
        assert!(definitions.release(A, one).is_none());
        assert_eq!(
            definitions.surplus(),
            BTreeMap::from([(A, vec![4, 5, 6, 7])])
        );
    }

    #[test]
    fn what_is_used_while_its_client_is_asked_goes_with_the_last_task() {
        let mut definitions = many(IDLE as u32 + 2);
        assert_eq!(definitions.surplus(), BTreeMap::from([(A, vec![0, 1])]));
        let both = definitions.note(A, &[1, 0]).unwrap();
        definitions.hold(A, both);
        definitions.undefine(A, &[0, 1]);
        assert!(definitions.take_gone().is_empty());
        assert!(matches!(definitions.used(both), Used::Many([1, 0])));
        assert!(definitions.release(A, both).is_none());
        assert_eq!(definitions.take_gone(), [(1, A, 1), (0, A, 0)]);
        assert_eq!(definitions.totals().0, IDLE);
        assert_eq!(definitions.leave(A).unwrap().len(), IDLE);
        assert_eq!(definitions.totals(), (0, 0));
    }

    #[test]
    fn a_list_that_no_task_holds_goes() {
        let mut definitions = many(3);
        let held = definitions.note(A, &[0, 1]).unwrap();
        let gone = definitions.note(A, &[1, 2]).unwrap();
        definitions.hold(A, held);
        definitions.noted(A);
        let check = |definitions: &Definitions, notes: &[u32]| {
            let tasks = BTreeMap::from([(A, notes.len())]);
            let notes = notes.iter().map(|&note| (note, 1)).collect();
            definitions.check(&tasks, &notes).unwrap();
        };
        check(&definitions, &[held]);
        // Its place is the next one's; one that its tasks have left is not vacant twice.
        let next = definitions.note(A, &[2, 0]).unwrap();
        assert_eq!(next, gone);
        definitions.hold(A, next);
        definitions.release(A, next);
        definitions.noted(A);
        check(&definitions, &[held]);
        let both = [[0, 2], [2, 1]].map(|list| definitions.note(A, &list).unwrap());
        assert_ne!(both[0], both[1]);
        for note in both {
            definitions.hold(A, note);
        }
        definitions.noted(A);
        check(&definitions, &[held, both[0], both[1]]);
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
