//! Values from workers.

use bytes::Bytes;
use treadle_messages::{Answer, Call, FromClient, Standing, ToClient};
use treadle_node_client::Fetched;
use treadle_types::{Value, WorkerId};

use crate::support::{
    Scheduler, TestClient, Worker, eventually, finished, inline, next, next_fetched, next_finished,
    notice, start, watched,
};

fn frames(outcome: Fetched) -> (u32, Vec<Bytes>) {
    let Fetched::Frames(received) = outcome else {
        panic!("{outcome:?}");
    };
    let frames = received.frames.into_iter();
    (
        received.kind,
        frames.map(treadle_net::Frame::into_bytes).collect(),
    )
}

/// The encoding of a key: the scheduler is asked about it.
const X: &str = "\x05\x01x";

fn keys<'a>(keys: &'a [&'a str]) -> impl Iterator<Item = &'a [u8]> {
    keys.iter().map(|key| key.as_bytes())
}

/// A key whose value a worker has.
fn held(scheduler: &mut Scheduler, client: &TestClient, worker: &Worker, object: u64) -> u32 {
    let id = watched(scheduler, client, X);
    scheduler.say([
        worker.introduction(),
        notice(id, finished(worker.id.0, object)),
    ]);
    assert_eq!(next_finished(client), X);
    id
}

/// The client asks who has the key; the answer names these.
fn who_has(scheduler: &mut Scheduler, addresses: &[String]) {
    let FromClient::Call(Call {
        id,
        node,
        operation,
        argument,
    }) = scheduler.hear()
    else {
        panic!("not a call");
    };
    assert_eq!((node.as_str(), operation.as_str()), ("", "who_has"));
    let Ok(Value::List(keys)) = Value::from_bytes(&argument) else {
        panic!("{argument:?}");
    };
    let addresses: Vec<Value> = addresses.iter().map(|a| Value::Str(a.clone())).collect();
    let answer = keys
        .into_iter()
        .map(|key| (key, Value::List(addresses.clone())));
    scheduler.say([ToClient::Answer(Answer {
        id,
        result: Ok(Value::Dict(answer.collect()).to_bytes().into()),
    })]);
}

#[test]
fn values_come_from_their_workers_at_once() {
    let (mut scheduler, client) = start();
    let mut workers = [Worker::new(1), Worker::new(2)];
    let ids = ["a", "b", "c"].map(|key| watched(&mut scheduler, &client, key));
    scheduler.say([
        workers[0].introduction(),
        workers[1].introduction(),
        notice(ids[0], finished(1, 100)),
        notice(ids[1], finished(2, 200)),
        notice(ids[2], inline(b"small")),
    ]);
    for key in ["a", "b", "c"] {
        assert_eq!(next_finished(&client), key);
    }
    client.fetch(7, keys(&["a", "b", "c"])).unwrap();
    // Both have been asked before any has answered; the small one is here.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let asked: Vec<_> = workers.iter_mut().map(Worker::asked).collect();
            assert_eq!(asked.iter().map(|a| a.1).collect::<Vec<_>>(), [100, 200]);
            let body = Bytes::from(vec![7; 1 << 20]);
            workers[1].give(asked[1].0, 9, &[Bytes::from_static(b"head"), body]);
            workers[0].give(asked[0].0, 4, &[]);
        });
        let mut outcomes: Vec<_> = (0..3).map(|_| next_fetched(&client)).collect();
        outcomes.sort_by_key(|(_, index, _)| *index);
        assert!(outcomes.iter().all(|(ticket, ..)| *ticket == 7));
        let [(.., a), (.., b), (.., c)] = <[_; 3]>::try_from(outcomes).unwrap();
        assert_eq!(frames(a), (4, vec![]));
        let (kind, b) = frames(b);
        assert_eq!((kind, &b[0][..], b[1].len()), (9, &b"head"[..], 1 << 20));
        assert!(matches!(c, Fetched::Inline(value) if value == "small"));
    });
}

#[test]
fn a_key_without_a_future_is_named() {
    let (mut scheduler, client) = start();
    watched(&mut scheduler, &client, "x");
    assert_eq!(client.fetch(0, keys(&["x", "unknown"])), Err(1));
    client.release(b"x");
    client.process().unwrap();
    assert!(matches!(scheduler.hear(), FromClient::Release(_)));
}

#[test]
fn another_holder_is_asked_where_the_first_has_nothing() {
    let (mut scheduler, client) = start();
    let (mut first, mut second) = (Worker::new(1), Worker::new(2));
    scheduler.say([second.introduction()]);
    held(&mut scheduler, &client, &first, 100);
    client.fetch(0, keys(&[X])).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (request, _) = first.asked();
            first.deny(request);
            who_has(&mut scheduler, &[first.address(), second.address()]);
            let (request, object) = second.asked();
            assert_eq!(object, 100);
            second.give(request, 0, &[]);
        });
        assert_eq!(frames(next_fetched(&client).2).0, 0);
    });
}

#[test]
fn a_worker_that_is_gone_is_not_waited_for() {
    let (mut scheduler, client) = start();
    let (mut first, mut second) = (Worker::new(1), Worker::new(2));
    let id = held(&mut scheduler, &client, &first, 100);
    client.fetch(0, keys(&[X])).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            first.asked();
            // Its value is made again elsewhere.
            scheduler.say([
                notice(id, Standing::Pending),
                ToClient::PeerLost(WorkerId(1)),
                second.introduction(),
                notice(id, finished(2, 300)),
            ]);
            let (request, object) = second.asked();
            assert_eq!(object, 300);
            second.give(request, 0, &[]);
        });
        let mut told = Vec::new();
        loop {
            match next(&client) {
                treadle_node_client::Event::Fetched { outcome, .. } => {
                    assert_eq!(frames(outcome).0, 0);
                    break;
                }
                other => told.push(format!("{other:?}")),
            }
        }
        assert_eq!(told.len(), 2, "{told:?}");
    });
}

#[test]
fn a_worker_that_cannot_be_reached_is_asked_about() {
    let (mut scheduler, client) = start();
    let (gone, mut second) = (Worker::new(1), Worker::new(2));
    scheduler.say([second.introduction()]);
    let address = gone.address();
    held(&mut scheduler, &client, &gone, 100);
    drop(gone);
    client.fetch(0, keys(&[X])).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Nobody else has it at first.
            who_has(&mut scheduler, std::slice::from_ref(&address));
            who_has(&mut scheduler, &[address, second.address()]);
            let (request, _) = second.asked();
            second.give(request, 0, &[]);
        });
        assert_eq!(frames(next_fetched(&client).2).0, 0);
    });
}

#[test]
fn what_is_being_made_is_waited_for_and_failures_are_told() {
    let (mut scheduler, client) = start();
    let id = watched(&mut scheduler, &client, "x");
    client.fetch(1, keys(&["x"])).unwrap();
    scheduler.say([notice(id, Standing::Cancelled(Bytes::new()))]);
    assert!(matches!(
        next(&client),
        treadle_node_client::Event::Standing { .. }
    ));
    let (ticket, 0, Fetched::Failed) = next_fetched(&client) else {
        panic!("it was cancelled");
    };
    assert_eq!(ticket, 1);
    client.fetch(2, keys(&["x"])).unwrap();
    assert!(matches!(next_fetched(&client), (2, 0, Fetched::Failed)));
    scheduler.say([notice(id, Standing::Unknown)]);
    assert!(matches!(
        next(&client),
        treadle_node_client::Event::Standing { .. }
    ));
    client.fetch(0, keys(&["x"])).unwrap();
    assert!(matches!(next_fetched(&client).2, Fetched::Unknown));
}

#[test]
fn a_key_that_is_released_meanwhile_is_needed_until_its_value_is_here() {
    let (mut scheduler, client) = start();
    let mut worker = Worker::new(1);
    let id = held(&mut scheduler, &client, &worker, 100);
    client.fetch(0, keys(&[X])).unwrap();
    let request = std::thread::scope(|scope| {
        let asked = scope.spawn(|| worker.asked().0);
        eventually("the worker is asked", || {
            client.try_lead().unwrap().poll();
            asked.is_finished()
        });
        asked.join().unwrap()
    });
    client.release(X.as_bytes());
    client.process().unwrap();
    assert!(scheduler.has_heard_nothing());
    worker.give(request, 0, &[]);
    assert_eq!(frames(next_fetched(&client).2).0, 0);
    client.try_lead().unwrap().poll();
    assert_eq!(scheduler.hear(), FromClient::Release(vec![id]));
}

#[test]
fn many_values_of_one_worker_share_a_connection() {
    let (mut scheduler, client) = start();
    let mut worker = Worker::new(1);
    held(&mut scheduler, &client, &worker, 100);
    let many = vec![X; 300];
    client.fetch(0, keys(&many)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                let (request, _) = worker.asked();
                worker.give(request, 0, &[]);
            }
        });
        let mut indices: Vec<usize> = (0..300).map(|_| next_fetched(&client).1).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..300).collect::<Vec<_>>());
    });
    assert!(worker.listener.try_accept().unwrap().is_none());
}

#[test]
fn values_come_while_nobody_leads() {
    let (mut scheduler, client) = start();
    let mut worker = Worker::new(1);
    held(&mut scheduler, &client, &worker, 100);
    client.fetch(0, keys(&[X])).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (request, _) = worker.asked();
            worker.give(request, 0, &[]);
        });
        let mut fetched = None;
        eventually("the value is here", || {
            // As an event loop does: only when the descriptor is readable.
            if crate::waiting::is_readable(client.descriptor()) {
                let lead = client.process().unwrap();
                fetched = fetched.take().or_else(|| lead.next(|owner| *owner));
            }
            fetched.is_some()
        });
    });
}
