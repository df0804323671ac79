//! What happens in a simulation: configuration, network, applications, faults. Drawn from a seed.

use std::time::Duration;

use treadle_transfer::Config;
use treadle_transfer::layout::EXTENT;

use treadle_sim_kernel::Random;

/// Faults and the applications' whims happen before this.
const BUSY: u64 = 1_500_000;
/// The timeout of every simulated pair.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// An object that an application sends.
pub(crate) struct Planned {
    pub(crate) at: Duration,
    pub(crate) regions: Vec<u64>,
    pub(crate) cost: u64,
    pub(crate) shared: bool,
    pub(crate) cancel: Option<Duration>,
}

impl Planned {
    /// An object that is sent at once.
    pub(crate) fn of(regions: Vec<u64>) -> Self {
        Self {
            at: Duration::ZERO,
            regions,
            cost: 100,
            shared: false,
            cancel: None,
        }
    }
}

/// How an application receives.
pub(crate) struct Habits {
    /// Longest time to allocate or map memory, in microseconds.
    pub(crate) allocate: u64,
    /// Longest time between two receives, in microseconds.
    pub(crate) receive: u64,
    /// It does not receive before this.
    pub(crate) starts: Duration,
    /// Percentage of objects that it refuses.
    pub(crate) refuses: u64,
    /// Percentage of shared objects that it can map.
    pub(crate) maps: u64,
}

impl Habits {
    /// Everything at once.
    pub(crate) fn prompt() -> Self {
        Self {
            allocate: 0,
            receive: 0,
            starts: Duration::ZERO,
            refuses: 0,
            maps: 0,
        }
    }
}

/// What the network's data connections are like.
pub(crate) struct Network {
    /// Bytes per second of one stripe: drawn between these.
    pub(crate) rate: (u64, u64),
    /// Bytes per second of all stripes of one direction together.
    pub(crate) bottleneck: Option<u64>,
    /// One way, in microseconds: drawn between these for each stripe.
    pub(crate) latency: (u64, u64),
    /// A socket's buffer in bytes: drawn between these.
    pub(crate) buffer: (u64, u64),
    /// Control messages take between these, in microseconds.
    pub(crate) control: (u64, u64),
    /// For each direction, how many attempts to connect go wrong.
    pub(crate) bad_opens: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Writer,
    Reader,
    Both,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A connection is cut; `which` picks among those that exist.
    Cut { owner: usize, which: u64, end: End },
    /// A connection carries nothing any more, and neither side is told.
    Stall { owner: usize, which: u64 },
    /// A bit of the next extent of this direction flips.
    Flip { owner: usize },
    /// A process stops for a while.
    Pause { side: usize, length: Duration },
    /// The control connection carries nothing any more, and neither side is told.
    ControlCut,
    /// An application closes the pair.
    Goodbye { side: usize },
}

/// What must come of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Everything arrives that is not cancelled or refused.
    Delivery,
    /// So many faults that stripes or objects may be given up, but nothing hangs or goes wrong.
    Clarity,
    /// The pair must end.
    End,
}

pub(crate) struct Plan {
    pub(crate) configs: [Config; 2],
    pub(crate) objects: [Vec<Planned>; 2],
    pub(crate) habits: [Habits; 2],
    pub(crate) network: Network,
    pub(crate) faults: Vec<(Duration, Fault)>,
    pub(crate) promise: Promise,
    /// Verify invariants and limits after this many steps.
    pub(crate) check_every: u64,
}

impl Plan {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let configs = [true, false].map(|dials| config(random, dials));
        let mut objects = [Vec::new(), Vec::new()];
        for side in 0..2 {
            let credit = configs[1 - side].credit;
            let count = if random.chance(15) {
                0
            } else {
                random.between(1, 14)
            };
            for _ in 0..count {
                let object = object(random, credit);
                objects[side].push(object);
            }
            objects[side].sort_by_key(|object: &Planned| object.at);
        }
        let habits = [0, 1].map(|_| Habits {
            allocate: random.pick(&[0, 100, 5_000, 200_000]),
            receive: random.pick(&[0, 100, 5_000, 300_000]),
            starts: match random.below(4) {
                0 => random.micros(0, BUSY),
                _ => Duration::ZERO,
            },
            refuses: random.pick(&[0, 0, 0, 20]),
            maps: random.pick(&[0, 50, 100]),
        });
        let slow = random.chance(20);
        let rate = if slow {
            (5_000_000, 20_000_000)
        } else {
            (50_000_000, 3_000_000_000)
        };
        let bottleneck = random.chance(30).then(|| random.between(rate.0, rate.1));
        let mut buffer = random.pick(&[(1, 1), (64 << 10, 4 << 20), (1 << 20, 16 << 20)]);
        if slow && bottleneck.is_some() {
            // The buffers together are the bottleneck's queue, which must not exceed the timeout.
            buffer.1 = buffer.1.min(EXTENT);
            buffer.0 = buffer.0.min(buffer.1);
        }
        let network = Network {
            rate,
            bottleneck,
            latency: random.pick(&[(10, 50), (100, 2_000), (1, 50_000)]),
            buffer,
            control: random.pick(&[(10, 20), (10, 2_000), (1_000, 100_000)]),
            bad_opens: [0; 2],
        };
        let mut plan = Self {
            configs,
            objects,
            habits,
            network,
            faults: Vec::new(),
            promise: Promise::Delivery,
            check_every: 1,
        };
        plan.draw_faults(random);
        plan
    }

    fn draw_faults(&mut self, random: &mut Random) {
        if random.chance(15) {
            return;
        }
        if random.chance(25) {
            self.promise = Promise::Clarity;
        }
        for owner in 0..2 {
            // A pair gives up its stripes after eight failures in a row, and an object after five
            // damaged extents: less than that must always be survived.
            let storm = self.promise == Promise::Clarity && random.chance(50);
            let mut budget = if storm { 40 } else { random.below(8) };
            let mut flips = if storm { 20 } else { 4 };
            self.network.bad_opens[owner] = random.below(budget + 1);
            budget -= self.network.bad_opens[owner];
            for _ in 0..budget {
                let which = random.next();
                let fault = match random.below(8) {
                    0..=3 => Fault::Cut {
                        owner,
                        which,
                        end: random.pick(&[End::Writer, End::Reader, End::Both]),
                    },
                    4 => Fault::Stall { owner, which },
                    _ if flips > 0 => {
                        flips -= 1;
                        Fault::Flip { owner }
                    }
                    _ => continue,
                };
                self.faults.push((random.micros(0, BUSY), fault));
            }
        }
        for side in 0..2 {
            if random.chance(15) {
                let length = random.micros(0, TIMEOUT.as_micros() as u64 * 2 / 3);
                self.faults
                    .push((random.micros(0, BUSY), Fault::Pause { side, length }));
                break;
            }
        }
        if self.promise == Promise::Clarity && random.chance(60) {
            let side = random.below(2) as usize;
            let fault = match random.below(4) {
                0 | 1 => Fault::ControlCut,
                2 => Fault::Goodbye { side },
                _ => Fault::Pause {
                    side,
                    length: TIMEOUT * 3,
                },
            };
            self.promise = Promise::End;
            self.faults.push((random.micros(0, BUSY), fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}

fn config(random: &mut Random, dials: bool) -> Config {
    Config {
        dials,
        stripes: match random.below(3) {
            0 => None,
            _ => Some(random.between(1, 8) as usize),
        },
        max_stripes: random.between(1, 16) as usize,
        timeout: TIMEOUT,
        credit: random.pick(&[4 << 10, 16 << 10, 1 << 20]),
        prefetch: random.pick(&[0, EXTENT, 8 * EXTENT, 64 * EXTENT]),
        ..Config::default()
    }
}

fn object(random: &mut Random, credit: u64) -> Planned {
    let at = if random.chance(50) {
        random.micros(0, 1_000)
    } else {
        random.micros(0, BUSY)
    };
    let regions = match random.below(12) {
        0..=2 => Vec::new(),
        3 => vec![random.between(1, 1_000)],
        4 => vec![EXTENT * random.between(1, 4)],
        5 => vec![EXTENT * random.between(1, 3) - 1, 1, EXTENT + 1],
        6 => (0..random.between(1, 12))
            .map(|_| random.between(1, 4 * EXTENT))
            .collect(),
        7 => vec![random.between(1, 40) * EXTENT + random.below(EXTENT)],
        _ => vec![random.between(1, 6 * EXTENT)],
    };
    Planned {
        at,
        shared: !regions.is_empty() && random.chance(20),
        regions,
        cost: if random.chance(20) {
            random.between(0, credit / 2)
        } else {
            random.below(300)
        },
        cancel: random.chance(15).then(|| at + random.micros(0, 400_000)),
    }
}
