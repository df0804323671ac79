//! What happens in a simulation: machines, network, clients, faults. Drawn from a seed.

use std::time::Duration;

use treadle_messages::TaskOptions;
use treadle_scheduler::Config;
use treadle_types::{Constraint, Symbol};

use crate::kernel::Random;
use crate::universe::{Spec, Traits, Universe};
use crate::world::Pid;

/// A worker from which nothing is heard for so long is lost.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(1_000);
/// Faults last no longer than this, in microseconds.
const LONGEST: u64 = 2_500_000;
/// Faults are over by then.
pub(crate) const HEALED: Duration = Duration::from_millis(6_000);
/// The abstract resource that tasks may need.
pub(crate) const RESOURCE: Symbol = Symbol(300);

/// A name of the plan's, as nodes have it.
pub(crate) fn text(name: Symbol) -> String {
    format!("name-{}", name.0)
}

#[derive(Clone, Debug)]
pub(crate) struct MachinePlan {
    pub(crate) name: Symbol,
    pub(crate) host: Symbol,
    pub(crate) threads: u32,
    /// Bytes; 0: without a limit.
    pub(crate) memory: u64,
    /// Whether values go to disk before they fill the memory.
    pub(crate) spills: bool,
    /// How much of [`RESOURCE`] it has.
    pub(crate) resource: f64,
}

impl MachinePlan {
    /// Values beyond so many bytes go to disk.
    pub(crate) fn target(&self) -> u64 {
        match self.spills {
            true => self.memory * 7 / 10,
            false => u64::MAX,
        }
    }
}

/// The scheduler's node on the network, the machines', and the clients'; and processes, which are paused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Node {
    Server,
    Machine(usize),
    Client(usize),
    Process(Pid),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A worker's process is killed. Messages that it has sent may be lost.
    Kill { machine: usize, loses: bool },
    /// A worker registers again while its old connection lingers.
    Reregister { machine: usize, lingers: Duration },
    /// A worker's process stops for a while.
    Pause { machine: usize, length: Duration },
    /// Nothing gets through between two nodes.
    Cut {
        between: (Node, Node),
        length: Duration,
    },
    /// A worker is asked to leave.
    Drain { machine: usize },
    /// Files of some values cannot be read any more.
    Unreadable { machine: usize, percent: u64 },
    /// A worker starts no tasks for lack of memory.
    Memory { machine: usize, length: Duration },
    /// The values of some tasks are gone, says somebody else.
    Invalidate,
    /// The same of some with effects, which return something else from then on.
    Discard,
    /// Everything is dropped and cancelled.
    Restart,
}

/// How clients behave.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// Longest pause between two actions, in microseconds.
    pub(crate) pause: u64,
    /// How often each does something.
    pub(crate) actions: u64,
    /// Percentage of submissions in several batches.
    pub(crate) batches: u64,
    /// Percentages of actions.
    pub(crate) cancels: u64,
    pub(crate) releases: u64,
    pub(crate) moves: u64,
    /// Percentage of values that clients keep when they put them.
    pub(crate) keeps: u64,
    /// Percentage of actions after which a client fetches values.
    pub(crate) fetches: u64,
    /// Percentage of clients that leave in the middle.
    pub(crate) leaves: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) config: Config,
    /// How many definitions that no task uses the scheduler keeps.
    pub(crate) idle_definitions: usize,
    pub(crate) machines: Vec<MachinePlan>,
    pub(crate) clients: Vec<Duration>,
    pub(crate) habits: Habits,
    pub(crate) universe: Universe,
    pub(crate) constraints: Vec<Constraint>,
    /// One way, in microseconds: drawn between these for each message.
    pub(crate) latency: (u64, u64),
    /// Bytes a second between two nodes.
    pub(crate) bandwidth: u64,
    /// How many values a worker fetches from another at once, and how many bytes in all.
    pub(crate) fetches: (u32, u64),
    /// Whether a worker that registers again replaces its old self at once.
    pub(crate) replaces: bool,
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// Machines start within so many microseconds.
    pub(crate) starts: u64,
    /// Verify the invariants of the cores after this many steps.
    pub(crate) check_every: u64,
    /// The seed of the shuffle plane, if there is one.
    pub(crate) shuffles: Option<u64>,
}

impl Plan {
    /// What a seed decides.
    pub(crate) fn draw(random: &mut Random) -> Self {
        Self::with_shuffles(random, None)
    }

    /// What a seed decides, also about shuffles.
    pub(crate) fn whole(seed: u64) -> Self {
        Self::with_shuffles(&mut Random::new(seed ^ 0x0b0a_4d00), Some(seed))
    }

    fn with_shuffles(random: &mut Random, shuffles: Option<u64>) -> Self {
        // Other streams, so that what is drawn from them leaves the rest of the plan alone.
        let mut other = Random::new(random.clone().next());
        let mut effects = Random::new(other.clone().next());
        let mut fetches = Random::new(effects.clone().next());
        let mut lineage = Random::new(fetches.clone().next());
        let mut definitions = Random::new(lineage.clone().next());
        let is_large = random.chance(3);
        let count = match is_large {
            true => random.between(5, 12) as usize,
            false => random.pick(&[1, 2, 2, 3, 3, 4, 5]),
        };
        // Clients begin, and faults do, within so many microseconds.
        let span = random.pick(&[100_000, 500_000, LONGEST]);
        let limited = random.chance(25);
        // Long tasks that want the same resources, and are often cancelled.
        let contended = random.chance(15);
        // Many tasks that wait for others, while some may run only at some workers.
        let blocked = other.chance(20);
        let largest = random.pick(&[2_000, 20_000, 1_000_000]);
        let machines: Vec<_> = (0..count)
            .map(|machine| MachinePlan {
                name: Symbol(100 + machine as u32),
                host: Symbol(200 + random.below(2) as u32),
                threads: random.between(1, 3) as u32,
                memory: match limited {
                    true => largest * random.between(1, 4),
                    false => 0,
                },
                spills: limited && other.chance(50),
                // What a task needs is there.
                resource: match machine {
                    0 => random.pick(&[1.0, 2.0]),
                    _ => random.pick(&[0.0, 1.0]),
                },
            })
            .collect();
        let constraints = constraints(random, &machines);
        let traits = Traits {
            longest: match contended {
                true => 300_000,
                false => random.pick(&[100, 5_000, 50_000, 300_000]),
            },
            small: random.pick(&[0, 20, 60, 100]),
            largest,
            raising: random.pick(&[0, 0, 5, 20]),
            giving_back: random.pick(&[0, 0, 10]),
            immovable: random.pick(&[0, 0, 0, 10]),
            seceding: random.pick(&[0, 0, 10]),
            waiting: match blocked {
                true => 30,
                false => other.pick(&[0, 0, 5]),
            },
            constrained: match contended {
                true => 90,
                false => random
                    .pick(&[0, 0, 10, 50])
                    .max(if blocked { 40 } else { 0 }),
            },
            constraints: constraints.clone(),
        };
        let mut universe = Universe::default();
        let graphs = if is_large { 12 } else { 6 };
        let graphs = match shuffles {
            Some(_) => random.below(3),
            None => random.between(1, graphs),
        };
        for _ in 0..graphs {
            universe.add_graph(random, &traits);
        }
        if shuffles.is_some() {
            for _ in 0..random.between(1, 2) {
                universe.add_shuffle(random, &traits);
            }
        }
        universe.add_waits(&mut other, &traits);
        let percent = effects.pick(&[0, 0, 10, 50]);
        universe.add_effects(&mut effects, percent);
        let low = random.pick(&[10, 100, 1_000]);
        let clients = (0..random.pick(&[1, 1, 2, 3]))
            .map(|_| random.micros(0, span / 3))
            .collect::<Vec<_>>();
        let most = if is_large { 40 } else { 10 };
        let mut faults = faults(random, &machines, clients.len(), span, most);
        if percent > 0 {
            // The plane that relies on effects finds more of them gone than workers are lost.
            let gone = (0..effects.below(4)).map(|_| effects.micros(span / 20, span));
            let gone: Vec<_> = gone.map(|at| (at, Fault::Invalidate)).collect();
            faults.extend(gone);
            let mut changes = Random::new(effects.clone().next());
            let changed = (0..changes.below(4)).map(|_| changes.micros(span / 20, span));
            let changed: Vec<_> = changed.map(|at| (at, Fault::Discard)).collect();
            faults.extend(changed);
            faults.sort_by_key(|(at, _)| *at);
        }
        Self {
            config: Config {
                allowed_losses: random.between(0, 4) as u32,
                bandwidth: 1e8,
                prefill: random.micros(0, 20_000),
                prefill_tasks: random.pick(&[0, 1, 4, 1_024]),
                relief: other.micros(50_000, 500_000),
                patience: Duration::from_secs(2),
                story: 64,
                lineage: lineage.chance(20),
            },
            idle_definitions: definitions.pick(&[0, 1, 3, 1_024]),
            machines,
            clients,
            habits: Habits {
                pause: span / random.pick(&[4, 10, 50]),
                actions: random.between(1, if is_large { 60 } else { 20 }),
                batches: random.pick(&[0, 30, 100]),
                cancels: match contended {
                    true => 30,
                    false => random.pick(&[0, 10, 30]),
                },
                releases: random.pick(&[0, 10, 30]),
                moves: random.pick(&[0, 0, 15]),
                keeps: random.pick(&[0, 50, 100]),
                fetches: fetches.pick(&[0, 20, 100]),
                leaves: random.pick(&[0, 0, 30]),
            },
            universe,
            constraints,
            latency: (low, low * random.between(1, 20)),
            bandwidth: random.pick(&[1_000_000, 100_000_000]),
            fetches: (
                random.between(1, 4) as u32,
                random.pick(&[1_000, 1 << 20, 1 << 30]),
            ),
            replaces: random.chance(50),
            faults,
            starts: span / 10,
            check_every: 1,
            shuffles,
        }
    }
}

impl Plan {
    /// How a client wants a task to be run.
    pub(crate) fn options(&self, spec: &Spec) -> TaskOptions {
        let constraint = spec.constraint.checked_sub(1);
        let constraint = constraint.map(|index| &self.constraints[index as usize]);
        let workers = constraint.map_or(&[][..], |constraint| &constraint.workers);
        let resources = constraint.map_or(&[][..], |constraint| &constraint.resources);
        TaskOptions {
            priority: spec.priority,
            retries: spec.retries,
            workers: workers.iter().map(|name| text(*name)).collect(),
            allow_other: constraint.is_some_and(|constraint| constraint.allow_other),
            resources: resources
                .iter()
                .map(|(name, much)| (text(*name), *much))
                .collect(),
            actor: spec.is_actor,
            effects: spec.has_effects,
            lasting: spec.lasts,
        }
    }
}

fn constraints(random: &mut Random, machines: &[MachinePlan]) -> Vec<Constraint> {
    let names: Vec<_> = machines.iter().map(|machine| machine.name).collect();
    let mut constraints = vec![Constraint {
        workers: Vec::new(),
        allow_other: false,
        resources: vec![(RESOURCE, 1.0)],
    }];
    for _ in 0..2 {
        let mut workers = random.some(&names, 40);
        if workers.is_empty() {
            workers.push(random.pick(&names));
        }
        constraints.push(Constraint {
            workers,
            allow_other: random.chance(40),
            resources: Vec::new(),
        });
    }
    constraints.push(Constraint {
        workers: vec![machines[0].name],
        allow_other: false,
        resources: vec![(RESOURCE, random.pick(&[0.5, 1.0]))],
    });
    constraints
}

fn faults(
    random: &mut Random,
    machines: &[MachinePlan],
    clients: usize,
    span: u64,
    most: u64,
) -> Vec<(Duration, Fault)> {
    let count = match random.chance(20) {
        true => 0,
        false => random.between(1, most),
    };
    let draw = |random: &mut Random| {
        let machine = random.index(machines.len());
        let longest = random.pick(&[20_000, 400_000, LONGEST]);
        let length = random.micros(1_000, longest);
        let fault = match random.below(100) {
            0..20 => Fault::Kill {
                machine,
                loses: random.chance(50),
            },
            20..35 => Fault::Reregister {
                machine,
                lingers: length,
            },
            35..50 => Fault::Pause { machine, length },
            50..60 => Fault::Cut {
                between: (Node::Server, Node::Machine(machine)),
                length,
            },
            60..75 => {
                let other = random.index(machines.len());
                let other = match other == machine {
                    true => Node::Client(random.index(clients)),
                    false => Node::Machine(other),
                };
                Fault::Cut {
                    between: (Node::Machine(machine), other),
                    length,
                }
            }
            75..79 => Fault::Cut {
                between: (Node::Server, Node::Client(random.index(clients))),
                length,
            },
            79..86 if machines.len() > 1 => Fault::Drain { machine },
            86..92 => Fault::Unreadable {
                machine,
                percent: random.pick(&[20, 100]),
            },
            97..99 => Fault::Invalidate,
            99 => Fault::Restart,
            _ => Fault::Memory { machine, length },
        };
        (random.micros(span / 20, span), fault)
    };
    let mut faults: Vec<_> = (0..count).map(|_| draw(random)).collect();
    faults.sort_by_key(|(at, _)| *at);
    faults
}
