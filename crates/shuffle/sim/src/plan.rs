//! What is to happen: drawn from the seed, before anything does.

use std::time::Duration;

use treadle_shuffle::{ApplicationId, Config, Intake, Remote, Standing, Tenant};

use crate::masters::Application;
use treadle_types::Runs;

use treadle_sim_kernel::Random;

/// A shuffle, or two whose outputs are read together.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// Whose it is, by position.
    pub(super) master: usize,
    pub(super) at: Duration,
    pub(super) sides: u32,
    pub(super) maps: u32,
    pub(super) partitions: u32,
    pub(super) outputs: Runs,
    pub(super) rows: u32,
    pub(super) is_deterministic: bool,
    /// When it is given up, if it is.
    pub(super) cancel: Option<Duration>,
    /// Whether who gives it up says nothing: its lease ends.
    pub(super) vanishes: bool,
    /// How long its results are kept after all are there: losing a worker makes some of them again.
    pub(super) hold: Duration,
}

impl Job {
    fn plain(maps: u32, partitions: u32, rows: u32) -> Self {
        Self {
            master: 0,
            at: Duration::ZERO,
            sides: 1,
            maps,
            partitions,
            outputs: Runs::range(0, u64::from(partitions)),
            rows,
            is_deterministic: true,
            cancel: None,
            vanishes: false,
            hold: Duration::ZERO,
        }
    }
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
    /// What is written, or was written, at a place is not written and read for so long: one of its disks does
    /// nothing.
    Stuck { place: u32, length: Duration },
    /// A worker is asked to leave; it goes when it holds nothing, or after so long.
    Drain { place: u32, length: Duration },
    /// A server announces other room.
    Weigh { place: u32, weight: u32 },
    /// A master ends with its application, and servers hear its connections break, or nothing.
    KillMaster { master: usize, is_told: bool },
    /// A master does nothing for so long.
    PauseMaster { master: usize, length: Duration },
    /// A master says what only others may say.
    Stray { master: usize },
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
    /// Writers say several pushes together.
    pub(super) together: bool,
    /// Percent of transfers that are run twice at once, and that fail.
    pub(super) speculates: u64,
    pub(super) fails: u64,
    /// Percent of transfers that do not know that their map has run before.
    pub(super) forgets: u64,
    /// In a thousand: batches that a server acknowledges and drops, and that lose a bit.
    pub(super) drops: u64,
    pub(super) flips: u64,
    /// Percent of reads of files that fail.
    pub(super) unreadable: u64,
    /// What is wrong with the remote store, if there is one.
    pub(super) store: Option<Store>,
    /// What is committed is in the store: no map runs again.
    pub(super) is_kept: bool,
    /// No job may fail, whatever happens.
    pub(super) must_finish: bool,
    /// A process that says nothing for so long is lost.
    pub(super) silence: Duration,
    /// A process that stands still. Reads of others do not wait for it.
    pub(super) stopped: Option<u32>,
    /// Percent of maps of which an attempt runs after the barrier has begun, and after it has ended.
    pub(super) lates: u64,
    /// Nothing that was committed is made again.
    pub(super) stays: bool,
    /// Whether processes of one application read.
    pub(super) is_one_application: bool,
    /// The stand-alone service, if it is that.
    pub(super) service: Option<Service>,
    /// The applications, if each has a master of its own. Empty: one master has all.
    pub(super) masters: Vec<Application>,
}

/// A remote store of the servers.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Store {
    /// Microseconds that a request takes, at most.
    pub(super) slow: u64,
    /// Percent of the runs that it does not take.
    pub(super) refuses: u64,
    /// Percent of the reads for which it has nothing, and of those for which it has other bytes.
    pub(super) loses: u64,
    pub(super) alters: u64,
    /// So many copies can be adopted in part only: a run of each cannot be opened once.
    pub(super) breaks: u64,
}

/// Servers of their own, which run no tasks, and several copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    /// The first places are servers, the others run tasks.
    pub(super) servers: u32,
    /// Failure domains of the servers.
    pub(super) domains: u32,
    pub(super) copies: u32,
    /// How many readers share a partition.
    pub(super) readers: u32,
}

impl Service {
    pub(super) fn is_server(&self, place: u32) -> bool {
        place <= self.servers
    }
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
            together: false,
            speculates: random.pick(&[0, 0, 20]),
            fails: random.pick(&[0, 0, 15]),
            forgets: 0,
            drops: if is_damaged { random.pick(&[0, 20]) } else { 0 },
            flips: if is_damaged { random.pick(&[0, 20]) } else { 0 },
            unreadable: if is_damaged { random.pick(&[0, 3]) } else { 0 },
            store: None,
            is_kept: false,
            must_finish: false,
            silence: Duration::from_millis(10),
            stopped: None,
            lates: 0,
            stays: false,
            is_one_application: false,
            service: None,
            masters: Vec::new(),
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

    /// What a seed decides for the stand-alone service.
    pub fn service(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5e41_1ce0);
        let mut plan = Self::new(random.next());
        plan.seed = seed;
        plan.faults.clear();
        let servers = random.between(2, 6) as u32;
        plan.places = servers + random.between(1, 3) as u32;
        plan.service = Some(Service {
            servers,
            domains: random.pick(&[2, 2, 3, 6]),
            copies: random.pick(&[1, 2, 2, 2]),
            readers: random.pick(&[1, 1, 2, 3]),
        });
        plan.config.least_window = random.pick(&[0, 40]);
        plan.config.split = random.pick(&[u64::MAX, 400, 2_000]);
        plan.config.poison = Duration::from_millis(5);
        plan.config.hedge = Duration::from_millis(20);
        // Of another stream, so that a seed decides the rest as before.
        plan.config.stripes = Random::new(seed ^ 0x57e1).pick(&[1, 3, 16]);
        let mut shares = Random::new(seed ^ 0x54a2);
        plan.config.reads = shares.pick(&[1, 4, 64]);
        plan.config.slow = shares.pick(&[Duration::from_millis(1), Duration::from_millis(200)]);
        let lags = [
            Duration::from_micros(500),
            Duration::from_millis(5),
            Duration::from_millis(200),
        ];
        plan.config.lag = Random::new(seed ^ 0x1a65_0000).pick(&lags);
        plan.lates = Random::new(seed ^ 0x1a7e_0000).pick(&[0, 0, 30]);
        for job in &mut plan.jobs {
            job.sides = 1;
            job.vanishes = random.chance(50);
        }
        for _ in 0..random.pick(&[0, 1, 1, 2, 4, 8]) {
            let at = random.micros(0, 30_000);
            let fault = plan.draw_fault(&mut random);
            plan.faults.push((at, fault));
        }
        plan.draw_weights(servers, &mut Random::new(seed ^ 0x3e19_4700));
        plan
    }

    /// The same with writers that say several pushes together.
    pub fn together(seed: u64) -> Self {
        let mut plan = Self::service(seed);
        plan.together = true;
        plan
    }

    /// The same with a remote store, which does what remote stores do.
    pub fn remote(seed: u64) -> Self {
        let mut plan = Self::service(seed);
        plan.add_store(seed);
        plan
    }

    /// A remote store which does what remote stores do, and full disks.
    pub(super) fn add_store(&mut self, seed: u64) {
        let plan = self;
        let mut random = Random::new(seed ^ 0x4e30_7e00);
        plan.config.remote = random.pick(&[Remote::WhenFull, Remote::First]);
        plan.budget = random.pick(&[600, 2_000]);
        let is_damaged = random.chance(30);
        plan.store = Some(Store {
            slow: random.pick(&[500, 20_000, 200_000]),
            refuses: random.pick(&[0, 0, 20, 100]),
            loses: if is_damaged { random.pick(&[0, 3]) } else { 0 },
            alters: if is_damaged { random.pick(&[0, 3]) } else { 0 },
            breaks: 0,
        });
        // Disks are full more often than anything else happens.
        for _ in 0..random.pick(&[0, 2, 6]) {
            let place = random.between(1, u64::from(plan.servers())) as u32;
            let length = random.micros(1_000, 1_000_000);
            let fault = Fault::Disk { place, length };
            plan.faults.push((random.micros(0, 20_000), fault));
        }
    }

    /// Servers have more or less room, none, and room again: seldom, or all the time. In the end all have
    /// some.
    fn draw_weights(&mut self, servers: u32, random: &mut Random) {
        self.forgets = random.pick(&[0, 0, 50]);
        let changes = random.pick(&[0, 3, 20, 200]);
        for _ in 0..changes {
            let weight = random.pick(&[0, 0, 1, 2, 100]);
            let place = random.between(1, u64::from(servers)) as u32;
            let fault = Fault::Weigh { place, weight };
            self.faults.push((random.micros(0, 40_000), fault));
        }
        for place in (1..=servers).filter(|_| changes > 0) {
            let fault = Fault::Weigh { place, weight: 1 };
            self.faults.push((Duration::from_millis(41), fault));
        }
    }

    /// One job of 16 maps and 16 partitions on four servers, one of which is killed and at once restarted
    /// at its address, after so many tenths of a millisecond.
    pub fn restarted_between_maps(at: u64) -> Self {
        let mut plan = Self::bare(at, 4, 2);
        plan.jobs.push(Job::plain(16, 16, 60));
        let fault = Fault::Kill {
            place: (at % 4 + 1) as u32,
            noticed: Duration::from_secs(1),
            back: Duration::from_micros(50),
        };
        plan.faults.push((Duration::from_micros(100 * at), fault));
        plan
    }

    /// One job with so many copies on six servers in three domains, one of which is asked to leave after so many
    /// tenths of a millisecond. It goes as soon as others have what it has.
    pub fn drained(at: u64, copies: u32) -> Self {
        let mut plan = Self::bare(at, 6, 3);
        if let Some(service) = &mut plan.service {
            service.copies = copies;
        }
        plan.must_finish = true;
        plan.jobs.push(Job {
            hold: Duration::from_millis(50),
            ..Job::plain(16, 16, 60)
        });
        let fault = Fault::Drain {
            place: (at % 6 + 1) as u32,
            length: Duration::from_secs(50),
        };
        plan.faults.push((Duration::from_micros(100 * at), fault));
        plan
    }

    /// Three jobs on four servers with little memory, of which one says nothing any more after so many
    /// tenths of a millisecond.
    pub fn vanished(at: u64) -> Self {
        let mut plan = Self::bare(at, 4, 2);
        plan.budget = 2_000;
        plan.config.run = 500;
        for index in 0..3 {
            let is_gone = index == 1;
            plan.jobs.push(Job {
                cancel: is_gone.then(|| Duration::from_micros(100 * at)),
                vanishes: is_gone,
                hold: Duration::from_millis(20),
                ..Job::plain(16, 16, 60)
            });
        }
        plan
    }

    /// One job on four servers, of which one has little memory and cannot write to its disk.
    pub fn full_disk(seed: u64) -> Self {
        let mut plan = Self::bare(seed, 4, 4);
        plan.must_finish = true;
        plan.budget = 600;
        plan.config.run = 300;
        // It is also slow: that alone would make rows go elsewhere.
        plan.config.lag = Duration::from_secs(60);
        plan.jobs.push(Job::plain(16, 16, 60));
        let fault = Fault::Disk {
            place: (seed % 4 + 1) as u32,
            length: Duration::from_secs(20),
        };
        plan.faults.push((Duration::ZERO, fault));
        plan
    }

    /// One job on four servers with little memory, of which one has a disk that does nothing from a moment on, for
    /// longer than anybody waits.
    pub fn stuck(at: u64) -> Self {
        let mut plan = Self::full_disk(at);
        plan.faults.clear();
        let fault = Fault::Stuck {
            place: (at % 4 + 1) as u32,
            length: Duration::from_secs(50),
        };
        plan.faults.push((Duration::from_micros(200 * at), fault));
        plan
    }

    /// One job on four servers with little memory. None can write to its disk, and all have a remote store.
    pub fn full_disks(seed: u64) -> Self {
        let mut plan = Self::full_disk(seed);
        plan.config.remote = Remote::WhenFull;
        plan.store = Some(Store {
            slow: 1_000,
            ..Store::default()
        });
        plan.faults.clear();
        for place in 1..=4 {
            let length = Duration::from_secs(100);
            let fault = Fault::Disk { place, length };
            plan.faults.push((Duration::ZERO, fault));
        }
        plan
    }

    /// One job on four servers that keep all rows in a remote store. Some time after the commit all are killed, one
    /// after another, then who has read the outputs: all are read again. At the same moment a server is asked to
    /// leave, or is cut off and goes on.
    pub fn uploaded(at: u64) -> Self {
        let mut plan = Self::bare(at, 4, 2);
        plan.must_finish = true;
        plan.is_kept = true;
        plan.config.remote = Remote::First;
        plan.config.run = 300;
        plan.budget = [600, 1 << 20][(at % 2) as usize];
        plan.store = Some(Store {
            slow: [200, 2_000][(at / 2 % 2) as usize],
            ..Store::default()
        });
        plan.jobs.push(Job {
            hold: Duration::from_millis(500),
            ..Job::plain(16, 16, 60)
        });
        let noticed = Duration::from_micros(300);
        let begin = Duration::from_millis(200) + Duration::from_micros(170 * at);
        let mut when = begin;
        for turn in 0..8 {
            let place = ((at + turn) % 4 + 1) as u32;
            let back = Duration::from_micros(500);
            let fault = match (at + turn) % 3 {
                0 => Fault::Drain {
                    place,
                    length: Duration::from_millis(15),
                },
                1 => Fault::Pause {
                    place,
                    length: 2 * plan.silence,
                },
                _ => Fault::Kill {
                    place,
                    noticed,
                    back,
                },
            };
            plan.faults.push((when, fault));
            when += Duration::from_millis(20);
        }
        for (turn, place) in (5..8).enumerate() {
            let back = Duration::from_micros(500);
            let fault = Fault::Kill {
                place,
                noticed,
                back,
            };
            let later = Duration::from_millis(15) * turn as u32;
            plan.faults.push((begin + later, fault));
        }
        plan
    }

    /// The same with a store that returns other bytes.
    pub fn altered(at: u64) -> Self {
        let mut plan = Self::uploaded(at);
        (plan.must_finish, plan.is_kept) = (false, false);
        if let Some(store) = &mut plan.store {
            store.alters = 20;
        }
        plan
    }

    /// The same with servers that leave only, and the first copies that others adopt can be adopted in part only. They
    /// are whole where they are.
    pub fn adopted_in_part(at: u64) -> Self {
        let mut plan = Self::uploaded(at);
        let servers = plan.servers();
        for (_, fault) in &mut plan.faults {
            if let Fault::Kill { place, .. } | Fault::Pause { place, .. } = *fault
                && place <= servers
            {
                let length = Duration::from_millis(15);
                *fault = Fault::Drain { place, length };
            }
        }
        if let Some(store) = &mut plan.store {
            store.breaks = 2;
        }
        plan
    }

    /// One job on two servers with room for one read of an application. A process that reads stands still
    /// after so many tenths of a millisecond; it is of the same application as the others, and lost soon, or it
    /// is neither.
    pub fn stopped(at: u64, is_lost: bool) -> Self {
        let mut plan = Self::bare(at, 2, 2);
        plan.must_finish = true;
        plan.budget = 4_000;
        plan.jobs.push(Job::plain(16, 16, 60));
        let place = plan.places;
        plan.stopped = Some(place);
        plan.is_one_application = is_lost;
        let length = Duration::from_secs(10);
        if !is_lost {
            plan.silence = 2 * length;
        }
        if let Some(service) = &mut plan.service {
            (service.copies, service.readers) = (1, 1);
        }
        let fault = Fault::Pause { place, length };
        plan.faults.push((Duration::from_micros(100 * at), fault));
        plan
    }

    /// One job on four servers whose maps have other rows in each attempt, and run once more while they are
    /// compared, and afterwards.
    pub fn late(seed: u64) -> Self {
        let mut plan = Self::bare(seed, 4, 2);
        plan.must_finish = true;
        plan.stays = true;
        plan.lates = 30;
        plan.config.split = [u64::MAX, 400][(seed % 2) as usize];
        plan.jobs.push(Job {
            is_deterministic: false,
            hold: Duration::from_secs(2),
            ..Job::plain(16, 16, 20)
        });
        plan
    }

    /// What is known of a process of the service.
    pub(super) fn standing(&self, service: Service, place: u32) -> Standing {
        let is_server = service.is_server(place);
        Standing {
            domain: place % service.domains,
            weight: u32::from(is_server),
            intake: Intake::default(),
            store: u64::from(is_server && self.store.is_some()),
        }
    }

    /// Places with servers: those from 1 on.
    pub(super) fn servers(&self) -> u32 {
        self.service.map_or(self.places, |service| service.servers)
    }

    /// The master of the process at a place. `None`: it is a server of any.
    pub(super) fn master_of(&self, place: u32) -> Option<usize> {
        if self.masters.is_empty() {
            return Some(0);
        }
        let mut masters = self.masters.iter();
        masters.position(|application| application.clients.contains(&place))
    }

    /// The application of the reads of a process.
    pub(super) fn reader(&self, place: u32) -> Tenant {
        let number = if self.is_one_application { 0 } else { place };
        Tenant {
            application: ApplicationId(1_000 + u64::from(number)),
            priority: 1,
        }
    }

    /// One job on four servers whose rooms change, also to none, and nothing else happens.
    pub fn weighed(seed: u64) -> Self {
        let mut plan = Self::bare(seed, 4, 4);
        plan.must_finish = true;
        plan.jobs.push(Job::plain(16, 16, 60));
        plan.draw_weights(4, &mut Random::new(seed));
        plan
    }

    /// Processes of another engine, which come and go and have tasks as that one says.
    pub(super) fn hosted(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x0057_ed00);
        let mut plan = Self::new(random.next());
        plan.seed = seed;
        plan.places = 0;
        plan.jobs.clear();
        plan.faults.clear();
        (plan.speculates, plan.fails, plan.forgets, plan.lates) = (0, 0, 0, 0);
        (plan.drops, plan.flips, plan.unreadable) = (0, 0, 0);
        plan
    }

    /// One job on 1,000 servers, of which some are killed, paused and cut off.
    pub fn thousand_servers() -> Self {
        let mut plan = Self::bare(7, 1_000, 50);
        plan.jobs.push(Job::plain(3, 500, 400));
        for (at, place) in [(300, 3), (500, 404), (700, 777), (900, 1_000)] {
            let back = Duration::from_micros(500);
            let noticed = Duration::from_micros(200);
            let fault = Fault::Kill {
                place,
                noticed,
                back,
            };
            plan.faults.push((Duration::from_micros(at), fault));
        }
        let length = Duration::from_millis(20);
        let pause = Fault::Pause { place: 500, length };
        plan.faults.push((Duration::from_micros(400), pause));
        plan.faults
            .push((Duration::from_micros(600), Fault::Reset { place: 250 }));
        plan
    }

    /// The service without jobs and faults.
    fn bare(seed: u64, servers: u32, domains: u32) -> Self {
        let mut plan = Self::service(seed);
        plan.jobs.clear();
        plan.faults.clear();
        plan.places = servers + 3;
        plan.latency = (20, 100);
        plan.budget = 1 << 20;
        plan.config = Config {
            poison: Duration::from_millis(5),
            hedge: Duration::from_millis(20),
            pause: Duration::from_millis(1),
            patience: Duration::from_millis(400),
            ..Config::default()
        };
        (plan.speculates, plan.fails, plan.forgets, plan.lates) = (0, 0, 0, 0);
        (plan.drops, plan.flips, plan.unreadable) = (0, 0, 0);
        plan.service = Some(Service {
            servers,
            domains,
            copies: 2,
            readers: 2,
        });
        plan
    }

    /// Whether something was wrong with stored bytes, or a disk: then an error that names what is
    /// missing is an answer, too.
    pub(super) fn may_fail(&self) -> bool {
        let is_full = |(_, fault): &(Duration, Fault)| matches!(fault, Fault::Disk { .. });
        !self.must_finish && (self.is_damaged() || self.faults.iter().any(is_full))
    }

    /// Whether stored bytes are damaged.
    pub(super) fn is_damaged(&self) -> bool {
        let store = self.store.unwrap_or_default();
        let of_store = store.loses + store.alters + store.breaks;
        self.drops + self.flips + self.unreadable + of_store > 0
    }

    pub(super) fn draw_job(&self, random: &mut Random) -> Job {
        let partitions = random.between(1, 16) as u32;
        let all = Runs::range(0, u64::from(partitions));
        let some: Runs = all.iter().filter(|_| random.chance(50)).collect();
        let is_culled = random.chance(25) && !some.is_empty();
        Job {
            master: 0,
            at: random.micros(0, 10_000),
            sides: if random.chance(30) { 2 } else { 1 },
            maps: random.between(1, 10) as u32,
            partitions,
            outputs: if is_culled { some } else { all },
            rows: random.pick(&[0, 10, 60, 60]),
            is_deterministic: random.chance(90),
            cancel: random.chance(10).then(|| random.micros(0, 20_000)),
            vanishes: false,
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
