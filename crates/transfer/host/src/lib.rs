//! A process that others connect to: one listener, and the services that register in it.
//!
//! Whoever connects says in the handshake which service the connection is for; one that is not offered
//! is refused there, by name. The connections of a service may have a lane of their own. The threads of
//! the host take turns at the connections of all services: one thread at a time has a connection. The
//! ledger of memory divides what the process may take among those services that keep some.
//!
//! A [`ServiceHost`] listens as soon as it is bound, so that its address is known. Who connects
//! before [`ServiceHost::start`] waits.
//!
//! `pages` (with the feature of that name) is the place for pages over HTTP. They have a listener and a thread of their own: browsers
//! prove no secret, and what they ask for must delay nobody.

#[cfg(feature = "pages")]
pub mod pages;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use treadle_memory::Ledger;
use treadle_net::{Address, ClusterId, Listener, NetError, Options, Peer, Poller, Signal, Wait};
use treadle_reactor::thread::{self, caught, lock};

/// How often the threads look whether the host is over; most are woken then.
const LOOK: Duration = Duration::from_secs(5);
/// The key in the poller of what ends the threads; those of connections begin at 0.
const END: usize = usize::MAX;
/// That of connections that wait to be accepted.
const ACCEPT: usize = usize::MAX - 1;

/// What a process does with connections of one kind.
pub trait Service: Send + Sync {
    /// Somebody has connected. Returns what serves the connection.
    fn connected(&self, peer: Peer) -> Box<dyn Session>;
}

/// A connection that is served.
pub trait Session: Send {
    /// Something about the connection has changed. Takes what has come, as far as that is here.
    /// `false`: it is not this session's any more.
    ///
    /// # Errors
    /// The connection is over.
    fn turn(&mut self) -> Result<bool, NetError>;
}

/// A listener with the services behind it.
#[derive(Debug)]
pub struct ServiceHost {
    listener: Listener,
    poller: Arc<Poller>,
    end: Signal,
    over: AtomicBool,
    memory: Ledger,
    sessions: Mutex<HashMap<usize, Shared>>,
    /// The key of the next connection.
    next: AtomicUsize,
}

/// Services by number.
pub type Services = HashMap<u32, Box<dyn Service>>;

/// A session that threads take turns at.
#[derive(Clone)]
struct Shared(Arc<Mutex<Box<dyn Session>>>);

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl ServiceHost {
    /// Listens at an address, for the services that `options` offer.
    ///
    /// # Errors
    /// When the address or the options are at fault, the port is taken, or the system has no more
    /// threads or descriptors.
    pub fn bind(address: &Address, options: &Options) -> Result<Arc<Self>, NetError> {
        let listener = Listener::bind(address, options)?;
        let poller = Poller::new()?;
        Ok(Arc::new(Self {
            listener,
            end: poller.signal(END),
            poller,
            over: AtomicBool::new(false),
            memory: Ledger::new(),
            sessions: Mutex::default(),
            next: AtomicUsize::new(0),
        }))
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Says to which cluster it belongs, once that is known.
    pub fn join(&self, cluster: ClusterId) {
        self.listener.join(cluster);
    }

    /// Who keeps memory in the process.
    pub fn memory(&self) -> &Ledger {
        &self.memory
    }

    /// Serves with so many threads, called `name`. `failed` is called when a session has panicked, with
    /// what to say; its connection is closed.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn start(
        self: &Arc<Self>,
        services: Services,
        threads: usize,
        name: &str,
        failed: impl Fn(String) + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        self.listener.watch(&self.poller, ACCEPT);
        let shared = Arc::new((services, failed));
        for _ in 0..threads {
            let (host, shared) = (Arc::clone(self), Arc::clone(&shared));
            thread::start(name, move || host.serve(&shared.0, &shared.1))?;
        }
        Ok(())
    }

    /// Takes no more connections, and has the threads end.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.listener.close();
        self.end.set();
    }

    fn serve(&self, services: &Services, failed: &dyn Fn(String)) {
        while !self.over.load(Ordering::Acquire) {
            let turn = self.poller.next(&mut Wait {
                deadline: Some(Instant::now() + LOOK),
                interrupted: None,
            });
            let Ok(turn) = turn else {
                continue;
            };
            let served = caught(|| match turn.key() {
                ACCEPT => self.accept(services, failed),
                END => {}
                key => self.turn(key),
            });
            if let Err(reason) = served {
                self.forget(turn.key());
                failed(reason.to_string());
            }
        }
        // For the next thread.
        self.end.set();
    }

    /// Lets in who waits. One whose service panics is not let in; those behind it are.
    fn accept(&self, services: &Services, failed: &dyn Fn(String)) {
        while let Ok(Some(peer)) = self.listener.try_accept() {
            // Others are refused in the handshake.
            let Some(service) = services.get(&peer.service()) else {
                continue;
            };
            match caught(|| service.connected(peer.clone())) {
                Ok(session) => self.adopt(&peer, session),
                Err(reason) => failed(reason.to_string()),
            }
        }
    }

    /// Serves a connection that this process has made itself, as if somebody had connected.
    pub fn adopt(&self, peer: &Peer, session: Box<dyn Session>) {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.sessions).insert(key, Shared(Arc::new(Mutex::new(session))));
        // After the session is there: this queues the key at once.
        peer.watch(&self.poller, key);
    }

    fn turn(&self, key: usize) {
        let session = lock(&self.sessions).get(&key).cloned();
        let Some(Shared(session)) = session else {
            return;
        };
        let stays = lock(&session).turn().unwrap_or(false);
        if !stays {
            self.forget(key);
        }
    }

    fn forget(&self, key: usize) {
        let gone = lock(&self.sessions).remove(&key);
        // Outside of the lock: it may close a connection.
        drop(gone);
    }
}
