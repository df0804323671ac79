//! TLS 1.3 between nodes: both sides show a certificate of the cluster's CA.
//!
//! `rustls` does all of it, records included. This module moves its records over a nonblocking
//! socket, says what its errors mean for who runs a cluster, and tells an orderly end from a cut.
//!
//! Copies of a byte in user space, the cipher itself not counted: 1 when sending (into
//! the record, which is encrypted where it is), 2 when receiving (out of the record, and into the
//! caller's memory).
//!
//! Memory is bounded whatever a peer sends. Sending, at most `MAX_BUFFER` bytes of plaintext are
//! encrypted before the socket takes them. Receiving, `rustls` keeps one record, and nothing more is
//! read until the caller has taken its plaintext; before the handshake is done, it keeps 64 KiB.
//!
//! Session tickets, 0-RTT data, renegotiation, and post-handshake authentication are not used. Keys
//! are changed (`KeyUpdate`, RFC 8446, section 4.6.3) before AES-GCM has protected as much as it may
//! with one key (section 5.5).

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod options;
#[cfg(test)]
mod tests;
mod verify;

use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection,
    InvalidMessage as Invalid, ServerConfig, ServerConnection,
};

pub use self::options::{NODE_NAME, PeerName, Pem, TlsError, TlsOptions};

/// Most bytes of plaintext whose records wait for the socket.
const MAX_BUFFER: usize = 64 * 1024;

/// How often one call reads from the socket before there is any plaintext: records without data
/// must not keep the thread that drives other connections, too.
const MAX_READS: usize = 16;

/// What names a channel, as RFC 9266 has it.
const BINDING: &[u8] = b"EXPORTER-Channel-Binding";

/// One TLS connection over a nonblocking socket that the caller owns.
///
/// Every call does what it can without waiting; the first ones advance the handshake. When a call
/// returns `WouldBlock`, wait until the socket can be read or, if [`Tls::wants_write`], written.
///
/// A client's handshake is done before its server has judged the client's certificate: a refusal
/// arrives as the error of a later read.
#[derive(Debug)]
pub struct Tls {
    connection: Connection,
    is_closed: bool,
    /// The error that every further call returns.
    failure: Option<(io::ErrorKind, String)>,
}

impl Tls {
    /// The side that connected. Its first message waits to be written: see [`Tls::flush`].
    ///
    /// # Errors
    /// Where the first message cannot be made.
    pub fn client(config: Arc<ClientConfig>) -> io::Result<Self> {
        // The verifier of the configuration decides which names it accepts, and no name is sent.
        let name = ServerName::try_from(NODE_NAME).expect("it is a DNS name");
        let connection = ClientConnection::new(config, name).map_err(explain)?;
        Ok(Self::new(connection.into()))
    }

    /// The side that accepted the connection.
    ///
    /// # Errors
    /// Where the configuration cannot be used.
    pub fn server(config: Arc<ServerConfig>) -> io::Result<Self> {
        let connection = ServerConnection::new(config).map_err(explain)?;
        Ok(Self::new(connection.into()))
    }

    fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(MAX_BUFFER));
        Tls {
            connection,
            is_closed: false,
            failure: None,
        }
    }

    /// Whether the peer's certificate is still to be checked.
    pub fn is_handshaking(&self) -> bool {
        self.failure.is_none() && self.connection.is_handshaking()
    }

    /// What identifies this connection and no other, once the handshake is done: made of its keys,
    /// so that both ends know it and nobody in between.
    pub fn binding(&self) -> Option<[u8; 32]> {
        let key = self
            .connection
            .export_keying_material([0; 32], BINDING, None);
        key.ok()
    }

    /// Whether there is something to [`flush`](Tls::flush).
    pub fn wants_write(&self) -> bool {
        self.failure.is_none() && self.connection.wants_write()
    }

    /// Whether a read returns something, or an error, although the socket has nothing: ask before
    /// waiting for the socket.
    pub fn has_pending_plaintext(&mut self) -> bool {
        self.failure.is_some() || self.connection.reader().fill_buf().is_ok()
    }

    /// Reads plaintext into `into`: as much as one `read` of the socket brought, at most. 0 means
    /// that the peer closed the connection in order (or that `into` has no room).
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing, or nothing yet; `UnexpectedEof` when the connection ended
    /// without the peer saying so: somebody may have cut it; `PermissionDenied` when one side
    /// refuses the other's certificate; `InvalidData` when what came is not TLS or was changed on
    /// its way; and the errors of the socket. After an error other than `WouldBlock`, the connection
    /// is lost.
    pub fn read_vectored<S: Read + Write>(
        &mut self,
        socket: &mut S,
        into: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        if into.iter().all(|slice| slice.is_empty()) {
            return Ok(0);
        }
        let mut received = Ok(());
        for reads in 0.. {
            // What came before an error is whole, and comes first.
            if let Some(taken) = self.take(into) {
                return Ok(taken);
            }
            received?;
            if reads == MAX_READS {
                break;
            }
            received = self.receive(socket);
        }
        // The socket is still readable.
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Takes plaintext that is here, or the orderly end, which is 0. `None`: there is neither.
    fn take(&mut self, into: &mut [IoSliceMut<'_>]) -> Option<usize> {
        let mut reader = self.connection.reader();
        let mut taken = None;
        for slice in into.iter_mut().filter(|slice| !slice.is_empty()) {
            match reader.read(slice) {
                Ok(count) => *taken.get_or_insert(0) += count,
                Err(_) => break,
            }
        }
        taken
    }

    /// Takes plaintext from `from` and sends it, encrypted. Returns how much was taken, at most
    /// [`MAX_BUFFER`]; what the socket did not take of it is kept, and sent by the next call or by
    /// [`Tls::flush`].
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
        self.shake_hands(socket)?;
        if self.is_closed {
            return Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "this side of the TLS connection was closed",
            ));
        }
        if !self.send(socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = self.connection.writer().write_vectored(from)?;
        self.send(socket)?;
        Ok(taken)
    }

    /// Sends what is kept; `true` when nothing is left. Advances the handshake too.
    ///
    /// # Errors
    /// As for [`Tls::write_vectored`], without `WouldBlock`.
    pub fn flush<S: Read + Write>(&mut self, socket: &mut S) -> io::Result<bool> {
        match self.shake_hands(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => self.send(socket),
        }
    }

    /// Tells the peer that nothing more comes, so that it can tell the end from a cut, and flushes;
    /// call it, or `flush`, until it returns `true`, and then shut the socket down. Reading goes on.
    ///
    /// # Errors
    /// As for [`Tls::flush`].
    pub fn close<S: Read + Write>(&mut self, socket: &mut S) -> io::Result<bool> {
        let is_flushed = self.flush(socket)?;
        // Before the handshake is done, there is nothing to close.
        if self.is_closed || self.is_handshaking() {
            return Ok(is_flushed);
        }
        self.is_closed = true;
        self.connection.send_close_notify();
        self.send(socket)
    }

    /// Takes the handshake as far as it goes. Returns when it is done, or with the error,
    /// `WouldBlock` among them.
    fn shake_hands<S: Read + Write>(&mut self, socket: &mut S) -> io::Result<()> {
        self.check()?;
        while self.connection.is_handshaking() {
            self.receive(socket)?;
        }
        Ok(())
    }

    /// The error with which the connection was lost.
    fn check(&self) -> io::Result<()> {
        match &self.failure {
            Some((kind, reason)) => Err(io::Error::new(*kind, reason.clone())),
            None => Ok(()),
        }
    }

    /// Reads from the socket once, and handles what is whole of it.
    fn receive<S: Read + Write>(&mut self, socket: &mut S) -> io::Result<()> {
        self.check()?;
        let is_handshaking = self.connection.is_handshaking();
        if is_handshaking {
            // The peer may wait for it.
            self.send(socket)?;
        }
        let cut = match self.connection.read_tls(socket) {
            Ok(0) => io::ErrorKind::UnexpectedEof,
            Ok(_) => {
                let handled = self.connection.process_new_packets();
                handled.map_err(|error| self.fail(socket, explain(error)))?;
                if is_handshaking {
                    // The peer waits for the end of the handshake. The next write meets the same
                    // error; a read may still tell why the peer hung up.
                    let _ = self.send(socket);
                }
                return Ok(());
            }
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => return Ok(()),
                io::ErrorKind::ConnectionReset => error.kind(),
                _ => return Err(error),
            },
        };
        let meaning = match is_handshaking {
            true => "the TLS handshake was not done; does the peer expect TLS?",
            false => "the data may be cut short",
        };
        let reason = format!("the connection ended without TLS's closing message: {meaning}");
        Err(self.fail(socket, io::Error::new(cut, reason)))
    }

    /// Writes records until none is left (`true`) or the socket takes no more (`false`).
    fn send<S: Write>(&mut self, socket: &mut S) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Gives the connection up, and tells the peer why if that can be done at once.
    fn fail<S: Write>(&mut self, socket: &mut S, error: io::Error) -> io::Error {
        // The reason for giving up is worth more than another error.
        let _ = self.send(socket);
        self.failure = Some((error.kind(), error.to_string()));
        error
    }
}

/// What `error` means for who runs a cluster.
fn explain(error: rustls::Error) -> io::Error {
    use rustls::Error::{
        AlertReceived, DecryptError, InvalidCertificate, InvalidMessage, NoCertificatesPresented,
    };

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
            "the peer's certificate is none of `treadle certs`: it does not carry the name of a node. The \
             address may be that of another program. To use a scheduler of distributed, see treadle.attach",
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
        InvalidMessage(Invalid::InvalidContentType | Invalid::UnknownProtocolVersion) => (
            io::ErrorKind::InvalidData,
            "the peer does not speak TLS: is treadle+tls:// written on one side only?",
        ),
        DecryptError => (
            io::ErrorKind::InvalidData,
            "a TLS record was changed on its way",
        ),
        _ => (io::ErrorKind::InvalidData, "TLS failed"),
    };
    io::Error::new(kind, format!("{meaning} ({error})"))
}
