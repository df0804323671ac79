//! Tasks: from their assignment to their report.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use smallvec::SmallVec;
use treadle_types::{Assignment, Holders, Input, ObjectId, Place, Report};

use super::Worker;
use crate::objects::{Activity, NOWHERE, Pending, State};
use crate::ready::Key;
use crate::{Effect, Effects, Guard, Outcome, Run, WorkerError};

impl Worker {
    #[inline]
    pub(super) fn assign(
        &mut self,
        assignment: Assignment,
        effects: &mut Effects,
    ) -> Result<(), WorkerError> {
        let object = assignment.object;
        if let Some(status) = self.status(object) {
            return Err(WorkerError::AssignedTwice { object, status });
        }
        let mut sources = SmallVec::<[u32; 4]>::new();
        for input in &assignment.inputs {
            let Some(source) = self.source(input) else {
                effects.report(Report::Unavailable {
                    object,
                    input: input.object,
                    tried: Holders::new(),
                });
                return Ok(());
            };
            sources.push(source);
        }
        let priority = assignment.priority;
        // After all inputs were looked for: a task that is refused leaves nothing behind.
        let slot = self.objects.insert(object, State::Vacant);
        let mut missing = 0;
        for (input, source) in assignment.inputs.iter().zip(&mut sources) {
            if let Place::At(holders) = &input.place {
                *source = self.want(input.object, input.nbytes, holders, Some(priority));
            }
            if *source == NOWHERE {
                continue;
            }
            let entry = self.objects.at_mut(*source);
            if matches!(entry.state, State::Stored) {
                entry.readers += 1;
            } else {
                entry.waiters.push(slot);
                missing += 1;
            }
        }
        self.objects.at_mut(slot).state = State::Pending(Box::new(Pending {
            assignment,
            sources,
            missing,
        }));
        self.pending += 1;
        if missing == 0 {
            self.ready.push(Key::new(priority, slot));
        }
        Ok(())
    }

    /// The entry of an input, [`NOWHERE`] if it needs none or has none yet, and `None` if the input
    /// cannot come.
    #[inline]
    fn source(&self, input: &Input) -> Option<u32> {
        let can_be_fetched = match &input.place {
            Place::Inline(_) => return Some(NOWHERE),
            Place::Here => false,
            Place::At(holders) => !holders.is_empty(),
        };
        match self.objects.find(input.object) {
            Some(slot) => (!self.is_cancelled(slot)).then_some(slot),
            None => can_be_fetched.then_some(NOWHERE),
        }
    }

    pub(super) fn retract(&mut self, object: ObjectId, effects: &mut Effects) {
        let Some(slot) = self.objects.find(object) else {
            return;
        };
        match self.objects.at(slot).state {
            State::Pending(_) => {
                effects.report(Report::Retracted(object));
                let waiters = self.remove_pending(slot, effects);
                self.report_unavailable(object, waiters, Holders::new(), effects);
            }
            State::Started { .. } if !Guard::Started.holds() => {
                effects.report(Report::Retracted(object));
            }
            // One that is cancelled, too, will be reported as stopped.
            State::Started {
                cancelled: false, ..
            } => effects.report(Report::Started(object)),
            _ => {}
        }
    }

    pub(super) fn cancel(&mut self, object: ObjectId, effects: &mut Effects) {
        let Some(slot) = self.objects.find(object) else {
            return;
        };
        let waiters = match &mut self.objects.at_mut(slot).state {
            State::Pending(_) => {
                effects.report(Report::Stopped(object));
                self.remove_pending(slot, effects)
            }
            State::Started { cancelled, .. } if !*cancelled => {
                *cancelled = true;
                effects.push(Effect::Interrupt(object));
                if !Guard::Stopped.holds() {
                    effects.report(Report::Stopped(object));
                }
                self.answer_copy(slot, Holders::new(), effects);
                core::mem::take(&mut self.objects.at_mut(slot).waiters)
            }
            _ => return,
        };
        self.report_unavailable(object, waiters, Holders::new(), effects);
    }

    pub(super) fn ran(
        &mut self,
        object: ObjectId,
        outcome: Outcome,
        duration: Duration,
        effects: &mut Effects,
    ) -> Result<(), WorkerError> {
        let Some((slot, activity, cancelled)) = self.started(object) else {
            return Err(self.impossible(object, "ended"));
        };
        if let Outcome::Returned(value) = &outcome
            && !value.kept
            && value.inline.is_none()
        {
            return Err(self.impossible(object, "a value that is neither kept nor inline"));
        }
        match activity {
            Activity::Running => self.busy -= 1,
            Activity::Seceded => {}
            Activity::Rejoining => self.rejoining.retain(|&other| other != slot),
        }
        if cancelled {
            self.stopped(object, slot, outcome, effects);
            return Ok(());
        }
        match outcome {
            Outcome::Returned(value) if value.kept => {
                let nbytes = value.nbytes;
                effects.report(Report::Finished {
                    object,
                    value,
                    duration,
                });
                if core::mem::take(&mut self.objects.at_mut(slot).copy) {
                    effects.report(Report::Stored { object, nbytes });
                }
                self.arrived(slot);
            }
            Outcome::Returned(value) => {
                // The scheduler believed that those who read it here would find it.
                for waiter in core::mem::take(&mut self.objects.at_mut(slot).waiters) {
                    if let State::Pending(task) = &mut self.objects.at_mut(waiter).state
                        && let Some(inline) = &value.inline
                    {
                        task.fill(object, inline);
                        if task.missing == 0 {
                            let key = Key::new(task.assignment.priority, waiter);
                            self.ready.push(key);
                        }
                    }
                }
                effects.report(Report::Finished {
                    object,
                    value,
                    duration,
                });
                self.end_without_value(slot, effects);
            }
            Outcome::Raised(error) => {
                effects.report(Report::Failed {
                    object,
                    error,
                    duration,
                });
                self.end_without_value(slot, effects);
            }
            Outcome::GivenBack => {
                effects.report(Report::GivenBack(object));
                self.end_without_value(slot, effects);
            }
            Outcome::Missing(input) => {
                // In this order, or the scheduler might send the task here again.
                self.gone(input, effects);
                effects.report(Report::Unavailable {
                    object,
                    input,
                    tried: Holders::new(),
                });
                self.end_without_value(slot, effects);
            }
        }
        Ok(())
    }

    /// A task that was cancelled has ended.
    fn stopped(&mut self, object: ObjectId, slot: u32, outcome: Outcome, effects: &mut Effects) {
        match outcome {
            Outcome::Returned(value) if value.kept && Guard::Dropped.holds() => {
                effects.push(Effect::Drop(object));
            }
            Outcome::Missing(input) => self.gone(input, effects),
            _ => {}
        }
        if Guard::Stopped.holds() {
            effects.report(Report::Stopped(object));
        }
        self.objects.remove(slot);
    }

    pub(super) fn seceded(
        &mut self,
        object: ObjectId,
        effects: &mut Effects,
    ) -> Result<(), WorkerError> {
        self.turn(object, Activity::Running, Activity::Seceded, "seceded")?;
        self.busy -= 1;
        effects.report(Report::Seceded(object));
        Ok(())
    }

    pub(super) fn rejoin(&mut self, object: ObjectId) -> Result<(), WorkerError> {
        let slot = self.turn(object, Activity::Seceded, Activity::Rejoining, "rejoined")?;
        self.rejoining.push_back(slot);
        Ok(())
    }

    /// Gives free slots to tasks.
    #[inline]
    pub(super) fn start_tasks(&mut self, effects: &mut Effects) {
        while self.busy < self.config.threads {
            if let Some(slot) = self.rejoining.pop_front() {
                let entry = self.objects.at_mut(slot);
                if let State::Started { activity, .. } = &mut entry.state {
                    *activity = Activity::Running;
                }
                self.busy += 1;
                effects.push(Effect::Resume(entry.object));
                effects.report(Report::Rejoined(entry.object));
                continue;
            }
            // Memory comes free by running tasks, so one at least does.
            if self.held || self.paused && self.busy > 0 {
                break;
            }
            let Self { ready, objects, .. } = self;
            let Some(slot) = ready.pop(|key| Self::is_ready(objects, key)) else {
                break;
            };
            self.start(slot, effects);
        }
    }

    #[inline]
    fn start(&mut self, slot: u32, effects: &mut Effects) {
        let started = State::Started {
            activity: Activity::Running,
            cancelled: false,
        };
        let entry = self.objects.at_mut(slot);
        // The scheduler may not have known of these when it sent the task.
        let is_read_here = !entry.waiters.is_empty() || entry.copy;
        let State::Pending(task) = core::mem::replace(&mut entry.state, started) else {
            unreachable!("the ready queue holds tasks that have not started");
        };
        for &source in &task.sources {
            if source != NOWHERE {
                self.objects.at_mut(source).readers -= 1;
            }
        }
        self.busy += 1;
        self.pending -= 1;
        let assignment = task.assignment;
        let inputs = assignment.inputs.into_iter().map(|input| {
            let value = match input.place {
                Place::Inline(value) => Some(value),
                Place::Here | Place::At(_) => None,
            };
            (input.object, value)
        });
        effects.push(Effect::Run(Run {
            object: assignment.object,
            client: assignment.client,
            recipe: assignment.recipe,
            inputs: inputs.collect(),
            keep: assignment.keep || is_read_here,
            actor: assignment.actor,
        }));
    }

    /// A task that has started ends, and there is no value here.
    fn end_without_value(&mut self, slot: u32, effects: &mut Effects) {
        self.answer_copy(slot, Holders::new(), effects);
        let entry = self.objects.at_mut(slot);
        let object = entry.object;
        let waiters = core::mem::take(&mut entry.waiters);
        self.objects.remove(slot);
        self.report_unavailable(object, waiters, Holders::new(), effects);
    }

    /// Gives back the tasks `waiters`, since `input` cannot come, and those that wait for their
    /// values, and so on.
    pub(super) fn report_unavailable(
        &mut self,
        input: ObjectId,
        waiters: Vec<u32>,
        tried: Holders,
        effects: &mut Effects,
    ) {
        if waiters.is_empty() {
            return;
        }
        // Chains can be long, so it is a loop.
        let mut stack = vec![(input, waiters, tried)];
        while let Some((input, waiters, tried)) = stack.pop() {
            for waiter in waiters {
                let object = self.objects.at(waiter).object;
                // One that reads the value twice went at the first.
                if !matches!(self.objects.at(waiter).state, State::Pending(_)) {
                    continue;
                }
                effects.report(Report::Unavailable {
                    object,
                    input,
                    tried: tried.clone(),
                });
                let waiters = self.remove_pending(waiter, effects);
                if !waiters.is_empty() {
                    stack.push((object, waiters, Holders::new()));
                }
            }
        }
    }

    /// Forgets a task that has not started. Those that wait for its value are the caller's.
    pub(super) fn remove_pending(&mut self, slot: u32, effects: &mut Effects) -> Vec<u32> {
        self.answer_copy(slot, Holders::new(), effects);
        let waiters = core::mem::take(&mut self.objects.at_mut(slot).waiters);
        let State::Pending(task) = self.objects.remove(slot) else {
            unreachable!("the task has not started");
        };
        self.pending -= 1;
        if task.missing == 0 {
            let Self { ready, objects, .. } = self;
            ready.forget(|key| Self::is_ready(objects, key));
        }
        for source in task.sources {
            if source == NOWHERE {
                continue;
            }
            let entry = self.objects.at_mut(source);
            match entry.state {
                State::Stored => entry.readers -= 1,
                // It went before those that wait for it.
                State::Vacant => {}
                _ => {
                    entry.waiters.retain(|&waiter| waiter != slot);
                    self.abandon_if_idle(source);
                }
            }
        }
        waiters
    }

    #[inline]
    fn started(&self, object: ObjectId) -> Option<(u32, Activity, bool)> {
        let slot = self.objects.find(object)?;
        match self.objects.at(slot).state {
            State::Started {
                activity,
                cancelled,
            } => Some((slot, activity, cancelled)),
            _ => None,
        }
    }

    fn turn(
        &mut self,
        object: ObjectId,
        before: Activity,
        after: Activity,
        event: &'static str,
    ) -> Result<u32, WorkerError> {
        if let Some(slot) = self.objects.find(object)
            && let State::Started { activity, .. } = &mut self.objects.at_mut(slot).state
            && *activity == before
        {
            *activity = after;
            return Ok(slot);
        }
        Err(self.impossible(object, event))
    }

    pub(super) fn is_cancelled(&self, slot: u32) -> bool {
        let state = &self.objects.at(slot).state;
        matches!(
            state,
            State::Started {
                cancelled: true,
                ..
            }
        )
    }
}
