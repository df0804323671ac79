//! What the worker does, always recorded, in a ring of fixed size: the scheduler gets it twice a second.
//!
//! A trace ([`tracing`](super::tracing)) has more of each event, and is there while somebody asks for it.
//! Both record at the same places.

mod disk;
mod draft;
mod lines;
mod offset;
mod system;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use treadle_broadcast_node::{For, Had};
use treadle_messages::{Answer, Call, FromWorker};
use treadle_reactor::clock;
use treadle_reactor::thread::lock;
use treadle_schedule_wire::trace::SIGHT;
use treadle_shuffle_node::{Activity, Done};
use treadle_sight::{Head, Kind, Record, System, Unnamed, cast_object, lane};
use treadle_types::{ObjectId, Value, WorkerId, keys};

use self::disk::Disk;
use self::draft::Draft;
use self::lines::Lines;
use self::offset::Offset;
use super::Inner;
use super::health::Health;

/// What waits to be sent by default, of 56 bytes each: 14 MiB; then the oldest are lost. As few and as many as may be
/// set.
const MOST: usize = 1 << 18;
const FEWEST: usize = 1 << 10;
const MOST_EVER: usize = 1 << 24;
/// As many keep their room while nothing waits.
const FEW: usize = 1 << 14;
const _: () = assert!(MOST * size_of::<Record>() <= 16 << 20);
/// Records of one batch.
const IN_BATCH: usize = 1 << 14;
/// Groups that are told apart; number 0 is all others.
const MOST_GROUPS: usize = 1 << 12;
/// The keys of tasks that take so many nanoseconds are sent, too. The scheduler is asked for others, as
/// long as it knows them.
const LONG: u64 = 2_000_000;
/// Keys that wait to be sent, and bytes of one: longer ones are not.
const MOST_KEYS: usize = 1 << 12;
const LONGEST_KEY: usize = 1 << 10;
/// Tasks that have run for so many nanoseconds are told of while they run, the longest of them.
const RUNNING: u64 = 1_000_000_000;
const MOST_RUNNING: usize = 64;
/// Places of a profile, and bytes of a name.
const MOST_FRAMES: usize = 1 << 12;
const LONGEST_NAME: usize = 200;
/// Nanoseconds for which what the system counts is as it was.
const SYSTEM: u64 = 900_000_000;
/// Batches that are not answered yet, and may be no more.
const UNANSWERED: u32 = 8;
/// The groups are told again after so many batches: one of them may be damaged in a history.
const AGAIN: u32 = 128;
/// Marks numbers of this module's calls, beside those of traces.
const OURS: u64 = 0b11 << 62;

/// A task that ran. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// Which of the worker's executor threads ran it.
    pub lane: u32,
    /// The attempt.
    pub object: ObjectId,
    /// When its inputs began to be read.
    pub began: u64,
    /// When they were there, as Python objects.
    pub read: u64,
    /// When its function had returned.
    pub computed: u64,
    /// When its value was kept.
    pub ended: u64,
    /// Of its value.
    pub nbytes: u64,
    /// Whether it has one.
    pub is_good: bool,
    /// Whether it asked to run again elsewhere: no value, and no failure either.
    pub is_given_back: bool,
}

/// A task that runs.
#[derive(Clone, Debug)]
pub struct Runs {
    /// Which of the worker's executor threads runs it.
    pub lane: u32,
    /// The attempt.
    pub object: ObjectId,
    /// When it began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began: u64,
    /// The encoded key.
    pub key: Bytes,
}

/// A place in a program where threads were, as [`treadle_sight::Frame`] has it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The place that called it: an earlier one.
    pub parent: Option<u32>,
    /// What it is called.
    pub name: String,
    /// Microseconds.
    pub time: u64,
}

/// The text up to so many bytes.
fn cut(text: &str, most: usize) -> &str {
    let mut ends = (0..=most.min(text.len())).rev();
    let end = ends.find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Records that may wait.
#[derive(Debug)]
struct Most(usize);

impl Default for Most {
    fn default() -> Self {
        Self(MOST)
    }
}

#[derive(Debug, Default)]
struct State {
    most: Most,
    records: VecDeque<Record>,
    /// How many were lost since the last batch.
    lost: u64,
    groups: HashMap<Box<str>, u32>,
    /// Those that the scheduler was not told yet.
    fresh: Vec<(u32, Box<str>)>,
    /// The batches since all of them were told, and whether they are to be told again.
    since: u32,
    again: bool,
    /// The group of the last task: as a rule, that of the next.
    last: (Box<str>, u32),
    keys: Vec<(u64, Bytes)>,
    /// The number of the last batch, and when it was sent.
    sent: (u64, u64),
    unanswered: u32,
    /// Where threads were, and since when that was looked at.
    places: (u64, Vec<Place>),
    lines: Lines,
    clock: Offset,
    /// What the store had written and read at the last batch.
    disk: [Disk; 2],
    /// What the system counts, and when it was asked.
    system: (System, u64),
}

/// What a worker records.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    is_on: AtomicBool,
    /// Who holds this sends; taken before `state`, and before the worker's `machine`.
    sending: Mutex<()>,
    /// Taken last: under `machine`, when an answer comes. Nothing is locked under it.
    state: Mutex<State>,
}

impl Recorder {
    /// Records from now on, if the scheduler wants it.
    pub(super) fn start(&self, scheduler: &[u8], bytes: u64) {
        let about = Value::from_bytes(scheduler).unwrap_or(Value::None);
        let wanted = about.get(SIGHT) == Some(&Value::Bool(true));
        if bytes > 0 {
            let most = bytes / size_of::<Record>() as u64;
            let most = most.clamp(FEWEST as u64, MOST_EVER as u64);
            lock(&self.state).most = Most(most as usize);
        }
        self.is_on.store(wanted, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// A task ran.
    #[inline]
    pub(super) fn ran(&self, task: &Timed, key: &Bytes) {
        let mut state = lock(&self.state);
        let group = state.group(keys::group(key));
        let object = task.object.to_u64();
        let is_long = task.ended.saturating_sub(task.began) >= LONG;
        if is_long && state.keys.len() < MOST_KEYS && key.len() <= LONGEST_KEY {
            // Not as a part of the recipe, which would be kept with it.
            state.keys.push((object, Bytes::copy_from_slice(key)));
        }
        state.add(Record {
            began: task.began,
            read: task.read,
            computed: task.computed,
            ended: task.ended,
            object,
            bytes: task.nbytes,
            group,
            lane: task.lane.min(u16::MAX.into()) as u16,
            kind: Kind::Task,
            failed: !task.is_good && !task.is_given_back,
        });
    }

    /// The log has a line more: of a level as Python's `logging` has it.
    pub(super) fn line(&self, level: u8, text: &str) {
        let time = clock::monotonic();
        lock(&self.state).lines.add(time, level, text);
    }

    /// Where threads were since a time. What was told before, and is not sent yet, is lost.
    pub(super) fn sampled(&self, began: u64, mut places: Vec<Place>) {
        places.truncate(MOST_FRAMES);
        for (number, place) in places.iter_mut().enumerate() {
            place.name.truncate(cut(&place.name, LONGEST_NAME).len());
            place.parent = place.parent.filter(|parent| (*parent as usize) < number);
        }
        lock(&self.state).places = (began, places);
    }

    /// A value came from another worker, or did not.
    pub(super) fn fetched(
        &self,
        object: ObjectId,
        from: WorkerId,
        (began, ended): (u64, u64),
        nbytes: Option<u64>,
    ) {
        lock(&self.state).add(Record {
            began,
            read: began,
            computed: ended,
            ended,
            object: object.to_u64(),
            bytes: nbytes.unwrap_or(0),
            group: from.0,
            lane: 0,
            kind: Kind::Fetch,
            failed: nbytes.is_none(),
        });
    }

    /// The shuffle plane has done something.
    pub(super) fn shuffled(&self, done: &Done) {
        let (name, kind) = match done.what {
            Activity::Gather => ("shuffle gathers", Kind::Shuffle),
            Activity::Push => ("shuffle pushes", Kind::Shuffle),
            Activity::Read => ("shuffle reads", Kind::Shuffle),
            Activity::Spill => ("shuffle writes", Kind::Spill),
            Activity::Load => ("shuffle loads", Kind::Spill),
        };
        let mut state = lock(&self.state);
        let group = state.group(name);
        state.add(Record {
            began: done.began,
            read: done.began,
            computed: done.ended,
            ended: done.ended,
            object: 0,
            bytes: done.bytes,
            group,
            lane: 0,
            kind,
            failed: false,
        });
    }

    /// The worker is done with a cast.
    pub(super) fn had(&self, had: &Had) {
        let name = match had.what {
            For::Engine => "calls of views",
            For::Memory => "values for workers",
            For::Python => "requests of clients",
        };
        let mut state = lock(&self.state);
        let group = state.group(name);
        let ended = had.done.unwrap_or(had.given);
        state.add(Record {
            began: had.came,
            read: had.given,
            computed: ended,
            ended,
            object: cast_object(had.cast.session, had.cast.number),
            bytes: had.bytes,
            group,
            lane: 0,
            kind: Kind::Cast,
            failed: false,
        });
    }

    /// The scheduler answers a batch with its clock.
    pub(super) fn answered(&self, answer: &Answer) {
        let came = clock::monotonic();
        let read = answer.result.as_ref().ok().and_then(|bytes| {
            let (value, was_dropped) = match Value::from_bytes(bytes).ok()? {
                Value::Tuple(parts) => (parts.into_iter().next()?, true),
                value => (value, false),
            };
            match value {
                Value::Int(theirs) => Some((u64::try_from(theirs).ok()?, was_dropped)),
                _ => None,
            }
        });
        let mut state = lock(&self.state);
        let Some((theirs, was_dropped)) = read else {
            // A scheduler that wants nothing of this any more.
            self.is_on.store(false, Ordering::Relaxed);
            *state = State::default();
            return;
        };
        state.unanswered = 0;
        state.again |= was_dropped;
        let (number, asked) = state.sent;
        if answer.id == OURS | number {
            state.clock.measured(asked, theirs, came);
        }
    }

    /// Asks the system, if it was not asked within the last second.
    fn ask_system(&self, ask: impl FnOnce() -> System) {
        let now = clock::monotonic();
        let (_, asked) = lock(&self.state).system;
        if now.saturating_sub(asked) >= SYSTEM {
            let system = ask();
            lock(&self.state).system = (system, now);
        }
    }

    /// Hands batches of what was recorded to `push`, which is called while `state` is not locked.
    fn send(
        &self,
        (processor, disk): (u64, [Disk; 2]),
        mut running: Vec<Runs>,
        is_last: bool,
        mut push: impl FnMut(Call),
    ) {
        let now = clock::monotonic();
        running.retain(|task| now.saturating_sub(task.began) >= RUNNING);
        running.sort_by_key(|task| (task.key.len() > LONGEST_KEY, task.began));
        let named = running.iter().take(MOST_RUNNING);
        let named = named.take_while(|task| task.key.len() <= LONGEST_KEY);
        // Threads are busy with the others, too.
        let named = named.count();
        let others = running.split_off(named);
        let others = others.iter().filter(|task| task.lane < lane::OTHERS.into());
        let unnamed = Unnamed::of(others.map(|task| task.began));
        // Batches leave in the order in which they were made.
        let _sending = lock(&self.sending);
        let mut state = lock(&self.state);
        let now = clock::monotonic();
        state.spilled(disk, now);
        // The first one says nothing: what it measures is needed for the others.
        let knows_clock = state.clock.offset.is_some();
        if !knows_clock && (is_last || state.sent.0 > 0 && state.unanswered < UNANSWERED) {
            state.unanswered += 1;
            return;
        }
        if state.unanswered >= UNANSWERED && !is_last {
            // The scheduler is slow: what comes to pass meanwhile waits in the ring.
            state.unanswered += 1;
            if !state.unanswered.is_multiple_of(UNANSWERED) {
                return;
            }
        }
        drop(state);
        loop {
            let (mut draft, more) = match knows_clock {
                true => lock(&self.state).batch(processor),
                false => (Draft::default(), false),
            };
            if knows_clock && !more {
                draft.running = Some(mem::take(&mut running));
                draft.unnamed = unnamed;
            }
            // Neither this nor what `push` waits for holds up who records.
            let argument = draft.encode().into();
            let mut state = lock(&self.state);
            state.sent = (state.sent.0 + 1, clock::monotonic());
            state.unanswered += 1;
            let id = OURS | state.sent.0;
            let is_enough = state.unanswered >= UNANSWERED;
            drop(state);
            push(Call {
                id,
                node: String::new(),
                operation: SIGHT.into(),
                argument,
            });
            if !more || is_enough || !self.is_on() {
                return;
            }
        }
    }
}

impl State {
    /// What went to disk since the last batch, and what came back.
    fn spilled(&mut self, disk: [Disk; 2], now: u64) {
        let before = mem::replace(&mut self.disk, disk);
        for (name, record) in disk::since(before, disk, now) {
            let group = self.group(name);
            self.add(Record { group, ..record });
        }
    }

    #[inline]
    fn add(&mut self, record: Record) {
        if self.records.len() >= self.most.0 {
            self.records.pop_front();
            self.lost += 1;
        }
        self.records.push_back(record);
    }

    #[inline]
    fn group(&mut self, name: &str) -> u32 {
        if *self.last.0 == *name {
            return self.last.1;
        }
        let number = match self.groups.get(name) {
            Some(number) => *number,
            None if self.groups.len() + 1 == MOST_GROUPS => 0,
            None => {
                let number = self.groups.len() as u32 + 1;
                self.groups.insert(name.into(), number);
                self.fresh.push((number, name.into()));
                number
            }
        };
        self.last = (name.into(), number);
        number
    }

    /// The next batch, and whether there are more.
    fn batch(&mut self, processor: u64) -> (Draft, bool) {
        let count = self.records.len().min(IN_BATCH);
        self.since += 1;
        // Names alone are nothing that a history needs.
        if count > 0 && (self.again || self.since >= AGAIN) {
            let groups = self.groups.iter();
            self.fresh = groups
                .map(|(name, number)| (*number, name.clone()))
                .collect();
            (self.since, self.again) = (0, false);
        }
        let draft = Draft {
            head: Head {
                offset: self.clock.offset.unwrap_or(0),
                lost: mem::take(&mut self.lost),
                processor,
                system: self.system.0,
            },
            names: mem::take(&mut self.fresh),
            keys: mem::take(&mut self.keys),
            running: None,
            unnamed: Unnamed::default(),
            places: mem::take(&mut self.places),
            lines: mem::take(&mut self.lines),
            records: self.records.drain(..count).collect(),
        };
        if self.records.is_empty() {
            self.records.shrink_to(FEW);
        }
        (draft, !self.records.is_empty())
    }
}

/// Whether an answer is to a call of this module.
pub(super) fn is_answer(answer: &Answer) -> bool {
    answer.id & OURS == OURS
}

/// Leaves what was recorded for the scheduler; sent with what is sent next.
pub(super) fn send(inner: &Inner, is_last: bool) {
    let recorder = &inner.tracing.recorder;
    if !recorder.is_on() {
        return;
    }
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let processor = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    let stats = inner.values.store().stats();
    let disk = [
        Disk::new(stats.written.nbytes, stats.write_time),
        Disk::new(stats.read.nbytes, stats.read_time),
    ];
    let running = inner.embedder.get().map(|embedder| embedder.running());
    let mut running = running.unwrap_or_default();
    running.extend(inner.plane.casts().iter().map(cast));
    recorder.ask_system(|| system::system(Health::of(inner).others));
    recorder.send((processor, disk), running, is_last, |call| {
        lock(&inner.machine).outbox.push(FromWorker::Call(call));
    });
}

/// A cast that the worker has, and is not done with, as something that runs.
fn cast(had: &Had) -> Runs {
    let key = format!("cast {} of client {}", had.cast.number, had.cast.session.0);
    Runs {
        lane: lane::CAST.into(),
        object: ObjectId::from_u64(cast_object(had.cast.session, had.cast.number)),
        began: had.came,
        key: Value::Str(key).to_bytes().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use treadle_sight::Batch;

    use super::lines::{LONGEST_LINE, MOST_LINES, MOST_TEXT};
    use super::*;

    fn timed(number: u64) -> Timed {
        Timed {
            lane: 0,
            object: ObjectId::from_u64(number),
            began: number,
            read: number,
            computed: number,
            ended: number,
            nbytes: 0,
            is_good: true,
            is_given_back: false,
        }
    }

    #[test]
    fn a_full_ring_loses_the_oldest_and_counts_them() {
        let recorder = Recorder::default();
        let key = Bytes::from(Value::str("inc-1").to_bytes());
        for number in 0..MOST as u64 + 5 {
            recorder.ran(&timed(number), &key);
        }
        let mut state = lock(&recorder.state);
        assert_eq!(state.records.capacity(), MOST);
        let mut read = 0;
        loop {
            let (draft, more) = state.batch(1);
            let bytes = draft.encode();
            let batch = Batch::decode(&bytes).unwrap();
            if read == 0 {
                assert_eq!(batch.head.lost, 5);
                assert_eq!(batch.beside.names, [(1, "inc")]);
                assert_eq!(batch.records()[0].began, 5);
            } else {
                assert_eq!((batch.head.lost, batch.beside.names.len()), (0, 0));
            }
            read += batch.records().len();
            if !more {
                break;
            }
        }
        assert_eq!(read, MOST);
    }

    #[test]
    fn as_many_wait_as_was_set() {
        let recorder = Recorder::default();
        let about = Value::Dict(vec![(Value::str(SIGHT), Value::Bool(true))]).to_bytes();
        recorder.start(&about, 2 * FEWEST as u64 * size_of::<Record>() as u64);
        assert!(recorder.is_on());
        let key = Bytes::from(Value::str("inc-1").to_bytes());
        for number in 0..3 * FEWEST as u64 {
            recorder.ran(&timed(number), &key);
        }
        let state = lock(&recorder.state);
        assert_eq!(
            (state.records.len(), state.lost),
            (2 * FEWEST, FEWEST as u64)
        );
    }

    #[test]
    fn groups_have_numbers_and_are_bounded() {
        let mut state = State::default();
        assert_eq!(state.group("a"), 1);
        assert_eq!(state.group("b"), 2);
        assert_eq!(state.group("a"), 1);
        for number in 0..2 * MOST_GROUPS {
            state.group(&format!("group-{number}"));
        }
        assert_eq!(state.groups.len() + 1, MOST_GROUPS);
        assert_eq!(state.group("one more"), 0);
        assert_eq!(state.group("one more"), 0);
        assert_eq!(state.group("b"), 2);
    }

    #[test]
    fn names_are_told_again_when_a_batch_was_dropped_and_now_and_then() {
        let recorder = Recorder::default();
        let key = Bytes::from(Value::str("inc-1").to_bytes());
        let told = || {
            recorder.ran(&timed(1), &key);
            let (draft, _) = lock(&recorder.state).batch(1);
            draft.names
        };
        let answered = |value: Value| {
            recorder.answered(&Answer {
                id: OURS | 1,
                result: Ok(value.to_bytes().into()),
            });
        };
        let names: [(u32, Box<str>); 1] = [(1, "inc".into())];
        assert_eq!(told(), names);
        answered(Value::Int(5));
        assert_eq!(told(), []);
        answered(Value::Tuple(vec![Value::Int(5)]));
        // A batch without records does not say them.
        assert_eq!(lock(&recorder.state).batch(1).0.names, []);
        assert_eq!(told(), names);
        assert_eq!(told(), []);
        let again = (0..2 * AGAIN).filter(|_| !told().is_empty());
        assert_eq!(again.count(), 2);
    }

    #[test]
    fn what_runs_where_it_is_and_the_log_are_told() {
        let recorder = Recorder::default();
        recorder.is_on.store(true, Ordering::Relaxed);
        // Who has answered once, and with whose clock.
        lock(&recorder.state).clock.measured(1, 2, 3);
        let now = clock::monotonic();
        let runs = |lane: u32, began| Runs {
            lane,
            object: ObjectId::from_u64(lane.into()),
            began,
            key: Bytes::from(Value::str("inc-1").to_bytes()),
        };
        let mut running = vec![runs(1_000, now)];
        running.extend((0..100).map(|lane| runs(lane, u64::from(lane))));
        let long = Value::str("x".repeat(LONGEST_KEY)).to_bytes();
        running.push(Runs {
            key: long.into(),
            ..runs(100, 0)
        });
        running.push(runs(lane::CAST.into(), 200));
        let said = MOST_LINES + 3;
        for number in 0..said {
            recorder.line(30, &format!("{number}{}", "ä".repeat(LONGEST_LINE)));
        }
        let place = |parent, name: &str| Place {
            parent,
            name: name.into(),
            time: 7,
        };
        recorder.sampled(
            5,
            vec![place(Some(4), "f"), place(Some(0), &"ä".repeat(500))],
        );
        let mut sent = Vec::new();
        let disk = [Disk::default(); 2];
        recorder.send((1, disk), running, false, |call| sent.push(call.argument));
        let batch = Batch::decode(&sent[0]).unwrap();
        // The longest of those that have run for a second.
        let told = batch.beside.running.unwrap();
        assert_eq!(told.len(), MOST_RUNNING);
        assert!(told.iter().zip(0..).all(|(task, lane)| task.lane == lane));
        // And how many others, and since when on average: the lanes from 64 to 99, and the one with the long key.
        let unnamed = batch.beside.unnamed;
        assert_eq!(
            (unnamed.count, unnamed.began),
            (37, (64..100).sum::<u64>() / 37)
        );
        let lines = &batch.beside.lines;
        assert_eq!(lines.len() as u64 + batch.beside.lost_lines, said as u64);
        let text: usize = lines.iter().map(|line| line.text.len()).sum();
        assert!(text <= MOST_TEXT && text + LONGEST_LINE > MOST_TEXT);
        assert!(lines[lines.len() - 1].text.starts_with("1026"));
        let longest = batch.beside.lines.iter().map(|line| line.text.len()).max();
        assert!(longest <= Some(LONGEST_LINE), "{longest:?}");
        assert_eq!((batch.beside.sampled, batch.beside.frames.len()), (5, 2));
        assert_eq!(batch.beside.frames[0].parent, None);
        assert_eq!(batch.beside.frames[1].parent, Some(0));
        assert_eq!(batch.beside.frames[1].name.len(), LONGEST_NAME);
        // Once.
        recorder.send((1, disk), Vec::new(), false, |call| {
            sent.push(call.argument)
        });
        let batch = Batch::decode(&sent[1]).unwrap();
        assert_eq!(batch.beside.running.unwrap(), []);
        assert_eq!(
            (batch.beside.lines.len(), batch.beside.frames.len()),
            (0, 0)
        );
    }

    #[test]
    fn long_names_are_cut_and_long_keys_are_not_sent() {
        let recorder = Recorder::default();
        let long = "x".repeat(100_000);
        let key = Bytes::from(Value::str(format!("{long}-1")).to_bytes());
        let mut task = timed(1);
        task.ended = task.began + LONG;
        recorder.ran(&task, &key);
        let (draft, _) = lock(&recorder.state).batch(1);
        assert_eq!(draft.names, [(1, keys::short(&long).into())]);
        assert_eq!((draft.keys.len(), draft.records.len()), (0, 1));
    }

    #[test]
    fn keys_of_long_tasks_are_sent() {
        let recorder = Recorder::default();
        let key = Bytes::from(Value::str("inc-1").to_bytes());
        recorder.ran(&timed(1), &key);
        let long = Timed {
            ended: 2 + LONG,
            ..timed(2)
        };
        recorder.ran(&long, &key);
        let (draft, _) = lock(&recorder.state).batch(0);
        let bytes = draft.encode();
        let batch = Batch::decode(&bytes).unwrap();
        assert_eq!(batch.beside.keys, [(2, &key[..])]);
    }

    #[test]
    fn a_task_that_asks_to_run_elsewhere_has_not_failed() {
        let recorder = Recorder::default();
        let key = Bytes::from(Value::str("inc-1").to_bytes());
        for is_given_back in [false, true] {
            let task = Timed {
                is_good: false,
                is_given_back,
                ..timed(1)
            };
            recorder.ran(&task, &key);
        }
        let state = lock(&recorder.state);
        let failed: Vec<bool> = state.records.iter().map(|record| record.failed).collect();
        assert_eq!(failed, [true, false]);
    }

    #[test]
    fn an_answer_that_is_no_clock_ends_it() {
        let recorder = Recorder::default();
        let about = Value::Dict(vec![(Value::str(SIGHT), Value::Bool(true))]);
        recorder.start(&about.to_bytes(), 0);
        assert!(recorder.is_on());
        let answer = Answer {
            id: OURS | 1,
            result: Err(Bytes::from_static(b"unknown operation")),
        };
        assert!(is_answer(&answer));
        recorder.answered(&answer);
        assert!(!recorder.is_on());
        recorder.start(b"", 0);
        assert!(!recorder.is_on());
    }

    #[test]
    fn answers_come_under_the_lock_that_sending_takes() {
        let about = Value::Dict(vec![(Value::str(SIGHT), Value::Bool(true))]);
        let recorder = Recorder::default();
        recorder.start(&about.to_bytes(), 0);
        let shared = Arc::new((recorder, Mutex::new(0_u64)));
        let (done, wait) = mpsc::channel();
        let (sender, theirs) = (Arc::clone(&shared), done.clone());
        thread::spawn(move || {
            let key = Bytes::from(Value::str("inc-1").to_bytes());
            for number in 0..20_000 {
                sender.0.ran(&timed(number), &key);
                sender
                    .0
                    .send((number, [Disk::default(); 2]), Vec::new(), false, |call| {
                        *lock(&sender.1) = call.id
                    });
            }
            let _ = theirs.send(());
        });
        thread::spawn(move || {
            let result: Bytes = Value::Int(5).to_bytes().into();
            // As long as the other sends, which has the other half of this.
            while Arc::strong_count(&shared) > 1 {
                let machine = lock(&shared.1);
                shared.0.answered(&Answer {
                    id: OURS | *machine,
                    result: Ok(result.clone()),
                });
            }
            let _ = done.send(());
        });
        for _ in 0..2 {
            let ended = wait.recv_timeout(Duration::from_secs(60));
            ended.expect("each waits for the other's lock");
        }
    }
}
