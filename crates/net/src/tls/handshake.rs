//! The handshake: `rustls` decides, this moves its messages.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{ClientConfig, Error, ServerConfig};

use super::buffer::Buffer;
use super::options::NODE_NAME;
use super::session::{KeySchedule, Session};

pub(super) enum Handshake {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

enum Step {
    Again,
    MoreNeeded,
    Done,
}

impl Handshake {
    pub(super) fn client(config: Arc<ClientConfig>, outbound: &mut Buffer) -> Result<Self, Error> {
        // The verifier of the configuration decides which names it accepts, and no name is sent.
        let name = ServerName::try_from(NODE_NAME).expect("it is a DNS name");
        let mut handshake = Handshake::Client(UnbufferedClientConnection::new(config, name)?);
        handshake.advance(&mut [], outbound).1?;
        Ok(handshake)
    }

    pub(super) fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        UnbufferedServerConnection::new(config).map(Handshake::Server)
    }

    /// Takes in `records`, whole ones, and appends the answers to `outbound`. Returns how many
    /// bytes were used (what is left must be given again, with the next record), and whether the
    /// handshake is done.
    pub(super) fn advance(
        &mut self,
        records: &mut [u8],
        outbound: &mut Buffer,
    ) -> (usize, Result<bool, Error>) {
        let mut used = 0;
        loop {
            let (discard, step) = self.step(&mut records[used..], outbound);
            used += discard;
            match step {
                Ok(Step::Again) => {}
                Ok(Step::MoreNeeded) => return (used, Ok(false)),
                Ok(Step::Done) => return (used, Ok(true)),
                Err(error) => {
                    // The alert that an error queues comes before anything is read again. One step
                    // only: rustls asserts that it fails once, so it must not read on.
                    let _ = self.step(&mut records[used..], outbound);
                    return (used, Err(error));
                }
            }
        }
    }

    fn step(&mut self, records: &mut [u8], outbound: &mut Buffer) -> (usize, Result<Step, Error>) {
        match self {
            Handshake::Client(connection) => {
                take(connection.process_tls_records(records), outbound)
            }
            Handshake::Server(connection) => {
                take(connection.process_tls_records(records), outbound)
            }
        }
    }

    /// The open connection, and the peer's own certificate.
    pub(super) fn finish(self) -> Result<(Session, Option<CertificateDer<'static>>), Error> {
        let peer = match &self {
            Handshake::Client(connection) => connection.peer_certificates(),
            Handshake::Server(connection) => connection.peer_certificates(),
        }
        .and_then(|chain| chain.first().cloned());
        let (secrets, schedule) = match self {
            Handshake::Client(connection) => {
                let (secrets, next) = connection.dangerous_into_kernel_connection()?;
                (secrets, KeySchedule::Client(next))
            }
            Handshake::Server(connection) => {
                let (secrets, next) = connection.dangerous_into_kernel_connection()?;
                (secrets, KeySchedule::Server(next))
            }
        };
        Ok((Session::new(secrets, schedule)?, peer))
    }
}

/// Acts on what a connection wants next.
fn take<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outbound: &mut Buffer,
) -> (usize, Result<Step, Error>) {
    let step = status.state.and_then(|state| match state {
        ConnectionState::EncodeTlsData(mut message) => {
            let encoded = match message.encode(&mut []) {
                Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                    message.encode(outbound.space(required_size))
                }
                other => other,
            };
            let length = encoded.map_err(|error| Error::General(error.to_string()))?;
            outbound.append(length);
            Ok(Step::Again)
        }
        ConnectionState::TransmitTlsData(message) => {
            message.done();
            Ok(Step::Again)
        }
        ConnectionState::BlockedHandshake => Ok(Step::MoreNeeded),
        ConnectionState::WriteTraffic(_) => Ok(Step::Done),
        ConnectionState::PeerClosed | ConnectionState::Closed => Err(Error::General(
            "the peer closed during the handshake".into(),
        )),
        _ => Err(Error::General("data arrived before its time".into())),
    });
    (status.discard, step)
}
