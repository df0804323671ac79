//! Connections to neighbours.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use foldhash::fast::RandomState;
use treadle_broadcast::Neighbour;
use treadle_net::pool::IDLE;
use treadle_net::{INLINE, Incoming, NetError, Peer, Poller, Received, SMALL};

use super::store::Store;
use crate::message::Data;
use crate::wire::decode_chunk;

/// Objects that are on their way at once on a connection.
const COMING: usize = 64;

/// The connections. Of two to the same neighbour, as both may have dialled, the first is sent on.
#[derive(Debug, Default)]
pub(super) struct Links {
    by_key: HashMap<usize, Link, RandomState>,
    /// The oldest first.
    by_neighbour: HashMap<Neighbour, Vec<usize>, RandomState>,
    last_key: usize,
    /// With messages that are to be written.
    corked: Vec<usize>,
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

#[derive(Debug)]
struct Link {
    peer: Peer,
    who: Neighbour,
    /// From here.
    dialled: bool,
    /// Oldest first.
    coming: VecDeque<Arriving>,
    used: Instant,
    /// But for what the connection counts.
    traffic: Traffic,
}

/// An object on its way.
#[derive(Debug)]
struct Arriving {
    incoming: Incoming,
    /// Its second frame is received into its place.
    placed: bool,
}

/// An object that has come.
pub(super) struct Arrived {
    pub(super) received: Received,
    pub(super) placed: bool,
}

impl Links {
    /// A connection to a neighbour. `true`: it takes the place of another, which is broken.
    pub(super) fn add(
        &mut self,
        peer: &Peer,
        who: Neighbour,
        dialled: bool,
        poller: &Arc<Poller>,
        store: &mut Store,
    ) -> bool {
        let keys = self.by_neighbour.entry(who).or_default();
        let is_same = |key: &usize| self.by_key[key].dialled == dialled;
        let replaces = keys.iter().any(is_same);
        if replaces {
            self.remove(who, store);
        }
        self.last_key += 1;
        let key = self.last_key;
        let link = Link {
            peer: peer.clone(),
            who,
            dialled,
            coming: VecDeque::new(),
            used: Instant::now(),
            traffic: Traffic::default(),
        };
        self.by_key.insert(key, link);
        self.by_neighbour.entry(who).or_default().push(key);
        peer.watch(poller, key);
        replaces
    }

    /// Closes all connections to a neighbour; whether there were some.
    pub(super) fn remove(&mut self, who: Neighbour, store: &mut Store) -> bool {
        let keys = self.by_neighbour.remove(&who).unwrap_or_default();
        for key in &keys {
            if let Some(link) = self.by_key.remove(key) {
                self.past.add(&link);
                link.peer.start_close();
            }
            store.unclaim(*key);
        }
        !keys.is_empty()
    }

    pub(super) fn has(&self, who: Neighbour) -> bool {
        self.by_neighbour.contains_key(&who)
    }

    /// Who is at the other end.
    pub(super) fn who(&self, key: usize) -> Option<Neighbour> {
        self.by_key.get(&key).map(|link| link.who)
    }

    /// Sends a message's frames, with the next [`Links::flush`]; `false`: there is no connection that
    /// works.
    pub(super) fn send(&mut self, who: Neighbour, frames: &[Bytes]) -> bool {
        let keys = self.by_neighbour.get(&who);
        let Some(&key) = keys.and_then(|keys| keys.first()) else {
            return false;
        };
        let Some(link) = self.by_key.get_mut(&key) else {
            return false;
        };
        if !self.corked.contains(&key) {
            self.corked.push(key);
        }
        link.used = Instant::now();
        link.traffic.messages += 1;
        link.traffic.bytes += inline(frames);
        link.peer.send_corked(Data::RELAYED, frames).is_ok()
    }

    /// Writes what was sent: several messages to one neighbour wake it once.
    pub(super) fn flush(&mut self) {
        for key in self.corked.drain(..) {
            if let Some(link) = self.by_key.get(&key) {
                link.peer.flush();
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
        key: usize,
        store: &mut Store,
    ) -> Result<Option<Arrived>, NetError> {
        let Some(link) = self.by_key.get_mut(&key) else {
            return Ok(None);
        };
        while link.coming.len() < COMING {
            match link.peer.try_next() {
                Ok(Some(incoming)) => {
                    let placed = accept(&incoming, key, store)?;
                    link.coming.push_back(Arriving { incoming, placed });
                }
                Ok(None) => break,
                // Said again when what came before was taken.
                Err(_) if !link.coming.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        let is_whole = |arriving: &Arriving| arriving.incoming.is_done();
        if !link.coming.front().is_some_and(is_whole) {
            return Ok(None);
        }
        link.used = Instant::now();
        let Arriving { incoming, placed } = link.coming.pop_front().expect("just looked");
        let received = incoming.take()?;
        let lengths = received.frames.iter().map(|frame| frame.len() as u64);
        link.traffic.received_messages += 1;
        link.traffic.received += lengths.sum::<u64>();
        Ok(Some(Arrived { received, placed }))
    }

    /// Neighbours whose connections were made here and not used for long.
    pub(super) fn idle(&self, now: Instant) -> Vec<Neighbour> {
        let is_idle = |link: &&Link| link.dialled && now.duration_since(link.used) > IDLE;
        let idle = self.by_key.values().filter(is_idle);
        idle.map(|link| link.who).collect()
    }

    pub(super) fn traffic(&self) -> Traffic {
        let mut traffic = self.past;
        for link in self.by_key.values() {
            traffic.add(link);
        }
        traffic
    }

    /// Closes everything.
    pub(super) fn close(&mut self, store: &mut Store) {
        let all: Vec<Neighbour> = self.by_neighbour.keys().copied().collect();
        for who in all {
            self.remove(who, store);
        }
    }
}

impl Traffic {
    fn add(&mut self, link: &Link) {
        let stats = link.peer.stats();
        self.messages += link.traffic.messages;
        self.bytes += link.traffic.bytes + stats.bytes_sent;
        self.shared += stats.bytes_shared;
        self.received_messages += link.traffic.received_messages;
        self.received += link.traffic.received;
    }
}

/// Bytes of frames that travel in the object's header, of which a connection keeps no count.
fn inline(frames: &[Bytes]) -> u64 {
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    let small = lengths.filter(|length| *length < SMALL).sum();
    if small <= INLINE { small } else { 0 }
}

/// Lets an object come; whether its second frame goes to its place.
fn accept(incoming: &Incoming, key: usize, store: &mut Store) -> Result<bool, NetError> {
    let chunk = incoming
        .inline_frame(0)
        .and_then(|head| decode_chunk(&head));
    let Some((cast, offset, length)) = chunk else {
        incoming.accept(Vec::new())?;
        return Ok(false);
    };
    let (_, sizes) = incoming.header();
    if sizes.len() != 2 || sizes[1] != u64::from(length) {
        incoming.accept(Vec::new())?;
        return Ok(false);
    }
    let Some(target) = store.claim(cast, offset, length, key) else {
        incoming.accept(Vec::new())?;
        return Ok(false);
    };
    let back = incoming.accept(vec![None, Some(target)])?;
    Ok(back.iter().all(Option::is_none))
}
