//! What must hold between what the scheduler hears and what it says, whatever it believes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_types::{
    Attempt, ClientId, Command, Holders, ObjectId, Place, Report, Symbol, TaskId, WorkerId,
};

use crate::plan::Plan;
use crate::universe::{Key, decode, key_of_task};
use crate::versions::Versions;

/// An attempt that was sent to a worker.
pub(crate) struct Attempted {
    pub(crate) worker: WorkerId,
    pub(crate) key: Option<Key>,
    function: Option<Symbol>,
    has_effects: bool,
    /// The scheduler has heard that it is over, or that its worker is lost.
    pub(crate) is_over: bool,
    pub(crate) is_cancelled: bool,
    has_finished: bool,
    has_seceded: bool,
    /// What it finds has not all been there yet.
    is_ahead: bool,
    /// Values that it reads.
    reads: Vec<ObjectId>,
    /// Values that it fetches.
    fetches: Vec<ObjectId>,
    /// Values that it finds, or that are made before it can run.
    finds: Vec<ObjectId>,
}

/// What the scheduler can know of a worker's memory.
#[derive(Default)]
struct Memory {
    /// Bytes that it may hold; 0: without a limit.
    budget: u64,
    /// What it last said that it has in memory, and the bytes of all that it held then.
    managed: u64,
    held_then: u64,
    /// When it was last sent a task that creates data.
    created: Option<Duration>,
}

#[derive(Default)]
pub(crate) struct Oracle {
    pub(crate) versions: Versions,
    /// By key, the function of the task.
    functions: Vec<Symbol>,
    /// Keys whose tasks have effects.
    with_effects: BTreeSet<Key>,
    with_lasting_effects: BTreeSet<Key>,
    /// Their attempts that have ended, and whose effects are there, with the workers that ran them.
    performed: BTreeMap<ObjectId, WorkerId>,
    /// Tasks whose effects are gone, and that have not run again.
    undone: BTreeSet<TaskId>,
    /// How often a task ran again since its effects were gone.
    pub(crate) redone: u64,
    relief: Duration,
    /// How often each task has run.
    runs: BTreeMap<Key, u32>,
    /// Keys that clients have cancelled.
    pub(crate) cancelled: BTreeSet<Key>,
    /// Keys that clients kept, and could not bring again.
    pub(crate) unkept: BTreeSet<Key>,
    attempts: BTreeMap<ObjectId, Attempted>,
    latest: BTreeMap<TaskId, Attempt>,
    /// What each worker that is there holds, as far as the scheduler can know.
    held: BTreeMap<WorkerId, BTreeMap<ObjectId, u64>>,
    memory: BTreeMap<WorkerId, Memory>,
    /// Functions that have returned values that travel in reports, too.
    small: BTreeSet<Symbol>,
    draining: BTreeSet<WorkerId>,
    /// Since when each worker has had a free slot that a task waits for.
    pub(crate) idle: BTreeMap<WorkerId, Duration>,
    /// When a value could not be got last.
    pub(crate) unfetched: Option<Duration>,
    /// Tasks that clients have heard to be finished, and nothing since.
    notified: BTreeSet<(ClientId, TaskId)>,
    /// Losses of workers.
    pub(crate) losses: usize,
    pub(crate) has_restarted: bool,
    pub(crate) has_invalidated: bool,
}

impl Oracle {
    pub(crate) fn new(plan: &Plan) -> Self {
        let functions = plan.universe.specs.iter().map(|spec| spec.function);
        Self {
            versions: Versions::new(&plan.universe),
            functions: functions.collect(),
            with_effects: plan.universe.with_effects(),
            with_lasting_effects: plan.universe.with_lasting_effects(),
            relief: plan.config.relief,
            ..Self::default()
        }
    }

    /// Counts that a task runs, and says how often it has.
    pub(crate) fn count_run(&mut self, key: Key) -> u32 {
        let runs = self.runs.entry(key).or_insert(0);
        *runs += 1;
        *runs
    }

    /// Whether a task has run.
    pub(crate) fn has_run(&self, key: Key) -> bool {
        self.runs.contains_key(&key)
    }

    pub(crate) fn joined(&mut self, worker: WorkerId, budget: u64) {
        self.held.insert(worker, BTreeMap::new());
        let memory = Memory {
            budget,
            ..Memory::default()
        };
        self.memory.insert(worker, memory);
    }

    pub(crate) fn lost(&mut self, worker: WorkerId) {
        self.losses += 1;
        self.held.remove(&worker);
        self.draining.remove(&worker);
        for attempt in self.attempts.values_mut() {
            attempt.is_over |= attempt.worker == worker;
        }
        let lasting = &self.with_lasting_effects;
        let attempts = self.attempts.iter();
        let lasting = attempts.filter(|(_, it)| it.key.is_some_and(|key| lasting.contains(&key)));
        let lasting: BTreeSet<TaskId> = lasting.map(|(object, _)| object.task).collect();
        self.undo(|task, runner| runner == worker && !lasting.contains(&task));
    }

    /// Somebody says that the values of tasks are gone.
    pub(crate) fn invalidated(&mut self, tasks: &[TaskId]) {
        self.has_invalidated = true;
        self.undo(|task, _| tasks.contains(&task));
    }

    /// The keys among some tasks that have a value and effects: these may do something else next time.
    pub(crate) fn changeable(&self, tasks: &[(TaskId, Key)]) -> Vec<Key> {
        let is_done = |task: TaskId| {
            let latest = self.latest(task);
            latest.is_some_and(|object| self.performed.contains_key(&object))
        };
        let done = tasks.iter().filter(|(task, _)| is_done(*task));
        done.map(|(_, key)| *key).collect()
    }

    /// The effects of some tasks are gone.
    fn undo(&mut self, is_gone: impl Fn(TaskId, WorkerId) -> bool) {
        let Self {
            performed, undone, ..
        } = self;
        performed.retain(|object, runner| {
            let stays = !is_gone(object.task, *runner);
            if !stays {
                undone.insert(object.task);
            }
            stays
        });
    }

    /// Whether what an attempt did is there, or will be; so it is where it does nothing but return a
    /// value.
    fn has_performed(&self, object: ObjectId) -> bool {
        let attempt = self.attempts.get(&object);
        let with_effects = attempt.filter(|attempt| attempt.has_effects);
        with_effects.is_none_or(|attempt| !attempt.is_over || self.performed.contains_key(&object))
    }

    /// Whether the effects of a task that has a value are there.
    pub(crate) fn is_in_effect(&self, task: TaskId) -> bool {
        self.latest(task)
            .is_none_or(|object| self.has_performed(object))
    }

    pub(crate) fn drains(&mut self, worker: WorkerId) {
        self.draining.insert(worker);
    }

    pub(crate) fn is_there(&self, worker: WorkerId) -> bool {
        self.held.contains_key(&worker)
    }

    /// The scheduler is told something by a worker.
    pub(crate) fn heard(
        &mut self,
        worker: WorkerId,
        report: &Report,
        now: Duration,
    ) -> Result<(), String> {
        if let Report::Unavailable { .. } | Report::CopyFailed { .. } = report {
            self.unfetched = Some(now);
        }
        if let Report::Finished { object, .. } = report {
            self.must_have_relied(worker, *object)?;
        }
        let Some(held) = self.held.get_mut(&worker) else {
            return Ok(());
        };
        let over = match report {
            Report::Finished { object, value, .. } => {
                if value.kept {
                    held.insert(*object, value.nbytes);
                }
                if let Some(attempt) = self.attempts.get_mut(object) {
                    attempt.has_finished = true;
                    if attempt.has_effects {
                        self.performed.insert(*object, worker);
                    }
                    if value.inline.is_some() {
                        self.small.extend(attempt.function);
                    }
                }
                object
            }
            Report::Failed { object, .. }
            | Report::Unavailable { object, .. }
            | Report::Immovable { object, .. }
            | Report::GivenBack(object)
            | Report::Retracted(object)
            | Report::Stopped(object) => object,
            Report::Stored { object, nbytes } => {
                held.insert(*object, *nbytes);
                self.arrived(worker);
                return Ok(());
            }
            Report::Gone(object) => {
                held.remove(object);
                return Ok(());
            }
            Report::Seceded(object) | Report::Rejoined(object) => {
                if let Some(attempt) = self.attempts.get_mut(object) {
                    attempt.has_seceded = matches!(report, Report::Seceded(_));
                }
                return Ok(());
            }
            Report::Health { managed, .. } => {
                if let Some(memory) = self.memory.get_mut(&worker) {
                    memory.managed = *managed;
                    memory.held_then = held.values().sum();
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        if let Some(attempt) = self.attempts.get_mut(over) {
            attempt.is_over = true;
        }
        if let Report::Finished { .. } = report {
            self.arrived(worker);
        }
        Ok(())
    }

    /// A task that ends has relied on what others did, which must be there by now.
    fn must_have_relied(&self, worker: WorkerId, object: ObjectId) -> Result<(), String> {
        let counts = |attempt: &&Attempted| {
            attempt.worker == worker && !attempt.is_over && !attempt.is_cancelled
        };
        let Some(attempt) = self.attempts.get(&object).filter(counts) else {
            return Ok(());
        };
        let mut reads = attempt.reads.iter();
        match reads.find(|&&input| !self.has_performed(input)) {
            Some(input) => Err(format!(
                "{object:?} has read {input:?}, whose effects are gone, and ends"
            )),
            None => Ok(()),
        }
    }

    /// A value has come to a worker: those that wait for it may run.
    fn arrived(&mut self, worker: WorkerId) {
        let Some(held) = self.held.get(&worker) else {
            return;
        };
        let ahead = self
            .attempts
            .values_mut()
            .filter(|attempt| attempt.is_ahead);
        for attempt in ahead.filter(|attempt| attempt.worker == worker) {
            attempt.is_ahead = !attempt.finds.iter().all(|object| held.contains_key(object));
        }
    }

    /// The scheduler tells a worker something.
    pub(crate) fn said(
        &mut self,
        worker: WorkerId,
        command: &Command,
        keys: &BTreeMap<TaskId, Key>,
        now: Duration,
    ) -> Result<(), String> {
        if let Command::Assign(_) = command {
            self.idle.remove(&worker);
        }
        if !self.is_there(worker) {
            return Err(format!("{worker:?} is not there, and is told {command:?}"));
        }
        match command {
            Command::Assign(assignment) => {
                let object = assignment.object;
                if self.attempts.contains_key(&object) {
                    return Err(format!("{object:?} is assigned twice"));
                }
                if self.draining.contains(&worker) {
                    return Err(format!("{worker:?} is to leave, and gets {object:?}"));
                }
                let before = self.latest.insert(object.task, object.attempt);
                if let Some(before) = before.map(|attempt| ObjectId::new(object.task, attempt))
                    && let Some(attempt) = self.attempts.get(&before)
                    && !attempt.is_over
                    && !attempt.is_cancelled
                {
                    return Err(format!("{object:?} is assigned before {before:?} is over"));
                }
                self.redone += u64::from(self.undone.remove(&object.task));
                let (mut fetches, mut finds) = (Vec::new(), Vec::new());
                for input in &assignment.inputs {
                    if !self.has_performed(input.object) {
                        return Err(format!(
                            "{object:?} is to read {:?}, whose effects are gone",
                            input.object
                        ));
                    }
                    match &input.place {
                        Place::Inline(value) => {
                            self.must_be_current(keys.get(&input.object.task), value)?;
                        }
                        Place::Here => {
                            self.must_come(worker, input.object, object)?;
                            finds.push(input.object);
                        }
                        Place::At(holders) => {
                            self.must_hold(holders, input.object)?;
                            fetches.push(input.object);
                        }
                    }
                }
                let is_inline = |place: &Place| matches!(place, Place::Inline(_));
                let creates = assignment
                    .inputs
                    .iter()
                    .all(|input| is_inline(&input.place));
                let key = key_of_task(&assignment.recipe);
                let function = key.and_then(|key| self.functions.get(key.0 as usize).copied());
                let is_small = function.is_none_or(|function| self.small.contains(&function));
                if creates && !is_small {
                    self.must_have_room(worker, object, now)?;
                }
                self.attempts.insert(
                    object,
                    Attempted {
                        worker,
                        key,
                        function,
                        has_effects: key.is_some_and(|key| self.with_effects.contains(&key)),
                        is_over: false,
                        is_cancelled: false,
                        has_finished: false,
                        has_seceded: false,
                        is_ahead: true,
                        reads: assignment.inputs.iter().map(|input| input.object).collect(),
                        fetches,
                        finds,
                    },
                );
                self.arrived(worker);
            }
            Command::Retract(object) => {
                let attempt = self.attempts.get(object);
                if attempt.is_none_or(|attempt| attempt.worker != worker || attempt.is_over) {
                    return Err(format!("{object:?} is not at {worker:?}, and taken back"));
                }
            }
            Command::Cancel(object) => match self.attempts.get_mut(object) {
                Some(attempt) if attempt.worker == worker => attempt.is_cancelled = true,
                _ => return Err(format!("{object:?} is not at {worker:?}, and cancelled")),
            },
            Command::Release(object) => {
                if let Some(held) = self.held.get_mut(&worker) {
                    held.remove(object);
                }
            }
            Command::Copy {
                object, holders, ..
            } => {
                // A copy that nobody can make is answered, too.
                if !holders.is_empty() {
                    self.must_hold(holders, *object)?;
                }
            }
        }
        Ok(())
    }

    /// The scheduler tells a client that a task is finished.
    pub(crate) fn finished(
        &mut self,
        client: ClientId,
        task: TaskId,
        holder: Option<WorkerId>,
    ) -> Result<(), String> {
        if !self.notified.insert((client, task)) {
            return Err(format!("{client:?} hears twice that {task:?} is finished"));
        }
        if let Some(object) = self.latest(task)
            && !self.attempts[&object].has_finished
        {
            return Err(format!("{task:?} is finished, and {object:?} is not"));
        }
        if !self.is_in_effect(task) {
            return Err(format!("{task:?} is finished, and its effects are gone"));
        }
        if let Some(holder) = holder {
            let holds = |held: &BTreeMap<ObjectId, u64>| held.keys().any(|o| o.task == task);
            if !self.held.get(&holder).is_some_and(holds) {
                return Err(format!(
                    "{holder:?} does not have {task:?}, which it is said to"
                ));
            }
        }
        Ok(())
    }

    /// A client may hear about a task again.
    pub(crate) fn asks(&mut self, client: ClientId, task: TaskId) {
        self.notified.remove(&(client, task));
    }

    /// Only these tasks are known: the ids of others may stand for something else when they come again.
    pub(crate) fn forget_all_but(&mut self, tasks: &BTreeMap<TaskId, Key>) {
        self.notified.retain(|(_, task)| tasks.contains_key(task));
        self.latest.retain(|task, _| tasks.contains_key(task));
        self.undone.retain(|task| tasks.contains_key(task));
    }

    fn latest(&self, task: TaskId) -> Option<ObjectId> {
        let attempt = *self.latest.get(&task)?;
        Some(ObjectId::new(task, attempt))
    }

    /// A small value that the scheduler gives somebody is what its task returns as things stand.
    pub(crate) fn must_be_current(&self, key: Option<&Key>, value: &[u8]) -> Result<(), String> {
        match (key, decode(value)) {
            (Some(&key), Some(value)) if !self.versions.is_current(key, value) => Err(format!(
                "{key:?} has a value that was computed from what is discarded"
            )),
            _ => Ok(()),
        }
    }

    fn must_hold(&self, holders: &Holders, object: ObjectId) -> Result<(), String> {
        if holders.is_empty() {
            return Err(format!("nobody is named who has {object:?}"));
        }
        for holder in holders {
            let holds = |held: &BTreeMap<ObjectId, u64>| held.contains_key(&object);
            if !self.held.get(holder).is_some_and(holds) {
                return Err(format!(
                    "{holder:?} is named for {object:?}, and does not have it"
                ));
            }
        }
        Ok(())
    }

    /// A task is told to find a value at its worker.
    fn must_come(&self, worker: WorkerId, input: ObjectId, reader: ObjectId) -> Result<(), String> {
        let is_there = self
            .held
            .get(&worker)
            .is_some_and(|held| held.contains_key(&input));
        let is_open = |attempt: &Attempted| {
            attempt.worker == worker && !attempt.is_over && !attempt.is_cancelled
        };
        let is_made = self.attempts.get(&input).is_some_and(is_open);
        let mut others = self.attempts.values();
        let comes = others.any(|other| is_open(other) && other.fetches.contains(&input));
        match is_there || is_made || comes {
            true => Ok(()),
            false => Err(format!(
                "{reader:?} is to find {input:?} at {worker:?}, which has it not"
            )),
        }
    }

    /// A task that creates data is sent to a worker.
    fn must_have_room(
        &mut self,
        worker: WorkerId,
        object: ObjectId,
        now: Duration,
    ) -> Result<(), String> {
        // What it fetches may be lost, and made by this very task; and nothing can be said of those
        // that were cancelled.
        let runs = self.open_at(worker).any(|(_, attempt)| {
            let has_all = attempt
                .fetches
                .iter()
                .all(|object| self.holds(worker, object));
            !attempt.is_cancelled && has_all && self.takes_slot(attempt)
        });
        let held: u64 = self.held[&worker].values().sum();
        let Some(memory) = self.memory.get_mut(&worker) else {
            return Ok(());
        };
        let bytes = (memory.managed + held).saturating_sub(memory.held_then);
        let before = memory.created.replace(now);
        let is_soon = before.is_some_and(|before| now < before + self.relief);
        match memory.budget > 0 && bytes >= memory.budget && runs && is_soon {
            true => Err(format!(
                "{worker:?} has {bytes} bytes of {} in memory, and {object:?} creates more",
                memory.budget
            )),
            false => Ok(()),
        }
    }

    /// The attempts at a worker that are not over.
    pub(crate) fn open_at(&self, worker: WorkerId) -> impl Iterator<Item = (ObjectId, &Attempted)> {
        let attempts = self.attempts.iter();
        let open =
            attempts.filter(move |(_, attempt)| attempt.worker == worker && !attempt.is_over);
        open.map(|(&object, attempt)| (object, attempt))
    }

    /// Whether an open attempt takes a slot, as far as the scheduler can know: one that has given its
    /// slot away does not, nor one that was sent ahead, and waits for others of its worker.
    pub(crate) fn takes_slot(&self, attempt: &Attempted) -> bool {
        !attempt.has_seceded && !attempt.is_ahead
    }

    fn holds(&self, worker: WorkerId, object: &ObjectId) -> bool {
        let held = self.held.get(&worker);
        held.is_some_and(|held| held.contains_key(object))
    }
}
