//! The processes of the stand-alone shuffle service, as Python sees them.

mod member;
mod shuffle;

use super::registry;
use super::security::Credentials;
use crate::transfer::{Limit, attach, failed};
use pyo3::exceptions::{PyConnectionError, PyOSError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use treadle_compress::Codec;
use treadle_interpreter::{ProcessLocal, refuse_forked};
use treadle_net::{Address, Options, Wait};
use treadle_shuffle::{ApplicationId, Remote};
use treadle_shuffle_node::Plane;
use treadle_shuffle_registry::Location;
use treadle_shuffle_remote as stores;
use treadle_shuffle_service::{
    MasterOptions, RegistryOptions, ServerOptions, ServiceError, ShuffleMaster as Master,
    ShuffleServer as Server,
};

use member::ShuffleMember;

pyo3::import_exception!(treadle.shuffle.service._errors, Elsewhere);
pyo3::import_exception!(treadle.shuffle.service._errors, ShuffleError);

/// How long a handshake may take.
const CONNECT: Duration = Duration::from_secs(30);
/// How often signals are looked at.
pub(super) const LOOK: Duration = Duration::from_millis(100);

pub(super) fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| PyValueError::new_err(format!("{name}={value}: give seconds")))
}

fn raised(error: ServiceError, doing: &str) -> PyErr {
    match error {
        ServiceError::Net(error) => failed(doing)(error),
        ServiceError::Refused(reason) => ShuffleError::new_err(format!("{doing}: {reason}")),
        ServiceError::TooLittleMemory { .. } | ServiceError::Remote(_) => {
            ShuffleError::new_err(error.to_string())
        }
        ServiceError::Over(reason) => PyConnectionError::new_err(format!("{doing}: {reason}")),
        ServiceError::Elsewhere(address) => Elsewhere::new_err(address),
        ServiceError::Registry(why) => PyConnectionError::new_err(why),
        ServiceError::Unusable(error) => registry::raised(error),
        ServiceError::Late => PyTimeoutError::new_err(format!("{doing}: no answer in time")),
        ServiceError::System { .. } => PyOSError::new_err(format!("{doing}: {error}")),
    }
}

fn address(text: &str, options: &Options) -> PyResult<Address> {
    Address::of(text, options.tls.is_some())
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Where servers are registered: the address of a master, or the URL of another registry.
fn registry_of(text: &str, options: &Options) -> PyResult<Location> {
    Location::of(text, options.tls.is_some())
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Where else a server keeps rows, and what for.
fn remote_of(remote: Option<&str>, storage: &str) -> PyResult<Option<(stores::Location, Remote)>> {
    let what = match (storage, remote) {
        ("local", _) => Remote::WhenFull,
        ("remote", Some(_)) => Remote::First,
        ("remote", None) => {
            let text = "storage=remote needs a remote store: give its URL with remote";
            return Err(PyValueError::new_err(text));
        }
        _ => {
            let text = format!("storage={storage}: say local or remote");
            return Err(PyValueError::new_err(text));
        }
    };
    let location = remote.map(str::parse::<stores::Location>).transpose();
    let location = location.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(location.map(|location| (location, what)))
}

/// Calls `act` with what says whether it is to end: because of a signal, or since the time has passed.
pub(super) fn interruptible<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    act: impl FnOnce(&mut dyn FnMut() -> bool) -> T + Send,
) -> PyResult<T> {
    let limit = Limit::new(timeout)?;
    let mut signal = None;
    let result = py.detach(|| {
        let mut looked = Instant::now();
        let signal = &mut signal;
        act(&mut || {
            let now = Instant::now();
            if now >= looked + LOOK {
                looked = now;
                // `None`: the interpreter is ending.
                match attach(|py| py.check_signals()) {
                    Some(Ok(())) => {}
                    Some(Err(error)) => *signal = Some(error),
                    None => return true,
                }
            }
            signal.is_some() || limit.deadline.is_some_and(|deadline| now >= deadline)
        })
    });
    match signal {
        Some(error) => Err(error),
        None => Ok(result),
    }
}

/// The master of a shuffle service, as native threads of this process.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct ShuffleMaster(ProcessLocal<Master>);

#[pymethods]
impl ShuffleMaster {
    /// Starts one at `address`. A process that is silent for `timeout` seconds is lost; shuffles of an
    /// application without a process are kept for `lease` seconds. `told`: the log says which servers come
    /// and go.
    ///
    /// With `registry`, the address of another master or the URL of another registry, this is the master of one
    /// `application`, which uses the servers there. `name` is for people. If the application has a master already,
    /// `Elsewhere` says where. Without an `application`, it is that of any, and `registry` is no master.
    ///
    /// `http` is where it serves its pages, for who knows `http_token` (a random one by default), and asks by one
    /// of `http_names`.
    #[new]
    #[pyo3(signature = (address="127.0.0.1:0", *, secret=None, certificates=None, insecure=false,
                        contact=Vec::new(), timeout=10.0, lease=60.0, told=false, registry=None,
                        name=String::new(), application=None, patience=None, http=None, http_token=None,
                        http_names=Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        address: &str,
        secret: Option<&Bound<'_, PyAny>>,
        certificates: Option<HashMap<String, String>>,
        insecure: bool,
        contact: Vec<String>,
        timeout: f64,
        lease: f64,
        told: bool,
        registry: Option<&str>,
        name: String,
        application: Option<u64>,
        patience: Option<f64>,
        http: Option<&str>,
        http_token: Option<String>,
        http_names: Vec<String>,
    ) -> PyResult<Self> {
        refuse_forked()?;
        treadle_log::init();
        let credentials = Credentials {
            secret,
            certificates,
            insecure,
            contact,
            cluster: None,
        };
        let net = credentials.options(CONNECT)?;
        let http = http.map(|http| super::scheduler::pages(http, http_token, http_names));
        let http = http.transpose()?;
        let registry = registry.map(|registry| {
            Ok::<_, PyErr>(RegistryOptions {
                location: registry_of(registry, &net)?,
                name,
                application: application.map(ApplicationId),
            })
        });
        let options = MasterOptions {
            address: self::address(address, &net)?,
            net,
            timeout: seconds("timeout", timeout)?,
            lease: seconds("lease", lease)?,
            is_told: told,
            registry: registry.transpose()?,
            place: None,
        };
        let doing = match &options.registry {
            Some(registry) => match &registry.location {
                Location::BuiltIn(master) => {
                    format!("connecting to the shuffle master at {master}")
                }
                location => format!("watching the shuffle servers of {location}"),
            },
            None => format!("starting the shuffle master at {}", options.address),
        };
        let started = interruptible(py, patience, |interrupted| {
            let mut wait = Wait {
                deadline: None,
                interrupted: Some(interrupted),
            };
            Master::start(options, &mut wait)
        })?;
        let started = started.map_err(|error| raised(error, &doing))?;
        if let Some(http) = http {
            let shown = started.show(http);
            shown.map_err(|error| raised(error, &doing))?;
        }
        Ok(Self(ProcessLocal::new(started)))
    }

    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.0.get()?.address().to_string())
    }

    /// `http://…/?token=…`, where it serves its pages.
    #[getter]
    fn http(&self) -> PyResult<Option<&str>> {
        Ok(self.0.get()?.http_link())
    }

    /// The upper half of the numbers of its shuffles.
    #[getter]
    fn number(&self) -> PyResult<u32> {
        Ok(self.0.get()?.number())
    }

    /// Servers and shuffles, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        let master = self.0.get()?;
        Ok(py.detach(|| master.state()))
    }

    /// The id of the service, which begins with it.
    #[getter]
    fn cluster(&self) -> PyResult<String> {
        Ok(self.0.get()?.cluster().to_string())
    }

    /// Records of the shuffles that have ended since this was last called, as JSON.
    fn take_records(&self, py: Python<'_>) -> PyResult<String> {
        let master = self.0.get()?;
        Ok(py.detach(|| master.take_records()))
    }

    /// Waits until it has ended; `False`: it has not within `timeout` seconds.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let most = seconds("timeout", timeout)?;
        let master = self.0.get()?;
        Ok(py.detach(|| master.wait(most)))
    }

    /// Ends it. In a forked child this does nothing: it is the parent's.
    fn close(&self, py: Python<'_>) {
        if let Some(master) = self.0.peek() {
            py.detach(|| master.close());
        }
    }

    fn __repr__(&self) -> String {
        match self.0.peek() {
            Some(master) => format!("<ShuffleMaster at {}>", master.address()),
            None => "<ShuffleMaster of the parent process>".into(),
        }
    }
}

/// A process that holds partitions.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct ShuffleServer(Server);

#[pymethods]
impl ShuffleServer {
    /// Starts one that registers at `registry`: the address of a master, or the URL of another registry. When that is
    /// lost, it goes on for the masters that it has, for `patience` seconds.
    #[new]
    #[pyo3(signature = (registry, *, name, domain, directories, memory, disk, listen, remote=None,
                        storage="local", weight=1, secret=None, certificates=None, insecure=false, contact=Vec::new(),
                        http=None, http_token=None, http_names=Vec::new(), timeout=None,
                        patience=None, rack=String::new(), host_kind=String::new()))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        registry: &str,
        name: String,
        domain: String,
        directories: Vec<PathBuf>,
        memory: u64,
        disk: u64,
        listen: &str,
        remote: Option<&str>,
        storage: &str,
        weight: u32,
        secret: Option<&Bound<'_, PyAny>>,
        certificates: Option<HashMap<String, String>>,
        insecure: bool,
        contact: Vec<String>,
        http: Option<&str>,
        http_token: Option<String>,
        http_names: Vec<String>,
        timeout: Option<f64>,
        patience: Option<f64>,
        rack: String,
        host_kind: String,
    ) -> PyResult<Self> {
        refuse_forked()?;
        treadle_log::init();
        let credentials = Credentials {
            secret,
            certificates,
            insecure,
            contact,
            cluster: None,
        };
        let net = credentials.options(CONNECT)?;
        let registry = registry_of(registry, &net)?;
        let doing = match &registry {
            Location::BuiltIn(master) => format!("joining the shuffle master at {master}"),
            location => format!("registering in {location}"),
        };
        let options = ServerOptions {
            listen: address(listen, &net)?,
            registry,
            net,
            name,
            patience: patience
                .map(|patience| seconds("patience", patience))
                .transpose()?,
            domain,
            rack,
            host_kind,
            weight,
            directories,
            disk,
            remote: remote_of(remote, storage)?,
            memory,
            http: http
                .map(|http| super::scheduler::pages(http, http_token, http_names))
                .transpose()?,
        };
        let started = interruptible(py, timeout, |interrupted| {
            let mut wait = Wait {
                deadline: None,
                interrupted: Some(interrupted),
            };
            Server::start(options, &mut wait)
        })?;
        started.map(Self).map_err(|error| raised(error, &doing))
    }

    #[getter]
    fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// `http://…/?token=…`, where it serves its state and metrics.
    #[getter]
    fn http(&self) -> Option<&str> {
        self.0.http_link()
    }

    /// Asks all masters to have what is here copied elsewhere.
    fn drain(&self, py: Python<'_>) {
        py.detach(|| self.0.drain());
    }

    /// Whether it was asked to leave, and holds nothing any more.
    #[getter]
    fn drained(&self) -> bool {
        self.0.is_drained()
    }

    /// Waits for its end: why it has ended, or `None` after `timeout` seconds or when it is drained.
    fn ended(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<String>> {
        let most = seconds("timeout", timeout)?;
        Ok(py.detach(|| self.0.wait(most)))
    }

    /// Counts of its plane, by name.
    fn stats(&self, py: Python<'_>) -> HashMap<&'static str, u64> {
        stats(py, self.0.plane())
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn __repr__(&self) -> String {
        format!("<ShuffleServer at {}>", self.0.address())
    }
}

fn stats(py: Python<'_>, plane: &Plane) -> HashMap<&'static str, u64> {
    let (stats, leftovers) = py.detach(|| (plane.stats(), plane.leftovers()));
    HashMap::from([
        ("transfers", stats.transfers),
        ("reads", stats.reads),
        ("uncompressed", stats.uncompressed),
        ("compressed", stats.compressed),
        ("pushed", stats.pushed),
        ("copied", stats.copied),
        ("stored", stats.stored),
        ("spilled", stats.spilled),
        ("loaded", stats.loaded),
        ("on_disk", stats.on_disk),
        ("remote", stats.remote),
        ("gathered", stats.gathered),
        ("resident", stats.resident),
        ("held", stats.held),
        ("in_flight", stats.in_flight),
        ("slept", stats.slept),
        ("leftovers", leftovers as u64),
    ])
}

/// Adds what is here to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let names = Codec::ALL.map(Codec::name);
    module.add("COMPRESSIONS", PyTuple::new(module.py(), names)?)?;
    module.add_class::<ShuffleMaster>()?;
    module.add_class::<ShuffleServer>()?;
    module.add_class::<member::ShuffleAbout>()?;
    module.add_class::<shuffle::ServiceShuffle>()?;
    module.add_class::<ShuffleMember>()
}
