//! Random graphs and random events, against what must hold whatever happens: each wanted task ends
//! in memory or has failed for a reason that was given, and when all clients have left, nothing is
//! left.

use crate::cluster::*;
use proptest::prelude::*;
use treadle_scheduler::{Config, Event, Located, Notice, State};
use treadle_types::{Cause, ClientId, Report, Symbol, TaskId, WorkerId};

#[derive(Clone, Debug)]
enum Step {
    /// Tasks, each with the distances to its inputs among those before it, and its kind.
    Submit(Vec<(Vec<u8>, u8)>),
    Start(u8),
    End(u8),
    Raise(u8),
    Report(u8),
    Lose(u8),
    Join,
    Unwant(u8),
    Want(u8),
    Cancel(u8, bool),
    Retry(u8),
    Drain(u8),
    Pause(u8, bool),
    Secede(u8, bool),
    Gone(u8),
    Cut(u8, u8),
    Heal,
    Replicate(u8, u8),
    Move(u8, u8),
    Invalidate(u8),
    Discard(u8, u8),
    Locate(u8, u8),
    Put(u8),
    Tick(u8),
    LeaveAndCome,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let task = (prop::collection::vec(1u8..8, 0..4), any::<u8>());
    let step = prop_oneof![
        4 => prop::collection::vec(task, 1..12).prop_map(Step::Submit),
        12 => any::<u8>().prop_map(Step::Start),
        12 => any::<u8>().prop_map(Step::End),
        2 => any::<u8>().prop_map(Step::Raise),
        24 => any::<u8>().prop_map(Step::Report),
        2 => any::<u8>().prop_map(Step::Lose),
        2 => Just(Step::Join),
        2 => any::<u8>().prop_map(Step::Unwant),
        1 => any::<u8>().prop_map(Step::Want),
        1 => any::<(u8, bool)>().prop_map(|(t, f)| Step::Cancel(t, f)),
        1 => any::<u8>().prop_map(Step::Retry),
        1 => any::<u8>().prop_map(Step::Drain),
        2 => any::<(u8, bool)>().prop_map(|(w, p)| Step::Pause(w, p)),
        2 => any::<(u8, bool)>().prop_map(|(w, s)| Step::Secede(w, s)),
        1 => any::<u8>().prop_map(Step::Gone),
        1 => any::<(u8, u8)>().prop_map(|(a, b)| Step::Cut(a, b)),
        1 => Just(Step::Heal),
        1 => any::<(u8, u8)>().prop_map(|(t, n)| Step::Replicate(t, n)),
        1 => any::<(u8, u8)>().prop_map(|(t, w)| Step::Move(t, w)),
        1 => any::<u8>().prop_map(Step::Invalidate),
        1 => any::<(u8, u8)>().prop_map(|(a, b)| Step::Discard(a, b)),
        1 => any::<(u8, u8)>().prop_map(|(t, w)| Step::Locate(t, w)),
        1 => any::<u8>().prop_map(Step::Put),
        2 => any::<u8>().prop_map(Step::Tick),
        1 => Just(Step::LeaveAndCome),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..120)
}

struct Model {
    cluster: Cluster,
    tasks: Vec<TaskId>,
    client: u32,
    workers: u32,
}

impl Model {
    fn new(lineage: bool) -> Self {
        let config = Config {
            prefill_tasks: 8,
            lineage,
            ..Config::default()
        };
        let mut cluster = Cluster::with(config, 0, 0);
        for worker in 0..3 {
            cluster.join(worker, Self::profile(worker));
        }
        Self {
            cluster,
            tasks: Vec::new(),
            client: 0,
            workers: 3,
        }
    }

    fn profile(worker: u32) -> treadle_scheduler::WorkerProfile {
        let mut profile = profile(worker, 1 + worker % 2);
        profile.host = Symbol(1000 + worker % 2);
        profile.resources = vec![(Symbol(50), 1.0)];
        profile.memory = 40_000;
        profile
    }

    fn worker(&self, index: u8) -> Option<WorkerId> {
        let workers: Vec<_> = self.cluster.nodes.keys().copied().collect();
        let index = usize::from(index) % workers.len().max(1);
        workers.get(index).copied()
    }

    fn task(&self, index: u8) -> Option<TaskId> {
        let known: Vec<_> = self
            .tasks
            .iter()
            .copied()
            .filter(|&task| self.cluster.scheduler.task(task).is_some())
            .collect();
        let index = usize::from(index) % known.len().max(1);
        known.get(known.len().checked_sub(index + 1)?).copied()
    }

    fn running(&self, index: u8) -> Option<TaskId> {
        let node = self.cluster.nodes.get(&self.worker(index)?)?;
        node.running.first().map(|a| a.object.task)
    }

    fn me(&self) -> ClientId {
        ClientId(self.client)
    }

    fn step(&mut self, step: Step) {
        let client = self.me();
        match step {
            Step::Submit(specs) => self.submit(specs),
            Step::Start(worker) => {
                if let Some(worker) = self.worker(worker) {
                    self.cluster.start(worker);
                }
            }
            Step::End(worker) => {
                if let Some(task) = self.running(worker) {
                    self.cluster.end(task);
                }
            }
            Step::Raise(worker) => {
                if let Some(task) = self.running(worker) {
                    self.cluster.raise(task);
                }
            }
            Step::Report(worker) => {
                if let Some(worker) = self.worker(worker)
                    && let Some(node) = self.cluster.nodes.get_mut(&worker)
                    && let Some(report) = node.outbox.pop_front()
                {
                    self.cluster.event(Event::Report { worker, report });
                }
            }
            Step::Lose(worker) => {
                if let Some(worker) = self.worker(worker) {
                    self.cluster.lose(worker.0);
                }
            }
            Step::Join => self.join(),
            Step::Unwant(task) => {
                if let Some(task) = self.task(task) {
                    let tasks = vec![task];
                    self.cluster.event(Event::Unwant { client, tasks });
                }
            }
            Step::Want(task) => {
                if let Some(task) = self.task(task) {
                    let tasks = vec![task];
                    self.cluster.event(Event::Want { client, tasks });
                }
            }
            Step::Cancel(task, force) => {
                if let Some(task) = self.task(task) {
                    self.cluster.event(Event::Cancel {
                        client,
                        tasks: vec![task],
                        force,
                    });
                }
            }
            Step::Retry(task) => {
                if let Some(task) = self.task(task) {
                    let tasks = vec![task];
                    self.cluster.event(Event::Retry { client, tasks });
                }
            }
            Step::Drain(worker) => {
                if let Some(worker) = self.worker(worker)
                    && self.cluster.scheduler.worker(worker).is_some()
                {
                    self.cluster.event(Event::Drain(worker));
                }
            }
            Step::Pause(worker, paused) => {
                if let Some(worker) = self.worker(worker) {
                    self.pause(worker, paused);
                }
            }
            Step::Secede(worker, seceded) => {
                if let Some(worker) = self.worker(worker)
                    && let Some(node) = self.cluster.nodes.get_mut(&worker)
                    && let Some(assignment) = node.running.first()
                {
                    let object = assignment.object;
                    node.outbox.push_back(match seceded {
                        true => Report::Seceded(object),
                        false => Report::Rejoined(object),
                    });
                }
            }
            Step::Gone(worker) => {
                if let Some(worker) = self.worker(worker)
                    && let Some(node) = self.cluster.nodes.get_mut(&worker)
                    && let Some(&object) = node.store.first()
                    && !node
                        .queued
                        .iter()
                        .any(|a| a.inputs.iter().any(|i| i.object == object))
                {
                    node.store.remove(&object);
                    node.outbox.push_back(Report::Gone(object));
                }
            }
            Step::Cut(reader, holder) => {
                if let (Some(reader), Some(holder)) = (self.worker(reader), self.worker(holder)) {
                    self.cluster.cut.insert((reader, holder));
                }
            }
            Step::Heal => self.cluster.cut.clear(),
            Step::Replicate(task, copies) => {
                if let Some(task) = self.task(task) {
                    self.cluster.event(Event::Replicate {
                        tasks: vec![task],
                        copies: u32::from(copies % 4),
                        among: Vec::new(),
                    });
                }
            }
            Step::Move(task, to) => {
                if let (Some(task), Some(to)) = (self.task(task), self.worker(to))
                    && let Some(&from) = self.cluster.holders(task).first()
                    && self.cluster.scheduler.worker(to).is_some()
                {
                    self.cluster.event(Event::Move { task, from, to });
                }
            }
            Step::Invalidate(task) => {
                if let Some(task) = self.task(task) {
                    self.cluster.event(Event::Invalidate(vec![task]));
                }
            }
            Step::Discard(first, second) => {
                let tasks = [first, second].map(|task| self.task(task));
                let tasks = tasks.into_iter().flatten().collect();
                self.cluster.event(Event::Discard {
                    gone: Vec::new(),
                    derived: tasks,
                });
            }
            Step::Locate(task, worker) => {
                if let (Some(task), Some(worker)) = (self.task(task), self.worker(worker)) {
                    let located = Located {
                        task,
                        worker: (worker.0 % 3 != 0).then_some(worker),
                        nbytes: 100_000_000,
                    };
                    self.cluster.event(Event::Locate(vec![located]));
                }
            }
            Step::Put(worker) => self.put(worker),
            Step::Tick(millis) => {
                let time = std::time::Duration::from_millis(u64::from(millis) * 40);
                self.cluster.tick_after(time);
                self.answer();
            }
            Step::LeaveAndCome => {
                self.cluster.event(Event::ClientLeft(client));
                self.client += 1;
                self.cluster.event(Event::ClientJoined(self.me()));
            }
            Step::Restart => self.cluster.event(Event::Restart),
        }
    }

    fn join(&mut self) {
        let worker = self.workers;
        self.workers += 1;
        self.cluster.join(worker, Self::profile(worker));
    }

    fn pause(&mut self, worker: WorkerId, paused: bool) {
        let report = Report::Health {
            managed: 0,
            process: 0,
            spilled: 0,
            paused,
        };
        if let Some(node) = self.cluster.nodes.get_mut(&worker) {
            node.outbox.push_back(report);
        }
    }

    fn submit(&mut self, specs: Vec<(Vec<u8>, u8)>) {
        let mut ids: Vec<TaskId> = Vec::new();
        let mut built = Vec::new();
        let mut wanted = Vec::new();
        for (distances, kind) in specs {
            let id = self.cluster.scheduler.allocate();
            let mut inputs = Vec::new();
            for distance in distances {
                let own = ids.len().checked_sub(usize::from(distance));
                let input = match own.and_then(|index| ids.get(index)) {
                    Some(&input) => Some(input),
                    None => self.task(distance),
                };
                inputs.extend(input.filter(|input| !inputs.contains(input)));
            }
            let mut spec = reads(&inputs).function(u32::from(kind % 5));
            if kind % 16 == 3 {
                spec = spec.retries(1);
            }
            if kind % 16 == 4 {
                spec = spec.uses(50, 0.5);
            }
            if kind % 16 == 5 {
                spec = spec.on(&[u32::from(kind / 16) % 3]).or_others();
            }
            if kind % 64 == 6 {
                spec = spec.actor();
            }
            if kind % 8 < 2 {
                spec = spec.with_effects();
            }
            if kind % 2 == 0 {
                self.cluster.size(id, 5_000);
            } else {
                self.cluster.sizes.remove(&id);
            }
            if kind % 3 == 0 {
                wanted.push(id);
            }
            ids.push(id);
            built.push(spec);
        }
        // An actor's value is never small.
        for (&id, spec) in ids.iter().zip(&built) {
            if spec.options.actor {
                self.cluster.size(id, 100);
            }
        }
        let client = self.me();
        // With a second batch that never comes, or comes at once.
        let split = ids.len() / 2;
        let whole = batch(
            client,
            self.next_number(),
            true,
            &ids,
            built.clone(),
            &wanted,
        );
        let (early, late): (Vec<_>, Vec<_>) =
            wanted.iter().partition(|id| ids[..split].contains(id));
        let mut first = batch(
            client,
            whole.number,
            false,
            &ids[..split],
            built[..split].to_vec(),
            &early,
        );
        first.readers.clone_from_slice(&whole.readers[..split]);
        let mut second = batch(
            client,
            whole.number,
            true,
            &ids[split..],
            built[split..].to_vec(),
            &late,
        );
        second.readers.clone_from_slice(&whole.readers[split..]);
        self.cluster.event(Event::Submit(first));
        self.cluster.event(Event::Submit(second));
        self.tasks.extend(ids);
    }

    fn next_number(&mut self) -> u32 {
        self.tasks.len() as u32 + 1_000_000 * self.client
    }

    fn put(&mut self, worker: u8) {
        let Some(worker) = self.worker(worker) else {
            return;
        };
        let task = self.cluster.scheduler.allocate();
        self.cluster.event(Event::Put {
            client: self.me(),
            task,
            nbytes: 3_000,
            inline: None,
            class: bytes::Bytes::new(),
            holders: vec![worker],
            kept: task.0.is_multiple_of(2),
        });
        if let Some(view) = self.cluster.scheduler.task(task) {
            let object = view.object();
            if let Some(node) = self.cluster.nodes.get_mut(&worker) {
                node.store.insert(object);
            }
        }
        self.tasks.push(task);
    }

    /// Clients that were asked for values bring them, or cannot.
    fn answer(&mut self) {
        for (client, task) in std::mem::take(&mut self.cluster.asked) {
            if client != self.me() || self.cluster.scheduler.task(task).is_none() {
                continue;
            }
            let worker = self.worker(task.0 as u8);
            let Some(worker) = worker.filter(|_| !task.0.is_multiple_of(3)) else {
                let tasks = vec![task];
                self.cluster.event(Event::Unkept { client, tasks });
                continue;
            };
            self.cluster.event(Event::Put {
                client,
                task,
                nbytes: 3_000,
                inline: None,
                class: bytes::Bytes::new(),
                holders: Vec::new(),
                kept: true,
            });
            let object = self.cluster.scheduler.task(task).expect("it").object();
            let node = self.cluster.nodes.get_mut(&worker).expect("it");
            node.store.insert(object);
            let nbytes = 3_000;
            self.cluster
                .report(worker.0, Report::Stored { object, nbytes });
        }
    }

    fn is_done(&self) -> bool {
        let wanted = self.cluster.scheduler.wanted_by(self.me());
        let states = wanted.map(|task| self.cluster.state(task));
        let mut open = states.filter(|state| !matches!(state, State::Memory | State::Failed));
        open.next().is_none()
    }

    /// Workers that have nothing left that is needed end.
    fn leave_drained(&mut self) {
        for worker in std::mem::take(&mut self.cluster.drained) {
            self.cluster.nodes.remove(&worker);
            self.cluster.event(Event::WorkerLost {
                worker,
                cause: Cause::Drained,
            });
        }
    }

    /// Nothing goes wrong any more: everything that is wanted comes to an end.
    fn finish(&mut self) {
        self.cluster.cut.clear();
        for node in self.cluster.nodes.keys().copied().collect::<Vec<_>>() {
            self.pause(node, false);
        }
        for _ in 0..3 {
            self.join();
        }
        // Cuts take seconds to be forgotten, and some tasks meet several.
        for _ in 0..60 {
            self.cluster.run();
            self.leave_drained();
            self.answer();
            if self.is_done() {
                break;
            }
            self.cluster.tick_after(std::time::Duration::from_secs(1));
        }
        self.cluster.run();
        let client = self.me();
        let wanted: Vec<_> = self.cluster.scheduler.wanted_by(client).collect();
        for task in wanted {
            let state = self.cluster.state(task);
            let notice = self
                .cluster
                .notices
                .get(&(client, task))
                .and_then(|n| n.last());
            match state {
                State::Memory => assert!(
                    matches!(notice, Some(Notice::Finished { .. })),
                    "{task:?} is in memory, and its client heard {notice:?}"
                ),
                State::Failed => assert!(
                    matches!(notice, Some(Notice::Failed(_))),
                    "{task:?} has failed, and its client heard {notice:?}"
                ),
                state => panic!(
                    "{task:?} is {state:?}: {:#?}",
                    self.cluster.scheduler.story(task)
                ),
            }
        }
        self.cluster.event(Event::ClientLeft(client));
        self.cluster.run();
        self.cluster.assert_empty();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn everything_ends_and_nothing_is_left(lineage in any::<bool>(), steps in steps()) {
        let mut model = Model::new(lineage);
        for step in steps {
            model.step(step);
        }
        model.finish();
    }
}
