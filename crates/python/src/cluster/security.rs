//! What lets a connection in.

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::time::Duration;
use treadle_net::Options;
use treadle_net::secret::Secret;
use treadle_net::tls::TlsOptions;

/// The keyword arguments that say so, wherever there are connections.
pub(crate) struct Credentials<'a, 'py> {
    /// `bytes` or `str`; without it, the user's own.
    pub(crate) secret: Option<&'a Bound<'py, PyAny>>,
    /// `ca`, `certificate` and `key`: paths, or PEM text.
    pub(crate) certificates: Option<HashMap<String, String>>,
    /// Whether other machines may be reached without TLS.
    pub(crate) insecure: bool,
}

impl Credentials<'_, '_> {
    /// The options of a connection that may take `timeout` to be made.
    ///
    /// # Errors
    /// For a secret or certificates that are none.
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
        Ok(Options {
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
    let failed = |error: treadle_net::secret::SecretError| PyOSError::new_err(error.to_string());
    let path = treadle_net::secret::user_path().map_err(failed)?;
    Secret::load_or_create(&path).map_err(failed)?;
    Ok(path)
}

fn secret(object: &Bound<'_, PyAny>) -> PyResult<Secret> {
    let bytes = if let Ok(text) = object.extract::<String>() {
        text.into_bytes()
    } else {
        let wrong = |_| PyTypeError::new_err("secret: give bytes or a string");
        object.extract::<Vec<u8>>().map_err(wrong)?
    };
    Secret::new(bytes).map_err(|error| PyValueError::new_err(error.to_string()))
}
