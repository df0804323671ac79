//! What lets a connection in.

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::io::Read;
use std::time::Duration;
use treadle_net::{NoClusterId, Options};
use treadle_security::secret::{MAX_SECRET, Secret, open_private};
use treadle_security::tls::TlsOptions;

use crate::transfer::parse;

/// The keyword arguments that say so, wherever there are connections.
pub(crate) struct Credentials<'a, 'py> {
    /// `bytes` or `str`, or the path of its file; without it, the user's own.
    pub(crate) secret: Option<&'a Bound<'py, PyAny>>,
    /// `ca`, `certificate` and `key`: paths, or PEM text.
    pub(crate) certificates: Option<HashMap<String, String>>,
    /// Whether other machines may be reached without TLS.
    pub(crate) insecure: bool,
    /// Other addresses at which a listener is reached.
    pub(crate) contact: Vec<String>,
    /// The id of the cluster that a connection must reach.
    pub(crate) cluster: Option<&'a str>,
}

impl Credentials<'_, '_> {
    /// The options of a connection that may take `timeout` to be made.
    ///
    /// # Errors
    /// For a secret, certificates, addresses or an id that are none.
    pub(crate) fn options(self, timeout: Duration) -> PyResult<Options> {
        let tls = match self.certificates {
            None => None,
            Some(mut files) => {
                let mut take = |name: &str| {
                    files.remove(name).ok_or_else(|| {
                        PyValueError::new_err(format!(
                            "certificates: {name:?} is missing; give \"ca\", \"certificate\" and \
                             \"key\""
                        ))
                    })
                };
                Some(TlsOptions::new(
                    take("ca")?,
                    take("certificate")?,
                    take("key")?,
                ))
            }
        };
        let contact = self.contact.iter().map(|address| parse(address));
        let cluster = self.cluster.map(str::parse).transpose();
        Ok(Options {
            contact: contact.collect::<PyResult<_>>()?,
            cluster: cluster
                .map_err(|error: NoClusterId| PyValueError::new_err(error.to_string()))?,
            secret: self.secret.map(secret).transpose()?,
            tls,
            insecure: self.insecure,
            connect_timeout: timeout,
            ..Options::default()
        })
    }
}

/// The file of this user's secret, which is made where there is none.
///
/// # Errors
/// Where it cannot be made or read, or others could read it.
#[pyfunction]
pub(crate) fn user_secret_file() -> PyResult<std::path::PathBuf> {
    let failed =
        |error: treadle_security::secret::SecretError| PyOSError::new_err(error.to_string());
    let path = treadle_security::secret::user_path().map_err(failed)?;
    Secret::load_or_create(&path).map_err(failed)?;
    Ok(path)
}

/// What is in a file of a secret, without white space at its end.
///
/// # Errors
/// As for [`user_secret_file`].
#[pyfunction]
pub(crate) fn read_secret(path: std::path::PathBuf) -> PyResult<Vec<u8>> {
    let failed =
        |error: treadle_security::secret::SecretError| PyOSError::new_err(error.to_string());
    let mut bytes = Vec::new();
    open_private(&path)
        .map_err(failed)?
        .take(MAX_SECRET as u64 + 2)
        .read_to_end(&mut bytes)?;
    // It is checked to be one.
    Secret::new(bytes.trim_ascii_end()).map_err(failed)?;
    bytes.truncate(bytes.trim_ascii_end().len());
    Ok(bytes)
}

fn secret(object: &Bound<'_, PyAny>) -> PyResult<Secret> {
    let made = if let Ok(text) = object.extract::<String>() {
        Secret::new(text)
    } else if let Ok(bytes) = object.extract::<Vec<u8>>() {
        Secret::new(bytes)
    } else if let Ok(path) = object.extract::<std::path::PathBuf>() {
        return Secret::from_file(path).map_err(|error| PyOSError::new_err(error.to_string()));
    } else {
        let wrong = "secret: give bytes, a string, or the path of its file";
        return Err(PyTypeError::new_err(wrong));
    };
    made.map_err(|error| PyValueError::new_err(error.to_string()))
}
