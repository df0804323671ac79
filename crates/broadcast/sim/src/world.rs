//! The world: nodes, the scheduler's part, and what happens next.

mod faults;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use treadle_broadcast::{CastId, Effects, Event, Me, Member, Message, Neighbour, Relay, Runs};
use treadle_types::{ClientId, WorkerId};

use crate::host::Stored;
use crate::network::{Body, Connection};
use crate::oracle::Oracle;
use crate::plan::{Action, Fault, Node, Plan};
use treadle_sim_kernel::{self as kernel, Kernel, Line, Random, Trace, World as _, mix};

/// A process, by position.
pub(crate) type Pid = usize;

treadle_sim_kernel::counters! {
/// What happened in a simulation.
pub struct Summary {
    /// Things that happened.
    pub steps: u64,
    pub casts: u64,
    /// Runs of engines.
    pub runs: u64,
    /// Results by outcome.
    pub finished: u64,
    /// Aborted members.
    pub aborted: u64,
    /// Those of them that were told while what came before ran.
    pub early: u64,
    /// Members without memory.
    pub refused: u64,
    /// Members that are gone.
    pub lost: u64,
    /// Members that nobody could reach.
    pub unreachable: u64,
    /// Offers that repair something.
    pub repairs: u64,
    /// Members that were given back.
    pub declined: u64,
    /// Questions to the top through the scheduler.
    pub asked: u64,
    /// Messages of the dead that were refused.
    pub dead: u64,
    /// Times at which a child asked for a payload.
    pub wanted: u64,
    /// Text that came to a client.
    pub outputs: u64,
}
}

/// What is to happen.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Event(Pid, Event),
    /// A change of the connection between a process and another, of this generation.
    Link(Pid, Pid, u32, Event),
    Deliver(Pid, Pid, u32, Message, Body),
    Dial(Pid, Pid),
    RunBegins(Pid, CastId),
    RunEnds(Pid, CastId),
    Timer(Pid),
    Act(usize, Action),
    Fault(Fault),
    Join(u32),
    Wake(Pid),
    Declare(Pid),
    Stranger(Pid),
    Ask(Pid, ClientId),
}

/// A node.
pub(crate) struct Process {
    pub(crate) relay: Relay,
    pub(crate) neighbour: Neighbour,
    pub(crate) host: Option<u32>,
    pub(crate) is_alive: bool,
    pub(crate) uplink: Line,
    /// Messages and bytes.
    pub(crate) sent: (u64, u64),
    pub(crate) received: (u64, u64),
    timer: Option<Duration>,
    pub(crate) payloads: BTreeMap<CastId, Stored>,
    pub(crate) results: BTreeMap<(CastId, u64), u64>,
    /// What the engine was given, and whether it has begun.
    pub(crate) running: Option<CastId>,
    pub(crate) has_begun: bool,
    /// Unordered casts that run.
    pub(crate) unordered: BTreeSet<CastId>,
    /// Of whom it knows that they are gone.
    pub(crate) dead: BTreeSet<Neighbour>,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) kernel: Kernel<Item, Pid>,
    pub(crate) procs: Vec<Process>,
    pub(crate) by_neighbour: BTreeMap<Neighbour, Pid>,
    /// The processes of the clients, by position.
    clients: Vec<Pid>,
    /// Engines that clients know, in the order of their ids.
    pub(crate) members: Vec<Member>,
    workers: u32,
    declared: BTreeSet<Pid>,
    pub(crate) connections: BTreeMap<(Pid, Pid), Connection>,
    pub(crate) severed: BTreeSet<((Pid, Pid), u32)>,
    pub(crate) oracle: Oracle,
    pub(crate) summary: Summary,
}

/// Simulates what a seed decides.
///
/// # Errors
/// What went wrong, for people.
pub fn simulate(seed: u64, trace: Trace) -> Result<Summary, String> {
    simulate_plan(Plan::new(seed), trace)
}

/// Simulates a plan.
///
/// # Errors
/// What went wrong, for people.
pub fn simulate_plan(plan: Plan, trace: Trace) -> Result<Summary, String> {
    run(plan, trace).map(|world| world.summary)
}

/// Simulates a plan, and returns what is there in the end.
///
/// # Errors
/// What went wrong, for people.
pub(crate) fn run(plan: Plan, trace: Trace) -> Result<World, String> {
    let mut world = World::new(plan, trace);
    world.simulate(World::live)?;
    Ok(world)
}

impl World {
    fn new(plan: Plan, trace: Trace) -> Self {
        Self {
            kernel: Kernel::new(Random::new(plan.seed), trace),
            oracle: Oracle::new(plan.is_faultless, plan.config.processors > 0),
            plan,
            procs: Vec::new(),
            by_neighbour: BTreeMap::new(),
            clients: Vec::new(),
            members: Vec::new(),
            workers: 0,
            declared: BTreeSet::new(),
            connections: BTreeMap::new(),
            severed: BTreeSet::new(),
            summary: Summary::default(),
        }
    }

    fn begin(&mut self) {
        for (index, host) in self.plan.clients.clone().into_iter().enumerate() {
            let session = ClientId(index as u32);
            let me = Me::Top { session, host };
            let pid = self.spawn(me, Neighbour::Top(session), host);
            self.clients.push(pid);
        }
        for host in self.plan.engines.clone() {
            self.add_engine(host);
        }
        let members = self.members.clone();
        for pid in self.clients.clone() {
            let event = Event::Introduce(members.clone());
            self.kernel
                .schedule(Duration::ZERO, Item::Event(pid, event));
        }
        for (at, client, action) in self.plan.actions.clone() {
            self.kernel.schedule_at(at, Item::Act(client, action));
        }
        for (at, fault) in self.plan.faults.clone() {
            self.kernel.schedule_at(at, Item::Fault(fault));
        }
        for (at, host) in self.plan.joins.clone() {
            self.kernel.schedule_at(at, Item::Join(host));
        }
    }

    fn spawn(&mut self, me: Me, neighbour: Neighbour, host: Option<u32>) -> Pid {
        let pid = self.procs.len();
        self.procs.push(Process {
            relay: Relay::new(me, self.plan.config.clone()),
            neighbour,
            host,
            is_alive: true,
            uplink: Line::default(),
            sent: (0, 0),
            received: (0, 0),
            timer: None,
            payloads: BTreeMap::new(),
            results: BTreeMap::new(),
            running: None,
            has_begun: false,
            unordered: BTreeSet::new(),
            dead: BTreeSet::new(),
        });
        self.by_neighbour.insert(neighbour, pid);
        pid
    }

    fn add_engine(&mut self, host: u32) -> Member {
        // Ids have holes: other workers are no engines.
        if !self.plan.is_faultless && self.kernel.random.chance(10) {
            self.workers += 1;
        }
        let worker = WorkerId(self.workers);
        self.workers += 1;
        let address = Arc::from("somewhere");
        let member = Member {
            worker,
            host,
            address,
        };
        self.members.push(member.clone());
        let me = Me::Engine(member.clone());
        self.spawn(me, Neighbour::Worker(worker), Some(host));
        member
    }

    /// Until everything is over.
    fn live(&mut self) -> Result<(), String> {
        self.begin();
        self.run()?;
        self.summary.steps = self.kernel.steps();
        self.summary.early = self.oracle.early;
        self.oracle.end(self)
    }

    fn link(&mut self, pid: Pid, other: Pid, generation: u32, event: Event) -> Result<(), String> {
        let key = (pid.min(other), pid.max(other));
        match &event {
            // A connection that broke before it was seen is none.
            Event::Connected(_) if self.severed.contains(&(key, generation)) => {
                if let Neighbour::Worker(worker) = self.procs[other].neighbour {
                    return self.handle(pid, Event::Unreachable(worker), Body::None);
                }
                Ok(())
            }
            event => {
                if matches!(event, Event::Connected(_)) {
                    self.see(pid, other, generation);
                }
                self.handle(pid, event.clone(), Body::None)
            }
        }
    }

    fn hear(&mut self, from: Pid, pid: Pid, message: Message, body: Body) -> Result<(), String> {
        match &message {
            Message::Offer(offer) if !offer.fresh => self.summary.repairs += 1,
            Message::Decline { members, .. } => self.summary.declined += members.len(),
            Message::Want { .. } => self.summary.wanted += 1,
            _ => {}
        }
        let who = self.procs[from].neighbour;
        if let Message::Chunk {
            cast,
            offset,
            length,
        } = &message
            && self.procs[pid]
                .relay
                .wants_chunk(who, *cast, *offset, *length)
        {
            self.procs[pid].fill(*cast, *offset, *length, &body)?;
        }
        self.handle(pid, Event::Message(who, message), body)
    }

    /// A node takes an event in, and the host around it acts.
    pub(crate) fn handle(&mut self, pid: Pid, event: Event, body: Body) -> Result<(), String> {
        let mut events = VecDeque::from([(event, body)]);
        while let Some((event, body)) = events.pop_front() {
            let neighbour = self.procs[pid].neighbour;
            self.kernel.tell(|| format!("{neighbour:?}: {event:?}"));
            let from = match &event {
                Event::Message(from, _) => Some(*from),
                _ => None,
            };
            let mut effects = Effects::default();
            let (process, now) = (&mut self.procs[pid], self.kernel.now());
            if let Err(violation) = process.relay.handle(event, now, &mut effects) {
                let sender = from.and_then(|from| self.by_neighbour.get(&from).copied());
                let is_dead = sender.is_some_and(|sender| {
                    self.declared.contains(&sender) || !self.procs[sender].is_alive
                });
                if !is_dead {
                    return Err(format!("{}: {violation}", self.name(pid)));
                }
                self.summary.dead += 1;
            }
            if self.plan.checks {
                self.procs[pid].relay.check()?;
            }
            for effect in effects.0 {
                self.kernel.tell(|| format!("{effect:?}"));
                self.act(pid, effect, &body, &mut events)?;
            }
        }
        self.set_timer(pid);
        Ok(())
    }

    pub(crate) fn name(&self, pid: Pid) -> String {
        format!("{:?}", self.procs[pid].neighbour)
    }

    fn set_timer(&mut self, pid: Pid) {
        let Some(at) = self.procs[pid].relay.next_deadline() else {
            return;
        };
        let at = at.max(self.kernel.now());
        if self.procs[pid].timer.is_none_or(|timer| at < timer) {
            self.procs[pid].timer = Some(at);
            self.kernel.schedule_at(at, Item::Timer(pid));
        }
    }

    fn act_client(&mut self, client: usize, action: Action) -> Result<(), String> {
        let pid = self.clients[client];
        if !self.procs[pid].is_alive {
            return Ok(());
        }
        let session = ClientId(client as u32);
        match action {
            Action::Cast { percent, size } => {
                if !self.procs[pid].relay.has_room() {
                    let again = Item::Act(client, action);
                    self.kernel.schedule(Duration::from_millis(5), again);
                    return Ok(());
                }
                let dead = &self.procs[pid].dead;
                let lives = |member: &&Member| !dead.contains(&Neighbour::Worker(member.worker));
                let known = self.members.iter().filter(lives);
                let known: Vec<u64> = known.map(|member| u64::from(member.worker.0)).collect();
                let mut chosen = match percent {
                    100 => known.clone(),
                    percent => self.kernel.random.some(&known, percent),
                };
                if chosen.is_empty() && !known.is_empty() {
                    chosen.push(self.kernel.random.pick(&known));
                }
                let members: Runs = chosen.into_iter().collect();
                let number = self.procs[pid].relay.next_number();
                let cast = CastId { session, number };
                self.summary.casts += 1;
                let draw = mix(self.plan.seed ^ mix(u64::from(session.0) << 40 | number));
                let unordered = draw % 100 < self.plan.unordered;
                let (to, now) = (&members, self.kernel.now());
                self.oracle.cast(cast, (size, unordered), to, now);
                let stored = Stored::whole(cast, size);
                self.procs[pid].payloads.insert(cast, stored);
                let event = Event::Cast {
                    number,
                    members,
                    size,
                    unordered,
                    tree: self.plan.tree,
                };
                self.handle(pid, event, Body::None)
            }
            Action::Abort { interrupt } => {
                let open = self.oracle.open(session);
                if open.is_empty() {
                    return Ok(());
                }
                let number = self.kernel.random.pick(&open);
                self.oracle
                    .abort(CastId { session, number }, self.kernel.now());
                self.handle(pid, Event::Abort { number, interrupt }, Body::None)
            }
        }
    }

    /// The engine at a position, among those that live.
    fn engine(&self, position: usize) -> Option<Pid> {
        let lives = |pid: &Pid| {
            let process = &self.procs[*pid];
            process.is_alive && matches!(process.neighbour, Neighbour::Worker(_))
        };
        let engines: Vec<_> = (0..self.procs.len()).filter(lives).collect();
        (!engines.is_empty()).then(|| engines[position % engines.len()])
    }

    fn node(&self, node: Node) -> Option<Pid> {
        match node {
            Node::Engine(position) => self.engine(position),
            Node::Client(client) => Some(self.clients[client]),
        }
    }

    /// A node asks a client through the scheduler.
    fn ask(&mut self, pid: Pid, session: ClientId) {
        let client = self.by_neighbour[&Neighbour::Top(session)];
        let wait = self.kernel.random.micros(100, 5_000);
        let event = if self.declared.contains(&client) {
            Event::ClientGone(session)
        } else if self.procs[client].is_alive {
            let settled = self.procs[client].relay.settled(session);
            Event::Settled { session, settled }
        } else {
            return;
        };
        self.kernel.schedule(wait, Item::Event(pid, event));
    }
}

impl kernel::World for World {
    type Item = Item;
    type Node = Pid;
    const LIMIT: (Duration, u64) = (Duration::from_secs(1_000), 50_000_000);

    fn kernel(&self) -> &Kernel<Item, Pid> {
        &self.kernel
    }

    fn kernel_mut(&mut self) -> &mut Kernel<Item, Pid> {
        &mut self.kernel
    }

    fn process(&self, item: &Item) -> Option<Pid> {
        match item {
            Item::Event(pid, _)
            | Item::Link(pid, ..)
            | Item::Deliver(_, pid, ..)
            | Item::RunBegins(pid, _)
            | Item::RunEnds(pid, _)
            | Item::Timer(pid) => Some(*pid),
            _ => None,
        }
    }

    fn step(&mut self, item: Item) -> Result<(), String> {
        if self
            .process(&item)
            .is_some_and(|pid| !self.procs[pid].is_alive)
        {
            return Ok(());
        }
        match item {
            Item::Event(pid, event) => {
                if let Event::Gone(worker, _) = &event {
                    let dead = Neighbour::Worker(*worker);
                    self.procs[pid].dead.insert(dead);
                }
                self.handle(pid, event, Body::None)
            }
            Item::Link(pid, other, generation, event) => self.link(pid, other, generation, event),
            Item::Deliver(from, pid, generation, message, body) => {
                if !self.arrives(from, pid, generation, &message) {
                    return Ok(());
                }
                self.hear(from, pid, message, body)
            }
            Item::Dial(from, to) => {
                self.dialled(from, to);
                Ok(())
            }
            Item::RunBegins(pid, cast) => self.run_begins(pid, cast),
            Item::RunEnds(pid, cast) => self.run_ends(pid, cast),
            Item::Timer(pid) => {
                let process = &mut self.procs[pid];
                process.timer = None;
                match process.relay.next_deadline() {
                    Some(at) if at <= self.kernel.now() => {
                        self.handle(pid, Event::Tick, Body::None)
                    }
                    _ => {
                        self.set_timer(pid);
                        Ok(())
                    }
                }
            }
            Item::Act(client, action) => self.act_client(client, action),
            Item::Fault(fault) => {
                self.fault(fault);
                Ok(())
            }
            Item::Join(host) => self.join(host),
            Item::Wake(pid) => {
                self.wake(pid);
                Ok(())
            }
            Item::Declare(pid) => {
                self.declare(pid);
                Ok(())
            }
            Item::Stranger(pid) => {
                let host = self.procs[pid].host.expect("engines have hosts");
                self.kill(pid);
                self.join(host)
            }
            Item::Ask(pid, session) => {
                self.ask(pid, session);
                Ok(())
            }
        }
    }

    fn unresolved(&self) -> String {
        self.oracle.end(self).err().unwrap_or_default()
    }
}

impl kernel::Item for Item {}
