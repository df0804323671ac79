//! How a worker is.

use std::sync::Arc;
use std::time::Duration;

use treadle_broadcast_node::Plane;
use treadle_memory::{
    KEPT, Ledger, Limits, Pool, Reclaim, Registration, Segments, Taken, resident,
};
use treadle_messages::FromWorker;
use treadle_reactor::thread::lock;
use treadle_store::Store;
use treadle_types::Report;
use treadle_worker::Event;

use super::Inner;

/// How often the scheduler is told.
pub(super) const EVERY: Duration = Duration::from_millis(500);
/// How often its memory is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// The same while tasks run, which may take and free much memory in between.
const LOOK_BUSY: Duration = Duration::from_millis(10);
/// The same while none do, and it takes less than [`FEW`] of its memory.
const LOOK_CALM: Duration = Duration::from_millis(250);
const FEW: f64 = 0.25;
/// The share of its memory that is divided among those that keep some; above it, values go to disk.
const SPILL: f64 = 0.7;
/// The share of its memory above which a worker starts no tasks.
const PAUSE: f64 = 0.8;
/// The share below which it starts some again.
const RESUME: f64 = 0.75;
/// A worker that paused asks for tasks again when it has had nothing to do so many times.
const HOPELESS: u32 = 4;

/// How a worker is.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// Bytes of memory that its values and payloads take.
    pub managed: u64,
    /// Bytes of memory that the process takes.
    pub process: u64,
    /// Of these, what is kept for what comes next.
    pub free: u64,
    /// Of these, what it takes beside its values and payloads, without shared memory that nobody
    /// uses: that goes back soon.
    pub others: u64,
    /// Bytes of values that are on disk only, and of shuffled rows in files.
    pub spilled: u64,
}

impl Health {
    pub(super) fn of(inner: &Inner) -> Self {
        let mut idle = 0;
        let stock = inner.services.memory().stock(|| {
            // What this process made.
            let shared = Segments::global().stats();
            idle = shared.idle_bytes as u64;
            // Whoever made these rows has let go of them.
            let borrowed = inner.shuffles.stats().borrowed;
            resident().unwrap_or(0) + shared.live_bytes as u64 + borrowed
        });
        Self {
            managed: stock.used,
            process: stock.process + idle,
            free: idle + Pool::global().idle_bytes() as u64,
            others: stock.rest,
            spilled: inner.values.store().stats().spilled.nbytes + inner.shuffles.stats().on_disk,
        }
    }
}

/// Registers those that keep memory in the process.
pub(super) fn register(
    ledger: &Ledger,
    values: &Arc<Store>,
    plane: &Plane,
    shuffles: &treadle_shuffle_node::Plane,
) -> [Registration; 3] {
    [
        ledger.register("values", Arc::<Store>::clone(values)),
        ledger.register("broadcast payloads", Arc::new(plane.clone())),
        ledger.register("shuffled rows", Arc::new(shuffles.clone())),
    ]
}

/// What is known of a worker's memory from earlier.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// How often in a row it was found paused with nothing to run.
    idle: u32,
}

/// When to look at memory again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    /// While tasks run.
    pub(super) busy: Duration,
    /// While none do.
    pub(super) calm: Duration,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            busy: LOOK_BUSY,
            calm: LOOK,
        }
    }
}

/// Gives back what is not used, leaves those that keep memory as much as the rest of the process does
/// not take, and says so where that alone is too much.
pub(super) fn look(inner: &Inner, reclaim: &mut Reclaim) -> Looks {
    let measure = || {
        let health = Health::of(inner);
        Taken {
            process: health.process,
            free: health.free,
            others: health.others,
        }
    };
    let limit = inner.options.memory as f64;
    let limits = Limits {
        process: inner.options.memory,
        with_free: (limit * SPILL) as u64,
        heap: KEPT,
    };
    let Taken {
        process,
        mut others,
        ..
    } = reclaim.reclaim(&limits, measure);
    // A process that keeps its size, and is far from its limit, is looked at as one at rest.
    let is_moving = reclaim.is_moving();
    let busy = |is_far: bool| match is_far && !is_moving {
        true => LOOK,
        false => LOOK_BUSY,
    };
    let looks = |is_far: bool| Looks {
        busy: busy(is_far),
        calm: if is_far { LOOK_CALM } else { LOOK },
    };
    if limit == 0.0 {
        return looks(true);
    }
    inner
        .services
        .memory()
        .share((limit * SPILL) as u64, others);
    let most = inner.options.terminate * limit;
    if most > 0.0 && others as f64 > most {
        // What was freed, and is kept for what comes next, is no reason to end.
        others = reclaim.give_back(measure).others;
    }
    if most > 0.0
        && others as f64 > most
        && let Some(embedder) = inner.embedder.get()
    {
        embedder.overflow(others);
    }
    looks((process as f64) < FEW * limit)
}

/// Tells the scheduler, and pauses while there is too little memory.
pub(super) fn tell(inner: &Inner, watch: &mut Watch) {
    let health = Health::of(inner);
    let (paused, has_work) = {
        let limit = inner.options.memory as f64;
        let used = health.process.max(health.managed) as f64;
        let mut machine = lock(&inner.machine);
        let before = machine.paused;
        let paused = limit > 0.0 && used > limit * if before { RESUME } else { PAUSE };
        let has_work = machine.core.busy() > 0 || machine.core.ready() > 0;
        if paused == before {
            drop(machine);
        } else {
            machine.paused = paused;
            let machine_ = &mut *machine;
            let handled = machine_
                .core
                .handle(Event::Paused(paused), &mut machine_.effects);
            debug_assert!(handled.is_ok());
            inner.carry_out_unsent(machine, 0);
        }
        (paused, has_work)
    };
    watch.idle = if paused && !has_work {
        watch.idle.saturating_add(1)
    } else {
        0
    };
    inner.say(FromWorker::Report(Report::Health {
        managed: health.managed,
        process: health.process,
        spilled: health.spilled,
        // What is there now will not become less by itself. It runs one task at a time then.
        paused: inner.is_held() || paused && watch.idle < HOPELESS,
    }));
}
