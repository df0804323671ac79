//! The devices of the directories, each with its machine and the threads that read.
//!
//! Whoever writes, or reads to copy, waits for its turn ([`DeviceQueue::turn`]). Reads of partitions are jobs
//! ([`DeviceQueue::load`]), which the threads of the device carry out.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use treadle_memory::{Buffer, Pool};
use treadle_reactor::thread::{self, caught, lock};
use treadle_reactor::{awake, clock};
use treadle_shuffle::{
    Access, Config, Device, DeviceEffect, DeviceEvent, DeviceOptions, DeviceStanding, Limit,
    Outcome, Request, Tenant,
};
use treadle_volume::{File, Volume};

use crate::Inner;
use crate::held::Held;
use crate::reports::Reports;
use crate::run::{Part, Run};

/// Bytes that are read or written in one turn: what others wait for.
pub(crate) const STEP: u64 = 4 << 20;
/// How long somebody waits who is told that too much waits, and how often who waits looks whether it is over.
const LATER: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_secs(1);

/// A device with something that takes so long does nothing.
pub(crate) const STUCK: Duration = Duration::from_secs(10);

/// A run in a file.
pub(crate) struct FileRun {
    pub(crate) run: Run,
    pub(crate) file: File,
    pub(crate) queue: Arc<DeviceQueue>,
}

/// A partition that is to be read from a run.
pub(crate) struct Load {
    pub(crate) load: u64,
    pub(crate) number: u64,
    pub(crate) part: Part,
    pub(crate) tenant: Tenant,
    pub(crate) run: Arc<FileRun>,
    /// Whether nobody waits for it any more.
    pub(crate) is_over: Arc<AtomicBool>,
}

/// What is to be read in the turns of a load, and what was read.
struct Job {
    of: Load,
    begin: u64,
    end: u64,
    /// Up to here it was read.
    at: u64,
    buffer: Option<Buffer>,
}

impl Job {
    /// The bytes of the next turn.
    fn step(&self) -> u64 {
        (self.end - self.at).min(STEP)
    }

    fn is_wanted(&self) -> bool {
        !self.of.is_over.load(Ordering::Acquire)
    }
}

/// What is asked of a device, of this run and for this application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) tenant: Tenant,
    pub(crate) run: u64,
    pub(crate) offset: u64,
}

/// What a device says about itself.
#[derive(Clone, Debug)]
pub struct DeviceStats {
    /// The directories on it.
    pub directories: Vec<PathBuf>,
    pub standing: DeviceStanding,
}

/// All devices of a volume.
pub(crate) struct Devices {
    queues: Vec<Arc<DeviceQueue>>,
    /// The device of each directory.
    of_directory: Vec<usize>,
}

impl Devices {
    /// Those of a volume, with their threads.
    ///
    /// # Errors
    /// A thread could not start.
    pub(crate) fn start(
        volume: &Volume,
        config: &Config,
        inner: &Weak<Inner>,
        held: &Arc<Held>,
    ) -> io::Result<Self> {
        let paths: Vec<PathBuf> = volume.directories().map(PathBuf::from).collect();
        let mut devices = Self {
            queues: Vec::new(),
            of_directory: vec![0; paths.len()],
        };
        for device in volume.devices() {
            let options = DeviceOptions::new(config, device.is_rotational);
            let depth = options.depth;
            let directories = device.directories.iter().map(|&at| paths[at].clone());
            let queue = Arc::new(DeviceQueue {
                directories: directories.collect(),
                state: Mutex::new(State::new(Device::new(options))),
                changed: Condvar::new(),
            });
            for at in device.directories {
                devices.of_directory[at] = devices.queues.len();
            }
            devices.queues.push(Arc::clone(&queue));
            let number = devices.queues.len();
            for _ in 0..depth {
                let reader = Reader {
                    number,
                    queue: Arc::clone(&queue),
                    reports: Reports(Weak::clone(inner)),
                    held: Arc::clone(held),
                };
                let started = thread::start("treadle-shuffle-disk", move || reader.run());
                started.inspect_err(|_| devices.close())?;
            }
        }
        Ok(devices)
    }

    /// The device of a directory.
    pub(crate) fn of(&self, directory: usize) -> &Arc<DeviceQueue> {
        &self.queues[self.of_directory[directory]]
    }

    /// How many of the new files each directory is to have.
    pub(crate) fn weights(&self) -> Vec<u32> {
        let weights: Vec<u32> = self.queues.iter().map(|queue| queue.weight()).collect();
        let of_directory = self.of_directory.iter();
        of_directory.map(|&device| weights[device]).collect()
    }

    /// What all say.
    pub(crate) fn stats(&self) -> Vec<DeviceStats> {
        let stats = self.queues.iter().map(|queue| DeviceStats {
            directories: queue.directories.clone(),
            standing: lock(&queue.state).device.standing(),
        });
        stats.collect()
    }

    /// What is to be read or written at devices that have done nothing for so long, and whether each device does
    /// nothing.
    pub(crate) fn stuck(&self, age: Duration) -> (BTreeSet<u64>, Vec<bool>) {
        let now = awake::now();
        let stuck = self.queues.iter();
        let stuck = stuck.map(|queue| lock(&queue.state).device.stuck(now, age));
        let stuck: Vec<Vec<u64>> = stuck.collect();
        let are = stuck.iter().map(|runs| !runs.is_empty()).collect();
        (stuck.into_iter().flatten().collect(), are)
    }

    pub(crate) fn count(&self) -> usize {
        self.queues.len()
    }

    /// The number of a queue among those of all devices.
    pub(crate) fn number(&self, queue: &Arc<DeviceQueue>) -> Option<usize> {
        self.queues
            .iter()
            .position(|other| Arc::ptr_eq(other, queue))
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> u64 {
        let waiting = self.queues.iter();
        let waiting = waiting.map(|queue| lock(&queue.state).device.waiting());
        waiting.sum::<usize>() as u64
    }

    /// Ends the threads, and whoever waits.
    pub(crate) fn close(&self) {
        for queue in &self.queues {
            lock(&queue.state).is_over = true;
            queue.changed.notify_all();
        }
    }
}

/// A device, and who waits for it.
pub(crate) struct DeviceQueue {
    directories: Vec<PathBuf>,
    state: Mutex<State>,
    /// A turn has begun, or there is something to say.
    changed: Condvar,
}

struct State {
    device: Device,
    next: u64,
    /// Reads that wait, by the number of their request.
    jobs: HashMap<u64, Job>,
    /// Turns that have begun, and reads of theirs that no thread carries out yet.
    ready: VecDeque<(u64, Vec<Job>)>,
    /// The turns of requests whose callers wait, and have not noticed yet.
    begun: HashMap<u64, u64>,
    refused: HashSet<u64>,
    /// Reads that have begun, and whose next step was refused: the threads ask again.
    aside: VecDeque<Job>,
    /// How many parts of a turn are not done, and what came of those that are.
    turns: HashMap<u64, (usize, Outcome)>,
    /// What the server is to hear.
    limits: Option<Vec<Limit>>,
    is_over: bool,
}

impl State {
    fn new(device: Device) -> Self {
        Self {
            device,
            next: 0,
            jobs: HashMap::new(),
            ready: VecDeque::new(),
            begun: HashMap::new(),
            refused: HashSet::new(),
            aside: VecDeque::new(),
            turns: HashMap::new(),
            limits: None,
            is_over: false,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn handle(&mut self, event: DeviceEvent) {
        let mut effects = Vec::new();
        let handled = self.device.handle(event, awake::now(), &mut effects);
        debug_assert_eq!(handled, Ok(()));
        if cfg!(debug_assertions) && self.device.waiting() < 64 {
            assert_eq!(self.device.check(), Ok(()));
        }
        for effect in effects {
            match effect {
                DeviceEffect::Begin { turn, requests } => {
                    let mut jobs = Vec::new();
                    let mut parts = 0;
                    for request in requests {
                        match self.jobs.remove(&request) {
                            Some(job) => jobs.push(job),
                            None => {
                                self.begun.insert(request, turn);
                                parts += 1;
                            }
                        }
                    }
                    parts += usize::from(!jobs.is_empty());
                    self.turns.insert(turn, (parts, Outcome::Nothing));
                    if !jobs.is_empty() {
                        self.ready.push_back((turn, jobs));
                    }
                }
                DeviceEffect::Refuse(request) => {
                    self.refused.insert(request);
                }
                DeviceEffect::Limits(limits) => self.limits = Some(limits),
            }
        }
    }

    /// A part of a turn is done.
    fn done(&mut self, turn: u64, outcome: Outcome) {
        let Some((parts, all)) = self.turns.get_mut(&turn) else {
            return;
        };
        *parts -= 1;
        *all = match (*all, outcome) {
            (Outcome::Nothing, came) => came,
            (before, Outcome::Nothing | Outcome::Done) => before,
            (_, came) => came,
        };
        if *parts == 0 {
            let outcome = *all;
            self.turns.remove(&turn);
            self.handle(DeviceEvent::Done { turn, outcome });
        }
    }

    /// Asks for a turn of a job. If too much waits, the job comes back.
    fn ask(&mut self, job: Job) -> Option<Job> {
        let number = self.number();
        let request = Request {
            number,
            tenant: job.of.tenant,
            access: Access::Read,
            file: job.of.number,
            offset: job.at,
            bytes: job.step(),
        };
        self.jobs.insert(number, job);
        self.handle(DeviceEvent::Asked(request));
        match self.refused.remove(&number) {
            true => self.jobs.remove(&number),
            false => None,
        }
    }
}

impl DeviceQueue {
    fn weight(&self) -> u32 {
        let state = lock(&self.state);
        if !state.device.stuck(awake::now(), STUCK).is_empty() {
            return 1;
        }
        let weight = state.device.weight();
        // What a device does is divided among its directories.
        (weight / self.directories.len().max(1) as u32).max(1)
    }

    /// Reads `begin` to `end`, which has a partition, and reports it. `false`: too much waits.
    pub(crate) fn load(&self, load: Load, (begin, end): (u64, u64)) -> bool {
        let job = Job {
            of: load,
            begin,
            end,
            at: begin,
            buffer: None,
        };
        let is_asked = lock(&self.state).ask(job).is_none();
        self.changed.notify_all();
        is_asked
    }

    /// Does something with the device, when it is its turn.
    ///
    /// # Errors
    /// What `act` says; `None`: the process ends.
    pub(crate) fn turn<T, E>(
        &self,
        place: Place,
        (access, bytes): (Access, u64),
        outcome: impl Fn(&E) -> Outcome,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, Option<E>> {
        let turn = self.wait_for(place, access, bytes).ok_or(None)?;
        let done = act();
        let came = done.as_ref().map_or_else(&outcome, |_| Outcome::Done);
        lock(&self.state).done(turn, came);
        self.changed.notify_all();
        done.map_err(Some)
    }

    fn wait_for(&self, place: Place, access: Access, bytes: u64) -> Option<u64> {
        let mut state = lock(&self.state);
        loop {
            let number = state.number();
            state.handle(DeviceEvent::Asked(Request {
                number,
                tenant: place.tenant,
                access,
                file: place.run,
                offset: place.offset,
                bytes,
            }));
            self.changed.notify_all();
            let mut pause = LOOK;
            while !state.is_over {
                if let Some(turn) = state.begun.remove(&number) {
                    return Some(turn);
                }
                if state.refused.remove(&number) {
                    pause = LATER;
                }
                let waited = self.changed.wait_timeout(state, pause);
                (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                if pause == LATER {
                    break;
                }
            }
            if state.is_over {
                return None;
            }
        }
    }
}

/// A thread that reads.
struct Reader {
    /// The device's.
    number: usize,
    queue: Arc<DeviceQueue>,
    reports: Reports,
    held: Arc<Held>,
}

impl Reader {
    fn run(self) {
        while let Some((begun, limits)) = self.next() {
            let done = caught(|| {
                if let Some(limits) = limits {
                    self.reports.limited(self.number, limits);
                }
                if let Some((turn, jobs)) = begun {
                    self.carry_out(turn, jobs);
                }
            });
            if !self.reports.goes_on(done) {
                return;
            }
        }
    }

    /// The next turn, and what the server is to hear. `None`: it is over.
    #[allow(clippy::type_complexity)]
    fn next(&self) -> Option<(Option<(u64, Vec<Job>)>, Option<Vec<Limit>>)> {
        let mut state = lock(&self.queue.state);
        while !state.is_over && self.reports.0.strong_count() > 0 {
            if let Some(job) = state.aside.pop_front()
                && let Some(job) = state.ask(job)
            {
                state.aside.push_front(job);
            }
            let (begun, limits) = (state.ready.pop_front(), state.limits.take());
            if begun.is_some() || limits.is_some() {
                return Some((begun, limits));
            }
            let pause = if state.aside.is_empty() { LOOK } else { LATER };
            let waited = self.queue.changed.wait_timeout(state, pause);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn carry_out(&self, turn: u64, mut jobs: Vec<Job>) {
        let began = clock::monotonic();
        // What nobody waits for takes neither memory nor the device.
        jobs.retain(Job::is_wanted);
        let results = read(&mut jobs);
        let outcome = match results.iter().all(Result::is_ok) {
            true if jobs.is_empty() => Outcome::Nothing,
            true => Outcome::Done,
            false => Outcome::Failed,
        };
        lock(&self.queue.state).done(turn, outcome);
        self.queue.changed.notify_all();
        for (mut job, result) in jobs.into_iter().zip(results) {
            job.at += job.step();
            if result.is_ok() && job.at < job.end {
                let mut state = lock(&self.queue.state);
                // The turns that make room are perhaps this thread's own: it does not wait.
                if let Some(job) = state.ask(job) {
                    state.aside.push_back(job);
                }
                drop(state);
                self.queue.changed.notify_all();
                continue;
            }
            self.report(job, result, began);
        }
    }

    fn report(&self, job: Job, result: Result<(), String>, began: u64) {
        let Load {
            load,
            number,
            part,
            run,
            ..
        } = job.of;
        let loaded = result.and_then(|()| {
            let bytes = job.buffer.map_or_else(Bytes::new, Buffer::into_bytes);
            run.run.decoded(part, self.held.charge(bytes))
        });
        let shuffle = run.run.shuffle;
        // Its file may go now.
        drop(run);
        self.reports.read((load, number), shuffle, began, loaded);
    }
}

/// Carries out the reads of a turn: all of one file.
fn read(jobs: &mut [Job]) -> Vec<Result<(), String>> {
    let mut results: Vec<_> = jobs.iter_mut().map(make_room).collect();
    let Some(file) = jobs.first().map(|job| job.of.run.file.clone()) else {
        return results;
    };
    let mut ranges: Vec<(u64, &mut [u8])> = Vec::new();
    for job in jobs.iter_mut() {
        let (at, step) = (job.at, job.step() as usize);
        let from = (at - job.begin) as usize;
        let place = job.buffer.as_mut();
        let place = place.and_then(|buffer| buffer.as_mut_slice().get_mut(from..from + step));
        ranges.extend(
            place
                .filter(|place| !place.is_empty())
                .map(|place| (at, place)),
        );
    }
    if ranges.is_empty() {
        return results;
    }
    let read = file.read_ranges(&mut ranges);
    if let (Err(error), 1) = (&read, ranges.len()) {
        let failed = results.iter_mut().find(|result| result.is_ok());
        failed
            .into_iter()
            .for_each(|result| *result = Err(error.to_string()));
    } else if read.is_err() {
        // One place may be damaged: the others are not.
        drop(ranges);
        for (job, result) in jobs.iter_mut().zip(&mut results) {
            if result.is_ok() {
                *result = read_one(&file, job);
            }
        }
    }
    results
}

fn read_one(file: &File, job: &mut Job) -> Result<(), String> {
    let (at, step) = (job.at, job.step() as usize);
    let from = (at - job.begin) as usize;
    let buffer = job.buffer.as_mut().map(Buffer::as_mut_slice);
    match buffer.and_then(|buffer| buffer.get_mut(from..from + step)) {
        Some(place) => file.read_at(at, place).map_err(said),
        None => Ok(()),
    }
}

fn make_room(job: &mut Job) -> Result<(), String> {
    if job.buffer.is_none() {
        let length = usize::try_from(job.end - job.begin).map_err(said)?;
        job.buffer = Some(Pool::global().buffer(length).map_err(said)?);
    }
    Ok(())
}

fn said(error: impl Display) -> String {
    error.to_string()
}
