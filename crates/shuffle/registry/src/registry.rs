//! What each kind of registry does, for a server and for a master.

use std::time::Duration;

use crate::entry::{Entry, Load};
use crate::error::RegistryError;
use crate::machines::{ClaimStanding, List, News, Standing};
use crate::master::Master;

/// One registry, as a process uses it.
///
/// What fails for a while is tried again, and told by [`Registration::standing`] and [`Watch::next`]. Nothing that
/// runs waits for it.
pub trait Registry: Send + Sync {
    /// Registers a server, until the registration is withdrawn or dropped. It returns at once.
    ///
    /// # Errors
    /// For an entry that this registry cannot have.
    fn register(&self, entry: Entry) -> Result<Box<dyn Registration>, RegistryError>;

    /// Watches the servers. It returns at once: the list comes with [`Watch::next`].
    ///
    /// # Errors
    /// When the system has no thread.
    fn watch(&self) -> Result<Box<dyn Watch>, RegistryError>;

    /// Says that this is the master of its application, unless there is another: until the claim is withdrawn or
    /// dropped. It returns at once. `None`: this registry keeps no masters.
    ///
    /// # Errors
    /// For an address that is none.
    fn claim(&self, master: Master) -> Result<Option<Box<dyn Claim>>, RegistryError>;

    /// The masters of applications that are there now.
    ///
    /// # Errors
    /// [`RegistryError::NoMasters`] from a registry that keeps none, [`RegistryError::Unanswered`] when it does not
    /// answer within `timeout`, or refuses.
    fn masters(&self, timeout: Duration) -> Result<Vec<Master>, RegistryError>;

    /// Its URL, without credentials.
    fn location(&self) -> String;
}

/// A server that is registered, or about to be. Dropping it ends the session: the entry goes with that.
pub trait Registration: Send + Sync {
    /// The server's load is this now. It is written soon if it has changed much, otherwise within half a minute.
    fn refresh(&self, load: Load);

    /// The server was asked to leave. This is written soon.
    fn leave(&self);

    /// How it stands. [`Standing::Superseded`] does not change any more: the server should end.
    fn standing(&self) -> Standing;

    /// Waits until the standing is another one, for at most `timeout`, and returns it.
    fn wait(&self, known: &Standing, timeout: Duration) -> Standing;

    /// Removes the entry, and waits for that for at most `timeout`.
    ///
    /// # Errors
    /// [`RegistryError::Late`]
    fn withdraw(&self, timeout: Duration) -> Result<(), RegistryError>;
}

/// A master that is the one of its application, or would be. Dropping it ends the session: the claim goes with that.
pub trait Claim: Send + Sync {
    /// How it stands.
    fn standing(&self) -> ClaimStanding;

    /// Waits until the standing is another one, for at most `timeout`, and returns it.
    fn wait(&self, known: &ClaimStanding, timeout: Duration) -> ClaimStanding;

    /// Ends the session, and waits for that for at most `timeout`.
    ///
    /// # Errors
    /// [`RegistryError::Late`]
    fn withdraw(&self, timeout: Duration) -> Result<(), RegistryError>;
}

/// Which servers there are. Dropping it ends the watch.
pub trait Watch: Send + Sync {
    /// The list now. The last one while the registry is away, with how old that is.
    fn list(&self) -> List;

    /// Waits for news for at most `timeout`, and returns all: none when the time is over. The first have each server
    /// as [`News::Joined`], and end with [`News::Current`]. Several changes of a server become one.
    fn next(&self, timeout: Duration) -> Vec<News>;
}
