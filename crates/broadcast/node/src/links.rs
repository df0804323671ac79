//! Connections to neighbours.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use foldhash::fast::RandomState;
use treadle_broadcast::{Member, Neighbour};
use treadle_broadcast_wire::{RELAYED, decode_chunk};
use treadle_net::pool::Pool;
use treadle_net::{Incoming, NetError, Peer, Received, SendOptions, Stats, Target, fits_header};
use treadle_types::{ClientId, WorkerId};

use super::store::Store;

/// A connection to a neighbour. There may be two: both may have dialled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Link {
    pub(super) who: Neighbour,
    /// From here.
    pub(super) is_dialled: bool,
}

impl Link {
    /// Its key in the poller; 0 is the signal's.
    pub(super) fn key(self) -> usize {
        let (number, is_top) = match self.who {
            Neighbour::Worker(worker) => (worker.0, false),
            Neighbour::Top(client) => (client.0, true),
        };
        1 + (number as usize * 4 + usize::from(is_top) * 2 + usize::from(self.is_dialled))
    }

    fn by_key(key: usize) -> Option<Self> {
        let key = key.checked_sub(1)?;
        let number = u32::try_from(key / 4).ok()?;
        Some(Self {
            who: match key & 2 {
                0 => Neighbour::Worker(WorkerId(number)),
                _ => Neighbour::Top(ClientId(number)),
            },
            is_dialled: key & 1 == 1,
        })
    }
}

/// The connections.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// Nothing, before there is a thread that serves connections.
    pool: Option<Pool<Link, ()>>,
    /// Those that carry messages, with the oldest first: that one is sent on.
    by_neighbour: HashMap<Neighbour, Vec<Link>, RandomState>,
    /// But for what the connections count.
    traffic: HashMap<Link, Traffic, RandomState>,
    /// With messages that are to be written.
    corked: Vec<Link>,
    /// Of connections that are closed.
    past: Traffic,
}

/// What was sent to neighbours, and what came from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Messages that were sent.
    pub messages: u64,
    /// Bytes of their frames that went through sockets.
    pub bytes: u64,
    /// Bytes that were passed as shared memory, in either direction.
    pub shared: u64,
    /// Messages that came.
    pub received_messages: u64,
    /// Bytes of their frames.
    pub received: u64,
}

impl From<Traffic> for [u64; 5] {
    /// In the order of the fields.
    fn from(traffic: Traffic) -> Self {
        let Traffic {
            messages,
            bytes,
            shared,
            received_messages,
            received,
        } = traffic;
        [messages, bytes, shared, received_messages, received]
    }
}

impl Links {
    /// There is a thread that serves connections.
    pub(super) fn attach(&mut self, pool: Pool<Link, ()>) {
        self.pool = Some(pool);
    }

    /// Connects to an engine, which [`Links::outcomes`] tells of.
    pub(super) fn dial(&mut self, member: &Member, is_near: bool, store: &mut Store) {
        let who = Neighbour::Worker(member.worker);
        let link = Link {
            who,
            is_dialled: true,
        };
        if self.carries(link) {
            self.remove(who, store);
        }
        let Some(pool) = &mut self.pool else {
            return;
        };
        // Between hosts payloads go in pieces, which are not to be frozen before they are whole.
        pool.introduce(link, member.address.to_string(), is_near);
        let opened = pool.open(link);
        debug_assert!(opened.is_ok(), "it was just introduced");
    }

    /// Whose connections are made, and whose could not be.
    pub(super) fn outcomes(&mut self) -> Vec<(Link, Result<(), NetError>)> {
        self.pool.as_mut().map_or_else(Vec::new, Pool::outcomes)
    }

    /// The connection, if it is open.
    pub(super) fn peer(&mut self, link: Link) -> Option<&Peer> {
        Some(&self.pool.as_mut()?.get(link)?.peer)
    }

    /// Whether memory may be shared on a connection.
    pub(super) fn shares_memory(&self, link: Link) -> bool {
        let pool = self.pool.as_ref();
        pool.is_some_and(|pool| pool.shares_memory(link))
    }

    /// A neighbour has connected. `true`: this takes the place of another connection, which is broken.
    pub(super) fn adopt(&mut self, peer: Peer, who: Neighbour, store: &mut Store) -> bool {
        let link = Link {
            who,
            is_dialled: false,
        };
        let replaces = self.carries(link);
        if replaces {
            self.remove(who, store);
        }
        if let Some(pool) = &mut self.pool {
            pool.adopt(link, peer);
            self.add(link);
        }
        replaces
    }

    /// A connection carries messages from now on.
    pub(super) fn add(&mut self, link: Link) {
        self.by_neighbour.entry(link.who).or_default().push(link);
    }

    /// Closes a connection, or stops making it.
    pub(super) fn forget(&mut self, link: Link) {
        if let Some(pool) = &mut self.pool {
            pool.forget(link);
        }
    }

    /// Closes all connections to a neighbour; whether there were some.
    pub(super) fn remove(&mut self, who: Neighbour, store: &mut Store) -> bool {
        let links = self.by_neighbour.remove(&who).unwrap_or_default();
        for &link in &links {
            if let Some(peer) = self.peer(link) {
                let stats = peer.stats();
                let traffic = self.traffic.remove(&link).unwrap_or_default();
                self.past.add(traffic, &stats);
            }
            self.forget(link);
            store.unclaim(link.key());
        }
        !links.is_empty()
    }

    pub(super) fn has(&self, who: Neighbour) -> bool {
        self.by_neighbour.contains_key(&who)
    }

    fn carries(&self, link: Link) -> bool {
        let links = self.by_neighbour.get(&link.who);
        links.is_some_and(|links| links.contains(&link))
    }

    /// The connection with this key, if it carries messages.
    pub(super) fn by_key(&self, key: usize) -> Option<Link> {
        Link::by_key(key).filter(|&link| self.carries(link))
    }

    /// Sends a message's frames, with the next [`Links::flush`]; `false`: there is no connection that
    /// works.
    pub(super) fn send(&mut self, who: Neighbour, frames: &[Bytes]) -> bool {
        let links = self.by_neighbour.get(&who);
        let (Some(&link), Some(pool)) = (links.and_then(|links| links.first()), &mut self.pool)
        else {
            return false;
        };
        let Some(connection) = pool.get(link) else {
            return false;
        };
        if !self.corked.contains(&link) {
            self.corked.push(link);
        }
        connection.touch();
        let traffic = self.traffic.entry(link).or_default();
        traffic.messages += 1;
        traffic.bytes += inline(frames);
        let options = SendOptions {
            corked: true,
            ..SendOptions::default()
        };
        let sent = connection.peer.send_with(RELAYED, frames, options);
        sent.is_ok()
    }

    /// Writes what was sent: several messages to one neighbour wake it once.
    pub(super) fn flush(&mut self) {
        let Some(pool) = &mut self.pool else {
            return;
        };
        for link in self.corked.drain(..) {
            if let Some(connection) = pool.get(link) {
                connection.peer.flush();
            }
        }
    }

    /// The next object of a connection that is whole. Pieces of payloads are received into their
    /// places.
    ///
    /// # Errors
    /// When the connection is over and everything was taken, or an object did not arrive.
    pub(super) fn take(
        &mut self,
        link: Link,
        store: &mut Store,
    ) -> Result<Option<Received>, NetError> {
        let Some(connection) = self.pool.as_mut().and_then(|pool| pool.get(link)) else {
            return Ok(None);
        };
        let mut place = |incoming: &Incoming| place(incoming, link.key(), store);
        let Some(received) = connection.next(&mut place)? else {
            return Ok(None);
        };
        connection.touch();
        let lengths = received.frames.iter();
        let traffic = self.traffic.entry(link).or_default();
        traffic.received_messages += 1;
        traffic.received += lengths.map(|frame| frame.len() as u64).sum::<u64>();
        Ok(Some(received))
    }

    /// Neighbours whose connections were made here and not used for long.
    pub(super) fn idle(&self, now: Instant) -> Vec<Neighbour> {
        let idle = self.pool.iter().flat_map(|pool| pool.idle(now));
        let ours = idle.filter(|&link| link.is_dialled && self.carries(link));
        ours.map(|link| link.who).collect()
    }

    pub(super) fn traffic(&mut self) -> Traffic {
        let mut sum = self.past;
        let links: Vec<Link> = self.by_neighbour.values().flatten().copied().collect();
        for link in links {
            let traffic = self.traffic.get(&link).copied().unwrap_or_default();
            if let Some(peer) = self.peer(link) {
                sum.add(traffic, &peer.stats());
            }
        }
        sum
    }

    /// Closes everything.
    pub(super) fn close(&mut self, store: &mut Store) {
        let all: Vec<Neighbour> = self.by_neighbour.keys().copied().collect();
        for who in all {
            self.remove(who, store);
        }
        if let Some(pool) = &mut self.pool {
            pool.close_all();
        }
    }
}

impl Traffic {
    fn add(&mut self, traffic: Traffic, stats: &Stats) {
        self.messages += traffic.messages;
        self.bytes += traffic.bytes + stats.bytes_sent;
        self.shared += stats.bytes_shared;
        self.received_messages += traffic.received_messages;
        self.received += traffic.received;
    }
}

/// Bytes of frames that travel in the object's header, of which a connection keeps no count.
fn inline(frames: &[Bytes]) -> u64 {
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    lengths.fold(0, |inline, length| match fits_header(inline, length) {
        true => inline + length,
        false => inline,
    })
}

/// Where the second frame of an object goes, if that is a piece of a payload.
fn place(incoming: &Incoming, key: usize, store: &mut Store) -> Vec<Option<Target>> {
    let head = incoming.inline_frame(0);
    let Some((cast, offset, length)) = head.and_then(|head| decode_chunk(&head)) else {
        return Vec::new();
    };
    let (_, sizes) = incoming.header();
    if sizes.len() != 2 || sizes[1] != u64::from(length) {
        return Vec::new();
    }
    let target = store.claim(cast, offset, length, key);
    target.map_or_else(Vec::new, |target| vec![None, Some(target)])
}
