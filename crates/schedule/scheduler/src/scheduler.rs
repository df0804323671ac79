//! The state machine: what it holds, and how one event is carried through.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use treadle_types::{Command, Failure, Loss, Report, TaskId, WorkerId};

use crate::bring::Brought;
use crate::class::Classes;
use crate::client::{Clients, TaskSet};
use crate::copies::Copies;
use crate::cuts::Cuts;
use crate::groups::Groups;
use crate::learnt::Learnt;
use crate::located;
use crate::performed::Performed;
use crate::placement::Weights;
use crate::queue::{Entry, Queues};
use crate::story::Story;
use crate::task::{Phase, Task, Tasks};
use crate::worker::Workers;
use crate::{Config, Effect, Effects, Event, SchedulerError, State};

/// What has gone wrong with a task so far; few have an entry.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// Workers that were lost while they ran it.
    pub(crate) losses: Vec<Loss>,
    /// Workers that were lost while they had it, and hardly ran it.
    pub(crate) bystander: u32,
    /// How often an input could not be got.
    pub(crate) unavailable: u32,
    /// How often an input was computed again because it could not be got.
    pub(crate) recomputed: u32,
    /// The worker where it ran last and asked to run elsewhere.
    pub(crate) shunned: Option<WorkerId>,
}

/// What is left to do about the event at hand.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Tasks that will not get a value, and why.
    pub(crate) failing: Vec<(TaskId, Arc<Failure>)>,
    /// Tasks that may have lost their last reader or dependent.
    pub(crate) unneeded: Vec<TaskId>,
    /// Values that a client is to bring, and perhaps none does.
    pub(crate) absent: Vec<TaskId>,
    /// Tasks that wait for nothing any more.
    pub(crate) ready: Vec<Entry>,
    /// Tasks whose missing inputs are all on their way at one worker.
    pub(crate) ahead: Vec<TaskId>,
    /// Workers that may take more.
    pub(crate) hungry: Vec<WorkerId>,
    /// Tasks that wait, while less urgent ones may have been sent.
    pub(crate) urgent: Vec<TaskId>,
    /// Workers that were asked to give a task back, and have answered.
    pub(crate) answered: Vec<WorkerId>,
}

/// The scheduler of a cluster.
///
/// Time and everything else from outside come in with [`Scheduler::handle`]; what follows comes out
/// as [`Effects`].
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) tasks: Tasks,
    pub(crate) workers: Workers,
    pub(crate) classes: Classes,
    pub(crate) clients: Clients,
    /// Ready tasks for anybody.
    pub(crate) common: Queues,
    /// The priority that the user of any task so far has wanted least.
    pub(crate) least_urgent: i32,
    /// How many tasks that only create data a slot gets in a row, in 1/256.
    pub(crate) share: u64,
    /// How long a worker takes for those that it gets in a row, at least, in microseconds.
    pub(crate) grain: u32,
    /// Tasks with an input that no worker can get at the moment.
    pub(crate) parked: Vec<TaskId>,
    pub(crate) learnt: Learnt,
    pub(crate) trouble: BTreeMap<TaskId, Trouble>,
    pub(crate) cuts: Cuts,
    pub(crate) copies: Copies,
    pub(crate) brought: Brought,
    /// Tasks with effects that have a value, and derived ones that have a small one.
    pub(crate) performed: BTreeMap<TaskId, Performed>,
    /// The tasks with effects that stay when a worker is lost.
    pub(crate) lasting: BTreeSet<TaskId>,
    pub(crate) located: located::ByTask,
    /// The tasks whose values are actors.
    pub(crate) actors: BTreeSet<TaskId>,
    pub(crate) story: Story,
    /// Tasks by state.
    pub(crate) counts: [usize; State::ALL.len()],
    pub(crate) groups: Groups,
    pub(crate) now: Duration,
    /// The number of the event at hand.
    pub(crate) cause: u64,
    /// When a task was last sent, ended or changed otherwise.
    pub(crate) progress: Duration,
    /// When it was last looked why nothing does.
    pub(crate) watched: Duration,
    /// Reports that came too late to matter.
    pub(crate) late: u64,
    pub(crate) work: Work,
    pub(crate) weights: Weights,
    /// The tasks of the batch that is being checked; empty in between.
    pub(crate) batch: TaskSet,
}

impl Scheduler {
    /// A scheduler without workers, clients and tasks.
    pub fn new(config: Config) -> Self {
        Self {
            story: Story::new(config.story),
            config,
            tasks: Tasks::default(),
            workers: Workers::default(),
            classes: Classes::default(),
            clients: Clients::default(),
            common: Queues::default(),
            least_urgent: i32::MIN,
            share: 0,
            grain: 0,
            parked: Vec::new(),
            learnt: Learnt::default(),
            trouble: BTreeMap::new(),
            cuts: Cuts::default(),
            copies: Copies::default(),
            brought: Brought::default(),
            performed: BTreeMap::new(),
            lasting: BTreeSet::new(),
            located: located::ByTask::new(),
            actors: BTreeSet::new(),
            counts: [0; State::ALL.len()],
            groups: Groups::default(),
            now: Duration::ZERO,
            cause: 0,
            progress: Duration::ZERO,
            watched: Duration::ZERO,
            late: 0,
            work: Work::default(),
            weights: Weights::default(),
            batch: TaskSet::default(),
        }
    }

    /// How many workers may be lost while they run a task, before it fails.
    pub fn allowed_losses(&self) -> u32 {
        self.config.allowed_losses
    }

    /// From now on so many workers may be lost while they run a task.
    pub fn allow_losses(&mut self, count: u32) {
        self.config.allowed_losses = count;
    }

    /// An id for a task that is about to be submitted or put, of group 0.
    pub fn allocate(&mut self) -> TaskId {
        self.allocate_in(0)
    }

    /// The same, for a task of a group: see [`Scheduler::groups`].
    pub fn allocate_in(&mut self, group: u16) -> TaskId {
        let id = self.tasks.allocate();
        self.groups.assign(id, group);
        id
    }

    /// Reads what is known of tasks that the next events are about, and of those around them, for
    /// the processor's caches alone: what is read after each other misses them at the same time,
    /// where the events would do so one after the other.
    pub fn touch(&self, tasks: impl Iterator<Item = TaskId> + Clone) {
        self.tasks.touch(tasks);
    }

    /// Gives back an id that was allocated, and neither submitted nor put since.
    pub fn abandon(&mut self, task: TaskId) {
        if matches!(self.tasks.slot(task), Some(t) if t.phase == Phase::Allocated) {
            self.tasks.vacate(task);
        }
    }

    /// Takes an event in; what follows from it is appended to `effects`, in order.
    ///
    /// # Errors
    /// [`SchedulerError`], for events that cannot be; nothing has changed then. What a worker
    /// reports is never an error: one that reports the impossible is dismissed.
    pub fn handle(
        &mut self,
        event: Event,
        now: Duration,
        effects: &mut Effects,
    ) -> Result<(), SchedulerError> {
        self.now = self.now.max(now);
        self.cause += 1;
        match event {
            Event::Report { worker, report } => self.report(worker, report, effects),
            Event::Submit(submission) => self.submit(submission, effects)?,
            Event::Want { client, tasks } => self.want_all(client, &tasks, effects)?,
            Event::Unwant { client, tasks } => self.unwant_all(client, &tasks)?,
            Event::WorkerJoined { worker, profile } => self.join(worker, profile, effects)?,
            Event::WorkerLost { worker, cause } => self.lose_worker(worker, cause, effects),
            Event::Drain(worker) => self.drain(worker, effects)?,
            Event::Offer { worker, resources } => self.offer_resources(worker, resources)?,
            Event::ClientJoined(client) => {
                if !self.clients.join(client) {
                    return Err(SchedulerError::ClientId(client));
                }
            }
            Event::ClientLeft(client) => self.client_left(client)?,
            Event::Put {
                client,
                task,
                nbytes,
                inline,
                class,
                holders,
                kept,
            } => {
                self.put(client, task, nbytes, inline, class, &holders, effects)?;
                if kept {
                    self.keep(task, client, effects);
                }
            }
            Event::Unkept { client, tasks } => self.unkeep_all(client, &tasks)?,
            Event::Cancel {
                client,
                tasks,
                force,
            } => self.cancel(client, &tasks, force, effects)?,
            Event::Retry { client, tasks } => self.retry(client, &tasks, effects)?,
            Event::Replicate {
                tasks,
                copies,
                among,
            } => self.replicate(&tasks, copies, &among, effects),
            Event::Move { task, from, to } => self.move_value(task, from, to, effects)?,
            Event::Invalidate(tasks) => self.invalidate(&tasks, effects),
            Event::Discard { gone, derived } => self.discard(&gone, &derived, effects),
            Event::Locate(tasks) => self.locate(&tasks),
            Event::Restart => self.restart(effects),
            Event::Tick => self.tick(effects),
        }
        self.settle(effects);
        Ok(())
    }

    /// Takes in what a worker reported: as [`Event::Report`] one after the other, except that no
    /// worker gets anything before [`Scheduler::distribute`].
    pub fn handle_reports(
        &mut self,
        worker: WorkerId,
        reports: impl Iterator<Item = Report>,
        now: Duration,
        effects: &mut Effects,
    ) {
        self.now = self.now.max(now);
        for report in reports {
            self.cause += 1;
            self.report(worker, report, effects);
            self.settle_values(effects);
        }
    }

    /// Sends workers what they can take by now, after the reports of some of them. Returns whether
    /// there may be more to do, since these were many effects already; the next event does the rest
    /// at the latest.
    pub fn distribute(&mut self, effects: &mut Effects) -> bool {
        /// Effects that fit into the processor's caches.
        const MANY: usize = 512;
        let end = effects.0.len() + MANY;
        while effects.0.len() < end {
            if !self.settle_once(effects) {
                return false;
            }
        }
        true
    }

    /// Works off which tasks will not get a value, and what nobody needs any more.
    #[inline]
    fn settle_values(&mut self, effects: &mut Effects) {
        loop {
            if let Some((task, failure)) = self.work.failing.pop() {
                self.fail(task, failure, effects);
            } else if let Some(task) = self.work.unneeded.pop() {
                self.reconsider(task, effects);
            } else {
                break;
            }
        }
    }

    /// Works off what an event has led to. The order matters little for the outcome: failures and
    /// releases come first, so that nothing is sent that is not needed.
    fn settle(&mut self, effects: &mut Effects) {
        while self.settle_once(effects) {}
    }

    /// Does the next thing; whether there was one.
    fn settle_once(&mut self, effects: &mut Effects) -> bool {
        self.settle_values(effects);
        if let Some(task) = self.work.absent.pop() {
            self.ask(task, effects);
        } else if !self.work.ready.is_empty() {
            self.place_ready(effects);
        } else if let Some(task) = self.work.ahead.pop() {
            self.send_ahead(task, effects);
        } else if let Some(worker) = self.work.hungry.pop() {
            self.feed(worker, effects);
        } else {
            return self.dispatch(effects) || self.overtake(effects);
        }
        true
    }

    /// Moves a task to a phase, for the counts and the story, too.
    #[inline]
    pub(crate) fn enter(&mut self, id: TaskId, phase: Phase) {
        let task = &mut self.tasks[id];
        let (from, to) = (state_of(task.phase), state_of(phase));
        task.phase = phase;
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        self.groups.moved(id, from, to);
        let worker = phase.run().map(|run| run.worker);
        self.story.add(self.now, self.cause, id, to, worker);
    }

    /// Appends a command.
    #[inline]
    pub(crate) fn tell(effects: &mut Effects, worker: WorkerId, command: Command) {
        effects.0.push(Effect::Command { worker, command });
    }

    /// A worker may be at other levels now. Many tasks come and go in a row, so the indices are
    /// brought up to date when somebody is about to look: see [`Scheduler::refresh_levels`].
    #[inline]
    pub(crate) fn relevel(&mut self, id: WorkerId) {
        self.workers.set_stale(id);
    }

    /// Brings the indices of workers up to date; called before they are read.
    #[inline]
    pub(crate) fn refresh_levels(&mut self) {
        while let Some(id) = self.workers.next_stale() {
            self.refresh_levels_of(id);
        }
    }

    fn refresh_levels_of(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else {
            return;
        };
        let [open, roomy, relieved, loaded, queued] = Workers::levels_of(worker, &self.config);
        for &class in &worker.classes {
            if let Some(class) = self.classes.get_mut(class) {
                class.open.set(id, open);
            }
        }
        let host = worker.host;
        self.workers.hosts[host].open.set(id, open);
        self.workers.open.set(id, open);
        self.workers.roomy.set(id, roomy);
        self.workers.relieved.set(id, relieved);
        self.workers.loaded.set(id, loaded);
        self.workers.queued.set(id, queued);
    }

    /// Whether `worker` may run a task, now or later: where the value is that cannot travel, or where
    /// its constraint is satisfied.
    #[inline]
    pub(crate) fn permits(&self, task: &Task, worker: WorkerId) -> bool {
        if let Some(anchor) = self.anchor(task) {
            return anchor == worker;
        }
        self.admits(task, worker)
    }

    /// Whether `worker` satisfies the constraint of a task.
    #[inline]
    pub(crate) fn admits(&self, task: &Task, worker: WorkerId) -> bool {
        self.classes
            .get(task.class)
            .is_none_or(|class| class.admits(worker))
    }

    /// The event at hand has moved something.
    #[inline]
    pub(crate) fn moved(&mut self) {
        self.progress = self.now;
    }
}

/// The state that belongs to a phase.
pub(crate) fn state_of(phase: Phase) -> State {
    match phase {
        Phase::Vacant | Phase::Allocated => State::Forgotten,
        Phase::Released => State::Released,
        Phase::Waiting { .. } => State::Waiting,
        Phase::Ready(_) => State::Ready,
        Phase::Assigned(_) => State::Assigned,
        Phase::Retracting { .. } => State::Retracting,
        Phase::Memory { .. } => State::Memory,
        Phase::Failed => State::Failed,
    }
}
