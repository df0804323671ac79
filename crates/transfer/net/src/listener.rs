//! Listening: who connects, and the pairs that came of it.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use treadle_reactor::thread::lock;
use treadle_reactor::{Driver, Interest, Readiness, Source, Token, Wait, Waiters, Waker, drivers};
use treadle_security::secret::random;
use treadle_security::tls::Tls;
use treadle_transfer::Config;

use crate::address::Address;
use crate::dialled::{self, ClusterId};
use crate::error::NetError;
use crate::handshake::{Handshake, HandshakeError};
use crate::handshaking::{Admission, Handshaking, Opened, hello};
use crate::lane::Lane;
use crate::local;
use crate::options::{Offer, Options, Security};
use crate::peer::{Established, Peer, Shared};
use crate::poller::{Poller, Watch};
use crate::sessions::{Joined, Sessions};
use crate::stream::{Stream, tune};
use crate::stripes::attach;
use crate::wire::proto::{self, Role};

#[cfg(test)]
mod tests;

/// Connections in the middle of their handshake; more of them wait in the kernel's queue.
const MAX_HANDSHAKES: usize = 256;
/// The longest patience that a client is granted.
const MAX_PATIENCE: Duration = Duration::from_secs(3600);
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pairs that nobody has accepted yet.
const MAX_WAITING: usize = 1024;
/// The kernel's queue.
const BACKLOG: i32 = 1024;
/// How often pairs that are gone are forgotten.
const SWEEP: Duration = Duration::from_secs(1);

/// Accepts connections at an address.
#[derive(Debug)]
pub struct Listener {
    state: Arc<Listening>,
    address: Address,
}

/// What the handshakes of a listener refer to.
struct Listening {
    driver: Arc<Driver>,
    lane: Option<Lane>,
    services: Vec<Offer>,
    security: Security,
    config: Config,
    /// Where else it is reached.
    contact: Vec<Address>,
    cluster: OnceLock<ClusterId>,
    /// The abstract name of the Unix socket: for descriptors and, without TLS, for clients of this host.
    descriptors: Vec<u8>,
    handshakes: AtomicUsize,
    waiters: Waiters,
    accepting: Mutex<Accepting>,
}

struct Accepting {
    sessions: Sessions<Shared, Opened>,
    waiting: VecDeque<Peer>,
    waker: Option<Waker>,
    watch: Option<Arc<Watch>>,
    tcp: Option<(TcpListener, Token)>,
    unix: Option<(UnixListener, Token)>,
    closed: bool,
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening").finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens at an address; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address or the options are at fault, or the port is taken.
    pub fn bind(address: &Address, options: &Options) -> Result<Self, NetError> {
        let security = Security::new(address, options)?;
        let failed = |source| NetError::io(format!("listening at {address}"), source);
        let resolved = address.resolve()?;
        let tcp = resolved
            .iter()
            .map(|socket| bind(*socket))
            .reduce(Result::or)
            .expect("a name resolves to at least one address")
            .map_err(failed)?;
        let socket = tcp.local_addr().map_err(failed)?;
        let lane = options.lane.clone();
        let driver = match &lane {
            Some(lane) => Arc::clone(lane.driver()),
            None => {
                let drivers = drivers().map_err(failed)?;
                Arc::clone(&drivers[random::<1>()[0] as usize % drivers.len()])
            }
        };
        let (descriptors, unix) = if options.shared_memory {
            let (name, unix) = local::bind(socket, security.server.is_none()).map_err(failed)?;
            (name, Some(unix))
        } else {
            (Vec::new(), None)
        };
        let state = Arc::new(Listening {
            driver,
            lane,
            services: options.services.clone(),
            security,
            config: options.pair.clone(),
            contact: options.contact.clone(),
            cluster: options.cluster.map_or_else(OnceLock::new, OnceLock::from),
            descriptors,
            handshakes: AtomicUsize::new(0),
            waiters: Waiters::default(),
            accepting: Mutex::new(Accepting {
                sessions: Sessions::new(),
                waiting: VecDeque::new(),
                waker: None,
                watch: None,
                tcp: None,
                unix: None,
                closed: false,
            }),
        });
        let source = |kind| -> Arc<dyn Source> {
            Arc::new(Acceptor {
                state: Arc::clone(&state),
                kind,
                is_paused: AtomicBool::new(false),
            })
        };
        let driver = &state.driver;
        let token = driver
            .sources
            .register(source(Kind::Tcp), tcp.as_fd(), Interest::Read, true)
            .map_err(failed)?;
        let mut accepting = state.accepting();
        accepting.tcp = Some((tcp, token));
        if let Some(unix) = unix {
            let token = driver
                .sources
                .register(source(Kind::Unix), unix.as_fd(), Interest::Read, true)
                .map_err(failed)?;
            accepting.unix = Some((unix, token));
        }
        drop(accepting);
        Ok(Self {
            state,
            address: Address {
                port: socket.port(),
                ..address.clone()
            },
        })
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Says to which cluster it belongs, once that is known: who wants another one is refused.
    pub fn join(&self, cluster: ClusterId) {
        let _ = self.state.cluster.set(cluster);
    }

    /// The next connection, handshake done.
    ///
    /// # Errors
    /// When the wait ends, or the listener is closed.
    pub fn accept(&self, wait: &mut Wait<'_>) -> Result<Peer, NetError> {
        let mut result = None;
        let mut done = || {
            result = self.try_accept().transpose();
            result.is_some()
        };
        let state = &self.state;
        state.driver.wait(&state.waiters, &mut done, wait)?;
        result.expect("the wait ended with it")
    }

    /// A connection that waits to be accepted, if there is one.
    ///
    /// # Errors
    /// When the listener is closed.
    pub fn try_accept(&self) -> Result<Option<Peer>, NetError> {
        let mut accepting = self.state.accepting();
        match accepting.waiting.pop_front() {
            Some(peer) => Ok(Some(peer)),
            None if accepting.closed => Err(NetError::ListenerClosed),
            None => Ok(None),
        }
    }

    /// What to wake whenever somebody waits to be accepted.
    pub fn set_waker(&self, waker: Option<Waker>) {
        self.state.accepting().waker = waker;
    }

    /// Queues `key` in the poller now, and whenever somebody waits to be accepted.
    pub fn watch(&self, poller: &Arc<Poller>, key: usize) {
        let watch = Watch::new(poller, key);
        self.state.accepting().watch = Some(Arc::clone(&watch));
        watch.changed();
    }

    /// Takes no more connections. Those that were accepted stay, and keep the port for their
    /// stripes until the last of them ends.
    pub fn close(&self) {
        let mut accepting = self.state.accepting();
        accepting.closed = true;
        let waiting = std::mem::take(&mut accepting.waiting);
        let sockets = [
            accepting.tcp.as_ref().map(|(_, token)| *token),
            accepting.unix.as_ref().map(|(_, token)| *token),
        ];
        drop(accepting);
        // Without the lock: dropping a peer closes its connection.
        drop(waiting);
        self.state.leave();
        // From now on it looks each tick whether it can leave.
        for token in sockets.into_iter().flatten() {
            self.state.driver.sources.call_at(token, Instant::now());
        }
        self.state.notify();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

impl Listening {
    fn accepting(&self) -> MutexGuard<'_, Accepting> {
        lock(&self.accepting)
    }

    /// Tells those who wait that somebody is to be accepted, or that it is closed.
    fn notify(&self) {
        let accepting = self.accepting();
        let (waker, watch) = (accepting.waker.clone(), accepting.watch.clone());
        drop(accepting);
        self.waiters.wake();
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(watch) = watch {
            watch.changed();
        }
    }

    /// Gives up the port when the listener is closed and no connection needs it.
    fn leave(&self) {
        let mut accepting = self.accepting();
        let is_unused = accepting.sessions.sweep();
        if !accepting.closed || !is_unused {
            return;
        }
        let (tcp, unix) = (accepting.tcp.take(), accepting.unix.take());
        drop(accepting);
        if let Some((listener, token)) = tcp {
            self.driver.sources.deregister(token);
            drop(listener);
        }
        if let Some((listener, token)) = unix {
            self.driver.sources.deregister(token);
            drop(listener);
        }
    }

    /// Whether this is the listener that a client means.
    fn is_meant(
        &self,
        theirs: &proto::Hello,
        stream: &Stream,
        cluster: Option<ClusterId>,
    ) -> Result<(), HandshakeError> {
        let dialled = theirs.dialled.as_ref();
        match stream {
            Stream::Tcp(socket) => dialled::check_socket(dialled, socket, &self.contact)?,
            Stream::Unix(_) => dialled::check_unix(dialled, &self.descriptors)?,
            // The proofs name the channel.
            Stream::Tls(..) => {}
        }
        dialled::check_cluster(&theirs.cluster, cluster)
    }

    fn offer(&self, service: u32) -> Option<&Offer> {
        let mut offers = self.services.iter();
        offers.find(|offer| offer.service == service)
    }

    /// A handshake is over.
    fn shaken(&self, opened: Result<Opened, HandshakeError>, session: u64, address: String) {
        match opened {
            Ok(opened) if opened.hello.role() == Role::Control => {
                self.welcome(opened, session, address);
            }
            Ok(opened) => {
                let session = opened.hello.session;
                let joined = self.accepting().sessions.join(session, opened);
                match joined {
                    Joined::Pair(pair, opened) => attach(&pair, opened),
                    Joined::Waits => {}
                    Joined::Nobody(opened) => opened.abandon(),
                }
            }
            Err(_) => self.give_up(session),
        }
    }

    /// There will be no pair of this session.
    fn give_up(&self, session: u64) {
        let early = self.accepting().sessions.give_up(session);
        early.into_iter().for_each(Opened::abandon);
    }

    /// A new pair.
    fn welcome(&self, mut opened: Opened, session: u64, address: String) {
        let service = opened.hello.service;
        if let Some(lane) = self.offer(service).and_then(|offer| offer.lane.as_ref()) {
            match opened.moved(lane.driver()) {
                Ok(moved) => opened = moved,
                // No descriptor is left: it is closed.
                Err(_) => return self.give_up(session),
            }
        }
        let patience = Duration::from_millis(opened.hello.patience_ms.into());
        let config = Config {
            timeout: self.config.timeout.max(patience.min(MAX_PATIENCE)),
            ..self.config.clone()
        };
        let established = Established {
            stream: opened.stream,
            driver: opened.driver,
            token: opened.token,
            session,
            session_secret: opened.session_secret.clone(),
            peer_credit: opened.hello.credit,
            service,
            client: opened.hello.client,
            address,
            cluster: None,
        };
        let peer = Peer::start(established, &config, None);
        let mut accepting = self.accepting();
        accepting.sessions.sweep();
        let pair = Arc::clone(peer.shared());
        let early = accepting
            .sessions
            .open(session, opened.session_secret, &pair);
        let refused = if accepting.closed || accepting.waiting.len() >= MAX_WAITING {
            Some(peer)
        } else {
            accepting.waiting.push_back(peer);
            None
        };
        drop(accepting);
        for opened in early {
            attach(&pair, opened);
        }
        drop(refused);
        self.notify();
    }
}

/// Answers one client.
struct Candidate {
    state: Arc<Listening>,
    session: u64,
}

impl Admission for Candidate {
    fn asked(&self, theirs: &proto::Hello, stream: &Stream, handshake: &mut Handshake) {
        let state = &self.state;
        let mut own = hello(theirs.role());
        own.session = self.session;
        own.credit = state.config.credit;
        own.host = local::host();
        own.descriptors.clone_from(&state.descriptors);
        let cluster = state.cluster.get().copied();
        own.cluster = cluster.map_or_else(Vec::new, ClusterId::into_bytes);
        if let Err(error) = state.is_meant(theirs, stream, cluster) {
            handshake.refuse(&error.to_string());
            return;
        }
        let is_local = matches!(stream, Stream::Unix(_));
        // Where TLS is wanted, it says who somebody is.
        let may_ask = !is_local || state.security.server.is_none();
        match theirs.role() {
            Role::Control if may_ask && state.accepting().closed => {
                handshake.refuse("the listener is closed");
            }
            Role::Control
                if may_ask
                    && !state.services.is_empty()
                    && state.offer(theirs.service).is_none() =>
            {
                let names: Vec<&str> = state.services.iter().map(|offer| offer.name).collect();
                handshake.refuse(&format!(
                    "it serves only {}, and not service {}; compare the address and the port",
                    names.join(", "),
                    theirs.service
                ));
            }
            Role::Control if may_ask => handshake.answer(own, state.security.secret.clone()),
            role @ (Role::StripeToListener | Role::StripeToClient | Role::Descriptors)
                if is_local == (role == Role::Descriptors) =>
            {
                let secret = state.accepting().sessions.secret(theirs.session);
                match secret {
                    Some(secret) => handshake.answer(own, Some(secret)),
                    None => handshake.refuse("there is no such session here any more"),
                }
            }
            _ => handshake.refuse("this connection cannot be used for that"),
        }
    }

    fn proved(&self, handshake: &Handshake) {
        if handshake.peer().role() == Role::Control {
            let secret = handshake.session_secret();
            self.state.accepting().sessions.begin(self.session, secret);
        }
    }

    fn is_crowded(&self) -> bool {
        // Half of them, so that many make room at once, not one at each tick.
        self.state.handshakes.load(Ordering::Relaxed) >= MAX_HANDSHAKES / 2
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Tcp,
    Unix,
}

/// A listening socket, as its driver sees it.
struct Acceptor {
    state: Arc<Listening>,
    kind: Kind,
    /// Connections wait in the kernel's queue.
    is_paused: AtomicBool,
}

impl Acceptor {
    /// The next connection in the kernel's queue, with the name of who it is from.
    fn accept(&self) -> io::Result<Option<(Stream, String)>> {
        let accepting = self.state.accepting();
        match self.kind {
            Kind::Tcp => {
                let Some((listener, _)) = &accepting.tcp else {
                    return Ok(None);
                };
                let (socket, from) = listener.accept()?;
                tune(&socket, from.ip())?;
                let stream = match &self.state.security.server {
                    None => Stream::Tcp(socket),
                    Some(config) => Stream::Tls(socket, Box::new(Tls::server(Arc::clone(config))?)),
                };
                Ok(Some((stream, from.to_string())))
            }
            Kind::Unix => {
                let Some((listener, _)) = &accepting.unix else {
                    return Ok(None);
                };
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(true)?;
                let from = match local::own_process(&socket) {
                    None => return Err(io::ErrorKind::PermissionDenied.into()),
                    Some(0) => "a process of this host".to_owned(),
                    Some(process) => format!("process {process} of this host"),
                };
                Ok(Some((Stream::Unix(socket), from)))
            }
        }
    }

    fn shake_hands(&self, stream: Stream, from: String) -> io::Result<()> {
        let state = &self.state;
        let session = u64::from_le_bytes(random());
        let admission = Arc::new(Candidate {
            state: Arc::clone(state),
            session,
        });
        let driver = match &state.lane {
            Some(lane) => lane.driver(),
            None => {
                let drivers = drivers()?;
                &drivers[session as usize % drivers.len()]
            }
        };
        let after = Arc::clone(state);
        state.handshakes.fetch_add(1, Ordering::Relaxed);
        let started = Handshaking::start(
            driver,
            stream,
            Handshake::listener(),
            Some(admission),
            HANDSHAKE_TIMEOUT,
            Box::new(move |opened| {
                after.handshakes.fetch_sub(1, Ordering::Relaxed);
                after.shaken(opened, session, from);
            }),
        );
        if started.is_err() {
            state.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
        started
    }
}

impl Source for Acceptor {
    fn ready(self: Arc<Self>, token: Token, _readiness: Readiness) {
        for _ in 0..16 {
            if self.state.handshakes.load(Ordering::Relaxed) >= MAX_HANDSHAKES {
                self.pause(token);
                return;
            }
            match self.accept() {
                Ok(Some((stream, from))) => {
                    // A client that is gone already is no reason to stop listening.
                    let _ = self.shake_hands(stream, from);
                }
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if out_of_descriptors(&error) => {
                    self.pause(token);
                    return;
                }
                Err(_) => {}
            }
        }
    }

    fn tick(self: Arc<Self>, token: Token, now: Instant) -> Option<Instant> {
        self.state.leave();
        let is_crowded = self.state.handshakes.load(Ordering::Relaxed) >= MAX_HANDSHAKES;
        if !is_crowded && self.is_paused.swap(false, Ordering::Relaxed) {
            self.state.driver.sources.interest(token, Interest::Read);
        }
        let is_waiting = is_crowded || self.state.accepting().closed;
        Some(if is_waiting { now } else { now + SWEEP })
    }

    /// Whoever connected is not let in; others are.
    fn panicked(self: Arc<Self>, token: Token, _reason: String) {
        self.state.driver.sources.call_at(token, Instant::now());
    }
}

impl Acceptor {
    /// Leaves the others in the kernel's queue until the next tick.
    fn pause(&self, token: Token) {
        self.is_paused.store(true, Ordering::Relaxed);
        self.state.driver.sources.interest(token, Interest::None);
        self.state.driver.sources.call_at(token, Instant::now());
    }
}

fn out_of_descriptors(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    number == Some(rustix::io::Errno::MFILE.raw_os_error())
        || number == Some(rustix::io::Errno::NFILE.raw_os_error())
}
