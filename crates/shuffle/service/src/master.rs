//! The process that assigns partitions to servers: the pure master, with connections around it.

mod known;
mod links;
mod membership;
mod questions;
mod registered;
mod registry;
mod state;
mod visitor;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{error, info};
use treadle_host::{Service, ServiceHost, Services};
use treadle_net::{Address, ClusterId, Offer, Options, Wait};
use treadle_reactor::awake;
use treadle_reactor::thread::{self, lock};
use treadle_security::secret::random;
use treadle_shuffle::{ApplicationId, Leases, Master as Machine};

use crate::master::links::Links;
use crate::master::registry::Registry;
use crate::master::state::State;
use crate::master::visitor::Members;
use crate::member::{Member as Registered, MemberOptions};
use crate::records::Records;
use crate::servers::ServerEntry;
use crate::{LINKS, SERVICE, ServiceError, config};

/// How often leases are looked at.
const TICK: Duration = Duration::from_millis(250);
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
        let services = Services::from([(SERVICE, service)]);
        let started = inner
            .host
            .start(services, THREADS, "treadle-master", failed);
        started.map_err(ServiceError::no_thread)?;
        let weak = Arc::downgrade(&inner);
        thread::start("treadle-leases", move || {
            while weak.upgrade().is_some_and(|inner| inner.tick()) {}
        })
        .map_err(ServiceError::no_thread)?;
        let master = Self(inner);
        if let (Some(registry), Some(member)) = (options.registry, member) {
            master.register(registry, member)?;
        }
        Ok(master)
    }

    /// Registers it, and connects to the servers that the registry knows.
    fn register(&self, registry: MemberOptions, member: Registered) -> Result<(), ServiceError> {
        let inner = Arc::clone(&self.0);
        thread::start("treadle-links", move || {
            if let Some(links) = &inner.links {
                inner.connect_servers(links);
            }
        })
        .map_err(ServiceError::no_thread)?;
        registered::register(&self.0, &registry, &member)?;
        if let Some(links) = &self.0.links {
            links.settle(SETTLE);
        }
        let weak = Arc::downgrade(&self.0);
        let follow = move || registered::follow(&weak, &registry, member);
        thread::start("treadle-registry", follow)
            .map(drop)
            .map_err(ServiceError::no_thread)
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
