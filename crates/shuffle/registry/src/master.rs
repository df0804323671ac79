//! Where the master of an application is, as a registry keeps it: of one application there is one.

use treadle_codec::WireError;
use treadle_net::Address;

use crate::entry::LONGEST_ADDRESS;

/// The folder of masters. No name of a server is escaped to this.
pub(crate) const MASTERS: &str = "@masters";

/// The master of an application.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Master {
    pub application: u64,
    /// Where the application's processes connect: `treadle://host:port` or `treadle+tls://host:port`.
    pub address: String,
    /// The upper half of the numbers of its shuffles.
    pub number: u32,
}

impl Master {
    /// Its path below the registry's.
    pub fn path(&self) -> String {
        format!("{MASTERS}/{:016x}", self.application)
    }

    /// The same, if a registry can have it.
    ///
    /// # Errors
    /// For an address that is none.
    pub fn checked(self) -> Result<Self, WireError> {
        treadle_codec::at_most("address", self.address.len() as u64, LONGEST_ADDRESS as u64)?;
        match self.address.parse::<Address>() {
            Ok(address) if address.port > 0 => Ok(self),
            _ => Err(WireError::Missing("address")),
        }
    }
}

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
/// Whether a path below the registry's is that of a master, and none of a server.
pub(crate) fn is_masters(path: &str) -> bool {
    path.split('/').next() == Some(MASTERS)
}
