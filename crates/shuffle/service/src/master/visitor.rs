//! The connection of a member.

use std::fmt;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use tracing::warn;
use treadle_host::{Service, Session};
use treadle_net::{Incoming, NetError, Peer};
use treadle_reactor::thread::lock;
use treadle_shuffle_wire::decode_shuffled;

use crate::master::Inner;
use crate::wire::{self, Call, Hello, Room, Welcome, What};

/// Takes connections of members.
pub(super) struct Members(pub(super) Weak<Inner>);

impl Service for Members {
    fn connected(&self, peer: Peer) -> Box<dyn Session> {
        Box::new(Visitor {
            inner: self.0.clone(),
            server: None,
            peer,
            arriving: None,
            id: None,
        })
    }
}

/// The session of a member.
pub(super) struct Visitor {
    inner: Weak<Inner>,
    /// Where the server is, if this process has connected to it.
    server: Option<String>,
    peer: Peer,
    /// A message that is on its way; what follows it waits for it.
    arriving: Option<Incoming>,
    /// Its number, once it has said who it is.
    id: Option<u32>,
}

impl Session for Visitor {
    fn turn(&mut self) -> Result<bool, NetError> {
        let Some(inner) = self.inner.upgrade() else {
            return Ok(false);
        };
        loop {
            if self.arriving.is_none() {
                let Some(object) = self.peer.try_next()? else {
                    return Ok(true);
                };
                let longest = match self.id {
                    Some(_) => wire::LONGEST,
                    None => wire::LONGEST_HELLO,
                };
                self.arriving = wire::accept(&self.peer, object, longest)?;
            }
            match self.arriving.take() {
                Some(object) if object.is_done() => {
                    let (kind, bytes) = wire::take(object)?;
                    if let Err(reason) = self.handle(&inner, kind, &bytes) {
                        warn!(target: treadle_log::SHUFFLE,
                            "the connection of {} to the shuffle master ends: {reason}",
                            self.peer.address()
                        );
                        self.peer.start_close();
                        return Ok(false);
                    }
                }
                arriving => {
                    let waits = arriving.is_some();
                    self.arriving = arriving;
                    if waits {
                        return Ok(true);
                    }
                }
            }
        }
    }
}

impl Visitor {
    /// The session of a server that this process has connected to.
    pub(super) fn of_server(inner: &Arc<Inner>, peer: &Peer, address: String) -> Self {
        Self {
            inner: Arc::downgrade(inner),
            server: Some(address),
            peer: peer.clone(),
            arriving: None,
            id: None,
        }
    }

    fn handle(&mut self, inner: &Inner, kind: u32, bytes: &Bytes) -> Result<(), String> {
        let malformed = |error: &dyn fmt::Display| format!("its message is malformed: {error}");
        let mut state = lock(&inner.state);
        match (kind, self.id) {
            (wire::HELLO, None) => {
                let hello: Hello = wire::decode(bytes).map_err(|error| malformed(&error))?;
                match state.join(&self.peer, hello) {
                    Ok(id) => {
                        self.id = Some(id);
                        if let Some(links) = &inner.links
                            && let Some(address) = &self.server
                        {
                            links.joined(address);
                        }
                    }
                    Err(refused) => {
                        let welcome = Welcome {
                            refused,
                            ..Welcome::default()
                        };
                        wire::send(&self.peer, wire::WELCOME, &welcome);
                    }
                }
                Ok(())
            }
            (wire::TO_MASTER, Some(id)) => {
                let message = decode_shuffled(bytes).map_err(|error| malformed(&error))?;
                state.hear(id, message)
            }
            (wire::ROOM, Some(id)) => {
                let room: Room = wire::decode(bytes).map_err(|error| malformed(&error))?;
                state.announced(id, room)
            }
            (wire::DISMISSED, id) if id.is_some() || self.server.is_some() => {
                let reason = String::from_utf8_lossy(bytes);
                Err(format!("it does not serve this master: {reason}"))
            }
            (wire::CALL, Some(id)) => {
                // What is said of the registry may have to read a file.
                drop(state);
                let call: Call = wire::decode(bytes).map_err(|error| malformed(&error))?;
                let registry = match call.what {
                    Some(What::State(_)) => inner.registry(),
                    _ => None,
                };
                let answer = lock(&inner.state).answer(id, call, registry);
                wire::send(&self.peer, wire::ANSWER, &answer);
                Ok(())
            }
            _ => Err(format!("an object of kind {kind} is not expected here")),
        }
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        if let (Some(inner), Some(id)) = (self.inner.upgrade(), self.id) {
            lock(&inner.state).lose(id);
        }
        if let (Some(inner), Some(address)) = (self.inner.upgrade(), &self.server)
            && let Some(links) = &inner.links
        {
            links.ended(address);
        }
    }
}
