//! The master of the shuffle plane, beside the core: what happens to tasks and workers concerns both,
//! in the same step. See `docs/internals/shuffle.md`.
//!
//! A shuffle begins with its [`Registration`], which comes before the tasks of its submission: some of
//! its transfers may run before its barrier has come. It ends when nobody needs its barrier any more. If
//! somebody does later, it begins anew, under another number.

mod elsewhere;
mod hosted;
mod records;
mod registry;

use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use treadle_messages::{Batch, Registration, ToWorker};
use treadle_scheduler::{Event, Submission};
use treadle_shuffle::{MasterEffect, MasterEvent, Plan, ShuffleId, ToMaster, ToNode};
use treadle_types::{Cause, ClientId, Runs, TaskId, Value, WorkerId};

use crate::effect::Effect;
use crate::operations::{Arguments, dict, int};
use crate::state::{Broken, Core};
pub use records::EndedShuffle;
use records::Records;
use registry::{Ended, Name, Registry, Role};

/// The shuffles that there are.
#[derive(Debug, Default)]
pub(crate) struct Shuffles {
    registry: Registry,
    /// Whether effects of the master are being carried out.
    is_acting: bool,
    moved: Moved,
    records: Records,
}

/// What transfers have moved since the start, with those that ran again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// Transfers that have ended well.
    pub transfers: u64,
    /// Their rows.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
}

/// Tasks of shuffles that a batch brings.
pub(crate) type Brought = Vec<(Name, Role, TaskId)>;

impl Shuffles {
    /// Whether a task is the barrier of one.
    #[inline]
    pub(crate) fn has_barrier(&self, task: TaskId) -> bool {
        self.registry.has_barrier(task)
    }

    /// The tasks of shuffles among those of a batch. The submission says where they read.
    pub(crate) fn brought(
        &mut self,
        client: ClientId,
        batch: &Batch,
        submission: &mut Submission,
    ) -> Brought {
        let brought = self.registry.brought(client, batch, &submission.tasks);
        let located = brought.iter().filter_map(|(name, role, task)| match role {
            Role::Barrier => None,
            Role::Reader(partition) => {
                let known = self.registry.get(name)?;
                Some(self.registry.locate(known, *task, *partition))
            }
        });
        submission.located.extend(located);
        brought
    }
}

impl Core {
    /// A client is to submit a shuffle.
    pub(crate) fn register_shuffle(
        &mut self,
        client: ClientId,
        registration: Registration,
    ) -> Result<(), Broken> {
        let called = self.clients.get(client).map(|node| node.name.clone());
        let Shuffles {
            registry, records, ..
        } = &mut self.shuffles;
        registry.register(client, called, registration, (self.now, records))
    }

    /// A batch is with the core, and the tasks of shuffles that it [brought](Shuffles::brought).
    pub(crate) fn shuffles_came(
        &mut self,
        client: ClientId,
        batch: &Batch,
        brought: Brought,
    ) -> Result<(), Broken> {
        for (name, role, task) in brought {
            let Some(view) = self.scheduler.task(task) else {
                // It was to read something that is gone.
                if matches!(role, Role::Barrier) {
                    self.forget_unneeded(&name);
                }
                continue;
            };
            let inputs = view.inputs().count();
            self.shuffles.registry.came(&name, role, task);
            match role {
                Role::Barrier => self.barrier_came(&name, inputs)?,
                Role::Reader(_) => self.reader_came(&name, task),
            }
        }
        if batch.last {
            self.shuffles_missed(client, Some(batch.number));
        }
        Ok(())
    }

    fn barrier_came(&mut self, name: &Name, inputs: usize) -> Result<(), Broken> {
        let Some(known) = self.shuffles.registry.get_mut(name) else {
            return Ok(());
        };
        if inputs != known.maps as usize {
            return Err(Broken::new(format!(
                "the barrier of the shuffle {name} has {inputs} inputs, and is registered with {}",
                known.maps
            )));
        }
        let gone = mem::take(&mut known.gone);
        if !gone.is_empty() {
            self.invalidate_maps(name, &gone, false);
        }
        Ok(())
    }

    fn reader_came(&mut self, name: &Name, task: TaskId) {
        let registry = &self.shuffles.registry;
        let is_known = registry.get(name).is_some_and(|known| known.key.is_some());
        let key = (!is_known).then(|| self.collection_of(task)).flatten();
        if let Some(known) = self.shuffles.registry.get_mut(name) {
            known.key = known.key.take().or(key);
            if let Some(number) = known.number {
                let readers = known.readers.len() as u64;
                let records = &mut self.shuffles.records;
                records.read_by(number, readers, known.key.clone());
            }
        }
    }

    /// A submission has ended; or, without its number, its client is gone. Barriers that it has not
    /// brought do not come any more.
    pub(crate) fn shuffles_missed(&mut self, client: ClientId, submission: Option<u32>) {
        for name in self.shuffles.registry.missed(client, submission) {
            self.forget_unneeded(&name);
        }
    }

    /// A task is forgotten. If it is a barrier, nobody can read what was shuffled any more.
    pub(crate) fn barrier_forgotten(&mut self, barrier: TaskId) {
        if let Some(name) = self.shuffles.registry.forget_barrier(barrier) {
            self.forget_unneeded(&name);
        }
    }

    /// The effects of a task are not needed. If it is a barrier, what was shuffled can go.
    pub(crate) fn barrier_let_go(&mut self, barrier: TaskId) {
        let registry = &mut self.shuffles.registry;
        if let Some(name) = registry.of_barrier(barrier)
            && let Some(ended) = registry.end(&name)
        {
            self.shuffle_over(ended);
        }
    }

    fn forget_unneeded(&mut self, name: &Name) {
        if let Some(ended) = self.shuffles.registry.forget_unneeded(name) {
            self.shuffle_over(ended);
        }
    }

    fn shuffle_over(&mut self, ended: Ended) {
        self.tell_master(MasterEvent::End(ended.number));
        self.over_elsewhere(ended);
    }

    /// What a worker has to know of a shuffle, if there is one of this name: its number, how many
    /// inputs it has, what the client says of it, how many partitions it has, the service that keeps its
    /// rows, if workers do not, the outputs that somebody reads (ranges), and whether it has ended before.
    pub(crate) fn about_shuffle(&mut self, name: Option<&str>) -> Value {
        let Some(name) = name else {
            return Value::None;
        };
        let Shuffles {
            registry, records, ..
        } = &mut self.shuffles;
        match registry.begin_anew(name, self.now, records) {
            Ok(false) => {}
            // Transfers whose values somebody keeps have pushed their rows to the one that ended.
            Ok(true) => self.invalidate_maps(name, &Runs::range(0, u64::from(u32::MAX)), false),
            Err(error) => self.out.push(Effect::Fault(error.to_string())),
        }
        let known = self.shuffles.registry.get(name);
        let known = known.and_then(|known| Some((known.number?, known)));
        known.map_or(Value::None, |(number, known)| {
            Value::Tuple(vec![
                int(number.0),
                int(known.maps),
                Value::Bytes(known.spec.to_vec()),
                int(known.partitions),
                known.service.clone().map_or(Value::None, Value::Str),
                hosted::ranges(&known.outputs),
                Value::Bool(known.has_ended),
            ])
        })
    }

    /// How many shuffles there are, and how many there were since the start.
    pub fn shuffle_counts(&self) -> (usize, u64) {
        let registry = &self.shuffles.registry;
        (registry.master.shuffles().count(), registry.last)
    }

    /// The numbers and names of the shuffles that run and have begun after one.
    pub fn shuffles_since(&self, number: u64) -> impl Iterator<Item = (u64, &str)> {
        let begun = self.shuffles.registry.begun_since(ShuffleId(number));
        begun.map(|(number, name)| (number.0, &**name))
    }

    /// What transfers have moved since the start, with those that ran again.
    pub fn moved(&self) -> Moved {
        self.shuffles.moved
    }

    /// How far each shuffle is, in the order in which they began: all, or those that some keys are
    /// computed from.
    pub(crate) fn list_shuffles(&self, arguments: &Arguments) -> Value {
        let registry = &self.shuffles.registry;
        let among = arguments.keys().map(|keys| {
            let tasks = self.upstream(keys.iter().filter_map(|key| self.task_of(key)).collect());
            let barriers = tasks
                .into_iter()
                .filter_map(|task| registry.of_barrier(task));
            barriers.collect::<BTreeSet<Name>>()
        });
        let of_shuffle = |shuffle: ShuffleId| {
            let name = registry.name(shuffle)?;
            if among.as_ref().is_some_and(|among| !among.contains(&name)) {
                return None;
            }
            let progress = registry.master.progress(shuffle)?;
            let expected = match registry.master.committed(shuffle) {
                Some(tally) if progress.is_committed => tally.bytes.max(progress.tally.bytes),
                _ => progress.expected_bytes(),
            };
            Some(dict([
                ("name", Value::Str((*name).to_owned())),
                ("number", int(shuffle.0)),
                ("generation", int(progress.generation.0)),
                ("inputs", int(progress.maps)),
                ("transferred", int(progress.transferred)),
                ("partitions", int(progress.partitions)),
                ("outputs", int(progress.outputs)),
                ("complete", Value::Bool(progress.is_committed)),
                ("rows", int(progress.tally.rows)),
                ("bytes", int(progress.tally.bytes)),
                ("expected_bytes", int(expected)),
            ]))
        };
        let all = registry.master.shuffles().filter_map(of_shuffle);
        Value::List(all.collect())
    }

    /// A worker has joined.
    pub(crate) fn server_joined(&mut self, worker: WorkerId) {
        self.tell_master(MasterEvent::Joined(worker.into()));
    }

    /// A worker is to leave.
    pub(crate) fn server_leaves(&mut self, worker: WorkerId) {
        self.tell_master(MasterEvent::Draining(worker.into()));
    }

    /// A worker is gone, as the core knows.
    pub(crate) fn server_lost(&mut self, worker: WorkerId, cause: &Cause) {
        self.shuffles.records.lost(worker, cause);
        self.tell_master(MasterEvent::Lost(worker.into()));
    }

    /// A worker says something.
    pub(crate) fn message_to_master(&mut self, worker: WorkerId, message: ToMaster) {
        if let ToMaster::Transferred { tally, .. } = &message {
            let moved = &mut self.shuffles.moved;
            moved.transfers += 1;
            moved.rows = moved.rows.saturating_add(tally.rows);
            moved.bytes = moved.bytes.saturating_add(tally.bytes);
        }
        let from = worker.into();
        self.tell_master(MasterEvent::Message { from, message });
    }

    /// Hands the master an event. What follows is done in order, also if more events follow from it.
    fn tell_master(&mut self, event: MasterEvent) {
        self.shuffles.records.recorder.saw(self.now, &event);
        let registry = &mut self.shuffles.registry;
        if let Err(error) = registry.master.handle(event, &mut registry.effects) {
            self.out.push(Effect::Fault(error.to_string()));
        }
        if mem::replace(&mut self.shuffles.is_acting, true) {
            return;
        }
        while !self.shuffles.registry.effects.is_empty() {
            for effect in mem::take(&mut self.shuffles.registry.effects) {
                self.shuffles.records.recorder.follows(self.now, &effect);
                self.act_for_master(effect);
            }
        }
        self.shuffles.is_acting = false;
        self.look_after_records();
    }

    fn act_for_master(&mut self, effect: MasterEffect) {
        match effect {
            MasterEffect::Send { to, message } => self.tell_node(WorkerId(to.node), message),
            MasterEffect::Invalidate {
                shuffle,
                maps,
                outputs,
            } => {
                if let Some(name) = self.shuffles.registry.name(shuffle) {
                    self.invalidate_maps(&name, &maps, outputs);
                }
            }
            MasterEffect::NotDeterministic { shuffle, map } => {
                let name = self.shuffles.registry.name(shuffle);
                let name = name.as_deref().unwrap_or_default();
                let which = map.map_or_else(String::new, |map| format!(" (number {map})"));
                self.out.push(Effect::Warn(format!(
                    "an input of the shuffle {name}{which} has other rows than when it ran before: \
                     all of it runs again"
                )));
            }
            // What it holds is made again elsewhere when it has left.
            MasterEffect::Drained(_) => {}
        }
    }

    /// Tells a worker what the master says. It knows the addresses of the servers by then.
    fn tell_node(&mut self, worker: WorkerId, message: ToNode) {
        match &message {
            ToNode::Plan(plan) => {
                let groups = plan.groups.iter();
                let servers = groups.map(|group| WorkerId(group.id.server.node));
                let servers: Vec<WorkerId> = servers.filter(|other| *other != worker).collect();
                self.introduce(worker, &servers);
                let addresses = servers.iter().chain([&worker]).filter_map(|server| {
                    let node = self.workers.get(*server)?;
                    Some((*server, node.address.clone()))
                });
                let holders = plan.groups.iter().flat_map(|group| group.holders());
                let holders: BTreeSet<WorkerId> =
                    holders.map(|server| WorkerId(server.node)).collect();
                let addresses = addresses.filter(|(server, _)| holders.contains(server));
                self.shuffles.records.held_at(plan.shuffle, addresses);
                self.locate_planned(plan);
            }
            ToNode::Committed {
                shuffle,
                result: Ok(_),
                ..
            } => {
                // Now it is known how many bytes there are.
                if let Some(name) = self.shuffles.registry.name(*shuffle) {
                    self.locate(&name);
                }
            }
            _ => {}
        }
        self.tell_worker(worker, ToWorker::ToNode(message));
    }

    /// The core is told of a plan once.
    fn locate_planned(&mut self, plan: &Plan) {
        let registry = &mut self.shuffles.registry;
        if let Some(name) = registry.name(plan.shuffle)
            && let Some(known) = registry.get_mut(&name)
            && known.located.replace(plan.generation) != Some(plan.generation)
        {
            self.locate(&name);
        }
    }

    /// The core is told where the readers of a shuffle read.
    fn locate(&mut self, name: &Name) {
        let registry = &self.shuffles.registry;
        let Some(known) = registry.get(name) else {
            return;
        };
        let reads_it = |reader: TaskId| {
            let view = self.scheduler.task(reader);
            view.is_some_and(|view| view.inputs().any(|input| Some(input) == known.barrier))
        };
        // An id may have another meaning by now.
        let readers = known
            .readers
            .iter()
            .filter(|&(&reader, _)| reads_it(reader));
        let located = readers.map(|(&task, &partition)| registry.locate(known, task, partition));
        let located = located.collect();
        self.feed_own(Event::Locate(located));
    }

    /// What these maps did is gone, as the core is told: their transfers, the barrier, and, if
    /// `outputs` is set, what was read and all that was computed from it.
    fn invalidate_maps(&mut self, name: &str, maps: &Runs, outputs: bool) {
        let Some(known) = self.shuffles.registry.get_mut(name) else {
            return;
        };
        let barrier = known.barrier;
        let Some((barrier, view)) = barrier.and_then(|it| Some((it, self.scheduler.task(it)?)))
        else {
            known.gone = known.gone.union(maps);
            return;
        };
        let transfers = (0..).zip(view.inputs());
        let transfers = transfers.filter(|&(map, _)| maps.contains(map));
        let mut tasks: Vec<TaskId> = transfers.map(|(_, task)| task).collect();
        tasks.push(barrier);
        let derived = outputs.then(|| self.downstream(vec![barrier]));
        self.feed_own(match derived {
            Some(derived) => Event::Discard {
                gone: tasks,
                derived,
            },
            None => Event::Invalidate(tasks),
        });
    }

    /// Some tasks, and all that they are computed from.
    pub(crate) fn upstream(&self, tasks: Vec<TaskId>) -> BTreeSet<TaskId> {
        let mut found = BTreeSet::new();
        let mut next = tasks;
        while let Some(task) = next.pop() {
            if found.insert(task)
                && let Some(view) = self.scheduler.task(task)
            {
                next.extend(view.inputs());
            }
        }
        found
    }

    /// All tasks that were computed from the values of some, or are to be.
    pub(crate) fn downstream(&self, tasks: Vec<TaskId>) -> Vec<TaskId> {
        let mut found = BTreeSet::new();
        let mut next = tasks;
        while let Some(task) = next.pop() {
            if let Some(view) = self.scheduler.task(task) {
                let dependents = view.dependents();
                next.extend(dependents.filter(|&dependent| found.insert(dependent)));
            }
        }
        found.into_iter().collect()
    }
}
