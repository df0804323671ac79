//! Whole objects of a connection.

use std::collections::VecDeque;

use treadle_net::{Failure, Incoming, NetError, Peer, Received};

/// Objects that are on their way at once, beyond those that came in their headers.
const COMING: usize = 64;

/// A connection, and what is coming on it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: Peer,
    /// Oldest first.
    coming: VecDeque<Incoming>,
}

impl Link {
    pub(super) fn new(peer: Peer) -> Self {
        Self {
            peer,
            coming: VecDeque::new(),
        }
    }

    /// Takes what is here, at most so many objects, in the order in which they were sent.
    ///
    /// # Errors
    /// When the connection is over and everything was taken, or an object did not arrive.
    pub(super) fn take(&mut self, most: usize, into: &mut Vec<Received>) -> Result<(), NetError> {
        let most = into.len() + most;
        while into.len() < most {
            if self.coming.is_empty() {
                let before = into.len();
                self.peer.take_small(most - before, into);
                if into.len() > before {
                    continue;
                }
            }
            while self.coming.len() < COMING {
                match self.peer.try_next() {
                    Ok(Some(incoming)) => {
                        incoming.accept(Vec::new())?;
                        self.coming.push_back(incoming);
                    }
                    Ok(None) => break,
                    // Said again when what came before was taken.
                    Err(_) if !self.coming.is_empty() => break,
                    Err(error) => return Err(error),
                }
            }
            if !self.coming.front().is_some_and(Incoming::is_done) {
                return Ok(());
            }
            let incoming = self.coming.pop_front().expect("just looked");
            match incoming.take() {
                Ok(received) => into.push(received),
                Err(NetError::Failed(Failure::Cancelled)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether there is something to take, or to say.
    pub(super) fn has_something(&self) -> bool {
        match self.coming.front() {
            Some(incoming) => incoming.is_done(),
            None => self.peer.has_next(),
        }
    }
}
