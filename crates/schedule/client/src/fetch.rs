//! Values of finished keys, from wherever they are.
//!
//! A value that is not inline is asked of the worker that the scheduler named. Where that comes to
//! nothing, the scheduler is asked who has it, and so on for a while: the worker may be gone, and
//! the value be made again meanwhile, which a notice tells.

use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use bytes::Bytes;
use treadle_messages::{Answer, Call, FromClient};
use treadle_types::value::{put_head, tag};
use treadle_types::{Value, WorkerId};

use crate::effect::{Effect, Effects};
use crate::event::{Item, Notification};
use crate::keys::Known;
use crate::state::Core;

/// How often a value is tried to be got.
const ATTEMPTS: u32 = 12;
/// The pause before the second attempt; each further one is four times as long.
const PAUSE: Duration = Duration::from_millis(5);
/// But not longer than this.
const LONGEST: Duration = Duration::from_secs(4);

/// A value that somebody waits for.
#[derive(Debug)]
pub(crate) struct Wanted {
    ticket: u64,
    index: usize,
    /// The local id; held meanwhile.
    id: u32,
    attempts: u32,
    /// What came of the last attempt.
    reason: String,
    /// The object that was asked for last.
    object: u64,
    /// Who was asked for it, the last one perhaps not in vain.
    tried: Vec<WorkerId>,
}

/// What became of a value that was asked for.
#[derive(Debug)]
pub enum Fetched<V> {
    /// It is small, and came from the scheduler: an encoded value.
    Inline(Bytes),
    /// It came from a worker.
    Frames(V),
    /// The task has failed or was cancelled; the application was told why.
    Failed,
    /// The scheduler does not know the key any more.
    Unknown,
    /// Nobody could be got to send it; the last reason.
    Unreachable(String),
    /// A worker cannot serialise it.
    Unserialisable {
        worker: WorkerId,
        /// The value's name.
        object: u64,
        /// The error, as that of a task.
        error: Bytes,
    },
}

/// What is being fetched.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    /// By number of the request: a worker is asked for them.
    requested: BTreeMap<u64, Wanted>,
    /// By local id: they wait for a notice.
    awaiting: BTreeMap<u32, Vec<Wanted>>,
    /// They wait for time to pass.
    paused: Vec<(Duration, Wanted)>,
    /// They wait for the scheduler to say who has them, by the number of the question.
    asked: BTreeMap<u64, Vec<Wanted>>,
    /// The scheduler is to be asked.
    to_ask: Vec<Wanted>,
}

impl Fetches {
    /// Whether a notice of this id matters.
    pub(crate) fn awaits(&self, id: u32) -> bool {
        !self.awaiting.is_empty() && self.awaiting.contains_key(&id)
    }

    pub(crate) fn next_pause(&self) -> Option<Duration> {
        self.paused.iter().map(|(until, _)| *until).min()
    }

    /// Takes all of them, when nothing comes any more.
    fn take_all(&mut self) -> Vec<Wanted> {
        let fetches = mem::take(self);
        let lists = fetches.awaiting.into_values();
        let lists = lists.chain(fetches.asked.into_values()).flatten();
        let paused = fetches.paused.into_iter().map(|(_, wanted)| wanted);
        let requested = fetches.requested.into_values();
        let all = requested.chain(lists).chain(paused).chain(fetches.to_ask);
        all.collect()
    }

    /// Takes those of a ticket, and the requests to workers among them.
    fn take(&mut self, ticket: u64) -> (Vec<Wanted>, BTreeSet<u64>) {
        let is_its = |wanted: &mut Wanted| wanted.ticket == ticket;
        let (requested, others): (BTreeMap<_, _>, BTreeMap<_, _>) = mem::take(&mut self.requested)
            .into_iter()
            .partition(|(_, wanted)| wanted.ticket == ticket);
        self.requested = others;
        let (requests, mut all): (BTreeSet<u64>, Vec<Wanted>) = requested.into_iter().unzip();
        // A question to the scheduler stays known: its answer comes.
        for list in self.awaiting.values_mut().chain(self.asked.values_mut()) {
            all.extend(list.extract_if(.., is_its));
        }
        self.awaiting.retain(|_, list| !list.is_empty());
        let paused = self.paused.extract_if(.., |(_, wanted)| is_its(wanted));
        all.extend(paused.map(|(_, wanted)| wanted));
        all.extend(self.to_ask.extract_if(.., is_its));
        (all, requests)
    }

    /// The local ids of all of them.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let lists = self.awaiting.values().chain(self.asked.values()).flatten();
        let paused = self.paused.iter().map(|(_, wanted)| wanted);
        let all = self.requested.values().chain(lists).chain(paused);
        all.chain(&self.to_ask).map(|wanted| wanted.id)
    }
}

impl<T, V, A> Core<T, V, A> {
    /// Starts to get the values of keys, all of which the application has futures of. Each comes
    /// out as a [`Notification::Fetched`] with this ticket and its index, in any order.
    ///
    /// # Errors
    /// The index of a key that there is no future of.
    pub fn fetch<'a>(
        &mut self,
        ticket: u64,
        keys: impl Iterator<Item = &'a [u8]>,
        effects: &mut Effects,
    ) -> Result<(), usize> {
        let mut ids = Vec::new();
        for (index, key) in keys.enumerate() {
            ids.push(self.keys.find(key).ok_or(index)?);
        }
        for (index, id) in ids.into_iter().enumerate() {
            self.begin(ticket, index, id, effects);
        }
        self.ask_who_has(effects);
        self.wake_if_told(effects);
        Ok(())
    }

    /// Stops a fetch that nobody waits for: nothing more is told of it, and its keys are not held.
    pub fn cancel_fetch(&mut self, ticket: u64, effects: &mut Effects) {
        let (all, requests) = self.fetches.take(ticket);
        for wanted in all {
            self.release_hold(wanted.id, effects);
        }
        if !requests.is_empty() {
            effects.push(Effect::Unwanted(requests));
        }
        self.untell(ticket);
    }

    fn begin(&mut self, ticket: u64, index: usize, id: u32, effects: &mut Effects) {
        self.keys.hold(id);
        let wanted = Wanted {
            ticket,
            index,
            id,
            attempts: 0,
            reason: String::new(),
            object: 0,
            tried: Vec::new(),
        };
        self.start(wanted, effects);
    }

    /// Goes on with a value as its key stands.
    fn start(&mut self, mut wanted: Wanted, effects: &mut Effects) {
        if self.is_over {
            let reason = format!("the connection to the scheduler is over; {}", wanted.reason);
            return self.fetched(&wanted, Fetched::Unreachable(reason), effects);
        }
        match self.keys.known(wanted.id) {
            Some(Known::Inline(value)) => {
                let value = value.clone();
                self.fetched(&wanted, Fetched::Inline(value), effects);
            }
            Some(&Known::Remote {
                holder: Some(worker),
                object,
            }) => {
                let request = self.new_number();
                wanted.object = object;
                wanted.tried.push(worker);
                self.fetches.requested.insert(request, wanted);
                effects.push(Effect::Get {
                    request,
                    worker,
                    object,
                });
            }
            Some(Known::Remote { holder: None, .. }) => self.fetches.to_ask.push(wanted),
            Some(Known::Pending) => {
                let waiting = self.fetches.awaiting.entry(wanted.id);
                waiting.or_default().push(wanted);
            }
            Some(Known::Failed) => self.fetched(&wanted, Fetched::Failed, effects),
            Some(Known::Unknown) | None => self.fetched(&wanted, Fetched::Unknown, effects),
        }
    }

    /// Hands out what became of a value.
    fn fetched(&mut self, wanted: &Wanted, outcome: Fetched<V>, effects: &mut Effects) {
        self.release_hold(wanted.id, effects);
        self.tell(Item::Ready(Notification::Fetched {
            ticket: wanted.ticket,
            index: wanted.index,
            outcome,
        }));
    }

    /// A notice of an id came that values wait for.
    pub(crate) fn resume(&mut self, id: u32, effects: &mut Effects) {
        for mut wanted in self.fetches.awaiting.remove(&id).unwrap_or_default() {
            wanted.tried.clear();
            self.start(wanted, effects);
        }
        self.ask_who_has(effects);
    }

    /// A worker has answered, with what came of it.
    pub(crate) fn answered(&mut self, request: u64, outcome: Fetched<V>, effects: &mut Effects) {
        if let Some(wanted) = self.fetches.requested.remove(&request) {
            self.fetched(&wanted, outcome, effects);
        }
    }

    /// A worker has answered that it cannot serialise a value.
    pub(crate) fn unserialisable(&mut self, request: u64, error: Bytes, effects: &mut Effects) {
        let Some(wanted) = self.fetches.requested.remove(&request) else {
            return;
        };
        let asked = wanted.tried.last();
        let outcome = Fetched::Unserialisable {
            worker: *asked.expect("it was asked"),
            object: wanted.object,
            error,
        };
        self.fetched(&wanted, outcome, effects);
    }

    /// A worker has not sent a value.
    pub(crate) fn missed(
        &mut self,
        request: u64,
        reason: String,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some(mut wanted) = self.fetches.requested.remove(&request) else {
            return;
        };
        wanted.attempts += 1;
        if wanted.attempts >= ATTEMPTS {
            return self.fetched(&wanted, Fetched::Unreachable(reason), effects);
        }
        wanted.reason = reason;
        let asked = wanted.tried.last().copied();
        match self.keys.known(wanted.id) {
            Some(&Known::Remote { holder, .. }) if holder == asked => {
                self.fetches.to_ask.push(wanted);
            }
            _ => {
                // It stands otherwise by now.
                wanted.tried.clear();
                self.pause(wanted, now);
            }
        }
        self.ask_who_has(effects);
    }

    fn pause(&mut self, wanted: Wanted, now: Duration) {
        let factor = 4u32.saturating_pow(wanted.attempts.saturating_sub(1).min(10));
        let until = now + PAUSE.saturating_mul(factor).min(LONGEST);
        self.fetches.paused.push((until, wanted));
    }

    /// Goes on with what has paused long enough.
    pub(crate) fn resume_paused(&mut self, now: Duration, effects: &mut Effects) {
        let paused = mem::take(&mut self.fetches.paused);
        let (due, later): (Vec<_>, Vec<_>) =
            paused.into_iter().partition(|(until, _)| *until <= now);
        self.fetches.paused = later;
        for (_, wanted) in due {
            self.start(wanted, effects);
        }
        self.ask_who_has(effects);
    }

    /// Asks the scheduler who has what could not be got.
    fn ask_who_has(&mut self, effects: &mut Effects) {
        let all = mem::take(&mut self.fetches.to_ask);
        if all.is_empty() {
            return;
        }
        let mut argument = Vec::with_capacity(32 * all.len() + 6);
        put_head(tag::LIST, all.len(), &mut argument);
        for wanted in &all {
            let key = self.keys.key(wanted.id);
            argument.extend_from_slice(&key.expect("a key that is fetched is held"));
        }
        let id = self.new_number();
        self.fetches.asked.insert(id, all);
        let call = Call {
            id,
            node: String::new(),
            operation: "who_has".to_owned(),
            argument: argument.into(),
        };
        self.send(FromClient::Call(call), effects);
    }

    /// Takes an answer to one of these questions; gives others back.
    pub(crate) fn told_who_has(
        &mut self,
        answer: Answer,
        now: Duration,
        effects: &mut Effects,
    ) -> Option<Answer> {
        let Some(asked) = self.fetches.asked.remove(&answer.id) else {
            return Some(answer);
        };
        let told = answer.result.ok();
        let told = told.and_then(|bytes| Value::from_bytes(&bytes).ok());
        for mut wanted in asked {
            let key = self.keys.key(wanted.id);
            let holders = key.map_or_else(Vec::new, |key| self.holders(told.as_ref(), &key));
            let fresh = holders.iter().find(|holder| !wanted.tried.contains(holder));
            if let Some(holder) = fresh {
                self.keys.moved(wanted.id, *holder);
                self.start(wanted, effects);
                continue;
            }
            // Those who have it do not give it, or nobody has it: a notice may be on its way.
            wanted.tried.clear();
            wanted.attempts += 1;
            if wanted.attempts < ATTEMPTS {
                if let Some(holder) = holders.first() {
                    self.keys.moved(wanted.id, *holder);
                }
                self.pause(wanted, now);
            } else {
                let reason = mem::take(&mut wanted.reason);
                self.fetched(&wanted, Fetched::Unreachable(reason), effects);
            }
        }
        self.ask_who_has(effects);
        None
    }

    /// The workers that the scheduler named for a key: their addresses, in a dictionary by key.
    fn holders(&self, told: Option<&Value>, key: &[u8]) -> Vec<WorkerId> {
        let Some(Value::Dict(entries)) = told else {
            return Vec::new();
        };
        let named = entries.iter().find(|(name, _)| name.to_bytes() == key);
        let Some((_, Value::List(addresses) | Value::Tuple(addresses))) = named else {
            return Vec::new();
        };
        let address = |value: &Value| match value {
            Value::Str(address) => self.addresses.get(address).copied(),
            _ => None,
        };
        addresses.iter().filter_map(address).collect()
    }

    /// Nothing comes from the scheduler any more.
    pub(crate) fn abandon_fetches(&mut self, reason: &str, effects: &mut Effects) {
        for wanted in self.fetches.take_all() {
            self.fetched(&wanted, Fetched::Unreachable(reason.to_owned()), effects);
        }
    }
}
