//! The process that assigns partitions to servers: the pure master, with connections around it.

mod known;
mod links;
mod listed;
mod membership;
mod pushed;
mod questions;
mod registered;
mod registry;
mod shown;
mod state;
mod visitor;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tracing::{error, info};
use treadle_host::pages::{Options as Pages, PageServer, Refusals};
use treadle_host::{Service, ServiceHost, Services};
use treadle_net::{Address, ClusterId, Offer, Options, Wait};
use treadle_reactor::awake;
use treadle_reactor::thread::{self, lock};
use treadle_security::secret::random;
use treadle_shuffle::{ApplicationId, ShuffleId, Tenant};
use treadle_shuffle_registry::Location;

use crate::master::links::Links;
use crate::master::listed::Listed;
use crate::master::state::State;
use crate::master::visitor::Members;
use crate::member::{Member as Registered, MemberOptions};
use crate::page::{About, json_page, refusals, serve};
use crate::place::Place;
use crate::{LINKS, SERVICE, ServiceError};

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

const REFUSALS: Refusals = refusals!("treadle shuffle-master", "shuffle master");

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
    /// Where the master learns of servers. `None`: they join this one.
    pub registry: Option<RegistryOptions>,
    /// The part of the servers where its shuffles are to be. `None`: all.
    pub place: Option<Place>,
}

/// The registry of a master's servers, and what the master is there.
#[derive(Clone, Debug)]
pub struct RegistryOptions {
    /// Another master, or another kind of registry.
    pub location: Location,
    /// For people.
    pub name: String,
    /// The one application that it is the master of. `None`: that of any; another master does not take it so.
    pub application: Option<ApplicationId>,
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
    /// The registry of these, if that is no master.
    listed: OnceLock<Arc<Listed>>,
    state: Mutex<State>,
    over: Mutex<bool>,
    ended: Condvar,
    http: OnceLock<PageServer>,
}

impl ShuffleMaster {
    /// Starts one. `wait` is for the registry.
    ///
    /// # Errors
    /// When the address or the options are at fault, or the port is taken; the registry cannot be reached, or
    /// refuses the master; the application has another one ([`ServiceError::Elsewhere`]); the registry is a master,
    /// and this is no application's.
    pub fn start(options: MasterOptions, wait: &mut Wait<'_>) -> Result<Self, ServiceError> {
        let number = number();
        let mut options = options;
        let registry = options.registry.take();
        let joined = registry.as_ref().map(|it| member_of(it, &options.net));
        let joined = joined.transpose()?.flatten();
        let member = joined
            .clone()
            .map(|joined| Registered::connect(joined, wait));
        let member = member.transpose()?;
        if let Some(member) = &member {
            // What is taken for a silence is one everywhere.
            options.timeout = member.timeout();
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
        let links = registry.as_ref().map(|registry| {
            let mut to_servers = Options {
                service: LINKS,
                shared_memory: false,
                contact: Vec::new(),
                ..options.net.clone()
            };
            to_servers.pair.timeout = options.timeout;
            // A server keeps what this master has for the lease, also if nothing is heard of it.
            to_servers.patience = options.lease;
            Links::new(to_servers, registry.name.clone(), registry.application)
        });
        let inner = Arc::new(Inner {
            host,
            cluster,
            number,
            contact,
            links,
            listed: OnceLock::new(),
            state: Mutex::new(State::new(number, &options, joined.is_some())),
            over: Mutex::new(false),
            ended: Condvar::new(),
            http: OnceLock::new(),
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
        match (registry, joined.zip(member)) {
            (_, Some((joined, member))) => {
                master.connect()?;
                master.register(joined, member)?;
            }
            (Some(registry), None) => {
                master.connect()?;
                master.watch(&registry, wait)?;
            }
            (None, None) => {}
        }
        Ok(master)
    }

    /// Connects to servers, as soon as it learns of them.
    fn connect(&self) -> Result<(), ServiceError> {
        let inner = Arc::clone(&self.0);
        thread::start("treadle-links", move || {
            if let Some(links) = &inner.links {
                inner.connect_servers(links);
            }
        })
        .map(drop)
        .map_err(ServiceError::no_thread)
    }

    /// Learns of servers from a registry that is no master.
    fn watch(&self, registry: &RegistryOptions, wait: &mut Wait<'_>) -> Result<(), ServiceError> {
        let listed = Arc::new(Listed::begin(&self.0, registry)?);
        let _ = self.0.listed.set(listed.clone());
        listed.settle(&self.0, wait)?;
        self.settle();
        let weak = Arc::downgrade(&self.0);
        thread::start("treadle-registry", move || listed::follow(&weak, &listed))
            .map(drop)
            .map_err(ServiceError::no_thread)
    }

    fn settle(&self) {
        if let Some(links) = &self.0.links {
            links.settle(SETTLE);
        }
    }

    /// Registers it with a master, and learns of the servers there.
    fn register(&self, registry: MemberOptions, member: Registered) -> Result<(), ServiceError> {
        registered::register(&self.0, &registry, &member)?;
        self.settle();
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

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> &Address {
        self.0.host.address()
    }

    /// The id of the service, which begins with it.
    pub fn cluster(&self) -> ClusterId {
        self.0.cluster
    }

    /// Serves the dashboard of the service; once. Who does not want it has none of its files.
    ///
    /// # Errors
    /// The port is taken, or the system has no more threads or descriptors.
    pub fn show(&self, options: Pages) -> Result<(), ServiceError> {
        let about = About {
            address: self.0.contact.clone(),
            id: self.0.cluster.to_string(),
        };
        let weak = Arc::downgrade(&self.0);
        let shown = move || {
            let inner = weak.upgrade();
            inner.map_or(Json::Null, |inner| {
                let registry = inner.registry();
                lock(&inner.state).shown(registry)
            })
        };
        let weak = Arc::downgrade(&self.0);
        let state = json_page("/json/state", move || {
            let inner = weak.upgrade();
            inner.map_or_else(String::new, |inner| {
                let registry = inner.registry();
                lock(&inner.state).json(registry)
            })
        });
        let pages = serve(options, about, REFUSALS, shown, [state])?;
        let _ = self.0.http.set(pages);
        Ok(())
    }

    /// The link to its pages, with the token that lets in.
    pub fn http_link(&self) -> Option<&str> {
        self.0.http.get().map(PageServer::link)
    }

    /// What is there, as JSON.
    pub fn state(&self) -> String {
        let registry = self.0.registry();
        lock(&self.0.state).json(registry)
    }

    /// Says in records which stages of its application write a shuffle, in at most 1,024 bytes. `false`: it is none of this
    /// master, has ended, or the text is longer.
    pub fn written_by(&self, shuffle: ShuffleId, stages: &str) -> bool {
        let is_short = stages.len() <= crate::wire::LONGEST_NAME;
        is_short && lock(&self.0.state).records.written_by(shuffle, stages)
    }

    /// Records of the shuffles that have ended since this was last called, as JSON, for a journal.
    pub fn take_records(&self) -> String {
        lock(&self.0.state).records.take_fresh().to_string()
    }

    /// Ends it, and with it all shuffles. The master of an application has the registry know their records first,
    /// unless that takes long.
    pub fn close(&self) {
        // Its thread may have the last reference to all of this for a moment: it ends first.
        if let Some(http) = self.0.http.get() {
            http.close();
        }
        if self.0.links.is_some() && !*lock(&self.0.over) {
            let until = Instant::now() + LAST_WORDS;
            lock(&self.0.state).end_all();
            while !lock(&self.0.state).is_recorded() && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
        }
        self.0.end();
        if let Some(listed) = self.0.listed.get() {
            listed.withdraw();
        }
    }

    /// Waits until it has ended. `false`: the time is over.
    pub fn wait(&self, most: Duration) -> bool {
        let over = lock(&self.0.over);
        let waited = self.0.ended.wait_timeout_while(over, most, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// What a master is at another one that has its servers. `None`: another kind of registry has them.
///
/// # Errors
/// It is no application's.
fn member_of(
    registry: &RegistryOptions,
    net: &Options,
) -> Result<Option<MemberOptions>, ServiceError> {
    let Location::BuiltIn(master) = &registry.location else {
        return Ok(None);
    };
    let application = registry.application.ok_or_else(|| {
        let text = format!(
            "{master} is the address of a shuffle master: give that to servers and programs, or take another registry"
        );
        ServiceError::Refused(text)
    })?;
    Ok(Some(MemberOptions {
        master: master.clone(),
        net: net.clone(),
        name: registry.name.clone(),
        tenant: Tenant {
            application,
            priority: 1,
        },
    }))
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
    /// What is known of the registry, if that is no master.
    fn registry(&self) -> Option<Json> {
        self.listed.get().map(|listed| listed.said())
    }

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
