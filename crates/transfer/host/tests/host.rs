//! One listener, several services.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_host::{Service, ServiceHost, Session};
use treadle_net::{NetError, Offer, Options, Peer, Wait};
use treadle_security::secret::Secret;

const SOON: Duration = Duration::from_secs(30);

fn soon() -> Wait<'static> {
    Wait {
        deadline: Some(Instant::now() + SOON),
        interrupted: None,
    }
}

fn options() -> Options {
    Options {
        secret: Some(Secret::new([7; 32]).unwrap()),
        ..Options::default()
    }
}

/// Answers with its own name, or panics where it is asked to.
struct Named(&'static str, Arc<AtomicUsize>);

struct Naming(&'static str, Peer, Arc<AtomicUsize>);

/// The number of a client that the services do not survive.
const DEADLY: u64 = 13;

impl Service for Named {
    fn connected(&self, peer: Peer) -> Box<dyn Session> {
        assert_ne!(peer.client(), DEADLY, "on purpose");
        self.1.fetch_add(1, Ordering::SeqCst);
        Box::new(Naming(self.0, peer, Arc::clone(&self.1)))
    }
}

impl Session for Naming {
    fn turn(&mut self) -> Result<bool, NetError> {
        while let Some(incoming) = self.1.try_next()? {
            assert_ne!(incoming.header().0, 99, "on purpose");
            incoming.accept(Vec::new())?;
            incoming.wait(&mut soon())?;
            incoming.take()?;
            self.1.send(1, &[Bytes::from_static(self.0.as_bytes())])?;
        }
        Ok(true)
    }
}

impl Drop for Naming {
    fn drop(&mut self) {
        self.2.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Begins to serve: once, when the test is ready.
type Start = Box<dyn FnOnce(&Arc<ServiceHost>)>;

struct Scene {
    host: Arc<ServiceHost>,
    /// What to serve, until it does.
    start: Option<Start>,
    sessions: Arc<AtomicUsize>,
    panics: mpsc::Receiver<String>,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self::bound();
        scene.start();
        scene
    }

    fn start(&mut self) {
        self.start.take().unwrap()(&self.host);
    }

    /// It listens, and serves nobody yet.
    fn bound() -> Self {
        let offer = |service, name| Offer {
            service,
            name,
            lane: None,
        };
        let listening = Options {
            services: vec![offer(1, "one"), offer(2, "two")],
            ..options()
        };
        let host = ServiceHost::bind(&"127.0.0.1:0".parse().unwrap(), &listening).unwrap();
        let sessions = Arc::<AtomicUsize>::default();
        let named = |name| Box::new(Named(name, Arc::clone(&sessions))) as Box<dyn Service>;
        let services = HashMap::from([(1, named("one")), (2, named("two"))]);
        let (told, panics) = mpsc::channel();
        let failed = move |reason| told.send(reason).unwrap();
        let start = move |host: &Arc<ServiceHost>| {
            host.start(services, 2, "host", failed).unwrap();
        };
        Self {
            host,
            start: Some(Box::new(start)),
            sessions,
            panics,
        }
    }

    fn dial(&self, service: u32) -> Result<Peer, NetError> {
        self.dial_as(0, service)
    }

    fn dial_as(&self, client: u64, service: u32) -> Result<Peer, NetError> {
        let dialling = Options {
            service,
            client,
            ..options()
        };
        Peer::connect(self.host.address(), &dialling, &mut soon())
    }
}

fn ask(peer: &Peer, kind: u32) -> Result<String, NetError> {
    peer.send(kind, &[Bytes::from_static(b"who?")])?;
    let incoming = peer.next(&mut soon())?;
    incoming.accept(Vec::new())?;
    incoming.wait(&mut soon())?;
    let received = incoming.take()?;
    let name = received.frames[0].as_slice().to_vec();
    Ok(String::from_utf8(name).unwrap())
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_connection_comes_to_the_service_that_it_is_for() {
    let scene = Scene::new();
    let (one, two) = (scene.dial(1).unwrap(), scene.dial(2).unwrap());
    for _ in 0..100 {
        assert_eq!(ask(&one, 1).unwrap(), "one");
        assert_eq!(ask(&two, 1).unwrap(), "two");
    }
    let refused = scene.dial(3).unwrap_err().to_string();
    assert!(refused.contains("service 3"), "{refused}");
    assert_eq!(scene.sessions.load(Ordering::SeqCst), 2);
    one.close();
    eventually("its session ends", || {
        scene.sessions.load(Ordering::SeqCst) == 1
    });
    assert_eq!(ask(&two, 1).unwrap(), "two");
}

#[test]
fn a_session_that_panics_is_reported_and_the_others_go_on() {
    let scene = Scene::new();
    let (one, two) = (scene.dial(1).unwrap(), scene.dial(2).unwrap());
    one.send(99, &[Bytes::from_static(b"panic")]).unwrap();
    let reason = scene.panics.recv_timeout(SOON).unwrap();
    assert!(reason.contains("on purpose"), "{reason}");
    eventually("its connection is closed", || one.ended().is_some());
    assert_eq!(ask(&two, 1).unwrap(), "two");
}

#[test]
fn a_service_that_panics_lets_those_in_who_wait_behind() {
    let mut scene = Scene::bound();
    let deadly = scene.dial_as(DEADLY, 1).unwrap();
    let others: Vec<_> = (0..3).map(|_| scene.dial(2).unwrap()).collect();
    scene.start();
    let reason = scene.panics.recv_timeout(SOON).unwrap();
    assert!(reason.contains("on purpose"), "{reason}");
    for other in others {
        assert_eq!(ask(&other, 1).unwrap(), "two");
    }
    eventually("its connection is closed", || deadly.ended().is_some());
}

#[test]
fn it_takes_nobody_once_it_has_ended_and_its_threads_end() {
    let scene = Scene::new();
    let two = scene.dial(2).unwrap();
    assert_eq!(ask(&two, 1).unwrap(), "two");
    scene.host.end();
    assert!(scene.dial(1).is_err());
    // The threads hold it.
    eventually("the threads end", || Arc::strong_count(&scene.host) == 1);
}
