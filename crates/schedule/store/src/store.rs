//! The store: what its users call.

use std::error::Error;
use std::fmt;
use std::mem;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use treadle_guards::InvariantError;
use treadle_memory::{Consumer, Pool, Usage};
use treadle_volume::{Disk, File, LocalDisk, VolumeError};

use crate::file::{FormatError, decode};
use crate::ledger::{Access, Cost, Key, Ledger, Unknown};
use crate::state::{Contents, Inner, State, cost_of_frames};
use crate::{
    Form, Frames, ObjectInfo, Options, Pinned, PutError, Stats, StoreError, StoredId, spill,
};

/// A worker's objects. See the [crate](crate) for the model.
pub struct Store {
    inner: Arc<Inner>,
    spiller: Option<JoinHandle<()>>,
    pid: u32,
}

impl Store {
    /// An empty store with files in a new directory of its own. What dead processes left beside
    /// that is removed.
    ///
    /// # Errors
    /// [`StoreError::Target`], [`StoreError::Disk`], [`StoreError::Thread`].
    pub fn open(options: Options) -> Result<Self, StoreError> {
        Store::on_disk(options, Arc::new(LocalDisk))
    }

    /// The same with files that are written and read by `disk`. The directory is a real one.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn on_disk(options: Options, disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let inner = Arc::new(Inner::new(options, disk)?);
        let theirs = Arc::clone(&inner);
        let spiller = thread::Builder::new()
            .name("treadle-spill".into())
            .spawn(move || spill::run(&theirs))
            .map_err(|source| StoreError::Thread {
                directory: inner.options.directory.clone(),
                source,
            })?;
        Ok(Store {
            inner,
            spiller: Some(spiller),
            pid: std::process::id(),
        })
    }

    /// Stores an object, or overwrites the one that has this id. It is there until it is
    /// [removed](Self::remove), however often it was put, and until those that
    /// [retain](Self::retain) it have released it. Waits for room in memory until `timeout` is over.
    ///
    /// # Errors
    /// [`PutError`] with the object: [`StoreError::NoMemory`]; or, if memory cannot be freed since
    /// the disk fails, [`StoreError::Disk`]. An object larger than the limit is refused at once.
    pub fn put(
        &self,
        id: StoredId,
        object: impl Into<Form>,
        timeout: Duration,
    ) -> Result<(), PutError> {
        let object = object.into();
        let cost = match &object {
            Form::Live(live) => Cost::Live(live.nbytes()),
            Form::Frames(frames) => cost_of_frames(frames),
        };
        let needed = cost.managed();
        // No deadline where the clock cannot express it.
        let deadline = Instant::now().checked_add(timeout);
        let inner = &*self.inner;
        let mut state = inner.lock();
        loop {
            match state.ledger.put(id, cost) {
                Ok(put) => {
                    state.contents.insert(put.key, Contents::of(object));
                    let left = put.gone.map(|key| state.take(key));
                    inner.unlock(state);
                    drop(left);
                    return Ok(());
                }
                Err(full) => {
                    let now = Instant::now();
                    let rest = match deadline {
                        Some(deadline) => deadline.saturating_duration_since(now),
                        None => Duration::MAX,
                    };
                    let patience = inner.options.patience.unwrap_or(Duration::MAX);
                    let rest = match &state.fault {
                        Some(fault) => rest.min(patience.saturating_sub(fault.since.elapsed())),
                        None => rest,
                    };
                    if full.never || rest.is_zero() {
                        let error = self.no_room(&state, id, needed, full.never);
                        let managed = state.ledger.totals().managed;
                        drop(state);
                        return Err(PutError {
                            id,
                            needed,
                            managed,
                            limit: inner.options.limit,
                            object,
                            error,
                        });
                    }
                    state.ledger.wait(needed);
                    if state.has_work() {
                        inner.work.notify_one();
                    }
                    let woken = inner.room.wait_timeout(state, rest.min(patience));
                    state = woken.unwrap_or_else(PoisonError::into_inner).0;
                    state.ledger.end_wait(needed);
                }
            }
        }
    }

    fn no_room(&self, state: &State, id: StoredId, needed: u64, never: bool) -> StoreError {
        match &state.fault {
            Some(fault) if !never => fault.error.clone().into(),
            _ => {
                let totals = state.ledger.totals();
                StoreError::NoMemory {
                    id,
                    needed,
                    managed: totals.managed,
                    pinned: totals.pinned.nbytes,
                    limit: self.inner.options.limit,
                }
            }
        }
    }

    /// The object, to use. If it is on disk it is read back, by one thread if several ask; that
    /// does not wait for room.
    ///
    /// # Errors
    /// [`StoreError::Unknown`]; and of its file [`StoreError::Corrupt`], [`StoreError::Disk`],
    /// [`StoreError::Memory`].
    pub fn get(&self, id: StoredId) -> Result<Pinned, StoreError> {
        let inner = &*self.inner;
        let mut state = inner.lock();
        let unknown = |_| StoreError::Unknown { id };
        let key = state.ledger.pin(id).map_err(unknown)?;
        loop {
            match state.ledger.access(key) {
                Access::Ready => {
                    let contents = &state.contents[&key];
                    let live = contents.live.clone();
                    let frames = contents.shared.clone().or_else(|| contents.frames.clone());
                    drop(state);
                    return Ok(Pinned::new(Arc::clone(&self.inner), id, key, live, frames));
                }
                Access::Wait => {
                    let woken = inner.read.wait(state);
                    state = woken.unwrap_or_else(PoisonError::into_inner);
                }
                Access::Read { bytes } => {
                    let file = state.contents[&key].file.clone();
                    // The memory is counted from here on.
                    inner.unlock(state);
                    let began = Instant::now();
                    let outcome = file.map(|file| read_patiently(id, &file));
                    let outcome = outcome.expect("what is read has a file");
                    state = inner.lock();
                    state.ledger.read_done(key, outcome.is_ok());
                    inner.read.notify_all();
                    match outcome {
                        Ok(frames) => {
                            state.counters.read.add(bytes);
                            state.counters.read_time += began.elapsed();
                            match state.contents.get_mut(&key) {
                                Some(contents) if contents.frames.is_none() => {
                                    contents.frames = Some(frames);
                                }
                                // Somebody who has it pinned too attached frames meanwhile.
                                _ => {
                                    drop(state);
                                    drop(frames);
                                    state = inner.lock();
                                }
                            }
                        }
                        Err(error) => {
                            state.counters.read_failures += 1;
                            let gone = state.ledger.unpin(key);
                            let left = gone.then(|| state.take(key));
                            inner.unlock(state);
                            drop(left);
                            return Err(error);
                        }
                    }
                }
            }
        }
    }

    /// One more reference to an object.
    ///
    /// # Errors
    /// [`StoreError::Unknown`].
    pub fn retain(&self, id: StoredId) -> Result<(), StoreError> {
        let unknown = |_| StoreError::Unknown { id };
        self.inner.lock().ledger.retain(id).map_err(unknown)
    }

    /// One reference less of those that [`retain`](Self::retain) added. With the last one of all the
    /// object and its file go, or with its last [`Pinned`] if that is later.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], also where none was added.
    pub fn release(&self, id: StoredId) -> Result<(), StoreError> {
        self.lessen(id, Ledger::release)
    }

    /// Ends what [`put`](Self::put) began: the object goes once nobody retains it, as with
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// [`StoreError::Unknown`], also where only others have it.
    pub fn remove(&self, id: StoredId) -> Result<(), StoreError> {
        self.lessen(id, Ledger::remove)
    }

    fn lessen(
        &self,
        id: StoredId,
        lessen: fn(&mut Ledger, StoredId) -> Result<Option<Key>, Unknown>,
    ) -> Result<(), StoreError> {
        let unknown = |_| StoreError::Unknown { id };
        let mut state = self.inner.lock();
        let gone = lessen(&mut state.ledger, id).map_err(unknown)?;
        let left = gone.map(|key| state.take(key));
        self.inner.unlock(state);
        drop(left);
        Ok(())
    }

    /// No other process maps the object's memory any more: it counts as managed again. Nothing
    /// changes for an object without a shared form.
    ///
    /// # Errors
    /// [`StoreError::Unknown`].
    pub fn unshare(&self, id: StoredId) -> Result<(), StoreError> {
        let mut state = self.inner.lock();
        let Some(info) = state.ledger.info(id) else {
            return Err(StoreError::Unknown { id });
        };
        let mut left = None;
        if info.shared
            && let Ok(key) = state.ledger.unshare(id)
        {
            let frames = state.ledger.info(id).is_some_and(|info| info.frames);
            if let Some(contents) = state.contents.get_mut(&key) {
                left = contents.shared.take();
                if frames && contents.frames.is_none() {
                    contents.frames = left.as_ref().map(|shared| Arc::new(shared.unshared()));
                }
            }
        }
        self.inner.unlock(state);
        drop(left);
        Ok(())
    }

    /// Where an object stands, if it is here.
    pub fn info(&self, id: StoredId) -> Option<ObjectInfo> {
        self.inner.lock().ledger.info(id)
    }

    /// Lowers the target below that of the options, or raises it up to there again: where the rest
    /// of the process takes more memory, less is left for objects.
    pub fn set_target(&self, target: u64) {
        let mut state = self.inner.lock();
        state
            .ledger
            .set_target(target.min(self.inner.options.target));
        if state.has_work() {
            self.inner.work.notify_one();
        }
    }

    /// Where the store stands.
    pub fn stats(&self) -> Stats {
        let state = self.inner.lock();
        let totals = state.ledger.totals();
        let counters = &state.counters;
        Stats {
            managed: totals.managed,
            target: state.ledger.target(),
            limit: self.inner.options.limit,
            objects: totals.contents,
            pinned: totals.pinned,
            live: totals.live,
            frames: totals.frames,
            shared: totals.shared,
            files: totals.files,
            spilled: totals.spilled,
            stuck: totals.stuck,
            waiting: state.ledger.waiting(),
            written: counters.written,
            dropped: counters.dropped,
            read: counters.read,
            write_time: counters.write_time,
            read_time: counters.read_time,
            write_failures: counters.write_failures,
            read_failures: counters.read_failures,
            remove_failures: self.inner.volume.stats().remove_failures,
            disk_error: state.fault.as_ref().map(|fault| reason(&fault.error)),
            serialise_error: counters.serialise_error.clone(),
        }
    }

    /// How long threads have waited for the store's lock, all together.
    pub fn lock_waits(&self) -> Duration {
        self.inner.waits.so_far()
    }

    /// The directory of the store's files.
    pub fn directory(&self) -> &Path {
        let mut directories = self.inner.volume.directories();
        directories.next().expect("the store named one")
    }

    /// Verifies the store's books against one another and against what it holds.
    ///
    /// # Errors
    /// [`InvariantError`]: they do not agree, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        let state = self.inner.lock();
        state.ledger.check()?;
        state.check()?;
        self.inner.volume.check()
    }
}

/// All of its managed memory can be given back: pins are short, and hold up the spilling of what they
/// pin alone.
impl Consumer for Store {
    fn usage(&self) -> Usage {
        Usage::reclaimable(self.inner.lock().ledger.totals().managed)
    }

    fn set_target(&self, bytes: u64) {
        Store::set_target(self, bytes);
    }
}

/// Milliseconds between attempts to read a file that may succeed soon.
const PAUSES: [u64; 4] = [1, 4, 16, 64];

/// Reads an object's file; again, a few times, while the process has no descriptor for it, say.
fn read_patiently(id: StoredId, file: &File) -> Result<Arc<Frames>, StoreError> {
    for pause in PAUSES {
        match read(id, file) {
            Err(StoreError::Disk(error)) if error.is_passing() => {
                thread::sleep(Duration::from_millis(pause))
            }
            outcome => return outcome,
        }
    }
    read(id, file)
}

/// Reads an object's file. What the store wrote was in memory once: the length fits.
fn read(id: StoredId, file: &File) -> Result<Arc<Frames>, StoreError> {
    let corrupt = |source: FormatError| StoreError::Corrupt {
        id,
        file: file.path().to_owned(),
        frame: source.frame(),
        source,
    };
    let memory = |source| StoreError::Memory { id, source };
    let mut buffer = Pool::global().buffer(file.len() as usize).map_err(memory)?;
    match file.read_all(buffer.as_mut_slice()) {
        Err(VolumeError::Length {
            expected, found, ..
        }) => return Err(corrupt(FormatError::Length { expected, found })),
        outcome => outcome?,
    }
    let frames = decode(buffer.into_bytes()).map_err(corrupt)?;
    Ok(Arc::new(frames))
}

/// What the system said, where it did.
fn reason(error: &VolumeError) -> String {
    let source = error.source();
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

impl Drop for Store {
    fn drop(&mut self) {
        // A forked child has neither the thread nor a right to the files.
        if self.pid != std::process::id() {
            mem::forget(self.spiller.take());
            mem::forget(Arc::clone(&self.inner));
            return;
        }
        // Under the lock: the thread looks at it before it sleeps.
        self.inner.lock().closed = true;
        self.inner.work.notify_one();
        if let Some(spiller) = self.spiller.take() {
            // An object may own the store's last handle, and be dropped by the thread itself.
            if spiller.thread().id() != thread::current().id() {
                // It does not panic, and if it did there is nothing left to do.
                let _ = spiller.join();
            }
        }
        // All files at once.
        self.inner.volume.close();
        let left = mem::take(&mut self.inner.lock().contents);
        drop(left);
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("directory", &self.directory())
            .field("stats", &self.stats())
            .finish()
    }
}
