//! Traces of the whole cluster: what workers send of what they do, and what the scheduler does, kept
//! for the clients that trace, who fetch it. While nobody traces, nothing is kept.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use treadle_gateway::{Arguments, Node, OperationError, dict, int};
use treadle_messages::{Batch, Call, ToWorker};
use treadle_reactor::clock;
use treadle_schedule_wire::trace::{BATCH, SWITCH};
use treadle_scheduler::State;
use treadle_types::{Cause, ClientId, Value, WorkerId};

use super::hub::Hub;

/// Bytes that are kept; then the oldest batches are lost.
const MOST: usize = 64 << 20;
/// Bytes of one answer.
const PAGE: usize = 4 << 20;
/// Events of the scheduler's own in one batch.
const IN_BATCH: usize = 4096;

/// What one process did in a while.
#[derive(Debug)]
struct Part {
    /// Nobody: the scheduler.
    worker: Option<WorkerId>,
    events: u64,
    content: Vec<u8>,
}

/// A worker that was here while somebody traced.
#[derive(Debug)]
struct Row {
    about: Value,
    /// The latest mark that it has repeated: all that it did before is here.
    mark: i64,
    /// Events that it lost for lack of room.
    dropped: u64,
    is_gone: bool,
}

/// What is known of the cluster's doings.
#[derive(Debug, Default)]
pub(super) struct Tracing {
    /// Clients, and their numbers of their traces.
    readers: BTreeSet<(ClientId, i64)>,
    parts: VecDeque<Part>,
    /// The number of the first of them.
    first: u64,
    bytes: usize,
    /// Events of parts that are gone.
    lost: u64,
    mark: i64,
    rows: BTreeMap<WorkerId, Row>,
    own: Vec<Value>,
    /// The number of the last shuffle that was named.
    named: u64,
}

impl Tracing {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.readers.is_empty()
    }

    fn push(&mut self, part: Part) {
        self.bytes += part.content.len();
        self.parts.push_back(part);
        while self.bytes > MOST
            && let Some(oldest) = self.parts.pop_front()
        {
            self.bytes -= oldest.content.len();
            self.lost += oldest.events;
            self.first += 1;
        }
    }

    /// An event of the scheduler's.
    fn note(&mut self, event: Vec<Value>) {
        self.own.push(Value::Tuple(event));
        if self.own.len() == IN_BATCH {
            self.seal();
        }
    }

    fn seal(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let own = std::mem::take(&mut self.own);
        let part = Part {
            worker: None,
            events: own.len() as u64,
            content: Value::List(own).to_bytes(),
        };
        self.push(part);
    }
}

impl Hub {
    /// Answers a question about what was done, if it is one.
    pub(super) fn answer_about_past(
        &mut self,
        asker: Node,
        call: &Call,
    ) -> Option<Result<Value, OperationError>> {
        let answer: fn(&mut Self, Node, Arguments) -> Result<Value, OperationError> =
            match call.operation.as_str() {
                BATCH => |hub, asker, arguments| hub.trace_batch(asker, arguments.into_value()),
                "trace" => |hub, asker, arguments| hub.trace(asker, &arguments),
                "task-events" => |hub, asker, arguments| Ok(hub.task_events(asker, &arguments)),
                _ => return None,
            };
        Some(Arguments::of(call).and_then(|arguments| answer(self, asker, arguments)))
    }

    /// A client traces, or fetches what there is; see `docs/internals/cluster-calls.md`.
    fn trace(&mut self, asker: Node, arguments: &Arguments) -> Result<Value, OperationError> {
        let Node::Client(client) = asker else {
            return Err(OperationError::Invalid("trace: only clients can trace"));
        };
        if let Some(number) = arguments.integer("start") {
            self.tracing.readers.insert((client, number));
            self.tracing.seal();
            self.tracing.named = 0;
            self.trace_shuffles();
            self.tell_tracers();
        }
        if arguments.is_set("mark") {
            self.tell_tracers();
        }
        if let Some(number) = arguments.integer("stop") {
            self.stop_tracing(client, Some(number));
        }
        let since = arguments.integer("since");
        let answer = match since.and_then(|since| u64::try_from(since).ok()) {
            Some(since) => self.trace_since(since),
            None => {
                let next = self.tracing.first + self.tracing.parts.len() as u64;
                dict([
                    ("clock", int(clock::monotonic())),
                    ("next", int(next)),
                    ("mark", Value::Int(self.tracing.mark)),
                    ("lost", int(self.tracing.lost)),
                    ("pid", int(std::process::id())),
                ])
            }
        };
        Ok(answer)
    }

    /// A client ends a trace, or all that it has.
    pub(super) fn stop_tracing(&mut self, client: ClientId, number: Option<i64>) {
        let was_on = self.tracing.is_on();
        let ends = |reader: &(ClientId, i64)| {
            reader.0 == client && number.is_none_or(|number| reader.1 == number)
        };
        self.tracing.readers.retain(|reader| !ends(reader));
        if was_on && !self.tracing.is_on() {
            let (first, parts) = (self.tracing.first, self.tracing.parts.len() as u64);
            let mark = self.tracing.mark;
            self.tracing = Tracing {
                first: first + parts,
                mark,
                ..Tracing::default()
            };
            self.tell_tracers();
        }
    }

    /// Tells all workers whether somebody traces, with a new mark.
    fn tell_tracers(&mut self) {
        self.tracing.mark += 1;
        let workers: Vec<WorkerId> = self.core.workers().map(|node| node.id).collect();
        for worker in workers {
            self.tell_tracer(worker);
        }
    }

    fn tell_tracer(&mut self, worker: WorkerId) {
        let is_on = self.tracing.is_on();
        let Some(node) = self.core.worker(worker) else {
            return;
        };
        if is_on && !self.tracing.rows.contains_key(&worker) {
            let about = dict([
                ("name", Value::Str(node.name.clone())),
                ("address", Value::Str(node.address.clone())),
                ("host", Value::Str(node.host.clone())),
                ("pid", node.pid().map_or(Value::None, Value::Int)),
                ("threads", int(node.threads)),
            ]);
            let row = Row {
                about,
                mark: 0,
                dropped: 0,
                is_gone: false,
            };
            self.tracing.rows.insert(worker, row);
        }
        let told = dict([
            ("on", Value::Bool(is_on)),
            ("mark", Value::Int(self.tracing.mark)),
        ]);
        let call = Call {
            // Nobody answers it.
            id: 0,
            node: String::new(),
            operation: SWITCH.into(),
            argument: told.to_bytes().into(),
        };
        self.links.tell_worker(worker, &ToWorker::Call(call));
    }

    /// A worker sends what it has done. The answer is the clock.
    fn trace_batch(&mut self, asker: Node, argument: Value) -> Result<Value, OperationError> {
        let Node::Worker(worker) = asker else {
            return Err(OperationError::Invalid(
                "trace-batch: only workers say what they did",
            ));
        };
        let clock = int(clock::monotonic());
        let Value::Tuple(fields) = argument else {
            return Err(OperationError::Invalid("trace-batch: a tuple is expected"));
        };
        let Ok(
            [
                mark,
                Value::Int(events),
                Value::Int(dropped),
                Value::Bytes(content),
            ],
        ) = <[Value; 4]>::try_from(fields)
        else {
            return Err(OperationError::Invalid(
                "trace-batch: mark, counts and events are expected",
            ));
        };
        let Some(row) = self.tracing.rows.get_mut(&worker) else {
            return Ok(clock);
        };
        if let Value::Int(mark) = mark {
            row.mark = mark;
        }
        row.dropped += u64::try_from(dropped).unwrap_or(0);
        self.tracing.push(Part {
            worker: Some(worker),
            events: u64::try_from(events).unwrap_or(0),
            content,
        });
        Ok(clock)
    }

    fn trace_since(&mut self, since: u64) -> Value {
        self.tracing.seal();
        let tracing = &self.tracing;
        let skipped = since.saturating_sub(tracing.first);
        let mut parts = Vec::new();
        let mut bytes = 0;
        for (place, part) in tracing.parts.iter().enumerate().skip(skipped as usize) {
            if bytes > PAGE {
                break;
            }
            bytes += part.content.len();
            parts.push(Value::Tuple(vec![
                int(tracing.first + place as u64),
                part.worker
                    .map_or(Value::None, |worker| int(i64::from(worker.0))),
                Value::Bytes(part.content.clone()),
            ]));
        }
        let next = since.max(tracing.first) + parts.len() as u64;
        let end = tracing.first + tracing.parts.len() as u64;
        let rows = tracing.rows.iter().map(|(worker, row)| {
            let state = dict([
                ("about", row.about.clone()),
                ("mark", Value::Int(row.mark)),
                ("dropped", int(row.dropped)),
                ("gone", Value::Bool(row.is_gone)),
            ]);
            (int(i64::from(worker.0)), state)
        });
        dict([
            ("parts", Value::List(parts)),
            ("next", int(next)),
            ("more", Value::Bool(next < end)),
            ("lost", int(tracing.lost)),
            ("mark", Value::Int(tracing.mark)),
            ("workers", Value::Dict(rows.collect())),
        ])
    }

    /// A batch of a client's tasks was taken in since `began`.
    pub(super) fn trace_submission(&mut self, client: ClientId, began: u64, batch: (usize, bool)) {
        let name = self.core.called(Node::Client(client));
        let (tasks, last) = batch;
        self.tracing.note(vec![
            Value::str("submit"),
            int(began),
            int(clock::monotonic()),
            Value::Str(name),
            int(tasks as u64),
            Value::Bool(last),
        ]);
    }

    /// When a batch of tasks is taken in, if somebody wants to know.
    #[inline]
    pub(super) fn trace_clock(&self, batch: &Batch) -> Option<(u64, (usize, bool))> {
        let is_on = self.tracing.is_on();
        is_on.then(|| (clock::monotonic(), (batch.tasks.len(), batch.last)))
    }

    /// The names of shuffles that have begun: workers know their numbers.
    pub(super) fn trace_shuffles(&mut self) {
        if !self.tracing.is_on() || self.tracing.named == self.core.shuffle_counts().1 {
            return;
        }
        for (number, name) in self.core.shuffles_since(self.tracing.named) {
            self.tracing.note(vec![
                Value::str("shuffle"),
                int(clock::monotonic()),
                int(number),
                Value::Str(name.to_owned()),
            ]);
            self.tracing.named = number;
        }
    }

    /// A worker has joined.
    pub(super) fn trace_join(&mut self, worker: WorkerId) {
        if self.tracing.is_on() {
            self.tell_tracer(worker);
            self.tracing.note(vec![
                Value::str("joined"),
                int(clock::monotonic()),
                int(i64::from(worker.0)),
            ]);
        }
    }

    /// A worker is lost.
    pub(super) fn trace_loss(&mut self, worker: WorkerId, cause: &Cause) {
        if let Some(row) = self.tracing.rows.get_mut(&worker) {
            row.is_gone = true;
        }
        if self.tracing.is_on() {
            let drained = matches!(cause, Cause::Drained | Cause::Exited(0));
            self.tracing.note(vec![
                Value::str("lost"),
                int(clock::monotonic()),
                int(i64::from(worker.0)),
                Value::Str(cause.to_string()),
                Value::Bool(drained),
            ]);
        }
    }

    /// Time has passed: how tasks stand, and where they were placed.
    pub(super) fn trace_tick(&mut self) {
        if !self.tracing.is_on() {
            return;
        }
        let states = [
            State::Waiting,
            State::Ready,
            State::Assigned,
            State::Memory,
            State::Failed,
        ];
        let states = states.map(|state| {
            let count = self.core.scheduler().count(state) as u64;
            (Value::str(state.name()), int(count))
        });
        let workers = self.core.scheduler().workers().map(|view| {
            let assigned = view.assigned_count() as u64;
            (int(i64::from(view.id().0)), int(assigned))
        });
        let workers = Value::Dict(workers.collect());
        self.tracing.note(vec![
            Value::str("counts"),
            int(clock::monotonic()),
            Value::Dict(states.to_vec()),
            workers,
            int(self.core.counts().commands),
            int(self.rates.reports),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_lost_and_counted() {
        let mut tracing = Tracing::default();
        let size = MOST / 4;
        for _ in 0..6 {
            tracing.push(Part {
                worker: None,
                events: 10,
                content: vec![0; size],
            });
        }
        assert_eq!(tracing.parts.len(), 4);
        assert_eq!(tracing.first, 2);
        assert_eq!(tracing.lost, 20);
        assert_eq!(tracing.bytes, MOST);
    }

    #[test]
    fn events_of_its_own_become_parts() {
        let mut tracing = Tracing::default();
        for number in 0..IN_BATCH + 1 {
            tracing.note(vec![int(number as u64)]);
        }
        assert_eq!(tracing.parts.len(), 1);
        tracing.seal();
        tracing.seal();
        let events: Vec<u64> = tracing.parts.iter().map(|part| part.events).collect();
        assert_eq!(events, [IN_BATCH as u64, 1]);
    }
}
