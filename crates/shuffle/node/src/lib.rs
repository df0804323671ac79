//! The shuffle plane in a worker process: `treadle-shuffle`, the pure core, with sockets, memory and
//! files around it. See `docs/internals/shuffle.md`.
//!
//! | module | concept |
//! | --- | --- |
//! | `tasks` | transfers, barriers and reads: what their threads wait for, and what they do |
//! | `machines` | the server, the writer and the reader under one lock, and maps from ids to bytes |
//! | `arena`, `gathering` | memory that rows are gathered into; rows of columns as batches in it |
//! | `incoming`, `bundle` | connections from other workers: pushes and reads of theirs; several pushes in one object |
//! | `outgoing` | connections to other workers |
//! | `packing` | compression of rows |
//! | `run` | rows that do not fit into memory, as bytes in one place |
//! | `disk`, `devices` | runs in files; whose turn it is on the devices that have them |
//! | `remote` | runs in a remote store |
//! | `callbacks` | what the plane calls in its process, and what it did, for traces |
//! | `reports` | what the threads of both say to the plane |
//! | `held` | how many bytes of rows are in memory |
//! | `merged` | the pieces of many batches in one order |
//! | `inventory` | what a copy in a remote store consists of, for who adopts it |
//! | `stored`, `index` | the batches of a group in memory; where the rows of a run are |
//! | `read_rows` | the rows of a partition, as a reader gets them |
//! | `memory` | the plane's part of the worker's memory, and the memory of a process that is a server |
//! | `sent_reads` | reads whose rows have left the process |
//! | `waiter` | threads that wait for their tasks |
//!
//! | thread | what it does |
//! | --- | --- |
//! | those of tasks | gather rows, compute digests, wait |
//! | those of the service host | receive pushes of other workers, send rows |
//! | `treadle-shuffle` | receives answers of other workers, and runs timers |
//! | `treadle-shuffle-file`, `-copy` | write files: one, and others while its device does nothing; put batches of files together again |
//! | `treadle-shuffle-remove` | removes files: one of each device |
//! | `treadle-shuffle-watch` | notices devices that do nothing |
//! | `treadle-shuffle-disk` | read files: one or four of each device |
//! | `treadle-remote-…` | write and read objects of a remote store |

mod arena;
mod bundle;
mod callbacks;
mod devices;
mod disk;
mod failure;
mod gathering;
mod held;
mod incoming;
mod index;
mod inventory;
mod machines;
mod memory;
mod merged;
mod outgoing;
mod packing;
mod read_rows;
mod remote;
mod reports;
mod run;
mod sent_reads;
mod stored;
mod tasks;
mod waiter;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_memory::MemoryError;
use treadle_net::pool::Pool;
use treadle_net::{Lane, Options, Poller, SendOptions, Signal, Wait};
use treadle_rows::Wanted;
use treadle_shuffle::{
    ApplicationId, AttemptId, Config, Intake, LinkId, Server, ServerEvent, ServerId, Tenant,
    ToNode, Transfer, WriterEvent,
};
use treadle_shuffle_remote::Store;
use treadle_shuffle_wire::{FROM_SERVER, encode_shuffled};
use treadle_types::Runs;

pub use arena::{Arena, ArenaMemory};
pub use callbacks::{Activity, Callbacks, Done};
pub use devices::DeviceStats;
pub use failure::Failure;
pub use gathering::{NotGathered, gather};
pub use memory::writing;
pub use packing::Packed;
pub use read_rows::ReadRows;
pub use waiter::Waiter;

use held::Held;
use machines::{After, Machines, RowsToSend, Step};
use memory::ProcessMemory;
use sent_reads::SentReads;
use treadle_reactor::awake;
use treadle_reactor::thread::{self, caught, lock};

/// The service of connections for shuffled rows, in their handshake.
pub const SERVICE: u32 = 2;
/// The key of the signal in the poller; a connection's is the number of the worker.
const SIGNAL: usize = usize::MAX;
/// The longest wait of the thread that serves connections.
const LOOK: Duration = Duration::from_secs(1);
/// For how long a line of the log is not written again.
const QUIET: Duration = Duration::from_secs(30);
/// How often tasks that wait ask whether they are interrupted.
const POLL: Duration = Duration::from_millis(25);

/// Allocates the arena of a group. Takes the position of the group among all, and the size in bytes.
pub type Allocate<'a> = dyn Fn(usize, usize) -> Result<ArenaMemory, MemoryError> + 'a;

/// The rows of a map.
pub trait Source: Sync {
    /// Puts the rows for each group into batches. Returns one arena for each group, in their order.
    ///
    /// # Errors
    /// [`Failure`]: the transfer ends with it.
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure>;

    /// How many rows are for these partitions. Compared with the receipt of the transfer.
    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize;
}

/// The rows of a map that are to be pushed.
#[derive(Clone, Copy)]
pub struct MapRows<'a> {
    pub transfer: Transfer,
    /// The map may have run before.
    pub again: bool,
    /// Its rows count even if others of the map were committed, and all of the shuffle is made again then.
    pub replaces: bool,
    pub source: &'a dyn Source,
}

impl fmt::Debug for MapRows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MapRows({:?})", self.transfer)
    }
}

/// Counts of the plane: totals since its start, and current sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Transfers that succeeded.
    pub transfers: u64,
    /// Partitions that were read here.
    pub reads: u64,
    /// Bytes that were pushed to other workers.
    pub pushed: u64,
    /// Bytes that were sent to other servers as copies of what is stored here.
    pub copied: u64,
    /// Bytes that were stored here, from this worker and others.
    pub stored: u64,
    /// Bytes that were written to files, and to a remote store.
    pub spilled: u64,
    /// Bytes that were read from both.
    pub loaded: u64,
    /// Bytes of the rows that were gathered, and what they take, compressed or not.
    pub uncompressed: u64,
    /// See `uncompressed`.
    pub compressed: u64,
    /// Bytes in arenas of transfers that run.
    pub gathered: u64,
    /// Bytes that are stored in memory now.
    pub resident: u64,
    /// Bytes of all rows in memory: what is stored, gathered, loaded from files, or being read.
    pub held: u64,
    /// Of these, the bytes in mapped memory of other processes.
    pub borrowed: u64,
    /// Bytes in files now.
    pub on_disk: u64,
    /// Bytes in a remote store now.
    pub remote: u64,
    /// Bytes that were pushed and are not acknowledged yet.
    pub in_flight: u64,
    /// Requests of this process that an overloaded server told to pause.
    pub slept: u64,
    /// Requests that wait here: pushes for room, and reads for their turn.
    pub waiting: u64,
    /// Reads here that were told to pause while a device was slow.
    pub throttled: u64,
    /// Whether rows are to go to files, and could not be written.
    pub is_failing: bool,
    /// How fast pushes are taken here.
    pub intake: Intake,
}

/// The shuffle plane of a worker process. Clones are the same one.
#[derive(Clone)]
pub struct Plane(Arc<Inner>);

pub(crate) struct Inner {
    machines: Mutex<Machines>,
    callbacks: Box<dyn Callbacks>,
    options: Options,
    held: Arc<Held>,
    files: Arc<disk::Shared>,
    process: Arc<ProcessMemory>,
    sent: Arc<SentReads>,
    /// Itself, for the thread that serves connections.
    this: Weak<Self>,
    wires: OnceLock<Option<Signal>>,
    /// When the thread that serves connections wakes, if it waits.
    wakes: Mutex<Option<Duration>>,
    stats: Mutex<Stats>,
    target: Mutex<u64>,
    /// When lines were written to the log.
    logged: Mutex<HashMap<String, Duration>>,
    /// Whether a message for the master waits for the end of its task.
    has_transferred: AtomicBool,
}

impl Plane {
    /// The plane of a process that others reach at `address`, and call `me`. It connects with `options`, and
    /// reads as `reader`. Rows that do not fit into memory go to `files`.
    pub fn new(
        me: impl Into<ServerId>,
        reader: Tenant,
        address: &str,
        options: Options,
        files: treadle_volume::Options,
        config: Config,
        callbacks: Box<dyn Callbacks>,
    ) -> Self {
        let me = me.into();
        let server = Server::new(me, config.clone());
        Self::with(
            server,
            (me, reader),
            address,
            options,
            (files, None),
            config,
            callbacks,
        )
    }

    /// The plane of a server that [any master](Plane::governed) may use. Rows that do not fit into memory go to
    /// `files`, or to `store`, as [`Config::remote`] says.
    pub fn of_any(
        address: &str,
        options: Options,
        (files, store): (treadle_volume::Options, Option<Store>),
        config: Config,
        callbacks: Box<dyn Callbacks>,
    ) -> Self {
        let server = Server::of_any(config.clone());
        let nobody = (ServerId::default(), Tenant::default());
        Self::with(
            server,
            nobody,
            address,
            options,
            (files, store),
            config,
            callbacks,
        )
    }

    fn with(
        server: Server,
        (me, reader): (ServerId, Tenant),
        address: &str,
        options: Options,
        storage: (treadle_volume::Options, Option<Store>),
        config: Config,
        callbacks: Box<dyn Callbacks>,
    ) -> Self {
        let held = Arc::new(Held::default());
        let process = Arc::new(ProcessMemory::default());
        // Others hear of the master when it is gone.
        let options = Options {
            client: packed(me),
            ..options
        };
        Self(Arc::new_cyclic(|this| {
            let machines = Machines::new(
                server,
                (me, reader),
                this.clone(),
                address,
                storage,
                (&held, &process),
                config,
            );
            Inner {
                files: machines.files(),
                machines: Mutex::new(machines),
                callbacks,
                options,
                held,
                process,
                sent: Arc::default(),
                this: this.clone(),
                wires: OnceLock::new(),
                wakes: Mutex::new(None),
                stats: Mutex::default(),
                target: Mutex::new(u64::MAX),
                logged: Mutex::default(),
                has_transferred: AtomicBool::new(false),
            }
        }))
    }

    /// Handles a message of the only master.
    pub fn hear(&self, message: ToNode) {
        self.hear_in(LinkId::ONLY, message);
    }

    /// Handles a message of a master.
    pub fn hear_in(&self, link: LinkId, message: ToNode) {
        let callbacks = &*self.0.callbacks;
        self.0
            .with(|machines| machines.hear(link, message, callbacks));
        self.0.serve_timers();
    }

    /// A master wants to use the server here, and calls it `me`. [`Callbacks::dismissed`] says if it does not
    /// serve it.
    pub fn governed(&self, link: LinkId, me: ServerId, application: Option<ApplicationId>) {
        self.tell_server(ServerEvent::Governed {
            link,
            me,
            application,
        });
        self.0.serve_timers();
    }

    /// A master is there.
    pub fn heard(&self, link: LinkId) {
        self.tell_server(ServerEvent::Heard(link));
    }

    /// A link has ended: what its master governs goes, and the connections to servers that were made for it.
    /// `incarnation`: that in the names that it gave.
    pub fn ungoverned(&self, link: LinkId, incarnation: u32) {
        self.0
            .with(|machines| machines.ungoverned(link, incarnation));
    }

    fn tell_server(&self, event: ServerEvent) {
        self.0
            .with(|machines| machines.steps.push_back(Step::Server(event)));
    }

    /// Learns the address of another worker.
    pub fn met(&self, worker: impl Into<ServerId>, address: String) {
        let worker = worker.into();
        self.0
            .with(|machines| machines.outgoing.met(worker, address));
    }

    /// Another worker whose address is known takes several pushes in a message.
    pub fn takes_together(&self, worker: ServerId) {
        let event = WriterEvent::TakesTogether(worker);
        self.0
            .with(|machines| machines.steps.push_back(Step::Writer(event)));
    }

    /// Another worker is lost.
    pub fn lost(&self, worker: impl Into<ServerId>) {
        let worker = worker.into();
        self.0.with(|machines| machines.lost(worker));
    }

    /// Whether [`Plane::finished`] has anything to do. This takes no lock.
    pub fn has_transferred(&self) -> bool {
        self.0.has_transferred.load(Ordering::Acquire)
    }

    /// A task has ended, with a result or without. Called after its result was sent to the scheduler.
    pub fn finished(&self, attempt: AttemptId, is_ok: bool) {
        self.finished_all(&[(attempt, is_ok)]);
    }

    /// As [`Plane::finished`], of several.
    pub fn finished_all(&self, ended: &[(AttemptId, bool)]) {
        let callbacks = &*self.0.callbacks;
        self.0.with(|machines| {
            for &(attempt, is_ok) in ended {
                machines.finished(attempt, is_ok, callbacks);
            }
        });
    }

    /// The counts.
    pub fn stats(&self) -> Stats {
        let stats = *lock(&self.0.stats);
        Stats {
            waiting: stats.waiting + self.0.files.waiting(),
            held: self.0.held.bytes(),
            borrowed: self.0.held.borrowed(),
            on_disk: self.0.held.files(),
            remote: self.0.held.objects(),
            ..stats
        }
    }

    /// The devices that have files here. None: nothing was written to files yet.
    pub fn devices(&self) -> Vec<DeviceStats> {
        self.0.files.stats()
    }

    /// How many connections to other servers pass memory by descriptors.
    pub fn sharing(&self) -> usize {
        self.0.with(|machines| machines.outgoing.sharing())
    }

    /// Counts memory of rows as the plane's, as long as it exists.
    pub fn charge(&self, rows: Bytes) -> Bytes {
        self.0.held.charge(rows)
    }

    /// How many things it keeps: 0 if no shuffle runs.
    pub fn leftovers(&self) -> usize {
        lock(&self.0.machines).leftovers()
    }

    /// The worker ends. Tasks that wait are given back, and files and objects are removed, for which it may wait
    /// half a minute.
    pub fn end(&self) {
        let store = self.0.with(|machines| {
            machines.close();
            machines.store()
        });
        if let Some(store) = store {
            store.close();
        }
        if let Some(Some(signal)) = self.0.wires.get() {
            signal.set();
        }
    }
}

impl Inner {
    /// Runs `act` under the lock, and handles all steps that follow. Then does what must not be done under
    /// the lock.
    fn with<T>(&self, act: impl FnOnce(&mut Machines) -> T) -> T {
        let mut machines = lock(&self.machines);
        let sent = self.sent.take().into_iter();
        let sent = sent.map(|load| Step::Server(ServerEvent::Sent { load }));
        machines.steps.extend(sent);
        let result = act(&mut machines);
        machines.settle(&*self.callbacks);
        // For who asks without the machines' lock.
        *lock(&self.stats) = machines.stats;
        let has_transferred = machines.has_transferred();
        self.has_transferred
            .store(has_transferred, Ordering::Release);
        let due = machines.due();
        let after = std::mem::take(&mut machines.after);
        let called = machines.tasks.called();
        drop(machines);
        if !called.is_empty() {
            self.callbacks.wake(&called);
        }
        self.finish(after, due);
        result
    }

    /// Writes a line to the log, unless it was written a short while ago: what fails is tried again
    /// several times a second.
    fn log(&self, line: &str) {
        let now = awake::now();
        {
            let mut logged = lock(&self.logged);
            logged.retain(|_, at| now < *at + QUIET);
            if logged.contains_key(line) {
                return;
            }
            logged.insert(line.into(), now);
        }
        self.callbacks.log(format_args!("{line}"));
    }

    fn finish(&self, after: After, due: Option<Duration>) {
        if after.has_told {
            self.callbacks.flush();
        }
        for line in &after.log {
            self.log(line);
        }
        if !after.rows.is_empty()
            && let Some(this) = self.this.upgrade()
        {
            // It tells the server when they are sent. Without it, the next message does.
            let _ = this.serve_connections();
        }
        let mut rows = after.rows.into_iter().peekable();
        while let Some(one) = rows.next() {
            // Several for one reader are written with the last of them.
            let is_corked = rows.peek().is_some_and(|next| next.to == one.to);
            send(one, is_corked, &self.held, &self.sent);
        }
        drop(after.garbage);
        if let Some(due) = due {
            let is_late = lock(&self.wakes).is_some_and(|wakes| due < wakes);
            if is_late && let Some(Some(signal)) = self.wires.get() {
                signal.set();
            }
        }
        if let Some(most) = after.most {
            self.process.give_back(most, &self.held);
            self.measure(true);
        }
    }

    fn measure(&self, is_least: bool) {
        self.with(|machines| machines.steps.push_back(Step::Measure { is_least }));
    }

    /// Starts the thread that serves connections, if it does not run.
    fn serve_connections(self: &Arc<Self>) -> Result<(), Failure> {
        let started = self.wires.get_or_init(|| self.start());
        match started {
            Some(_) => Ok(()),
            None => Err(Failure::Failed(
                "cannot start the thread treadle-shuffle: the system has no thread or descriptor left"
                    .into(),
            )),
        }
    }

    /// Starts that thread if there is a timer: nothing else would run it before the next event.
    fn serve_timers(self: &Arc<Self>) {
        if self.wires.get().is_none() && lock(&self.machines).due().is_some() {
            let _ = self.serve_connections();
        }
    }

    fn start(self: &Arc<Self>) -> Option<Signal> {
        let lane = Lane::new().ok()?;
        let poller = Poller::on(&lane);
        let signal = poller.signal(SIGNAL);
        self.sent.wake_with(signal.clone());
        let options = Options {
            lane: Some(lane),
            service: SERVICE,
            ..self.options.clone()
        };
        let wake = {
            let signal = signal.clone();
            move || signal.set()
        };
        let key = |server: ServerId| packed(server) as usize;
        let pool = Pool::new(options, Arc::clone(&poller), key, wake);
        let weak = Arc::downgrade(self);
        let thread = thread::start("treadle-shuffle", move || {
            if let Err(reason) = caught(|| while turn(&weak, &poller) {})
                && let Some(inner) = weak.upgrade()
            {
                inner.callbacks.panicked(reason.to_string());
            }
        });
        thread.ok()?;
        self.with(|machines| machines.outgoing.attach(pool));
        Some(signal)
    }
}

/// Waits for a message or a timer, and handles it. `false`: the plane has ended.
fn turn(inner: &Weak<Inner>, poller: &Arc<Poller>) -> bool {
    let wakes = {
        let Some(inner) = inner.upgrade() else {
            return false;
        };
        let machines = lock(&inner.machines);
        if machines.is_over {
            return false;
        }
        let latest = awake::now() + LOOK;
        let wakes = machines.due().map_or(latest, |due| due.min(latest));
        // Under the machines' lock: a timer that is set next finds it.
        *lock(&inner.wakes) = Some(wakes);
        wakes
    };
    let turn = poller.next(&mut Wait {
        deadline: awake::moment(wakes).or_else(|| Instant::now().checked_add(LOOK)),
        interrupted: None,
    });
    let Some(inner) = inner.upgrade() else {
        return false;
    };
    *lock(&inner.wakes) = None;
    inner.with(|machines| {
        match &turn {
            Ok(turn) if turn.key() != SIGNAL => {
                machines.take(unpacked(turn.key() as u64));
            }
            Ok(_) => {}
            Err(_) if machines.is_idle() => machines.outgoing.sweep(),
            Err(_) => {}
        }
        machines.opened();
        machines.hear_servers();
        machines.tick();
    });
    true
}

impl Machines {
    /// Handles the messages that a server has sent.
    fn take(&mut self, worker: ServerId) {
        loop {
            match self.outgoing.take(worker) {
                Ok(Some(reply)) => self.replied(worker, reply),
                Ok(None) => return,
                Err(reason) => {
                    if !self.is_idle() {
                        let line = format!("the connection to {worker:?} for rows broke: {reason}");
                        self.after.log.push(line);
                    }
                    return self.unreached(worker);
                }
            }
        }
    }

    /// Handles connections that were made, or that failed.
    fn opened(&mut self) {
        for (worker, error) in self.outgoing.opened() {
            let line = format!("cannot connect to {worker:?} for rows of a shuffle: {error}");
            self.after.log.push(line);
            self.unreached(worker);
        }
    }
}

/// A process as one number, for the poller and for the listeners that it connects to.
pub(crate) fn packed(server: ServerId) -> u64 {
    u64::from(server.incarnation) << 32 | u64::from(server.node)
}

/// The process with this number.
pub(crate) fn unpacked(number: u64) -> ServerId {
    ServerId {
        node: number as u32,
        incarnation: (number >> 32) as u32,
    }
}

/// Sends rows in one frame. They count as sent when that is not in memory any more.
fn send(rows: RowsToSend, corked: bool, held: &Arc<Held>, sent: &Arc<SentReads>) {
    let RowsToSend {
        to: _,
        peer,
        load,
        message,
        pieces,
    } = rows;
    let mut frames: Vec<Bytes> = vec![encode_shuffled(&message).into()];
    let length = pieces.iter().map(Bytes::len).sum();
    if pieces.is_empty() {
        sent.done(load);
    } else if let [piece] = &pieces[..] {
        frames.push(sent.watch(load, piece.clone()));
    } else {
        match ArenaMemory::new(length, peer.shares_memory()) {
            Ok(mut memory) => {
                let mut rest = memory.as_mut_slice();
                for piece in &pieces {
                    let (place, after) = rest.split_at_mut(piece.len());
                    place.copy_from_slice(piece);
                    rest = after;
                }
                frames.push(sent.watch(load, held.charge(memory.into_bytes())));
            }
            // The reader connects again, and asks again.
            Err(_) => {
                sent.done(load);
                return peer.start_close();
            }
        }
    }
    // The reader notices by itself when a connection is closed.
    let options = SendOptions {
        corked,
        ..outgoing::ROWS
    };
    let _ = peer.send_with(FROM_SERVER, &frames, options);
}

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plane({:?})", self.stats())
    }
}
