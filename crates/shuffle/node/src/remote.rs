//! Runs in a remote store: one thread writes them, several read them, since each request takes long, and one puts
//! batches together again. What a copy consists of is an object, too: its inventory.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};

use treadle_reactor::thread::{self, caught, lock};
use treadle_shuffle::{Adopted, GroupId, Inventory, Push, ServerId, ShuffleId};
use treadle_shuffle_remote::{Folder, Object, RemoteError, Store};
use treadle_shuffle_wire::InventoryRun;

use crate::held::{Filed, Held};
use crate::index::Index;
use crate::inventory;
use crate::reports::Reports;
use crate::run::{Batch, Kept, Loaded, Part, Rebuilt, Run, write};
use crate::{Activity, Inner};

/// Threads that read.
const READERS: usize = 8;

/// A copy of a group.
type CopyName = (ShuffleId, GroupId);

/// A job of a thread that writes.
enum Write {
    Spill {
        run: u64,
        shuffle: ShuffleId,
        batches: Vec<Batch>,
    },
    Inventory {
        number: u64,
        copy: CopyName,
        inventory: Inventory,
        runs: Vec<u64>,
    },
}

/// A job of a thread that reads.
enum Read {
    Load {
        load: u64,
        run: u64,
        part: Part,
    },
    Inventory {
        first: u64,
        copy: CopyName,
        name: Arc<str>,
    },
}

/// A batch that is to be put together again for another copy.
struct Restore {
    run: u64,
    to: ServerId,
    push: Push,
}

/// Runs by their numbers; `None`: it is being written. What is removed meanwhile is not there any more.
type Runs = Arc<Mutex<HashMap<u64, Option<Arc<Run>>>>>;

/// Inventories by their numbers; `None`: it is being written.
type Inventories = Arc<Mutex<HashMap<u64, Option<Object>>>>;

/// The directories of shuffles, as long as an object is there.
type Folders = Arc<Mutex<HashMap<ShuffleId, Weak<Folder>>>>;

/// The runs of a server in its remote store. Its threads start with the first run.
pub(crate) struct RemoteRuns {
    store: Store,
    /// Others may adopt what is written.
    is_shared: bool,
    held: Arc<Held>,
    runs: Runs,
    inventories: Inventories,
    folders: Folders,
    threads: Option<Threads>,
}

struct Threads {
    writes: Sender<Write>,
    reads: Sender<Read>,
    restores: Sender<Restore>,
}

impl RemoteRuns {
    pub(crate) fn new(store: Store, is_shared: bool, held: Arc<Held>) -> Self {
        Self {
            store,
            is_shared,
            held,
            runs: Runs::default(),
            inventories: Inventories::default(),
            folders: Folders::default(),
            threads: None,
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Whether a run is here, or on its way here.
    pub(crate) fn has(&self, run: u64) -> bool {
        lock(&self.runs).contains_key(&run) || lock(&self.inventories).contains_key(&run)
    }

    /// Starts to write a run. `false`: the threads could not start, or have ended.
    pub(crate) fn spill(
        &mut self,
        inner: &Weak<Inner>,
        run: u64,
        shuffle: ShuffleId,
        batches: Vec<Batch>,
    ) -> bool {
        lock(&self.runs).insert(run, None);
        let job = Write::Spill {
            run,
            shuffle,
            batches,
        };
        let threads = self.threads(inner);
        let is_sent = threads.is_some_and(|threads| threads.writes.send(job).is_ok());
        if !is_sent {
            lock(&self.runs).remove(&run);
        }
        is_sent
    }

    /// Starts to write what a copy consists of. `false`: the threads could not start, or have ended.
    pub(crate) fn write_inventory(
        &mut self,
        inner: &Weak<Inner>,
        number: u64,
        copy: CopyName,
        (inventory, runs): (Inventory, Vec<u64>),
    ) -> bool {
        lock(&self.inventories).insert(number, None);
        let job = Write::Inventory {
            number,
            copy,
            inventory,
            runs,
        };
        let threads = self.threads(inner);
        let is_sent = threads.is_some_and(|threads| threads.writes.send(job).is_ok());
        if !is_sent {
            lock(&self.inventories).remove(&number);
        }
        is_sent
    }

    /// Starts to adopt a copy. `false`: the threads could not start, or have ended.
    pub(crate) fn read_inventory(
        &mut self,
        inner: &Weak<Inner>,
        first: u64,
        copy: CopyName,
        name: Arc<str>,
    ) -> bool {
        let job = Read::Inventory { first, copy, name };
        let threads = self.threads(inner);
        threads.is_some_and(|threads| threads.reads.send(job).is_ok())
    }

    fn threads(&mut self, inner: &Weak<Inner>) -> Option<&Threads> {
        if self.threads.is_none() {
            self.threads = self.start(inner);
        }
        self.threads.as_ref()
    }

    /// Starts to read a partition from a run. `false`: the threads have ended.
    pub(crate) fn load(&self, load: u64, run: u64, part: Part) -> bool {
        let threads = self.threads.as_ref();
        let job = Read::Load { load, run, part };
        threads.is_some_and(|threads| threads.reads.send(job).is_ok())
    }

    /// Starts to put a batch of a run together again. `false`: the threads have ended.
    pub(crate) fn restore(&self, run: u64, to: ServerId, push: Push) -> bool {
        let threads = self.threads.as_ref();
        threads.is_some_and(|threads| threads.restores.send(Restore { run, to, push }).is_ok())
    }

    /// Removes a run, as soon as nobody reads it.
    pub(crate) fn remove(&self, run: u64) {
        lock(&self.runs).remove(&run);
        lock(&self.inventories).remove(&run);
    }

    /// Forgets a run. Its object stays.
    pub(crate) fn leave(&self, run: u64) {
        if let Some(Some(run)) = lock(&self.runs).remove(&run) {
            run.kept.leave();
        }
        if let Some(Some(object)) = lock(&self.inventories).remove(&run) {
            object.leave();
        }
    }

    /// Ends the threads. The objects go with the store.
    pub(crate) fn close(&mut self) {
        self.threads = None;
    }

    fn start(&self, inner: &Weak<Inner>) -> Option<Threads> {
        let worker = || Worker {
            reports: Reports(Weak::clone(inner)),
            store: self.store.clone(),
            is_shared: self.is_shared,
            held: Arc::clone(&self.held),
            runs: Arc::clone(&self.runs),
            inventories: Arc::clone(&self.inventories),
            folders: Arc::clone(&self.folders),
        };
        let (writes, queue) = channel();
        let writer = worker();
        thread::start("treadle-remote-write", move || writer.write_all(&queue)).ok()?;
        let (reads, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..READERS {
            let (reader, queue) = (worker(), Arc::clone(&queue));
            thread::start("treadle-remote-read", move || reader.read_all(&queue)).ok()?;
        }
        let (restores, queue) = channel();
        let copier = worker();
        thread::start("treadle-remote-copy", move || copier.copy_all(&queue)).ok()?;
        Some(Threads {
            writes,
            reads,
            restores,
        })
    }
}

/// What a thread has.
struct Worker {
    reports: Reports,
    store: Store,
    is_shared: bool,
    held: Arc<Held>,
    runs: Runs,
    inventories: Inventories,
    folders: Folders,
}

impl Worker {
    fn write_all(self, queue: &Receiver<Write>) {
        while let Ok(job) = queue.recv() {
            if !self.reports.goes_on(caught(|| self.carry_out(job))) {
                return;
            }
        }
    }

    fn read_all(self, queue: &Mutex<Receiver<Read>>) {
        loop {
            // Whoever waits for a job has the lock, and the others wait for that one.
            let job = lock(queue).recv();
            let Ok(job) = job else {
                return;
            };
            if !self.reports.goes_on(caught(|| self.read(job))) {
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

    fn carry_out(&self, job: Write) {
        match job {
            Write::Spill {
                run,
                shuffle,
                batches,
            } => self.spill(run, shuffle, batches),
            Write::Inventory {
                number,
                copy,
                inventory,
                runs,
            } => {
                let written = self.describe(number, &inventory, &runs);
                self.reports.inventory_written(copy, number, written);
            }
        }
    }

    fn read(&self, job: Read) {
        match job {
            Read::Load { load, run, part } => self.load(load, run, part),
            Read::Inventory { first, copy, name } => {
                let found = self.adopt(copy.0, first, &name);
                self.reports.inventory_read(copy, first, found);
            }
        }
    }

    /// The directory of a shuffle's objects.
    fn folder(&self, shuffle: ShuffleId) -> Result<Arc<Folder>, RemoteError> {
        let mut folders = lock(&self.folders);
        folders.retain(|_, folder| folder.strong_count() > 0);
        if let Some(folder) = folders.get(&shuffle).and_then(Weak::upgrade) {
            return Ok(folder);
        }
        let folder = Arc::new(self.store.folder()?);
        folders.insert(shuffle, Arc::downgrade(&folder));
        Ok(folder)
    }

    /// Writes an inventory. Returns its name.
    fn describe(&self, number: u64, of: &Inventory, runs: &[u64]) -> Result<Arc<str>, String> {
        let found = runs.iter().map(|&run| self.find(run));
        let found = found.collect::<Result<Vec<_>, String>>();
        let written = found.and_then(|found| {
            let bytes = inventory::encode(of, &found);
            let folder = self.folder(of.shuffle).map_err(|error| error.to_string())?;
            let write = || {
                let mut upload = folder.upload()?;
                upload.append(&[&bytes])?;
                upload.finish()
            };
            write().map_err(|error: RemoteError| error.to_string())
        });
        let mut inventories = lock(&self.inventories);
        match written {
            Ok(object) => {
                let name = object.name().into();
                if let Some(place) = inventories.get_mut(&number) {
                    *place = Some(object);
                }
                Ok(name)
            }
            Err(reason) => {
                inventories.remove(&number);
                Err(reason)
            }
        }
    }

    /// Reads an inventory, and opens the runs that it names. From now on these objects are of this server, also if
    /// it fails: then it says why, and how many there are.
    fn adopt(&self, shuffle: ShuffleId, first: u64, name: &str) -> Result<Adopted, (String, u64)> {
        let said = |error: RemoteError| error.to_string();
        let folder = self.store.adopt(name).map_err(|error| (said(error), 0))?;
        let object = folder.object(name).map_err(|error| (said(error), 0))?;
        let read = inventory::read(object.length(), |bytes| {
            object.read_at(0, bytes).map_err(said)
        });
        lock(&self.inventories).insert(first, Some(object));
        let (inventory, written) = read.map_err(|reason| (reason, 1))?;
        let mut runs = Vec::new();
        for (number, run) in (first + 1..).zip(written) {
            let run = self.open(shuffle, run);
            let run = run.map_err(|reason| (reason, number - first))?;
            let headers = run.headers.iter();
            let batches = headers.map(|(id, header)| (*id, header.tally, header.length()));
            runs.push(batches.collect());
            lock(&self.runs).insert(number, Some(Arc::new(run)));
        }
        Ok(Adopted { inventory, runs })
    }

    /// A run that another server has written.
    fn open(&self, shuffle: ShuffleId, written: InventoryRun) -> Result<Run, String> {
        let said = |error: RemoteError| error.to_string();
        let folder = self.store.adopt(&written.name).map_err(said)?;
        let object = folder.object(&written.name).map_err(said)?;
        if object.length() != written.length {
            object.leave();
            return Err(format!("{} has another length", written.name));
        }
        let Some(index) = Index::of(written.begins) else {
            object.leave();
            return Err(format!("the index of {} is none", written.name));
        };
        let headers = written.headers.into_iter();
        let kept = InStore {
            object,
            _folder: None,
            _counted: self.held.object(written.length),
        };
        Ok(Run {
            kept: Box::new(kept),
            shuffle,
            index,
            headers: headers.map(|header| (header.batch, header)).collect(),
        })
    }

    fn spill(&self, run: u64, shuffle: ShuffleId, batches: Vec<Batch>) {
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
        let folder = match self.is_shared {
            true => Some(self.folder(shuffle)?),
            false => None,
        };
        let upload = folder.as_ref().map(|folder| folder.upload());
        let mut upload = upload.unwrap_or_else(|| self.store.upload())?;
        let (index, end) = write(batches, |pieces| upload.append(pieces))?;
        let object = InStore {
            object: upload.finish()?,
            _folder: folder,
            _counted: self.held.object(end),
        };
        Ok(Run::new(shuffle, batches, index, Box::new(object)))
    }

    fn load(&self, load: u64, run: u64, part: Part) {
        let found = self.find(run);
        let shuffle = found.as_ref().ok().map(|run| run.shuffle);
        let loaded = self.reports.timed(Activity::Load, shuffle, || {
            let loaded: Loaded = found?.pieces(part, &self.held)?;
            let bytes = loaded.iter().map(|(piece, _)| piece.stored()).sum();
            Ok::<_, String>((loaded, bytes))
        });
        self.reports.loaded((load, run), shuffle, loaded);
    }

    fn find(&self, run: u64) -> Result<Arc<Run>, String> {
        let found = lock(&self.runs).get(&run).cloned().flatten();
        found.ok_or_else(|| "the object is gone".into())
    }
}

/// The object of a run.
struct InStore {
    object: Object,
    /// It lives as long as an object is there.
    _folder: Option<Arc<Folder>>,
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

    fn name(&self) -> &str {
        self.object.name()
    }

    fn leave(&self) {
        self.object.leave();
    }
}
