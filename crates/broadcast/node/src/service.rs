//! Neighbours that connect to an engine's node.

use treadle_broadcast::Neighbour;
use treadle_broadcast_wire::{NEIGHBOUR, decode_neighbour};
use treadle_host::{Service, Session};
use treadle_net::{NetError, Peer};

use super::Plane;

impl Service for Plane {
    fn connected(&self, peer: Peer) -> Box<dyn Session> {
        let plane = self.clone();
        Box::new(Arriving { plane, peer })
    }
}

/// A neighbour that has not said who it is.
struct Arriving {
    plane: Plane,
    peer: Peer,
}

impl Session for Arriving {
    fn turn(&mut self) -> Result<bool, NetError> {
        let Some(incoming) = self.peer.try_next()? else {
            return Ok(true);
        };
        let (kind, _) = incoming.header();
        let words = incoming.inline_frame(0).unwrap_or_default();
        incoming.take()?;
        match decode_neighbour(&words) {
            Ok((who, meant))
                if kind == NEIGHBOUR && Neighbour::Worker(meant) == self.plane.0.me =>
            {
                self.plane.adopt(&self.peer, who);
            }
            _ => self.peer.start_close(),
        }
        Ok(false)
    }
}
