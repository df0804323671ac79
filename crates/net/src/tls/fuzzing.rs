//! Fuzz targets of TLS: see `crate::fuzzing`.

use std::io::{self, IoSliceMut, Read, Write};
use std::sync::{Arc, OnceLock};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::{ClientConfig, ServerConfig};

use super::{MAX_BUFFER, MAX_HANDSHAKE, NODE_NAME, State, Tls, TlsOptions};

/// A socket that is at hand.
#[derive(Default)]
struct Socket {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.input.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        into[..count].copy_from_slice(&self.input[..count]);
        self.input.drain(..count);
        Ok(count)
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(from);
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Both sides' settings, with the certificate of a CA that is made once.
fn configs() -> &'static (Arc<ClientConfig>, Arc<ServerConfig>) {
    static CONFIGS: OnceLock<(Arc<ClientConfig>, Arc<ServerConfig>)> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = || KeyPair::generate().expect("a key");
        let ca = CertifiedIssuer::self_signed(params, key()).expect("a CA");
        let mut params = CertificateParams::new(vec![NODE_NAME.to_owned()]).expect("a name");
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let own = key();
        let certificate = params.signed_by(&own, &*ca).expect("a certificate");
        let options = TlsOptions::new(ca.pem(), certificate.pem(), own.serialize_pem());
        let client = options.client_config().expect("a configuration");
        (client, options.server_config().expect("a configuration"))
    })
}

fn sides() -> (Tls, Tls) {
    let (client, server) = configs();
    let client = Tls::client(Arc::clone(client)).expect("a client");
    (client, Tls::server(Arc::clone(server)).expect("a server"))
}

fn read(tls: &mut Tls, socket: &mut Socket, room: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; room];
    let (front, back) = bytes.split_at_mut(room / 3);
    let mut into = [IoSliceMut::new(front), IoSliceMut::new(back)];
    let count = tls.read_vectored(socket, &mut into)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Either side of a handshake, before anybody has shown a certificate.
pub fn tls_handshake(bytes: &[u8]) {
    let [choice, bytes @ ..] = bytes else { return };
    let (client, server) = sides();
    let mut side = if choice & 1 > 0 { client } else { server };
    let mut socket = Socket::default();
    let piece = usize::from(choice >> 1) * 64 + 1;
    for part in bytes.chunks(piece) {
        socket.input.extend_from_slice(part);
        match read(&mut side, &mut socket, 100) {
            Ok(_) => panic!("nobody has shown a certificate"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        }
        assert!(side.is_handshaking());
        assert!(side.inbound.len() <= MAX_HANDSHAKE && side.outbound.len() <= MAX_HANDSHAKE);
    }
}

/// The records of an open connection, sealed by a peer that may seal anything, or damaged on their
/// way. What is delivered is what was sent as data.
pub fn tls_session(bytes: &[u8]) {
    let (mut client, mut server) = sides();
    let (mut here, mut there) = (Socket::default(), Socket::default());
    while client.is_handshaking()
        || server.is_handshaking()
        || client.wants_write()
        || server.wants_write()
    {
        client.flush(&mut here).expect("an honest handshake");
        there.input.append(&mut here.output);
        server.flush(&mut there).expect("an honest handshake");
        here.input.append(&mut there.output);
    }
    let mut expected = Vec::new();
    let mut rest = bytes;
    while let [operation, length, after @ ..] = rest {
        let (content, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        match operation & 7 {
            // Damage: whatever lies in front of it stays.
            0 => there.input.extend_from_slice(content),
            1 => {
                if let (Some(byte), Some(at)) = (there.input.last_mut(), content.first()) {
                    *byte ^= at;
                }
            }
            kind => {
                let kind = if kind < 5 {
                    super::record::APPLICATION_DATA
                } else {
                    operation >> 3
                };
                let mut content = content.repeat(if kind == 23 && *length > 250 { 64 } else { 1 });
                let State::Open(session) = &mut client.state else {
                    unreachable!("the client only writes");
                };
                session.raw_record(kind, &content, &mut client.outbound);
                let mut kind = kind;
                if kind == 0 {
                    // Padding: the type is what comes before it.
                    while content.last() == Some(&0) {
                        content.pop();
                    }
                    kind = content.pop().unwrap_or(0);
                }
                if kind == super::record::HANDSHAKE && matches!(content[..], [24, 0, 0, 1, 0 | 1]) {
                    session.follow_key_update();
                }
                if kind == super::record::APPLICATION_DATA {
                    expected.extend_from_slice(&content);
                }
                client.flush(&mut here).expect("memory takes everything");
                there.input.append(&mut here.output);
            }
        }
        match read(&mut server, &mut there, usize::from(*length) * 40) {
            Ok(bytes) => {
                assert!(expected.starts_with(&bytes), "other bytes than were sent");
                expected.drain(..bytes.len());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert!(server.has_pending_plaintext(), "the error is not forgotten");
                return;
            }
        }
        assert!(server.inbound.len() <= MAX_BUFFER && server.outbound.len() <= MAX_BUFFER);
    }
}

/// Valid inputs: corpus, name, bytes.
#[cfg(test)]
pub(crate) fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let data = |length: u8| [vec![2, length], vec![b'd'; usize::from(length)]].concat();
    // Kinds of records in the five upper bits, after the three that choose to seal them.
    let (alert, handshake) = (21 << 3 | 5, 22 << 3 | 5);
    let key_update = |asked| vec![handshake, 5, 24, 0, 0, 1, asked];
    vec![
        (
            "tls_handshake",
            "garbage",
            b"\0GET / HTTP/1.1\r\n\r\n".to_vec(),
        ),
        (
            "tls_handshake",
            "hello",
            vec![0, 22, 3, 1, 0, 4, 1, 0, 0, 0],
        ),
        ("tls_handshake", "alert", vec![1, 21, 3, 3, 0, 2, 2, 40]),
        (
            "tls_session",
            "data",
            [data(1), data(0), data(200), data(255), data(9)].concat(),
        ),
        (
            "tls_session",
            "keys",
            [data(5), key_update(1), data(6), key_update(0), data(7)].concat(),
        ),
        (
            "tls_session",
            "close",
            [data(5), vec![alert, 2, 1, 0], data(6)].concat(),
        ),
        (
            "tls_session",
            "damage",
            [data(5), vec![1, 1, 64], data(6)].concat(),
        ),
    ]
}
