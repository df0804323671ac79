//! A master of which the servers are in a registry that is another server, or in a list. While that is away, the
//! master goes on with the servers that it knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use treadle_net::Wait;
use treadle_reactor::thread::lock;
use treadle_shuffle_registry::{
    Claim, ClaimStanding, Config, Credentials, Entry, List, Master, News, Watch, open,
};

use crate::ServiceError;
use crate::master::{Inner, RegistryOptions};
use crate::servers::ServerEntry;

/// How often it is looked whether the master is gone, or its start is interrupted.
const LOOK: Duration = Duration::from_millis(100);
/// How long the end of a master waits until nobody is told of it any more. Otherwise that ends with its session.
const LAST_WORDS: Duration = Duration::from_secs(2);

pub(super) struct Listed {
    location: String,
    watch: Box<dyn Watch>,
    /// That it is the one master of its application. `None`: the registry keeps no masters, or it is that of any.
    claim: Option<Box<dyn Claim>>,
    /// By name.
    servers: Mutex<BTreeMap<String, ServerEntry>>,
}

impl Listed {
    /// Begins to watch the servers, and claims the application.
    ///
    /// # Errors
    /// The registry's credentials cannot be used.
    pub(super) fn begin(inner: &Inner, options: &RegistryOptions) -> Result<Self, ServiceError> {
        let credentials = Credentials::from_environment()?;
        let registry = open(&options.location, &credentials, &Config::default())?;
        let master = options.application.map(|application| Master {
            application: application.0,
            address: inner.contact.clone(),
            number: inner.number,
        });
        let claim = master.map(|master| registry.claim(master)).transpose()?;
        Ok(Self {
            location: registry.location(),
            watch: registry.watch()?,
            claim: claim.flatten(),
            servers: Mutex::default(),
        })
    }

    /// Waits until the registry has said which servers there are, and that this is the application's master.
    ///
    /// # Errors
    /// The application has another master, the registry refuses, or does not answer in time.
    pub(super) fn settle(&self, inner: &Inner, wait: &mut Wait<'_>) -> Result<(), ServiceError> {
        loop {
            self.follow(inner);
            let claimed = self.claim.as_ref().map(|claim| claim.standing());
            let (is_claimed, why) = match claimed {
                None | Some(ClaimStanding::Held) => (true, None),
                Some(ClaimStanding::Elsewhere(other)) => {
                    return Err(ServiceError::Elsewhere(other.address));
                }
                Some(ClaimStanding::Away(failure)) => (false, Some(failure)),
                Some(ClaimStanding::Trying | ClaimStanding::Withdrawn) => (false, None),
            };
            let List {
                age, why: stale, ..
            } = self.watch.list();
            if is_claimed && age.is_none() {
                return Ok(());
            }
            let why = stale.or(why);
            let is_refusal = why.as_ref().is_some_and(|failure| failure.is_refusal);
            if is_refusal || wait.is_interrupted() || wait.is_late() {
                let silent = || format!("{} does not answer", self.location);
                let why = why.map_or_else(silent, |failure| failure.why);
                return Err(ServiceError::Registry(why));
            }
        }
    }

    /// Takes the news, for which it waits a moment.
    fn follow(&self, inner: &Inner) {
        let mut servers = lock(&self.servers);
        let mut has_changed = false;
        for news in self.watch.next(LOOK) {
            has_changed |= match news {
                News::Joined(entry) | News::Updated(entry) => {
                    let server = server(&entry);
                    let before = servers.insert(entry.name.clone(), server.clone());
                    before != Some(server)
                }
                News::Left(key) => servers.remove(&key.name).is_some(),
                // An empty list is one, too.
                News::Current => servers.is_empty(),
                News::Stale(_)
                | News::HeldBack { .. }
                | News::Duplicate { .. }
                | News::Skipped { .. } => false,
            };
        }
        if has_changed {
            inner.learn(servers.values().cloned().collect());
        }
    }

    /// What is said of it.
    pub(super) fn said(&self) -> serde_json::Value {
        let List { age, why, .. } = self.watch.list();
        serde_json::json!({
            "url": self.location,
            "current": age.is_none(),
            "age": age.flatten().map(|age| age.as_secs_f64()),
            "why": why.map(|failure| failure.why),
        })
    }

    /// Nobody is to be told of this master any more.
    pub(super) fn withdraw(&self) {
        if let Some(claim) = &self.claim
            && let Err(error) = claim.withdraw(LAST_WORDS)
        {
            tracing::debug!(target: treadle_log::SHUFFLE, "{error}");
        }
    }
}

/// Learns of servers, as long as the master is there.
pub(super) fn follow(inner: &Weak<Inner>, listed: &Arc<Listed>) {
    while let Some(inner) = inner.upgrade()
        && !*lock(&inner.over)
    {
        listed.follow(&inner);
    }
}

fn server(entry: &Entry) -> ServerEntry {
    ServerEntry {
        name: entry.name.clone(),
        address: entry.address.clone(),
        is_leaving: entry.is_leaving,
    }
}
