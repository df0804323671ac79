//! What is to be sent to each server, and how much of it is under way.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::time::Duration;

use crate::config::pause;
use crate::{Config, GroupId, ServerId, Transfer};

/// Something to send.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Item {
    /// A question about a part.
    Ask(Transfer, GroupId),
    /// A batch of a part.
    Push(Transfer, GroupId, u32),
}

impl Item {
    pub(super) fn part(self) -> (Transfer, GroupId) {
        match self {
            Self::Ask(transfer, group) | Self::Push(transfer, group, _) => (transfer, group),
        }
    }
}

/// A server, as the writer sees it.
#[derive(Debug, Default)]
pub(super) struct Peer {
    queue: VecDeque<Item>,
    /// What was sent and not answered, and how many bytes it has.
    sent: BTreeMap<Item, u64>,
    bytes: u64,
    /// Tries in vain since something was answered, and when the next one is due.
    tries: u32,
    retry_at: Duration,
}

/// All servers that something is to be sent to, or was.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<ServerId, Peer>,
    /// Those that something waits for.
    ready: BTreeSet<ServerId>,
    /// Those that can take nothing more for now, in this turn.
    full: BTreeSet<ServerId>,
    /// After whom the next turn is.
    last: ServerId,
    bytes: u64,
}

impl Peers {
    pub(super) fn in_flight(&self) -> u64 {
        self.bytes
    }

    fn push(&mut self, item: Item) {
        let server = item.part().1.server;
        let peer = self.peers.entry(server).or_default();
        if peer.sent.contains_key(&item) || peer.queue.contains(&item) {
            return;
        }
        peer.queue.push_back(item);
        self.ready.insert(server);
    }

    /// Batches are to be pushed.
    pub(super) fn queue(&mut self, transfer: Transfer, group: GroupId, numbers: &BTreeSet<u32>) {
        for &number in numbers {
            self.push(Item::Push(transfer, group, number));
        }
    }

    /// A part is to be asked about.
    pub(super) fn queue_ask(&mut self, transfer: Transfer, group: GroupId) {
        self.push(Item::Ask(transfer, group));
    }

    /// What is next, from the servers in turn.
    pub(super) fn next(&mut self, now: Duration) -> Option<(ServerId, Item)> {
        let peers = &self.peers;
        let can = |server: &&ServerId| {
            let peer = &peers[*server];
            !self.full.contains(server) && (peer.tries == 0 || peer.retry_at <= now)
        };
        let after = (
            core::ops::Bound::Excluded(self.last),
            core::ops::Bound::Unbounded,
        );
        let later = self.ready.range(after).find(can);
        let &server = later.or_else(|| self.ready.iter().find(can))?;
        self.last = server;
        let item = *peers[&server].queue.front()?;
        Some((server, item))
    }

    /// Whether a batch may be sent now. If not, the server is left out until [`Peers::rest`].
    pub(super) fn may_send(&mut self, server: ServerId, length: u64, config: &Config) -> bool {
        let peer = &self.peers[&server];
        let fits = |taken: u64, window: u64| taken == 0 || taken + length <= window;
        let may = fits(self.bytes, config.window) && fits(peer.bytes, config.server_window);
        if !may {
            self.full.insert(server);
        }
        may
    }

    /// The turn is over.
    pub(super) fn rest(&mut self) {
        self.full.clear();
    }

    /// The next item is not needed.
    pub(super) fn skip(&mut self, server: ServerId) {
        if let Some(peer) = self.peers.get_mut(&server) {
            peer.queue.pop_front();
        }
        self.tidy(server);
    }

    /// The next item was sent.
    pub(super) fn sent(&mut self, server: ServerId, item: Item, length: u64) {
        if let Some(peer) = self.peers.get_mut(&server) {
            peer.queue.pop_front();
            peer.sent.insert(item, length);
            peer.bytes += length;
            self.bytes += length;
        }
        self.tidy(server);
    }

    /// Something was answered; whether that was awaited.
    pub(super) fn answered(&mut self, item: Item) -> bool {
        let server = item.part().1.server;
        let Some(peer) = self.peers.get_mut(&server) else {
            return false;
        };
        let Some(length) = peer.sent.remove(&item) else {
            return false;
        };
        peer.tries = 0;
        peer.bytes -= length;
        self.bytes -= length;
        self.tidy(server);
        true
    }

    /// Nothing is to be sent, or awaited, of a part.
    pub(super) fn forget(&mut self, transfer: Transfer, group: GroupId) {
        let server = group.server;
        let Some(peer) = self.peers.get_mut(&server) else {
            return;
        };
        peer.queue.retain(|item| item.part() != (transfer, group));
        let mut freed = 0;
        peer.sent.retain(|item, length| {
            let is_of_it = item.part() == (transfer, group);
            freed += if is_of_it { *length } else { 0 };
            !is_of_it
        });
        peer.bytes -= freed;
        self.bytes -= freed;
        self.tidy(server);
    }

    /// Everything that was sent to a server is to be sent again, after a pause. Says of which parts
    /// something waits.
    pub(super) fn disconnected(
        &mut self,
        server: ServerId,
        now: Duration,
        config: &Config,
    ) -> BTreeSet<(Transfer, GroupId)> {
        let Some(peer) = self.peers.get_mut(&server) else {
            return BTreeSet::new();
        };
        for (item, length) in core::mem::take(&mut peer.sent).into_iter().rev() {
            peer.bytes -= length;
            self.bytes -= length;
            peer.queue.push_front(item);
        }
        let parts = peer.queue.iter().map(|item| item.part()).collect();
        self.postpone(server, now, config);
        self.tidy(server);
        parts
    }

    /// Nothing is sent to a server for a while.
    pub(super) fn postpone(&mut self, server: ServerId, now: Duration, config: &Config) {
        if let Some(peer) = self.peers.get_mut(&server) {
            peer.retry_at = now + pause(config, peer.tries);
            peer.tries += 1;
        }
    }

    /// When something is to be tried again, after `now`. What could be tried now waits for a window.
    pub(super) fn retry_at(&self, now: Duration) -> Option<Duration> {
        let ready = self.ready.iter().map(|server| &self.peers[server]);
        let paused = ready.filter(|peer| peer.tries > 0 && peer.retry_at > now);
        paused.map(|peer| peer.retry_at).min()
    }

    fn tidy(&mut self, server: ServerId) {
        let Some(peer) = self.peers.get(&server) else {
            return;
        };
        match peer.queue.is_empty() {
            true => self.ready.remove(&server),
            false => self.ready.insert(server),
        };
        if peer.queue.is_empty() && peer.sent.is_empty() {
            self.peers.remove(&server);
        }
    }

    pub(super) fn is_expected(&self, item: Item) -> bool {
        let peer = self.peers.get(&item.part().1.server);
        peer.is_some_and(|peer| peer.sent.contains_key(&item) || peer.queue.contains(&item))
    }

    /// What is counted beside what there is: of all, and of each server.
    pub(super) fn sums(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let all = self.peers.values().map(|peer| peer.bytes).sum();
        let each = self.peers.values();
        let each = each.map(|peer| (peer.bytes, peer.sent.values().sum()));
        core::iter::once((self.bytes, all)).chain(each)
    }

    /// The most that is under way to a server, how many pushes that is, and how many there are in all.
    pub(super) fn loads(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.peers.values().map(|peer| {
            let pushes = peer.sent.values().filter(|length| **length > 0);
            (peer.bytes, pushes.count())
        })
    }
}
