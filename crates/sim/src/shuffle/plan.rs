//! What is to happen: drawn from the seed, before anything does.

use std::time::Duration;

use treadle_shuffle::Config;
use treadle_types::Runs;

use crate::kernel::Random;

/// A shuffle, or two whose outputs are read together.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) at: Duration,
    pub(super) sides: u32,
    pub(super) maps: u32,
    pub(super) partitions: u32,
    pub(super) outputs: Runs,
    pub(super) rows: u32,
    pub(super) is_deterministic: bool,
    /// When it is given up, if it is.
    pub(super) cancel: Option<Duration>,
    /// How long its results are kept after all are there: losing a worker makes some of them again.
    pub(super) hold: Duration,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A process is killed, and another one is started at its place.
    Kill {
        place: u32,
        /// After how long the head notices.
        noticed: Duration,
        /// After how long there is another.
        back: Duration,
    },
    /// A process does nothing for so long.
    Pause { place: u32, length: Duration },
    /// Two places cannot reach each other.
    Cut {
        one: u32,
        other: u32,
        length: Duration,
    },
    /// The connections of a place break, and can be made again at once.
    Reset { place: u32 },
    /// Nothing can be written to the disk of a place.
    Disk { place: u32, length: Duration },
    /// A worker is asked to leave; it goes when it holds nothing, or after so long.
    Drain { place: u32, length: Duration },
}

/// Everything that a seed decides beforehand.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) seed: u64,
    pub(super) config: Config,
    pub(super) places: u32,
    pub(super) jobs: Vec<Job>,
    pub(super) faults: Vec<(Duration, Fault)>,
    /// Latency in microseconds.
    pub(super) latency: (u64, u64),
    /// Memory of a server.
    pub(super) budget: u64,
    /// Rows of a batch.
    pub(super) batch: usize,
    /// Percent of transfers that are run twice at once, and that fail.
    pub(super) speculates: u64,
    pub(super) fails: u64,
    /// In a thousand: batches that a server acknowledges and drops, and that lose a bit.
    pub(super) drops: u64,
    pub(super) flips: u64,
    /// Percent of reads of files that fail.
    pub(super) unreadable: u64,
}

impl Plan {
    /// What a seed decides.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5f1e);
        let places = random.between(1, 6) as u32;
        let config = Config {
            window: random.between(200, 4_000),
            server_window: random.between(100, 2_000),
            run: random.between(100, 2_000),
            parked: random.pick(&[4, 1_000]),
            patience: Duration::from_millis(400),
            pause: Duration::from_millis(1),
            ..Config::default()
        };
        let is_damaged = random.chance(25);
        let mut plan = Self {
            seed,
            config,
            places,
            jobs: Vec::new(),
            faults: Vec::new(),
            latency: random.pick(&[(20, 100), (20, 2_000)]),
            budget: random.pick(&[600, 2_000, 1 << 20]),
            batch: random.between(1, 24) as usize,
            speculates: random.pick(&[0, 0, 20]),
            fails: random.pick(&[0, 0, 15]),
            drops: if is_damaged { random.pick(&[0, 20]) } else { 0 },
            flips: if is_damaged { random.pick(&[0, 20]) } else { 0 },
            unreadable: if is_damaged { random.pick(&[0, 3]) } else { 0 },
        };
        for _ in 0..random.between(1, 3) {
            let job = plan.draw_job(&mut random);
            plan.jobs.push(job);
        }
        for _ in 0..random.pick(&[0, 1, 2, 4, 8]) {
            let at = random.micros(0, 30_000);
            let fault = plan.draw_fault(&mut random);
            plan.faults.push((at, fault));
        }
        plan
    }

    /// Whether something was wrong with stored bytes, or a disk: then an error that names what is
    /// missing is an answer, too.
    pub(super) fn may_fail(&self) -> bool {
        let is_full = |(_, fault): &(Duration, Fault)| matches!(fault, Fault::Disk { .. });
        self.is_damaged() || self.faults.iter().any(is_full)
    }

    /// Whether stored bytes are damaged.
    pub(super) fn is_damaged(&self) -> bool {
        self.drops + self.flips + self.unreadable > 0
    }

    fn draw_job(&self, random: &mut Random) -> Job {
        let partitions = random.between(1, 16) as u32;
        let all = Runs::range(0, u64::from(partitions));
        let some: Runs = all.iter().filter(|_| random.chance(50)).collect();
        let is_culled = random.chance(25) && !some.is_empty();
        Job {
            at: random.micros(0, 10_000),
            sides: if random.chance(30) { 2 } else { 1 },
            maps: random.between(1, 10) as u32,
            partitions,
            outputs: if is_culled { some } else { all },
            rows: random.pick(&[0, 10, 60, 60]),
            is_deterministic: random.chance(90),
            cancel: random.chance(10).then(|| random.micros(0, 20_000)),
            hold: random.micros(0, 20_000),
        }
    }

    fn draw_fault(&self, random: &mut Random) -> Fault {
        let place = random.between(1, u64::from(self.places)) as u32;
        match random.below(14) {
            0..4 => Fault::Kill {
                place,
                noticed: random.micros(100, 20_000),
                back: random.micros(50, 30_000),
            },
            4..6 => Fault::Pause {
                place,
                length: random.micros(1_000, 60_000),
            },
            6..8 if self.places > 1 => Fault::Cut {
                one: place,
                other: place % self.places + 1,
                length: random.micros(1_000, 60_000),
            },
            8..12 => Fault::Reset { place },
            12 => Fault::Drain {
                place,
                length: random.micros(1_000, 30_000),
            },
            _ => Fault::Disk {
                place,
                length: random.micros(1_000, 1_000_000),
            },
        }
    }
}
