//! The virtual clock: what happens when, and at whom.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use treadle_types::{ObjectId, WorkerId};

use crate::client::Client;
use crate::network::{Connection, Link, Message};
use crate::oracle::Oracle;
use crate::plan::{Fault, HEALED, Mutation, Node, Plan};
use crate::process::Process;
use crate::random::Random;
use crate::server::Server;
use crate::universe::Key;

/// Every simulation must be over by then.
const DEADLINE: Duration = Duration::from_secs(300);
/// What is done stays so for so long before a simulation counts as over.
const QUIET: Duration = Duration::from_millis(400);
/// For so long nothing but the clock may move before a simulation counts as hanging: longer than the
/// scheduler remembers a cut between two workers, and than its patience.
const PATIENCE: Duration = Duration::from_secs(8);
/// A simulation with so many steps goes round in circles.
const STEPS: u64 = 300_000;

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
    Deliver(Link, Message),
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
        machine: usize,
        worker: WorkerId,
        object: ObjectId,
        key: Key,
    },
    BringTimeout {
        client: usize,
        key: Key,
        attempt: u64,
    },
    Act(usize),
    Batch(usize),
    Fault(usize),
    Start(usize),
    MemoryFree(Pid),
    Leave(usize),
}

/// What a simulation amounted to.
#[derive(Clone, Copy, Debug, Default)]
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
    /// Runs of tasks that asked to run elsewhere.
    pub given_back: u64,
    /// Values that could not be sent.
    pub immovable: u64,
    /// Tasks that were taken back before they had started.
    pub retracted: u64,
    /// Tasks that were cancelled while they ran.
    pub interrupted: u64,
    /// Values that clients were asked to bring again, and did.
    pub again: u64,
    /// Values that could not be read any more.
    pub gone: u64,
    /// Tasks that ran again since what they did beside their value was gone.
    pub redone: u64,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    pub(crate) mutation: Mutation,
    pub(crate) trace: bool,
    pub(crate) now: Duration,
    number: u64,
    agenda: BTreeMap<(Duration, u64), Item>,
    /// Items on the agenda that do not come again and again.
    busy: u64,
    quiet_since: Duration,
    pub(crate) connections: Vec<Connection>,
    /// Until when nothing gets through.
    pub(crate) cuts: BTreeMap<(Node, Node), Duration>,
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
    pub(crate) summary: Summary,
}

/// Runs the simulation of a seed. An error says what went wrong.
///
/// # Errors
/// The first invariant that did not hold.
pub fn simulate(seed: u64, mutation: Mutation, trace: bool) -> Result<Summary, String> {
    let plan = Plan::draw(&mut Random::new(seed), mutation);
    if trace {
        println!("{plan:#?}");
    }
    let mut world = World::new(plan, seed, mutation, trace);
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(result) => result.map(|()| world.summary),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("?")))
        }
    }
    .map_err(|error| format!("at {:?}: {error}", world.now))
}

impl World {
    fn new(plan: Plan, seed: u64, mutation: Mutation, trace: bool) -> Self {
        let mut world = Self {
            server: Server::new(&plan),
            oracle: Oracle::new(&plan),
            // Another stream than the plan's, so that a change here leaves the plans alone.
            random: Random::new(!seed),
            mutation,
            trace,
            now: Duration::ZERO,
            number: 0,
            agenda: BTreeMap::new(),
            busy: 0,
            quiet_since: Duration::ZERO,
            connections: Vec::new(),
            cuts: BTreeMap::new(),
            processes: BTreeMap::new(),
            next_pid: 0,
            current: vec![None; plan.machines.len()],
            places: BTreeMap::new(),
            clients: Vec::new(),
            next_request: 0,
            summary: Summary::default(),
            plan,
        };
        world.schedule(Duration::ZERO, Item::ServerTick);
        for machine in 0..world.plan.machines.len() {
            let delay = world.random.micros(0, world.plan.starts);
            world.schedule(delay, Item::Start(machine));
        }
        for client in 0..world.plan.clients.len() {
            let starts = world.plan.clients[client];
            world.clients.push(Client::new(&world.plan.habits));
            world.schedule(starts, Item::Act(client));
            if world.random.chance(world.plan.habits.leaves) {
                let leaves = starts + world.random.micros(0, 1_500_000);
                world.schedule(leaves, Item::Leave(client));
            }
        }
        for index in 0..world.plan.faults.len() {
            let at = world.plan.faults[index].0;
            world.schedule(at, Item::Fault(index));
        }
        world
    }

    /// Schedules something `delay` from now.
    pub(crate) fn schedule(&mut self, delay: Duration, item: Item) {
        self.schedule_at(self.now + delay, item);
    }

    pub(crate) fn schedule_at(&mut self, at: Duration, item: Item) {
        self.busy += u64::from(!item.is_periodic());
        self.number += 1;
        self.agenda.insert((at.max(self.now), self.number), item);
    }

    fn run(&mut self) -> Result<(), String> {
        self.settle()?;
        self.verify_results()?;
        for client in 0..self.clients.len() {
            self.schedule(Duration::ZERO, Item::Leave(client));
        }
        self.settle()?;
        self.summary.redone = self.oracle.redone;
        self.verify_emptiness()
    }

    /// Goes on until nothing moves any more.
    fn settle(&mut self) -> Result<(), String> {
        self.quiet_since = self.now;
        while let Some(((at, number), item)) = self.agenda.pop_first() {
            self.now = at;
            if let Some(until) = self.held_until(&item) {
                // The number keeps the order of what waits.
                self.agenda.insert((until, number), item);
                continue;
            }
            let is_periodic = item.is_periodic();
            self.busy -= u64::from(!is_periodic);
            if self.trace && !is_periodic {
                println!("{at:>12?} {item:?}");
            }
            self.summary.steps += 1;
            self.step(item)?;
            if !is_periodic || self.busy > 0 {
                self.quiet_since = self.now;
            }
            let quiet = self.now - self.quiet_since;
            if self.now > HEALED
                && quiet > QUIET
                && self.are_workers_there()
                && (quiet > PATIENCE || self.is_resolved())
            {
                return Ok(());
            }
            if self.now > DEADLINE || self.summary.steps > STEPS {
                return Err(format!("goes round in circles: {}", self.unresolved()));
            }
        }
        Err("nothing more happens".into())
    }

    /// Until when something waits, since the network is cut or the process that it concerns stopped.
    fn held_until(&self, item: &Item) -> Option<Duration> {
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
        let paused = process
            .and_then(|pid| self.processes.get(&pid))
            .map(|process| process.paused_until);
        let cut = self
            .route(item)
            .and_then(|(one, other)| self.cut(one, other));
        paused.max(cut).filter(|&until| until > self.now)
    }

    /// The nodes between which something travels.
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

    pub(crate) fn node(&self, party: Party) -> Option<Node> {
        match party {
            Party::Process(pid) => Some(Node::Machine(self.processes.get(&pid)?.machine)),
            Party::Client(client) => Some(Node::Client(client)),
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
                machine,
                worker,
                object,
                key,
                ..
            } => self.bring(machine, worker, object, key),
            Item::BringTimeout {
                client,
                key,
                attempt,
            } => {
                self.bring_timeout(client, key, attempt);
                Ok(())
            }
            Item::Act(client) => self.act(client),
            Item::Batch(client) => {
                self.next_batch(client);
                Ok(())
            }
            Item::Fault(index) => self.fault(self.plan.faults[index].1),
            Item::Start(machine) => {
                self.start_process(machine);
                Ok(())
            }
            Item::MemoryFree(pid) => self.memory(pid, false),
            Item::Leave(client) => {
                self.leave(client);
                Ok(())
            }
        }
    }

    fn fault(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Kill { machine, loses } => {
                if let Some(pid) = self.current[machine] {
                    let delay = self.random.micros(0, 50_000);
                    self.kill(pid, loses, delay);
                    let delay = self.random.micros(1_000, 1_500_000);
                    self.schedule(delay, Item::Start(machine));
                }
            }
            Fault::Reregister { machine, lingers } => {
                if let Some(pid) = self.current[machine] {
                    self.kill(pid, false, lingers);
                    self.start_process(machine);
                }
            }
            Fault::Pause { machine, length } => {
                let until = self.now + length;
                if let Some(process) = self.process_at(machine) {
                    process.paused_until = process.paused_until.max(until);
                }
            }
            Fault::Cut { between, length } => {
                let until = self.now + length;
                let (one, other) = between;
                let cut = self.cuts.entry((one.min(other), one.max(other)));
                let cut = cut.or_insert(until);
                *cut = until.max(*cut);
            }
            Fault::Drain { machine } => self.drain(machine)?,
            Fault::Unreadable { machine, percent } => {
                let Self {
                    random,
                    processes,
                    current,
                    ..
                } = self;
                let process = current[machine].and_then(|pid| processes.get_mut(&pid));
                for stored in process
                    .into_iter()
                    .flat_map(|process| process.store.values_mut())
                {
                    stored.is_readable &= !random.chance(percent);
                }
            }
            Fault::Memory { machine, length } => {
                if let Some(pid) = self.current[machine] {
                    self.memory(pid, true)?;
                    self.schedule(length, Item::MemoryFree(pid));
                }
            }
            Fault::Invalidate => self.invalidate()?,
            Fault::Restart => self.restart()?,
        }
        Ok(())
    }

    pub(crate) fn process_at(&mut self, machine: usize) -> Option<&mut Process> {
        self.processes.get_mut(&self.current[machine]?)
    }

    /// Says something about what happens, in the trace.
    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>12}     {}", "", what());
        }
    }
}

impl Item {
    /// Whether it comes again and again, whatever happens.
    fn is_periodic(&self) -> bool {
        match self {
            Self::ServerTick | Self::Heartbeat(_) => true,
            Self::Deliver(_, message) => message.is_periodic(),
            _ => false,
        }
    }
}
