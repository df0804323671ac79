//! How many stripes a pair uses, on lines of which the rate is known exactly: the clock is virtual.

use std::collections::BTreeMap;
use std::time::Duration;

use treadle_transfer::{Config, Effect, Event, Message, Pair, StripeId, TransferId};

const OBJECT: TransferId = TransferId(0);
const MIB: u64 = 1 << 20;
const START: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(1);
/// What a socket buffers.
const BUFFER: u64 = MIB;

/// A connected stripe.
#[derive(Default)]
struct Stripe {
    queued: u64,
    /// Extents that were given to it.
    extents: u64,
    retired: bool,
}

/// A sender and its line.
struct Line {
    pair: Pair,
    now: Duration,
    stripes: BTreeMap<StripeId, Stripe>,
    /// The most stripes that were connected at a time.
    most: usize,
}

impl Line {
    fn handle(&mut self, event: Event) {
        let mut effects = Vec::new();
        let handled = self.pair.handle(event, self.now, &mut effects);
        handled.expect("no violation");
        self.pair.check().unwrap();
        for effect in effects {
            match effect {
                Effect::Dial(stripe) => {
                    self.stripes.insert(stripe, Stripe::default());
                    self.handle(Event::Opened(stripe));
                }
                Effect::Retire(stripe) => {
                    self.stripes.get_mut(&stripe).expect("connected").retired = true;
                }
                Effect::Tell(Message::Ping { token }) => {
                    self.handle(Event::Received(Message::Pong { token }));
                }
                _ => {}
            }
        }
    }

    fn new() -> Self {
        let config = Config::default();
        let now = START;
        Self {
            pair: Pair::new(&config, config.credit, now),
            now,
            stripes: BTreeMap::new(),
            most: 0,
        }
    }

    /// An object that the receiver accepts at once.
    fn send(&mut self, object: TransferId, bytes: u64) {
        self.handle(Event::Send {
            object,
            regions: vec![bytes],
            cost: 1,
            shared: false,
        });
        self.handle(Event::Received(Message::Accept { object }));
    }

    fn queued(&self) -> u64 {
        self.stripes.values().map(|stripe| stripe.queued).sum()
    }

    /// A millisecond, in which the n-th stripe sends at most `most(n)` bytes.
    fn step(&mut self, most: impl Fn(usize) -> u64) {
        self.now += STEP;
        let stripes: Vec<_> = self.stripes.keys().copied().collect();
        for (number, id) in stripes.into_iter().enumerate() {
            let stripe = self.stripes.get_mut(&id).expect("connected");
            while stripe.queued < BUFFER
                && let Some(extent) = self.pair.next_extent(id, self.now)
            {
                stripe.queued += extent.length;
                stripe.extents += 1;
            }
            let sent = stripe.queued.min(most(number));
            stripe.queued -= sent;
            let (over, extents) = (stripe.retired && stripe.queued == 0, stripe.extents);
            self.handle(Event::Drained(id, sent));
            if over {
                self.stripes.remove(&id);
                self.handle(Event::Received(Message::Report {
                    stripe: id,
                    extents,
                    corrupt: false,
                }));
            }
        }
        if self.pair.due() <= self.now {
            self.handle(Event::Tick);
        }
        self.most = self.most.max(self.stripes.len());
    }
}

/// Sends so many bytes where `rate(stripes)` bytes go over the line in a millisecond. Returns the
/// stripes at the end, and the most that there were.
fn send(bytes: u64, rate: impl Fn(usize) -> u64) -> (usize, usize) {
    let mut line = Line::new();
    line.send(OBJECT, bytes);
    let is_over = |line: &Line| line.now > START + LONGEST;
    line.step(|_| 0);
    while !is_over(&line) && line.pair.stats().sending > 0 && line.queued() > 0 {
        let count = line.stripes.len();
        line.step(|_| rate(count) / count as u64);
    }
    assert!(!is_over(&line), "it hangs");
    (line.pair.stats().stripes, line.most)
}

#[test]
pub(super) fn few_stripes_stay_where_the_line_is_slow() {
    // 60 MB/s in all, however many share it: two are tried in vain.
    assert_eq!(send(120 * MIB, |_| 60_000), (1, 2));
}

#[test]
fn stripes_are_added_where_each_is_slow() {
    let limit = Config::default().max_stripes;
    assert_eq!(send(1024 * MIB, |count| count as u64 * 60_000).0, limit);
}

#[test]
fn a_line_with_room_for_some_gets_so_many() {
    // Sixty a stripe, two hundred and forty in all: four fill it, and eight would not help.
    let rate = |count: usize| (count as u64 * 60_000).min(240_000);
    assert_eq!(send(1024 * MIB, rate), (4, 8));
}

#[test]
pub(super) fn stripes_that_do_not_help_any_more_are_given_up_where_packets_are_dropped() {
    let mut line = Line::new();
    line.send(OBJECT, 8192 * MIB);
    for step in 0..20_000 {
        // Sockets are slow for four seconds. Then one of them would fill the line.
        let count = line.stripes.len().max(1) as u64;
        let rate = if step < 4_000 {
            count * 60_000
        } else {
            240_000
        };
        line.step(|_| rate / count);
        if step == 4_000 {
            assert!(count >= 8, "{count}");
        }
        let first = *line.stripes.keys().next().expect("one");
        line.handle(Event::Retransmitted(first, rate / 100));
    }
    assert_eq!(line.pair.stats().stripes, 1);
}

#[test]
pub(super) fn a_stripe_that_lags_at_the_end_of_each_object_is_not_worth_it() {
    let mut line = Line::new();
    let mut taken = 0;
    for object in 0..200 {
        let object = TransferId(object);
        line.send(object, 4 * MIB);
        line.step(|_| 0);
        while line.queued() > 0 {
            // The others have a third of what the first one has, and of what it buffers.
            line.step(|number| if number == 0 { 60_000 } else { 20_000 });
            taken += u32::from(line.pair.stats().stripes > 1);
        }
        line.handle(Event::Received(Message::Placed { object }));
    }
    // Each trial takes a tenth of a second, and there are four of them.
    assert!(taken < 2_000, "{taken} ms with more than one");
}
