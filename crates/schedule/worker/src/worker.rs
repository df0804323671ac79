//! The state machine of one worker.

mod check;
mod fetching;
mod tasks;

use alloc::collections::VecDeque;

use treadle_types::{Assignment, Command, ObjectId};

use crate::fetches::Fetches;
use crate::objects::{Activity, Objects, State};
use crate::ready::{Key, Ready};
use crate::{Effects, Event, WorkerError};

/// Settings of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How many tasks run at once.
    pub threads: u32,
    /// How many bytes are fetched at once; a larger value travels alone.
    pub fetch_bytes: u64,
    /// How many values are fetched from one worker at once.
    pub fetches_per_peer: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: 1,
            fetch_bytes: 256 << 20,
            fetches_per_peer: 4,
        }
    }
}

/// Where an object stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// A task that waits for inputs.
    Waiting,
    /// A task that waits for a slot.
    Ready,
    /// A task that runs on a slot.
    Running,
    /// A task that runs and has given its slot away.
    Seceded,
    /// A task that had given its slot away, and waits for one.
    Rejoining,
    /// A value that is to come from another worker.
    Fetching,
    /// A value that is in the store.
    Stored,
}

/// What one worker does.
///
/// A task is given back as [`Unavailable`](treadle_types::Report::Unavailable) as soon as one of its
/// inputs cannot come: nobody who has it could be asked, or it was to be here and is not (any more),
/// or it was to be made here by a task that will not make it, since that raised, was retracted,
/// cancelled, or given back itself. Whoever waits for the value of such a task is given back with it.
/// One whose input cannot be serialised where it is is given back as
/// [`Immovable`](treadle_types::Report::Immovable).
///
/// Time plays no part, so [`Worker::handle`] takes no clock. An event costs time in proportion to
/// the inputs and waiting tasks that it concerns, but for one: losing a value that tasks still wait
/// to read looks at everything that the worker knows.
pub struct Worker {
    config: Config,
    objects: Objects,
    ready: Ready,
    fetches: Fetches,
    /// Tasks that have a slot, cancelled ones included.
    busy: u32,
    /// Tasks that want a slot again, oldest first.
    rejoining: VecDeque<u32>,
    /// Tasks that have not started.
    pending: usize,
    stored: usize,
    paused: bool,
    held: bool,
}

impl Worker {
    /// A worker with an empty store.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            objects: Objects::default(),
            ready: Ready::default(),
            fetches: Fetches::new(config.fetch_bytes, config.fetches_per_peer),
            busy: 0,
            rejoining: VecDeque::new(),
            pending: 0,
            stored: 0,
            paused: false,
            held: false,
        }
    }

    /// Takes an event in; what follows from it is appended to `effects`.
    ///
    /// # Errors
    /// [`WorkerError`]; the worker is then as it was before.
    #[inline]
    pub fn handle(&mut self, event: Event, effects: &mut Effects) -> Result<(), WorkerError> {
        match event {
            Event::Command(Command::Assign(assignment)) => self.assign(assignment, effects)?,
            Event::Command(Command::Retract(object)) => self.retract(object, effects),
            Event::Command(Command::Cancel(object)) => self.cancel(object, effects),
            Event::Command(Command::Release(object)) => self.release(object, effects),
            Event::Command(Command::Copy {
                object,
                nbytes,
                holders,
            }) => self.copy(object, nbytes, &holders, effects),
            Event::Ran {
                object,
                outcome,
                duration,
            } => self.ran(object, outcome, duration, effects)?,
            Event::Seceded(object) => self.seceded(object, effects)?,
            Event::Rejoining(object) => self.rejoin(object)?,
            Event::Fetched {
                object,
                from,
                nbytes,
            } => self.fetched(object, from, nbytes, effects)?,
            Event::NoRoom { object, from } => self.no_room(object, from, effects)?,
            Event::Immovable {
                object,
                from,
                error,
            } => self.immovable(object, from, &error, effects)?,
            Event::Put { object, nbytes } => self.put(object, nbytes, effects)?,
            Event::Gone(object) => self.gone(object, effects),
            Event::Paused(paused) => self.paused = paused,
            Event::Held(held) => self.held = held,
        }
        self.start_fetches(effects);
        self.start_tasks(effects);
        Ok(())
    }

    /// Where `object` stands; `None`: it is unknown here.
    pub fn status(&self, object: ObjectId) -> Option<Status> {
        let slot = self.objects.find(object)?;
        Some(self.status_at(slot))
    }

    /// Everything that the worker knows, in no particular order.
    pub fn objects(&self) -> impl Iterator<Item = (ObjectId, Status)> {
        let objects = self.objects.iter();
        objects.map(|(slot, entry)| (entry.object, self.status_at(slot)))
    }

    /// The tasks that have not started, in no particular order.
    pub fn pending(&self) -> impl Iterator<Item = (&Assignment, Status)> {
        self.objects
            .iter()
            .filter_map(|(_, entry)| match &entry.state {
                State::Pending(task) if task.missing == 0 => {
                    Some((&task.assignment, Status::Ready))
                }
                State::Pending(task) => Some((&task.assignment, Status::Waiting)),
                _ => None,
            })
    }

    /// Whether a task or the scheduler waits for a value that is not here.
    pub fn wants(&self, object: ObjectId) -> bool {
        let slot = self.objects.find(object);
        slot.is_some_and(|slot| self.objects.at(slot).is_wanted())
    }

    /// Number of tasks that have a slot, cancelled ones included.
    pub fn busy(&self) -> u32 {
        self.busy
    }

    /// Number of tasks that wait for a slot, not counting those that had one.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Number of tasks that wait for inputs.
    pub fn waiting(&self) -> usize {
        self.pending - self.ready.len()
    }

    /// Number of values in the store.
    pub fn stored(&self) -> usize {
        self.stored
    }

    /// Number of values that are on their way here, and their bytes.
    pub fn fetching(&self) -> (u32, u64) {
        (self.fetches.flights(), self.fetches.bytes())
    }

    /// Whether it knows of no task and no value.
    pub fn is_empty(&self) -> bool {
        self.objects.len() == 0
    }

    fn status_at(&self, slot: u32) -> Status {
        match &self.objects.at(slot).state {
            State::Pending(task) if task.missing == 0 => Status::Ready,
            State::Pending(_) => Status::Waiting,
            State::Started { activity, .. } => match activity {
                Activity::Running => Status::Running,
                Activity::Seceded => Status::Seceded,
                Activity::Rejoining => Status::Rejoining,
            },
            State::Fetching(_) => Status::Fetching,
            State::Stored => Status::Stored,
            State::Vacant => unreachable!("a vacant entry has no status"),
        }
    }

    /// Whether a key of the ready queue stands for a task that is ready.
    #[inline]
    fn is_ready(objects: &Objects, key: Key) -> bool {
        match &objects.at(key.slot()).state {
            State::Pending(task) => {
                task.missing == 0 && Key::new(task.assignment.priority, key.slot()) == key
            }
            _ => false,
        }
    }

    fn impossible(&self, object: ObjectId, event: &'static str) -> WorkerError {
        WorkerError::Impossible {
            object,
            status: self.status(object),
            event,
        }
    }
}
