//! The head: the master, and a host engine in the place of Treadle's scheduler. It does what that one
//! does with tasks that have effects, and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_shuffle::{
    ApplicationId, Intake, Leases, Master, MasterEffect, MasterEvent, ServerId, ShuffleId, Spec,
    Standing, Tenant, ToMaster, ToNode, Verdict,
};
use treadle_types::Runs;

use crate::data::Source;
use crate::leases::LEASE;
use crate::tasks::{Failure, Task, Value, Work};
use crate::world::{Item, Pid, World};

/// Tasks that one worker is given at once.
const SLOTS: usize = 3;
/// A task that runs more often goes round in circles.
const RUNS: usize = 300;

/// From a process to the head.
#[derive(Clone, Debug)]
pub(super) enum Up {
    Joined,
    /// A server does not serve the master any more.
    Dismissed,
    Master(ToMaster),
    Finished(Task, u64, Value),
    Failed(Task, u64, Failure),
}

/// From the head to a process.
#[derive(Clone, Debug)]
pub(super) enum Down {
    Master(ToNode),
    Run(Task, u64, Work),
    Cancel(Task, u64),
    /// A process was declared lost.
    Gone(ServerId),
}

pub(super) struct Head {
    pub(super) master: Master,
    /// It has begun, and not ended in the middle.
    pub(super) is_there: bool,
    /// Workers, and whether they are to leave.
    workers: BTreeMap<ServerId, bool>,
    next_attempt: u64,
    pub(super) leases: Leases,
    /// Times at which leases are looked at that are to come.
    pub(super) looks: usize,
    /// Shuffles that have a group that was closed.
    split: BTreeSet<ShuffleId>,
    /// Something has changed that may let tasks run.
    is_changed: bool,
}

impl Head {
    pub(super) fn new(master: Master, is_there: bool) -> Self {
        Self {
            master,
            is_there,
            workers: BTreeMap::new(),
            next_attempt: 1,
            leases: Leases::new(LEASE),
            looks: 0,
            split: BTreeSet::new(),
            is_changed: false,
        }
    }

    pub(super) fn workers(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.workers.keys().copied()
    }
}

fn job_of_task(task: Task) -> usize {
    match task {
        Task::Transfer(shuffle, _) | Task::Barrier(shuffle) => job_of(shuffle),
        Task::Unpack(job, _) => job,
    }
}

fn job_of(shuffle: ShuffleId) -> usize {
    (shuffle.0 / 2) as usize
}

impl World {
    /// Something reaches the head.
    pub(super) fn head_hears(&mut self, from: ServerId, up: Up) -> Result<(), String> {
        match up {
            Up::Joined => return self.worker_joined(from),
            Up::Dismissed => return self.dismissed(from),
            _ => {}
        }
        if !self.heads[self.at].workers.contains_key(&from) {
            // Whether the words of a stranger change anything is the master's affair.
            return match up {
                Up::Master(message) => self.master(MasterEvent::Message { from, message }),
                _ => Ok(()),
            };
        }
        match up {
            Up::Joined | Up::Dismissed => {}
            Up::Master(message) => {
                self.suspect(&message)?;
                self.master(MasterEvent::Message { from, message })?;
            }
            Up::Finished(task, attempt, value) => self.finished(from, task, attempt, value)?,
            Up::Failed(task, attempt, failure) => self.failed(from, task, attempt, failure)?,
        }
        self.dispatch();
        Ok(())
    }

    /// Rows may be found wrong only if something made them wrong.
    fn suspect(&mut self, message: &ToMaster) -> Result<(), String> {
        let is_suspect = match message {
            ToMaster::Sealed { verdict, .. } => *verdict != Verdict::Complete,
            ToMaster::Damaged { .. } | ToMaster::Differs { .. } => true,
            _ => false,
        };
        self.summary.repairs += u64::from(is_suspect);
        let is_deterministic = self.jobs.iter().all(|job| job.plan.is_deterministic);
        // A copy that is filled where there is no room is as good as damaged.
        let is_full = self.plan.service.is_some() && self.plan.may_fail();
        let is_blameless = !self.plan.is_damaged() && !is_full;
        if is_suspect && is_blameless && is_deterministic {
            return Err(format!("nothing was damaged, and yet: {message:?}"));
        }
        Ok(())
    }

    fn worker_joined(&mut self, server: ServerId) -> Result<(), String> {
        let mut workers = self.heads[self.at].workers.keys().copied();
        let before = workers.find(|other| other.node == server.node);
        if before.is_some_and(|before| before.incarnation > server.incarnation) {
            // The word of a process that has ended came late: its connection is gone.
            return Ok(());
        }
        // The master finds out by itself that there was another process at this place.
        if let Some(before) = before {
            self.engine_loses(before);
            self.tell_gone(before);
        }
        self.heads[self.at].workers.insert(server, false);
        self.heads[self.at].is_changed = true;
        self.master(match self.plan.service {
            Some(service) => MasterEvent::Standing {
                server,
                standing: self.plan.standing(service, server.node),
            },
            None => MasterEvent::Joined(server),
        })?;
        self.dispatch();
        Ok(())
    }

    pub(super) fn worker_lost(&mut self, server: ServerId) -> Result<(), String> {
        if !self.heads[self.at].workers.contains_key(&server) {
            return Ok(());
        }
        self.summary.losses += 1;
        self.disturbs("it has lost a process");
        self.engine_loses(server);
        if self.is_shared() && server.node <= self.plan.servers() {
            self.hang_up(server);
            self.call_later(server.node);
        } else if let Some(&pid) = self.by_id.get(&server) {
            let heard = self.kernel.random.micros(100, 5_000);
            self.kernel.schedule(heard, Item::Stranger(pid));
        }
        self.master(MasterEvent::Lost(server))?;
        self.tell_gone(server);
        self.dispatch();
        Ok(())
    }

    /// All processes learn that one is lost.
    fn tell_gone(&mut self, server: ServerId) {
        for to in self.heads[self.at]
            .workers
            .keys()
            .copied()
            .collect::<Vec<_>>()
        {
            self.down(to, Down::Gone(server));
        }
    }

    pub(super) fn drain(&mut self, server: ServerId) -> Result<(), String> {
        if let Some(is_leaving) = self.heads[self.at].workers.get_mut(&server) {
            *is_leaving = true;
            self.master(MasterEvent::Draining(server))?;
        }
        Ok(())
    }

    /// A server that is there announces other room.
    pub(super) fn weigh(&mut self, server: ServerId, weight: u32) -> Result<(), String> {
        if let Some(service) = self.plan.service.filter(|_| self.is_known(server)) {
            self.summary.weighed += 1;
            // About a third is not known, and some was measured long ago.
            let drawn = u64::from(weight) * 37 + u64::from(server.node) * 13;
            let intake = Intake {
                rate: [0, 1, 2, 4, 10, 0, 3, 100][drawn as usize % 8],
                age: weight % 5,
            };
            let standing = Standing {
                weight,
                intake,
                ..self.plan.standing(service, server.node)
            };
            self.master(MasterEvent::Standing { server, standing })?;
        }
        Ok(())
    }

    /// What ran there runs again, and what tasks with effects did there is gone.
    fn engine_loses(&mut self, server: ServerId) {
        self.heads[self.at].workers.remove(&server);
        self.heads[self.at].is_changed = true;
        for index in 0..self.jobs.len() {
            let job = &mut self.jobs[index];
            let mut lost = Vec::new();
            for (&task, state) in &mut job.tasks {
                state.running.retain(|_, worker| *worker != server);
                if state.done.as_ref().is_some_and(|(_, _, by)| *by == server) {
                    lost.push(task);
                }
            }
            for task in lost {
                self.reset(index, task);
            }
        }
    }

    /// A value is gone; those that read it begin anew.
    fn reset(&mut self, index: usize, task: Task) {
        let job = &mut self.jobs[index];
        let Some(state) = job.tasks.get_mut(&task) else {
            return;
        };
        if state.done.take().is_none() {
            return;
        }
        self.heads[self.at].is_changed = true;
        let job = &self.jobs[index];
        for reader in job.readers(task) {
            self.cancel_attempts(index, reader, None);
        }
    }

    fn cancel_attempts(&mut self, index: usize, task: Task, except: Option<u64>) {
        let Some(state) = self.jobs[index].tasks.get_mut(&task) else {
            return;
        };
        self.heads[self.at].is_changed = true;
        let running = std::mem::take(&mut state.running);
        for (attempt, server) in running {
            if Some(attempt) != except {
                self.down(server, Down::Cancel(task, attempt));
            }
        }
    }

    /// An event for the master, and what it wants done.
    pub(super) fn master(&mut self, event: MasterEvent) -> Result<(), String> {
        let mut effects = Vec::new();
        let result = self.heads[self.at].master.handle(event, &mut effects);
        result.map_err(|error| format!("the master refuses: {error}"))?;
        let check = self.heads[self.at].master.check();
        check.map_err(|broken| format!("the master is broken: {broken}"))?;
        self.check_homes()?;
        for effect in effects {
            match effect {
                MasterEffect::Send { to, message } => {
                    if let ToNode::Plan(plan) = &message
                        && plan.groups.iter().any(|group| !group.is_open)
                        && self.heads[self.at].split.insert(plan.shuffle)
                    {
                        self.summary.epochs += 1;
                    }
                    self.down(to, Down::Master(message));
                }
                MasterEffect::Invalidate {
                    shuffle,
                    maps,
                    outputs,
                } => self.invalidate(shuffle, &maps, outputs),
                MasterEffect::NotDeterministic { shuffle, .. } => {
                    let job = &mut self.jobs[job_of(shuffle)];
                    if job.plan.is_deterministic {
                        return Err(format!(
                            "{shuffle:?} is deterministic, and is said not to be"
                        ));
                    }
                    if self.plan.stays {
                        return Err(format!("{shuffle:?} is made again, and all of it is there"));
                    }
                    self.summary.differences += 1;
                }
                MasterEffect::Drained(server) => {
                    self.kernel.schedule(Duration::ZERO, Item::Leave(server));
                }
            }
        }
        Ok(())
    }

    fn invalidate(&mut self, shuffle: ShuffleId, maps: &Runs, outputs: bool) {
        self.summary.invalidations += 1;
        self.disturbs("maps run again");
        if self.plan.is_kept && !maps.is_empty() {
            let text = format!("maps run again, and all rows are in the store: {maps:?}");
            self.disturbed.get_or_insert(text);
        }
        let index = job_of(shuffle);
        for map in maps.iter() {
            self.reset(index, Task::Transfer(shuffle, map as u32));
        }
        self.reset(index, Task::Barrier(shuffle));
        if outputs {
            for partition in self.jobs[index].plan.outputs.clone().iter() {
                self.reset(index, Task::Unpack(index, partition as u32));
            }
        }
    }

    pub(super) fn begin_job(&mut self, index: usize) -> Result<(), String> {
        let is_leased = self.plan.service.is_some() && !self.is_shared();
        let job = &mut self.jobs[index];
        job.is_begun = true;
        self.heads[self.at].is_changed = true;
        let first = job.sources[0].shuffle;
        if is_leased {
            let now = self.kernel.now();
            let application = ApplicationId(index as u64);
            for source in &job.sources {
                self.heads[self.at]
                    .leases
                    .grant(application, source.shuffle, now);
            }
            self.await_heartbeat(index);
        }
        let job = &mut self.jobs[index];
        let copies = self.plan.service.map_or(1, |service| service.copies);
        let events: Vec<MasterEvent> = job
            .sources
            .iter()
            .map(|source| MasterEvent::Register {
                shuffle: source.shuffle,
                spec: Spec {
                    tenant: Tenant {
                        application: ApplicationId(index as u64),
                        priority: 1 + index as u32 % 3,
                    },
                    maps: job.plan.maps,
                    partitions: job.plan.partitions,
                    outputs: job.plan.outputs.clone(),
                    aligned: (source.shuffle != first).then_some(first),
                    copies,
                    is_handed_over: self.plan.service.is_some(),
                    // Some are known to be small, or large.
                    expected: [0, 1, 200 << 20][source.shuffle.0 as usize % 3],
                    preferred: Vec::new(),
                    committed: None,
                },
            })
            .collect();
        for event in events {
            self.master(event)?;
        }
        self.dispatch();
        Ok(())
    }

    /// A job is over.
    pub(super) fn end_job(
        &mut self,
        index: usize,
        result: Result<(), String>,
    ) -> Result<(), String> {
        let job = &mut self.jobs[index];
        if !job.is_open() {
            return Ok(());
        }
        match &result {
            Ok(()) => self.summary.finished += 1,
            Err(_) => self.summary.failed += 1,
        }
        job.ended = Some(result);
        self.heads[self.at].is_changed = true;
        let tasks: Vec<Task> = job.tasks.keys().copied().collect();
        let shuffles: Vec<ShuffleId> = job.sources.iter().map(|source| source.shuffle).collect();
        for task in tasks {
            self.cancel_attempts(index, task, None);
        }
        // Who is gone says nothing.
        let job = &self.jobs[index];
        if self.plan.service.is_some() && job.is_cancelled() && job.plan.vanishes {
            self.summary.vanished += 1;
            self.dispatch();
            return Ok(());
        }
        for shuffle in shuffles {
            self.heads[self.at].leases.end(shuffle);
            self.master(MasterEvent::End(shuffle))?;
        }
        self.dispatch();
        self.leave_if_idle();
        Ok(())
    }

    /// The results of a job are not needed any more, if they are there.
    pub(super) fn release_job(&mut self, index: usize) -> Result<(), String> {
        let job = &mut self.jobs[index];
        if !job.is_open() {
            return Ok(());
        }
        job.plan.hold = Duration::ZERO;
        if job.is_complete() {
            job.verify()?;
            self.end_job(index, Ok(()))?;
        }
        Ok(())
    }

    fn finished(
        &mut self,
        from: ServerId,
        task: Task,
        attempt: u64,
        value: Value,
    ) -> Result<(), String> {
        self.heads[self.at].is_changed = true;
        let index = job_of_task(task);
        let job = &mut self.jobs[index];
        let Some(state) = job.tasks.get_mut(&task) else {
            return Ok(());
        };
        if state.running.remove(&attempt).is_none() || job.ended.is_some() {
            return Ok(());
        }
        if state.done.is_none() {
            state.done = Some((attempt, value, from));
        }
        self.cancel_attempts(index, task, Some(attempt));
        if let Task::Barrier(shuffle) = task {
            self.run_late(index, shuffle);
        }
        let job = &self.jobs[index];
        if matches!(task, Task::Unpack(..)) && job.is_complete() {
            job.verify()?;
            match job.plan.hold {
                Duration::ZERO => self.end_job(index, Ok(()))?,
                hold => self.kernel.schedule(hold, Item::Release(index)),
            }
        }
        Ok(())
    }

    fn failed(
        &mut self,
        from: ServerId,
        task: Task,
        attempt: u64,
        failure: Failure,
    ) -> Result<(), String> {
        self.heads[self.at].is_changed = true;
        let index = job_of_task(task);
        let Some(state) = self.jobs[index].tasks.get_mut(&task) else {
            return Ok(());
        };
        if state.running.remove(&attempt).is_none() {
            return Ok(());
        }
        state.shunned = Some(from);
        match failure {
            Failure::GivenBack(reason) => {
                self.summary.given_back += 1;
                self.kernel
                    .tell(|| format!("{task:?} #{attempt} is given back: {reason}"));
                Ok(())
            }
            Failure::Raised(reason) if self.plan.may_fail() => {
                self.end_job(index, Err(format!("{task:?}: {reason}")))
            }
            Failure::Raised(reason) => Err(format!("{task:?} failed: {reason}")),
        }
    }

    /// Gives ready tasks to workers with a free slot.
    pub(super) fn dispatch(&mut self) {
        if !std::mem::take(&mut self.heads[self.at].is_changed) {
            return;
        }
        for index in 0..self.jobs.len() {
            if !self.jobs[index].is_open() || self.jobs[index].plan.master != self.at {
                continue;
            }
            let tasks: Vec<Task> = self.jobs[index].tasks.keys().copied().collect();
            for task in tasks {
                let job = &self.jobs[index];
                let state = &job.tasks[&task];
                if state.done.is_some() || !state.running.is_empty() || !job.is_needed(task) {
                    continue;
                }
                if let Some(work) = job.work(task) {
                    self.assign(index, task, &work);
                }
            }
        }
    }

    fn load(&self, server: ServerId) -> usize {
        let tasks = self.jobs.iter().flat_map(|job| job.tasks.values());
        let running = tasks.flat_map(|state| state.running.values());
        running.filter(|&&other| other == server).count()
    }

    fn assign(&mut self, index: usize, task: Task, work: &Work) {
        let is_transfer = matches!(task, Task::Transfer(..));
        let twice = is_transfer && self.kernel.random.chance(self.plan.speculates);
        let mut used = BTreeSet::new();
        for _ in 0..1 + u32::from(twice) {
            let shunned = self.jobs[index].tasks[&task].shunned;
            let service = self.plan.service;
            let workers = self.heads[self.at].workers.iter().filter(|(server, _)| {
                !service.is_some_and(|service| service.is_server(server.node))
            });
            let free = workers
                .filter(|&(&server, _)| self.load(server) < SLOTS && !used.contains(&server));
            let free: Vec<(ServerId, bool)> = free.map(|(&s, &leaving)| (s, leaving)).collect();
            let good = free
                .iter()
                .filter(|(s, leaving)| !leaving && Some(*s) != shunned);
            let mut good: Vec<ServerId> = good.map(|(s, _)| *s).collect();
            if good.is_empty() {
                good = free.iter().map(|(s, _)| *s).collect();
            }
            if good.is_empty() {
                return;
            }
            let home = match task {
                Task::Unpack(_, partition) if self.kernel.random.chance(50) => {
                    let shuffle = self.jobs[index].sources[0].shuffle;
                    self.heads[self.at].master.home(shuffle, partition)
                }
                _ => None,
            };
            let server = match home.filter(|home| good.contains(home)) {
                Some(home) => home,
                None => good[self.kernel.random.index(good.len())],
            };
            used.insert(server);
            let attempt = self.heads[self.at].next_attempt;
            self.heads[self.at].next_attempt += 1;
            let state = self.jobs[index].tasks.get_mut(&task).expect("it is one");
            state.running.insert(attempt, server);
            state.history.insert(attempt);
            assert!(state.history.len() < RUNS, "{task:?} runs again and again");
            let mut work = work.clone();
            if let Work::Transfer { fails, again, .. } = &mut work {
                *fails = self.kernel.random.chance(self.plan.fails);
                *again &= self.plan.forgets == 0 || !self.kernel.random.chance(self.plan.forgets);
            }
            self.down(server, Down::Run(task, attempt, work));
        }
        if let Task::Barrier(shuffle) = task {
            self.run_late(index, shuffle);
        }
    }

    /// Maps run once more although nobody waits for it: the barrier begins, or has ended.
    fn run_late(&mut self, index: usize, shuffle: ShuffleId) {
        if self.plan.lates == 0 {
            return;
        }
        let workers = self.heads[self.at].workers.keys().copied();
        let service = self.plan.service;
        let workers =
            workers.filter(|server| !service.is_some_and(|service| service.is_server(server.node)));
        let workers: Vec<ServerId> = workers.collect();
        for map in 0..self.jobs[index].plan.maps {
            if workers.is_empty() || !self.kernel.random.chance(self.plan.lates) {
                continue;
            }
            let server = workers[self.kernel.random.index(workers.len())];
            let attempt = self.heads[self.at].next_attempt;
            self.heads[self.at].next_attempt += 1;
            let work = Work::Transfer {
                again: self.kernel.random.chance(50),
                fails: false,
                replaces: false,
            };
            self.down(
                server,
                Down::Run(Task::Transfer(shuffle, map), attempt, work),
            );
        }
    }

    pub(super) fn is_known(&self, server: ServerId) -> bool {
        self.heads[self.at].workers.contains_key(&server)
    }

    /// Two sides of a merge are at one place.
    fn check_homes(&self) -> Result<(), String> {
        let merges = self.jobs.iter().filter(|job| job.sources.len() > 1);
        for job in merges.filter(|job| job.is_open()) {
            for partition in job.plan.outputs.iter() {
                let mut sources = job.sources.iter();
                let home = |source: &Source| {
                    self.heads[self.at]
                        .master
                        .home(source.shuffle, partition as u32)
                };
                let homes = sources.next().map(home);
                if sources
                    .next()
                    .is_some_and(|source| Some(home(source)) != homes)
                {
                    return Err(format!("partition {partition} has two homes"));
                }
            }
        }
        Ok(())
    }

    /// A process that was declared lost learns it, and ends. There will be another.
    pub(super) fn expel(&mut self, pid: Pid) {
        if self.procs[pid].is_alive {
            self.kill(pid);
            let back = self.kernel.random.micros(100, 5_000);
            let place = self.procs[pid].id.node;
            self.kernel.schedule(back, Item::Start(place));
        }
    }

    /// What is open, for the report of a simulation that does not end.
    pub(super) fn open_tasks(&self) -> String {
        let jobs = self.jobs.iter().filter(|job| job.ended.is_none());
        let tasks = jobs.flat_map(|job| &job.tasks);
        let open = tasks.filter(|(_, state)| state.done.is_none());
        let open: Vec<String> = open
            .map(|(task, state)| format!("{task:?} {:?}", state.running))
            .collect();
        open.join(", ")
    }
}
