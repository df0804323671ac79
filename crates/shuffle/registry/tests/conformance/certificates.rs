//! Certificates of a registry and of its clients.

use std::path::PathBuf;

use tempfile::TempDir;
use treadle_security::certs::create;
use treadle_shuffle_registry::Credentials;

pub(crate) struct Certificates(TempDir);

impl Certificates {
    /// A new authority, with certificates for `node`.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("there is room");
        create(folder.path(), &["node".to_owned()], 1, false).expect("certificates are made");
        Self(folder)
    }

    /// A file: `ca.pem`, `node.pem`, `node-key.pem`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).expect("it was made")
    }

    pub(crate) fn credentials(&self) -> Credentials {
        Credentials {
            authorities: Some(self.text("ca.pem")),
            identity: Some((self.text("node.pem"), self.text("node-key.pem"))),
            ..Credentials::default()
        }
    }
}
