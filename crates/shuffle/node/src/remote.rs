//! Runs in a remote store: one thread writes them, several read them, since each request takes long, and one puts
//! batches together again.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};

use treadle_reactor::thread::{self, caught, lock};
use treadle_shuffle::{Push, ServerId, ShuffleId};
use treadle_shuffle_remote::{Object, RemoteError, Store};

use crate::held::{Filed, Held};
use crate::reports::Reports;
use crate::run::{Batch, Kept, Loaded, Part, Rebuilt, Run, write};
use crate::{Activity, Inner};

/// Threads that read.
const READERS: usize = 8;

/// A job of a thread that writes.
struct Spill {
    run: u64,
    shuffle: ShuffleId,
    batches: Vec<Batch>,
}

/// A job of a thread that reads.
struct Load {
    load: u64,
    run: u64,
    part: Part,
}

/// A batch that is to be put together again for another copy.
struct Restore {
    run: u64,
    to: ServerId,
    push: Push,
}

/// Runs by their numbers; `None`: it is being written. What is removed meanwhile is not there any more.
type Runs = Arc<Mutex<HashMap<u64, Option<Arc<Run>>>>>;

/// The runs of a server in its remote store. Its threads start with the first run.
pub(crate) struct RemoteRuns {
    store: Store,
    held: Arc<Held>,
    runs: Runs,
    threads: Option<Threads>,
}

struct Threads {
    spills: Sender<Spill>,
    loads: Sender<Load>,
    restores: Sender<Restore>,
}

impl RemoteRuns {
    pub(crate) fn new(store: Store, held: Arc<Held>) -> Self {
        Self {
            store,
            held,
            runs: Runs::default(),
            threads: None,
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Whether a run is here, or on its way here.
    pub(crate) fn has(&self, run: u64) -> bool {
        lock(&self.runs).contains_key(&run)
    }

    /// Starts to write a run. `false`: the threads could not start, or have ended.
    pub(crate) fn spill(
        &mut self,
        inner: &Weak<Inner>,
        run: u64,
        shuffle: ShuffleId,
        batches: Vec<Batch>,
    ) -> bool {
        if self.threads.is_none() {
            self.threads = self.start(inner);
        }
        let Some(threads) = &self.threads else {
            return false;
        };
        lock(&self.runs).insert(run, None);
        let job = Spill {
            run,
            shuffle,
            batches,
        };
        let is_sent = threads.spills.send(job).is_ok();
        if !is_sent {
            lock(&self.runs).remove(&run);
        }
        is_sent
    }

    /// Starts to read a partition from a run. `false`: the threads have ended.
    pub(crate) fn load(&self, load: u64, run: u64, part: Part) -> bool {
        let threads = self.threads.as_ref();
        threads.is_some_and(|threads| threads.loads.send(Load { load, run, part }).is_ok())
    }

    /// Starts to put a batch of a run together again. `false`: the threads have ended.
    pub(crate) fn restore(&self, run: u64, to: ServerId, push: Push) -> bool {
        let threads = self.threads.as_ref();
        threads.is_some_and(|threads| threads.restores.send(Restore { run, to, push }).is_ok())
    }

    /// Removes a run, as soon as nobody reads it.
    pub(crate) fn remove(&self, run: u64) {
        lock(&self.runs).remove(&run);
    }

    /// Ends the threads. The objects go with the store.
    pub(crate) fn close(&mut self) {
        self.threads = None;
    }

    fn start(&self, inner: &Weak<Inner>) -> Option<Threads> {
        let worker = || Worker {
            reports: Reports(Weak::clone(inner)),
            store: self.store.clone(),
            held: Arc::clone(&self.held),
            runs: Arc::clone(&self.runs),
        };
        let (spills, queue) = channel();
        let writer = worker();
        thread::start("treadle-remote-write", move || writer.write_all(&queue)).ok()?;
        let (loads, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..READERS {
            let (reader, queue) = (worker(), Arc::clone(&queue));
            thread::start("treadle-remote-read", move || reader.read_all(&queue)).ok()?;
        }
        let (restores, queue) = channel();
        let copier = worker();
        thread::start("treadle-remote-copy", move || copier.copy_all(&queue)).ok()?;
        Some(Threads {
            spills,
            loads,
            restores,
        })
    }
}

/// What a thread has.
struct Worker {
    reports: Reports,
    store: Store,
    held: Arc<Held>,
    runs: Runs,
}

impl Worker {
    fn write_all(self, queue: &Receiver<Spill>) {
        while let Ok(job) = queue.recv() {
            if !self.reports.goes_on(caught(|| self.spill(job))) {
                return;
            }
        }
    }

    fn read_all(self, queue: &Mutex<Receiver<Load>>) {
        loop {
            // Whoever waits for a job has the lock, and the others wait for that one.
            let job = lock(queue).recv();
            let Ok(job) = job else {
                return;
            };
            if !self.reports.goes_on(caught(|| self.load(&job))) {
                return;
            }
        }
    }

    fn copy_all(self, queue: &Receiver<Restore>) {
        let mut rebuilt = Rebuilt::default();
        while let Some(job) = rebuilt.next(queue) {
            let done = caught(|| {
                let Restore { run, to, push } = job;
                let found = self.find(run);
                let batch =
                    found.and_then(|found| rebuilt.batch((run, &*found), push.batch, &self.held));
                self.reports.restored(to, push, batch);
            });
            if !self.reports.goes_on(done) {
                return;
            }
        }
    }

    fn spill(&self, job: Spill) {
        let Spill {
            run,
            shuffle,
            batches,
        } = job;
        let bytes: u64 = batches.iter().map(|(_, bytes, _)| bytes.len() as u64).sum();
        let written = self.reports.timed(Activity::Spill, Some(shuffle), || {
            self.write(shuffle, &batches).map(|run| (run, bytes))
        });
        // Mapped memory: this lets its owner use it again.
        drop(batches);
        let written = match written {
            Ok(written) => {
                if let Some(place) = lock(&self.runs).get_mut(&run) {
                    *place = Some(Arc::new(written));
                }
                Ok(())
            }
            Err(error) => {
                lock(&self.runs).remove(&run);
                Err(error)
            }
        };
        self.reports.spilled(run, shuffle, bytes, written);
    }

    fn write(&self, shuffle: ShuffleId, batches: &[Batch]) -> Result<Run, RemoteError> {
        let mut upload = self.store.upload()?;
        let (index, end) = write(batches, |pieces| upload.append(pieces))?;
        let object = InStore {
            object: upload.finish()?,
            _counted: self.held.object(end),
        };
        Ok(Run::new(shuffle, batches, index, Box::new(object)))
    }

    fn load(&self, job: &Load) {
        let found = self.find(job.run);
        let shuffle = found.as_ref().ok().map(|run| run.shuffle);
        let loaded = self.reports.timed(Activity::Load, shuffle, || {
            let loaded: Loaded = found?.pieces(job.part, &self.held)?;
            let bytes = loaded.iter().map(|(piece, _)| piece.stored()).sum();
            Ok::<_, String>((loaded, bytes))
        });
        self.reports.loaded((job.load, job.run), shuffle, loaded);
    }

    fn find(&self, run: u64) -> Result<Arc<Run>, String> {
        let found = lock(&self.runs).get(&run).cloned().flatten();
        found.ok_or_else(|| "the object is gone".into())
    }
}

/// The object of a run.
struct InStore {
    object: Object,
    _counted: Filed,
}

impl Kept for InStore {
    fn length(&self) -> u64 {
        self.object.length()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), String> {
        let read = self.object.read_at(at, into);
        read.map_err(|error| error.to_string())
    }
}
