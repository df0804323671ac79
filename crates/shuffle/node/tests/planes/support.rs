//! A cluster of planes in one process, over real sockets, with a real master; and inputs of numbers.

use std::collections::HashMap;
use std::fmt;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use treadle_compress::Codec;
use treadle_host::{Service, ServiceHost};
use treadle_net::{Offer, Options};
use treadle_rows::{Arenas, Column, Field, Format, Input, Integer, Partitions, Wanted};
use treadle_security::secret::Secret;
use treadle_shuffle::{
    AttemptId, Commit, Config, Generation, LinkId, Master, MasterEffect, MasterEvent, Receipt,
    ServerId, ShuffleId, Spec, Tenant, ToMaster, ToNode, Transfer,
};
use treadle_shuffle_node::{
    Allocate, Arena, Callbacks, Done, Failure, Packed, Plane, ReadRows, SERVICE, Source, Waiter,
};
use treadle_types::{Runs, WorkerId};

use crate::slow::pass_on;

pub(super) const LONG: Duration = Duration::from_secs(60);
pub(super) const SHUFFLE: ShuffleId = ShuffleId(1);

pub(super) fn never() -> impl FnMut() -> bool {
    || false
}

pub(super) fn options() -> Options {
    Options {
        secret: Some(Secret::new([7; 32]).unwrap()),
        ..Options::default()
    }
}

pub(super) fn server(worker: u32) -> ServerId {
    ServerId {
        node: worker,
        incarnation: 1,
    }
}

/// One map: row `n` of it has the number `map * 1000000 + n`, for partition `n % partitions`.
pub(super) struct Numbers {
    pub(super) map: u32,
    partitions: u32,
    values: Vec<u8>,
    of_rows: Partitions,
    format: Format,
}

impl Numbers {
    pub(super) fn new(map: u32, rows: u32, partitions: u32) -> Self {
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

    pub(super) fn transfer(&self, attempt: u64) -> Transfer {
        Transfer {
            shuffle: SHUFFLE,
            map: self.map,
            attempt: AttemptId(attempt),
        }
    }

    pub(super) fn expected(&self, partition: u32) -> Vec<u64> {
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

pub(super) enum Said {
    Worker(u32, ToMaster),
    Event(MasterEvent),
    Lost(u32),
}

/// Passes on what a plane says.
struct Words(u32, Mutex<Sender<Said>>);

impl Callbacks for Words {
    fn tell(&self, _link: LinkId, message: ToMaster) {
        let _ = self.1.lock().unwrap().send(Said::Worker(self.0, message));
    }
    fn flush(&self) {}
    fn wake(&self, _called: &[Arc<Waiter>]) {}
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

pub(super) struct Worker {
    pub(super) plane: Plane,
    host: Arc<ServiceHost>,
    pub(super) address: String,
    pub(super) directory: TempDir,
}

/// What the master has done.
#[derive(Default)]
struct Seen {
    /// How many losses of workers it has handled.
    lost: AtomicUsize,
    /// How many copies all groups of its last plan have: those that it has adopted count.
    copies: AtomicUsize,
}

pub(super) struct Cluster {
    pub(super) workers: HashMap<u32, Arc<Worker>>,
    pub(super) said: Sender<Said>,
    pub(super) invalidated: Receiver<(Runs, bool)>,
    seen: Arc<Seen>,
    /// How many workers were lost.
    lost: usize,
    /// What transfers compress rows by.
    pub(super) codec: Option<Codec>,
}

impl Cluster {
    pub(super) fn new(count: u32, shares_memory: bool) -> Self {
        Self::with(count, &Config::default(), shares_memory, false)
    }

    /// What servers send comes slowly.
    pub(super) fn slow(count: u32, config: &Config) -> Self {
        Self::with(count, config, false, true)
    }

    fn with(count: u32, config: &Config, shares_memory: bool, is_slow: bool) -> Self {
        let (said, heard) = channel();
        let workers = (1..=count).map(|id| {
            let words = Words(id, Mutex::new(said.clone()));
            (id, Arc::new(worker(words, config, shares_memory, is_slow)))
        });
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
        let seen = Arc::default();
        let see = Arc::clone(&seen);
        let planes = workers
            .iter()
            .map(|(id, worker)| (*id, Arc::downgrade(worker)));
        let planes: HashMap<u32, Weak<Worker>> = planes.collect();
        thread::spawn(move || master(&heard, &out, &see, planes));
        Self {
            workers,
            said,
            invalidated,
            seen,
            lost: 0,
            codec: None,
        }
    }

    /// Whether each group has two copies again, after all losses.
    pub(super) fn are_copied_again(&self) -> bool {
        self.seen.lost.load(Ordering::SeqCst) == self.lost
            && self.seen.copies.load(Ordering::SeqCst) >= 2
    }

    pub(super) fn register(&self, maps: u32, partitions: u32) {
        self.register_copies(maps, partitions, 1);
    }

    pub(super) fn register_copies(&self, maps: u32, partitions: u32, copies: u32) {
        let spec = Spec {
            tenant: Tenant::default(),
            maps,
            partitions,
            outputs: Runs::range(0, u64::from(partitions)),
            aligned: None,
            copies,
            is_handed_over: false,
            expected: 0,
            preferred: Vec::new(),
            committed: None,
        };
        let event = MasterEvent::Register {
            shuffle: SHUFFLE,
            spec,
        };
        self.said.send(Said::Event(event)).unwrap();
    }

    pub(super) fn plane(&self, worker: u32) -> &Plane {
        &self.workers[&worker].plane
    }

    /// Runs transfers, each at a worker in turn, all at once.
    pub(super) fn transfer(&self, maps: &[Numbers], attempt: u64) -> Vec<Receipt> {
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
                    let receipt =
                        plane.transfer(transfer, (attempt >= 100, true), source, &mut never());
                    let receipt = receipt.unwrap();
                    plane.finished(transfer.attempt, true);
                    receipt
                })
            });
            let running: Vec<_> = running.collect();
            running.into_iter().map(|run| run.join().unwrap()).collect()
        })
    }

    pub(super) fn commit(&self, maps: usize, receipts: &[Receipt]) -> Result<Generation, Failure> {
        let commit = Commit::new(SHUFFLE, maps as u32, receipts).unwrap();
        let plane = &self.workers.values().next().unwrap().plane;
        plane.commit(commit, &mut never())
    }

    /// A worker ends, and the master is told so.
    pub(super) fn lose(&mut self, worker: u32) {
        drop(self.workers.remove(&worker));
        self.lost += 1;
        self.said.send(Said::Lost(worker)).unwrap();
    }

    /// Reads every partition at every worker, and compares it.
    pub(super) fn compare(&self, maps: &[Numbers], partitions: u32, generation: Generation) {
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

    pub(super) fn end(&self) {
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

fn worker(words: Words, config: &Config, shares_memory: bool, is_slow: bool) -> Worker {
    let proxy = is_slow.then(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let contact = proxy
        .as_ref()
        .map(|proxy| proxy.local_addr().unwrap().to_string());
    let net = Options {
        shared_memory: shares_memory,
        ..options()
    };
    let listening = Options {
        contact: contact
            .iter()
            .map(|address| address.parse().unwrap())
            .collect(),
        services: vec![Offer {
            service: SERVICE,
            name: "shuffle",
            lane: None,
        }],
        ..net.clone()
    };
    let host = ServiceHost::bind(&"127.0.0.1:0".parse().unwrap(), &listening).unwrap();
    let mut address = host.address().to_string();
    if let (Some(proxy), Some(contact)) = (proxy, contact) {
        let target = address.rsplit('/').next().unwrap_or(&address);
        pass_on(proxy, target.to_string());
        address = contact;
    }
    let directory = TempDir::new().unwrap();
    let files = treadle_volume::Options::new(vec![directory.path().into()], u64::MAX);
    let id = WorkerId(words.0);
    let plane = Plane::new(
        id,
        Tenant::default(),
        &address,
        net,
        files,
        config.clone(),
        Box::new(words),
    );
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
    seen: &Seen,
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
        let is_loss = matches!(event, MasterEvent::Lost(_));
        let mut effects = Vec::new();
        master.handle(event, &mut effects).unwrap();
        master.check().unwrap();
        for effect in effects {
            match effect {
                MasterEffect::Send { to, message } => {
                    if let ToNode::Plan(plan) = &message {
                        let copies = plan.groups.iter().map(|group| group.copies.len());
                        let fewest = copies.min().unwrap_or_default();
                        seen.copies.store(fewest, Ordering::SeqCst);
                    }
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
        seen.lost.fetch_add(usize::from(is_loss), Ordering::SeqCst);
    }
}

pub(super) fn numbers(rows: &ReadRows) -> Vec<u64> {
    let rows = rows.iter().flat_map(|(_, rows)| rows.chunks(8));
    rows.map(|row| u64::from_ne_bytes(row.try_into().unwrap()))
        .collect()
}

pub(super) fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(super) fn only_stored_rows_are_held(worker: &Worker) {
    until("memory of other rows is kept", || {
        let stats = worker.plane.stats();
        stats.held == stats.resident
    });
}

pub(super) fn maps(count: u32, rows: u32, partitions: u32) -> Vec<Numbers> {
    (0..count)
        .map(|map| Numbers::new(map, rows, partitions))
        .collect()
}
