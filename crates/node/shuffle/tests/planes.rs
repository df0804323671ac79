//! Several planes in one process, over real sockets, with a real master.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use treadle_compress::Codec;
use treadle_host::{Service, ServiceHost};
use treadle_memory::Consumer as _;
use treadle_net::{Offer, Options};
use treadle_node_shuffle::{
    Allocate, Arena, Callbacks, Done, Failure, Packed, Plane, ReadRows, SERVICE, Source,
};
use treadle_rows::{Arenas, Column, Field, Format, Input, Integer, Partitions, Wanted};
use treadle_security::secret::Secret;
use treadle_shuffle::{
    AttemptId, Commit, Config, Generation, GroupId, MapRange, Master, MasterEffect, MasterEvent,
    Receipt, ServerId, ShuffleId, Spec, Tally, Tenant, ToMaster, Transfer,
};
use treadle_types::{Runs, WorkerId};

const LONG: Duration = Duration::from_secs(60);
const SHUFFLE: ShuffleId = ShuffleId(1);

fn never() -> impl FnMut() -> bool {
    || false
}

fn options() -> Options {
    Options {
        secret: Some(Secret::new([7; 32]).unwrap()),
        ..Options::default()
    }
}

fn server(worker: u32) -> ServerId {
    ServerId {
        node: worker,
        incarnation: 1,
    }
}

/// One map: row `n` of it has the number `map * 1000000 + n`, for partition `n % partitions`.
struct Numbers {
    map: u32,
    partitions: u32,
    values: Vec<u8>,
    of_rows: Partitions,
    format: Format,
}

impl Numbers {
    fn new(map: u32, rows: u32, partitions: u32) -> Self {
        let numbers = (0..rows).map(|row| u64::from(map) * 1_000_000 + u64::from(row));
        let places: Vec<u8> = (0..rows)
            .flat_map(|row| (row % partitions).to_ne_bytes())
            .collect();
        let of_rows = Partitions::read(&places, 4, Integer::U32, rows as usize, partitions);
        Self {
            map,
            partitions,
            values: numbers.flat_map(u64::to_ne_bytes).collect(),
            of_rows: of_rows.unwrap(),
            format: Format::new(vec![Field::Fixed(8)]),
        }
    }

    fn transfer(&self, attempt: u64) -> Transfer {
        Transfer {
            shuffle: SHUFFLE,
            map: self.map,
            attempt: AttemptId(attempt),
        }
    }

    fn expected(&self, partition: u32) -> Vec<u64> {
        let rows = self.values.len() as u64 / 8;
        let rows = (u64::from(partition)..rows).step_by(self.partitions as usize);
        rows.map(|row| u64::from(self.map) * 1_000_000 + row)
            .collect()
    }
}

impl Source for Numbers {
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure> {
        let columns = [Column::Fixed {
            bytes: &self.values,
            stride: 8,
            width: 8,
        }];
        let input = Input {
            format: &self.format,
            columns: &columns,
            partitions: &self.of_rows,
            note: &[],
        };
        let arenas = Arenas::with_target(input, groups, 256 << 10).unwrap();
        let lengths = arenas.lengths().to_vec();
        let memory = lengths.iter().enumerate();
        let memory = memory.map(|(group, &length)| allocate(group, length).unwrap());
        let mut memory: Vec<_> = memory.collect();
        let mut slices: Vec<_> = memory.iter_mut().map(|m| m.as_mut_slice()).collect();
        let batches = arenas
            .fill(transfer.shuffle, transfer, &mut slices)
            .unwrap();
        let arenas = memory.into_iter().zip(batches);
        Ok(arenas
            .map(|(memory, batches)| Arena { memory, batches })
            .collect())
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        self.of_rows.count_in(partitions)
    }
}

enum Said {
    Worker(u32, ToMaster),
    Event(MasterEvent),
    Lost(u32),
}

/// Passes on what a plane says.
struct Words(u32, Mutex<Sender<Said>>);

impl Callbacks for Words {
    fn tell(&self, message: ToMaster) {
        let _ = self.1.lock().unwrap().send(Said::Worker(self.0, message));
    }
    fn flush(&self) {}
    fn wake(&self) {}
    fn wait(&self, is_changed: &mut dyn FnMut() -> bool, most: Duration) {
        let until = Instant::now() + most;
        while !is_changed() && Instant::now() < until {
            thread::sleep(Duration::from_micros(200));
        }
    }
    fn log(&self, line: fmt::Arguments<'_>) {
        eprintln!("worker {}: {line}", self.0);
    }
    fn panicked(&self, reason: String) {
        panic!("worker {}: {reason}", self.0);
    }
    fn is_traced(&self) -> bool {
        true
    }
    fn traced(&self, done: Done) {
        assert!(done.began <= done.ended, "{done:?}");
    }
}

struct Worker {
    plane: Plane,
    host: Arc<ServiceHost>,
    address: String,
    directory: TempDir,
}

struct Cluster {
    workers: HashMap<u32, Arc<Worker>>,
    said: Sender<Said>,
    invalidated: Receiver<(Runs, bool)>,
    /// What transfers compress rows by.
    codec: Option<Codec>,
}

impl Cluster {
    fn new(count: u32, shares_memory: bool) -> Self {
        let (said, heard) = channel();
        let workers = (1..=count).map(|id| (id, Arc::new(worker(id, &said, shares_memory))));
        let workers: HashMap<u32, Arc<Worker>> = workers.collect();
        for (id, worker) in &workers {
            for (other, address) in workers.iter().map(|(id, worker)| (id, &worker.address)) {
                if other != id {
                    worker.plane.met(WorkerId(*other), address.clone());
                }
            }
            said.send(Said::Event(MasterEvent::Joined(server(*id))))
                .unwrap();
        }
        let (out, invalidated) = channel();
        let planes = workers
            .iter()
            .map(|(id, worker)| (*id, Arc::downgrade(worker)));
        let planes: HashMap<u32, Weak<Worker>> = planes.collect();
        thread::spawn(move || master(&heard, &out, planes));
        Self {
            workers,
            said,
            invalidated,
            codec: None,
        }
    }

    fn register(&self, maps: u32, partitions: u32) {
        self.register_copies(maps, partitions, 1);
    }

    fn register_copies(&self, maps: u32, partitions: u32, copies: u32) {
        let spec = Spec {
            tenant: Tenant::default(),
            maps,
            partitions,
            outputs: Runs::range(0, u64::from(partitions)),
            aligned: None,
            copies,
            preferred: Vec::new(),
            committed: None,
        };
        let event = MasterEvent::Register {
            shuffle: SHUFFLE,
            spec,
        };
        self.said.send(Said::Event(event)).unwrap();
    }

    fn plane(&self, worker: u32) -> &Plane {
        &self.workers[&worker].plane
    }

    /// Runs transfers, each at a worker in turn, all at once.
    fn transfer(&self, maps: &[Numbers], attempt: u64) -> Vec<Receipt> {
        let mut ids: Vec<u32> = self.workers.keys().copied().collect();
        ids.sort_unstable();
        thread::scope(|scope| {
            let running = maps.iter().map(|map| {
                let plane = self.plane(ids[map.map as usize % ids.len()]);
                let transfer = map.transfer(attempt + u64::from(map.map));
                let codec = self.codec;
                scope.spawn(move || {
                    let packed = codec.map(|codec| Packed { source: map, codec });
                    let source: &dyn Source = packed.as_ref().map_or(map, |packed| packed);
                    let receipt = plane.transfer(transfer, attempt >= 100, source, &mut never());
                    let receipt = receipt.unwrap();
                    plane.finished(transfer.attempt, true);
                    receipt
                })
            });
            let running: Vec<_> = running.collect();
            running.into_iter().map(|run| run.join().unwrap()).collect()
        })
    }

    fn commit(&self, maps: usize, receipts: &[Receipt]) -> Result<Generation, Failure> {
        let commit = Commit::new(SHUFFLE, maps as u32, receipts).unwrap();
        let plane = &self.workers.values().next().unwrap().plane;
        plane.commit(commit, &mut never())
    }

    /// A worker ends, and the master is told so.
    fn lose(&mut self, worker: u32) {
        drop(self.workers.remove(&worker));
        self.said.send(Said::Lost(worker)).unwrap();
    }

    /// Reads every partition at every worker, and compares it.
    fn compare(&self, maps: &[Numbers], partitions: u32, generation: Generation) {
        for worker in self.workers.values() {
            for partition in 0..partitions {
                let read = worker
                    .plane
                    .read(SHUFFLE, generation, partition, None, 8, &mut never());
                let expected: Vec<u64> = maps.iter().flat_map(|m| m.expected(partition)).collect();
                assert_eq!(numbers(&read.unwrap()), expected, "partition {partition}");
            }
        }
    }

    fn end(&self) {
        self.said
            .send(Said::Event(MasterEvent::End(SHUFFLE)))
            .unwrap();
        for (id, worker) in &self.workers {
            until(&format!("worker {id} keeps something"), || {
                worker.plane.leftovers() == 0
            });
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.plane.end();
        self.host.end();
    }
}

fn worker(id: u32, said: &Sender<Said>, shares_memory: bool) -> Worker {
    let net = Options {
        shared_memory: shares_memory,
        ..options()
    };
    let listening = Options {
        services: vec![Offer {
            service: SERVICE,
            name: "shuffle",
            lane: None,
        }],
        ..net.clone()
    };
    let host = ServiceHost::bind(&"127.0.0.1:0".parse().unwrap(), &listening).unwrap();
    let address = host.address().to_string();
    let directory = TempDir::new().unwrap();
    let files = treadle_volume::Options::new(vec![directory.path().into()], u64::MAX);
    let words = Box::new(Words(id, Mutex::new(said.clone())));
    let plane = Plane::new(WorkerId(id), &address, net, files, Config::default(), words);
    let service: Box<dyn Service> = Box::new(plane.clone());
    let services = HashMap::from([(SERVICE, service)]);
    host.start(services, 2, "serve", |reason| panic!("{reason}"))
        .unwrap();
    Worker {
        plane,
        host,
        address,
        directory,
    }
}

fn master(
    heard: &Receiver<Said>,
    invalidated: &Sender<(Runs, bool)>,
    mut planes: HashMap<u32, Weak<Worker>>,
) {
    let mut master = Master::new(Config::default());
    for said in heard {
        let event = match said {
            // A busy machine makes servers slow. Here rows are counted that are pushed once.
            Said::Worker(_, ToMaster::Slow { .. }) => continue,
            Said::Worker(from, message) => MasterEvent::Message {
                from: server(from),
                message,
            },
            Said::Event(event) => event,
            Said::Lost(worker) => {
                planes.remove(&worker);
                for plane in planes.values().filter_map(Weak::upgrade) {
                    plane.plane.lost(WorkerId(worker));
                }
                MasterEvent::Lost(server(worker))
            }
        };
        let mut effects = Vec::new();
        master.handle(event, &mut effects).unwrap();
        master.check().unwrap();
        for effect in effects {
            match effect {
                MasterEffect::Send { to, message } => {
                    if let Some(worker) = planes.get(&to.node).and_then(Weak::upgrade) {
                        worker.plane.hear(message);
                    }
                }
                MasterEffect::Invalidate { maps, outputs, .. } => {
                    let _ = invalidated.send((maps, outputs));
                }
                _ => {}
            }
        }
    }
}

fn numbers(rows: &ReadRows) -> Vec<u64> {
    let rows = rows.iter().flat_map(|(_, rows)| rows.chunks(8));
    rows.map(|row| u64::from_ne_bytes(row.try_into().unwrap()))
        .collect()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn only_stored_rows_are_held(worker: &Worker) {
    until("memory of other rows is kept", || {
        let stats = worker.plane.stats();
        stats.held == stats.resident
    });
}

fn maps(count: u32, rows: u32, partitions: u32) -> Vec<Numbers> {
    (0..count)
        .map(|map| Numbers::new(map, rows, partitions))
        .collect()
}

fn whole_shuffle(workers: u32, shares_memory: bool, rows: u32) {
    let cluster = Cluster::new(workers, shares_memory);
    let maps = maps(5, rows, 7);
    cluster.register(5, 7);
    // Connections pass descriptors when they have been open for a moment.
    let mut receipts = cluster.transfer(&maps[..3], 1);
    if shares_memory {
        thread::sleep(Duration::from_millis(300));
    }
    receipts.extend(cluster.transfer(&maps[3..], 1));
    assert!(
        receipts
            .iter()
            .all(|receipt| receipt.tally().rows == u64::from(rows))
    );
    let generation = cluster.commit(5, &receipts).unwrap();
    let borrowed = || -> u64 {
        let workers = cluster.workers.values();
        workers.map(|worker| worker.plane.stats().borrowed).sum()
    };
    // Only arenas that are large enough are shared.
    assert_eq!(
        borrowed() > 0,
        workers > 1 && shares_memory && rows > 100_000
    );
    cluster.compare(&maps, 7, generation);
    cluster.end();
    until("memory of others is kept", || borrowed() == 0);
}

#[test]
fn rows_come_back_from_the_own_server() {
    whole_shuffle(1, true, 50_000);
}

#[test]
fn rows_come_back_in_order_over_shared_memory() {
    whole_shuffle(3, true, 200_000);
}

#[test]
fn rows_come_back_in_order_over_sockets() {
    whole_shuffle(3, false, 200_000);
}

#[test]
fn few_rows_travel_in_messages() {
    whole_shuffle(3, true, 10);
}

/// Batches just below 64 KiB, with which a message does not fit into the header of an object.
#[test]
fn batches_of_every_length_travel() {
    let cluster = Cluster::new(2, false);
    let lengths = 8140..8200;
    let maps: Vec<_> = (0..)
        .zip(lengths)
        .map(|(map, rows)| Numbers::new(map, 2 * rows, 2))
        .collect();
    cluster.register(maps.len() as u32, 2);
    let receipts = cluster.transfer(&maps, 1);
    let generation = cluster.commit(maps.len(), &receipts).unwrap();
    cluster.compare(&maps, 2, generation);
    cluster.end();
}

#[test]
fn what_does_not_fit_goes_to_files_and_comes_back() {
    for shares_memory in [true, false] {
        let cluster = Cluster::new(2, shares_memory);
        for worker in cluster.workers.values() {
            worker.plane.set_target(1 << 20);
        }
        let maps = maps(6, 400_000, 16);
        cluster.register(6, 16);
        let receipts = cluster.transfer(&maps, 1);
        let generation = cluster.commit(6, &receipts).unwrap();
        for worker in cluster.workers.values() {
            until("there is too much in memory", || {
                worker.plane.stats().resident <= 1 << 20
            });
            assert!(worker.plane.stats().spilled > 4 << 20);
            // All batches of an arena go together, so nothing of it stays in memory.
            only_stored_rows_are_held(worker);
        }
        cluster.compare(&maps, 16, generation);
        for worker in cluster.workers.values() {
            only_stored_rows_are_held(worker);
            let before = worker.plane.stats().held;
            let pieces = worker
                .plane
                .read(SHUFFLE, generation, 3, None, 8, &mut never());
            let pieces = pieces.unwrap();
            let bytes: u64 = pieces.iter().map(|(piece, _)| piece.bytes).sum();
            // Rows that were loaded count as long as somebody has them.
            assert!(worker.plane.stats().held >= before + bytes / 2);
            drop(pieces);
            only_stored_rows_are_held(worker);
        }
        cluster.end();
        for worker in cluster.workers.values() {
            until("rows are left", || {
                let stats = worker.plane.stats();
                (stats.held, stats.on_disk) == (0, 0)
            });
        }
        for worker in cluster.workers.values() {
            until("files are left", || files(&worker.directory) == 0);
        }
    }
}

/// How many files there are, but for locks.
fn files(directory: &TempDir) -> usize {
    let directories = directory.path().read_dir().unwrap().flatten();
    let files = directories.filter_map(|entry| entry.path().read_dir().ok());
    let names = files.flatten().flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().ends_with("shuffle"))
        .count()
}

#[test]
fn only_the_rows_of_a_lost_worker_are_pushed_again() {
    let mut cluster = Cluster::new(3, true);
    let maps = maps(6, 30_000, 9);
    cluster.register(6, 9);
    let receipts = cluster.transfer(&maps, 1);
    cluster.commit(6, &receipts).unwrap();
    let before: u64 = [1, 2]
        .map(|id| cluster.plane(id).stats().stored)
        .iter()
        .sum();
    drop(cluster.workers.remove(&3));
    cluster.said.send(Said::Lost(3)).unwrap();
    let (gone, outputs) = cluster.invalidated.recv_timeout(LONG).unwrap();
    assert_eq!((gone.len(), outputs), (6, false));
    let again = cluster.transfer(&maps, 100);
    let generation = cluster.commit(6, &again).unwrap();
    assert_eq!(generation, Generation(2));
    cluster.compare(&maps, 9, generation);
    let after: u64 = [1, 2]
        .map(|id| cluster.plane(id).stats().stored)
        .iter()
        .sum();
    let all: u64 = 6 * 30_000 * 8;
    assert!(after - before < all / 2, "{before} {after} of {all}");
    cluster.end();
}

#[test]
fn a_commit_of_receipts_from_before_a_loss_is_given_back() {
    let mut cluster = Cluster::new(2, true);
    let maps = maps(4, 100, 4);
    cluster.register(4, 4);
    let receipts = cluster.transfer(&maps, 1);
    drop(cluster.workers.remove(&2));
    cluster.said.send(Said::Lost(2)).unwrap();
    cluster.invalidated.recv_timeout(LONG).unwrap();
    assert!(matches!(
        cluster.commit(4, &receipts),
        Err(Failure::Again(_))
    ));
}

#[test]
fn an_interrupted_transfer_leaves_nothing() {
    let cluster = Cluster::new(2, true);
    cluster.register(1, 4);
    struct Slow(Numbers, AtomicBool);
    impl Source for Slow {
        fn gather(
            &self,
            transfer: Transfer,
            groups: &[Wanted],
            allocate: &Allocate<'_>,
        ) -> Result<Vec<Arena>, Failure> {
            self.1.store(true, Ordering::SeqCst);
            self.0.gather(transfer, groups, allocate)?;
            Err(Failure::Source("the rows cannot be read".into()))
        }

        fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
            self.0.count_in(partitions)
        }
    }
    let slow = Slow(Numbers::new(0, 1000, 4), AtomicBool::new(false));
    let failed = cluster
        .plane(1)
        .transfer(slow.0.transfer(1), false, &slow, &mut never());
    assert!(matches!(failed, Err(Failure::Source(_))), "{failed:?}");
    assert!(slow.1.load(Ordering::SeqCst));
    // A worker that waits for nobody: there is no barrier.
    let (began, asked) = (Instant::now(), OnceLock::new());
    let unknown = cluster
        .plane(1)
        .read(SHUFFLE, Generation(1), 0, None, 8, &mut || {
            asked.get_or_init(|| began.elapsed());
            true
        });
    assert!(matches!(unknown, Err(Failure::Interrupted)), "{unknown:?}");
    cluster.end();
}

/// Rows whose first gathering takes until the test says so.
struct Delayed {
    rows: Numbers,
    is_first: AtomicBool,
    /// Passed twice: as it begins, and when it may end.
    gate: Barrier,
}

impl Source for Delayed {
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure> {
        if self.is_first.swap(false, Ordering::SeqCst) {
            self.gate.wait();
            self.gate.wait();
        }
        self.rows.gather(transfer, groups, allocate)
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        self.rows.count_in(partitions)
    }
}

#[test]
fn plans_that_come_while_rows_are_gathered_lose_no_row() {
    let mut cluster = Cluster::new(3, true);
    cluster.register(1, 12);
    let source = Delayed {
        rows: Numbers::new(0, 12_000, 12),
        is_first: AtomicBool::new(true),
        gate: Barrier::new(2),
    };
    let plane = cluster.plane(1).clone();
    let receipt = thread::scope(|scope| {
        let task =
            scope.spawn(|| plane.transfer(source.rows.transfer(1), false, &source, &mut never()));
        source.gate.wait();
        // What was at 2 goes to 3 in part, and before its rows are gathered to 1.
        cluster.lose(2);
        cluster.lose(3);
        // When the master answers this, it has told both plans.
        let late = ToMaster::Transferred {
            transfer: source.rows.transfer(1),
            groups: vec![GroupId {
                epoch: Generation(1),
                server: server(2),
            }],
            tally: Tally::default(),
        };
        cluster.said.send(Said::Worker(1, late)).unwrap();
        let told = cluster.invalidated.iter();
        let mut told = told.skip_while(|(maps, _)| *maps != Runs::one(0));
        told.next().unwrap();
        source.gate.wait();
        task.join().unwrap()
    });
    let receipts = [receipt.unwrap()];
    assert_eq!(receipts[0].tally().rows, 12_000);
    plane.finished(AttemptId(1), true);
    let generation = cluster.commit(1, &receipts).unwrap();
    cluster.compare(std::slice::from_ref(&source.rows), 12, generation);
    cluster.end();
}

#[test]
fn tasks_that_wait_are_given_back_when_the_worker_ends() {
    let cluster = Cluster::new(1, true);
    // Nobody registers it: the master closes it.
    let map = Numbers::new(0, 10, 2);
    let ended = cluster
        .plane(1)
        .transfer(map.transfer(1), false, &map, &mut never());
    assert!(matches!(ended, Err(Failure::Again(_))), "{ended:?}");
    cluster.register(2, 2);
    let plane = cluster.plane(1).clone();
    let waiting =
        thread::spawn(move || plane.read(SHUFFLE, Generation(1), 0, None, 8, &mut never()));
    thread::sleep(Duration::from_millis(50));
    cluster.plane(1).end();
    assert!(matches!(waiting.join().unwrap(), Err(Failure::Again(_))));
}

/// Bytes of rows in memory and in files.
fn kept(cluster: &Cluster) -> u64 {
    let stats = cluster.workers.values().map(|worker| worker.plane.stats());
    stats.map(|stats| stats.resident + stats.on_disk).sum()
}

/// Two copies in memory or in files: one is lost, the other one is read and copied again, batch by batch as
/// it was, and then that one is lost as well.
fn lose_one_copy_after_the_other(target: u64, codec: Option<Codec>) {
    let mut cluster = Cluster::new(3, true);
    cluster.codec = codec;
    for worker in cluster.workers.values() {
        worker.plane.set_target(target);
    }
    let mut maps = maps(6, 200_000, 16);
    // Its pieces are so small that they are left as they are.
    maps[5] = Numbers::new(5, 100, 16);
    let rows: u64 = (5 * 200_000 + 100) * 8;
    cluster.register_copies(6, 16, 2);
    let receipts = cluster.transfer(&maps, 1);
    let sums = receipts.iter().map(|receipt| receipt.tally().bytes);
    assert_eq!(sums.sum::<u64>(), rows, "receipts count rows");
    let all = cluster.workers.values().map(|worker| worker.plane.stats());
    let (before, stored) = all.fold((0, 0), |(before, after), stats| {
        (before + stats.uncompressed, after + stats.compressed)
    });
    assert_eq!(before, rows);
    match codec {
        None => assert_eq!(stored, rows),
        Some(_) => assert!(stored < rows * 3 / 4, "{stored} of {rows}"),
    }
    // What goes to a file in this moment may be counted as neither.
    until("two copies are not kept", || kept(&cluster) >= 2 * stored);
    let generation = cluster.commit(6, &receipts).unwrap();
    assert!(kept(&cluster) < 2 * rows * 3 / 4 || codec.is_none());
    let spilled = |cluster: &Cluster| {
        let mut workers = cluster.workers.values();
        workers.all(|worker| worker.plane.stats().on_disk > 0)
    };
    if target < 1 << 30 {
        until("rows are not in files", || spilled(&cluster));
    }
    cluster.lose(3);
    until("the lost copies are not made again", || {
        kept(&cluster) >= 2 * stored
    });
    cluster.compare(&maps, 16, generation);
    // The copy is adopted when it is compared, a moment after its last batch came.
    thread::sleep(Duration::from_millis(300));
    cluster.lose(2);
    cluster.compare(&maps, 16, generation);
    assert!(cluster.invalidated.try_recv().is_err(), "no map runs again");
    cluster.end();
}

#[test]
fn a_lost_copy_is_made_again_from_the_one_that_is_left() {
    for target in [1 << 20, 1 << 30] {
        lose_one_copy_after_the_other(target, None);
    }
}

#[test]
fn compressed_rows_are_copied_as_they_came_from_memory_and_from_files() {
    for codec in Codec::ALL {
        for target in [1 << 17, 1 << 30] {
            lose_one_copy_after_the_other(target, Some(codec));
        }
    }
}

#[test]
fn readers_share_a_partition_by_maps() {
    let cluster = Cluster::new(2, true);
    let maps = maps(7, 1000, 3);
    cluster.register_copies(7, 3, 2);
    let receipts = cluster.transfer(&maps, 1);
    let generation = cluster.commit(7, &receipts).unwrap();
    let mut found = Vec::new();
    for part in 0..3 {
        let range = MapRange::part(7, part, 3);
        let plane = cluster.plane(1);
        let pieces = plane.read(SHUFFLE, generation, 1, Some(range), 8, &mut never());
        found.extend(numbers(&pieces.unwrap()));
    }
    let expected: Vec<u64> = maps.iter().flat_map(|map| map.expected(1)).collect();
    assert_eq!(found, expected);
    cluster.end();
}
