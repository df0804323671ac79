//! Each transition by itself: what the client says, and what its application hears.

use std::time::Duration;

use bytes::Bytes;
use treadle_broadcast::Runs;
use treadle_client::{
    Change, Contained, Content, Core, Destination, Effect, Effects, Event, Fetched, Input, NewTask,
    Notification,
};
use treadle_messages::{
    Answer, Call, Failed, FailedKind, FromClient, LostWorker, Standing, TaskOptions, ToClient,
};
use treadle_types::{Cause, Value, WorkerId};

/// The encoding of a key: the scheduler is asked about it.
const X: &[u8] = b"\x05\x01x";

/// A client with the effects that nobody has looked at yet.
struct Test {
    core: Core<&'static str, u32, ()>,
    now: Duration,
    effects: Effects,
}

type Notified = Notification<&'static str, u32, ()>;

impl Test {
    fn new() -> Self {
        Self {
            core: Core::new(10_000),
            now: Duration::ZERO,
            effects: Effects::new(),
        }
    }

    fn handle(&mut self, event: Event<u32, ()>) {
        self.core.handle(event, self.now, &mut self.effects);
        self.core.check().unwrap();
    }

    fn say(&mut self, message: ToClient) {
        self.handle(Event::Received(message));
    }

    fn notice(&mut self, id: u32, standing: Standing) {
        self.say(ToClient::Notice { id, standing });
    }

    /// Time passes until something is due.
    fn wait(&mut self) {
        self.now = self.core.next_due().expect("nothing is due");
        self.handle(Event::Tick);
    }

    /// The next effect but for calls to wake up.
    fn effect(&mut self) -> Effect {
        let mut effects = self.effects.drain(..);
        let next = effects.find(|effect| !matches!(effect, Effect::Wake));
        let rest = effects.collect();
        self.effects = rest;
        next.expect("an effect")
    }

    fn sent(&mut self) -> FromClient {
        match self.effect() {
            Effect::Send(message) => message,
            other => panic!("not a message: {other:?}"),
        }
    }

    /// The next put; what was released is said before it.
    fn put(&mut self) -> u32 {
        loop {
            match self.sent() {
                FromClient::Put { id, .. } => return id,
                FromClient::Release(_) => {}
                other => panic!("not a put: {other:?}"),
            }
        }
    }

    fn call(&mut self) -> Call {
        match self.sent() {
            FromClient::Call(call) => call,
            other => panic!("not a call: {other:?}"),
        }
    }

    fn get(&mut self) -> (u64, WorkerId, u64) {
        match self.effect() {
            Effect::Get {
                request,
                worker,
                object,
            } => (request, worker, object),
            other => panic!("not a request: {other:?}"),
        }
    }

    fn is_quiet(&mut self) -> bool {
        self.effects
            .retain(|effect| !matches!(effect, Effect::Wake));
        self.effects.is_empty()
    }

    fn notified(&mut self) -> Option<Notified> {
        self.core.next(|owner| owner)
    }

    fn fetched(&mut self) -> Fetched<u32> {
        match self.notified() {
            Some(Notification::Fetched { outcome, .. }) => outcome,
            other => panic!("not a value: {other:?}"),
        }
    }

    fn watch(&mut self) -> u32 {
        self.core.watch(X, "x", &mut self.effects).unwrap();
        match self.sent() {
            FromClient::Want { first, keys } if keys == [X] => first,
            other => panic!("not what is wanted: {other:?}"),
        }
    }

    fn fetch(&mut self) {
        let begun = self.core.fetch(7, [X].into_iter(), &mut self.effects);
        begun.unwrap();
        self.core.check().unwrap();
    }

    /// A key whose value two workers have had.
    fn remote() -> (Self, u32) {
        let mut test = Self::new();
        for worker in [1, 2] {
            let address = format!("address-{worker}");
            let worker = WorkerId(worker);
            test.say(ToClient::Peer { worker, address });
            assert!(matches!(test.effect(), Effect::Met(..)));
        }
        let id = test.watch();
        test.notice(id, at(1, 77));
        assert!(is_finished(test.notified()));
        (test, id)
    }

    fn answer(&mut self, call: &Call, holders: &[&str]) {
        let holders = holders
            .iter()
            .map(|holder| Value::str(holder.to_string()))
            .collect();
        let key = Value::from_bytes(X).unwrap();
        let answer = Value::Dict(vec![(key, Value::List(holders))]);
        self.say(ToClient::Answer(Answer {
            id: call.id,
            result: Ok(answer.to_bytes().into()),
        }));
    }
}

fn at(worker: u32, object: u64) -> Standing {
    Standing::Finished {
        nbytes: 8,
        inline: None,
        class: Bytes::new(),
        holder: Some(WorkerId(worker)),
        object,
    }
}

fn data_lost() -> Standing {
    let worker = LostWorker {
        name: "1".to_owned(),
        address: String::new(),
        cause: Cause::Unreachable,
        log: String::new(),
    };
    Standing::Failed(Failed {
        key: Bytes::from_static(X),
        kind: FailedKind::DataLost(worker),
    })
}

fn inline(value: &'static [u8]) -> Standing {
    Standing::Finished {
        nbytes: 8,
        inline: Some(Bytes::from_static(value)),
        class: Bytes::new(),
        holder: None,
        object: 0,
    }
}

fn is_finished(notified: Option<Notified>) -> bool {
    let change = match notified {
        Some(Notification::Standing { owner: "x", change }) => change,
        other => panic!("not x: {other:?}"),
    };
    matches!(change, Change::Finished { .. })
}

fn large() -> Content {
    Content {
        nbytes: 1_000,
        class: Bytes::new(),
        value: Contained::Frames(1, vec![Bytes::from_static(b"frame")]),
    }
}

fn place(id: u32, workers: Runs) -> ToClient {
    ToClient::Place {
        id,
        object: 77,
        workers,
    }
}

#[test]
fn a_value_that_its_holder_does_not_give_is_asked_of_another() {
    let (mut test, _) = Test::remote();
    test.fetch();
    let (request, worker, object) = test.get();
    assert_eq!((worker, object), (WorkerId(1), 77));
    let reason = "gone".to_owned();
    test.handle(Event::Missed { request, reason });
    let call = test.call();
    assert_eq!(call.operation, "who_has");
    test.answer(&call, &["address-1", "address-2"]);
    let (request, worker, _) = test.get();
    assert_eq!(worker, WorkerId(2));
    test.handle(Event::Got { request, value: 5 });
    assert!(matches!(test.fetched(), Fetched::Frames(5)));
    // An answer to a request that is over is nobody's.
    test.handle(Event::Got { request, value: 6 });
    assert!(test.notified().is_none() && test.is_quiet());
}

#[test]
fn a_value_that_nobody_gives_is_given_up_after_longer_and_longer_pauses() {
    let (mut test, _) = Test::remote();
    test.fetch();
    let (mut misses, mut pauses) = (0, vec![]);
    let reason = loop {
        if let Some(notified) = test.notified() {
            match notified {
                Notification::Fetched {
                    outcome: Fetched::Unreachable(reason),
                    ..
                } => break reason,
                other => panic!("{other:?}"),
            }
        }
        if test.is_quiet() {
            let before = test.now;
            test.wait();
            pauses.push(test.now - before);
        }
        let (request, ..) = test.get();
        misses += 1;
        let reason = format!("miss {misses}");
        test.handle(Event::Missed { request, reason });
        if let Some(Effect::Send(_)) = test.effects.first() {
            let call = test.call();
            test.answer(&call, &["address-1"]);
        }
    };
    assert_eq!(reason, format!("miss {misses}"));
    assert!(pauses.is_sorted() && pauses.len() > 3, "{pauses:?}");
    assert_eq!(pauses.last(), Some(&Duration::from_secs(4)));
}

#[test]
fn a_value_that_is_being_made_is_asked_for_when_it_is_there() {
    let mut test = Test::new();
    let id = test.watch();
    test.fetch();
    assert!(test.is_quiet());
    test.notice(id, Standing::Pending);
    test.notice(id, inline(b"value"));
    assert!(matches!(
        test.notified(),
        Some(Notification::Standing {
            change: Change::Pending,
            ..
        })
    ));
    assert!(is_finished(test.notified()));
    assert!(matches!(test.fetched(), Fetched::Inline(value) if value == "value"));
    test.notice(id, Standing::Unknown);
    test.fetch();
    assert!(matches!(
        test.notified(),
        Some(Notification::Standing { .. })
    ));
    assert!(matches!(test.fetched(), Fetched::Unknown));
}

#[test]
fn what_is_fetched_is_needed_until_it_has_come() {
    let (mut test, id) = Test::remote();
    test.fetch();
    let (request, ..) = test.get();
    let released = test.core.release_if(X, |_| true, &mut test.effects);
    assert_eq!(released, Some("x"));
    test.core.flush(&mut test.effects);
    assert!(test.is_quiet() && test.core.key_count() == 1);
    let error = Bytes::from_static(b"error");
    test.handle(Event::Unserialisable { request, error });
    assert!(matches!(test.fetched(), Fetched::Unserialisable { .. }));
    test.core.flush(&mut test.effects);
    assert_eq!(test.sent(), FromClient::Release(vec![id]));
}

/// A client that has put a value for three workers, and the name of that.
fn spreading() -> (Test, u32) {
    let mut test = Test::new();
    let destination = Destination {
        workers: vec![],
        copies: 3,
    };
    test.core
        .put(X, "x", large(), &destination, &mut test.effects)
        .unwrap();
    let id = test.put();
    (test, id)
}

#[test]
fn a_value_that_spreads_is_there_when_the_scheduler_has_heard_of_all() {
    let (mut test, id) = spreading();
    test.say(place(id, Runs::range(1, 4)));
    assert!(matches!(test.effect(), Effect::Spread(workers, _) if workers.len() == 3));
    test.notice(id, at(1, 77));
    assert!(test.notified().is_none(), "two have not answered");
    let (taken, reason) = (Runs::range(1, 3), "no room".to_owned());
    test.handle(Event::Spread {
        name: id,
        taken,
        reason,
    });
    let call = test.call();
    assert_eq!(call.operation, "held");
    assert!(test.notified().is_none());
    test.answer(&call, &[]);
    assert!(is_finished(test.notified()));
}

#[test]
fn a_value_that_is_lost_while_it_spreads_is_put_again() {
    let (mut test, mut id) = spreading();
    for _ in 1..5 {
        test.say(place(id, Runs::range(1, 4)));
        assert!(matches!(test.effect(), Effect::Spread(..)));
        test.notice(id, at(1, 77));
        test.notice(id, data_lost());
        assert!(test.notified().is_none());
        let lost = id;
        id = test.put();
        let reason = String::new();
        // The others have taken what nobody knows any more.
        test.handle(Event::Spread {
            name: lost,
            taken: Runs::range(2, 4),
            reason,
        });
        assert!(test.is_quiet());
    }
    test.say(place(id, Runs::range(1, 4)));
    assert!(matches!(test.effect(), Effect::Spread(..)));
    test.notice(id, data_lost());
    assert!(matches!(
        test.notified(),
        Some(Notification::Standing {
            change: Change::Failed(_),
            ..
        })
    ));
}

#[test]
fn a_value_that_no_worker_takes_is_put_again_and_then_cancelled() {
    let mut test = Test::new();
    let destination = Destination::default();
    test.core
        .put(X, "x", large(), &destination, &mut test.effects)
        .unwrap();
    for attempt in 0..5 {
        let id = test.put();
        test.say(place(id, Runs::one(1)));
        assert!(matches!(test.effect(), Effect::Bring(WorkerId(1), load) if load.name == id));
        let outcome = Err("no room".to_owned());
        test.handle(Event::Brought { name: id, outcome });
        if attempt < 4 {
            test.wait();
        }
    }
    assert!(matches!(test.sent(), FromClient::Cancel { reason, .. }
        if String::from_utf8_lossy(&reason).contains("no room")));
    assert_eq!(test.core.next_due(), None);
}

#[test]
fn a_constant_is_brought_again_if_it_is_what_it_was() {
    let mut test = Test::new();
    for is_intact in [true, false] {
        let mut submission = test.core.submission();
        let (core, effects) = (&mut test.core, &mut test.effects);
        let constant = core.constant(&mut submission, X, large(), |_, _, _| true, effects);
        assert!(matches!(constant, Ok(Input::Known(_))));
        core.abandon(submission, effects).unwrap();
        let id = test.put();
        test.notice(id, at(1, 77));
        test.say(ToClient::Bring(vec![id]));
        let mut effects = std::mem::take(&mut test.effects).into_iter();
        assert!(
            effects.any(|effect| matches!(effect, Effect::Verify(name, constant)
            if name == id && constant.is_intact()))
        );
        test.handle(Event::Verified(id, is_intact));
        if !is_intact {
            assert!(matches!(
                test.sent(),
                FromClient::Release(_) | FromClient::Unkept(_)
            ));
            break;
        }
        assert!(matches!(test.sent(), FromClient::Release(ids) if ids == [id]));
        let again = test.put();
        // By its earlier name it is not meant.
        test.say(ToClient::Unkeep(vec![id]));
        assert_eq!(test.core.kept(), (1, 1_000));
        test.notice(again, at(2, 78));
        test.say(ToClient::Unkeep(vec![again]));
    }
    assert_eq!((test.core.kept(), test.core.key_count()), ((0, 0), 0));
}

#[test]
fn what_the_application_did_not_process_is_the_next_thing_again() {
    let mut test = Test::new();
    let id = test.watch();
    test.notice(id, Standing::Pending);
    test.say(ToClient::Restarted);
    let first = test.notified().unwrap();
    test.core.put_back(first);
    assert!(matches!(
        test.notified(),
        Some(Notification::Standing { owner: "x", .. })
    ));
    assert!(matches!(test.notified(), Some(Notification::Restarted)));
    assert!(test.notified().is_none());
}

#[test]
fn nothing_is_waited_for_after_the_end() {
    let (mut test, _) = Test::remote();
    test.fetch();
    let (request, ..) = test.get();
    let destination = Destination::default();
    let put = test
        .core
        .put(b"y", "y", large(), &destination, &mut test.effects);
    put.unwrap();
    test.handle(Event::Ended("cut".to_owned()));
    test.handle(Event::Ended("again".to_owned()));
    assert!(matches!(test.notified(), Some(Notification::Closed(reason)) if reason == "cut"));
    assert!(matches!(test.fetched(), Fetched::Unreachable(reason) if reason == "cut"));
    let reason = "closed".to_owned();
    test.handle(Event::Missed { request, reason });
    test.fetch();
    assert!(matches!(test.fetched(), Fetched::Unreachable(_)));
    let mut submission = test.core.submission();
    let options = submission.options(TaskOptions::default());
    let task = NewTask {
        key: b"z",
        recipe: b"",
        inputs: &[],
        definitions: &[],
        readers: 0,
        options,
    };
    submission.add(&task, Some("z"));
    let unsent = test.core.finish(submission, [], &mut test.effects);
    assert_eq!(unsent, Ok(vec!["z"]));
    assert!(test.notified().is_none() && test.core.next_due().is_none());
}

#[test]
fn a_key_that_is_put_anew_is_on_its_way() {
    let mut test = Test::new();
    let id = test.watch();
    test.notice(id, Standing::Cancelled(Bytes::new()));
    let destination = Destination::default();
    let put = test
        .core
        .put(X, "x", large(), &destination, &mut test.effects);
    put.unwrap();
    let name = test.put();
    // Whoever wants it now waits, and does not name it once more.
    test.core.watch(X, "x", &mut test.effects).unwrap();
    test.fetch();
    assert!(test.is_quiet());
    test.say(place(name, Runs::one(1)));
    assert!(matches!(test.effect(), Effect::Bring(..)));
    test.notice(name, inline(b"value"));
    assert!(matches!(
        test.notified(),
        Some(Notification::Standing {
            change: Change::Cancelled(_),
            ..
        })
    ));
    assert!(is_finished(test.notified()));
    assert!(matches!(test.fetched(), Fetched::Inline(_)));
}

#[test]
fn a_value_that_was_cancelled_is_not_put_again() {
    let mut test = Test::new();
    let destination = Destination::default();
    let put = test
        .core
        .put(X, "x", large(), &destination, &mut test.effects);
    put.unwrap();
    let name = test.put();
    test.say(place(name, Runs::new()));
    let (core, effects) = (&mut test.core, &mut test.effects);
    core.cancel([X].into_iter(), false, Bytes::new(), effects);
    assert!(matches!(test.sent(), FromClient::Cancel { ids, .. } if ids == [name]));
    test.wait();
    assert!(test.is_quiet());
    test.notice(name, Standing::Cancelled(Bytes::new()));
    assert_eq!(test.core.next_due(), None);
}

#[test]
fn what_a_later_batch_reads_keeps_its_name_until_then() {
    let mut test = Test::new();
    let mut submission = test.core.submission();
    let options = submission.options(TaskOptions::default());
    let task = |key, inputs| NewTask {
        key,
        recipe: b"",
        inputs,
        definitions: &[],
        readers: 1,
        options,
    };
    submission.add(&task(X, &[]), Some("x"));
    let (core, effects) = (&mut test.core, &mut test.effects);
    core.submit(&mut submission, [], effects).unwrap();
    assert_eq!(core.release_if(X, |_| true, effects), Some("x"));
    core.flush(effects);
    submission.add(&task(b"y", &[Input::Task(0)]), None);
    core.finish(submission, [], effects).unwrap();
    core.flush(effects);
    let batches = [test.sent(), test.sent()].map(|sent| match sent {
        FromClient::Submit(batch) => batch,
        other => panic!("not a batch: {other:?}"),
    });
    let id = batches[0].tasks[0];
    assert_eq!(batches[1].inputs, [id]);
    assert_eq!(test.sent(), FromClient::Release(vec![id]));
    assert!(test.is_quiet());
}

#[test]
fn a_value_that_is_wanted_anew_while_it_is_brought_is_let_go_when_it_has_come() {
    let mut test = Test::new();
    let destination = Destination::default();
    let put = test
        .core
        .put(X, "x", large(), &destination, &mut test.effects);
    put.unwrap();
    let name = test.put();
    test.say(place(name, Runs::one(1)));
    assert!(matches!(test.effect(), Effect::Bring(..)));
    test.notice(name, Standing::Cancelled(Bytes::new()));
    let again = test.watch();
    let outcome = Ok(());
    test.handle(Event::Brought { name, outcome });
    assert!(test.is_quiet());
    assert_eq!(
        test.core.release_if(X, |_| true, &mut test.effects),
        Some("x")
    );
    test.core.flush(&mut test.effects);
    assert_eq!(test.sent(), FromClient::Release(vec![again, name]));
}
