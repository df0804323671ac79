//! Connections between processes, and links to the head.

use std::collections::VecDeque;
use std::time::Duration;

use treadle_shuffle::{
    ConnectionId, FromServer, Guard, Push, ReaderEvent, ServerEvent, ServerId, ToServer,
    WriterEvent,
};

use crate::data::Batch;
use crate::engine::{Down, Up};
use crate::tasks::Rows;
use crate::world::{Item, Pid, World};
use treadle_sim_kernel::Link;

/// How long it takes until rows that were taken have left a server.
const SENDING: Duration = Duration::from_micros(200);

/// A connection from the writer and the reader of a process to the server of another.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Pid,
    pub(super) server: Pid,
    /// Whom the client means.
    pub(super) target: ServerId,
    pub(super) is_open: bool,
    /// The reads whose rows the client has not taken, by the numbers of their loads.
    sending: VecDeque<u64>,
    there: Link,
    back: Link,
}

impl World {
    fn latency(&mut self) -> Duration {
        let (low, high) = self.plan.latency;
        self.kernel.random.micros(low, high)
    }

    /// To the head, in order.
    pub(super) fn up(&mut self, pid: Pid, up: Up) {
        let process = &self.procs[pid];
        if let Some(said) = &mut self.said {
            said.push((process.id, up));
            return;
        }
        self.up_as(pid, (process.head.unwrap_or(0), process.id), up);
    }

    /// To a head, from a process that is called so by it.
    pub(super) fn up_as(&mut self, pid: Pid, (head, name): (usize, ServerId), up: Up) {
        let at = self.kernel.now() + self.latency();
        let at = self.procs[pid].up.arrival(at);
        self.kernel.schedule_at(at, Item::Up(head, name, up));
    }

    /// From the head, in order. Without the guard the head knows places, not processes.
    pub(super) fn down(&mut self, to: ServerId, down: Down) {
        let pid = match self.by_id.get(&to).copied() {
            Some(pid) if self.procs[pid].is_alive => pid,
            _ if Guard::Incarnation.holds() => return,
            _ => match self.places.get(&to.node) {
                Some(&pid) => pid,
                None => return,
            },
        };
        self.down_to(pid, Item::Down(pid, to, down));
    }

    /// To a process, in the order of what heads say to it.
    pub(super) fn down_to(&mut self, pid: Pid, item: Item) {
        let at = self.kernel.now() + self.latency();
        let at = self.procs[pid].down.arrival(at);
        self.kernel.schedule_at(at, item);
    }

    /// To a server: who is at its place is who hears it.
    pub(super) fn request(&mut self, pid: Pid, to: ServerId, message: ToServer) {
        let Some(id) = self.dial(pid, to) else {
            let latency = self.latency();
            return self.kernel.schedule(latency, Item::Unreached(pid, to));
        };
        let at = self.kernel.now() + self.latency();
        let connection = self.connections.get_mut(&id).expect("it is open");
        let at = connection.there.arrival(at);
        self.kernel.schedule_at(at, Item::Request(id, message));
    }

    fn dial(&mut self, pid: Pid, to: ServerId) -> Option<ConnectionId> {
        if let Some(&id) = self.procs[pid].connections.get(&to) {
            return Some(id);
        }
        let &server = self.places.get(&to.node)?;
        let (place, other) = (self.procs[pid].node, self.procs[server].node);
        if !self.procs[server].is_alive || self.kernel.cut_until(place, other).is_some() {
            return None;
        }
        self.next_connection += 1;
        let id = ConnectionId(self.next_connection);
        let connection = Connection {
            client: pid,
            server,
            target: to,
            is_open: true,
            sending: VecDeque::new(),
            there: Link::default(),
            back: Link::default(),
        };
        self.connections.insert(id, connection);
        self.procs[pid].connections.insert(to, id);
        self.kernel.schedule(Duration::ZERO, Item::Connected(id));
        Some(id)
    }

    /// Rows are on their way to a reader, and in the memory of the server until it takes them.
    pub(super) fn sending(&mut self, pid: Pid, to: ConnectionId, load: u64) {
        match self.connections.get_mut(&to).filter(|to| to.is_open) {
            Some(connection) => connection.sending.push_back(load),
            None => self.sent(pid, load),
        }
    }

    /// The reader has taken the rows that were sent first.
    pub(super) fn taken(&mut self, id: ConnectionId) {
        let connection = self.connections.get_mut(&id).expect("it is one");
        let server = connection.server;
        if let Some(load) = connection.sending.pop_front() {
            self.sent(server, load);
        }
    }

    fn sent(&mut self, server: Pid, load: u64) {
        self.kernel.schedule(SENDING, Item::Sent(server, load));
    }

    /// From a server, with rows if there are any.
    pub(super) fn reply(&mut self, id: ConnectionId, message: FromServer, rows: Option<Rows>) {
        let at = self.kernel.now() + self.latency();
        if let Some(connection) = self.connections.get_mut(&id) {
            let at = connection.back.arrival(at);
            self.kernel.schedule_at(at, Item::Reply(id, message, rows));
        }
    }

    /// A push is let in.
    pub(super) fn admit(&mut self, id: ConnectionId, push: Push) {
        let at = self.kernel.now() + self.latency();
        if let Some(connection) = self.connections.get_mut(&id) {
            let at = connection.back.arrival(at);
            self.kernel.schedule_at(at, Item::Admitted(id, push));
        }
    }

    /// The bytes of a push that was let in, or the word that there are none any more.
    pub(super) fn admitted(&mut self, id: ConnectionId, push: Push) {
        let at = self.kernel.now() + self.latency();
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let at = connection.there.arrival(at);
        let client = &self.procs[connection.client];
        let batch = client.gathered(&push).or_else(|| client.stored(&push));
        self.kernel.schedule_at(at, Item::Bytes(id, push, batch));
    }

    /// The bytes of a push are there. Some servers lose them, and some lose a bit of them.
    pub(super) fn bytes(
        &mut self,
        id: ConnectionId,
        push: Push,
        mut batch: Option<Batch>,
    ) -> Result<(), String> {
        let Some(connection) = self.connections.get(&id) else {
            return Ok(());
        };
        let pid = connection.server;
        let draw = self.kernel.random.below(1_000);
        if batch.is_some() && draw < self.plan.drops {
            self.summary.damages += 1;
            let acked = FromServer::Acked {
                shuffle: push.shuffle,
                group: push.group,
                batch: push.batch,
            };
            self.reply(id, acked, None);
            self.procs[pid].is_mute = true;
            batch = None;
        }
        if let Some(batch) = &mut batch
            && 1_000 - draw <= self.plan.flips
            && let Some(row) = batch.pieces.values_mut().next()
        {
            self.summary.damages += 1;
            row[0] ^= 1 << self.kernel.random.below(64);
        }
        let table = batch.as_ref().map(|batch| batch.table.clone());
        self.procs[pid].incoming = batch;
        let arrived = ServerEvent::Arrived {
            from: id,
            push,
            table,
        };
        let result = self.server(pid, arrived);
        self.procs[pid].incoming = None;
        self.procs[pid].is_mute = false;
        result
    }

    /// Closes the connections that a test picks. Both sides hear of it.
    pub(super) fn sever(&mut self, is_hit: impl Fn(&Connection) -> bool) {
        let open = self.connections.iter();
        let hit = open.filter(|(_, connection)| connection.is_open && is_hit(connection));
        let hit: Vec<ConnectionId> = hit.map(|(&id, _)| id).collect();
        for id in hit {
            self.close(id);
        }
    }

    /// Closes a connection, if it is open. Both sides hear of it.
    pub(super) fn close(&mut self, id: ConnectionId) {
        let connection = self.connections.get_mut(&id).expect("it is one");
        if !std::mem::replace(&mut connection.is_open, false) {
            return;
        }
        let (client, server, target) = (connection.client, connection.server, connection.target);
        for load in std::mem::take(&mut connection.sending) {
            self.sent(server, load);
        }
        self.procs[client].connections.remove(&target);
        for is_client in [true, false] {
            let latency = self.latency();
            self.kernel.schedule(latency, Item::Broken(id, is_client));
        }
    }

    /// One side hears that a connection is gone.
    pub(super) fn broken(&mut self, id: ConnectionId, is_client: bool) -> Result<(), String> {
        let connection = &self.connections[&id];
        let (client, server, target) = (connection.client, connection.server, connection.target);
        match is_client {
            true => self.unreached(client, target),
            false => self.server(server, ServerEvent::Disconnected(id)),
        }
    }

    /// A server was not reached.
    pub(super) fn unreached(&mut self, pid: Pid, server: ServerId) -> Result<(), String> {
        self.summary.unreached += 1;
        self.server(pid, ServerEvent::Unreached(server))?;
        self.writer(pid, WriterEvent::Disconnected(server))?;
        self.reader(pid, ReaderEvent::Disconnected(server))
    }
}
