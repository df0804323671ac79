//! A static list: addresses in a URL, or in a file that is read again when it changes.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use treadle_net::Address;

use crate::credentials::read;
use crate::entry::{Entry, Load};
use crate::error::RegistryError;
use crate::location::{Location, address};
use crate::machines::{
    Config, Failure, Inbox, List, News, Standing, Watching, WatchingEffect, WatchingEvent,
};
use crate::master::Master;
use crate::registry::{Claim, Registration, Registry, Watch};

/// How often a file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A static list. It does not know who is alive: a master finds that out when it connects.
pub(crate) struct Fixed {
    location: Location,
    config: Config,
}

impl Fixed {
    pub(crate) fn new(location: &Location, config: &Config) -> Self {
        let config = Config {
            // What a file lacks is not there, and is not about to register again.
            grace: Duration::ZERO,
            flaps: u32::MAX,
            ..config.clone()
        };
        Self {
            location: location.clone(),
            config,
        }
    }
}

impl Registry for Fixed {
    /// A server that is in the list is registered. Its load and its incarnation are not kept.
    fn register(&self, entry: Entry) -> Result<Box<dyn Registration>, RegistryError> {
        let entry = entry.checked()?;
        let (entries, _) = listed(&self.location)?;
        match entries.iter().any(|listed| listed.address == entry.address) {
            true => Ok(Box::new(Listed)),
            false => Err(RegistryError::NotListed {
                location: self.location(),
                address: entry.address,
            }),
        }
    }

    fn watch(&self) -> Result<Box<dyn Watch>, RegistryError> {
        let state = State {
            machine: Watching::new(self.config.clone(), 0),
            inbox: Inbox::default(),
            seen: None,
            next: Duration::ZERO,
        };
        Ok(Box::new(Watcher {
            location: self.location.clone(),
            started: Instant::now(),
            state: Mutex::new(state),
            never: Condvar::new(),
        }))
    }

    fn claim(&self, _: Master) -> Result<Option<Box<dyn Claim>>, RegistryError> {
        Ok(None)
    }

    fn masters(&self, _: Duration) -> Result<Vec<Master>, RegistryError> {
        Err(RegistryError::NoMasters {
            location: self.location(),
        })
    }

    fn location(&self) -> String {
        self.location.to_string()
    }
}

/// The servers of a list, and the lines of its file that are none, each with why.
type Servers = (Vec<Arc<Entry>>, Vec<(String, String)>);

fn listed(location: &Location) -> Result<Servers, RegistryError> {
    let mut entries = Vec::new();
    let mut unreadable = Vec::new();
    match location {
        Location::List(addresses) => entries.extend(addresses.iter().map(entry)),
        Location::File(path) => {
            for (number, line) in (1..).zip(read(path)?.lines()) {
                let text = line.split('#').next().unwrap_or_default().trim();
                if text.is_empty() {
                    continue;
                }
                match address(text) {
                    Ok(address) => entries.push(entry(&address)),
                    Err(error) => unreadable.push((
                        format!("line {number} of {}", path.display()),
                        error.to_string(),
                    )),
                }
            }
        }
        _ => {}
    }
    Ok((entries, unreadable))
}

/// The first server of a list.
pub(crate) fn first(location: &Location) -> Option<Address> {
    let (entries, _) = listed(location).ok()?;
    entries.first()?.address.parse().ok()
}

/// What is known of a server by its address.
fn entry(address: &Address) -> Arc<Entry> {
    Arc::new(Entry {
        name: address.to_string(),
        address: address.to_string(),
        domain: address.host.clone(),
        weight: 1,
        ..Entry::default()
    })
}

struct Listed;

impl Registration for Listed {
    fn refresh(&self, _: Load) {}

    fn leave(&self) {}

    fn standing(&self) -> Standing {
        Standing::Registered
    }

    fn wait(&self, known: &Standing, timeout: Duration) -> Standing {
        if *known == Standing::Registered {
            std::thread::sleep(timeout);
        }
        Standing::Registered
    }

    /// It stays in the list.
    fn withdraw(&self, _: Duration) -> Result<(), RegistryError> {
        Ok(())
    }
}

struct State {
    machine: Watching,
    inbox: Inbox,
    /// What the file was when it was last read.
    seen: Option<(SystemTime, u64)>,
    /// When it is looked at again.
    next: Duration,
}

struct Watcher {
    location: Location,
    started: Instant,
    state: Mutex<State>,
    /// Nothing wakes who waits but time.
    never: Condvar,
}

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the list, if it may have changed.
    fn look(&self, state: &mut State) {
        let now = self.started.elapsed();
        if now < state.next {
            return;
        }
        let (seen, path) = match &self.location {
            Location::File(path) => (look_at(path), Some(path)),
            _ => (Some((SystemTime::UNIX_EPOCH, 0)), None),
        };
        state.next = path.map_or(Duration::MAX, |_| now + LOOK);
        if seen.is_some() && seen == state.seen {
            return;
        }
        state.seen = seen;
        match listed(&self.location) {
            Ok((entries, unreadable)) => {
                let listed = WatchingEvent::Listed {
                    entries,
                    unreadable,
                };
                state.handle(WatchingEvent::Connected, now);
                state.handle(listed, now);
            }
            Err(error) => {
                state.seen = None;
                state.handle(WatchingEvent::Interrupted(error.to_string()), now);
            }
        }
    }
}

fn look_at(path: &Path) -> Option<(SystemTime, u64)> {
    let data = fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len()))
}

impl State {
    fn handle(&mut self, event: WatchingEvent, now: Duration) {
        let mut effects = Vec::new();
        self.machine.handle(event, now, &mut effects);
        for effect in effects {
            if let WatchingEffect::Tell(news) = effect {
                if let News::Stale(Failure { why, .. }) = &news {
                    tracing::warn!("the last list of shuffle servers is used: {why}");
                }
                if let News::Skipped { node, why } = &news {
                    tracing::warn!("{node} is skipped: {why}");
                }
                self.inbox.push(news);
            }
        }
    }
}

impl Watch for Watcher {
    fn list(&self) -> List {
        let mut state = self.lock();
        self.look(&mut state);
        state.machine.list(self.started.elapsed())
    }

    fn next(&self, timeout: Duration) -> Vec<News> {
        let end = self.started.elapsed().saturating_add(timeout);
        let mut state = self.lock();
        loop {
            self.look(&mut state);
            let now = self.started.elapsed();
            if !state.inbox.is_empty() || now >= end {
                return state.inbox.take();
            }
            let pause = end.min(state.next).saturating_sub(now);
            let waited = self.never.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
