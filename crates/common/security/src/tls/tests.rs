use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::version::TLS13;
use rustls::{ClientConfig, HandshakeKind, RootCertStore, ServerConfig};
use treadle_sim_kernel::Random;

use super::fuzzing::Ca;
use super::*;

mod certificates;
mod data;
mod hostile;

/// What a record has beyond its content: header, type, and tag.
const OVERHEAD: usize = 5 + 1 + 16;

fn unix_pair() -> (UnixStream, UnixStream) {
    let (a, b) = UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    (a, b)
}

struct Pair<S> {
    client: Tls,
    server: Tls,
    here: S,
    there: S,
}

fn pair(client: &TlsOptions, server: &TlsOptions) -> Pair<UnixStream> {
    let (here, there) = unix_pair();
    Pair {
        client: Tls::client(client.client_config().unwrap()).unwrap(),
        server: Tls::server(server.server_config().unwrap()).unwrap(),
        here,
        there,
    }
}

/// A pair whose handshake is done.
fn open_pair() -> Pair<UnixStream> {
    let node = Ca::new().node(NODE_NAME, 1);
    let mut pair = pair(&node, &node);
    pair.shake_hands().unwrap();
    pair
}

impl<S: Read + Write> Pair<S> {
    fn shake_hands(&mut self) -> io::Result<()> {
        for _ in 0..10_000 {
            self.client.flush(&mut self.here)?;
            self.server.flush(&mut self.there)?;
            let done = !self.client.is_handshaking() && !self.server.is_handshaking();
            if done && !self.client.wants_write() && !self.server.wants_write() {
                return Ok(());
            }
        }
        panic!("the handshake goes round in circles");
    }

    /// What each side says about a handshake that fails.
    fn refusals(&mut self) -> (io::Error, io::Error) {
        let mut client = None;
        let mut server = None;
        for _ in 0..100 {
            client = client.or_else(|| refusal(read(&mut self.client, &mut self.here, 1)));
            server = server.or_else(|| refusal(read(&mut self.server, &mut self.there, 1)));
            match (client, server) {
                (Some(client), Some(server)) => return (client, server),
                unfinished => (client, server) = unfinished,
            }
        }
        panic!("client: {client:?}, server: {server:?}");
    }
}

fn refusal(answer: io::Result<Vec<u8>>) -> Option<io::Error> {
    answer
        .err()
        .filter(|error| error.kind() != io::ErrorKind::WouldBlock)
}

fn read<S: Read + Write>(tls: &mut Tls, socket: &mut S, room: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; room];
    let count = tls.read_vectored(socket, &mut [IoSliceMut::new(&mut bytes)])?;
    bytes.truncate(count);
    Ok(bytes)
}

fn write<S: Read + Write>(tls: &mut Tls, socket: &mut S, bytes: &[u8]) -> io::Result<usize> {
    tls.write_vectored(socket, &[IoSlice::new(bytes)])
}

fn is_blocked<T: std::fmt::Debug>(answer: io::Result<T>) -> bool {
    answer.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn noise(length: usize, random: &mut Random) -> Vec<u8> {
    let mut data = vec![0; length.next_multiple_of(8)];
    for word in data.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_ne_bytes());
    }
    data.truncate(length);
    data
}
