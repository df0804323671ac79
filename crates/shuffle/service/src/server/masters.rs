//! Masters that connect to a server.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use tracing::warn;
use treadle_host::{Service, Session};
use treadle_net::{Incoming, NetError, Peer};
use treadle_shuffle::LinkId;

use crate::joining;
use crate::protocol::Protocol;
use crate::server::links::Links;
use crate::wire::{self, Govern, Welcome};

/// Takes connections of masters.
pub(super) struct Masters(pub(super) Weak<Links>);

impl Service for Masters {
    fn connected(&self, peer: Peer) -> Box<dyn Session> {
        Box::new(Governing {
            links: self.0.clone(),
            peer,
            arriving: None,
            said: Said::Nothing,
        })
    }
}

/// The session of a master.
struct Governing {
    links: Weak<Links>,
    peer: Peer,
    /// A message that is on its way; what follows it waits for it.
    arriving: Option<Incoming>,
    said: Said,
}

/// How far it is.
enum Said {
    Nothing,
    /// Who it is. `None`: it has no application of its own.
    Hello(Option<u64>),
    /// What the server is called.
    Welcome(LinkId),
}

impl Session for Governing {
    fn turn(&mut self) -> Result<bool, NetError> {
        let Some(links) = self.links.upgrade() else {
            return Ok(false);
        };
        loop {
            if self.arriving.is_none() {
                let Some(object) = self.peer.try_next()? else {
                    return Ok(true);
                };
                let longest = match self.said {
                    Said::Welcome(_) => wire::LONGEST,
                    _ => wire::LONGEST_HELLO,
                };
                self.arriving = wire::accept(&self.peer, object, longest)?;
            }
            match self.arriving.take() {
                Some(object) if object.is_done() => {
                    let (kind, bytes) = wire::take(object)?;
                    if let Err(reason) = self.handle(&links, kind, &bytes) {
                        warn!(target: treadle_log::SHUFFLE,
                            "the connection of the shuffle master at {} ends: {reason}", self.peer.address());
                        wire::send_bytes(&self.peer, wire::DISMISSED, reason.into_bytes());
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

impl Governing {
    fn handle(&mut self, links: &Arc<Links>, kind: u32, bytes: &Bytes) -> Result<(), String> {
        match (kind, &self.said) {
            (wire::GOVERN, Said::Nothing) => {
                let govern: Govern = wire::decode(bytes).map_err(|error| error.to_string())?;
                let there = format!("this shuffle server ({})", env!("CARGO_PKG_VERSION"));
                Protocol::ours()
                    .admit(govern.protocol(), &there)
                    .map_err(|reason| format!("its version is {}, and {reason}", govern.version))?;
                wire::send(&self.peer, wire::HELLO, &links.hello());
                self.said = Said::Hello(govern.application);
                Ok(())
            }
            (wire::WELCOME, Said::Hello(application)) => {
                let welcome: Welcome = wire::decode(bytes).map_err(|error| error.to_string())?;
                joining::check(&welcome).map_err(|error| error.to_string())?;
                let link = links.open(self.peer.clone(), &welcome, *application)?;
                self.said = Said::Welcome(link);
                Ok(())
            }
            (_, Said::Welcome(link)) => links.hear(*link, kind, bytes),
            _ => Err(format!("an object of kind {kind} is not expected here")),
        }
    }
}

impl Drop for Governing {
    fn drop(&mut self) {
        if let (Some(links), Said::Welcome(link)) = (self.links.upgrade(), &self.said) {
            links.close(*link);
        }
    }
}
