//! How many stripes a pair uses, on lines of which the rate is known exactly: the clock is virtual.

use std::collections::BTreeMap;
use std::time::Duration;

use treadle_transfer::{Config, Effect, Event, Message, Pair, StripeId, TransferId};

const OBJECT: TransferId = TransferId(0);
const MIB: u64 = 1 << 20;
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

    /// A millisecond, in which each stripe sends at most so many bytes.
    fn step(&mut self, most: u64) {
        self.now += STEP;
        let stripes: Vec<_> = self.stripes.keys().copied().collect();
        for id in stripes {
            let stripe = self.stripes.get_mut(&id).expect("connected");
            while stripe.queued < BUFFER
                && let Some(extent) = self.pair.next_extent(id, self.now)
            {
                stripe.queued += extent.length;
                stripe.extents += 1;
            }
            let sent = stripe.queued.min(most);
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
    let config = Config::default();
    let now = Duration::from_secs(1);
    let mut line = Line {
        pair: Pair::new(&config, config.credit, now),
        now,
        stripes: BTreeMap::new(),
        most: 0,
    };
    line.handle(Event::Send {
        object: OBJECT,
        regions: vec![bytes],
        cost: 1,
        shared: false,
    });
    line.handle(Event::Received(Message::Accept { object: OBJECT }));
    let is_sending = |line: &Line| {
        let given: u64 = line.stripes.values().map(|stripe| stripe.queued).sum();
        line.now < now + Duration::from_secs(60) && (line.pair.stats().sending > 0 && given > 0)
    };
    line.step(0);
    while is_sending(&line) {
        let count = line.stripes.len();
        line.step(rate(count) / count as u64);
    }
    assert!(line.now < now + Duration::from_secs(60), "it hangs");
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
