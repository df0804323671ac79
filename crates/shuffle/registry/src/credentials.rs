//! Who a process is to a registry: from the environment and from files, never from a URL.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::RegistryError;

/// The longest file of a password, a certificate or a key, in bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// Credentials for ZooKeeper and etcd. `Debug` has no secrets.
#[derive(Clone, Default)]
pub struct Credentials {
    /// A user and a password.
    pub user: Option<(String, String)>,
    /// PEM of the authorities that sign the registry's certificate. For URLs with `+tls`, which need it.
    pub authorities: Option<String>,
    /// PEM of a certificate and its key, for registries that ask for one.
    pub identity: Option<(String, String)>,
}

impl Credentials {
    /// What the environment has: `TREADLE_REGISTRY_USER` with `TREADLE_REGISTRY_PASSWORD` or
    /// `TREADLE_REGISTRY_PASSWORD_FILE`; `TREADLE_REGISTRY_CA`; `TREADLE_REGISTRY_CERT` with `TREADLE_REGISTRY_KEY`.
    /// The last three are files.
    ///
    /// # Errors
    /// For a file that cannot be read, and for one half of a pair.
    pub fn from_environment() -> Result<Self, RegistryError> {
        Self::from(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// The authorities, which a URL with `+tls` needs.
    ///
    /// # Errors
    /// When there are none.
    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    pub(crate) fn required_authorities(&self) -> Result<&str, RegistryError> {
        self.authorities.as_deref().ok_or_else(|| {
            let why = "a URL with +tls needs TREADLE_REGISTRY_CA: a file with the certificates (PEM) of who signs \
                       the registry's";
            RegistryError::Credentials(why.to_owned())
        })
    }

    fn from(get: impl Fn(&str) -> Option<String>) -> Result<Self, RegistryError> {
        let get = |name| get(&format!("TREADLE_REGISTRY_{name}"));
        let file = |name| {
            let path = get(name).map(PathBuf::from);
            path.map(|path| read(&path)).transpose()
        };
        let password = match (get("PASSWORD"), file("PASSWORD_FILE")?) {
            (Some(_), Some(_)) => {
                let why =
                    "set TREADLE_REGISTRY_PASSWORD or TREADLE_REGISTRY_PASSWORD_FILE, not both";
                return Err(RegistryError::Credentials(why.to_owned()));
            }
            (password, from_file) => {
                password.or(from_file.map(|text| text.trim_end_matches(['\r', '\n']).to_owned()))
            }
        };
        Ok(Self {
            user: pair("USER", get("USER"), "PASSWORD", password)?,
            authorities: file("CA")?,
            identity: pair("CERT", file("CERT")?, "KEY", file("KEY")?)?,
        })
    }
}

fn pair(
    one: &str,
    first: Option<String>,
    other: &str,
    second: Option<String>,
) -> Result<Option<(String, String)>, RegistryError> {
    let lacks = |has: &str, lacks: &str| {
        let why = format!("TREADLE_REGISTRY_{has} is set, and TREADLE_REGISTRY_{lacks} is not");
        Err(RegistryError::Credentials(why))
    };
    match (first, second) {
        (Some(first), Some(second)) => Ok(Some((first, second))),
        (Some(_), None) => lacks(one, other),
        (None, Some(_)) => lacks(other, one),
        (None, None) => Ok(None),
    }
}

/// The text of a file of a bounded length.
///
/// # Errors
/// For a file that cannot be read, is too long, or is no text.
pub(crate) fn read(path: &Path) -> Result<String, RegistryError> {
    use std::io::{Error, Read};
    let read = || {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        file.take(LONGEST_FILE + 1).read_to_string(&mut text)?;
        match text.len() as u64 > LONGEST_FILE {
            true => Err(Error::other(format!("more than {LONGEST_FILE} bytes"))),
            false => Ok(text),
        }
    };
    read().map_err(|source| RegistryError::File {
        what: "cannot read",
        path: path.to_owned(),
        source,
    })
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user.as_ref().map(|(user, _)| user))
            .field("has_authorities", &self.authorities.is_some())
            .field("has_identity", &self.identity.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Credentials, RegistryError> {
        Credentials::from(|name| {
            let pair = pairs
                .iter()
                .find(|pair| name == format!("TREADLE_REGISTRY_{}", pair.0));
            pair.map(|pair| pair.1.to_owned())
        })
    }

    #[test]
    fn they_come_in_pairs_and_are_not_displayed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        std::fs::write(&path, "secret\n").unwrap();
        let path = path.to_str().unwrap();
        for password in [("PASSWORD", "secret"), ("PASSWORD_FILE", path)] {
            let credentials = from(&[("USER", "u"), password]).unwrap();
            assert_eq!(credentials.user, Some(("u".into(), "secret".into())));
            assert!(!format!("{credentials:?}").contains("secret"));
        }
        for pairs in [
            &[("USER", "u")][..],
            &[("PASSWORD", "p")],
            &[("CERT", path)],
            &[("KEY", path)],
            &[("USER", "u"), ("PASSWORD", "p"), ("PASSWORD_FILE", path)],
            &[("CA", "/does/not/exist")],
        ] {
            let error = from(pairs).unwrap_err().to_string();
            assert!(error.contains("TREADLE_REGISTRY_") || error.contains("/does/not/exist"));
            assert!(!error.contains("secret"));
        }
    }
}
