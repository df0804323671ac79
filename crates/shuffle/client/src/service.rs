//! The connection of a process to a shuffle service.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use treadle_net::{Address, Wait};
use treadle_shuffle::{Generation, ShuffleId};
use treadle_shuffle_registry::Location;
use treadle_shuffle_service::{About, MasterOptions, Member, ServiceError, ShuffleMaster};
use treadle_types::Runs;

use crate::attempts::{attempts, stopped};
use crate::kind::Note;
use crate::masters::master_of;
use crate::{At, Error, Kind, Options, Part, RawShuffle, Shuffle, Spec};

/// Of an own master: an application is gone when none of its processes was connected for so long. What is taken for a
/// silence the service says.
const LEASE: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_secs(10);
/// The most maps of a shuffle, and the most partitions.
const MOST: u32 = 1 << 20;
/// The longest name, and the longest note, in bytes.
const LONGEST_NAME: usize = 1 << 10;
const LONGEST_NOTE: usize = (1 << 20) - (1 << 10);

/// A connection to a shuffle service. Clones are the same one. It ends with the last of them and of its shuffles.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    options: Options,
    /// Who knows the servers.
    registry: Location,
    /// To the master of this application.
    member: Arc<Member>,
    /// Where that is.
    master: Address,
    /// That is in this process. Dropped after the connection to it.
    own: Option<ShuffleMaster>,
    /// Connections to other masters, by their addresses.
    others: Mutex<HashMap<String, Arc<Member>>>,
}

impl Service {
    /// Connects to the service whose `treadle shuffle-master` is at an address: `host:port`, or the same after `treadle://` or
    /// `treadle+tls://`. Or it takes the servers of another registry: `zk://host/path`, `etcd://host/prefix` (with the
    /// crate's features of these names, and credentials from the environment), `static:host:port` or `static:/file`.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the address cannot be used, or the options cannot be with it. [`Error::Unreachable`]: nobody
    /// answers there, the secret or the certificates are not those of the service, or the address has no TLS.
    /// [`Error::Registry`]: a registry does not answer, or refuses. [`Error::Refused`]: the service is of another
    /// release. [`Error::TimedOut`].
    pub fn connect(address: &str, options: Options, wait: &mut Wait<'_>) -> Result<Self, Error> {
        let at = At::Service(format!("connecting to the shuffle service at {address}"));
        let registry = Location::of(address, options.net().tls.is_some());
        let registry = registry.map_err(|error| Error::invalid(&at, error))?;
        check_options(&options, &registry).map_err(|reason| Error::invalid(&at, reason))?;
        let (own, master, member) = attempts(wait, &at, |_, wait| {
            let (own, master) = match &registry {
                Location::BuiltIn(master) if !options.own_master => (None, master.clone()),
                registry => own_master(&options, registry, &at, wait)?,
            };
            match Member::connect(options.member(master.clone()), wait) {
                Ok(member) => Ok(Some((own, master, Arc::new(member)))),
                // A master that has just ended: the registry does not know it yet.
                Err(ServiceError::Net(_))
                    if own.is_none() && options.own_master && wait.check().is_ok() =>
                {
                    Ok(None)
                }
                Err(error) => Err(Error::of_service(error, &at, stopped(wait, &at))),
            }
        })?;
        Ok(Self(Arc::new(Inner {
            options,
            registry,
            member,
            master,
            own,
            others: Mutex::default(),
        })))
    }

    /// Registers a shuffle. It costs one message, for any numbers.
    ///
    /// # Errors
    /// [`Error::Invalid`]: no such shuffle can be. [`Error::Refused`]: the application has too many. [`Error::Gone`];
    /// [`Error::TimedOut`].
    pub fn register(&self, spec: &Spec, wait: &mut Wait<'_>) -> Result<Shuffle, Error> {
        let name = match spec.name.is_empty() {
            true => "shuffle",
            false => &spec.name,
        };
        let at = At::Service(format!("registering shuffle {name}"));
        check(spec).map_err(|reason| Error::Invalid {
            at: at.clone(),
            reason,
        })?;
        let note = Note {
            kind: spec.kind,
            codec: spec.codec,
            rest: spec.note.clone(),
        };
        let about = About {
            name: name.into(),
            maps: spec.maps,
            partitions: spec.partitions,
            copies: spec.copies,
            expected: spec.expected,
            note: note.encode(),
            outputs: Runs::new(),
            again: Runs::new(),
            differs: false,
            restarted: Generation(0),
            committed: None,
        };
        let member = &self.0.member;
        let registered = member.register(&about, None, &mut || wait.check().is_err());
        let (number, domains) =
            registered.map_err(|error| Error::of_service(error, &at, stopped(wait, &at)))?;
        let raw = RawShuffle::new(Arc::clone(member), number, name, spec.maps);
        let copies = spec.copies.min(domains.max(1));
        Ok(Shuffle::new(
            self.clone(),
            raw,
            spec.partitions,
            copies,
            note,
        ))
    }

    /// The shuffle with this number, which another process has registered, of any application.
    ///
    /// # Errors
    /// [`Error::Refused`]: there is none, or it has ended. [`Error::Invalid`]: its rows are of a kind that this client does
    /// not read. [`Error::Unreachable`], [`Error::Gone`], [`Error::TimedOut`].
    pub fn attach(&self, number: u64, wait: &mut Wait<'_>) -> Result<Shuffle, Error> {
        let at = At::Service(format!("attaching to shuffle {number}"));
        let member = self.master_of(number, &at, wait)?;
        let about = member.about(number, &mut || wait.check().is_err());
        let about = about.map_err(|error| Error::of_service(error, &at, stopped(wait, &at)))?;
        let note = Note::parse(&about.note);
        let raw = RawShuffle::new(member, number, &about.name, about.maps);
        raw.committed(about.committed.unwrap_or_default());
        let note = note.map_err(|reason| Error::Invalid {
            at: raw.at(Part::Whole),
            reason,
        })?;
        Ok(Shuffle::new(
            self.clone(),
            raw,
            about.partitions,
            about.copies,
            note,
        ))
    }

    /// The connection to the master of a shuffle.
    fn master_of(&self, number: u64, at: &At, wait: &mut Wait<'_>) -> Result<Arc<Member>, Error> {
        if (number >> 32) as u32 == self.0.member.id().incarnation {
            return Ok(Arc::clone(&self.0.member));
        }
        let address = match &self.0.registry {
            Location::BuiltIn(registry) => {
                let registry = self.other(registry, at, wait)?;
                let found = registry.master_of(number, &mut || wait.check().is_err());
                let found =
                    found.map_err(|error| Error::of_service(error, at, stopped(wait, at)))?;
                match found {
                    None => return Ok(registry),
                    Some(address) => address,
                }
            }
            location => master_of(location, number, at, wait)?,
        };
        let address = self.0.options.address(&address);
        self.other(
            &address.map_err(|error| Error::invalid(at, error))?,
            at,
            wait,
        )
    }

    /// The connection to a master, which may be another one.
    fn other(&self, address: &Address, at: &At, wait: &mut Wait<'_>) -> Result<Arc<Member>, Error> {
        if *address == self.0.master {
            return Ok(Arc::clone(&self.0.member));
        }
        let key = address.to_string();
        let known = self.others().get(&key).cloned();
        if let Some(known) = known.filter(|known| known.over().is_none()) {
            return Ok(known);
        }
        // Two threads may connect at once. The later connection stays.
        let options = self.0.options.member(address.clone());
        let member = Member::connect(options, wait);
        let member = member.map_err(|error| Error::of_service(error, at, stopped(wait, at)))?;
        let member = Arc::new(member);
        self.others().insert(key, Arc::clone(&member));
        Ok(member)
    }

    fn others(&self) -> MutexGuard<'_, HashMap<String, Arc<Member>>> {
        self.0.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Servers, and the shuffles of this application's master, as JSON.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::TimedOut`].
    pub fn state(&self, wait: &mut Wait<'_>) -> Result<String, Error> {
        let at = At::Service("asking the shuffle master".into());
        let state = self.0.member.state(&mut || wait.check().is_err());
        state.map_err(|error| Error::of_service(error, &at, stopped(wait, &at)))
    }

    /// Records of the shuffles of this application's master, those that run and the latest that have ended, as JSON: a list
    /// of what `treadle shuffle show --json` shows.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::TimedOut`].
    pub fn records(&self, wait: &mut Wait<'_>) -> Result<String, Error> {
        let at = At::Service("asking the shuffle master".into());
        let records = self.0.member.records(&mut || wait.check().is_err());
        records.map_err(|error| Error::of_service(error, &at, stopped(wait, &at)))
    }

    /// Says in the record of a shuffle which stages of the application write it. `false`: the master is not in this process,
    /// the shuffle has ended, or the text has more than 1,024 bytes.
    pub fn written_by(&self, shuffle: u64, stages: &str) -> bool {
        let own = self.0.own.as_ref();
        own.is_some_and(|own| own.written_by(ShuffleId(shuffle), stages))
    }

    /// Where the master of this application is. Its other processes may connect there, with
    /// [`Options::own_master`]`(false)` and [the same application](Self::application): they need no registry then.
    pub fn master(&self) -> String {
        self.0.master.to_string()
    }

    /// The number of this application, for [`Options::application`] of its other processes.
    pub fn application(&self) -> u64 {
        self.0.options.application_number()
    }

    /// Why the connection is over, if it is. Shuffles of it are gone then, if their master is.
    pub fn over(&self) -> Option<String> {
        self.0.member.over()
    }

    /// Leaves the service, and ends an own master with its shuffles. Calls that wait fail with [`Error::Gone`].
    pub fn close(&self) {
        for other in self.others().values() {
            other.close();
        }
        self.0.member.close();
        if let Some(own) = &self.0.own {
            own.close();
        }
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({})", self.0.registry)
    }
}

/// Starts the master of this application; where it is. `None`: another process has it.
fn own_master(
    options: &Options,
    registry: &Location,
    at: &At,
    wait: &mut Wait<'_>,
) -> Result<(Option<ShuffleMaster>, Address), Error> {
    let address = options.own_address(registry);
    let address = address.map_err(|source| Error::Unreachable {
        at: at.clone(),
        source: Box::new(source),
    })?;
    let started = ShuffleMaster::start(
        MasterOptions {
            address,
            net: options.net().clone(),
            timeout: SILENCE,
            lease: LEASE,
            is_told: false,
            registry: Some(options.registered(registry.clone())),
            place: options.place,
        },
        wait,
    );
    match started {
        Ok(master) => {
            let address = master.address().clone();
            Ok((Some(master), address))
        }
        Err(ServiceError::Elsewhere(address)) => {
            let address = options.address(&address);
            Ok((None, address.map_err(|error| Error::invalid(at, error))?))
        }
        Err(error) => Err(Error::of_service(error, at, stopped(wait, at))),
    }
}

/// Whether a process can use a registry like this; otherwise what to do.
fn check_options(options: &Options, registry: &Location) -> Result<(), String> {
    match registry {
        _ if options.priority == 0 => Err("a priority of 0: give 1 or more".into()),
        Location::BuiltIn(_) => Ok(()),
        _ if !options.own_master => Err(format!(
            "own_master(false) needs the address of `treadle shuffle-master`: {registry} has servers, and is no master"
        )),
        Location::List(_) | Location::File(_) if options.is_shared => Err(format!(
            "{registry} is a list of servers, and does not know which application has a master: leave application() \
             out, or use `treadle shuffle-master`, ZooKeeper or etcd"
        )),
        _ => Ok(()),
    }
}

/// Whether such a shuffle can be; otherwise what can.
fn check(spec: &Spec) -> Result<(), String> {
    let parts = 1..=MOST;
    match spec {
        Spec { maps, .. } if !parts.contains(maps) => {
            Err(format!("{maps} maps: there can be 1 to {MOST}"))
        }
        Spec { partitions, .. } if !parts.contains(partitions) => {
            Err(format!("{partitions} partitions: there can be 1 to {MOST}"))
        }
        Spec { copies, .. } if !(1..=2).contains(copies) => {
            Err(format!("{copies} copies: there can be 1 or 2"))
        }
        Spec {
            kind: Kind::Fixed(0),
            ..
        } => Err("rows of a fixed width have at least one byte".into()),
        Spec { name, .. } if name.len() > LONGEST_NAME => Err(format!(
            "a name of {} bytes: there can be {LONGEST_NAME}",
            name.len()
        )),
        Spec { note, .. } if note.len() > LONGEST_NOTE => Err(format!(
            "a note of {} bytes: there can be {LONGEST_NOTE}",
            note.len()
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_registered_is_refused_with_what_can() {
        let refused = |spec: &Spec| check(spec).unwrap_err();
        assert_eq!(
            refused(&Spec::new(0, 1)),
            "0 maps: there can be 1 to 1048576"
        );
        assert!(refused(&Spec::new(1, MOST + 1)).starts_with("1048577 partitions"));
        assert!(refused(&Spec::new(1, 1).copies(3)).starts_with("3 copies"));
        assert!(refused(&Spec::new(1, 1).kind(Kind::Fixed(0))).contains("at least one byte"));
        let long = "x".repeat(LONGEST_NAME + 1);
        assert!(refused(&Spec::new(1, 1).name(long)).starts_with("a name"));
        let long = bytes::Bytes::from(vec![0; LONGEST_NOTE + 1]);
        assert!(refused(&Spec::new(1, 1).note(long)).starts_with("a note"));
        assert_eq!(check(&Spec::new(MOST, MOST).copies(1)), Ok(()));
    }
}
