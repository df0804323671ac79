//! Ready tasks go to workers with room: from the queues here, and then from other workers.

use treadle_types::{Assignment, Command, Holders, Input, ObjectId, Place, TaskId, WorkerId};

use crate::Effects;
use crate::Guard;
use crate::queue::Entry;
use crate::scheduler::Scheduler;
use crate::task::{Flags, Phase, QueueId, Run, Task, Tasks};
use crate::worker::Load;

/// How many tasks in a row, in the planned order, a slot gets at most: enough for most steps of a
/// reduction to find their inputs at one worker, and little compared to what a worker holds anyway.
const RUN: u64 = 32;

/// Where there are [`MANY`] tasks, a run takes so long at least, in microseconds, as far as that is
/// known: about what a message to a worker and its answer cost. To spread less takes longer than to
/// run it.
const GRAIN: u32 = 50;

/// Fewer tasks than these are spread, however short they are said to be.
const MANY: usize = 64;

/// How many holders of a value a reader is told about.
const HOLDERS: usize = 4;

/// Tasks ahead may keep a slot busy for so many times the prefill, as far as that is known. Longer
/// tasks can afford the way to the scheduler, and leave it the choice.
const AHEAD: u64 = 20;

pub(crate) fn alive(tasks: &Tasks, queue: QueueId) -> impl Fn(&Entry) -> bool + '_ {
    move |entry| {
        let task = &tasks[entry.task];
        task.phase == Phase::Ready(queue) && task.priority == entry.priority
    }
}

impl Scheduler {
    /// Recomputes how many tasks in a row a slot gets, so that the tasks that are there now spread
    /// evenly, and in messages that are worth it.
    pub(crate) fn share_out(&mut self) {
        let slots = self.workers.threads.max(1);
        let tasks = self.common.creators.len();
        self.share = (tasks as u64 * 256 / slots).min(RUN * 256);
        self.grain = if tasks < MANY { 0 } else { GRAIN };
    }

    /// Gives the worker that has least to do something from the common queue; whether there was
    /// such a worker, and something for it.
    pub(crate) fn dispatch(&mut self, effects: &mut Effects) -> bool {
        self.refresh_levels();
        let worker = if !self.common.readers.is_empty() {
            self.workers.open.lowest()
        } else if !self.common.creators.is_empty() {
            let roomy = self.workers.roomy.lowest();
            let roomy = roomy.or_else(|| self.workers.relieved.lowest());
            roomy.or_else(|| self.open_to_small())
        } else {
            return false;
        };
        let Some(worker) = worker else {
            return false;
        };
        if !self.feed_once(worker, effects) {
            debug_assert!(false, "{worker:?} has room and takes nothing");
            return false;
        }
        self.feed_run(worker, effects);
        true
    }

    /// The worker that has least to do, if the first creator of the common queue returns so little
    /// that it need not wait for memory.
    fn open_to_small(&mut self) -> Option<WorkerId> {
        let worker = self.workers.open.lowest()?;
        let common = QueueId::Common;
        let first = self.common.creators.peek(alive(&self.tasks, common))?;
        let function = self.tasks[first.task].function;
        self.learnt.is_small(function).then_some(worker)
    }

    /// Gives a worker what it can take, from the queues here or from other workers.
    pub(crate) fn feed(&mut self, worker: WorkerId, effects: &mut Effects) {
        while self
            .workers
            .get(worker)
            .is_some_and(|at| at.has_room(&self.config))
        {
            if self.feed_once(worker, effects) {
                self.feed_run(worker, effects);
            } else if !self.steal_queued(worker) {
                // What others are asked for comes later.
                self.steal_sent(worker, effects);
                break;
            }
        }
        self.advance_drain(worker, effects);
    }

    /// Sends a worker with room the most urgent of the tasks here that it may run. Of tasks that
    /// only create data, it takes several in a row into its own queue: those whose ranks are close
    /// are read together, and should be in one place.
    fn feed_once(&mut self, worker: WorkerId, effects: &mut Effects) -> bool {
        let Some(at) = self.workers.get(worker) else {
            return false;
        };
        let full = Guard::Budget.holds() && at.is_full();
        let closed = at.is_closed();
        if full {
            self.refresh_levels();
        }
        // What may run anywhere runs where there is memory.
        let roomy = self.workers.roomy.lowest().filter(|_| full);
        let best = self.most_urgent_for(worker, closed, roomy.is_none());
        let Some((entry, of_creators, queue)) = best else {
            return false;
        };
        let Some(at) = self.workers.get_mut(worker) else {
            return false;
        };
        let queues = match queue {
            QueueId::Own(_) => &mut at.own,
            QueueId::Class(class) => match self.classes.get_mut(class) {
                Some(class) => &mut class.queue,
                None => return false,
            },
            QueueId::Common | QueueId::Parked => &mut self.common,
        };
        queues
            .of(of_creators)
            .take_out(entry, alive(&self.tasks, queue));
        // A dead entry of the same task must not pass for alive until it is sent.
        self.tasks[entry.task].phase = Phase::Ready(QueueId::Own(worker));
        if queue == QueueId::Common && of_creators {
            self.take_run(worker, entry.task, full);
        }
        if !self.cuts.is_empty() && !self.reaches(entry.task, worker) {
            // It was placed before the cut was known.
            self.enter(entry.task, Phase::WAITING);
            self.work.ready.push(entry);
            self.relevel(worker);
            return true;
        }
        self.assign(entry.task, worker, effects);
        true
    }

    /// What a worker would run next: the entry, whether its queue is of tasks that create data, and where
    /// it waits. A closed worker takes small tasks only.
    fn most_urgent_for(
        &mut self,
        worker: WorkerId,
        closed: bool,
        takes_common: bool,
    ) -> Option<(Entry, bool, QueueId)> {
        let at = self.workers.get_mut(worker)?;
        let (tasks, learnt) = (&self.tasks, &self.learnt);
        let is_small = |entry: &Entry| learnt.is_small(tasks[entry.task].function);
        let admits = |entry: &Entry| !closed || is_small(entry);
        let mut best: Option<(Entry, bool, QueueId)> = None;
        let mut consider = |head: Option<(Entry, bool)>, queue| {
            if let Some((entry, of_creators)) = head
                && best.is_none_or(|(other, _, _)| entry < other)
            {
                best = Some((entry, of_creators, queue));
            }
        };
        let own = QueueId::Own(worker);
        let mut head = at.own.head(admits, alive(&self.tasks, own));
        let fits = |entry: &Entry| {
            let class = self.classes.get(self.tasks[entry.task].class);
            class.is_none_or(|class| at.has_free(&class.constraint.resources))
        };
        if let Some((first, _)) = head
            && !fits(&first)
        {
            // It does not hold up those behind it.
            let alive = alive(&self.tasks, own);
            let searches = Guard::Search.holds();
            head = at
                .own
                .first(|entry| searches && alive(entry) && fits(entry), admits);
        }
        consider(head, own);
        let common = QueueId::Common;
        let admits_common = |entry: &Entry| takes_common && admits(entry);
        let head = self.common.head(admits_common, alive(&self.tasks, common));
        consider(head, common);
        for &id in &at.classes {
            if let Some(class) = self.classes.get_mut(id)
                && !class.queue.is_empty()
                && at.has_free(&class.constraint.resources)
            {
                let queue = QueueId::Class(id);
                consider(class.queue.head(admits, alive(&self.tasks, queue)), queue);
            }
        }
        best
    }

    /// A worker takes some of what follows `first` in the common queue of tasks that create data, so that
    /// neighbours run at the same place. One whose memory is full takes few.
    fn take_run(&mut self, worker: WorkerId, first: TaskId, full: bool) {
        let Some(at) = self.workers.get_mut(worker) else {
            return;
        };
        let slots = u64::from(at.profile.threads);
        let run = match full {
            true => 1,
            false => (self.share * slots / 256).clamp(1, RUN * slots.max(1)),
        };
        let mut micros = self.learnt.estimate(self.tasks[first].function);
        for count in 1..RUN * slots {
            if count >= run && (micros >= self.grain || full) {
                break;
            }
            let next = self
                .common
                .creators
                .pop(alive(&self.tasks, QueueId::Common));
            let Some(entry) = next else {
                break;
            };
            let task = &mut self.tasks[entry.task];
            task.phase = Phase::Ready(QueueId::Own(worker));
            micros = micros.saturating_add(self.learnt.estimate(task.function));
            at.own.creators.push(entry);
        }
    }

    /// Sends a worker more of the run that it has taken, as long as it has room, and nothing that it
    /// may run is more urgent.
    fn feed_run(&mut self, worker: WorkerId, effects: &mut Effects) {
        let own = QueueId::Own(worker);
        let Some(at) = self.workers.get_mut(worker) else {
            return;
        };
        if at.own.creators.is_empty() {
            return;
        }
        let reader = at.own.readers.peek(alive(&self.tasks, own));
        let common = self
            .common
            .head(|_| true, alive(&self.tasks, QueueId::Common))
            .map(|(entry, _)| entry);
        // Looked for once: sending from the run changes no other queue.
        let mut other = reader.into_iter().chain(common).min();
        for &id in &at.classes {
            if let Some(class) = self.classes.get_mut(id)
                && !class.queue.is_empty()
            {
                let head = class
                    .queue
                    .head(|_| true, alive(&self.tasks, QueueId::Class(id)));
                other = other.into_iter().chain(head.map(|(entry, _)| entry)).min();
            }
        }
        while let Some(at) = self.workers.get_mut(worker)
            && at.has_room(&self.config)
            && let closed = at.is_closed()
            && let Some(entry) = at.own.creators.peek(alive(&self.tasks, own))
            && (!closed || self.learnt.is_small(self.tasks[entry.task].function))
            && other.is_none_or(|other| entry < other)
        {
            let class = self.classes.get(self.tasks[entry.task].class);
            if class.is_some_and(|class| !at.has_free(&class.constraint.resources)) {
                break;
            }
            at.own.creators.pop(alive(&self.tasks, own));
            self.assign(entry.task, worker, effects);
        }
    }

    /// Sends a task to a worker. Its entry is out of its queue.
    pub(crate) fn assign(&mut self, id: TaskId, worker: WorkerId, effects: &mut Effects) {
        let ahead = self.tasks[id].missing > 0;
        let Some(at) = self.workers.get_mut(worker) else {
            return;
        };
        let task = &self.tasks[id];
        let estimate = match ahead {
            false => self.learnt.estimate(task.function),
            true => self.learnt.micros(task.function).unwrap_or(0),
        };
        let run = Run {
            worker,
            estimate,
            output: match task.flags.has(Flags::CREATOR) {
                true => self.learnt.output(task.function),
                false => 0,
            },
        };
        if at.runnable == 0 {
            at.begins(self.now);
        }
        let least = match at.sent.is_empty() {
            true => i32::MIN,
            false => at.least_urgent,
        };
        at.least_urgent = least.max(task.priority.user);
        // The attempt that begins below.
        at.sent.push_back(ObjectId::new(id, task.attempt.next()));
        if task.flags.has(Flags::CREATOR) && !self.learnt.is_small(task.function) {
            (at.created, at.relieved) = (self.now, false);
        }
        if let Some(class) = self.classes.get(task.class) {
            at.take(&class.constraint.resources, 1.0);
        }
        let load = if ahead { Load::Ahead } else { Load::Runnable };
        self.workers.occupy(worker, load, &run);
        self.relevel(worker);
        self.moved();
        self.enter(id, Phase::Assigned(run));
        let task = &mut self.tasks[id];
        task.attempt = task.attempt.next();
        task.flags.put(Flags::AHEAD, ahead);
        // These are about the value of the attempt before.
        task.flags.clear(Flags::LOST | Flags::IMMOVABLE);
        // Whoever reads it may be sent to the same worker before it is done.
        let keep = !task.dependents.is_empty() || task.unsent > 0;
        task.flags.put(Flags::KEEP, keep);
        let task = &self.tasks[id];
        let inputs = task.inputs.iter();
        let assignment = Assignment {
            object: ObjectId::new(id, task.attempt),
            priority: task.priority,
            client: task.client,
            recipe: task.payload.clone(),
            inputs: inputs.map(|edge| self.input(edge.task, worker)).collect(),
            keep,
            actor: task.flags.has(Flags::ACTOR),
        };
        Self::tell(effects, worker, Command::Assign(assignment));
        if keep {
            self.announce(id, worker);
        }
    }

    /// Where a worker finds a value.
    fn input(&self, id: TaskId, reader: WorkerId) -> Input {
        let task = &self.tasks[id];
        let place = match task.phase {
            Phase::Memory { .. } if task.is_at(reader) => Place::Here,
            Phase::Memory { inline: true, .. } => Place::Inline(task.payload.clone()),
            Phase::Memory { inline: false, .. } => Place::At(self.holders_for(task, reader)),
            // Only what was sent to the same worker is read before it has a value.
            _ => Place::Here,
        };
        Input {
            object: ObjectId::new(id, task.attempt),
            nbytes: task.nbytes(),
            place,
        }
    }

    /// Some holders of a value for a reader: those of its host first, and not the same ones for
    /// everybody.
    pub(crate) fn holders_for(&self, task: &Task, reader: WorkerId) -> Holders {
        let count = task.holders.len();
        if count == 1 && self.cuts.is_empty() {
            return task.holders.iter().map(|holder| holder.worker).collect();
        }
        let host = self.workers.get(reader).map(|at| at.host);
        let is_near = |worker| self.workers.get(worker).map(|at| at.host) == host;
        let turned = (0..count).map(|i| task.holders[(i + reader.0 as usize) % count].worker);
        let uncut = turned.filter(|&holder| holder != reader && !self.cuts.has(reader, holder));
        let (near, far): (Holders, Holders) = uncut.partition(|&holder| is_near(holder));
        near.into_iter().chain(far).take(HOLDERS).collect()
    }

    /// A task was sent to a worker that will keep its value: dependents that miss nothing else can
    /// follow.
    fn announce(&mut self, id: TaskId, worker: WorkerId) {
        for index in 0..self.tasks[id].dependents.len() {
            let dependent = self.tasks[id].dependents[index].task;
            let task = &mut self.tasks[dependent];
            if let Phase::Waiting { near, here } = &mut task.phase {
                if *here == 0 {
                    *near = worker;
                }
                if *near == worker {
                    *here += 1;
                    if *here == task.missing {
                        self.work.ahead.push(dependent);
                    }
                }
            }
        }
    }

    /// Sends a task ahead of its inputs if all that it misses are on their way at one worker: the
    /// next step of a chain then costs no way to the scheduler.
    pub(crate) fn send_ahead(&mut self, id: TaskId, effects: &mut Effects) {
        let task = &self.tasks[id];
        let Phase::Waiting { near, here } = task.phase else {
            return;
        };
        let is_bound = task.flags.has(Flags::PINNED | Flags::LOCATED);
        if task.missing == 0 || here != task.missing || is_bound {
            return;
        }
        let Some(at) = self.workers.get(near) else {
            return;
        };
        let prefill = self.config.prefill_micros() * u64::from(at.profile.threads.max(1));
        if !at.is_running()
            || at.ahead >= self.config.prefill_tasks
            || at.busy_ahead > AHEAD * prefill
        {
            return;
        }
        if let Some(class) = self.classes.get(task.class)
            && (class.uses_resources() || !class.admits(near))
        {
            return;
        }
        // What runs beside its siblings would better be spread, unless it is short.
        let micros = self.learnt.micros(task.function);
        let mut remote = 0;
        for edge in &task.inputs {
            let input = &self.tasks[edge.task];
            match input.phase {
                Phase::Assigned(run) if run.worker == near && input.flags.has(Flags::KEEP) => {
                    let slots = at.profile.threads as usize;
                    if input.dependents.len() > slots
                        && self.siblings_ahead(input, near) >= slots as u64
                        && micros.is_none_or(|m| at.busy_ahead + u64::from(m) > prefill)
                    {
                        return;
                    }
                }
                Phase::Memory { inline: true, .. } => {}
                Phase::Memory { nbytes, .. } if !input.is_at(near) => remote += nbytes,
                Phase::Memory { .. } => {}
                _ => return,
            }
        }
        let bandwidth = self.config.bandwidth;
        if remote as f64 > bandwidth * self.config.prefill.as_secs_f64() || !self.reaches(id, near)
        {
            return;
        }
        // Its inputs are in the worker's memory when it runs.
        self.tasks[id].flags.clear(Flags::CREATOR);
        self.assign(id, near, effects);
    }

    /// How many dependents of a task were sent to a worker ahead of it, as far as the first ones
    /// tell.
    fn siblings_ahead(&self, input: &Task, worker: WorkerId) -> u64 {
        let dependents = input.dependents.iter().take(256);
        let ahead = dependents.filter(|edge| {
            let task = &self.tasks[edge.task];
            task.flags.has(Flags::AHEAD) && task.phase.run().is_some_and(|r| r.worker == worker)
        });
        ahead.count() as u64
    }
}
