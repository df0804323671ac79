//! What clients submit: from their numbers to the scheduler's.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use bytes::Bytes;
use treadle_messages::{Batch, Standing, TaskOptions, ToClient};
use treadle_scheduler::{Event, Submission};
use treadle_types::value::Reader;
use treadle_types::{ClientId, Constraint, Options, Symbol, TaskId, Value};

use crate::guard::Guard;
use crate::keys::{Keys, NO_DEFINITIONS};
use crate::locals::{Local, Locals};
use crate::state::{Broken, Core};

/// What a local id means now.
#[derive(Clone, Copy)]
pub(crate) enum Meaning {
    Task(TaskId),
    /// Nothing any more.
    Gone,
}

/// Looks a local id up.
#[inline]
fn meaning(locals: &Locals, keys: &Keys, id: u32) -> Result<Meaning, Broken> {
    match locals.get(id) {
        Some(local)
            if keys.generation(local.task) == local.generation || !Guard::Generation.holds() =>
        {
            Ok(Meaning::Task(local.task))
        }
        Some(_) => Ok(Meaning::Gone),
        None if locals.was_named(id) => Ok(Meaning::Gone),
        None => Err(Broken::new(format!(
            "the local id {id} was never given a key"
        ))),
    }
}

/// The new keys of a batch.
pub(crate) struct Fresh {
    first: u32,
    /// For each of them, the task that was allocated, unless its key was known; taken out when the
    /// task is submitted.
    tasks: Vec<Option<TaskId>>,
}

impl Fresh {
    fn take(&mut self, id: u32) -> Option<TaskId> {
        let place = id.checked_sub(self.first)? as usize;
        self.tasks.get_mut(place)?.take()
    }
}

impl Core {
    pub(crate) fn meaning(&self, client: ClientId, id: u32) -> Result<Meaning, Broken> {
        match self.clients.get(client) {
            Some(node) => meaning(&node.locals, &self.keys, id),
            None => Ok(Meaning::Gone),
        }
    }

    /// The tasks of local ids, as far as they mean any.
    pub(crate) fn meant(&self, client: ClientId, ids: &[u32]) -> Result<Vec<TaskId>, Broken> {
        let mut tasks = Vec::with_capacity(ids.len());
        for &id in ids {
            if let Meaning::Task(task) = self.meaning(client, id)? {
                tasks.push(task);
            }
        }
        Ok(tasks)
    }

    /// Numbers keys that a client names for the first time.
    pub(crate) fn name(
        &mut self,
        client: ClientId,
        first: u32,
        keys: &[Bytes],
    ) -> Result<Fresh, Broken> {
        let mut fresh = Fresh {
            first,
            tasks: Vec::with_capacity(keys.len()),
        };
        let Some(node) = self.clients.get_mut(client) else {
            return Ok(fresh);
        };
        if !node.locals.name(first, keys.len()) {
            return Err(Broken::new(format!(
                "{} local ids from {first} on were used before, or are far from the others",
                keys.len()
            )));
        }
        let (scheduler, mut ids) = (&mut self.scheduler, first..);
        let groups = &mut self.groups;
        let allocate = |key: &[u8]| scheduler.allocate_in(groups.number(key));
        let found = |keys: &Keys, task: TaskId, is_new: bool| {
            fresh.tasks.push(is_new.then_some(task));
            if let Some(id) = ids.next() {
                let generation = keys.generation(task);
                node.locals.set(id, Local { task, generation });
            }
        };
        self.keys.find_or_add_all(keys, allocate, found);
        Ok(fresh)
    }

    /// A client submits a key again that is gone here, and that it has an id for: the recipe says
    /// which key that is. Returns the task, and whether it is new.
    fn revive(&mut self, client: ClientId, id: u32, recipe: &[u8]) -> Option<(TaskId, bool)> {
        let key = Reader::new(recipe).blob().ok()?;
        let (scheduler, groups) = (&mut self.scheduler, &mut self.groups);
        let allocate = |key: &[u8]| scheduler.allocate_in(groups.number(key));
        let (task, is_new) = self.keys.find_or_add(key, allocate);
        let generation = self.keys.generation(task);
        let node = self.clients.get_mut(client)?;
        node.locals.set(id, Local { task, generation });
        Some((task, is_new))
    }

    /// Takes back tasks that were allocated and not submitted.
    pub(crate) fn abandon(&mut self, fresh: &mut Fresh) {
        for task in fresh.tasks.iter_mut().filter_map(Option::take) {
            self.keys.remove(task);
            self.scheduler.abandon(task);
        }
    }

    /// A batch of a client.
    pub(crate) fn submit(&mut self, client: ClientId, mut batch: Batch) -> Result<(), Broken> {
        let mut fresh = self.name(client, batch.first, &batch.keys)?;
        let mut taken = Vec::with_capacity(batch.tasks.len());
        let outcome = self.submit_named(client, &mut batch, &mut fresh, &mut taken);
        // Keys that were named, and that no task of the batch has.
        self.abandon(&mut fresh);
        self.definitions.noted(client);
        if outcome.is_err() {
            for task in taken {
                self.unsubmitted(task);
            }
        } else if !self.awaited.is_empty() {
            self.tell_awaiting(&taken)?;
        }
        outcome
    }

    fn submit_named(
        &mut self,
        client: ClientId,
        batch: &mut Batch,
        fresh: &mut Fresh,
        taken: &mut Vec<TaskId>,
    ) -> Result<(), Broken> {
        if batch.option_sets.is_empty() {
            batch.option_sets.push(TaskOptions::default());
        }
        let (option_sets, constraints) = self.options(&batch.option_sets);
        let mut submission = Submission {
            client,
            number: batch.number,
            last: batch.last,
            tasks: Vec::with_capacity(batch.tasks.len()),
            functions: Vec::with_capacity(batch.tasks.len()),
            option_sets,
            constraints,
            ..Submission::default()
        };
        let lost = self.name_tasks(client, batch, fresh, taken, &mut submission)?;
        let Some(gone) = self.name_inputs(client, batch, &mut submission)? else {
            return Ok(());
        };
        let brought = self.shuffles.brought(client, batch, &mut submission);
        submission.offsets = mem::take(&mut batch.offsets);
        submission.readers = mem::take(&mut batch.readers);
        submission.ranks = mem::take(&mut batch.ranks);
        submission.recipes = mem::take(&mut batch.recipes);
        submission.options = mem::take(&mut batch.options);
        let mut cancelled = Vec::new();
        if gone > 0 || !lost.is_empty() {
            cancelled = without_lost(&mut submission);
        }
        self.want_of_batch(client, batch, &cancelled, &mut submission)?;
        self.counts.submitted += submission.tasks.len() as u64;
        let fed = self.feed(Event::Submit(submission));
        for task in cancelled {
            self.unsubmitted(task);
        }
        fed?;
        self.end_of_submission(client, batch);
        self.shuffles_came(client, batch, brought)
    }

    /// Finds what a client's numbers of tasks mean. Returns the rows of tasks that read something that is
    /// gone.
    fn name_tasks(
        &mut self,
        client: ClientId,
        batch: &Batch,
        fresh: &mut Fresh,
        taken: &mut Vec<TaskId>,
        submission: &mut Submission,
    ) -> Result<Vec<usize>, Broken> {
        let mut lost: Vec<usize> = Vec::new();
        // Tasks that follow each other mostly use the same ones.
        let mut known: (Option<&[u32]>, u32, Symbol) = (None, NO_DEFINITIONS, Symbol(0));
        for (row, &id) in batch.tasks.iter().enumerate() {
            let range =
                batch.definition_offsets[row] as usize..batch.definition_offsets[row + 1] as usize;
            let numbers = &batch.definitions[range];
            if known.0 != Some(numbers) {
                let note = self.definitions.note(client, numbers);
                let note = note.ok_or_else(|| {
                    Broken::new(format!(
                        "a task uses one of {numbers:?}, which is not defined"
                    ))
                })?;
                known = (Some(numbers), note, self.definitions.function(note));
            }
            let (_, note, function) = known;
            submission.functions.push(function);
            let mut is_revived = false;
            let task = match self.meaning(client, id)? {
                Meaning::Task(task) => task,
                Meaning::Gone => {
                    let revived = self.revive(client, id, &batch.recipes[row]);
                    let Some((task, is_new)) = revived else {
                        // Nobody: the row is taken out before the scheduler sees it.
                        submission.tasks.push(TaskId(u32::MAX));
                        lost.push(row);
                        continue;
                    };
                    is_revived = is_new;
                    task
                }
            };
            submission.tasks.push(task);
            if (fresh.take(id).is_some() || is_revived)
                && let Some(entry) = self.keys.get_mut(task)
            {
                entry.owner = client;
                entry.definitions = note;
                self.definitions.hold(client, note);
                taken.push(task);
            }
        }
        Ok(lost)
    }

    /// Finds what a client's numbers of inputs mean. Returns how many of them are gone, and nothing if
    /// the client is.
    fn name_inputs(
        &self,
        client: ClientId,
        batch: &Batch,
        submission: &mut Submission,
    ) -> Result<Option<usize>, Broken> {
        submission.inputs = Vec::with_capacity(batch.inputs.len());
        let mut gone = 0;
        let Some(node) = self.clients.get(client) else {
            return Ok(None);
        };
        for &id in &batch.inputs {
            submission
                .inputs
                .push(match meaning(&node.locals, &self.keys, id)? {
                    Meaning::Task(task) => task,
                    Meaning::Gone => {
                        gone += 1;
                        TaskId(u32::MAX)
                    }
                });
        }
        Ok(Some(gone))
    }

    /// A task that was meant to be submitted was not: forgets it, if it is not known otherwise.
    fn unsubmitted(&mut self, task: TaskId) {
        if self.scheduler.task(task).is_some() {
            return;
        }
        if let Some(entry) = self.keys.remove(task) {
            self.scheduler.abandon(task);
            if entry.owner != ClientId(0)
                && let Some(places) = self.definitions.release(entry.owner, entry.definitions)
            {
                self.undefine(entry.owner, &places);
            }
        }
    }

    fn want_of_batch(
        &mut self,
        client: ClientId,
        batch: &Batch,
        cancelled: &[TaskId],
        submission: &mut Submission,
    ) -> Result<(), Broken> {
        submission.wanted = Vec::with_capacity(batch.wanted.len());
        let mut gone = Vec::new();
        let Some(node) = self.clients.get_mut(client) else {
            return Ok(());
        };
        for &id in &batch.wanted {
            match meaning(&node.locals, &self.keys, id)? {
                Meaning::Task(task) if !cancelled.contains(&task) => {
                    submission.wanted.push(task);
                    node.locals.want(task, id);
                }
                _ => gone.push(id),
            }
        }
        for id in gone {
            let reason = "lost dependencies";
            let message = "a task reads a key that this cluster does not have: its \
                future was cancelled or released, or belongs to another cluster";
            let reason = Value::Tuple(vec![Value::str(reason), Value::str(message)]);
            let standing = Standing::Cancelled(reason.to_bytes().into());
            self.tell_client(client, ToClient::Notice { id, standing });
        }
        Ok(())
    }

    /// Local ids of tasks that the client does not want mean nothing once their submission ends.
    fn end_of_submission(&mut self, client: ClientId, batch: &Batch) {
        let Some(node) = self.clients.get_mut(client) else {
            return;
        };
        let range = (batch.first, batch.first + batch.keys.len() as u32);
        if !batch.last {
            node.submissions
                .entry(batch.number)
                .or_default()
                .push(range);
            return;
        }
        let earlier = node.submissions.remove(&batch.number).unwrap_or_default();
        for (start, end) in earlier.into_iter().chain([range]) {
            for id in start..end {
                if let Some(local) = node.locals.get(id)
                    && node.locals.wanted(local.task) != Some(id)
                {
                    node.locals.clear(id);
                }
            }
        }
    }

    fn options(&mut self, sets: &[TaskOptions]) -> (Vec<Options>, Vec<Constraint>) {
        let mut constraints = Vec::new();
        let options = sets.iter().map(|set| {
            let is_free = set.workers.is_empty() && set.resources.is_empty();
            let constraint = if is_free {
                0
            } else {
                constraints.push(Constraint {
                    workers: set
                        .workers
                        .iter()
                        .map(|name| self.symbols.intern(name))
                        .collect(),
                    allow_other: set.allow_other,
                    resources: set
                        .resources
                        .iter()
                        .map(|(name, amount)| (self.symbols.intern(name), *amount))
                        .collect(),
                });
                constraints.len() as u32
            };
            Options {
                priority: set.priority,
                retries: set.retries,
                constraint,
                actor: set.actor,
                effects: set.effects,
                lasting: set.lasting,
            }
        });
        let options = options.collect();
        (options, constraints)
    }

    /// A client has futures of keys.
    pub(crate) fn want(
        &mut self,
        client: ClientId,
        first: u32,
        keys: &[Bytes],
    ) -> Result<(), Broken> {
        let Some(node) = self.clients.get_mut(client) else {
            return Ok(());
        };
        if !node.locals.name(first, keys.len()) {
            return Err(Broken::new(format!("the local id {first} was used before")));
        }
        let mut tasks = Vec::with_capacity(keys.len());
        let mut unknown = Vec::new();
        for (key, id) in keys.iter().zip(first..) {
            match self.keys.find(key) {
                Some(task) => {
                    node.locals.set(
                        id,
                        Local {
                            task,
                            generation: self.keys.generation(task),
                        },
                    );
                    node.locals.want(task, id);
                    tasks.push(task);
                }
                None => unknown.push((id, key)),
            }
        }
        for (id, key) in unknown {
            self.awaited.add(key, client, id);
            let standing = Standing::Unknown;
            self.tell_client(client, ToClient::Notice { id, standing });
        }
        self.feed(Event::Want { client, tasks })?;
        Ok(())
    }

    /// Clients that had futures of the keys of these tasks before anybody submitted them want them now.
    pub(crate) fn tell_awaiting(&mut self, tasks: &[TaskId]) -> Result<(), Broken> {
        for &task in tasks {
            let generation = self.keys.generation(task);
            for (client, id) in self.awaited.take(self.keys.key(task)) {
                let Some(node) = self.clients.get_mut(client) else {
                    continue;
                };
                // It is told under the name that it gave the key last.
                if node.locals.wanted(task).is_some() {
                    continue;
                }
                node.locals.set(id, Local { task, generation });
                node.locals.want(task, id);
                let tasks = vec![task];
                self.feed(Event::Want { client, tasks })?;
            }
        }
        Ok(())
    }

    /// A client has no futures of ids any more.
    pub(crate) fn release(&mut self, client: ClientId, ids: &[u32]) -> Result<(), Broken> {
        let mut tasks = Vec::with_capacity(ids.len());
        if !self.awaited.is_empty() {
            for &id in ids {
                self.awaited.remove(client, id);
            }
        }
        let Some(node) = self.clients.get_mut(client) else {
            return Ok(());
        };
        for &id in ids {
            if let Some(local) = node.locals.clear(id)
                // The number may be another task's by now.
                && self.keys.generation(local.task) == local.generation
                && node.locals.wanted(local.task) == Some(id)
            {
                node.locals.unwant(local.task);
                tasks.push(local.task);
            }
        }
        self.feed(Event::Unwant { client, tasks })?;
        Ok(())
    }
}

/// Takes tasks out of a submission that read something that is gone, and those that read them.
/// Returns those that have a number.
fn without_lost(submission: &mut Submission) -> Vec<TaskId> {
    let nobody = TaskId(u32::MAX);
    let before = mem::take(submission);
    let mut lost = BTreeSet::from([nobody]);
    // A task comes after what it reads, mostly; another round finds the others.
    loop {
        let found = lost.len();
        for (row, task) in before.tasks.iter().enumerate() {
            let range = before.offsets[row] as usize..before.offsets[row + 1] as usize;
            if before.inputs[range]
                .iter()
                .any(|input| lost.contains(input))
            {
                lost.insert(*task);
            }
        }
        if lost.len() == found {
            break;
        }
    }
    let mut located = before.located;
    located.retain(|located| !lost.contains(&located.task));
    *submission = Submission {
        client: before.client,
        number: before.number,
        last: before.last,
        option_sets: before.option_sets,
        constraints: before.constraints,
        wanted: before.wanted,
        located,
        offsets: vec![0],
        tasks: Vec::new(),
        inputs: Vec::new(),
        readers: Vec::new(),
        ranks: Vec::new(),
        functions: Vec::new(),
        recipes: Vec::new(),
        options: Vec::new(),
    };
    for (row, task) in before.tasks.iter().enumerate() {
        if lost.contains(task) {
            continue;
        }
        let range = before.offsets[row] as usize..before.offsets[row + 1] as usize;
        submission.tasks.push(*task);
        submission.inputs.extend_from_slice(&before.inputs[range]);
        submission.offsets.push(submission.inputs.len() as u32);
        submission.readers.push(before.readers[row]);
        submission.ranks.push(before.ranks[row]);
        submission.functions.push(before.functions[row]);
        submission.recipes.push(before.recipes[row].clone());
        submission.options.push(before.options[row]);
    }
    lost.remove(&nobody);
    lost.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use treadle_scheduler::Located;
    use treadle_types::WorkerId;

    #[test]
    fn what_is_not_lost_keeps_all_that_was_said_of_it() {
        let located = |task| Located {
            task: TaskId(task),
            worker: Some(WorkerId(7)),
            nbytes: u64::from(task),
        };
        let nobody = TaskId(u32::MAX);
        // Task 1 reads what is gone, and 2 reads 1; 0 and 3 read neither.
        let mut submission = Submission {
            client: ClientId(1),
            number: 5,
            last: true,
            tasks: (0..4).map(TaskId).collect(),
            offsets: vec![0, 0, 1, 2, 3],
            inputs: vec![nobody, TaskId(1), TaskId(0)],
            readers: vec![10, 11, 12, 13],
            ranks: vec![20, 21, 22, 23],
            functions: (30..34).map(Symbol).collect(),
            recipes: (40..44).map(|byte| vec![byte].into()).collect(),
            options: vec![0, 1, 0, 1],
            option_sets: vec![Options::default(); 2],
            constraints: Vec::new(),
            wanted: Vec::new(),
            located: (0..4).map(located).collect(),
        };
        let cancelled = without_lost(&mut submission);
        assert_eq!(cancelled, [TaskId(1), TaskId(2)]);
        let left = Submission {
            client: ClientId(1),
            number: 5,
            last: true,
            tasks: vec![TaskId(0), TaskId(3)],
            offsets: vec![0, 0, 1],
            inputs: vec![TaskId(0)],
            readers: vec![10, 13],
            ranks: vec![20, 23],
            functions: vec![Symbol(30), Symbol(33)],
            recipes: vec![vec![40].into(), vec![43].into()],
            options: vec![0, 1],
            option_sets: vec![Options::default(); 2],
            constraints: Vec::new(),
            wanted: Vec::new(),
            located: vec![located(0), located(3)],
        };
        assert_eq!(submission, left);
    }
}
