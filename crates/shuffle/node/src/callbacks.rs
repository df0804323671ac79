//! What the plane calls in its process, and what it did, for traces.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use treadle_reactor::clock;
use treadle_shuffle::{LinkId, ShuffleId, ToMaster};

use crate::Waiter;

/// What the plane calls in its worker.
pub trait Callbacks: Send + Sync {
    /// Queues a message for a master, in order. The next [`Callbacks::flush`] sends it. Called with the
    /// plane's lock held: an implementation must not call the plane.
    fn tell(&self, link: LinkId, message: ToMaster);
    /// The server here does not serve a master, or does not any more. Called as [`Callbacks::tell`] is.
    fn dismissed(&self, _link: LinkId, _reason: &'static str) {}
    /// Sends the queued messages.
    fn flush(&self);
    /// Makes these threads check their conditions again, if they are in [`Callbacks::wait`].
    fn wake(&self, called: &[Arc<Waiter>]);
    /// Waits until `is_changed` returns true, or the master may have sent a message, or `most` has passed.
    /// Called by threads of tasks, without a lock.
    fn wait(&self, is_changed: &mut dyn FnMut() -> bool, most: Duration);
    /// Writes a line to the log.
    fn log(&self, line: fmt::Arguments<'_>);
    /// Ends the worker, since a thread has panicked.
    fn panicked(&self, reason: String);
    /// Whether the cluster is traced.
    fn is_traced(&self) -> bool;
    /// Records an activity for the trace. Called only while the cluster is traced.
    fn traced(&self, done: Done);
}

/// An activity of the plane, for traces. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The kind of activity.
    pub what: Activity,
    pub shuffle: ShuffleId,
    /// Its beginning.
    pub began: u64,
    /// Its end.
    pub ended: u64,
    /// Bytes of rows that it moved.
    pub bytes: u64,
}

/// Something that the plane does with rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// Put the rows of a map into batches.
    Gather,
    /// Push the rows of a map, until the servers have them.
    Push,
    /// Get the rows of a partition from its server.
    Read,
    /// Write rows to a file.
    Spill,
    /// Read the rows of a partition from a file.
    Load,
}

/// Measures an activity for the trace.
pub(crate) struct Stopwatch<'a> {
    callbacks: &'a dyn Callbacks,
    /// `None`: the cluster is not traced.
    began: Option<u64>,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn new(callbacks: &'a dyn Callbacks) -> Self {
        let began = callbacks.is_traced().then(clock::monotonic);
        Self { callbacks, began }
    }

    pub(crate) fn done(self, what: Activity, shuffle: ShuffleId, bytes: u64) {
        if let Some(began) = self.began {
            self.callbacks.traced(Done {
                what,
                shuffle,
                began,
                ended: clock::monotonic(),
                bytes,
            });
        }
    }
}
