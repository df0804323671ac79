//! The world: processes, the head, and what happens next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_shuffle::{
    ConnectionId, FromServer, GroupId, LinkId, MapRange, Master, Push, ReaderEvent, ServerEvent,
    ServerId, ShuffleId, ToServer, Transfer,
};
use treadle_types::Runs;

use crate::data::{Batch, Source};
use crate::engine::{Down, Head, Up};
use crate::masters::{self, Link};
use crate::network::Connection;
use crate::plan::{Fault, Plan};
use crate::process::Process;
use crate::store::{CopyName, RemoteStore};
use crate::tasks::{Job, Rows, Task};
use treadle_sim_kernel::{self as kernel, Kernel, Random, Trace, World as _};

/// A process, by position.
pub(super) type Pid = usize;

treadle_sim_kernel::counters! {
    /// What happened in simulations.
    pub struct Summary {
        /// Events.
        pub steps: u64,
        /// Jobs whose outputs were all right.
        pub finished: u64,
        /// Jobs that were cancelled, or failed by name.
        pub failed: u64,
        /// Transfers that ended well.
        pub transfers: u64,
        /// Shares of receipts that name batches of an earlier attempt.
        pub reused: u64,
        /// Outputs that were read.
        pub outputs: u64,
        /// Messages with several pushes.
        pub together: u64,
        /// Times at which several reads of a reader begin at once.
        pub neighbours: u64,
        /// Batches that servers took in.
        pub batches: u64,
        /// Runs that servers began to write.
        pub spills: u64,
        /// Those that went to the remote store.
        pub uploads: u64,
        /// Copies that were given up, since one is in the remote store, and those that were adopted from there.
        pub inventories: u64,
        pub adopted: u64,
        /// Runs that could not be written.
        pub full_disks: u64,
        /// Parts of runs that were read.
        pub loads: u64,
        /// Those of some maps only.
        pub ranged: u64,
        /// Workers that were declared lost.
        pub losses: u64,
        /// Times at which tasks were invalidated.
        pub invalidations: u64,
        /// Batches, and reads of files, that were damaged.
        pub damages: u64,
        /// Copies in the remote store that could be adopted in part only.
        pub in_part: u64,
        /// Times at which rows were found not to be what they should.
        pub repairs: u64,
        /// Times at which a server had other room, also none.
        pub weighed: u64,
        /// Jobs that were given up without a word.
        pub vanished: u64,
        /// Times at which a copy had been sent to another server.
        pub fills: u64,
        /// Plans with a group that is closed, of shuffles that did not have one before.
        pub epochs: u64,
        /// Times at which a map was found not to be deterministic.
        pub differences: u64,
        /// Attempts that came after the commit, with other rows.
        pub late: u64,
        /// Tasks that were given back.
        pub given_back: u64,
        /// Masters that ended in the middle.
        pub orphaned: u64,
        /// Masters that a server did not serve any more, or not yet.
        pub dismissed: u64,
        /// What masters said about the shuffles of others.
        pub strays: u64,
        /// Transfers that raised.
        pub raised: u64,
        /// Connections that broke, or could not be made.
        pub unreached: u64,
    }
}

/// What is to happen.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Begin(usize),
    Release(usize),
    Cancel(usize),
    Up(usize, ServerId, Up),
    /// With what the process is called by who says it.
    Down(Pid, ServerId, Down),
    Connected(ConnectionId),
    Request(ConnectionId, ToServer),
    Reply(ConnectionId, FromServer, Option<Rows>),
    Admitted(ConnectionId, Push),
    Bytes(ConnectionId, Push, Option<Batch>),
    Broken(ConnectionId, bool),
    Unreached(Pid, ServerId),
    Gather(Pid, Transfer),
    Gathered(Pid, Transfer, GroupId, Runs),
    Together(Pid),
    Fetches(Pid),
    Spilled(Pid, u64),
    InventoryWritten(Pid, u64),
    InventoryRead(Pid, CopyName, u64, u64),
    Loaded(Pid, (u64, u64), u32, Option<MapRange>),
    Sent(Pid, u64),
    Unstuck(Pid),
    Raise(Pid, Task, u64),
    CancelRead(Pid, u64),
    Timer(Pid, Duration),
    Fault(Fault),
    Lost(usize, ServerId),
    Leave(ServerId),
    /// A process learns that it was declared lost.
    Stranger(Pid),
    Start(u32),
    Heartbeat(usize),
    Expire,
    BeginMaster(usize),
    /// A master connects to the server at a place, and says that it is there.
    Call(usize, u32),
    Beat(usize),
    /// To a server.
    Governed(Pid, LinkId),
    Heard(Pid, LinkId),
    Ungoverned(Pid, LinkId),
}

impl kernel::Item for Item {}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) kernel: Kernel<Item, u32>,
    pub(super) heads: Vec<Head>,
    /// The one in which something happens.
    pub(super) at: usize,
    pub(super) jobs: Vec<Job>,
    pub(super) procs: Vec<Process>,
    pub(super) by_id: BTreeMap<ServerId, Pid>,
    /// Who is at a place now, or was last.
    pub(super) places: BTreeMap<u32, Pid>,
    pub(super) connections: BTreeMap<ConnectionId, Connection>,
    pub(super) next_connection: u64,
    /// Connections of masters, where each application has one.
    pub(super) links: BTreeMap<LinkId, Link>,
    pub(super) names: u32,
    pub(super) disturbed: Option<String>,
    /// What is in the remote store.
    pub(super) store: RemoteStore,
    /// What the maps of each shuffle hold.
    pub(super) sources: BTreeMap<ShuffleId, Source>,
    /// What processes say to an engine that is not of this world, in order.
    pub(super) said: Option<Vec<(ServerId, Up)>>,
    pub(super) summary: Summary,
}

/// Simulates what a seed decides.
///
/// # Errors
/// What went wrong, for people.
pub fn simulate(seed: u64, trace: Trace) -> Result<Summary, String> {
    simulate_plan(Plan::new(seed), trace)
}

/// Simulates what a seed decides for the stand-alone service.
///
/// # Errors
/// What went wrong, for people.
pub fn simulate_service(seed: u64, trace: Trace) -> Result<Summary, String> {
    simulate_plan(Plan::service(seed), trace)
}

/// Simulates what a seed decides for the stand-alone service with a remote store.
///
/// # Errors
/// What went wrong, for people.
pub fn simulate_remote(seed: u64, trace: Trace) -> Result<Summary, String> {
    simulate_plan(Plan::remote(seed), trace)
}

/// Simulates what a seed decides for the stand-alone service, whose writers say several pushes together.
///
/// # Errors
/// What went wrong, for people.
pub fn simulate_together(seed: u64, trace: Trace) -> Result<Summary, String> {
    simulate_plan(Plan::together(seed), trace)
}

/// Simulates what a seed decides for applications with masters of their own on the same servers.
///
/// # Errors
/// What went wrong, for people.
pub fn simulate_masters(seed: u64, trace: Trace) -> Result<Summary, String> {
    simulate_plan(Plan::masters(seed), trace)
}

/// Simulates a plan.
///
/// # Errors
/// What went wrong, for people.
pub fn simulate_plan(plan: Plan, trace: Trace) -> Result<Summary, String> {
    let mut world = World::new(plan, trace);
    world.simulate(|world| {
        world.begin();
        world.run()?;
        world.end()
    })?;
    world.summary.steps = world.kernel.steps();
    Ok(world.summary)
}

impl kernel::World for World {
    type Item = Item;
    type Node = u32;
    const LIMIT: (Duration, u64) = (Duration::from_secs(100), 1_000_000);

    fn kernel(&self) -> &Kernel<Item, u32> {
        &self.kernel
    }

    fn kernel_mut(&mut self) -> &mut Kernel<Item, u32> {
        &mut self.kernel
    }

    fn process(&self, item: &Item) -> Option<u32> {
        if let Some(head) = self.head_of(item) {
            return self.is_shared().then(|| masters::node(head));
        }
        let pid = self.owner(item)?;
        let process = &self.procs[pid];
        process.is_alive.then_some(process.id.node)
    }

    fn step(&mut self, item: Item) -> Result<(), String> {
        if self
            .owner(&item)
            .is_some_and(|pid| !self.procs[pid].is_alive)
        {
            return Ok(());
        }
        if let Some(head) = self.head_of(&item) {
            self.at = head;
            if !self.heads[head].is_there && !matches!(item, Item::BeginMaster(_)) {
                return Ok(());
            }
        }
        self.happens(item)?;
        self.disturbed.take().map_or(Ok(()), Err)
    }

    fn unresolved(&self) -> String {
        self.open_tasks()
    }
}

impl World {
    fn happens(&mut self, item: Item) -> Result<(), String> {
        match item {
            Item::Begin(job) => self.begin_job(job),
            Item::Release(job) => self.release_job(job),
            Item::Cancel(job) => self.end_job(job, Err("cancelled".into())),
            Item::Up(_, from, up) => self.head_hears(from, up),
            Item::Down(pid, to, down) => self.process_hears(pid, to, down),
            Item::Connected(id) => {
                let connection = &self.connections[&id];
                let (pid, client) = (connection.server, connection.client);
                let (from, member) = (id, self.procs[client].id);
                self.server(pid, ServerEvent::Connected { from, member })
            }
            Item::Request(id, message) => {
                let connection = &self.connections[&id];
                let (is_open, pid) = (connection.is_open, connection.server);
                match (is_open, message) {
                    (true, ToServer::Fetch(fetch)) if self.plan.together => {
                        self.fetched(pid, id, fetch);
                        Ok(())
                    }
                    (true, message) => self.server(pid, ServerEvent::Message { from: id, message }),
                    (false, _) => Ok(()),
                }
            }
            Item::Fetches(pid) => self.fetch_together(pid),
            Item::Reply(id, message, rows) => {
                let connection = &self.connections[&id];
                if !connection.is_open {
                    return Ok(());
                }
                let (pid, from) = (connection.client, connection.target);
                if matches!(message, FromServer::Rows { .. }) {
                    self.taken(id);
                }
                let partition = match &message {
                    FromServer::Rows { read, .. } => self.partition_of(pid, *read),
                    _ => None,
                };
                self.replied(pid, from, message, rows, partition)
            }
            Item::Admitted(id, push) => {
                if self.connections[&id].is_open {
                    self.admitted(id, push);
                }
                Ok(())
            }
            Item::Bytes(id, push, batch) => match self.connections[&id].is_open {
                true => self.bytes(id, push, batch),
                false => Ok(()),
            },
            Item::Broken(id, is_client) => self.broken(id, is_client),
            Item::Unreached(pid, server) => self.unreached(pid, server),
            Item::Gather(pid, transfer) => self.gather(pid, transfer),
            Item::Gathered(pid, transfer, group, partitions) => {
                self.gathered(pid, transfer, group, &partitions)
            }
            Item::Together(pid) => self.gathered_together(pid),
            Item::Spilled(pid, run) => self.spilled(pid, run),
            Item::InventoryWritten(pid, number) => self.inventory_written(pid, number),
            Item::InventoryRead(pid, copy, first, object) => {
                self.inventory_read(pid, copy, first, object)
            }
            Item::Loaded(pid, load, partition, maps) => self.run_loaded(pid, load, partition, maps),
            Item::Unstuck(pid) => {
                self.procs[pid].stuck.clear();
                self.server(pid, ServerEvent::Stuck(BTreeSet::new()))
            }
            Item::Sent(pid, load) => self.server(pid, ServerEvent::Sent { load }),
            Item::Raise(pid, task, attempt) => self.raise(pid, task, attempt),
            Item::CancelRead(pid, read) => self.reader(pid, ReaderEvent::Cancel(read)),
            Item::Timer(pid, at) => self.timer(pid, at),
            Item::Fault(fault) => self.fault(fault),
            Item::Lost(_, server) => self.worker_lost(server),
            Item::Leave(server) => self.leave(server),
            Item::Stranger(pid) => {
                self.expel(pid);
                Ok(())
            }
            Item::Heartbeat(job) => self.heartbeat(job),
            Item::Expire => self.expire(),
            Item::Start(place) => {
                self.start(place);
                Ok(())
            }
            Item::BeginMaster(_) => {
                self.begin_master();
                Ok(())
            }
            Item::Call(_, place) => {
                self.call(place);
                Ok(())
            }
            Item::Beat(_) => {
                self.beat();
                Ok(())
            }
            Item::Governed(pid, link) => self.governed(pid, link),
            Item::Heard(pid, link) => self.server(pid, ServerEvent::Heard(link)),
            Item::Ungoverned(pid, link) => self.server(pid, ServerEvent::Ungoverned(link)),
        }
    }

    pub(super) fn new(plan: Plan, trace: Trace) -> Self {
        let jobs = plan.jobs.iter().enumerate();
        let jobs: Vec<Job> = jobs.map(|(index, job)| Job::new(index, job)).collect();
        let sources = jobs.iter().flat_map(|job| &job.sources);
        let sources = sources.map(|source| (source.shuffle, *source));
        let is_there = plan.masters.is_empty();
        let heads = (0..plan.masters.len().max(1)).map(|_| {
            let master = Master::new(plan.config.clone());
            Head::new(master, is_there)
        });
        Self {
            kernel: Kernel::new(Random::new(plan.seed), trace),
            heads: heads.collect(),
            at: 0,
            sources: sources.collect(),
            said: None,
            jobs,
            plan,
            procs: Vec::new(),
            by_id: BTreeMap::new(),
            places: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            links: BTreeMap::new(),
            names: 0,
            disturbed: None,
            store: RemoteStore::default(),
            summary: Summary::default(),
        }
    }

    fn begin(&mut self) {
        let places = match self.is_shared() {
            true => self.plan.servers(),
            false => self.plan.places,
        };
        for place in 1..=places {
            self.start(place);
        }
        for (index, application) in self.plan.masters.iter().enumerate() {
            let item = Item::BeginMaster(index);
            self.kernel.schedule_at(application.at, item);
        }
        for (index, job) in self.plan.jobs.iter().enumerate() {
            self.kernel.schedule_at(job.at, Item::Begin(index));
            if let Some(cancel) = job.cancel {
                self.kernel
                    .schedule_at(job.at + cancel, Item::Cancel(index));
            }
        }
        for &(at, fault) in &self.plan.faults {
            self.kernel.schedule_at(at, Item::Fault(fault));
        }
    }

    /// The process in which an item happens.
    fn owner(&self, item: &Item) -> Option<Pid> {
        let connection = |id: &ConnectionId| &self.connections[id];
        match item {
            Item::Down(pid, ..)
            | Item::Governed(pid, _)
            | Item::Heard(pid, _)
            | Item::Ungoverned(pid, _)
            | Item::Unreached(pid, _)
            | Item::Gather(pid, _)
            | Item::Gathered(pid, ..)
            | Item::Together(pid)
            | Item::Fetches(pid)
            | Item::Spilled(pid, _)
            | Item::InventoryWritten(pid, _)
            | Item::InventoryRead(pid, ..)
            | Item::Loaded(pid, ..)
            | Item::Sent(pid, _)
            | Item::Unstuck(pid)
            | Item::Raise(pid, ..)
            | Item::CancelRead(pid, _)
            | Item::Stranger(pid)
            | Item::Timer(pid, _) => Some(*pid),
            Item::Connected(id)
            | Item::Request(id, _)
            | Item::Bytes(id, ..)
            | Item::Broken(id, false) => Some(connection(id).server),
            Item::Reply(id, ..) | Item::Admitted(id, _) | Item::Broken(id, true) => {
                Some(connection(id).client)
            }
            _ => None,
        }
    }

    /// The master in whose process an item happens.
    fn head_of(&self, item: &Item) -> Option<usize> {
        match item {
            Item::Up(head, ..)
            | Item::Lost(head, _)
            | Item::BeginMaster(head)
            | Item::Call(head, _)
            | Item::Beat(head) => Some(*head),
            Item::Begin(job) | Item::Release(job) | Item::Cancel(job) => {
                Some(self.jobs[*job].plan.master)
            }
            _ => None,
        }
    }

    /// A process starts at a place where none is.
    pub(super) fn start(&mut self, place: u32) {
        let before = self.places.get(&place).map(|&pid| &self.procs[pid]);
        if before.is_some_and(|before| before.is_alive) {
            return;
        }
        let incarnation = before.map_or(0, |before| before.id.incarnation) + 1;
        let head = self.plan.master_of(place);
        if head.is_some_and(|head| !self.heads[head].is_there) {
            return;
        }
        let id = match self.is_shared() {
            true => self.name(place),
            false => ServerId {
                node: place,
                incarnation,
            },
        };
        let pid = self.add_process(id, head);
        match head {
            Some(_) => self.up(pid, Up::Joined),
            None => {
                for head in 0..self.heads.len() {
                    self.kernel
                        .schedule(Duration::ZERO, Item::Call(head, place));
                }
            }
        }
    }

    /// A process is there.
    pub(super) fn add_process(&mut self, id: ServerId, head: Option<usize>) -> Pid {
        let pid = self.procs.len();
        let reader = self.plan.reader(id.node);
        let process = Process::new(id, head, reader, &self.plan.config);
        self.procs.push(process);
        self.by_id.insert(id, pid);
        self.places.insert(id.node, pid);
        let budget = ServerEvent::Budget {
            target: self.plan.budget,
            limit: self.plan.budget + self.plan.budget / 2,
        };
        let result = self.server(pid, budget);
        debug_assert!(result.is_ok());
        pid
    }

    /// A process ends at once, without a word.
    pub(super) fn kill(&mut self, pid: Pid) {
        self.procs[pid].is_alive = false;
        self.sever(|connection| connection.client == pid || connection.server == pid);
    }

    /// Two nodes cannot reach each other for so long.
    pub(super) fn cut(&mut self, one: u32, other: u32, length: Duration) {
        self.kernel.cut(one, other, length);
        let procs: Vec<u32> = self.procs.iter().map(|process| process.node).collect();
        self.sever(|connection| {
            let places = (procs[connection.client], procs[connection.server]);
            places == (one, other) || places == (other, one)
        });
    }

    fn leave(&mut self, server: ServerId) -> Result<(), String> {
        let Some(&pid) = self.by_id.get(&server) else {
            return Ok(());
        };
        if !self.procs[pid].is_alive || !self.is_known(server) {
            return Ok(());
        }
        self.kill(pid);
        let back = self.kernel.random.micros(1_000, 10_000);
        self.kernel.schedule(back, Item::Start(server.node));
        self.worker_lost(server)
    }

    fn fault(&mut self, fault: Fault) -> Result<(), String> {
        let at = |place: u32| self.places.get(&place).copied();
        match fault {
            Fault::Kill {
                place,
                noticed,
                back,
            } => {
                if let Some(pid) = at(place).filter(|&pid| self.procs[pid].is_alive) {
                    self.kill(pid);
                    self.lose(pid, noticed);
                    self.kernel.schedule(back, Item::Start(place));
                }
            }
            Fault::Pause { place, length } => {
                if let Some(pid) = at(place).filter(|&pid| self.procs[pid].is_alive) {
                    self.kernel.pause(place, length);
                    if length > self.plan.silence {
                        self.lose(pid, self.plan.silence);
                    }
                }
            }
            Fault::Cut { one, other, length } => {
                self.cut(one, other, length);
            }
            Fault::Reset { place } => {
                let pid = at(place).filter(|&pid| self.is_shared() && self.procs[pid].is_alive);
                if let Some(pid) = pid {
                    // What masters had at a server is gone with their links. They connect again.
                    self.lose(pid, Duration::ZERO);
                }
                let procs: Vec<u32> = self.procs.iter().map(|process| process.id.node).collect();
                self.sever(|connection| {
                    procs[connection.client] == place || procs[connection.server] == place
                });
            }
            Fault::Stuck { place, length } => {
                if let Some(pid) = at(place).filter(|&pid| self.procs[pid].is_alive) {
                    self.stick(pid, length)?;
                }
            }
            Fault::Disk { place, length } => {
                let until = self.kernel.now() + length;
                if let Some(pid) = at(place) {
                    self.procs[pid].disk_fails_until = until;
                }
            }
            Fault::Drain { place, length } => {
                if let Some(pid) = at(place).filter(|&pid| self.procs[pid].is_alive) {
                    let id = self.procs[pid].id;
                    self.kernel.schedule(length, Item::Leave(id));
                    self.drain(id)?;
                }
            }
            Fault::Weigh { place, weight } => {
                if let Some(pid) = at(place) {
                    for (head, name) in self.names_of(pid) {
                        self.at = head;
                        self.weigh(name, weight)?;
                    }
                }
            }
            Fault::KillMaster { master, is_told } => {
                self.at = master;
                self.kill_master(is_told);
            }
            // Servers wait for what it says until its lease is over.
            Fault::PauseMaster { master, length } => {
                self.kernel.pause(masters::node(master), length);
            }
            Fault::Stray { master } => {
                self.at = master;
                self.stray();
            }
        }
        Ok(())
    }

    /// All masters that know a process lose it, after so long.
    fn lose(&mut self, pid: Pid, after: Duration) {
        let mut at = self.kernel.now() + after;
        if self.is_shared() {
            // After what it has said.
            at = self.procs[pid].up.arrival(at);
        }
        for (head, name) in self.names_of(pid) {
            self.kernel.schedule_at(at, Item::Lost(head, name));
        }
    }

    /// Everything has ended, and nothing is left.
    fn end(&mut self) -> Result<(), String> {
        for (index, job) in self.jobs.iter().enumerate() {
            if job.ended.is_none() {
                return Err(format!("job {index} does not end: {}", self.open_tasks()));
            }
        }
        let heads = self.heads.iter().filter(|head| head.is_there);
        let mut kept = heads.flat_map(|head| head.master.shuffles());
        if let Some(shuffle) = kept.next() {
            return Err(format!("the master keeps {shuffle:?}"));
        }
        let mut alive = self.procs.iter().filter(|process| process.is_alive);
        alive.find_map(Process::leftovers).map_or(Ok(()), Err)
    }
}
