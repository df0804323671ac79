//! Casts that are aborted.

mod support;

use std::time::Duration;

use support::{Engine, SESSION, TOP, config, member, offer, offers, worker};
use treadle_broadcast::{
    CastId, CastResult, Effect, Effects, Event, Me, Message, Outcome, Relay, Runs, Settled, Tree,
};

fn cast(number: u64) -> CastId {
    let session = SESSION;
    CastId { session, number }
}

fn abort(number: u64, interrupt: bool) -> Message {
    let cast = cast(number);
    Message::Abort { cast, interrupt }
}

/// Numbers whose results are reported, and what came of them.
fn reported(effects: &[Effect]) -> Vec<(u64, Outcome)> {
    let messages = effects.iter().filter_map(|effect| match effect {
        Effect::Send(_, Message::Results { results, .. }) => Some(results),
        _ => None,
    });
    let results = messages.flatten();
    results
        .map(|result| (result.number, result.outcome.clone()))
        .collect()
}

/// Engine 0, which runs cast 1 and has others that wait for it.
fn busy(others: u64) -> Engine {
    let mut engine = Engine::new();
    for number in 1..=1 + others {
        let offer = offer(number, Runs::one(0), 0);
        engine.tell(TOP, offers(offer)).unwrap();
    }
    assert_eq!(engine.running, Some(cast(1)));
    engine
}

#[test]
fn what_waits_is_aborted_at_once_and_keeps_its_turn() {
    let mut engine = busy(2);
    let effects = engine.tell(TOP, abort(2, false)).unwrap();
    assert_eq!(reported(&effects), [(2, Outcome::Aborted)]);
    // The one after it does not begin.
    assert_eq!(engine.running, Some(cast(1)));
    assert_eq!(engine.relay.waiting(), 1);
    engine.running = None;
    let ran = Event::Ran {
        cast: cast(1),
        size: 0,
    };
    let effects = engine.handle(ran).unwrap();
    assert_eq!(reported(&effects), [(1, Outcome::Finished { size: 0 })]);
    assert_eq!(engine.running, Some(cast(3)));
}

#[test]
fn what_comes_later_behind_an_aborted_one_waits_too() {
    let mut engine = busy(1);
    engine.tell(TOP, abort(2, false)).unwrap();
    let later = offer(3, Runs::one(0), 0);
    engine.tell(TOP, offers(later)).unwrap();
    assert_eq!(engine.running, Some(cast(1)));
}

#[test]
fn what_the_engine_has_not_begun_is_taken_back() {
    let mut engine = busy(1);
    for interrupt in [false, true] {
        let effects = engine.tell(TOP, abort(1, interrupt)).unwrap();
        let cast = cast(1);
        assert_eq!(effects, [Effect::Stop { cast, interrupt }]);
    }
    engine.running = None;
    let effects = engine.handle(Event::Withdrawn(cast(1))).unwrap();
    assert_eq!(reported(&effects), [(1, Outcome::Aborted)]);
    assert_eq!(engine.running, Some(cast(2)));
}

/// The top of a session with two engines.
struct Top {
    relay: Relay,
    effects: Effects,
}

impl Top {
    fn handle(&mut self, event: Event) -> Vec<Effect> {
        let now = Duration::ZERO;
        self.relay.handle(event, now, &mut self.effects).unwrap();
        self.relay.check().unwrap();
        std::mem::take(&mut self.effects.0)
    }

    fn hear(&mut self, number: u64, engines: Runs, outcome: Outcome) -> Vec<Effect> {
        let results = vec![CastResult {
            number,
            engines,
            outcome,
        }];
        let session = SESSION;
        let results = Message::Results { session, results };
        self.handle(Event::Message(worker(0), results))
    }
}

/// A top that has cast to engines 0 and 1 so many times.
fn top(casts: u64) -> Top {
    let me = Me::Top {
        session: SESSION,
        host: None,
    };
    let mut top = Top {
        relay: Relay::new(me, config()),
        effects: Effects::default(),
    };
    top.handle(Event::Introduce((0..2).map(member).collect()));
    for number in 1..=casts {
        let (members, size) = (Runs::range(0, 2), 0);
        top.handle(Event::Cast {
            number,
            members,
            size,
            unordered: false,
            tree: Tree::default(),
        });
    }
    top.handle(Event::Connected(worker(0)));
    top
}

#[test]
fn what_was_aborted_is_settled_when_what_came_before_is_over() {
    let mut top = top(3);
    let number = 2;
    top.handle(Event::Abort {
        number,
        interrupt: false,
    });
    let finished = Outcome::Finished { size: 0 };
    top.hear(1, Runs::one(0), finished.clone());
    let effects = top.hear(2, Runs::range(0, 2), Outcome::Aborted);
    // The user has everything; engine 1 still runs the first one.
    assert!(effects.contains(&Effect::Complete { number }));
    assert_eq!(top.relay.settled(SESSION), Settled::default());
    // It is complete: nobody joins it any more.
    let members = Runs::range(0, 2);
    assert_eq!(top.handle(Event::Extend { number, members }), []);
    let effects = top.hear(1, Runs::one(1), finished);
    assert!(effects.contains(&Effect::Complete { number: 1 }));
    assert!(!effects.contains(&Effect::Complete { number: 2 }));
    let settled = Settled(Runs::range(1, 3));
    assert_eq!(top.relay.settled(SESSION), settled);
}

#[test]
fn of_many_that_were_aborted_each_waits_for_the_first() {
    let mut top = top(3);
    for number in [3, 2] {
        let interrupt = false;
        top.handle(Event::Abort { number, interrupt });
        top.hear(number, Runs::range(0, 2), Outcome::Aborted);
    }
    assert_eq!(top.relay.casts(), 3);
    let finished = Outcome::Finished { size: 0 };
    top.hear(1, Runs::range(0, 2), finished);
    assert_eq!(top.relay.casts(), 0);
}
