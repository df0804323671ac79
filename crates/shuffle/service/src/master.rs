//! The process that assigns partitions to servers: the pure master, with connections around it.

mod known;
mod links;
mod questions;
mod registered;
mod registry;
mod visitor;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{error, info, warn};
use treadle_host::{Service, ServiceHost, Services};
use treadle_net::{Address, ClusterId, Offer, Options, Peer, Wait};
use treadle_reactor::awake;
use treadle_reactor::thread::{self, lock};
use treadle_security::secret::random;
use treadle_shuffle::{
    ApplicationId, Leases, Master as Machine, MasterEffect, MasterEvent, ServerId, ShuffleId,
    Standing, ToMaster, ToNode,
};
use treadle_shuffle_wire::encode_shuffled;

use crate::master::known::Known;
use crate::master::links::Links;
use crate::master::registry::Registry;
use crate::master::visitor::Members;
use crate::member::{Member as Registered, MemberOptions};
use crate::protocol::Protocol;
use crate::records::Records;
use crate::room::weight;
use crate::servers::ServerEntry;
use crate::wire::{self, Hello, Met, Room, Welcome};
use crate::{LINKS, SERVICE, ServiceError, config};

/// How often leases are looked at.
const TICK: Duration = Duration::from_millis(250);
/// For how long a server that was slow gets fewer partitions.
const SLOW_FOR: Duration = Duration::from_secs(60);
/// The longest wait for the servers that a registry names, in the beginning.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the end of a master may wait until records are complete, and how often that is looked at.
const LAST_WORDS: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);
/// Threads that serve connections.
const THREADS: usize = 2;
/// Shuffles that run, at most; and partitions of all of them, about. Each takes memory of the master.
const MOST_SHUFFLES: usize = 100_000;
const MOST_PARTITIONS: u64 = 64 << 20;

/// Settings of a master.
#[derive(Clone, Debug)]
pub struct MasterOptions {
    /// Where to listen; port 0 takes a free one.
    pub address: Address,
    /// Security of the connections.
    pub net: Options,
    /// A member that says nothing for so long is lost.
    pub timeout: Duration,
    /// For how long the shuffles of an application are kept when none of its members is connected.
    pub lease: Duration,
    /// Whether the log says which servers come and go.
    pub is_told: bool,
    /// The master is that of one application, and learns of servers from a registry: another master. What it is
    /// there; `None`: servers join this one.
    pub registry: Option<MemberOptions>,
}

/// A master. Dropping it ends it.
#[derive(Debug)]
pub struct ShuffleMaster(Arc<Inner>);

struct Inner {
    host: Arc<ServiceHost>,
    cluster: ClusterId,
    /// The incarnation in all names that it gives, and the upper half of the numbers of its shuffles.
    number: u32,
    /// Where its members connect.
    contact: String,
    /// Its connections to servers that have registered elsewhere.
    links: Option<Links>,
    state: Mutex<State>,
    over: Mutex<bool>,
    ended: Condvar,
}

struct State {
    number: u32,
    machine: Machine,
    registry: Registry,
    /// Addresses of servers that were asked to leave elsewhere.
    leaving: BTreeSet<String>,
    leases: Leases,
    records: Records,
    members: BTreeMap<u32, Member>,
    shuffles: BTreeMap<ShuffleId, Known>,
    /// The numbers of failure domains that some server is in.
    domains: HashMap<String, u32>,
    last_domain: u32,
    last_member: u32,
    last_shuffle: u64,
    is_told: bool,
    timeout: Duration,
    lease: Duration,
}

/// A process that is connected.
struct Member {
    peer: Peer,
    /// With the room that it announced last.
    hello: Hello,
    weight: u32,
    /// A process has said lately that it takes rows much more slowly than the others, until then.
    slow_until: Option<Duration>,
    /// The version in which it is spoken to.
    protocol: u32,
    /// Servers whose addresses it was told.
    met: BTreeSet<u32>,
    is_leaving: bool,
}

impl ShuffleMaster {
    /// Starts one. `wait` is for the registry.
    ///
    /// # Errors
    /// When the address or the options are at fault, or the port is taken; the registry cannot be reached, or
    /// refuses the master; the application has another one ([`ServiceError::Elsewhere`]).
    pub fn start(options: MasterOptions, wait: &mut Wait<'_>) -> Result<Self, ServiceError> {
        let number = number();
        let (mut options, mut member) = (options, None);
        if let Some(registry) = &options.registry {
            let registry = Registered::connect(registry.clone(), wait)?;
            // What is taken for a silence is one everywhere.
            options.timeout = registry.timeout();
            member = Some(registry);
        }
        let cluster = ClusterId::random();
        let mut net = Options {
            cluster: Some(cluster),
            shared_memory: false,
            services: vec![Offer {
                service: SERVICE,
                name: "shuffle master",
                lane: None,
            }],
            ..options.net.clone()
        };
        net.pair.timeout = options.timeout;
        let host = ServiceHost::bind(&options.address, &net)?;
        let contact = options.net.contact.first().unwrap_or(host.address());
        let contact = contact.to_string();
        let links = options.registry.as_ref().map(|registry| {
            let mut to_servers = Options {
                service: LINKS,
                shared_memory: false,
                contact: Vec::new(),
                ..options.net.clone()
            };
            to_servers.pair.timeout = options.timeout;
            let application = registry.tenant.application.0;
            Links::new(to_servers, registry.name.clone(), application)
        });
        let state = State {
            number,
            // Small shuffles of many masters do not all begin at the same server.
            machine: Machine::beginning(config(), number as usize),
            registry: Registry::default(),
            leaving: BTreeSet::new(),
            leases: Leases::new(options.lease),
            records: Records::new(options.registry.is_some()),
            members: BTreeMap::new(),
            shuffles: BTreeMap::new(),
            domains: HashMap::new(),
            last_domain: 0,
            last_member: 0,
            last_shuffle: u64::from(number) << 32,
            is_told: options.is_told,
            timeout: options.timeout,
            lease: options.lease,
        };
        let inner = Arc::new(Inner {
            host,
            cluster,
            number,
            contact,
            links,
            state: Mutex::new(state),
            over: Mutex::new(false),
            ended: Condvar::new(),
        });
        let service: Box<dyn Service> = Box::new(Members(Arc::downgrade(&inner)));
        let weak = Arc::downgrade(&inner);
        let failed = move |reason: String| {
            if let Some(inner) = weak.upgrade() {
                error!(target: treadle_log::SHUFFLE, "{reason}: the shuffle master ends");
                inner.end();
            }
        };
        let no_thread = |source| ServiceError::System {
            what: "starting a thread",
            source,
        };
        let services = Services::from([(SERVICE, service)]);
        let started = inner
            .host
            .start(services, THREADS, "treadle-master", failed);
        started.map_err(no_thread)?;
        let weak = Arc::downgrade(&inner);
        thread::start("treadle-leases", move || {
            while weak.upgrade().is_some_and(|inner| inner.tick()) {}
        })
        .map_err(no_thread)?;
        let master = Self(inner);
        if let (Some(registry), Some(member)) = (options.registry, member) {
            master.register(registry, member)?;
        }
        Ok(master)
    }

    /// Registers it, and connects to the servers that the registry knows.
    fn register(&self, registry: MemberOptions, member: Registered) -> Result<(), ServiceError> {
        let no_thread = |source| ServiceError::System {
            what: "starting a thread",
            source,
        };
        let inner = Arc::clone(&self.0);
        thread::start("treadle-links", move || {
            if let Some(links) = &inner.links {
                inner.connect_servers(links);
            }
        })
        .map_err(no_thread)?;
        registered::register(&self.0, &registry, &member)?;
        if let Some(links) = &self.0.links {
            links.settle(SETTLE);
        }
        let weak = Arc::downgrade(&self.0);
        let follow = move || registered::follow(&weak, &registry, member);
        thread::start("treadle-registry", follow)
            .map(drop)
            .map_err(no_thread)
    }

    /// The number in its names.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Takes the list of servers from another place than a registry that is a master.
    pub fn learn(&self, servers: Vec<ServerEntry>) {
        self.0.learn(servers);
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> &Address {
        self.0.host.address()
    }

    /// The id of the service, which begins with it.
    pub fn cluster(&self) -> ClusterId {
        self.0.cluster
    }

    /// What is there, as JSON.
    pub fn state(&self) -> String {
        lock(&self.0.state).json()
    }

    /// Records of the shuffles that have ended since this was last called, as JSON, for a journal.
    pub fn take_records(&self) -> String {
        lock(&self.0.state).records.take_fresh().to_string()
    }

    /// Ends it, and with it all shuffles. The master of an application has the registry know their records first,
    /// unless that takes long.
    pub fn close(&self) {
        if self.0.links.is_some() && !*lock(&self.0.over) {
            let until = Instant::now() + LAST_WORDS;
            lock(&self.0.state).end_all();
            while !lock(&self.0.state).is_recorded() && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
        }
        self.0.end();
    }

    /// Waits until it has ended. `false`: the time is over.
    pub fn wait(&self, most: Duration) -> bool {
        let over = lock(&self.0.over);
        let waited = self.0.ended.wait_timeout_while(over, most, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A number that no other master has: 31 bits, so that those of shuffles have 63, and none that workers use.
fn number() -> u32 {
    (u32::from_le_bytes(random()) >> 1).max(2)
}

impl Drop for ShuffleMaster {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShuffleMaster({})", self.host.address())
    }
}

impl Inner {
    fn end(&self) {
        *lock(&self.over) = true;
        self.ended.notify_all();
        self.host.end();
        if let Some(links) = &self.links {
            links.close();
        }
        for member in lock(&self.state).members.values() {
            member.peer.start_close();
        }
    }

    /// Waits a moment, and ends the shuffles of applications that are gone. `false`: all is over.
    fn tick(&self) -> bool {
        let over = lock(&self.over);
        let waited = self.ended.wait_timeout_while(over, TICK, |over| !*over);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            return false;
        }
        let now = awake::now();
        let mut state = lock(&self.state);
        let there: BTreeSet<u64> = state
            .members
            .values()
            .map(|m| m.hello.application)
            .collect();
        for application in there {
            state.leases.renew(ApplicationId(application), now);
        }
        for shuffle in state.leases.expire(now) {
            let known = state.shuffles.get(&shuffle);
            let name = known.map_or("", |known| &known.is.name);
            info!(
                target: treadle_log::SHUFFLE,
                "shuffle {name} ends: no process of its application is connected"
            );
            let reason = "no process of its application was connected any more";
            state.records.failed(shuffle, reason);
            state.end_shuffle(shuffle);
        }
        state.forgive(now);
        state.records.look_after();
        true
    }
}

impl State {
    /// Hands the machine an event, and does what follows.
    fn tell(&mut self, event: MasterEvent) -> Result<(), String> {
        self.records.saw(&event);
        let mut effects = Vec::new();
        let handled = self.machine.handle(event, &mut effects);
        debug_assert_eq!(self.machine.check(), Ok(()));
        for effect in effects {
            self.records.follows(&effect, |server| {
                let member = self.members.get(&server.node);
                member.map_or_else(
                    || server.node.to_string(),
                    |member| member.hello.name.clone(),
                )
            });
            match effect {
                MasterEffect::Send { to, message } => {
                    if let ToNode::Committed {
                        shuffle,
                        result: Ok(generation),
                        ..
                    } = &message
                        && let Some(known) = self.shuffles.get_mut(shuffle)
                    {
                        known.committed(*generation);
                    }
                    self.send(to.node, &message);
                }
                MasterEffect::Invalidate {
                    shuffle,
                    maps,
                    outputs,
                } => {
                    if let Some(known) = self.shuffles.get_mut(&shuffle) {
                        known.lost = known.lost.union(&maps);
                        if outputs && let Some(now) = self.machine.progress(shuffle) {
                            known.restarted(now.generation);
                        }
                    }
                }
                MasterEffect::NotDeterministic { shuffle, map } => {
                    let name = self
                        .shuffles
                        .get(&shuffle)
                        .map_or("", |known| &known.is.name);
                    let which = map.map_or_else(String::new, |map| format!(" {map}"));
                    warn!(target: treadle_log::SHUFFLE,
                        "map{which} of shuffle {name} has other rows than when it ran before: all of \
                         it runs again"
                    );
                }
                MasterEffect::Drained(server) => {
                    if let Some(member) = self.members.get(&server.node) {
                        wire::send_bytes(&member.peer, wire::DRAINED, Vec::new());
                    }
                }
            }
        }
        self.records.look_after();
        handled.map_err(|error| error.to_string())
    }

    fn send(&mut self, to: u32, message: &ToNode) {
        if let ToNode::Plan(plan) = message {
            if let Some(known) = self.shuffles.get_mut(&plan.shuffle) {
                known.plan = Some(Arc::clone(plan));
            }
            let holders = plan.groups.iter().flat_map(|group| group.holders());
            let servers: BTreeSet<u32> = holders.map(|server| server.node).collect();
            for server in servers {
                self.introduce(to, server);
            }
        }
        if let Some(member) = self.members.get(&to) {
            wire::send_bytes(&member.peer, wire::TO_NODE, encode_shuffled(message));
        }
    }

    /// Tells a member the address of a server, once.
    fn introduce(&mut self, to: u32, server: u32) {
        let address = self.members.get(&server).map(|it| it.hello.address.clone());
        if let (Some(member), Some(address)) = (self.members.get_mut(&to), address)
            && to != server
            && member.met.insert(server)
        {
            let met = Met {
                id: server,
                address,
            };
            wire::send(&member.peer, wire::MET, &met);
        }
    }

    /// Nobody is left who could use a shuffle.
    fn end_all(&mut self) {
        for shuffle in self.shuffles.keys().copied().collect::<Vec<_>>() {
            self.end_shuffle(shuffle);
        }
    }

    /// Whether the records of all shuffles are complete, and the registry has them.
    fn is_recorded(&mut self) -> bool {
        self.records.look_after();
        self.records.is_told()
    }

    /// What a member is called.
    fn name(&self, node: u32) -> ServerId {
        ServerId {
            node,
            incarnation: self.number,
        }
    }

    /// The servers at these addresses are to leave, and no others.
    fn leave(&mut self, addresses: BTreeSet<String>) {
        let members = self.members.iter();
        let leaving = members.filter(|(_, member)| addresses.contains(&member.hello.address));
        for id in leaving.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.ask_to_leave(id);
        }
        self.leaving = addresses;
    }

    /// A server gets no further partitions, and what it has is copied elsewhere.
    fn ask_to_leave(&mut self, id: u32) {
        if let Some(member) = self.members.get_mut(&id) {
            member.is_leaving = true;
            let asked = self.tell(MasterEvent::Draining(self.name(id)));
            debug_assert_eq!(asked, Ok(()));
        }
    }

    /// The number of a failure domain.
    fn domain(&mut self, name: &str) -> u32 {
        *self.domains.entry(name.into()).or_insert_with(|| {
            self.last_domain += 1;
            self.last_domain
        })
    }

    fn join(&mut self, peer: &Peer, hello: Hello) -> Result<u32, String> {
        let names = [&hello.name, &hello.address, &hello.domain];
        if names.iter().any(|name| name.len() > wire::LONGEST_NAME) {
            return Err("its name, address or domain is too long".into());
        }
        let protocol = self.admit(&hello)?;
        let is_server = !hello.address.is_empty();
        // Where this one listens, no other process does any more, whatever has become of its connection.
        let mut members = self.members.iter();
        let replaced = members.find(|(_, other)| other.hello.address == hello.address);
        let replaced = replaced.map(|(&id, _)| id);
        if let Some(id) = replaced.filter(|_| is_server) {
            if let Some(member) = self.members.get(&id) {
                member.peer.start_close();
            }
            self.lose(id);
        }
        if is_server && self.servers().any(|other| other.hello.name == hello.name) {
            return Err(format!(
                "another shuffle server is called {}: choose another name",
                hello.name
            ));
        }
        self.last_member += 1;
        let id = self.last_member;
        let domain = self.domain(&hello.domain);
        let weight = match is_server {
            true => weight(hello.weight, hello.room.as_ref(), false),
            false => 0,
        };
        let standing = Standing { domain, weight };
        let welcome = Welcome {
            id,
            protocol,
            timeout_ms: self.timeout.as_millis().try_into().unwrap_or(u64::MAX),
            lease_ms: self.lease.as_millis().try_into().unwrap_or(u64::MAX),
            master: self.number,
            ..Welcome::default()
        };
        wire::send(peer, wire::WELCOME, &welcome);
        if is_server && self.is_told {
            let Hello {
                name,
                address,
                domain,
                ..
            } = &hello;
            info!(target: treadle_log::SHUFFLE, "shuffle server {name} at {address} has joined (domain {domain})");
        }
        let is_leaving = self.leaving.contains(&hello.address);
        let member = Member {
            peer: peer.clone(),
            hello,
            weight,
            slow_until: None,
            protocol,
            met: BTreeSet::new(),
            is_leaving,
        };
        self.members.insert(id, member);
        let server = self.name(id);
        self.tell(MasterEvent::Standing { server, standing })?;
        if is_leaving {
            self.ask_to_leave(id);
        }
        if is_server {
            self.servers_changed();
        }
        Ok(id)
    }

    /// The version in which a process that joins is spoken to. Members speak to each other, too.
    fn admit(&self, hello: &Hello) -> Result<u32, String> {
        let joining = hello.protocol();
        let ours = Protocol::ours();
        let version = env!("CARGO_PKG_VERSION");
        let admitted = ours.admit(joining, &format!("the shuffle master ({version})"));
        let others = self.members.values().map(|member| &member.hello);
        // One that is replaced is gone.
        let others =
            others.filter(|other| other.address.is_empty() || other.address != hello.address);
        let refused = others.filter_map(|other| {
            let there = format!("{} ({})", other.name, other.version);
            other.protocol().admit(joining, &there).err()
        });
        let admitted =
            admitted.and_then(|protocol| refused.map(Err).next().unwrap_or(Ok(protocol)));
        admitted.map_err(|reason| format!("its version is {}, and {reason}", hello.version))
    }

    /// A server has other room than before.
    fn announced(&mut self, id: u32, room: Room) -> Result<(), String> {
        let member = self.members.get_mut(&id);
        let Some(member) = member.filter(|member| !member.hello.address.is_empty()) else {
            return Err("it announces room, and is no server".into());
        };
        member.hello.room = Some(room);
        self.weigh(id)
    }

    /// The weight of a server may be another one.
    fn weigh(&mut self, id: u32) -> Result<(), String> {
        let Some(member) = self.members.get_mut(&id) else {
            return Ok(());
        };
        let room = member.hello.room.as_ref();
        let weight = weight(member.hello.weight, room, member.slow_until.is_some());
        let before = mem::replace(&mut member.weight, weight);
        if before == weight {
            return Ok(());
        }
        let name = &member.hello.name;
        match (before, weight) {
            (_, 0) => {
                warn!(target: treadle_log::SHUFFLE, "shuffle server {name} has no room: it gets no further partitions until it has");
            }
            (0, _) => info!(target: treadle_log::SHUFFLE, "shuffle server {name} has room again"),
            _ => {}
        }
        let domain = member.hello.domain.clone();
        let domain = self.domain(&domain);
        self.tell(MasterEvent::Standing {
            server: self.name(id),
            standing: Standing { domain, weight },
        })
    }

    fn lose(&mut self, id: u32) {
        let Some(gone) = self.members.remove(&id) else {
            return;
        };
        if !gone.hello.address.is_empty() && self.is_told {
            let how = if gone.is_leaving {
                "has left"
            } else {
                "is lost"
            };
            info!(target: treadle_log::SHUFFLE, "shuffle server {} {how}", gone.hello.name);
        }
        for member in self.members.values_mut() {
            // Whatever it asked servers for ends.
            let is_server = !member.hello.address.is_empty();
            if member.met.remove(&id) || is_server {
                let met = Met {
                    id,
                    address: String::new(),
                };
                wire::send(&member.peer, wire::LOST, &met);
            }
        }
        self.registry.lose(id);
        let lost = self.tell(MasterEvent::Lost(self.name(id)));
        debug_assert_eq!(lost, Ok(()));
        if !gone.hello.address.is_empty() {
            self.servers_changed();
        }
        let domain = &gone.hello.domain;
        if !self
            .members
            .values()
            .any(|member| member.hello.domain == *domain)
        {
            self.domains.remove(domain);
        }
    }

    fn hear(&mut self, from: u32, message: ToMaster) -> Result<(), String> {
        // What only the server of a copy can know of it, it says itself.
        if let ToMaster::Sealed { group, .. }
        | ToMaster::Measured { group, .. }
        | ToMaster::Filled { group, .. }
        | ToMaster::Full { group, .. } = &message
            && group.server != self.name(from)
        {
            return Err("it speaks for another server".into());
        }
        let again = match &message {
            ToMaster::Transferred { transfer, .. } => Some((transfer.shuffle, transfer.map)),
            _ => None,
        };
        if let Some((shuffle, map)) = again
            && let Some(known) = self.shuffles.get_mut(&shuffle)
        {
            // Unless the machine says at once that its rows are gone.
            known.lost.remove(u64::from(map));
        }
        if let ToMaster::Slow { shuffle, server } = &message {
            let application = self.members.get(&from).map(|it| it.hello.application);
            let known = self.shuffles.get(shuffle);
            // It may have ended. Of those of others nobody writes rows.
            if known.map(|it| it.tenant.application.0) != application {
                return Ok(());
            }
            self.slow(server.node)?;
        }
        let from = self.name(from);
        if let Err(reason) = self.tell(MasterEvent::Message { from, message }) {
            error!(target: treadle_log::SHUFFLE, "{reason}");
        }
        Ok(())
    }

    /// A server takes rows much more slowly than the others.
    fn slow(&mut self, id: u32) -> Result<(), String> {
        let member = self.members.get_mut(&id);
        let Some(member) = member.filter(|member| !member.hello.address.is_empty()) else {
            return Ok(());
        };
        let until = awake::now() + SLOW_FOR;
        if member.slow_until.replace(until).is_none() {
            let name = &member.hello.name;
            warn!(target: treadle_log::SHUFFLE, "shuffle server {name} takes rows much more slowly than the others: it gets fewer partitions for a while");
        }
        self.weigh(id)
    }

    /// Servers that were slow a while ago count as others again.
    fn forgive(&mut self, now: Duration) {
        let slow = self.members.iter();
        let over = slow.filter(|(_, member)| member.slow_until.is_some_and(|until| until <= now));
        for id in over.map(|(&id, _)| id).collect::<Vec<_>>() {
            if let Some(member) = self.members.get_mut(&id) {
                member.slow_until = None;
            }
            let weighed = self.weigh(id);
            debug_assert_eq!(weighed, Ok(()));
        }
    }

    fn servers(&self) -> impl Iterator<Item = &Member> {
        let members = self.members.values();
        members.filter(|member| !member.hello.address.is_empty())
    }

    fn domains(&self) -> u32 {
        let staying = self.servers().filter(|server| !server.is_leaving);
        let domains: BTreeSet<&str> = staying.map(|server| &*server.hello.domain).collect();
        domains.len() as u32
    }
}
