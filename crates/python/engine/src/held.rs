//! Whether a run's tasks hold the interpreter's lock, so that its threads run one after another.
//!
//! The thread that called `get` looks for signals from time to time, for which it needs that lock.
//! Python code that runs lets go of it at the switch interval (5 ms) only, and code that has let go
//! of it (NumPy, reading files) makes nobody wait: how long the caller waits for the lock tells the
//! two apart. What it waits for a processor does not count. Runs that are shorter than a look cost
//! nothing.

use crate::job::Job;
use pyo3::prelude::*;
use std::fs;
use std::time::{Duration, Instant};

/// A wait of so long is one for a lock that is held. With two threads that hold it in turns, for 5 ms each,
/// one look in ten comes so shortly before a change, and is the next one.
const HELD: Duration = Duration::from_millis(1);

/// A look during which the thread waited so long for a processor, and then found the lock free, is not
/// counted: where the machine is busy, the lock often is on its way to a thread that does not run yet.
const BUSY: Duration = Duration::from_millis(1);

/// So many looks, at least, make a judgement, and such a share (in per cent) of them.
const LOOKS: u32 = 40;
const SHARE: u32 = 70;

/// Tasks that take less, in the mean, would cost more in other processes than they gain.
const LEAST_TASK: Duration = Duration::from_millis(1);

/// What the looks of one run have found.
pub(crate) struct Held {
    began: Instant,
    unfinished: usize,
    looks: u32,
    held: u32,
    told: bool,
}

/// A look that has begun.
pub(crate) struct Look {
    began: Instant,
    queued: Duration,
}

impl Look {
    /// Begins a look: the thread is about to take the interpreter's lock.
    pub(crate) fn begin() -> Self {
        Self {
            queued: queued(),
            began: Instant::now(),
        }
    }
}

impl Held {
    pub(crate) fn new(job: &Job) -> Self {
        Self {
            began: Instant::now(),
            unfinished: job.unfinished(),
            looks: 0,
            held: 0,
            told: false,
        }
    }

    /// Ends a look, after which the thread has the lock, and tells the user once there is a reason.
    ///
    /// # Errors
    /// What the warning raises, if the user has made an error of it.
    pub(crate) fn end(&mut self, py: Python<'_>, look: &Look, job: &Job) -> PyResult<()> {
        let waited = look.began.elapsed();
        if self.told || job.working() < 2 {
            // One thread has the lock for itself, whatever the tasks are.
            return Ok(());
        }
        let queued = queued().saturating_sub(look.queued);
        if waited.saturating_sub(queued) >= HELD {
            self.held += 1;
        } else if queued >= BUSY {
            return Ok(());
        }
        self.looks += 1;
        if self.looks < LOOKS || self.held * 100 < self.looks * SHARE {
            return Ok(());
        }
        let finished = self.unfinished - job.unfinished();
        let elapsed = self.began.elapsed();
        if finished > 0 && elapsed / finished as u32 <= LEAST_TASK {
            return Ok(());
        }
        self.told = true;
        let module = py.import("treadle.local._lock_held")?;
        module.call_method1("tell", (self.held, self.looks, elapsed.as_secs_f64()))?;
        Ok(())
    }
}

/// For how long this thread has waited for a processor; zero where the system does not say.
fn queued() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}
