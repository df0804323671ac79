//! Runs in files: one thread writes them, and others while it waits for a device that does nothing. One of each device
//! removes them, one puts batches together again, and the threads of the [devices](crate::devices) read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use treadle_reactor::awake;
use treadle_reactor::thread::{self, caught, lock};
use treadle_shuffle::{Access, BatchId, Config, Outcome, Push, ServerId, ShuffleId, Tenant};
use treadle_volume::{File, Options, Volume, VolumeError};

use crate::devices::{DeviceQueue, DeviceStats, Devices, FileRun, Load, Place, STEP, STUCK};
use crate::held::{Filed, Held};
use crate::reports::Reports;
use crate::run::{Batch, Kept, Part, Rebuilt, Run, write};
use crate::{Activity, Inner};

/// The ending of the names of files.
const LABEL: &str = "shuffle";

/// Threads that write: the core has one run written at a time, and another one while that is stuck.
const WRITERS: usize = 5;
/// A run of which nothing was written for so long is written elsewhere.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether devices do nothing.
const WATCH: Duration = Duration::from_secs(1);

/// A job of a thread that writes.
struct Spill {
    run: u64,
    shuffle: ShuffleId,
    tenant: Tenant,
    batches: Vec<Batch>,
}

/// A batch that is to be put together again for another copy.
struct Restore {
    run: u64,
    to: ServerId,
    push: Push,
}

/// How a load began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begun {
    Asked,
    /// Too much waits for the device.
    Busy,
    /// There is no such run.
    Failed,
    /// It has no rows of this partition.
    Nothing,
}

/// The files of a plane. The threads start with the first run.
pub(crate) struct Disk {
    shared: Arc<Shared>,
    threads: Option<Threads>,
}

struct Threads {
    spills: Sender<Spill>,
    restores: Sender<Restore>,
    /// The thread that watches ends with it.
    _watch: Sender<()>,
}

/// What its threads share.
pub(crate) struct Shared {
    options: Options,
    config: Config,
    held: Arc<Held>,
    files: OnceLock<(Volume, Devices)>,
    runs: Mutex<HashMap<u64, Arc<FileRun>>>,
    writing: Mutex<Writing>,
    /// Who removes the files of each device.
    removals: OnceLock<Vec<Sender<Arc<FileRun>>>>,
}

/// Runs that are being written.
#[derive(Default)]
struct Writing {
    /// When the last piece of each was written.
    since: HashMap<u64, Duration>,
    /// Those that are not wanted any more.
    dropped: HashSet<u64>,
}

impl Shared {
    /// What the devices say about themselves. None: nothing was written yet.
    pub(crate) fn stats(&self) -> Vec<DeviceStats> {
        let files = self.files.get();
        files.map_or_else(Vec::new, |(_, devices)| devices.stats())
    }

    /// Requests that wait for devices.
    pub(crate) fn waiting(&self) -> u64 {
        self.files.get().map_or(0, |(_, devices)| devices.waiting())
    }

    fn find(&self, run: u64) -> Option<Arc<FileRun>> {
        lock(&self.runs).get(&run).cloned()
    }

    /// Removes a file, once nobody reads it: a device that does nothing holds up no other.
    fn remove(&self, run: Arc<FileRun>) {
        let devices = self.files.get().map(|(_, devices)| devices);
        let number = devices.and_then(|devices| devices.number(&run.queue));
        let removal = number.and_then(|number| self.removals.get()?.get(number));
        // Where there is no thread, it is removed here.
        if let Some(removal) = removal {
            let _ = removal.send(run);
        }
    }

    /// The runs at devices that do nothing.
    fn stuck(&self) -> BTreeSet<u64> {
        let now = awake::now();
        let writing = lock(&self.writing);
        let since = writing.since.iter();
        // It waits for its turn, too.
        let stuck = since.filter(|(_, since)| now.saturating_sub(**since) >= PATIENCE);
        let mut stuck: BTreeSet<u64> = stuck.map(|(&run, _)| run).collect();
        let being_written: Vec<u64> = writing.since.keys().copied().collect();
        drop(writing);
        if let Some((_, devices)) = self.files.get() {
            let (waiting, are) = devices.stuck(STUCK);
            stuck.extend(waiting);
            if !are.contains(&false) {
                // There is no other device to write to.
                stuck.retain(|run| !being_written.contains(run));
            }
            if are.contains(&true) {
                let runs = lock(&self.runs);
                let there = runs.iter().filter(|(_, run)| {
                    let number = devices.number(&run.queue);
                    number.is_some_and(|number| are[number])
                });
                stuck.extend(there.map(|(&number, _)| number));
            }
        }
        stuck
    }
}

impl Disk {
    pub(crate) fn new(options: Options, config: Config, held: Arc<Held>) -> Self {
        let shared = Shared {
            options,
            config,
            held,
            files: OnceLock::new(),
            runs: Mutex::default(),
            writing: Mutex::default(),
            removals: OnceLock::new(),
        };
        Self {
            shared: Arc::new(shared),
            threads: None,
        }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Starts to write a run. `false`: a thread could not start, or has ended.
    pub(crate) fn spill(
        &mut self,
        inner: &Weak<Inner>,
        run: u64,
        (shuffle, tenant): (ShuffleId, Tenant),
        batches: Vec<Batch>,
    ) -> bool {
        if self.threads.is_none() {
            self.threads = self.start(inner);
        }
        lock(&self.shared.writing).since.insert(run, awake::now());
        let job = Spill {
            run,
            shuffle,
            tenant,
            batches,
        };
        let threads = self.threads.as_ref();
        let is_sent = threads.is_some_and(|threads| threads.spills.send(job).is_ok());
        if !is_sent {
            lock(&self.shared.writing).since.remove(&run);
        }
        is_sent
    }

    /// Starts to read a partition from a run.
    pub(crate) fn load(
        &self,
        (load, is_over): (u64, Arc<AtomicBool>),
        number: u64,
        part: Part,
        tenant: Tenant,
    ) -> Begun {
        let Some(run) = self.shared.find(number) else {
            return Begun::Failed;
        };
        let range = run.run.range(part).filter(|range| !range.is_empty());
        let Some(range) = range else {
            return Begun::Nothing;
        };
        let queue = Arc::clone(&run.queue);
        let load = Load {
            load,
            number,
            part,
            tenant,
            run,
            is_over,
        };
        let is_begun = queue.load(load, (range.start, range.end));
        match is_begun {
            true => Begun::Asked,
            false => Begun::Busy,
        }
    }

    /// Starts to put a batch of a run together again. `false`: the thread has ended.
    pub(crate) fn restore(&self, run: u64, to: ServerId, push: Push) -> bool {
        let threads = self.threads.as_ref();
        threads.is_some_and(|threads| threads.restores.send(Restore { run, to, push }).is_ok())
    }

    /// Removes a run.
    pub(crate) fn remove(&self, run: u64) {
        {
            let mut writing = lock(&self.shared.writing);
            if writing.since.contains_key(&run) {
                writing.dropped.insert(run);
                return;
            }
        }
        let removed = lock(&self.shared.runs).remove(&run);
        if let Some(removed) = removed {
            self.shared.remove(removed);
        }
    }

    /// Removes all files, and ends the threads.
    pub(crate) fn close(&mut self) {
        self.threads = None;
        if let Some((volume, devices)) = self.shared.files.get() {
            devices.close();
            volume.close();
        }
    }

    fn start(&self, inner: &Weak<Inner>) -> Option<Threads> {
        let worker = || Worker {
            reports: Reports(Weak::clone(inner)),
            shared: Arc::clone(&self.shared),
        };
        let (spills, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..WRITERS {
            let (writer, queue) = (worker(), Arc::clone(&queue));
            thread::start("treadle-shuffle-file", move || writer.write_all(&queue)).ok()?;
        }
        let watch = worker();
        let (ends, end) = channel::<()>();
        thread::start("treadle-shuffle-watch", move || watch.watch(&end)).ok()?;
        let (restores, queue) = channel();
        let copier = worker();
        thread::start("treadle-shuffle-copy", move || copier.copy_all(&queue)).ok()?;
        Some(Threads {
            spills,
            restores,
            _watch: ends,
        })
    }
}

/// What a thread has.
struct Worker {
    reports: Reports,
    shared: Arc<Shared>,
}

/// The file of a run, read by who puts batches together again.
struct InFile {
    file: File,
    queue: Arc<DeviceQueue>,
    run: u64,
    tenant: Tenant,
    _counted: Filed,
}

impl Kept for InFile {
    fn length(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), String> {
        let mut at = at;
        for part in into.chunks_mut(STEP as usize) {
            let place = Place {
                tenant: self.tenant,
                run: self.run,
                offset: at,
            };
            let bytes = part.len() as u64;
            let read = || self.file.read_at(at, part);
            let read = self.queue.turn(place, (Access::Read, bytes), outcome, read);
            read.map_err(|error| error.map_or_else(ended, |error| error.to_string()))?;
            at += bytes;
        }
        Ok(())
    }
}

impl Worker {
    fn write_all(self, queue: &Mutex<Receiver<Spill>>) {
        loop {
            // Whoever waits for a job has the lock, and the others wait for that one.
            let job = lock(queue).recv();
            let Ok(Spill {
                run,
                shuffle,
                tenant,
                batches,
            }) = job
            else {
                return;
            };
            let done = caught(|| self.spill(run, (shuffle, tenant), batches));
            if !self.reports.goes_on(done) {
                return;
            }
        }
    }

    /// Says which runs are at devices that do nothing, whenever others are.
    fn watch(self, end: &Receiver<()>) {
        let mut said = BTreeSet::new();
        while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(WATCH) {
            let stuck = self.shared.stuck();
            if stuck != said {
                said.clone_from(&stuck);
                self.reports.stuck(stuck);
            }
        }
    }

    fn copy_all(self, queue: &Receiver<Restore>) {
        let mut rebuilt = Rebuilt::default();
        while let Some(Restore { run, to, push }) = rebuilt.next(queue) {
            let done = caught(|| {
                let batch = self.restored(&mut rebuilt, run, push.batch);
                self.reports.restored(to, push, batch);
            });
            if !self.reports.goes_on(done) {
                return;
            }
        }
    }

    fn restored(
        &self,
        rebuilt: &mut Rebuilt,
        number: u64,
        batch: BatchId,
    ) -> Result<Bytes, String> {
        let found = self.shared.find(number).ok_or("the file is gone")?;
        rebuilt.batch((number, &found.run), batch, &self.shared.held)
    }

    fn spill(&self, run: u64, (shuffle, tenant): (ShuffleId, Tenant), batches: Vec<Batch>) {
        let bytes: u64 = batches.iter().map(|(_, bytes, _)| bytes.len() as u64).sum();
        let written = self.reports.timed(Activity::Spill, Some(shuffle), || {
            self.write(run, (shuffle, tenant), &batches)
                .map(|run| (run, bytes))
        });
        // Mapped memory: this lets its owner use it again.
        drop(batches);
        let written = written.map(|written| {
            let written = Arc::new(written);
            let mut writing = lock(&self.shared.writing);
            writing.since.remove(&run);
            match writing.dropped.remove(&run) {
                true => self.shared.remove(written),
                false => _ = lock(&self.shared.runs).insert(run, written),
            }
        });
        if written.is_err() {
            let mut writing = lock(&self.shared.writing);
            writing.since.remove(&run);
            writing.dropped.remove(&run);
        }
        self.reports.spilled(run, shuffle, bytes, written);
    }

    fn write(
        &self,
        run: u64,
        (shuffle, tenant): (ShuffleId, Tenant),
        batches: &[Batch],
    ) -> Result<FileRun, String> {
        let (volume, devices) = self.files()?;
        volume.weigh(&devices.weights());
        let file = volume.create(LABEL).map_err(|error| error.to_string())?;
        let queue = devices.of(file.directory());
        let (index, end) = write(batches, |pieces| {
            let place = Place {
                tenant,
                run,
                offset: file.len(),
            };
            let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
            let append = || file.append(pieces).map(drop);
            let written = queue.turn(place, (Access::Write, bytes), outcome, append);
            if let Some(since) = lock(&self.shared.writing).since.get_mut(&run) {
                *since = awake::now();
            }
            written.map_err(|error| error.map_or_else(ended, |error| error.to_string()))
        })?;
        let kept = InFile {
            file: file.clone(),
            queue: Arc::clone(queue),
            run,
            tenant,
            _counted: self.shared.held.file(end),
        };
        Ok(FileRun {
            run: Run::new(shuffle, batches, index, Box::new(kept)),
            file,
            queue: Arc::clone(queue),
        })
    }

    /// The volume and its devices, which begin with the first run.
    fn files(&self) -> Result<&(Volume, Devices), String> {
        let Shared {
            options,
            config,
            held,
            files,
            ..
        } = &*self.shared;
        if let Some(files) = files.get() {
            return Ok(files);
        }
        let volume = Volume::open(options).map_err(|error| error.to_string())?;
        let devices = Devices::start(&volume, config, &self.reports.0, held);
        let devices = devices.map_err(|error| error.to_string())?;
        // Another thread may have been faster.
        let files = files.get_or_init(|| (volume, devices));
        let removals = files.1.count();
        self.shared.removals.get_or_init(|| {
            let removals = (0..removals).map_while(|_| {
                let (removal, queue) = channel::<Arc<FileRun>>();
                let remove = move || queue.into_iter().for_each(drop);
                let started = thread::start("treadle-shuffle-remove", remove);
                started.ok().map(|_| removal)
            });
            removals.collect()
        });
        Ok(files)
    }
}

/// What an error says of a device.
fn outcome(error: &VolumeError) -> Outcome {
    match error {
        VolumeError::Full { .. } | VolumeError::Quota { .. } => Outcome::Full,
        _ => Outcome::Failed,
    }
}

fn ended() -> String {
    "the process ends".into()
}
