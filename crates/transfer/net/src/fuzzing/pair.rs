//! A pair of peers in the hands of one that sends anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_transfer::{
    Config, Effect, Event, Extent, Message, Pair, PairEnd, StripeId, TransferId,
};

use crate::checksum::crc32c;
use crate::wire::{self, FRAME_HEADER, Frame};

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
                if input.byte() & 3 == 0 {
                    Event::Retransmitted(stripe, input.small() << 10)
                } else {
                    Event::Drained(stripe, input.small() << 12)
                }
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
                pair.end(PairEnd::Goodbye, &mut effects);
            }
            pair.check().unwrap();
            let new = std::mem::take(&mut effects);
            assert!(new.len() < 100_000);
            events.extend(driver.apply(new));
        }
    }
    let mut effects = Vec::new();
    pair.end(PairEnd::Goodbye, &mut effects);
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
    let checksum = crc32c(&frame[8..]);
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
