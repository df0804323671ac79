//! What goes to the scheduler, in order.

use std::time::Instant;

use treadle_messages::{FromClient, ToClient};
use treadle_net::Peer;
use treadle_reactor::SPIN;
use treadle_schedule_wire::Link;
use treadle_schedule_wire::NodeError;

/// The sending half of the control connection. Messages that cannot leave yet wait here.
#[derive(Debug)]
pub(super) struct Sender {
    link: Link<ToClient, FromClient>,
    /// When something was sent or came.
    active: Instant,
    /// Why nothing can be sent any more.
    failed: Option<NodeError>,
}

impl Sender {
    pub(super) fn new(peer: Peer) -> Self {
        Self {
            link: Link::new(peer, 0),
            active: Instant::now(),
            failed: None,
        }
    }

    /// Appends a message.
    pub(super) fn push(&mut self, message: &FromClient) {
        self.link.push(message);
    }

    /// Something came from the scheduler.
    pub(super) fn heard(&mut self) {
        self.active = Instant::now();
    }

    /// Whether the scheduler spins still.
    pub(super) fn is_active(&self) -> bool {
        self.active.elapsed() < SPIN
    }

    /// Has the scheduler wake up for a message that is about to be made, unless something has just
    /// been sent.
    pub(super) fn announce(&mut self) {
        if self.link.waiting() > 0 {
            self.flush();
        } else if !self.is_active() {
            self.link.announce();
            self.active = Instant::now();
        }
    }

    /// Sends what there is, as far as the connection takes it. `true`: that was all.
    pub(super) fn flush(&mut self) -> bool {
        if self.link.waiting() == 0 {
            return true;
        }
        self.active = Instant::now();
        match self.link.flush() {
            Ok(all) => all,
            Err(error) => {
                self.failed.get_or_insert(error);
                true
            }
        }
    }

    /// What made a message impossible to send, once.
    pub(super) fn failed(&mut self) -> Option<NodeError> {
        self.failed.take()
    }

    /// Whether the scheduler has all that was sent, but for small messages, which closing does not stop.
    pub(super) fn has_arrived(&self) -> bool {
        self.link.kept() == 0
    }

    /// Bytes that wait, about.
    pub(super) fn waiting(&self) -> usize {
        self.link.waiting()
    }
}
