//! Settings of listeners and connections.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::time::Duration;
use treadle_net::{Config, Options};
use treadle_security::secret::Secret;
use treadle_security::tls::TlsOptions;

use super::listener::parse;

/// What `treadle.transfer._options` makes of keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Settings {
    tls: Option<Tls>,
    secret: Option<Vec<u8>>,
    insecure: bool,
    contact: Vec<String>,
    stripes: Option<usize>,
    max_stripes: usize,
    shared_memory: bool,
    prefetch: u64,
    timeout: f64,
    max_object: Option<u64>,
    connect_timeout: f64,
}

#[derive(FromPyObject)]
enum Tls {
    /// CA, certificate, key: paths or PEM text.
    Three(String, String, String),
    /// What `treadle certs` made for one node.
    Prefix(PathBuf),
}

impl Settings {
    /// # Errors
    /// For values that make no sense.
    pub(crate) fn into_options(self) -> PyResult<Options> {
        let defaults = Config::default();
        if self.stripes == Some(0) || self.max_stripes == 0 {
            return Err(PyValueError::new_err("there is at least one stripe"));
        }
        let secret = self.secret.map(Secret::new).transpose();
        let contact = self.contact.iter().map(|address| parse(address));
        Ok(Options {
            pair: Config {
                stripes: self.stripes,
                max_stripes: self.max_stripes,
                timeout: seconds("timeout", self.timeout)?,
                prefetch: self.prefetch,
                max_object: self.max_object.unwrap_or(defaults.max_object),
                ..defaults
            },
            secret: secret.map_err(|error| PyValueError::new_err(error.to_string()))?,
            tls: self.tls.map(|tls| match tls {
                Tls::Three(ca, cert, key) => TlsOptions::new(ca, cert, key),
                Tls::Prefix(prefix) => TlsOptions::from_prefix(prefix),
            }),
            insecure: self.insecure,
            contact: contact.collect::<PyResult<_>>()?,
            shared_memory: self.shared_memory,
            connect_timeout: seconds("connect_timeout", self.connect_timeout)?,
            ..Options::default()
        })
    }
}

fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if !duration.is_zero() && value < 1e9 => Ok(duration),
        _ => Err(PyValueError::new_err(format!(
            "{name}={value}: give a number of seconds above 0"
        ))),
    }
}
