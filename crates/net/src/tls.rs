//! TLS 1.3 between nodes: both sides show a certificate of the cluster's CA.
//!
//! `rustls` does the handshake and keeps the key schedule; the records of the open connection are
//! sealed and opened here, with `aws-lc-rs`, which is what `rustls` would call too. The reason is
//! copies. Copies of a byte in user space, the cipher itself not counted (it reads the plaintext in
//! one place and writes the ciphertext in another):
//!
//! | | sending | receiving |
//! | --- | --- | --- |
//! | `rustls`, its buffered API | 1 | 2 |
//! | `rustls::unbuffered` | 2 | 2 |
//! | here, extents | 0 | 0 |
//! | here, pieces below 4 KiB; the last 16 KiB record of an extent | 1; 0 | 1 |
//!
//! Sending, a record is sealed from the caller's memory into the outgoing buffer, and only small
//! pieces are gathered into one record first. Receiving, up to 128 KiB of ciphertext come with one
//! `read`, and a record is opened from that buffer into the caller's memory. A record carries one
//! byte more than its content (its type), so the one that would fill the caller's memory to its end
//! is opened in the buffer, and copied. What a `read` cuts is moved to the front of the buffer: at
//! most one record in 128 KiB.
//!
//! Memory is bounded whatever a peer sends: [`MAX_BUFFER`] bytes in each direction once the
//! handshake is done, reached only by connections that move as much at once, and 32 KiB before.
//!
//! Session tickets, 0-RTT data, renegotiation, and post-handshake authentication are not used: a
//! peer that sends any of them is cut off. Keys are changed (`KeyUpdate`, RFC 8446, section 4.6.3)
//! every 2²³ records, half of what AES-GCM may protect with one key (section 5.5).

mod buffer;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod handshake;
mod options;
mod record;
mod session;
#[cfg(test)]
mod tests;
mod verify;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError, ClientConfig, ServerConfig};

pub use self::options::{NODE_NAME, PeerName, Pem, TlsError, TlsOptions};

use self::buffer::{Buffer, Sources, Targets};
use self::handshake::Handshake;
use self::record::{MAX_CONTENT, OVERHEAD, complete_record};
use self::session::Session;

/// Most bytes of ciphertext that a connection keeps for each direction.
///
/// Eight full records: larger buffers were no faster over loopback.
pub const MAX_BUFFER: usize = 8 * (MAX_CONTENT + OVERHEAD);

/// Most bytes of a handshake that are kept: some ten certificates.
const MAX_HANDSHAKE: usize = 32 * 1024;

/// One TLS connection over a nonblocking socket that the caller owns.
///
/// Every call does what it can without waiting; the first ones advance the handshake. When a call
/// returns `WouldBlock`, wait until the socket can be read or, if [`Tls::wants_write`], written.
/// A socket that blocks works too.
///
/// A client's handshake is done before its server has judged the client's certificate: a refusal
/// arrives as the error of a later read.
pub struct Tls {
    inbound: Buffer,
    outbound: Buffer,
    state: State,
    peer: Option<CertificateDer<'static>>,
}

enum State {
    Handshaking {
        handshake: Box<Handshake>,
        /// Bytes of whole records at the front of the inbound buffer that the handshake has seen.
        seen: usize,
    },
    Open(Box<Session>),
    /// The error that every further call returns.
    Failed(io::ErrorKind, String),
}

impl fmt::Debug for Tls {
    /// Shows no data and no keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Handshaking { .. } => "handshaking",
            State::Open(_) => "open",
            State::Failed(_, reason) => reason,
        };
        f.debug_struct("Tls")
            .field("state", &state)
            .field("inbound", &self.inbound.len())
            .field("outbound", &self.outbound.len())
            .finish()
    }
}

/// A connection whose handshake is done.
struct Open<'a> {
    session: &'a mut Session,
    inbound: &'a mut Buffer,
    outbound: &'a mut Buffer,
}

/// Why a connection cannot go on, and what the peer is told.
struct Fault {
    alert: Option<AlertDescription>,
    error: io::Error,
}

impl Fault {
    fn invalid(alert: AlertDescription, reason: &'static str) -> Self {
        Fault {
            alert: Some(alert),
            error: io::Error::new(io::ErrorKind::InvalidData, reason),
        }
    }

    fn received(alert: AlertDescription) -> Self {
        Fault {
            alert: None,
            error: explain(rustls::Error::AlertReceived(alert)),
        }
    }
}

impl Tls {
    /// The side that connected. Its first message waits to be written: see [`Tls::flush`].
    ///
    /// # Errors
    /// Where the first message cannot be made.
    pub fn client(config: Arc<ClientConfig>) -> io::Result<Self> {
        let mut outbound = Buffer::new(MAX_HANDSHAKE);
        let handshake = Handshake::client(config, &mut outbound).map_err(explain)?;
        Ok(Self::new(handshake, outbound))
    }

    /// The side that accepted the connection.
    ///
    /// # Errors
    /// Where the configuration cannot be used.
    pub fn server(config: Arc<ServerConfig>) -> io::Result<Self> {
        let handshake = Handshake::server(config).map_err(explain)?;
        Ok(Self::new(handshake, Buffer::new(MAX_HANDSHAKE)))
    }

    fn new(handshake: Handshake, outbound: Buffer) -> Self {
        Tls {
            inbound: Buffer::new(MAX_HANDSHAKE),
            outbound,
            state: State::Handshaking {
                handshake: Box::new(handshake),
                seen: 0,
            },
            peer: None,
        }
    }

    /// Whether the peer's certificate is still to be checked.
    pub fn is_handshaking(&self) -> bool {
        matches!(self.state, State::Handshaking { .. })
    }

    /// The peer's own certificate, once the handshake is done: it was signed by the CA, is valid
    /// now, and carries the name that was asked for.
    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.peer.as_ref()
    }

    /// What identifies this connection and no other, once the handshake is done: made of its keys,
    /// so that both ends know it and nobody in between.
    pub(crate) fn binding(&self) -> Option<[u8; 32]> {
        match &self.state {
            State::Open(session) => Some(session.binding()),
            State::Handshaking { .. } | State::Failed(..) => None,
        }
    }

    /// Whether there is something to [`flush`](Tls::flush).
    pub fn wants_write(&self) -> bool {
        match &self.state {
            State::Failed(..) => false,
            State::Handshaking { .. } => !self.outbound.is_empty(),
            State::Open(session) => !self.outbound.is_empty() || session.owes_key_update(),
        }
    }

    /// Whether a read may return something although the socket has nothing: ask before waiting for
    /// the socket.
    pub fn has_pending_plaintext(&self) -> bool {
        match &self.state {
            State::Failed(..) => true,
            // The handshake takes all the records that it can use.
            State::Handshaking { .. } => false,
            State::Open(session) => session.can_deliver(&self.inbound),
        }
    }

    /// Reads plaintext into `into`: as much as one `read` of the socket brought, at most. 0 means
    /// that the peer closed the connection in order (or that `into` has no room).
    ///
    /// Memory beyond the returned count, inside of `into`, may have been overwritten.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing; `UnexpectedEof` when the connection ended without the
    /// peer saying so: somebody may have cut it; `PermissionDenied` when one side refuses the
    /// other's certificate; `InvalidData` when what came is not TLS or was changed on its way; and
    /// the errors of the socket. After an error other than `WouldBlock`, the connection is lost.
    pub fn read_vectored<S: Read + Write>(
        &mut self,
        socket: &mut S,
        into: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let mut targets = Targets::new(into);
        loop {
            let Open {
                session, inbound, ..
            } = self.open(socket)?;
            let delivered = session.deliver(inbound, &mut targets);
            let done = session.is_finished() || targets.is_full();
            if let Err(fault) = delivered {
                let error = self.fail(socket, fault);
                // What came before it is whole; the next call returns the error.
                return match targets.filled() {
                    0 => Err(error),
                    n => Ok(n),
                };
            }
            if targets.filled() > 0 || done {
                return Ok(targets.filled());
            }
            self.fill(socket, "the data may be cut short")?;
        }
    }

    /// Takes plaintext from `from` and sends it, encrypted. Returns how much was taken; what the
    /// socket did not take of it is kept (at most [`MAX_BUFFER`] of ciphertext), and sent by the
    /// next call or by [`Tls::flush`].
    ///
    /// # Errors
    /// `WouldBlock` when nothing was taken because the socket is full, or because the handshake is
    /// not done; `BrokenPipe` after [`Tls::close`]; the errors of the handshake, as for
    /// [`Tls::read_vectored`], and those of the socket.
    pub fn write_vectored<S: Read + Write>(
        &mut self,
        socket: &mut S,
        from: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let mut sources = Sources::new(from);
        loop {
            let Open {
                session, outbound, ..
            } = self.open(socket)?;
            if session.is_closing() {
                return Err(io::Error::new(
                    io::ErrorKind::BrokenPipe,
                    "this side of the TLS connection was closed",
                ));
            }
            let flushed = outbound.write_to(socket)?;
            if sources.is_empty() {
                return Ok(sources.taken());
            }
            if !flushed {
                return match sources.taken() {
                    0 => Err(io::ErrorKind::WouldBlock.into()),
                    n => Ok(n),
                };
            }
            if let Err(fault) = session.seal(&mut sources, outbound) {
                return Err(self.fail(socket, fault));
            }
        }
    }

    /// Sends what is kept; `true` when nothing is left. Advances the handshake too.
    ///
    /// # Errors
    /// As for [`Tls::write_vectored`], without `WouldBlock`.
    pub fn flush<S: Read + Write>(&mut self, socket: &mut S) -> io::Result<bool> {
        match self.open(socket) {
            Ok(Open {
                session, outbound, ..
            }) if session.owes_key_update() => {
                if !outbound.write_to(socket)? {
                    return Ok(false);
                }
                if let Err(fault) = session.pay_key_update(outbound) {
                    return Err(self.fail(socket, fault));
                }
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        self.outbound.write_to(socket)
    }

    /// Tells the peer that nothing more comes, so that it can tell the end from a cut, and flushes;
    /// call it, or `flush`, until it returns `true`, and then shut the socket down. Reading goes on.
    ///
    /// # Errors
    /// As for [`Tls::flush`].
    pub fn close<S: Read + Write>(&mut self, socket: &mut S) -> io::Result<bool> {
        match self.open(socket) {
            Ok(Open {
                session, outbound, ..
            }) => {
                if let Err(fault) = session.close(outbound) {
                    return Err(self.fail(socket, fault));
                }
            }
            // Before the handshake is done, there is nothing to close.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        self.flush(socket)
    }

    /// The open connection, after the handshake was taken as far as it goes.
    fn open<S: Read + Write>(&mut self, socket: &mut S) -> io::Result<Open<'_>> {
        if self.is_handshaking() {
            self.shake_hands(socket)?;
        }
        match &mut self.state {
            State::Open(session) => Ok(Open {
                session,
                inbound: &mut self.inbound,
                outbound: &mut self.outbound,
            }),
            State::Failed(kind, reason) => Err(io::Error::new(*kind, reason.clone())),
            State::Handshaking { .. } => unreachable!("the handshake ends or returns an error"),
        }
    }

    /// Returns when the handshake is done, or with the error, `WouldBlock` among them.
    fn shake_hands<S: Read + Write>(&mut self, socket: &mut S) -> io::Result<()> {
        while let State::Handshaking { handshake, seen } = &mut self.state {
            let next = match complete_record(&self.inbound.filled()[*seen..], true) {
                Ok(next) => next,
                Err(fault) => return Err(self.fail(socket, fault)),
            };
            let Some(next) = next else {
                // The peer may wait for what we have to say.
                self.outbound.write_to(socket)?;
                if self.inbound.len() >= MAX_HANDSHAKE {
                    let fault = Fault::invalid(
                        AlertDescription::RecordOverflow,
                        "the peer's TLS handshake is longer than 32 KiB",
                    );
                    return Err(self.fail(socket, fault));
                }
                self.fill(
                    socket,
                    "the TLS handshake was not done; does the peer expect TLS?",
                )?;
                continue;
            };
            // Record by record, so that rustls never sees one that the session should open.
            *seen += next;
            let records = &mut self.inbound.filled_mut()[..*seen];
            let (used, advanced) = handshake.advance(records, &mut self.outbound);
            self.inbound.consume(used);
            *seen -= used;
            match advanced {
                Ok(false) => {}
                Ok(true) => self.begin_session(socket)?,
                Err(error) => {
                    let fault = Fault {
                        alert: None, // rustls has said it
                        error: explain(error),
                    };
                    return Err(self.fail(socket, fault));
                }
            }
        }
        Ok(())
    }

    fn begin_session<S: Read + Write>(&mut self, socket: &mut S) -> io::Result<()> {
        let broken = State::Failed(io::ErrorKind::Other, "the TLS handshake broke".to_owned());
        let State::Handshaking { handshake, .. } = std::mem::replace(&mut self.state, broken)
        else {
            unreachable!("only a handshake is followed by a session");
        };
        let (session, peer) = handshake.finish().map_err(explain)?;
        self.peer = peer;
        self.inbound.set_limit(MAX_BUFFER);
        self.outbound.set_limit(MAX_BUFFER);
        self.state = State::Open(Box::new(session));
        // The peer waits for the end of the handshake. An error here is met again by the next
        // write; a read may still tell why the peer hung up.
        let _ = self.outbound.write_to(socket);
        Ok(())
    }

    /// Reads from the socket once.
    fn fill<S: Read + Write>(&mut self, socket: &mut S, at_the_end: &str) -> io::Result<()> {
        let kind = match self.inbound.read_from(socket) {
            Ok(0) => io::ErrorKind::UnexpectedEof,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => error.kind(),
            other => return other.map(drop),
        };
        let reason = format!("the connection ended without TLS's closing message: {at_the_end}");
        let fault = Fault {
            alert: None,
            error: io::Error::new(kind, reason),
        };
        Err(self.fail(socket, fault))
    }

    /// Gives the connection up: tells the peer why, if that can be done at once.
    fn fail<S: Read + Write>(&mut self, socket: &mut S, fault: Fault) -> io::Error {
        if let (State::Open(session), Some(alert)) = (&mut self.state, fault.alert) {
            session.alert(alert, &mut self.outbound);
        }
        // The reason for giving up is worth more than another error.
        let _ = self.outbound.write_to(socket);
        self.state = State::Failed(fault.error.kind(), fault.error.to_string());
        fault.error
    }
}

/// What `error` means for who runs a cluster.
fn explain(error: rustls::Error) -> io::Error {
    use rustls::Error::{AlertReceived, InvalidCertificate, NoCertificatesPresented};

    let (kind, meaning) = match &error {
        InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => (
            io::ErrorKind::PermissionDenied,
            "the peer's certificate was not signed by this node's CA (ca.pem): all nodes of a \
             cluster need certificates of one CA",
        ),
        InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            (
                io::ErrorKind::PermissionDenied,
                "the peer's certificate has expired: make new ones with `treadle certs --force`",
            )
        }
        InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => (
            io::ErrorKind::PermissionDenied,
            "the peer's certificate does not carry the name of a node",
        ),
        InvalidCertificate(_) => (
            io::ErrorKind::PermissionDenied,
            "the peer's certificate was refused",
        ),
        NoCertificatesPresented => (
            io::ErrorKind::PermissionDenied,
            "the peer showed no certificate",
        ),
        AlertReceived(
            AlertDescription::UnknownCA
            // The answer to the signature of another CA that has the same name.
            | AlertDescription::DecryptError
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::AccessDenied,
        ) => (
            io::ErrorKind::PermissionDenied,
            "the peer refuses this node's certificate",
        ),
        AlertReceived(_) => (
            io::ErrorKind::ConnectionAborted,
            "the peer ended the TLS connection",
        ),
        _ => (io::ErrorKind::InvalidData, "TLS failed"),
    };
    io::Error::new(kind, format!("{meaning} ({error})"))
}
