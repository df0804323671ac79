//! What the threads of a store share.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use treadle_guards::{InvariantError, ensure_eq};
use treadle_volume::{Backoff, Disk, File, Volume, VolumeError};

use crate::ledger::{Cost, Key, Ledger};
use crate::{Form, Frames, Live, Memory, Options, StoreError, Tally, Waits};

/// The forms of one content. What is here is what the ledger says is here.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) live: Option<Arc<dyn Live>>,
    pub(crate) frames: Option<Arc<Frames>>,
    pub(crate) shared: Option<Arc<Frames>>,
    pub(crate) file: Option<File>,
}

impl Contents {
    pub(crate) fn of(form: Form) -> Self {
        let mut contents = Contents::default();
        match form {
            Form::Live(live) => contents.live = Some(live),
            Form::Frames(frames) if frames.memory() == Memory::Shared => {
                contents.shared = Some(frames);
            }
            Form::Frames(frames) => contents.frames = Some(frames),
        }
        contents
    }

    /// Takes out what leaves memory.
    pub(crate) fn unload(&mut self) -> Contents {
        Contents {
            live: self.live.take(),
            frames: self.frames.take(),
            ..Contents::default()
        }
    }
}

pub(crate) fn cost_of_frames(frames: &Frames) -> Cost {
    let bytes = frames.nbytes();
    match frames.memory() {
        Memory::Own | Memory::Copy => Cost::Frames { bytes, own: bytes },
        Memory::Live(own) => Cost::Frames { bytes, own },
        Memory::Shared => Cost::Shared(bytes),
    }
}

/// A disk that failed.
pub(crate) struct Fault {
    pub(crate) error: VolumeError,
    /// When it began to fail.
    pub(crate) since: Instant,
    pub(crate) backoff: Backoff,
}

/// What has happened since the start.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) written: Tally,
    pub(crate) dropped: Tally,
    pub(crate) read: Tally,
    pub(crate) write_time: Duration,
    pub(crate) read_time: Duration,
    pub(crate) write_failures: u64,
    pub(crate) read_failures: u64,
    pub(crate) serialise_error: Option<String>,
}

/// What the spilling thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spiller {
    /// It looks for itself what to do next.
    Busy,
    /// It waits for something to do.
    Idle,
    /// It waits for something that needs no disk, since that has just failed.
    Pausing,
}

pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) contents: HashMap<Key, Contents>,
    pub(crate) fault: Option<Fault>,
    pub(crate) counters: Counters,
    pub(crate) spiller: Spiller,
    pub(crate) closed: bool,
}

impl State {
    /// Whether the spilling thread is to be woken.
    pub(crate) fn has_work(&self) -> bool {
        match self.spiller {
            Spiller::Busy => false,
            Spiller::Idle => self.ledger.has_victim(true),
            Spiller::Pausing => self.ledger.has_victim(false),
        }
    }

    /// A file could not be written: the next try comes after a pause.
    pub(crate) fn failed(&mut self, error: VolumeError, retry: Duration) {
        let now = Instant::now();
        self.counters.write_failures += 1;
        let before = self.fault.as_ref();
        let backoff = before.map(|fault| fault.backoff);
        self.fault = Some(Fault {
            error,
            since: before.map_or(now, |fault| fault.since),
            backoff: Backoff::after(backoff, retry, now),
        });
    }

    /// Compares what is here with the books.
    pub(crate) fn check(&self) -> Result<(), InvariantError> {
        for (&key, contents) in &self.contents {
            let forms = self.ledger.content(key).map(|booked| {
                booked.live == contents.live.is_some()
                    && booked.frames == contents.frames.is_some()
                    && booked.shared == contents.shared.is_some()
                    && booked.file == contents.file.is_some()
            });
            ensure_eq!(forms, Some(true), "{key:?}: its forms are in the books");
        }
        ensure_eq!(
            self.ledger.totals().contents.count,
            self.contents.len() as u64,
            "contents in the books, and here"
        );
        Ok(())
    }

    /// What to drop of a content that the ledger says is gone: its file goes with it. No lock is held
    /// there.
    pub(crate) fn take(&mut self, key: Key) -> Contents {
        self.contents.remove(&key).unwrap_or_default()
    }
}

pub(crate) struct Inner {
    state: Mutex<State>,
    pub(crate) waits: Waits,
    /// The spilling thread waits here for something to do,
    pub(crate) work: Condvar,
    /// `put` for room,
    pub(crate) room: Condvar,
    /// and readers for another reader of the same file.
    pub(crate) read: Condvar,
    pub(crate) volume: Volume,
    pub(crate) options: Options,
}

impl Inner {
    pub(crate) fn new(options: Options, disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let Options { target, limit, .. } = options;
        if target > limit {
            return Err(StoreError::Target { target, limit });
        }
        let files = treadle_volume::Options {
            retry: options.retry,
            ..treadle_volume::Options::new(vec![options.directory.clone()], options.quota)
        };
        let volume = Volume::on_disk(&files, disk)?;
        Ok(Inner {
            state: Mutex::new(State {
                ledger: Ledger::new(target, limit),
                contents: HashMap::new(),
                fault: None,
                counters: Counters::default(),
                spiller: Spiller::Busy,
                closed: false,
            }),
            waits: Waits::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            read: Condvar::new(),
            volume,
            options,
        })
    }

    /// Nothing of the embedder is called or dropped while this is held.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.waits.lock(&self.state)
    }

    /// The end of a change: wakes those whom it may concern.
    pub(crate) fn unlock(&self, state: MutexGuard<'_, State>) {
        let work = state.has_work();
        let room = state.ledger.anybody_waits();
        drop(state);
        if work {
            self.work.notify_one();
        }
        if room {
            self.room.notify_all();
        }
    }
}
