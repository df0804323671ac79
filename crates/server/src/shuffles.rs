//! The master of the shuffle plane, beside the scheduler: what happens to tasks and workers concerns both,
//! in the same step. See `docs/internals/shuffle.md`.
//!
//! A shuffle begins with its [`Registration`], which comes before the tasks of its submission: some of
//! its transfers may run before its barrier has come. It ends when its barrier is forgotten.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use bytes::Bytes;
use treadle_messages::{Batch, Registration, ToWorker};
use treadle_scheduler::Event;
use treadle_shuffle::{
    Config, Master, MasterEffect, MasterEvent, ShuffleId, Spec, ToMaster, ToNode,
};
use treadle_types::{ClientId, Runs, TaskId, Value, WorkerId};

use crate::effect::Effect;
use crate::operations::{dict, int};
use crate::state::{Broken, Core};

/// Shuffles of a client whose barriers may be missing yet.
const MOST_EXPECTED: usize = 4096;

/// The shuffles that there are.
#[derive(Debug)]
pub(crate) struct Shuffles {
    master: Master,
    effects: Vec<MasterEffect>,
    /// Whether the effects are being carried out.
    is_acting: bool,
    /// Barriers that submissions are still to bring.
    expected: Vec<Expected>,
    by_barrier: BTreeMap<TaskId, ShuffleId>,
    known: BTreeMap<ShuffleId, Known>,
    /// The number of the last one.
    last: u64,
    moved: Moved,
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

/// A barrier that a submission is still to bring.
#[derive(Clone, Copy, Debug)]
struct Expected {
    client: ClientId,
    submission: u32,
    /// The rank of the barrier.
    rank: u32,
    shuffle: ShuffleId,
}

#[derive(Debug)]
struct Known {
    name: String,
    maps: u32,
    spec: Bytes,
    /// `None`: it has not come yet.
    barrier: Option<TaskId>,
    /// Maps that are to be invalidated when it comes.
    gone: Runs,
}

impl Default for Shuffles {
    fn default() -> Self {
        Self {
            master: Master::new(Config::default()),
            effects: Vec::new(),
            is_acting: false,
            expected: Vec::new(),
            by_barrier: BTreeMap::new(),
            known: BTreeMap::new(),
            last: 0,
            moved: Moved::default(),
        }
    }
}

impl Shuffles {
    /// Whether a task is the barrier of one.
    pub(crate) fn has_barrier(&self, task: TaskId) -> bool {
        !self.by_barrier.is_empty() && self.by_barrier.contains_key(&task)
    }

    fn find(&self, name: &str) -> Option<ShuffleId> {
        let mut known = self.known.iter();
        known
            .find(|(_, known)| known.name == name)
            .map(|(id, _)| *id)
    }

    /// The shuffle that a registration means: the one of this name, or a new one.
    fn register(&mut self, registration: Registration) -> Result<ShuffleId, Broken> {
        if let Some(shuffle) = self.find(&registration.name) {
            // Another client, or an earlier graph, has the same.
            return match self.known[&shuffle].maps == registration.maps {
                true => Ok(shuffle),
                false => Err(Broken::new(format!(
                    "the shuffle {} has {} inputs, and is registered with {}",
                    registration.name, registration.maps, self.known[&shuffle].maps
                ))),
            };
        }
        let aligned = registration.aligned.as_deref();
        let spec = Spec {
            maps: registration.maps,
            partitions: registration.partitions,
            outputs: registration.outputs,
            aligned: aligned.and_then(|name| self.find(name)),
            preferred: Vec::new(),
        };
        let shuffle = ShuffleId(self.last + 1);
        let event = MasterEvent::Register { shuffle, spec };
        let registered = self.master.handle(event, &mut self.effects);
        registered.map_err(|error| Broken::new(error.to_string()))?;
        self.last = shuffle.0;
        let known = Known {
            name: registration.name,
            maps: registration.maps,
            spec: registration.spec,
            barrier: None,
            gone: Runs::new(),
        };
        self.known.insert(shuffle, known);
        Ok(shuffle)
    }

    /// The barriers that a batch brings, whose tasks are these.
    pub(crate) fn brought(
        &self,
        client: ClientId,
        batch: &Batch,
        tasks: &[TaskId],
    ) -> Vec<(ShuffleId, TaskId)> {
        let submission = (client, batch.number);
        let expected = self.expected.iter();
        let mine = expected.filter(|one| (one.client, one.submission) == submission);
        let brought = mine.filter_map(|expected| {
            let row = batch.ranks.iter().position(|rank| *rank == expected.rank)?;
            Some((expected.shuffle, tasks[row]))
        });
        brought.collect()
    }
}

impl Core {
    /// A client is to submit a shuffle.
    pub(crate) fn register_shuffle(
        &mut self,
        client: ClientId,
        registration: Registration,
    ) -> Result<(), Broken> {
        let shuffles = &mut self.shuffles;
        let mine = shuffles.expected.iter();
        if mine.filter(|expected| expected.client == client).count() >= MOST_EXPECTED {
            return Err(Broken::new(format!(
                "more than {MOST_EXPECTED} shuffles were registered without their barriers"
            )));
        }
        let (submission, rank) = (registration.submission, registration.barrier);
        let shuffle = shuffles.register(registration)?;
        shuffles.expected.push(Expected {
            client,
            submission,
            rank,
            shuffle,
        });
        Ok(())
    }

    /// A batch is with the scheduler, and the barriers that it [brought](Shuffles::brought).
    pub(crate) fn barriers_came(
        &mut self,
        client: ClientId,
        batch: &Batch,
        brought: &[(ShuffleId, TaskId)],
    ) -> Result<(), Broken> {
        for &(shuffle, barrier) in brought {
            self.barrier_came(shuffle, barrier)?;
        }
        if batch.last {
            self.barriers_missed(client, Some(batch.number));
        }
        Ok(())
    }

    fn barrier_came(&mut self, shuffle: ShuffleId, barrier: TaskId) -> Result<(), Broken> {
        let shuffles = &mut self.shuffles;
        let Some(view) = self.scheduler.task(barrier) else {
            return Ok(());
        };
        let Some(known) = shuffles.known.get_mut(&shuffle) else {
            return Ok(());
        };
        let inputs = view.inputs().count();
        if inputs != known.maps as usize {
            return Err(Broken::new(format!(
                "the barrier of the shuffle {} has {inputs} inputs, and is registered with {}",
                known.name, known.maps
            )));
        }
        known.barrier = Some(barrier);
        let gone = mem::take(&mut known.gone);
        shuffles.by_barrier.insert(barrier, shuffle);
        if !gone.is_empty() {
            self.invalidate_maps(shuffle, &gone, false);
        }
        Ok(())
    }

    /// A submission has ended; or, without its number, its client is gone. Barriers that it has not
    /// brought do not come any more.
    pub(crate) fn barriers_missed(&mut self, client: ClientId, submission: Option<u32>) {
        let expected = &mut self.shuffles.expected;
        if expected.is_empty() {
            return;
        }
        let of_it = |expected: &mut Expected| {
            let is_meant = submission.is_none_or(|number| number == expected.submission);
            expected.client == client && is_meant
        };
        let over: Vec<Expected> = expected.extract_if(.., of_it).collect();
        for expected in over {
            self.end_unless_needed(expected.shuffle);
        }
    }

    /// A task is forgotten. If it is a barrier, nobody can read what was shuffled any more.
    pub(crate) fn barrier_forgotten(&mut self, barrier: TaskId) {
        if let Some(shuffle) = self.shuffles.by_barrier.remove(&barrier) {
            if let Some(known) = self.shuffles.known.get_mut(&shuffle) {
                known.barrier = None;
            }
            self.end_unless_needed(shuffle);
        }
    }

    /// Ends a shuffle that has no barrier, and is to get none.
    fn end_unless_needed(&mut self, shuffle: ShuffleId) {
        let shuffles = &mut self.shuffles;
        let known = shuffles.known.get(&shuffle);
        let is_expected = |expected: &Expected| expected.shuffle == shuffle;
        if known.is_some_and(|known| known.barrier.is_none())
            && !shuffles.expected.iter().any(is_expected)
        {
            shuffles.known.remove(&shuffle);
            self.tell_master(MasterEvent::End(shuffle));
        }
    }

    /// What a worker has to know of a shuffle, if there is one of this name: its number, how many
    /// inputs it has, and what the client says of it.
    pub(crate) fn about_shuffle(&self, name: Option<&str>) -> Value {
        let Some(shuffle) = name.and_then(|name| self.shuffles.find(name)) else {
            return Value::None;
        };
        let known = &self.shuffles.known[&shuffle];
        Value::Tuple(vec![
            int(shuffle.0),
            int(known.maps),
            Value::Bytes(known.spec.to_vec()),
        ])
    }

    /// How many shuffles there are, and how many there were since the start.
    pub fn shuffle_counts(&self) -> (usize, u64) {
        (self.shuffles.known.len(), self.shuffles.last)
    }

    /// What transfers have moved since the start, with those that ran again.
    pub fn moved(&self) -> Moved {
        self.shuffles.moved
    }

    /// How far each shuffle is, in the order in which they began.
    pub(crate) fn list_shuffles(&self) -> Value {
        let shuffles = &self.shuffles;
        let of_shuffle = |shuffle: ShuffleId| {
            let (known, progress) = (
                shuffles.known.get(&shuffle)?,
                shuffles.master.progress(shuffle)?,
            );
            Some(dict([
                ("name", Value::Str(known.name.clone())),
                ("number", int(shuffle.0)),
                ("generation", int(progress.generation.0)),
                ("inputs", int(progress.maps)),
                ("transferred", int(progress.transferred)),
                ("partitions", int(progress.partitions)),
                ("outputs", int(progress.outputs)),
                ("complete", Value::Bool(progress.is_committed)),
                ("rows", int(progress.tally.rows)),
                ("bytes", int(progress.tally.bytes)),
            ]))
        };
        let all = shuffles.master.shuffles().filter_map(of_shuffle);
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

    /// A worker is gone, as the scheduler knows.
    pub(crate) fn server_lost(&mut self, worker: WorkerId) {
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
        let shuffles = &mut self.shuffles;
        if let Err(error) = shuffles.master.handle(event, &mut shuffles.effects) {
            self.out.push(Effect::Fault(error.to_string()));
        }
        if mem::replace(&mut shuffles.is_acting, true) {
            return;
        }
        while !self.shuffles.effects.is_empty() {
            for effect in mem::take(&mut self.shuffles.effects) {
                self.act_for_master(effect);
            }
        }
        self.shuffles.is_acting = false;
    }

    fn act_for_master(&mut self, effect: MasterEffect) {
        match effect {
            MasterEffect::Send { to, message } => {
                let worker = WorkerId(to.node);
                if let ToNode::Plan(plan) = &message {
                    let servers = plan
                        .groups
                        .iter()
                        .map(|group| WorkerId(group.id.server.node));
                    let servers: Vec<WorkerId> = servers.filter(|other| *other != worker).collect();
                    self.introduce(worker, &servers);
                }
                self.tell_worker(worker, ToWorker::ToNode(message));
            }
            MasterEffect::Invalidate {
                shuffle,
                maps,
                outputs,
            } => self.invalidate_maps(shuffle, &maps, outputs),
            MasterEffect::NotDeterministic { shuffle, map } => {
                let known = self.shuffles.known.get(&shuffle);
                let name = known.map_or("", |known| &known.name);
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

    /// What these maps did is gone, as the scheduler is told: their transfers, the barrier, and, if
    /// `outputs` is set, what was read and all that was computed from it.
    fn invalidate_maps(&mut self, shuffle: ShuffleId, maps: &Runs, outputs: bool) {
        let Some(known) = self.shuffles.known.get_mut(&shuffle) else {
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
        if outputs {
            tasks.extend(self.downstream(barrier));
        }
        self.feed_own(Event::Invalidate(tasks));
    }

    /// All tasks that were computed from a task's value, or are to be.
    fn downstream(&self, task: TaskId) -> BTreeSet<TaskId> {
        let mut found = BTreeSet::new();
        let mut next = vec![task];
        while let Some(task) = next.pop() {
            if let Some(view) = self.scheduler.task(task) {
                let dependents = view.dependents();
                next.extend(dependents.filter(|&dependent| found.insert(dependent)));
            }
        }
        found
    }
}
