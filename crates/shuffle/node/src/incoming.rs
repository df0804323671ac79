//! Connections from the writers and readers of other workers to the server here.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use treadle_host::{Service, Session};
use treadle_net::{Incoming as Object, NetError, Peer, SMALL, SendOptions};
use treadle_shuffle::block::{Header, Table};
use treadle_shuffle::{
    BatchId, ConnectionId, FromServer, GroupId, Push, ServerEvent, ShuffleId, ToServer,
};
use treadle_shuffle_wire::{FROM_SERVER, TO_SERVER, decode_shuffled, encode_shuffled};

use crate::bundle::{Bundle, Offered};
use crate::held::Held;
use crate::machines::{Machines, Step};
use crate::{Inner, Plane, unpacked};

/// How many messages are received before the machines handle them.
const TAKEN: usize = 64;

/// The longest message, in bytes: what has won of as many maps as a shuffle may have.
const LONGEST: u64 = 16 << 20;

/// Answers of one turn are written together.
const CORKED: SendOptions = SendOptions {
    corked: true,
    has_own_checks: false,
};

/// The key of a push on a connection.
type Name = (ConnectionId, ShuffleId, GroupId, BatchId);

/// A batch that has come, and its table.
pub(crate) type Arrived = (Bytes, Table);

/// Connections from others.
#[derive(Debug)]
pub(crate) struct Incoming {
    connections: HashMap<ConnectionId, Connection>,
    /// Pushes that were announced and are not admitted yet.
    offered: HashMap<Name, Offered>,
    /// Objects with the batches of several pushes, by their numbers.
    bundles: HashMap<u64, Bundle>,
    last_bundle: u64,
    /// Connections with answers that are not written yet.
    corked: Vec<ConnectionId>,
    /// The number of the last connection. 0 is this process itself.
    last: u64,
    held: Arc<Held>,
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    /// Pushes that were admitted and whose bytes have not arrived.
    coming: Vec<(Push, Object)>,
    /// Messages that do not fit into the header of their object. Only the first one is accepted, so that they
    /// take the memory of one.
    long: VecDeque<Object>,
}

fn name(from: ConnectionId, push: &Push) -> Name {
    let (shuffle, group, batch) = push.name();
    (from, shuffle, group, batch)
}

impl Incoming {
    pub(crate) fn new(held: Arc<Held>) -> Self {
        Self {
            connections: HashMap::new(),
            offered: HashMap::new(),
            bundles: HashMap::new(),
            last_bundle: 0,
            corked: Vec::new(),
            last: 0,
            held,
        }
    }

    fn add(&mut self, peer: Peer) -> ConnectionId {
        self.last += 1;
        let id = ConnectionId(self.last);
        let (coming, long) = (Vec::new(), VecDeque::new());
        let connection = Connection { peer, coming, long };
        self.connections.insert(id, connection);
        id
    }

    /// Keeps an announced push.
    fn offer(&mut self, from: ConnectionId, push: &Push, offered: Offered) {
        let before = self.offered.insert(name(from, push), offered);
        if let Some(before) = before {
            self.give_up(before, "the batch was announced again");
        }
    }

    /// Keeps pushes that were announced together.
    fn offer_together(&mut self, from: ConnectionId, pushes: &[Push], object: Object) {
        self.last_bundle += 1;
        let number = self.last_bundle;
        let bundle = Bundle::new(from, object, pushes.len());
        self.bundles.insert(number, bundle);
        for (at, push) in pushes.iter().enumerate() {
            self.offer(from, push, Offered::Together(number, at));
        }
    }

    /// A push that was announced is not wanted.
    fn give_up(&mut self, offered: Offered, reason: &str) {
        match offered {
            Offered::Alone(object) => object.refuse(reason),
            Offered::Together(number, at) => {
                if let Entry::Occupied(mut bundle) = self.bundles.entry(number)
                    && bundle.get_mut().give_up(at)
                    && let Some(object) = bundle.remove().object
                {
                    object.refuse(reason);
                }
            }
        }
    }

    /// Accepts the bytes of a push. Returns them if they are here already.
    ///
    /// # Errors
    /// There is no memory. The connection is closed, and the writer connects again later.
    pub(crate) fn admit(
        &mut self,
        from: ConnectionId,
        push: Push,
    ) -> Result<Option<Option<Arrived>>, NetError> {
        let Some(connection) = self.connections.get_mut(&from) else {
            return Ok(None);
        };
        let admitted = match self.offered.remove(&name(from, &push)) {
            None => Ok(None),
            Some(Offered::Alone(object)) => connection.admit(push, object, &self.held),
            Some(Offered::Together(number, at)) => match self.bundles.entry(number) {
                Entry::Occupied(mut bundle) => {
                    let admitted = bundle.get_mut().admit(push, at, &self.held);
                    if bundle.get().is_over() {
                        bundle.remove();
                    }
                    admitted
                }
                Entry::Vacant(_) => Ok(None),
            },
        };
        if admitted.is_err() {
            connection.peer.start_close();
        }
        admitted
    }

    /// Takes the pushes whose bytes have arrived.
    fn collect(&mut self, from: ConnectionId) -> Vec<(Push, Option<Arrived>)> {
        let Some(connection) = self.connections.get_mut(&from) else {
            return Vec::new();
        };
        let done = connection
            .coming
            .extract_if(.., |(_, object)| object.is_done());
        let mut all = Vec::new();
        for (push, object) in done {
            match arrived(&push, object, &self.held) {
                Ok(arrived) => all.push((push, arrived)),
                // There is no memory. The writer connects again later.
                Err(_) => connection.peer.start_close(),
            }
        }
        self.bundles.retain(|_, bundle| {
            if bundle.from == from && bundle.collect(&self.held, &mut all).is_err() {
                connection.peer.start_close();
            }
            !bundle.is_over()
        });
        all
    }

    /// Receives messages that do not fit into the header of their object, and takes those that have arrived.
    /// They may come after later short ones.
    fn receive_long(&mut self, from: ConnectionId, objects: Vec<Object>) -> Vec<ToServer> {
        let mut messages = Vec::new();
        let Some(connection) = self.connections.get_mut(&from) else {
            return messages;
        };
        let mut is_accepted = !connection.long.is_empty();
        connection.long.extend(objects);
        while let Some(object) = connection.long.front() {
            if !is_accepted && object.accept(Vec::new()).is_err() {
                connection.peer.start_close();
                break;
            }
            is_accepted = object.is_done();
            if !is_accepted {
                break;
            }
            is_accepted = false;
            match connection.long.pop_front().and_then(decode_long) {
                Some(message) => messages.push(message),
                None => connection.peer.start_close(),
            }
        }
        messages
    }

    /// Sends an answer with the next [`Self::flush`]. If it answers a push that was not admitted, the bytes are refused.
    pub(crate) fn reply(&mut self, to: ConnectionId, message: &FromServer) {
        if let FromServer::Acked {
            shuffle,
            group,
            batch,
        }
        | FromServer::Refused {
            shuffle,
            group,
            batch,
            ..
        } = *message
            && let Some(offered) = self.offered.remove(&(to, shuffle, group, batch))
        {
            self.give_up(offered, "the batch is not wanted");
        }
        if let Some(connection) = self.connections.get(&to) {
            let frames = [encode_shuffled(message).into()];
            if !self.corked.contains(&to) {
                self.corked.push(to);
            }
            // The other side notices by itself when the connection is closed.
            let _ = connection.peer.send_with(FROM_SERVER, &frames, CORKED);
        }
    }

    /// Writes all answers.
    pub(crate) fn flush(&mut self) {
        for to in self.corked.drain(..) {
            if let Some(connection) = self.connections.get(&to) {
                connection.peer.flush();
            }
        }
    }

    /// The peer of a connection.
    pub(crate) fn peer(&self, to: ConnectionId) -> Option<&Peer> {
        self.connections.get(&to).map(|connection| &connection.peer)
    }

    fn remove(&mut self, from: ConnectionId) {
        self.connections.remove(&from);
        self.offered.retain(|(other, ..), _| *other != from);
        self.bundles.retain(|_, bundle| bundle.from != from);
    }

    /// Ends a connection, with all that is to be sent on it.
    pub(crate) fn end(&mut self, connection: ConnectionId) {
        if let Some(connection) = self.connections.get(&connection) {
            connection.peer.start_close();
        }
        self.remove(connection);
    }

    pub(crate) fn close(&mut self) {
        self.offered.clear();
        self.bundles.clear();
        for connection in self.connections.values() {
            connection.peer.start_close();
        }
    }
}

impl Connection {
    /// Accepts the bytes of a push. Returns them if they are here already.
    ///
    /// # Errors
    /// There is no memory.
    fn admit(
        &mut self,
        push: Push,
        object: Object,
        held: &Arc<Held>,
    ) -> Result<Option<Option<Arrived>>, NetError> {
        object.accept(Vec::new())?;
        if !object.is_done() {
            self.coming.push((push, object));
            return Ok(None);
        }
        arrived(&push, object, held).map(Some)
    }
}

/// The batch that was announced; `None` if other bytes came.
///
/// # Errors
/// It has not come.
fn arrived(push: &Push, object: Object, held: &Arc<Held>) -> Result<Option<Arrived>, NetError> {
    let mut frames = object.take()?.frames.into_iter();
    let Some(frame) = frames.nth(1) else {
        return Ok(None);
    };
    let batch = held.charge(frame.into_bytes());
    Ok(open(push, &batch).map(|table| (batch, table)))
}

/// The message that has arrived; `None` if it is none, or has bytes beside it.
fn decode_long(object: Object) -> Option<ToServer> {
    let frame = object.take().ok()?.frames.into_iter().next()?;
    let message = decode_shuffled(&frame.into_bytes()).ok()?;
    let has_bytes = matches!(message, ToServer::Push(_) | ToServer::Pushes { .. });
    (!has_bytes).then_some(message)
}

/// The table of a batch; `None` if it is not the batch that was announced.
pub(crate) fn open(push: &Push, batch: &Bytes) -> Option<Table> {
    let header = Header::decode(batch).ok()?;
    let is_it = header.shuffle == push.shuffle
        && header.epoch == push.group.epoch
        && header.batch == push.batch
        && header.tally == push.tally
        && header.length() == push.length
        && batch.len() as u64 == push.length;
    if !is_it {
        return None;
    }
    let start = treadle_shuffle::block::HEADER;
    let end = start + usize::try_from(header.table_length()).ok()?;
    Table::new(&header, batch.slice(start..end)).ok()
}

impl Service for Plane {
    fn connected(&self, peer: Peer) -> Box<dyn Session> {
        let id = self.0.with(|machines| machines.connected(peer.clone()));
        let plane = Arc::downgrade(&self.0);
        Box::new(Visitor { plane, id, peer })
    }
}

/// The session of one connection.
struct Visitor {
    plane: Weak<Inner>,
    id: ConnectionId,
    peer: Peer,
}

impl Session for Visitor {
    fn turn(&mut self) -> Result<bool, NetError> {
        let Some(inner) = self.plane.upgrade() else {
            return Ok(false);
        };
        loop {
            let mut taken = Vec::new();
            let mut over = None;
            while taken.len() < TAKEN {
                match self.peer.try_next() {
                    Ok(Some(object)) => match message(object) {
                        Ok(came) => taken.push(came),
                        Err(reason) => {
                            let who = "a message of another worker about rows is refused";
                            inner.log(&format!("{who}: {reason}"));
                            self.peer.start_close();
                        }
                    },
                    Ok(None) => break,
                    Err(error) => {
                        over = Some(error);
                        break;
                    }
                }
            }
            let is_all = taken.len() < TAKEN;
            inner.with(|machines| machines.requested(self.id, taken));
            inner.serve_timers();
            match over {
                Some(error) => return Err(error),
                None if is_all => return Ok(true),
                None => {}
            }
        }
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        if let Some(inner) = self.plane.upgrade() {
            inner.with(|machines| machines.disconnected(self.id));
        }
    }
}

/// What comes on a connection.
enum Came {
    Message(ToServer),
    /// With the object that will bring the bytes.
    Push(Push, Object),
    Pushes(Vec<Push>, Object),
    /// A message of more bytes than the header of an object has room for, which were not sent yet.
    Long(Object),
}

/// What an object is.
fn message(object: Object) -> Result<Came, String> {
    let (kind, sizes) = object.header();
    let head = object.inline_frame(0);
    if kind == TO_SERVER && head.is_none() && sizes.len() == 1 && sizes[0] <= LONGEST {
        return Ok(Came::Long(object));
    }
    let decoded = match head {
        Some(head) if kind == TO_SERVER && sizes[0] <= SMALL => {
            decode_shuffled(&head).map_err(|error| error.to_string())
        }
        _ => Err(format!("kind {kind}, sizes {sizes:?}")),
    };
    let message = match decoded {
        Ok(message) => message,
        Err(reason) => {
            object.refuse("this is not a message of the shuffle plane");
            return Err(reason);
        }
    };
    match &message {
        ToServer::Push(push) if sizes.len() == 2 && sizes[1] == push.length => {
            Ok(Came::Push(*push, object))
        }
        ToServer::Push(push) => {
            let reason = "a push must have one batch, of the announced length";
            object.refuse(reason);
            Err(format!("{reason} {}: {sizes:?}", push.length))
        }
        ToServer::Pushes { pushes } => {
            let lengths = || pushes.iter().map(|push| push.length);
            let bytes = lengths().fold(0, u64::saturating_add);
            let is_right = !pushes.is_empty() && bytes <= ToServer::TOGETHER;
            if is_right && sizes[1..].iter().copied().eq(lengths()) {
                return Ok(Came::Pushes(pushes.clone(), object));
            }
            let reason =
                "several pushes must be small, and have a batch each, of the announced length";
            object.refuse(reason);
            Err(format!("{reason}: {sizes:?}"))
        }
        _ if sizes.len() == 1 => {
            object.take().map_err(|error| error.to_string())?;
            Ok(Came::Message(message))
        }
        _ => {
            object.refuse("only a push has bytes");
            Err("only a push has bytes".into())
        }
    }
}

impl Machines {
    fn connected(&mut self, peer: Peer) -> ConnectionId {
        let member = unpacked(peer.client());
        let from = self.incoming.add(peer);
        // Servers of any master do not say who they are.
        if member.node != 0 {
            let connected = ServerEvent::Connected { from, member };
            self.steps.push_back(Step::Server(connected));
        }
        from
    }

    /// Handles messages of a connection, and bytes that have arrived on it.
    fn requested(&mut self, from: ConnectionId, came: Vec<Came>) {
        for (push, batch) in self.incoming.collect(from) {
            self.steps.push_back(Step::Arrived { from, push, batch });
        }
        let (mut messages, mut long) = (Vec::with_capacity(came.len()), Vec::new());
        for came in came {
            match came {
                Came::Message(message) => messages.push(message),
                Came::Push(push, object) => {
                    let offered = Offered::Alone(object);
                    self.incoming.offer(from, &push, offered);
                    messages.push(ToServer::Push(push));
                }
                Came::Pushes(pushes, object) => {
                    self.incoming.offer_together(from, &pushes, object);
                    messages.push(ToServer::Pushes { pushes });
                }
                Came::Long(object) => long.push(object),
            }
        }
        messages.extend(self.incoming.receive_long(from, long));
        let is_fetch = |message: &ToServer| matches!(message, ToServer::Fetch(_));
        for some in messages.chunk_by(|one, next| is_fetch(one) && is_fetch(next)) {
            let fetches = some.iter().filter_map(|message| match message {
                ToServer::Fetch(fetch) => Some(*fetch),
                _ => None,
            });
            let event = match some {
                [message] => ServerEvent::Message {
                    from,
                    message: message.clone(),
                },
                _ => ServerEvent::Fetches {
                    from,
                    fetches: fetches.collect(),
                },
            };
            self.steps.push_back(Step::Server(event));
        }
    }

    fn disconnected(&mut self, from: ConnectionId) {
        self.incoming.remove(from);
        let event = ServerEvent::Disconnected(from);
        self.steps.push_back(Step::Server(event));
    }
}
