//! How a worker is.

use std::time::Duration;

use treadle_types::Report;
use treadle_worker::Event;

use super::Inner;
use crate::lock;
use crate::message::FromWorker;

/// How often the scheduler is told.
pub(super) const EVERY: Duration = Duration::from_millis(500);
/// The share of its memory above which a worker starts no tasks.
const PAUSE: f64 = 0.8;
/// The share below which it starts some again.
const RESUME: f64 = 0.75;

/// How a worker is.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// Bytes of memory that its values take.
    pub managed: u64,
    /// Bytes of memory that the process takes.
    pub process: u64,
    /// Bytes of values that are on disk only.
    pub spilled: u64,
}

impl Health {
    pub(super) fn of(inner: &Inner) -> Self {
        let stats = inner.values.store().stats();
        Self {
            managed: stats.managed,
            process: resident().unwrap_or(0),
            spilled: stats.spilled.nbytes,
        }
    }
}

/// Bytes of memory of this process that are in use: those that it shares with files count once for
/// every process that maps them, so they do not count here.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_ascii_whitespace().skip(1);
    let resident: u64 = pages.next()?.parse().ok()?;
    let shared: u64 = pages.next()?.parse().ok()?;
    let page = rustix::param::page_size() as u64;
    Some(resident.saturating_sub(shared) * page)
}

/// Tells the scheduler, and pauses while there is too little memory.
pub(super) fn tell(inner: &Inner) {
    let health = Health::of(inner);
    let paused = {
        let limit = inner.options.memory as f64;
        let used = health.process.max(health.managed) as f64;
        let mut machine = lock(&inner.machine);
        let before = machine.paused;
        let paused = limit > 0.0 && used > limit * if before { RESUME } else { PAUSE };
        if paused == before {
            drop(machine);
        } else {
            machine.paused = paused;
            let machine_ = &mut *machine;
            let handled = machine_
                .core
                .handle(Event::Paused(paused), &mut machine_.effects);
            debug_assert!(handled.is_ok());
            inner.carry_out(machine, 0);
        }
        paused
    };
    inner.say(FromWorker::Report(Report::Health {
        managed: health.managed,
        process: health.process,
        spilled: health.spilled,
        paused,
    }));
}
