//! Values of finished keys, from wherever they are.
//!
//! A value that is not inline is asked of the worker that the scheduler named. Where that comes to
//! nothing, the scheduler is asked who has it, and so on for a while: the worker may be gone, and
//! the value be made again meanwhile, which a notice tells.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_net::Received;
use treadle_types::{Value, WorkerId};

use super::engine::Engine;
use super::keys::Known;
use super::workers::{Job, News};
use super::{Client, Item as Inbox};
use crate::lock;
use crate::message::{Answer, Call, FromClient};

/// How often a value is tried to be got.
const ATTEMPTS: u32 = 12;
/// The pause before the second attempt; each further one is four times as long.
const PAUSE: Duration = Duration::from_millis(5);
/// But not longer than this.
const LONGEST: Duration = Duration::from_secs(4);

/// A value that somebody waits for.
#[derive(Debug)]
pub(super) struct Item {
    ticket: u64,
    index: usize,
    /// The local id; held meanwhile.
    id: u32,
    attempts: u32,
    /// What came of the last attempt.
    reason: String,
    /// Who was asked for this object, in vain.
    tried: Vec<WorkerId>,
}

/// What became of a value that was asked for.
#[derive(Debug)]
pub enum Fetched {
    /// It is small, and came from the scheduler: an encoded value.
    Inline(Bytes),
    /// It came from a worker: the kind of the serialised value, and its frames.
    Frames(Received),
    /// The task has failed or was cancelled; the application was told why.
    Failed,
    /// The scheduler does not know the key any more.
    Unknown,
    /// Nobody could be got to send it; the last reason.
    Unreachable(String),
    /// It cannot be serialised: the error, as that of a task.
    Unserialisable(Bytes),
    /// It was asked for again ([`Client::fetch_again`]), and is told of then.
    Again,
}

/// What is being fetched.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    /// By local id: they wait for a notice.
    awaiting: HashMap<u32, Vec<Item>>,
    /// They wait for time to pass.
    paused: Vec<(Instant, Item)>,
    /// They wait for the scheduler to say who has them, by the number of the question.
    asked: HashMap<u64, Vec<Item>>,
    /// The scheduler is to be asked.
    to_ask: Vec<Item>,
}

impl Fetches {
    /// Whether a notice of this id matters.
    pub(super) fn awaits(&self, id: u32) -> bool {
        !self.awaiting.is_empty() && self.awaiting.contains_key(&id)
    }

    pub(super) fn next_pause(&self) -> Option<Instant> {
        self.paused.iter().map(|(until, _)| *until).min()
    }

    /// Takes all that wait for something, when nothing comes any more.
    fn abandon(&mut self) -> Vec<Item> {
        let mut items: Vec<Item> = self.awaiting.drain().flat_map(|(_, items)| items).collect();
        items.extend(self.paused.drain(..).map(|(_, item)| item));
        items.extend(self.asked.drain().flat_map(|(_, items)| items));
        items.append(&mut self.to_ask);
        items
    }
}

impl<T> Client<T> {
    /// Starts to get the values of keys, all of which the application has futures of. Each comes
    /// out as an [`Event::Fetched`](super::Event::Fetched) with this ticket and its index, in any
    /// order.
    ///
    /// # Errors
    /// The index of a key that there is no future of.
    pub fn fetch<'a>(
        &self,
        ticket: u64,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), usize> {
        let mut ids = Vec::new();
        {
            let mut known = lock(&self.keys);
            for (index, key) in keys.enumerate() {
                let Some(id) = known.find(key) else {
                    drop(known);
                    for id in ids {
                        self.let_go(id);
                    }
                    return Err(index);
                };
                known.hold(id);
                ids.push(id);
            }
        }
        self.begin(ticket, ids.into_iter().enumerate());
        Ok(())
    }

    /// Starts to get one value of a fetch once more, because what came of it was lost. `false`: there
    /// is no future of the key any more.
    pub fn fetch_again(&self, ticket: u64, index: usize, key: &[u8]) -> bool {
        let id = {
            let mut known = lock(&self.keys);
            let Some(id) = known.find(key) else {
                return false;
            };
            known.hold(id);
            id
        };
        self.begin(ticket, std::iter::once((index, id)));
        true
    }

    fn begin(&self, ticket: u64, ids: impl Iterator<Item = (usize, u32)>) {
        let engine = &mut *lock(&self.engine);
        let mut workers = BTreeSet::new();
        for (index, id) in ids {
            let item = Item {
                ticket,
                index,
                id,
                attempts: 0,
                reason: String::new(),
                tried: Vec::new(),
            };
            self.start(engine, item, &mut workers);
        }
        self.send_to(engine, &workers);
        if !lock(&self.inbox).is_empty() {
            self.notifier.notify();
        }
    }

    /// Goes on with an item as its key stands.
    fn start(&self, engine: &mut Engine, item: Item, workers: &mut BTreeSet<WorkerId>) {
        if self.ended_reason().is_some() {
            let reason = format!("the connection to the scheduler is over; {}", item.reason);
            self.fetched(&item, Fetched::Unreachable(reason));
            return;
        }
        let known = lock(&self.keys)
            .get(item.id)
            .map(|entry| entry.known.clone());
        match known {
            Some(Known::Inline(value)) => self.fetched(&item, Fetched::Inline(value)),
            Some(Known::Remote {
                holder: Some(holder),
                object,
            }) => {
                engine.workers.push(holder, Job::Get { item, object });
                workers.insert(holder);
            }
            Some(Known::Remote { holder: None, .. }) => engine.fetches.to_ask.push(item),
            Some(Known::Pending) => {
                let waiting = engine.fetches.awaiting.entry(item.id);
                waiting.or_default().push(item);
            }
            Some(Known::Failed) => self.fetched(&item, Fetched::Failed),
            Some(Known::Unknown) | None => self.fetched(&item, Fetched::Unknown),
        }
    }

    /// Hands out what became of an item.
    fn fetched(&self, item: &Item, outcome: Fetched) {
        self.let_go(item.id);
        lock(&self.inbox).push_back(Inbox::Fetched {
            ticket: item.ticket,
            index: item.index,
            outcome,
        });
    }

    /// A notice of an id came that items wait for.
    pub(super) fn resume(&self, engine: &mut Engine, id: u32) {
        let mut workers = BTreeSet::new();
        for mut item in engine.fetches.awaiting.remove(&id).unwrap_or_default() {
            item.tried.clear();
            self.start(engine, item, &mut workers);
        }
        self.send_to(engine, &workers);
    }

    /// Sends to workers, and deals with what comes of it.
    pub(super) fn send_to(&self, engine: &mut Engine, workers: &BTreeSet<WorkerId>) {
        let mut news = News::default();
        for worker in workers {
            engine.workers.send(*worker, &mut news);
        }
        self.digest(engine, news);
    }

    /// Deals with what came from workers.
    pub(super) fn digest(&self, engine: &mut Engine, mut news: News) {
        for (item, received) in news.values.drain(..) {
            self.fetched(&item, Fetched::Frames(received));
        }
        for (item, error) in news.unserialisable.drain(..) {
            self.fetched(&item, Fetched::Unserialisable(error));
        }
        for (item, worker, reason) in news.misses.drain(..) {
            self.missed(engine, item, worker, reason);
        }
        for delivery in news.deliveries.drain(..) {
            self.delivered(engine, delivery);
        }
        self.ask_who_has(engine);
    }

    fn missed(&self, engine: &mut Engine, mut item: Item, worker: WorkerId, reason: String) {
        item.attempts += 1;
        item.reason = reason;
        if item.attempts >= ATTEMPTS {
            let reason = std::mem::take(&mut item.reason);
            self.fetched(&item, Fetched::Unreachable(reason));
            return;
        }
        let known = lock(&self.keys)
            .get(item.id)
            .map(|entry| entry.known.clone());
        if let Some(Known::Remote { holder, .. }) = known
            && holder == Some(worker)
        {
            item.tried.push(worker);
            engine.fetches.to_ask.push(item);
        } else {
            // It stands otherwise by now.
            item.tried.clear();
            self.pause(engine, item);
        }
    }

    fn pause(&self, engine: &mut Engine, item: Item) {
        let factor = 4u32.saturating_pow(item.attempts.saturating_sub(1).min(10));
        let until = Instant::now() + PAUSE.saturating_mul(factor).min(LONGEST);
        engine.fetches.paused.push((until, item));
    }

    /// Goes on with what has paused long enough.
    pub(super) fn resume_paused(&self, engine: &mut Engine, now: Instant) {
        if engine.fetches.paused.is_empty() {
            return;
        }
        let paused = std::mem::take(&mut engine.fetches.paused);
        let (due, later): (Vec<_>, Vec<_>) =
            paused.into_iter().partition(|(until, _)| *until <= now);
        engine.fetches.paused = later;
        let mut workers = BTreeSet::new();
        for (_, item) in due {
            self.start(engine, item, &mut workers);
        }
        self.send_to(engine, &workers);
    }

    /// Asks the scheduler who has what could not be got.
    fn ask_who_has(&self, engine: &mut Engine) {
        let items = std::mem::take(&mut engine.fetches.to_ask);
        if items.is_empty() {
            return;
        }
        let mut question = Vec::with_capacity(32 * items.len());
        let mut asked = Vec::new();
        for item in items {
            match lock(&self.keys).key(item.id) {
                Some(key) => {
                    question.extend_from_slice(&key);
                    asked.push(item);
                }
                None => self.fetched(&item, Fetched::Unknown),
            }
        }
        let mut argument = Vec::with_capacity(question.len() + 6);
        treadle_types::value::put_head(treadle_types::value::tag::LIST, asked.len(), &mut argument);
        argument.extend_from_slice(&question);
        let id = self.new_number();
        engine.fetches.asked.insert(id, asked);
        self.post([FromClient::Call(Call {
            id,
            node: String::new(),
            operation: "who_has".into(),
            argument: argument.into(),
        })]);
    }

    /// Takes an answer to one of these questions; gives others back.
    pub(super) fn told_who_has(&self, engine: &mut Engine, answer: Answer) -> Option<Answer> {
        if engine.fetches.asked.is_empty() {
            return Some(answer);
        }
        let Some(items) = engine.fetches.asked.remove(&answer.id) else {
            return Some(answer);
        };
        let told = answer.result.ok();
        let told = told.and_then(|bytes| Value::from_bytes(&bytes).ok());
        let mut workers = BTreeSet::new();
        for mut item in items {
            let key = lock(&self.keys).key(item.id);
            let holders = key.map_or_else(Vec::new, |key| holders(told.as_ref(), &key, engine));
            let fresh = holders.iter().find(|holder| !item.tried.contains(holder));
            if let Some(holder) = fresh {
                lock(&self.keys).moved(item.id, *holder);
                self.start(engine, item, &mut workers);
            } else {
                // Those who have it do not give it, or nobody has it: a notice may be on its way.
                item.tried.clear();
                item.attempts += 1;
                if item.attempts < ATTEMPTS {
                    if let Some(holder) = holders.first() {
                        lock(&self.keys).moved(item.id, *holder);
                    }
                    self.pause(engine, item);
                } else {
                    let reason = std::mem::take(&mut item.reason);
                    self.fetched(&item, Fetched::Unreachable(reason));
                }
            }
        }
        self.send_to(engine, &workers);
        None
    }

    /// Nothing comes from the scheduler any more.
    pub(super) fn abandon_fetches(&self, engine: &mut Engine, news: News, reason: &str) {
        let mut items = engine.fetches.abandon();
        items.extend(news.misses.into_iter().map(|(item, ..)| item));
        for item in items {
            self.fetched(&item, Fetched::Unreachable(reason.to_owned()));
        }
    }
}

/// The workers that the scheduler named for a key: their addresses, in a dictionary by key.
fn holders(told: Option<&Value>, key: &[u8], engine: &Engine) -> Vec<WorkerId> {
    let Some(Value::Dict(entries)) = told else {
        return Vec::new();
    };
    let named = entries.iter().find(|(name, _)| name.to_bytes() == key);
    let Some((_, Value::List(addresses) | Value::Tuple(addresses))) = named else {
        return Vec::new();
    };
    let address = |value: &Value| match value {
        Value::Str(address) => engine.workers.at(address),
        _ => None,
    };
    addresses.iter().filter_map(address).collect()
}
