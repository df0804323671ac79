//! The invariants.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use treadle_guards::{InvariantError, ensure};
use treadle_types::{ClientId, TaskId, WorkerId};

use crate::Guard;
use crate::State;
use crate::client::OpenId;
use crate::copies::Purpose;
use crate::queue::{Queue, Queues};
use crate::scheduler::{Scheduler, state_of};
use crate::task::{Flags, Phase, QueueId, Task};
use crate::worker::{Load, Workers};

type Checked = Result<(), InvariantError>;

impl Scheduler {
    /// Verifies every invariant, by counting anew: in time proportional to all that is there.
    ///
    /// # Errors
    /// [`InvariantError`]: one does not hold, a bug of this crate.
    pub fn check(&self) -> Result<(), InvariantError> {
        let work = &self.work;
        ensure!(
            work.failing.is_empty()
                && work.unneeded.is_empty()
                && work.absent.is_empty()
                && work.ready.is_empty()
                && work.ahead.is_empty()
                && work.hungry.is_empty()
                && work.urgent.is_empty()
                && work.answered.is_empty(),
            "an event was not carried through"
        );
        self.check_tasks()?;
        self.check_queues()?;
        self.check_clients()?;
        self.check_workers()?;
        self.check_classes()?;
        for &id in self.trouble.keys() {
            ensure!(
                self.tasks.get(id).is_some(),
                "{id:?} is forgotten, its trouble is not"
            );
        }
        self.check_brought()?;
        self.check_performed()?;
        self.check_located()?;
        for &(id, to) in self.copies.pending.keys() {
            ensure!(
                self.workers.get(to).is_some(),
                "a copy of {id:?} is awaited at {to:?}, which is gone"
            );
        }
        Ok(())
    }

    fn check_brought(&self) -> Checked {
        let keepers = |id: TaskId| self.brought.kept.get(&id).map(|kept| &kept.clients);
        for (&id, coming) in &self.brought.coming {
            let bringers = &coming.clients;
            let bound = bringers.iter().all(|client| {
                let keeps = keepers(id).is_some_and(|keepers| keepers.contains(client));
                keeps || self.tasks[id].wanted.contains(client)
            });
            ensure!(
                self.is_coming(id) && !bringers.is_empty() && bound,
                "{bringers:?} are to bring {id:?}, and do not want it, nor keep it, or it is there"
            );
        }
        for (id, _) in self.tasks.iter().filter(|(id, _)| self.is_coming(*id)) {
            ensure!(
                self.brought.coming.contains_key(&id),
                "{id:?} is to come, and nobody brings it"
            );
        }
        for (&id, kept) in &self.brought.kept {
            let is_put = self.tasks.get(id).map(|task| task.flags.has(Flags::PUT));
            let there = |client: &ClientId| self.clients.get(*client).is_some();
            ensure!(
                is_put == Some(true) && !kept.clients.is_empty() && kept.clients.iter().all(there),
                "{:?} are said to keep {id:?}, which is forgotten or computed, or have left",
                kept.clients
            );
            ensure!(
                self.tasks[id].phase != Phase::Failed || !Guard::Keeping.holds(),
                "{id:?} has failed, and {:?} keep it",
                kept.clients
            );
        }
        Ok(())
    }

    fn check_located(&self) -> Checked {
        let located = self.tasks.iter();
        let located = located.filter(|(_, task)| task.flags.has(Flags::LOCATED));
        let mut count = 0;
        for (id, _) in located {
            ensure!(
                self.located.contains_key(&id),
                "{id:?} reads something, and it is not known where"
            );
            count += 1;
        }
        ensure!(
            count == self.located.len(),
            "{count} tasks read something that is no value, counted as {}",
            self.located.len()
        );
        Ok(())
    }

    fn check_performed(&self) -> Checked {
        let mut count = 0;
        for (id, task) in self.tasks.iter() {
            let has_effects = task.flags.has(Flags::EFFECTS);
            let is_derived = task.flags.has(Flags::DERIVED);
            let mut inputs = task.inputs.iter().map(|edge| self.tasks[edge.task].flags);
            ensure!(
                is_derived
                    || !inputs.any(|input| input.has(Flags::EFFECTS | Flags::DERIVED))
                    || !Guard::Derived.holds(),
                "{id:?} reads what a task with effects did, and does not know"
            );
            let Phase::Memory { inline, .. } = task.phase else {
                continue;
            };
            if !(has_effects || is_derived && inline) {
                continue;
            }
            count += 1;
            ensure!(
                !inline || task.is_needed() || !self.has_performed_in_vain(id),
                "{id:?} has effects that nobody needs, and was not let go"
            );
            let performed = self.performed.get(&id);
            ensure!(
                performed.is_some_and(|performed| performed.recipe.is_some() == inline),
                "{id:?} has a value, and not both of its recipe and that: {performed:?}"
            );
            if !has_effects || self.lasting.contains(&id) {
                continue;
            }
            let runner = performed.map(|performed| performed.worker);
            let is_there = runner.is_some_and(|worker| self.workers.get(worker).is_some());
            ensure!(
                is_there || !Guard::Effects.holds(),
                "{id:?} has effects and a value, and {runner:?}, which ran it, is gone"
            );
        }
        ensure!(
            count == self.performed.len(),
            "{count} tasks with a value keep what led to it, counted as {}",
            self.performed.len()
        );
        Ok(())
    }

    fn check_tasks(&self) -> Checked {
        let mut counts = [0; State::ALL.len()];
        let mut groups = vec![[0; State::ALL.len()]; self.groups.counts().len()];
        for index in 0..self.tasks.len() {
            let id = TaskId(index as u32);
            let task = &self.tasks[id];
            if !task.exists() {
                ensure!(
                    task.inputs.is_empty()
                        && task.dependents.is_empty()
                        && task.holders.is_empty()
                        && task.wanted.is_empty()
                        && task.readers == 0
                        && task.unsent == 0,
                    "{id:?} is forgotten and not empty"
                );
                continue;
            }
            counts[state_of(task.phase) as usize] += 1;
            groups[usize::from(self.groups.of(id))][state_of(task.phase) as usize] += 1;
            self.check_edges(id, task)?;
            self.check_phase(id, task).map_err(|what| {
                InvariantError::new(format_args!("{id:?} is {:?}: {what}", task.phase))
            })?;
        }
        for state in State::ALL {
            ensure!(
                state == State::Forgotten || counts[state as usize] == self.counts[state as usize],
                "{} tasks are {}, counted as {}",
                counts[state as usize],
                state.name(),
                self.counts[state as usize]
            );
        }
        for (group, (own, counted)) in groups.iter().zip(self.groups.counts()).enumerate() {
            let known = |state: &State| *state != State::Forgotten;
            for state in State::ALL.into_iter().filter(known) {
                ensure!(
                    own[state as usize] == counted[state as usize],
                    "{} tasks of group {group} are {}, counted as {}",
                    own[state as usize],
                    state.name(),
                    counted[state as usize]
                );
            }
        }
        Ok(())
    }

    fn check_edges(&self, id: TaskId, task: &Task) -> Checked {
        for (index, edge) in task.inputs.iter().enumerate() {
            let input = &self.tasks[edge.task];
            let back = input.dependents.get(edge.slot as usize);
            ensure!(
                input.exists() && back.is_some_and(|b| b.task == id && b.slot == index as u32),
                "{id:?} reads {:?}, which does not know",
                edge.task
            );
        }
        let mut readers = 0;
        for (index, edge) in task.dependents.iter().enumerate() {
            let dependent = &self.tasks[edge.task];
            let back = dependent.inputs.get(edge.slot as usize);
            ensure!(
                dependent.exists() && back.is_some_and(|b| b.task == id && b.slot == index as u32),
                "{:?} is a dependent of {id:?} and does not know",
                edge.task
            );
            readers += u32::from(dependent.phase.is_active());
        }
        ensure!(
            readers == task.readers,
            "{id:?} has {readers} readers, counted as {}",
            task.readers
        );
        Ok(())
    }

    fn check_phase(&self, id: TaskId, task: &Task) -> Checked {
        let needed = task.is_needed();
        ensure!(
            needed || !task.dependents.is_empty(),
            "nobody can refer to it"
        );
        let inputs = || task.inputs.iter().map(|edge| &self.tasks[edge.task]);
        let without = inputs().filter(|input| !matches!(input.phase, Phase::Memory { .. }));
        let without = without.count() as u32;
        let failed = inputs().any(|input| input.phase == Phase::Failed);
        if task.phase.is_active() {
            ensure!(needed, "nobody needs it");
            ensure!(
                task.missing == without,
                "it misses {without} inputs, counted as {}",
                task.missing
            );
            ensure!(!failed || task.phase.run().is_some(), "an input has failed");
            let coming = matches!(task.phase, Phase::Waiting { .. }) && task.flags.has(Flags::LOST);
            ensure!(!task.flags.has(Flags::PUT) || coming, "no task computes it");
        }
        match task.phase {
            Phase::Vacant | Phase::Allocated => {}
            Phase::Released => {
                ensure!(!needed, "it is needed");
            }
            Phase::Waiting { near, here } => {
                ensure!(
                    without > 0 || task.flags.has(Flags::PUT),
                    "it waits for nothing"
                );
                let there = inputs().filter(|input| {
                    let run = input.phase.run();
                    input.flags.has(Flags::KEEP) && run.is_some_and(|run| run.worker == near)
                });
                let there = there.count() as u32;
                ensure!(here <= there, "{there} inputs are on their way at {near:?}");
            }
            Phase::Ready(queue) => {
                ensure!(without == 0, "it misses {without} inputs");
                let served = match queue {
                    QueueId::Own(worker) => self.workers.get(worker).is_some(),
                    QueueId::Class(class) => class == task.class,
                    QueueId::Common => task.class == crate::class::ClassId::NONE,
                    QueueId::Parked => self.parked.contains(&id),
                };
                ensure!(served, "its queue is not served, or not for it");
            }
            Phase::Assigned(run) | Phase::Retracting { run, .. } => {
                let at = self.workers.get(run.worker);
                let object = self.tasks.object(id);
                ensure!(
                    at.is_some_and(|at| at.sent.contains(&object)),
                    "its worker does not have it"
                );
                ensure!(
                    !task.flags.has(Flags::AHEAD) || without > 0,
                    "it is ahead of nothing"
                );
            }
            Phase::Memory { inline, .. } => {
                ensure!(inline || !task.holders.is_empty(), "nobody has the value");
                ensure!(
                    needed || inline || task.flags.has(Flags::PUT),
                    "nobody needs the value"
                );
                for holder in &task.holders {
                    let at = self.workers.get(holder.worker);
                    let held = at.and_then(|at| at.held.get(holder.slot as usize));
                    ensure!(
                        held == Some(&id),
                        "{:?} does not know that it has the value",
                        holder.worker
                    );
                }
            }
            Phase::Failed => ensure!(task.failure().is_some(), "nobody knows why"),
        }
        if !matches!(task.phase, Phase::Memory { .. }) {
            ensure!(task.holders.is_empty(), "it has holders without a value");
        }
        if task.phase.run().is_none() {
            ensure!(
                !task.flags.has(Flags::OF_RUN),
                "it is marked as if at a worker"
            );
        }
        Ok(())
    }

    fn check_queues(&self) -> Checked {
        let mut waiting: BTreeMap<(u8, u32, bool), usize> = BTreeMap::new();
        let key = |queue: QueueId| match queue {
            QueueId::Common => (0, 0),
            QueueId::Own(worker) => (1, worker.0),
            QueueId::Class(class) => (2, class.0),
            QueueId::Parked => (3, 0),
        };
        for (id, task) in self.tasks.iter() {
            let Phase::Ready(queue) = task.phase else {
                continue;
            };
            let creators = task.flags.has(Flags::CREATOR);
            let (kind, number) = key(queue);
            *waiting.entry((kind, number, creators)).or_default() += 1;
            let queues = match queue {
                QueueId::Common => Some(&self.common),
                QueueId::Own(worker) => self.workers.get(worker).map(|at| &at.own),
                QueueId::Class(class) => self.classes.get(class).map(|class| &class.queue),
                QueueId::Parked => continue,
            };
            let listed = queues.is_some_and(|queues| {
                let queue = match creators {
                    true => &queues.creators,
                    false => &queues.readers,
                };
                queue
                    .iter()
                    .any(|e| e.task == id && e.priority == task.priority)
            });
            ensure!(listed, "{id:?} is not in its queue {queue:?}");
        }
        let check = |queues: &Queues, queue: QueueId| -> Checked {
            let (kind, number) = key(queue);
            let both: [(&Queue, bool); 2] = [(&queues.readers, false), (&queues.creators, true)];
            for (of, creators) in both {
                let count = waiting.get(&(kind, number, creators)).copied();
                ensure!(
                    count.unwrap_or(0) == of.len(),
                    "{queue:?} counts {} tasks, and has {count:?}",
                    of.len()
                );
            }
            Ok(())
        };
        check(&self.common, QueueId::Common)?;
        for (worker, at) in self.workers.iter() {
            check(&at.own, QueueId::Own(worker))?;
        }
        for (id, class) in self.classes.iter() {
            check(&class.queue, QueueId::Class(id))?;
        }
        ensure!(
            self.common.readers.is_empty() || self.workers.open.lowest().is_none(),
            "tasks wait although a worker has room"
        );
        ensure!(
            self.common.creators.is_empty() || self.workers.roomy.lowest().is_none(),
            "tasks wait although a worker has room and memory"
        );
        ensure!(
            self.common.creators.is_empty() || self.workers.relieved.lowest().is_none(),
            "tasks wait although a worker that is full may have one"
        );
        Ok(())
    }

    fn check_clients(&self) -> Checked {
        for (id, task) in self.tasks.iter() {
            for &client in &task.wanted {
                let wants = self
                    .clients
                    .get(client)
                    .is_some_and(|c| c.wants.contains(id));
                ensure!(wants, "{client:?} does not know that it wants {id:?}");
            }
            if task.unsent > 0 {
                let open = self.clients.open(task.open);
                ensure!(
                    open.is_some_and(|open| open.tasks.contains(&id)),
                    "{id:?} waits for readers of a submission that is over"
                );
            } else {
                ensure!(
                    task.open == OpenId::NONE,
                    "{id:?} waits for no readers of a submission"
                );
            }
            let shared = self
                .clients
                .submissions()
                .any(|(_, open)| open.shared.contains_key(&id));
            ensure!(
                shared == task.flags.has(Flags::MORE_UNSENT),
                "{id:?} and the submissions disagree about readers to come"
            );
        }
        for (client, entry) in self.clients.iter() {
            for id in entry.wants.iter() {
                let wanted = self.tasks.get(id).map(|task| &task.wanted);
                ensure!(
                    wanted.is_some_and(|wanted| wanted.contains(&client)),
                    "{client:?} wants {id:?}, which does not know"
                );
            }
        }
        Ok(())
    }

    fn check_workers(&self) -> Checked {
        let mut runnable = 0;
        let (mut incoming, mut at_worker) = (BTreeMap::new(), BTreeMap::new());
        for (id, task) in self.tasks.iter() {
            if let Phase::Retracting { thief, .. } = task.phase {
                *incoming.entry(thief).or_insert(0) += 1;
            }
            if let Some(run) = task.phase.run() {
                at_worker
                    .entry(run.worker)
                    .or_insert_with(Vec::new)
                    .push(id);
            }
        }
        for (id, at) in self.workers.iter() {
            let present = at_worker.remove(&id).unwrap_or_default();
            self.check_load(id, &present)
                .map_err(|what| InvariantError::new(format_args!("{id:?}: {what}")))?;
            runnable += u64::from(at.runnable);
            let incoming = incoming.get(&id).copied().unwrap_or(0);
            ensure!(
                at.incoming == incoming,
                "{incoming} tasks are asked back for {id:?}, counted as {}",
                at.incoming
            );
            let copies = self.copies.pending.values();
            let copies = copies
                .filter(|copy| copy.purpose == Purpose::Drain(id))
                .count();
            ensure!(
                at.drain.is_none_or(|drain| drain.copies as usize == copies),
                "{copies} copies are made for {id:?}, which leaves, and counted otherwise"
            );
            let bytes: u64 = at.held.iter().map(|&held| self.tasks[held].nbytes()).sum();
            ensure!(
                bytes == at.bytes,
                "{id:?} has {bytes} bytes, counted as {}",
                at.bytes
            );
            for &held in &at.held {
                ensure!(
                    self.tasks[held].is_at(id),
                    "{id:?} has {held:?}, which does not know"
                );
            }
            let levels = [
                self.workers.open.level(id),
                self.workers.roomy.level(id),
                self.workers.relieved.level(id),
                self.workers.loaded.level(id),
                self.workers.queued.level(id),
            ];
            ensure!(
                levels == Workers::levels_of(at, &self.config),
                "{id:?} is at levels {levels:?}, and should be at {:?}",
                Workers::levels_of(at, &self.config)
            );
            ensure!(
                self.workers.hosts[at.host].open.level(id) == levels[0],
                "{id:?} is at another level at its host"
            );
        }
        ensure!(at_worker.is_empty(), "tasks are at workers that are gone");
        ensure!(
            runnable == self.workers.runnable,
            "{runnable} tasks are runnable, counted as {}",
            self.workers.runnable
        );
        let running = self.workers.iter().filter(|(_, at)| at.is_running());
        let threads: u64 = running.map(|(_, at)| u64::from(at.profile.threads)).sum();
        ensure!(threads == self.workers.threads, "slots are counted wrong");
        let stopped = self.workers.iter().filter(|(_, at)| !at.is_running());
        ensure!(
            stopped.count() == self.workers.stopped,
            "workers without tasks are counted wrong"
        );
        Ok(())
    }

    fn check_load(&self, id: WorkerId, present: &[TaskId]) -> Checked {
        let Some(at) = self.workers.get(id) else {
            return Ok(());
        };
        let (mut loads, mut busy, mut expected) = ([0u32; 3], [0u64; 3], 0u64);
        let mut used: BTreeMap<_, f64> = BTreeMap::new();
        let mut count = |load: Load, estimate: u32, output: u32, class| {
            loads[load as usize] += 1;
            busy[load as usize] += u64::from(estimate);
            expected += u64::from(output) * 1024;
            if let Some(class) = self.classes.get(class) {
                for &(resource, amount) in &class.constraint.resources {
                    *used.entry(resource).or_default() += amount;
                }
            }
        };
        for &task in present {
            let entry = &self.tasks[task];
            if let Some(run) = entry.phase.run() {
                let load = entry.load();
                count(load, run.estimate, run.output, entry.class);
            }
        }
        for what in at.stopping.values() {
            count(what.load, what.estimate, what.output, what.class);
        }
        ensure!(
            loads == [at.runnable, at.ahead, at.seceded],
            "its loads are {loads:?}, counted as {:?}",
            [at.runnable, at.ahead, at.seceded]
        );
        ensure!(
            busy[0] == at.busy && busy[1] == at.busy_ahead && expected == at.expected,
            "its work is counted wrong"
        );
        for (resource, amount) in at.used() {
            let sum = used.get(&resource).copied().unwrap_or(0.0);
            ensure!(
                (sum - amount).abs() < 1e-6,
                "{sum} of {resource:?} is in use, counted as {amount}"
            );
            ensure!(
                !Guard::Cancellation.holds() || at.offered || amount <= at.total(resource) + 1e-6,
                "more of {resource:?} is in use than there is"
            );
        }
        Ok(())
    }

    fn check_classes(&self) -> Checked {
        for (id, class) in self.classes.iter() {
            let tasks = self.tasks.iter().filter(|(_, task)| task.class == id);
            let stopping = self.workers.iter().flat_map(|(_, at)| at.stopping.values());
            let stopping = stopping.filter(|what| what.class == id);
            ensure!(
                (tasks.count() + stopping.count()) as u32 == class.tasks,
                "{id:?} has another number of tasks than {}",
                class.tasks
            );
            for (worker, at) in self.workers.iter() {
                ensure!(
                    class.admits(worker) == at.classes.contains(&id),
                    "{worker:?} and {id:?} disagree whether it is eligible"
                );
                let level = self
                    .workers
                    .open
                    .level(worker)
                    .filter(|_| class.admits(worker));
                ensure!(
                    class.open.level(worker) == level,
                    "{worker:?} is at another level in {id:?}"
                );
            }
        }
        Ok(())
    }
}
