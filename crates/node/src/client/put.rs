//! Values that no task computes: scattered ones, and large constants of graphs.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_broadcast::Runs;
use treadle_types::{Value, WorkerId};

use super::engine::Engine;
use super::error::ClientError;
use super::kept::{Constant, IsIntact};
use super::keys::Known;
use super::spread::{self, Spread};
use super::workers::{Delivery, Job, Load};
use super::{Change, Client, Item};
use crate::broadcast::values::Packed;
use crate::lock;
use crate::message::{Answer, Call, FromClient};
use crate::wire::put_runs;

/// How often workers are chosen anew for a value that could not be brought to any.
const ATTEMPTS: u32 = 5;
/// The pause before workers are chosen anew.
const PAUSE: Duration = Duration::from_millis(500);
/// Workers are chosen anew where the scheduler has not heard for so long from those that took it:
/// they may be gone with it.
const UNHEARD: Duration = Duration::from_secs(5);

/// A value to put.
#[derive(Debug)]
pub struct Content {
    /// Its size, for the scheduler's accounts.
    pub nbytes: u64,
    /// Its type, as workers name it.
    pub class: Bytes,
    /// The value.
    pub value: Contained,
}

impl Content {
    /// What the scheduler is told of it.
    fn message(&self, id: u32, key: Bytes, whither: &Whither, kept: bool) -> FromClient {
        FromClient::Put {
            id,
            key,
            nbytes: self.nbytes,
            inline: match &self.value {
                Contained::Inline(value) => Some(value.clone()),
                Contained::Frames(..) => None,
            },
            class: self.class.clone(),
            workers: whither.workers.clone(),
            copies: whither.copies,
            kept,
        }
    }
}

/// A value, small or not.
#[derive(Debug)]
pub enum Contained {
    /// Of at most [`INLINE`](treadle_types::INLINE) bytes, encoded: it lives at the scheduler.
    Inline(Bytes),
    /// The kind of the serialised value and its frames, which must stay as they are until the value
    /// is there: they go to workers from where they are.
    Frames(u32, Vec<Bytes>),
}

/// Where a value is to be.
#[derive(Clone, Debug, Default)]
pub struct Whither {
    /// Names, addresses or hosts of workers to choose from; empty: any.
    pub workers: Vec<String>,
    /// How many workers shall have it; at most as many as there are.
    pub copies: u32,
}

impl Whither {
    /// At one worker, whichever that is.
    fn anywhere() -> Self {
        Self {
            workers: Vec::new(),
            copies: 1,
        }
    }
}

/// A value that is not at workers yet.
#[derive(Debug)]
struct Pending {
    content: Content,
    whither: Whither,
    /// Workers that have not answered.
    targets: usize,
    taken: bool,
    /// A notice has said how it stands.
    is_told: bool,
    /// It was brought before, and the scheduler asks for it again.
    is_asked: bool,
    /// It goes to many. Nobody is told that it is there before all of these have answered.
    spreads: bool,
    held_back: Option<Change>,
    attempts: u32,
    /// When to have workers chosen anew.
    again: Option<Instant>,
    reason: String,
}

/// The values that are on their way, by local id.
#[derive(Debug, Default)]
pub(super) struct Puts {
    pending: HashMap<u32, Pending>,
    /// Names of values that many workers have taken, which the scheduler was asked to confirm: by the
    /// number of the question.
    confirming: HashMap<u64, u32>,
}

impl Pending {
    fn new(content: Content, whither: Whither) -> Self {
        Self {
            content,
            whither,
            targets: 0,
            taken: false,
            is_told: false,
            is_asked: false,
            spreads: false,
            held_back: None,
            attempts: 0,
            again: None,
            reason: String::new(),
        }
    }
}

impl Puts {
    /// Whether a notice will say how a value stands that was put.
    fn is_coming(&self, id: u32) -> bool {
        self.pending.get(&id).is_some_and(|put| !put.is_told)
    }

    /// Keeps what is to be told of a value until all workers have answered; gives it back where nobody
    /// waits for that.
    pub(super) fn hold_back(&mut self, id: u32, change: Change) -> Option<Change> {
        let waits = |put: &&mut Pending| put.spreads && put.targets > 0;
        let Some(put) = self.pending.get_mut(&id).filter(waits) else {
            return Some(change);
        };
        put.held_back = None;
        match change {
            Change::Finished { .. } => put.held_back = Some(change),
            other => return Some(other),
        }
        None
    }

    pub(super) fn next_pause(&self) -> Option<Instant> {
        self.pending.values().filter_map(|put| put.again).min()
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.confirming.clear();
    }
}

impl<T> Client<T> {
    /// Puts a value under a key. The application has futures of it from now on, and keeps `owner`;
    /// notices tell when it is there. Returns what the application kept of it before.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn put(
        &self,
        key: &[u8],
        owner: T,
        content: Content,
        whither: &Whither,
    ) -> Result<Option<T>, ClientError> {
        self.check()?;
        let (_, before) = self.put_as(key, Some(owner), content, whither, None)?;
        Ok(before)
    }

    /// Puts a value for tasks of a submission; [`Client::let_go`] ends its need for it.
    ///
    /// Nothing can compute it again, so it is kept here in case that the worker that has it is lost.
    pub(super) fn put_constant(
        &self,
        key: &[u8],
        content: Content,
        is_intact: IsIntact,
    ) -> Result<u32, ClientError> {
        let anywhere = Whither::anywhere();
        let (id, _) = self.put_as(key, None, content, &anywhere, Some(is_intact))?;
        Ok(id)
    }

    fn put_as(
        &self,
        key: &[u8],
        owner: Option<T>,
        content: Content,
        whither: &Whither,
        kept: Option<IsIntact>,
    ) -> Result<(u32, Option<T>), ClientError> {
        let engine = &mut *lock(&self.engine);
        let sender = &mut *lock(&self.sender);
        let mut keys = lock(&self.keys);
        if let Some(id) = keys.find(key) {
            let known = keys.get(id).map(|entry| &entry.known);
            let is_there = matches!(known, Some(Known::Inline(_) | Known::Remote { .. }));
            // A notice will tell, unless what comes was cancelled.
            let is_coming = matches!(known, Some(Known::Pending)) && engine.puts.is_coming(id);
            if is_there || is_coming {
                let before = match owner {
                    Some(owner) => keys.own(id, owner),
                    None => {
                        keys.hold(id);
                        None
                    }
                };
                drop(keys);
                if is_there {
                    let finished = Change::Finished {
                        class: content.class,
                    };
                    lock(&self.inbox).push_back(Item::Standing(id, finished));
                    self.notifier.notify();
                }
                return Ok((id, before));
            }
        }
        let mut before = None;
        let (id, named) = match keys.find(key) {
            // Known, and without a value.
            Some(id) => {
                keys.check_room(1)?;
                if let Some(owner) = owner {
                    before = keys.own(id, owner);
                } else {
                    keys.hold(id);
                }
                (id, keys.name_again(id)?)
            }
            None => {
                let id = keys.add(key, owner)?;
                (id, id)
            }
        };
        if matches!(content.value, Contained::Frames(..)) {
            // Until it is there.
            keys.hold(id);
        }
        if engine.puts.pending.remove(&id).is_some() {
            // It was cancelled. Something else needs the key by now.
            keys.let_go(id);
        }
        drop(keys);
        let mut is_kept = false;
        if let Contained::Frames(kind, frames) = &content.value
            && let Some(is_intact) = kept
        {
            let constant = Constant {
                key: Bytes::copy_from_slice(key),
                nbytes: content.nbytes,
                class: content.class.clone(),
                kind: *kind,
                frames: frames.clone(),
                is_intact,
            };
            let dropped = engine.kept.keep(named, constant);
            is_kept = dropped.is_some();
            let dropped = dropped.filter(|ids| !ids.is_empty());
            if let Some(ids) = dropped {
                sender.push(&FromClient::Unkept(ids));
            }
        }
        let message = content.message(named, Bytes::copy_from_slice(key), whither, is_kept);
        if let Contained::Frames(..) = content.value {
            let put = Pending::new(content, whither.clone());
            engine.puts.pending.insert(id, put);
        }
        sender.push(&message);
        sender.flush();
        Ok((id, before))
    }

    /// The scheduler asks for a constant that is lost, which was put under this name.
    pub(super) fn bring_again(&self, engine: &mut Engine, name: u32) {
        let Some(constant) = engine.kept.get(name).cloned() else {
            // It was put again, or is not kept any more: the scheduler is about to hear so.
            return;
        };
        let Constant {
            key,
            nbytes,
            class,
            kind,
            frames,
            is_intact,
        } = constant;
        if !is_intact(&key, kind, &frames) {
            engine.kept.remove(name);
            return self.post([FromClient::Unkept(vec![name])]);
        }
        let named = {
            let mut keys = lock(&self.keys);
            match keys.find(&key) {
                Some(id) => {
                    // Until it is there, as if it were put the first time.
                    if !engine.puts.pending.contains_key(&id) {
                        keys.hold(id);
                    }
                    keys.name_again(id).map(|named| (id, named))
                }
                None => keys.add(&key, None).map(|id| (id, id)),
            }
        };
        let Ok((id, named)) = named else {
            return;
        };
        let content = Content {
            nbytes,
            class,
            value: Contained::Frames(kind, frames),
        };
        let put = Pending {
            is_asked: true,
            ..Pending::new(content, Whither::anywhere())
        };
        engine.puts.pending.insert(id, put);
        self.say_put(engine, id, named, key);
    }

    /// Tells the scheduler that a value is put again, under another name.
    fn say_put(&self, engine: &mut Engine, id: u32, named: u32, key: Bytes) {
        let Some(put) = engine.puts.pending.get(&id) else {
            return;
        };
        let kept = engine.kept.rename(&key, named);
        self.post([put.content.message(named, key, &put.whither, kept)]);
    }

    /// The scheduler says where to bring a value that was put under this name.
    pub(super) fn place(&self, engine: &mut Engine, name: u32, object: u64, workers: &Runs) {
        let Some(id) = lock(&self.keys).last_named(name) else {
            return;
        };
        let Some(put) = engine.puts.pending.get_mut(&id) else {
            return;
        };
        let Contained::Frames(kind, frames) = &put.content.value else {
            return;
        };
        put.taken = false;
        put.spreads = workers.len() > 1;
        // Those that it is cast to answer together.
        put.targets = workers.len().min(1) as usize;
        if workers.is_empty() {
            // It is there, which a notice says; or nobody is, and somebody may come.
            put.again = Some(Instant::now() + PAUSE);
            return;
        }
        put.again = None;
        let (kind, frames) = (*kind, frames.clone());
        if put.spreads {
            let value = Packed {
                object,
                kind,
                frames,
            };
            let workers = workers.clone();
            self.casts.spread(spread::Load {
                name,
                value,
                workers,
            });
            return;
        }
        let load = Load {
            name,
            object,
            kind,
            frames,
        };
        let worker = WorkerId(workers.first().unwrap_or_default() as u32);
        engine.workers.push(worker, Job::Bring(load));
        self.send_to(engine, &BTreeSet::from([worker]));
    }

    /// Workers have answered what was cast to them. Those that took it have told the scheduler, who is
    /// asked to say when it has heard them all.
    pub(super) fn has_spread(&self, engine: &mut Engine, spread: Spread) {
        let Spread {
            name,
            taken,
            reason,
        } = spread;
        let key = {
            let keys = lock(&self.keys);
            keys.last_named(name).and_then(|id| keys.key(id))
        };
        let Some(key) = key.and_then(|key| Value::from_bytes(&key).ok()) else {
            return;
        };
        if taken.is_empty() {
            let outcome = Err(reason);
            return self.delivered(engine, Delivery { name, outcome });
        }
        let id = self.new_number();
        engine.puts.confirming.insert(id, name);
        let numbers = put_runs(&taken).into_iter();
        let numbers = numbers.map(|number| Value::Int(number as i64)).collect();
        let argument = Value::Dict(vec![
            (Value::str("keys"), Value::List(vec![key])),
            (Value::str("workers"), Value::List(numbers)),
        ]);
        self.post([FromClient::Call(Call {
            id,
            node: String::new(),
            operation: "held".into(),
            argument: argument.to_bytes().into(),
        })]);
    }

    /// The scheduler has heard of all who have taken a value. Gives other answers back.
    pub(super) fn told_held(&self, engine: &mut Engine, answer: Answer) -> Option<Answer> {
        let Some(name) = engine.puts.confirming.remove(&answer.id) else {
            return Some(answer);
        };
        let outcome = Ok(());
        self.delivered(engine, Delivery { name, outcome });
        None
    }

    /// A worker has taken a value, or not.
    pub(super) fn delivered(&self, engine: &mut Engine, delivery: Delivery) {
        let Delivery { name, outcome } = delivery;
        let Some(id) = lock(&self.keys).last_named(name) else {
            return;
        };
        let Some(put) = engine.puts.pending.get_mut(&id) else {
            return;
        };
        put.targets = put.targets.saturating_sub(1);
        match outcome {
            Ok(()) => put.taken = true,
            Err(reason) => put.reason = reason,
        }
        if put.targets > 0 {
            return;
        }
        if put.is_told {
            self.is_put(engine, id);
            return;
        }
        put.attempts += 1;
        if put.attempts < ATTEMPTS {
            let pause = if put.taken { UNHEARD } else { PAUSE };
            put.again = Some(Instant::now() + pause);
            return;
        }
        if put.taken {
            put.reason = "each that took it was lost".into();
        }
        // Whoever waits for it, here or elsewhere, is told.
        let reason = format!("it could not be brought to any worker: {}", put.reason);
        let reason = Value::Tuple(vec![Value::Str("lost data".into()), Value::Str(reason)]);
        let ids = vec![lock(&self.keys).named(id)];
        if put.is_asked {
            // Another client may bring it.
            for &name in &ids {
                engine.kept.remove(name);
            }
            self.post([FromClient::Unkept(ids)]);
            return self.is_put(engine, id);
        }
        self.post([FromClient::Cancel {
            ids,
            force: false,
            reason: reason.to_bytes().into(),
        }]);
        self.is_put(engine, id);
    }

    /// The value is at the workers, or never will be.
    pub(super) fn is_put(&self, engine: &mut Engine, id: u32) {
        if let Some(put) = engine.puts.pending.remove(&id) {
            if let Some(change) = put.held_back {
                lock(&self.inbox).push_back(Item::Standing(id, change));
            }
            self.let_go(id);
        }
    }

    /// A notice has come of how a value stands: once those that are to take it have answered, it need
    /// not be put any more.
    pub(super) fn heard_of(&self, engine: &mut Engine, id: u32) {
        if engine.puts.pending.is_empty() {
            return;
        }
        let Some(put) = engine.puts.pending.get_mut(&id) else {
            return;
        };
        put.is_told = true;
        if put.targets == 0 {
            self.is_put(engine, id);
        }
    }

    /// Has workers chosen anew for what could not be brought to the first.
    pub(super) fn put_again(&self, engine: &mut Engine, now: Instant) {
        let is_due = |put: &Pending| put.again.is_some_and(|again| again <= now);
        let due: Vec<u32> = engine
            .puts
            .pending
            .iter()
            .filter(|(_, put)| is_due(put))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let Some(put) = engine.puts.pending.get_mut(&id) else {
                continue;
            };
            put.again = None;
            let (named, key) = {
                let mut keys = lock(&self.keys);
                (keys.name_again(id), keys.key(id))
            };
            let (Ok(named), Some(key)) = (named, key) else {
                continue;
            };
            self.say_put(engine, id, named, Bytes::copy_from_slice(&key));
        }
    }
}
