//! Where a registry is, as people write it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use treadle_net::Address;

use crate::error::LocationError;
use crate::fixed;

/// The most hosts of a registry, and the most addresses in a URL of a static list.
const MOST_HOSTS: usize = 1_000;
/// The longest URL, in bytes.
const LONGEST: usize = 64 << 10;
const ZOOKEEPER_PORT: u16 = 2181;
const ETCD_PORT: u16 = 2379;

/// A registry. Parsed from a URL, and displayed as one; it has no credentials.
///
/// | URL | registry |
/// | --- | --- |
/// | `treadle://host:port`, `treadle+tls://host:port` | built in: a shuffle master |
/// | `zk://host1,host2:2181/path`, `zk+tls://…` | ZooKeeper: entries are below the path |
/// | `etcd://host1,host2:2379/prefix`, `etcd+tls://…` | etcd: keys begin with the prefix |
/// | `static:host:port,treadle+tls://host:port` | a list of servers |
/// | `static:/file`, `static:./file` | a file of such addresses, one a line; it is read again when it changes |
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    BuiltIn(Address),
    ZooKeeper(Cluster),
    Etcd(Cluster),
    List(Vec<Address>),
    File(PathBuf),
}

/// Servers of ZooKeeper or etcd, and what is ours there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    /// Hosts with their ports; IPv6 addresses in brackets.
    pub hosts: Vec<String>,
    /// `/a/b`; not empty.
    pub path: String,
    pub tls: bool,
}

impl Location {
    /// A registry as people write it. Without a scheme it is the address of a shuffle master, with TLS if `tls`.
    ///
    /// # Errors
    /// It is none.
    pub fn of(text: &str, tls: bool) -> Result<Self, LocationError> {
        if text.contains("://") || text.starts_with("static:") {
            return text.parse();
        }
        let address = Address::of(text, tls);
        let address = address.map_err(|error| LocationError::Address(error.to_string()))?;
        Ok(Self::BuiltIn(address))
    }

    /// The first server that it names: who reaches the registry reaches that. `None`: its file names none.
    pub fn first(&self) -> Option<Address> {
        match self {
            Self::BuiltIn(address) => Some(address.clone()),
            Self::ZooKeeper(cluster) | Self::Etcd(cluster) => cluster.hosts.first()?.parse().ok(),
            Self::List(addresses) => addresses.first().cloned(),
            Self::File(_) => fixed::first(self),
        }
    }
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        if text.len() > LONGEST {
            return Err(LocationError::Long(text.len()));
        }
        if let Some(list) = text.strip_prefix("static:") {
            return listed(list);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(LocationError::Scheme(scheme_of(text).to_owned()));
        };
        // Nothing of a URL with a password is repeated in an error.
        if rest
            .split('/')
            .next()
            .is_some_and(|hosts| hosts.contains('@'))
        {
            return Err(LocationError::Credentials(scheme.to_owned()));
        }
        let cluster = |port| cluster(scheme, rest, port);
        match scheme {
            "treadle" | "treadle+tls" => Ok(Self::BuiltIn(parsed(text)?)),
            "zk" | "zk+tls" => Ok(Self::ZooKeeper(cluster(ZOOKEEPER_PORT)?)),
            "etcd" | "etcd+tls" => Ok(Self::Etcd(cluster(ETCD_PORT)?)),
            _ => Err(LocationError::Scheme(scheme.to_owned())),
        }
    }
}

/// The part before a colon, without what may be secret.
fn scheme_of(text: &str) -> &str {
    let scheme = text.split([':', '/', '@']).next().unwrap_or_default();
    if text.contains('@') { "" } else { scheme }
}

fn listed(list: &str) -> Result<Location, LocationError> {
    if list.starts_with(['/', '.']) {
        return Ok(Location::File(list.into()));
    }
    let addresses = list.split(',').map(str::trim).map(address);
    let addresses: Vec<_> = addresses.take(MOST_HOSTS + 1).collect::<Result<_, _>>()?;
    match addresses.len() > MOST_HOSTS {
        true => Err(LocationError::TooMany(MOST_HOSTS)),
        false => Ok(Location::List(addresses)),
    }
}

/// The address of a server in a static list.
///
/// # Errors
/// For an address without a host or a port.
pub(crate) fn address(text: &str) -> Result<Address, LocationError> {
    let address = parsed(text)?;
    let starts_with_port = text.starts_with(':') || text.parse::<u16>().is_ok();
    match starts_with_port || address.port == 0 {
        true => Err(LocationError::Server(text.to_owned())),
        false => Ok(address),
    }
}

fn parsed(text: &str) -> Result<Address, LocationError> {
    text.parse()
        .map_err(|error| LocationError::Address(format!("{error}")))
}

fn cluster(scheme: &str, rest: &str, port: u16) -> Result<Cluster, LocationError> {
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.trim_end_matches('/');
    let is_part =
        |part: &str| !matches!(part, "" | "." | "..") && !part.contains(|c: char| c.is_control());
    if !path.split('/').all(is_part) {
        return Err(LocationError::Path {
            scheme: scheme.to_owned(),
            hosts: hosts.to_owned(),
        });
    }
    if path.contains(['?', '#']) {
        return Err(LocationError::Query(scheme.to_owned()));
    }
    let hosts = hosts.split(',').map(|host| with_port(host.trim(), port));
    let hosts: Vec<_> = hosts.take(MOST_HOSTS + 1).collect::<Result<_, _>>()?;
    if hosts.len() > MOST_HOSTS {
        return Err(LocationError::TooMany(MOST_HOSTS));
    }
    Ok(Cluster {
        hosts,
        path: format!("/{path}"),
        tls: scheme.ends_with("+tls"),
    })
}

fn with_port(host: &str, port: u16) -> Result<String, LocationError> {
    if host.is_empty() || host.starts_with(':') {
        return Err(LocationError::Host(host.to_owned()));
    }
    let has_port = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.contains("]:"),
        None => host.contains(':'),
    };
    let text = match has_port {
        true => host.to_owned(),
        false => format!("{host}:{port}"),
    };
    let address = parsed(&text)?;
    if address.port == 0 || text.contains("://") {
        return Err(LocationError::Host(host.to_owned()));
    }
    Ok(text)
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = |scheme, cluster: &Cluster| {
            let tls = if cluster.tls { "+tls" } else { "" };
            let (hosts, path) = (cluster.hosts.join(","), &cluster.path);
            format!("{scheme}{tls}://{hosts}{path}")
        };
        let text = match self {
            Self::BuiltIn(address) => address.to_string(),
            Self::ZooKeeper(it) => cluster("zk", it),
            Self::Etcd(it) => cluster("etcd", it),
            Self::List(addresses) => {
                let addresses: Vec<_> = addresses.iter().map(Address::to_string).collect();
                format!("static:{}", addresses.join(","))
            }
            Self::File(path) => format!("static:{}", path.display()),
        };
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_displayed_as_it_can_be_parsed() {
        for (text, displayed) in [
            ("treadle://h:7790", "treadle://h:7790"),
            ("treadle+tls://h:7790", "treadle+tls://h:7790"),
            ("zk://a,b:99/c/d/", "zk://a:2181,b:99/c/d"),
            ("zk+tls://[::1]/c", "zk+tls://[::1]:2181/c"),
            ("etcd://a,b/treadle", "etcd://a:2379,b:2379/treadle"),
            ("etcd+tls://[::1]:9/treadle", "etcd+tls://[::1]:9/treadle"),
            (
                "static:a:1,treadle+tls://b:2",
                "static:treadle://a:1,treadle+tls://b:2",
            ),
            ("static:/etc/servers", "static:/etc/servers"),
            ("static:./servers", "static:./servers"),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!(location.to_string(), displayed);
            assert_eq!(displayed.parse(), Ok(location));
        }
    }

    #[test]
    fn without_a_scheme_it_is_a_shuffle_master() {
        let of = |text, tls| Location::of(text, tls).unwrap().to_string();
        assert_eq!(of("h:7790", false), "treadle://h:7790");
        assert_eq!(of("h:7790", true), "treadle+tls://h:7790");
        assert_eq!(of("treadle://h:7790", true), "treadle://h:7790");
        assert_eq!(of("static:h:1", true), "static:treadle://h:1");
        assert_eq!(of("zk://a/b", true), "zk://a:2181/b");
        assert!(Location::of("h", false).is_err());
    }

    #[test]
    fn the_first_server_is_who_is_reached() {
        for (text, host, port) in [
            ("treadle+tls://h:7790", "h", 7790),
            ("zk://a,b:99/c", "a", 2181),
            ("etcd+tls://[::1]:9/treadle", "::1", 9),
            ("static:treadle+tls://a:1,b:2", "a", 1),
        ] {
            let first = text.parse::<Location>().unwrap().first().unwrap();
            assert_eq!((&*first.host, first.port), (host, port), "{text}");
        }
        let nowhere: Location = "static:/nowhere/servers".parse().unwrap();
        assert_eq!(nowhere.first(), None);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (text, part) in [
            ("consul://a/b", "\"consul\" is no registry"),
            ("a:1", "\"a\" is no registry"),
            ("zk://a", "zk://a/treadle"),
            ("zk://a//b", "zk://a/treadle"),
            ("etcd://a/../b", "etcd://a/treadle"),
            ("etcd:///b", "\"\" is no host"),
            ("zk://a,,b/c", "\"\" is no host"),
            ("zk://a:0/c", "\"a:0\" is no host"),
            ("zk://a:x/c", "is no port"),
            ("etcd://http://a/c", "etcd://http:/treadle"),
            ("etcd://a/c?user=b", "no query"),
            ("static:", "no port"),
            ("static:a", "no port"),
            ("static:7791", "\"7791\" is no server"),
            ("static:a:0", "\"a:0\" is no server"),
            ("treadle://a", "no port"),
        ] {
            let error = text.parse::<Location>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let long = format!("zk://{}/p", "a,".repeat(2_000));
        assert!(long.parse::<Location>().is_err());
        assert_eq!(
            "x".repeat(LONGEST + 1).parse::<Location>(),
            Err(LocationError::Long(LONGEST + 1))
        );
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for text in [
            "zk://user:secret@a/b",
            "etcd://user:secret@a/b",
            "secret@a",
            "x:secret@a",
        ] {
            let error = text.parse::<Location>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        let error = "etcd://u:p@a/b"
            .parse::<Location>()
            .unwrap_err()
            .to_string();
        assert!(error.contains("TREADLE_REGISTRY_PASSWORD"), "{error}");
    }
}
