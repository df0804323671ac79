//! What a client knows, and what it does with what happens.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use bytes::Bytes;
use treadle_guards::{InvariantError, ensure, ensure_eq};
use treadle_messages::{FailedKind, FromClient, Standing, ToClient};
use treadle_types::WorkerId;

use crate::effect::{Effect, Effects};
use crate::error::Exhausted;
use crate::event::{Change, Event, Item, Notification};
use crate::fetch::{Fetched, Fetches};
use crate::guard::Guard;
use crate::kept::Kept;
use crate::keys::{Keys, Known};
use crate::put::Puts;

/// Released ids are sent at the latest when there are so many of them.
const RELEASES: usize = 1024;

/// A client of a scheduler. `T` is what the application keeps of each key that it has futures of, `V`
/// a value that came from a worker, `A` what came of casts.
///
/// What happens is [handled](Core::handle) as it comes. What the application wants is a method each,
/// since it returns what is known already. Both append [`Effect`]s.
#[derive(Debug)]
pub struct Core<T, V, A> {
    pub(crate) keys: Keys<T>,
    pub(crate) puts: Puts,
    pub(crate) kept: Kept,
    pub(crate) fetches: Fetches,
    /// Ids that are not needed any more, which the scheduler is to be told.
    releases: Vec<u32>,
    /// What waits for the application.
    inbox: VecDeque<Item<T, V, A>>,
    /// Workers by the address of their listener.
    pub(crate) addresses: BTreeMap<String, WorkerId>,
    /// The connection to the scheduler is over.
    pub(crate) is_over: bool,
    numbers: u64,
    pub(crate) submissions: u32,
}

impl<T, V, A> Core<T, V, A> {
    /// A client that has just connected. Constants are kept up to `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            keys: Keys::new(),
            puts: Puts::default(),
            kept: Kept::new(limit),
            fetches: Fetches::default(),
            releases: Vec::new(),
            inbox: VecDeque::new(),
            addresses: BTreeMap::new(),
            is_over: false,
            numbers: 0,
            submissions: 0,
        }
    }

    /// Takes in what has happened. `now` is the time since any fixed moment.
    pub fn handle(&mut self, event: Event<V, A>, now: Duration, effects: &mut Effects) {
        match event {
            Event::Received(message) => self.received(message, now, effects),
            Event::Got { request, value } => {
                self.answered(request, Fetched::Frames(value), effects);
            }
            Event::Unserialisable { request, error } => {
                self.unserialisable(request, error, effects);
            }
            Event::Missed { request, reason } => self.missed(request, reason, now, effects),
            Event::Brought { name, outcome } => self.brought(name, outcome, now, effects),
            Event::Spread {
                name,
                taken,
                reason,
            } => self.has_spread(name, &taken, reason, now, effects),
            Event::Verified(name, is_intact) => self.verified(name, is_intact, effects),
            Event::Arrived(arrivals) => {
                self.tell(Item::Ready(Notification::Arrived(arrivals)));
            }
            Event::Tick => {
                self.resume_paused(now, effects);
                self.put_again(now, effects);
            }
            Event::Ended(reason) => self.end(reason, effects),
        }
    }

    fn received(&mut self, message: ToClient, now: Duration, effects: &mut Effects) {
        match message {
            ToClient::Notice { id, standing } => self.notice(id, standing, effects),
            ToClient::Place {
                id,
                object,
                workers,
            } => self.place(id, object, workers, now, effects),
            ToClient::Bring(ids) => {
                for id in ids {
                    self.bring_again(id, effects);
                }
            }
            ToClient::Unkeep(ids) => {
                for id in ids {
                    self.kept.remove(id);
                }
            }
            ToClient::Peer { worker, address } => self.met(worker, address, effects),
            ToClient::PeerLost(worker) => {
                self.addresses.retain(|_, other| *other != worker);
                effects.push(Effect::Lost(worker));
            }
            ToClient::Joined(members) => {
                for member in &members {
                    self.met(member.worker, member.address.clone(), effects);
                }
                effects.push(Effect::Joined(members));
            }
            ToClient::Left { worker, cause } => effects.push(Effect::Left(worker, cause)),
            ToClient::SettledAsked(worker) => effects.push(Effect::SettledAsked(worker)),
            ToClient::Call(call) => self.tell(Item::Ready(Notification::Call(call))),
            ToClient::Answer(answer) => {
                let answer = self.told_who_has(answer, now, effects);
                if let Some(answer) = answer.and_then(|a| self.told_held(a, now, effects)) {
                    self.tell(Item::Ready(Notification::Answer(answer)));
                }
            }
            ToClient::Stuck { keys, reason } => {
                self.tell(Item::Ready(Notification::Stuck { keys, reason }));
            }
            ToClient::Unused(numbers) => {
                self.tell(Item::Ready(Notification::Unused(numbers)));
            }
            ToClient::Restarted => self.tell(Item::Ready(Notification::Restarted)),
        }
    }

    /// The scheduler says how a task stands.
    fn notice(&mut self, name: u32, standing: Standing, effects: &mut Effects) {
        // What an earlier name stood for is another matter.
        let id = match self.keys.last_named(name) {
            Some(id) if self.keys.note(id, &standing) => id,
            _ => return,
        };
        if is_data_lost(&standing) && self.put_lost(id, effects) {
            return;
        }
        if !matches!(standing, Standing::Pending) {
            self.heard_of(id, effects);
        }
        let change = match standing {
            Standing::Finished { class, .. } => Change::Finished { class },
            Standing::Failed(failed) => Change::Failed(Box::new(failed)),
            Standing::Cancelled(reason) => Change::Cancelled(reason),
            Standing::Pending => Change::Pending,
            Standing::Unknown => Change::Unknown,
        };
        if let Some(change) = self.puts.hold_back(id, change) {
            self.tell(Item::Standing(id, change));
        }
        if self.fetches.awaits(id) {
            self.resume(id, effects);
        }
    }

    fn met(&mut self, worker: WorkerId, address: String, effects: &mut Effects) {
        self.addresses.insert(address.clone(), worker);
        effects.push(Effect::Met(worker, address));
    }

    fn end(&mut self, reason: String, effects: &mut Effects) {
        if mem::replace(&mut self.is_over, true) {
            return;
        }
        self.tell(Item::Ready(Notification::Closed(reason.clone())));
        for id in self.puts.clear() {
            self.release_hold(id, effects);
        }
        self.kept.clear();
        self.abandon_fetches(&reason, effects);
        effects.push(Effect::Wake);
    }

    /// When something is due, which is an [`Event::Tick`].
    pub fn next_due(&self) -> Option<Duration> {
        let due = [self.fetches.next_pause(), self.puts.next_pause()];
        due.into_iter().flatten().min()
    }

    /// Sends a message after everything that was sent before.
    pub fn send(&mut self, message: FromClient, effects: &mut Effects) {
        // An id may be released and its key be named again: so this is said first.
        self.flush(effects);
        effects.push(Effect::Send(message));
    }

    /// Sends what waits for the next message.
    pub fn flush(&mut self, effects: &mut Effects) {
        if !self.releases.is_empty() {
            let ids = mem::take(&mut self.releases);
            effects.push(Effect::Send(FromClient::Release(ids)));
        }
    }

    /// A number for a call or a fetch, used once.
    pub fn new_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers - 1
    }

    /// Something does not need a key any more.
    pub(crate) fn release_hold(&mut self, id: u32, effects: &mut Effects) {
        if let Some(id) = self.keys.release_hold(id) {
            self.unneeded(id, effects);
            // Somebody has to flush them, should nothing else be sent.
            if self.releases.len() == 1 {
                effects.push(Effect::Wake);
            }
        }
    }

    /// Nothing needs a key any more. The scheduler is told with the next message.
    fn unneeded(&mut self, id: u32, effects: &mut Effects) {
        self.releases.extend(self.keys.take_aliases(id));
        self.releases.push(id);
        if self.releases.len() >= RELEASES {
            self.flush(effects);
        }
    }

    /// The application has futures of a key that somebody else makes, and keeps `owner`, which is
    /// told how the key stands. For a key that is here already, returns what was kept before.
    ///
    /// # Errors
    /// When there are no more local ids.
    pub fn watch(
        &mut self,
        key: &[u8],
        owner: T,
        effects: &mut Effects,
    ) -> Result<Option<T>, Exhausted> {
        let mut before = None;
        let first = match self.keys.find(key) {
            None => self.keys.add(key, Some(owner))?,
            Some(id) => {
                before = self.keys.own(id, owner);
                match self.keys.known(id) {
                    Some(Known::Failed | Known::Unknown) => self.keys.name_again(id)?,
                    Some(Known::Inline(_) | Known::Remote { .. }) => {
                        let class = Bytes::new();
                        self.tell(Item::Standing(id, Change::Finished { class }));
                        effects.push(Effect::Wake);
                        return Ok(before);
                    }
                    Some(Known::Pending) | None => return Ok(before),
                }
            }
        };
        let keys = vec![Bytes::copy_from_slice(key)];
        self.send(FromClient::Want { first, keys }, effects);
        Ok(before)
    }

    /// The application has no futures of a key any more, if `is_it` says that this is what it keeps of
    /// it. Returns what it kept. The scheduler is told with the next message.
    pub fn release_if(
        &mut self,
        key: &[u8],
        is_it: impl FnOnce(&T) -> bool,
        effects: &mut Effects,
    ) -> Option<T> {
        let owner = self.keys.by_key(key)?.owner.as_ref();
        owner.filter(|owner| is_it(owner))?;
        let released = self.keys.disown(key)?;
        if let Some(id) = released.id {
            self.unneeded(id, effects);
        }
        released.owner
    }

    /// How often a key that the client has futures of had a value, and has none any more. Counted for
    /// clients that have submitted shuffles: their values may be others when they are made anew.
    pub fn losses(&self) -> u32 {
        self.keys.losses()
    }

    /// Whether the value of a key has gone since there were so many [losses](Self::losses). Then a value
    /// that was got before may be of another run than one that comes later.
    pub fn is_lost_since(&self, key: &[u8], losses: u32) -> bool {
        self.keys.is_lost_since(key, losses)
    }

    /// Cancels keys; those that the client does not know are left out. `reason` is an encoded value,
    /// for other clients.
    pub fn cancel<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a [u8]>,
        force: bool,
        reason: Bytes,
        effects: &mut Effects,
    ) {
        let ids: Vec<u32> = keys.filter_map(|key| self.keys.find(key)).collect();
        // From now on they are made or put anew, however late the notice comes.
        for &id in &ids {
            self.keys.cancel(id);
        }
        let named = |id| match Guard::Named.holds() {
            true => self.keys.named(id),
            false => id,
        };
        let ids = ids.into_iter().map(named).collect();
        self.send(FromClient::Cancel { ids, force, reason }, effects);
    }

    /// Runs failed keys again; those that the client does not know are left out.
    pub fn retry<'a>(&mut self, keys: impl Iterator<Item = &'a [u8]>, effects: &mut Effects) {
        let ids = keys.filter_map(|key| Some(self.keys.named(self.keys.find(key)?)));
        let ids = ids.collect();
        self.send(FromClient::Retry(ids), effects);
    }

    /// What the application keeps of a key.
    pub fn owner(&self, key: &[u8]) -> Option<&T> {
        self.keys.by_key(key)?.owner.as_ref()
    }

    /// The encoded value of a key, if it came from the scheduler.
    pub fn value(&self, key: &[u8]) -> Option<Bytes> {
        match &self.keys.by_key(key)?.known {
            Known::Inline(value) => Some(value.clone()),
            _ => None,
        }
    }

    /// A worker that has the value of a key, as far as is known, and the value's name.
    pub fn holder(&self, key: &[u8]) -> Option<(WorkerId, u64)> {
        match self.keys.by_key(key)?.known {
            Known::Remote { holder, object } => Some((holder?, object)),
            _ => None,
        }
    }

    /// The keys that the client needs, futures or not.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// How many constants are kept, in case that the scheduler asks for them again, and how many
    /// bytes they are.
    pub fn kept(&self) -> (usize, u64) {
        self.kept.totals()
    }

    /// What is kept: the names of the last puts, and the keys.
    pub fn kept_names(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.kept.names()
    }

    pub(crate) fn tell(&mut self, item: Item<T, V, A>) {
        self.inbox.push_back(item);
    }

    /// Takes back what was told of a fetch.
    pub(crate) fn untell(&mut self, of: u64) {
        self.inbox.retain(|item| {
            !matches!(item, Item::Ready(Notification::Fetched { ticket, .. }) if *ticket == of)
        });
    }

    /// Whether there is something for the application.
    pub fn has_notifications(&self) -> bool {
        !self.inbox.is_empty()
    }

    pub(crate) fn wake_if_told(&self, effects: &mut Effects) {
        if self.has_notifications() {
            effects.push(Effect::Wake);
        }
    }

    /// The next thing for the application. `read` copies what it keeps of the key that it is about.
    pub fn next(&mut self, mut read: impl FnMut(&T) -> T) -> Option<Notification<T, V, A>> {
        loop {
            match self.inbox.pop_front()? {
                Item::Ready(notification) => return Some(notification),
                Item::Standing(id, change) => {
                    // Released meanwhile: nobody wants to know.
                    if let Some(owner) = self.keys.owner(id) {
                        let owner = read(owner);
                        return Some(Notification::Standing { owner, change });
                    }
                }
            }
        }
    }

    /// The application could not process something to its end: it is the next thing again.
    pub fn put_back(&mut self, notification: Notification<T, V, A>) {
        self.inbox.push_front(Item::Ready(notification));
    }

    /// Verifies the invariants.
    ///
    /// # Errors
    /// [`InvariantError`]: one does not hold, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        self.keys.check()?;
        self.kept.check()?;
        let mut uses: Vec<u32> = self.puts.ids().chain(self.fetches.ids()).collect();
        uses.sort_unstable();
        for uses in uses.chunk_by(|one, other| one == other) {
            let holds = self.keys.holds(uses[0]);
            ensure!(
                holds.is_some_and(|holds| holds as usize >= uses.len()),
                "id {} is used {} times, and held {holds:?} times",
                uses[0],
                uses.len(),
            );
        }
        ensure!(self.releases.len() < RELEASES, "releases are not sent");
        for id in &self.releases {
            ensure!(self.keys.holds(*id).is_none(), "{id} is released and held");
        }
        if self.is_over {
            ensure!(uses.is_empty(), "{uses:?} wait for what does not come");
            ensure_eq!(self.kept.totals(), (0, 0), "what is kept after the end");
        }
        Ok(())
    }
}

fn is_data_lost(standing: &Standing) -> bool {
    matches!(standing, Standing::Failed(failed) if matches!(failed.kind, FailedKind::DataLost(_)))
}
