//! Values on their way to many workers, over the broadcast plane.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use treadle_broadcast::Runs;
use treadle_broadcast_node::values::{self, Packed};
use treadle_broadcast_node::{Arrival, Callbacks as _, Plane, Purpose, Tree, What};
use treadle_net::Wait;
use treadle_reactor::thread::{self, caught, lock};

use super::casts::CastCallbacks;

/// Values of together at most so many bytes share a cast. A larger one has its own: what came to a
/// worker in one piece is freed in one.
const TOGETHER: u64 = 1 << 20;
/// A cast waits while more bytes than this are under way: workers have limits, and refuse what comes
/// before they have made values of what came.
const UNDER_WAY: u64 = 64 << 20;

/// A value for workers.
#[derive(Debug)]
pub(super) struct Load {
    /// The id that the scheduler knows it by.
    pub(super) name: u32,
    pub(super) value: Packed,
    /// Ids of workers.
    pub(super) workers: Runs,
}

/// What became of a value.
#[derive(Debug)]
pub(super) struct Spread {
    /// The load's.
    pub(super) name: u32,
    /// Ids of the workers that keep it.
    pub(super) taken: Runs,
    /// Why another one does not.
    pub(super) reason: String,
}

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Spreading {
    /// To the thread that casts.
    queue: Mutex<Option<Sender<Load>>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    /// Less is under way, or it is over.
    room: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    /// By the number of [`Purpose::Keep`].
    under_way: HashMap<u64, Cast>,
    /// Of these, together.
    bytes: u64,
    /// What will become no more.
    done: Vec<Spread>,
    closed: bool,
}

#[derive(Debug)]
struct Cast {
    bytes: u64,
    spreads: Vec<Spread>,
}

impl Spreading {
    /// Sends a value, in a thread of its own: a cast copies its payload, and may wait for room.
    pub(super) fn push(&self, load: Load, plane: &Plane, callbacks: &CastCallbacks) {
        let mut queue = lock(&self.queue);
        if queue.is_none() {
            let (sender, receiver) = channel();
            let (plane, callbacks) = (plane.clone(), callbacks.clone());
            let shared = Arc::clone(&self.shared);
            let spawned = thread::start("treadle-cast", move || {
                let all = || cast_all(&plane, &receiver, &shared, &callbacks);
                caught(all).unwrap_or_else(|reason| callbacks.panicked(reason.to_string()));
            });
            *queue = spawned.is_ok().then_some(sender);
        }
        let left = match &*queue {
            Some(sender) => sender.send(load).err().map(|error| error.0),
            None => Some(load),
        };
        if let Some(load) = left {
            lock(&self.shared.table).done.push(Spread {
                name: load.name,
                taken: Runs::new(),
                reason: "there is no thread for it".to_owned(),
            });
            callbacks.arrived();
        }
    }

    /// Takes in what arrived of [`Purpose::Keep`].
    pub(super) fn arrived(&self, number: u64, arrival: &Arrival) {
        let table = &mut *lock(&self.shared.table);
        let Some(Cast { spreads, .. }) = table.under_way.get_mut(&number) else {
            return;
        };
        match &arrival.what {
            What::Finished(frames) => {
                let failed: HashMap<_, _> = frames.iter().filter_map(values::failed).collect();
                for (position, spread) in spreads.iter_mut().enumerate() {
                    match failed.get(&position).or(failed.get(&values::ALL)) {
                        Some(reason) => spread.reason.clone_from(reason),
                        None => spread.taken = spread.taken.union(&arrival.engines),
                    }
                }
            }
            What::Refused(reason) | What::Lost(reason) => {
                for spread in spreads {
                    spread.reason.clone_from(reason);
                }
            }
            What::Complete => {
                table.end(number);
                self.shared.room.notify_all();
            }
            What::Output(_) | What::Aborted => {}
        }
    }

    /// Takes what is over.
    pub(super) fn take(&self) -> Vec<Spread> {
        std::mem::take(&mut lock(&self.shared.table).done)
    }

    /// Nothing is sent any more.
    pub(super) fn close(&self) {
        *lock(&self.queue) = None;
        lock(&self.shared.table).closed = true;
        self.shared.room.notify_all();
    }
}

impl Shared {
    /// Waits until so much may go; the number of the cast with it. Nothing: it is over.
    fn begin(&self, names: impl Iterator<Item = u32>, bytes: u64) -> Option<u64> {
        let mut table = lock(&self.table);
        while table.bytes > 0 && table.bytes + bytes > UNDER_WAY && !table.closed {
            let waited = self.room.wait(table);
            table = waited.unwrap_or_else(PoisonError::into_inner);
        }
        (!table.closed).then(|| table.begin(names, bytes))
    }
}

impl Table {
    fn begin(&mut self, names: impl Iterator<Item = u32>, bytes: u64) -> u64 {
        self.last += 1;
        self.bytes += bytes;
        let spread = |name| Spread {
            name,
            taken: Runs::new(),
            reason: String::new(),
        };
        let spreads = names.map(spread).collect();
        self.under_way.insert(self.last, Cast { bytes, spreads });
        self.last
    }

    fn end(&mut self, number: u64) {
        if let Some(cast) = self.under_way.remove(&number) {
            self.bytes -= cast.bytes;
            self.done.extend(cast.spreads);
        }
    }
}

fn cast_all(plane: &Plane, queue: &Receiver<Load>, shared: &Shared, callbacks: &CastCallbacks) {
    let mut next = None;
    while let Some(first) = next.take().or_else(|| queue.recv().ok()) {
        let workers = first.workers.clone();
        let mut bytes = first.value.bytes();
        let mut loads = vec![first];
        while bytes < TOGETHER
            && let Ok(load) = queue.try_recv()
        {
            if load.workers != workers || bytes + load.value.bytes() > TOGETHER {
                next = Some(load);
                break;
            }
            bytes += load.value.bytes();
            loads.push(load);
        }
        let names = loads.iter().map(|load| load.name);
        let Some(number) = shared.begin(names, bytes) else {
            return;
        };
        let packed: Vec<Packed> = loads.into_iter().map(|load| load.value).collect();
        let mut wait = Wait {
            deadline: None,
            interrupted: None,
        };
        let purpose = Purpose::Keep(number);
        let cast = plane.cast(
            &workers,
            (purpose, Tree::default()),
            &values::pack(&packed),
            &mut wait,
        );
        if let Err(error) = cast {
            let mut table = lock(&shared.table);
            if let Some(cast) = table.under_way.get_mut(&number) {
                for spread in &mut cast.spreads {
                    spread.reason = error.to_string();
                }
            }
            table.end(number);
            drop(table);
            callbacks.arrived();
        }
    }
}
