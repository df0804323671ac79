//! Tasks and values that clients bring.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_types::{ClientId, Constraint, Priority, TaskId, WorkerId};

use crate::class::ClassId;
use crate::client::{OpenId, TaskSet};
use crate::scheduler::Scheduler;
use crate::task::{Flags, Outcome, Phase};
use crate::{Effects, SchedulerError, State, Submission};

impl Scheduler {
    pub(crate) fn submit(
        &mut self,
        mut submission: Submission,
        effects: &mut Effects,
    ) -> Result<(), SchedulerError> {
        self.validate(&submission)?;
        let client = submission.client;
        let (order, open) = self
            .clients
            .batch(client, submission.number, submission.last);
        let fresh = self.create(&mut submission, order, open);
        self.locate(&submission.located);
        // When all are there: an input may come after its reader.
        self.link_inputs(&submission, &fresh);
        let tasks = submission.tasks.iter().zip(&fresh);
        self.derive(tasks.filter_map(|(&id, &is_new)| is_new.then_some(id)));
        for &id in &submission.wanted {
            self.want(client, id, effects);
        }
        // What is needed by now: the rest waits for its reader, or is not needed at all. From the
        // last to the first, so that readers are counted before what they read is looked at.
        for index in (0..submission.tasks.len()).rev() {
            let id = submission.tasks[index];
            let task = &self.tasks[id];
            if task.phase == Phase::Released && task.is_needed() {
                self.activate(id);
            } else if !task.is_needed() {
                self.work.unneeded.push(id);
            }
        }
        if open != OpenId::NONE {
            self.hear_readers(&submission, open);
        }
        // Placed at once, so that the share of each slot is counted over the whole batch.
        self.place_ready(effects);
        self.share_out();
        self.moved();
        Ok(())
    }

    /// Makes those tasks that are new, without their inputs; says which ones.
    fn create(&mut self, submission: &mut Submission, order: u32, open: OpenId) -> Vec<bool> {
        let classes: Vec<_> = submission
            .constraints
            .iter()
            .map(|constraint| self.class_of(constraint))
            .collect();
        let mut recipes = core::mem::take(&mut submission.recipes).into_iter();
        let mut fresh = Vec::with_capacity(submission.tasks.len());
        for (index, &id) in submission.tasks.iter().enumerate() {
            let recipe = recipes.next().unwrap_or_default();
            let is_new = !self.tasks[id].exists();
            fresh.push(is_new);
            if is_new {
                let options = &submission.option_sets[usize::from(submission.options[index])];
                self.counts[State::Released as usize] += 1;
                self.groups.came(id, State::Released);
                let class = match options.constraint.checked_sub(1) {
                    Some(constraint) => classes[constraint as usize],
                    None => ClassId::NONE,
                };
                // Users give a higher number to what is more urgent, and here the lowest comes first.
                let user = options.priority.saturating_neg();
                self.least_urgent = self.least_urgent.max(user);
                let task = &mut self.tasks[id];
                task.phase = Phase::Released;
                task.client = submission.client;
                task.function = submission.functions[index];
                task.retries = options.retries.min(u32::from(u16::MAX)) as u16;
                task.flags.put(Flags::ACTOR, options.actor);
                if options.actor {
                    self.actors.insert(id);
                }
                task.flags.put(Flags::EFFECTS, options.effects);
                if options.effects && options.lasting {
                    self.lasting.insert(id);
                }
                task.payload = recipe;
                task.priority = Priority {
                    user,
                    submission: order,
                    rank: submission.ranks[index],
                };
                task.class = class;
                if let Some(class) = self.classes.get_mut(class) {
                    class.tasks += 1;
                }
            }
            if open != OpenId::NONE {
                self.expect_readers(id, submission.readers[index], open);
            }
        }
        // They were kept until their tasks counted.
        for class in classes {
            self.leave_class(class);
        }
        fresh
    }

    fn link_inputs(&mut self, submission: &Submission, fresh: &[bool]) {
        for (index, &id) in submission.tasks.iter().enumerate() {
            if fresh[index] {
                for &input in submission.inputs_of(index) {
                    self.tasks.link(id, input);
                    if self.tasks[input].flags.has(Flags::ACTOR) {
                        self.tasks[id].flags.set(Flags::PINNED);
                    }
                }
            }
        }
    }

    /// What a batch of an open submission says about who reads what.
    fn hear_readers(&mut self, submission: &Submission, open: OpenId) {
        for &input in &submission.inputs {
            self.hear_reader(input, open);
        }
        if submission.last {
            if let Some(client) = self.clients.get_mut(submission.client) {
                client.submissions.remove(&submission.number);
            }
            self.close_submission(open);
        }
    }

    /// Checks a submission as a whole, so that it is taken or refused as one.
    fn validate(&mut self, submission: &Submission) -> Result<(), SchedulerError> {
        let client = submission.client;
        if self.clients.get(client).is_none() {
            return Err(SchedulerError::UnknownClient(client));
        }
        let malformed = |what| Err(SchedulerError::Malformed { client, what });
        let count = submission.tasks.len();
        let columns = [
            submission.readers.len(),
            submission.ranks.len(),
            submission.functions.len(),
            submission.recipes.len(),
            submission.options.len(),
        ];
        if columns.iter().any(|&length| length != count) {
            return malformed("its columns differ in length");
        }
        let offsets = &submission.offsets;
        if offsets.len() != count + 1
            || offsets[0] != 0
            || offsets[count] as usize != submission.inputs.len()
            || offsets.windows(2).any(|pair| pair[0] > pair[1])
        {
            return malformed("its offsets do not cut its inputs into one range a task");
        }
        let sets = submission.option_sets.len();
        if submission
            .options
            .iter()
            .any(|&set| usize::from(set) >= sets)
        {
            return malformed("it refers to options that it does not bring");
        }
        let constraints = submission.constraints.len();
        let beyond = |constraint: u32| constraint as usize > constraints;
        if submission.option_sets.iter().any(|o| beyond(o.constraint)) {
            return malformed("it refers to constraints that it does not bring");
        }
        for &id in &submission.tasks {
            match self.tasks.slot(id).map(|task| task.phase) {
                None | Some(Phase::Vacant) => return Err(SchedulerError::NotAllocated(id)),
                Some(_) => {}
            }
        }
        let mut batch = core::mem::take(&mut self.batch);
        let valid = self.validate_references(submission, &mut batch);
        for &id in &submission.tasks {
            // The set is as large as the table of tasks: it is not cleared as a whole.
            batch.remove(id);
        }
        self.batch = batch;
        valid
    }

    /// Checks that what is read or wanted exists, or comes in the same batch, without a cycle.
    /// `batch` is empty before.
    fn validate_references(
        &self,
        submission: &Submission,
        batch: &mut TaskSet,
    ) -> Result<(), SchedulerError> {
        let exists = |id: TaskId| self.tasks.get(id).is_some();
        // In the usual order, inputs come before their readers: then there is no cycle.
        let mut ordered = true;
        for (index, &id) in submission.tasks.iter().enumerate() {
            let inputs = submission.inputs_of(index);
            ordered &= inputs
                .iter()
                .all(|&input| exists(input) || batch.contains(input));
            batch.insert(id);
        }
        let known = |&id: &TaskId| exists(id) || batch.contains(id);
        let mut referred = submission.inputs.iter().chain(&submission.wanted);
        match referred.find(|id| !known(id)) {
            Some(&unknown) => Err(SchedulerError::UnknownTask(unknown)),
            None if ordered => Ok(()),
            None => self.find_cycle(submission),
        }
    }

    /// Sorts the new tasks of a batch topologically.
    fn find_cycle(&self, submission: &Submission) -> Result<(), SchedulerError> {
        let client = submission.client;
        let mut position = BTreeMap::new();
        for (index, &id) in submission.tasks.iter().enumerate() {
            if self.tasks.get(id).is_none() {
                position.entry(id).or_insert(index);
            }
        }
        // Kahn's algorithm over the new tasks of the batch.
        let count = submission.tasks.len();
        let mut readers = vec![Vec::new(); count];
        let mut missing = vec![0u32; count];
        for &index in position.values() {
            for input in submission.inputs_of(index) {
                if let Some(&at) = position.get(input) {
                    readers[at].push(index);
                    missing[index] += 1;
                }
            }
        }
        let mut free: Vec<_> = (0..count).filter(|&index| missing[index] == 0).collect();
        while let Some(index) = free.pop() {
            for &reader in &readers[index] {
                missing[reader] -= 1;
                if missing[reader] == 0 {
                    free.push(reader);
                }
            }
        }
        match (0..count).find(|&index| missing[index] > 0) {
            Some(index) => Err(SchedulerError::Cycle {
                client,
                task: submission.tasks[index],
            }),
            None => Ok(()),
        }
    }

    /// The class of a constraint, with one task more: see [`Scheduler::leave_class`].
    fn class_of(&mut self, constraint: &Constraint) -> ClassId {
        let (id, is_new) = self.classes.intern(constraint);
        if is_new {
            self.recount_class(id);
        }
        if let Some(class) = self.classes.get_mut(id) {
            class.tasks += 1;
        }
        id
    }

    /// Finds out who may run the tasks of a class.
    pub(crate) fn recount_class(&mut self, id: ClassId) {
        self.refresh_levels();
        let Some(class) = self.classes.get_mut(id) else {
            return;
        };
        class.recount(self.workers.iter());
        for worker in self.workers.ids() {
            let Some(at) = self.workers.get_mut(worker) else {
                continue;
            };
            let admits = class.admits(worker);
            let listed = at.classes.iter().position(|&other| other == id);
            match (admits, listed) {
                (true, None) => at.classes.push(id),
                (false, Some(index)) => {
                    at.classes.swap_remove(index);
                }
                _ => {}
            }
            let level = self.workers.open.level(worker).filter(|_| admits);
            class.open.set(worker, level);
        }
    }

    /// A task of a class is gone, and with the last one the class.
    pub(crate) fn leave_class(&mut self, id: ClassId) {
        let Some(class) = self.classes.get_mut(id) else {
            return;
        };
        class.tasks -= 1;
        if class.tasks > 0 {
            return;
        }
        for worker in class.eligible().collect::<Vec<_>>() {
            if let Some(at) = self.workers.get_mut(worker) {
                at.classes.retain(|&other| other != id);
            }
        }
        self.classes.remove(id);
    }

    /// So many tasks of a submission, most still to come, read a task of it.
    fn expect_readers(&mut self, id: TaskId, readers: u32, open: OpenId) {
        if readers == 0 {
            return;
        }
        let Some(submission) = self.clients.open_mut(open) else {
            return;
        };
        let task = &mut self.tasks[id];
        if task.unsent == 0 {
            task.unsent = readers;
            task.open = open;
            submission.tasks.push(id);
        } else if task.open == open {
            task.unsent = task.unsent.saturating_add(readers);
        } else {
            let more = submission.shared.entry(id).or_insert(0);
            *more = more.saturating_add(readers);
            task.flags.set(Flags::MORE_UNSENT);
        }
    }

    /// A reader of a task has come, or will not come.
    fn hear_reader(&mut self, id: TaskId, open: OpenId) {
        let task = &mut self.tasks[id];
        if task.unsent > 0 && task.open == open {
            task.unsent -= 1;
            if task.unsent == 0 {
                task.open = OpenId::NONE;
                if !task.is_needed() {
                    self.work.unneeded.push(id);
                }
            }
            return;
        }
        if let Some(submission) = self.clients.open_mut(open)
            && let Some(left) = submission.shared.get_mut(&id)
        {
            *left -= 1;
            if *left == 0 {
                submission.shared.remove(&id);
                self.recount_unsent(id);
            }
        }
    }

    /// Finds out whether other submissions than the one in `Task::open` wait to read a task.
    fn recount_unsent(&mut self, id: TaskId) {
        let more = self
            .clients
            .submissions()
            .any(|(_, open)| open.shared.contains_key(&id));
        let task = &mut self.tasks[id];
        task.flags.put(Flags::MORE_UNSENT, more);
        if !task.is_needed() {
            self.work.unneeded.push(id);
        }
    }

    /// No more batches of a submission come: nothing waits for its readers any more.
    pub(crate) fn close_submission(&mut self, id: OpenId) {
        let Some(open) = self.clients.close(id) else {
            return;
        };
        for task in open.tasks {
            let entry = &mut self.tasks[task];
            if entry.unsent > 0 && entry.open == id {
                entry.unsent = 0;
                entry.open = OpenId::NONE;
                if !entry.is_needed() {
                    self.work.unneeded.push(task);
                }
            }
        }
        for task in open.shared.into_keys() {
            self.recount_unsent(task);
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn put(
        &mut self,
        client: ClientId,
        id: TaskId,
        nbytes: u64,
        inline: Option<Bytes>,
        class: Bytes,
        holders: &[WorkerId],
        effects: &mut Effects,
    ) -> Result<(), SchedulerError> {
        if self.clients.get(client).is_none() {
            return Err(SchedulerError::UnknownClient(client));
        }
        match self.tasks.slot(id).map(|task| task.phase) {
            None | Some(Phase::Vacant) => return Err(SchedulerError::NotAllocated(id)),
            Some(Phase::Allocated) => {
                self.counts[State::Released as usize] += 1;
                self.groups.came(id, State::Released);
                let task = &mut self.tasks[id];
                task.phase = Phase::Released;
                task.client = client;
                task.priority = Priority::default();
                task.retries = 0;
            }
            Some(_) => {}
        }
        let known = matches!(self.tasks[id].phase, Phase::Memory { .. });
        // Its client brings it to workers: it waits for the first of them to say so.
        let coming = !known && inline.is_none() && holders.is_empty();
        let expected = coming && self.is_coming(id);
        if coming {
            self.comes_from(id, client);
        } else {
            self.brought.coming.remove(&id);
        }
        if !known && !expected {
            self.take_over(id, effects);
            let inlined = inline.is_some();
            let phase = Phase::Memory {
                nbytes,
                inline: inlined,
            };
            self.enter(id, if coming { Phase::WAITING } else { phase });
            let task = &mut self.tasks[id];
            task.missing = 0;
            if coming {
                task.flags.set(Flags::LOST);
            }
            task.attempt = task.attempt.next();
            task.flags.set(Flags::PUT);
            task.flags
                .clear(Flags::IMMOVABLE | Flags::EFFECTS | Flags::DERIVED);
            match inline {
                Some(bytes) => task.payload = bytes,
                None => {
                    task.payload = Bytes::new();
                    task.outcome = Some(Box::new(Outcome::Class(class)));
                }
            }
        }
        if matches!(self.tasks[id].phase, Phase::Memory { inline: false, .. }) {
            for &worker in holders {
                self.add_holder(id, worker);
            }
        }
        let is_new = self
            .clients
            .get_mut(client)
            .is_some_and(|c| c.wants.insert(id));
        if is_new {
            self.tasks[id].wanted.push(client);
        }
        if known {
            self.inform(client, id, effects);
            return Ok(());
        }
        if coming {
            return Ok(());
        }
        self.supply_dependents(id, None);
        match (self.has_value(id), holders.last()) {
            // Whoever had it was lost on the way here.
            (false, Some(&last)) => self.lose_value(id, last, effects),
            _ => self.notify_finished(id, effects),
        }
        Ok(())
    }

    fn has_value(&self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        matches!(task.phase, Phase::Memory { inline: true, .. }) || !task.holders.is_empty()
    }

    /// A task that was computed so far gets its value from a client: what was done for it ends.
    fn take_over(&mut self, id: TaskId, effects: &mut Effects) {
        if self.tasks[id].phase.is_active() {
            self.leave(id, effects);
            self.release_inputs(id);
            self.enter(id, Phase::Released);
        }
        while let Some(input) = self.tasks.unlink_last(id) {
            if self.tasks[input].dependents.is_empty() {
                self.work.unneeded.push(input);
            }
        }
        self.tasks[id].outcome = None;
    }
}
