//! What a client dialled, and whether the listener that it reached is the one that it means.
//!
//! A proof of the secret says that a peer knows it, not that it is the peer that was dialled: whoever
//! holds an address that somebody still dials, on a machine with several users say, could pass the
//! proofs on to any listener with the same secret, and change what follows. So a client says in its
//! `Hello`, which the proofs cover, what it dialled; and a listener refuses, before it has proved
//! anything, whoever dialled what is neither the address of the accepted socket nor one that it was
//! told of ([`Options::contact`](crate::Options)). With TLS the channel itself is in the proofs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::str::FromStr;

use treadle_security::secret::random;

use crate::address::Address;
use crate::handshake::HandshakeError;
use crate::local;
use crate::wire::{WireError, proto};

/// A cluster among all that there ever were: a scheduler makes it at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterId([u8; 16]);

impl ClusterId {
    /// One that nobody else has.
    pub fn random() -> Self {
        Self(random())
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// Nothing, where it is none.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

/// Hexadecimal digits.
impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The text is no id of a cluster.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no id of a cluster: those have 32 hexadecimal digits")]
pub struct NoClusterId(String);

impl FromStr for ClusterId {
    type Err = NoClusterId;

    fn from_str(text: &str) -> Result<Self, NoClusterId> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(number) if digits => Ok(Self(number.to_be_bytes())),
            _ => Err(NoClusterId(text.to_owned())),
        }
    }
}

/// For a connection to a socket address that stands for `written`.
pub(crate) fn socket(address: SocketAddr, written: &Address) -> proto::Dialled {
    let mut ip = address.ip().to_canonical();
    if ip.is_unspecified() {
        // The kernel connects to itself.
        ip = match ip {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
    }
    let loopback = if ip.is_loopback() {
        local::loopback()
    } else {
        Vec::new()
    };
    proto::Dialled {
        socket: Some(proto::Socket {
            address: SocketAddr::new(ip, address.port()).to_string(),
            written: written.to_string(),
            loopback,
        }),
        unix: Vec::new(),
    }
}

/// For a connection to the Unix socket of a name.
pub(crate) fn unix(name: &[u8]) -> proto::Dialled {
    proto::Dialled {
        socket: None,
        unix: name.to_vec(),
    }
}

/// Refuses who dialled neither the address of this end of the connection nor one in `contact`.
pub(crate) fn check_socket(
    dialled: Option<&proto::Dialled>,
    accepted: &TcpStream,
    contact: &[Address],
) -> Result<(), HandshakeError> {
    let reached = accepted
        .local_addr()
        .map_err(|error| HandshakeError::Connect(error.to_string()))?;
    let reached = SocketAddr::new(reached.ip().to_canonical(), reached.port());
    let Some(dialled) = dialled.and_then(|dialled| dialled.socket.as_ref()) else {
        return Err(relayed("something else", &reached.to_string()));
    };
    let address = dialled.address.parse::<SocketAddr>().ok();
    // Each machine has a loopback address, so that one alone does not say which machine was meant.
    let is_here = !reached.ip().is_loopback() || dialled.loopback == local::loopback();
    if address == Some(reached) && is_here {
        return Ok(());
    }
    let written = dialled.written.parse::<Address>().ok();
    let is_known = |contact: &Address| {
        let ip = contact.host.parse::<IpAddr>().ok();
        ip.is_some_and(|ip| address == Some(SocketAddr::new(ip.to_canonical(), contact.port)))
            || written.as_ref().is_some_and(|written| {
                written.host.eq_ignore_ascii_case(&contact.host) && written.port == contact.port
            })
    };
    if contact.iter().any(is_known) {
        return Ok(());
    }
    let other_machine = if address == Some(reached) {
        " of another machine or container"
    } else {
        ""
    };
    // Of what a stranger says, no more than fits into an error.
    let dialled: String = dialled.written.chars().take(200).collect();
    Err(relayed(&dialled, &format!("{reached}{other_machine}")))
}

/// Refuses who dialled another Unix socket.
pub(crate) fn check_unix(
    dialled: Option<&proto::Dialled>,
    name: &[u8],
) -> Result<(), HandshakeError> {
    match dialled {
        Some(dialled) if dialled.unix == name => Ok(()),
        _ => Err(relayed("something else", &String::from_utf8_lossy(name))),
    }
}

/// Refuses who wants a listener of another cluster than this one's.
pub(crate) fn check_cluster(
    wanted: &[u8],
    reached: Option<ClusterId>,
) -> Result<(), HandshakeError> {
    if wanted.is_empty() {
        return Ok(());
    }
    match ClusterId::from_bytes(wanted) {
        None => Err(WireError::Message("a cluster's id has 16 bytes".into()).into()),
        wanted if wanted == reached => Ok(()),
        Some(wanted) => Err(HandshakeError::Cluster { wanted, reached }),
    }
}

fn relayed(dialled: &str, reached: &str) -> HandshakeError {
    HandshakeError::Relayed {
        dialled: dialled.to_owned(),
        reached: reached.to_owned(),
    }
}
