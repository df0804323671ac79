//! The connections of the scheduler, and what is to be sent on them.

use std::collections::HashMap;
use std::mem;
use std::time::Duration;

use treadle_gateway::Node;
use treadle_messages::{FromClient, FromWorker, ToClient, ToWorker};
use treadle_net::Peer;
use treadle_schedule_wire::{LONGEST_HELLO, Link};
use treadle_types::{ClientId, Command, WorkerId};

/// How long a node may take for its first words.
const GREETING: Duration = Duration::from_secs(10);

/// What a connection of the poller is.
#[derive(Debug)]
pub(super) enum Connection {
    /// It has not said who it is, since then.
    Stranger(Box<Link<FromClient, ToClient>>, Duration),
    Node(Node),
}

/// The connection of a worker.
#[derive(Debug)]
pub(super) struct WorkerLink {
    /// Its key in the poller.
    key: usize,
    pub(super) link: Link<FromWorker, ToWorker>,
    /// What had arrived of a large message when it was looked after.
    arrived: u64,
    /// Whether something was pushed since the last flush.
    is_dirty: bool,
    /// Whether that was nothing but releases.
    only_releases: bool,
}

/// The connection of a client.
#[derive(Debug)]
pub(super) struct ClientLink {
    /// Its key in the poller.
    key: usize,
    pub(super) link: Link<FromClient, ToClient>,
    is_dirty: bool,
    /// Whether it reads the stream of task events.
    pub(super) streams: bool,
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// By their keys in the poller.
    connections: HashMap<usize, Connection, foldhash::fast::RandomState>,
    /// By id: ids are not used twice, and few bytes each.
    workers: Vec<Option<Box<WorkerLink>>>,
    clients: Vec<Option<Box<ClientLink>>>,
    /// Nodes to which something is to be sent.
    dirty: Vec<Node>,
    /// Workers to which nothing but releases is to be sent: nobody waits for these.
    later: Vec<Node>,
    /// Connections that are being closed.
    closing: Vec<Peer>,
    /// Connections that there ever were.
    pub(super) count: u64,
}

/// Puts something at the place of its number.
fn place<T>(into: &mut Vec<Option<T>>, at: u32, what: T) {
    let at = at as usize;
    if at >= into.len() {
        into.resize_with(at + 1, || None);
    }
    into[at] = Some(what);
}

impl Links {
    /// Somebody connected.
    pub(super) fn accept(&mut self, key: usize, peer: Peer, now: Duration) {
        self.count += 1;
        let link = Box::new(Link::new(peer, LONGEST_HELLO as u64));
        self.connections
            .insert(key, Connection::Stranger(link, now));
    }

    pub(super) fn connection(&mut self, key: usize) -> Option<&mut Connection> {
        self.connections.get_mut(&key)
    }

    #[inline]
    pub(super) fn worker(&mut self, id: WorkerId) -> Option<&mut WorkerLink> {
        self.workers.get_mut(id.0 as usize)?.as_deref_mut()
    }

    #[inline]
    pub(super) fn client(&mut self, id: ClientId) -> Option<&mut ClientLink> {
        self.clients.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// The peers of all workers.
    pub(super) fn peers_of_workers(&self) -> impl Iterator<Item = &Peer> {
        self.workers.iter().flatten().map(|link| link.link.peer())
    }

    /// A stranger is a node, from which objects of at most `most` bytes are taken.
    pub(super) fn add(&mut self, key: usize, node: Node, peer: &Peer, most: u64) {
        match node {
            Node::Worker(worker) => {
                let link = WorkerLink {
                    key,
                    link: Link::new(peer.clone(), most),
                    arrived: 0,
                    is_dirty: false,
                    only_releases: false,
                };
                place(&mut self.workers, worker.0, Box::new(link));
            }
            Node::Client(client) => {
                let link = ClientLink {
                    key,
                    link: Link::new(peer.clone(), most),
                    is_dirty: false,
                    streams: false,
                };
                place(&mut self.clients, client.0, Box::new(link));
            }
        }
        self.connections.insert(key, Connection::Node(node));
    }

    /// Sends a worker a command with the next flush.
    #[inline]
    pub(super) fn command(&mut self, worker: WorkerId, command: &Command) {
        let is_release = matches!(command, Command::Release(_));
        self.push(worker, is_release, |link| link.out().push_row(command));
    }

    /// Sends a worker something else with the next flush.
    pub(super) fn tell_worker(&mut self, worker: WorkerId, message: &ToWorker) {
        self.push(worker, false, |link| link.push(message));
    }

    #[inline]
    fn push(
        &mut self,
        worker: WorkerId,
        is_release: bool,
        push: impl FnOnce(&mut Link<FromWorker, ToWorker>),
    ) {
        let Some(node) = self.worker(worker) else {
            return;
        };
        push(&mut node.link);
        node.only_releases = is_release && (node.only_releases || !node.is_dirty);
        if !mem::replace(&mut node.is_dirty, true) {
            self.dirty.push(Node::Worker(worker));
        }
    }

    /// Sends a client something with the next flush.
    #[inline]
    pub(super) fn tell_client(&mut self, client: ClientId, message: &ToClient) {
        let Some(Some(node)) = self.clients.get_mut(client.0 as usize) else {
            return;
        };
        node.link.push(message);
        if !mem::replace(&mut node.is_dirty, true) {
            self.dirty.push(Node::Client(client));
        }
    }

    /// Sends what was pushed. Returns a node that cannot be sent any more, and why: the caller calls
    /// again.
    pub(super) fn flush(&mut self, most_waiting: usize) -> Option<(Node, String)> {
        while let Some(node) = self.dirty.pop().or_else(|| self.later.pop()) {
            let (flushed, waiting) = match node {
                Node::Worker(worker) => match self.worker(worker) {
                    Some(link) => {
                        if mem::take(&mut link.only_releases) {
                            self.later.push(node);
                            continue;
                        }
                        link.is_dirty = false;
                        (link.link.flush(), link.link.waiting())
                    }
                    None => continue,
                },
                Node::Client(client) => match self.client(client) {
                    Some(link) => {
                        link.is_dirty = false;
                        (link.link.flush(), link.link.kept())
                    }
                    None => continue,
                },
            };
            match flushed {
                Err(error) => return Some((node, error.to_string())),
                Ok(_) if waiting > most_waiting => {
                    let text = format!("it does not read: {waiting} bytes wait to be sent to it");
                    return Some((node, text));
                }
                Ok(_) => {}
            }
        }
        None
    }

    /// Bytes that are kept for a node, about.
    pub(super) fn kept(&mut self, node: Node) -> usize {
        match node {
            Node::Worker(worker) => self.worker(worker).map_or(0, |link| link.link.kept()),
            Node::Client(client) => self.client(client).map_or(0, |link| link.link.kept()),
        }
    }

    /// Whether the connection of a worker is over, or there is none.
    pub(super) fn has_ended(&mut self, worker: WorkerId) -> bool {
        let link = self.worker(worker);
        link.is_none_or(|link| link.link.peer().ended().is_some())
    }

    /// Workers of which more of a large message has arrived since the last time: that is no silence.
    pub(super) fn arriving(&mut self) -> Vec<WorkerId> {
        let links = self.workers.iter_mut().enumerate();
        let arriving = links.filter_map(|(id, link)| {
            let link = link.as_deref_mut()?;
            let arrived = link.link.arriving();
            let is_more = arrived > 0 && mem::replace(&mut link.arrived, arrived) != arrived;
            is_more.then_some(WorkerId(id as u32))
        });
        arriving.collect()
    }

    /// Ends the connection of a worker. What it was told last shall still reach it, if anything does.
    pub(super) fn end_worker(&mut self, worker: WorkerId) {
        let link = self.workers.get_mut(worker.0 as usize);
        if let Some(mut link) = link.and_then(Option::take) {
            let _ = link.link.flush();
            self.end(link.key, link.link.peer());
        }
    }

    /// The same of a client.
    pub(super) fn end_client(&mut self, client: ClientId) -> Option<Box<ClientLink>> {
        let mut link = self.clients.get_mut(client.0 as usize)?.take()?;
        let _ = link.link.flush();
        self.end(link.key, link.link.peer());
        Some(link)
    }

    fn end(&mut self, key: usize, peer: &Peer) {
        peer.start_close();
        self.connections.remove(&key);
        self.closing.push(peer.clone());
    }

    pub(super) fn drop_stranger(&mut self, key: usize) {
        if let Some(Connection::Stranger(link, _)) = self.connections.remove(&key) {
            link.peer().start_close();
            self.closing.push(link.peer().clone());
        }
    }

    /// Drops strangers that say nothing, and connections that are closed.
    pub(super) fn look_after_strangers(&mut self, now: Duration) {
        let silent = self.connections.iter().filter(|(_, connection)| {
            matches!(connection, Connection::Stranger(_, since) if now >= *since + GREETING)
        });
        let silent: Vec<usize> = silent.map(|(key, _)| *key).collect();
        for key in silent {
            self.drop_stranger(key);
        }
        self.closing.retain(|peer| !peer.is_closed());
    }

    /// Closes all connections, and returns them.
    pub(super) fn close(&mut self) -> Vec<Peer> {
        let mut peers = mem::take(&mut self.closing);
        peers.extend(self.peers_of_workers().cloned());
        let clients = self.clients.iter().flatten();
        peers.extend(clients.map(|link| link.link.peer().clone()));
        for peer in &peers {
            peer.start_close();
        }
        peers
    }
}
