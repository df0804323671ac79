//! Clients: they submit graphs, and change their minds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use treadle_types::{ObjectId, WorkerId};

use crate::network::{Message, News};
use crate::plan::{Habits, Node};
use crate::process::PATIENCE;
use crate::universe::Key;
use crate::world::{Copied, Item, Party, World};

/// How often a client brings a value before it gives up.
const ATTEMPTS: u32 = 3;

/// A part of a submission.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) number: u32,
    pub(crate) last: bool,
    /// The tasks, each with how many of the submission read it, and its rank.
    pub(crate) tasks: Vec<(Key, u32, u32)>,
    /// The futures of the tasks of this batch.
    pub(crate) wanted: Vec<(u32, Key)>,
}

/// How a future stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Standing {
    Pending,
    Finished {
        inline: Option<u64>,
        holder: Option<(WorkerId, ObjectId)>,
    },
    Failed,
    Cancelled,
}

#[derive(Clone, Debug)]
pub(crate) struct Future {
    pub(crate) key: Key,
    pub(crate) standing: Standing,
    /// Submissions that are still being sent and refer to it.
    uses: u32,
}

/// A value that is being brought to workers.
#[derive(Clone, Debug, Default)]
struct Bringing {
    attempt: u64,
    /// Attempts that came to nothing.
    failed: u32,
    /// The scheduler asked for it.
    is_asked: bool,
}

pub(crate) struct Client {
    /// The connection, while there is one.
    pub(crate) connection: Option<usize>,
    pub(crate) has_left: bool,
    actions: u64,
    /// Futures by their number, and the numbers by key.
    pub(crate) futures: BTreeMap<u32, Future>,
    numbers: BTreeMap<Key, u32>,
    next_future: u32,
    next_submission: u32,
    /// Submissions that are being sent: the batches that are left, and the futures that they use.
    submissions: Vec<(VecDeque<Batch>, Vec<u32>)>,
    bringing: BTreeMap<Key, Bringing>,
    /// Values that the client brings again when it is asked, with the number of the last put.
    pub(crate) kept: BTreeMap<Key, u32>,
    next_attempt: u64,
    /// Where values were, by all that the client has ever heard.
    heard: Vec<(Key, WorkerId, ObjectId)>,
    /// Values that are being read.
    requests: BTreeMap<u64, (Key, ObjectId)>,
}

impl Client {
    pub(crate) fn new(habits: &Habits) -> Self {
        Self {
            connection: None,
            has_left: false,
            actions: habits.actions,
            futures: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_future: 0,
            next_submission: 0,
            submissions: Vec::new(),
            bringing: BTreeMap::new(),
            kept: BTreeMap::new(),
            next_attempt: 0,
            heard: Vec::new(),
            requests: BTreeMap::new(),
        }
    }

    /// The number of a future of `key`, a new one if there is none.
    fn future(&mut self, key: Key) -> u32 {
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let number = self.next_future;
        self.next_future += 1;
        self.numbers.insert(key, number);
        let future = Future {
            key,
            standing: Standing::Pending,
            uses: 0,
        };
        self.futures.insert(number, future);
        number
    }

    /// A new number for the future of `key`: notices under the one before, which are still on their
    /// way, are about what was.
    fn another_future(&mut self, key: Key) -> u32 {
        let old = self.numbers.remove(&key);
        let number = self.future(key);
        if let Some(old) = old
            && let Some(before) = self.futures.remove(&old)
            && let Some(future) = self.futures.get_mut(&number)
        {
            future.uses = before.uses;
            let uses = self.submissions.iter_mut().flat_map(|(_, uses)| uses);
            for used in uses.filter(|used| **used == old) {
                *used = number;
            }
        }
        number
    }

    fn standing(&self, key: Key) -> Option<Standing> {
        let number = self.numbers.get(&key)?;
        Some(self.futures.get(number)?.standing)
    }

    /// The keys of the batches that are not sent yet.
    fn unsent(&self) -> BTreeSet<Key> {
        let batches = self.submissions.iter().flat_map(|(batches, _)| batches);
        let tasks = batches.flat_map(|batch| &batch.tasks);
        tasks.map(|task| task.0).collect()
    }

    /// The futures that stand as `is_meant` says.
    fn all(&self, is_meant: impl Fn(&Future) -> bool) -> Vec<u32> {
        let futures = self.futures.iter();
        let meant = futures.filter(|(_, future)| is_meant(future));
        meant.map(|(&number, _)| number).collect()
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
        let draw = self.kernel.random.below(100);
        match draw {
            _ if draw < cancels => self.cancel_some(client),
            _ if draw < cancels + releases => self.release_some(client),
            _ if draw < cancels + releases + moves => self.move_some(client),
            84..88 => self.retry_some(client),
            88..91 => self.want_some(client),
            91..96 => self.gather_some(client),
            _ => self.submit(client),
        }
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

    fn say(&mut self, client: usize, message: Message) {
        if let Some(connection) = self.clients[client].connection {
            self.send_to_server(connection, message);
        }
    }

    fn submit(&mut self, client: usize) {
        let graph = self.kernel.random.index(self.plan.universe.graphs.len());
        let outputs = self.plan.universe.graphs[graph].outputs.clone();
        let share = self.kernel.random.pick(&[20, 50, 100]);
        let mut outputs = self.kernel.random.some(&outputs, share);
        if self.kernel.random.chance(10) {
            // Somebody keeps a future of something in the middle.
            let keys = self.plan.universe.graphs[graph].keys.clone();
            outputs.extend(self.kernel.random.some(&keys, 20));
        }
        outputs.retain(|&key| !self.plan.universe.spec(key).is_data);
        let (tasks, external) = self.closure(client, &outputs);
        if tasks.is_empty() {
            return;
        }
        let mut readers = BTreeMap::new();
        for &key in &tasks {
            for &input in &self.plan.universe.spec(key).inputs {
                *readers.entry(input).or_insert(0) += 1;
            }
        }
        let count = match self.kernel.random.chance(self.plan.habits.batches) {
            true => self.kernel.random.between(2, 5) as usize,
            false => 1,
        };
        let size = tasks.len().div_ceil(count);
        let number = self.clients[client].next_submission;
        self.clients[client].next_submission += 1;
        let outputs: BTreeSet<_> = outputs.into_iter().collect();
        let ranked: Vec<_> = (0..).zip(&tasks).collect();
        let state = &mut self.clients[client];
        let mut uses = Vec::new();
        for key in external {
            let future = state.future(key);
            uses.push(future);
            if let Some(future) = state.futures.get_mut(&future) {
                future.uses += 1;
            }
        }
        let count = ranked.len().div_ceil(size);
        let mut batches = VecDeque::new();
        for (index, part) in ranked.chunks(size).enumerate() {
            let keys = part.iter().map(|(_, key)| **key);
            let wanted: Vec<_> = keys.filter(|key| outputs.contains(key)).collect();
            let wanted = wanted.into_iter().map(|key| (state.future(key), key));
            let readers = |key| readers.get(&key).copied().unwrap_or(0);
            let tasks = part.iter().map(|&(rank, &key)| (key, readers(key), rank));
            batches.push_back(Batch {
                number,
                last: index + 1 == count,
                tasks: tasks.collect(),
                wanted: wanted.collect(),
            });
        }
        state.submissions.push((batches, uses));
        self.kernel.schedule(Duration::ZERO, Item::Batch(client));
    }

    /// The tasks of a submission for these outputs, inputs first, and the keys that it refers to
    /// through futures.
    fn closure(&mut self, client: usize, outputs: &[Key]) -> (Vec<Key>, Vec<Key>) {
        let mut tasks = BTreeSet::new();
        let mut external = BTreeSet::new();
        let mut stack = outputs.to_vec();
        let unsent = self.clients[client].unsent();
        while let Some(key) = stack.pop() {
            if tasks.contains(&key) || external.contains(&key) {
                continue;
            }
            let standing = self.clients[client].standing(key);
            let lives = matches!(
                standing,
                Some(Standing::Pending | Standing::Finished { .. })
            );
            if self.plan.universe.spec(key).is_data {
                if !lives {
                    self.put(client, key);
                }
                external.insert(key);
            } else if lives
                && !outputs.contains(&key)
                && !unsent.contains(&key)
                && self.kernel.random.chance(50)
            {
                external.insert(key);
            } else {
                tasks.insert(key);
                stack.extend(&self.plan.universe.spec(key).inputs);
            }
        }
        (tasks.into_iter().collect(), external.into_iter().collect())
    }

    /// Sends the next batch of one of the submissions that are not sent yet.
    pub(crate) fn next_batch(&mut self, client: usize) {
        if self.clients[client].has_left || self.clients[client].submissions.is_empty() {
            return;
        }
        let index = self
            .kernel
            .random
            .index(self.clients[client].submissions.len());
        let state = &mut self.clients[client];
        let (batches, _) = &mut state.submissions[index];
        let batch = batches.pop_front();
        if batches.is_empty() {
            let (_, uses) = state.submissions.remove(index);
            for number in uses {
                if let Some(future) = state.futures.get_mut(&number) {
                    future.uses -= 1;
                }
            }
        }
        if let Some(batch) = batch {
            self.say(client, Message::Submit(batch));
        }
        let pause = self.kernel.random.micros(0, 100_000);
        self.kernel.schedule(pause, Item::Batch(client));
    }

    fn put(&mut self, client: usize, key: Key) {
        if self.plan.universe.spec(key).is_small() {
            let number = self.clients[client].another_future(key);
            self.say(client, Message::Put(number, key, false));
            return;
        }
        let keeps = self.kernel.random.chance(self.plan.habits.keeps);
        let state = &mut self.clients[client];
        state.bringing.insert(key, Bringing::default());
        if keeps {
            state.kept.insert(key, 0);
        }
        self.put_large(client, key);
    }

    /// Says under a new number that the client is about to bring a value.
    fn put_large(&mut self, client: usize, key: Key) {
        let state = &mut self.clients[client];
        let number = state.another_future(key);
        let kept = state.kept.get_mut(&key).map(|kept| *kept = number);
        self.say(client, Message::Put(number, key, kept.is_some()));
    }

    /// The scheduler asks for a value that was put under a number and is lost.
    fn bring_again(&mut self, client: usize, number: u32) {
        let cannot = self.kernel.random.chance(10);
        let state = &mut self.clients[client];
        let mut kept = state.kept.iter();
        let Some(key) = kept.find_map(|(&key, &put)| (put == number).then_some(key)) else {
            return;
        };
        if cannot {
            state.kept.remove(&key);
            return self.say(client, Message::Unkept(number));
        }
        let bringing = Bringing {
            is_asked: true,
            ..Bringing::default()
        };
        state.bringing.insert(key, bringing);
        self.summary.again += 1;
        self.put_large(client, key);
    }

    fn cancel_some(&mut self, client: usize) {
        let all = self.clients[client].all(|future| future.standing != Standing::Cancelled);
        let share = self.kernel.random.pick(&[10, 50, 100]);
        let some = self.kernel.random.some(&all, share);
        if !some.is_empty() {
            let force = self.kernel.random.chance(30);
            for number in &some {
                let key = self.clients[client].futures[number].key;
                self.oracle.cancelled.insert(key);
            }
            self.say(client, Message::Cancel(some, force));
        }
    }

    fn release_some(&mut self, client: usize) {
        let all = self.clients[client].all(|future| future.uses == 0);
        let some = self.kernel.random.some(&all, 40);
        let state = &mut self.clients[client];
        // Futures of what is still to be sent or brought stay.
        let unsent = state.unsent();
        let is_sent = |number: &u32| {
            let key = &state.futures[number].key;
            !unsent.contains(key) && !state.bringing.contains_key(key)
        };
        let some: Vec<_> = some.into_iter().filter(is_sent).collect();
        for number in &some {
            if let Some(future) = state.futures.remove(number) {
                state.numbers.remove(&future.key);
            }
        }
        if !some.is_empty() {
            self.say(client, Message::Unwant(some));
        }
    }

    fn retry_some(&mut self, client: usize) {
        let failed = self.clients[client].all(|future| future.standing == Standing::Failed);
        if !failed.is_empty() {
            self.say(client, Message::Retry(failed));
        }
    }

    /// Asks for the future of a key that perhaps somebody else has.
    fn want_some(&mut self, client: usize) {
        let keys = self.plan.universe.specs.len();
        let key = Key(self.kernel.random.index(keys) as u32);
        if self.clients[client].standing(key).is_none() {
            let number = self.clients[client].future(key);
            self.say(client, Message::Want(number, key));
        }
    }

    fn move_some(&mut self, client: usize) {
        let is_finished = |future: &Future| matches!(future.standing, Standing::Finished { .. });
        let finished = self.clients[client].all(is_finished);
        for number in self.kernel.random.some(&finished, 50) {
            let message = match self.kernel.random.chance(50) {
                true => Message::Replicate(number, self.kernel.random.between(1, 3) as u32),
                false => Message::Move(number),
            };
            self.say(client, message);
        }
    }

    /// Reads values, some of which may have gone or moved since the client heard of them.
    fn gather_some(&mut self, client: usize) {
        let heard = self.clients[client].heard.clone();
        for (key, worker, object) in self.kernel.random.some(&heard, 30) {
            let request = self.next_request + 1;
            self.clients[client].requests.insert(request, (key, object));
            let nbytes = self.plan.universe.spec(key).nbytes;
            self.request(Party::Client(client), worker, object, nbytes);
        }
    }

    /// A value has come, or could not be read; the simulation's clients do not insist.
    pub(crate) fn gathered(
        &mut self,
        client: usize,
        request: u64,
        copied: Option<Copied>,
    ) -> Result<(), String> {
        let Some((key, object)) = self.clients[client].requests.remove(&request) else {
            return Ok(());
        };
        let value = self.plan.universe.spec(key).value;
        match copied {
            Some(copied) if copied.object != object || copied.value != value => Err(format!(
                "client {client} asks for {object:?}, the value of {key:?}, and gets {copied:?}"
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn client_told(&mut self, client: usize, message: Message) -> Result<(), String> {
        let state = &mut self.clients[client];
        match message {
            Message::News(number, news) => {
                let Some(future) = state.futures.get_mut(&number) else {
                    return Ok(());
                };
                let value = self.plan.universe.spec(future.key).value;
                future.standing = match news {
                    News::Finished {
                        inline: Some(inline),
                        ..
                    } if inline != value => {
                        return Err(format!(
                            "client {client} gets another value of {:?}",
                            future.key
                        ));
                    }
                    News::Finished { inline, holder } => {
                        state.bringing.remove(&future.key);
                        let travels = !self.plan.universe.spec(future.key).is_actor;
                        let heard = holder.filter(|_| travels);
                        let heard = heard.map(|(worker, object)| (future.key, worker, object));
                        state.heard.extend(heard);
                        Standing::Finished { inline, holder }
                    }
                    News::Failed => {
                        state.bringing.remove(&future.key);
                        Standing::Failed
                    }
                    News::Cancelled => {
                        state.bringing.remove(&future.key);
                        Standing::Cancelled
                    }
                    News::Pending => Standing::Pending,
                };
                Ok(())
            }
            Message::Place(key, object, workers) => {
                self.bring_to(client, key, object, &workers);
                Ok(())
            }
            Message::Bring(number) => {
                if !self.clients[client].has_left {
                    self.bring_again(client, number);
                }
                Ok(())
            }
            Message::Unkeep(number) => {
                state.kept.retain(|_, put| *put != number);
                Ok(())
            }
            Message::Closed => Ok(()),
            _ => Err("a client was told what only the scheduler or a worker hears".into()),
        }
    }

    /// Brings a value to the workers that the scheduler has named.
    fn bring_to(&mut self, client: usize, key: Key, object: ObjectId, workers: &[WorkerId]) {
        let state = &mut self.clients[client];
        if state.has_left {
            return;
        }
        state.next_attempt += 1;
        let attempt = state.next_attempt;
        let Some(bringing) = state.bringing.get_mut(&key) else {
            return;
        };
        bringing.attempt = attempt;
        let travels = self.transfer(self.plan.universe.spec(key).nbytes);
        for &worker in workers {
            let machine = self.places[&worker];
            let bring = Item::Bring {
                client,
                machine,
                worker,
                object,
                key,
            };
            self.kernel.schedule(travels, bring);
        }
        let timeout = Item::BringTimeout {
            client,
            key,
            attempt,
        };
        self.kernel.schedule(travels * 4 + PATIENCE, timeout);
    }

    /// The scheduler has not said that there is a value: asks for other workers, or gives up.
    pub(crate) fn bring_timeout(&mut self, client: usize, key: Key, attempt: u64) {
        let state = &mut self.clients[client];
        let tried = state.bringing.get_mut(&key);
        if let Some(bringing) = tried
            && bringing.attempt == attempt
            && !state.has_left
        {
            bringing.failed += 1;
            if bringing.failed < ATTEMPTS {
                self.put_large(client, key);
            } else if bringing.is_asked {
                state.bringing.remove(&key);
                if let Some(number) = state.kept.remove(&key) {
                    self.say(client, Message::Unkept(number));
                }
            } else {
                let number = state.numbers[&key];
                self.oracle.cancelled.insert(key);
                self.say(client, Message::Cancel(vec![number], false));
            }
        }
    }
}
