//! The virtual clock: what happens when, and at whom.

use std::collections::BTreeMap;
use std::time::Duration;

use treadle_types::{ObjectId, WorkerId};

use crate::client::Client;
use crate::kernel::{self, Kernel, Random, Trace, World as _};
use crate::network::{Connection, Direction, Message};
use crate::oracle::Oracle;
use crate::plan::{Fault, HEALED, Node, Plan};
use crate::process::Process;
use crate::server::Server;
use crate::shuffles::Shuffles;
use crate::universe::Key;

/// What is done stays so for so long before a simulation counts as over.
const QUIET: Duration = Duration::from_millis(400);
/// For so long nothing but the clock may move before a simulation counts as hanging: longer than the
/// scheduler remembers a cut between two workers, and than its patience.
const PATIENCE: Duration = Duration::from_secs(8);

/// A worker's process; numbers are never used again.
pub(crate) type Pid = u32;

/// Who asks a worker for a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Party {
    Process(Pid),
    Client(usize),
}

/// What comes in answer to a request for a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub(crate) object: ObjectId,
    pub(crate) value: u64,
    pub(crate) nbytes: u64,
    /// It is said only that the value of this key cannot be sent.
    pub(crate) immovable: Option<Key>,
}

#[derive(Clone, Debug)]
pub(crate) enum Item {
    Deliver(Direction, Message),
    ServerTick,
    Heartbeat(Pid),
    /// A running task goes on.
    Job(Pid, ObjectId),
    /// A request for a value arrives at a machine.
    Get {
        by: Party,
        request: u64,
        machine: usize,
        worker: WorkerId,
        object: ObjectId,
    },
    Got {
        by: Party,
        request: u64,
        copied: Option<Copied>,
    },
    GetTimeout {
        by: Party,
        request: u64,
    },
    /// A value that a client puts arrives at a machine.
    Bring {
        client: usize,
        name: u32,
        machine: usize,
        worker: WorkerId,
        object: ObjectId,
        key: Key,
    },
    /// A worker has taken what was brought; nothing: nobody does any more.
    Brought {
        client: usize,
        name: u32,
        worker: Option<WorkerId>,
    },
    /// Something is due at a client.
    ClientDue(usize),
    Act(usize),
    Batch(usize),
    Fault(usize),
    Start(usize),
    MemoryFree(Pid),
    Leave(usize),
    /// Something is due at the shuffle plane.
    Planes,
}

crate::kernel::counters! {
/// What a simulation amounted to.
pub struct Summary {
    /// Things that happened.
    pub steps: u64,
    /// Runs of tasks that ended.
    pub runs: u64,
    /// Futures that were finished at the end, with the right value.
    pub finished: u64,
    /// Futures that had failed at the end, for a reason that there was.
    pub failed: u64,
    /// Futures that were cancelled at the end.
    pub cancelled: u64,
    /// Registrations of workers that were lost.
    pub lost: u64,
    /// Values that workers got from others.
    pub fetched: u64,
    /// Fetches that failed.
    pub unfetched: u64,
    /// Values for which there was no room where they came.
    pub no_room: u64,
    /// Runs of tasks that asked to run elsewhere.
    pub given_back: u64,
    /// Values that could not be sent.
    pub immovable: u64,
    /// Tasks that were taken back before they had started.
    pub retracted: u64,
    /// Tasks that were cancelled while they ran.
    pub interrupted: u64,
    /// Values that clients got, or heard that there are none.
    pub gathered: u64,
    /// Values that clients were asked to bring again, and did.
    pub again: u64,
    /// Values that could not be read any more.
    pub gone: u64,
    /// Tasks that ran again since what they did beside their value was gone.
    pub redone: u64,
    /// Tasks that return something else than before.
    pub changed: u64,
    /// Definitions that clients gave up, since no task used them.
    pub undefined: u64,
    /// Transfers of shuffles that ended well.
    pub transfers: u64,
    /// Shares of receipts that name batches of an earlier attempt.
    pub reused: u64,
    /// Partitions of shuffles that were read.
    pub outputs: u64,
    /// Partitions that were compared with the inputs at the end.
    pub compared: u64,
    /// Shuffles that began, with those that began anew.
    pub shuffles: u64,
    /// Barriers that had receipts of an earlier run of their shuffle.
    pub overtaken: u64,
    /// Times at which an input of a shuffle was found to have other rows than before.
    pub differences: u64,
    /// Connections of the shuffle plane that broke, or could not be made.
    pub unreached: u64,
    /// Runs of rows that servers wrote to disk.
    pub spills: u64,
}
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) kernel: Kernel<Item, Node>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) server: Server,
    pub(crate) oracle: Oracle,
    pub(crate) processes: BTreeMap<Pid, Process>,
    pub(crate) next_pid: Pid,
    /// By machine, the process that runs there.
    pub(crate) current: Vec<Option<Pid>>,
    /// Where each worker that was ever registered runs, or ran.
    pub(crate) places: BTreeMap<WorkerId, usize>,
    pub(crate) clients: Vec<Client>,
    pub(crate) next_request: u64,
    /// The other stream of random numbers; see [`World::with_other_stream`].
    other: Random,
    /// The shuffle plane of the workers, if there is one.
    pub(crate) shuffles: Option<Shuffles>,
    pub(crate) summary: Summary,
}

/// Runs the simulation of a seed. An error says what went wrong.
///
/// # Errors
/// The first invariant that did not hold.
pub fn simulate(seed: u64, trace: Trace) -> Result<Summary, String> {
    run(Plan::draw(&mut Random::new(seed)), seed, trace)
}

/// Runs the simulation of a seed, with shuffles: their tasks are run by the scheduler, the worker and the
/// client of production, and do what the shuffle plane's cores say.
///
/// # Errors
/// The first invariant that did not hold.
pub fn simulate_whole(seed: u64, trace: Trace) -> Result<Summary, String> {
    run(Plan::whole(seed), seed, trace)
}

fn run(plan: Plan, seed: u64, mut trace: Trace) -> Result<Summary, String> {
    trace.add(|| format!("{plan:#?}"));
    // Another stream than the plan's, so that a change here leaves the plans alone.
    let kernel = Kernel::new(Random::new(!seed), trace);
    let mut world = World::new(plan, kernel);
    world.simulate(World::live)?;
    Ok(world.summary)
}

impl World {
    fn new(plan: Plan, kernel: Kernel<Item, Node>) -> Self {
        let mut world = Self {
            other: Random::new(kernel.random.clone().next()),
            server: Server::new(&plan),
            oracle: Oracle::new(&plan),
            kernel,
            connections: Vec::new(),
            processes: BTreeMap::new(),
            next_pid: 0,
            current: vec![None; plan.machines.len()],
            places: BTreeMap::new(),
            clients: Vec::new(),
            next_request: 0,
            shuffles: plan.shuffles.map(|seed| Shuffles::new(seed, &plan)),
            summary: Summary::default(),
            plan,
        };
        world.kernel.schedule(Duration::ZERO, Item::ServerTick);
        for machine in 0..world.plan.machines.len() {
            let delay = world.kernel.random.micros(0, world.plan.starts);
            world.kernel.schedule(delay, Item::Start(machine));
        }
        for client in 0..world.plan.clients.len() {
            let starts = world.plan.clients[client];
            world.clients.push(Client::new(&world.plan.habits));
            world.kernel.schedule(starts, Item::Act(client));
            if world.kernel.random.chance(world.plan.habits.leaves) {
                let leaves = starts + world.kernel.random.micros(0, 1_500_000);
                world.kernel.schedule(leaves, Item::Leave(client));
            }
        }
        for index in 0..world.plan.faults.len() {
            let at = world.plan.faults[index].0;
            world.kernel.schedule(at, Item::Fault(index));
        }
        world
    }

    /// The clients do what they do, and leave.
    fn live(&mut self) -> Result<(), String> {
        self.settle()?;
        self.verify_results()?;
        for client in 0..self.clients.len() {
            self.kernel.schedule(Duration::ZERO, Item::Leave(client));
        }
        self.settle()?;
        self.summary.steps = self.kernel.steps();
        self.summary.redone = self.oracle.redone;
        self.verify_no_shuffles()?;
        self.verify_emptiness()
    }

    /// Goes on until nothing moves any more.
    fn settle(&mut self) -> Result<(), String> {
        self.kernel.restart_quiet();
        match self.run()? {
            true => Ok(()),
            false => Err("nothing more happens".into()),
        }
    }

    /// Does something that draws from another stream: it leaves what is drawn for the rest alone.
    pub(crate) fn with_other_stream<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> R {
        std::mem::swap(&mut self.kernel.random, &mut self.other);
        let result = act(self);
        std::mem::swap(&mut self.kernel.random, &mut self.other);
        result
    }

    pub(crate) fn node(&self, party: Party) -> Option<Node> {
        match party {
            Party::Process(pid) => Some(Node::Machine(self.processes.get(&pid)?.machine)),
            Party::Client(client) => Some(Node::Client(client)),
        }
    }

    fn fault(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Kill { machine, loses } => {
                if let Some(pid) = self.current[machine] {
                    let delay = self.kernel.random.micros(0, 50_000);
                    self.kill(pid, loses, delay);
                    let delay = self.kernel.random.micros(1_000, 1_500_000);
                    self.kernel.schedule(delay, Item::Start(machine));
                }
            }
            Fault::Reregister { machine, lingers } => {
                if let Some(pid) = self.current[machine] {
                    self.kill(pid, false, lingers);
                    self.start_process(machine);
                }
            }
            Fault::Pause { machine, length } => {
                if let Some(pid) = self.current[machine] {
                    self.kernel.pause(Node::Process(pid), length);
                    self.planes_pause(pid, length)?;
                }
            }
            Fault::Cut { between, length } => {
                self.kernel.cut(between.0, between.1, length);
                self.planes_cut(between, length)?;
            }
            Fault::Drain { machine } => self.drain(machine)?,
            Fault::Unreadable { machine, percent } => {
                let Self {
                    kernel,
                    processes,
                    current,
                    ..
                } = self;
                let process = current[machine].and_then(|pid| processes.get_mut(&pid));
                for stored in process
                    .into_iter()
                    .flat_map(|process| process.store.values_mut())
                {
                    stored.is_readable &= !kernel.random.chance(percent);
                }
            }
            Fault::Memory { machine, length } => {
                if let Some(pid) = self.current[machine] {
                    self.memory(pid, true)?;
                    self.kernel.schedule(length, Item::MemoryFree(pid));
                }
            }
            Fault::Invalidate => self.invalidate()?,
            Fault::Discard => self.discard()?,
            Fault::Restart => self.restart()?,
        }
        Ok(())
    }
}

impl kernel::World for World {
    type Item = Item;
    type Node = Node;
    const LIMIT: (Duration, u64) = (Duration::from_secs(300), 300_000);

    fn kernel(&self) -> &Kernel<Item, Node> {
        &self.kernel
    }

    fn kernel_mut(&mut self) -> &mut Kernel<Item, Node> {
        &mut self.kernel
    }

    fn process(&self, item: &Item) -> Option<Node> {
        let process = match *item {
            Item::Deliver(link, _) => match link.to_server {
                true => None,
                false => self.connections[link.connection].process,
            },
            Item::Heartbeat(pid) | Item::Job(pid, _) | Item::MemoryFree(pid) => Some(pid),
            Item::Get { machine, .. } | Item::Bring { machine, .. } => self.current[machine],
            Item::Got {
                by: Party::Process(pid),
                ..
            }
            | Item::GetTimeout {
                by: Party::Process(pid),
                ..
            } => Some(pid),
            _ => None,
        };
        // What comes to one that is not there any more need not wait.
        let process = process.filter(|pid| self.processes.contains_key(pid));
        process.map(Node::Process)
    }

    fn route(&self, item: &Item) -> Option<(Node, Node)> {
        match *item {
            Item::Deliver(link, _) => Some((Node::Server, self.connections[link.connection].node)),
            Item::Get { by, machine, .. } => Some((self.node(by)?, Node::Machine(machine))),
            Item::Bring {
                client, machine, ..
            } => Some((Node::Client(client), Node::Machine(machine))),
            _ => None,
        }
    }

    fn step(&mut self, item: Item) -> Result<(), String> {
        match item {
            Item::Deliver(link, message) => self.deliver(link, message),
            Item::ServerTick => self.server_tick(),
            Item::Heartbeat(pid) => self.heartbeat(pid),
            Item::Job(pid, object) => self.job(pid, object),
            Item::Get {
                by,
                request,
                machine,
                worker,
                object,
            } => self.serve(by, request, machine, worker, object),
            Item::Got {
                by,
                request,
                copied,
            } => self.got(by, request, copied),
            Item::GetTimeout { by, request } => self.got(by, request, None),
            Item::Bring {
                client,
                name,
                machine,
                worker,
                object,
                key,
            } => self.bring((client, name), machine, worker, object, key),
            Item::Brought {
                client,
                name,
                worker,
            } => self.brought(client, name, worker, true),
            Item::ClientDue(client) => self.client_due(client),
            Item::Act(client) => self.act(client),
            Item::Batch(client) => self.next_batch(client),
            Item::Fault(index) => self.fault(self.plan.faults[index].1),
            Item::Start(machine) => {
                self.start_process(machine);
                Ok(())
            }
            Item::MemoryFree(pid) => self.memory(pid, false),
            Item::Planes => self.planes_due(),
            Item::Leave(client) => {
                self.leave(client);
                Ok(())
            }
        }
    }

    fn is_over(&mut self) -> bool {
        let quiet = self.kernel.quiet();
        self.kernel.now() > HEALED
            && quiet > QUIET
            && self.are_workers_there()
            && (quiet > PATIENCE || self.is_resolved())
    }

    fn unresolved(&self) -> String {
        Self::unresolved(self)
    }
}

impl kernel::Item for Item {
    fn is_periodic(&self) -> bool {
        match self {
            Self::ServerTick | Self::Heartbeat(_) => true,
            Self::Deliver(_, message) => message.is_periodic(),
            _ => false,
        }
    }
}
