//! Several planes in one process, over real sockets, with a real master.

mod slow;
mod support;
mod together;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use treadle_compress::Codec;
use treadle_memory::Consumer as _;
use treadle_net::{Options, Peer, Wait};
use treadle_rows::Wanted;
use treadle_shuffle::{
    AttemptId, Config, Fetch, Generation, GroupId, MapRange, Tally, ToMaster, ToServer, Transfer,
};
use treadle_shuffle_node::{Allocate, Arena, Failure, SERVICE, Source};
use treadle_shuffle_wire::{TO_SERVER, encode_shuffled};
use treadle_types::Runs;

use support::{
    Cluster, LONG, Numbers, SHUFFLE, Said, maps, never, numbers, only_stored_rows_are_held,
    options, server, until,
};

fn whole_shuffle(workers: u32, shares_memory: bool, rows: u32) {
    let cluster = Cluster::new(workers, shares_memory);
    let maps = maps(5, rows, 7);
    cluster.register(5, 7);
    // Connections pass descriptors when they have been open for a moment.
    let mut receipts = cluster.transfer(&maps[..3], 1);
    for worker in cluster.workers.values().filter(|_| shares_memory) {
        until("connections pass no descriptors", || {
            worker.plane.sharing() == workers as usize - 1
        });
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
        .transfer(slow.0.transfer(1), (false, true), &slow, &mut never());
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
        let task = scope.spawn(|| {
            plane.transfer(
                source.rows.transfer(1),
                (false, false),
                &source,
                &mut never(),
            )
        });
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

/// Rows of which gathering leaves the last ones out.
struct Short {
    gathered: Numbers,
    whole: Numbers,
}

impl Source for Short {
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure> {
        self.gathered.gather(transfer, groups, allocate)
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        self.whole.count_in(partitions)
    }
}

#[test]
fn a_receipt_without_all_rows_of_its_input_fails_the_transfer() {
    let cluster = Cluster::new(2, true);
    cluster.register(1, 4);
    let source = Short {
        gathered: Numbers::new(0, 1000, 4),
        whole: Numbers::new(0, 1200, 4),
    };
    let transfer = source.whole.transfer(1);
    let failed = cluster
        .plane(1)
        .transfer(transfer, (false, false), &source, &mut never());
    let Err(Failure::Failed(reason)) = failed else {
        panic!("rows are missing: {failed:?}");
    };
    let told = "input 0 has 1200 rows, and its receipt counts 1000";
    assert!(reason.starts_with(told), "{reason}");
    cluster.plane(1).finished(transfer.attempt, false);
    cluster.end();
}

#[test]
fn tasks_that_wait_are_given_back_when_the_worker_ends() {
    let cluster = Cluster::new(1, true);
    // Nobody registers it: the master closes it.
    let map = Numbers::new(0, 10, 2);
    let ended = cluster
        .plane(1)
        .transfer(map.transfer(1), (false, false), &map, &mut never());
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
    // They are adopted when they are compared, a moment after the last batch came.
    until("the copies are not adopted", || cluster.are_copied_again());
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

/// What a copy is told of the winners is longer than the header of an object.
#[test]
fn a_lost_copy_of_many_maps_is_made_again() {
    const MAPS: u32 = 6200;
    const THREADS: usize = 8;
    let mut cluster = Cluster::new(3, true);
    let maps = maps(MAPS, 1, 1);
    cluster.register_copies(MAPS, 1, 2);
    // Attempts are far apart, so that each takes many bytes.
    let attempt = |map: &Numbers| u64::from(map.map).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let plane = cluster.plane(1);
    let transfer = |map: &Numbers| {
        let transfer = map.transfer(attempt(map));
        let receipt = plane.transfer(transfer, (false, false), map, &mut never());
        plane.finished(transfer.attempt, true);
        receipt.unwrap()
    };
    let receipts: Vec<_> = thread::scope(|scope| {
        let parts = maps.chunks(maps.len().div_ceil(THREADS));
        let parts = parts.map(|part| scope.spawn(|| part.iter().map(transfer).collect::<Vec<_>>()));
        let parts: Vec<_> = parts.collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap())
            .collect()
    });
    let generation = cluster.commit(MAPS as usize, &receipts).unwrap();
    let both = kept(&cluster);
    let mut holders = cluster.workers.keys().copied().collect::<Vec<_>>();
    holders.retain(|&id| cluster.plane(id).stats().resident > 0);
    assert_eq!(holders.len(), 2);
    cluster.lose(holders[0]);
    until("the lost copy is not made again", || {
        cluster.are_copied_again()
    });
    assert!(kept(&cluster) >= both);
    cluster.lose(holders[1]);
    cluster.compare(&maps, 1, generation);
    assert!(cluster.invalidated.try_recv().is_err(), "no map runs again");
    cluster.end();
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

/// Partitions are 4 MB each, and reads may take 8 MiB.
#[test]
fn who_asks_for_much_and_takes_nothing_takes_little_memory() {
    let cluster = Cluster::new(1, false);
    let worker = &cluster.workers[&1];
    worker.plane.set_target(1 << 20);
    let maps = maps(2, 2_400_000, 10);
    cluster.register(2, 10);
    let receipts = cluster.transfer(&maps, 1);
    let generation = cluster.commit(2, &receipts).unwrap();
    until("there is too much in memory", || {
        worker.plane.stats().resident <= 1 << 20
    });
    let options = Options {
        service: SERVICE,
        ..options()
    };
    let address = worker.address.parse().unwrap();
    let mut wait = Wait {
        deadline: None,
        interrupted: None,
    };
    let peer = Peer::connect(&address, &options, &mut wait).unwrap();
    for partition in 0..10 {
        let fetch = ToServer::Fetch(Fetch {
            read: partition.into(),
            shuffle: SHUFFLE,
            generation,
            group: GroupId {
                epoch: Generation(1),
                server: server(1),
            },
            partition,
            maps: None,
            reader: None,
        });
        let frames = [encode_shuffled(&fetch).into()];
        peer.send(TO_SERVER, &frames).unwrap();
    }
    // Nothing of what is sent is taken.
    until("all are read at once", || worker.plane.stats().waiting >= 2);
    until("nothing is read", || {
        worker.plane.stats().loaded > 4_000_000
    });
    // Half of what rows may take: the target, and what may come while rows are written.
    assert!(worker.plane.stats().loaded < 33 << 20);
    drop(peer);
    until("reads of who is gone wait", || {
        worker.plane.stats().waiting == 0
    });
    cluster.compare(&maps, 10, generation);
    cluster.end();
}

/// The partition takes several times as long as a silence may last, and is not at the worker that reads it.
#[test]
fn what_comes_slowly_is_not_asked_for_again() {
    let config = Config {
        hedge: Duration::from_secs(4),
        ..Config::default()
    };
    let cluster = Cluster::slow(3, &config);
    let maps = maps(2, 1_600_000, 1);
    cluster.register_copies(2, 1, 2);
    let receipts = cluster.transfer(&maps, 1);
    let generation = cluster.commit(2, &receipts).unwrap();
    for worker in cluster.workers.values() {
        worker.plane.set_target(0);
        until("there is too much in memory", || {
            worker.plane.stats().resident == 0
        });
    }
    let mut workers = cluster.workers.values();
    let reader = workers.find(|worker| worker.plane.stats().stored == 0);
    let reader = &reader.unwrap().plane;
    let loaded = || -> u64 {
        let workers = cluster.workers.values();
        workers.map(|worker| worker.plane.stats().loaded).sum()
    };
    let before = loaded();
    let rows = reader.read(SHUFFLE, generation, 0, None, 8, &mut never());
    let expected: Vec<u64> = maps.iter().flat_map(|m| m.expected(0)).collect();
    assert_eq!(numbers(&rows.unwrap()), expected);
    assert_eq!(loaded() - before, 8 * expected.len() as u64, "read once");
    cluster.end();
}
