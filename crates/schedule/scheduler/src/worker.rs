//! The table of workers.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use smallvec::SmallVec;
use treadle_types::{ObjectId, Priority, Symbol, TaskId, WorkerId};

use crate::Guard;
use crate::WorkerProfile;
use crate::class::ClassId;
use crate::config::Config;
use crate::levels::{LEVELS, Levels};
use crate::queue::Queues;
use crate::task::Run;

/// Whether a worker takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerStatus {
    /// It gets tasks.
    Running,
    /// It has no memory to start tasks, and gets none.
    Paused,
    /// It was told to leave.
    Draining,
}

/// What a worker last said about its memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Health {
    /// Bytes of memory that its values take.
    pub managed: u64,
    /// Bytes of memory that the process takes.
    pub process: u64,
    /// Bytes of its values that are on disk only.
    pub spilled: u64,
    /// Whether it starts no tasks until it has freed memory.
    pub paused: bool,
}

/// How a task at a worker counts there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    /// It runs, or could.
    Runnable,
    /// It waits for a task of the same worker.
    Ahead,
    /// It runs without a slot.
    Seceded,
}

/// A cancelled attempt that the worker has not yet said to be over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopping {
    pub(crate) load: Load,
    pub(crate) estimate: u32,
    pub(crate) output: u32,
    pub(crate) class: ClassId,
}

/// A drain that goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    pub(crate) since: Duration,
    /// Copies of its values that others were told to make.
    pub(crate) copies: u32,
    pub(crate) reported: bool,
}

/// A worker that is there.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) profile: WorkerProfile,
    pub(crate) host: usize,
    pub(crate) drain: Option<Drain>,
    pub(crate) health: Health,
    /// When it last said anything.
    pub(crate) heard: Duration,
    /// When it last said anything of a task, or got one and had none.
    pub(crate) moved: Duration,
    /// When it last finished a task, or was sent one while none was queued here for it.
    finished: Duration,
    /// How far apart it finishes tasks while more are queued here: a moving average, in microseconds.
    interval: u64,
    /// Tasks that run or could, cancelled ones included until they are over.
    pub(crate) runnable: u32,
    /// Tasks that wait for others of this worker.
    pub(crate) ahead: u32,
    /// Tasks that run without a slot.
    pub(crate) seceded: u32,
    /// How long the runnable tasks will take together, in microseconds.
    pub(crate) busy: u64,
    /// The same for the tasks ahead, as far as it is known.
    pub(crate) busy_ahead: u64,
    /// Tasks that other workers were asked to give back on this one's behalf.
    pub(crate) incoming: u32,
    /// What was sent to it, the oldest first. Attempts that are over stay until they come to the
    /// front, or are half of it.
    pub(crate) sent: VecDeque<ObjectId>,
    /// No task among them has a priority that its user wants less.
    pub(crate) least_urgent: i32,
    /// Cancelled attempts.
    pub(crate) stopping: BTreeMap<ObjectId, Stopping>,
    /// The values that it has.
    pub(crate) held: Vec<TaskId>,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// What that was when it last said how it is.
    pub(crate) bytes_then: u64,
    /// Bytes that running tasks are expected to return.
    pub(crate) expected: u64,
    /// When it was last sent a task that creates data.
    pub(crate) created: Duration,
    /// Whether that was so long ago that it gets another one even if its memory is full.
    pub(crate) relieved: bool,
    /// Ready tasks that shall run here.
    pub(crate) own: Queues,
    /// Classes that it is eligible for.
    pub(crate) classes: Vec<ClassId>,
    /// How much of each resource of the profile is in use.
    used: SmallVec<[f64; 2]>,
    /// Whether these are not those that it came with: then more may be in use than there is.
    pub(crate) offered: bool,
    /// Whether it is among those that are stale.
    stale: bool,
}

impl Worker {
    fn new(profile: WorkerProfile, host: usize, now: Duration) -> Self {
        Self {
            used: SmallVec::from_elem(0.0, profile.resources.len()),
            offered: false,
            profile,
            host,
            drain: None,
            health: Health::default(),
            heard: now,
            moved: now,
            finished: now,
            interval: 0,
            runnable: 0,
            ahead: 0,
            seceded: 0,
            busy: 0,
            busy_ahead: 0,
            incoming: 0,
            sent: VecDeque::new(),
            least_urgent: i32::MIN,
            stopping: BTreeMap::new(),
            held: Vec::new(),
            bytes: 0,
            bytes_then: 0,
            expected: 0,
            created: now,
            relieved: false,
            own: Queues::default(),
            classes: Vec::new(),
            stale: false,
        }
    }

    pub(crate) fn status(&self) -> WorkerStatus {
        match (self.drain, self.health.paused) {
            (Some(_), _) => WorkerStatus::Draining,
            (None, true) => WorkerStatus::Paused,
            (None, false) => WorkerStatus::Running,
        }
    }

    /// Whether it may get tasks.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.drain.is_none() && !self.health.paused
    }

    /// Whether it goes by a name.
    pub(crate) fn is_called(&self, name: Symbol) -> bool {
        let profile = &self.profile;
        profile.name == name || profile.host == name || profile.aliases.contains(&name)
    }

    /// How much it has of a resource.
    pub(crate) fn total(&self, resource: Symbol) -> f64 {
        let entry = self.profile.resources.iter().find(|(r, _)| *r == resource);
        entry.map_or(0.0, |&(_, amount)| amount)
    }

    /// Whether so much of some resources is free. Amounts are sums of user's fractions, hence the
    /// tolerance.
    pub(crate) fn has_free(&self, resources: &[(Symbol, f64)]) -> bool {
        resources.iter().all(|&(resource, amount)| {
            let all = self.profile.resources.iter().zip(&self.used);
            let mut free = all.filter(|((r, _), _)| *r == resource);
            free.any(|(&(_, total), &used)| used + amount <= total + 1e-9)
        })
    }

    /// Takes resources, or with a negative sign gives them back.
    pub(crate) fn take(&mut self, resources: &[(Symbol, f64)], sign: f64) {
        for &(resource, amount) in resources {
            for ((r, _), used) in self.profile.resources.iter().zip(&mut self.used) {
                if *r == resource {
                    // Sums of fractions may end a little below 0.
                    *used = (*used + sign * amount).max(0.0);
                }
            }
        }
    }

    /// It has other resources from now on, of which nothing is in use as yet: the caller takes what is.
    pub(crate) fn offer(&mut self, resources: Vec<(Symbol, f64)>) {
        self.used = SmallVec::from_elem(0.0, resources.len());
        self.profile.resources = resources;
        self.offered = true;
    }

    /// How much of each resource is in use.
    pub(crate) fn used(&self) -> impl Iterator<Item = (Symbol, f64)> + '_ {
        let all = self.profile.resources.iter().zip(&self.used);
        all.map(|(&(resource, _), &used)| (resource, used))
    }

    /// Counts a task that comes.
    #[inline]
    pub(crate) fn occupy(&mut self, load: Load, estimate: u32) {
        match load {
            Load::Runnable => {
                self.runnable += 1;
                self.busy += u64::from(estimate);
            }
            Load::Ahead => {
                self.ahead += 1;
                self.busy_ahead += u64::from(estimate);
            }
            Load::Seceded => self.seceded += 1,
        }
    }

    /// Counts a task that goes.
    #[inline]
    pub(crate) fn vacate(&mut self, load: Load, estimate: u32) {
        match load {
            Load::Runnable => {
                self.runnable -= 1;
                self.busy -= u64::from(estimate);
            }
            Load::Ahead => {
                self.ahead -= 1;
                self.busy_ahead -= u64::from(estimate);
            }
            Load::Seceded => self.seceded -= 1,
        }
    }

    /// It begins to work, with nothing queued here.
    pub(crate) fn begins(&mut self, now: Duration) {
        self.moved = now;
        if self.own.is_empty() {
            self.finished = now;
        }
    }

    /// It finished a task.
    pub(crate) fn finishes(&mut self, now: Duration) {
        if !self.own.is_empty() {
            let since = now.saturating_sub(self.finished).as_micros() as u64;
            self.interval = (self.interval * 7 + since) / 8;
        }
        self.finished = now;
    }

    /// How long the last task that is queued here waits for a slot, in microseconds. Tasks may follow
    /// each other more slowly than their estimates say: each may need a message there and back, or
    /// the worker may be silent since it began one.
    pub(crate) fn wait_seen(&self, now: Duration) -> u64 {
        let silent = now.saturating_sub(self.moved).as_micros() as u64;
        let seen = self.interval * self.own.len() as u64;
        self.wait().max(silent).max(seen)
    }

    /// How many tasks are at it, cancelled ones not counted.
    pub(crate) fn tasks(&self) -> usize {
        (self.runnable + self.ahead + self.seceded) as usize - self.stopping.len()
    }

    /// Slots that no runnable task takes.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.profile.threads.saturating_sub(self.runnable)
    }

    /// Runnable tasks beyond the slots.
    #[inline]
    pub(crate) fn extra(&self) -> u32 {
        self.runnable.saturating_sub(self.profile.threads)
    }

    /// How long the tasks beyond the slots keep it busy, in microseconds.
    pub(crate) fn backlog(&self) -> u64 {
        let threads = u64::from(self.profile.threads.max(1));
        self.busy * u64::from(self.extra()) / u64::from(self.runnable.max(1)) / threads
    }

    /// How long a task that comes now waits for a slot, in microseconds: what is queued here at the
    /// scheduler counts like what was sent.
    pub(crate) fn wait(&self) -> u64 {
        self.wait_behind(self.own.len())
    }

    /// The same of a task that overtakes what is less urgent in the queue here.
    pub(crate) fn wait_of(&self, priority: Priority) -> u64 {
        self.wait_behind(self.own.before(priority))
    }

    fn wait_behind(&self, queued: usize) -> u64 {
        let queued = queued as u64;
        if self.free() > 0 && queued < u64::from(self.free()) {
            return 0;
        }
        let (runnable, threads) = (u64::from(self.runnable.max(1)), self.profile.threads.max(1));
        let each = self.busy / runnable;
        (self.busy + queued * each) / u64::from(threads)
    }

    /// Whether another runnable task may be sent: to a free slot; beyond, as long as what waits
    /// there is over in [`Config::prefill`]; and always one in reserve, unless tasks are so long
    /// that the way here and back does not matter.
    #[inline]
    pub(crate) fn has_room(&self, config: &Config) -> bool {
        if !self.is_running() {
            return false;
        }
        let threads = self.profile.threads;
        if self.runnable < threads {
            return true;
        }
        let extra = self.runnable - threads;
        let prefill = config.prefill_micros();
        // The mean of a task here, times one more than there are, over the slots.
        let (runnable, slots) = (u64::from(self.runnable.max(1)), u64::from(threads.max(1)));
        extra < config.prefill_tasks
            && (self.busy * u64::from(extra + 1) < prefill * runnable * slots
                || (extra == 0 && threads > 0 && self.busy < LONG * prefill * runnable))
    }

    /// The level of load, as long as there is room.
    fn level(&self, config: &Config) -> Option<u8> {
        if !self.has_room(config) {
            return None;
        }
        let threads = self.profile.threads;
        Some(if self.runnable < threads {
            // 0: idle; up to 4: some slots free.
            (u64::from(self.runnable) * 4).div_ceil(u64::from(threads)) as u8
        } else {
            5 + logarithm(self.extra()).min(10)
        })
    }

    /// Bytes of its values that are in memory: as it last said, since it knows what is on disk, with
    /// what has come and gone meanwhile.
    #[inline]
    fn in_memory(&self) -> u64 {
        (self.health.managed + self.bytes).saturating_sub(self.bytes_then)
    }

    /// Whether its values, and those that are expected, fill its memory.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        let limit = self.profile.memory;
        limit > 0 && self.in_memory().saturating_add(self.expected) >= limit
    }

    /// Whether it gets a task that creates data although its memory is full: when nothing runs
    /// there, nothing will free memory, and what runs may take for ever.
    #[inline]
    pub(crate) fn has_relief(&self) -> bool {
        Guard::Relief.holds() && self.free() > 0 && (self.runnable == 0 || self.relieved)
    }

    /// Whether it gets no tasks that create data.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        Guard::Budget.holds() && self.is_full() && !self.has_relief()
    }
}

/// Tasks longer than this many times the prefill are not sent beyond the slots.
const LONG: u64 = 20;

/// 0 for 0, else one more than the binary logarithm, rounded down; at most what fits a level.
fn logarithm(n: u32) -> u8 {
    ((32 - n.leading_zeros()) as u8).min(LEVELS as u8 - 1)
}

#[derive(Debug)]
enum Slot {
    Unused,
    Lost { name: Symbol },
    Live(Box<Worker>),
}

/// Workers of one machine.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: Symbol,
    pub(crate) open: Levels,
    pub(crate) workers: u32,
}

/// All workers, by id, with indices by load.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    slots: Vec<Slot>,
    live: usize,
    /// Slots of all workers that may get tasks, for shares of work.
    pub(crate) threads: u64,
    /// Workers that get none, because they leave or have no memory.
    pub(crate) stopped: usize,
    pub(crate) hosts: Vec<Host>,
    /// Workers with room.
    pub(crate) open: Levels,
    /// Those of them with memory to spare.
    pub(crate) roomy: Levels,
    /// Those of them without, that get a task that creates data all the same.
    pub(crate) relieved: Levels,
    /// Workers with more than they can run, by how much was sent to them.
    pub(crate) loaded: Levels,
    /// Workers with a queue of their own here, by its length.
    pub(crate) queued: Levels,
    /// Runnable tasks of all workers.
    pub(crate) runnable: u64,
    /// Workers whose levels may have changed since the indices were brought up to date.
    stale: Vec<WorkerId>,
}

/// Ids may skip so many: they are indices of a column.
const GAP: usize = 1 << 20;

impl Workers {
    /// Whether an id may register.
    pub(crate) fn admits(&self, id: WorkerId) -> bool {
        match self.slots.get(id.0 as usize) {
            Some(slot) => matches!(slot, Slot::Unused),
            None => (id.0 as usize) < self.slots.len() + GAP,
        }
    }

    pub(crate) fn join(&mut self, id: WorkerId, profile: WorkerProfile, now: Duration) {
        let index = id.0 as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || Slot::Unused);
        }
        let host = match self.hosts.iter().position(|h| h.name == profile.host) {
            Some(host) => host,
            None => {
                self.hosts.push(Host {
                    name: profile.host,
                    open: Levels::default(),
                    workers: 0,
                });
                self.hosts.len() - 1
            }
        };
        self.hosts[host].workers += 1;
        self.slots[index] = Slot::Live(Box::new(Worker::new(profile, host, now)));
        self.live += 1;
    }

    /// Removes a worker from all indices and from the table.
    pub(crate) fn lose(&mut self, id: WorkerId) -> Option<Box<Worker>> {
        let slot = self.slots.get_mut(id.0 as usize)?;
        let Slot::Live(worker) = slot else {
            return None;
        };
        let name = worker.profile.name;
        let lost = core::mem::replace(slot, Slot::Lost { name });
        let Slot::Live(worker) = lost else {
            return None;
        };
        self.live -= 1;
        self.runnable -= u64::from(worker.runnable);
        let host = &mut self.hosts[worker.host];
        host.workers -= 1;
        host.open.set(id, None);
        for levels in [
            &mut self.open,
            &mut self.roomy,
            &mut self.relieved,
            &mut self.loaded,
            &mut self.queued,
        ] {
            levels.set(id, None);
        }
        Some(worker)
    }

    #[inline]
    pub(crate) fn get(&self, id: WorkerId) -> Option<&Worker> {
        match self.slots.get(id.0 as usize)? {
            Slot::Live(worker) => Some(worker),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        match self.slots.get_mut(id.0 as usize)? {
            Slot::Live(worker) => Some(worker),
            _ => None,
        }
    }

    /// The levels of a worker may have changed.
    #[inline]
    pub(crate) fn set_stale(&mut self, id: WorkerId) {
        if let Some(worker) = self.get_mut(id)
            && !core::mem::replace(&mut worker.stale, true)
        {
            self.stale.push(id);
        }
    }

    /// A worker whose levels may have changed, which the caller brings up to date.
    #[inline]
    pub(crate) fn next_stale(&mut self) -> Option<WorkerId> {
        let id = self.stale.pop()?;
        if let Some(worker) = self.get_mut(id) {
            worker.stale = false;
        }
        Some(id)
    }

    /// The name of a worker that is there or was.
    pub(crate) fn name(&self, id: WorkerId) -> Option<Symbol> {
        match self.slots.get(id.0 as usize)? {
            Slot::Unused => None,
            Slot::Lost { name, .. } => Some(*name),
            Slot::Live(worker) => Some(worker.profile.name),
        }
    }

    /// How many workers are there.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// The workers that are there, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (WorkerId, &Worker)> + Clone {
        let slots = (0..).map(WorkerId).zip(&self.slots);
        slots.filter_map(|(id, slot)| match slot {
            Slot::Live(worker) => Some((id, &**worker)),
            _ => None,
        })
    }

    /// The ids of the workers that are there.
    pub(crate) fn ids(&self) -> Vec<WorkerId> {
        self.iter().map(|(id, _)| id).collect()
    }

    /// The levels that a worker belongs at: with room, with room and memory, relieved, loaded,
    /// queued.
    pub(crate) fn levels_of(worker: &Worker, config: &Config) -> [Option<u8>; 5] {
        let level = worker.level(config);
        let full = Guard::Budget.holds() && worker.is_full();
        let count = |n: u32| (n > 0).then(|| logarithm(n));
        [
            level,
            level.filter(|_| !full),
            level.filter(|_| full && worker.has_relief()),
            count(worker.extra()),
            count(worker.own.len().min(u32::MAX as usize) as u32),
        ]
    }
}

/// Counts a task that comes to or goes from a worker also in the total.
impl Workers {
    #[inline]
    pub(crate) fn occupy(&mut self, id: WorkerId, load: Load, run: &Run) {
        if let Some(worker) = self.get_mut(id) {
            worker.occupy(load, run.estimate);
            worker.expected += u64::from(run.output) * 1024;
            self.runnable += u64::from(load == Load::Runnable);
        }
    }

    #[inline]
    pub(crate) fn vacate(&mut self, id: WorkerId, load: Load, estimate: u32, output: u32) {
        if let Some(worker) = self.get_mut(id) {
            worker.vacate(load, estimate);
            worker.expected -= u64::from(output) * 1024;
            self.runnable -= u64::from(load == Load::Runnable);
        }
    }
}
