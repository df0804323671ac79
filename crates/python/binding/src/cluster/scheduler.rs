//! `treadle._core.Scheduler`: the scheduler, as native threads of this process.

use super::error::raised;
use super::security::Credentials;
use crate::transfer::{Limit, parse};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use treadle_host::pages::Options as Pages;
use treadle_interpreter::refuse_forked;
use treadle_node_scheduler::{Options, Server as Native};
use treadle_security::secret::Secret;

/// How long a handshake of the scheduler's may take.
const CONNECT: Duration = Duration::from_secs(30);

/// A scheduler. Closed when it is dropped.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Scheduler(Native);

#[pymethods]
impl Scheduler {
    /// Starts one at `address`; port 0 takes a free one. `http`: where to serve state and metrics,
    /// for who knows `http_token` (a random one by default), and asks by one of `http_names`.
    #[new]
    #[pyo3(signature = (address="127.0.0.1:0", *, secret=None, certificates=None, insecure=false,
                        contact=Vec::new(), http=None, http_token=None, http_names=Vec::new(),
                        settings=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        py: Python<'_>,
        address: &str,
        secret: Option<&Bound<'_, PyAny>>,
        certificates: Option<HashMap<String, String>>,
        insecure: bool,
        contact: Vec<String>,
        http: Option<&str>,
        http_token: Option<String>,
        http_names: Vec<String>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        refuse_forked()?;
        let scheme = match certificates {
            Some(_) => "treadle+tls://",
            None => "treadle://",
        };
        let address = match address.contains("://") {
            true => parse(address)?,
            false => parse(&format!("{scheme}{address}"))?,
        };
        let credentials = Credentials {
            secret,
            certificates,
            insecure,
            contact,
            cluster: None,
        };
        let version = py.version_info();
        let mut options = Options {
            address,
            net: credentials.options(CONNECT)?,
            http: http
                .map(|http| pages(http, http_token, http_names))
                .transpose()?,
            python: Some(format!("{}.{}", version.major, version.minor)),
            ..Options::default()
        };
        for (name, value) in settings.into_iter().flat_map(|settings| settings.iter()) {
            set(&mut options, &name.extract::<String>()?, &value)?;
        }
        let doing = format!("starting the scheduler at {}", options.address);
        treadle_log::init();
        py.detach(|| Native::start(options))
            .map(Self)
            .map_err(|error| raised(error, &doing))
    }

    #[getter]
    fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// The id of the cluster, which begins with it.
    #[getter]
    fn cluster(&self) -> String {
        self.0.cluster().to_string()
    }

    /// `http://…/?token=…`, where it serves state and metrics.
    #[getter]
    fn http(&self) -> Option<&str> {
        self.0.http_link()
    }

    /// Waits until it has ended; `False`: it has not within `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        const LOOK: Duration = Duration::from_millis(100);
        let limit = Limit::new(timeout)?;
        loop {
            let left = limit.deadline.map_or(LOOK, |deadline| {
                deadline.saturating_duration_since(Instant::now()).min(LOOK)
            });
            let over = py.detach(|| self.0.wait(Some(left)));
            py.check_signals()?;
            if over
                || limit
                    .deadline
                    .is_some_and(|deadline| Instant::now() >= deadline)
            {
                return Ok(over);
            }
        }
    }

    /// Ends it, and with it its workers.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn __repr__(&self) -> String {
        format!("<Scheduler at {}>", self.0.address())
    }
}

pub(super) fn pages(address: &str, token: Option<String>, names: Vec<String>) -> PyResult<Pages> {
    if let Some(token) = &token {
        // As hard to guess as a secret of the cluster.
        Secret::new(token).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if !token.bytes().all(is_plain) {
            return Err(PyValueError::new_err(
                "the token of the pages is a part of their link: give letters, digits, and -._~ \
                 only, as `openssl rand -hex 32` does",
            ));
        }
    }
    let address = socket(address)?;
    Ok(Pages {
        address,
        token,
        names,
    })
}

fn socket(address: &str) -> PyResult<SocketAddr> {
    let address = address.strip_prefix("http://").unwrap_or(address);
    address.parse().map_err(|_| {
        PyValueError::new_err(format!(
            "http={address:?}: give an IP address and a port, such as 127.0.0.1:8787"
        ))
    })
}

/// Sets one setting by its name.
fn set(options: &mut Options, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let seconds = |value: &Bound<'_, PyAny>| -> PyResult<Duration> {
        let wrong = |_| PyValueError::new_err(format!("{name}: give seconds"));
        Duration::try_from_secs_f64(value.extract()?).map_err(wrong)
    };
    match name {
        "worker_timeout" => options.worker_timeout = seconds(value)?,
        "allowed_losses" => options.scheduler.allowed_losses = value.extract()?,
        "patience" => options.scheduler.patience = seconds(value)?,
        "python" => options.python = Some(value.extract()?),
        "sight" => options.sight.is_on = value.extract()?,
        "sight_memory" => options.sight.memory = value.extract()?,
        "history" => options.sight.history = Some(value.extract::<PathBuf>()?),
        "history_limit" => options.sight.longest_history = value.extract()?,
        "bandwidth" => options.scheduler.bandwidth = value.extract()?,
        _ => {
            return Err(PyTypeError::new_err(format!(
                "the scheduler has no setting {name:?}"
            )));
        }
    }
    Ok(())
}
