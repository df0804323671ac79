//! Where a master learns of servers: somebody hands it the list of those that are there, whenever it changes.

use crate::wire;

/// A server, as a registry knows it. The server itself says the rest when a master connects to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServerEntry {
    /// For people.
    pub(crate) name: String,
    /// Where masters connect.
    pub(crate) address: String,
    /// It was asked to leave: it gets no further partitions.
    pub(crate) is_leaving: bool,
}

/// Takes the list of all servers that are there. One that is not in it any more is used as long as the
/// connection to it lasts.
pub(crate) type Learn = dyn Fn(Vec<ServerEntry>) + Send + Sync;

impl From<wire::Server> for ServerEntry {
    fn from(server: wire::Server) -> Self {
        Self {
            name: server.name,
            address: server.address,
            is_leaving: server.is_leaving,
        }
    }
}
