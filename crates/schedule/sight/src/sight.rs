//! All of it together.

mod facts;
mod latest;
mod rows;
mod spans;

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use treadle_types::{ObjectId, Value};

use self::latest::series;
use self::rows::shuffle_row;
use crate::batch::{Batch, Record};
use crate::casts::Casts;
use crate::errors::{self, Errors, Failure};
use crate::event::{End, Event, Shuffle, Snapshot};
use crate::groups::Groups;
use crate::logs::Logs;
use crate::overview::{Cluster, EventRow, GroupRow, HistoryRow, Kept, Overview, StatesRow, Tasks};
use crate::profile::Profile;
use crate::reader::Malformed;
use crate::ring::Ring;
use crate::series::{SECOND, Step, Times};
use crate::span::{Kind, Parts, Span, lane};
use crate::spoken::Spoken;
use crate::sums::Sums;
use crate::transfers::Transfers;
use crate::workers::{Rates, Running, UNKNOWN, Worker, Workers};

/// Errors of an overview.
const MOST_ERRORS: usize = 50;
/// Events that are kept.
const MOST_EVENTS: usize = 200;
/// Shuffles that are kept.
const MOST_SHUFFLES: usize = 100;
/// Groups and workers of an overview.
const MOST_ROWS: usize = 500;
/// Running tasks of a worker that are kept.
const MOST_RUNNING: usize = 64;
/// Bytes of keys that are kept, with what each takes beside.
const MOST_KEYS: usize = 4 << 20;
const KEY: usize = 48;
/// As many pairs of group and worker are looked at for slow workers each time that the cluster is; where there are
/// more, each time of so many.
const MOST_SHARES: usize = 1 << 10;
const TURNS: u64 = 16;
/// What stands in the place of a group for casts that go on.
const CASTS: &str = "casts";
/// The version of the answers.
const VERSION: u32 = 1;

/// The latest keys of tasks that took long.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    keys: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
}

impl Keys {
    fn add(&mut self, object: u64, key: &[u8]) {
        self.bytes += KEY + key.len();
        self.keys.push_back((object, key.to_vec()));
        while self.bytes > MOST_KEYS
            && let Some((_, key)) = self.keys.pop_front()
        {
            self.bytes -= KEY + key.len();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u64, Vec<u8>)> {
        self.keys.iter()
    }

    fn get(&self, object: u64) -> Option<String> {
        let found = self.keys.iter().rev().find(|(of, _)| *of == object);
        found.map(|(_, key)| readable(key))
    }
}

/// A key, for people.
pub(crate) fn readable(key: &[u8]) -> String {
    match Value::from_bytes(key) {
        Ok(value) => treadle_types::keys::display(&value),
        Err(_) => "(an unreadable key)".into(),
    }
}

/// What is known of a cluster.
#[derive(Debug)]
pub struct Sight {
    pub(crate) ring: Ring,
    pub(crate) groups: Groups,
    pub(crate) workers: Workers,
    times: Times,
    pub(crate) sums: Sums,
    transfers: Transfers,
    pub(crate) casts: Casts,
    pub(crate) keys: Keys,
    errors: Errors,
    events: VecDeque<EventRow>,
    profile: Profile,
    logs: Logs,
    shuffles: VecDeque<Shuffle>,
    /// Those that made room for others.
    more_shuffles: u64,
    spoken: Spoken,
    /// How often the cluster was looked at.
    looks: u64,
    cluster: Cluster,
    began: Option<f64>,
    /// What the scheduler's clock showed at time 0.
    clock: u64,
    tasks: Option<Tasks>,
    /// The latest time of which anything is known.
    now: u64,
    /// Spans that workers lost, and batches that nobody had time for.
    lost: u64,
    dropped: u64,
    /// Bytes and events of a history that could not be read.
    unread: (u64, u64),
    /// The history that is written, or was read.
    history: Option<HistoryRow>,
    /// How the history that is read ends.
    end: Option<End>,
}

impl Sight {
    /// Keeps spans in so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self {
            ring: Ring::new(bytes),
            groups: Groups::new(),
            workers: Workers::default(),
            times: Times::new(),
            sums: Sums::new(),
            transfers: Transfers::default(),
            casts: Casts::default(),
            keys: Keys::default(),
            errors: Errors::default(),
            events: VecDeque::new(),
            profile: Profile::new(),
            logs: Logs::default(),
            shuffles: VecDeque::new(),
            more_shuffles: 0,
            spoken: Spoken::default(),
            looks: 0,
            cluster: Cluster::default(),
            began: None,
            clock: 0,
            tasks: None,
            now: 0,
            lost: 0,
            dropped: 0,
            unread: (0, 0),
            history: None,
            end: None,
        }
    }

    /// Of the history that this was read from, so many bytes and events could not be read.
    pub fn lacks(&mut self, bytes: u64, events: u64) {
        self.unread = (bytes, events);
    }

    /// So many bytes are in the history that is written, and how that is; `None`: it goes on.
    pub fn writes(&mut self, bytes: u64, limit: u64, end: Option<&End>) {
        self.history = Some(HistoryRow::new(bytes, Some(limit), end, "written"));
    }

    /// This was read from a history of so many bytes.
    pub fn was_read(&mut self, bytes: u64) {
        let limit = match self.end {
            Some(End::Full(limit)) => Some(limit),
            _ => None,
        };
        let row = HistoryRow::new(bytes, limit, self.end.as_ref(), "unfinished");
        self.history = Some(row);
    }

    /// How the history ended that was read; `None`: its end is missing.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Takes in what happened.
    ///
    /// # Errors
    /// When a batch is none; nothing of it is taken in.
    pub fn handle(&mut self, event: &Event<'_>, now: u64) -> Result<(), Malformed> {
        self.now = self.now.max(now);
        self.times.advance(self.now);
        match event {
            Event::Batch { worker, bytes } => return self.batch(worker.0, bytes),
            Event::Began {
                address,
                id,
                version,
                unix,
                clock,
            } => {
                self.clock = *clock;
                self.cluster = Cluster {
                    address: address.clone(),
                    id: id.clone(),
                    treadle: version.clone(),
                };
                self.began = Some(*unix as f64 / 1e6);
            }
            Event::Joined {
                worker,
                name,
                address,
                host,
                pid,
                threads,
                memory,
            } => {
                let row = self.workers.row(worker.0);
                if let Some(row) = row.and_then(|row| self.workers.get_mut(row)) {
                    row.name.clone_from(name);
                    row.address.clone_from(address);
                    row.host.clone_from(host);
                    row.pid = *pid;
                    row.threads = *threads;
                    row.memory = *memory;
                }
                self.note("joined", name.clone(), address.clone());
            }
            Event::Lost {
                worker,
                cause,
                drained,
            } => {
                let row = self.workers.row(worker.0);
                if let Some(row) = row.and_then(|row| self.workers.get_mut(row)) {
                    row.gone = Some(cause.clone());
                    row.left = *drained;
                    row.state = None;
                    row.cpu = None;
                    row.rates = Rates::default();
                    row.running = Vec::new();
                    row.unnamed = (0, 0);
                }
                let kind = if *drained { "left" } else { "lost" };
                self.note(kind, self.workers.name_of(worker.0), cause.clone());
            }
            Event::Snapshot(snapshot) => self.snapshot(snapshot, true),
            Event::Changes(changes) => self.snapshot(changes, false),
            Event::Ended(end) => self.end = Some(end.clone()),
            // Whoever reads the file has to unpack it before.
            Event::Packed { .. } => return Err(Malformed(0)),
            Event::Failed {
                object,
                key,
                worker,
                text,
                traceback,
            } => {
                let failure = Failure {
                    key,
                    object: *object,
                    text,
                    traceback,
                    raised: true,
                };
                let worker = (self.workers.name_of(worker.0), Some(worker.0));
                self.errors.add(failure, worker, self.now);
            }
            Event::Doomed { key, text } => {
                let failure = Failure {
                    key,
                    object: 0,
                    text,
                    traceback: "",
                    raised: false,
                };
                self.errors.add(failure, (String::new(), None), self.now);
            }
            Event::Line { level, text } => self.logs.add(self.now, *level, None, text),
            Event::Submitted(counts) => {
                for (name, count) in counts {
                    self.groups.submitted(name, *count);
                }
            }
            Event::Inputs { group, inputs } => self.groups.reads(group, inputs),
            Event::States(groups) => {
                for (name, states) in groups {
                    self.groups.stand(name, *states);
                }
            }
            Event::Dropped(count) => self.dropped = self.dropped.saturating_add(*count),
            Event::Shuffle(shuffle) => {
                let mut known = self.shuffles.iter_mut();
                match known.find(|one| one.number == shuffle.number) {
                    Some(known) => known.clone_from(shuffle),
                    None => {
                        self.shuffles.push_back(shuffle.clone());
                        if self.shuffles.len() > MOST_SHUFFLES {
                            self.shuffles.pop_front();
                            self.more_shuffles += 1;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, kind: &'static str, worker: String, text: String) {
        self.events.push_back(EventRow {
            time: self.now,
            kind,
            worker,
            text: crate::about_error(&text),
        });
        if self.events.len() > MOST_EVENTS {
            self.events.pop_front();
        }
    }

    /// `is_whole`: of workers that it does not have nothing is known. Else they are as they were.
    fn snapshot(&mut self, snapshot: &Snapshot, is_whole: bool) {
        let [waiting, ready, assigned, memory, failed] = snapshot.tasks;
        self.tasks = Some(Tasks {
            waiting,
            ready,
            assigned,
            memory,
            failed,
        });
        let mut step = Step {
            snapshots: 1,
            ..Step::default()
        };
        let mut threads = 0;
        for state in &snapshot.workers {
            let name = self.workers.name_of(state.worker);
            let row = self.workers.row(state.worker);
            let Some(worker) = row.and_then(|row| self.workers.get_mut(row)) else {
                continue;
            };
            if is_whole {
                step.managed = step.managed.saturating_add(state.managed);
                step.process = step.process.saturating_add(state.process);
                threads += u64::from(worker.threads);
            }
            let before = worker.state.map_or(0, |state| state.status);
            worker.state = Some(*state);
            let change = match (before, state.status) {
                (1, 1) => None,
                (_, 1) => Some("paused"),
                (1, _) => Some("resumed"),
                _ => None,
            };
            if let Some(kind) = change {
                let text = alloc::format!("{} bytes of memory", state.process);
                self.note(kind, name, text);
            }
        }
        if !is_whole {
            let known = self.workers.iter().filter_map(|(_, worker)| {
                let state = worker.state.filter(|_| worker.gone.is_none())?;
                Some((worker, state))
            });
            for (worker, state) in known {
                step.managed = step.managed.saturating_add(state.managed);
                step.process = step.process.saturating_add(state.process);
                threads += u64::from(worker.threads);
            }
        }
        step.starved = u64::from(waiting + ready == 0 && assigned < threads);
        step.narrow = u64::from(waiting > assigned && ready == 0 && assigned * 2 <= threads);
        self.times.add(self.now, &step);
        self.looks += 1;
        let is_turn = self.looks.is_multiple_of(TURNS);
        let verdicts = self.judged(is_turn || self.groups.shares().len() <= MOST_SHARES);
        self.spoken.hear(verdicts, self.now);
    }

    fn batch(&mut self, id: u32, bytes: &[u8]) -> Result<(), Malformed> {
        let batch = Batch::decode(bytes)?;
        let Some(row) = self.workers.row(id) else {
            let lost = batch.head.lost.saturating_add(batch.records().len() as u64);
            self.lost = self.lost.saturating_add(lost);
            return Ok(());
        };
        let offset = batch.head.offset;
        for (number, name) in &batch.beside.names {
            let group = self.groups.intern(name);
            if let Some(worker) = self.workers.get_mut(row) {
                worker.named(*number, group);
            }
        }
        for (object, key) in &batch.beside.keys {
            self.keys.add(*object, key);
        }
        if let Some(running) = &batch.beside.running {
            let more = running.len().saturating_sub(MOST_RUNNING) as u64;
            let running = self.still_running(running, batch.records(), offset);
            let unnamed = batch.beside.unnamed;
            let began = self.aligned(unnamed.began, offset);
            if let Some(worker) = self.workers.get_mut(row) {
                worker.running = running;
                // No more than it has threads: it may say anything.
                let count = unnamed.count.saturating_add(more);
                worker.unnamed = (count.min(worker.threads.into()), began);
            }
        }
        if !batch.beside.frames.is_empty() {
            let from = self.aligned(batch.beside.sampled, offset);
            self.profile
                .add(row, (from, self.now), &batch.beside.frames);
        }
        self.logs.lose(batch.beside.lost_lines);
        for line in &batch.beside.lines {
            let time = self.aligned(line.time, offset);
            self.logs.add(time, line.level, Some(row), line.text);
        }
        if let Some(worker) = self.workers.get_mut(row) {
            worker.lost = worker.lost.saturating_add(batch.head.lost);
            worker.processor(batch.head.processor, self.now);
            worker.system(batch.head.system, self.now);
        }
        self.lost = self.lost.saturating_add(batch.head.lost);
        for record in batch.records() {
            self.record(row, record, offset);
        }
        Ok(())
    }

    /// What a worker says runs, without what has ended since it looked: that is among its records.
    fn still_running(
        &mut self,
        running: &[crate::batch::Running<'_>],
        records: &[Record],
        offset: i64,
    ) -> Vec<Running> {
        // Nobody is told of what has run for less.
        let long = |record: &&Record| record.ended.saturating_sub(record.began) >= SECOND;
        let ended: Vec<u64> = records.iter().filter(long).map(|one| one.object).collect();
        let running = running.iter().take(MOST_RUNNING);
        let running = running.filter(|task| !ended.contains(&task.object));
        let running = running.map(|task| {
            let group = match task.lane {
                lane::CAST => CASTS,
                _ => treadle_types::keys::group(task.key),
            };
            Running {
                object: task.object,
                lane: task.lane,
                began: self.aligned(task.began, offset),
                group: group.into(),
                number: self.groups.intern(group),
                key: crate::about_error(&readable(task.key)),
            }
        });
        running.collect()
    }

    /// A time of a worker's, on the scheduler's clock. What did not come to pass yet ends now.
    #[inline]
    fn aligned(&self, time: u64, offset: i64) -> u64 {
        let theirs = time.saturating_add_signed(offset);
        theirs.saturating_sub(self.clock).min(self.now)
    }

    #[inline]
    fn record(&mut self, row: u16, record: &Record, offset: i64) {
        let start = self.aligned(record.began, offset);
        let read = self.aligned(record.read, offset);
        let computed = self.aligned(record.computed, offset);
        let end = self.aligned(record.ended, offset);
        let peer = match record.kind {
            // A worker may say anything: that makes nobody known.
            Kind::Fetch => self.workers.find(record.group).unwrap_or(UNKNOWN),
            _ => 0,
        };
        let Some(worker) = self.workers.get_mut(row) else {
            return;
        };
        let (group, lane) = match record.kind {
            Kind::Fetch => (peer, lane::FETCH),
            Kind::Spill => (worker.group(record.group), lane::SPILL),
            Kind::Shuffle => (worker.group(record.group), lane::SHUFFLE),
            Kind::Cast => (worker.group(record.group), lane::CAST),
            _ => (
                worker.group(record.group),
                record.lane.min(lane::OTHERS - 1),
            ),
        };
        let span = Span::new(Parts {
            start,
            read,
            computed,
            end,
            object: ObjectId::from_u64(record.object),
            bytes: record.bytes,
            group,
            worker: row,
            lane,
            kind: record.kind,
            failed: record.failed,
        });
        let end = span.end();
        let mut step = Step::default();
        match record.kind {
            Kind::Task => {
                worker.was_busy(start, end, self.now);
                let times = (start, span.read(), end);
                let (object, bytes) = (record.object, record.bytes);
                self.groups
                    .ran(group, row, times, object, bytes, record.failed);
                self.times.busy(start, end);
                self.sums.ran(group, start, end);
                step.tasks = 1;
            }
            Kind::Fetch => {
                let pair = (peer, row);
                let times = (start, end);
                step.fetching = self.transfers.add(pair, record.bytes, times, record.failed);
                step.fetched = record.bytes;
            }
            Kind::Spill => step.spilled = record.bytes,
            Kind::Cast => {
                let times = (start, span.read(), end);
                self.casts.add(record.object, group, record.bytes, times);
            }
            _ => {}
        }
        if step != Step::default() {
            self.times.add(end, &step);
        }
        self.ring.push(span);
    }

    /// The time of an answer: that of a history is its last.
    fn moment(&self, now: u64, live: bool) -> u64 {
        match live {
            true => now.max(self.now),
            false => self.now,
        }
    }

    /// What is seen first; `live`: whether the cluster is there.
    pub fn overview(&self, now: u64, live: bool) -> Overview {
        let now = self.moment(now, live);
        let (from, to) = self.ring.extent().unwrap_or_default();
        let mut groups: Vec<_> = self
            .groups
            .iter()
            .filter(|(_, group)| group.runs + group.submitted > 0 || group.states.is_some())
            .collect();
        groups.sort_by_key(|(number, group)| (u64::MAX - group.to, *number));
        let more_groups = groups.len().saturating_sub(MOST_ROWS);
        let groups = groups.into_iter().take(MOST_ROWS).map(|(number, group)| {
            let from = if group.runs == 0 {
                group.to
            } else {
                group.from
            };
            GroupRow {
                id: number.into(),
                name: group.name.clone(),
                // One that came again counts anew as a submission, one that nobody submitted is a value.
                total: match group.states.map_or(0, |states| states.total()) {
                    0 if group.submitted == 0 => None,
                    known => Some(known.max(group.submitted)),
                },
                states: group.states.map(StatesRow::from),
                failed: group.failed,
                runs: group.runs,
                seconds: seconds(group.time),
                fetch_seconds: seconds(group.reading),
                bytes: group.bytes,
                mean: seconds(group.mean()),
                median: seconds(group.median()),
                max: seconds(group.longest),
                from,
                to: group.to,
                inputs: group.inputs.iter().map(|input| (*input).into()).collect(),
            }
        });
        let (workers, more_workers) = self.worker_rows(now, live, |_, _| true);
        let (running, more_running) = self.running();
        let (casts, more_casts) = self.cast_rows(now);
        let mut verdicts = self.judged(true);
        let earlier = self.spoken.before(&mut verdicts, now);
        let rate: u64 = self
            .times
            .recent()
            .rev()
            .skip(1)
            .take(10)
            .map(|step| step.tasks)
            .sum();
        Overview {
            version: VERSION,
            live,
            now,
            began: self.began,
            cluster: self.cluster.clone(),
            tasks: self.tasks,
            rate: rate as f64 / 10.0,
            spans: Kept {
                kept: self.ring.kept(),
                older: self.ring.lost(),
                lost: self.lost,
                dropped: self.dropped,
                bytes: self.ring.bytes() as u64,
                limit: self.ring.limit() as u64,
                from,
                to,
            },
            groups: groups.collect(),
            more_groups,
            workers,
            more_workers,
            totals: self.totals(),
            series: {
                let mut series = series(1, self.times.to(), self.times.recent());
                self.add_running(&mut series, now);
                series
            },
            whole: {
                let (step, steps) = self.times.whole();
                series(step, step * steps.len() as u64 * SECOND, steps.iter())
            },
            shuffles: self.shuffles.iter().rev().map(shuffle_row).collect(),
            more_shuffles: self.more_shuffles,
            casts,
            more_casts,
            running,
            more_running,
            errors: errors::shown(&self.errors, MOST_ERRORS),
            more_errors: self.more_errors(MOST_ERRORS),
            events: self.events.iter().rev().cloned().collect(),
            verdicts,
            earlier,
            history: self.history.clone(),
        }
    }

    /// Verifies the invariants.
    pub fn check(&self) {
        self.ring.check();
        self.groups.check();
        self.workers.check();
        self.times.check();
        self.sums.check();
        self.transfers.check();
        self.casts.check();
        self.profile.check();
        self.logs.check();
        let running = |(_, worker): (u16, &Worker)| worker.running.len() <= MOST_RUNNING;
        assert!(self.workers.iter().all(running));
        self.errors.check();
        self.spoken.check();
        assert!(self.events.len() <= MOST_EVENTS);
        assert!(self.shuffles.len() <= MOST_SHUFFLES);
        let bytes = self.keys.keys.iter().map(|(_, key)| KEY + key.len());
        assert_eq!(bytes.sum::<usize>(), self.keys.bytes);
        assert!(self.keys.bytes <= MOST_KEYS);
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
