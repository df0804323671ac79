//! The fuzz target of TLS, which `fuzz/` calls. The tests here replay the corpus in `fuzz/corpus/`.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::{ClientConfig, ServerConfig};

use super::{NODE_NAME, Tls, TlsOptions};

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

/// A CA and certificates that it signed.
pub struct Ca(pub(super) CertifiedIssuer<'static, KeyPair>);

impl Ca {
    /// A CA of its own.
    #[allow(clippy::new_without_default, reason = "each call makes other keys")]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ca(
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("it is valid"))
                .expect("it is valid"),
        )
    }

    /// Options with a certificate for `name` that expires in `hours` (or did, if negative).
    pub fn node(&self, name: &str, hours: i64) -> TlsOptions {
        let hour = Duration::from_secs(3600);
        let expires = if hours < 0 {
            SystemTime::now() - hour * hours.unsigned_abs() as u32
        } else {
            SystemTime::now() + hour * hours as u32
        };
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("it is valid");
        params.not_before = (expires - hour * 1000).into();
        params.not_after = expires.into();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().expect("it is valid");
        let certificate = params.signed_by(&key, &*self.0).expect("it is valid");
        TlsOptions::new(self.0.pem(), certificate.pem(), key.serialize_pem())
    }
}

/// Both sides' settings, with the certificate of a CA that is made once.
fn configs() -> &'static (Arc<ClientConfig>, Arc<ServerConfig>) {
    static CONFIGS: OnceLock<(Arc<ClientConfig>, Arc<ServerConfig>)> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let options = Ca::new().node(NODE_NAME, 900);
        let client = options.client_config().expect("a configuration");
        (client, options.server_config().expect("a configuration"))
    })
}

/// One end of a connection.
struct End {
    tls: Tls,
    socket: Socket,
}

impl End {
    fn pair() -> [Self; 2] {
        let (client, server) = configs();
        let client = Tls::client(Arc::clone(client)).expect("a client");
        let server = Tls::server(Arc::clone(server)).expect("a server");
        [client, server].map(|tls| End {
            tls,
            socket: Socket::default(),
        })
    }

    fn read(&mut self, room: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; room];
        let (front, back) = bytes.split_at_mut(room / 3);
        let mut into = [IoSliceMut::new(front), IoSliceMut::new(back)];
        let count = self.tls.read_vectored(&mut self.socket, &mut into)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Sends what waits, and delivers it.
    fn deliver(&mut self, to: &mut Self) {
        self.tls.flush(&mut self.socket).expect("an honest peer");
        to.socket.input.append(&mut self.socket.output);
    }
}

/// A side that is sent anything: during its handshake, where that is not over by then, or what an
/// honest peer sends with damage on its way. What it delivers was sent as data.
pub fn tls_session(bytes: &[u8]) {
    let [choice, bytes @ ..] = bytes else { return };
    let [client, server] = End::pair();
    let (mut near, mut far) = match choice & 1 {
        0 => (server, client),
        _ => (client, server),
    };
    for _ in 0..usize::from(choice >> 1) {
        far.deliver(&mut near);
        near.deliver(&mut far);
    }
    let is_open = !near.tls.is_handshaking() && !far.tls.is_handshaking();
    let mut expected = Vec::new();
    let mut rest = bytes;
    while let [operation, length, after @ ..] = rest {
        let (content, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        match operation & 7 {
            0 if is_open => {
                far.tls
                    .connection
                    .refresh_traffic_keys()
                    .expect("it is open");
            }
            1 if is_open => {
                far.tls.close(&mut far.socket).expect("an honest peer");
            }
            2..=4 if is_open && !far.tls.is_closed => {
                let content = content.repeat(if *length > 250 { 200 } else { 1 });
                let from = [IoSlice::new(&content)];
                let taken = far.tls.write_vectored(&mut far.socket, &from);
                assert_eq!(taken.expect("an honest peer"), content.len());
                expected.extend_from_slice(&content);
            }
            // Damage: whatever lies in front of it stays.
            5 => {
                if let (Some(byte), Some(at)) = (near.socket.input.last_mut(), content.first()) {
                    *byte ^= at;
                }
            }
            6 => {
                let left = near.socket.input.len().saturating_sub(usize::from(*length));
                near.socket.input.truncate(left);
            }
            _ => near.socket.input.extend_from_slice(content),
        }
        if is_open {
            far.deliver(&mut near);
        }
        match near.read(usize::from(*length) * 40) {
            Ok(bytes) => {
                assert!(expected.starts_with(&bytes), "other bytes than were sent");
                expected.drain(..bytes.len());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                assert!(!near.tls.has_pending_plaintext(), "nobody would read it");
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert!(
                    near.tls.has_pending_plaintext(),
                    "the error is not forgotten"
                );
                let again = near.read(1).expect_err("the connection is lost");
                assert_eq!(again.to_string(), error.to_string());
                return;
            }
        }
    }
}

/// Valid inputs: name and bytes.
#[cfg(test)]
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let data = |length: u8| [vec![2, length], vec![b'd'; usize::from(length)]].concat();
    let raw = |bytes: &[u8]| [&[7, bytes.len() as u8], bytes].concat();
    // The lowest bit is the side; the others say how many flights of the handshake were honest.
    let [server, client, open] = [0, 1, 3 << 1];
    let with = |choice: u8, operations: &[Vec<u8>]| [vec![choice], operations.concat()].concat();
    vec![
        ("garbage", with(server, &[raw(b"GET / HTTP/1.1\r\n\r\n")])),
        ("hello", with(server, &[raw(&[22, 3, 1, 0, 4, 1, 0, 0, 0])])),
        ("alert", with(client, &[raw(&[21, 3, 3, 0, 2, 2, 40])])),
        (
            "data",
            with(open, &[data(1), data(0), data(200), data(255), data(9)]),
        ),
        (
            "keys",
            with(open, &[data(5), vec![0, 1], data(6), vec![0, 1], data(7)]),
        ),
        (
            "close",
            with(open | client, &[data(5), vec![1, 3], data(6)]),
        ),
        ("damage", with(open, &[data(5), vec![5, 1, 64], data(6)])),
        (
            "behind",
            with(
                open,
                &[data(255), raw(b"GET / HTTP/1.1"), data(255).repeat(6)],
            ),
        ),
        (
            "cut",
            with(open | client, &[data(5), vec![2, 0], vec![6, 9], data(6)]),
        ),
    ]
}

#[cfg(test)]
#[path = "../../../../../fuzz/corpus.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod corpus;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_replayed() {
        corpus::replay("tls_session", tls_session);
    }

    #[test]
    fn the_corpus_has_what_is_valid() {
        for (name, bytes) in seeds() {
            corpus::compare("tls_session", name, &bytes);
        }
    }
}
