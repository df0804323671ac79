//! Runs in files.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use treadle_reactor::thread::{self, caught};
use treadle_shuffle::{BatchId, Push, ServerId, ShuffleId};
use treadle_volume::{File, Options, Volume, VolumeError};

use crate::held::{Filed, Held};
use crate::reports::Reports;
use crate::run::{Batch, Kept, Loaded, Part, Rebuilt, Run, write};
use crate::{Activity, Inner};

/// The ending of the names of files.
const LABEL: &str = "shuffle";

/// A job of the thread that reads and writes files.
enum Job {
    Spill {
        run: u64,
        shuffle: ShuffleId,
        batches: Vec<Batch>,
    },
    Load {
        load: u64,
        run: u64,
        part: Part,
    },
    /// Put a batch together again for another copy.
    Restore {
        run: u64,
        to: ServerId,
        push: Push,
    },
    Drop(u64),
}

/// The thread that reads and writes files. It starts with the first run.
#[derive(Debug)]
pub(crate) struct Disk {
    options: Options,
    held: Arc<Held>,
    volume: Arc<OnceLock<Volume>>,
    jobs: Option<Sender<Job>>,
}

impl Disk {
    pub(crate) fn new(options: Options, held: Arc<Held>) -> Self {
        Self {
            options,
            held,
            volume: Arc::default(),
            jobs: None,
        }
    }

    /// Starts to write a run. `false`: the thread could not start, or has ended.
    pub(crate) fn spill(
        &mut self,
        inner: &Weak<Inner>,
        run: u64,
        shuffle: ShuffleId,
        batches: Vec<Batch>,
    ) -> bool {
        if self.jobs.is_none() {
            let (jobs, queue) = channel();
            let thread = DiskThread {
                reports: Reports(Weak::clone(inner)),
                options: self.options.clone(),
                held: Arc::clone(&self.held),
                volume: Arc::clone(&self.volume),
                runs: HashMap::new(),
                rebuilt: Rebuilt::default(),
            };
            let started = thread::start("treadle-shuffle-disk", move || thread.run(&queue));
            if started.is_err() {
                return false;
            }
            self.jobs = Some(jobs);
        }
        self.put(Job::Spill {
            run,
            shuffle,
            batches,
        })
    }

    /// Starts to read a partition from a run. `false`: the thread has ended.
    pub(crate) fn load(&self, load: u64, run: u64, part: Part) -> bool {
        self.put(Job::Load { load, run, part })
    }

    /// Starts to put a batch of a run together again. `false`: the thread has ended.
    pub(crate) fn restore(&self, run: u64, to: ServerId, push: Push) -> bool {
        self.put(Job::Restore { run, to, push })
    }

    /// Removes a run.
    pub(crate) fn remove(&self, run: u64) {
        self.put(Job::Drop(run));
    }

    fn put(&self, job: Job) -> bool {
        let jobs = self.jobs.as_ref();
        jobs.is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// Removes all files, and ends the thread.
    pub(crate) fn close(&mut self) {
        self.jobs = None;
        if let Some(volume) = self.volume.get() {
            volume.close();
        }
    }
}

struct DiskThread {
    reports: Reports,
    options: Options,
    held: Arc<Held>,
    volume: Arc<OnceLock<Volume>>,
    runs: HashMap<u64, Run>,
    rebuilt: Rebuilt,
}

/// The file of a run.
struct InFile {
    file: File,
    _counted: Filed,
}

impl Kept for InFile {
    fn length(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), String> {
        let read = self.file.read_at(at, into);
        read.map_err(|error| error.to_string())
    }
}

impl DiskThread {
    fn run(mut self, queue: &Receiver<Job>) {
        while let Some(job) = self.rebuilt.next(queue) {
            let done = caught(|| self.job(job));
            if !self.reports.goes_on(done) {
                return;
            }
        }
    }

    fn job(&mut self, job: Job) {
        match job {
            Job::Spill {
                run,
                shuffle,
                batches,
            } => {
                let bytes: u64 = batches.iter().map(|(_, bytes, _)| bytes.len() as u64).sum();
                let written = self.reports.timed(Activity::Spill, Some(shuffle), || {
                    self.write(shuffle, &batches).map(|run| (run, bytes))
                });
                // Mapped memory: this lets its owner use it again.
                drop(batches);
                let written = written.map(|written| {
                    self.runs.insert(run, written);
                });
                self.reports.spilled(run, shuffle, bytes, written);
            }
            Job::Load { load, run, part } => {
                let shuffle = self.runs.get(&run).map(|run| run.shuffle);
                let loaded = self.reports.timed(Activity::Load, shuffle, || {
                    let loaded = self.read(run, part)?;
                    let bytes = loaded.iter().map(|(piece, _)| piece.stored()).sum();
                    Ok::<_, String>((loaded, bytes))
                });
                self.reports.loaded((load, run), shuffle, loaded);
            }
            Job::Restore { run, to, push } => {
                let batch = self.restored(run, push.batch);
                self.reports.restored(to, push, batch);
            }
            Job::Drop(run) => {
                self.rebuilt.removed(run);
                drop(self.runs.remove(&run));
            }
        }
    }

    fn write(&self, shuffle: ShuffleId, batches: &[Batch]) -> Result<Run, VolumeError> {
        let volume = match self.volume.get() {
            Some(volume) => volume,
            None => {
                let opened = Volume::open(&self.options)?;
                self.volume.get_or_init(|| opened)
            }
        };
        let file = volume.create(LABEL)?;
        let (index, end) = write(batches, |pieces| file.append(pieces).map(drop))?;
        let file = InFile {
            file,
            _counted: self.held.file(end),
        };
        Ok(Run::new(shuffle, batches, index, Box::new(file)))
    }

    fn read(&self, run: u64, part: Part) -> Result<Loaded, String> {
        let run = self.runs.get(&run).ok_or("the file is gone")?;
        run.pieces(part, &self.held)
    }

    fn restored(&mut self, number: u64, batch: BatchId) -> Result<Bytes, String> {
        let run = self.runs.get(&number).ok_or("the file is gone")?;
        self.rebuilt.batch((number, run), batch, &self.held)
    }
}
