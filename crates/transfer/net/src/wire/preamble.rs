//! The first bytes of a connection, in both directions: the preamble, and a message of the handshake.

use super::{WireError, malformed, u32_at};

/// First bytes of every connection.
pub const MAGIC: &[u8; 8] = b"TREADLE\n";
/// Version of the protocol: sides with another major version do not understand each other.
pub const VERSION: Version = Version { major: 3, minor: 0 };
/// Bytes of a preamble.
pub const PREAMBLE: usize = 16;
/// The longest `Hello` or `Proof`, in bytes.
pub const MAX_HELLO: usize = 16 * 1024;

/// Version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Differs when sides cannot understand each other.
    pub major: u16,
    /// Grows with additions that an older side ignores.
    pub minor: u16,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A preamble and what follows it.
pub fn encode_preamble(hello: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.major.to_le_bytes());
    out.extend_from_slice(&VERSION.minor.to_le_bytes());
    out.extend_from_slice(&(hello.len() as u32).to_le_bytes());
    out.extend_from_slice(hello);
}

/// The length of the `Hello` after this preamble, or `None` while it is not whole. Wrong bytes are
/// found at the first of them.
pub fn decode_preamble(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        // A TLS record: of a handshake, or an alert.
        return Err(if matches!(bytes, [21 | 22, ..]) {
            WireError::Tls
        } else {
            WireError::Magic
        });
    }
    if bytes.len() < PREAMBLE {
        return Ok(None);
    }
    let version = Version {
        major: u16::from_le_bytes([bytes[8], bytes[9]]),
        minor: u16::from_le_bytes([bytes[10], bytes[11]]),
    };
    if version.major != VERSION.major {
        return Err(WireError::Version(version));
    }
    let length = u32_at(bytes, 12) as usize;
    if length > MAX_HELLO {
        return Err(WireError::Length {
            length: length as u64,
            limit: MAX_HELLO as u64,
        });
    }
    Ok(Some(length))
}

/// A message of the handshake.
pub fn decode_hello<M: prost::Message + Default>(bytes: &[u8]) -> Result<M, WireError> {
    M::decode(bytes).map_err(malformed)
}
