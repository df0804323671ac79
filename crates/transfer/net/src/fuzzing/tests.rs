use prost::Message as _;
use treadle_transfer::{Extent, StripeId, TransferId};

use super::*;
use crate::wire::FRAME_HEADER;

#[test]
fn the_corpus_is_replayed() {
    for (name, target) in TARGETS {
        corpus::replay(name, target);
    }
}

#[test]
fn the_corpus_has_what_is_valid() {
    for (target, name, bytes) in seeds() {
        corpus::compare(target, &name, &bytes);
    }
}

type Seed = (&'static str, String, Vec<u8>);

fn seeds() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = Vec::new();
    let mut add = |target, name: &str, bytes| seeds.push((target, name.to_owned(), bytes));
    let hello = proto::Hello {
        role: proto::Role::Control.into(),
        nonce: vec![5; 32],
        capabilities: 1,
        session: 77,
        stripe: 3,
        credit: 8 << 20,
        host: b"host".to_vec(),
        descriptors: b"treadle-1".to_vec(),
        patience_ms: 30_000,
        proves: true,
        service: 1,
        release: "0.1.0".into(),
        dialled: Some(proto::Dialled {
            socket: Some(proto::Socket {
                address: "127.0.0.1:7786".into(),
                written: "treadle://localhost:7786".into(),
                loopback: b"boot".to_vec(),
            }),
            unix: Vec::new(),
        }),
        cluster: vec![6; 16],
        client: 7,
    };
    let encoded = hello.encode_to_vec();
    let mut preamble = Vec::new();
    wire::encode_preamble(&encoded, &mut preamble);
    add("preamble", "valid", preamble[..PREAMBLE].to_vec());
    add("preamble", "http", b"GET / HTTP/1.1\r\n\r\n".to_vec());
    add("preamble", "tls", vec![22, 3, 1, 2, 0, 1, 0, 1]);
    add("hello", "valid", encoded);
    let proof = |mac, refused: &str| proto::Proof {
        mac,
        refused: refused.into(),
    };
    add("hello", "proof", proof(vec![1; 32], "").encode_to_vec());
    let refused = proof(Vec::new(), "no such session").encode_to_vec();
    add("hello", "refused", refused.clone());

    let mut all = Vec::new();
    let mut operations = vec![1];
    for (name, frame) in valid_frames() {
        add("frames", name, frame.clone());
        let mut payload = frame[FRAME_HEADER..].to_vec();
        if frame[8] == 2 {
            payload.insert(0, 0);
        }
        let mut one = vec![1, 0];
        one.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        one.extend_from_slice(&payload);
        if payload.len() < 1000 {
            operations.extend_from_slice(&one[1..]);
        }
        add("pair", name, one);
        all.extend(frame);
    }
    add("frames", "all", all);
    add("pair", "all", operations);
    add("pair", "sends", sending());
    add("pair", "receives", receiving());

    let extent = |object, region, offset, length, checksum| {
        let object = TransferId(object);
        wire::encode_extent(
            &Extent {
                object,
                region,
                offset,
                length,
            },
            checksum,
        )
    };
    let checksum = Some(crate::checksum::crc32c(b"bytes"));
    let largest = extent(u64::MAX, u32::MAX, 1 << 47, 256 * 1024, checksum);
    let headers = [
        extent(1, 0, 0, 1, checksum),
        extent(2, 0, 0, 1, None),
        largest,
    ];
    add("extents", "valid", headers.concat());

    let keys = [None, Some(Secret::new([7; 32]).unwrap())];
    for (with, key) in keys.into_iter().enumerate() {
        let mut client = Handshake::client(hello.clone(), key);
        for piece in [0, 62] {
            let choice = (piece << 2 | with << 1) as u8;
            let mut bytes = vec![choice];
            bytes.extend_from_slice(&client.output);
            // Without a key, that is all that there is to prove.
            bytes.extend_from_slice(&[0; 4]);
            add("handshake", &format!("client-{choice}"), bytes);
        }
        client.output.extend_from_slice(&[0; 4]);
        client.output.insert(0, (with << 1 | 1) as u8);
        add("handshake", &format!("listener-{with}"), client.output);
    }
    let mut refusal = vec![1];
    wire::encode_preamble(&[], &mut refusal);
    refusal.extend_from_slice(&(refused.len() as u32).to_le_bytes());
    refusal.extend_from_slice(&refused);
    add("handshake", "refused", refusal);
    seeds
}

fn valid_frames() -> Vec<(&'static str, Vec<u8>)> {
    let object = TransferId(1);
    let stripe = StripeId(2);
    let reason = String::from("because");
    let messages = [
        ("accept", Message::Accept { object }),
        (
            "refuse",
            Message::Refuse {
                object,
                reason: reason.clone(),
            },
        ),
        ("placed", Message::Placed { object }),
        ("cancel", Message::Cancel { object }),
        ("credit", Message::Credit { bytes: 1 << 21 }),
        ("dial", Message::Dial { stripe }),
        ("dial-failed", Message::DialFailed { stripe, reason }),
        ("broken", Message::Broken { stripe }),
        (
            "report",
            Message::Report {
                stripe,
                extents: 12,
                corrupt: true,
            },
        ),
        ("ping", Message::Ping { token: 1 << 40 }),
        ("pong", Message::Pong { token: 1 << 40 }),
        ("goodbye", Message::Goodbye),
    ];
    let mut frames = Vec::new();
    for (name, message) in messages {
        let mut frame = Vec::new();
        wire::encode_message(&message, &mut frame);
        frames.push((name, frame));
    }
    let mut released = Vec::new();
    wire::encode_released(vec![1, 2, 300], vec![7], &mut released);
    frames.push(("released", released));
    let mut descriptors = Vec::new();
    let segment = wire::Segment {
        id: 9,
        offset: 64,
        length: 1 << 30,
        file: 7,
    };
    wire::encode_descriptors(object, &[segment; 2], &mut descriptors);
    frames.push(("descriptors", descriptors));
    let objects: [(_, &[u64], Option<&[_]>); 5] = [
        ("object-small", &[3, 0], None),
        ("object-large", &[4, 1 << 20, 300_000], None),
        ("object-shared", &[1 << 33], Some(&[])),
        ("object-kept", &[1 << 30], Some(&[segment])),
        ("object-slabs", &[40_000; 4], None),
    ];
    for (name, sizes, shared) in objects {
        let layout = treadle_transfer::layout::Layout::of(sizes).unwrap();
        let inline = vec![b'i'; layout.inline as usize];
        let mut frame = Vec::new();
        let number = TransferId(5 + frames.len() as u64);
        let parts = [inline.as_slice()].into_iter();
        wire::encode_object(number, 7, sizes, shared, parts, &mut frame);
        frames.push((name, frame));
    }
    frames
}

fn told(message: &Message, into: &mut Vec<u8>) {
    let mut frame = Vec::new();
    wire::encode_message(message, &mut frame);
    into.push(0);
    into.extend_from_slice(&((frame.len() - FRAME_HEADER) as u16).to_be_bytes());
    into.extend_from_slice(&frame[FRAME_HEADER..]);
}

/// An object on its way out over a stripe that breaks, and over the next.
fn sending() -> Vec<u8> {
    let object = TransferId(1);
    let mut bytes = vec![1, 4, 100, 2, 0];
    told(&Message::Accept { object }, &mut bytes);
    bytes.extend_from_slice(&[7, 1, 8, 0, 10, 8, 0, 10, 9, 0]);
    let report = Message::Report {
        stripe: StripeId(0),
        extents: 1,
        corrupt: false,
    };
    told(&report, &mut bytes);
    bytes.extend_from_slice(&[15, 20, 7, 1]);
    for _ in 0..10 {
        bytes.extend_from_slice(&[8, 1, 50]);
    }
    told(&Message::Placed { object }, &mut bytes);
    bytes
}

/// An object on its way in, over a stripe that breaks, and over the next.
fn receiving() -> Vec<u8> {
    let mut frame = Vec::new();
    let none = std::iter::empty();
    wire::encode_object(TransferId(3), 7, &[299_008], None, none, &mut frame);
    let mut bytes = vec![0, 0];
    bytes.extend_from_slice(&((frame.len() - FRAME_HEADER + 1) as u16).to_be_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&frame[FRAME_HEADER..]);
    bytes.extend_from_slice(&[6, 0, 0, 10, 4]);
    let mut extent = |stripe: u8, offset: u8, length: u8, intact: u8| {
        bytes.extend_from_slice(&[11, stripe, 3, 0, offset, length, 13, intact]);
    };
    extent(4, 0, 64, 20);
    extent(4, 4, 9, 0);
    bytes.extend_from_slice(&[14, 10, 5]);
    told(&Message::Ping { token: 4 }, &mut bytes);
    bytes
}
