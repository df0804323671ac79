//! Where a ready task runs: at the worker where it can start first.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use smallvec::SmallVec;
use treadle_types::{TaskId, WorkerId};

use crate::Effects;
use crate::class::ClassId;
use crate::queue::Entry;
use crate::scheduler::Scheduler;
use crate::task::{Flags, Phase, QueueId, Task};

/// What a first byte takes from another host, and from another process of one host, in microseconds.
const FAR: f64 = 500.0;
const NEAR: f64 = 200.0;

/// How much faster values move within a host than between hosts.
const NEAR_FACTOR: f64 = 8.0;

/// How many workers are asked for free resources before a task is queued.
const TRIES: usize = 16;

/// Bytes of a task's inputs by worker and by host: columns that are used again, with what is set.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    by_worker: Vec<u64>,
    by_host: Vec<u64>,
    workers: Vec<WorkerId>,
    hosts: Vec<usize>,
    total: u64,
}

impl Weights {
    fn clear(&mut self) {
        for worker in self.workers.drain(..) {
            self.by_worker[worker.0 as usize] = 0;
        }
        for host in self.hosts.drain(..) {
            self.by_host[host] = 0;
        }
        self.total = 0;
    }

    /// A value of so many bytes is at these workers, given with their hosts.
    pub(crate) fn add(&mut self, nbytes: u64, holders: impl Iterator<Item = (WorkerId, usize)>) {
        // Values of no size count as something, or they would have no place.
        let nbytes = nbytes.max(1);
        self.total += nbytes;
        let mut seen: SmallVec<[usize; 4]> = SmallVec::new();
        for (worker, host) in holders {
            let index = worker.0 as usize;
            if self.by_worker.len() <= index {
                self.by_worker.resize(index + 1, 0);
            }
            if self.by_worker[index] == 0 {
                self.workers.push(worker);
            }
            self.by_worker[index] += nbytes;
            // A host counts once, however many of its workers have the value.
            if seen.contains(&host) {
                continue;
            }
            seen.push(host);
            if self.by_host.len() <= host {
                self.by_host.resize(host + 1, 0);
            }
            if self.by_host[host] == 0 {
                self.hosts.push(host);
            }
            self.by_host[host] += nbytes;
        }
    }

    fn at(&self, worker: WorkerId) -> u64 {
        self.by_worker.get(worker.0 as usize).copied().unwrap_or(0)
    }

    fn at_host(&self, host: usize) -> u64 {
        self.by_host.get(host).copied().unwrap_or(0)
    }
}

/// Where a task goes.
enum Choice {
    Worker(WorkerId),
    /// Whoever satisfies its constraint, or anybody.
    Anyone,
    /// No worker can get all of its inputs.
    Nowhere,
}

impl Scheduler {
    /// Places all tasks that have become ready, the most urgent first.
    pub(crate) fn place_ready(&mut self, effects: &mut Effects) {
        let mut ready = core::mem::take(&mut self.work.ready);
        if ready.len() > 1 {
            ready.sort_unstable();
        }
        for entry in ready.drain(..) {
            let task = &self.tasks[entry.task];
            if task.missing == 0 && matches!(task.phase, Phase::Waiting { .. }) {
                self.place(entry.task, effects);
            }
        }
        // What was pushed meanwhile is kept, and the allocation with it.
        ready.append(&mut self.work.ready);
        self.work.ready = ready;
    }

    fn place(&mut self, id: TaskId, effects: &mut Effects) {
        let task = &self.tasks[id];
        let free = task.inputs.is_empty() && task.class == ClassId::NONE;
        if free
            && !task.flags.has(Flags::ACTOR)
            && (self.trouble.is_empty() || !self.trouble.contains_key(&id))
        {
            self.tasks[id].flags.set(Flags::CREATOR);
            self.enqueue(id, QueueId::Common);
            return;
        }
        self.weigh(id);
        // Before what is no value is weighed: reading that frees no memory of a worker.
        let creator = self.weights.total == 0;
        self.weigh_located(id);
        self.tasks[id].flags.put(Flags::CREATOR, creator);
        let class = self.tasks[id].class;
        match self.choose(id) {
            Choice::Worker(worker) => self.offer(id, worker, effects),
            Choice::Anyone if class == ClassId::NONE => self.enqueue(id, QueueId::Common),
            Choice::Anyone => self.enqueue(id, QueueId::Class(class)),
            Choice::Nowhere => self.bridge(id, effects),
        }
        self.weights.clear();
    }

    /// Counts the bytes of a task's inputs by worker.
    fn weigh(&mut self, id: TaskId) {
        /// A value with more holders than this is as good as everywhere.
        const HOLDERS: usize = 16;
        for edge in &self.tasks[id].inputs {
            let input = &self.tasks[edge.task];
            if let Phase::Memory {
                nbytes,
                inline: false,
            } = input.phase
            {
                let workers = &self.workers;
                let holders = input.holders.iter().take(HOLDERS).filter_map(|holder| {
                    let worker = workers.get(holder.worker)?;
                    Some((holder.worker, worker.host))
                });
                self.weights.add(nbytes, holders);
            }
        }
    }

    /// How long it takes to bring what is weighed to a worker, in microseconds.
    fn transfer(&self, worker: WorkerId) -> u64 {
        let Some(host) = self.workers.get(worker).map(|worker| worker.host) else {
            return u64::MAX;
        };
        let here = self.weights.at(worker);
        let near = self.weights.at_host(host).max(here);
        let micros = 1e6 / self.config.bandwidth;
        let mut cost = 0.0;
        if near > here {
            cost += NEAR + (near - here) as f64 * micros / NEAR_FACTOR;
        }
        if self.weights.total > near {
            cost += FAR + (self.weights.total - near) as f64 * micros;
        }
        cost as u64
    }

    /// How long it takes to bring the inputs of a task to a worker, in microseconds.
    pub(crate) fn transfer_of(&mut self, id: TaskId, worker: WorkerId) -> u64 {
        self.weigh(id);
        self.weigh_located(id);
        let micros = self.transfer(worker);
        self.weights.clear();
        micros
    }

    /// The worker where what is weighed can be read first.
    fn choose(&mut self, id: TaskId) -> Choice {
        self.refresh_levels();
        let task = &self.tasks[id];
        if let Some(worker) = self.anchor(task) {
            return match self.reaches(id, worker) {
                true => Choice::Worker(worker),
                false => Choice::Nowhere,
            };
        }
        if let Some(worker) = self.elsewhere(id) {
            return Choice::Worker(worker);
        }
        if task.flags.has(Flags::ACTOR)
            && let Some(worker) = self.stage(id)
        {
            return Choice::Worker(worker);
        }
        let class = self.classes.get(task.class);
        if class.is_some_and(|class| class.uses_resources()) {
            let open = class.into_iter().flat_map(|class| class.open.iter());
            let free = open.take(TRIES).filter(|&worker| self.can_take(id, worker));
            let free = free.filter(|&worker| self.reaches(id, worker));
            return match free.min_by_key(|&worker| (self.transfer(worker), worker)) {
                Some(worker) => Choice::Worker(worker),
                None => self.detour(id),
            };
        }
        let open = class.map_or(&self.workers.open, |class| &class.open);
        if self.weights.workers.is_empty() {
            // Nothing to bring: whoever has least to do.
            return match open.lowest() {
                Some(worker) if class.is_some() => Choice::Worker(worker),
                _ => Choice::Anyone,
            };
        }
        let host = self.weights.hosts.iter().copied();
        let host = host.max_by_key(|&host| (self.weights.at_host(host), core::cmp::Reverse(host)));
        let neighbour = host.and_then(|host| self.workers.hosts[host].open.lowest());
        let mut best = None;
        let candidates = self.weights.workers.iter().copied();
        for worker in candidates.chain(neighbour).chain(open.lowest()) {
            let Some(at) = self.workers.get(worker).filter(|at| at.is_running()) else {
                continue;
            };
            if !self.permits(task, worker) || !self.reaches(id, worker) {
                continue;
            }
            let start = at.wait_of(task.priority) + self.transfer(worker);
            let key = (start, core::cmp::Reverse(self.weights.at(worker)), worker);
            if best.as_ref().is_none_or(|best| key < *best) {
                best = Some(key);
            }
        }
        match best {
            Some((_, _, worker)) => Choice::Worker(worker),
            None => self.detour(id),
        }
    }

    /// The worker of the actor that a task calls, or of an input that cannot be serialised, if the task
    /// may run there: the input may have been made elsewhere since the task was pinned to it.
    pub(crate) fn anchor(&self, task: &Task) -> Option<WorkerId> {
        if !task.flags.has(Flags::PINNED) {
            return None;
        }
        let holder = |fixed: Flags| {
            let mut inputs = task.inputs.iter().map(|edge| &self.tasks[edge.task]);
            inputs.find_map(|input| input.flags.has(fixed).then(|| input.holders.first())?)
        };
        if let Some(actor) = holder(Flags::ACTOR) {
            return Some(actor.worker);
        }
        let worker = holder(Flags::IMMOVABLE)?.worker;
        self.admits(task, worker).then_some(worker)
    }

    /// Where an actor shall live, which stays there: where there are the fewest of them, then where it can
    /// start first. `None`: one that uses resources takes those that are free.
    fn stage(&self, id: TaskId) -> Option<WorkerId> {
        let task = &self.tasks[id];
        let class = self.classes.get(task.class);
        if class.is_some_and(|class| class.uses_resources()) {
            return None;
        }
        let mut actors: BTreeMap<WorkerId, u32> = BTreeMap::new();
        for &actor in &self.actors {
            let actor = &self.tasks[actor];
            let at = match actor.phase {
                Phase::Ready(QueueId::Own(worker)) => Some(worker),
                phase => phase.run().map(|run| run.worker),
            };
            let at = at.or_else(|| actor.holders.first().map(|holder| holder.worker));
            if let Some(worker) = at {
                *actors.entry(worker).or_default() += 1;
            }
        }
        let workers = self.workers.iter().filter(|(worker, at)| {
            at.is_running() && self.permits(task, *worker) && self.reaches(id, *worker)
        });
        let first = workers.min_by_key(|(worker, at)| {
            let count = actors.get(worker).copied().unwrap_or(0);
            (
                count,
                at.wait_of(task.priority) + self.transfer(*worker),
                *worker,
            )
        });
        first.map(|(worker, _)| worker)
    }

    /// Where a task can start first that asked to run elsewhere; `None`: it did not, or there is
    /// nobody else who may run it.
    fn elsewhere(&self, id: TaskId) -> Option<WorkerId> {
        let shunned = self.trouble.get(&id)?.shunned?;
        let task = &self.tasks[id];
        let class = self.classes.get(task.class);
        let scarce = class.is_some_and(|class| class.uses_resources());
        let others = self.workers.iter().filter(|(worker, at)| {
            *worker != shunned
                && at.is_running()
                && self.permits(task, *worker)
                && self.reaches(id, *worker)
                && (!scarce || self.can_take(id, *worker))
        });
        let first = others.min_by_key(|(worker, at)| (at.wait() + self.transfer(*worker), *worker));
        first.map(|(worker, _)| worker)
    }

    /// Whether a task reads nothing that is in a worker's memory.
    pub(crate) fn is_creator(&self, id: TaskId) -> bool {
        let mut inputs = self.tasks[id].inputs.iter();
        inputs.all(|edge| {
            matches!(
                self.tasks[edge.task].phase,
                Phase::Memory { inline: true, .. }
            )
        })
    }

    /// Whether a task reads nothing that it could free, and may return much.
    #[inline]
    pub(crate) fn creates_data(&self, task: &Task) -> bool {
        task.flags.has(Flags::CREATOR) && !self.learnt.is_small(task.function)
    }

    /// Whether a worker has room and resources for a ready task.
    pub(crate) fn can_take(&self, id: TaskId, worker: WorkerId) -> bool {
        let task = &self.tasks[id];
        let Some(at) = self.workers.get(worker) else {
            return false;
        };
        let resources = match self.classes.get(task.class) {
            Some(class) => &class.constraint.resources[..],
            None => &[],
        };
        at.has_room(&self.config)
            && at.has_free(resources)
            && !(at.is_closed() && self.creates_data(task))
    }

    /// Sends a task to a worker, unless it is busy, or has more urgent work in its queue here.
    pub(crate) fn offer(&mut self, id: TaskId, worker: WorkerId, effects: &mut Effects) {
        let idle = self.workers.get(worker).is_some_and(|at| at.own.is_empty());
        if idle && self.can_take(id, worker) {
            self.assign(id, worker, effects);
        } else {
            self.enqueue(id, QueueId::Own(worker));
            self.work.hungry.push(worker);
        }
    }

    /// Puts a ready task into a queue.
    pub(crate) fn enqueue(&mut self, id: TaskId, queue: QueueId) {
        self.enter(id, Phase::Ready(queue));
        self.put_into_queue(id, queue);
        self.note_urgent(id);
    }

    /// Moves a task whose entry is out of its queue to another.
    pub(crate) fn put_into_queue(&mut self, id: TaskId, queue: QueueId) {
        let task = &mut self.tasks[id];
        task.phase = Phase::Ready(queue);
        let entry = Entry {
            priority: task.priority,
            task: id,
        };
        let creators = task.flags.has(Flags::CREATOR);
        match queue {
            QueueId::Common => self.common.of(creators).push(entry),
            QueueId::Own(worker) => {
                if let Some(at) = self.workers.get_mut(worker) {
                    at.own.of(creators).push(entry);
                }
                self.relevel(worker);
            }
            QueueId::Class(class) => {
                if let Some(class) = self.classes.get_mut(class) {
                    class.queue.of(creators).push(entry);
                }
            }
            QueueId::Parked => self.parked.push(id),
        }
    }

    /// Whether a worker can get all inputs of a task from somebody.
    pub(crate) fn reaches(&self, id: TaskId, worker: WorkerId) -> bool {
        self.cuts.is_empty()
            || self.tasks[id]
                .inputs
                .iter()
                .all(|edge| self.reaches_value(edge.task, worker))
    }

    /// Whether a worker can get a value from somebody.
    pub(crate) fn reaches_value(&self, input: TaskId, worker: WorkerId) -> bool {
        let task = &self.tasks[input];
        !matches!(task.phase, Phase::Memory { inline: false, .. })
            || task.is_at(worker)
            || task
                .holders
                .iter()
                .any(|holder| !self.cuts.has(worker, holder.worker))
    }

    /// Where a task goes that no obvious worker can take: while there are cuts, that is not left to
    /// whoever comes first.
    fn detour(&self, id: TaskId) -> Choice {
        if self.cuts.is_empty() {
            return Choice::Anyone;
        }
        let workers = self.workers.iter();
        let permitted = workers
            .filter(|(worker, at)| at.is_running() && self.permits(&self.tasks[id], *worker));
        let mut anyone = true;
        let reaching = permitted.filter(|(worker, _)| {
            anyone = false;
            self.reaches(id, *worker)
        });
        match reaching.min_by_key(|(worker, at)| (at.wait() + self.transfer(*worker), *worker)) {
            Some((worker, _)) => Choice::Worker(worker),
            None if anyone => Choice::Anyone,
            None => Choice::Nowhere,
        }
    }
}
