//! How to listen and connect.

use std::sync::Arc;
use std::time::Duration;

use treadle_security::secret::Secret;
use treadle_security::tls::TlsOptions;
use treadle_transfer::Config;

use crate::address::Address;
use crate::dialled::ClusterId;
use crate::error::NetError;
use crate::lane::Lane;

/// A service that a listener has connections for.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Its number; see [`Options::service`].
    pub service: u32,
    /// For people.
    pub name: &'static str,
    /// Where its control connections live. Without it: with the others.
    pub lane: Option<Lane>,
}

/// Settings of a listener or of a connection.
#[derive(Clone, Debug)]
pub struct Options {
    /// Stripes, limits and timeouts of each pair.
    pub pair: Config,
    /// What both sides must know. Without it: the user's own secret file, or, with TLS, nothing but
    /// the certificates.
    pub secret: Option<Secret>,
    /// Certificates, for `treadle+tls://`.
    pub tls: Option<TlsOptions>,
    /// Allow addresses beyond this machine without TLS. Secrets are proved all the same.
    pub insecure: bool,
    /// Pass shared memory to peers on the same host, and talk to them over Unix sockets where there
    /// is no TLS.
    pub shared_memory: bool,
    /// Where the control connection of a peer lives, or all connections of a listener. Without it:
    /// on one of the drivers that the process shares.
    pub lane: Option<Lane>,
    /// What a connection is for, as the applications on both sides know it.
    pub service: u32,
    /// The number of this side, as the applications on both sides know it; 0: it has none.
    pub client: u64,
    /// What connections to a listener may be for; others are refused. None: for anything.
    pub services: Vec<Offer>,
    /// Without TLS, a listener refuses who dialled another address than the one where it was reached.
    /// These are taken, too: those of forwarded ports and the like, as clients write them.
    pub contact: Vec<Address>,
    /// The cluster that a listener belongs to, or that a connection must reach.
    pub cluster: Option<ClusterId>,
    /// How long connecting may take, resolving and handshake included. Time in which this process
    /// was stopped does not count.
    pub connect_timeout: Duration,
    /// How long this side of a connection may be silent: the listener waits so long, if that is
    /// longer than its own timeout (an hour at most).
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pair: Config::default(),
            secret: None,
            tls: None,
            insecure: false,
            shared_memory: true,
            lane: None,
            service: 0,
            client: 0,
            services: Vec::new(),
            contact: Vec::new(),
            cluster: None,
            connect_timeout: Duration::from_secs(30),
            patience: Duration::ZERO,
        }
    }
}

/// What both sides of a connection need, checked.
#[derive(Clone, Debug)]
pub(crate) struct Security {
    pub(crate) secret: Option<Secret>,
    pub(crate) server: Option<Arc<rustls::ServerConfig>>,
    pub(crate) client: Option<Arc<rustls::ClientConfig>>,
}

impl Security {
    /// Checks the options against the address: TLS everywhere but on this machine.
    pub(crate) fn new(address: &Address, options: &Options) -> Result<Self, NetError> {
        if !address.tls {
            if options.tls.is_some() {
                return Err(NetError::Insecure(format!(
                    "certificates were given, and {address} has no TLS; write treadle+tls://"
                )));
            }
            if !address.is_loopback() && !options.insecure {
                return Err(NetError::Insecure(format!(
                    "{address} is reachable from other machines, and has no TLS; make \
                     certificates with `treadle certs` and write treadle+tls://, or say insecure=True \
                     (--insecure)"
                )));
            }
            let secret = match &options.secret {
                Some(secret) => secret.clone(),
                None => Secret::for_user()?,
            };
            return Ok(Self {
                secret: Some(secret),
                server: None,
                client: None,
            });
        }
        let Some(tls) = &options.tls else {
            return Err(NetError::Insecure(format!(
                "{address} needs certificates: tls=…, made with `treadle certs`"
            )));
        };
        Ok(Self {
            secret: options.secret.clone(),
            server: Some(tls.server_config()?),
            client: Some(tls.client_config()?),
        })
    }
}

/// How an object is sent ([`crate::Peer::send_with`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct SendOptions {
    /// With what is sent after it, until [`crate::Peer::flush`].
    pub corked: bool,
    /// Whoever uses the frames, but for the first, finds every wrong bit in them. So what travels on stripes
    /// gets no checksum, unless the first frame is there, too.
    pub has_own_checks: bool,
}
