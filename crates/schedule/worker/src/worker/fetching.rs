//! Values: those that come from other workers, and those that are here.

use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;
use treadle_types::{Holders, ObjectId, Priority, Report, WorkerId};

use super::Worker;
use crate::objects::{Fetch, State};
use crate::ready::Key;
use crate::{Effect, Effects, WorkerError};

impl Worker {
    /// The entry of a value that is here, or made here, or else comes from one of `holders`: for a
    /// task of this priority, or for nobody in particular.
    pub(super) fn want(
        &mut self,
        object: ObjectId,
        nbytes: u64,
        holders: &Holders,
        priority: Option<Priority>,
    ) -> u32 {
        let slot = match self.objects.find(object) {
            Some(slot) => slot,
            None => {
                // Its key has the slot in it.
                let slot = self.objects.insert(object, State::Vacant);
                self.objects.at_mut(slot).state = State::Fetching(Box::new(Fetch {
                    untried: Holders::new(),
                    tried: Holders::new(),
                    from: None,
                    nbytes,
                    put: None,
                    key: Key::last(slot),
                }));
                slot
            }
        };
        let State::Fetching(fetch) = &mut self.objects.at_mut(slot).state else {
            return slot;
        };
        let is_queued = fetch.from.is_none();
        if is_queued {
            self.fetches.unqueue(fetch);
            fetch.nbytes = fetch.nbytes.max(nbytes);
        }
        if let Some(priority) = priority {
            fetch.key = fetch.key.min(Key::new(priority, slot));
        }
        for &holder in holders {
            let is_known = fetch.from == Some(holder)
                || fetch.untried.contains(&holder)
                || fetch.tried.contains(&holder);
            if !is_known {
                fetch.untried.push(holder);
            }
        }
        if is_queued {
            self.fetches.queue(fetch);
        }
        slot
    }

    /// Begins as many fetches as the limits allow.
    #[inline]
    pub(super) fn start_fetches(&mut self, effects: &mut Effects) {
        loop {
            let Self {
                fetches, objects, ..
            } = self;
            let size = |slot| match &objects.at(slot).state {
                State::Fetching(fetch) => fetch.nbytes,
                _ => unreachable!("what waits to be fetched is not here"),
            };
            let Some((slot, peer)) = fetches.next(size) else {
                return;
            };
            let entry = objects.at_mut(slot);
            let State::Fetching(fetch) = &mut entry.state else {
                unreachable!("what waits to be fetched is not here");
            };
            fetches.unqueue(fetch);
            fetch.untried.retain(|other| *other != peer);
            fetch.from = Some(peer);
            fetches.begin(peer, fetch.nbytes);
            effects.push(Effect::Fetch {
                object: entry.object,
                from: peer,
                nbytes: fetch.nbytes,
            });
        }
    }

    pub(super) fn fetched(
        &mut self,
        object: ObjectId,
        from: WorkerId,
        nbytes: Option<u64>,
        effects: &mut Effects,
    ) -> Result<(), WorkerError> {
        let not_fetched = WorkerError::NotFetched { object, from };
        let Some(slot) = self.objects.find(object) else {
            return Err(not_fetched);
        };
        let entry = self.objects.at_mut(slot);
        let is_wanted = entry.is_wanted();
        let State::Fetching(fetch) = &mut entry.state else {
            return Err(not_fetched);
        };
        if fetch.from != Some(from) {
            return Err(not_fetched);
        }
        fetch.from = None;
        self.fetches.end(from, fetch.nbytes);
        let is_kept = is_wanted || fetch.put.is_some();
        match nbytes.or(fetch.put) {
            Some(nbytes) if is_kept => {
                entry.copy = false;
                effects.report(Report::Stored { object, nbytes });
                self.arrived(slot);
            }
            Some(_) => {
                effects.push(Effect::Drop(object));
                self.objects.remove(slot);
            }
            None if is_wanted && !fetch.untried.is_empty() => {
                fetch.tried.push(from);
                self.fetches.queue(fetch);
            }
            None => {
                fetch.tried.push(from);
                let tried = core::mem::take(&mut fetch.tried);
                self.give_up(slot, tried, effects);
            }
        }
        Ok(())
    }

    /// There is no room for a value that has come: whoever else has it would not help, and who sent it
    /// is not to be shunned. The tasks go back; the scheduler may have them tried again, here too.
    pub(super) fn no_room(
        &mut self,
        object: ObjectId,
        from: WorkerId,
        effects: &mut Effects,
    ) -> Result<(), WorkerError> {
        if let Some(slot) = self.objects.find(object)
            && let entry = self.objects.at_mut(slot)
            && entry.is_wanted()
            && let State::Fetching(fetch) = &mut entry.state
            && fetch.from == Some(from)
            && fetch.put.is_none()
        {
            fetch.from = None;
            fetch.untried.clear();
            let tried = core::mem::take(&mut fetch.tried);
            self.fetches.end(from, fetch.nbytes);
            self.give_up(slot, tried, effects);
            return Ok(());
        }
        self.fetched(object, from, None, effects)
    }

    /// Who has a value cannot serialise it, and then nobody else has it.
    pub(super) fn immovable(
        &mut self,
        object: ObjectId,
        from: WorkerId,
        error: &Bytes,
        effects: &mut Effects,
    ) -> Result<(), WorkerError> {
        let slot = self.objects.find(object);
        let entry = slot.map(|slot| (slot, self.objects.at_mut(slot)));
        let Some((slot, entry)) = entry.filter(|(_, entry)| entry.is_wanted()) else {
            return self.fetched(object, from, None, effects);
        };
        let State::Fetching(fetch) = &mut entry.state else {
            return self.fetched(object, from, None, effects);
        };
        if fetch.from != Some(from) || fetch.put.is_some() {
            return self.fetched(object, from, None, effects);
        }
        fetch.from = None;
        fetch.untried.clear();
        self.fetches.end(from, fetch.nbytes);
        if core::mem::take(&mut entry.copy) {
            effects.report(Report::NotCopyable(object));
        }
        for waiter in core::mem::take(&mut entry.waiters) {
            let reader = self.objects.at(waiter).object;
            // One that reads the value twice went at the first.
            if !matches!(self.objects.at(waiter).state, State::Pending(_)) {
                continue;
            }
            effects.report(Report::Immovable {
                object: reader,
                input: object,
                error: error.clone(),
            });
            let waiters = self.remove_pending(waiter, effects);
            self.report_unavailable(reader, waiters, Holders::new(), effects);
        }
        self.abandon_if_idle(slot);
        Ok(())
    }

    pub(super) fn copy(
        &mut self,
        object: ObjectId,
        nbytes: u64,
        holders: &Holders,
        effects: &mut Effects,
    ) {
        let slot = match self.objects.find(object) {
            // The report of it answers this: a second one could pass the command to release it.
            Some(slot) if matches!(self.objects.at(slot).state, State::Stored) => return,
            Some(slot) if !self.is_cancelled(slot) => self.want(object, nbytes, holders, None),
            None if !holders.is_empty() => self.want(object, nbytes, holders, None),
            _ => {
                effects.report(Report::CopyFailed {
                    object,
                    tried: Holders::new(),
                });
                return;
            }
        };
        self.objects.at_mut(slot).copy = true;
    }

    pub(super) fn release(&mut self, object: ObjectId, effects: &mut Effects) {
        let Some(slot) = self.objects.find(object) else {
            return;
        };
        match self.objects.at_mut(slot).state {
            State::Stored => {
                effects.push(Effect::Drop(object));
                self.lose(slot, effects);
            }
            // If it is under way, it is dropped when it comes, unless somebody wants it by then.
            State::Fetching(ref mut fetch) => {
                if fetch.put.take().is_some() {
                    effects.push(Effect::Drop(object));
                }
                self.give_up(slot, Holders::new(), effects);
            }
            _ => {}
        }
    }

    pub(super) fn gone(&mut self, object: ObjectId, effects: &mut Effects) {
        if let Some(slot) = self.objects.find(object)
            && matches!(self.objects.at(slot).state, State::Stored)
        {
            // What is left of it is of no use.
            effects.push(Effect::Drop(object));
            effects.report(Report::Gone(object));
            self.lose(slot, effects);
        }
    }

    pub(super) fn put(
        &mut self,
        object: ObjectId,
        nbytes: u64,
        effects: &mut Effects,
    ) -> Result<(), WorkerError> {
        let Some(slot) = self.objects.find(object) else {
            effects.report(Report::Stored { object, nbytes });
            self.objects.insert(object, State::Stored);
            self.stored += 1;
            return Ok(());
        };
        let entry = self.objects.at_mut(slot);
        match &mut entry.state {
            // The scheduler has heard of it; a second report could pass the command to release it.
            State::Stored => {}
            // The fetch that is under way ends first.
            State::Fetching(fetch) if fetch.from.is_some() => fetch.put = Some(nbytes),
            State::Fetching(fetch) => {
                self.fetches.unqueue(fetch);
                entry.copy = false;
                effects.report(Report::Stored { object, nbytes });
                self.arrived(slot);
            }
            _ => return Err(self.impossible(object, "been put")),
        }
        Ok(())
    }

    /// A value is in the store: tasks that waited for it may be ready.
    #[inline]
    pub(super) fn arrived(&mut self, slot: u32) {
        let entry = self.objects.at_mut(slot);
        entry.state = State::Stored;
        entry.readers = entry.waiters.len() as u32;
        self.stored += 1;
        for waiter in core::mem::take(&mut self.objects.at_mut(slot).waiters) {
            let State::Pending(task) = &mut self.objects.at_mut(waiter).state else {
                unreachable!("who waits has not started");
            };
            task.missing -= 1;
            if task.missing == 0 {
                let key = Key::new(task.assignment.priority, waiter);
                self.ready.push(key);
            }
        }
    }

    /// A value in the store is not there any more.
    fn lose(&mut self, slot: u32, effects: &mut Effects) {
        let entry = self.objects.at(slot);
        let object = entry.object;
        let readers = if entry.readers == 0 {
            Vec::new()
        } else {
            let reads = |state: &State| match state {
                State::Pending(task) => task.sources.contains(&slot),
                _ => false,
            };
            let entries = self.objects.iter();
            let readers = entries.filter(|(_, entry)| reads(&entry.state));
            readers.map(|(reader, _)| reader).collect()
        };
        self.report_unavailable(object, readers, Holders::new(), effects);
        self.objects.remove(slot);
        self.stored -= 1;
    }

    /// A value will not come from other workers.
    fn give_up(&mut self, slot: u32, tried: Holders, effects: &mut Effects) {
        self.answer_copy(slot, tried.clone(), effects);
        let entry = self.objects.at_mut(slot);
        let object = entry.object;
        let waiters = core::mem::take(&mut entry.waiters);
        self.report_unavailable(object, waiters, tried, effects);
        self.abandon_if_idle(slot);
    }

    /// Forgets a value that nobody wants any more and that is not under way.
    pub(super) fn abandon_if_idle(&mut self, slot: u32) {
        let entry = self.objects.at(slot);
        if let State::Fetching(fetch) = &entry.state
            && fetch.from.is_none()
            && !entry.is_wanted()
        {
            self.fetches.unqueue(fetch);
            self.objects.remove(slot);
        }
    }

    /// Says that there will be no copy, if one was asked for.
    pub(super) fn answer_copy(&mut self, slot: u32, tried: Holders, effects: &mut Effects) {
        let entry = self.objects.at_mut(slot);
        if core::mem::take(&mut entry.copy) {
            let object = entry.object;
            effects.report(Report::CopyFailed { object, tried });
        }
    }
}
