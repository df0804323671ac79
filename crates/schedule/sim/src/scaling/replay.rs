//! Replays what `treadle.trace` recorded of a real cluster: the same tasks, on other workers.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::client::Client;
use super::workload::Call;
use super::{Amounts, Arrival, Cluster, Cost, Message, Parameters, Scaling};

/// Fetches of fewer bytes say more of the latency than of the bandwidth.
const LARGE: u64 = 1 << 16;

/// What a trace says of the tasks of a cluster.
#[derive(Debug)]
pub struct Recording {
    /// Worker processes that ran tasks.
    pub workers: usize,
    /// The most threads that one of them had.
    pub threads: u32,
    /// From the first submission, or the first task if there is none, to the end of the last task.
    pub took: Duration,
    /// Tasks that had not ended when the trace did, or whose worker was lost: they are left out.
    pub unfinished: usize,
    /// Bytes a second of the larger fetches, together; none: there were no such fetches.
    pub bandwidth: Option<f64>,
    call: Call,
    amounts: Vec<(Duration, u64)>,
    /// When so many more tasks were submitted, from the beginning.
    submitted: Vec<(Duration, usize)>,
}

/// A task, as it is in the trace. Times are microseconds.
struct Ran<'a> {
    begins: f64,
    ends: f64,
    process: u64,
    thread: u64,
    key: &'a str,
    function: &'a str,
    nbytes: u64,
    reads: Vec<&'a str>,
}

impl<'a> Ran<'a> {
    fn of(event: &'a Value) -> Result<Self, String> {
        let args = &event["args"];
        let key = args["key"].as_str().unwrap_or("?");
        let missing = |what: &str| {
            format!("task {key} has no {what}: only what a treadle.Client traced can be replayed")
        };
        let reads = args["reads"].as_array().ok_or_else(|| missing("reads"))?;
        let (begins, length) = span(event).ok_or_else(|| missing("time"))?;
        Ok(Self {
            begins,
            ends: begins + length,
            process: event["pid"].as_u64().ok_or_else(|| missing("pid"))?,
            thread: event["tid"].as_u64().ok_or_else(|| missing("tid"))?,
            key,
            function: args["function"].as_str().unwrap_or_default(),
            nbytes: args["bytes"].as_u64().unwrap_or(0),
            reads: reads.iter().filter_map(Value::as_str).collect(),
        })
    }
}

/// When an event began, and how long it took.
fn span(event: &Value) -> Option<(f64, f64)> {
    let (begins, length) = (event["ts"].as_f64()?, event["dur"].as_f64()?);
    (begins.is_finite() && length.is_finite()).then_some((begins, length.max(0.0)))
}

fn micros(time: f64) -> Duration {
    Duration::from_secs_f64(time.max(0.0) / 1e6)
}

impl Recording {
    /// Reads a file that `treadle.trace` has written.
    ///
    /// # Errors
    /// When it cannot be read, is no such file, or has no tasks of a cluster.
    pub fn read(path: &Path) -> Result<Self, String> {
        let told = |what: String| format!("{}: {what}", path.display());
        let text = fs::read_to_string(path).map_err(|error| told(error.to_string()))?;
        Self::parse(&text).map_err(told)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let trace: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let events = trace["traceEvents"].as_array();
        let events = events.ok_or("it is no trace: it has no traceEvents")?;
        let of = |kind: &str| {
            let kind = kind.to_owned();
            let is = move |event: &&Value| event["ph"] == "X" && event["cat"] == kind.as_str();
            events.iter().filter(is)
        };
        let tasks: Result<Vec<_>, _> = of("task").map(Ran::of).collect();
        let mut tasks = tasks?;
        if tasks.is_empty() {
            return Err("it has no tasks".into());
        }
        tasks.sort_by(|a, b| a.begins.total_cmp(&b.begins));

        // When tasks came: as the scheduler saw it.
        let taken = of("scheduler").filter_map(|event| {
            let count = event["args"]["tasks"].as_u64()?;
            Some((span(event)?.0, count as usize))
        });
        let mut taken: Vec<_> = taken.collect();
        taken.sort_by(|a, b| a.0.total_cmp(&b.0));
        let calls = of("client").filter(|event| {
            let name = event["name"].as_str();
            name.is_some_and(|name| name.starts_with("submit"))
        });
        let calls = calls.filter_map(|event| Some(span(event)?.0));
        let begins = calls
            .chain(taken.first().map(|batch| batch.0))
            .fold(tasks[0].begins, f64::min);
        let ends = tasks.iter().map(|task| task.ends).fold(begins, f64::max);

        let mut threads: HashMap<u64, HashSet<u64>> = HashMap::new();
        for task in &tasks {
            threads.entry(task.process).or_default().insert(task.thread);
        }
        let fetches = of("transfer").filter_map(|event| {
            let nbytes = event["args"]["bytes"].as_u64()?;
            let is_large = event["name"] == "fetch" && nbytes >= LARGE;
            is_large.then_some((nbytes as f64, span(event)?.1 / 1e6))
        });
        let (bytes, seconds) = fetches.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Ok(Self {
            workers: threads.len(),
            threads: threads.values().map(HashSet::len).max().unwrap_or(1) as u32,
            took: micros(ends - begins),
            unfinished: of("lost").chain(of("unfinished")).count(),
            bandwidth: (seconds > 0.0).then(|| bytes / seconds),
            submitted: submitted(&tasks, &taken, begins),
            amounts: tasks
                .iter()
                .map(|task| (micros(task.ends - task.begins), task.nbytes))
                .collect(),
            call: call(&tasks),
        })
    }

    /// How many tasks there are.
    pub fn tasks(&self) -> usize {
        self.amounts.len()
    }

    /// How long they ran, all together.
    pub fn work(&self) -> Duration {
        self.amounts.iter().map(|(time, _)| *time).sum()
    }
}

/// The tasks as one call, planned in the order in which they began.
fn call(tasks: &[Ran]) -> Call {
    // A key may have been used again: what reads it reads the latest.
    let mut latest: HashMap<&str, u32> = HashMap::new();
    let mut functions: HashMap<&str, u32> = HashMap::new();
    let mut call = Call::map(Vec::new());
    for (number, task) in tasks.iter().enumerate() {
        let read = task.reads.iter().filter_map(|key| latest.get(key).copied());
        let mut inputs: Vec<u32> = Vec::new();
        for input in read {
            if !inputs.contains(&input) {
                inputs.push(input);
            }
        }
        call.inputs.push(inputs);
        call.ranks.push(number as u32);
        latest.insert(task.key, number as u32);
        let next = 1 + functions.len() as u32;
        call.functions
            .push(*functions.entry(task.function).or_insert(next));
    }
    // What nobody has read, the client had wanted.
    call.wanted = call
        .readers(0)
        .iter()
        .map(|readers| *readers == 0)
        .collect();
    call
}

/// When how many tasks were submitted. Which ones is not recorded: they are taken to have begun in the
/// order in which they came. So none is submitted after it has begun, or before what it reads.
fn submitted(tasks: &[Ran], taken: &[(f64, usize)], begins: f64) -> Vec<(Duration, usize)> {
    let mut submitted: Vec<(Duration, usize)> = Vec::new();
    let mut left = tasks.len();
    for &(at, count) in taken {
        let count = count.min(left);
        if count > 0 {
            submitted.push((micros(at - begins), count));
            left -= count;
        }
    }
    // Those of before the trace.
    if left > 0 {
        submitted.insert(0, (Duration::ZERO, left));
    }
    submitted
}

/// Runs the recorded tasks on so many workers of so many threads. The client submits them when it did.
pub fn replay(
    recording: &Recording,
    workers: usize,
    threads: u32,
    parameters: Parameters,
    cost: Cost,
) -> Scaling {
    let client = Client::replaying(recording.call.clone());
    let amounts = Amounts::Each(recording.amounts.clone());
    let mut cluster = Cluster::new((workers, threads), client, amounts, parameters, cost);
    for &(at, count) in &recording.submitted {
        let batch = cluster.client.recorded_batch(count);
        cluster
            .kernel
            .schedule_at(at, Arrival::Server(Message::Batch(batch)));
    }
    cluster.finish(workers as u32 * threads)
}

/// Prints how long a replay takes beside how long the recorded run took, as a line of JSON. There is an
/// error where the replay has as many workers and threads as the recorded run had.
pub fn print_replay(recording: &Recording, workers: usize, threads: u32, parameters: Parameters) {
    let run = replay(recording, workers, threads, parameters, Cost::Measured);
    let (recorded, simulated) = (recording.took.as_secs_f64(), run.took.as_secs_f64());
    let is_same = (workers, threads) == (recording.workers, recording.threads);
    let error = is_same.then(|| simulated / recorded - 1.0);
    let line = serde_json::json!({
        "tasks": recording.tasks(),
        "unfinished": recording.unfinished,
        "work": recording.work().as_secs_f64(),
        "recorded": {"workers": recording.workers, "threads": recording.threads, "seconds": recorded},
        "simulated": {"workers": workers, "threads": threads, "seconds": simulated},
        "error": error,
    });
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_trace_of_a_cluster_is_refused() {
        for (text, told) in [
            ("{", "EOF"),
            ("{}", "no traceEvents"),
            (r#"{"traceEvents": []}"#, "no tasks"),
            (
                r#"{"traceEvents": [{"ph": "X", "cat": "task", "ts": 1, "dur": 1, "pid": 1, "tid": 1,
                    "args": {"key": "x"}}]}"#,
                "task x has no reads",
            ),
        ] {
            let error = Recording::parse(text).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_key_that_is_used_again_is_another_task() {
        let task = |at: u64, key: &str, reads: &str| {
            format!(
                r#"{{"ph": "X", "cat": "task", "ts": {at}, "dur": 5, "pid": 7, "tid": 1,
                    "args": {{"key": "{key}", "function": "f", "bytes": 8, "reads": [{reads}]}}}}"#
            )
        };
        let events = [
            task(40, "b", r#""a", "unknown""#),
            task(10, "a", ""),
            task(20, "b", r#""a""#),
            task(30, "a", ""),
        ];
        let text = format!(r#"{{"traceEvents": [{}]}}"#, events.join(","));
        let recording = Recording::parse(&text).unwrap();
        let none: Vec<u32> = Vec::new();
        assert_eq!(
            recording.call.inputs,
            [none.clone(), vec![0], none, vec![2]]
        );
        assert_eq!(recording.call.wanted, [false, true, false, true]);
        assert_eq!((recording.workers, recording.threads), (1, 1));
        assert_eq!(recording.took, Duration::from_micros(35));
        assert_eq!(recording.submitted, [(Duration::ZERO, 4)]);
    }
}
