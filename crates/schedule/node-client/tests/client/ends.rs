//! How connections begin and end.

use bytes::Bytes;
use treadle_messages::{Call, FromClient, Welcome};
use treadle_net::PairEnd;
use treadle_node_client::{Event, Fetched};

use crate::support::{
    Worker, eventually, finished, greet, next, next_finished, notice, soon, start, watched,
};

fn note(argument: Bytes) -> Call {
    Call {
        id: 0,
        node: String::new(),
        operation: "note".into(),
        argument,
    }
}

#[test]
fn a_refusal_says_why() {
    let (_scheduler, client) = greet(Welcome::Refused("another Python".into()));
    let error = client.err().unwrap();
    assert!(error.contains("another Python"), "{error}");
}

#[test]
fn what_was_sent_before_the_goodbye_arrives() {
    let (mut scheduler, client) = start();
    let id = watched(&mut scheduler, &client, "x");
    client.release(b"x");
    for number in 0..100u32 {
        let argument = Bytes::copy_from_slice(&number.to_le_bytes());
        client.call(note(argument)).unwrap();
    }
    client.close(&mut soon());
    assert_eq!(scheduler.hear(), FromClient::Release(vec![id]));
    for number in 0..100u32 {
        let FromClient::Call(call) = scheduler.hear() else {
            panic!("not a call");
        };
        assert_eq!(call.argument, number.to_le_bytes()[..]);
    }
    assert_eq!(scheduler.hear(), FromClient::Goodbye);
    eventually("the end", || scheduler.peer.ended().is_some());
    assert_eq!(scheduler.peer.ended(), Some(PairEnd::Goodbye));
    assert_eq!(client.ended_reason(), Some("it was closed here"));
    assert!(client.call(note(Bytes::new())).is_err());
    assert!(client.watch(b"y", "y").is_err());
}

/// Closing stops objects that are under way.
#[test]
fn large_messages_that_were_sent_before_the_goodbye_arrive() {
    let (mut scheduler, client) = start();
    for number in 0..5 {
        client.call(note(vec![number; 300_000].into())).unwrap();
    }
    std::thread::scope(|scope| {
        let heard = scope.spawn(move || {
            for number in 0..5 {
                let FromClient::Call(call) = scheduler.hear() else {
                    panic!("not a call");
                };
                assert_eq!(call.argument, vec![number; 300_000]);
            }
            scheduler.hear()
        });
        client.close(&mut soon());
        assert_eq!(heard.join().unwrap(), FromClient::Goodbye);
    });
}

#[test]
fn every_waiter_learns_of_the_end() {
    let (mut scheduler, client) = start();
    let worker = Worker::new(1);
    let ids = ["x", "y"].map(|key| watched(&mut scheduler, &client, key));
    scheduler.say([worker.introduction(), notice(ids[1], finished(1, 100))]);
    assert_eq!(next_finished(&client), "y");
    // One waits for a notice, one for a worker.
    client.fetch(0, [&b"x"[..], b"y"].into_iter()).unwrap();
    std::thread::scope(|scope| {
        let waiters = [(); 3].map(|()| {
            scope.spawn(|| {
                let mut events = Vec::new();
                loop {
                    let seen = client.rounds();
                    if let Some(lead) = client.lead(seen, &mut soon()).unwrap() {
                        let outcome = lead.receive(&mut soon());
                        while let Some(event) = lead.next(|owner| *owner) {
                            events.push(event);
                        }
                        if let Err(error) = outcome {
                            return (events, error.to_string());
                        }
                    }
                    if let Some(reason) = client.ended_reason() {
                        return (events, reason.to_owned());
                    }
                }
            })
        });
        scheduler.peer.close();
        let mut events = Vec::new();
        for waiter in waiters {
            events.extend(waiter.join().unwrap().0);
        }
        while let Some(event) = client.try_lead().unwrap().next(|owner| *owner) {
            events.push(event);
        }
        assert_eq!(events.len(), 3, "{events:?}");
        let closed = |event: &&Event<_>| matches!(event, Event::Closed(_));
        assert_eq!(events.iter().filter(closed).count(), 1, "{events:?}");
        let unreachable = |event: &&Event<_>| {
            matches!(
                event,
                Event::Fetched {
                    outcome: Fetched::Unreachable(_),
                    ..
                }
            )
        };
        assert_eq!(events.iter().filter(unreachable).count(), 2, "{events:?}");
    });
}

#[test]
fn a_scheduler_that_talks_nonsense_is_left() {
    let (scheduler, client) = start();
    scheduler
        .peer
        .send(12345, &[Bytes::from_static(b"nonsense")])
        .unwrap();
    let Event::Closed(reason) = next(&client) else {
        panic!("not closed");
    };
    assert!(reason.contains("12345"), "{reason}");
    eventually("the end", || scheduler.peer.ended().is_some());
}
