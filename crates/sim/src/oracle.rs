//! What must hold between what the scheduler hears and what it says, whatever it believes.

use std::collections::{BTreeMap, BTreeSet};

use treadle_types::{
    Attempt, ClientId, Command, Holders, ObjectId, Place, Report, TaskId, WorkerId,
};

use crate::universe::Key;

/// An attempt that was sent to a worker.
struct Attempted {
    worker: WorkerId,
    /// The scheduler has heard that it is over, or that its worker is lost.
    is_over: bool,
    is_cancelled: bool,
    has_finished: bool,
    has_seceded: bool,
    /// Values that it fetches.
    fetches: Vec<ObjectId>,
    /// Values that it finds, or that are made before it can run.
    finds: Vec<ObjectId>,
}

#[derive(Default)]
pub(crate) struct Oracle {
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
    /// Bytes that each worker may hold; 0: without a limit.
    budgets: BTreeMap<WorkerId, u64>,
    draining: BTreeSet<WorkerId>,
    /// Tasks that clients have heard to be finished, and nothing since.
    told: BTreeSet<(ClientId, TaskId)>,
    /// Losses of workers.
    pub(crate) losses: usize,
    pub(crate) has_restarted: bool,
    pub(crate) has_invalidated: bool,
}

impl Oracle {
    /// Counts that a task runs, and says how often it has.
    pub(crate) fn count_run(&mut self, key: Key) -> u32 {
        let runs = self.runs.entry(key).or_insert(0);
        *runs += 1;
        *runs
    }

    pub(crate) fn joined(&mut self, worker: WorkerId, budget: u64) {
        self.held.insert(worker, BTreeMap::new());
        self.budgets.insert(worker, budget);
    }

    pub(crate) fn lost(&mut self, worker: WorkerId) {
        self.losses += 1;
        self.held.remove(&worker);
        self.draining.remove(&worker);
        for attempt in self.attempts.values_mut() {
            attempt.is_over |= attempt.worker == worker;
        }
    }

    pub(crate) fn drains(&mut self, worker: WorkerId) {
        self.draining.insert(worker);
    }

    pub(crate) fn is_there(&self, worker: WorkerId) -> bool {
        self.held.contains_key(&worker)
    }

    /// The scheduler is told something by a worker.
    pub(crate) fn heard(&mut self, worker: WorkerId, report: &Report) {
        let Some(held) = self.held.get_mut(&worker) else {
            return;
        };
        let over = match report {
            Report::Finished { object, value, .. } => {
                if value.kept {
                    held.insert(*object, value.nbytes);
                }
                if let Some(attempt) = self.attempts.get_mut(object) {
                    attempt.has_finished = true;
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
                return;
            }
            Report::Gone(object) => {
                held.remove(object);
                return;
            }
            Report::Seceded(object) | Report::Rejoined(object) => {
                if let Some(attempt) = self.attempts.get_mut(object) {
                    attempt.has_seceded = matches!(report, Report::Seceded(_));
                }
                return;
            }
            _ => return,
        };
        if let Some(attempt) = self.attempts.get_mut(over) {
            attempt.is_over = true;
        }
    }

    /// The scheduler tells a worker something.
    pub(crate) fn said(&mut self, worker: WorkerId, command: &Command) -> Result<(), String> {
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
                let (mut fetches, mut finds) = (Vec::new(), Vec::new());
                for input in &assignment.inputs {
                    match &input.place {
                        Place::Inline(_) => {}
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
                if creates {
                    self.must_have_room(worker, object)?;
                }
                self.attempts.insert(
                    object,
                    Attempted {
                        worker,
                        is_over: false,
                        is_cancelled: false,
                        has_finished: false,
                        has_seceded: false,
                        fetches,
                        finds,
                    },
                );
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
        if !self.told.insert((client, task)) {
            return Err(format!("{client:?} hears twice that {task:?} is finished"));
        }
        if let Some(object) = self.latest(task)
            && !self.attempts[&object].has_finished
        {
            return Err(format!("{task:?} is finished, and {object:?} is not"));
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
        self.told.remove(&(client, task));
    }

    /// A task is forgotten: its id may stand for another.
    pub(crate) fn forgotten(&mut self, task: TaskId) {
        self.told.retain(|&(_, other)| other != task);
        self.latest.remove(&task);
    }

    fn latest(&self, task: TaskId) -> Option<ObjectId> {
        let attempt = *self.latest.get(&task)?;
        Some(ObjectId::new(task, attempt))
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
    fn must_have_room(&self, worker: WorkerId, object: ObjectId) -> Result<(), String> {
        let budget = self.budgets[&worker];
        let bytes: u64 = self.held[&worker].values().sum();
        // One that has given its slot away may wait for what is not there yet, and one that was
        // sent ahead may wait for that one; nothing can be said of those that were cancelled.
        let runs = |attempt: &Attempted| {
            let held = self.held.get(&attempt.worker);
            let mut reads = attempt.finds.iter().chain(&attempt.fetches);
            let has_all = reads.all(|object| held.is_some_and(|held| held.contains_key(object)));
            !attempt.is_over && !attempt.is_cancelled && !attempt.has_seceded && has_all
        };
        let runs = self.attempts.values().any(runs);
        match budget > 0 && bytes >= budget && runs {
            true => Err(format!(
                "{worker:?} holds {bytes} bytes of {budget}, and {object:?} creates more"
            )),
            false => Ok(()),
        }
    }
}
