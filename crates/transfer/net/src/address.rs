//! Where a node listens, as people write it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// An address that cannot be used. The message says what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The text has no port.
    #[error("{address:?} has no port: write {suggestion:?} (port 0 takes a free one)")]
    NoPort {
        /// What was written.
        address: String,
        /// What could be written, with a port for an example.
        suggestion: String,
    },
    /// The port is no number that a port can have.
    #[error("{port:?} in {address:?} is no port: ports are numbers from 0 to 65535")]
    Port {
        /// What was written.
        address: String,
        /// The part after the last colon.
        port: String,
    },
    /// The text begins with a scheme of somebody else.
    #[error("{scheme:?} in {address:?} is unknown: write treadle://{rest} or treadle+tls://{rest}")]
    Scheme {
        /// What was written.
        address: String,
        /// The part before `://`.
        scheme: String,
        /// The part after `://`.
        rest: String,
    },
    /// An IPv6 address without brackets: its port cannot be told from its last group.
    #[error("{address:?} is ambiguous: write an IPv6 address in brackets, as in {suggestion:?}")]
    Brackets {
        /// What was written.
        address: String,
        /// The same with brackets.
        suggestion: String,
    },
    /// The host is neither a name nor an IP address.
    #[error(
        "{host:?} in {address:?} is no host: write a host name, an IPv4 address, or an IPv6 \
         address in brackets, as in \"[::1]:7000\""
    )]
    Host {
        /// What was written.
        address: String,
        /// The part before the port.
        host: String,
    },
    /// The name has no address, or the resolver failed.
    #[error("the host of {address} has no address: {source}; check its spelling, or write its IP")]
    Resolve {
        address: Address,
        /// What the resolver said.
        source: io::Error,
    },
}

/// `treadle://host:port`, or `treadle+tls://host:port`.
///
/// Parsed from either, from `host:port` (without TLS), and from `:port` or a bare `port`, which mean
/// the loopback interface. An IPv6 address stands in brackets. Displayed with its scheme, so that
/// what is displayed can be parsed again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Whether the connection is encrypted and both sides show a certificate.
    pub tls: bool,
    /// A name or an IP address, without brackets.
    pub host: String,
    /// 0 lets a listener take any free port.
    pub port: u16,
}

impl Address {
    /// An address as people write it. Without a scheme it has TLS if `tls`.
    ///
    /// # Errors
    /// It is none.
    pub fn of(text: &str, tls: bool) -> Result<Self, AddressError> {
        match (text.contains("://"), tls) {
            (true, _) => text.parse(),
            (false, true) => format!("treadle+tls://{text}").parse(),
            (false, false) => format!("treadle://{text}").parse(),
        }
    }

    /// The socket addresses of the host, in the resolver's order. Blocks while a name is resolved.
    ///
    /// # Errors
    /// [`AddressError::Resolve`] where there is none.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, AddressError> {
        let failed = |source| AddressError::Resolve {
            address: self.clone(),
            source,
        };
        let mut found: Vec<SocketAddr> = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(failed)?
            .collect();
        if self.is_loopback() {
            // A resolver that sends `localhost` elsewhere must not make us listen there.
            found.retain(|socket| is_loopback(socket.ip()));
        }
        if found.is_empty() {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        Ok(found)
    }

    /// Whether nobody but this machine can be at the other end. A name other than `localhost` is
    /// taken to be elsewhere, whatever it resolves to.
    pub fn is_loopback(&self) -> bool {
        match self.host.parse() {
            Ok(ip) => is_loopback(ip),
            Err(_) => self.host.eq_ignore_ascii_case("localhost"),
        }
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "treadle+tls" } else { "treadle" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let address = || text.to_owned();
        let (tls, rest) = match text.split_once("://") {
            None => (false, text),
            Some(("treadle", rest)) => (false, rest),
            Some(("treadle+tls", rest)) => (true, rest),
            Some((scheme, rest)) => {
                return Err(AddressError::Scheme {
                    address: address(),
                    scheme: scheme.to_owned(),
                    rest: rest.to_owned(),
                });
            }
        };
        let (host, port) = split_port(text, rest)?;
        let host = if host.is_empty() {
            Ipv4Addr::LOCALHOST.to_string()
        } else {
            host.to_owned()
        };
        if !host.contains(':') && !is_name(&host) {
            return Err(AddressError::Host {
                address: address(),
                host,
            });
        }
        let Some(port) = port else {
            return Err(AddressError::NoPort {
                address: address(),
                suggestion: Address {
                    tls,
                    host,
                    port: 7000,
                }
                .to_string(),
            });
        };
        let number = match port.parse() {
            Ok(number) if port.bytes().all(|b| b.is_ascii_digit()) => number,
            _ => {
                return Err(AddressError::Port {
                    address: address(),
                    port: port.to_owned(),
                });
            }
        };
        Ok(Address {
            tls,
            host,
            port: number,
        })
    }
}

/// The host and the port of what follows the scheme in `text`. A number alone is a port.
fn split_port<'a>(text: &str, rest: &'a str) -> Result<(&'a str, Option<&'a str>), AddressError> {
    if let Some(bracketed) = rest.strip_prefix('[') {
        let wrong = || AddressError::Host {
            address: text.to_owned(),
            host: rest.to_owned(),
        };
        let (host, after) = bracketed.split_once(']').ok_or_else(wrong)?;
        let (ip, _zone) = host.split_once('%').unwrap_or((host, ""));
        if ip.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(wrong());
        }
        match after.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if after.is_empty() => Ok((host, None)),
            None => Err(wrong()),
        }
    } else {
        match rest.rsplit_once(':') {
            Some((host, port)) if host.contains(':') => {
                Err(AddressError::Brackets {
                    address: text.to_owned(),
                    // Where all of it is an address, the port is missing.
                    suggestion: match rest.parse::<std::net::Ipv6Addr>() {
                        Ok(_) => format!("[{rest}]:7000"),
                        Err(_) => format!("[{host}]:{port}"),
                    },
                })
            }
            Some((host, port)) => Ok((host, Some(port))),
            None if !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(("", Some(rest)))
            }
            None => Ok((rest, None)),
        }
    }
}

/// Whether the resolver may be asked for `host`: letters, digits, and the marks of host names.
fn is_name(host: &str) -> bool {
    host.len() <= 253
        && host
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn refused(text: &str) -> String {
        text.parse::<Address>().unwrap_err().to_string()
    }

    #[test]
    fn every_form_is_read_and_displayed_in_one_form() {
        for (text, displayed) in [
            ("host:7000", "treadle://host:7000"),
            ("treadle://host.example:1", "treadle://host.example:1"),
            ("treadle+tls://host:7000", "treadle+tls://host:7000"),
            ("treadle+tls://:7000", "treadle+tls://127.0.0.1:7000"),
            ("[::1]:0", "treadle://[::1]:0"),
            (
                "treadle://[fe80::1%eth0]:65535",
                "treadle://[fe80::1%eth0]:65535",
            ),
            (":0", "treadle://127.0.0.1:0"),
            ("0", "treadle://127.0.0.1:0"),
        ] {
            let address = parsed(text);
            assert_eq!(address.to_string(), displayed, "{text}");
            assert_eq!(parsed(displayed), address, "{text}");
        }
    }

    #[test]
    fn a_wrong_address_is_answered_by_what_to_write() {
        for (text, hint) in [
            ("host", "write \"treadle://host:7000\""),
            ("", "write \"treadle://127.0.0.1:7000\""),
            ("treadle+tls://host", "write \"treadle+tls://host:7000\""),
            ("[::1]", "write \"treadle://[::1]:7000\""),
            ("host:", "ports are numbers from 0 to 65535"),
            ("host:+1", "ports are numbers from 0 to 65535"),
            ("host:65536", "ports are numbers from 0 to 65535"),
            (
                "tls://host:1",
                "write treadle://host:1 or treadle+tls://host:1",
            ),
            ("fe80::1:7000", "as in \"[fe80::1:7000]:7000\""),
            ("::g:7000", "as in \"[::g]:7000\""),
            ("[host]:1", "is no host"),
            ("[::1]7000", "is no host"),
            ("user@host:1", "is no host"),
            ("host/path:1", "is no host"),
            (" host:1", "is no host"),
        ] {
            let message = refused(text);
            assert!(message.contains(hint), "{text}: {message}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for text in ["localhost:1", "LocalHost:1", "127.8.8.8:1", "[::1]:1", "1"] {
            assert!(parsed(text).is_loopback(), "{text}");
        }
        assert!(parsed("[::ffff:127.0.0.1]:1").is_loopback());
        for text in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "localhost.example:1"] {
            assert!(!parsed(text).is_loopback(), "{text}");
        }
    }

    #[test]
    fn resolving_keeps_the_port_and_names_what_is_unknown() {
        let sockets = parsed("localhost:7001").resolve().unwrap();
        assert!(
            sockets
                .iter()
                .all(|s| s.port() == 7001 && s.ip().is_loopback())
        );
        assert_eq!(
            parsed("[::1]:5").resolve().unwrap(),
            ["[::1]:5".parse::<SocketAddr>().unwrap()]
        );
        // `.invalid` never resolves (RFC 2606).
        let unknown = parsed("host.invalid:1").resolve().unwrap_err().to_string();
        assert!(unknown.contains("treadle://host.invalid:1"), "{unknown}");
    }
}
