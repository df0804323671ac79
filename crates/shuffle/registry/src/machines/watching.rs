//! A master's side: which servers there are, and whether that is current.
//!
//! ```text
//!   Away ──▶ Connecting ──▶ Reading ──▶ Current ──▶ Interrupted ──▶ Reading …
//!    ▲            │            │           │             │
//!    └────────────┴────────────┴───────────┴─────────────┘
//! ```
//!
//! The last list stays while the registry is away. When it is back, the whole list is read. A server that is missing
//! then stays for a while: it may be registering again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::attempts::Attempts;
use super::flapping::Flaps;
use super::{Config, Failure, Guard};
use crate::entry::{Entry, Key};

/// The most nodes that are remembered because they could not be read.
const MOST_UNREADABLE: usize = 1_000;

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum WatchingEvent {
    /// There is a session.
    Connected,
    /// The whole list was read, and each later change will come: entries, and the nodes that are none, each with why.
    Listed {
        entries: Vec<Arc<Entry>>,
        unreadable: Vec<(String, String)>,
    },
    /// An entry is new, or has changed.
    Put(Arc<Entry>),
    /// A node is new, or has changed, and is no entry.
    Unreadable { node: String, why: String },
    /// An entry was removed, or its session has ended.
    Gone(Key),
    /// Changes may have been missed.
    Interrupted(String),
    /// Changes come again.
    Resumed,
    /// The session has ended.
    Ended(String),
    /// What was asked last failed.
    Failed(Failure),
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order. `Connect` and `Read` are answered by an event.
#[derive(Clone, PartialEq, Debug)]
pub enum WatchingEffect {
    /// Begin a session, after closing the one before.
    Connect,
    /// Read the whole list, and watch changes from there.
    Read,
    /// Tell the master.
    Tell(News),
}

/// What a master is told.
#[derive(Clone, PartialEq, Debug)]
pub enum News {
    /// A server is in the list now.
    Joined(Arc<Entry>),
    /// A server that is in the list has changed, in the same life.
    Updated(Arc<Entry>),
    /// A server is not in the list any more.
    Left(Key),
    /// A server has left so often that it is not listed for so long, if it stays.
    HeldBack {
        key: Key,
        departures: u32,
        hold: Duration,
    },
    /// Two servers with one name are there. The one with the later incarnation is listed.
    Duplicate { listed: Key, other: Key },
    /// A node is skipped: it is no entry, or there are too many.
    Skipped { node: String, why: String },
    /// The list is what the registry has.
    Current,
    /// The list may be old, until `Current`: the registry is away, or refuses.
    Stale(Failure),
}

/// Which servers there are.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct List {
    /// By name.
    pub entries: Vec<Arc<Entry>>,
    /// `None`: the list is current. Otherwise how long ago it was last current; `None` within: it never was.
    pub age: Option<Option<Duration>>,
    /// Why it is not.
    pub why: Option<Failure>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing is under way until then.
    Away(Duration),
    Connecting,
    Reading,
    Current,
    /// The session was interrupted. It is given up then.
    Interrupted(Duration),
}

/// What is known of a name.
#[derive(Debug)]
pub(super) struct Server {
    /// The latest incarnation that was seen.
    pub(super) latest: u64,
    /// Its entry, as long as it is there.
    pub(super) entry: Option<Arc<Entry>>,
    /// Whether it is in the list.
    pub(super) is_listed: bool,
    /// It was missing when the list was read, and is in the list until then.
    pub(super) missing_until: Option<Duration>,
    /// Not listed until then.
    pub(super) held_until: Option<Duration>,
    pub(super) flaps: Flaps,
    /// When it is looked at again, as in the agenda.
    pub(super) due: Option<Duration>,
}

/// The machine of a watch.
#[derive(Debug)]
pub struct Watching {
    pub(super) config: Config,
    pub(super) step: Step,
    attempts: Attempts,
    pub(super) servers: BTreeMap<String, Server>,
    pub(super) agenda: BTreeSet<(Duration, String)>,
    unreadable: BTreeSet<String>,
    /// When the list was last current; now, if it is.
    last_current: Option<Duration>,
    /// Why it is not, as the master was told.
    pub(super) stale: Option<Failure>,
}

impl Watching {
    /// A watch that begins with the first `Tick`. `seed` spreads its attempts.
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            config,
            step: Step::Away(Duration::ZERO),
            attempts: Attempts::new(seed),
            servers: BTreeMap::new(),
            agenda: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            last_current: None,
            stale: None,
        }
    }

    /// The list.
    pub fn list(&self, now: Duration) -> List {
        let listed = self.servers.values().filter(|server| server.is_listed);
        let is_current = self.is_current();
        List {
            entries: listed.filter_map(|server| server.entry.clone()).collect(),
            age: (!is_current).then(|| self.last_current.map(|last| now.saturating_sub(last))),
            why: self.stale.clone().filter(|_| !is_current),
        }
    }

    fn is_current(&self) -> bool {
        self.step == Step::Current || (!Guard::Stale.holds() && self.last_current.is_some())
    }

    /// When a `Tick` is due.
    pub fn deadline(&self) -> Option<Duration> {
        let link = match self.step {
            Step::Away(until) | Step::Interrupted(until) => Some(until),
            Step::Connecting | Step::Reading | Step::Current => None,
        };
        let server = self.agenda.first().map(|&(at, _)| at);
        link.into_iter().chain(server).min()
    }

    /// Takes what happened, and appends what follows.
    pub fn handle(
        &mut self,
        event: WatchingEvent,
        now: Duration,
        effects: &mut Vec<WatchingEffect>,
    ) {
        use WatchingEvent as Event;
        match event {
            Event::Connected => self.read(effects),
            Event::Resumed if !Guard::Reread.holds() => self.become_current(effects),
            Event::Resumed => self.read(effects),
            Event::Listed {
                entries,
                unreadable,
            } => self.listed(entries, unreadable, now, effects),
            Event::Put(entry) => self.put(entry, now, effects),
            Event::Unreadable { node, why } => self.skip(node, why, effects),
            Event::Gone(key) => self.gone(&key, now, effects),
            Event::Interrupted(why) => {
                let until = now + self.config.interruption;
                self.lose(Step::Interrupted(until), failure(why), now, effects);
            }
            Event::Ended(why) => {
                let until = now + self.attempts.pause(&self.config, false);
                self.lose(Step::Away(until), failure(why), now, effects);
            }
            Event::Failed(failure) => {
                let until = now + self.attempts.pause(&self.config, failure.is_refusal);
                self.lose(Step::Away(until), failure, now, effects);
            }
            Event::Tick => {}
        }
        self.proceed(now, effects);
    }

    /// Does what is due.
    fn proceed(&mut self, now: Duration, effects: &mut Vec<WatchingEffect>) {
        while let Some((_, name)) = self.agenda.first().filter(|&&(at, _)| at <= now).cloned() {
            self.look(&name, now, effects);
        }
        if let Step::Away(until) | Step::Interrupted(until) = self.step
            && until <= now
        {
            self.step = Step::Connecting;
            effects.push(WatchingEffect::Connect);
        }
    }

    fn read(&mut self, effects: &mut Vec<WatchingEffect>) {
        self.step = Step::Reading;
        effects.push(WatchingEffect::Read);
    }

    fn become_current(&mut self, effects: &mut Vec<WatchingEffect>) {
        self.attempts.reset();
        self.step = Step::Current;
        self.stale = None;
        effects.push(WatchingEffect::Tell(News::Current));
    }

    /// The list is not current from now on.
    fn lose(
        &mut self,
        step: Step,
        failure: Failure,
        now: Duration,
        effects: &mut Vec<WatchingEffect>,
    ) {
        if self.step == Step::Current {
            self.last_current = Some(now);
        }
        self.step = step;
        if self.stale.as_ref() != Some(&failure) {
            self.stale = Some(failure.clone());
            effects.push(WatchingEffect::Tell(News::Stale(failure)));
        }
    }

    fn listed(
        &mut self,
        entries: Vec<Arc<Entry>>,
        unreadable: Vec<(String, String)>,
        now: Duration,
        effects: &mut Vec<WatchingEffect>,
    ) {
        let nodes: BTreeSet<&String> = unreadable.iter().map(|(node, _)| node).collect();
        self.unreadable.retain(|node| nodes.contains(node));
        for (node, why) in unreadable {
            self.skip(node, why, effects);
        }
        let there: BTreeSet<Key> = entries.iter().map(|entry| entry.key()).collect();
        for entry in entries {
            self.put(entry, now, effects);
        }
        let known = self.servers.iter().filter_map(|(name, server)| {
            let key = Key {
                name: name.clone(),
                incarnation: server.latest,
            };
            let is_missing = server.entry.is_some() && !there.contains(&key);
            is_missing.then_some(key)
        });
        for key in known.collect::<Vec<_>>() {
            self.missing(&key, now, effects);
        }
        self.last_current = Some(now);
        self.become_current(effects);
    }

    /// A server was not in the list that was read.
    fn missing(&mut self, key: &Key, now: Duration, effects: &mut Vec<WatchingEffect>) {
        let until = now + self.config.grace;
        match self.servers.get_mut(&key.name) {
            Some(server) if server.is_listed && Guard::Grace.holds() => {
                server.missing_until.get_or_insert(until);
                self.schedule(&key.name);
            }
            _ => self.gone(key, now, effects),
        }
    }

    fn skip(&mut self, node: String, why: String, effects: &mut Vec<WatchingEffect>) {
        if self.unreadable.len() < MOST_UNREADABLE && self.unreadable.insert(node.clone()) {
            effects.push(WatchingEffect::Tell(News::Skipped { node, why }));
        }
    }

    fn put(&mut self, entry: Arc<Entry>, now: Duration, effects: &mut Vec<WatchingEffect>) {
        let name = &entry.name;
        let is_new = !self.servers.contains_key(name);
        if is_new && self.servers.len() >= self.config.most {
            let why = format!("there are more than {} servers", self.config.most);
            self.skip(entry.key().to_string(), why, effects);
            return;
        }
        let server = self.servers.entry(name.clone()).or_insert_with(|| Server {
            latest: entry.incarnation,
            entry: None,
            is_listed: false,
            missing_until: None,
            held_until: None,
            flaps: Flaps::default(),
            due: None,
        });
        if entry.incarnation < server.latest && Guard::Incarnation.holds() {
            // Without its entry, the later one has left: an earlier one does not come back.
            if server.entry.is_some() || Guard::Fence.holds() {
                if server.entry.is_some() {
                    let listed = Key {
                        name: name.clone(),
                        incarnation: server.latest,
                    };
                    let other = entry.key();
                    effects.push(WatchingEffect::Tell(News::Duplicate { listed, other }));
                }
                return;
            }
        }
        let before = server.entry.as_ref().map(|entry| entry.incarnation);
        if before.is_some_and(|before| before != entry.incarnation) {
            self.leave(&entry.name, now, effects);
        }
        let Some(server) = self.servers.get_mut(&entry.name) else {
            return;
        };
        server.latest = entry.incarnation;
        server.missing_until = None;
        if server.is_listed && server.entry.as_ref() != Some(&entry) {
            effects.push(WatchingEffect::Tell(News::Updated(entry.clone())));
        }
        let is_new = server.entry.is_none();
        let key = entry.key();
        server.entry = Some(entry);
        if is_new {
            server.held_until = server.flaps.hold(&self.config, now);
            if let Some(until) = server.held_until {
                effects.push(WatchingEffect::Tell(News::HeldBack {
                    key: key.clone(),
                    departures: server.flaps.departures(),
                    hold: until - now,
                }));
            }
        }
        self.look(&key.name, now, effects);
    }

    fn gone(&mut self, key: &Key, now: Duration, effects: &mut Vec<WatchingEffect>) {
        let server = self.servers.get(&key.name);
        if server.is_some_and(|server| server.entry.is_some() && server.latest == key.incarnation) {
            self.leave(&key.name, now, effects);
        }
    }

    /// The entry of a name is not there any more.
    fn leave(&mut self, name: &str, now: Duration, effects: &mut Vec<WatchingEffect>) {
        let Some(server) = self.servers.get_mut(name) else {
            return;
        };
        server.flaps.depart(&self.config, now);
        server.missing_until = None;
        server.held_until = None;
        if let Some(entry) = server.entry.take()
            && std::mem::take(&mut server.is_listed)
        {
            effects.push(WatchingEffect::Tell(News::Left(entry.key())));
        }
        self.schedule(name);
    }

    /// Lists a server that is there and not held back, and drops what is over.
    fn look(&mut self, name: &str, now: Duration, effects: &mut Vec<WatchingEffect>) {
        let Some(server) = self.servers.get_mut(name) else {
            return;
        };
        if server.missing_until.is_some_and(|until| until <= now) {
            self.leave(name, now, effects);
            return;
        }
        if server.held_until.is_some_and(|until| until <= now) {
            server.held_until = None;
        }
        match &server.entry {
            Some(entry) if !server.is_listed && server.held_until.is_none() => {
                server.is_listed = true;
                effects.push(WatchingEffect::Tell(News::Joined(entry.clone())));
            }
            None if server.flaps.forgotten_at(&self.config) <= now => {
                if let Some(due) = server.due {
                    self.agenda.remove(&(due, name.to_owned()));
                }
                self.servers.remove(name);
                return;
            }
            _ => {}
        }
        self.schedule(name);
    }

    /// Notes when a server is to be looked at next.
    fn schedule(&mut self, name: &str) {
        let Some(server) = self.servers.get_mut(name) else {
            return;
        };
        let forgotten = server
            .entry
            .is_none()
            .then(|| server.flaps.forgotten_at(&self.config));
        let due = [server.missing_until, server.held_until, forgotten];
        let due = due.into_iter().flatten().min();
        if due != server.due {
            if let Some(before) = std::mem::replace(&mut server.due, due) {
                self.agenda.remove(&(before, name.to_owned()));
            }
            if let Some(due) = due {
                self.agenda.insert((due, name.to_owned()));
            }
        }
    }
}

fn failure(why: String) -> Failure {
    Failure {
        why,
        is_refusal: false,
    }
}
