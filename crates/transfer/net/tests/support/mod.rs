//! A client and a server that talk to each other.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of several tests, none of which uses all"
)]

pub mod child;
pub mod proxy;
pub mod raw;

use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_net::{Listener, Options, Peer, Received, Wait};
use treadle_security::secret::Secret;
use treadle_security::tls::TlsOptions;
use treadle_sim_kernel::Random;

pub struct Pair {
    pub listener: Listener,
    pub client: Peer,
    pub server: Peer,
}

impl Pair {
    pub fn new(options: &Options) -> Self {
        let options = with_secret(options);
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let client = Peer::connect(listener.address(), &options, &mut soon()).unwrap();
        let server = listener.accept(&mut soon()).unwrap();
        Self {
            listener,
            client,
            server,
        }
    }

    /// The next object that the server gets.
    pub fn receive(&self) -> Received {
        let incoming = self.server.next(&mut soon()).unwrap();
        incoming.accept(Vec::new()).unwrap();
        incoming.wait(&mut soon()).unwrap();
        incoming.take().unwrap()
    }
}

/// Longer than anything here takes, also on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

pub fn secret() -> Secret {
    Secret::new([7; 32]).unwrap()
}

/// With certificates of a CA that is made for it.
pub fn with_tls(options: &Options) -> Options {
    let directory = tempfile::tempdir().unwrap();
    treadle_security::certs::create(directory.path(), &["node".into()], 10, false).unwrap();
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let (ca, certificate, key) = (read("ca.pem"), read("node.pem"), read("node-key.pem"));
    Options {
        tls: Some(TlsOptions::new(ca, certificate, key)),
        ..options.clone()
    }
}

/// A listener on a free port, with TLS if there are certificates.
pub fn listener(options: &Options) -> Listener {
    let address = if options.tls.is_some() {
        "treadle+tls://127.0.0.1:0"
    } else {
        "127.0.0.1:0"
    };
    Listener::bind(&address.parse().unwrap(), &with_secret(options)).unwrap()
}

/// Waits until something is so.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn with_secret(options: &Options) -> Options {
    Options {
        secret: Some(secret()),
        ..options.clone()
    }
}

/// A wait that fails a test instead of hanging it.
pub fn soon() -> Wait<'static> {
    within(LONG)
}

/// A wait for what must not come.
pub fn never() -> Wait<'static> {
    within(Duration::from_millis(200))
}

fn within(limit: Duration) -> Wait<'static> {
    Wait {
        deadline: Some(Instant::now() + limit),
        interrupted: None,
    }
}

/// Bytes that differ from place to place.
pub fn body(length: usize) -> Bytes {
    let mut random = Random::new(length as u64);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}
