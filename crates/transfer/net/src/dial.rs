//! Connecting to a listener: the ways to its address, one after the other.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use treadle_reactor::thread::{self, lock};
use treadle_reactor::{Driver, Wait, Waiters, awake, drivers};
use treadle_security::secret::random;
use treadle_security::tls::Tls;

use crate::address::{Address, AddressError};
use crate::dialled::{self, ClusterId};
use crate::error::NetError;
use crate::handshake::{Handshake, HandshakeError};
use crate::handshaking::{Handshaking, Opened, hello};
use crate::local;
use crate::options::{Options, Security};
use crate::peer::{Established, Peer};
use crate::stream::{Stream, tune};
use crate::stripes;
use crate::wire::proto::{self, Role};

/// The other side of a pair, as the side that dials knows it.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) socket: SocketAddr,
    /// As the user wrote it.
    address: Address,
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
}

impl Remote {
    /// What a `Hello` over this connection to it says.
    pub(crate) fn dialled(&self, stream: &Stream) -> Option<proto::Dialled> {
        match stream {
            Stream::Tcp(_) => Some(dialled::socket(self.socket, &self.address)),
            Stream::Unix(_) => Some(dialled::unix(&local::name_of(self.socket))),
            Stream::Tls(..) => None,
        }
    }
}

/// Starts to connect without waiting for it.
pub(crate) fn begin(
    socket: SocketAddr,
    tls: Option<&Arc<rustls::ClientConfig>>,
) -> io::Result<Stream> {
    let connection = Socket::new(
        Domain::for_address(socket),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    let connection: TcpStream = connection.into();
    tune(&connection, socket.ip())?;
    let connection = Socket::from(connection);
    match connection.connect(&socket.into()) {
        Ok(()) => {}
        Err(error)
            if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    secure(connection.into(), tls)
}

fn secure(socket: TcpStream, tls: Option<&Arc<rustls::ClientConfig>>) -> io::Result<Stream> {
    Ok(match tls {
        None => Stream::Tcp(socket),
        Some(config) => Stream::Tls(socket, Box::new(Tls::client(Arc::clone(config))?)),
    })
}

impl Peer {
    /// Connects to a listener.
    ///
    /// # Errors
    /// When the address, the options or the handshake are at fault, nobody listens there, or it
    /// takes too long.
    pub fn connect(
        address: &Address,
        options: &Options,
        wait: &mut Wait<'_>,
    ) -> Result<Self, NetError> {
        connect(address, options, Address::resolve, wait)
    }

    /// Starts to connect to a listener, without waiting for it. `finish` is called once, by this thread
    /// or by one that moves bytes: it must not block.
    pub fn dial(
        address: &Address,
        options: &Options,
        finish: impl FnOnce(Result<Self, NetError>) + Send + 'static,
    ) {
        match Dial::new(address, options, Box::new(finish)) {
            Ok(dial) => dial.resolve(Address::resolve),
            Err((finish, error)) => finish(Err(error)),
        }
    }
}

type Finished = Box<dyn FnOnce(Result<Peer, NetError>) + Send>;
type Resolve = fn(&Address) -> Result<Vec<SocketAddr>, AddressError>;

fn connect(
    address: &Address,
    options: &Options,
    resolve: Resolve,
    wait: &mut Wait<'_>,
) -> Result<Peer, NetError> {
    let slot = Arc::new((Mutex::new(None), Waiters::default()));
    let result = Arc::clone(&slot);
    let finish = move |outcome| {
        *lock(&result.0) = Some(outcome);
        result.1.wake();
    };
    let dial = Dial::new(address, options, Box::new(finish)).map_err(|(_, error)| error)?;
    let driver = Arc::clone(&dial.driver);
    dial.resolve(resolve);
    let mut outcome = None;
    let mut done = || {
        outcome = lock(&slot.0).take();
        outcome.is_some()
    };
    driver.wait(&slot.1, &mut done, wait)?;
    outcome.expect("the wait ended with it")
}

/// A way to an address.
#[derive(Clone, Copy, Debug)]
struct Way {
    socket: SocketAddr,
    /// Through the Unix socket that the listener at `socket` may have.
    is_local: bool,
}

/// A new pair that is being made: it tries the ways to an address, one after the other.
struct Dial {
    address: Address,
    options: Options,
    security: Security,
    driver: Arc<Driver>,
    /// When to give up, as [`awake::now`] has it.
    limit: Duration,
    ways: VecDeque<Way>,
    /// Why the last way led nowhere.
    failure: Option<NetError>,
    finish: Finished,
}

impl Dial {
    /// A dial that has not begun; without one, what was to be called, and why.
    fn new(
        address: &Address,
        options: &Options,
        finish: Finished,
    ) -> Result<Self, (Finished, NetError)> {
        let failed = |source| NetError::io(format!("connecting to {address}"), source);
        let driver = match &options.lane {
            Some(lane) => Ok(Arc::clone(lane.driver())),
            None => drivers()
                .map(|drivers| Arc::clone(&drivers[random::<1>()[0] as usize % drivers.len()])),
        };
        let driver = driver.map_err(failed);
        let parts = driver.and_then(|driver| Ok((driver, Security::new(address, options)?)));
        let (driver, security) = match parts {
            Ok(parts) => parts,
            Err(error) => return Err((finish, error)),
        };
        Ok(Self {
            address: address.clone(),
            options: options.clone(),
            security,
            driver,
            limit: awake::now().saturating_add(options.connect_timeout),
            ways: VecDeque::new(),
            failure: None,
            finish,
        })
    }

    /// Finds the ways, and starts. A resolver may take long to answer, and cannot be interrupted: a thread of
    /// its own asks it.
    fn resolve(self, resolve: Resolve) {
        if self.address.host.parse::<IpAddr>().is_ok() {
            return self.resolved(resolve);
        }
        let address = self.address.clone();
        let slot = Arc::new(Mutex::new(Some(self)));
        let later = Arc::clone(&slot);
        let started = thread::start("treadle-resolve", move || {
            if let Some(dial) = take(&later) {
                dial.resolved(resolve);
            }
        });
        if let Err(error) = started
            && let Some(dial) = take(&slot)
        {
            (dial.finish)(Err(NetError::io(format!("resolving {address}"), error)));
        }
    }

    fn resolved(self, resolve: Resolve) {
        match resolve(&self.address) {
            Ok(sockets) => self.start(sockets),
            Err(error) => (self.finish)(Err(error.into())),
        }
    }

    fn start(mut self, sockets: Vec<SocketAddr>) {
        let tries_local = !self.address.tls && self.options.shared_memory;
        for socket in sockets {
            for is_local in [true, false] {
                if tries_local || !is_local {
                    self.ways.push_back(Way { socket, is_local });
                }
            }
        }
        self.go_on();
    }

    /// Tries the next way, or says why there is none.
    fn go_on(mut self) {
        while let Some(way) = self.ways.pop_front() {
            let remote = Remote {
                socket: way.socket,
                address: self.address.clone(),
                tls: self.security.client.clone().filter(|_| self.address.tls),
            };
            let stream = match way.is_local {
                true => match local::connect_to(way.socket) {
                    Some(stream) => Ok(Stream::Unix(stream)),
                    None => continue,
                },
                false => begin(way.socket, remote.tls.as_ref()),
            };
            let slot = Arc::new(Mutex::new(Some(self)));
            let started = stream.and_then(|stream| Self::shake_hands(&slot, way, stream, remote));
            let Err(error) = started else {
                return;
            };
            self = take(&slot).expect("a handshake that was not started ends nothing");
            let what = format!("connecting to {}", self.address);
            self.failure = Some(NetError::io(what, error));
        }
        let failure = self
            .failure
            .expect("a name resolves to at least one address");
        (self.finish)(Err(failure));
    }

    /// Starts the handshake on one way; what is in the slot goes on when it is over.
    fn shake_hands(
        slot: &Arc<Mutex<Option<Self>>>,
        way: Way,
        stream: Stream,
        remote: Remote,
    ) -> io::Result<()> {
        let later = Arc::clone(slot);
        let slot = lock(slot);
        let dial = slot.as_ref().expect("just put there");
        let options = &dial.options;
        let mut own = hello(Role::Control);
        own.credit = options.pair.credit;
        own.service = options.service;
        own.client = options.client;
        own.patience_ms = options.patience.as_millis().try_into().unwrap_or(u32::MAX);
        own.dialled = remote.dialled(&stream);
        own.cluster = options.cluster.map_or_else(Vec::new, ClusterId::into_bytes);
        let handshake = Handshake::client(own, dial.security.secret.clone());
        let driver = Arc::clone(&dial.driver);
        let timeout = dial.limit.saturating_sub(awake::now());
        // A leader may call `finish` before `start` returns, and takes the slot.
        drop(slot);
        let finish = move |opened| {
            if let Some(dial) = take(&later) {
                dial.shaken(way, remote, opened);
            }
        };
        Handshaking::start(&driver, stream, handshake, None, timeout, Box::new(finish))
    }

    /// A handshake is over.
    fn shaken(mut self, way: Way, remote: Remote, opened: Result<Opened, HandshakeError>) {
        let error = match opened {
            Ok(opened) => {
                let address = self.address.to_string();
                let peer = connected(opened, &self.options, remote, address);
                return (self.finish)(Ok(peer));
            }
            // All ways share one limit, so no time is left for another.
            Err(HandshakeError::Timeout(_)) => return (self.finish)(Err(NetError::Timeout)),
            Err(error) => error,
        };
        // Where the local listener takes this one for somebody else's, the port may lead to ours.
        if way.is_local && !error.is_unanswered() {
            self.ways.pop_front();
        }
        self.failure = Some(NetError::Handshake {
            address: self.address.to_string(),
            error,
        });
        self.go_on();
    }
}

/// Takes what is there. The lock is not held any more when it is used.
pub(crate) fn take<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    lock(slot).take()
}

fn connected(opened: Opened, options: &Options, remote: Remote, address: String) -> Peer {
    let theirs = opened.hello;
    let established = Established {
        stream: opened.stream,
        driver: opened.driver,
        token: opened.token,
        session: theirs.session,
        session_secret: opened.session_secret,
        peer_credit: theirs.credit,
        service: options.service,
        client: options.client,
        address,
        cluster: ClusterId::from_bytes(&theirs.cluster),
    };
    let peer = Peer::start(established, &options.pair, Some(remote));
    if options.shared_memory && !theirs.descriptors.is_empty() && theirs.host == local::host() {
        // Best effort: in another network namespace, say, the name means nothing.
        let _ = stripes::descriptors(peer.shared(), &theirs.descriptors);
    }
    peer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use treadle_security::secret::Secret;

    /// Whoever waits gives up, or is interrupted, while the resolver has not answered.
    #[test]
    fn a_resolver_that_does_not_answer_holds_nobody_up() {
        static ANSWERS: Mutex<()> = Mutex::new(());
        fn resolve(address: &Address) -> Result<Vec<SocketAddr>, AddressError> {
            drop(lock(&ANSWERS));
            address.resolve()
        }
        let options = Options {
            secret: Some(Secret::new([7; 32]).unwrap()),
            ..Options::default()
        };
        let address = "localhost:1".parse().unwrap();
        let held = lock(&ANSWERS);
        let mut late = Wait {
            deadline: Some(Instant::now()),
            interrupted: None,
        };
        let error = connect(&address, &options, resolve, &mut late).unwrap_err();
        assert!(matches!(error, NetError::Timeout), "{error}");
        let mut interrupted = || true;
        let mut wait = Wait {
            deadline: None,
            interrupted: Some(&mut interrupted),
        };
        let error = connect(&address, &options, resolve, &mut wait).unwrap_err();
        assert!(matches!(error, NetError::Interrupted), "{error}");
        drop(held);
    }
}
