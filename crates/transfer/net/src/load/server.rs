//! The side that answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use treadle_reactor::{Wait, Waker};

use super::{Messages, TURN, message};
use crate::error::NetError;
use crate::listener::Listener;
use crate::poller::Poller;

/// The calling thread looks so often whether it is interrupted.
const INTERRUPT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 25_000_000,
};

/// What a server did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Served {
    /// Connections that were accepted.
    pub connections: u64,
    /// Requests that were received.
    pub requests: u64,
    /// Bytes of requests.
    pub bytes: u64,
}

/// Answers every request with an object of `response_size` bytes, on so many `threads` (at least
/// one), until the wait ends. A thread serves whichever connection has waited longest, for one turn.
///
/// # Errors
/// When the listener is closed, or the system has no more threads or descriptors.
pub fn serve(
    listener: &Listener,
    threads: usize,
    response_size: usize,
    wait: &mut Wait<'_>,
) -> Result<Served, NetError> {
    let failed = |source| NetError::io("waiting for clients", source);
    let server = Server {
        poller: Poller::new()?,
        connections: Mutex::default(),
        stop: AtomicBool::new(false),
        requests: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    };
    let waker = Waker::new().map_err(failed)?;
    listener.set_waker(Some(waker.clone()));
    let answer = message(response_size);
    let mut connections = 0;
    let result = std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| server.work());
        }
        let mut accept = || loop {
            while let Some(peer) = listener.try_accept()? {
                let key = connections as usize;
                connections += 1;
                let connection = Connection::new(Messages::new(peer.clone(), answer.clone()));
                server.connections().insert(key, connection);
                peer.watch(&server.poller, key);
            }
            if wait.check().is_err() {
                return Ok(());
            }
            match poll(&mut [PollFd::new(&waker, PollFlags::IN)], Some(&INTERRUPT)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => waker.reset(),
                Err(error) => return Err(failed(error.into())),
            }
        };
        let result = accept();
        server.stop.store(true, Ordering::Relaxed);
        result
    });
    listener.set_waker(None);
    result.map(|()| Served {
        connections,
        requests: server.requests.into_inner(),
        bytes: server.bytes.into_inner(),
    })
}

struct Server {
    poller: Arc<Poller>,
    connections: Mutex<HashMap<usize, Arc<Mutex<Connection>>>>,
    stop: AtomicBool,
    requests: AtomicU64,
    bytes: AtomicU64,
}

struct Connection {
    messages: Messages,
    /// Requests that were not answered yet.
    owed: usize,
}

impl Connection {
    fn new(messages: Messages) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { messages, owed: 0 }))
    }

    /// Answers what is there. Returns whether there may be more, with requests and bytes.
    fn turn(&mut self) -> Result<(bool, u64, u64), NetError> {
        self.answer()?;
        if self.owed > 0 {
            // Changes when there is room: no more is received from who does not read its answers.
            return Ok((false, 0, 0));
        }
        let arrived = self.messages.receive()?;
        self.owed = arrived.messages;
        self.answer()?;
        let more = self.owed == 0 && arrived.messages >= TURN;
        Ok((more, arrived.messages as u64, arrived.bytes))
    }

    fn answer(&mut self) -> Result<(), NetError> {
        self.owed -= self.messages.send(self.owed)?;
        Ok(())
    }
}

impl Server {
    fn connections(&self) -> MutexGuard<'_, HashMap<usize, Arc<Mutex<Connection>>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut interrupted = || self.stop.load(Ordering::Relaxed);
        while !self.stop.load(Ordering::Relaxed) {
            let mut wait = Wait {
                deadline: None,
                interrupted: Some(&mut interrupted),
            };
            let Ok(turn) = self.poller.next(&mut wait) else {
                return;
            };
            let connection = self.connections().get(&turn.key()).map(Arc::clone);
            let Some(connection) = connection else {
                continue;
            };
            let outcome = connection
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .turn();
            match outcome {
                Ok((more, requests, bytes)) => {
                    self.requests.fetch_add(requests, Ordering::Relaxed);
                    self.bytes.fetch_add(bytes, Ordering::Relaxed);
                    if more {
                        turn.again();
                    }
                }
                Err(_) => {
                    // The client is gone; the others are not concerned.
                    let gone = self.connections().remove(&turn.key());
                    drop(gone);
                }
            }
        }
    }
}
