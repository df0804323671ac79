//! What happens in a simulation, drawn from a seed.

use std::time::Duration;

use treadle_broadcast::{Config, Network, Tree};

use treadle_sim_kernel::{Random, mix};

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// A call to so many percent of the engines; 0: one of them.
    Cast { percent: u64, size: u64 },
    /// One of the casts that are not complete is aborted.
    Abort { interrupt: bool },
}

/// What goes wrong. Engines are those that live at the time, by position.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Kill(usize),
    Pause(usize, Duration),
    /// Nothing gets through between two nodes; connections break.
    Cut(Node, Node, Duration),
    /// The same between one engine and all others: only the scheduler hears of it.
    Isolate(usize, Duration),
    KillClient(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Node {
    Engine(usize),
    Client(usize),
}

/// A simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) seed: u64,
    pub(crate) config: Config,
    /// The host of each engine.
    pub(crate) engines: Vec<u32>,
    /// Clients, some on hosts of engines.
    pub(crate) clients: Vec<Option<u32>>,
    pub(crate) actions: Vec<(Duration, usize, Action)>,
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// Engines that come later, by host.
    pub(crate) joins: Vec<(Duration, u32)>,
    /// Between hosts, in microseconds.
    pub(crate) latency: (u64, u64),
    /// Within a host.
    pub(crate) local: (u64, u64),
    /// Bytes a second that a node can send.
    pub(crate) bandwidth: f64,
    /// What sending a message takes besides.
    pub(crate) overhead: Duration,
    /// Percentage of messages that are late, by up to so much.
    pub(crate) late: (u64, Duration),
    /// Percentage of casts that are unordered.
    pub(crate) unordered: u64,
    /// What casts ask of their trees.
    pub(crate) tree: Tree,
    /// Percentage of payloads for which there is no memory.
    pub(crate) refusals: u64,
    /// Percentage of questions for memory that take time.
    pub(crate) slow_memory: u64,
    /// Percentage of casts that an engine does not take at once.
    pub(crate) queued: u64,
    /// How long an engine runs at most.
    pub(crate) longest: Duration,
    /// Percentage of results that have bytes.
    pub(crate) results: u64,
    /// Percentage of runs that write something.
    pub(crate) writes: u64,
    /// From the death of a process until the scheduler says so, at most.
    pub(crate) detection: Duration,
    /// A process that is silent for so long is gone.
    pub(crate) timeout: Duration,
    /// Whether nodes are checked after each step.
    pub(crate) checks: bool,
    /// Whether a node may get no more than its share.
    pub(crate) is_faultless: bool,
}

impl Plan {
    /// What the seed decides.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6272_6f61_6463_6173);
        let random = &mut random;
        let hosts = random.between(1, 12);
        let count = random.pick(&[1, 2, 3, 5, 8, 8, 13, 13, 20, 30]);
        let engines: Vec<u32> = (0..count).map(|_| random.below(hosts) as u32).collect();
        let clients = (0..random.pick(&[1, 1, 1, 2, 3]))
            .map(|_| random.chance(40).then(|| random.below(hosts) as u32))
            .collect::<Vec<_>>();
        let chunk = 16 << 10;
        // With some windows, pieces of different parents begin and end at different places.
        let odd = mix(seed ^ 0x006f_6464) % 3 * 1_111;
        let faultless = random.chance(15);
        let config = Config {
            inline: random.pick(&[0, 1_000, 20_000]),
            window: chunk * random.pick(&[2, 4, 16]) + odd,
            ahead: mix(seed ^ 0x6168_6561) % 20 * chunk,
            outstanding: random.pick(&[2, 8, 64]),
            introduced: [1, 3, 1024][(mix(seed ^ 0x696e_7472) % 3) as usize],
            flush: Duration::from_micros(random.pick(&[0, 500, 3_000])),
            settle: Duration::from_millis(random.pick(&[0, 2, 20])),
            stall: Duration::from_millis(100),
            // The plane has to be right without it, too.
            silence: match faultless {
                true => Duration::from_secs(20),
                false => Duration::from_millis(random.pick(&[100, 300, 20_000])),
            },
            beat: match faultless {
                true => Duration::from_secs(5),
                false => Duration::from_millis(30),
            },
            ask: Duration::from_millis(400),
            retry: Duration::from_millis(20),
            unreachable: Duration::from_millis(4_000),
            network: Network {
                bandwidth: random.pick(&[1e7, 1e9]),
                latency: Duration::from_micros(random.pick(&[20, 2_000])),
                overhead: Duration::from_micros(random.pick(&[1, 100])),
            },
            local: Network::within_host(),
            processors: seed % 3,
        };
        let span = random.pick(&[5_000, 50_000, 500_000]);
        let largest = chunk * random.pick(&[1, 4, 40]);
        let actions = actions(random, clients.len(), span, largest);
        let mut faults = match faultless {
            true => Vec::new(),
            false => faults(random, count, clients.len(), span),
        };
        let joins: Vec<_> = (0..random.pick(&[0, 0, 0, 1, 3]))
            .map(|_| (random.micros(0, span), random.below(hosts) as u32))
            .collect();
        let has_joins = !joins.is_empty();
        let slow_memory = random.pick(&[0, 30]);
        let latency = random.pick(&[50, 500, 5_000]);
        let latency = (latency, latency * random.pick(&[1, 4]));
        let bandwidth = random.pick(&[5e6, 1e8, 1e9]);
        let overhead = Duration::from_micros(random.pick(&[0, 10]));
        let mut late = (
            random.pick(&[0, 0, 5]),
            Duration::from_micros(random.pick(&[1_000, 50_000])),
        );
        // Another stream, so that what is drawn from it leaves the rest of the plan alone.
        let races = &mut Random::new(mix(seed ^ 0x0072_6163_6573));
        if !faultless && races.chance(25) {
            late = (races.pick(&[10, 30]), Duration::from_millis(50));
            faults.extend(overtaken(races, &actions, count, latency.1));
            faults.sort_by_key(|(at, _)| *at);
        }
        Self {
            seed,
            config,
            engines,
            clients,
            actions,
            faults,
            joins,
            latency,
            local: (10, 60),
            bandwidth,
            overhead,
            late,
            unordered: mix(seed) % 3 * 15,
            // The engines differ in number: no seed has them refused.
            tree: match mix(seed) % 7 {
                0 => Tree {
                    depth: None,
                    degree: Some(mix(seed) as u32 % 5 + 1),
                },
                _ => Tree::default(),
            },
            refusals: match faultless {
                true => 0,
                false => random.pick(&[0, 0, 10, 40]),
            },
            slow_memory,
            queued: random.pick(&[0, 30]),
            longest: match faultless {
                true => Duration::from_micros(random.pick(&[10, 1_000, 50_000, 20_000_000])),
                false => Duration::from_micros(random.pick(&[10, 1_000, 50_000, 500_000])),
            },
            results: random.pick(&[0, 50, 100]),
            writes: random.pick(&[0, 30]),
            detection: Duration::from_millis(random.pick(&[10, 500])),
            timeout: Duration::from_millis(800),
            checks: true,
            // Who comes later, and what comes before there is memory for it, costs more.
            is_faultless: faultless && !has_joins && slow_memory == 0,
        }
    }
}

impl Plan {
    /// The same push so many times to engines with hosts of their own, without faults.
    pub(crate) fn push(engines: u32, size: u64, times: u64) -> Self {
        let action = Action::Cast { percent: 100, size };
        let network = Network::default();
        let config = Config::default();
        let micros = network.latency.as_micros() as u64;
        Self {
            seed: 0,
            config,
            engines: (0..engines).collect(),
            clients: vec![None],
            actions: (0..times)
                .map(|time| (Duration::from_secs(10 * time), 0, action))
                .collect(),
            faults: Vec::new(),
            joins: Vec::new(),
            latency: (micros, micros),
            local: (40, 40),
            bandwidth: network.bandwidth,
            overhead: network.overhead,
            late: (0, Duration::ZERO),
            unordered: 0,
            tree: Tree::default(),
            refusals: 0,
            slow_memory: 0,
            queued: 0,
            longest: Duration::ZERO,
            results: 0,
            writes: 0,
            detection: Duration::from_millis(10),
            timeout: Duration::from_secs(60),
            checks: false,
            is_faultless: true,
        }
    }

    /// A push to engines, so many on each host, of whom one is paused for long: `at` after the client
    /// has asked for the push. Two calls follow while it is, and two after that.
    pub fn paused(engines: u32, crowd: u32, size: u64, victim: usize, at: Duration) -> Self {
        let mut plan = Self::push(engines, size, 1);
        plan.engines = (0..engines).map(|engine| engine / crowd).collect();
        plan.is_faultless = false;
        plan.checks = true;
        let call = Action::Cast {
            percent: 100,
            size: 100,
        };
        for second in [1, 5, 30, 31] {
            let at = Duration::from_secs(second);
            plan.actions.push((at, 0, call));
        }
        let pause = Fault::Pause(victim, Duration::from_secs(20));
        plan.faults = vec![(at, pause)];
        plan
    }

    /// Many engines on many hosts, some of which are killed while they relay.
    pub fn large(seed: u64, engines: u32, kills: usize) -> Self {
        let mut random = Random::new(seed);
        let mut plan = Self::push(engines, 300_000, 3);
        plan.seed = seed;
        plan.is_faultless = false;
        plan.engines = (0..engines).map(|engine| engine / 20).collect();
        plan.results = 1;
        for (at, _, action) in &mut plan.actions {
            *at /= 5_000;
            if random.chance(50) {
                *action = Action::Cast {
                    percent: 50,
                    size: 100,
                };
            }
        }
        plan.faults = (0..kills)
            .map(|_| {
                let engine = random.index(engines as usize);
                let root = random.pick(&[0, engine]);
                (random.micros(500, 12_000), Fault::Kill(root))
            })
            .collect();
        plan
    }
}

fn actions(
    random: &mut Random,
    clients: usize,
    span: u64,
    largest: u64,
) -> Vec<(Duration, usize, Action)> {
    let count = random.pick(&[1, 3, 6, 12, 25]);
    let percent = random.pick(&[0, 50, 100, 100]);
    let mut actions: Vec<_> = (0..count)
        .map(|_| {
            let action = match random.below(100) {
                0..8 => Action::Abort {
                    interrupt: random.chance(50),
                },
                _ => Action::Cast {
                    percent: match random.chance(70) {
                        true => percent,
                        false => random.below(100),
                    },
                    size: match random.below(3) {
                        0 => 0,
                        1 => random.below(2_000),
                        _ => random.below(largest),
                    },
                },
            };
            (random.micros(0, span), random.index(clients), action)
        })
        .collect();
    actions.sort_by_key(|(at, ..)| *at);
    actions
}

fn faults(
    random: &mut Random,
    engines: usize,
    clients: usize,
    span: u64,
) -> Vec<(Duration, Fault)> {
    let longest = random.pick(&[5_000, 300_000, 2_500_000]);
    let count = random.pick(&[1, 1, 2, 4, 8]);
    // A time in which connections break again and again.
    let torn = random.chance(10);
    let (count, span) = match torn {
        true => (count * 8, span / 4),
        false => (count, span),
    };
    let mut faults: Vec<_> = (0..count)
        .map(|_| {
            let engine = random.index(engines);
            let length = random.micros(100, longest);
            let other = match random.chance(30) {
                true => Node::Client(random.index(clients)),
                false => Node::Engine(random.index(engines)),
            };
            let fault = match random.below(100) {
                _ if torn => Fault::Cut(Node::Engine(engine), other, length),
                0..25 => Fault::Kill(engine),
                25..45 => Fault::Pause(engine, length),
                45..80 => Fault::Cut(Node::Engine(engine), other, length),
                80..90 => Fault::Isolate(engine, length * random.pick(&[1, 1, 4])),
                90..94 => Fault::KillClient(random.index(clients)),
                _ => Fault::Cut(Node::Engine(engine), other, length * 4),
            };
            (random.micros(0, span + span / 2), fault)
        })
        .collect();
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// Connections of a client break while the offers of a cast are on their way: its members come under
/// others, and messages of the new tree overtake those of the old one.
fn overtaken(
    random: &mut Random,
    actions: &[(Duration, usize, Action)],
    engines: usize,
    latency: u64,
) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    for &(at, client, _) in actions {
        for _ in 0..random.pick(&[0, 1, 3]) {
            let engine = Node::Engine(random.index(engines));
            let length = random.micros(100, 20_000);
            let cut = Fault::Cut(Node::Client(client), engine, length);
            faults.push((at + random.micros(0, 6 * latency), cut));
        }
    }
    faults
}
