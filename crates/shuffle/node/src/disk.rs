//! Runs in files: one thread writes and removes them, one puts batches together again, and the threads of the
//! [devices](crate::devices) read.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use bytes::Bytes;
use treadle_reactor::thread::{self, caught, lock};
use treadle_shuffle::{Access, BatchId, Config, Outcome, Push, ServerId, ShuffleId, Tenant};
use treadle_volume::{File, Options, Volume, VolumeError};

use crate::devices::{DeviceQueue, DeviceStats, Devices, FileRun, Load, Place, STEP};
use crate::held::{Filed, Held};
use crate::reports::Reports;
use crate::run::{Batch, Kept, Part, Rebuilt, Run, write};
use crate::{Activity, Inner};

/// The ending of the names of files.
const LABEL: &str = "shuffle";

/// A job of the thread that writes.
enum Job {
    Spill {
        run: u64,
        shuffle: ShuffleId,
        tenant: Tenant,
        batches: Vec<Batch>,
    },
    Drop(u64),
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
    jobs: Sender<Job>,
    restores: Sender<Restore>,
}

/// What its threads share.
pub(crate) struct Shared {
    options: Options,
    config: Config,
    held: Arc<Held>,
    files: OnceLock<(Volume, Devices)>,
    runs: Mutex<HashMap<u64, Arc<FileRun>>>,
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
}

impl Disk {
    pub(crate) fn new(options: Options, config: Config, held: Arc<Held>) -> Self {
        let shared = Shared {
            options,
            config,
            held,
            files: OnceLock::new(),
            runs: Mutex::default(),
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
        self.put(Job::Spill {
            run,
            shuffle,
            tenant,
            batches,
        })
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
        self.put(Job::Drop(run));
    }

    fn put(&self, job: Job) -> bool {
        let threads = self.threads.as_ref();
        threads.is_some_and(|threads| threads.jobs.send(job).is_ok())
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
        let (jobs, queue) = channel();
        let writer = worker();
        thread::start("treadle-shuffle-file", move || writer.write_all(&queue)).ok()?;
        let (restores, queue) = channel();
        let copier = worker();
        thread::start("treadle-shuffle-copy", move || copier.copy_all(&queue)).ok()?;
        Some(Threads { jobs, restores })
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
    fn write_all(self, queue: &Receiver<Job>) {
        while let Ok(job) = queue.recv() {
            let done = caught(|| match job {
                Job::Spill {
                    run,
                    shuffle,
                    tenant,
                    batches,
                } => self.spill(run, (shuffle, tenant), batches),
                Job::Drop(run) => {
                    let removed = lock(&self.shared.runs).remove(&run);
                    drop(removed);
                }
            });
            if !self.reports.goes_on(done) {
                return;
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
            lock(&self.shared.runs).insert(run, Arc::new(written));
        });
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
        Ok(files.get_or_init(|| (volume, devices)))
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
