//! What the threads that write and read runs say to the plane.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use treadle_reactor::clock;
use treadle_shuffle::{Adopted, GroupId, Limit, Push, ServerId, ShuffleId};

use crate::callbacks::Stopwatch;
use crate::run::Loaded;
use crate::{Activity, Done, Inner};

/// Whom they say it to.
#[derive(Clone, Debug)]
pub(crate) struct Reports(pub(crate) Weak<Inner>);

impl Reports {
    /// Whether a thread whose job has ended so goes on.
    pub(crate) fn goes_on<P: Display>(&self, done: Result<(), P>) -> bool {
        let Some(inner) = self.0.upgrade() else {
            return false;
        };
        match done {
            Ok(()) => true,
            Err(reason) => {
                inner.callbacks.panicked(reason.to_string());
                false
            }
        }
    }

    /// A run was written, or could not be.
    pub(crate) fn spilled<E: Display>(
        &self,
        run: u64,
        shuffle: ShuffleId,
        bytes: u64,
        written: Result<(), E>,
    ) {
        let written: Result<(), Arc<str>> = written.map_err(|error| {
            self.log(&format!("cannot write rows of a shuffle: {error}"));
            error.to_string().into()
        });
        self.say(|inner| {
            inner.with(|machines| {
                if written.is_ok() {
                    machines.usage(shuffle).spilled += bytes;
                }
                machines.spilled(run, bytes, written);
            });
        });
    }

    /// The devices of these runs do nothing.
    pub(crate) fn stuck(&self, runs: BTreeSet<u64>) {
        self.say(|inner| inner.with(|machines| machines.stuck(runs)));
    }

    /// What a copy consists of is in the remote store under this name, or could not be written.
    pub(crate) fn inventory_written(
        &self,
        copy: (ShuffleId, GroupId),
        number: u64,
        written: Result<Arc<str>, String>,
    ) {
        if let Err(reason) = &written {
            self.log(&format!("cannot write rows of a shuffle: {reason}"));
        }
        let written = written.map_err(Arc::from);
        self.say(|inner| {
            inner.with(|machines| machines.inventory_written(copy, number, written));
        });
    }

    /// What another server has written was adopted, or could not be: why not, and how many objects were opened.
    pub(crate) fn inventory_read(
        &self,
        copy: (ShuffleId, GroupId),
        first: u64,
        found: Result<Adopted, (String, u64)>,
    ) {
        let found = found.map_err(|(reason, opened)| {
            self.log(&format!("cannot adopt rows of a shuffle: {reason}"));
            opened
        });
        self.say(|inner| inner.with(|machines| machines.inventory_read(copy, first, found)));
    }

    /// A part of a run was read, or could not be.
    pub(crate) fn loaded(
        &self,
        (load, run): (u64, u64),
        shuffle: Option<ShuffleId>,
        loaded: Result<Loaded, String>,
    ) {
        if let Err(reason) = &loaded {
            self.log(&format!("cannot read rows of a shuffle: {reason}"));
        }
        let loaded = loaded.ok();
        let pieces = loaded.iter().flatten();
        let bytes: u64 = pieces.map(|(piece, _)| piece.stored()).sum();
        self.say(|inner| {
            inner.with(|machines| {
                if let Some(shuffle) = shuffle {
                    machines.usage(shuffle).loaded += bytes;
                }
                machines.loaded(load, run, loaded);
            });
        });
    }

    /// The same, of a file that was read since then.
    pub(crate) fn read(
        &self,
        name: (u64, u64),
        shuffle: ShuffleId,
        began: u64,
        loaded: Result<Loaded, String>,
    ) {
        if let (Some(inner), Ok(loaded)) = (self.0.upgrade(), &loaded)
            && inner.callbacks.is_traced()
        {
            inner.callbacks.traced(Done {
                what: Activity::Load,
                shuffle,
                began,
                ended: clock::monotonic(),
                bytes: loaded.iter().map(|(piece, _)| piece.stored()).sum(),
            });
        }
        self.loaded(name, Some(shuffle), loaded);
    }

    /// Reads of a device take too long, or do not any more.
    pub(crate) fn limited(&self, disk: usize, limits: Vec<Limit>) {
        self.say(|inner| inner.with(|machines| machines.limited(disk, limits)));
    }

    /// A batch of a run was put together again for another copy, or could not be.
    pub(crate) fn restored(&self, to: ServerId, push: Push, batch: Result<Bytes, String>) {
        if let Err(reason) = &batch {
            self.log(&format!("cannot read rows of a shuffle: {reason}"));
        }
        let batch = batch.ok();
        self.say(|inner| {
            // A server that has only been pushed to has no connection to another one yet, and no
            // thread that would try again. It was not needed when the plan came.
            let _ = inner.serve_connections();
            inner.with(|machines| machines.restored(to, push, batch));
        });
    }

    /// Runs `act`, which also returns a number of bytes, and records it for the trace.
    pub(crate) fn timed<T, E>(
        &self,
        what: Activity,
        shuffle: Option<ShuffleId>,
        act: impl FnOnce() -> Result<(T, u64), E>,
    ) -> Result<T, E> {
        let inner = self.0.upgrade();
        let watch = inner
            .as_ref()
            .map(|inner| Stopwatch::new(&*inner.callbacks));
        let (done, bytes) = act()?;
        if let (Some(watch), Some(shuffle)) = (watch, shuffle) {
            watch.done(what, shuffle, bytes);
        }
        Ok(done)
    }

    fn say(&self, act: impl FnOnce(&Arc<Inner>)) {
        if let Some(inner) = self.0.upgrade() {
            act(&inner);
            // Such as for another attempt, when a disk was full.
            inner.serve_timers();
        }
    }

    fn log(&self, line: &str) {
        if let Some(inner) = self.0.upgrade() {
            inner.log(line);
        }
    }
}
