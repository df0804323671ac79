//! The servers that a master has learned of, and its connections to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::debug;
use treadle_net::{NetError, Options, Peer};
use treadle_reactor::thread::lock;
use treadle_shuffle::ApplicationId;

use crate::master::Inner;
use crate::master::visitor::Visitor;
use crate::protocol::Protocol;
use crate::servers::ServerEntry;
use crate::wire::{self, Govern};

/// The pause before a server is tried again, which doubles up to 16 of it.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest wait of the thread that connects.
const LOOK: Duration = Duration::from_secs(5);

/// Connections to servers, by their addresses.
pub(super) struct Links {
    /// How it connects.
    net: Options,
    /// What it says.
    govern: Govern,
    places: Mutex<Places>,
    changed: Condvar,
}

/// What came of an attempt to connect to an address.
type Outcome = (String, Result<Peer, NetError>);

#[derive(Default)]
struct Places {
    /// A list has come.
    is_told: bool,
    known: BTreeMap<String, Place>,
    /// What came of attempts to connect.
    outcomes: Vec<Outcome>,
    is_over: bool,
}

struct Place {
    is_listed: bool,
    is_leaving: bool,
    /// It was tried.
    is_settled: bool,
    /// When it is to be tried. `None`: it is being tried, or connected.
    next: Option<Instant>,
    tries: u32,
}

impl Links {
    pub(super) fn new(net: Options, name: String, application: Option<ApplicationId>) -> Self {
        let ours = Protocol::ours();
        Self {
            net,
            govern: Govern {
                name,
                version: env!("CARGO_PKG_VERSION").into(),
                newest: ours.newest,
                oldest: ours.oldest,
                application: application.map(|application| application.0),
            },
            places: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Takes the list of servers. Returns the addresses of those that leave.
    fn learn(&self, servers: Vec<ServerEntry>) -> BTreeSet<String> {
        let mut places = lock(&self.places);
        places.is_told = true;
        for place in places.known.values_mut() {
            place.is_listed = false;
        }
        let mut leaving = BTreeSet::new();
        for server in servers {
            if server.is_leaving {
                leaving.insert(server.address.clone());
            }
            let place = places.known.entry(server.address).or_insert(Place {
                is_listed: true,
                is_leaving: false,
                is_settled: false,
                next: Some(Instant::now()),
                tries: 0,
            });
            (place.is_listed, place.is_leaving) = (true, server.is_leaving);
        }
        places
            .known
            .retain(|_, place| place.is_listed || place.next.is_none());
        self.changed.notify_all();
        leaving
    }

    /// A server has said who it is.
    pub(super) fn joined(&self, address: &str) {
        if let Some(place) = lock(&self.places).known.get_mut(address) {
            place.tries = 0;
            place.is_settled = true;
        }
        self.changed.notify_all();
    }

    /// Waits until all servers that are there were tried, so that the first shuffle finds them.
    pub(super) fn settle(&self, most: Duration) {
        let is_open = |places: &mut Places| {
            let mut known = places.known.values();
            let is_settled = known.all(|place| place.is_settled || place.is_leaving);
            !(places.is_over || places.is_told && is_settled)
        };
        let places = lock(&self.places);
        let waited = self.changed.wait_timeout_while(places, most, is_open);
        drop(waited);
    }

    /// A connection has ended, or could not be made.
    pub(super) fn ended(&self, address: &str) {
        let mut places = lock(&self.places);
        if let Some(place) = places.known.get_mut(address) {
            place.is_settled = true;
            let pause = PAUSE * (1 << place.tries.min(4));
            place.tries += 1;
            place.next = Some(Instant::now() + pause);
            if !place.is_listed {
                places.known.remove(address);
            }
        }
        self.changed.notify_all();
    }

    pub(super) fn close(&self) {
        lock(&self.places).is_over = true;
        self.changed.notify_all();
    }

    /// Waits for something to do: attempts that are over, and servers to connect to. `None`: all is over.
    fn next(&self) -> Option<(Vec<Outcome>, Vec<String>)> {
        let mut places = lock(&self.places);
        loop {
            if places.is_over {
                return None;
            }
            let now = Instant::now();
            let mut due = Vec::new();
            let mut wait = LOOK;
            for (address, place) in &mut places.known {
                match place.next {
                    Some(at) if place.is_leaving => wait = wait.min(LOOK.max(at - now)),
                    Some(at) if at <= now => {
                        place.next = None;
                        due.push(address.clone());
                    }
                    Some(at) => wait = wait.min(at - now),
                    None => {}
                }
            }
            let outcomes = std::mem::take(&mut places.outcomes);
            if !due.is_empty() || !outcomes.is_empty() {
                return Some((outcomes, due));
            }
            let waited = self.changed.wait_timeout(places, wait);
            places = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Inner {
    /// Learns which servers are there.
    pub(super) fn learn(&self, servers: Vec<ServerEntry>) {
        if let Some(links) = &self.links {
            let leaving = links.learn(servers);
            lock(&self.state).leave(leaving);
        }
    }

    /// Connects to servers, until the master ends.
    pub(super) fn connect_servers(self: &Arc<Self>, links: &Links) {
        while let Some((outcomes, due)) = links.next() {
            for address in due {
                self.dial(links, address);
            }
            for (address, outcome) in outcomes {
                match outcome {
                    Ok(peer) => {
                        wire::send(&peer, wire::GOVERN, &links.govern);
                        let visitor = Visitor::of_server(self, &peer, address);
                        self.host.adopt(&peer, Box::new(visitor));
                    }
                    Err(error) => {
                        debug!(target: treadle_log::SHUFFLE,
                            "the shuffle server at {address} cannot be reached: {error}");
                        links.ended(&address);
                    }
                }
            }
        }
    }

    fn dial(self: &Arc<Self>, links: &Links, address: String) {
        let inner = Arc::downgrade(self);
        let at = address.clone();
        let finish = move |outcome| {
            if let Some(inner) = inner.upgrade()
                && let Some(links) = &inner.links
            {
                lock(&links.places).outcomes.push((at, outcome));
                links.changed.notify_all();
            }
        };
        match address.parse() {
            Ok(parsed) => Peer::dial(&parsed, &links.net, finish),
            Err(error) => finish(Err(NetError::from(error))),
        }
    }
}
