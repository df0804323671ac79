//! What is to be sent to each server, and how much of it is under way.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use treadle_shuffle_rates::Window;

use crate::config::pause;
use crate::writer::pace::Paces;
use crate::{Config, GroupId, ServerId, ShuffleId, Transfer};

/// Something to send, to a copy of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Item {
    pub(super) transfer: Transfer,
    /// The part that it is of.
    pub(super) part: GroupId,
    /// The copy.
    pub(super) at: GroupId,
    pub(super) what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum What {
    /// A question about a part.
    Ask,
    /// A batch of a part.
    Push(u32),
}

impl Item {
    pub(super) fn ask(transfer: Transfer, part: GroupId, at: GroupId) -> Self {
        let what = What::Ask;
        Self {
            transfer,
            part,
            at,
            what,
        }
    }

    pub(super) fn push(transfer: Transfer, part: GroupId, at: GroupId, number: u32) -> Self {
        let what = What::Push(number);
        Self {
            transfer,
            part,
            at,
            what,
        }
    }

    fn is_of(&self, transfer: Transfer, part: GroupId) -> bool {
        (self.transfer, self.part) == (transfer, part)
    }
}

/// A server, as the writer sees it.
#[derive(Debug, Default)]
pub(super) struct Peer {
    queue: VecDeque<Item>,
    /// What was sent and not answered: how many bytes it has, and when it was sent.
    sent: BTreeMap<Item, (u64, Duration)>,
    bytes: u64,
    /// Tries in vain since something was answered, and when the next one is due.
    tries: u32,
    retry_at: Duration,
}

impl Peer {
    /// What has waited longest for its answer: its length, and when it was sent.
    fn oldest(&self) -> Option<(u64, Duration)> {
        let sent = self.sent.values();
        sent.min_by_key(|(_, sent_at)| *sent_at).copied()
    }
}

/// Pushes of a shuffle to a server that has told its application to pause.
#[derive(Debug, Default)]
struct Asleep {
    until: Duration,
    queue: VecDeque<Item>,
}

/// All servers that something is to be sent to, or was.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<ServerId, Peer>,
    /// Those that follow the time that answers take.
    windows: BTreeMap<ServerId, Window>,
    paces: Paces,
    /// Those that something waits for.
    ready: BTreeSet<ServerId>,
    /// Those that can take nothing more for now, in this turn.
    full: BTreeSet<ServerId>,
    /// What is not sent before a time: servers said so, to an application.
    asleep: BTreeMap<(ServerId, ShuffleId), Asleep>,
    /// Those that take several pushes in a message, and of these the ones that wanted each by itself, and have
    /// taken none since.
    together: BTreeSet<ServerId>,
    alone: BTreeSet<ServerId>,
    /// After whom the next turn is.
    last: ServerId,
    bytes: u64,
}

impl Peers {
    pub(super) fn in_flight(&self) -> u64 {
        self.bytes
    }

    /// A server takes several pushes in a message.
    pub(super) fn takes_together(&mut self, server: ServerId) {
        self.together.insert(server);
    }

    /// A server wants pushes one by one, until it has taken one.
    pub(super) fn alone(&mut self, server: ServerId) {
        self.alone.insert(server);
    }

    /// Whether a server is told several pushes in a message.
    pub(super) fn tells_together(&self, server: ServerId) -> bool {
        self.together.contains(&server) && !self.alone.contains(&server)
    }

    /// Whether something was sent and is not answered.
    pub(super) fn awaits(&self) -> bool {
        self.peers.values().any(|peer| !peer.sent.is_empty())
    }

    fn push(&mut self, item: Item) {
        let server = item.at.server;
        let key = (server, item.transfer.shuffle);
        if let Some(asleep) = self.asleep.get_mut(&key)
            && item.what != What::Ask
        {
            let peer = self.peers.get(&server);
            let is_sent = peer.is_some_and(|peer| peer.sent.contains_key(&item));
            if !is_sent && !asleep.queue.contains(&item) {
                asleep.queue.push_back(item);
            }
            return;
        }
        let peer = self.peers.entry(server).or_default();
        if peer.sent.contains_key(&item) || peer.queue.contains(&item) {
            return;
        }
        peer.queue.push_back(item);
        self.ready.insert(server);
    }

    /// A server has told the application of a shuffle to pause.
    pub(super) fn sleep(&mut self, server: ServerId, shuffle: ShuffleId, until: Duration) {
        let asleep = self.asleep.entry((server, shuffle)).or_default();
        asleep.until = asleep.until.max(until);
        if let Some(peer) = self.peers.get_mut(&server) {
            let (sleep, stay) = core::mem::take(&mut peer.queue)
                .into_iter()
                .partition(|item| item.what != What::Ask && item.transfer.shuffle == shuffle);
            peer.queue = stay;
            let sleep: VecDeque<Item> = sleep;
            asleep.queue.extend(sleep);
        }
        self.tidy(server);
    }

    /// What has slept for long enough is to be sent.
    fn wake(&mut self, now: Duration) {
        let asleep = self.asleep.iter();
        let over = asleep.filter(|(_, asleep)| asleep.until <= now);
        for key in over.map(|(&key, _)| key).collect::<Vec<_>>() {
            let asleep = self.asleep.remove(&key);
            self.queue(asleep.into_iter().flat_map(|asleep| asleep.queue));
        }
    }

    /// Something is to be sent.
    pub(super) fn queue(&mut self, items: impl IntoIterator<Item = Item>) {
        for item in items {
            self.push(item);
        }
    }

    /// What is next, from the servers in turn.
    pub(super) fn next(&mut self, now: Duration) -> Option<(ServerId, Item)> {
        self.wake(now);
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
        let window = self.windows.get(&server);
        let window = window.map_or(config.server_window, |window| window.bytes());
        let may = fits(self.bytes, config.window) && fits(peer.bytes, window);
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
    pub(super) fn sent(&mut self, server: ServerId, item: Item, length: u64, now: Duration) {
        if let Some(peer) = self.peers.get_mut(&server) {
            peer.queue.pop_front();
            peer.sent.insert(item, (length, now));
            peer.bytes += length;
            self.bytes += length;
        }
        self.tidy(server);
    }

    /// A push was taken, or refused. Returns what it was, if it was awaited.
    pub(super) fn answered(
        &mut self,
        item: Item,
        now: Duration,
        config: &Config,
    ) -> Option<(u64, Duration)> {
        let server = item.at.server;
        let peer = self.peers.get_mut(&server)?;
        let (length, sent_at) = peer.sent.remove(&item)?;
        if config.least_window > 0 && length > 0 {
            let most = config.server_window;
            let window = self.windows.entry(server).or_insert(Window::new(most));
            window.answered(now.saturating_sub(sent_at), config.least_window, most);
        }
        peer.tries = 0;
        peer.bytes -= length;
        self.bytes -= length;
        self.tidy(server);
        Some((length, sent_at))
    }

    /// The push was taken. If the server has fallen behind the others: how many times as long as they it takes.
    pub(super) fn taken(
        &mut self,
        server: ServerId,
        push: (u64, Duration),
        now: Duration,
        config: &Config,
    ) -> Option<u32> {
        self.alone.remove(&server);
        self.paces.answered(server, push, now, config.lag)
    }

    /// The push was refused.
    pub(super) fn refused(&mut self, server: ServerId, now: Duration) {
        self.paces.refused(server, now);
    }

    /// The servers that have fallen behind, since they answer nothing, and how many times as long as others they take.
    pub(super) fn silent(&mut self, now: Duration, config: &Config) -> Vec<(ServerId, u32)> {
        let mut silent = Vec::new();
        for (&server, peer) in &self.peers {
            let Some(oldest) = peer.oldest() else {
                continue;
            };
            let due = self.paces.deadline(server, oldest, now, config.lag);
            if due.is_some_and(|due| due <= now) {
                silent.push((server, self.paces.times(server, oldest, now)));
            }
        }
        for &(server, _) in &silent {
            self.paces.begin_anew(server, now);
        }
        silent
    }

    /// Nothing is to be sent to a copy, or awaited from it, of a part.
    pub(super) fn forget(&mut self, transfer: Transfer, part: GroupId, at: GroupId) {
        let server = at.server;
        if let Some(asleep) = self.asleep.get_mut(&(server, transfer.shuffle)) {
            let is_of_it = |item: &Item| item.is_of(transfer, part) && item.at == at;
            asleep.queue.retain(|item| !is_of_it(item));
        }
        let Some(peer) = self.peers.get_mut(&server) else {
            return;
        };
        let is_of_it = |item: &Item| item.is_of(transfer, part) && item.at == at;
        peer.queue.retain(|item| !is_of_it(item));
        let mut freed = 0;
        peer.sent.retain(|item, (length, _)| {
            freed += if is_of_it(item) { *length } else { 0 };
            !is_of_it(item)
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
    ) -> BTreeSet<(Transfer, GroupId, GroupId)> {
        let Some(peer) = self.peers.get_mut(&server) else {
            return BTreeSet::new();
        };
        self.windows.remove(&server);
        self.paces.forget(server);
        for (item, (length, _)) in core::mem::take(&mut peer.sent).into_iter().rev() {
            peer.bytes -= length;
            self.bytes -= length;
            peer.queue.push_front(item);
        }
        let parts = peer.queue.iter();
        let parts = parts
            .map(|item| (item.transfer, item.part, item.at))
            .collect();
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
        let asleep = self.asleep.values();
        let asleep = asleep.filter(|asleep| !asleep.queue.is_empty());
        let wakes = asleep.map(|asleep| asleep.until);
        paused.map(|peer| peer.retry_at).chain(wakes).min()
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
        let asleep = self.asleep.get(&(item.at.server, item.transfer.shuffle));
        if asleep.is_some_and(|asleep| asleep.queue.contains(&item)) {
            return true;
        }
        let peer = self.peers.get(&item.at.server);
        peer.is_some_and(|peer| peer.sent.contains_key(&item) || peer.queue.contains(&item))
    }

    /// What is counted beside what there is: of all, and of each server.
    pub(super) fn sums(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let all = self.peers.values().map(|peer| peer.bytes).sum();
        let each = self.peers.values();
        let each = each.map(|peer| {
            (
                peer.bytes,
                peer.sent.values().map(|(length, _)| length).sum(),
            )
        });
        core::iter::once((self.bytes, all)).chain(each)
    }

    /// The most that is under way to a server, how many pushes that is, and how many there are in all.
    pub(super) fn loads(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.peers.values().map(|peer| {
            let pushes = peer.sent.values().filter(|(length, _)| *length > 0);
            (peer.bytes, pushes.count())
        })
    }
}
