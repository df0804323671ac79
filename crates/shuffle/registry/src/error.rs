//! What can go wrong with a registry.

use std::path::PathBuf;

/// A URL that is no registry's. It repeats no credentials.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LocationError {
    #[error(
        "{0:?} is no registry: write treadle://host:port, zk://host/path, etcd://host/prefix, \
         static:host:port or static:/file"
    )]
    Scheme(String),
    #[error(
        "the URL of a registry has no credentials: remove what is before @ in {0}://…, and set \
         TREADLE_REGISTRY_USER, and TREADLE_REGISTRY_PASSWORD or TREADLE_REGISTRY_PASSWORD_FILE"
    )]
    Credentials(String),
    #[error("a registry needs a path, whose parts are not empty: write {scheme}://{hosts}/treadle")]
    Path { scheme: String, hosts: String },
    #[error("the URL of a registry has no query: remove what begins with ? or # in {0}://…")]
    Query(String),
    #[error("{0:?} is no host of a registry: write host or host:port, several with commas between")]
    Host(String),
    #[error("{0:?} is no server: write host:port, with a port that is not 0")]
    Server(String),
    #[error("more than {0} hosts")]
    TooMany(usize),
    #[error("a URL of {0} bytes")]
    Long(usize),
    #[error("{0}")]
    Address(String),
}

/// An error of a registry that waiting does not mend. What may pass is told by
/// [`Standing`](crate::Standing) and [`News`](crate::News).
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    Location(#[from] LocationError),
    #[error("{location} is the address of a shuffle master, whose client is another one")]
    BuiltIn { location: String },
    #[error("this build of Treadle has no client for {location}: it was built without {feature:?}")]
    NotBuilt {
        location: String,
        feature: &'static str,
    },
    #[error("a server cannot register this entry: {0}")]
    Entry(#[from] treadle_codec::WireError),
    #[error("{location} does not have the server {address}: add its address to the list")]
    NotListed { location: String, address: String },
    #[error("{what} {}: {source}", .path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{0}")]
    Credentials(String),
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: std::io::Error,
    },
    #[error(
        "{location} is a list of servers, and has no masters of applications: give the address of one instead, or use \
         ZooKeeper or etcd"
    )]
    NoMasters { location: String },
    #[error("{location} does not say which masters there are: {why}")]
    Unanswered { location: String, why: String },
    #[error("the entry was not withdrawn from {location} in time: it goes when its session ends")]
    Late { location: String },
}
