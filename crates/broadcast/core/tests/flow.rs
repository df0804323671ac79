//! Payloads on their way through one node.

mod support;

use std::time::Duration;

use support::{Engine, SESSION, TOP, offer, offers, worker};
use treadle_broadcast::{
    CastId, Effect, Effects, Event, Message, Neighbour, Offer, Previous, Runs,
};

const CAST: CastId = CastId {
    session: SESSION,
    number: 1,
};
const SIZE: u64 = 400;
const WINDOW: u64 = 64;

/// Up to where chunks for a neighbour go.
fn sent(effects: &[Effect], whom: Neighbour) -> Option<u64> {
    let ends = effects.iter().filter_map(|effect| match effect {
        Effect::Send(to, Message::Chunk { offset, length, .. }) if *to == whom => {
            Some(offset + u64::from(*length))
        }
        _ => None,
    });
    ends.last()
}

fn chunk(offset: u64) -> Message {
    Message::Chunk {
        cast: CAST,
        offset,
        length: 16,
    }
}

/// Engine 0 with a payload on its way to engines 2 and 4, which are on two other hosts.
fn relay() -> Engine {
    let mut relay = Engine::new();
    let members = [0, 2, 4].into_iter().collect();
    relay.tell(TOP, offers(offer(1, members, SIZE))).unwrap();
    let cast = CAST;
    let granted = Event::Reserved {
        cast,
        result: Ok(()),
    };
    relay.handle(granted).unwrap();
    relay
}

#[test]
fn chunks_go_on_as_they_come_and_a_slow_child_stalls_nobody() {
    let mut relay = relay();
    let (quick, slow) = (worker(2), worker(4));
    let (mut to_quick, mut to_slow) = (0, 0);
    for offset in (0..SIZE).step_by(16) {
        assert!(relay.relay.wants_chunk(TOP, CAST, offset, 16));
        let mut effects = relay.tell(TOP, chunk(offset)).unwrap();
        let cast = CAST;
        let has = Message::Have {
            cast,
            offset: offset + 16,
        };
        effects.extend(relay.tell(quick, has).unwrap());
        to_quick = sent(&effects, quick).unwrap_or(to_quick);
        to_slow = sent(&effects, slow).unwrap_or(to_slow);
        assert_eq!(to_quick, offset + 16, "cut-through");
    }
    assert_eq!(to_slow, WINDOW);
    assert_eq!(relay.running, Some(CAST));
    // It goes on when the slow one does.
    let (cast, offset) = (CAST, 32);
    let effects = relay.tell(slow, Message::Have { cast, offset }).unwrap();
    assert_eq!(sent(&effects, slow), Some(32 + WINDOW));
}

#[test]
fn a_child_that_comes_back_gets_the_rest() {
    let mut relay = relay();
    for offset in (0..SIZE).step_by(16) {
        relay.tell(TOP, chunk(offset)).unwrap();
    }
    let (cast, offset) = (CAST, 48);
    let effects = relay
        .tell(worker(2), Message::Want { cast, offset })
        .unwrap();
    let offsets = effects.iter().filter_map(|effect| match effect {
        Effect::Send(_, Message::Chunk { offset, .. }) => Some(*offset),
        _ => None,
    });
    assert_eq!(offsets.collect::<Vec<_>>(), [48, 64, 80, 96]);
    // What it wants no more is not sent.
    let offset = SIZE;
    relay
        .tell(worker(2), Message::Want { cast, offset })
        .unwrap();
    let offset = 64;
    let effects = relay
        .tell(worker(2), Message::Have { cast, offset })
        .unwrap();
    assert_eq!(sent(&effects, worker(2)), None);
}

#[test]
fn when_a_source_is_lost_another_parent_is_asked() {
    let mut relay = relay();
    relay.tell(TOP, chunk(0)).unwrap();
    // A second parent offers the same, fresh: it is told to keep its bytes.
    let again = offer(1, Runs::one(0), SIZE);
    let (cast, offset) = (CAST, SIZE);
    let effects = relay.tell(worker(3), offers(again)).unwrap();
    assert_eq!(
        effects,
        [Effect::Send(worker(3), Message::Want { cast, offset })]
    );
    let broken = Event::Broken(TOP);
    let effects = relay.handle(broken).unwrap();
    let offset = 16;
    assert_eq!(
        effects,
        [Effect::Send(worker(3), Message::Want { cast, offset })]
    );
    assert!(!relay.relay.wants_chunk(TOP, CAST, 16, 16));
    assert!(relay.relay.wants_chunk(worker(3), CAST, 16, 16));
}

/// A parent that was asked to go on from somewhere cuts its bytes in other places than what was on the
/// way: what has a part of them is taken, or what is missing would never come.
#[test]
fn what_overlaps_with_what_is_here_is_taken() {
    let mut relay = relay();
    for offset in [0, 16, 24, 40] {
        assert!(relay.relay.wants_chunk(TOP, CAST, offset, 16), "{offset}");
        relay.tell(TOP, chunk(offset)).unwrap();
    }
    for offset in [0, 40, 57, SIZE - 16] {
        assert!(!relay.relay.wants_chunk(TOP, CAST, offset, 16), "{offset}");
    }
    assert!(relay.relay.wants_chunk(TOP, CAST, 41, 16));
    assert!(!relay.relay.wants_chunk(TOP, CAST, 41, 1000));
    assert!(!relay.relay.wants_chunk(TOP, CAST, 56, 0));
}

#[test]
fn a_cast_beside_the_others_waits_for_no_turn_and_none_waits_for_it() {
    let mut engine = Engine::new();
    let id = |number| CastId {
        session: SESSION,
        number,
    };
    let run = |effect| matches!(effect, Effect::Run(_)).then_some(effect);
    let mut runs = |message| -> Vec<Effect> {
        let mut effects = Effects::default();
        let event = Event::Message(TOP, offers(message));
        let now = Duration::from_secs(1);
        engine.relay.handle(event, now, &mut effects).unwrap();
        effects.0.into_iter().filter_map(run).collect()
    };
    let me = Runs::one(0);
    let unordered = |number| Offer {
        unordered: true,
        previous: Previous([(1, 0)].into_iter().collect()),
        ..offer(number, Runs::one(0), 0)
    };
    assert_eq!(runs(offer(1, me.clone(), 0)), [Effect::Run(id(1))]);
    assert_eq!(runs(unordered(2)), [Effect::Run(id(2))]);
    // Its turn is after the first.
    let next = Offer {
        previous: Previous([(1, 1)].into_iter().collect()),
        ..offer(3, me, 0)
    };
    assert_eq!(runs(next), []);
    for (number, expected) in [(1, Some(Effect::Run(id(3)))), (2, None)] {
        let mut effects = Effects::default();
        let cast = id(number);
        let ran = Event::Ran { cast, size: 0 };
        let now = Duration::from_secs(2);
        engine.relay.handle(ran, now, &mut effects).unwrap();
        assert_eq!(effects.0.into_iter().find_map(run), expected);
        engine.relay.check().unwrap();
    }
}
