//! The three state machines of a worker process, and the state of the host around them: maps from ids to
//! bytes.

mod asking;
mod serving;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use treadle_net::Peer;
use treadle_reactor::awake;
use treadle_rows::Batch;
use treadle_shuffle::{
    AttemptId, BatchId, Config, ConnectionId, FromServer, GroupId, LinkId, Push, Reader,
    ReaderEvent, Remote, Server, ServerEvent, ServerId, ShuffleId, Tenant, ToMaster, ToNode,
    ToServer, Transfer, Usage, Writer, WriterEvent,
};
use treadle_shuffle_remote::Store;

use crate::disk::{self, Disk};
use crate::held::Held;
use crate::incoming::{Arrived, Incoming};
use crate::memory::ProcessMemory;
use crate::outgoing::{Outgoing, Reply};
use crate::remote::RemoteRuns;
use crate::run::Loaded;
use crate::stored::Batches;
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
    /// The server is to know what the process takes: what it takes when that is handled.
    Measure {
        is_least: bool,
    },
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
    pub(crate) to: ConnectionId,
    pub(crate) peer: Peer,
    /// The number of the read's loads.
    pub(crate) load: u64,
    pub(crate) message: FromServer,
    pub(crate) pieces: Vec<Bytes>,
}

/// What is done after the lock is released.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) rows: Vec<RowsToSend>,
    /// Bytes to drop. They may be mapped memory: dropping it takes time, and other locks.
    pub(crate) garbage: Vec<Bytes>,
    /// What the process may take when nobody uses more, if something waits for memory.
    pub(crate) most: Option<u64>,
    pub(crate) has_told: bool,
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
    batches: HashMap<(ShuffleId, GroupId), Batches>,
    /// The runs of batches that are in files, or on their way to one.
    in_runs: HashMap<Stored, u64>,
    runs: HashMap<u64, Vec<Stored>>,
    /// The batch that has just arrived.
    arrived: Option<Arrived>,
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
    disk: Disk,
    remote: Option<RemoteRuns>,
    held: Arc<Held>,
    process: Arc<ProcessMemory>,
    /// Loads that were begun and are not forgotten.
    loading: HashMap<u64, Arc<AtomicBool>>,
    loaded: HashMap<(u64, u64), Loaded>,
    /// Messages for masters.
    reports: Vec<(LinkId, ToMaster)>,
    /// Messages for the master that are sent when the task of a transfer has ended.
    transferred: HashMap<AttemptId, Vec<ToMaster>>,
    pub(crate) after: After,
    /// Events of the server so far.
    handled: usize,
    pub(crate) is_over: bool,
    pub(crate) stats: Stats,
    /// What was done for shuffles that have not ended.
    usage: BTreeMap<ShuffleId, Usage>,
}

impl Machines {
    pub(crate) fn new(
        server: Server,
        (me, reader): (ServerId, Tenant),
        inner: Weak<Inner>,
        address: &str,
        (files, store): (treadle_volume::Options, Option<Store>),
        (held, process): (&Arc<Held>, &Arc<ProcessMemory>),
        config: Config,
    ) -> Self {
        Self {
            me,
            inner,
            server,
            writer: Writer::new(config.clone()),
            reader: Reader::new(reader, config.clone()),
            steps: VecDeque::new(),
            tasks: Tasks::default(),
            arenas: BTreeMap::new(),
            batches: HashMap::new(),
            in_runs: HashMap::new(),
            runs: HashMap::new(),
            arrived: None,
            incoming: Incoming::new(Arc::clone(held)),
            outgoing: Outgoing::new(address, Arc::clone(held)),
            remote: store.map(|store| {
                let is_shared = config.remote == Remote::First;
                RemoteRuns::new(store, is_shared, Arc::clone(held))
            }),
            disk: Disk::new(files, config, Arc::clone(held)),
            held: Arc::clone(held),
            process: Arc::clone(process),
            loading: HashMap::new(),
            loaded: HashMap::new(),
            reports: Vec::new(),
            transferred: HashMap::new(),
            after: After::default(),
            handled: 0,
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

    /// Looks, now and then, which servers have sent something since: rows may take long to come.
    pub(crate) fn hear_servers(&mut self) {
        if !self.reader.is_empty() {
            let heard = self.outgoing.heard(awake::now()).into_iter();
            let heard = heard.map(|worker| Step::Reader(ReaderEvent::Heard(worker)));
            self.steps.extend(heard);
        }
    }

    /// Handles all steps, and those that follow from them.
    pub(crate) fn settle(&mut self, callbacks: &dyn Callbacks) {
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Server(event) => self.tell_server(event, callbacks),
                Step::Measure { is_least } => {
                    self.tell_server(self.process.measured(is_least), callbacks);
                }
                Step::Writer(event) => self.tell_writer(event, callbacks),
                Step::Reader(event) => self.tell_reader(event, callbacks),
                Step::Arrived { from, push, batch } => {
                    let table = batch.as_ref().map(|(_, table)| table.clone());
                    // The effect `Store` takes it from there.
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
        for (link, message) in std::mem::take(&mut self.reports) {
            self.tell_master(link, message, callbacks);
        }
        self.outgoing.flush();
        self.incoming.flush();
        self.stats.resident = self.server.resident();
        self.stats.in_flight = self.writer.in_flight();
        self.stats.waiting = self.server.waiting() as u64;
        self.stats.is_failing = self.server.is_failing();
        self.stats.intake = self.server.intake();
        self.stats.throttled = self.server.slept();
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
    pub(crate) fn hear(&mut self, link: LinkId, message: ToNode, callbacks: &dyn Callbacks) {
        if let ToNode::Committed { ask, result, .. } = message {
            self.tasks.committed(ask, result);
            return;
        }
        if let ToNode::Close(shuffle) = message {
            let usage = self.usage.remove(&shuffle).unwrap_or_default();
            self.tell_master(link, ToMaster::Used { shuffle, usage }, callbacks);
        }
        let server = ServerEvent::Master {
            link,
            message: message.clone(),
        };
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
            self.tell_master(LinkId::ONLY, message, callbacks);
        }
    }

    pub(crate) fn has_transferred(&self) -> bool {
        !self.transferred.is_empty()
    }

    /// What people read about a server: its address, where the machines know a number.
    pub(crate) fn with_address(&self, text: &str, server: ServerId) -> String {
        let address = match server == self.me {
            true => Some("of this worker"),
            false => self.outgoing.address(server),
        };
        let number = format!("{server:?}");
        text.replace(&number, address.unwrap_or(&number))
    }

    /// The master has dropped a process.
    pub(crate) fn lost(&mut self, worker: ServerId) {
        self.outgoing.lost(worker);
        self.unreached(worker);
        let gone = ServerEvent::Gone(worker);
        self.steps.push_back(Step::Server(gone));
    }

    /// A link has ended.
    pub(crate) fn ungoverned(&mut self, link: LinkId, incarnation: u32) {
        let ended = ServerEvent::Ungoverned(link);
        self.steps.push_back(Step::Server(ended));
        for server in self.outgoing.known() {
            if server.incarnation == incarnation {
                self.outgoing.lost(server);
            }
        }
    }

    /// A server cannot be reached.
    pub(crate) fn unreached(&mut self, server: ServerId) {
        let writer = WriterEvent::Disconnected(server);
        self.steps.push_back(Step::Writer(writer));
        let filling = ServerEvent::Unreached(server);
        self.steps.push_back(Step::Server(filling));
        let reader = ReaderEvent::Disconnected(server);
        self.steps.push_back(Step::Reader(reader));
    }

    fn tell_master(&mut self, link: LinkId, message: ToMaster, callbacks: &dyn Callbacks) {
        callbacks.tell(link, message);
        self.after.has_told = true;
    }

    /// How many things are kept, for tests and diagnosis.
    pub(crate) fn leftovers(&self) -> usize {
        self.arenas.len()
            + self.batches.values().map(Batches::len).sum::<usize>()
            + self.in_runs.len()
            + self.loading.len()
            + self.loaded.len()
            + self.transferred.len()
            + usize::from(!self.is_idle())
    }

    /// The process ends: closes all connections and files.
    pub(crate) fn close(&mut self) {
        self.is_over = true;
        self.tasks.call_all();
        self.incoming.close();
        self.outgoing.close();
        self.disk.close();
        if let Some(remote) = &mut self.remote {
            remote.close();
        }
    }

    /// The files, for who asks without the lock.
    pub(crate) fn files(&self) -> Arc<disk::Shared> {
        self.disk.shared()
    }

    /// The remote store, if there is one.
    pub(crate) fn store(&self) -> Option<Store> {
        self.remote.as_ref().map(|remote| remote.store().clone())
    }

    /// The remote store, if it has this run.
    fn remote_of(&self, run: u64) -> Option<&RemoteRuns> {
        self.remote.as_ref().filter(|remote| remote.has(run))
    }
}

impl fmt::Debug for Machines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machines")
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}
