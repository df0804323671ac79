//! Clients: applications that submit graphs and change their minds, each on the production core.

mod requests;
mod submissions;
mod values;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::time::Duration;

use treadle_broadcast::Runs;
use treadle_client::{Change, Core, Effect, Effects, Event, Input, Notification, Submission};
use treadle_messages::{Definition, FromClient, ToClient};
use treadle_types::{ClientId, ObjectId, Value, WorkerId};

use crate::network::Message;
use crate::plan::{Habits, Node};
use crate::universe::{DEFINITIONS, Key, decode};
use crate::world::{Item, Party, World};

/// How a future stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Standing {
    Pending,
    Finished { is_inline: bool },
    Failed,
    Cancelled,
}

#[derive(Clone, Debug)]
pub(crate) struct Future {
    pub(crate) key: Key,
    pub(crate) standing: Standing,
}

/// A task of a submission: its key, what it reads, and how many of the submission read it.
struct Planned {
    key: Key,
    inputs: Vec<Input>,
    readers: u32,
    is_wanted: bool,
}

/// A submission that is being sent.
struct Sending {
    submission: Submission<Key>,
    batches: VecDeque<Vec<Planned>>,
    /// What its tasks read that is not made by it.
    external: Vec<Key>,
}

/// A value that is on its way to workers.
#[derive(Default)]
struct Bringing {
    spreads: bool,
    waiting: BTreeSet<WorkerId>,
    taken: Runs,
}

pub(crate) struct Client {
    /// The connection, while there is one.
    pub(crate) connection: Option<usize>,
    pub(crate) has_left: bool,
    actions: u64,
    pub(crate) core: Core<Key, u64, ()>,
    /// What the application has futures of, in the order in which it last asked for them, and their
    /// numbers by key.
    pub(crate) futures: BTreeMap<u32, Future>,
    numbers: BTreeMap<Key, u32>,
    next_future: u32,
    submissions: Vec<Sending>,
    /// Of each definition, how often it was given up, and whether it was sent since.
    definitions: [(u32, bool); DEFINITIONS as usize],
    /// Large values that are put, until it is known how they stand.
    putting: BTreeSet<Key>,
    /// By the name of the load.
    bringing: BTreeMap<u32, Bringing>,
    /// Whether what the scheduler asks for again is not what it was.
    is_spoilt: bool,
    /// Where values were, by all that the client has ever heard.
    heard: Vec<(Key, WorkerId, ObjectId)>,
    /// Values that are read from where they were once.
    reads: BTreeMap<u64, (Key, ObjectId)>,
    /// What the core asks workers for: its number for that, the worker and the value.
    gets: BTreeMap<u64, (u64, WorkerId, ObjectId)>,
    /// Keys of fetches of which the core has not notified the application.
    pub(crate) fetches: BTreeMap<u64, Key>,
    /// When the core is called next.
    due: Option<Duration>,
}

impl Client {
    pub(crate) fn new(habits: &Habits) -> Self {
        Self {
            connection: None,
            has_left: false,
            actions: habits.actions,
            core: Core::new(u64::MAX),
            futures: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_future: 0,
            submissions: Vec::new(),
            definitions: [(0, false); DEFINITIONS as usize],
            putting: BTreeSet::new(),
            bringing: BTreeMap::new(),
            is_spoilt: false,
            heard: Vec::new(),
            reads: BTreeMap::new(),
            gets: BTreeMap::new(),
            fetches: BTreeMap::new(),
            due: None,
        }
    }

    /// The application has a future of `key`.
    fn future(&mut self, key: Key) {
        if self.numbers.contains_key(&key) {
            return;
        }
        let number = self.next_future;
        self.next_future += 1;
        self.numbers.insert(key, number);
        let standing = Standing::Pending;
        self.futures.insert(number, Future { key, standing });
    }

    /// The definitions that are to be sent ahead of the next tasks.
    fn definitions(&mut self) -> Vec<Definition> {
        let mut fresh = Vec::new();
        for (place, (given_up, is_sent)) in self.definitions.iter_mut().enumerate() {
            if mem::replace(is_sent, true) {
                continue;
            }
            fresh.push(Definition {
                client: ClientId(0),
                number: *given_up * DEFINITIONS + place as u32,
                name: format!("function-{place}"),
                pickle: bytes::Bytes::copy_from_slice(&[place as u8]),
            });
        }
        fresh
    }

    /// The numbers that definitions have now.
    fn numbers_of(&self, definitions: &[u32]) -> Vec<u32> {
        let number = |&place: &u32| self.definitions[place as usize].0 * DEFINITIONS + place;
        definitions.iter().map(number).collect()
    }

    /// Gives up definitions that no task uses, and returns their numbers. What is needed again gets
    /// another number.
    fn give_up(&mut self, unused: &[u32]) -> Vec<u32> {
        let mut numbers = Vec::new();
        for &number in unused {
            let (given_up, is_sent) = &mut self.definitions[(number % DEFINITIONS) as usize];
            if *is_sent && *given_up == number / DEFINITIONS {
                (*given_up, *is_sent) = (*given_up + 1, false);
                numbers.push(number);
            }
        }
        numbers
    }

    /// The future of `key` stands for something new.
    fn another_future(&mut self, key: Key) {
        if let Some(old) = self.numbers.remove(&key) {
            self.futures.remove(&old);
        }
        self.future(key);
    }

    fn standing(&self, key: Key) -> Option<Standing> {
        let number = self.numbers.get(&key)?;
        Some(self.futures.get(number)?.standing)
    }

    /// The keys of the batches that are not sent yet.
    fn unsent(&self) -> BTreeSet<Key> {
        let batches = self.submissions.iter().flat_map(|sending| &sending.batches);
        batches.flatten().map(|task| task.key).collect()
    }

    /// Keys that stand as `is_meant` says.
    fn all(&self, is_meant: impl Fn(&Future) -> bool) -> Vec<Key> {
        let futures = self.futures.values();
        let meant = futures.filter(|future| is_meant(future));
        meant.map(|future| future.key).collect()
    }

    /// Whether a request for a value is the core's.
    pub(crate) fn has_asked(&self, request: u64) -> bool {
        self.gets.contains_key(&request)
    }

    fn is_read(&self, key: Key) -> bool {
        let mut submissions = self.submissions.iter();
        submissions.any(|sending| sending.external.contains(&key))
    }
}

/// A key, as it travels.
pub(crate) fn encode_key(key: Key) -> Vec<u8> {
    Value::Int(key.0.into()).to_bytes()
}

/// The inverse of [`encode_key`].
pub(crate) fn decode_key(bytes: &[u8]) -> Option<Key> {
    match Value::from_bytes(bytes) {
        Ok(Value::Int(key)) => Some(Key(key as u32)),
        _ => None,
    }
}

impl World {
    pub(crate) fn act(&mut self, client: usize) -> Result<(), String> {
        if self.clients[client].has_left {
            return Ok(());
        }
        if self.clients[client].connection.is_none() {
            let connection = self.connect(Node::Client(client), None);
            self.clients[client].connection = Some(connection);
            self.send_to_server(connection, Message::Hello);
        }
        if self.clients[client].actions == 0 {
            return Ok(());
        }
        self.clients[client].actions -= 1;
        let habits = &self.plan.habits;
        let (cancels, releases, moves) = (habits.cancels, habits.releases, habits.moves);
        let fetches = habits.fetches;
        let draw = self.kernel.random.below(100);
        match draw {
            _ if draw < cancels => self.cancel_some(client)?,
            _ if draw < cancels + releases => self.release_some(client)?,
            _ if draw < cancels + releases + moves => self.move_some(client),
            84..88 => self.retry_some(client)?,
            88..91 => self.want_some(client)?,
            91..96 => self.read_some(client),
            _ => self.submit(client)?,
        }
        self.with_other_stream(|world| match world.kernel.random.chance(fetches) {
            true => world.fetch_some(client),
            false => Ok(()),
        })?;
        let pause = self.plan.habits.pause;
        let pause = self.kernel.random.micros(100, pause);
        self.kernel.schedule(pause, Item::Act(client));
        Ok(())
    }

    pub(crate) fn leave(&mut self, client: usize) {
        let left = std::mem::replace(&mut self.clients[client].has_left, true);
        if !left && let Some(connection) = self.clients[client].connection {
            self.close(connection, true, Duration::ZERO);
        }
    }

    /// Has the core do something, and does what it says.
    fn client_does<R>(
        &mut self,
        client: usize,
        act: impl FnOnce(&mut Core<Key, u64, ()>, &mut Effects) -> R,
    ) -> Result<R, String> {
        let mut effects = Effects::new();
        let state = &mut self.clients[client];
        let result = act(&mut state.core, &mut effects);
        if self.kernel.steps().is_multiple_of(self.plan.check_every) {
            state.core.check()?;
        }
        for effect in effects {
            self.kernel.tell(|| format!("client {client}: {effect:?}"));
            self.client_effect(client, effect)?;
        }
        while let Some(notification) = self.clients[client].core.next(|key| *key) {
            self.notified(client, notification)?;
        }
        let due = self.clients[client].core.next_due();
        if due != self.clients[client].due {
            self.clients[client].due = due;
            if let Some(due) = due {
                self.kernel.schedule_at(due, Item::ClientDue(client));
            }
        }
        Ok(result)
    }

    fn client_event(&mut self, client: usize, event: Event<u64, ()>) -> Result<(), String> {
        let now = self.kernel.now();
        self.client_does(client, |core, effects| core.handle(event, now, effects))
    }

    pub(crate) fn client_due(&mut self, client: usize) -> Result<(), String> {
        if self.clients[client].has_left {
            return Ok(());
        }
        self.clients[client].due = None;
        self.client_event(client, Event::Tick)
    }

    fn client_effect(&mut self, client: usize, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Send(message) => {
                if let Some(connection) = self.clients[client].connection {
                    // Questions, and what follows from answers, leave the rest alone.
                    let other_stream = matches!(message, FromClient::Call(_));
                    self.tell_server(connection, message, other_stream);
                }
            }
            Effect::Get {
                request,
                worker,
                object,
            } => {
                let object = ObjectId::from_u64(object);
                let number = self.next_request + 1;
                let gets = &mut self.clients[client].gets;
                gets.insert(number, (request, worker, object));
                let found = self.server.find(object.task);
                let nbytes = found.map_or(0, |(key, _)| self.plan.universe.spec(key).nbytes);
                let party = Party::Client(client);
                self.with_other_stream(|world| world.request(party, worker, object, nbytes));
            }
            Effect::Bring(worker, load) => {
                self.bring_to(client, &Runs::one(worker.0.into()), &load, false);
            }
            Effect::Spread(workers, load) => self.bring_to(client, &workers, &load, true),
            Effect::Lost(worker) => self.client_loses(client, worker)?,
            Effect::Verify(name, constant) => {
                let key = decode_key(constant.key());
                let key = key.ok_or("a constant has a key that is none")?;
                let state = &mut self.clients[client];
                let is_intact = !state.is_spoilt;
                if is_intact {
                    state.putting.insert(key);
                    state.another_future(key);
                    self.summary.again += 1;
                }
                let now = self.kernel.now();
                self.client_does(client, |core, effects| {
                    core.handle(Event::Verified(name, is_intact), now, effects);
                    match is_intact && core.owner(&encode_key(key)).is_none() {
                        true => core.watch(&encode_key(key), key, effects).map(drop),
                        false => Ok(()),
                    }
                })?
                .map_err(|error| error.to_string())?;
            }
            Effect::Wake => {
                // The event loop says at once what was let go.
                let mut effects = Effects::new();
                self.clients[client].core.flush(&mut effects);
                for effect in effects {
                    if let Effect::Send(message) = effect
                        && let Some(connection) = self.clients[client].connection
                    {
                        self.tell_server(connection, message, true);
                    }
                }
            }
            Effect::Met(..) | Effect::Unwanted(_) => {}
            Effect::Joined(_) | Effect::Left(..) | Effect::SettledAsked(_) => {
                return Err("a client hears of casts".into());
            }
        }
        Ok(())
    }

    fn tell_server(&mut self, connection: usize, message: FromClient, other_stream: bool) {
        let message = Message::Client(Box::new(message));
        match other_stream {
            true => self.send_with_other_stream(connection, true, message),
            false => self.send_to_server(connection, message),
        }
    }

    /// The application is told something.
    fn notified(
        &mut self,
        client: usize,
        notification: Notification<Key, u64, ()>,
    ) -> Result<(), String> {
        match notification {
            Notification::Standing { owner: key, change } => {
                let inline = self.clients[client].core.value(&encode_key(key));
                let state = &mut self.clients[client];
                let standing = match change {
                    Change::Finished { .. } => {
                        if let Some(inline) = &inline
                            && !decode(inline)
                                .is_some_and(|value| self.oracle.versions.was_current(key, value))
                        {
                            return Err(format!("client {client} gets another value of {key:?}"));
                        }
                        let holder = state.core.holder(&encode_key(key));
                        let holder = holder.filter(|_| !self.plan.universe.spec(key).is_actor);
                        let heard = holder
                            .map(|(worker, object)| (key, worker, ObjectId::from_u64(object)));
                        state.heard.extend(heard);
                        let is_inline = inline.is_some();
                        Standing::Finished { is_inline }
                    }
                    Change::Failed(_) => Standing::Failed,
                    Change::Cancelled(_) | Change::Unknown => Standing::Cancelled,
                    Change::Pending => Standing::Pending,
                };
                if standing != Standing::Pending {
                    state.putting.remove(&key);
                }
                let number = state.numbers.get(&key);
                match number.and_then(|number| state.futures.get_mut(number)) {
                    Some(future) => future.standing = standing,
                    None => return Err(format!("client {client} hears of {key:?}")),
                }
                Ok(())
            }
            Notification::Fetched {
                ticket, outcome, ..
            } => self.fetched(client, ticket, outcome),
            Notification::Unused(numbers) => {
                let numbers = self.clients[client].give_up(&numbers);
                self.summary.undefined += numbers.len() as u64;
                self.client_does(client, |core, effects| {
                    core.send(FromClient::Undefine(numbers), effects);
                })
            }
            // Of questions that it has not asked itself, and of what others did.
            Notification::Answer(_) | Notification::Stuck { .. } | Notification::Restarted => {
                Ok(())
            }
            other => Err(format!("client {client} hears {other:?}")),
        }
    }

    pub(crate) fn client_told(&mut self, client: usize, message: Message) -> Result<(), String> {
        let message = match message {
            Message::ToClient(message) => *message,
            Message::Closed => return Ok(()),
            _ => return Err("a client was told what only the scheduler or a worker hears".into()),
        };
        if self.clients[client].has_left {
            return Ok(());
        }
        if let ToClient::Bring(_) = message {
            self.clients[client].is_spoilt = self.kernel.random.chance(10);
        }
        self.client_event(client, Event::Received(message))
    }
}
