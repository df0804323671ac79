//! Connections that are being made: connecting, TLS, handshake, on either side.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use treadle_transfer::{Event, StripeId};

use crate::address::Address;
use crate::awake;
use crate::dialled::{self, ClusterId};
use crate::driver::{Driver, Interest, Readiness, Source, Token, Wait, Waiters, drivers, lock};
use crate::error::NetError;
use crate::handshake::{Handshake, HandshakeError, Step};
use crate::incoming::InStripe;
use crate::local;
use crate::options::{Options, Security};
use crate::outgoing::OutStripe;
use crate::peer::{Established, Peer, Shared};
use crate::secret::{Secret, random};
use crate::segments::Channel;
use crate::stream::{Stream, tune, would_block};
use crate::thread;
use crate::tls::Tls;
use crate::wire::proto::{self, Role};

/// How long a further connection of an existing pair may take.
const STRIPE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a handshake may take while others wait for it to end. Without this, a few hundred
/// connections that say nothing would keep everybody else out.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(1);

/// The other side of a pair, as the side that dials knows it.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    socket: SocketAddr,
    /// As the user wrote it.
    address: Address,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Remote {
    /// What a `Hello` over this connection to it says.
    fn dialled(&self, stream: &Stream) -> Option<proto::Dialled> {
        match stream {
            Stream::Tcp(_) => Some(dialled::socket(self.socket, &self.address)),
            Stream::Unix(_) => Some(dialled::unix(&local::name_of(self.socket))),
            Stream::Tls(..) => None,
        }
    }
}

/// A connection after its handshake.
pub(crate) struct Opened {
    pub(crate) stream: Stream,
    pub(crate) driver: Arc<Driver>,
    pub(crate) token: Token,
    pub(crate) hello: proto::Hello,
    pub(crate) session_secret: Secret,
}

impl Opened {
    /// Has another driver drive it.
    pub(crate) fn moved(self, driver: &Arc<Driver>) -> io::Result<Self> {
        self.driver.deregister(self.token);
        let socket = self.stream.as_fd();
        let token = driver.register(Arc::new(Nobody), socket, Interest::None, true)?;
        Ok(Self {
            driver: Arc::clone(driver),
            token,
            ..self
        })
    }
}

/// Who owns a connection until its owner is made.
struct Nobody;

impl Source for Nobody {
    fn ready(self: Arc<Self>, _token: Token, _readiness: Readiness) {}

    fn tick(self: Arc<Self>, _token: Token, now: Instant) -> Option<Instant> {
        Some(now)
    }

    fn panicked(self: Arc<Self>, _token: Token, _reason: String) {}
}

/// What a listener does with those who knock.
pub(crate) trait Door: Send + Sync {
    /// Answers or refuses a client.
    fn asked(&self, hello: &proto::Hello, stream: &Stream, handshake: &mut Handshake);
    /// Whether others wait until this one is through.
    fn is_crowded(&self) -> bool;
}

type Finish = Box<dyn FnOnce(Result<Opened, HandshakeError>) + Send>;

struct Making {
    stream: Option<Stream>,
    token: Option<Token>,
    connecting: bool,
    handshake: Handshake,
    door: Option<Arc<dyn Door>>,
    finish: Option<Finish>,
}

/// A connection that is being made, as a driver sees it.
pub(crate) struct Greeting {
    driver: Arc<Driver>,
    /// As [`awake::now`] has it.
    started: Duration,
    timeout: Duration,
    making: Mutex<Making>,
}

impl Greeting {
    /// Starts a handshake. `finish` is called once, by the leader of the driver.
    pub(crate) fn start(
        driver: &Arc<Driver>,
        stream: Stream,
        handshake: Handshake,
        door: Option<Arc<dyn Door>>,
        timeout: Duration,
        finish: Finish,
    ) -> io::Result<()> {
        let connecting = door.is_none();
        let greeting = Arc::new(Self {
            driver: Arc::clone(driver),
            started: awake::now(),
            timeout,
            making: Mutex::new(Making {
                stream: Some(stream),
                token: None,
                connecting,
                handshake,
                door,
                finish: Some(finish),
            }),
        });
        // Under the lock, so that the leader meets a complete greeting.
        let mut making = greeting.making();
        let interest = if connecting {
            Interest::Write
        } else {
            Interest::Read
        };
        let source: Arc<dyn Source> = Arc::clone(&greeting) as _;
        let socket = making.stream.as_ref().expect("just put there");
        making.token = Some(driver.register(source, socket.as_fd(), interest, true)?);
        Ok(())
    }

    fn making(&self) -> MutexGuard<'_, Making> {
        lock(&self.making)
    }

    fn fail(&self, mut making: MutexGuard<'_, Making>, error: HandshakeError) {
        if let (Some(_stream), Some(token)) = (making.stream.take(), making.token) {
            self.driver.deregister(token);
        }
        let finish = making.finish.take();
        drop(making);
        if let Some(finish) = finish {
            finish(Err(error));
        }
    }
}

impl Making {
    /// Goes as far as the socket allows; `true` when the connection is open.
    fn progress(&mut self) -> Result<bool, HandshakeError> {
        let stream = self.stream.as_mut().expect("looked before");
        if self.connecting {
            if let Some(error) = stream.take_error().ok().flatten() {
                return Err(HandshakeError::Connect(error.to_string()));
            }
            self.connecting = false;
        }
        let mut failure = None;
        let mut done = false;
        loop {
            // Write first: a refusal goes out before the connection closes.
            let written = write(stream, &mut self.handshake.output);
            if let Some(error) = failure {
                return Err(error);
            }
            let written = written.map_err(|error| broken(&error, stream))?;
            if done {
                return Ok(written);
            }
            let wanted = self.handshake.wanted().min(4096);
            if wanted == 0 {
                return Ok(false);
            }
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer[..wanted]) {
                Ok(0) => return Err(HandshakeError::Closed(hint(stream))),
                Ok(count) => self.handshake.receive(&buffer[..count]),
                Err(error) if would_block(&error) => return Ok(false),
                Err(error) => return Err(broken(&error, stream)),
            }
            self.handshake.bind(stream.binding());
            match self.handshake.advance() {
                Ok(Step::Pending) => {}
                Ok(Step::Asked) => {
                    let hello = self.handshake.peer().clone();
                    let door = self.door.as_ref().expect("only listeners are asked");
                    door.asked(&hello, stream, &mut self.handshake);
                    if self.handshake.is_refused() {
                        failure = Some(HandshakeError::Refused("by this side".into()));
                    }
                }
                Ok(Step::Done) => done = true,
                Err(error) => failure = Some(error),
            }
        }
    }
}

fn write(stream: &mut Stream, output: &mut Vec<u8>) -> io::Result<bool> {
    while !output.is_empty() {
        match stream.write_vectored(&[IoSlice::new(output)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                output.drain(..count);
            }
            Err(error) if would_block(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    stream.flush()
}

fn hint(stream: &Stream) -> &'static str {
    match stream {
        Stream::Tls(..) => "; does it listen with TLS?",
        Stream::Tcp(_) => "; does it want TLS (treadle+tls://)?",
        Stream::Unix(_) => "",
    }
}

fn broken(error: &io::Error, stream: &Stream) -> HandshakeError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            HandshakeError::Closed(hint(stream))
        }
        _ => HandshakeError::Connect(error.to_string()),
    }
}

impl Source for Greeting {
    fn ready(self: Arc<Self>, token: Token, _readiness: Readiness) {
        let mut making = self.making();
        if making.stream.is_none() {
            return;
        }
        match making.progress() {
            Ok(true) => {
                let stream = making.stream.take().expect("looked before");
                let hello = making.handshake.peer().clone();
                let session_secret = making.handshake.session_secret();
                let finish = making.finish.take();
                drop(making);
                // Quiet until its new owner wants something.
                self.driver.interest(token, Interest::None);
                if let Some(finish) = finish {
                    finish(Ok(Opened {
                        stream,
                        driver: Arc::clone(&self.driver),
                        token,
                        hello,
                        session_secret,
                    }));
                }
            }
            Ok(false) => {
                let stream = making.stream.as_ref().expect("looked before");
                let writes = !making.handshake.output.is_empty() || stream.wants_write();
                let interest = if writes {
                    Interest::Both
                } else {
                    Interest::Read
                };
                self.driver.interest(token, interest);
            }
            Err(error) => self.fail(making, error),
        }
    }

    fn tick(self: Arc<Self>, _token: Token, now: Instant) -> Option<Instant> {
        let making = self.making();
        let crowded = making.door.as_ref().is_some_and(|door| door.is_crowded());
        let timeout = if crowded {
            self.timeout.min(CROWDED_TIMEOUT)
        } else {
            self.timeout
        };
        if awake::now() >= self.started + timeout {
            self.fail(making, HandshakeError::Timeout(timeout.as_secs_f64()));
        }
        // The door may become crowded.
        Some(now)
    }

    fn panicked(self: Arc<Self>, _token: Token, reason: String) {
        let making = self.making();
        self.fail(making, HandshakeError::Connect(reason));
    }
}

/// What every `Hello` of this process begins with.
pub(crate) fn hello(role: Role) -> proto::Hello {
    proto::Hello {
        role: role.into(),
        nonce: random::<32>().to_vec(),
        release: env!("CARGO_PKG_VERSION").into(),
        ..Default::default()
    }
}

/// Starts to connect without waiting for it.
fn begin(socket: SocketAddr, tls: Option<&Arc<rustls::ClientConfig>>) -> io::Result<Stream> {
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
        let slot = Arc::new((Mutex::new(None), Waiters::default()));
        let result = Arc::clone(&slot);
        let finish = move |outcome| {
            *lock(&result.0) = Some(outcome);
            result.1.wake();
        };
        let dial = Dial::new(address, options, Box::new(finish))?;
        let driver = Arc::clone(&dial.driver);
        dial.start(address.resolve()?);
        let mut outcome = None;
        let mut done = || {
            outcome = lock(&slot.0).take();
            outcome.is_some()
        };
        driver.wait(&slot.1, &mut done, wait)?;
        outcome.expect("the wait ended with it")
    }

    /// Starts to connect to a listener, without waiting for it. `finish` is called once, by this thread
    /// or by one that moves bytes: it must not block.
    pub fn dial(
        address: &Address,
        options: &Options,
        finish: impl FnOnce(Result<Self, NetError>) + Send + 'static,
    ) {
        let finish: Finished = Box::new(finish);
        if address.host.parse::<IpAddr>().is_ok() {
            return dial(address, options, finish);
        }
        // A resolver may take long to answer.
        let slot = Arc::new(Mutex::new(Some(finish)));
        let (later, options) = (Arc::clone(&slot), options.clone());
        let to = address.clone();
        let started = thread::start("treadle-resolve", move || {
            if let Some(finish) = lock(&later).take() {
                dial(&to, &options, finish);
            }
        });
        if let Err(error) = started
            && let Some(finish) = lock(&slot).take()
        {
            finish(Err(NetError::io(format!("resolving {address}"), error)));
        }
    }
}

type Finished = Box<dyn FnOnce(Result<Peer, NetError>) + Send>;

fn dial(address: &Address, options: &Options, finish: Finished) {
    // Whoever fails takes it from there.
    let slot = Arc::new(Mutex::new(Some(finish)));
    let later = Arc::clone(&slot);
    let finish = move |outcome| {
        if let Some(finish) = take(&later) {
            finish(outcome);
        }
    };
    let dial = Dial::new(address, options, Box::new(finish));
    let outcome = dial.and_then(|dial| Ok((dial, address.resolve()?)));
    match outcome {
        Ok((dial, sockets)) => dial.start(sockets),
        Err(error) => {
            if let Some(finish) = take(&slot) {
                finish(Err(error));
            }
        }
    }
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
    fn new(address: &Address, options: &Options, finish: Finished) -> Result<Self, NetError> {
        let failed = |source| NetError::io(format!("connecting to {address}"), source);
        let driver = match &options.lane {
            Some(lane) => Arc::clone(lane.driver()),
            None => {
                let drivers = drivers().map_err(failed)?;
                Arc::clone(&drivers[random::<1>()[0] as usize % drivers.len()])
            }
        };
        Ok(Self {
            address: address.clone(),
            options: options.clone(),
            security: Security::new(address, options)?,
            driver,
            limit: awake::now().saturating_add(options.connect_timeout),
            ways: VecDeque::new(),
            failure: None,
            finish,
        })
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
            let started = stream.and_then(|stream| Self::greet(&slot, way, stream, remote));
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
    fn greet(
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
        own.patience_ms = options.patience.as_millis().try_into().unwrap_or(u32::MAX);
        own.dialled = remote.dialled(&stream);
        own.cluster = options.cluster.map_or_else(Vec::new, ClusterId::into_bytes);
        let handshake = Handshake::client(own, dial.security.secret.clone());
        let driver = Arc::clone(&dial.driver);
        let timeout = dial.limit.saturating_sub(awake::now());
        drop(slot);
        let finish = move |opened| {
            if let Some(dial) = take(&later) {
                dial.greeted(way, remote, opened);
            }
        };
        Greeting::start(&driver, stream, handshake, None, timeout, Box::new(finish))
    }

    /// A handshake is over.
    fn greeted(mut self, way: Way, remote: Remote, opened: Result<Opened, HandshakeError>) {
        let error = match opened {
            Ok(opened) => {
                let address = self.address.to_string();
                let shares = self.options.shared_memory;
                let peer = connected(opened, &self.options.pair, remote, address, shares);
                return (self.finish)(Ok(peer));
            }
            Err(HandshakeError::Timeout(_)) => return (self.finish)(Err(NetError::Timeout)),
            Err(error) => error,
        };
        // Where the local listener takes this one for somebody else's, the port may lead to ours.
        let is_stranger = matches!(
            error,
            HandshakeError::Closed(_) | HandshakeError::Connect(_)
        );
        if way.is_local && !is_stranger {
            self.ways.pop_front();
        }
        self.failure = Some(NetError::Handshake {
            address: self.address.to_string(),
            error,
        });
        self.go_on();
    }
}

fn take<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    lock(slot).take()
}

fn connected(
    opened: Opened,
    config: &treadle_transfer::Config,
    remote: Remote,
    address: String,
    shares: bool,
) -> Peer {
    let theirs = opened.hello;
    let established = Established {
        stream: opened.stream,
        driver: opened.driver,
        token: opened.token,
        session: theirs.session,
        session_secret: opened.session_secret,
        peer_credit: theirs.credit,
        address,
        cluster: ClusterId::from_bytes(&theirs.cluster),
    };
    let peer = Peer::start(established, config, Some(remote));
    if shares && !theirs.descriptors.is_empty() && theirs.host == local::host() {
        // Best effort: in another network namespace, say, the name means nothing.
        let _ = descriptors(peer.shared(), &theirs.descriptors);
    }
    peer
}

/// Opens the descriptor connection of a pair.
fn descriptors(shared: &Arc<Shared>, name: &[u8]) -> io::Result<()> {
    let socket = local::connect(name)?;
    let mut own = hello(Role::Descriptors);
    own.session = shared.session;
    own.dialled = Some(dialled::unix(name));
    let handshake = Handshake::client(own, Some(shared.session_secret.clone()));
    let pair = Arc::clone(shared);
    Greeting::start(
        &shared.driver,
        Stream::Unix(socket),
        handshake,
        None,
        STRIPE_TIMEOUT,
        Box::new(move |opened| {
            if let Ok(Opened {
                stream: Stream::Unix(socket),
                driver,
                token,
                ..
            }) = opened
            {
                Channel::start(&pair, socket, &driver, token);
            }
        }),
    )
}

/// Opens a stripe: for this side to send on, or for the other.
pub(crate) fn stripe(shared: &Arc<Shared>, stripe: StripeId, sends: bool) {
    let pair = Arc::clone(shared);
    let finish = move |opened: Result<Opened, HandshakeError>| match opened {
        Ok(opened) => start_stripe(&pair, stripe, opened, sends),
        Err(error) => stripe_failed(&pair, stripe, sends, error.to_string()),
    };
    let finish = Arc::new(Mutex::new(Some(finish)));
    let later = Arc::clone(&finish);
    if let Err(error) = dial_stripe(
        shared,
        stripe,
        sends,
        Box::new(move |opened| {
            if let Some(finish) = take(&later) {
                finish(opened);
            }
        }),
    ) && let Some(finish) = take(&finish)
    {
        finish(Err(HandshakeError::Connect(error.to_string())));
    }
}

fn dial_stripe(
    shared: &Arc<Shared>,
    stripe: StripeId,
    sends: bool,
    finish: Finish,
) -> io::Result<()> {
    let remote = shared.remote.as_ref().expect("only this side dials");
    let drivers = drivers()?;
    let driver =
        &drivers[(shared.session as usize).wrapping_add(stripe.0 as usize) % drivers.len()];
    let stream = begin(remote.socket, remote.tls.as_ref())?;
    let mut own = hello(if sends {
        Role::StripeToListener
    } else {
        Role::StripeToClient
    });
    own.session = shared.session;
    own.stripe = stripe.0;
    own.dialled = remote.dialled(&stream);
    let handshake = Handshake::client(own, Some(shared.session_secret.clone()));
    Greeting::start(driver, stream, handshake, None, STRIPE_TIMEOUT, finish)
}

/// Gives an open connection to the pair whose stripe it is.
pub(crate) fn start_stripe(shared: &Arc<Shared>, stripe: StripeId, opened: Opened, sends: bool) {
    let Opened {
        stream,
        driver,
        token,
        ..
    } = opened;
    if sends {
        OutStripe::start(shared, stripe, stream, &driver, token);
    } else {
        InStripe::start(shared, stripe, stream, &driver, token);
    }
}

fn stripe_failed(shared: &Arc<Shared>, stripe: StripeId, sends: bool, reason: String) {
    shared.handle(if sends {
        Event::OpenFailed(stripe, reason)
    } else {
        Event::DialFailed(stripe, reason)
    });
}
