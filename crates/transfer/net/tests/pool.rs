//! Connections to many others, made without waiting for them.

mod support;

use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use support::{eventually, secret, soon};
use treadle_net::pool::{IDLE, Pool, UnknownAddress};
use treadle_net::{
    Config, Incoming, Lane, Listener, NetError, Options, Peer, Poller, Target, Wait,
};

const SIGNAL: usize = usize::MAX;
const ACCEPT: usize = usize::MAX - 1;

fn options(lane: &Lane) -> Options {
    Options {
        secret: Some(secret()),
        lane: Some(lane.clone()),
        ..Options::default()
    }
}

struct Scene {
    poller: Arc<Poller>,
    pool: Pool<usize, &'static str>,
    outcomes: Vec<(usize, Result<(), NetError>)>,
}

impl Scene {
    fn new() -> Self {
        let lane = Lane::new().unwrap();
        let poller = Poller::on(&lane);
        let signal = poller.signal(SIGNAL);
        let pool = Pool::new(
            options(&lane),
            Arc::clone(&poller),
            |who| who,
            move || signal.set(),
        );
        Self {
            poller,
            pool,
            outcomes: Vec::new(),
        }
    }

    /// Takes turns until somebody's connection is made or cannot be.
    fn outcome(&mut self) -> (usize, Result<(), NetError>) {
        loop {
            self.outcomes.extend(self.pool.outcomes());
            if let Some(outcome) = self.outcomes.pop() {
                return outcome;
            }
            drop(self.poller.next(&mut soon()).unwrap());
        }
    }
}

fn listener() -> Listener {
    let lane = Lane::new().unwrap();
    Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options(&lane)).unwrap()
}

#[test]
fn a_connection_is_made_when_it_is_needed_and_closed_when_nobody_uses_it() {
    let listener = listener();
    let mut scene = Scene::new();
    let pool = &mut scene.pool;
    assert!(matches!(pool.open(7), Err(UnknownAddress)));
    pool.introduce(7, listener.address().to_string(), true);
    assert_eq!(pool.at(&listener.address().to_string()), Some(7));
    assert!(pool.open(7).unwrap().is_none());
    assert!(pool.open(7).unwrap().is_none());
    let (who, outcome) = scene.outcome();
    outcome.unwrap();
    assert_eq!(who, 7);
    let server = listener.accept(&mut soon()).unwrap();
    assert!(listener.try_accept().unwrap().is_none(), "one is enough");

    let connection = scene.pool.open(7).unwrap().unwrap();
    let question = Bytes::from_static(b"question");
    connection.peer.send(1, &[question]).unwrap();
    connection.asked(3, "three");
    let later = Instant::now() + IDLE * 2;
    assert!(scene.pool.close_idle(later, |_| false).is_some());
    assert!(scene.pool.get(7).is_some(), "it waits for an answer");

    server.send(2, &[Bytes::from_static(b"answer")]).unwrap();
    let mut received = Vec::new();
    while received.is_empty() {
        let turn = scene.poller.next(&mut soon()).unwrap();
        if turn.key() == 7 {
            let connection = scene.pool.get(7).unwrap();
            connection.take(1, &mut received).unwrap();
        }
    }
    assert_eq!(received[0].frames[0].as_slice(), b"answer");
    let connection = scene.pool.get(7).unwrap();
    assert_eq!(connection.answered(3), Some("three"));
    assert_eq!(connection.answered(3), None);
    let later = later + IDLE;
    scene.pool.close_idle(later, |who| who == 7);
    assert!(scene.pool.get(7).is_some(), "somebody needs it");
    assert!(scene.pool.close_idle(later + IDLE, |_| false).is_none());
    assert!(scene.pool.get(7).is_none());
    eventually("the other side hears of it", || server.ended().is_some());
}

#[test]
fn what_was_asked_of_somebody_who_is_gone_comes_back_in_order() {
    let listener = listener();
    let mut scene = Scene::new();
    scene
        .pool
        .introduce(1, listener.address().to_string(), true);
    scene.pool.open(1).unwrap();
    scene.outcome().1.unwrap();
    let connection = scene.pool.get(1).unwrap();
    for (number, what) in [(5, "later"), (2, "first")] {
        connection.asked(number, what);
    }
    assert_eq!(scene.pool.forget(1), ["first", "later"]);
    assert!(matches!(scene.pool.open(1), Err(UnknownAddress)));
}

#[test]
fn an_attempt_that_nobody_wants_any_more_is_not_taken_for_the_next_one() {
    let (old, new) = (listener(), listener());
    let mut scene = Scene::new();
    scene.pool.introduce(1, old.address().to_string(), true);
    scene.pool.open(1).unwrap();
    scene.pool.forget(1);
    scene.pool.introduce(1, new.address().to_string(), true);
    scene.pool.open(1).unwrap();
    scene.outcome().1.unwrap();
    let connection = scene.pool.get(1).unwrap();
    connection
        .peer
        .send(1, &[Bytes::from_static(b"x")])
        .unwrap();
    let server = new.accept(&mut soon()).unwrap();
    server.next(&mut soon()).unwrap();
}

#[test]
fn who_does_not_answer_keeps_nobody_waiting() {
    // It takes the connection, and never says anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = listener();
    let mut scene = Scene::new();
    let began = Instant::now();
    let address = format!("treadle://{}", silent.local_addr().unwrap());
    for who in 0..200 {
        scene.pool.introduce(who, address.clone(), true);
        assert!(scene.pool.open(who).unwrap().is_none());
    }
    // Each would have waited for seconds.
    assert!(began.elapsed() < Duration::from_secs(60), "it did not wait");
    // There is an end to it, and to those that waited for their turn.
    for who in 0..150 {
        scene.pool.close(who);
    }
    scene
        .pool
        .introduce(1000, listener.address().to_string(), true);
    scene.pool.open(1000).unwrap();
    let mut open = 0;
    let mut late = 0;
    while open + late < 51 {
        match scene.outcome() {
            (1000, Ok(())) => open += 1,
            (who, Err(NetError::Timeout)) if who >= 150 => late += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((open, late), (1, 50));
}

#[test]
fn a_dial_says_what_was_wrong() {
    let lane = Lane::new().unwrap();
    let dial = |address: &str| {
        let (told, heard) = mpsc::channel();
        let address = address.parse().unwrap();
        Peer::dial(&address, &options(&lane), move |outcome| {
            told.send(outcome.map(drop)).unwrap();
        });
        let outcome = heard.recv_timeout(Duration::from_secs(30));
        outcome.unwrap().unwrap_err().to_string()
    };
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("treadle://{}", free.local_addr().unwrap());
    drop(free);
    let refused = dial(&address);
    assert!(refused.contains("refused"), "{refused}");
    // A name is resolved elsewhere.
    let unknown = dial("treadle://no-such-host.invalid:1");
    assert!(unknown.contains("no-such-host.invalid"), "{unknown}");
}

#[test]
fn a_poller_tells_that_somebody_waits_to_be_accepted() {
    let lane = Lane::new().unwrap();
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options(&lane)).unwrap();
    let poller = Poller::on(&lane);
    listener.watch(&poller, ACCEPT);
    // Somebody may have come before.
    assert_eq!(poller.next(&mut soon()).unwrap().key(), ACCEPT);
    assert!(listener.try_accept().unwrap().is_none());
    let mut none = Wait {
        deadline: Some(Instant::now() + Duration::from_millis(50)),
        interrupted: None,
    };
    assert!(poller.next(&mut none).is_err());
    let there = Lane::new().unwrap();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Peer::connect(listener.address(), &options(&there), &mut soon()).unwrap());
    }
    let mut accepted = 0;
    while accepted < clients.len() {
        assert_eq!(poller.next(&mut soon()).unwrap().key(), ACCEPT);
        while listener.try_accept().unwrap().is_some() {
            accepted += 1;
        }
    }
    listener.close();
    assert_eq!(poller.next(&mut soon()).unwrap().key(), ACCEPT);
    assert!(matches!(
        listener.try_accept(),
        Err(NetError::ListenerClosed)
    ));
}

#[test]
fn a_connection_that_another_made_is_adopted_in_place_of_an_older_one() {
    let lane = Lane::new().unwrap();
    // Nothing is let in before it is known where it goes.
    let pair = Config {
        prefetch: 0,
        ..Config::default()
    };
    let listening = Options {
        pair,
        ..options(&lane)
    };
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &listening).unwrap();
    let mut scene = Scene::new();
    // What is shared is mapped: it goes to no place.
    let dialling = Options {
        shared_memory: false,
        ..options(&lane)
    };
    let dial = || Peer::connect(listener.address(), &dialling, &mut soon()).unwrap();
    let older = dial();
    scene.pool.adopt(4, listener.accept(&mut soon()).unwrap());
    let newer = dial();
    scene.pool.adopt(4, listener.accept(&mut soon()).unwrap());
    eventually("the older one is closed", || older.ended().is_some());
    let later = Instant::now() + IDLE;
    assert_eq!(scene.pool.idle(later).collect::<Vec<_>>(), [4]);

    let body = Bytes::from(vec![3u8; 1 << 20]);
    newer.send(2, std::slice::from_ref(&body)).unwrap();
    let mut memory = vec![0u8; body.len()].into_boxed_slice();
    // SAFETY: the memory outlives the connections, and is not used before the object has come.
    let target = unsafe { Target::new(memory.as_mut_ptr(), memory.len(), Box::new(())) };
    let mut target = Some(target);
    let received = loop {
        drop(scene.poller.next(&mut soon()).unwrap());
        let connection = scene.pool.get(4).unwrap();
        let mut place = |_: &Incoming| vec![target.take()];
        if let Some(received) = connection.next(&mut place).unwrap() {
            break received;
        }
    };
    assert_eq!(received.frames[0].as_ptr(), memory.as_ptr());
    assert_eq!(memory[..], body[..]);
}

/// Its sender gives one up when it has arrived damaged too often.
#[test]
fn an_object_that_does_not_come_ends_the_connection() {
    let listener = listener();
    let mut scene = Scene::new();
    scene
        .pool
        .introduce(7, listener.address().to_string(), true);
    assert!(scene.pool.open(7).unwrap().is_none());
    scene.outcome().1.unwrap();
    let peer = listener.accept(&mut soon()).unwrap();
    let given_up = peer.send(1, &[Bytes::from(vec![1; 256 << 20])]).unwrap();
    given_up.cancel();
    peer.send(2, &[Bytes::from_static(b"later")]).unwrap();
    let mut received = Vec::new();
    let connection = scene.pool.open(7).unwrap().unwrap();
    let mut failed = None;
    eventually("the connection ends", || {
        failed = connection.take(1, &mut received).err();
        failed.is_some()
    });
    let failed = failed.unwrap().to_string();
    assert!(failed.contains("cancelled"), "{failed}");
    assert!(received.is_empty(), "{received:?}");
}

#[test]
fn what_came_before_the_end_of_a_connection_is_taken() {
    let listener = listener();
    let mut scene = Scene::new();
    scene
        .pool
        .introduce(7, listener.address().to_string(), true);
    assert!(scene.pool.open(7).unwrap().is_none());
    scene.outcome().1.unwrap();
    let peer = listener.accept(&mut soon()).unwrap();
    peer.send(1, &[Bytes::from_static(b"before")]).unwrap();
    // Nobody has accepted this one when the connection ends.
    peer.send(2, &[Bytes::from(vec![1; 64 << 20])]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    peer.start_close();
    eventually("it is closed", || peer.is_closed());
    std::thread::sleep(Duration::from_millis(100));
    let connection = scene.pool.open(7).unwrap().unwrap();
    let mut received = Vec::new();
    eventually("the connection ends", || {
        connection.take(1, &mut received).is_err()
    });
    let kinds: Vec<u32> = received.iter().map(|received| received.kind).collect();
    assert_eq!(kinds, [1]);
}
