//! Which shuffle servers there are: servers register, masters watch. See `docs/internals/shuffle.md`.
//!
//! ```text
//!   server ──▶ Registration ─┐                                     ┌─ Watch ──▶ master
//!                            ├─ ZooKeeper, etcd, a list, built in ─┤
//!   server ──▶ Registration ─┘                                     └─ Watch ──▶ master
//! ```
//!
//! | module | concept |
//! | --- | --- |
//! | `registry` | what each kind of registry does, for a server and for a master |
//! | `entry` | what a registry has of a server |
//! | `master` | where the master of an application is |
//! | `wire` | entries as bytes, and their names in registries' trees |
//! | `location` | where a registry is, as people write it |
//! | `credentials` | who a process is to a registry |
//! | `machines` | the decisions, as pure machines |
//! | `driver` | the thread around the machines, for registries that are other servers |
//! | `fixed` | a static list |
//! | `zookeeper`, `etcd` | the clients |
//!
//! The registry that is built in is a shuffle master, and implements [`Registry`] in its own crate.

mod credentials;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod driver;
mod entry;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod fixed;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod location;
mod machines;
mod master;
mod registry;
mod wire;
#[cfg(feature = "zookeeper")]
mod zookeeper;

pub use credentials::Credentials;
pub use entry::{Entry, Key, LONGEST_ADDRESS, LONGEST_NAME, Load};
pub use error::{LocationError, RegistryError};
pub use location::{Cluster, Location};
pub use machines::{
    ClaimStanding, Claiming, ClaimingEffect, ClaimingEvent, Config, Failure, Guard, Inbox, List,
    News, Registering, RegisteringEffect, RegisteringEvent, Rival, Standing, Watching,
    WatchingEffect, WatchingEvent,
};
pub use master::Master;
pub use registry::{Claim, Registration, Registry, Watch};
pub use wire::{
    EntryError, LONGEST_ENTRY, decode_entry, decode_master, encode_entry, encode_master,
};

/// The client of a registry that is not built in.
///
/// # Errors
/// [`RegistryError::BuiltIn`] for the address of a shuffle master, [`RegistryError::NotBuilt`] for a kind that this
/// build lacks, and for credentials that cannot be used.
pub fn open(
    location: &Location,
    credentials: &Credentials,
    config: &Config,
) -> Result<Box<dyn Registry>, RegistryError> {
    #[cfg(not(any(feature = "etcd", feature = "zookeeper")))]
    let _ = credentials;
    match location {
        Location::BuiltIn(_) => Err(RegistryError::BuiltIn {
            location: location.to_string(),
        }),
        #[cfg(feature = "zookeeper")]
        Location::ZooKeeper(cluster) => {
            let target = zookeeper::target(cluster, credentials, config)?;
            Ok(driver::Driven::<zookeeper::Session>::open(
                location, target, config,
            )?)
        }
        #[cfg(feature = "etcd")]
        Location::Etcd(cluster) => {
            let target = etcd::target(cluster, credentials, config)?;
            Ok(driver::Driven::<etcd::Session>::open(
                location, target, config,
            )?)
        }
        #[cfg(not(feature = "zookeeper"))]
        Location::ZooKeeper(_) => Err(RegistryError::NotBuilt {
            location: location.to_string(),
            feature: "zookeeper",
        }),
        #[cfg(not(feature = "etcd"))]
        Location::Etcd(_) => Err(RegistryError::NotBuilt {
            location: location.to_string(),
            feature: "etcd",
        }),
        Location::List(_) | Location::File(_) => Ok(Box::new(fixed::Fixed::new(location, config))),
    }
}
