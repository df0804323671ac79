//! A worker's process: the production core, with a simulated store, executor and peers around it.

mod values;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use treadle_shuffle::ShuffleId;
use treadle_types::{ObjectId, Report, Returned, WorkerId};
use treadle_worker::{Config, Effect, Effects, Event, Outcome, Run, Worker};

use crate::network::Message;
use crate::plan::{Node, RESOURCE};
use crate::shuffles::Shuffling;
use crate::universe::{Habit, Key, LONGEST_WAIT, Raises, decode, encode, key_of_task, recipe};
use crate::world::{Item, Party, Pid, World};

treadle_guards::guards! {
    /// What the process around a worker's core sees to.
    pub enum Guard {
        /// It answers a request for a value with what that attempt of the task returned.
        PeerAttempt,
        /// A running task reads its inputs when it begins, not when it ends.
        Pin,
    }
}

/// How often a worker says how it is.
const HEARTBEAT: Duration = Duration::from_millis(150);
/// How often a task looks whether what it waits for has happened.
const LOOK: Duration = Duration::from_millis(20);
/// How long a worker waits for a value beyond the time that it travels.
pub(crate) const PATIENCE: Duration = Duration::from_millis(300);

pub(crate) struct Stored {
    pub(crate) value: u64,
    pub(crate) nbytes: u64,
    pub(crate) is_readable: bool,
    is_actor: bool,
    /// What cannot be sent, of this key.
    immovable: Option<Key>,
}

/// A task that runs.
pub(crate) struct Job {
    pub(crate) key: Key,
    keep: bool,
    /// Where the inputs are, and what they were when the task began.
    pub(crate) inputs: Vec<(ObjectId, u64)>,
    steps: VecDeque<(Duration, Step)>,
    has_slot: bool,
    /// What it does in a shuffle.
    pub(crate) shuffling: Option<Shuffling>,
    /// An input that cannot be read.
    missing: Option<ObjectId>,
    is_interrupted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Secede,
    Rejoin,
    /// It waits until the task of the key has run, or until that time.
    Wait(Key, Duration),
    /// It does its part in a shuffle, which takes as long as that takes.
    Shuffle,
    End,
}

pub(crate) struct Process {
    pub(crate) machine: usize,
    pub(crate) connection: usize,
    pub(crate) id: Option<WorkerId>,
    pub(crate) core: Worker,
    pub(crate) store: BTreeMap<ObjectId, Stored>,
    pub(crate) jobs: BTreeMap<ObjectId, Job>,
    /// The numbers of shuffles, as the scheduler said last.
    pub(crate) shuffles: BTreeMap<usize, ShuffleId>,
    /// Values that are asked for.
    requests: BTreeMap<u64, (ObjectId, WorkerId)>,
    is_out_of_memory: bool,
}

impl World {
    pub(crate) fn start_process(&mut self, machine: usize) {
        if self.current[machine].is_some() {
            return;
        }
        let pid = self.next_pid;
        self.next_pid += 1;
        let connection = self.connect(Node::Machine(machine), Some(pid));
        let (fetches_per_peer, fetch_bytes) = self.plan.fetches;
        let core = Worker::new(Config {
            threads: self.plan.machines[machine].threads,
            fetch_bytes,
            fetches_per_peer,
        });
        let process = Process {
            machine,
            connection,
            id: None,
            core,
            store: BTreeMap::new(),
            jobs: BTreeMap::new(),
            shuffles: BTreeMap::new(),
            requests: BTreeMap::new(),
            is_out_of_memory: false,
        };
        self.processes.insert(pid, process);
        self.current[machine] = Some(pid);
        self.send_to_server(connection, Message::Register(machine));
        self.kernel.schedule(HEARTBEAT, Item::Heartbeat(pid));
    }

    /// Ends a process. The scheduler's side sees the end of the connection `delay` later.
    pub(crate) fn kill(&mut self, pid: Pid, loses: bool, delay: Duration) {
        let Some(process) = self.processes.remove(&pid) else {
            return;
        };
        self.kernel
            .tell(|| format!("process {pid} of machine {} ends", process.machine));
        let id = process.id;
        self.current[process.machine] = None;
        self.connections[process.connection].is_broken = loses;
        self.close(process.connection, true, delay);
        self.planes_lose(id);
    }

    pub(crate) fn process_told(&mut self, pid: Pid, message: Message) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        match message {
            Message::Welcome(id) => {
                process.id = Some(id);
                let machine = process.machine;
                self.planes_gain(id, machine, pid);
                Ok(())
            }
            Message::Command(command) => self.process_event(pid, Event::Command(command)),
            Message::ToWorker(message) => self.plane_told(pid, *message),
            Message::Leave | Message::Closed => {
                let machine = process.machine;
                self.kill(pid, false, Duration::ZERO);
                let delay = self.kernel.random.micros(1_000, 500_000);
                self.kernel.schedule(delay, Item::Start(machine));
                Ok(())
            }
            _ => Err("a worker was told what only the scheduler or a client hears".into()),
        }
    }

    pub(crate) fn heartbeat(&mut self, pid: Pid) -> Result<(), String> {
        if let Some(process) = self.processes.get(&pid) {
            let target = self.plan.machines[process.machine].target();
            let (connection, health) = (process.connection, process.health(target));
            self.send_to_server(connection, Message::Report(health));
            self.kernel.schedule(HEARTBEAT, Item::Heartbeat(pid));
        }
        Ok(())
    }

    /// A process runs out of memory, or has enough again.
    pub(crate) fn memory(&mut self, pid: Pid, is_out: bool) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        process.is_out_of_memory = is_out;
        let target = self.plan.machines[process.machine].target();
        let (connection, health) = (process.connection, process.health(target));
        self.send_to_server(connection, Message::Report(health));
        if !is_out {
            self.process_event(pid, Event::Held(false))?;
            return self.process_event(pid, Event::Paused(false));
        }
        // Or somebody wants no task to start there, which the scheduler hears in the same way.
        let is_held = self.with_other_stream(|world| world.kernel.random.chance(50));
        self.process_event(
            pid,
            match is_held {
                true => Event::Held(true),
                false => Event::Paused(true),
            },
        )
    }

    pub(crate) fn process_event(&mut self, pid: Pid, event: Event) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let mut effects = Effects::default();
        let handled = process.core.handle(event, &mut effects);
        handled.map_err(|error| format!("process {pid}: {error}"))?;
        if self.kernel.steps().is_multiple_of(self.plan.check_every) {
            process.core.check()?;
        }
        for effect in effects.0 {
            self.kernel.tell(|| format!("process {pid}: {effect:?}"));
            self.carry_out(pid, effect)?;
        }
        self.check_process(pid)
    }

    fn carry_out(&mut self, pid: Pid, effect: Effect) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        match effect {
            Effect::Run(run) => self.begin(pid, run)?,
            Effect::Resume(object) => {
                if let Some(job) = process.jobs.get_mut(&object) {
                    job.has_slot = true;
                    let delay = job.steps.front().map_or(Duration::ZERO, |step| step.0);
                    self.kernel.schedule(delay, Item::Job(pid, object));
                }
            }
            Effect::Interrupt(object) => {
                self.summary.interrupted += 1;
                // Some functions notice, others run on. Those of shuffles look all the time.
                let is_shuffling = process.jobs.get(&object);
                let is_shuffling = is_shuffling.is_some_and(|job| job.shuffling.is_some());
                if (is_shuffling || self.kernel.random.chance(50))
                    && let Some(process) = self.processes.get_mut(&pid)
                    && let Some(job) = process.jobs.get_mut(&object)
                {
                    job.is_interrupted = true;
                    job.steps = VecDeque::from([(Duration::ZERO, Step::End)]);
                    let longest = if is_shuffling { 25_000 } else { 1_000 };
                    let delay = self.kernel.random.micros(0, longest);
                    self.kernel.schedule(delay, Item::Job(pid, object));
                }
            }
            Effect::Fetch {
                object,
                from,
                nbytes,
            } => {
                let request = self.next_request + 1;
                process.requests.insert(request, (object, from));
                self.request(Party::Process(pid), from, object, nbytes);
            }
            Effect::Drop(object) => {
                process.store.remove(&object);
            }
            Effect::Report(report) => {
                if matches!(report, Report::Retracted(_)) {
                    self.summary.retracted += 1;
                }
                let connection = process.connection;
                self.send_to_server(connection, Message::Report(report));
            }
        }
        Ok(())
    }

    fn begin(&mut self, pid: Pid, run: Run) -> Result<(), String> {
        let object = run.object;
        let Some(key) = key_of_task(&run.recipe) else {
            return Err(format!("{object:?} has a recipe that is none"));
        };
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let spec = self.plan.universe.spec(key);
        if spec.inputs.len() != run.inputs.len() {
            return Err(format!(
                "{object:?} runs with other inputs than {key:?} has"
            ));
        }
        let mut missing = None;
        let mut inputs = Vec::new();
        for (&input, (source, inline)) in spec.inputs.iter().zip(&run.inputs) {
            let value = match (inline, process.store.get(source)) {
                (Some(inline), _) => decode(inline),
                (None, Some(stored)) if stored.is_readable => Some(stored.value),
                (None, Some(_)) => {
                    missing = Some(*source);
                    continue;
                }
                (None, None) => None,
            };
            let Some(value) = value else {
                return Err(format!("{object:?} runs without its input {source:?}"));
            };
            if !self.oracle.versions.was_current(input, value) {
                return Err(format!(
                    "{object:?} reads {source:?}, which is not the value of {input:?}"
                ));
            }
            inputs.push((*source, value));
        }
        let third = spec.duration / 3;
        let steps = match (missing, spec.habit) {
            (Some(_), _) => vec![(Duration::ZERO, Step::End)],
            (None, _) if spec.part.is_some() => vec![(spec.duration, Step::Shuffle)],
            (None, Habit::Plain) => vec![(spec.duration, Step::End)],
            (None, Habit::Secedes) => vec![
                (third, Step::Secede),
                (third, Step::Rejoin),
                (third, Step::End),
            ],
            (None, Habit::Leaves) => vec![(third, Step::Secede), (2 * third, Step::End)],
            (None, Habit::Waits(key)) => vec![
                (
                    spec.duration,
                    Step::Wait(key, self.kernel.now() + LONGEST_WAIT),
                ),
                (Duration::ZERO, Step::End),
            ],
        };
        let first = steps[0].0;
        let job = Job {
            key,
            keep: run.keep,
            inputs,
            steps: steps.into(),
            has_slot: true,
            shuffling: spec.part.map(Shuffling::new),
            missing,
            is_interrupted: false,
        };
        process.jobs.insert(object, job);
        self.kernel.schedule(first, Item::Job(pid, object));
        Ok(())
    }

    /// The next step of a running task.
    pub(crate) fn job(&mut self, pid: Pid, object: ObjectId) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let Some(job) = process.jobs.get_mut(&object) else {
            return Ok(());
        };
        let Some((_, step)) = job.steps.pop_front() else {
            return Ok(());
        };
        let next = job.steps.front().map_or(Duration::ZERO, |step| step.0);
        match step {
            Step::Secede => {
                job.has_slot = false;
                self.kernel.schedule(next, Item::Job(pid, object));
                self.process_event(pid, Event::Seceded(object))
            }
            // It goes on when it is told to.
            Step::Rejoin => self.process_event(pid, Event::Rejoining(object)),
            Step::Wait(key, until) => {
                let goes_on = self.kernel.now() >= until || self.oracle.has_run(key);
                if !goes_on {
                    job.steps.push_front((LOOK, step));
                }
                self.kernel
                    .schedule(if goes_on { next } else { LOOK }, Item::Job(pid, object));
                Ok(())
            }
            Step::Shuffle => self.shuffle(pid, object),
            Step::End => self.end(pid, object),
        }
    }

    pub(crate) fn end(&mut self, pid: Pid, object: ObjectId) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let Some(job) = process.jobs.remove(&object) else {
            return Ok(());
        };
        self.summary.runs += 1;
        let shuffled = match job.shuffling {
            Some(shuffling) if job.missing.is_none() => {
                Some(self.part_ended(pid, object, (job.key, shuffling))?)
            }
            _ => None,
        };
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let spec = self.plan.universe.spec(job.key);
        let runs = self.oracle.count_run(job.key);
        let gives_back = !job.is_interrupted && runs <= spec.gives_back;
        // One of a shuffle that nobody wants any more has ended by itself a moment before, or is given back.
        let raises = job.is_interrupted && shuffled.is_none()
            || match spec.raises {
                Raises::Never => false,
                Raises::Times(times) => runs <= spec.gives_back + times,
                Raises::Always => true,
            };
        let outcome = if let Some(missing) = job.missing {
            process.store.remove(&missing);
            self.summary.gone += 1;
            Outcome::Missing(missing)
        } else if let Some(Err(outcome)) = shuffled {
            self.summary.given_back += u64::from(matches!(outcome, Outcome::GivenBack));
            outcome
        } else if gives_back {
            self.summary.given_back += 1;
            Outcome::GivenBack
        } else if raises {
            Outcome::Raised(recipe(job.key))
        } else {
            if !Guard::Pin.holds() {
                for (source, _) in &job.inputs {
                    if !process.store.contains_key(source) {
                        return Err(format!("{object:?} ends without its input {source:?}"));
                    }
                }
            }
            let content = shuffled.and_then(Result::ok);
            if let Some(shuffles) = &mut self.shuffles {
                let sources = job.inputs.iter().map(|input| input.0);
                shuffles.returned(object, content, sources);
            }
            let inputs = job.inputs.iter().map(|input| input.1);
            let value = self.oracle.versions.evaluate(job.key, inputs);
            let is_small = spec.is_small();
            let kept = job.keep || !is_small;
            if kept {
                let stored = Stored {
                    value,
                    nbytes: spec.nbytes,
                    is_readable: true,
                    is_actor: spec.is_actor,
                    immovable: spec.is_immovable.then_some(job.key),
                };
                process.store.insert(object, stored);
            }
            Outcome::Returned(Returned {
                nbytes: spec.nbytes,
                inline: is_small.then(|| encode(value)),
                kept,
                class: bytes::Bytes::new(),
            })
        };
        let ran = Event::Ran {
            object,
            outcome,
            duration: spec.duration,
        };
        self.process_event(pid, ran)
    }

    /// What must hold at a worker's process, whatever its core believes.
    fn check_process(&self, pid: Pid) -> Result<(), String> {
        let Some(process) = self.processes.get(&pid) else {
            return Ok(());
        };
        let machine = &self.plan.machines[process.machine];
        let running = process.jobs.values().filter(|job| job.has_slot).count();
        if running > machine.threads as usize {
            return Err(format!(
                "process {pid} runs {running} tasks on {} slots",
                machine.threads
            ));
        }
        let mut used = 0.0;
        for (object, job) in &process.jobs {
            let spec = self.plan.universe.spec(job.key);
            if spec.constraint == 0 {
                continue;
            }
            let constraint = &self.plan.constraints[spec.constraint as usize - 1];
            let needs = constraint.resources.iter();
            used += needs.map(|(_, amount)| amount).sum::<f64>();
            let is_allowed = constraint.allow_other
                || constraint.workers.is_empty()
                || constraint.workers.contains(&machine.name);
            if !is_allowed {
                return Err(format!(
                    "{object:?} runs on {:?}, which it may not",
                    machine.name
                ));
            }
        }
        if used > machine.resource {
            return Err(format!(
                "process {pid} runs tasks that need {used} of {RESOURCE:?}, and has {}",
                machine.resource
            ));
        }
        Ok(())
    }
}

impl Process {
    /// How it is, with the memory from which on values go to disk.
    fn health(&self, target: u64) -> Report {
        let all: u64 = self.store.values().map(|stored| stored.nbytes).sum();
        let managed = all.min(target);
        Report::Health {
            managed,
            process: managed,
            spilled: all - managed,
            paused: self.is_out_of_memory,
        }
    }

    /// Whether the store holds what the core believes.
    pub(crate) fn check_store(&self) -> Result<(), String> {
        let believed = self.core.objects();
        let mut believed: Vec<_> = believed
            .filter(|(_, status)| *status == treadle_worker::Status::Stored)
            .map(|(object, _)| object)
            .collect();
        believed.sort_unstable();
        let held: Vec<_> = self.store.keys().copied().collect();
        match believed == held {
            true => Ok(()),
            false => Err(format!(
                "a store holds {held:?}, its core believes {believed:?}"
            )),
        }
    }
}
