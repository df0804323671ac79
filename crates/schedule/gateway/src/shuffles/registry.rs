//! The shuffles that clients have registered, and which tasks belong to them.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use core::time::Duration;

use bytes::Bytes;
use treadle_messages::{Batch, Registration};
use treadle_scheduler::Located;
use treadle_shuffle::{
    Config, Generation, Master, MasterEffect, MasterEvent, ShuffleError, ShuffleId, Spec, Tally,
    Tenant,
};
use treadle_types::{ClientId, Runs, TaskId, WorkerId};

use crate::shuffles::records::{Described, Records};
use crate::state::Broken;

/// Shuffles of a client whose barriers may be missing yet.
const MOST_EXPECTED: usize = 4096;

/// The name of a shuffle.
pub(crate) type Name = Arc<str>;

/// What a task has to do with a shuffle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    Barrier,
    /// It reads a partition.
    Reader(u32),
}

/// What a submission is still to bring, by rank.
#[derive(Debug)]
struct Expected {
    client: ClientId,
    submission: u32,
    tasks: BTreeMap<u32, Vec<(Name, Role)>>,
    /// How many of them are barriers.
    barriers: usize,
}

impl Expected {
    fn is_to_bring(&self, name: &str) -> bool {
        let mut tasks = self.tasks.values().flatten();
        tasks.any(|(other, role)| matches!(role, Role::Barrier) && **other == *name)
    }
}

/// A shuffle. It may have several numbers, one after the other: when its barrier is let go, it ends, and
/// it begins anew when it is needed again.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) maps: u32,
    pub(super) spec: Bytes,
    pub(super) kind: String,
    /// Who registered it.
    client: Option<String>,
    /// The name of the tasks that read it.
    pub(super) key: Option<String>,
    pub(super) partitions: u32,
    pub(super) outputs: Runs,
    aligned: Option<String>,
    /// The stand-alone service that keeps its rows. The master here knows the shuffle by its number alone.
    pub(super) service: Option<String>,
    /// `None`: it has ended.
    pub(super) number: Option<ShuffleId>,
    /// `None`: it has not come yet.
    pub(super) barrier: Option<TaskId>,
    /// Tasks that read a partition.
    pub(super) readers: BTreeMap<TaskId, u32>,
    /// The assignment of which the core was told.
    pub(super) located: Option<Generation>,
    /// Maps that are to be invalidated when the barrier comes.
    pub(super) gone: Runs,
    /// What it had when it ended. Its outputs may be used still.
    committed: Option<Tally>,
    /// It has ended before. Its outputs may be used still.
    pub(super) has_ended: bool,
}

/// A shuffle that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The number that it had.
    pub(super) number: ShuffleId,
    /// The service that keeps its rows, if workers do not.
    pub(super) service: Option<String>,
}

/// The shuffles, with their master.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) master: Master,
    pub(super) effects: Vec<MasterEffect>,
    expected: Vec<Expected>,
    known: BTreeMap<Name, Known>,
    by_barrier: BTreeMap<TaskId, Name>,
    by_number: BTreeMap<ShuffleId, Name>,
    /// The number of the last one.
    pub(super) last: u64,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            master: Master::new(Config::default()),
            effects: Vec::new(),
            expected: Vec::new(),
            known: BTreeMap::new(),
            by_barrier: BTreeMap::new(),
            by_number: BTreeMap::new(),
            last: 0,
        }
    }
}

impl Registry {
    /// A client is to submit a shuffle. If there is one of this name, it is that: another client, or an
    /// earlier graph, has the same.
    pub(super) fn register(
        &mut self,
        client: ClientId,
        called: Option<String>,
        registration: Registration,
        (now, records): (Duration, &mut Records),
    ) -> Result<(), Broken> {
        let mine = self.expected.iter().filter(|one| one.client == client);
        if mine.map(|one| one.barriers).sum::<usize>() >= MOST_EXPECTED {
            return Err(Broken::new(format!(
                "more than {MOST_EXPECTED} shuffles were registered without their barriers"
            )));
        }
        let name: Name = registration.name.as_str().into();
        if let Some(known) = self.known.get(&name) {
            let (maps, partitions) = (registration.maps, registration.partitions);
            if (known.maps, known.partitions) != (maps, partitions) {
                return Err(Broken::new(format!(
                    "the shuffle {name} has {} inputs and {} partitions, and is registered again \
                     with {maps} and {partitions}",
                    known.maps, known.partitions
                )));
            }
        }
        if let Some(known) = self.known.get_mut(&name)
            && known.number.is_none()
        {
            // Where it begins anew, this client decides.
            known.service.clone_from(&registration.service);
        }
        // One that has ended begins when a worker asks for it.
        if !self.known.contains_key(&name) {
            let known = Known {
                maps: registration.maps,
                spec: registration.spec,
                kind: registration.kind,
                client: called,
                key: None,
                partitions: registration.partitions,
                outputs: registration.outputs,
                aligned: registration.aligned,
                service: registration.service,
                number: None,
                barrier: None,
                readers: BTreeMap::new(),
                located: None,
                gone: Runs::new(),
                committed: None,
                has_ended: false,
            };
            self.known.insert(name.clone(), known);
            if let Err(error) = self.begin(&name, now, records) {
                self.known.remove(&name);
                return Err(Broken::new(error.to_string()));
            }
        }
        let expected = self.expected_of(client, registration.submission);
        expected.barriers += 1;
        let mut expect = |rank: u32, role| {
            let roles = expected.tasks.entry(rank).or_default();
            roles.push((name.clone(), role));
        };
        expect(registration.barrier, Role::Barrier);
        for (rank, partition) in registration.readers.iter().zip(registration.reads) {
            expect(*rank, Role::Reader(partition));
        }
        Ok(())
    }

    fn expected_of(&mut self, client: ClientId, submission: u32) -> &mut Expected {
        let is_it = |one: &Expected| (one.client, one.submission) == (client, submission);
        let at = self.expected.iter().position(is_it);
        let at = at.unwrap_or_else(|| {
            self.expected.push(Expected {
                client,
                submission,
                tasks: BTreeMap::new(),
                barriers: 0,
            });
            self.expected.len() - 1
        });
        &mut self.expected[at]
    }

    /// A shuffle begins, for the first time or anew.
    fn begin(
        &mut self,
        name: &str,
        now: Duration,
        records: &mut Records,
    ) -> Result<(), ShuffleError> {
        let Some(known) = self.known.get(name) else {
            return Ok(());
        };
        // Either of two may name the other.
        let aligned = match &known.aligned {
            Some(other) => self.known.get(other.as_str()),
            None => {
                let mut others = self.known.values();
                others.find(|other| other.aligned.as_deref() == Some(name))
            }
        };
        let spec = Spec {
            tenant: Tenant::default(),
            maps: known.maps,
            partitions: known.partitions,
            outputs: known.outputs.clone(),
            aligned: aligned.and_then(|other| other.number),
            copies: 1,
            is_handed_over: false,
            expected: 0,
            preferred: Vec::new(),
            committed: known.committed,
        };
        let shuffle = self.enter(spec, now, records)?;
        if let Some((name, _)) = self.known.get_key_value(name) {
            self.by_number.insert(shuffle, name.clone());
        }
        if let Some((name, known)) = self.known.get_key_value(name) {
            let described = Described {
                name,
                kind: &known.kind,
                client: known.client.clone(),
                key: known.key.clone(),
                is_again: known.committed.is_some(),
                service: known.service.clone(),
            };
            records.begun(shuffle, described);
        }
        if let Some(known) = self.known.get_mut(name) {
            known.number = Some(shuffle);
            known.located = None;
        }
        Ok(())
    }

    /// Registers a shuffle with the master.
    fn enter(
        &mut self,
        spec: Spec,
        now: Duration,
        records: &mut Records,
    ) -> Result<ShuffleId, ShuffleError> {
        let shuffle = ShuffleId(self.last + 1);
        let event = MasterEvent::Register {
            shuffle,
            spec: spec.clone(),
        };
        self.master.handle(event, &mut self.effects)?;
        records.recorder.registered(now, shuffle, &spec);
        self.last = shuffle.0;
        Ok(shuffle)
    }

    /// A shuffle of another engine begins. It is known by its number alone.
    pub(super) fn host(
        &mut self,
        described: Described<'_>,
        spec: Spec,
        now: Duration,
        records: &mut Records,
    ) -> Result<ShuffleId, ShuffleError> {
        let shuffle = self.enter(spec, now, records)?;
        self.by_number.insert(shuffle, described.name.clone());
        records.begun(shuffle, described);
        Ok(shuffle)
    }

    /// A shuffle of another engine has ended. `false`: there is none of this number.
    pub(super) fn end_hosted(&mut self, shuffle: ShuffleId) -> bool {
        let name = self.by_number.get(&shuffle);
        let known = name.and_then(|name| self.known.get(name));
        let is_own = known.is_some_and(|known| known.number == Some(shuffle));
        !is_own && self.by_number.remove(&shuffle).is_some()
    }

    /// A shuffle that has ended begins anew. `false`: there is none that has ended.
    pub(super) fn begin_anew(
        &mut self,
        name: &str,
        now: Duration,
        records: &mut Records,
    ) -> Result<bool, ShuffleError> {
        let known = self.known.get(name);
        let has_ended = known.is_some_and(|known| known.number.is_none());
        if has_ended {
            self.begin(name, now, records)?;
        }
        Ok(has_ended)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Known> {
        self.known.get(name)
    }

    /// Where a task reads a partition.
    pub(super) fn locate(&self, known: &Known, task: TaskId, partition: u32) -> Located {
        let number = known.number;
        let home = number.and_then(|number| self.master.home(number, partition));
        let progress = number.and_then(|number| self.master.progress(number));
        let nbytes = progress.map_or(0, |all| all.tally.bytes / all.outputs.max(1));
        Located {
            task,
            worker: home.map(|home| WorkerId(home.node)),
            nbytes,
        }
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Known> {
        self.known.get_mut(name)
    }

    /// The shuffles that run and have begun after this one.
    pub(super) fn begun_since(
        &self,
        number: ShuffleId,
    ) -> impl Iterator<Item = (ShuffleId, &Name)> {
        let after = (Bound::Excluded(number), Bound::Unbounded);
        self.by_number
            .range(after)
            .map(|(&number, name)| (number, name))
    }

    pub(super) fn name(&self, number: ShuffleId) -> Option<Name> {
        self.by_number.get(&number).cloned()
    }

    /// Whether a task is a barrier.
    #[inline]
    pub(super) fn has_barrier(&self, task: TaskId) -> bool {
        !self.by_barrier.is_empty() && self.by_barrier.contains_key(&task)
    }

    /// The shuffle whose barrier a task is.
    pub(super) fn of_barrier(&self, task: TaskId) -> Option<Name> {
        self.by_barrier.get(&task).cloned()
    }

    /// The tasks of shuffles among those of a batch.
    pub(super) fn brought(
        &mut self,
        client: ClientId,
        batch: &Batch,
        tasks: &[TaskId],
    ) -> Vec<(Name, Role, TaskId)> {
        let submission = (client, batch.number);
        let mut expected = self.expected.iter_mut();
        let expected = expected.find(|one| (one.client, one.submission) == submission);
        let Some(expected) = expected else {
            return Vec::new();
        };
        let mut brought = Vec::new();
        for (rank, task) in batch.ranks.iter().zip(tasks) {
            for (name, role) in expected.tasks.remove(rank).into_iter().flatten() {
                expected.barriers -= usize::from(matches!(role, Role::Barrier));
                brought.push((name, role, *task));
            }
        }
        brought
    }

    /// A task of a shuffle is with the core.
    pub(super) fn came(&mut self, name: &Name, role: Role, task: TaskId) {
        let Some(known) = self.known.get_mut(name) else {
            return;
        };
        match role {
            Role::Barrier => {
                known.barrier = Some(task);
                self.by_barrier.insert(task, name.clone());
            }
            Role::Reader(partition) => {
                known.readers.insert(task, partition);
            }
        }
    }

    /// A submission has ended; or, without its number, its client is gone. What it has not brought does
    /// not come any more. Returns the shuffles that this may concern.
    pub(super) fn missed(&mut self, client: ClientId, submission: Option<u32>) -> Vec<Name> {
        if self.expected.is_empty() {
            return Vec::new();
        }
        let is_over = |one: &mut Expected| {
            one.client == client && submission.is_none_or(|number| number == one.submission)
        };
        let over = self.expected.extract_if(.., is_over);
        let tasks = over.flat_map(|one| one.tasks).flat_map(|(_, roles)| roles);
        tasks.map(|(name, _)| name).collect()
    }

    /// A barrier is forgotten.
    pub(super) fn forget_barrier(&mut self, task: TaskId) -> Option<Name> {
        let name = self.by_barrier.remove(&task)?;
        if let Some(known) = self.known.get_mut(&name) {
            known.barrier = None;
        }
        Some(name)
    }

    /// Forgets a shuffle that has no barrier, and is to get none. Returns what has ended, if it ran.
    pub(super) fn forget_unneeded(&mut self, name: &Name) -> Option<Ended> {
        let known = self.known.get(name)?;
        if known.barrier.is_some() || self.expected.iter().any(|one| one.is_to_bring(name)) {
            return None;
        }
        let ended = self.end(name);
        self.known.remove(name);
        ended
    }

    /// A shuffle has ended, if it ran.
    pub(super) fn end(&mut self, name: &Name) -> Option<Ended> {
        let known = self.known.get_mut(name)?;
        known.gone = Runs::new();
        let number = known.number.take()?;
        known.committed = self.master.committed(number);
        known.has_ended = true;
        self.by_number.remove(&number);
        Some(Ended {
            number,
            service: known.service.clone(),
        })
    }
}
