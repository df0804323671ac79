//! What the simulation found, each as the shortest conversation that shows it.

use std::time::Duration;

use treadle_transfer::layout::EXTENT;
use treadle_transfer::{
    Config, Effect, Event, Extent, Failure, Message, Pair, PairEnd, StripeId, TransferId,
};

const OBJECT: TransferId = TransferId(0);
const FIRST: StripeId = StripeId(0);
const CREDIT: u64 = 1000;

/// One side, its clock, and what it did in the last step.
struct One {
    pair: Pair,
    now: Duration,
}

impl One {
    fn new(config: Config) -> Self {
        let now = Duration::from_secs(1);
        let pair = Pair::new(&config, CREDIT, now);
        Self { pair, now }
    }

    fn handle(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.pair
            .handle(event, self.now, &mut effects)
            .expect("no violation");
        self.pair.check().unwrap();
        effects
    }

    fn told(&mut self, message: Message) -> Vec<Effect> {
        self.handle(Event::Received(message))
    }

    fn send(&mut self, object: TransferId, regions: Vec<u64>, cost: u64) -> Vec<Effect> {
        let shared = false;
        self.handle(Event::Send {
            object,
            regions,
            cost,
            shared,
        })
    }

    fn offered(&mut self, object: TransferId, regions: Vec<u64>, cost: u64) -> Vec<Effect> {
        let shared = false;
        self.told(Message::Offer {
            object,
            regions,
            cost,
            shared,
        })
    }

    fn report(&mut self, stripe: StripeId, extents: u64, corrupt: bool) -> Vec<Effect> {
        self.told(Message::Report {
            stripe,
            extents,
            corrupt,
        })
    }

    fn next(&mut self, stripe: StripeId) -> Option<Extent> {
        self.pair.next_extent(stripe, self.now)
    }

    /// Lets time pass while the other side answers, and returns what happened.
    fn wait(&mut self, time: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        for _ in 0..time.as_millis() / 10 {
            self.now += Duration::from_millis(10);
            effects.extend(self.told(Message::Pong { token: 0 }));
            effects.extend(self.handle(Event::Tick));
        }
        effects
    }

    /// A sender whose object was accepted and which wants its first stripe.
    fn sending(config: Config, extents: u64) -> Self {
        let mut one = Self::new(config);
        one.send(OBJECT, vec![extents * EXTENT], 1);
        let effects = one.told(Message::Accept { object: OBJECT });
        assert!(effects.iter().any(is_dial), "{effects:?}");
        one
    }
}

fn is_dial(effect: &Effect) -> bool {
    matches!(effect, Effect::Dial(_) | Effect::Tell(Message::Dial { .. }))
}

fn dials(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| is_dial(effect)).count()
}

fn listening() -> Config {
    Config {
        dials: false,
        ..Config::default()
    }
}

#[test]
pub(super) fn a_stripe_that_only_the_listening_side_has_may_have_carried_extents() {
    let mut one = One::sending(listening(), 2);
    one.handle(Event::Opened(FIRST));
    let lost = one.next(FIRST).unwrap();
    let reason = "reset".into();
    let effects = one.told(Message::DialFailed {
        stripe: FIRST,
        reason,
    });
    assert!(effects.contains(&Effect::Drop(FIRST)), "{effects:?}");
    one.wait(Duration::from_millis(30));
    one.handle(Event::Opened(StripeId(1)));
    assert_eq!(one.next(StripeId(1)), Some(lost));
    assert!(one.next(StripeId(1)).is_some());
}

#[test]
fn a_stripe_that_only_the_listening_side_has_is_reported() {
    // The dialling sender cannot use it: the receiver must not keep it.
    let mut one = One::sending(Config::default(), 2);
    let effects = one.handle(Event::OpenFailed(FIRST, "reset".into()));
    let broken = Effect::Tell(Message::Broken { stripe: FIRST });
    assert!(effects.contains(&broken), "{effects:?}");
    assert_eq!(one.report(FIRST, 0, false), []);
}

#[test]
pub(super) fn a_stripe_that_was_given_up_before_it_joined_is_closed() {
    // Its sender is gone: nothing would ever arrive, and in a black hole it would never end.
    let mut one = One::new(Config::default());
    let extents = 0;
    let corrupt = false;
    let report = Message::Report {
        stripe: FIRST,
        extents,
        corrupt,
    };
    assert_eq!(
        one.told(Message::Broken { stripe: FIRST }),
        [Effect::Tell(report)]
    );
    assert_eq!(
        one.handle(Event::Joined(FIRST)),
        [Effect::DropIncoming(FIRST)]
    );
    assert_eq!(one.handle(Event::Ended(FIRST)), []);
}

#[test]
pub(super) fn connections_that_end_at_once_are_not_retried_at_once() {
    let mut one = One::sending(listening(), 2);
    let mut attempts = 0;
    for stripe in 0..8 {
        // The peer connected it and lost it before this side saw it.
        let effects = one.report(StripeId(stripe), 0, false);
        if effects
            .iter()
            .any(|effect| matches!(effect, Effect::End(PairEnd::NoStripe(_))))
        {
            break;
        }
        assert_eq!(dials(&effects), 0, "a pause before the next attempt");
        attempts += 1;
        let effects = one.wait(Duration::from_secs(3));
        assert_eq!(dials(&effects), 1);
    }
    assert_eq!(attempts, 7);
}

#[test]
pub(super) fn a_connection_that_never_comes_about_is_given_up() {
    for config in [listening(), Config::default()] {
        let timeout = config.timeout;
        let mut one = One::sending(config, 2);
        assert_eq!(dials(&one.wait(timeout)), 0);
        let effects = one.wait(Duration::from_millis(100));
        let broken = Effect::Tell(Message::Broken { stripe: FIRST });
        assert!(effects.contains(&broken), "{effects:?}");
        assert!(effects.contains(&Effect::Drop(FIRST)), "{effects:?}");
        assert_eq!(dials(&effects), 1, "{effects:?}");
    }
}

#[test]
pub(super) fn connections_that_fail_together_are_one_failure() {
    let config = Config {
        stripes: Some(16),
        ..Config::default()
    };
    let mut one = One::sending(config, 2);
    for stripe in 0..16 {
        let effects = one.handle(Event::OpenFailed(StripeId(stripe), "no route".into()));
        assert_eq!(dials(&effects), 0);
        assert_eq!(one.pair.ended(), None);
    }
    for stripe in 0..16 {
        one.report(StripeId(stripe), 0, false);
    }
    assert_eq!(dials(&one.wait(Duration::from_millis(30))), 16);
}

#[test]
pub(super) fn stripes_that_wait_for_their_report_count() {
    // All of 64 stripes break. Joining another before one of them has ended at the receiver would
    // be a violation there.
    let config = Config {
        stripes: Some(100),
        ..Config::default()
    };
    let mut one = One::sending(config, 1000);
    for stripe in 0..64 {
        one.handle(Event::Opened(StripeId(stripe)));
    }
    assert_eq!(one.pair.stats().stripes, 64);
    for stripe in 0..64 {
        let effects = one.handle(Event::Lost(StripeId(stripe)));
        assert_eq!(dials(&effects), 0);
    }
    for stripe in 0..64 {
        assert_eq!(dials(&one.report(StripeId(stripe), 0, false)), 1);
    }
}

#[test]
pub(super) fn a_retired_stripe_that_stalls_is_given_up() {
    let mut one = One::sending(
        Config {
            max_stripes: 2,
            ..Config::default()
        },
        10_000,
    );
    one.handle(Event::Opened(FIRST));
    // A second stripe is tried, does not help, and is retired.
    let mut retired = None;
    for _ in 0..5_000 {
        if retired.is_some() {
            break;
        }
        one.now += Duration::from_millis(1);
        for stripe in [FIRST, StripeId(1)] {
            one.next(stripe);
            let effects = one.handle(Event::Drained(stripe, 1 << 20));
            for effect in effects {
                match effect {
                    Effect::Dial(stripe) => drop(one.handle(Event::Opened(stripe))),
                    Effect::Retire(stripe) => retired = Some(stripe),
                    _ => {}
                }
            }
        }
    }
    let stripe = retired.expect("a trial in vain ends");
    one.told(Message::Cancel {
        object: TransferId(99),
    });
    let effects = one.wait(Config::default().timeout + Duration::from_millis(100));
    let broken = Effect::Tell(Message::Broken { stripe });
    assert!(effects.contains(&broken), "{effects:?}");
}

#[test]
pub(super) fn a_header_that_credit_never_allows_fails() {
    let mut one = One::new(Config::default());
    let failure = Failure::Header {
        cost: 751,
        limit: 750,
    };
    let effects = one.send(OBJECT, vec![], 751);
    assert_eq!(effects, [Effect::SendFailed(OBJECT, failure)]);
    assert!(
        one.send(TransferId(1), vec![], 750)
            .contains(&Effect::Sent(TransferId(1)))
    );
}

#[test]
pub(super) fn the_credit_that_is_certain_to_come_back_suffices() {
    let mut sender = One::new(Config::default());
    let mut receiver = One::new(Config {
        credit: CREDIT,
        ..Config::default()
    });
    // Just too little to give back at once, then the largest header that is allowed.
    for (object, cost) in [(0, 249), (1, 750), (2, 249), (3, 750)] {
        let object = TransferId(object);
        let mut effects = sender.send(object, vec![], cost);
        assert!(
            effects.contains(&Effect::Sent(object)),
            "{object:?}: {effects:?}"
        );
        receiver.offered(object, vec![], cost);
        effects = receiver.handle(Event::Take(object));
        for effect in effects {
            if let Effect::Tell(message) = effect {
                sender.told(message);
            }
        }
    }
}

#[test]
pub(super) fn damage_to_an_object_that_was_given_up_is_not_blamed_on_another() {
    let mut one = One::new(Config::default());
    one.send(OBJECT, vec![100 * EXTENT], 1);
    one.told(Message::Accept { object: OBJECT });
    for round in 0..8 {
        let object = TransferId(1 + u64::from(round));
        one.send(object, vec![10 * EXTENT], 1);
        one.told(Message::Accept { object });
        let stripe = StripeId(round);
        one.handle(Event::Opened(stripe));
        // They take turns.
        let carried: Vec<_> = (0..6).map(|_| one.next(stripe).unwrap().object).collect();
        let damaged = (1..5).find(|at| carried[*at] == object).unwrap();
        assert_eq!(carried[damaged + 1], OBJECT);
        one.handle(Event::Cancel(object));
        let effects = one.report(stripe, damaged as u64, true);
        let failed = |effect: &Effect| matches!(effect, Effect::SendFailed(..));
        assert_eq!(
            effects.iter().find(|effect| failed(effect)),
            None,
            "round {round}"
        );
    }
}

#[test]
pub(super) fn an_object_that_arrives_damaged_again_and_again_fails() {
    let mut one = One::sending(Config::default(), 2);
    for round in 0.. {
        let stripe = StripeId(round);
        one.handle(Event::Opened(stripe));
        one.next(stripe).unwrap();
        let effects = one.report(stripe, 0, true);
        if round == 4 {
            let failure = Failure::Corrupt(5);
            assert!(
                effects.contains(&Effect::SendFailed(OBJECT, failure)),
                "{effects:?}"
            );
            let cancel = Effect::Tell(Message::Cancel { object: OBJECT });
            assert!(effects.contains(&cancel), "{effects:?}");
            break;
        }
        one.wait(Duration::from_secs(3));
    }
}

#[test]
pub(super) fn what_is_asked_for_does_not_hold_up_what_may_be_fetched_ahead() {
    let mut one = One::new(Config {
        prefetch: 100,
        ..Config::default()
    });
    assert_eq!(
        one.offered(OBJECT, vec![1000], 1),
        [Effect::Offered(OBJECT)]
    );
    let next = TransferId(1);
    assert_eq!(one.offered(next, vec![100], 1), [Effect::Offered(next)]);
    let effects = one.handle(Event::Accept(OBJECT));
    assert!(effects.contains(&Effect::Allocate(next)), "{effects:?}");
}

#[test]
fn what_was_fetched_ahead_and_is_refused_gives_back_its_budget() {
    let mut one = One::new(Config {
        prefetch: EXTENT,
        ..Config::default()
    });
    let effects = one.offered(OBJECT, vec![EXTENT], 1);
    assert!(effects.contains(&Effect::Allocate(OBJECT)), "{effects:?}");
    one.handle(Event::Accept(OBJECT));
    one.handle(Event::Joined(FIRST));
    let extent = Extent {
        object: OBJECT,
        region: 0,
        offset: 0,
        length: EXTENT,
    };
    assert_eq!(one.pair.begin(FIRST, &extent), Ok(true));
    let effects = one.handle(Event::Arrived {
        stripe: FIRST,
        intact: true,
    });
    assert!(effects.contains(&Effect::Complete(OBJECT)), "{effects:?}");
    let next = TransferId(1);
    assert_eq!(one.offered(next, vec![EXTENT], 1), [Effect::Offered(next)]);
    // The sender was told that it arrived: nothing more is said to it.
    let effects = one.handle(Event::Refuse(OBJECT, "too large".into()));
    assert_eq!(effects, [Effect::Allocate(next)]);
}

#[test]
pub(super) fn an_end_leaves_the_accounts_in_order() {
    let mut one = One::new(Config::default());
    one.offered(OBJECT, vec![1000], 1);
    one.offered(TransferId(1), vec![], 1);
    let effects = one.told(Message::Goodbye);
    let failure = Failure::Pair(PairEnd::Goodbye);
    assert!(
        effects.contains(&Effect::ReceiveFailed(OBJECT, failure)),
        "{effects:?}"
    );
    one.handle(Event::Take(TransferId(1)));
}

#[test]
fn the_end_of_one_pair_is_not_taken_from_the_effects_of_another() {
    let mut one = One::new(Config::default());
    let mut effects = vec![Effect::End(PairEnd::Goodbye)];
    let goodbye = Event::Received(Message::Goodbye);
    one.pair.handle(goodbye, one.now, &mut effects).unwrap();
    assert_eq!(effects, vec![Effect::End(PairEnd::Goodbye); 2]);
}

#[test]
pub(super) fn what_arrives_on_a_stripe_is_a_sign_of_life() {
    let config = Config::default();
    let rounds = 4;
    let pause = config.timeout * 2 / 3;
    let mut one = One::new(config);
    one.offered(OBJECT, vec![(rounds + 1) * EXTENT], 1);
    one.handle(Event::Accept(OBJECT));
    one.handle(Event::Joined(FIRST));
    for round in 0..rounds {
        one.now += pause;
        let (object, region, offset) = (OBJECT, 0, round * EXTENT);
        let extent = Extent {
            object,
            region,
            offset,
            length: EXTENT,
        };
        assert_eq!(one.pair.begin(FIRST, &extent), Ok(true));
        one.handle(Event::Arrived {
            stripe: FIRST,
            intact: true,
        });
        one.handle(Event::Tick);
        assert_eq!(one.pair.ended(), None);
    }
    one.now += pause * 2;
    one.handle(Event::Tick);
    assert!(matches!(one.pair.ended(), Some(PairEnd::Silent(_))));
}

#[test]
pub(super) fn who_was_stopped_has_heard_no_silence() {
    let config = Config::default();
    let timeout = config.timeout;
    let mut one = One::new(config);
    one.now += timeout * 2;
    one.handle(Event::Woke);
    one.handle(Event::Tick);
    assert_eq!(one.pair.ended(), None);
    // The other side may wake later, by as much as it may be silent.
    one.now += timeout;
    one.handle(Event::Tick);
    assert_eq!(one.pair.ended(), None);
    one.now += Duration::from_millis(1);
    one.handle(Event::Tick);
    assert!(matches!(one.pair.ended(), Some(PairEnd::Silent(_))));
}

#[test]
fn who_is_heard_may_be_asked_whether_it_hears() {
    let mut one = One::new(Config::default());
    let effects = one.handle(Event::Probe);
    assert!(
        matches!(effects[..], [Effect::Tell(Message::Ping { .. })]),
        "{effects:?}"
    );
}

#[test]
fn a_full_buffer_that_drains_slowly_is_no_stall() {
    let timeout = Config::default().timeout;
    let mut one = One::sending(Config::default(), 2);
    one.handle(Event::Opened(FIRST));
    while one.next(FIRST).is_some() {}
    one.handle(Event::Drained(FIRST, 2 * EXTENT));
    let broken = Effect::Tell(Message::Broken { stripe: FIRST });
    for _ in 0..4 {
        let effects = one.wait(timeout * 2 / 3);
        assert!(!effects.contains(&broken), "{effects:?}");
        one.handle(Event::Drained(FIRST, 0));
    }
    assert!(one.wait(timeout * 2).contains(&broken));
}

#[test]
pub(super) fn a_stripe_that_is_stuck_with_a_cancelled_extent_stalls() {
    let timeout = Config::default().timeout;
    let broken = Effect::Tell(Message::Broken { stripe: FIRST });
    let mut one = One::sending(Config::default(), 1);
    one.handle(Event::Opened(FIRST));
    one.next(FIRST).unwrap();
    one.handle(Event::Cancel(OBJECT));
    assert!(
        !one.wait(timeout * 2).contains(&broken),
        "nothing waits for it"
    );
    let object = TransferId(1);
    one.send(object, vec![1], 1);
    one.told(Message::Accept { object });
    assert!(!one.wait(timeout / 2).contains(&broken));
    assert!(one.wait(timeout).contains(&broken));
}
