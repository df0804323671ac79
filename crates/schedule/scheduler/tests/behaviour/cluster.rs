//! A small cluster around a scheduler: workers that answer as workers do, in order, and clients that
//! write down what they hear. Nothing moves by itself: tests say who starts, ends and reports what.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use treadle_scheduler::{
    Config, Effect, Effects, Event, Notice, Scheduler, SchedulerError, State, Stuck, Submission,
    WorkerProfile,
};
use treadle_types::{
    Assignment, Cause, ClientId, Command, Constraint, Failure, Holders, ObjectId, Options, Place,
    Report, Returned, Symbol, TaskId, WorkerId,
};

pub(crate) const C: ClientId = ClientId(0);

/// A task to submit.
#[derive(Clone, Default)]
pub(crate) struct Spec {
    pub(crate) inputs: Vec<TaskId>,
    pub(crate) options: Options,
    pub(crate) constraint: Option<Constraint>,
    pub(crate) function: u32,
    pub(crate) rank: Option<u32>,
}

pub(crate) fn reads(inputs: &[TaskId]) -> Spec {
    Spec {
        inputs: inputs.to_vec(),
        ..Spec::default()
    }
}

impl Spec {
    pub(crate) fn retries(mut self, retries: u32) -> Self {
        self.options.retries = retries;
        self
    }

    pub(crate) fn priority(mut self, priority: i32) -> Self {
        self.options.priority = priority;
        self
    }

    pub(crate) fn actor(mut self) -> Self {
        self.options.actor = true;
        self
    }

    pub(crate) fn with_effects(mut self) -> Self {
        self.options.effects = true;
        self
    }

    pub(crate) fn with_lasting_effects(mut self) -> Self {
        self.options.lasting = true;
        self.with_effects()
    }

    pub(crate) fn function(mut self, function: u32) -> Self {
        self.function = function;
        self
    }

    pub(crate) fn on(mut self, names: &[u32]) -> Self {
        let names = names.iter().map(|&name| Symbol(name)).collect();
        self.constraint.get_or_insert_default().workers = names;
        self
    }

    pub(crate) fn or_others(mut self) -> Self {
        self.constraint.get_or_insert_default().allow_other = true;
        self
    }

    pub(crate) fn uses(mut self, resource: u32, amount: f64) -> Self {
        let constraint = self.constraint.get_or_insert_default();
        constraint.resources.push((Symbol(resource), amount));
        self
    }
}

/// What a task returns in these tests.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) nbytes: u64,
    pub(crate) inline: bool,
}

#[derive(Default)]
pub(crate) struct Node {
    pub(crate) threads: usize,
    /// Sent and not started.
    pub(crate) queued: Vec<Assignment>,
    pub(crate) running: Vec<Assignment>,
    pub(crate) cancelled: BTreeSet<ObjectId>,
    pub(crate) store: BTreeSet<ObjectId>,
    /// Values to drop, once no task that was sent before reads them.
    pub(crate) released: BTreeSet<ObjectId>,
    pub(crate) outbox: VecDeque<Report>,
}

impl Node {
    fn purge(&mut self) {
        let queued = &self.queued;
        let reads = |object| {
            queued
                .iter()
                .any(|a| a.inputs.iter().any(|i| i.object == object))
        };
        let dropped: Vec<_> = self
            .released
            .iter()
            .copied()
            .filter(|&o| !reads(o))
            .collect();
        for object in dropped {
            self.released.remove(&object);
            self.store.remove(&object);
        }
    }
}

pub(crate) struct Cluster {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: Duration,
    pub(crate) nodes: BTreeMap<WorkerId, Node>,
    pub(crate) notices: BTreeMap<(ClientId, TaskId), Vec<Notice>>,
    pub(crate) forgotten: BTreeSet<TaskId>,
    /// Clients that were asked for values that they keep, and those that need not keep them.
    pub(crate) asked: Vec<(ClientId, TaskId)>,
    pub(crate) let_go: Vec<TaskId>,
    pub(crate) unkept: Vec<(ClientId, TaskId)>,
    pub(crate) drained: Vec<WorkerId>,
    pub(crate) dismissed: Vec<WorkerId>,
    pub(crate) stuck: Vec<(Vec<TaskId>, Stuck)>,
    /// Every command, in order.
    pub(crate) log: Vec<(WorkerId, Command)>,
    /// What tasks return, by task; else 8 bytes inline.
    pub(crate) sizes: BTreeMap<TaskId, Size>,
    /// How long functions run.
    pub(crate) duration: Duration,
    /// Pairs that cannot reach each other: reader and holder.
    pub(crate) cut: BTreeSet<(WorkerId, WorkerId)>,
    submissions: u32,
}

impl Cluster {
    /// So many workers of `threads` slots, w0 and on, each on its own host, and client `C`.
    pub(crate) fn new(workers: u32, threads: u32) -> Self {
        Self::with(Config::default(), workers, threads)
    }

    pub(crate) fn with(config: Config, workers: u32, threads: u32) -> Self {
        let mut cluster = Self {
            scheduler: Scheduler::new(config),
            now: Duration::ZERO,
            nodes: BTreeMap::new(),
            notices: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            asked: Vec::new(),
            let_go: Vec::new(),
            unkept: Vec::new(),
            drained: Vec::new(),
            dismissed: Vec::new(),
            stuck: Vec::new(),
            log: Vec::new(),
            sizes: BTreeMap::new(),
            duration: Duration::from_millis(1),
            cut: BTreeSet::new(),
            submissions: 0,
        };
        cluster.event(Event::ClientJoined(C));
        for worker in 0..workers {
            cluster.join(worker, profile(worker, threads));
        }
        cluster
    }

    pub(crate) fn join(&mut self, worker: u32, profile: WorkerProfile) -> WorkerId {
        let worker = WorkerId(worker);
        let node = Node {
            threads: profile.threads as usize,
            ..Node::default()
        };
        self.nodes.insert(worker, node);
        self.event(Event::WorkerJoined { worker, profile });
        worker
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.try_event(event).expect("a sound event");
    }

    pub(crate) fn try_event(&mut self, event: Event) -> Result<(), SchedulerError> {
        self.now += Duration::from_micros(1);
        let mut effects = Effects::default();
        let text = format!("{event:?}");
        let done = self.scheduler.handle(event, self.now, &mut effects);
        if let Err(what) = self.scheduler.check() {
            panic!("after {text}: {what}");
        }
        for effect in effects.0 {
            self.effect(effect);
        }
        done
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Command { worker, command } => {
                self.log.push((worker, command.clone()));
                self.command(worker, command);
            }
            Effect::Notify {
                client,
                task,
                notice,
            } => self.notices.entry((client, task)).or_default().push(notice),
            Effect::Forgotten(task) => {
                self.forgotten.insert(task);
            }
            Effect::LetGo(task) => self.let_go.push(task),
            Effect::Bring { client, task } => self.asked.push((client, task)),
            Effect::Unkeep { client, task } => self.unkept.push((client, task)),
            Effect::Drained(worker) => self.drained.push(worker),
            Effect::Dismiss { worker, .. } => {
                self.dismissed.push(worker);
                self.nodes.remove(&worker);
            }
            Effect::Stuck { tasks, reason } => self.stuck.push((tasks, reason)),
        }
    }

    fn command(&mut self, worker: WorkerId, command: Command) {
        let holder_of = |object: ObjectId, holders: &Holders, nodes: &BTreeMap<WorkerId, Node>| {
            let has = |holder: &WorkerId| {
                nodes
                    .get(holder)
                    .is_some_and(|node| node.store.contains(&object))
                    && !self.cut.contains(&(worker, *holder))
            };
            holders.iter().copied().find(has)
        };
        let copied = match &command {
            Command::Copy {
                object, holders, ..
            } => holder_of(*object, holders, &self.nodes),
            _ => None,
        };
        let Some(node) = self.nodes.get_mut(&worker) else {
            return;
        };
        let position = |list: &[Assignment], object| list.iter().position(|a| a.object == object);
        match command {
            Command::Assign(assignment) => {
                assert!(
                    position(&node.queued, assignment.object).is_none(),
                    "{:?} was sent twice",
                    assignment.object
                );
                node.queued.push(assignment);
            }
            Command::Retract(object) => {
                if let Some(index) = position(&node.queued, object) {
                    node.queued.remove(index);
                    node.outbox.push_back(Report::Retracted(object));
                } else if position(&node.running, object).is_some() {
                    node.outbox.push_back(Report::Started(object));
                }
            }
            Command::Cancel(object) => {
                if let Some(index) = position(&node.queued, object) {
                    node.queued.remove(index);
                    node.outbox.push_back(Report::Stopped(object));
                } else if position(&node.running, object).is_some() {
                    node.cancelled.insert(object);
                }
            }
            Command::Release(object) => {
                node.released.insert(object);
            }
            Command::Copy {
                object,
                nbytes,
                holders,
            } => match copied {
                Some(_) => {
                    node.released.remove(&object);
                    node.store.insert(object);
                    node.outbox.push_back(Report::Stored { object, nbytes });
                }
                None => node.outbox.push_back(Report::CopyFailed {
                    object,
                    tried: holders,
                }),
            },
        }
        node.purge();
    }

    /// Submits tasks in one batch; all of them are wanted.
    pub(crate) fn submit(&mut self, specs: Vec<Spec>) -> Vec<TaskId> {
        let ids: Vec<_> = specs.iter().map(|_| self.scheduler.allocate()).collect();
        self.submit_as(C, &ids, specs, &ids);
        ids
    }

    /// Submits tasks of which only some are wanted.
    pub(crate) fn submit_as(
        &mut self,
        client: ClientId,
        ids: &[TaskId],
        specs: Vec<Spec>,
        wanted: &[TaskId],
    ) {
        let number = self.submissions;
        self.submissions += 1;
        let submission = batch(client, number, true, ids, specs, wanted);
        self.event(Event::Submit(submission));
    }

    pub(crate) fn one(&mut self, spec: Spec) -> TaskId {
        self.submit(vec![spec])[0]
    }

    /// Submits a chain of dependent tasks, of which the last is wanted.
    pub(crate) fn chain(&mut self, length: usize) -> Vec<TaskId> {
        let ids: Vec<_> = (0..length).map(|_| self.scheduler.allocate()).collect();
        let specs = (0..length).map(|i| match i {
            0 => reads(&[]),
            _ => reads(&[ids[i - 1]]),
        });
        let specs = specs.collect();
        self.submit_as(C, &ids, specs, &ids[length - 1..]);
        ids
    }

    pub(crate) fn state(&self, task: TaskId) -> State {
        self.scheduler
            .task(task)
            .map_or(State::Forgotten, |task| task.state())
    }

    pub(crate) fn worker_of(&self, task: TaskId) -> WorkerId {
        let task = self.scheduler.task(task).expect("a task");
        task.worker().expect("an assigned task")
    }

    pub(crate) fn holders(&self, task: TaskId) -> Vec<WorkerId> {
        let task = self.scheduler.task(task).expect("a task");
        task.holders().collect()
    }

    pub(crate) fn last_notice(&self, task: TaskId) -> Option<&Notice> {
        self.notices.get(&(C, task))?.last()
    }

    /// Why a task has failed, as its client was told.
    pub(crate) fn failure(&self, task: TaskId) -> &Failure {
        self.failure_for(C, task)
    }

    /// The same, as some client was told.
    pub(crate) fn failure_for(&self, client: ClientId, task: TaskId) -> &Failure {
        match self
            .notices
            .get(&(client, task))
            .and_then(|told| told.last())
        {
            Some(Notice::Failed(failure)) => failure,
            other => panic!(
                "{task:?} has not failed: {other:?}, {:?}",
                self.scheduler.story(task)
            ),
        }
    }

    pub(crate) fn size(&mut self, task: TaskId, nbytes: u64) {
        let inline = false;
        self.sizes.insert(task, Size { nbytes, inline });
    }

    /// The scheduler hears everything that workers have to say.
    pub(crate) fn deliver(&mut self) -> bool {
        let mut any = false;
        while self.deliver_one() {
            any = true;
        }
        any
    }

    /// The scheduler hears the next thing that a worker has to say; whether there was one.
    pub(crate) fn deliver_one(&mut self) -> bool {
        let mut nodes = self.nodes.iter_mut();
        let next = nodes.find_map(|(&worker, node)| Some((worker, node.outbox.pop_front()?)));
        let Some((worker, report)) = next else {
            return false;
        };
        self.event(Event::Report { worker, report });
        true
    }

    /// A worker starts what it has slots and inputs for; whether anything was started.
    pub(crate) fn start(&mut self, worker: WorkerId) -> bool {
        let mut any = false;
        loop {
            let Some(node) = self.nodes.get_mut(&worker) else {
                return any;
            };
            if node.running.len() >= node.threads {
                return any;
            }
            node.purge();
            node.queued.sort_by_key(|a| (a.priority, a.object));
            let node = &self.nodes[&worker];
            let mut next = None;
            let mut given_back = None;
            'tasks: for (index, assignment) in node.queued.iter().enumerate() {
                let mut fetched = Vec::new();
                for input in &assignment.inputs {
                    match &input.place {
                        Place::Inline(_) => {}
                        _ if node.store.contains(&input.object) => {}
                        Place::Here => {
                            let mut here = node.queued.iter().chain(&node.running);
                            if here.any(|other| other.object == input.object) {
                                continue 'tasks;
                            }
                            given_back = Some((index, input.object, Holders::new()));
                            break 'tasks;
                        }
                        Place::At(holders) => {
                            let mut reached = holders.iter().filter(|&&holder| {
                                let there = self.nodes.get(&holder);
                                there.is_some_and(|node| node.store.contains(&input.object))
                                    && !self.cut.contains(&(worker, holder))
                            });
                            match reached.next() {
                                Some(_) => fetched.push((input.object, input.nbytes)),
                                None => {
                                    given_back = Some((index, input.object, holders.clone()));
                                    break 'tasks;
                                }
                            }
                        }
                    }
                }
                next = Some((index, fetched));
                break;
            }
            let Some(node) = self.nodes.get_mut(&worker) else {
                return any;
            };
            if let Some((index, input, tried)) = given_back {
                let object = node.queued.remove(index).object;
                node.outbox.push_back(Report::Unavailable {
                    object,
                    input,
                    tried,
                });
                any = true;
                continue;
            }
            let Some((index, fetched)) = next else {
                return any;
            };
            for (object, nbytes) in fetched {
                node.store.insert(object);
                node.outbox.push_back(Report::Stored { object, nbytes });
            }
            let assignment = node.queued.remove(index);
            node.running.push(assignment);
            any = true;
        }
    }

    /// A running task ends; its report waits in the worker's outbox.
    pub(crate) fn end(&mut self, task: TaskId) {
        self.end_with(task, None);
    }

    /// A running task raises.
    pub(crate) fn raise(&mut self, task: TaskId) {
        self.end_with(task, Some(Bytes::from_static(b"error")));
    }

    fn end_with(&mut self, task: TaskId, error: Option<Bytes>) {
        let is_it = |a: &Assignment| a.object.task == task;
        let (_, node) = self
            .nodes
            .iter_mut()
            .find(|(_, node)| node.running.iter().any(is_it))
            .expect("a running task");
        let index = node.running.iter().position(is_it).expect("a running task");
        let Assignment { object, keep, .. } = node.running.remove(index);
        if node.cancelled.remove(&object) {
            node.outbox.push_back(Report::Stopped(object));
            return;
        }
        let duration = self.duration;
        if let Some(error) = error {
            node.outbox.push_back(Report::Failed {
                object,
                error,
                duration,
            });
            return;
        }
        let size = self.sizes.get(&task).copied().unwrap_or(Size {
            nbytes: 8,
            inline: true,
        });
        let kept = keep || !size.inline;
        if kept {
            node.store.insert(object);
        }
        node.outbox.push_back(Report::Finished {
            object,
            value: Returned {
                nbytes: size.nbytes,
                inline: size.inline.then(|| Bytes::from_static(b"value")),
                kept,
                class: Bytes::from_static(b"class"),
            },
            duration,
        });
    }

    /// Starts, ends and reports everything, until nothing moves.
    pub(crate) fn run(&mut self) {
        for _ in 0..100_000 {
            let workers: Vec<_> = self.nodes.keys().copied().collect();
            let mut any = false;
            for &worker in &workers {
                any |= self.start(worker);
                let running = self.nodes.get(&worker).map(|node| {
                    let running = node.running.iter();
                    running.map(|a| a.object.task).collect::<Vec<_>>()
                });
                for task in running.unwrap_or_default() {
                    self.end(task);
                    any = true;
                }
            }
            any |= self.deliver();
            if !any {
                return;
            }
        }
        panic!("the cluster does not come to rest");
    }

    /// All workers start what they can, and nothing ends.
    pub(crate) fn start_all(&mut self) {
        let workers: Vec<_> = self.nodes.keys().copied().collect();
        for worker in workers {
            self.start(worker);
        }
    }

    pub(crate) fn lose(&mut self, worker: u32) {
        let worker = WorkerId(worker);
        self.nodes.remove(&worker);
        self.event(Event::WorkerLost {
            worker,
            cause: Cause::Signal(9),
        });
    }

    pub(crate) fn unwant(&mut self, tasks: &[TaskId]) {
        self.event(Event::Unwant {
            client: C,
            tasks: tasks.to_vec(),
        });
    }

    pub(crate) fn report(&mut self, worker: u32, report: Report) {
        let worker = WorkerId(worker);
        self.event(Event::Report { worker, report });
    }

    pub(crate) fn tick_after(&mut self, time: Duration) {
        self.now += time;
        self.event(Event::Tick);
    }

    /// Nothing is left of any task: not here, and not at a worker.
    pub(crate) fn assert_empty(&self) {
        let left = self.scheduler.tasks().map(|t| (t.id(), t.state()));
        assert_eq!(left.collect::<Vec<_>>(), []);
        for worker in self.scheduler.workers() {
            assert_eq!(worker.bytes(), 0);
            assert_eq!(worker.held(), []);
            assert_eq!(worker.assigned_count(), 0);
            assert_eq!(worker.stopping().count(), 0);
        }
        for (worker, node) in &self.nodes {
            assert!(node.store.is_empty(), "{worker:?} keeps {:?}", node.store);
            assert!(node.queued.is_empty() && node.running.is_empty());
        }
    }

    /// How many commands of a kind were sent.
    pub(crate) fn count(&self, is_it: impl Fn(&Command) -> bool) -> usize {
        self.log
            .iter()
            .filter(|(_, command)| is_it(command))
            .count()
    }

    pub(crate) fn assigned(&self, task: TaskId) -> Vec<WorkerId> {
        let assigned = self.log.iter().filter(|(_, command)| match command {
            Command::Assign(assignment) => assignment.object.task == task,
            _ => false,
        });
        assigned.map(|&(worker, _)| worker).collect()
    }
}

pub(crate) fn profile(worker: u32, threads: u32) -> WorkerProfile {
    WorkerProfile {
        name: Symbol(worker),
        host: Symbol(1000 + worker),
        aliases: Vec::new(),
        threads,
        memory: 0,
        resources: Vec::new(),
    }
}

/// A batch of a submission. Readers are counted within it.
pub(crate) fn batch(
    client: ClientId,
    number: u32,
    last: bool,
    ids: &[TaskId],
    specs: Vec<Spec>,
    wanted: &[TaskId],
) -> Submission {
    let mut submission = Submission {
        client,
        number,
        last,
        tasks: ids.to_vec(),
        offsets: vec![0],
        wanted: wanted.to_vec(),
        ..Submission::default()
    };
    for (index, spec) in specs.into_iter().enumerate() {
        submission.inputs.extend(&spec.inputs);
        submission.offsets.push(submission.inputs.len() as u32);
        submission.ranks.push(spec.rank.unwrap_or(index as u32));
        submission.functions.push(Symbol(spec.function));
        submission.recipes.push(Bytes::from_static(b"recipe"));
        submission.options.push(index as u16);
        let mut options = spec.options;
        if let Some(constraint) = spec.constraint {
            submission.constraints.push(constraint);
            options.constraint = submission.constraints.len() as u32;
        }
        submission.option_sets.push(options);
    }
    let reads = |task: &&TaskId, of: &TaskId| *task == of;
    for id in ids {
        let readers = submission
            .inputs
            .iter()
            .filter(|task| reads(task, id))
            .count();
        submission.readers.push(readers as u32);
    }
    submission
}
