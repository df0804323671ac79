//! A slot that is free is used, as long as there is a task that may run there.

use std::time::Duration;

use treadle_scheduler::{State, TaskView, WorkerStatus};
use treadle_types::{Constraint, ObjectId, TaskId, WorkerId};
use treadle_worker::Status;

use crate::plan::{Node, RESOURCE};
use crate::universe::Key;
use crate::world::World;

/// A worker with a free slot is sent a task within so long, beyond what the budget of memory takes:
/// some ticks of the scheduler, and messages there and back.
const PROMPT: Duration = Duration::from_millis(1_000);
/// For so long a fetch that failed keeps tasks from workers.
const CUT: Duration = Duration::from_millis(6_000);

impl World {
    /// Called at each tick of the scheduler.
    pub(crate) fn verify_liveness(&mut self) -> Result<(), String> {
        let workers: Vec<_> = self.server.there();
        for worker in workers {
            let waiting = self.task_for(worker);
            let now = self.kernel.now();
            let Some((task, key)) = waiting else {
                self.oracle.idle.remove(&worker);
                continue;
            };
            let since = *self.oracle.idle.entry(worker).or_insert(now);
            if now > since + PROMPT + self.plan.config.relief {
                let view = self.server.scheduler().task(task);
                let how = view.map(|view| (view.state(), view.worker(), view.inputs().count()));
                let constraint = self.constraint(key);
                let at = self.server.scheduler().worker(worker);
                let at = at.map(|at| {
                    let stopping: Vec<_> = at.stopping().collect();
                    (at.assigned(), at.ahead(), at.seceded(), stopping)
                });
                return Err(format!(
                    "{worker:?} has had a free slot since {since:?}, and {task:?} of {key:?} waits: \
                     {how:?} {constraint:?} {at:?}"
                ));
            }
        }
        Ok(())
    }

    /// A task that could begin at a worker and has not anywhere, if the worker has a slot for it.
    fn task_for(&self, worker: WorkerId) -> Option<(TaskId, Key)> {
        let registration = self.server.workers.get(&worker)?;
        let plan = &self.plan.machines[registration.machine];
        let is_reached = self.is_reached(worker);
        let view = self.server.scheduler().worker(worker)?;
        if !is_reached
            || view.status() != WorkerStatus::Running
            || self
                .oracle
                .unfetched
                .is_some_and(|at| self.kernel.now() < at + CUT)
        {
            return None;
        }
        let (mut slots, mut resource) = (0, 0.0);
        for (_, attempt) in self.oracle.open_at(worker) {
            // One that was cancelled may have begun before its inputs went.
            slots += u32::from(attempt.is_cancelled || self.oracle.takes_slot(attempt));
            resource += attempt.key.map_or(0.0, |key| self.needs(key));
        }
        if slots >= plan.threads {
            return None;
        }
        self.server.scheduler().tasks().find_map(|task| {
            let key = *self.server.keys.get(&task.id())?;
            let waits = match task.state() {
                State::Ready => true,
                // It may have begun, and the scheduler not have heard.
                State::Assigned => task.worker().is_some_and(|at| {
                    at != worker && !task.is_ahead() && self.is_queued_at(at, task.object())
                }),
                _ => false,
            };
            (waits && self.may_run(key, worker, plan.resource - resource))
                .then_some((task.id(), key))
        })
    }

    /// Whether a worker's process is there and hears the scheduler.
    fn is_reached(&self, worker: WorkerId) -> bool {
        let Some(registration) = self.server.workers.get(&worker) else {
            return false;
        };
        let machine = registration.machine;
        let process = self.current[machine].and_then(|pid| self.processes.get(&pid));
        let is_there = process.is_some_and(|process| process.id == Some(worker));
        let pid = self.current[machine].unwrap_or_default();
        let is_paused = self.kernel.paused_until(Node::Process(pid)).is_some();
        let cut = self.kernel.cut_until(Node::Server, Node::Machine(machine));
        is_there && !is_paused && cut.is_none()
    }

    /// Whether an attempt waits at a worker for a slot.
    fn is_queued_at(&self, worker: WorkerId, object: ObjectId) -> bool {
        let Some(registration) = self.server.workers.get(&worker) else {
            return false;
        };
        let pid = self.current[registration.machine];
        let process = pid.and_then(|pid| self.processes.get(&pid));
        // A task runs ahead of an input that is counted as lost: the worker got it before its last
        // holder went. The scheduler takes its slot for free then.
        let core = self.server.scheduler();
        let is_unknown = |task: TaskView<'_>| {
            let status = process.and_then(|process| process.core.status(task.object()));
            task.is_ahead() && status == Some(Status::Running)
        };
        let tasks = core.worker(worker).into_iter().flat_map(|at| at.assigned());
        let mut tasks = tasks.filter_map(|task| core.task(task));
        self.is_reached(worker)
            && !tasks.any(is_unknown)
            && process.is_some_and(|process| process.core.status(object) == Some(Status::Ready))
    }

    /// How much of the resource the task of a key needs.
    fn needs(&self, key: Key) -> f64 {
        let constraint = self.constraint(key);
        let resources = constraint.map_or(&[][..], |constraint| &constraint.resources);
        let of = resources
            .iter()
            .filter(|(resource, _)| *resource == RESOURCE);
        of.map(|(_, amount)| amount).sum()
    }

    fn constraint(&self, key: Key) -> Option<&Constraint> {
        let index = self.plan.universe.spec(key).constraint.checked_sub(1)?;
        self.plan.constraints.get(index as usize)
    }

    /// Whether the task of a key may run at a worker that has so much of the resource.
    fn may_run(&self, key: Key, worker: WorkerId, resource: f64) -> bool {
        let spec = self.plan.universe.spec(key);
        let is_fixed = |input: &Key| {
            let input = self.plan.universe.spec(*input);
            input.is_actor || input.is_immovable
        };
        // Those that asked to run elsewhere do.
        if spec.gives_back > 0 || spec.part.is_some() || self.needs(key) > resource {
            return false;
        }
        let name = self.plan.machines[self.places[&worker]].name;
        let may = self.constraint(key).is_none_or(|constraint| {
            constraint.workers.is_empty() || constraint.workers.contains(&name)
        });
        may && !spec.inputs.iter().any(is_fixed)
    }
}
