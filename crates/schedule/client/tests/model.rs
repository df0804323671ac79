//! Whatever the application, the scheduler and the workers do, in any order: against a model that
//! keeps sets of ids and counts of promises.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use treadle_broadcast::Runs;
use treadle_client::{
    Contained, Content, Core, Destination, Effect, Effects, Event, NewTask, Notification,
    Submission,
};
use treadle_messages::{Answer, FromClient, Standing, TaskOptions, ToClient};
use treadle_types::{Value, WorkerId};

const KEYS: u8 = 4;

/// Encodings of keys.
fn key(index: u8) -> Vec<u8> {
    Value::Int(i64::from(index)).to_bytes()
}

#[derive(Clone, Debug)]
enum Step {
    Watch(u8),
    Release(u8),
    Put(u8, bool),
    Constant(u8),
    Begin,
    Read(u8),
    Task(u8, bool),
    Submit,
    Finish,
    Abandon,
    Cancel(u8),
    Retry(u8),
    Fetch(u8),
    /// One of the fetches is not waited for any more.
    CancelFetch(u8),
    /// A notice of one of the ids.
    Notice(u8, u8),
    Place(u8, u8),
    Bring(u8),
    Unkeep(u8),
    /// One of what workers were asked for, or brought, has this outcome.
    Answer(u8, bool),
    Tick,
    Next,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    prop_oneof![
        3 => key.clone().prop_map(Step::Watch),
        3 => key.clone().prop_map(Step::Release),
        3 => (key.clone(), any::<bool>()).prop_map(|(key, large)| Step::Put(key, large)),
        2 => key.clone().prop_map(Step::Constant),
        2 => Just(Step::Begin),
        2 => key.clone().prop_map(Step::Read),
        4 => (key.clone(), any::<bool>()).prop_map(|(key, wanted)| Step::Task(key, wanted)),
        2 => Just(Step::Submit),
        1 => Just(Step::Finish),
        1 => Just(Step::Abandon),
        1 => key.clone().prop_map(Step::Cancel),
        1 => key.clone().prop_map(Step::Retry),
        4 => key.prop_map(Step::Fetch),
        2 => any::<u8>().prop_map(Step::CancelFetch),
        8 => (any::<u8>(), 0..6u8).prop_map(|(id, how)| Step::Notice(id, how)),
        4 => (any::<u8>(), 0..3u8).prop_map(|(id, count)| Step::Place(id, count)),
        2 => any::<u8>().prop_map(Step::Bring),
        1 => any::<u8>().prop_map(Step::Unkeep),
        8 => (any::<u8>(), any::<bool>()).prop_map(|(which, well)| Step::Answer(which, well)),
        3 => Just(Step::Tick),
        4 => Just(Step::Next),
    ]
}

/// What workers, and the scheduler, owe the client.
#[derive(Debug)]
enum Debt {
    Get(u64),
    Brought(u32),
    Spread(u32, Runs),
    Verify(u32),
    Call(u64),
}

#[derive(Default)]
struct Model {
    /// Every id that was ever named, with its key.
    named: BTreeMap<u32, Vec<u8>>,
    released: BTreeSet<u32>,
    /// Ids of tasks that nobody has a future of: they are not released.
    unkept: BTreeSet<u32>,
    /// Keys that the application has futures of, with the newest one.
    futures: BTreeMap<u8, u32>,
    next_future: u32,
    debts: Vec<Debt>,
    /// Values that were asked for and not told of.
    fetches: BTreeSet<u64>,
}

impl Model {
    fn name(&mut self, id: u32, key: &[u8]) {
        let last = self.named.last_key_value();
        assert!(
            last.is_none_or(|(&last, _)| last < id),
            "{id} is used twice"
        );
        self.named.insert(id, key.to_vec());
    }

    fn mention(&self, id: u32) {
        assert!(self.named.contains_key(&id), "{id} is not known");
        assert!(!self.released.contains(&id), "{id} was released");
    }

    fn heard(&mut self, message: &FromClient) {
        match message {
            FromClient::Want { first, keys } => self.name(*first, &keys[0]),
            FromClient::Put { id, key, .. } => self.name(*id, key),
            FromClient::Submit(batch) => {
                let mut ids = (batch.first..).zip(&batch.keys);
                ids.by_ref().for_each(|(id, key)| self.name(id, key));
                for id in batch.tasks.iter().chain(&batch.inputs).chain(&batch.wanted) {
                    self.mention(*id);
                }
                let new = batch.first..batch.first + batch.keys.len() as u32;
                let unkept = new.filter(|id| !batch.wanted.contains(id));
                self.unkept.extend(unkept);
            }
            FromClient::Release(ids) => {
                for id in ids {
                    assert!(self.released.insert(*id), "{id} is released twice");
                    assert!(self.named.contains_key(id), "{id} was never named");
                }
            }
            FromClient::Cancel { ids, .. } | FromClient::Retry(ids) => {
                ids.iter().for_each(|id| self.mention(*id));
            }
            FromClient::Call(call) => self.debts.push(Debt::Call(call.id)),
            _ => {}
        }
    }

    fn new_future(&mut self, key: u8) -> u32 {
        self.next_future += 1;
        self.futures.insert(key, self.next_future);
        self.next_future
    }

    fn id(&self, which: u8) -> Option<u32> {
        let count = self.named.len();
        (count > 0).then(|| *self.named.keys().nth(usize::from(which) % count).unwrap())
    }
}

struct Test {
    core: Core<u32, u32, ()>,
    model: Model,
    now: Duration,
    submission: Option<Submission<u32>>,
}

fn content(large: bool) -> Content {
    Content {
        nbytes: 100,
        class: Bytes::new(),
        value: match large {
            true => Contained::Frames(1, vec![Bytes::from_static(b"frame")]),
            false => Contained::Inline(Bytes::from_static(b"small")),
        },
    }
}

fn standing(how: u8) -> Standing {
    let finished = |inline, holder| Standing::Finished {
        nbytes: 8,
        inline,
        class: Bytes::new(),
        holder,
        object: 1,
    };
    match how {
        0 => finished(Some(Bytes::from_static(b"value")), None),
        1 => finished(None, Some(WorkerId(1))),
        2 => finished(None, None),
        3 => Standing::Cancelled(Bytes::new()),
        4 => Standing::Pending,
        _ => Standing::Unknown,
    }
}

impl Test {
    fn new() -> Self {
        let mut test = Self {
            core: Core::new(250),
            model: Model::default(),
            now: Duration::ZERO,
            submission: None,
        };
        for worker in [1, 2] {
            let address = format!("w{worker}");
            let worker = WorkerId(worker);
            test.say(ToClient::Peer { worker, address });
        }
        test
    }

    fn follow<R>(&mut self, act: impl FnOnce(&mut Self, &mut Effects) -> R) -> R {
        let mut effects = Effects::new();
        let result = act(self, &mut effects);
        self.core.check().unwrap();
        for effect in effects {
            let debt = match effect {
                Effect::Send(message) => {
                    self.model.heard(&message);
                    continue;
                }
                Effect::Get { request, .. } => Debt::Get(request),
                Effect::Bring(_, load) => Debt::Brought(load.name),
                Effect::Spread(workers, load) => Debt::Spread(load.name, workers),
                Effect::Verify(name, _) => Debt::Verify(name),
                Effect::Unwanted(requests) => {
                    // Those that were sent are answered.
                    let is_sent = |request: u64| request.is_multiple_of(2);
                    self.model.debts.retain(|debt| match debt {
                        Debt::Get(request) => is_sent(*request) || !requests.contains(request),
                        _ => true,
                    });
                    continue;
                }
                _ => continue,
            };
            self.model.debts.push(debt);
        }
        result
    }

    fn handle(&mut self, event: Event<u32, ()>) {
        self.follow(|test, effects| test.core.handle(event, test.now, effects));
    }

    fn say(&mut self, message: ToClient) {
        self.handle(Event::Received(message));
    }

    fn answer(&mut self, which: u8, well: bool) {
        if self.model.debts.is_empty() {
            return;
        }
        let which = usize::from(which) % self.model.debts.len();
        let reason = "it may".to_owned();
        let event = match self.model.debts.swap_remove(which) {
            Debt::Get(request) if well => Event::Got { request, value: 1 },
            Debt::Get(request) => Event::Missed { request, reason },
            Debt::Brought(name) => Event::Brought {
                name,
                outcome: well.then_some(()).ok_or(reason),
            },
            Debt::Spread(name, workers) => Event::Spread {
                name,
                taken: if well { workers } else { Runs::new() },
                reason,
            },
            Debt::Verify(name) => Event::Verified(name, well),
            Debt::Call(id) => {
                let holders = |key| (Value::Int(key), Value::List(vec![Value::str("w2")]));
                let told = Value::Dict((0..i64::from(KEYS)).map(holders).collect());
                let told = if well { told } else { Value::None };
                let result = Ok(told.to_bytes().into());
                Event::Received(ToClient::Answer(Answer { id, result }))
            }
        };
        self.handle(event);
    }

    fn task(&mut self, index: u8, wanted: bool) {
        let Some(submission) = &mut self.submission else {
            return;
        };
        let owner = wanted.then(|| self.model.new_future(index));
        let task = NewTask {
            key: &key(index),
            recipe: b"",
            inputs: &[],
            definitions: &[],
            readers: 0,
            options: 0,
        };
        submission.add(&task, owner);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Watch(index) => {
                // What is submitted before is sent after it.
                if self.submission.is_none() {
                    let owner = self.model.new_future(index);
                    let watched = self.follow(|t, e| t.core.watch(&key(index), owner, e));
                    watched.unwrap();
                }
            }
            Step::Release(index) => {
                // What is not sent yet has its future still.
                if self.submission.is_none() {
                    let owner = self.model.futures.remove(&index);
                    let released = self.follow(|t, e| t.core.release_if(&key(index), |_| true, e));
                    assert_eq!(released, owner);
                }
            }
            Step::Put(index, large) => {
                if self.submission.is_none() {
                    let owner = self.model.new_future(index);
                    let destination = Destination::default();
                    let put = |t: &mut Self, e: &mut Effects| {
                        t.core
                            .put(&key(index), owner, content(large), &destination, e)
                    };
                    self.follow(put).unwrap();
                }
            }
            Step::Constant(index) => {
                if let Some(mut submission) = self.submission.take() {
                    let intact: treadle_client::IsIntact = |_, _, _| true;
                    self.follow(|t, e| {
                        let content = content(true);
                        let key = key(index);
                        t.core.constant(&mut submission, &key, content, intact, e)
                    })
                    .unwrap();
                    self.submission = Some(submission);
                }
            }
            Step::Begin => {
                if self.submission.is_none() {
                    let mut submission = self.core.submission();
                    submission.options(TaskOptions::default());
                    self.submission = Some(submission);
                }
            }
            Step::Read(index) => {
                if let Some(submission) = &mut self.submission {
                    self.core.read_coming(submission, &key(index));
                }
            }
            Step::Task(index, wanted) => self.task(index, wanted),
            Step::Submit => {
                if let Some(mut submission) = self.submission.take() {
                    self.follow(|t, e| t.core.submit(&mut submission, [], e))
                        .unwrap();
                    self.submission = Some(submission);
                }
            }
            Step::Finish => {
                if let Some(submission) = self.submission.take() {
                    self.follow(|t, e| t.core.finish(submission, [], e))
                        .unwrap();
                }
            }
            Step::Abandon => {
                if let Some(submission) = self.submission.take() {
                    self.follow(|t, e| t.core.abandon(submission, e)).unwrap();
                    // Those whose tasks were not sent have none.
                    self.model.futures = BTreeMap::new();
                    for index in 0..KEYS {
                        if let Some(&owner) = self.core.owner(&key(index)) {
                            self.model.futures.insert(index, owner);
                        }
                    }
                }
            }
            Step::Cancel(index) => self.follow(|t, e| {
                let key = key(index);
                t.core
                    .cancel([&key[..]].into_iter(), false, Bytes::new(), e);
            }),
            Step::Retry(index) => self.follow(|t, e| {
                let key = key(index);
                t.core.retry([&key[..]].into_iter(), e);
            }),
            Step::Fetch(index) => {
                let ticket = self.core.new_number();
                let key = key(index);
                let begun = self.follow(|t, e| t.core.fetch(ticket, [&key[..]].into_iter(), e));
                if begun.is_ok() {
                    self.model.fetches.insert(ticket);
                }
            }
            Step::CancelFetch(which) => {
                let count = self.model.fetches.len();
                let ticket = (count > 0).then(|| usize::from(which) % count);
                let ticket = ticket.and_then(|nth| self.model.fetches.iter().nth(nth).copied());
                if let Some(ticket) = ticket {
                    self.follow(|t, e| t.core.cancel_fetch(ticket, e));
                    self.model.fetches.remove(&ticket);
                }
            }
            Step::Notice(which, how) => {
                if let Some(id) = self.model.id(which) {
                    let standing = standing(how);
                    self.say(ToClient::Notice { id, standing });
                }
            }
            Step::Place(which, count) => {
                if let Some(id) = self.model.id(which) {
                    let workers = Runs::range(1, 1 + u64::from(count));
                    self.say(ToClient::Place {
                        id,
                        object: 1,
                        workers,
                    });
                }
            }
            Step::Bring(which) => {
                let ids = self.model.id(which).into_iter().collect();
                self.say(ToClient::Bring(ids));
            }
            Step::Unkeep(which) => {
                let ids = self.model.id(which).into_iter().collect();
                self.say(ToClient::Unkeep(ids));
            }
            Step::Answer(which, well) => self.answer(which, well),
            Step::Tick => {
                self.now += Duration::from_millis(300);
                self.handle(Event::Tick);
            }
            Step::Next => self.next(),
        }
    }

    fn next(&mut self) {
        match self.core.next(|owner| *owner) {
            Some(Notification::Standing { owner, .. }) => {
                let futures = &self.model.futures;
                let is_known = futures.values().any(|&future| future >= owner);
                assert!(is_known, "{owner} was released");
            }
            Some(Notification::Fetched { ticket, .. }) => {
                assert!(self.model.fetches.remove(&ticket), "{ticket} is told twice");
            }
            Some(other) => panic!("nobody asked for {other:?}"),
            None => {}
        }
    }

    /// Everybody answers, and the application lets everything go: nothing is left.
    fn settle(&mut self) {
        if self.submission.is_some() {
            self.step(Step::Finish);
        }
        for _ in 0..100 {
            let ids: Vec<u32> = self.model.named.keys().copied().collect();
            let count = ids.len();
            for id in ids {
                let standing = standing(0);
                self.say(ToClient::Notice { id, standing });
            }
            while !self.model.debts.is_empty() {
                self.answer(0, true);
            }
            let is_told = self.model.named.len() == count;
            match self.core.next_due() {
                Some(due) => self.now = due,
                None if is_told => break,
                None => continue,
            }
            self.handle(Event::Tick);
        }
        assert_eq!(self.core.next_due(), None, "it never ends");
        while self.core.has_notifications() {
            self.next();
        }
        assert!(self.model.fetches.is_empty(), "{:?}", self.model.fetches);
        for index in 0..KEYS {
            let owner = self.model.futures.remove(&index);
            let released = self.follow(|t, e| t.core.release_if(&key(index), |_| true, e));
            assert_eq!(released, owner);
        }
        self.follow(|test, effects| test.core.flush(effects));
        assert_eq!(self.core.key_count(), 0);
        let named = self.model.named.keys();
        let kept: BTreeSet<u32> = named
            .filter(|id| !self.model.unkept.contains(id))
            .copied()
            .collect();
        assert_eq!(self.model.released, kept, "what was named was released");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn ids_are_used_once_and_released_once_and_each_fetch_is_told_once(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut test = Test::new();
        for step in steps {
            test.step(step);
        }
        test.settle();
    }
}
