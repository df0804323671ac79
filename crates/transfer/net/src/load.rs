//! Requests and answers, to measure connections with: a load of small or large messages in the
//! manner of gRPC's benchmarks.
//!
//! Requests and answers are ordinary objects; the k-th answer on a connection is that of the k-th
//! request. Small ones travel in batches of what is there, without a timer that holds any back.

mod client;
mod histogram;
mod server;

use std::collections::VecDeque;

use bytes::Bytes;
use treadle_transfer::layout::SMALL;

use crate::error::NetError;
use crate::objects::{Incoming, Received};
use crate::peer::Peer;

pub use client::{Channel, Load, Report, drive};
pub use histogram::Histogram;
pub use server::{Served, serve};

/// Messages that one connection may have in a turn, before the others have theirs.
const TURN: usize = 256;
/// Large messages of a connection that may be arriving at the same time.
const ARRIVING: usize = 4;

/// Messages of one length over one connection, in both directions, without waiting.
#[derive(Debug)]
struct Messages {
    peer: Peer,
    message: Bytes,
    /// Large ones, in order.
    arriving: VecDeque<Incoming>,
    received: Vec<Received>,
}

/// What came in one turn.
#[derive(Clone, Copy, Debug, Default)]
struct Arrived {
    messages: usize,
    bytes: u64,
}

impl Messages {
    fn new(peer: Peer, message: Bytes) -> Self {
        Self {
            peer,
            message,
            arriving: VecDeque::new(),
            received: Vec::new(),
        }
    }

    /// Takes messages that are here, about a turn's worth at most.
    ///
    /// # Errors
    /// When the connection ended.
    fn receive(&mut self) -> Result<Arrived, NetError> {
        let mut arrived = Arrived::default();
        loop {
            let before = arrived.messages;
            if self.arriving.is_empty() {
                self.peer.take_small(TURN, &mut self.received);
            }
            while self.arriving.len() < ARRIVING
                && self.received.len() < TURN
                && let Some(incoming) = self.peer.try_next()?
            {
                incoming.accept(Vec::new())?;
                self.arriving.push_back(incoming);
            }
            while let Some(first) = self.arriving.front()
                && first.is_done()
            {
                let first = self.arriving.pop_front().expect("the front");
                self.received.push(first.take()?);
            }
            for received in self.received.drain(..) {
                arrived.messages += 1;
                let lengths = received.frames.iter().map(|frame| frame.len() as u64);
                arrived.bytes += lengths.sum::<u64>();
            }
            if arrived.messages == before || arrived.messages >= TURN {
                return Ok(arrived);
            }
        }
    }

    /// Sends `count` messages, or as many as there is room for; returns how many.
    ///
    /// # Errors
    /// For messages that are too long.
    fn send(&self, count: usize) -> Result<usize, NetError> {
        let mut sent = 0;
        while sent < count && self.peer.has_room() {
            if (self.message.len() as u64) < SMALL {
                let mut batch = std::iter::repeat_n((0, &*self.message), count - sent);
                sent += self.peer.send_batch(&mut batch);
            } else {
                self.peer.send(0, std::slice::from_ref(&self.message))?;
                sent += 1;
            }
        }
        Ok(sent)
    }
}

/// A message of so many bytes.
fn message(bytes: usize) -> Bytes {
    (0..bytes).map(|at| at as u8).collect()
}
