//! Connections from the writer and the reader to the servers of other workers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_net::pool::Pool;
use treadle_net::{Frame, NetError, SendOptions};
use treadle_shuffle::{FromServer, ServerId, ToServer};
use treadle_shuffle_wire::{FROM_SERVER, TO_SERVER, decode_shuffled, encode_shuffled};

use crate::held::Held;
use crate::read_rows::length;

/// A message of a server, with the rows of its pieces: of each, or of all together.
pub(crate) type Reply = (FromServer, Vec<Bytes>);

/// How messages with rows are sent: rows have digests, and tables add up to what is announced.
pub(crate) const ROWS: SendOptions = SendOptions {
    corked: false,
    has_own_checks: true,
};
const CORKED_ROWS: SendOptions = SendOptions {
    corked: true,
    ..ROWS
};

/// How often it is looked whether bytes have come.
const LOOK: Duration = Duration::from_secs(1);

/// Connections to servers, and the addresses of servers.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The host part of this worker's own address.
    host: String,
    addresses: HashMap<ServerId, String>,
    /// `None` before the thread that serves connections has started.
    pool: Option<Pool<ServerId, ()>>,
    /// Messages that wait for a connection.
    waiting: HashMap<ServerId, Vec<Vec<Bytes>>>,
    /// Workers with messages that are not written yet.
    corked: Vec<ServerId>,
    /// The bytes that had come of workers when that was looked at last, and when it was.
    received: HashMap<ServerId, u64>,
    looked_at: Duration,
    held: Arc<Held>,
}

/// An address without its port.
fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

impl Outgoing {
    pub(crate) fn new(own_address: &str, held: Arc<Held>) -> Self {
        Self {
            host: host_of(own_address).into(),
            addresses: HashMap::new(),
            pool: None,
            waiting: HashMap::new(),
            corked: Vec::new(),
            received: HashMap::new(),
            looked_at: Duration::ZERO,
            held,
        }
    }

    /// The thread that serves connections has started.
    pub(crate) fn attach(&mut self, mut pool: Pool<ServerId, ()>) {
        for (&worker, address) in &self.addresses {
            pool.introduce(worker, address.clone(), true);
        }
        self.pool = Some(pool);
    }

    /// Learns the address of a worker.
    pub(crate) fn met(&mut self, worker: ServerId, address: String) {
        if let Some(pool) = &mut self.pool {
            pool.introduce(worker, address.clone(), true);
        }
        self.addresses.insert(worker, address);
    }

    /// A worker is lost.
    pub(crate) fn lost(&mut self, worker: ServerId) {
        self.addresses.remove(&worker);
        self.waiting.remove(&worker);
        self.received.remove(&worker);
        if let Some(pool) = &mut self.pool {
            pool.forget(worker);
        }
    }

    /// All whose addresses are known.
    pub(crate) fn known(&self) -> Vec<ServerId> {
        self.addresses.keys().copied().collect()
    }

    /// The address of another worker, if it is known.
    pub(crate) fn address(&self, worker: ServerId) -> Option<&str> {
        self.addresses.get(&worker).map(String::as_str)
    }

    /// Whether a worker is on this host, so that memory can be shared with it.
    pub(crate) fn is_near(&mut self, worker: ServerId) -> bool {
        let open = self.pool.as_mut().and_then(|pool| pool.get(worker));
        if let Some(connection) = open {
            return connection.peer.shares_memory();
        }
        let address = self.addresses.get(&worker);
        address.is_some_and(|address| host_of(address) == self.host)
    }

    /// How many open connections pass memory by descriptors.
    pub(crate) fn sharing(&mut self) -> usize {
        let Some(pool) = &mut self.pool else {
            return 0;
        };
        let all = self.addresses.keys();
        all.filter(|&&worker| {
            let open = pool.get(worker);
            open.is_some_and(|connection| connection.peer.shares_memory())
        })
        .count()
    }

    /// Sends a message with the next [`Self::flush`], or when the connection is made. `false`: the address of
    /// the worker is unknown, or the connection is closed.
    pub(crate) fn send(
        &mut self,
        to: ServerId,
        message: &ToServer,
        batches: impl IntoIterator<Item = Bytes>,
    ) -> bool {
        let Some(pool) = &mut self.pool else {
            return false;
        };
        let frames: Vec<Bytes> = std::iter::once(encode_shuffled(message).into())
            .chain(batches)
            .collect();
        match pool.open(to) {
            Ok(Some(connection)) => {
                connection.touch();
                if !self.corked.contains(&to) {
                    self.corked.push(to);
                }
                let sent = connection.peer.send_with(TO_SERVER, &frames, CORKED_ROWS);
                sent.is_ok()
            }
            Ok(None) => {
                self.waiting.entry(to).or_default().push(frames);
                true
            }
            Err(_) => false,
        }
    }

    /// Writes all messages.
    pub(crate) fn flush(&mut self) {
        let Some(pool) = &mut self.pool else {
            return;
        };
        for worker in self.corked.drain(..) {
            if let Some(connection) = pool.get(worker) {
                connection.peer.flush();
            }
        }
    }

    /// Sends the messages that waited for connections which are made now. Returns the connections that
    /// failed, with the reasons.
    pub(crate) fn opened(&mut self) -> Vec<(ServerId, NetError)> {
        let Some(pool) = &mut self.pool else {
            return Vec::new();
        };
        let mut failed = Vec::new();
        for (worker, outcome) in pool.outcomes() {
            let waiting = self.waiting.remove(&worker).unwrap_or_default();
            let sent = outcome.and_then(|()| {
                let Some(connection) = pool.get(worker) else {
                    return Ok(());
                };
                for frames in &waiting {
                    connection.peer.send_with(TO_SERVER, frames, CORKED_ROWS)?;
                }
                connection.peer.flush();
                Ok(())
            });
            if let Err(error) = sent {
                pool.close(worker);
                failed.push((worker, error));
            }
        }
        failed
    }

    /// The next message of a server, if there is one.
    ///
    /// # Errors
    /// The reason why the connection was closed.
    pub(crate) fn take(&mut self, worker: ServerId) -> Result<Option<Reply>, String> {
        let Some(pool) = &mut self.pool else {
            return Ok(None);
        };
        let Some(connection) = pool.get(worker) else {
            return Ok(None);
        };
        let next = match connection.next(&mut |_| Vec::new()) {
            Ok(None) => return Ok(None),
            Ok(Some(received)) => {
                connection.touch();
                reply(received.kind, received.frames, &self.held)
                    .ok_or_else(|| "its message is malformed".into())
            }
            Err(error) => Err(error.to_string()),
        };
        if next.is_err() {
            pool.close(worker);
            self.waiting.remove(&worker);
        }
        next.map(Some)
    }

    /// Workers that have sent bytes since the last look, parts of messages included. Within a second of
    /// that it is nobody.
    pub(crate) fn heard(&mut self, now: Duration) -> Vec<ServerId> {
        let Some(pool) = &mut self.pool else {
            return Vec::new();
        };
        if now < self.looked_at + LOOK {
            return Vec::new();
        }
        self.looked_at = now;
        let mut heard = Vec::new();
        for &worker in self.addresses.keys() {
            if let Some(connection) = pool.get(worker) {
                let stats = connection.peer.stats();
                let received = stats.bytes_received + stats.bytes_shared;
                if self.received.insert(worker, received) != Some(received) {
                    heard.push(worker);
                }
            }
        }
        heard
    }

    /// Closes connections that were not used for a while.
    pub(crate) fn sweep(&mut self) {
        if let Some(pool) = &mut self.pool {
            pool.close_idle(Instant::now(), |_| false);
        }
    }

    pub(crate) fn close(&mut self) {
        self.waiting.clear();
        if let Some(pool) = &mut self.pool {
            pool.close_all();
        }
    }
}

/// The message of a server; `None` if the frames are not one.
fn reply(kind: u32, frames: Vec<Frame>, held: &Arc<Held>) -> Option<Reply> {
    let mut frames = frames.into_iter();
    let head = frames.next()?;
    let rows = frames.next().map(Frame::into_bytes).unwrap_or_default();
    let rows = held.charge(rows);
    if kind != FROM_SERVER || frames.next().is_some() {
        return None;
    }
    let message: FromServer = decode_shuffled(head.as_slice()).ok()?;
    let length = match &message {
        FromServer::Rows { pieces, .. } => length(pieces)?,
        _ => 0,
    };
    (rows.len() == length).then(|| (message, vec![rows]))
}
