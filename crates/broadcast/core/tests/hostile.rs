//! Neighbours that say anything: nothing panics, every invariant holds, and nothing grows without
//! bound. Each rule of the protocol by a message that breaks it.

mod support;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use support::{Engine, SESSION, TOP, config, member, offer, offers, worker};
use treadle_broadcast::{
    CastId, CastResult, Effect, Effects, Event, Me, Message, Neighbour, Offer, Outcome, Output,
    Previous, Relay, Runs, Settled, Shape, Tree, Version, Violation,
};
use treadle_types::{Cause, ClientId, WorkerId};

fn refuses(victim: &mut Engine, from: Neighbour, message: Message, reason: &str) {
    let casts = victim.relay.casts();
    let error = victim.tell(from, message).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
    assert_eq!(victim.relay.casts(), casts);
}

#[test]
fn what_a_refused_offer_says_to_be_settled_is_acted_upon() {
    let mut victim = Engine::new();
    // It waits for the cast before, which was never offered here.
    let waiting = Offer {
        previous: Previous([(1, 1)].into_iter().collect()),
        aborted: true,
        ..offer(3, Runs::one(0), 0)
    };
    victim.tell(worker(1), offers(waiting.clone())).unwrap();
    let another_size = Offer {
        size: 1,
        settled: Settled(Runs::one(1)),
        ..waiting
    };
    refuses(&mut victim, worker(1), offers(another_size), "size");
    // The rest is checked after each event: its result goes up.
}

#[test]
fn an_offer_that_breaks_a_rule_is_refused() {
    let mut victim = Engine::new();
    let all = Runs::range(0, 4);
    let good = offer(1, all.clone(), 0);
    let strangers = Offer {
        members: Runs::range(0, 9),
        previous: Previous([(9, 0)].into_iter().collect()),
        ..good.clone()
    };
    refuses(&mut victim, TOP, offers(strangers), "not introduced");
    let nobody = Offer {
        members: Runs::new(),
        ..good.clone()
    };
    refuses(&mut victim, TOP, offers(nobody), "to nobody");
    let unordered = Offer {
        previous: Previous::default(),
        ..good.clone()
    };
    refuses(&mut victim, TOP, offers(unordered), "previous");
    let both = Offer {
        unordered: true,
        previous: Previous([(4, 7)].into_iter().collect()),
        ..good.clone()
    };
    refuses(&mut victim, TOP, offers(both), "an unordered cast");
    let shapeless = Offer {
        shape: Shape {
            degree: 0,
            local: 1,
            chunk: 1,
            chosen: false,
        },
        ..good.clone()
    };
    refuses(&mut victim, TOP, offers(shapeless), "shape");
    let other = Neighbour::Top(ClientId(7));
    victim.handle(Event::Connected(other)).unwrap();
    refuses(&mut victim, other, offers(good.clone()), "another session");
    refuses(
        &mut victim,
        worker(9),
        offers(good.clone()),
        "without a connection",
    );

    victim.tell(TOP, offers(good)).unwrap();
    refuses(
        &mut victim,
        worker(1),
        offers(offer(1, all.clone(), 5)),
        "size",
    );
    for number in [2, 3] {
        victim
            .tell(TOP, offers(offer(number, all.clone(), 0)))
            .unwrap();
    }
    refuses(&mut victim, TOP, offers(offer(4, all, 0)), "too many casts");
}

#[test]
fn what_a_neighbour_sent_before_it_was_gone_is_no_fault_of_its() {
    let mut victim = Engine::new();
    let cause = Cause::Misbehaved("it was thrown out".into());
    victim.handle(Event::Gone(WorkerId(1), cause)).unwrap();
    victim.handle(Event::ClientGone(SESSION)).unwrap();
    for neighbour in [worker(1), TOP] {
        let late = offers(offer(1, Runs::range(0, 4), 0));
        victim.tell(neighbour, late).unwrap();
        assert_eq!(victim.relay.casts(), 0);
    }
}

#[test]
fn bytes_and_results_that_cannot_be_are_refused() {
    let mut victim = Engine::new();
    victim
        .tell(TOP, offers(offer(1, Runs::one(0), 100)))
        .unwrap();
    let cast = CastId {
        session: SESSION,
        number: 1,
    };
    let beyond = Message::Chunk {
        cast,
        offset: 90,
        length: 11,
    };
    refuses(&mut victim, TOP, beyond, "not part of the payload");
    let results = vec![CastResult {
        number: 1,
        engines: Runs::one(0),
        outcome: Outcome::Lost(Cause::Unreachable),
    }];
    let session = SESSION;
    let lost = Message::Results { session, results };
    refuses(&mut victim, worker(1), lost, "who is lost");
}

#[test]
fn results_of_those_who_were_not_asked_change_nothing() {
    let mut victim = Engine::new();
    victim
        .tell(TOP, offers(offer(1, Runs::range(0, 4), 0)))
        .unwrap();
    let results = vec![CastResult {
        number: 1,
        engines: Runs::range(0, 1_000),
        outcome: Outcome::Finished { size: u64::MAX },
    }];
    let session = SESSION;
    let message = Message::Results { session, results };
    // Engine 1 was given itself alone.
    let effects = victim.tell(worker(1), message).unwrap();
    let stored = effects.iter().find_map(|effect| match effect {
        Effect::StoreResults { engines, .. } => Some(engines.clone()),
        _ => None,
    });
    assert_eq!(stored, Some(Runs::one(1)));
}

#[test]
fn a_client_is_told_nothing_as_if_it_were_an_engine() {
    let me = Me::Top {
        session: SESSION,
        host: None,
    };
    let mut top = Relay::new(me, config());
    let mut effects = Effects::default();
    let now = Duration::ZERO;
    let connected = Event::Connected(worker(1));
    top.handle(connected, now, &mut effects).unwrap();
    let message = offers(offer(1, Runs::one(1), 0));
    let event = Event::Message(worker(1), message);
    assert!(top.handle(event, now, &mut effects).is_err());
    // A cast out of turn, and one to somebody unknown.
    for (number, members) in [(2, Runs::new()), (1, Runs::one(5))] {
        let size = 0;
        let cast = Event::Cast {
            number,
            members,
            size,
            unordered: false,
            tree: Tree::default(),
        };
        assert!(top.handle(cast, now, &mut effects).is_err());
    }
    top.check().unwrap();
}

#[test]
fn a_cast_keeps_its_place_in_the_order() {
    let mut victim = Engine::new();
    let beside = Offer {
        previous: Previous([(1, 0)].into_iter().collect()),
        unordered: true,
        ..offer(2, Runs::one(0), 0)
    };
    victim.tell(TOP, offers(beside.clone())).unwrap();
    victim.tell(TOP, offers(offer(1, Runs::one(0), 0))).unwrap();
    assert_eq!(victim.running.map(|cast| cast.number), Some(1));
    assert!(victim.beside.contains(&beside.cast));
    let ordered = Offer {
        unordered: false,
        ..beside
    };
    refuses(&mut victim, TOP, offers(ordered), "place in the order");
}

fn runs() -> impl Strategy<Value = Runs> {
    prop::collection::btree_set(0..6_u64, 0..6).prop_map(|ids| ids.into_iter().collect())
}

fn cast() -> impl Strategy<Value = CastId> {
    (0..2_u32, 0..6_u64).prop_map(|(session, number)| CastId {
        session: ClientId(session),
        number,
    })
}

fn neighbour() -> impl Strategy<Value = Neighbour> {
    prop_oneof![
        Just(TOP),
        Just(Neighbour::Top(ClientId(1))),
        (1..5_u32).prop_map(worker)
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        (0..4_u64).prop_map(|size| Outcome::Finished { size }),
        Just(Outcome::Finished { size: u64::MAX }),
        Just(Outcome::Aborted),
        Just(Outcome::Refused(Arc::from("no"))),
        Just(Outcome::Unreachable),
    ]
}

fn any_offer() -> impl Strategy<Value = Message> {
    let versions = (0..3_u32, prop::option::of(0..4_u32));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (
        cast(),
        runs(),
        0..4_u64,
        prop_oneof![0..12_u64, 90..110_u64],
        versions,
        flags,
        runs(),
    )
        .prop_map(
            |(
                cast,
                members,
                previous,
                size,
                (count, by),
                (fresh, unordered, mapped, aborted),
                settled,
            )| {
                offers(Offer {
                    cast,
                    previous: Previous([(members.len() as u32, previous)].into_iter().collect()),
                    version: Version {
                        count,
                        by: by.map(WorkerId),
                    },
                    fresh,
                    unordered,
                    mapped,
                    aborted,
                    settled: Settled(settled.intersection(&Runs::range(0, 2))),
                    ..offer(1, members, size)
                })
            },
        )
}

fn message() -> impl Strategy<Value = Message> {
    let offset = || prop_oneof![0..120_u64, Just(u64::MAX)];
    prop_oneof![
        4 => any_offer(),
        1 => (0..6_u32).prop_map(|id| Message::Introduce(vec![member(id)])),
        2 => (cast(), offset(), 0..40_u32).prop_map(|(cast, offset, length)| Message::Chunk {
            cast,
            offset,
            length
        }),
        1 => cast().prop_map(|cast| Message::Mapping { cast }),
        1 => (cast(), offset()).prop_map(|(cast, offset)| Message::Want { cast, offset }),
        1 => (cast(), offset()).prop_map(|(cast, offset)| Message::Have { cast, offset }),
        1 => (cast(), runs()).prop_map(|(cast, members)| Message::Decline { cast, members }),
        3 => (0..2_u32, 0..6_u64, runs(), outcome()).prop_map(|(session, number, engines, outcome)| {
            Message::Results {
                session: ClientId(session),
                results: vec![CastResult { number, engines, outcome }],
            }
        }),
        1 => (0..6_u64, 0..5_u32).prop_map(|(number, engine)| Message::Outputs {
            session: SESSION,
            outputs: vec![Output { number, engine: WorkerId(engine), text: vec![0; 90_000].into() }],
        }),
        1 => runs().prop_map(|settled| Message::Settled {
            session: SESSION,
            settled: Settled(settled)
        }),
        1 => (cast(), any::<bool>()).prop_map(|(cast, interrupt)| Message::Abort { cast, interrupt }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => (neighbour(), message()).prop_map(|(from, message)| Event::Message(from, message)),
        3 => neighbour().prop_map(Event::Connected),
        2 => neighbour().prop_map(Event::Broken),
        1 => (1..5_u32).prop_map(|id| Event::Unreachable(WorkerId(id))),
        1 => (4..6_u32).prop_map(|id| Event::Gone(WorkerId(id), Cause::Unreachable)),
        1 => Just(Event::ClientGone(ClientId(1))),
        4 => (cast(), any::<bool>()).prop_map(|(cast, grants)| Event::Reserved {
            cast,
            result: if grants { Ok(()) } else { Err(Arc::from("no")) },
        }),
        4 => Just(Event::Tick),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn whatever_they_say_the_invariants_hold(
        events in prop::collection::vec((event(), any::<bool>()), 1..120),
    ) {
        let mut victim = Engine::new();
        for (event, ends) in events {
            if let Err(Violation::Protocol { from, .. }) = victim.handle(event) {
                victim.handle(Event::Broken(from)).unwrap();
            }
            if ends && let Some(cast) = victim.running.take() {
                victim.handle(Event::Ran { cast, size: 3 }).unwrap();
            }
            if ends && let Some(cast) = victim.beside.pop_first() {
                victim.handle(Event::Ran { cast, size: 3 }).unwrap();
            }
            victim.now += Duration::from_millis(400);
        }
    }
}
