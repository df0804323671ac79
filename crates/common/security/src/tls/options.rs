//! Certificates and keys, and what is asked of the peer's.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite::TLS13_AES_128_GCM_SHA256, default_provider};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::verify::{ClientVerifier, ServerVerifier};

/// The name that every node's certificate carries. `.internal` is set aside for private use, so no
/// public CA signs it.
pub const NODE_NAME: &str = "node.treadle.internal";

/// Certificates or keys that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; `treadle certs` makes certificates and keys", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file or a text is no PEM.
    #[error("{place} is not valid PEM: {reason:?}")]
    Pem {
        /// The file, or what the text was given for.
        place: String,
        /// What is wrong with it.
        reason: pem::Error,
    },
    /// A PEM file or text does not hold what it should.
    #[error("there is no {wanted} in {place}")]
    Missing {
        /// What was looked for.
        wanted: &'static str,
        /// The file, or what the text was given for.
        place: String,
    },
    /// The name that peers should carry is none.
    #[error("{0:?} is neither a DNS name nor an IP address: peers cannot carry it")]
    Name(String),
    /// Certificate and key are well formed, but of no use.
    #[error(
        "cannot use the certificate in {cert} with the key in {key} and the CA in {ca}: {reason}"
    )]
    Unusable {
        /// Where the certificate is.
        cert: String,
        /// Where its key is.
        key: String,
        /// Where the CA's certificate is.
        ca: String,
        /// What is wrong with them.
        reason: String,
    },
}

/// PEM, in a file or as text: settings of Dask clusters hold either.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In this file.
    File(PathBuf),
    /// The text itself.
    Text(String),
}

impl fmt::Debug for Pem {
    /// Does not show a text: it may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => f.debug_tuple("File").field(path).finish(),
            Pem::Text(_) => f.write_str("Text(..)"),
        }
    }
}

impl From<&str> for Pem {
    /// Text if it has the mark of PEM, otherwise a path.
    fn from(value: &str) -> Self {
        if value.contains("-----BEGIN ") {
            Pem::Text(value.to_owned())
        } else {
            Pem::File(value.into())
        }
    }
}

impl From<String> for Pem {
    fn from(value: String) -> Self {
        value.as_str().into()
    }
}

impl From<PathBuf> for Pem {
    fn from(value: PathBuf) -> Self {
        Pem::File(value)
    }
}

impl From<&Path> for Pem {
    fn from(value: &Path) -> Self {
        Pem::File(value.to_owned())
    }
}

impl Pem {
    fn place(&self, role: &str) -> String {
        match self {
            Pem::File(path) => path.display().to_string(),
            Pem::Text(_) => format!("the text of the {role}"),
        }
    }

    fn bytes(&self) -> Result<Vec<u8>, TlsError> {
        match self {
            Pem::File(path) => std::fs::read(path).map_err(|source| TlsError::Read {
                path: path.clone(),
                source,
            }),
            Pem::Text(text) => Ok(text.clone().into_bytes()),
        }
    }

    fn certificates(&self, role: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found: Vec<_> = CertificateDer::pem_slice_iter(&self.bytes()?)
            .collect::<Result<_, _>>()
            .map_err(|reason| TlsError::Pem {
                place: self.place(role),
                reason,
            })?;
        if found.is_empty() {
            return Err(TlsError::Missing {
                wanted: "certificate",
                place: self.place(role),
            });
        }
        Ok(found)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.bytes()?).map_err(|reason| match reason {
            pem::Error::NoItemsFound => TlsError::Missing {
                wanted: "private key that is not encrypted",
                place: self.place("key"),
            },
            reason => TlsError::Pem {
                place: self.place("key"),
                reason,
            },
        })
    }
}

/// What a peer's certificate must carry, beyond the CA's signature.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum PeerName {
    /// [`NODE_NAME`], as `treadle certs` writes it.
    ///
    /// Host names play no part: the CA exists for one cluster only, so that its signature is what
    /// proves membership; and nodes move between hosts, and hosts get new names, while a cluster
    /// runs. The fixed name keeps out certificates that the CA signed for something else.
    #[default]
    Node,
    /// This DNS name or IP address, for certificates that were not made by `treadle certs`.
    Named(String),
    /// Nothing: any certificate of the CA will do. This is what Dask's own TLS asks for.
    Any,
}

/// What a node shows, and what it asks of others. Both sides of every connection show a certificate
/// and check the other's.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// The certificates of the CAs whose signatures are accepted.
    pub ca: Pem,
    /// This node's certificate, followed by intermediate ones if there are any.
    pub cert: Pem,
    /// The key of the certificate.
    pub key: Pem,
    /// What the certificates of peers must carry.
    pub peer_name: PeerName,
}

impl TlsOptions {
    /// Certificates of nodes, as made by `treadle certs`; each is a path or PEM text.
    pub fn new(ca: impl Into<Pem>, cert: impl Into<Pem>, key: impl Into<Pem>) -> Self {
        TlsOptions {
            ca: ca.into(),
            cert: cert.into(),
            key: key.into(),
            peer_name: PeerName::Node,
        }
    }

    /// What `treadle certs` made for one node: `<prefix>.pem`, `<prefix>-key.pem`, and `ca.pem`
    /// beside them.
    pub fn from_prefix(prefix: impl AsRef<Path>) -> Self {
        let prefix = prefix.as_ref();
        let with = |suffix: &str| {
            let mut path = prefix.as_os_str().to_owned();
            path.push(suffix);
            PathBuf::from(path)
        };
        Self::new(
            prefix.with_file_name("ca.pem"),
            with(".pem"),
            with("-key.pem"),
        )
    }

    /// For the side that accepts connections.
    ///
    /// # Errors
    /// [`TlsError`], which names the file.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = provider();
        let chain =
            WebPkiClientVerifier::builder_with_provider(self.roots()?.into(), provider.clone())
                .build()
                .map_err(|error| self.unusable(error))?;
        let verifier = ClientVerifier {
            chain,
            name: self.name()?,
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| self.unusable(error))?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_single_cert(self.cert.certificates("certificate")?, self.key.key()?)
            .map_err(|error| self.unusable(error))?;
        // Connections live long: to resume one is no gain.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }

    /// For the side that connects.
    ///
    /// # Errors
    /// [`TlsError`], which names the file.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        self.client_config_with(provider())
    }

    pub(super) fn client_config_with(
        &self,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<ClientConfig>, TlsError> {
        let verifier = ServerVerifier {
            roots: self.roots()?.into(),
            name: self.name()?,
            algorithms: provider.signature_verification_algorithms,
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| self.unusable(error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.cert.certificates("certificate")?, self.key.key()?)
            .map_err(|error| self.unusable(error))?;
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.ca.certificates("CA")? {
            roots
                .add(certificate)
                .map_err(|error| self.unusable(error))?;
        }
        Ok(roots)
    }

    fn name(&self) -> Result<Option<ServerName<'static>>, TlsError> {
        let name = match &self.peer_name {
            PeerName::Node => NODE_NAME,
            PeerName::Named(name) => name,
            PeerName::Any => return Ok(None),
        };
        ServerName::try_from(name.to_owned())
            .map(Some)
            .map_err(|_| TlsError::Name(name.to_owned()))
    }

    fn unusable(&self, reason: impl fmt::Display) -> TlsError {
        TlsError::Unusable {
            cert: self.cert.place("certificate"),
            key: self.key.place("key"),
            ca: self.ca.place("CA"),
            reason: reason.to_string(),
        }
    }
}

/// AES-128-GCM only: with the instructions that processors have for it, nothing is faster, and both
/// sides of a connection are ours.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256],
        ..default_provider()
    })
}
