//! Whose turn it is to be fetched.

use alloc::collections::{BTreeMap, BTreeSet};

use treadle_guards::{InvariantError, ensure, ensure_eq};
use treadle_types::WorkerId;

use crate::objects::Fetch;
use crate::ready::Key;

/// The fetches that wait for their turn, and how much is under way.
pub(crate) struct Fetches {
    bytes: u64,
    bytes_limit: u64,
    flights: u32,
    flights_per_peer: u32,
    peers: BTreeMap<WorkerId, Peer>,
}

/// A worker from which something is fetched, or waits to be.
#[derive(Default)]
struct Peer {
    flights: u32,
    /// What it could be asked for.
    queue: BTreeSet<Key>,
}

impl Fetches {
    pub(crate) fn new(bytes_limit: u64, flights_per_peer: u32) -> Self {
        Self {
            bytes: 0,
            bytes_limit,
            flights: 0,
            flights_per_peer: flights_per_peer.max(1),
            peers: BTreeMap::new(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn flights(&self) -> u32 {
        self.flights
    }

    /// Lets a fetch that is not under way wait for its turn at everybody who can be asked.
    pub(crate) fn queue(&mut self, fetch: &Fetch) {
        for &peer in &fetch.untried {
            self.peers.entry(peer).or_default().queue.insert(fetch.key);
        }
    }

    /// Takes back what [`Fetches::queue`] did.
    pub(crate) fn unqueue(&mut self, fetch: &Fetch) {
        for &peer in &fetch.untried {
            if let Some(entry) = self.peers.get_mut(&peer) {
                entry.queue.remove(&fetch.key);
                self.tidy(peer);
            }
        }
    }

    /// The most urgent fetch that can begin, and who is asked: of several, the one that does least.
    /// `size` is the number of bytes of a fetch.
    pub(crate) fn next(&self, size: impl Fn(u32) -> u64) -> Option<(u32, WorkerId)> {
        let free = self.peers.iter().filter_map(|(&id, peer)| {
            let &key = peer.queue.first()?;
            (peer.flights < self.flights_per_peer).then_some((key, peer.flights, id))
        });
        let (key, _, peer) = free.min()?;
        // A value beyond the limit travels alone; nothing overtakes one that does not fit, or large
        // values would wait for ever.
        let fits = self.bytes.saturating_add(size(key.slot())) <= self.bytes_limit;
        (fits || self.flights == 0).then_some((key.slot(), peer))
    }

    /// A fetch that is in no queue begins.
    pub(crate) fn begin(&mut self, peer: WorkerId, nbytes: u64) {
        self.bytes += nbytes;
        self.flights += 1;
        self.peers.entry(peer).or_default().flights += 1;
    }

    /// A fetch has ended.
    pub(crate) fn end(&mut self, peer: WorkerId, nbytes: u64) {
        self.bytes -= nbytes;
        self.flights -= 1;
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.flights -= 1;
            self.tidy(peer);
        }
    }

    fn tidy(&mut self, peer: WorkerId) {
        let is_idle = |peer: &Peer| peer.flights == 0 && peer.queue.is_empty();
        if self.peers.get(&peer).is_some_and(is_idle) {
            self.peers.remove(&peer);
        }
    }

    /// Compares with a recount of `fetches`, by slot.
    pub(crate) fn check<'a>(
        &self,
        fetches: impl Iterator<Item = (u32, &'a Fetch)>,
    ) -> Result<(), InvariantError> {
        let mut recount = Self::new(self.bytes_limit, self.flights_per_peer);
        for (slot, fetch) in fetches {
            ensure_eq!(fetch.key.slot(), slot, "the key of a fetch");
            match fetch.from {
                Some(peer) => recount.begin(peer, fetch.nbytes),
                None => recount.queue(fetch),
            }
        }
        ensure_eq!(self.bytes, recount.bytes, "bytes under way");
        ensure_eq!(self.flights, recount.flights, "fetches under way");
        ensure!(
            self.bytes <= self.bytes_limit || self.flights == 1,
            "the limit of bytes"
        );
        ensure_eq!(self.peers.len(), recount.peers.len(), "peers");
        for (id, peer) in &self.peers {
            let Some(other) = recount.peers.get(id) else {
                return Err(InvariantError::new(format_args!(
                    "nothing comes from {id:?}"
                )));
            };
            ensure_eq!(peer.flights, other.flights, "fetches from {id:?}");
            ensure_eq!(peer.queue, other.queue, "what waits for {id:?}");
            ensure!(peer.flights <= self.flights_per_peer, "fetches from {id:?}");
        }
        Ok(())
    }
}
