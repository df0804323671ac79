//! Handshakes under way: TLS and the handshake of a connection, on either side.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use treadle_reactor::thread::lock;
use treadle_reactor::{Driver, Interest, Readiness, Source, Token, awake};
use treadle_security::secret::{Secret, random};

use crate::handshake::{Handshake, HandshakeError, Step};
use crate::stream::{Stream, would_block};
use crate::wire::proto::{self, Role};

/// How long a handshake may take while others wait for it to end. Without this, a few hundred
/// connections that say nothing would keep everybody else out.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection after its handshake.
pub(crate) struct Opened {
    pub(crate) stream: Stream,
    pub(crate) driver: Arc<Driver>,
    pub(crate) token: Token,
    pub(crate) hello: proto::Hello,
    pub(crate) session_secret: Secret,
}

impl Opened {
    /// Closes it: nobody wants it.
    pub(crate) fn abandon(self) {
        self.driver.sources.deregister(self.token);
    }

    /// Has another driver drive it.
    pub(crate) fn moved(self, driver: &Arc<Driver>) -> io::Result<Self> {
        self.driver.sources.deregister(self.token);
        let socket = self.stream.as_fd();
        let token = driver
            .sources
            .register(Arc::new(Nobody), socket, Interest::None, true)?;
        Ok(Self {
            driver: Arc::clone(driver),
            token,
            ..self
        })
    }
}

/// Who owns a connection until its owner is made.
pub(crate) struct Nobody;

impl Source for Nobody {
    fn ready(self: Arc<Self>, _token: Token, _readiness: Readiness) {}

    fn tick(self: Arc<Self>, _token: Token, now: Instant) -> Option<Instant> {
        Some(now)
    }

    fn panicked(self: Arc<Self>, _token: Token, _reason: String) {}
}

/// What a listener does with those who connect.
pub(crate) trait Admission: Send + Sync {
    /// Answers or refuses a client.
    fn asked(&self, hello: &proto::Hello, stream: &Stream, handshake: &mut Handshake);
    /// A client has proved what it had to. It is about to learn that this side has, too.
    fn proved(&self, handshake: &Handshake);
    /// Whether others wait until this one is through.
    fn is_crowded(&self) -> bool;
}

pub(crate) type Finish = Box<dyn FnOnce(Result<Opened, HandshakeError>) + Send>;

struct Making {
    stream: Option<Stream>,
    token: Option<Token>,
    connecting: bool,
    handshake: Handshake,
    /// Nothing is left but to write the last output.
    done: bool,
    admission: Option<Arc<dyn Admission>>,
    finish: Option<Finish>,
}

/// A connection that is being made, as a driver sees it.
pub(crate) struct Handshaking {
    driver: Arc<Driver>,
    /// As [`awake::now`] has it.
    started: Duration,
    timeout: Duration,
    making: Mutex<Making>,
}

impl Handshaking {
    /// Starts a handshake. `finish` is called once, by the leader of the driver.
    pub(crate) fn start(
        driver: &Arc<Driver>,
        stream: Stream,
        handshake: Handshake,
        admission: Option<Arc<dyn Admission>>,
        timeout: Duration,
        finish: Finish,
    ) -> io::Result<()> {
        let connecting = admission.is_none();
        let handshaking = Arc::new(Self {
            driver: Arc::clone(driver),
            started: awake::now(),
            timeout,
            making: Mutex::new(Making {
                stream: Some(stream),
                token: None,
                connecting,
                handshake,
                done: false,
                admission,
                finish: Some(finish),
            }),
        });
        // Under the lock, so that the leader meets a complete one.
        let mut making = handshaking.making();
        let interest = if connecting {
            Interest::Write
        } else {
            Interest::Read
        };
        let source: Arc<dyn Source> = Arc::clone(&handshaking) as _;
        let socket = making.stream.as_ref().expect("just put there");
        making.token = Some(
            driver
                .sources
                .register(source, socket.as_fd(), interest, true)?,
        );
        Ok(())
    }

    fn making(&self) -> MutexGuard<'_, Making> {
        lock(&self.making)
    }

    fn fail(&self, mut making: MutexGuard<'_, Making>, error: HandshakeError) {
        if let (Some(_stream), Some(token)) = (making.stream.take(), making.token) {
            self.driver.sources.deregister(token);
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
        loop {
            // Write first: a refusal goes out before the connection closes.
            let written = write(stream, &mut self.handshake.output);
            if let Some(error) = failure {
                return Err(error);
            }
            let written = written.map_err(|error| broken(&error, stream))?;
            if self.done {
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
                    let admission = self.admission.as_ref().expect("only listeners are asked");
                    admission.asked(&hello, stream, &mut self.handshake);
                    if self.handshake.is_refused() {
                        failure = Some(HandshakeError::Refused("by this side".into()));
                    }
                }
                Ok(Step::Done) => {
                    self.done = true;
                    if let Some(admission) = &self.admission {
                        admission.proved(&self.handshake);
                    }
                }
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
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidData
            if matches!(stream, Stream::Tls(..)) =>
        {
            HandshakeError::Tls(error.to_string())
        }
        _ => HandshakeError::Connect(error.to_string()),
    }
}

impl Source for Handshaking {
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
                self.driver.sources.interest(token, Interest::None);
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
                self.driver.sources.interest(token, interest);
            }
            Err(error) => self.fail(making, error),
        }
    }

    fn tick(self: Arc<Self>, _token: Token, now: Instant) -> Option<Instant> {
        let making = self.making();
        let crowded = making
            .admission
            .as_ref()
            .is_some_and(|admission| admission.is_crowded());
        let timeout = if crowded {
            self.timeout.min(CROWDED_TIMEOUT)
        } else {
            self.timeout
        };
        if awake::now() >= self.started + timeout {
            self.fail(making, HandshakeError::Timeout(timeout.as_secs_f64()));
        }
        // It may become crowded.
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
