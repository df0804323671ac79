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

/// The most lives of one name: the latest are kept.
const MOST_LIVES: usize = 16;

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
#[derive(Debug, Default)]
pub(super) struct Server {
    /// The lives that are there, by incarnation.
    pub(super) lives: BTreeMap<u64, Arc<Entry>>,
    /// Those of them that have gone, and when they are dropped.
    pub(super) missing: BTreeMap<u64, Duration>,
    /// The one that counts.
    pub(super) counts: Option<u64>,
    /// Whether that is in the list.
    pub(super) is_listed: bool,
    /// It is not listed until then.
    pub(super) held_until: Option<Duration>,
    pub(super) flaps: Flaps,
    /// When it is looked at again, as in the agenda.
    pub(super) due: Option<Duration>,
}

impl Server {
    pub(super) fn listed(&self) -> Option<&Arc<Entry>> {
        let listed = self.counts.filter(|_| self.is_listed);
        listed.and_then(|incarnation| self.lives.get(&incarnation))
    }

    /// Of several lives, the latest counts.
    pub(super) fn latest(&self) -> Option<u64> {
        let mut lives = self.lives.keys();
        match Guard::Incarnation.holds() {
            true => lives.next_back().copied(),
            false => lives.next().copied(),
        }
    }
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
        let listed = self.servers.values().filter_map(Server::listed);
        let is_current = self.is_current();
        List {
            entries: listed.cloned().collect(),
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
        // Nobody is dropped before the list was read again.
        let servers = self.servers.iter_mut();
        let gone = servers.filter(|(_, server)| !server.missing.is_empty());
        let names: Vec<_> = gone
            .map(|(name, server)| {
                server.missing.clear();
                name.clone()
            })
            .collect();
        names.iter().for_each(|name| self.schedule(name));
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
        let lives = self.servers.iter().flat_map(|(name, server)| {
            server.lives.keys().map(|&incarnation| Key {
                name: name.clone(),
                incarnation,
            })
        });
        let missing: Vec<Key> = lives.filter(|key| !there.contains(key)).collect();
        let stay = match Guard::Grace.holds() {
            true => self.config.grace,
            false => Duration::ZERO,
        };
        for key in missing {
            self.miss(&key, stay, now, effects);
        }
        self.last_current = Some(now);
        self.become_current(effects);
    }

    fn skip(&mut self, node: String, why: String, effects: &mut Vec<WatchingEffect>) {
        if self.unreadable.len() < MOST_UNREADABLE && self.unreadable.insert(node.clone()) {
            effects.push(WatchingEffect::Tell(News::Skipped { node, why }));
        }
    }

    fn put(&mut self, entry: Arc<Entry>, now: Duration, effects: &mut Vec<WatchingEffect>) {
        let key = entry.key();
        let is_known = self.servers.contains_key(&key.name);
        if !is_known && self.servers.len() >= self.config.most {
            let why = format!("there are more than {} servers", self.config.most);
            self.skip(key.to_string(), why, effects);
            return;
        }
        let server = self.servers.entry(key.name.clone()).or_default();
        server.missing.remove(&key.incarnation);
        let before = server.lives.insert(key.incarnation, entry.clone());
        if server.lives.len() > MOST_LIVES
            && let Some((earliest, _)) = server.lives.pop_first()
        {
            server.missing.remove(&earliest);
        }
        let counts = server.counts.filter(|_| server.is_listed);
        if counts == Some(key.incarnation) && before.as_ref() != Some(&entry) {
            effects.push(WatchingEffect::Tell(News::Updated(entry)));
        }
        let latest = server.latest();
        if let Some(incarnation) = latest
            && !server.missing.contains_key(&incarnation)
            && incarnation > key.incarnation
            && self.step == Step::Current
        {
            let listed = Key {
                incarnation,
                ..key.clone()
            };
            effects.push(WatchingEffect::Tell(News::Duplicate {
                listed,
                other: key.clone(),
            }));
        }
        self.look(&key.name, now, effects);
    }

    /// A server was removed, or its session has ended.
    fn gone(&mut self, key: &Key, now: Duration, effects: &mut Vec<WatchingEffect>) {
        let stay = match Guard::Linger.holds() {
            true => self.config.linger,
            false => Duration::ZERO,
        };
        self.miss(key, stay, now, effects);
    }

    /// A life that is not there is dropped after so long.
    fn miss(
        &mut self,
        key: &Key,
        stay: Duration,
        now: Duration,
        effects: &mut Vec<WatchingEffect>,
    ) {
        if let Some(server) = self.servers.get_mut(&key.name)
            && server.lives.contains_key(&key.incarnation)
        {
            let until = server.missing.entry(key.incarnation).or_insert(now + stay);
            *until = (now + stay).min(*until);
            self.look(&key.name, now, effects);
        }
    }

    /// Decides which life of a server counts, and whether it is listed; and forgets what is over.
    fn look(&mut self, name: &str, now: Duration, effects: &mut Vec<WatchingEffect>) {
        let Some(server) = self.servers.get_mut(name) else {
            return;
        };
        let key = |incarnation| Key {
            name: name.to_owned(),
            incarnation,
        };
        let (lives, missing) = (&mut server.lives, &mut server.missing);
        lives.retain(|incarnation, _| missing.get(incarnation).is_none_or(|until| *until > now));
        missing.retain(|incarnation, _| lives.contains_key(incarnation));
        let latest = server.latest();
        if server.counts != latest {
            if let Some(before) = std::mem::replace(&mut server.counts, latest) {
                server.flaps.depart(&self.config, now);
                if std::mem::take(&mut server.is_listed) {
                    effects.push(WatchingEffect::Tell(News::Left(key(before))));
                }
            }
            server.held_until = latest.and_then(|_| server.flaps.hold(&self.config, now));
            if let (Some(incarnation), Some(until)) = (latest, server.held_until) {
                effects.push(WatchingEffect::Tell(News::HeldBack {
                    key: key(incarnation),
                    departures: server.flaps.departures(),
                    hold: until - now,
                }));
            }
        }
        server.held_until = server.held_until.filter(|until| *until > now);
        let entry = latest.and_then(|latest| server.lives.get(&latest));
        match entry {
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
        let forgotten = server.flaps.forgotten_at(&self.config);
        let forgotten = server.lives.is_empty().then_some(forgotten);
        let missing = server.missing.values().min().copied();
        let due = [missing, server.held_until, forgotten];
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
