//! Where a server is registered: at a master, or in a registry that is another server or a list.

mod at_master;
mod in_registry;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use treadle_net::{Address, Options, Peer, Wait};
use treadle_reactor::thread::{self, caught};
use treadle_shuffle_registry::{
    Config, Credentials, Entry, Load, Location, Registry, Standing, open,
};

use crate::server::end::End;
use crate::server::links::Links;
use crate::wire::{Hello, Room, Welcome};
use crate::{ServiceError, joining};

use at_master::AtMaster;
use in_registry::InRegistry;

/// What a server takes for a silence, and how long it keeps what a master has that says nothing, where no master
/// says so.
const TIMEOUT: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(60);

/// The place where a server is to be registered.
pub(super) enum Place {
    /// A master, which has taken it.
    Master(Address, Peer, Welcome),
    Registry(Box<dyn Registry>),
}

impl Place {
    /// Joins a master, or makes the client of another registry: that is not waited for.
    ///
    /// # Errors
    /// The master cannot be reached, or refuses the server; the registry's credentials cannot be used.
    pub(super) fn find(
        location: &Location,
        net: &Options,
        hello: &Hello,
        wait: &mut Wait<'_>,
    ) -> Result<Self, ServiceError> {
        match location {
            Location::BuiltIn(master) => {
                let (peer, welcome) = joining::join(master, net, hello, wait)?;
                Ok(Self::Master(master.clone(), peer, welcome))
            }
            _ => {
                let credentials = Credentials::from_environment()?;
                let registry = open(location, &credentials, &Config::default())?;
                Ok(Self::Registry(registry))
            }
        }
    }

    /// What is taken for a silence, and how long what a master has is kept.
    pub(super) fn times(&self) -> (Duration, Duration) {
        match self {
            Self::Master(_, _, welcome) => (
                Duration::from_millis(welcome.timeout_ms),
                Duration::from_millis(welcome.lease_ms),
            ),
            Self::Registry(_) => (TIMEOUT, LEASE),
        }
    }
}

/// Keeps a server registered.
type Follow = Box<dyn FnOnce() + Send>;

/// A server's registration.
pub(super) enum Registration {
    Master(Arc<AtMaster>),
    Registry(Arc<InRegistry>),
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({})", self.location())
    }
}

impl Registration {
    /// Registers a server, and keeps it registered until it ends, in a thread.
    ///
    /// # Errors
    /// The registry does not take the server, or there is no thread.
    pub(super) fn begin(
        place: Place,
        net: &Options,
        patience: Option<Duration>,
        links: &Arc<Links>,
        end: &Arc<End>,
    ) -> Result<Arc<Self>, ServiceError> {
        let (links, ending) = (links.clone(), end.clone());
        let (registration, follow): (Self, Follow) = match place {
            Place::Master(address, peer, welcome) => {
                let at = Arc::new(AtMaster::new(address, net.clone(), patience));
                let follow = {
                    let at = at.clone();
                    move || at.follow(&links, &ending, peer, welcome)
                };
                (Self::Master(at), Box::new(follow))
            }
            Place::Registry(registry) => {
                let registered = registry.register(entry(&links.hello()))?;
                let location = registry.location();
                let registered = InRegistry::new(location, registered, patience);
                let registered = Arc::new(registered);
                let follow = {
                    let registered = registered.clone();
                    move || registered.follow(&links, &ending)
                };
                (Self::Registry(registered), Box::new(follow))
            }
        };
        let end = end.clone();
        let follow = move || {
            if let Err(panic) = caught(follow) {
                end.end(&panic.to_string());
            }
        };
        thread::start("treadle-member", follow).map_err(ServiceError::no_thread)?;
        Ok(Arc::new(registration))
    }

    /// The address of the master, or the URL of the registry.
    pub(super) fn location(&self) -> &str {
        match self {
            Self::Master(at) => at.location(),
            Self::Registry(registered) => registered.location(),
        }
    }

    /// Why the server is not registered now. `None`: it is.
    pub(super) fn trouble(&self) -> Option<String> {
        match self {
            Self::Master(at) => at.trouble(),
            Self::Registry(registered) => match registered.standing() {
                Standing::Registered => None,
                Standing::Trying => Some("it is under way".into()),
                Standing::Away(failure) => Some(failure.why),
                Standing::Superseded(rival) => {
                    Some(format!("a later server has its name, at {}", rival.address))
                }
                Standing::Withdrawn => Some("it has left".into()),
            },
        }
    }

    /// The server has other room than before.
    pub(super) fn refresh(&self, room: &Room) {
        // A master is told over its link.
        if let Self::Registry(registered) = self {
            registered.refresh(load(room));
        }
    }

    /// The server ends.
    pub(super) fn close(&self) {
        if let Self::Registry(registered) = self {
            registered.withdraw();
        }
    }
}

/// What a registry has of a server that says this of itself.
fn entry(hello: &Hello) -> Entry {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanoseconds = since_1970.unwrap_or_default().as_nanos();
    Entry {
        name: hello.name.clone(),
        // It grows from one life to the next, as long as the clock is not set back.
        incarnation: nanoseconds.try_into().unwrap_or(u64::MAX),
        address: hello.address.clone(),
        domain: hello.domain.clone(),
        rack: hello.rack.clone(),
        version: hello.version.clone(),
        host_kind: hello.host_kind.clone(),
        weight: hello.weight,
        newest: hello.newest,
        oldest: hello.oldest,
        load: hello.room.as_ref().map(load),
        is_leaving: false,
    }
}

fn load(room: &Room) -> Load {
    Load {
        free: room.free,
        held: room.held,
        waiting: room.waiting,
        is_full: room.is_full,
    }
}
