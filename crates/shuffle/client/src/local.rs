//! The processes of a service as threads of this one: for tests, examples, and programs that bring their own service.
//!
//! In production they are `treadle shuffle-master` and `treadle shuffle-server`.

use std::path::PathBuf;
use std::time::Duration;

use treadle_net::Wait;
use treadle_shuffle_registry::Location;
use treadle_shuffle_service::{MasterOptions, ServerOptions, ShuffleMaster, ShuffleServer};

use crate::{At, Error, Options};

/// A process that says nothing for so long is lost.
const SILENCE: Duration = Duration::from_secs(10);
/// For how long the shuffles of an application are kept when none of its processes is connected.
const LEASE: Duration = Duration::from_secs(60);
/// For how long a server goes on without its master.
const PATIENCE: Duration = Duration::from_secs(60);

/// A master: it knows the servers. Dropping it ends it.
#[derive(Debug)]
pub struct Master(ShuffleMaster);

impl Master {
    /// Starts one on a free port of this machine. Of `options`, the secret or the certificates count.
    ///
    /// # Errors
    /// [`Error::Unreachable`]: it cannot listen.
    pub fn start(options: &Options) -> Result<Self, Error> {
        let at = At::Service("starting a shuffle master".into());
        let address = options.address("127.0.0.1:0");
        let address = address.map_err(|error| Error::invalid(&at, error))?;
        let options = MasterOptions {
            address,
            net: options.net().clone(),
            timeout: SILENCE,
            lease: LEASE,
            is_told: false,
            registry: None,
            place: None,
        };
        let started = ShuffleMaster::start(options, &mut Wait::within(SILENCE));
        started
            .map(Self)
            .map_err(|error| Error::of_service(error, &at, None))
    }

    /// Where it listens, for [`Service::connect`](crate::Service::connect) and [`Server::start`].
    pub fn address(&self) -> String {
        self.0.address().to_string()
    }
}

/// What a server is.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// What people call it. It is its failure domain, too.
    pub name: String,
    /// Where rows go that do not fit into memory.
    pub directory: PathBuf,
    /// Bytes of memory that the process takes, at most: 256 MiB or more.
    pub memory: u64,
    /// Bytes in the directory, at most.
    pub disk: u64,
}

impl ServerSpec {
    /// A server with 1 GiB of memory, and a directory for as many rows as come.
    pub fn new(name: impl Into<String>, directory: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            directory: directory.into(),
            memory: 1 << 30,
            disk: 1 << 62,
        }
    }
}

/// A server: it holds rows. Dropping it ends it, and the rows with it.
#[derive(Debug)]
pub struct Server(ShuffleServer);

impl Server {
    /// Starts one that joins the master at an address, or registers in another registry. Its memory is that of the process.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Unreachable`], [`Error::Refused`], [`Error::TimedOut`]; [`Error::Failed`]: the process takes so much memory
    /// already that the limit cannot be kept.
    pub fn start(
        registry: &str,
        spec: ServerSpec,
        options: &Options,
        wait: &mut Wait<'_>,
    ) -> Result<Self, Error> {
        let at = At::Service(format!("registering a shuffle server at {registry}"));
        let registry = Location::of(registry, options.net().tls.is_some());
        let registry = registry.map_err(|error| Error::invalid(&at, error))?;
        let listen = options.address("127.0.0.1:0");
        let options = ServerOptions {
            registry,
            net: options.net().clone(),
            patience: Some(PATIENCE),
            listen: listen.map_err(|error| Error::invalid(&at, error))?,
            domain: spec.name.clone(),
            rack: String::new(),
            host_kind: String::new(),
            name: spec.name,
            weight: 1,
            directories: vec![spec.directory],
            disk: spec.disk,
            memory: spec.memory,
            remote: None,
            http: None,
        };
        let started = ShuffleServer::start(options, wait);
        started
            .map(Self)
            .map_err(|error| Error::of_service(error, &at, None))
    }

    /// Where it listens, for lists of servers.
    pub fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// Waits until it is over, and says why. `None`: the time has passed.
    pub fn wait(&self, most: Duration) -> Option<String> {
        self.0.wait(most)
    }
}
