//! What tasks did, for those who draw it. Kept while somebody reads it, and then the latest only.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use treadle_gateway::{Arguments, Node, dict, int};
use treadle_types::{Report, Symbol, Value, WorkerId};

use super::hub::Hub;

/// How many are kept.
const MOST: usize = 1 << 18;

/// A run of a task.
#[derive(Debug)]
struct Run {
    key: Bytes,
    function: Symbol,
    worker: Symbol,
    stop: Duration,
    duration: Duration,
    nbytes: u64,
    is_good: bool,
}

/// The latest runs.
#[derive(Debug, Default)]
pub(super) struct Stream {
    runs: VecDeque<Run>,
    /// The number of the first of them.
    first: u64,
    readers: usize,
}

impl Stream {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.readers > 0
    }

    /// Somebody reads from now on, or no more.
    pub(super) fn subscribe(&mut self, is_on: bool) {
        if is_on {
            self.readers += 1;
        } else {
            self.readers = self.readers.saturating_sub(1);
        }
        if self.readers == 0 {
            self.first += self.runs.len() as u64;
            self.runs = VecDeque::new();
        }
    }
}

/// Seconds since the beginning of 1970.
fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs_f64()
}

impl Hub {
    /// The stream of what tasks did, for a client that reads it from now on, or no more.
    pub(super) fn task_events(&mut self, asker: Node, arguments: &Arguments) -> Value {
        let is_on = !arguments.is_set("stop");
        if let Node::Client(client) = asker
            && let Some(link) = self.links.client(client)
            && link.streams != is_on
        {
            link.streams = is_on;
            self.stream.subscribe(is_on);
        }
        let since = arguments.integer("since");
        let since = since.and_then(|since| u64::try_from(since).ok());
        self.stream_since(since)
    }

    /// Notes a report, if it is about a run.
    pub(super) fn stream_report(&mut self, worker: WorkerId, report: &Report) {
        let (object, duration, nbytes, is_good) = match report {
            Report::Finished {
                object,
                value,
                duration,
            } => (object, duration, value.nbytes, true),
            Report::Failed {
                object, duration, ..
            } => (object, duration, 0, false),
            _ => return,
        };
        let Some((key, function)) = self.core.key_and_function(object.task) else {
            return;
        };
        let run = Run {
            function,
            key: Bytes::copy_from_slice(key),
            worker: self
                .core
                .worker(worker)
                .map_or(Symbol(0), |node| node.symbol),
            stop: self.now,
            duration: *duration,
            nbytes,
            is_good,
        };
        let stream = &mut self.stream;
        if stream.runs.len() == MOST {
            stream.runs.pop_front();
            stream.first += 1;
        }
        stream.runs.push_back(run);
    }

    /// The runs from a number on.
    fn stream_since(&self, since: Option<u64>) -> Value {
        let end = self.stream.first + self.stream.runs.len() as u64;
        let since = since.unwrap_or(end);
        let lost = self.stream.first.saturating_sub(since);
        let skipped = since.saturating_sub(self.stream.first);
        let runs = self.stream.runs.iter().skip(skipped as usize);
        let started = self.started;
        let runs = runs.map(|run| {
            let stop = seconds(started + run.stop);
            let key = Value::from_bytes(&run.key);
            Value::Tuple(vec![
                key.unwrap_or_else(|_| Value::Bytes(run.key.to_vec())),
                Value::Str(self.core.text(run.function).to_owned()),
                Value::Str(self.core.text(run.worker).to_owned()),
                Value::Float(stop - run.duration.as_secs_f64()),
                Value::Float(stop),
                int(run.nbytes),
                Value::Bool(run.is_good),
            ])
        });
        dict([
            ("runs", Value::List(runs.collect())),
            ("next", int(end)),
            ("lost", int(lost)),
        ])
    }
}
