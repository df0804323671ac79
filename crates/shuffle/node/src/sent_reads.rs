//! Reads whose rows have left the process.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use treadle_net::Signal;
use treadle_reactor::thread::lock;

/// The reads whose rows are not in memory any more, by the numbers of their loads.
///
/// Memory is freed in any thread, and perhaps under its locks. So the numbers are only kept here, and the
/// thread that serves connections is woken to tell the server.
#[derive(Default)]
pub(crate) struct SentReads {
    loads: Mutex<Vec<u64>>,
    signal: OnceLock<Signal>,
}

impl SentReads {
    /// Wakes a thread with `signal` from now on.
    pub(crate) fn wake_with(&self, signal: Signal) {
        let _ = self.signal.set(signal);
    }

    /// The reads since the last call.
    pub(crate) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.loads))
    }

    /// Rows that count as sent when nothing uses them any more.
    pub(crate) fn watch(self: &Arc<Self>, load: u64, rows: Bytes) -> Bytes {
        if rows.is_empty() {
            self.done(load);
            return rows;
        }
        let sent = Arc::clone(self);
        Bytes::from_owner(Watched { rows, load, sent })
    }

    /// Nothing of a read is left.
    pub(crate) fn done(&self, load: u64) {
        lock(&self.loads).push(load);
        if let Some(signal) = self.signal.get() {
            signal.set();
        }
    }
}

impl fmt::Debug for SentReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentReads").finish_non_exhaustive()
    }
}

struct Watched {
    rows: Bytes,
    load: u64,
    sent: Arc<SentReads>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.rows
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Before they count as sent: the server lets in more then.
        drop(std::mem::take(&mut self.rows));
        self.sent.done(self.load);
    }
}
