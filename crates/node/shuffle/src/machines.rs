//! The three state machines of a worker process, and the state of the host around them: maps from ids to
//! bytes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use treadle_net::Peer;
use treadle_reactor::awake;
use treadle_rows::Batch;
use treadle_shuffle::block::{ALIGNMENT, HEADER};
use treadle_shuffle::{
    AttemptId, BatchId, Config, ConnectionId, FromServer, GroupId, Place, Push, ReadPiece, Reader,
    ReaderEffect, ReaderEvent, Refusal, Sent, Server, ServerEffect, ServerEvent, ServerId,
    ShuffleId, Tally, ToMaster, ToNode, ToServer, Transfer, Usage, Verdict, Writer, WriterEffect,
    WriterEvent,
};
use treadle_types::WorkerId;

use crate::disk::{Disk, Loaded};
use crate::held::Held;
use crate::incoming::{Arrived, Incoming, open};
use crate::outgoing::{Outgoing, Reply};
use crate::tasks::Tasks;
use crate::{Callbacks, Inner, Stats};

/// The number of the connection of this process to itself.
const SELF: ConnectionId = ConnectionId(0);

/// The name of a batch of the server here.
type Stored = (ShuffleId, GroupId, BatchId);

/// Pieces that have at most so many bytes on average are small.
const SMALL_PIECE: u64 = 256;

/// Shuffles of which it is kept what was done for them.
const MOST_USED: usize = 1024;

/// An event of a machine. Steps are handled in their order.
#[derive(Debug)]
pub(crate) enum Step {
    Server(ServerEvent),
    Writer(WriterEvent),
    Reader(ReaderEvent),
    /// The bytes of a push that was admitted.
    Arrived {
        from: ConnectionId,
        push: Push,
        batch: Option<Arrived>,
    },
    /// From the writer or the reader here to the server here.
    Request(ToServer),
    /// From the server here to the writer or the reader here, with the bytes of pieces.
    Reply(Reply),
}

/// The batches of a transfer for a group.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) bytes: Bytes,
    pub(crate) batches: Vec<Batch>,
}

/// Rows that answer a read of another worker.
pub(crate) struct RowsToSend {
    pub(crate) peer: Peer,
    pub(crate) message: FromServer,
    pub(crate) pieces: Vec<Bytes>,
}

/// What is done after the lock is released.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) rows: Vec<RowsToSend>,
    /// Bytes to drop. They may be mapped memory: dropping it takes time, and other locks.
    garbage: Vec<Bytes>,
    pub(crate) has_told: bool,
    pub(crate) is_changed: bool,
    pub(crate) log: Vec<String>,
}

/// The machines, and the state of their host.
pub(crate) struct Machines {
    pub(crate) me: ServerId,
    inner: Weak<Inner>,
    server: Server,
    writer: Writer,
    reader: Reader,
    pub(crate) steps: VecDeque<Step>,
    pub(crate) tasks: Tasks,
    /// Batches of running transfers.
    arenas: BTreeMap<(Transfer, GroupId), Gathered>,
    /// Stored batches, by group.
    batches: HashMap<(ShuffleId, GroupId), BTreeMap<BatchId, Arrived>>,
    /// The runs of batches that are in files, or on their way to one.
    in_runs: HashMap<Stored, u64>,
    runs: HashMap<u64, Vec<Stored>>,
    /// The batch that has just arrived.
    arrived: Option<Arrived>,
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
    disk: Disk,
    held: Arc<Held>,
    /// Loads that were begun and are not forgotten.
    loading: HashSet<u64>,
    loaded: HashMap<(u64, u64), Loaded>,
    /// Messages for the master.
    reports: Vec<ToMaster>,
    /// Messages for the master that are sent when the task of a transfer has ended.
    transferred: HashMap<AttemptId, Vec<ToMaster>>,
    pub(crate) after: After,
    pub(crate) is_over: bool,
    pub(crate) stats: Stats,
    /// What was done for shuffles that have not ended.
    usage: BTreeMap<ShuffleId, Usage>,
}

impl Machines {
    pub(crate) fn new(
        me: ServerId,
        inner: Weak<Inner>,
        address: &str,
        files: treadle_volume::Options,
        held: &Arc<Held>,
        config: Config,
    ) -> Self {
        Self {
            me,
            inner,
            server: Server::new(me, config.clone()),
            writer: Writer::new(config.clone()),
            reader: Reader::new(config),
            steps: VecDeque::new(),
            tasks: Tasks::default(),
            arenas: BTreeMap::new(),
            batches: HashMap::new(),
            in_runs: HashMap::new(),
            runs: HashMap::new(),
            arrived: None,
            incoming: Incoming::new(Arc::clone(held)),
            outgoing: Outgoing::new(address, Arc::clone(held)),
            disk: Disk::new(files, Arc::clone(held)),
            held: Arc::clone(held),
            loading: HashSet::new(),
            loaded: HashMap::new(),
            reports: Vec::new(),
            transferred: HashMap::new(),
            after: After::default(),
            is_over: false,
            stats: Stats::default(),
            usage: BTreeMap::new(),
        }
    }

    /// When the next timer is due.
    pub(crate) fn due(&self) -> Option<Duration> {
        let due = [
            self.server.next_deadline(),
            self.writer.next_deadline(),
            self.reader.next_deadline(),
        ];
        due.into_iter().flatten().min()
    }

    /// Runs the timers that are due.
    pub(crate) fn tick(&mut self) {
        let now = awake::now();
        let is_due = |deadline: Option<Duration>| deadline.is_some_and(|at| at <= now);
        if is_due(self.server.next_deadline()) {
            self.steps.push_back(Step::Server(ServerEvent::Tick));
        }
        if is_due(self.writer.next_deadline()) {
            self.steps.push_back(Step::Writer(WriterEvent::Tick));
        }
        if is_due(self.reader.next_deadline()) {
            self.steps.push_back(Step::Reader(ReaderEvent::Tick));
        }
    }

    /// Whether no machine keeps anything, so that connections are not needed.
    pub(crate) fn is_idle(&self) -> bool {
        self.writer.is_empty() && self.reader.is_empty() && self.server.is_empty()
    }

    /// Handles all steps, and those that follow from them.
    pub(crate) fn settle(&mut self, callbacks: &dyn Callbacks) {
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Server(event) => self.tell_server(event, callbacks),
                Step::Writer(event) => self.tell_writer(event, callbacks),
                Step::Reader(event) => self.tell_reader(event, callbacks),
                Step::Arrived { from, push, batch } => {
                    let table = batch.as_ref().map(|(_, table)| table.clone());
                    self.arrived = batch;
                    self.tell_server(ServerEvent::Arrived { from, push, table }, callbacks);
                    let unwanted = self.arrived.take();
                    self.after.garbage.extend(unwanted.map(|(bytes, _)| bytes));
                }
                Step::Request(message) => {
                    let from = SELF;
                    self.tell_server(ServerEvent::Message { from, message }, callbacks);
                }
                Step::Reply(reply) => self.replied(self.me, reply),
            }
        }
        for message in std::mem::take(&mut self.reports) {
            self.tell_master(message, callbacks);
        }
        self.outgoing.flush();
        self.stats.resident = self.server.resident();
        self.stats.in_flight = self.writer.in_flight();
    }

    /// What was done for a shuffle here, to add to it.
    pub(crate) fn usage(&mut self, shuffle: ShuffleId) -> &mut Usage {
        if self.usage.len() >= MOST_USED && !self.usage.contains_key(&shuffle) {
            // It may have ended before a task of it did.
            self.usage.pop_first();
        }
        self.usage.entry(shuffle).or_default()
    }

    /// Handles a message of the master.
    pub(crate) fn hear(&mut self, message: ToNode, callbacks: &dyn Callbacks) {
        if let ToNode::Committed { ask, result, .. } = message {
            self.tasks.committed(ask, result);
            self.after.is_changed = true;
            return;
        }
        if let ToNode::Close(shuffle) = message {
            let usage = self.usage.remove(&shuffle).unwrap_or_default();
            self.tell_master(ToMaster::Used { shuffle, usage }, callbacks);
        }
        let server = ServerEvent::Master(message.clone());
        self.steps.push_back(Step::Server(server));
        let writer = WriterEvent::Master(message.clone());
        self.steps.push_back(Step::Writer(writer));
        self.steps
            .push_back(Step::Reader(ReaderEvent::Master(message)));
    }

    /// The task of a transfer has ended. `is_ok`: it has a result.
    pub(crate) fn finished(&mut self, attempt: AttemptId, is_ok: bool, callbacks: &dyn Callbacks) {
        let messages = self.transferred.remove(&attempt).unwrap_or_default();
        for message in messages.into_iter().filter(|_| is_ok) {
            self.tell_master(message, callbacks);
        }
    }

    pub(crate) fn has_transferred(&self) -> bool {
        !self.transferred.is_empty()
    }

    /// What people read about a server: its address, where the machines know a number.
    pub(crate) fn with_address(&self, text: &str, server: ServerId) -> String {
        let address = match server == self.me {
            true => Some("of this worker"),
            false => self.outgoing.address(WorkerId(server.node)),
        };
        let number = format!("{server:?}");
        text.replace(&number, address.unwrap_or(&number))
    }

    /// A server cannot be reached.
    pub(crate) fn unreached(&mut self, worker: WorkerId) {
        let server = worker.into();
        let writer = WriterEvent::Disconnected(server);
        self.steps.push_back(Step::Writer(writer));
        let filling = ServerEvent::Unreached(server);
        self.steps.push_back(Step::Server(filling));
        let reader = ReaderEvent::Disconnected(server);
        self.steps.push_back(Step::Reader(reader));
    }

    /// Handles a message of a server.
    pub(crate) fn replied(&mut self, from: ServerId, (message, pieces): Reply) {
        if let FromServer::Unread { reason, .. } | FromServer::Refused { reason, .. } = &message
            && matches!(reason, Refusal::Sleep(_))
        {
            self.stats.slept += 1;
        }
        match message {
            FromServer::Rows { read, .. } => {
                let read = Reader::read_of(read);
                self.tasks.came(read, from, message, pieces);
                self.after.is_changed = true;
            }
            FromServer::Unread { .. } => {
                let event = ReaderEvent::Server {
                    from,
                    message,
                    computed: Vec::new(),
                };
                self.steps.push_back(Step::Reader(event));
            }
            _ => {
                // Of the writer's pushes and of those that fill another copy: each knows its own.
                let peer = ServerEvent::Peer(message.clone());
                self.steps.push_back(Step::Server(peer));
                let event = WriterEvent::Server { from, message };
                self.steps.push_back(Step::Writer(event));
            }
        }
    }

    /// Rows were gathered.
    pub(crate) fn gathered(&mut self, transfer: Transfer, group: GroupId, gathered: Gathered) {
        self.stats.gathered += gathered.bytes.len() as u64;
        let batches = gathered.batches.iter();
        let batches = batches.map(|batch| (batch.header.tally, batch.header.length()));
        let event = WriterEvent::Gathered {
            transfer,
            group,
            gathered: treadle_shuffle::Gathered {
                batches: batches.collect(),
            },
        };
        self.arenas.insert((transfer, group), gathered);
        self.steps.push_back(Step::Writer(event));
    }

    /// The bytes of a push of this process; `None`: the transfer has freed them.
    fn batch(&self, push: &Push) -> Option<Bytes> {
        let transfer = Transfer {
            shuffle: push.shuffle,
            map: push.batch.map,
            attempt: push.batch.attempt,
        };
        let first = GroupId {
            server: ServerId::default(),
            ..push.group
        };
        let exact = self.arenas.get(&(transfer, push.group));
        // All copies of a group get the same batches, under the name of the first one.
        let mut of_copies = self.arenas.range((transfer, first)..);
        let of_copies = of_copies
            .next()
            .filter(|((of, group), _)| *of == transfer && group.epoch == push.group.epoch);
        let gathered = exact.or(of_copies.map(|(_, gathered)| gathered))?;
        let batch = gathered.batches.get(push.batch.number as usize)?;
        let header = &batch.header;
        if (header.tally, header.length()) != (push.tally, push.length) {
            return None;
        }
        let end = batch.offset + usize::try_from(push.length).ok()?;
        Some(gathered.bytes.slice(batch.offset..end))
    }

    fn tell_server(&mut self, event: ServerEvent, callbacks: &dyn Callbacks) {
        let mut effects = Vec::new();
        let handled = self.server.handle(event, awake::now(), &mut effects);
        if let Err(error) = handled {
            self.after.log.push(error.to_string());
        }
        debug_assert_eq!(self.server.check(), Ok(()));
        for effect in effects {
            self.serve(effect, callbacks);
        }
    }

    fn serve(&mut self, effect: ServerEffect, callbacks: &dyn Callbacks) {
        match effect {
            ServerEffect::Reply { to: SELF, message } => {
                self.steps.push_back(Step::Reply((message, Vec::new())));
            }
            ServerEffect::Reply { to, message } => self.incoming.reply(to, &message),
            ServerEffect::Admit { from: SELF, push } => {
                let bytes = self.batch(&push);
                let batch = bytes.and_then(|bytes| open(&push, &bytes).map(|table| (bytes, table)));
                let from = SELF;
                self.steps.push_back(Step::Arrived { from, push, batch });
            }
            ServerEffect::Admit { from, push } => match self.incoming.admit(from, push) {
                Ok(Some(batch)) => {
                    self.steps.push_back(Step::Arrived { from, push, batch });
                }
                Ok(None) => {}
                Err(error) => {
                    let line = format!("cannot receive rows of a shuffle: {error}");
                    self.after.log.push(line);
                }
            },
            ServerEffect::Store {
                shuffle,
                group,
                batch,
            } => {
                if let Some(arrived) = self.arrived.take() {
                    self.stats.stored += arrived.0.len() as u64;
                    self.usage(shuffle).stored += arrived.0.len() as u64;
                    let of_group = self.batches.entry((shuffle, group)).or_default();
                    of_group.insert(batch, arrived);
                }
            }
            ServerEffect::Drop {
                shuffle,
                group,
                batch,
            } => {
                if let Entry::Occupied(mut of_group) = self.batches.entry((shuffle, group)) {
                    let removed = of_group.get_mut().remove(&batch);
                    self.after.garbage.extend(removed.map(|(bytes, _)| bytes));
                    if of_group.get().is_empty() {
                        of_group.remove();
                    }
                }
            }
            ServerEffect::Spill {
                run,
                shuffle,
                group,
                batches,
            } => {
                let of_group = self.batches.get(&(shuffle, group));
                let batches = batches.into_iter().filter_map(|id| {
                    let (bytes, table) = of_group?.get(&id)?;
                    Some((id, bytes.clone(), table.clone()))
                });
                let batches: Vec<_> = batches.collect();
                let ids = batches.iter().map(|&(id, ..)| (shuffle, group, id));
                let ids: Vec<Stored> = ids.collect();
                self.in_runs.extend(ids.iter().map(|&stored| (stored, run)));
                self.runs.insert(run, ids);
                if !self.disk.spill(&self.inner, run, shuffle, batches) {
                    let written = Err("the thread for files could not start".into());
                    self.spilled(run, 0, written);
                }
            }
            ServerEffect::DropRun(run) => {
                self.forget_run(run);
                self.disk.remove(run);
            }
            ServerEffect::Load {
                load,
                run,
                partition,
                maps,
            } => {
                self.loading.insert(load);
                if !self.disk.load(load, run, (partition, maps)) {
                    self.loaded(load, run, None);
                }
            }
            ServerEffect::Forget { load } => {
                self.loading.remove(&load);
                self.loaded.retain(|&(other, _), _| other != load);
            }
            ServerEffect::Send {
                to,
                read,
                load,
                shuffle,
                group,
                pieces,
                ..
            } => {
                let rows = self.rows_of((load, shuffle, group), &pieces, to);
                let pieces: Vec<ReadPiece> = pieces.into_iter().map(|sent| sent.piece).collect();
                let tally: Tally = pieces.iter().map(ReadPiece::tally).sum();
                self.send_rows(to, read, tally.narrow(), pieces, rows);
            }
            ServerEffect::Tell { to, message } => self.tell_copy(to, message),
            ServerEffect::Report(message) => {
                if let ToMaster::Sealed {
                    shuffle,
                    group,
                    verdict: Verdict::Complete,
                    ..
                } = message
                    && let Some((partitions, sizes)) = self.server.sizes(shuffle, group)
                {
                    let measured = ToMaster::Measured {
                        shuffle,
                        group,
                        partitions,
                        sizes,
                    };
                    self.tell_master(measured, callbacks);
                }
                self.tell_master(message, callbacks);
            }
        }
    }

    /// A run was written, or could not be.
    pub(crate) fn spilled(&mut self, run: u64, bytes: u64, written: Result<(), Arc<str>>) {
        match written {
            Ok(()) => self.stats.spilled += bytes,
            Err(_) => self.forget_run(run),
        }
        let event = ServerEvent::Spilled { run, written };
        self.steps.push_back(Step::Server(event));
    }

    fn forget_run(&mut self, run: u64) {
        for stored in self.runs.remove(&run).unwrap_or_default() {
            // Another run may have it by now.
            if self.in_runs.get(&stored) == Some(&run) {
                self.in_runs.remove(&stored);
            }
        }
    }

    /// A run was read.
    pub(crate) fn loaded(&mut self, load: u64, run: u64, loaded: Option<Loaded>) {
        if !self.loading.contains(&load) {
            return;
        }
        let pieces = loaded.as_ref();
        let pieces = pieces.map(|loaded| loaded.iter().map(|(piece, _)| *piece).collect());
        if let Some(loaded) = loaded {
            let bytes = loaded.iter().map(|(piece, _)| piece.bytes);
            self.stats.loaded += bytes.sum::<u64>();
            self.loaded.insert((load, run), loaded);
        }
        let event = ServerEvent::Loaded { load, run, pieces };
        self.steps.push_back(Step::Server(event));
    }

    fn loaded_piece(&self, name: (u64, u64), piece: &ReadPiece) -> Option<Bytes> {
        let loaded = self.loaded.get(&name)?;
        let at = loaded.binary_search_by_key(&piece.batch, |(piece, _)| piece.batch);
        Some(loaded[at.ok()?].1.clone())
    }

    /// Calls `take` with each piece: memory that has it, and where it is in that. `None`: one is not here.
    fn each_piece(
        &self,
        (load, shuffle, group): (u64, ShuffleId, GroupId),
        pieces: &[Sent],
        mut take: impl FnMut(&Bytes, Range<usize>),
    ) -> Option<()> {
        let batches = self.batches.get(&(shuffle, group));
        // Both are in order: hardly any batch has to be searched for.
        let mut next = batches.map(|batches| batches.range(..));
        for Sent {
            piece,
            place,
            offset,
        } in pieces
        {
            if let Place::Run(run) = place {
                let loaded = self.loaded_piece((load, *run), piece)?;
                take(&loaded, 0..loaded.len());
                continue;
            }
            let following = next
                .as_mut()
                .and_then(Iterator::next)
                .filter(|&(id, _)| *id == piece.batch);
            let (bytes, table) = match following {
                Some((_, found)) => found,
                None => {
                    let mut from_it = batches?.range(piece.batch..);
                    let found = from_it.next().filter(|&(id, _)| *id == piece.batch)?.1;
                    next = Some(from_it);
                    found
                }
            };
            let start = (HEADER + table.as_bytes().len()).next_multiple_of(ALIGNMENT);
            let start = start + *offset as usize;
            take(bytes, start..start + piece.bytes as usize);
        }
        Some(())
    }

    /// The rows of pieces that a reader asked for. Small ones are in one piece of memory: to copy them
    /// takes less time than to count who uses each batch. Another process does not notice.
    fn rows_of(
        &self,
        of: (u64, ShuffleId, GroupId),
        pieces: &[Sent],
        to: ConnectionId,
    ) -> Option<Vec<Bytes>> {
        let bytes: u64 = pieces.iter().map(|sent| sent.piece.bytes).sum();
        let is_small = to != SELF && pieces.len() > 1 && bytes <= SMALL_PIECE * pieces.len() as u64;
        let mut joined = Vec::new();
        if is_small && joined.try_reserve_exact(bytes as usize).is_ok() {
            self.each_piece(of, pieces, |bytes, range| {
                joined.extend_from_slice(&bytes[range]);
            })?;
            return Some(vec![self.held.charge(joined.into())]);
        }
        let mut rows = Vec::with_capacity(pieces.len());
        self.each_piece(of, pieces, |bytes, range| rows.push(bytes.slice(range)))?;
        Some(rows)
    }

    fn send_rows(
        &mut self,
        to: ConnectionId,
        read: u64,
        tally: Tally,
        pieces: Vec<ReadPiece>,
        rows: Option<Vec<Bytes>>,
    ) {
        let Some(rows) = rows else {
            let line = "the rows of a piece that a reader asked for are not here: a bug of the shuffle plane";
            self.after.log.push(line.into());
            return;
        };
        let message = FromServer::Rows {
            read,
            tally,
            pieces,
        };
        if to == SELF {
            self.steps.push_back(Step::Reply((message, rows)));
        } else if let Some(peer) = self.incoming.peer(to) {
            self.after.rows.push(RowsToSend {
                peer: peer.clone(),
                message,
                pieces: rows,
            });
        }
    }

    fn tell_writer(&mut self, event: WriterEvent, callbacks: &dyn Callbacks) {
        let mut effects = Vec::new();
        let handled = self.writer.handle(event, awake::now(), &mut effects);
        if let Err(error) = handled {
            self.after.log.push(error.to_string());
        }
        debug_assert_eq!(self.writer.check(), Ok(()));
        for effect in effects {
            match effect {
                WriterEffect::Gather {
                    transfer,
                    group,
                    partitions,
                } => {
                    self.tasks.gather(transfer, group, partitions);
                    self.after.is_changed = true;
                }
                WriterEffect::Send { to, message } => self.request(to, message),
                WriterEffect::Free { transfer, group } => {
                    if let Some(gathered) = self.arenas.remove(&(transfer, group)) {
                        self.stats.gathered -= gathered.bytes.len() as u64;
                        self.after.garbage.push(gathered.bytes);
                    }
                }
                WriterEffect::Done(receipt) => {
                    self.stats.transfers += 1;
                    self.tasks.transferred(receipt.transfer, Ok(receipt));
                    self.after.is_changed = true;
                }
                WriterEffect::Failed { transfer, error } => {
                    self.tasks.transferred(transfer, Err(error));
                    self.after.is_changed = true;
                }
                // It is sent after the task's result.
                WriterEffect::Report(message @ ToMaster::Transferred { transfer, .. }) => {
                    let messages = self.transferred.entry(transfer.attempt).or_default();
                    messages.push(message);
                }
                WriterEffect::Report(message) => self.tell_master(message, callbacks),
            }
        }
    }

    fn tell_reader(&mut self, event: ReaderEvent, callbacks: &dyn Callbacks) {
        let mut effects = Vec::new();
        let handled = self.reader.handle(event, awake::now(), &mut effects);
        if let Err(error) = handled {
            self.after.log.push(error.to_string());
        }
        debug_assert_eq!(self.reader.check(), Ok(()));
        for effect in effects {
            match effect {
                ReaderEffect::Send { to, message } => self.request(to, message),
                ReaderEffect::Keep { read } => self.tasks.keep(read),
                ReaderEffect::Return { read, .. } => {
                    self.stats.reads += 1;
                    self.tasks.read_over(read, Ok(()));
                    self.after.is_changed = true;
                }
                ReaderEffect::Failed { read, error } => {
                    self.tasks.read_over(read, Err(error));
                    self.after.is_changed = true;
                }
                ReaderEffect::Report(message) => self.tell_master(message, callbacks),
            }
        }
    }

    /// Sends a message of the writer or the reader to a server.
    fn request(&mut self, to: ServerId, message: ToServer) {
        if to == self.me {
            self.steps.push_back(Step::Request(message));
            return;
        }
        let worker = WorkerId(to.node);
        let batch = match &message {
            ToServer::Push(push) => match self.batch(push) {
                Some(batch) => {
                    self.stats.pushed += batch.len() as u64;
                    self.usage(push.shuffle).pushed += batch.len() as u64;
                    Some(batch)
                }
                // The transfer has just ended, and freed the bytes.
                None => return,
            },
            _ => None,
        };
        if !self.outgoing.send(worker, &message, batch) {
            self.unreached(worker);
        }
    }

    /// Sends a message of the server here to one that is to have another copy: with a batch from memory,
    /// or from a file.
    fn tell_copy(&mut self, to: ServerId, message: ToServer) {
        let mut batch = None;
        if let ToServer::Push(push) = &message {
            let group = (push.shuffle, push.group.at(self.me));
            let stored = (group.0, group.1, push.batch);
            let of_group = self.batches.get(&group);
            if let Some((bytes, _)) = of_group.and_then(|batches| batches.get(&push.batch)) {
                batch = Some(bytes.clone());
            } else if let Some(&run) = self.in_runs.get(&stored) {
                if !self.disk.restore(run, to, *push) {
                    self.unreached(WorkerId(to.node));
                }
                return;
            } else {
                // It was dropped meanwhile, since its attempt did not win: the machine knows.
                return;
            }
        }
        self.send_copy(to, &message, batch);
    }

    /// A batch was read from a file for another copy. `None`: it could not be.
    pub(crate) fn restored(&mut self, to: ServerId, push: Push, batch: Option<Bytes>) {
        match batch {
            Some(batch) => self.send_copy(to, &ToServer::Push(push), Some(batch)),
            None => {
                let message = ToMaster::Damaged {
                    shuffle: push.shuffle,
                    group: push.group.at(self.me),
                };
                self.reports.push(message);
            }
        }
    }

    fn send_copy(&mut self, to: ServerId, message: &ToServer, batch: Option<Bytes>) {
        let worker = WorkerId(to.node);
        self.stats.copied += batch.as_ref().map_or(0, |batch| batch.len() as u64);
        if !self.outgoing.send(worker, message, batch) {
            self.unreached(worker);
        }
    }

    fn tell_master(&mut self, message: ToMaster, callbacks: &dyn Callbacks) {
        callbacks.tell(message);
        self.after.has_told = true;
    }

    /// How many things are kept, for tests and diagnosis.
    pub(crate) fn leftovers(&self) -> usize {
        self.arenas.len()
            + self.batches.values().map(BTreeMap::len).sum::<usize>()
            + self.in_runs.len()
            + self.loading.len()
            + self.loaded.len()
            + self.transferred.len()
            + usize::from(!self.is_idle())
    }

    /// The process ends: closes all connections and files.
    pub(crate) fn close(&mut self) {
        self.is_over = true;
        self.after.is_changed = true;
        self.incoming.close();
        self.outgoing.close();
        self.disk.close();
    }
}

impl fmt::Debug for Machines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machines")
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}
