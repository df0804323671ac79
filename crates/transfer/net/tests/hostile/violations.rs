//! Clients that were let in, and break the rules of a pair.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use prost::Message as _;
use support::raw::{Raw, end_of, extent, frame, last_words, object};
use support::{LONG, body, eventually, secret, soon, with_secret};
use treadle_net::wire::{self, proto};
use treadle_net::{Config, NetError, Options, Peer};
use treadle_transfer::layout::{EXTENT, MAX_BYTES, MAX_FRAMES};
use treadle_transfer::{Message, StripeId, TransferId};

use super::{Scene, support, transfer};

/// Takes an object of so many bytes from the other side, until that asks for a stripe to send it on.
fn asked_to_dial(raw: &mut Raw, victim: &Peer, bytes: usize) -> StripeId {
    victim.send(1, &[body(bytes)]).unwrap();
    raw.frame().unwrap();
    raw.tell(&Message::Accept {
        object: TransferId(1),
    });
    let Message::Dial { stripe } = raw.until(is_dial) else {
        unreachable!("asked for")
    };
    stripe
}

fn is_dial(message: &Message) -> bool {
    matches!(message, Message::Dial { .. })
}

/// What breaks the protocol on the control connection ends the pair, with the reason.
#[test]
fn violations_end_their_pair_by_name() {
    let scene = Scene::new(&Options::default());
    let message = |message: &Message| {
        let mut frame = Vec::new();
        wire::encode_message(message, &mut frame);
        frame
    };
    let object_of = |header: proto::Object, inline: &[u8]| {
        let header = header.encode_to_vec();
        let length = (header.len() as u32).to_le_bytes();
        frame(2, &[&length, header.as_slice(), inline].concat())
    };
    let sized = |sizes: Vec<u64>| proto::Object {
        object: 1,
        sizes,
        ..Default::default()
    };
    let object_id = TransferId(9);
    let stripe = StripeId(9);
    let reason = String::new;
    let mut damaged = message(&Message::Goodbye);
    damaged[4] ^= 1;
    let mut descriptors = Vec::new();
    wire::encode_descriptors(object_id, &[], &mut descriptors);
    let huge = |kind| [&[0xff; 4], &[0; 4], &[kind, 0, 0, 0][..]].concat();
    let flood: Vec<u8> = (1..2000)
        .flat_map(|number| object(number, &[60_000], false, &[0; 60_000]))
        .collect();
    let cases = [
        ("a length of 4294967295 bytes", huge(1)),
        ("a length of 4294967295 bytes", huge(2)),
        ("unknown kind 3", frame(3, &[])),
        ("unknown kind 84", b"GET / HTTGTTP/1.1\r\n".to_vec()),
        ("checksum", damaged),
        ("cannot be decoded", frame(1, &[0xff; 9])),
        ("without a header", frame(2, &[1])),
        ("a length of", frame(2, &[9, 0, 0, 0, 1])),
        ("inline bytes", object_of(sized(vec![5]), b"four")),
        ("inline bytes", object_of(sized(vec![1 << 20]), b"none")),
        (
            "an object of more than",
            object_of(sized(vec![u64::MAX, 2]), b""),
        ),
        (
            "an object of more than",
            object_of(sized(vec![MAX_BYTES + 1]), b""),
        ),
        (
            "65537 frames",
            object_of(sized(vec![0; MAX_FRAMES + 1]), b""),
        ),
        (
            "offered after",
            [5, 5].map(|n| object(n, &[1], false, b"x")).concat(),
        ),
        (
            "offered after",
            [5, 4].map(|n| object(n, &[1], false, b"x")).concat(),
        ),
        ("exceed the credit", flood),
        (
            "an object, which",
            message(&Message::Accept { object: object_id }),
        ),
        (
            "an object, which",
            message(&Message::Placed { object: object_id }),
        ),
        (
            "an object, which",
            message(&Message::Refuse {
                object: object_id,
                reason: reason(),
            }),
        ),
        ("a dialling side", message(&Message::Dial { stripe })),
        (
            "a stripe, which",
            message(&Message::DialFailed {
                stripe,
                reason: reason(),
            }),
        ),
        (
            "a stripe, which",
            message(&Message::Report {
                stripe,
                extents: 0,
                corrupt: false,
            }),
        ),
        ("descriptors on the control", descriptors),
    ];
    for (expected, bytes) in cases {
        let (mut raw, victim) = scene.attack();
        // A pair that ended does not read on.
        let _ = raw.stream.write_all(&bytes);
        let end = end_of(&victim);
        assert!(end.contains("broke the protocol"), "{end}");
        assert!(end.contains(expected), "{expected}: {end}");
        assert!(raw.is_sent_away(), "{expected}");
        transfer(&scene.client, &scene.server);
    }
    scene.is_well();
}

#[test]
fn an_object_that_is_too_large_is_a_violation() {
    let scene = Scene::new(&Options {
        pair: Config {
            max_object: 1 << 20,
            ..Config::default()
        },
        ..Options::default()
    });
    let (mut raw, victim) = scene.attack();
    raw.write(&object(1, &[(1 << 20) + 1], false, b""));
    let end = end_of(&victim);
    assert!(end.contains("the limit is 1048576"), "{end}");
    assert!(raw.is_sent_away());
    scene.is_well();
}

/// What a receiver says about objects and stripes must fit what was sent.
#[test]
fn false_claims_of_a_receiver_end_the_pair() {
    let scene = Scene::new(&Options::default());
    let object = TransferId(1);
    let (mut raw, victim) = scene.attack();
    let sending = victim.send(1, &[body(1 << 20)]).unwrap();
    raw.frame().unwrap();
    raw.tell(&Message::Placed { object });
    let end = end_of(&victim);
    assert!(end.contains("a complete object"), "{end}");
    assert!(matches!(sending.wait(&mut soon()), Err(NetError::Ended(_))));

    let (mut raw, victim) = scene.attack();
    let stripe = asked_to_dial(&mut raw, &victim, 1 << 20);
    let to_client = proto::Role::StripeToClient;
    let _stripe = raw.further(scene.address(), to_client, stripe.0).unwrap();
    raw.tell(&Message::Report {
        stripe,
        extents: 1000,
        corrupt: false,
    });
    let end = end_of(&victim);
    assert!(end.contains("an extent, which"), "{end}");
    assert!(raw.is_sent_away());
    scene.is_well();
}

/// Extents that have no place, on a stripe.
#[test]
fn extents_without_a_place_end_the_pair() {
    let scene = Scene::new(&Options {
        pair: Config {
            prefetch: 0,
            ..Config::default()
        },
        ..Options::default()
    });
    let piece = vec![1; EXTENT as usize];
    let whole = |number, offset| extent(number, offset, &piece);
    let size = 4 * EXTENT;
    let cases = [
        // None of them was offered.
        ("an object, which", vec![], false, whole(1, 0)),
        // It was, and not accepted.
        ("none there", vec![size], false, whole(1, 0)),
        ("none there", vec![size], true, whole(1, 1)),
        ("none there", vec![size], true, whole(1, size)),
        ("none there", vec![size], true, whole(1, u64::MAX - 5)),
        ("none there", vec![size], true, extent(1, 0, &[1])),
        ("none there", vec![300_000], true, whole(1, EXTENT)),
        (
            "arrived twice",
            vec![size],
            true,
            [whole(1, 0), whole(1, 0)].concat(),
        ),
    ];
    for (expected, sizes, accepted, bytes) in cases {
        let (mut raw, victim) = scene.attack();
        let mut stripe = raw.stripe(scene.address(), 0);
        if !sizes.is_empty() {
            raw.write(&object(1, &sizes, false, b""));
            let incoming = victim.next(&mut soon()).unwrap();
            if accepted {
                incoming.accept(Vec::new()).unwrap();
                raw.until(|message| matches!(message, Message::Accept { .. }));
            }
        }
        let _ = stripe.stream.write_all(&bytes);
        let end = end_of(&victim);
        assert!(end.contains("broke the protocol"), "{end}");
        assert!(end.contains(expected), "{expected}: {end}");
        assert!(raw.is_sent_away());
        assert_eq!(last_words(&mut stripe.stream), b"");
    }
    scene.is_well();
}

#[test]
fn damaged_extents_are_reported_and_can_come_again() {
    let scene = Scene::new(&Options::default());
    let (mut raw, victim) = scene.attack();
    raw.write(&object(1, &[100_000], false, b""));
    raw.until(|message| matches!(message, Message::Accept { .. }));
    let data = body(100_000);
    let good = extent(1, 0, &data);
    let (mut flipped_body, mut flipped_header) = (good.clone(), good.clone());
    flipped_body[5000] ^= 1;
    flipped_header[9] ^= 1;
    let garbage = vec![b'x'; 1000];
    for (number, bytes) in [flipped_body, flipped_header, garbage].iter().enumerate() {
        let mut stripe = raw.stripe(scene.address(), number as u32);
        stripe.write(bytes);
        let report = raw.until(|message| matches!(message, Message::Report { .. }));
        let expected = Message::Report {
            stripe: StripeId(number as u32),
            extents: 0,
            corrupt: true,
        };
        assert_eq!(report, expected);
        last_words(&mut stripe.stream);
    }
    assert_eq!(victim.stats().pair.corrupt, 3);
    let mut stripe = raw.stripe(scene.address(), 7);
    stripe.write(&good);
    let incoming = victim.next(&mut soon()).unwrap();
    incoming.wait(&mut soon()).unwrap();
    assert!(incoming.take().unwrap().frames[0].as_slice() == data);
    scene.is_well();
}

#[test]
fn stripes_are_counted() {
    let scene = Scene::new(&Options::default());
    let (mut raw, victim) = scene.attack();
    let _first = raw.stripe(scene.address(), 3);
    let _again = raw.stripe(scene.address(), 3);
    let end = end_of(&victim);
    assert!(end.contains("stripe 3 was opened twice"), "{end}");
    assert!(raw.is_sent_away());

    let (mut raw, victim) = scene.attack();
    let mut stripes = Vec::new();
    while victim.ended().is_none() && stripes.len() < 100 {
        // The session may end at any of them.
        let role = proto::Role::StripeToListener;
        match raw.further(scene.address(), role, stripes.len() as u32) {
            Ok(stripe) => stripes.push(stripe),
            Err(_) => break,
        }
    }
    let end = end_of(&victim);
    assert!(end.contains("there are too many"), "{end}");
    assert!(raw.is_sent_away());
    for mut stripe in stripes {
        last_words(&mut stripe.stream);
    }
    scene.is_well();
}

#[test]
fn stripes_that_nobody_asked_for_are_closed() {
    let scene = Scene::new(&Options::default());
    let (raw, victim) = scene.attack();
    let to_client = proto::Role::StripeToClient;
    for number in [0, 0, u32::MAX] {
        let stripe = raw.further(scene.address(), to_client, number);
        last_words(&mut stripe.unwrap().stream);
    }
    assert!(victim.ended().is_none());
    scene.is_well();
}

/// The same stripe of the listener twice: the second is a violation, and the first is not forgotten.
#[test]
fn a_stripe_of_the_listener_cannot_be_doubled() {
    let scene = Scene::new(&Options::default());
    let (mut raw, victim) = scene.attack();
    let stripe = asked_to_dial(&mut raw, &victim, 64 << 20);
    let to_client = proto::Role::StripeToClient;
    let mut first = raw.further(scene.address(), to_client, stripe.0).unwrap();
    eventually("the first is open", || victim.stats().pair.stripes == 1);
    let mut second = raw.further(scene.address(), to_client, stripe.0).unwrap();
    let end = end_of(&victim);
    assert!(end.contains("was opened twice"), "{end}");
    last_words(&mut first.stream);
    last_words(&mut second.stream);
    assert!(raw.is_sent_away());
    scene.is_well();
}

#[test]
fn bytes_on_a_stripe_of_the_other_direction_break_it() {
    let scene = Scene::new(&Options::default());
    let (mut raw, victim) = scene.attack();
    let stripe = asked_to_dial(&mut raw, &victim, 64 << 20);
    let to_client = proto::Role::StripeToClient;
    let mut wrong = raw.further(scene.address(), to_client, stripe.0).unwrap();
    wrong.write(b"bytes");
    raw.until(|message| *message == Message::Broken { stripe });
    last_words(&mut wrong.stream);
    // Another one is asked for, once this one is reported.
    raw.tell(&Message::Report {
        stripe,
        extents: 0,
        corrupt: false,
    });
    raw.until(is_dial);
    assert!(victim.ended().is_none());
    assert_eq!(victim.stats().pair.replaced, 1);
    scene.is_well();
}

/// A listener that breaks the rules of asking for stripes.
#[test]
fn a_client_dials_only_so_many_stripes() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let fake = std::thread::spawn(move || {
        let (stream, _) = socket.accept().unwrap();
        let mut raw = Raw::accept(stream, &secret());
        for number in 0..100 {
            let mut frame = Vec::new();
            let stripe = StripeId(number);
            wire::encode_message(&Message::Dial { stripe }, &mut frame);
            let _ = raw.stream.write_all(&frame);
        }
        assert!(raw.is_sent_away());
    });
    let address = format!("127.0.0.1:{port}").parse().unwrap();
    let options = with_secret(&Options::default());
    let client = Peer::connect(&address, &options, &mut soon()).unwrap();
    let end = end_of(&client);
    assert!(end.contains("there are too many"), "{end}");
    fake.join().unwrap();
}

pub(super) fn until_closed(stream: &mut TcpStream, bytes: &[u8]) {
    let start = Instant::now();
    while stream.write_all(bytes).is_ok() {
        assert!(start.elapsed() < LONG, "it reads for ever");
    }
}

#[test]
fn answers_are_not_kept_for_who_does_not_read_them() {
    let scene = Scene::new(&Options::default());
    let questions = [
        Message::Ping { token: 7 },
        Message::Broken {
            stripe: StripeId(7),
        },
    ];
    std::thread::scope(|scope| {
        for question in &questions {
            let (mut raw, victim) = scene.attack();
            let mut frames = Vec::new();
            while frames.len() < 64 * 1024 {
                wire::encode_message(question, &mut frames);
            }
            scope.spawn(move || {
                until_closed(&mut raw.stream, &frames);
                let end = end_of(&victim);
                assert!(end.contains("does not read"), "{end}");
            });
        }
        transfer(&scene.client, &scene.server);
    });
    // Who reads may ask.
    let (mut raw, victim) = scene.attack();
    for round in 1..=20 {
        let mut frames = Vec::new();
        for _ in 0..10_000 {
            wire::encode_message(&Message::Ping { token: round }, &mut frames);
        }
        wire::encode_message(&Message::Ping { token: 99 }, &mut frames);
        raw.write(&frames);
        raw.until(|message| *message == Message::Pong { token: 99 });
    }
    assert!(victim.ended().is_none());
    scene.is_well();
}

/// Offers that are taken back leave nothing behind, though nobody receives.
#[test]
fn offers_may_be_cancelled_for_ever() {
    let scene = Scene::new(&Options::default());
    let (mut raw, victim) = scene.attack();
    let mut frames = Vec::new();
    for number in 1..=20_000 {
        frames.extend(object(number, &[100 << 20], false, b""));
        let object = TransferId(number);
        wire::encode_message(&Message::Cancel { object }, &mut frames);
    }
    frames.extend(object(20_001, &[1], false, b"x"));
    raw.write(&frames);
    let received = loop {
        let incoming = victim.next(&mut soon()).unwrap();
        // One of the others, before it was cancelled.
        if incoming.wait(&mut soon()).is_ok() {
            break incoming.take().unwrap();
        }
    };
    assert_eq!(received.frames[0].as_slice(), b"x");
    scene.is_well();
}

#[test]
fn who_says_nothing_more_is_silent() {
    let options = Options {
        pair: Config {
            timeout: Duration::from_secs(5),
            ..Config::default()
        },
        ..Options::default()
    };
    let scene = Scene::new(&options);
    let (mut raw, victim) = scene.attack();
    // Half of a frame is nothing.
    raw.write(&[9, 0, 0]);
    let end = end_of(&victim);
    assert!(end.contains("silent"), "{end}");
    assert!(raw.is_sent_away());
    scene.is_well();
}
