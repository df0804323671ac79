//! What the fuzz targets in `fuzz/` call. Each takes any bytes, and panics when a decoder breaks its
//! word; the tests here replay the corpus that is kept in `fuzz/corpus/`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_transfer::layout::MAX_FRAMES;
use treadle_transfer::{Config, Effect, Event, Extent, Message, Pair, StripeId, TransferId};

use crate::handshake::{Handshake, Step};
use crate::secret::Secret;
use crate::wire::{self, EXTENT_HEADER, FRAME_HEADER, Frame, PREAMBLE, proto};

pub use crate::tls::fuzzing::tls_session;

/// Takes the bytes apart, and panics when that goes wrong.
pub type Target = fn(&[u8]);

/// Every target of this crate, by the name of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("preamble", preamble),
    ("hello", hello),
    ("frames", frames),
    ("extents", extents),
    ("handshake", handshake),
    ("pair", pair),
    ("tls_session", tls_session),
];

/// The first bytes of a connection.
pub fn preamble(bytes: &[u8]) {
    let whole = wire::decode_preamble(bytes);
    if let Ok(Some(length)) = whole {
        assert!(length <= wire::MAX_HELLO);
    }
    // A wrong byte stays wrong, however much follows it.
    for end in 0..bytes.len().min(PREAMBLE) {
        if let Err(error) = wire::decode_preamble(&bytes[..end]) {
            assert_eq!(whole.as_ref(), Err(&error));
        }
    }
}

/// The messages of the handshake.
pub fn hello(bytes: &[u8]) {
    let _ = wire::decode_hello::<proto::Hello>(bytes);
    let _ = wire::decode_hello::<proto::Proof>(bytes);
}

/// What arrives on a control connection: as it is, and with the checksums made right.
pub fn frames(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some(length)) = wire::frame_length(rest)
        && length <= rest.len()
    {
        let (frame, next) = rest.split_at(length);
        let _ = wire::decode_frame(frame);
        let mut frame = frame.to_vec();
        let checksum = crate::checksum::crc32c(&frame[8..]);
        frame[4..8].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(Some(decoded)) = wire::decode_frame(&frame) {
            decoded_frame(decoded, frame.len());
        }
        rest = next;
    }
}

fn decoded_frame(frame: Frame<'_>, length: usize) {
    match frame {
        Frame::Message(message) => {
            let mut again = Vec::new();
            wire::encode_message(&message, &mut again);
            let decoded = wire::decode_frame(&again);
            let reason_cut = matches!(
                &message,
                Message::Refuse { reason, .. } | Message::DialFailed { reason, .. }
                    if reason.len() > 1000
            );
            assert!(reason_cut || decoded == Ok(Some(Frame::Message(message))));
        }
        Frame::Object(header, inline) => {
            assert!(header.sizes.len() <= MAX_FRAMES);
            assert_eq!(header.sizes.len(), header.layout.places.len());
            assert_eq!(header.layout.inline, inline.len() as u64);
            let segments = header.segments.len();
            assert!(segments == 0 || segments == header.layout.regions.len());
            assert!(inline.len() < length);
            // What is kept of it is paid for with credit.
            let kept = 24 * header.sizes.len() + 24 * header.layout.regions.len() + inline.len();
            assert!(header.cost >= kept as u64);
        }
        Frame::Released { segments, files } => assert!(segments.len() + files.len() <= length),
        Frame::Descriptors(_, segments) => assert!(segments.len() <= length),
    }
}

/// What arrives on a stripe: headers, as they are, and with the checksums made right.
pub fn extents(bytes: &[u8]) {
    for header in bytes.chunks_exact(EXTENT_HEADER) {
        let mut header: [u8; EXTENT_HEADER] = header.try_into().expect("a whole chunk");
        let _ = wire::decode_extent(&header);
        let checksum = crate::checksum::crc32c(&header[..EXTENT_HEADER - 4]);
        header[EXTENT_HEADER - 4..].copy_from_slice(&checksum.to_le_bytes());
        if let Ok((extent, checksum)) = wire::decode_extent(&header) {
            assert_eq!(wire::encode_extent(&extent, checksum), header);
        }
    }
}

/// Either side of a handshake, with a secret or without. Nobody proves a secret by chance.
pub fn handshake(bytes: &[u8]) {
    let [choice, bytes @ ..] = bytes else { return };
    let key = (choice & 2 > 0).then(|| Secret::new([7; 32]).expect("long enough"));
    let hello = || proto::Hello {
        nonce: vec![9; 32],
        ..Default::default()
    };
    let mut side = if choice & 1 > 0 {
        Handshake::client(hello(), key.clone())
    } else {
        Handshake::listener()
    };
    let piece = usize::from(choice >> 2) + 1;
    let mut rest = bytes;
    loop {
        let wanted = side.wanted();
        assert!(wanted <= wire::MAX_HELLO);
        assert!(side.output.len() <= 2 * wire::MAX_HELLO);
        if wanted == 0 || rest.is_empty() {
            return;
        }
        let (now, later) = rest.split_at(wanted.min(piece).min(rest.len()));
        rest = later;
        side.receive(now);
        match side.advance() {
            Ok(Step::Pending) => {}
            Ok(Step::Asked) if choice & 4 > 0 => side.refuse("not today"),
            Ok(Step::Asked) => side.answer(hello(), key.clone()),
            Ok(Step::Done) => {
                assert!(key.is_none(), "a proof out of nothing");
                let _ = side.session_secret();
                return;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        }
    }
}

/// Takes numbers off the front of the input; zeros at its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        let (now, later) = self.0.split_at(count.min(self.0.len()));
        self.0 = later;
        now
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn small(&mut self) -> u64 {
        u64::from(self.byte())
    }

    fn short(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }
}

/// What the driver of a pair knows.
#[derive(Default)]
struct Driver {
    opening: BTreeSet<StripeId>,
    joined: BTreeSet<StripeId>,
    /// Stripes in the middle of an extent.
    arriving: BTreeSet<StripeId>,
    offered: BTreeMap<TransferId, bool>,
    ended: bool,
}

impl Driver {
    fn apply(&mut self, effects: Vec<Effect>) -> Vec<Event> {
        let mut events = Vec::new();
        for effect in effects {
            match effect {
                Effect::Dial(stripe) | Effect::Tell(Message::Dial { stripe }) => {
                    self.opening.insert(stripe);
                }
                Effect::DialForPeer(stripe) => {
                    events.push(Event::DialFailed(stripe, "no".into()));
                }
                Effect::DropIncoming(stripe) => {
                    self.arriving.remove(&stripe);
                    if self.joined.remove(&stripe) {
                        events.push(Event::Ended(stripe));
                    }
                }
                Effect::Offered(object) => {
                    assert!(self.offered.insert(object, false).is_none());
                }
                Effect::Allocate(object) => events.push(Event::Accept(object)),
                Effect::Complete(object) => {
                    let complete = self.offered.insert(object, true);
                    assert_eq!(complete, Some(false), "complete, and not offered");
                }
                Effect::ReceiveFailed(object, _) => {
                    assert!(self.offered.remove(&object).is_some());
                }
                Effect::End(_) => self.ended = true,
                _ => {}
            }
        }
        events
    }
}

/// The control connection and the stripes of an established pair, in the hands of a peer that
/// proved the secret and then sends anything; with an application that sends and takes objects.
pub fn pair(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let config = Config {
        dials: input.byte() & 1 > 0,
        credit: 1 << 16,
        prefetch: 1 << 20,
        max_object: 1 << 30,
        ..Config::default()
    };
    let mut pair = Pair::new(&config, 1 << 20, Duration::ZERO);
    let mut driver = Driver::default();
    let mut sent = 0;
    let mut now = Duration::ZERO;
    while !input.0.is_empty() && !driver.ended {
        let mut effects = Vec::new();
        let event = match input.byte() % 16 {
            0..4 => {
                let length = input.short();
                match message(input.take(length)) {
                    Some(message) => Event::Received(message),
                    None => continue,
                }
            }
            4 => {
                sent += 1;
                Event::Send {
                    object: TransferId(sent),
                    regions: vec![1 + (input.small() << 13); usize::from(input.byte() & 3)],
                    cost: 200,
                    shared: input.byte() & 1 > 0,
                }
            }
            5 => Event::Cancel(TransferId(input.small())),
            6 => {
                let number = input.byte();
                let objects = driver.offered.keys();
                let Some(&object) = objects.cycle().nth(usize::from(number)) else {
                    continue;
                };
                match input.byte() & 3 {
                    0 => Event::Accept(object),
                    1 => Event::Mapped(object),
                    2 if !driver.offered[&object] => {
                        driver.offered.remove(&object);
                        Event::Refuse(object, "no".into())
                    }
                    _ if driver.offered[&object] => {
                        driver.offered.remove(&object);
                        Event::Take(object)
                    }
                    _ => continue,
                }
            }
            7 => match driver.opening.pop_first() {
                Some(stripe) if input.byte() & 1 > 0 => Event::Opened(stripe),
                Some(stripe) => Event::OpenFailed(stripe, "no".into()),
                None => continue,
            },
            8 => {
                let stripe = StripeId(u32::from(input.byte()));
                if let Some(extent) = pair.next_extent(stripe, now) {
                    assert!(extent.length > 0);
                }
                Event::Drained(stripe, input.small() << 12)
            }
            9 => Event::Lost(StripeId(u32::from(input.byte()))),
            10 => {
                let stripe = StripeId(u32::from(input.byte()));
                if !driver.joined.insert(stripe) {
                    // The driver itself ends the pair.
                    return;
                }
                Event::Joined(stripe)
            }
            11 | 12 => {
                let stripe = StripeId(u32::from(input.byte()));
                let extent = Extent {
                    object: TransferId(input.small()),
                    region: u32::from(input.byte()),
                    offset: input.small() << 16,
                    length: input.small() << 12,
                };
                if !driver.joined.contains(&stripe) || driver.arriving.contains(&stripe) {
                    continue;
                }
                if pair.begin(stripe, &extent).is_err() {
                    return;
                }
                driver.arriving.insert(stripe);
                pair.check().unwrap();
                continue;
            }
            13 => {
                let Some(stripe) = driver.arriving.pop_first() else {
                    continue;
                };
                Event::Arrived {
                    stripe,
                    intact: input.byte() > 9,
                }
            }
            14 => {
                let Some(stripe) = driver.joined.pop_first() else {
                    continue;
                };
                driver.arriving.remove(&stripe);
                Event::Ended(stripe)
            }
            _ => {
                now += Duration::from_millis(input.small() * 10);
                Event::Tick
            }
        };
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let handled = pair.handle(event, now, &mut effects);
            if handled.is_err() {
                // The driver ends it: nothing may be left over.
                pair.end(treadle_transfer::PairEnd::Goodbye, &mut effects);
            }
            pair.check().unwrap();
            let new = std::mem::take(&mut effects);
            assert!(new.len() < 100_000);
            events.extend(driver.apply(new));
        }
    }
    let mut effects = Vec::new();
    pair.end(treadle_transfer::PairEnd::Goodbye, &mut effects);
    pair.check().unwrap();
    assert_eq!(pair.stats().sending, 0);
}

/// A message as it comes off the wire, from a `Control` or, after a 0, from the frame of an object.
fn message(bytes: &[u8]) -> Option<Message> {
    let (kind, payload) = match bytes {
        [0, payload @ ..] => (2, payload),
        payload => (1, payload),
    };
    let mut frame = vec![0; FRAME_HEADER];
    frame[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    frame[8] = kind;
    frame.extend_from_slice(payload);
    let checksum = crate::checksum::crc32c(&frame[8..]);
    frame[4..8].copy_from_slice(&checksum.to_le_bytes());
    match wire::decode_frame(&frame).ok()?? {
        Frame::Message(message) => Some(message),
        Frame::Object(header, _) => Some(Message::Offer {
            object: header.object,
            regions: header.layout.regions.clone(),
            cost: header.cost,
            shared: header.shared,
        }),
        Frame::Released { .. } | Frame::Descriptors(..) => None,
    }
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod corpus;

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

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

        let extent = |object, region, offset, length| {
            let object = TransferId(object);
            wire::encode_extent(
                &Extent {
                    object,
                    region,
                    offset,
                    length,
                },
                crate::checksum::crc32c(b"bytes"),
            )
        };
        let largest = extent(u64::MAX, u32::MAX, 1 << 47, 256 * 1024);
        add("extents", "valid", [extent(1, 0, 0, 1), largest].concat());

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
        for (name, bytes) in crate::tls::fuzzing::seeds() {
            add("tls_session", name, bytes);
        }
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
}
