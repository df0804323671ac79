//! What shows only inside a pair.

use std::io::{IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_memory::Pool;
use treadle_reactor::{Interest, Readiness, Source, Token, Wait, drivers};
use treadle_security::secret::Secret;
use treadle_security::tls::fuzzing::Ca;
use treadle_security::tls::{NODE_NAME, Tls};
use treadle_transfer::TransferId;
use treadle_transfer::layout::{Layout, Place};

use crate::handshaking::Nobody;
use crate::objects::gather;
use crate::peer::Established;
use crate::stream::{Stream, would_block};
use crate::{Config, Listener, Options, Peer, wire};

fn soon() -> Wait<'static> {
    Wait {
        deadline: Some(Instant::now() + Duration::from_secs(30)),
        interrupted: None,
    }
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (there, _) = listener.accept().unwrap();
    for socket in [&here, &there] {
        socket.set_nonblocking(true).unwrap();
    }
    (here, there)
}

/// Their memory is used again.
#[test]
fn between_frames_that_are_gathered_is_nothing_of_others() {
    const SIZE: usize = 50_001;
    let frames: Vec<Bytes> = (1..=9).map(|byte| vec![byte; SIZE].into()).collect();
    let layout = Layout::of(&[SIZE as u64; 9]).unwrap();
    let length = layout.regions[0] as usize;
    let mut used = Pool::global().buffer(length).unwrap();
    used.as_mut_slice().fill(0xff);
    drop(used);
    let regions = gather(&frames, &layout).unwrap();
    assert_eq!(regions.len(), 1);
    for (at, byte) in regions[0].iter().enumerate() {
        let frame = layout.places.iter().position(|place| match *place {
            Place::Region { offset, .. } => (offset as usize..offset as usize + SIZE).contains(&at),
            Place::Inline { .. } => false,
        });
        assert_eq!(
            usize::from(*byte),
            frame.map_or(0, |frame| frame + 1),
            "at {at}"
        );
    }
}

/// The socket does not report what has been read from it.
#[test]
fn what_came_with_the_end_of_the_handshake_reaches_the_pair() {
    let node = Ca::new().node(NODE_NAME, 1);
    let (mut here, mut there) = tcp_pair();
    let mut client = Tls::client(node.client_config().unwrap()).unwrap();
    let mut server = Tls::server(node.server_config().unwrap()).unwrap();
    let is_busy = |tls: &Tls| tls.is_handshaking() || tls.wants_write();
    while is_busy(&client) || is_busy(&server) {
        client.flush(&mut here).unwrap();
        server.flush(&mut there).unwrap();
    }
    let mut bytes = vec![0];
    let frames = [&b"abc"[..]].into_iter();
    wire::encode_object(TransferId(1), 7, &[3], None, frames, &mut bytes);
    let written = client.write_vectored(&mut here, &[IoSlice::new(&bytes)]);
    assert_eq!(written.unwrap(), bytes.len());

    let mut stream = Stream::Tls(there, Box::new(server));
    let mut first = [0];
    while let Err(error) = stream.read_vectored(&mut [IoSliceMut::new(&mut first)]) {
        assert!(would_block(&error), "{error}");
    }
    let driver = Arc::clone(&drivers().unwrap()[0]);
    let sources = &driver.sources;
    let token = sources.register(Arc::new(Nobody), stream.as_fd(), Interest::None, true);
    let established = Established {
        stream,
        driver,
        token: token.unwrap(),
        session: 1,
        session_secret: Secret::new([1; 32]).unwrap(),
        service: 0,
        peer_credit: 1 << 20,
        address: "a client".into(),
        cluster: None,
        client: 0,
    };
    let peer = Peer::start(established, &Config::default(), None);
    let incoming = peer.next(&mut soon()).unwrap();
    assert_eq!(incoming.header(), (7, vec![3]));
}

/// Panics when its socket is ready, and does something when it is told so.
struct Broken<F>(F);

impl<F: Fn(String) + Send + Sync> Source for Broken<F> {
    fn ready(self: Arc<Self>, _token: Token, _readiness: Readiness) {
        panic!("ready");
    }

    fn tick(self: Arc<Self>, _token: Token, _now: Instant) -> Option<Instant> {
        panic!("tick");
    }

    fn panicked(self: Arc<Self>, _token: Token, reason: String) {
        (self.0)(reason);
    }
}

#[test]
fn a_pair_that_panics_ends_for_both_sides() {
    let options = Options {
        secret: Some(Secret::new([7; 32]).unwrap()),
        ..Options::default()
    };
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let address = listener.address().clone();
    let connecting =
        std::thread::spawn(move || Peer::connect(&address, &options, &mut soon()).unwrap());
    let near = listener.accept(&mut soon()).unwrap();
    let far = connecting.join().unwrap();
    let shared = Arc::clone(&near.shared);
    let (driver, token) = (Arc::clone(&shared.driver), shared.token);
    let broken = Broken(move |reason| Arc::clone(&shared).panicked(token, reason));
    driver.sources.replace(token, Arc::new(broken));
    far.send(1, &[vec![1, 2, 3].into()]).unwrap();
    let error = near.next(&mut soon()).unwrap_err();
    assert_eq!(error.to_string(), "a thread of the engine panicked: ready");
    assert!(far.next(&mut soon()).is_err());
}
