//! A process that holds partitions. Masters and members connect to it.

mod devices;
mod end;
mod links;
mod masters;
mod pages;
mod registered;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use treadle_host::pages::{Options as Pages, PageServer};
use treadle_host::{Service, ServiceHost, Services};
use treadle_memory::{
    Consumer as _, Limits, Pool, Reclaim, Segments, Taken, kept, occupied, share_heap,
};
use treadle_net::{Address, Offer, Options, Wait};
use treadle_reactor::thread;
use treadle_shuffle::{Config, Remote};
use treadle_shuffle_node::{self as shuffle, Plane, Stats, writing};
use treadle_shuffle_registry::Location;
use treadle_shuffle_remote::{self as stores, Store, WRITING};
use treadle_volume::Options as Files;

use crate::room::is_full;
use crate::server::end::End;
use crate::server::links::{Links, ServerCallbacks};
use crate::server::masters::Masters;
use crate::server::registered::{LEASE, Place, Registration};
use crate::wire::{Hello, Room};
use crate::{LINKS, ServiceError, config, joining};

/// Threads that receive pushes and send rows.
const THREADS: usize = 2;
/// A master of which nothing is heard is asked so often before its lease is over.
const ASKS: u32 = 5;
/// How often the memory of rows is looked at, and the room for more; and how often the master is told.
const LOOK: Duration = Duration::from_millis(200);
const ANNOUNCE: Duration = Duration::from_secs(1);
/// What a process has beside rows, at most; of a small one a third of its memory.
const RESERVE: u64 = 256 << 20;
/// The least that a server works with, in MiB beside what the process takes without rows.
pub(crate) const WORKING: u64 = 80;
/// What is taken without a grant: what is staged for a file, and in proportion to the limit what rows take
/// beside their bytes and what connections take.
const STAGED: u64 = 8 << 20;
const UNGRANTED: u64 = 16;
const MOST_UNGRANTED: u64 = 64 << 20;
/// Parts of remote objects that are read at once have this part of the limit together, within these bounds.
const READING_PART: u64 = 16;
const READING: (u64, u64) = (16 << 20, 64 << 20);
/// What a server with a remote store announces as free on its disks, at least.
const REMOTE_ROOM: u64 = 1 << 30;
/// At most this part of the limit is kept for reuse, or written to a file at once.
const KEPT_PART: u64 = 4;
const RUN_PART: u64 = 16;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it registers: with a master, which serves as the registry of other masters, or in another registry.
    pub registry: Location,
    /// Security of the connections.
    pub net: Options,
    /// For people.
    pub name: String,
    /// For how long it goes on without being registered. `None`: for ever.
    pub patience: Option<Duration>,
    /// Where it listens; port 0 takes a free one.
    pub listen: Address,
    /// What fails together with it.
    pub domain: String,
    /// In which rack it is, and what kind of host it is; for people and for rules of placement.
    pub rack: String,
    pub host_kind: String,
    /// How much it is to have compared to others; at least 1.
    pub weight: u32,
    /// Where rows go that do not fit into memory, one on each disk.
    pub directories: Vec<PathBuf>,
    /// Bytes in all directories together, at most.
    pub disk: u64,
    /// Where else rows go, and what for.
    pub remote: Option<(stores::Location, Remote)>,
    /// Bytes of memory that the process takes, at most.
    pub memory: u64,
    /// Pages with its state and metrics; `None`: there are none.
    pub http: Option<Pages>,
}

/// A server. Dropping it ends it.
#[derive(Debug)]
pub struct ShuffleServer {
    links: Arc<Links>,
    end: Arc<End>,
    registration: Arc<Registration>,
    host: Arc<ServiceHost>,
    http: Option<PageServer>,
}

impl ShuffleServer {
    /// Starts one. It takes the process for its own.
    ///
    /// # Errors
    /// When the master cannot be reached or refuses it, the registry cannot have it, the port is taken, or the memory
    /// limit cannot be kept. A registry other than a master is not waited for.
    pub fn start(options: ServerOptions, wait: &mut Wait<'_>) -> Result<Self, ServiceError> {
        share_heap();
        let remote = options.remote.as_ref();
        let has_remote = remote.is_some();
        refuse_too_little(options.memory, has_remote)?;
        let mut net = options.net.clone();
        let host = ServiceHost::bind(&options.listen, &listening(&net))?;
        let contact = net.contact.first().unwrap_or(host.address()).to_string();
        let target = target(options.memory, 0, has_remote);
        let files = Files {
            limits: devices::tested(),
            ..Files::new(options.directories.clone(), options.disk)
        };
        let disks = Disks {
            files: files.clone(),
            has_remote,
        };
        let room = look(&Stats::default(), &disks, target, false);
        let links = Links::new(Hello {
            address: contact.clone(),
            domain: options.domain.clone(),
            rack: options.rack.clone(),
            host_kind: options.host_kind.clone(),
            weight: options.weight.max(1),
            room: Some(room),
            store: remote.map_or(0, |(location, _)| location.number()),
            ..joining::hello(&options.name, 0, 1)
        });
        // Before masters give it rows: a store that is away is waited for.
        let store = options
            .remote
            .as_ref()
            .map(|(location, _)| Store::open(location, LEASE, reading(options.memory)));
        let store = store.transpose()?;
        let place = Place::find(&options.registry, &net, &links.hello(), wait)?;
        // What the master takes for a silence is one everywhere.
        let (timeout, lease) = place.times();
        (net.pair.timeout, net.patience) = (timeout, timeout);
        let lease = lease.max(timeout);
        let config = Config {
            run: config().run.min(options.memory / RUN_PART),
            lease,
            remote: options
                .remote
                .as_ref()
                .map_or(Remote::None, |(_, what)| *what),
            ..config()
        };
        if let Some(store) = &store {
            store.set_lease(lease);
        }
        let words = Box::new(ServerCallbacks(Arc::downgrade(&links)));
        let plane = Plane::of_any(&contact, net, (files, store), config, words);
        let end = Arc::new(End::default());
        links.attach(plane.clone(), end.clone());
        Pool::global()
            .keep_at_most(usize::try_from(options.memory / KEPT_PART).unwrap_or(usize::MAX));
        plane.keep_below(granted(options.memory, has_remote));
        let service: Box<dyn Service> = Box::new(plane.clone());
        let masters: Box<dyn Service> = Box::new(Masters(Arc::downgrade(&links)));
        let ending = Arc::downgrade(&end);
        let failed = move |reason: String| {
            if let Some(end) = ending.upgrade() {
                end.end(&reason);
            }
        };
        let services = Services::from([(shuffle::SERVICE, service), (LINKS, masters)]);
        let served = host.start(services, THREADS, "treadle-serve", failed);
        served.map_err(ServiceError::no_thread)?;
        let registered = Registration::begin(place, &options.net, options.patience, &links, &end);
        let registration = registered.inspect_err(|_| host.end())?;
        let mut server = Self {
            http: None,
            links,
            end,
            registration,
            host,
        };
        server
            .watch(disks, options.memory, room, lease / ASKS)
            .map_err(ServiceError::no_thread)?;
        let http = options.http.clone();
        let http = http.map(|http| pages::pages(http, &options, &server));
        server.http = http.transpose()?;
        Ok(server)
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> &Address {
        self.host.address()
    }

    /// The link to its pages, with the token that lets in.
    pub fn http_link(&self) -> Option<&str> {
        self.http.as_ref().map(PageServer::link)
    }

    /// The shuffle plane of the process.
    pub fn plane(&self) -> &Plane {
        self.links.plane()
    }

    /// Asks all masters to copy what is here elsewhere.
    pub fn drain(&self) {
        self.links.leave();
    }

    /// Whether it was asked to leave, and holds nothing any more.
    pub fn is_drained(&self) -> bool {
        self.links.is_drained()
    }

    /// Waits until it is over, and says why. `None`: the time has passed, or [it is drained](Self::is_drained).
    pub fn wait(&self, most: Duration) -> Option<String> {
        match self.links.failed() {
            Some(reason) => Some(reason.into()),
            None => self.end.wait_or(most, || self.links.is_drained()),
        }
    }

    /// Ends it.
    pub fn close(&self) {
        self.end.end("this process has left the shuffle service");
        self.registration.close();
        self.host.end();
        self.links.close_all();
        self.plane().end();
    }
}

impl Drop for ShuffleServer {
    fn drop(&mut self) {
        self.close();
    }
}

/// How a server listens: for who writes and reads, and for masters.
fn listening(net: &Options) -> Options {
    let offer = |service, name| Offer {
        service,
        name,
        lane: None,
    };
    let mut options = Options {
        services: vec![
            offer(shuffle::SERVICE, "shuffle"),
            offer(LINKS, "shuffle masters"),
        ],
        ..net.clone()
    };
    if let Some(seconds) = tested("TREADLE_TESTING_SHUFFLE_SILENCE") {
        options.pair.timeout = Duration::from_secs(seconds);
    }
    options
}

/// Where rows go that do not fit into memory.
struct Disks {
    files: Files,
    has_remote: bool,
}

impl Disks {
    /// Bytes that are free.
    fn room(&self, stats: &Stats) -> u64 {
        let free = self.files.room(stats.on_disk);
        match self.has_remote {
            // Nobody knows what a remote store has. With as much as is used, the disks do not count as full.
            true => free.max(stats.on_disk).max(REMOTE_ROOM),
            false => free,
        }
    }
}

/// Bytes of parts of remote objects that are read at once, of a process that may take `limit`.
fn reading(limit: u64) -> u64 {
    let (least, most) = READING;
    (limit / READING_PART).clamp(least, most)
}

/// What the process takes for a remote store without a grant.
fn of_remote(limit: u64, has_remote: bool) -> u64 {
    match has_remote {
        true => WRITING + reading(limit),
        false => 0,
    }
}

/// Refuses a limit that the process could not keep.
fn refuse_too_little(limit: u64, has_remote: bool) -> Result<(), ServiceError> {
    let takes = occupied().unwrap_or(0) + of_remote(limit, has_remote);
    match limit < takes + (WORKING << 20) {
        true => Err(ServiceError::TooLittleMemory { limit, takes }),
        false => Ok(()),
    }
}

/// What a process that may take `limit` bytes takes with all that is granted, at most.
fn granted(limit: u64, has_remote: bool) -> u64 {
    let ungranted = STAGED + (limit / UNGRANTED).min(MOST_UNGRANTED);
    limit.saturating_sub(ungranted + of_remote(limit, has_remote))
}

/// Bytes of rows in memory, at most, of a process that may take `limit`, and takes `others` beside rows.
fn target(limit: u64, others: u64, has_remote: bool) -> u64 {
    // The rest of the memory is for what is written, and for what is no row: indexes, buffers that are
    // kept for the next batches.
    let others = others.max(RESERVE.min(limit / 3));
    let reserve = writing(limit) + others + of_remote(limit, has_remote);
    let target = limit.saturating_sub(reserve).max(limit / 8);
    tested("TREADLE_TESTING_SHUFFLE_ROWS").map_or(target, |rows| target.min(rows))
}

/// What a test says instead.
fn tested(variable: &str) -> Option<u64> {
    if !cfg!(feature = "testing") {
        return None;
    }
    std::env::var(variable).ok()?.parse().ok()
}

/// Gives back what is not used, and has rows go to files where the process takes too much.
fn look_at_memory(
    plane: &Plane,
    (limit, has_remote): (u64, bool),
    reclaim: &mut Reclaim,
    last: Taken,
) -> Taken {
    let measure = || {
        let stats = plane.stats();
        let free =
            Pool::global().idle_bytes() as u64 + Segments::global().stats().idle_bytes as u64;
        let process = occupied().unwrap_or(0);
        let rows = stats.held.saturating_sub(stats.borrowed);
        Taken {
            process,
            free,
            others: process.saturating_sub(free).saturating_sub(rows),
        }
    };
    let most = limit.saturating_sub(writing(limit));
    let heap = match last.process > most {
        true => Duration::ZERO,
        false => kept(last.process, limit),
    };
    let limits = Limits {
        process: limit,
        with_free: most,
        heap,
    };
    let taken = reclaim.reclaim(&limits, measure);
    // It changes with the rows that are being read, too.
    plane.set_target(target(limit, taken.others, has_remote));
    plane.measure();
    taken
}

impl ShuffleServer {
    /// Starts the threads that look at the memory of rows, and at the room for more.
    fn watch(&self, disks: Disks, limit: u64, mut said: Room, quiet: Duration) -> io::Result<()> {
        let plane = self.plane().clone();
        let has_remote = disks.has_remote;
        let most = target(limit, 0, has_remote);
        plane.set_target(most);
        let (end, budget) = (Arc::downgrade(&self.end), plane.clone());
        thread::start("treadle-memory", move || {
            let (mut reclaim, mut taken) = (Reclaim::default(), Taken::default());
            while is_there(&end) {
                taken = look_at_memory(&budget, (limit, has_remote), &mut reclaim, taken);
                std::thread::sleep(LOOK);
            }
        })?;
        let (end, links) = (Arc::downgrade(&self.end), Arc::downgrade(&self.links));
        // What keeps the others for long keeps no master from being heard: all of its rows would go.
        thread::start("treadle-masters", move || {
            while is_there(&end)
                && let Some(links) = links.upgrade()
            {
                links.look(quiet);
                drop(links);
                std::thread::sleep(LOOK);
            }
        })?;
        let (end, links) = (Arc::downgrade(&self.end), Arc::downgrade(&self.links));
        let registration = Arc::clone(&self.registration);
        // In a thread of its own, since a file system may take long to answer.
        thread::start("treadle-room", move || {
            let mut said_at = Instant::now();
            while is_there(&end)
                && let Some(links) = links.upgrade()
            {
                let stats = plane.stats();
                let room = look(&stats, &disks, most, said.is_full);
                let is_due = room != said && said_at.elapsed() >= ANNOUNCE;
                if is_due || room.has_changed(&said) {
                    links.announce(&room);
                    registration.refresh(&room);
                    (said, said_at) = (room, Instant::now());
                }
                drop(links);
                std::thread::sleep(LOOK);
            }
        })
        .map(drop)
    }
}

fn is_there(end: &Weak<End>) -> bool {
    end.upgrade().is_some_and(|end| !end.is_over())
}

/// The room of a server with so much for rows in memory.
fn look(stats: &Stats, disks: &Disks, memory: u64, was_full: bool) -> Room {
    let disk = disks.room(stats);
    Room {
        free: memory.saturating_sub(stats.held).saturating_add(disk),
        held: stats.resident + stats.on_disk + stats.remote,
        waiting: stats.waiting,
        is_full: stats.is_failing || is_full(was_full, disk, stats.on_disk),
        rate: stats.intake.rate,
        age: stats.intake.age,
    }
}
