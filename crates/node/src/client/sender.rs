//! What goes to the scheduler, in order.

use std::time::Instant;

use treadle_net::{LOOKOUT, Peer};

use crate::error::NodeError;
use crate::message::{FromClient, ToClient};
use crate::wire::Link;

/// Released ids are sent at the latest when there are so many of them.
pub(super) const RELEASES: usize = 1024;

/// The sending half of the control connection. Messages that cannot leave yet wait here.
#[derive(Debug)]
pub(super) struct Sender {
    link: Link<ToClient, FromClient>,
    releases: Vec<u32>,
    /// When something was sent or came.
    active: Instant,
    /// Why nothing can be sent any more.
    failed: Option<NodeError>,
}

impl Sender {
    pub(super) fn new(peer: Peer) -> Self {
        Self {
            link: Link::new(peer, 0),
            releases: Vec::new(),
            active: Instant::now(),
            failed: None,
        }
    }

    /// Appends a message.
    pub(super) fn push(&mut self, message: &FromClient) {
        // An id may be released and its key be named again: so this is said first.
        self.push_releases();
        self.link.push(message);
    }

    /// Notes that an id is not needed any more; returns how many of them have not been sent.
    pub(super) fn release(&mut self, id: u32) -> usize {
        self.releases.push(id);
        self.releases.len()
    }

    fn push_releases(&mut self) {
        if !self.releases.is_empty() {
            let ids = std::mem::take(&mut self.releases);
            self.link.push(&FromClient::Release(ids));
        }
    }

    /// Something came from the scheduler.
    pub(super) fn heard(&mut self) {
        self.active = Instant::now();
    }

    /// Has the scheduler wake up for a message that is about to be made, unless it looks out
    /// still. What was released is said, so that what follows from it is done by then.
    pub(super) fn announce(&mut self) {
        if self.active.elapsed() < LOOKOUT {
            return;
        }
        self.push_releases();
        if self.link.waiting() > 0 {
            self.flush();
        } else {
            self.link.announce();
            self.active = Instant::now();
        }
    }

    /// Sends what there is, as far as the connection takes it. `true`: that was all.
    pub(super) fn flush(&mut self) -> bool {
        self.push_releases();
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

    /// Bytes that wait, about.
    pub(super) fn waiting(&self) -> usize {
        self.link.waiting()
    }
}
