//! What a client does as soon as it has the last bytes of its handshake.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};

use treadle_reactor::Wait;
use treadle_security::secret::Secret;

use super::*;
use crate::handshake::Step;
use crate::handshaking::Nobody;

const SOON: Duration = Duration::from_secs(30);

fn secret() -> Secret {
    Secret::new([7; 32]).unwrap()
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (here, listener.accept().unwrap().0)
}

/// Reads what a side of a handshake waits for.
fn step(socket: &mut TcpStream, side: &mut Handshake) -> Step {
    let mut bytes = vec![0; side.wanted()];
    socket.read_exact(&mut bytes).unwrap();
    side.receive(&bytes);
    side.advance().unwrap()
}

fn send(socket: &mut TcpStream, side: &mut Handshake) {
    socket.write_all(&side.output).unwrap();
    side.output.clear();
}

/// Tells whether the client had nothing to read when it had proved itself.
struct Looks {
    client: TcpStream,
    told: Mutex<Sender<bool>>,
}

impl Admission for Looks {
    fn asked(&self, _: &proto::Hello, _: &Stream, handshake: &mut Handshake) {
        handshake.answer(hello(Role::Control), Some(secret()));
    }

    fn proved(&self, _: &Handshake) {
        let peeked = self.client.peek(&mut [0]);
        let is_quiet = peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        lock(&self.told).send(is_quiet).unwrap();
    }

    fn is_crowded(&self) -> bool {
        false
    }
}

#[test]
fn a_session_is_known_before_its_client_hears_of_it() {
    let (mut here, there) = tcp_pair();
    there.set_nonblocking(true).unwrap();
    let (told, proved) = channel();
    let looks = Looks {
        client: here.try_clone().unwrap(),
        told: Mutex::new(told),
    };
    let driver = &drivers().unwrap()[0];
    Handshaking::start(
        driver,
        Stream::Tcp(there),
        Handshake::listener(),
        Some(Arc::new(looks)),
        SOON,
        Box::new(|_| {}),
    )
    .unwrap();
    let mut client = Handshake::client(hello(Role::Control), Some(secret()));
    send(&mut here, &mut client);
    while client.output.is_empty() {
        step(&mut here, &mut client);
    }
    // Both descriptors of the socket are one to the system: what looks must not wait.
    here.set_nonblocking(true).unwrap();
    send(&mut here, &mut client);
    assert!(proved.recv_timeout(SOON).unwrap(), "it was told first");
}

#[test]
fn descriptors_that_come_before_the_pair_reach_it() {
    let options = Options {
        secret: Some(secret()),
        ..Options::default()
    };
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let state = &listener.state;
    let session = 5;
    // The end of the handshake of a control connection, on both sides.
    let (here, there) = tcp_pair();
    let driver = &drivers().unwrap()[0];
    let shared_secret = secret();
    state
        .accepting()
        .sessions
        .begin(session, shared_secret.clone());

    let name = state.descriptors.clone();
    let mut own = hello(Role::Descriptors);
    own.session = session;
    own.dialled = Some(dialled::unix(&name));
    let (told, opened) = channel();
    Handshaking::start(
        driver,
        Stream::Unix(local::connect(&name).unwrap()),
        Handshake::client(own, Some(shared_secret.clone())),
        None,
        SOON,
        Box::new(move |opened| told.send(opened).unwrap()),
    )
    .unwrap();
    let opened = opened.recv_timeout(SOON).unwrap();
    assert!(opened.is_ok(), "{:?}", opened.err());

    there.set_nonblocking(true).unwrap();
    let token = driver
        .sources
        .register(Arc::new(Nobody), there.as_fd(), Interest::None, true)
        .unwrap();
    let control = Opened {
        stream: Stream::Tcp(there),
        driver: Arc::clone(driver),
        token,
        hello: hello(Role::Control),
        session_secret: shared_secret,
    };
    state.shaken(Ok(control), session, "somebody".to_owned());
    let mut wait = Wait {
        deadline: Some(Instant::now() + SOON),
        interrupted: None,
    };
    let peer = listener.accept(&mut wait).unwrap();
    let until = Instant::now() + SOON;
    while peer.shared().locked().channel.is_none() {
        assert!(
            Instant::now() < until,
            "the descriptors have not reached it"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((here, opened));
}
