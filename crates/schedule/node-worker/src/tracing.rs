//! What the worker does, for those who trace the cluster.
//!
//! While nobody traces, that costs one relaxed load where something could be recorded. Otherwise
//! events wait in a ring, and a thread of its own sends them to the scheduler in batches: a worker
//! that dies loses what it has not sent. The answer to each batch carries the scheduler's clock, so
//! each is a measurement of the difference between both clocks, too.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_broadcast_node::Had;
use treadle_messages::{Answer, Call, FromWorker};
use treadle_net::Wait;
use treadle_reactor::clock;
use treadle_reactor::thread::{self, lock};
use treadle_schedule_wire::trace::{BATCH, SWITCH};
use treadle_shuffle_node::{Activity, Done};
use treadle_types::{ObjectId, Value, WorkerId};

use super::Inner;
use super::health::Health;
use super::recording::{self, Place, Recorder, Timed};

/// How often events are sent.
const EVERY: Duration = Duration::from_millis(200);
/// Events that wait to be sent; then the oldest are lost.
const MOST: usize = 1 << 16;
/// Events of one batch.
const IN_BATCH: usize = 1 << 13;
/// Measurements of the clocks' difference when it is switched on, and before its end.
const MEASUREMENTS: usize = 8;
/// How long the thread sleeps while it waits for an answer, before it looks whether the worker ends.
const LOOK: Duration = Duration::from_millis(500);
/// Marks numbers of this module's calls: the embedder counts its own from 1.
const OURS: u64 = 1 << 63;

/// A task that ran, with what only traces have.
#[derive(Debug)]
pub struct Ran {
    /// What is recorded always.
    pub task: Timed,
    /// The key, encoded.
    pub key: Bytes,
    /// The name of what it called first.
    pub function: String,
    /// The values that it read.
    pub reads: Vec<ObjectId>,
}

#[derive(Debug)]
pub(super) enum Event {
    Ran(Ran),
    /// A value came from another worker; no size: it did not.
    Fetched {
        object: ObjectId,
        from: WorkerId,
        began: u64,
        nbytes: Option<u64>,
        ended: u64,
    },
    /// A value was serialised and handed over to whoever asked.
    Served {
        object: ObjectId,
        began: u64,
        nbytes: u64,
        ended: u64,
    },
    /// The shuffle plane has done something. With a name: for a shuffle on servers, whose numbers are others.
    Shuffled(Done, Option<String>),
}

fn int(value: u64) -> Value {
    Value::Int(value.try_into().unwrap_or(i64::MAX))
}

/// A key, as a value.
fn key_of(bytes: &Bytes) -> Value {
    Value::from_bytes(bytes).unwrap_or_else(|_| Value::Bytes(bytes.to_vec()))
}

impl Event {
    fn to_value(&self) -> Value {
        Value::Tuple(match self {
            Self::Ran(ran) => vec![
                Value::str("task"),
                int(ran.task.lane.into()),
                int(ran.task.object.to_u64()),
                key_of(&ran.key),
                Value::Str(ran.function.clone()),
                int(ran.task.began),
                int(ran.task.read),
                int(ran.task.computed),
                int(ran.task.ended),
                int(ran.task.nbytes),
                Value::Bool(ran.task.is_good),
                Value::List(
                    ran.reads
                        .iter()
                        .map(|object| int(object.to_u64()))
                        .collect(),
                ),
            ],
            Self::Fetched {
                object,
                from,
                began,
                nbytes,
                ended,
            } => vec![
                Value::str("fetch"),
                int(object.to_u64()),
                int(from.0.into()),
                int(*began),
                int(*ended),
                nbytes.map_or(Value::None, int),
            ],
            Self::Served {
                object,
                began,
                nbytes,
                ended,
            } => vec![
                Value::str("serve"),
                int(object.to_u64()),
                int(*began),
                int(*ended),
                int(*nbytes),
            ],
            Self::Shuffled(done, name) => vec![
                Value::str("rows"),
                Value::str(match done.what {
                    Activity::Gather => "gather",
                    Activity::Push => "push",
                    Activity::Read => "read",
                    Activity::Spill => "spill",
                    Activity::Load => "load",
                }),
                int(done.began),
                int(done.ended),
                int(done.bytes),
                name.clone().map_or_else(|| int(done.shuffle.0), Value::Str),
            ],
        })
    }
}

/// A task that runs.
#[derive(Debug)]
struct Running {
    object: ObjectId,
    key: Bytes,
    began: u64,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// How many were lost since the last batch.
    dropped: u64,
    /// By executor thread.
    running: BTreeMap<u32, Running>,
    /// The latest word of the scheduler's.
    mark: i64,
    has_thread: bool,
    /// The number of the latest question, and the scheduler's clock and ours when it was answered.
    answer: Option<(u64, u64, u64)>,
}

/// What a worker records.
#[derive(Debug, Default)]
pub struct Tracing {
    is_on: AtomicBool,
    state: Mutex<State>,
    woken: Condvar,
    /// What is recorded always.
    pub(super) recorder: Recorder,
}

impl Tracing {
    /// Whether somebody traces.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether anything is recorded: for a trace, or always.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.is_on() || self.recorder.is_on()
    }

    /// An executor thread has run a task of this key: what is recorded always.
    #[inline]
    pub fn timed(&self, task: &Timed, key: &Bytes) {
        if self.recorder.is_on() {
            self.recorder.ran(task, key);
        }
    }

    /// Whether what the worker does is recorded always.
    pub fn is_recorded(&self) -> bool {
        self.recorder.is_on()
    }

    /// The log has a line more: of a level as Python's `logging` has it.
    pub fn line(&self, level: u8, text: &str) {
        if self.recorder.is_on() {
            self.recorder.line(level, text);
        }
    }

    /// Where the threads of tasks were since a time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn sampled(&self, began: u64, places: Vec<Place>) {
        if self.recorder.is_on() {
            self.recorder.sampled(began, places);
        }
    }

    /// The worker is done with a cast.
    pub(super) fn had(&self, had: &Had) {
        if self.recorder.is_on() {
            self.recorder.had(had);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// An executor thread begins a task.
    pub fn begins(&self, lane: u32, object: ObjectId, key: Bytes, began: u64) {
        let running = Running { object, key, began };
        self.state().running.insert(lane, running);
    }

    /// An executor thread has run a task.
    pub fn ran(&self, ran: Ran) {
        let mut state = self.state();
        state.running.remove(&ran.task.lane);
        self.record(&mut state, Event::Ran(ran));
    }

    /// A member of a shuffle service has done something with rows of the shuffle of this name.
    pub fn shuffled(&self, done: Done, shuffle: String) {
        self.add(Event::Shuffled(done, Some(shuffle)));
    }

    pub(super) fn add(&self, event: Event) {
        if self.recorder.is_on() {
            match &event {
                Event::Fetched {
                    object,
                    from,
                    began,
                    nbytes,
                    ended,
                } => {
                    let times = (*began, *ended);
                    self.recorder.fetched(*object, *from, times, *nbytes);
                }
                Event::Shuffled(done, _) => self.recorder.shuffled(done),
                // The other end records it, and a task is recorded where it ends.
                Event::Served { .. } | Event::Ran(_) => {}
            }
        }
        if self.is_on() {
            self.record(&mut self.state(), event);
        }
    }

    fn record(&self, state: &mut State, event: Event) {
        if state.events.len() == MOST {
            state.events.pop_front();
            state.dropped += 1;
        }
        state.events.push_back(event);
        if state.events.len() == MOST / 2 {
            self.woken.notify_all();
        }
    }

    /// The scheduler switches it on or off, or wants what was recorded so far: the next batch
    /// repeats the mark.
    pub(super) fn switched(&self, call: &Call) {
        let argument = Value::from_bytes(&call.argument).unwrap_or(Value::None);
        let mut state = self.state();
        if let Some(Value::Int(mark)) = argument.get("mark") {
            state.mark = *mark;
        }
        let is_on = matches!(argument.get("on"), Some(Value::Bool(true)));
        if !is_on {
            state.running.clear();
        }
        self.is_on.store(is_on, Ordering::Relaxed);
        self.woken.notify_all();
    }

    /// The scheduler answers one of this module's calls.
    pub(super) fn answered(&self, answer: &Answer) {
        let now = clock::monotonic();
        if let Ok(bytes) = &answer.result
            && let Ok(Value::Int(theirs)) = Value::from_bytes(bytes)
        {
            self.state().answer = Some((answer.id, theirs.try_into().unwrap_or(0), now));
        }
    }

    /// Whether a thread has to be started, which is then expected.
    fn wants_thread(&self) -> bool {
        !std::mem::replace(&mut self.state().has_thread, true)
    }

    /// The tasks that run.
    fn running(&self) -> Value {
        let state = self.state();
        let running = state.running.iter().map(|(lane, running)| {
            Value::Tuple(vec![
                int((*lane).into()),
                int(running.object.to_u64()),
                key_of(&running.key),
                int(running.began),
            ])
        });
        Value::List(running.collect())
    }

    /// Waits until it is time for a batch.
    fn sleep(&self, mark: i64) {
        let state = self.state();
        let waited = self.woken.wait_timeout_while(state, EVERY, |state| {
            state.mark == mark && state.events.len() < MOST / 2
        });
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Whether a call is the scheduler's word to this module.
pub(super) fn is_told(call: &Call) -> bool {
    call.operation == SWITCH && call.node.is_empty()
}

/// Whether an answer is to a call of this module.
pub(super) fn is_answer(answer: &Answer) -> bool {
    answer.id & OURS != 0 && !recording::is_answer(answer)
}

/// Sees to it that batches are sent.
pub(super) fn start(inner: &Inner) {
    if !inner.tracing.wants_thread() {
        return;
    }
    let weak = inner.this.clone();
    let started = thread::start("treadle-trace", move || {
        Inner::guard(&weak, || send_batches(&weak));
    });
    if let Err(error) = started {
        inner.tracing.state().has_thread = false;
        inner.log(format_args!("this worker is not traced: {error}"));
    }
}

fn send_batches(weak: &Weak<Inner>) {
    let Some(tracing) = weak.upgrade().map(|inner| Arc::clone(&inner.tracing)) else {
        return;
    };
    let mut batches = Batches::default();
    let mut mark = None;
    loop {
        let Some(inner) = weak.upgrade().filter(|inner| !inner.is_over()) else {
            return;
        };
        let (now, is_on) = {
            let state = tracing.state();
            (state.mark, tracing.is_on())
        };
        if mark != Some(now) {
            for _ in 0..MEASUREMENTS {
                batches.send(&inner, None, Vec::new());
            }
        }
        batches.send_all(&inner, now);
        mark = Some(now);
        let mut state = tracing.state();
        if !is_on && state.mark == now && !tracing.is_on() {
            state.events.clear();
            state.has_thread = false;
            return;
        }
        drop(state);
        drop(inner);
        tracing.sleep(now);
    }
}

/// The clock, and bytes of memory: of values, of the process, of values on disk.
fn health(inner: &Inner) -> Value {
    let health = Health::of(inner);
    let fields = [
        clock::monotonic(),
        health.managed,
        health.process,
        health.spilled,
    ];
    Value::Tuple(fields.map(int).to_vec())
}

#[derive(Default)]
struct Batches {
    number: u64,
    /// Of each answer since the last batch: when it was asked for and had come by our clock, and the
    /// scheduler's clock in between.
    samples: Vec<(u64, u64, u64)>,
}

impl Batches {
    /// Sends all that was recorded so far; the last batch carries the mark.
    fn send_all(&mut self, inner: &Inner, mark: i64) {
        loop {
            let mut state = inner.tracing.state();
            let count = state.events.len().min(IN_BATCH);
            let events: Vec<Event> = state.events.drain(..count).collect();
            let is_last = state.events.is_empty();
            drop(state);
            self.send(inner, is_last.then_some(mark), events);
            if is_last || inner.is_over() {
                return;
            }
        }
    }

    fn send(&mut self, inner: &Inner, mark: Option<i64>, events: Vec<Event>) {
        let dropped = std::mem::take(&mut inner.tracing.state().dropped);
        // A measurement says nothing else.
        let (running, health) = match mark {
            Some(_) => (inner.tracing.running(), health(inner)),
            None => (Value::List(Vec::new()), Value::None),
        };
        let samples = std::mem::take(&mut self.samples).into_iter();
        let samples = samples
            .map(|(asked, theirs, came)| Value::Tuple(vec![int(asked), int(theirs), int(came)]));
        // The scheduler does not look into it.
        let content = Value::Tuple(vec![
            Value::List(samples.collect()),
            running,
            health,
            Value::List(events.iter().map(Event::to_value).collect()),
        ]);
        let argument = Value::Tuple(vec![
            mark.map_or(Value::None, Value::Int),
            int(events.len() as u64),
            int(dropped),
            Value::Bytes(content.to_bytes()),
        ]);
        self.number += 1;
        let id = OURS | self.number;
        let call = Call {
            id,
            node: String::new(),
            operation: BATCH.into(),
            argument: argument.to_bytes().into(),
        };
        let asked = clock::monotonic();
        inner.say(FromWorker::Call(call));
        if let Some((theirs, came)) = self.answer(inner, id) {
            self.samples.push((asked, theirs, came));
        }
    }

    /// Waits for an answer, and takes in meanwhile what the scheduler says. One batch at a time: what
    /// comes to pass while the scheduler is slow waits in the ring.
    fn answer(&self, inner: &Inner, id: u64) -> Option<(u64, u64)> {
        let come = || match inner.tracing.state().answer {
            Some((of, theirs, came)) if of == id => Some((theirs, came)),
            _ => None,
        };
        while !inner.is_over() {
            if let Some(answer) = come() {
                return Some(answer);
            }
            let mut done = || inner.is_over() || inner.has_news() || come().is_some();
            let waited = inner.control_lane.wait(
                &mut done,
                &mut Wait {
                    deadline: Some(Instant::now() + LOOK),
                    interrupted: None,
                },
            );
            if waited.is_ok() && come().is_none() {
                inner.drain(0);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(number: u64) -> Event {
        Event::Served {
            object: ObjectId::from_u64(number),
            began: 1,
            nbytes: 2,
            ended: 3,
        }
    }

    fn switched(tracing: &Tracing, is_on: bool, mark: i64) {
        let argument = Value::Dict(vec![
            (Value::str("on"), Value::Bool(is_on)),
            (Value::str("mark"), Value::Int(mark)),
        ]);
        tracing.switched(&Call {
            id: 0,
            node: String::new(),
            operation: SWITCH.into(),
            argument: argument.to_bytes().into(),
        });
    }

    #[test]
    fn a_full_ring_loses_the_oldest_and_counts_them() {
        let tracing = Tracing::default();
        switched(&tracing, true, 1);
        assert!(tracing.is_on());
        let more = 100;
        for number in 0..MOST as u64 + more {
            tracing.add(served(number));
        }
        let state = tracing.state();
        assert_eq!(state.events.len(), MOST);
        assert_eq!(state.dropped, more);
        let oldest = state.events.front().map(Event::to_value);
        assert_eq!(oldest, Some(served(more).to_value()));
    }

    #[test]
    fn what_runs_is_forgotten_when_it_ends_and_when_nobody_traces() {
        let tracing = Tracing::default();
        switched(&tracing, true, 1);
        let object = ObjectId::from_u64(7);
        tracing.begins(0, object, Bytes::new(), 1);
        tracing.begins(1, object, Bytes::new(), 1);
        tracing.ran(Ran {
            task: Timed {
                lane: 0,
                object,
                began: 1,
                read: 1,
                computed: 2,
                ended: 2,
                nbytes: 0,
                is_good: true,
                is_given_back: false,
            },
            key: Bytes::new(),
            function: String::new(),
            reads: Vec::new(),
        });
        let lanes: Vec<u32> = tracing.state().running.keys().copied().collect();
        assert_eq!(lanes, [1]);
        switched(&tracing, false, 2);
        assert!(tracing.state().running.is_empty());
        assert_eq!(tracing.state().mark, 2);
        assert!(!tracing.is_on());
    }

    #[test]
    fn answers_are_told_apart() {
        let answer = |id| Answer {
            id,
            result: Ok(Value::Int(5).to_bytes().into()),
        };
        assert!(is_answer(&answer(OURS | 3)));
        assert!(!is_answer(&answer(3)));
        let tracing = Tracing::default();
        tracing.answered(&answer(OURS | 3));
        let (of, theirs, came) = tracing.state().answer.expect("it was answered");
        assert_eq!((of, theirs), (OURS | 3, 5));
        assert!(came > 0);
    }
}
