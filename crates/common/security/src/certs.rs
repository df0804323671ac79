//! Making the certificates of a cluster: a CA that exists for this cluster only, and certificates
//! for its nodes.
//!
//! All keys are for ECDSA over P-256. A node's certificate serves both sides of a connection, and
//! carries [`NODE_NAME`], which is what nodes ask of each other (see [`PeerName::Node`]), and the
//! node's own name, `localhost` and the loopback addresses, for programs that check host names.
//!
//! [`PeerName::Node`]: crate::tls::PeerName::Node

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;

use crate::secret::random;
use crate::tls::NODE_NAME;

/// Longest validity of a node's certificate: ten years.
pub const MAX_DAYS: u32 = 3650;

/// Validity of the CA's certificate, so long that it never ends before a node's in practice.
const CA_DAYS: u32 = 2 * MAX_DAYS;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Clocks of a cluster may differ by this much.
const CLOCK_SKEW: Duration = DAY;

/// Certificates that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// The name cannot be one of a file and of a host.
    #[error(
        "{0:?} cannot be the name of a node: write letters, digits, '-', '_' and '.', not \"ca\", \
         and nothing that ends with \"-key\""
    )]
    Name(String),
    /// A node is named twice.
    #[error("the node {0:?} is named twice")]
    Twice(String),
    /// No node is named.
    #[error("name at least one node")]
    NoNodes,
    /// The validity is too long or too short.
    #[error("certificates cannot be valid for {0} days: give 1 to {MAX_DAYS}")]
    Days(u32),
    /// The file is there, and replacing it was not asked for.
    #[error("{} exists; nothing was changed. Replace it with --force, or choose another name", .0.display())]
    Exists(PathBuf),
    /// Of the CA's two files, one is missing.
    #[error(
        "{} is missing, but its counterpart is there: make certificates where the CA was made, or \
         in an empty directory for a new cluster",
        .0.display()
    )]
    HalfCa(PathBuf),
    /// The CA's files are no CA that was made here.
    #[error("cannot sign with the CA in {}: {reason}; use an empty directory for a new cluster", .path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A certificate or key could not be made.
    #[error("cannot make the certificate of {name:?}: {reason}")]
    Make {
        /// Of which node, or of the CA.
        name: String,
        /// Why.
        reason: rcgen::Error,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// What [`create`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The files that were written, in this order.
    pub files: Vec<PathBuf>,
    /// Whether the CA is new; otherwise the one that was there has signed.
    pub new_ca: bool,
}

/// Makes `NAME.pem` and `NAME-key.pem` in `directory` for each of `nodes`, valid from a day ago
/// until `days` from now, signed by the CA in `ca.pem` and `ca-key.pem`, which is made when there
/// is none. Only this user can read the keys.
///
/// `overwrite` replaces files of nodes; the CA is never replaced, because that would shut out all
/// nodes that have their certificates.
///
/// # Errors
/// [`CertsError`], which names the node or the file. What can be checked is checked before
/// anything is written.
pub fn create(
    directory: &Path,
    nodes: &[String],
    days: u32,
    overwrite: bool,
) -> Result<Created, CertsError> {
    check(directory, nodes, days, overwrite)?;
    fs::create_dir_all(directory).map_err(failed("create", directory))?;
    let mut files = Vec::new();
    let ca = directory.join("ca.pem");
    let ca_key = directory.join("ca-key.pem");
    let (issuer, new_ca) = match (exists(&ca)?, exists(&ca_key)?) {
        (true, true) => (read_ca(&ca_key)?, false),
        (true, false) => return Err(CertsError::HalfCa(ca_key)),
        (false, true) => return Err(CertsError::HalfCa(ca)),
        (false, false) => {
            let issuer = make_ca(&ca, &ca_key)?;
            files.extend([ca.clone(), ca_key.clone()]);
            (issuer, true)
        }
    };
    let ca_certificate = CertificateDer::from_pem_file(&ca).map_err(|reason| CertsError::Ca {
        path: ca.clone(),
        reason: format!("{reason:?}"),
    })?;
    for node in nodes {
        let (certificate, key) = make_node(node, days, &issuer)?;
        // Before it is written: a key that does not belong to ca.pem would sign in vain.
        check_signature(&ca_certificate, certificate.der()).map_err(|reason| CertsError::Ca {
            path: ca.clone(),
            reason: reason.to_string(),
        })?;
        let [path, key_path] = paths(directory, node);
        write(&key_path, &key.serialize_pem(), 0o600, overwrite)?;
        write(&path, &certificate.pem(), 0o644, overwrite)?;
        files.extend([path, key_path]);
    }
    Ok(Created { files, new_ca })
}

fn paths(directory: &Path, node: &str) -> [PathBuf; 2] {
    [
        directory.join(format!("{node}.pem")),
        directory.join(format!("{node}-key.pem")),
    ]
}

fn check(directory: &Path, nodes: &[String], days: u32, overwrite: bool) -> Result<(), CertsError> {
    if nodes.is_empty() {
        return Err(CertsError::NoNodes);
    }
    if !(1..=MAX_DAYS).contains(&days) {
        return Err(CertsError::Days(days));
    }
    let mut seen = BTreeSet::new();
    for node in nodes {
        if !is_name(node) {
            return Err(CertsError::Name(node.clone()));
        }
        if !seen.insert(node) {
            return Err(CertsError::Twice(node.clone()));
        }
        for path in paths(directory, node) {
            if !overwrite && exists(&path)? {
                return Err(CertsError::Exists(path));
            }
        }
    }
    Ok(())
}

/// The longest label of a DNS name has 63 characters; the first says that it is no option and no
/// hidden file.
fn is_name(node: &str) -> bool {
    node.starts_with(|c: char| c.is_ascii_alphanumeric())
        && node.ends_with(|c: char| c.is_ascii_alphanumeric())
        && node.split('.').all(|label| (1..=63).contains(&label.len()))
        && node.len() <= 200
        && node
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && node != "ca"
        && !node.ends_with("-key")
}

/// A broken link is there, too: writing would follow it.
fn exists(path: &Path) -> Result<bool, CertsError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("examine", path)(error)),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CertsError {
    move |source| CertsError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// What the CA's certificates have in common, whenever they were made: a reused CA signs with the
/// same name.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "Treadle cluster CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn make_ca(path: &Path, key_path: &Path) -> Result<Issuer<'static, KeyPair>, CertsError> {
    let made = |reason| CertsError::Make {
        name: "the CA".to_owned(),
        reason,
    };
    let key = KeyPair::generate().map_err(made)?;
    let mut params = ca_params();
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + DAY * CA_DAYS).into();
    let certificate = params.self_signed(&key).map_err(made)?;
    // The key first: who makes a CA here at the same time fails before there is a certificate that
    // the key does not belong to.
    write(key_path, &key.serialize_pem(), 0o600, false)?;
    write(path, &certificate.pem(), 0o644, false)?;
    Ok(Issuer::new(params, key))
}

fn read_ca(key_path: &Path) -> Result<Issuer<'static, KeyPair>, CertsError> {
    let text = fs::read_to_string(key_path).map_err(failed("read", key_path))?;
    let key = KeyPair::from_pem(&text).map_err(|reason| CertsError::Ca {
        path: key_path.to_owned(),
        reason: reason.to_string(),
    })?;
    Ok(Issuer::new(ca_params(), key))
}

fn make_node(
    node: &str,
    days: u32,
    issuer: &Issuer<'static, KeyPair>,
) -> Result<(rcgen::Certificate, KeyPair), CertsError> {
    let made = |reason| CertsError::Make {
        name: node.to_owned(),
        reason,
    };
    let names = [NODE_NAME, "localhost", "127.0.0.1", "::1", node];
    // `localhost` may be the node's own name.
    let names: BTreeSet<_> = names.into_iter().map(str::to_owned).collect();
    let mut params = CertificateParams::new(Vec::from_iter(names)).map_err(made)?;
    params.distinguished_name.push(DnType::CommonName, node);
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + DAY * days).into();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(made)?;
    let certificate = params.signed_by(&key, issuer).map_err(made)?;
    Ok((certificate, key))
}

fn check_signature(
    ca: &CertificateDer<'_>,
    certificate: &CertificateDer<'_>,
) -> Result<(), rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone().into_owned())?;
    verify_server_cert_signed_by_trust_anchor(
        &ParsedCertificate::try_from(certificate)?,
        &roots,
        &[],
        UnixTime::now(),
        default_provider().signature_verification_algorithms.all,
    )
}

/// Writes the file under another name first: it appears whole, with its permissions, or not at all.
fn write(path: &Path, text: &str, mode: u32, overwrite: bool) -> Result<(), CertsError> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}", u64::from_ne_bytes(random())));
    let temporary = PathBuf::from(name);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed("create", &temporary))?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed("write", &temporary));
    let placed = written.and_then(|()| {
        if overwrite {
            return fs::rename(&temporary, path).map_err(failed("replace", path));
        }
        match fs::hard_link(&temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(CertsError::Exists(path.to_owned()))
            }
            answer => answer.map_err(failed("create", path)),
        }
    });
    match fs::remove_file(&temporary) {
        // It was renamed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => placed,
        removed => placed.and(removed.map_err(failed("remove", &temporary))),
    }
}
