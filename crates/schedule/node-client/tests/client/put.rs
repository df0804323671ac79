//! Values that clients bring.

use bytes::Bytes;
use treadle_broadcast::Runs;
use treadle_messages::{FromClient, Standing, ToClient};
use treadle_node_client::{Change, Contained, Content, Destination, Event, Input};

use crate::support::{
    Scheduler, TestClient, Worker, eventually, finished, inline, next, next_finished, notice, start,
};

fn large(bytes: usize) -> Content {
    Content {
        nbytes: bytes as u64,
        class: Bytes::from_static(b"bytes"),
        value: Contained::Frames(1, vec![Bytes::from(vec![1; bytes])]),
    }
}

fn two() -> Destination {
    Destination {
        workers: vec!["here".into()],
        copies: 2,
    }
}

fn put(scheduler: &mut Scheduler) -> u32 {
    let FromClient::Put {
        id,
        key,
        nbytes: 1_000_000,
        inline: None,
        class,
        workers,
        copies: 2,
        kept: false,
    } = scheduler.hear()
    else {
        panic!("not this put");
    };
    assert_eq!((&key[..], &class[..]), (&b"x"[..], &b"bytes"[..]));
    assert_eq!(workers, ["here"]);
    id
}

#[test]
fn a_small_value_goes_with_the_message() {
    let (mut scheduler, client) = start();
    let content = Content {
        nbytes: 5,
        class: Bytes::new(),
        value: Contained::Inline(Bytes::from_static(b"small")),
    };
    client
        .put(b"x", "x", content, &Destination::default())
        .unwrap();
    let FromClient::Put {
        id,
        inline: Some(value),
        ..
    } = scheduler.hear()
    else {
        panic!("not a Put");
    };
    assert_eq!(value, "small");
    scheduler.say([notice(id, inline(b"small"))]);
    assert_eq!(next_finished(&client), "x");
    assert_eq!(client.value(b"x").unwrap(), "small");
}

#[test]
fn a_large_value_is_brought_to_its_place() {
    let (mut scheduler, client) = start();
    let mut worker = Worker::new(1);
    client.put(b"x", "x", large(1_000_000), &two()).unwrap();
    let id = put(&mut scheduler);
    scheduler.say([worker.introduction(), place(id, 77, &worker)]);
    std::thread::scope(|scope| {
        let client = &client;
        scope.spawn(|| {
            let (object, kind, frames) = worker.brought();
            assert_eq!((object, kind), (77, 1));
            assert!(frames.len() == 1 && frames[0].len() == 1_000_000);
            worker.take(object, "");
            scheduler.say([notice(id, finished(1, 77))]);
        });
        assert_eq!(next_finished(client), "x");
    });
}

#[test]
fn workers_are_chosen_anew_where_none_has_taken_it() {
    let (mut scheduler, client) = start();
    let (mut first, mut second) = (Worker::new(1), Worker::new(2));
    client.put(b"x", "x", large(1_000_000), &two()).unwrap();
    std::thread::scope(|scope| {
        let client = &client;
        let script = scope.spawn(move || {
            let id = put(&mut scheduler);
            scheduler.say([first.introduction(), place(id, 77, &first)]);
            first.refuse();
            // Under another id, as ids are for one use.
            let again = put(&mut scheduler);
            assert_ne!(again, id);
            scheduler.say([second.introduction(), place(again, 77, &second)]);
            let (object, ..) = second.brought();
            second.take(object, "");
            scheduler.say([notice(again, finished(2, 77))]);
            (scheduler, vec![again, id])
        });
        assert_eq!(next_finished(client), "x");
        let (mut scheduler, ids) = script.join().unwrap();
        client.release(b"x");
        client.process().unwrap();
        assert_eq!(scheduler.hear(), FromClient::Release(ids));
    });
}

#[test]
fn a_value_that_is_there_already_stays_where_it_is() {
    let (mut scheduler, client) = start();
    client.put(b"x", "x", large(1_000_000), &two()).unwrap();
    let id = put(&mut scheduler);
    scheduler.say([
        ToClient::Place {
            id,
            object: 77,
            workers: Runs::new(),
        },
        notice(id, finished(1, 77)),
    ]);
    assert_eq!(next_finished(&client), "x");
    // The second time the client knows by itself.
    let before = client.put(b"x", "again", large(1_000_000), &two()).unwrap();
    assert_eq!(before, Some("x"));
    let Event::Standing {
        owner: "again",
        change: Change::Finished { class },
    } = next(&client)
    else {
        panic!("it is there");
    };
    assert_eq!(class, "bytes");
    assert!(scheduler.has_heard_nothing());
}

#[test]
fn a_value_that_is_put_again_after_it_was_cancelled_goes_by_its_new_name() {
    let (mut scheduler, client) = start();
    let content = || Content {
        nbytes: 5,
        class: Bytes::new(),
        value: Contained::Inline(Bytes::from_static(b"small")),
    };
    let hear_put = |scheduler: &mut Scheduler| match scheduler.hear() {
        FromClient::Put { id, .. } => id,
        other => panic!("not a Put: {other:?}"),
    };
    let cancel = |client: &treadle_node_client::Client<&'static str>| {
        let key: &[u8] = b"x";
        client
            .cancel([key].into_iter(), false, Bytes::new())
            .unwrap();
    };
    let hear_cancel = |scheduler: &mut Scheduler| match scheduler.hear() {
        FromClient::Cancel { ids, .. } => ids,
        other => panic!("not a Cancel: {other:?}"),
    };
    client
        .put(b"x", "first", content(), &Destination::default())
        .unwrap();
    let first = hear_put(&mut scheduler);
    scheduler.say([notice(first, inline(b"small"))]);
    assert_eq!(next_finished(&client), "first");
    cancel(&client);
    assert_eq!(hear_cancel(&mut scheduler), [first]);
    // The notice has not come yet.
    client
        .put(b"x", "second", content(), &Destination::default())
        .unwrap();
    let second = hear_put(&mut scheduler);
    assert_ne!(first, second);
    scheduler.say([
        notice(first, Standing::Cancelled(Bytes::new())),
        notice(second, inline(b"small")),
    ]);
    assert_eq!(next_finished(&client), "second");
    assert_eq!(client.value(b"x").unwrap(), "small");
    cancel(&client);
    assert_eq!(hear_cancel(&mut scheduler), [second]);
    client.release(b"x");
    client.process().unwrap();
    assert_eq!(scheduler.hear(), FromClient::Release(vec![second, first]));
}

/// A constant, for a task that is submitted with it; the id that it was put under.
fn constant(
    scheduler: &mut Scheduler,
    client: &TestClient,
    is_intact: fn(&[u8], u32, &[Bytes]) -> bool,
) -> u32 {
    let mut submission = client.submission();
    let input = client.constant(&mut submission, b"x", large(1_000_000), is_intact);
    let id = constant_put(scheduler);
    assert_eq!(input.unwrap(), Input::Known(id));
    client.abandon(submission).unwrap();
    id
}

fn constant_put(scheduler: &mut Scheduler) -> u32 {
    match scheduler.hear() {
        FromClient::Put {
            id,
            copies: 1,
            kept: true,
            nbytes: 1_000_000,
            ..
        } => id,
        other => panic!("not a constant that is kept: {other:?}"),
    }
}

fn place(id: u32, object: u64, worker: &Worker) -> ToClient {
    ToClient::Place {
        id,
        object,
        workers: Runs::one(worker.id.0.into()),
    }
}

/// Has the client take what has come until something is so.
fn attend(client: &TestClient, what: &str, mut so: impl FnMut() -> bool) {
    eventually(what, || {
        client.process().unwrap();
        client.flush_now();
        so()
    });
}

#[test]
fn a_constant_is_brought_again_as_long_as_the_scheduler_may_ask_for_it() {
    let (mut scheduler, client) = start();
    let (mut first, mut second) = (Worker::new(1), Worker::new(2));
    let id = constant(&mut scheduler, &client, |key, kind, frames| {
        (key, kind, frames[0].len()) == (b"x", 1, 1_000_000)
    });
    let script = std::thread::spawn(move || {
        scheduler.say([
            first.introduction(),
            second.introduction(),
            place(id, 77, &first),
        ]);
        let (object, ..) = first.brought();
        first.take(object, "");
        scheduler.say([notice(id, finished(1, 77))]);
        // It is kept, and not wanted any more.
        assert_eq!(scheduler.hear(), FromClient::Release(vec![id]));
        scheduler.say([ToClient::Bring(vec![id])]);
        let again = constant_put(&mut scheduler);
        assert_ne!(again, id);
        scheduler.say([place(again, 78, &second)]);
        let (object, kind, frames) = second.brought();
        assert_eq!((object, kind, frames[0].len()), (78, 1, 1_000_000));
        second.take(object, "");
        scheduler.say([notice(again, finished(2, 78))]);
        assert_eq!(scheduler.hear(), FromClient::Release(vec![again]));
        // By its earlier name it is not meant.
        scheduler.say([ToClient::Unkeep(vec![id]), ToClient::Bring(vec![id])]);
        (scheduler, again)
    });
    attend(&client, "it was brought twice", || script.is_finished());
    let (mut scheduler, again) = script.join().unwrap();
    assert_eq!(client.kept(), (1, 1_000_000));
    assert_eq!(client.key_count(), 0);
    scheduler.say([ToClient::Unkeep(vec![again])]);
    attend(&client, "it is dropped", || client.kept() == (0, 0));
    assert!(scheduler.has_heard_nothing());
}

#[test]
fn a_constant_that_was_written_to_is_not_brought_again() {
    let (mut scheduler, client) = start();
    let id = constant(&mut scheduler, &client, |_, _, _| false);
    scheduler.say([notice(id, finished(1, 77)), ToClient::Bring(vec![id])]);
    attend(&client, "it is dropped", || client.kept() == (0, 0));
    let heard = [scheduler.hear(), scheduler.hear()];
    assert!(heard.contains(&FromClient::Unkept(vec![id])), "{heard:?}");
}

#[test]
fn a_panic_is_the_end_of_the_connection() {
    let (mut scheduler, client) = start();
    let id = constant(&mut scheduler, &client, |_, _, _| panic!("it was told to"));
    scheduler.say([notice(id, finished(1, 77)), ToClient::Bring(vec![id])]);
    let reason = "a thread of the engine panicked: it was told to";
    attend(&client, "it ends", || client.ended_reason() == Some(reason));
    eventually("the scheduler hears of it", || {
        scheduler.peer.ended().is_some()
    });
}

#[test]
fn a_constant_that_no_worker_takes_again_is_left_to_others() {
    let (mut scheduler, client) = start();
    let mut worker = Worker::new(1);
    let id = constant(&mut scheduler, &client, |_, _, _| true);
    let script = std::thread::spawn(move || {
        scheduler.say([worker.introduction(), notice(id, finished(1, 77))]);
        assert_eq!(scheduler.hear(), FromClient::Release(vec![id]));
        scheduler.say([ToClient::Bring(vec![id])]);
        let mut name = id;
        for _ in 0..5 {
            name = constant_put(&mut scheduler);
            scheduler.say([place(name, 78, &worker)]);
            let (object, ..) = worker.brought();
            worker.take(object, "no room");
        }
        assert_eq!(scheduler.hear(), FromClient::Unkept(vec![name]));
        assert!(matches!(scheduler.hear(), FromClient::Release(ids) if ids.contains(&name)));
    });
    attend(&client, "it has given up", || script.is_finished());
    script.join().unwrap();
    assert_eq!((client.kept(), client.key_count()), ((0, 0), 0));
}

#[test]
fn a_value_that_nobody_takes_is_cancelled_for_all() {
    let (mut scheduler, client) = start();
    let mut worker = Worker::new(1);
    client.put(b"x", "x", large(1_000_000), &two()).unwrap();
    std::thread::scope(|scope| {
        let client = &client;
        scope.spawn(move || {
            let mut id = put(&mut scheduler);
            scheduler.say([worker.introduction()]);
            for attempt in 0..5 {
                scheduler.say([ToClient::Place {
                    id,
                    object: 77,
                    workers: Runs::one(worker.id.0.into()),
                }]);
                let (object, ..) = worker.brought();
                worker.take(object, "no room");
                if attempt < 4 {
                    id = put(&mut scheduler);
                }
            }
            let FromClient::Cancel { ids, force, reason } = scheduler.hear() else {
                panic!("it has not given up");
            };
            assert_eq!((ids, force), (vec![id], false));
            assert!(String::from_utf8_lossy(&reason).contains("no room"));
            scheduler.say([notice(id, Standing::Cancelled(reason))]);
        });
        let Event::Standing {
            owner: "x",
            change: Change::Cancelled(_),
        } = next(client)
        else {
            panic!("it is not cancelled");
        };
    });
}
