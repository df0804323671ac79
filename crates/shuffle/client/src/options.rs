//! How a process connects, and what it registers.

use std::net::{ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use treadle_compress::Codec;
use treadle_net::address::AddressError;
use treadle_net::{Address, NetError, Options as Net};
use treadle_security::secret::{Secret, SecretError, random};
use treadle_security::tls::TlsOptions;
use treadle_shuffle::{ApplicationId, Tenant};
use treadle_shuffle_registry::Location;
use treadle_shuffle_service::{MemberOptions, Place, RegistryOptions};

use crate::{At, Error, Kind};

/// How long a handshake may take.
const CONNECT: Duration = Duration::from_secs(30);

/// How a process connects to a shuffle service.
#[derive(Clone, Debug)]
pub struct Options {
    name: String,
    application: ApplicationId,
    /// Whether other processes have the same application.
    pub(crate) is_shared: bool,
    pub(crate) priority: u32,
    pub(crate) own_master: bool,
    pub(crate) listen: Option<String>,
    pub(crate) place: Option<Place>,
    net: Net,
}

impl Options {
    /// Those of a process that is an application of its own. Without more, it proves the secret of this user (the file
    /// that `TREADLE_SECRET_FILE` names, or `~/.config/treadle/secret`), and connects to this machine only.
    pub fn new() -> Self {
        Self {
            name: format!("process-{}", std::process::id()),
            application: ApplicationId(u64::from_le_bytes(random())),
            is_shared: false,
            priority: 1,
            own_master: true,
            listen: None,
            place: None,
            net: Net {
                connect_timeout: CONNECT,
                ..Net::default()
            },
        }
    }

    /// Processes of one application share its shuffles, and lose them together: give all of them one number, and other
    /// applications other ones. By default a random number.
    #[must_use]
    pub fn application(mut self, number: u64) -> Self {
        self.application = ApplicationId(number);
        self.is_shared = true;
        self
    }

    /// What logs and records call this process.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How much of an overloaded server the application gets, compared with those of others; at least 1, which is the
    /// default, and at most 1,000: more counts as that.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// Whether the master of this application is in this process, unless a process of it has one already. Its shuffles
    /// end with that process, and with nothing else. `false`: the process at the address is the master, which a registry
    /// of another kind is not. Shuffles outlive this process then, and end with that one. By default `true`.
    #[must_use]
    pub fn own_master(mut self, own_master: bool) -> Self {
        self.own_master = own_master;
        self
    }

    /// Where an own master listens, as `host:port`; port 0 takes a free one. It is where the other processes of the
    /// application connect. By default the address of this host by which it reaches the service.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Where the shuffles of an own master are to be: `1/2` is the first half of the servers, as long as servers of it take
    /// rows. Large applications that run together are given different parts. By default all servers.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it is no part.
    pub fn place(mut self, part: &str) -> Result<Self, Error> {
        let at = At::Service("choosing a part of the servers".into());
        let place: Result<Place, String> = part.parse();
        self.place = Some(place.map_err(|reason| Error::Invalid { at, reason })?);
        Ok(self)
    }

    /// Proves this secret, of 16 to 1024 bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it has another length.
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.net.secret = Some(Secret::new(secret).map_err(unusable)?);
        Ok(self)
    }

    /// Proves the secret in this file, which nobody else may read.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it cannot be read, or others can read it.
    pub fn secret_file(mut self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let secret = Secret::from_file(path.as_ref());
        self.net.secret = Some(secret.map_err(unusable)?);
        Ok(self)
    }

    /// Encrypts all connections, and shows a certificate. The three are files, or PEM text: the certificate of the authority
    /// that others must have theirs of, this process's certificate, and its key. `treadle certs` makes them.
    #[must_use]
    pub fn tls(
        mut self,
        ca: impl Into<String>,
        certificate: impl Into<String>,
        key: impl Into<String>,
    ) -> Self {
        let tls = TlsOptions::new(ca.into(), certificate.into(), key.into());
        self.net.tls = Some(tls);
        self
    }

    /// Connects to other machines without TLS, too. The secret is proved all the same, and who can change what is on the
    /// network can change rows.
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.net.insecure = true;
        self
    }

    pub(crate) fn application_number(&self) -> u64 {
        self.application.0
    }

    pub(crate) fn net(&self) -> &Net {
        &self.net
    }

    pub(crate) fn member(&self, master: Address) -> MemberOptions {
        MemberOptions {
            master,
            net: self.net.clone(),
            name: self.name.clone(),
            tenant: Tenant {
                application: self.application,
                priority: self.priority,
            },
        }
    }

    /// What the application's own master is to a registry.
    pub(crate) fn registered(&self, location: Location) -> RegistryOptions {
        RegistryOptions {
            location,
            name: self.name.clone(),
            application: Some(self.application),
        }
    }

    /// An address as people write it. Without a scheme it has TLS if there are certificates.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn address(&self, text: &str) -> Result<Address, AddressError> {
        Address::of(text, self.net.tls.is_some())
    }

    /// Where an own master listens.
    ///
    /// # Errors
    /// The address is none, or that of the registry has no way there.
    pub(crate) fn own_address(&self, registry: &Location) -> Result<Address, NetError> {
        if let Some(listen) = &self.listen {
            return Ok(self.address(listen)?);
        }
        let host = match registry.first().filter(|first| !first.is_loopback()) {
            None => "127.0.0.1".into(),
            Some(first) => reached_from(&first)?,
        };
        Ok(Address {
            tls: self.net.tls.is_some(),
            host,
            port: 0,
        })
    }
}

/// The address of this host by which it reaches another one. Nothing is sent.
fn reached_from(other: &Address) -> Result<String, NetError> {
    let found = || -> std::io::Result<String> {
        let mut addresses = (other.host.as_str(), other.port).to_socket_addrs()?;
        let address = addresses.next().ok_or(std::io::ErrorKind::NotFound)?;
        let own = match address.is_ipv4() {
            true => UdpSocket::bind("0.0.0.0:0")?,
            false => UdpSocket::bind("[::]:0")?,
        };
        own.connect(address)?;
        Ok(own.local_addr()?.ip().to_string())
    };
    found().map_err(|source| NetError::Io {
        what: format!("finding the address of this host by which {other} is reached"),
        source,
    })
}

fn unusable(error: SecretError) -> Error {
    Error::invalid(&At::Service("taking a secret".into()), error)
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// What a shuffle is.
#[derive(Clone, Debug)]
pub struct Spec {
    pub(crate) name: String,
    pub(crate) maps: u32,
    pub(crate) partitions: u32,
    pub(crate) copies: u32,
    pub(crate) expected: u64,
    pub(crate) kind: Kind,
    pub(crate) codec: Option<Codec>,
    pub(crate) note: Bytes,
}

impl Spec {
    /// A shuffle with so many inputs and outputs, of records of bytes, each of which two servers have.
    pub fn new(maps: u32, partitions: u32) -> Self {
        Self {
            name: String::new(),
            maps,
            partitions,
            copies: 2,
            expected: 0,
            kind: Kind::Records,
            codec: None,
            note: Bytes::new(),
        }
    }

    /// How many bytes are expected to be pushed: a small shuffle is at few servers. 0: nobody knows, which is the default.
    #[must_use]
    pub fn expected(mut self, bytes: u64) -> Self {
        self.expected = bytes;
        self
    }

    /// What logs, records and errors call it. By default `shuffle`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// At how many servers, in different failure domains, each row is: 1 or 2. If all servers are in one domain, there is one
    /// copy; [`Shuffle::copies`](crate::Shuffle::copies) says so.
    #[must_use]
    pub fn copies(mut self, copies: u32) -> Self {
        self.copies = copies;
        self
    }

    /// What its rows are.
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Has writers compress the rows, and readers decompress them.
    #[must_use]
    pub fn compressed(mut self, codec: Codec) -> Self {
        self.codec = Some(codec);
        self
    }

    /// What other processes are to know of it, such as a schema: at most 1 MiB.
    #[must_use]
    pub fn note(mut self, note: impl Into<Bytes>) -> Self {
        self.note = note.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_scheme_has_tls_if_there_are_certificates() {
        let plain = Options::new();
        assert!(!plain.address("localhost:7").unwrap().tls);
        let tls = Options::new().tls("ca", "certificate", "key");
        assert!(tls.address("localhost:7").unwrap().tls);
        assert!(!tls.address("treadle://localhost:7").unwrap().tls);
        assert!(plain.address("localhost").is_err());
        assert!(plain.address("spark://localhost:7").is_err());
    }

    #[test]
    fn an_own_master_listens_where_the_service_is_reached_from_or_where_it_is_told() {
        let options = Options::new();
        let near = Location::of("localhost:7", false).unwrap();
        assert_eq!(options.own_address(&near).unwrap().host, "127.0.0.1");
        let told = options.listen("[::1]:9").own_address(&near).unwrap();
        assert_eq!((told.host.as_str(), told.port), ("::1", 9));
    }

    #[test]
    fn a_secret_that_is_too_short_is_refused() {
        let refused = Options::new().secret(b"short").unwrap_err();
        assert!(refused.to_string().contains("has 5 bytes"), "{refused}");
    }
}
