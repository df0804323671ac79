//! A peer that breaks the protocol: each violation by the message that is one, and no memory in
//! proportion to a length that somebody only claims.

use std::time::Duration;

use treadle_transfer::layout::{EXTENT, MAX_BYTES, MAX_FRAMES};
use treadle_transfer::{
    Config, Effect, Event, Extent, Message, Pair, StripeId, TransferId, Violation,
};

const NOW: Duration = Duration::from_secs(1);
const OBJECT: TransferId = TransferId(7);
const STRIPE: StripeId = StripeId(3);
/// The most stripes that a peer may open.
const MAX_STRIPES: u32 = 64;

struct Victim(Pair);

impl Victim {
    fn new(config: &Config) -> Self {
        Self(Pair::new(config, 1 << 20, NOW))
    }

    fn handle(&mut self, event: Event) -> Result<Vec<Effect>, Violation> {
        let mut effects = Vec::new();
        let result = self.0.handle(event, NOW, &mut effects).map(|()| effects);
        self.0.check().unwrap();
        result
    }

    fn told(&mut self, message: Message) -> Result<Vec<Effect>, Violation> {
        self.handle(Event::Received(message))
    }

    fn offer(&mut self, object: TransferId, regions: Vec<u64>, cost: u64) -> Result<(), Violation> {
        let shared = false;
        let offer = Message::Offer {
            object,
            regions,
            cost,
            shared,
        };
        self.told(offer).map(drop)
    }

    fn begin(&mut self, offset: u64, length: u64) -> Result<bool, Violation> {
        let object = OBJECT;
        self.0.begin(
            STRIPE,
            &Extent {
                object,
                region: 0,
                offset,
                length,
            },
        )
    }

    /// A receiver that waits for the extents of an object.
    fn with_object(regions: Vec<u64>) -> Self {
        let mut victim = Self::new(&Config::default());
        victim.offer(OBJECT, regions, 1).unwrap();
        victim.handle(Event::Accept(OBJECT)).unwrap();
        victim.handle(Event::Joined(STRIPE)).unwrap();
        victim
    }

    /// A sender of an object of two extents, which the receiver knows.
    fn with_offer(dials: bool) -> Self {
        let mut victim = Self::new(&Config {
            dials,
            ..Config::default()
        });
        victim.send(OBJECT, 1);
        victim
    }

    fn send(&mut self, object: TransferId, cost: u64) {
        let (regions, shared) = (vec![2 * EXTENT], false);
        self.handle(Event::Send {
            object,
            regions,
            cost,
            shared,
        })
        .unwrap();
    }
}

fn no_such_extent(offset: u64, length: u64) -> Violation {
    Violation::NoSuchExtent {
        object: OBJECT.0,
        region: 0,
        offset,
        length,
    }
}

#[test]
pub(super) fn an_object_must_have_a_higher_number_than_all_before() {
    let mut victim = Victim::new(&Config::default());
    victim.offer(OBJECT, vec![1], 1).unwrap();
    assert_eq!(
        victim.offer(OBJECT, vec![1], 1),
        Err(Violation::Order(7, 7))
    );
    assert_eq!(
        victim.offer(TransferId(6), vec![], 1),
        Err(Violation::Order(6, 7))
    );
}

#[test]
pub(super) fn an_object_must_not_exceed_the_limit() {
    let config = Config {
        max_object: 1000,
        ..Config::default()
    };
    let too_large = |bytes| Err(Violation::TooLarge { bytes, limit: 1000 });
    assert_eq!(Victim::new(&config).offer(OBJECT, vec![1000], 1), Ok(()));
    assert_eq!(
        Victim::new(&config).offer(OBJECT, vec![1000, 1], 1),
        too_large(1001)
    );
    let all = vec![u64::MAX; 3];
    assert_eq!(
        Victim::new(&config).offer(OBJECT, all, 1),
        too_large(u64::MAX)
    );
    let overflowing = vec![u64::MAX, 2];
    assert_eq!(
        Victim::new(&config).offer(OBJECT, overflowing, 1),
        too_large(u64::MAX)
    );
}

#[test]
fn a_limit_that_is_no_limit_overflows_nothing() {
    let config = Config {
        max_object: u64::MAX,
        prefetch: u64::MAX,
        ..Config::default()
    };
    let mut victim = Victim::new(&config);
    victim.offer(OBJECT, vec![u64::MAX], 1).unwrap();
    victim.offer(TransferId(8), vec![u64::MAX], 1).unwrap();
    victim
        .offer(TransferId(9), vec![1 << 63, (1 << 63) - 1], 1)
        .unwrap();
    assert_eq!(victim.0.progress(OBJECT), Some((0, u64::MAX)));
}

#[test]
pub(super) fn an_object_must_not_have_more_regions_than_frames_are_allowed() {
    let mut victim = Victim::new(&Config::default());
    victim.offer(OBJECT, vec![1; MAX_FRAMES], 1).unwrap();
    let regions = vec![1; MAX_FRAMES + 1];
    assert_eq!(
        victim.offer(TransferId(8), regions, 1),
        Err(Violation::Regions(MAX_FRAMES + 1))
    );
}

#[test]
pub(super) fn headers_must_not_exceed_the_credit() {
    let config = Config {
        credit: 100,
        ..Config::default()
    };
    let mut victim = Victim::new(&config);
    victim.offer(OBJECT, vec![1], 60).unwrap();
    assert_eq!(
        victim.offer(TransferId(8), vec![], 41),
        Err(Violation::Credit(1))
    );
    assert_eq!(
        Victim::new(&config).offer(OBJECT, vec![], u64::MAX),
        Err(Violation::Credit(u64::MAX - 100))
    );
}

#[test]
fn a_claimed_length_allocates_nothing() {
    // One slot for each extent would be a gigabyte for each of these.
    let mut victim = Victim::new(&Config::default());
    for object in 0..64 {
        let object = TransferId(object);
        let (regions, cost, shared) = (vec![MAX_BYTES], 100, false);
        let effects = victim
            .told(Message::Offer {
                object,
                regions,
                cost,
                shared,
            })
            .unwrap();
        assert_eq!(effects, [Effect::Offered(object)]);
    }
}

#[test]
pub(super) fn an_extent_must_be_one_of_the_object() {
    let length = EXTENT + 10;
    let wrong = [
        (1, EXTENT),
        (0, EXTENT - 1),
        (0, EXTENT + 1),
        (0, 0),
        (EXTENT, EXTENT),
        (EXTENT, 11),
        (2 * EXTENT, 0),
        (u64::MAX, u64::MAX),
        (u64::MAX - EXTENT + 1, EXTENT),
    ];
    for (offset, size) in wrong {
        let mut victim = Victim::with_object(vec![length]);
        assert_eq!(
            victim.begin(offset, size),
            Err(no_such_extent(offset, size))
        );
    }
    let mut victim = Victim::with_object(vec![length]);
    let beyond = Extent {
        object: OBJECT,
        region: u32::MAX,
        offset: 0,
        length: 1,
    };
    assert!(matches!(
        victim.0.begin(STRIPE, &beyond),
        Err(Violation::NoSuchExtent {
            region: u32::MAX,
            ..
        })
    ));
}

#[test]
fn an_extent_must_wait_for_the_memory() {
    let mut victim = Victim::new(&Config::default());
    victim.handle(Event::Joined(STRIPE)).unwrap();
    assert_eq!(victim.begin(0, 10), Err(Violation::Unknown("an object")));
    victim.offer(OBJECT, vec![10], 1).unwrap();
    assert_eq!(victim.begin(0, 10), Err(no_such_extent(0, 10)));
}

#[test]
fn an_extent_must_not_arrive_after_the_object_is_complete() {
    let mut victim = Victim::with_object(vec![10]);
    assert_eq!(victim.begin(0, 10), Ok(true));
    victim
        .handle(Event::Arrived {
            stripe: STRIPE,
            intact: true,
        })
        .unwrap();
    assert_eq!(victim.begin(0, 10), Err(no_such_extent(0, 10)));
}

#[test]
pub(super) fn an_extent_must_not_arrive_twice() {
    let other = StripeId(4);
    let object = OBJECT;
    let extent = Extent {
        object,
        region: 0,
        offset: 0,
        length: EXTENT,
    };
    let mut victim = Victim::with_object(vec![2 * EXTENT]);
    victim.handle(Event::Joined(other)).unwrap();
    assert_eq!(victim.0.begin(STRIPE, &extent), Ok(true));
    assert_eq!(
        victim.0.begin(other, &extent),
        Err(Violation::Twice(7)),
        "both on their way"
    );
    victim
        .handle(Event::Arrived {
            stripe: STRIPE,
            intact: true,
        })
        .unwrap();
    assert_eq!(
        victim.0.begin(other, &extent),
        Err(Violation::Twice(7)),
        "the first is there"
    );
}

#[test]
pub(super) fn what_follows_a_damaged_extent_is_not_written() {
    let mut victim = Victim::with_object(vec![3 * EXTENT]);
    assert_eq!(victim.begin(0, EXTENT), Ok(true));
    let arrived = |intact| Event::Arrived {
        stripe: STRIPE,
        intact,
    };
    assert_eq!(
        victim.handle(arrived(false)),
        Ok(vec![Effect::DropIncoming(STRIPE)])
    );
    assert_eq!(victim.begin(EXTENT, EXTENT), Ok(false));
    assert_eq!(
        victim.begin(12345, 1),
        Ok(false),
        "a header that may be damaged, too"
    );
    assert_eq!(victim.handle(arrived(true)), Ok(vec![]));
    let report = Message::Report {
        stripe: STRIPE,
        extents: 0,
        corrupt: true,
    };
    assert_eq!(
        victim.handle(Event::Ended(STRIPE)),
        Ok(vec![Effect::Tell(report)])
    );
}

#[test]
pub(super) fn an_extent_of_an_object_that_was_given_up_is_dropped() {
    let mut victim = Victim::with_object(vec![10]);
    victim.told(Message::Cancel { object: OBJECT }).unwrap();
    assert_eq!(victim.begin(0, 10), Ok(false));
    assert_eq!(victim.begin(5, 99), Ok(false));
}

#[test]
pub(super) fn a_stripe_must_not_be_opened_twice_nor_too_many_of_them() {
    let joined = |stripe| Event::Joined(StripeId(stripe));
    let mut victim = Victim::new(&Config::default());
    victim.handle(joined(0)).unwrap();
    assert_eq!(victim.handle(joined(0)), Err(Violation::Stripe(0)));
    for stripe in 1..MAX_STRIPES {
        victim.handle(joined(stripe)).unwrap();
    }
    let result = victim.handle(joined(MAX_STRIPES));
    assert_eq!(result, Err(Violation::Stripe(MAX_STRIPES)));
}

#[test]
pub(super) fn a_peer_must_not_have_too_many_connections_made() {
    let mut victim = Victim::new(&Config::default());
    let dial = |stripe| Message::Dial {
        stripe: StripeId(stripe),
    };
    for stripe in 0..MAX_STRIPES {
        let effects = victim.told(dial(stripe)).unwrap();
        assert_eq!(effects, [Effect::DialForPeer(StripeId(stripe))]);
    }
    assert_eq!(victim.told(dial(3)), Err(Violation::Stripe(3)));
    assert_eq!(victim.told(dial(99)), Err(Violation::Stripe(99)));
    // Those that fail, or end, make room.
    let (stripe, reason) = (StripeId(5), String::from("refused"));
    let failed = Message::DialFailed {
        stripe,
        reason: reason.clone(),
    };
    let effects = victim.handle(Event::DialFailed(stripe, reason)).unwrap();
    assert_eq!(effects, [Effect::Tell(failed)]);
    victim.told(dial(99)).unwrap();
    victim.handle(Event::Joined(StripeId(6))).unwrap();
    assert_eq!(victim.told(dial(100)), Err(Violation::Stripe(100)));
    victim.handle(Event::Ended(StripeId(6))).unwrap();
    victim.told(dial(100)).unwrap();
}

#[test]
fn only_the_side_that_dials_is_asked_to_and_fails_to() {
    let listens = Config {
        dials: false,
        ..Config::default()
    };
    let dial = Message::Dial { stripe: STRIPE };
    let result = Victim::new(&listens).told(dial);
    assert_eq!(result, Err(Violation::Unknown("a dialling side")));
    let failed = Message::DialFailed {
        stripe: STRIPE,
        reason: String::new(),
    };
    let result = Victim::new(&Config::default()).told(failed);
    assert_eq!(result, Err(Violation::Unknown("a stripe to dial")));
}

#[test]
pub(super) fn a_receiver_must_not_speak_of_what_was_never_offered() {
    // Object 9 waits for credit: the receiver cannot know it.
    for object in [TransferId(9), TransferId(10), TransferId(u64::MAX)] {
        let reason = String::new();
        for message in [
            Message::Accept { object },
            Message::Placed { object },
            Message::Refuse { object, reason },
        ] {
            let mut victim = Victim::with_offer(true);
            victim.send(TransferId(8), 3 << 18);
            victim.send(TransferId(9), 3 << 18);
            assert_eq!(victim.told(message), Err(Violation::Unknown("an object")));
        }
    }
}

#[test]
pub(super) fn an_object_that_was_given_up_may_still_be_spoken_of() {
    let mut victim = Victim::with_offer(true);
    victim.handle(Event::Cancel(OBJECT)).unwrap();
    let object = OBJECT;
    assert_eq!(victim.told(Message::Accept { object }), Ok(vec![]));
    assert_eq!(victim.told(Message::Placed { object }), Ok(vec![]));
    let reason = String::new();
    assert_eq!(victim.told(Message::Refuse { object, reason }), Ok(vec![]));
}

#[test]
pub(super) fn nothing_is_placed_before_it_was_sent() {
    let object = OBJECT;
    let placed = Err(Violation::Unknown("a complete object"));
    let mut victim = Victim::with_offer(true);
    assert_eq!(
        victim.told(Message::Placed { object }),
        placed,
        "not accepted"
    );
    let mut victim = Victim::with_offer(true);
    victim.told(Message::Accept { object }).unwrap();
    assert_eq!(victim.told(Message::Placed { object }), placed, "accepted");
    let mut victim = Victim::with_offer(true);
    victim.told(Message::Accept { object }).unwrap();
    victim.handle(Event::Opened(StripeId(0))).unwrap();
    assert!(victim.0.next_extent(StripeId(0), NOW).is_some());
    assert_eq!(
        victim.told(Message::Placed { object }),
        placed,
        "half of it sent"
    );
}

#[test]
pub(super) fn a_report_must_be_about_a_stripe_and_what_it_carried() {
    let report = |stripe, extents| {
        let stripe = StripeId(stripe);
        Message::Report {
            stripe,
            extents,
            corrupt: false,
        }
    };
    let mut victim = Victim::with_offer(true);
    assert_eq!(
        victim.told(report(0, 0)),
        Err(Violation::Unknown("a stripe"))
    );
    victim.told(Message::Accept { object: OBJECT }).unwrap();
    victim.handle(Event::Opened(StripeId(0))).unwrap();
    assert!(victim.0.next_extent(StripeId(0), NOW).is_some());
    assert_eq!(
        victim.told(report(1, 0)),
        Err(Violation::Unknown("a stripe"))
    );
    assert_eq!(
        victim.told(report(0, 2)),
        Err(Violation::Unknown("an extent"))
    );
    let mut victim = Victim::with_offer(true);
    victim.told(Message::Accept { object: OBJECT }).unwrap();
    victim.told(report(0, 0)).unwrap();
    assert_eq!(
        victim.told(report(0, u64::MAX)),
        Ok(vec![]),
        "reported before"
    );
}

#[test]
fn credit_without_end_and_strange_tokens_do_no_harm() {
    let mut victim = Victim::with_offer(true);
    victim.told(Message::Credit { bytes: u64::MAX }).unwrap();
    victim.told(Message::Credit { bytes: u64::MAX }).unwrap();
    victim.told(Message::Pong { token: u64::MAX }).unwrap();
    assert_eq!(victim.0.stats().round_trip, None);
    victim
        .told(Message::Broken {
            stripe: StripeId(u32::MAX),
        })
        .unwrap();
    victim
        .told(Message::Cancel {
            object: TransferId(u64::MAX),
        })
        .unwrap();
}
