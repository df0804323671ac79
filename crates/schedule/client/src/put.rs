//! Values that no task computes: scattered ones, and large constants of graphs.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;
use treadle_broadcast::Runs;
use treadle_messages::{Answer, Call, FromClient};
use treadle_types::{Value, WorkerId};

use crate::effect::{Effect, Effects, Load};
use crate::error::Exhausted;
use crate::event::{Change, Item};
use crate::kept::{Constant, IsIntact};
use crate::keys::Known;
use crate::state::Core;

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
    pub value: Contained,
}

impl Content {
    /// What the scheduler is told of it.
    fn message(&self, id: u32, key: Bytes, destination: &Destination, kept: bool) -> FromClient {
        FromClient::Put {
            id,
            key,
            nbytes: self.nbytes,
            inline: match &self.value {
                Contained::Inline(value) => Some(value.clone()),
                Contained::Frames(..) => None,
            },
            class: self.class.clone(),
            workers: destination.workers.clone(),
            copies: destination.copies,
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
pub struct Destination {
    /// Names, addresses or hosts of workers to choose from; empty: any.
    pub workers: Vec<String>,
    /// How many workers shall have it; at most as many as there are.
    pub copies: u32,
}

impl Destination {
    /// At one worker, whichever that is.
    pub(crate) fn anywhere() -> Self {
        Self {
            workers: Vec::new(),
            copies: 1,
        }
    }
}

/// A value that is not at workers yet.
#[derive(Debug)]
pub(crate) struct Pending {
    content: Content,
    destination: Destination,
    /// The name under which it is brought to workers.
    placed: Option<u32>,
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
    again: Option<Duration>,
    reason: String,
}

/// The values that are on their way, by local id.
#[derive(Debug, Default)]
pub(crate) struct Puts {
    pub(crate) pending: BTreeMap<u32, Pending>,
    /// Names of values that many workers have taken, which the scheduler was asked to confirm: by the
    /// number of the question.
    confirming: BTreeMap<u64, u32>,
}

impl Pending {
    fn new(content: Content, destination: Destination) -> Self {
        Self {
            content,
            destination,
            placed: None,
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
    pub(crate) fn hold_back(&mut self, id: u32, change: Change) -> Option<Change> {
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

    pub(crate) fn next_pause(&self) -> Option<Duration> {
        self.pending.values().filter_map(|put| put.again).min()
    }

    /// The local ids of the values.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.pending.keys().copied()
    }

    /// Nothing is brought any more; the local ids of what was.
    pub(crate) fn clear(&mut self) -> Vec<u32> {
        self.confirming.clear();
        core::mem::take(&mut self.pending).into_keys().collect()
    }
}

impl<T, V, A> Core<T, V, A> {
    /// Whether values are on their way to workers.
    pub fn is_bringing(&self) -> bool {
        !self.puts.pending.is_empty()
    }

    /// Puts a value under a key. The application has futures of it from now on, and keeps `owner`;
    /// notices tell when it is there. Returns what the application kept of it before.
    ///
    /// # Errors
    /// When there are no more local ids.
    pub fn put(
        &mut self,
        key: &[u8],
        owner: T,
        content: Content,
        destination: &Destination,
        effects: &mut Effects,
    ) -> Result<Option<T>, Exhausted> {
        let put = self.put_as(key, Some(owner), content, destination, None, effects);
        put.map(|(_, before)| before)
    }

    /// Puts a value that the application has futures of, or that a submission needs until it lets it
    /// go; it is kept if something says whether it is intact.
    pub(crate) fn put_as(
        &mut self,
        key: &[u8],
        owner: Option<T>,
        content: Content,
        destination: &Destination,
        is_intact: Option<IsIntact>,
        effects: &mut Effects,
    ) -> Result<(u32, Option<T>), Exhausted> {
        let known = self.keys.find(key);
        let state = known.and_then(|id| self.keys.known(id));
        let is_there = matches!(state, Some(Known::Inline(_) | Known::Remote { .. }));
        // A notice will tell, unless what comes was cancelled.
        let is_coming = matches!(state, Some(Known::Pending))
            && known.is_some_and(|id| self.puts.is_coming(id));
        // Before anything changes: naming it again must not fail halfway.
        if !is_there && !is_coming && known.is_some() {
            self.keys.check_room(1)?;
        }
        let mut before = None;
        let id = match (known, owner) {
            (None, owner) => self.keys.add(key, owner)?,
            (Some(id), Some(owner)) => {
                before = self.keys.own(id, owner);
                id
            }
            (Some(id), None) => {
                self.keys.hold(id);
                id
            }
        };
        if is_there {
            let class = content.class;
            self.tell(Item::Standing(id, Change::Finished { class }));
            effects.push(Effect::Wake);
            return Ok((id, before));
        }
        if is_coming {
            return Ok((id, before));
        }
        let named = match known {
            // Without a value.
            Some(id) => self.keys.name_again(id)?,
            None => id,
        };
        let key = Bytes::copy_from_slice(key);
        let kept = is_intact.is_some_and(|is| self.keep(named, &key, &content, is, effects));
        let message = content.message(named, key, destination, kept);
        let is_large = matches!(content.value, Contained::Frames(..));
        if is_large {
            // Until it is there.
            self.keys.hold(id);
        }
        if self.puts.pending.remove(&id).is_some() {
            // It was cancelled. Something else needs the key by now.
            self.keys.release_hold(id);
        }
        if is_large {
            let put = Pending::new(content, destination.clone());
            self.puts.pending.insert(id, put);
        }
        self.send(message, effects);
        Ok((id, before))
    }

    /// Keeps what is put under a name, in case that the scheduler asks for it again; whether it does.
    fn keep(
        &mut self,
        name: u32,
        key: &Bytes,
        content: &Content,
        is_intact: IsIntact,
        effects: &mut Effects,
    ) -> bool {
        let Contained::Frames(kind, frames) = &content.value else {
            return false;
        };
        let constant = Constant {
            key: key.clone(),
            nbytes: content.nbytes,
            class: content.class.clone(),
            kind: *kind,
            frames: frames.clone(),
            is_intact,
        };
        let dropped = self.kept.keep(name, constant);
        let is_kept = dropped.is_some();
        if let Some(ids) = dropped.filter(|ids| !ids.is_empty()) {
            self.send(FromClient::Unkept(ids), effects);
        }
        is_kept
    }

    /// The scheduler asks for a constant that is lost, which was put under this name.
    pub(crate) fn bring_again(&self, name: u32, effects: &mut Effects) {
        // Otherwise it was put again, or is not kept any more: the scheduler is about to hear so.
        if let Some(constant) = self.kept.get(name) {
            effects.push(Effect::Verify(name, constant.clone()));
        }
    }

    /// What was kept is what it was, or not.
    pub(crate) fn verified(&mut self, name: u32, is_intact: bool, effects: &mut Effects) {
        let Some(constant) = self.kept.get(name).cloned() else {
            return;
        };
        if !is_intact {
            self.kept.remove(name);
            return self.send(FromClient::Unkept(vec![name]), effects);
        }
        let key = constant.key;
        let named = match self.keys.find(&key) {
            Some(id) => self.keys.name_again(id).map(|named| {
                // Until it is there, as if it were put the first time.
                if !self.puts.pending.contains_key(&id) {
                    self.keys.hold(id);
                }
                (id, named)
            }),
            None => self.keys.add(&key, None).map(|id| (id, id)),
        };
        let Ok((id, named)) = named else {
            return;
        };
        let content = Content {
            nbytes: constant.nbytes,
            class: constant.class,
            value: Contained::Frames(constant.kind, constant.frames),
        };
        let put = Pending {
            is_asked: true,
            ..Pending::new(content, Destination::anywhere())
        };
        self.puts.pending.insert(id, put);
        self.say_put(id, named, key, effects);
    }

    /// Tells the scheduler that a value is put again, under another name.
    fn say_put(&mut self, id: u32, named: u32, key: Bytes, effects: &mut Effects) {
        let kept = self.kept.rename(&key, named);
        if let Some(put) = self.puts.pending.get_mut(&id) {
            put.placed = None;
            let message = put.content.message(named, key, &put.destination, kept);
            self.send(message, effects);
        }
    }

    /// The scheduler says where to bring a value that was put under this name.
    pub(crate) fn place(
        &mut self,
        name: u32,
        object: u64,
        workers: Runs,
        now: Duration,
        effects: &mut Effects,
    ) {
        let id = self.keys.last_named(name);
        let Some(put) = id.and_then(|id| self.puts.pending.get_mut(&id)) else {
            return;
        };
        let Contained::Frames(kind, frames) = &put.content.value else {
            return;
        };
        put.placed = Some(name);
        put.taken = false;
        put.spreads = workers.len() > 1;
        // Those that it is cast to answer together.
        put.targets = workers.len().min(1) as usize;
        let Some(first) = workers.first() else {
            // It is there, which a notice says; or nobody is, and somebody may come.
            put.again = Some(now + PAUSE);
            return;
        };
        put.again = None;
        let load = Load {
            name,
            object,
            kind: *kind,
            frames: frames.clone(),
        };
        effects.push(match put.spreads {
            true => Effect::Spread(workers, load),
            false => Effect::Bring(WorkerId(first as u32), load),
        });
    }

    /// The id of a value that is brought to workers under this name. The key may have another name
    /// since: somebody wants it anew.
    fn placed(&self, name: u32) -> Option<u32> {
        let id = self.keys.ever_named(name);
        let put = self.puts.pending.get(&id);
        put.is_some_and(|put| put.placed == Some(name))
            .then_some(id)
    }

    /// Workers have answered what was cast to them. Those that took it have told the scheduler, who is
    /// asked to say when it has heard them all.
    pub(crate) fn has_spread(
        &mut self,
        name: u32,
        taken: &Runs,
        reason: String,
        now: Duration,
        effects: &mut Effects,
    ) {
        if taken.is_empty() {
            return self.brought(name, Err(reason), now, effects);
        }
        let id = self.placed(name);
        let key = id.and_then(|id| Value::from_bytes(&self.keys.key(id)?).ok());
        let Some(key) = key else {
            return;
        };
        let id = self.new_number();
        self.puts.confirming.insert(id, name);
        let numbers = taken.gaps().map(|number| Value::Int(number as i64));
        let argument = Value::Dict(vec![
            (Value::str("keys"), Value::List(vec![key])),
            (Value::str("workers"), Value::List(numbers.collect())),
        ]);
        let call = Call {
            id,
            node: String::new(),
            operation: "held".to_owned(),
            argument: argument.to_bytes().into(),
        };
        self.send(FromClient::Call(call), effects);
    }

    /// The scheduler has heard of all who have taken a value. Gives other answers back.
    pub(crate) fn told_held(
        &mut self,
        answer: Answer,
        now: Duration,
        effects: &mut Effects,
    ) -> Option<Answer> {
        let Some(name) = self.puts.confirming.remove(&answer.id) else {
            return Some(answer);
        };
        self.brought(name, Ok(()), now, effects);
        None
    }

    /// A worker has taken a value, or not.
    pub(crate) fn brought(
        &mut self,
        name: u32,
        outcome: Result<(), String>,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some(id) = self.placed(name) else {
            return;
        };
        let Some(put) = self.puts.pending.get_mut(&id) else {
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
            return self.is_put(id, effects);
        }
        put.attempts += 1;
        if put.attempts < ATTEMPTS {
            let pause = if put.taken { UNHEARD } else { PAUSE };
            put.again = Some(now + pause);
            return;
        }
        if put.taken {
            put.reason = "each that took it was lost".to_owned();
        }
        let ids = vec![self.keys.named(id)];
        if put.is_asked {
            // Another client may bring it.
            self.kept.remove(ids[0]);
            self.send(FromClient::Unkept(ids), effects);
            return self.is_put(id, effects);
        }
        // Whoever waits for it, here or elsewhere, is told.
        let reason = format!("it could not be brought to any worker: {}", put.reason);
        let reason = Value::Tuple(vec![Value::str("lost data"), Value::Str(reason)]);
        let cancel = FromClient::Cancel {
            ids,
            force: false,
            reason: reason.to_bytes().into(),
        };
        self.send(cancel, effects);
        self.is_put(id, effects);
    }

    /// The value is at the workers, or never will be.
    fn is_put(&mut self, id: u32, effects: &mut Effects) {
        if let Some(put) = self.puts.pending.remove(&id) {
            if let Some(change) = put.held_back {
                self.tell(Item::Standing(id, change));
            }
            self.release_hold(id, effects);
        }
    }

    /// A notice has come of how a value stands: once those that are to take it have answered, it need
    /// not be put any more.
    pub(crate) fn heard_of(&mut self, id: u32, effects: &mut Effects) {
        if let Some(put) = self.puts.pending.get_mut(&id) {
            put.is_told = true;
            if put.targets == 0 {
                self.is_put(id, effects);
            }
        }
    }

    /// A value is lost while it goes to many: the first to have it is gone. It is here still, so it is
    /// put again. Whether it is.
    pub(crate) fn put_lost(&mut self, id: u32, effects: &mut Effects) -> bool {
        let spreads =
            |put: &&mut Pending| put.spreads && put.targets > 0 && put.attempts + 1 < ATTEMPTS;
        let Some(put) = self.puts.pending.get_mut(&id).filter(spreads) else {
            return false;
        };
        let (Ok(named), Some(key)) = (self.keys.name_again(id), self.keys.key(id)) else {
            return false;
        };
        put.attempts += 1;
        put.held_back = None;
        (put.taken, put.is_told, put.targets) = (false, false, 0);
        self.say_put(id, named, Bytes::copy_from_slice(&key), effects);
        true
    }

    /// Has workers chosen anew for what could not be brought to the first.
    pub(crate) fn put_again(&mut self, now: Duration, effects: &mut Effects) {
        let puts = self.puts.pending.iter_mut();
        let due = puts.filter(|(_, put)| put.again.is_some_and(|again| again <= now));
        let due = due.map(|(id, put)| {
            put.again = None;
            *id
        });
        for id in due.collect::<Vec<_>>() {
            if matches!(self.keys.known(id), Some(Known::Failed)) {
                // It was cancelled, as a notice is about to say.
                continue;
            }
            if let (Ok(named), Some(key)) = (self.keys.name_again(id), self.keys.key(id)) {
                self.say_put(id, named, Bytes::copy_from_slice(&key), effects);
            }
        }
    }
}
