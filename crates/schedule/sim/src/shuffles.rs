//! Tasks of shuffles: what the Python of a worker does for Dask's P2P (`python/treadle/shuffle/_plugin.py`),
//! on the shuffle plane of the worker's process. The master is in the scheduler's core.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use treadle_client::Submission;
use treadle_messages::{Call, FromWorker, Registration, ToWorker};
use treadle_scheduler::State;
use treadle_shuffle::{Generation, Receipt, ServerId, ShuffleId};
use treadle_shuffle_sim::hosted::{Act, Ended, Output, Planes, Returned, Said};
use treadle_types::{Attempt, ObjectId, Runs, Value, WorkerId};
use treadle_worker::Outcome;

use crate::network::Message;
use crate::plan::{Node, Plan};
use crate::server::keywords;
use crate::universe::{Key, Part, recipe, shuffle_name};
use crate::world::{Item, Pid, World};

/// The first attempt of a task.
const FIRST: Attempt = Attempt(1);

/// How far a task is with its part in a shuffle.
#[derive(Debug)]
pub(crate) struct Shuffling {
    part: Part,
    stage: Stage,
}

impl Shuffling {
    pub(crate) fn new(part: Part) -> Self {
        let stage = Stage::Waits;
        Self { part, stage }
    }
}

#[derive(Debug)]
enum Stage {
    Waits,
    /// It asks the scheduler for the number of the shuffle. With the number that it used before, and why
    /// that did not do.
    Asks(Option<(ShuffleId, String)>),
    /// It tells the scheduler which maps have receipts of another run, for this reason.
    Tells(String),
    /// The plane does it; if the number is what the worker remembered, it may be an old one.
    Runs(ShuffleId, bool),
    Over(Result<Content, Ended>),
}

/// What is in a value, beside what the oracle of tasks looks at.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Receipt(Receipt),
    /// The number of the shuffle with the generation, as Dask's graph carries them.
    Committed(ShuffleId, Generation),
    Output(usize, u32, Output),
}

/// The shuffle plane of the workers, and what their tasks make.
pub(crate) struct Shuffles {
    planes: Planes,
    is_deterministic: bool,
    /// When it is looked at next.
    due: Option<Duration>,
    pids: BTreeMap<ServerId, Pid>,
    /// Questions of tasks that are open.
    asks: BTreeMap<u64, (Pid, ObjectId)>,
    next_ask: u64,
    contents: BTreeMap<ObjectId, Content>,
    /// The outputs that a value was computed from.
    derived: BTreeMap<ObjectId, BTreeSet<ObjectId>>,
    /// By shuffle and map, the attempts that there were.
    attempts: BTreeMap<(usize, u32), BTreeSet<u64>>,
}

impl Shuffles {
    pub(crate) fn new(seed: u64, plan: &Plan) -> Self {
        let mut shuffles = plan.universe.shuffles.iter();
        let is_deterministic = shuffles.all(|shuffle| shuffle.inputs.is_deterministic);
        Self {
            planes: Planes::new(seed, is_deterministic),
            is_deterministic,
            due: None,
            pids: BTreeMap::new(),
            asks: BTreeMap::new(),
            next_ask: 0,
            contents: BTreeMap::new(),
            derived: BTreeMap::new(),
            attempts: BTreeMap::new(),
        }
    }

    /// A task has returned a value, which was computed from others.
    pub(crate) fn returned(
        &mut self,
        object: ObjectId,
        content: Option<Content>,
        sources: impl Iterator<Item = ObjectId>,
    ) {
        let mut derived = BTreeSet::new();
        if let Some(Content::Output(..)) = content {
            derived.insert(object);
        }
        for source in sources {
            derived.extend(self.derived.get(&source).into_iter().flatten());
        }
        self.derived.insert(object, derived);
        self.contents
            .extend(content.map(|content| (object, content)));
    }
}

impl World {
    /// Whether an input of a shuffle may have other rows when it runs again.
    pub(crate) fn may_differ(&self) -> bool {
        let shuffles = self.shuffles.as_ref();
        shuffles.is_some_and(|shuffles| !shuffles.is_deterministic)
    }

    /// The scheduler hears of the shuffles among the tasks of a submission.
    pub(crate) fn register_shuffles(&self, tasks: &[Key], submission: &mut Submission<Key>) {
        for (index, shuffle) in self.plan.universe.shuffles.iter().enumerate() {
            let ranks = (0..).zip(tasks);
            let parts = ranks.map(|(rank, &key)| (rank, self.plan.universe.spec(key).part));
            let parts: Vec<_> = parts.collect();
            let is_barrier = |&(_, part): &(u32, _)| part == Some(Part::Barrier(index));
            let Some((barrier, _)) = parts.iter().copied().find(is_barrier) else {
                continue;
            };
            let reads = parts.iter().filter_map(|&(rank, part)| match part {
                Some(Part::Read(of, partition)) if of == index => Some((rank, partition)),
                _ => None,
            });
            let (readers, reads) = reads.unzip();
            submission.register(Registration {
                submission: 0,
                name: shuffle_name(index),
                barrier,
                maps: shuffle.inputs.maps,
                partitions: shuffle.inputs.partitions,
                outputs: shuffle.outputs.clone(),
                aligned: None,
                spec: bytes::Bytes::new(),
                kind: "shuffle".into(),
                service: None,
                readers,
                reads,
            });
        }
    }

    /// Has the planes do something now, and does what they say.
    fn with_planes(
        &mut self,
        act: impl FnOnce(&mut Planes) -> Result<(), String>,
    ) -> Result<(), String> {
        let now = self.kernel.now();
        let Some(shuffles) = &mut self.shuffles else {
            return Ok(());
        };
        let planes = &mut shuffles.planes;
        std::mem::swap(planes.trace(), &mut self.kernel.trace);
        let mut result = planes.advance(now);
        if result.is_ok() {
            result = act(planes);
        }
        std::mem::swap(planes.trace(), &mut self.kernel.trace);
        result?;
        let said = planes.said()?;
        if let Some(due) = planes.due()
            && shuffles.due.is_none_or(|at| due < at)
        {
            shuffles.due = Some(due);
            self.kernel.schedule_at(due, Item::Planes);
        }
        for (server, said) in said {
            self.plane_says(server, said)?;
        }
        Ok(())
    }

    /// Something is due at the planes.
    pub(crate) fn planes_due(&mut self) -> Result<(), String> {
        if let Some(shuffles) = &mut self.shuffles {
            shuffles.due = None;
        }
        self.with_planes(|_| Ok(()))
    }

    /// The scheduler has named a process.
    pub(crate) fn planes_gain(&mut self, id: WorkerId, machine: usize, pid: Pid) {
        if let Some(shuffles) = &mut self.shuffles {
            shuffles.pids.insert(id.into(), pid);
            shuffles.planes.joined(id.into(), machine as u32);
        }
    }

    /// A process has ended.
    pub(crate) fn planes_lose(&mut self, id: Option<WorkerId>) {
        if let Some(shuffles) = &mut self.shuffles
            && let Some(id) = id
        {
            shuffles.planes.killed(id.into());
        }
    }

    pub(crate) fn planes_pause(&mut self, pid: Pid, length: Duration) -> Result<(), String> {
        match self.processes.get(&pid).and_then(|process| process.id) {
            Some(id) => self.with_planes(|planes| {
                planes.paused(id.into(), length);
                Ok(())
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn planes_cut(
        &mut self,
        between: (Node, Node),
        length: Duration,
    ) -> Result<(), String> {
        let (Node::Machine(one), Node::Machine(other)) = between else {
            return Ok(());
        };
        self.with_planes(|planes| {
            planes.cut(one as u32, other as u32, length);
            Ok(())
        })
    }

    /// The plane of a process says something.
    fn plane_says(&mut self, server: ServerId, said: Said) -> Result<(), String> {
        let shuffles = self.shuffles.as_ref();
        let pid = shuffles.and_then(|shuffles| shuffles.pids.get(&server).copied());
        let Some(pid) = pid else {
            return Err(format!("{server:?} says {said:?}, and is nobody"));
        };
        let Some(process) = self.processes.get(&pid) else {
            return Ok(());
        };
        match said {
            Said::ToMaster(message) => {
                let message = FromWorker::ToMaster(message);
                let message = Message::FromWorker(Box::new(message));
                self.send_to_server(process.connection, message);
                Ok(())
            }
            Said::Over(attempt, result) => self.part_over(pid, ObjectId::from_u64(attempt), result),
        }
    }

    /// A process is told something for its plane, or its tasks.
    pub(crate) fn plane_told(&mut self, pid: Pid, message: ToWorker) -> Result<(), String> {
        let Some(me) = self.processes.get(&pid).and_then(|process| process.id) else {
            return Err(format!("process {pid} has no name, and hears {message:?}"));
        };
        match message {
            ToWorker::ToNode(message) => {
                self.with_planes(|planes| planes.hears(me.into(), message))
            }
            ToWorker::PeerLost(lost) => {
                self.with_planes(|planes| planes.hears_of_loss(me.into(), lost.into()))
            }
            ToWorker::Answer(answer) => {
                let shuffles = self.shuffles.as_mut();
                let asked = shuffles.and_then(|shuffles| shuffles.asks.remove(&answer.id));
                let Some((_, object)) = asked.filter(|(asker, _)| *asker == pid) else {
                    return Err(format!("process {pid} is answered what it has not asked"));
                };
                if self.part(pid, object).is_none() {
                    // It was cancelled a moment ago.
                    return Ok(());
                }
                if let Some(why) = self.told_what(pid, object) {
                    return self.end_part(pid, object, Err(Ended::GivenBack(why)));
                }
                let told = answer
                    .result
                    .map_err(|_| "a question about a shuffle fails")?;
                let told = Value::from_bytes(&told).map_err(|error| error.to_string())?;
                let number = match told {
                    Value::None => None,
                    Value::Tuple(told) => match told.first() {
                        Some(Value::Int(number)) => Some(ShuffleId(*number as u64)),
                        _ => return Err(format!("{told:?} is said of a shuffle")),
                    },
                    told => return Err(format!("{told:?} is said of a shuffle")),
                };
                self.part_told(pid, object, number)
            }
            message => Err(format!("process {pid} hears {message:?}")),
        }
    }

    /// A task begins with its part.
    pub(crate) fn shuffle(&mut self, pid: Pid, object: ObjectId) -> Result<(), String> {
        let Some(part) = self.part(pid, object) else {
            return Ok(());
        };
        let known = self.processes[&pid].shuffles.get(&part.shuffle()).copied();
        let read = self.numbers_read(pid, object)?;
        match known.filter(|known| read.iter().all(|number| number == known)) {
            Some(known) => self.run_part(pid, object, known, true),
            None => self.ask_for_shuffle(pid, object, None),
        }
    }

    fn part(&self, pid: Pid, object: ObjectId) -> Option<Part> {
        let job = self.processes.get(&pid)?.jobs.get(&object)?;
        Some(job.shuffling.as_ref()?.part)
    }

    /// Why a task was waiting until the scheduler knows of maps that are to run again.
    fn told_what(&self, pid: Pid, object: ObjectId) -> Option<String> {
        let job = self.processes.get(&pid)?.jobs.get(&object)?;
        match &job.shuffling.as_ref()?.stage {
            Stage::Tells(why) => Some(why.clone()),
            _ => None,
        }
    }

    fn set_stage(&mut self, pid: Pid, object: ObjectId, stage: Stage) {
        let process = self.processes.get_mut(&pid);
        let job = process.and_then(|process| process.jobs.get_mut(&object));
        if let Some(shuffling) = job.and_then(|job| job.shuffling.as_mut()) {
            shuffling.stage = stage;
        }
    }

    /// What the inputs of a task have.
    fn contents_read(&self, pid: Pid, object: ObjectId) -> Vec<&Content> {
        let process = self.processes.get(&pid);
        let job = process.and_then(|process| process.jobs.get(&object));
        let inputs = job.into_iter().flat_map(|job| &job.inputs);
        let shuffles = self.shuffles.as_ref();
        inputs
            .filter_map(|(source, _)| shuffles?.contents.get(source))
            .collect()
    }

    /// The numbers of the shuffle that the inputs of a task are of. A transfer has none.
    fn numbers_read(&self, pid: Pid, object: ObjectId) -> Result<Vec<ShuffleId>, String> {
        let part = self.part(pid, object);
        if let Some(Part::Transfer(..)) = part {
            return Ok(Vec::new());
        }
        let read = self.contents_read(pid, object).into_iter();
        let numbers = read.map(|content| match (part, content) {
            (Some(Part::Barrier(_)), Content::Receipt(receipt)) => Ok(receipt.transfer.shuffle),
            (Some(Part::Read(..)), Content::Committed(number, _)) => Ok(*number),
            (part, read) => Err(format!("{part:?} reads {read:?}")),
        });
        numbers.collect()
    }

    fn ask_for_shuffle(
        &mut self,
        pid: Pid,
        object: ObjectId,
        before: Option<(ShuffleId, String)>,
    ) -> Result<(), String> {
        let Some(part) = self.part(pid, object) else {
            return Ok(());
        };
        let name = Value::Str(shuffle_name(part.shuffle()));
        self.set_stage(pid, object, Stage::Asks(before));
        self.call_scheduler(pid, object, "shuffle", &keywords([("name", name)]));
        Ok(())
    }

    /// A task asks the scheduler something.
    fn call_scheduler(&mut self, pid: Pid, object: ObjectId, operation: &str, argument: &Value) {
        let Some(shuffles) = &mut self.shuffles else {
            return;
        };
        shuffles.next_ask += 1;
        let id = shuffles.next_ask;
        shuffles.asks.insert(id, (pid, object));
        let call = FromWorker::Call(Call {
            id,
            node: String::new(),
            operation: operation.into(),
            argument: argument.to_bytes().into(),
        });
        let connection = self.processes[&pid].connection;
        self.send_to_server(connection, Message::FromWorker(Box::new(call)));
    }

    /// The scheduler has said what the number of a shuffle is now.
    fn part_told(
        &mut self,
        pid: Pid,
        object: ObjectId,
        number: Option<ShuffleId>,
    ) -> Result<(), String> {
        let Some(part) = self.part(pid, object) else {
            return Ok(());
        };
        let read = self.numbers_read(pid, object)?;
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        if let Some(number) = number {
            process.shuffles.insert(part.shuffle(), number);
        }
        let job = process.jobs.get_mut(&object);
        let stage = job.and_then(|job| job.shuffling.as_mut());
        let before = match stage.map(|shuffling| &shuffling.stage) {
            Some(Stage::Asks(before)) => before.clone(),
            _ => return Ok(()),
        };
        let Some(number) = number else {
            let why = "the scheduler does not know this shuffle".into();
            return self.end_part(pid, object, Err(Ended::Raised(why)));
        };
        if let Some((before, why)) = before
            && number == before
        {
            return self.end_part(pid, object, Err(Ended::GivenBack(why)));
        }
        let others = (0..).zip(&read).filter(|(_, read)| **read != number);
        let others: Runs = others.map(|(map, _)| map).collect();
        if others.is_empty() {
            return self.run_part(pid, object, number, false);
        }
        let why = format!("it has the result of another run: {read:?}, now {number:?}");
        if !matches!(part, Part::Barrier(_)) {
            return self.end_part(pid, object, Err(Ended::Raised(why)));
        }
        self.set_stage(pid, object, Stage::Tells(why));
        self.summary.overtaken += 1;
        let maps = others.ranges().iter().map(|&(first, end)| {
            Value::Tuple(vec![Value::Int(first as i64), Value::Int(end as i64)])
        });
        let argument = keywords([
            ("name", Value::Str(shuffle_name(part.shuffle()))),
            ("number", Value::Int(number.0 as i64)),
            ("maps", Value::List(maps.collect())),
            ("outputs", Value::Bool(false)),
        ]);
        self.call_scheduler(pid, object, "shuffle_lost", &argument);
        Ok(())
    }

    fn run_part(
        &mut self,
        pid: Pid,
        object: ObjectId,
        number: ShuffleId,
        is_remembered: bool,
    ) -> Result<(), String> {
        let (Some(part), Some(me)) = (self.part(pid, object), self.processes[&pid].id) else {
            return Ok(());
        };
        let attempt = object.to_u64();
        let act = match (part, &self.contents_read(pid, object)[..]) {
            (Part::Transfer(_, map), _) => Act::Transfer {
                map,
                again: object.attempt > FIRST,
            },
            (Part::Barrier(_), receipts) => {
                let receipts = receipts.iter().map(|content| match content {
                    Content::Receipt(receipt) => Ok(receipt.clone()),
                    other => Err(format!("a barrier reads {other:?}")),
                });
                Act::Commit(receipts.collect::<Result<_, _>>()?)
            }
            (Part::Read(_, partition), [Content::Committed(_, generation)]) => {
                Act::Read(*generation, partition)
            }
            (part, read) => return Err(format!("{part:?} reads {read:?}")),
        };
        if let (Part::Transfer(shuffle, map), Some(shuffles)) = (part, &mut self.shuffles) {
            let attempts = shuffles.attempts.entry((shuffle, map)).or_default();
            attempts.insert(attempt);
        }
        self.set_stage(pid, object, Stage::Runs(number, is_remembered));
        let inputs = self.plan.universe.shuffles[part.shuffle()].inputs;
        self.with_planes(|planes| planes.begin(me.into(), attempt, (number, &inputs), act))
    }

    /// The plane is through with a task.
    fn part_over(
        &mut self,
        pid: Pid,
        object: ObjectId,
        result: Result<Returned, Ended>,
    ) -> Result<(), String> {
        let process = self.processes.get(&pid);
        let job = process.and_then(|process| process.jobs.get(&object));
        let Some(Shuffling {
            part,
            stage: Stage::Runs(number, is_remembered),
        }) = job.and_then(|job| job.shuffling.as_ref())
        else {
            return Ok(());
        };
        let (part, number) = (*part, *number);
        let content = match (result, part) {
            // It may have ended, and another one have its name.
            (Err(Ended::GivenBack(why)), Part::Transfer(..) | Part::Barrier(_))
                if *is_remembered =>
            {
                return self.ask_for_shuffle(pid, object, Some((number, why)));
            }
            (Err(ended), _) => Err(ended),
            (Ok(Returned::Receipt(receipt)), Part::Transfer(..)) => Ok(Content::Receipt(receipt)),
            (Ok(Returned::Generation(generation)), Part::Barrier(_)) => {
                Ok(Content::Committed(number, generation))
            }
            (Ok(Returned::Output(output)), Part::Read(shuffle, partition)) => {
                Ok(Content::Output(shuffle, partition, output))
            }
            (Ok(returned), part) => return Err(format!("{part:?} returns {returned:?}")),
        };
        self.end_part(pid, object, content)
    }

    fn end_part(
        &mut self,
        pid: Pid,
        object: ObjectId,
        result: Result<Content, Ended>,
    ) -> Result<(), String> {
        if let Err(why) = &result {
            self.kernel.tell(|| format!("{object:?} ends: {why:?}"));
        }
        self.set_stage(pid, object, Stage::Over(result));
        self.end(pid, object)
    }

    /// How a task has ended in whose place somebody asks. What is not over is given up.
    pub(crate) fn part_ended(
        &mut self,
        pid: Pid,
        object: ObjectId,
        (key, shuffling): (Key, Shuffling),
    ) -> Result<Result<Content, Outcome>, String> {
        let me = self.processes.get(&pid).and_then(|process| process.id);
        Ok(match (shuffling.stage, me) {
            (Stage::Over(Ok(content)), _) => Ok(content),
            (Stage::Over(Err(Ended::Raised(_))), _) => Err(Outcome::Raised(recipe(key))),
            (Stage::Runs(..), Some(me)) => {
                self.with_planes(|planes| planes.cancel(me.into(), object.to_u64()))?;
                Err(Outcome::GivenBack)
            }
            _ => Err(Outcome::GivenBack),
        })
    }

    /// The outputs that there are, and what was computed from them, are what the inputs have: of one
    /// attempt each.
    pub(crate) fn verify_shuffles(&mut self) -> Result<(), String> {
        let Some(shuffles) = &self.shuffles else {
            return Ok(());
        };
        let scheduler = self.server.scheduler();
        let tasks = self.server.tasks.values();
        let views = tasks.filter_map(|task| scheduler.task(*task));
        let there = views.filter(|view| view.state() == State::Memory);
        let derived = there.filter_map(|view| shuffles.derived.get(&view.object()));
        let objects: BTreeSet<ObjectId> = derived.flatten().copied().collect();
        for (index, shuffle) in self.plan.universe.shuffles.iter().enumerate() {
            let contents = objects.iter().map(|object| &shuffles.contents[object]);
            let outputs = contents.filter_map(|content| match content {
                Content::Output(of, partition, output) if *of == index => {
                    Some((*partition, output))
                }
                _ => None,
            });
            let outputs: Vec<_> = outputs.collect();
            self.summary.compared += outputs.len() as u64;
            let attempts = |map| {
                let attempts = shuffles.attempts.get(&(index, map));
                attempts.cloned().unwrap_or_default()
            };
            Planes::verify(&shuffle.inputs, attempts, outputs)?;
        }
        Ok(())
    }

    /// Nothing of a shuffle is left.
    pub(crate) fn verify_no_shuffles(&mut self) -> Result<(), String> {
        let (left, all) = self.server.core.shuffle_counts();
        let Some(shuffles) = &self.shuffles else {
            return Ok(());
        };
        let done = shuffles.planes.summary();
        self.summary.shuffles = all;
        self.summary.transfers = done.transfers;
        self.summary.reused = done.reused;
        self.summary.outputs = done.outputs;
        self.summary.unreached = done.unreached;
        self.summary.spills = done.spills;
        if left > 0 {
            return Err(format!("the master keeps {left} shuffles"));
        }
        shuffles.planes.must_be_empty()
    }
}
