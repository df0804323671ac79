//! The answers, as plain data.

use alloc::string::String;
use alloc::vec::Vec;

use crate::event::{End, States};
use crate::verdicts::Verdict;

/// Tasks by state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Serialize)]
pub struct Tasks {
    /// For their inputs.
    pub waiting: u64,
    /// In a queue of the scheduler.
    pub ready: u64,
    /// Sent to a worker.
    pub assigned: u64,
    /// With a value.
    pub memory: u64,
    /// Without one for good.
    pub failed: u64,
}

/// The workers that are there, all of them together. What none of them has said is not known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Serialize)]
pub struct Totals {
    pub workers: u64,
    /// Of them.
    pub paused: u64,
    /// Those that are not there any more.
    pub gone: u64,
    pub threads: u64,
    /// Unless one of them has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spilled: Option<u64>,
}

/// What is kept of spans.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Serialize)]
pub struct Kept {
    /// How many.
    pub kept: u64,
    /// How many made room for others: sums have them.
    pub older: u64,
    /// How many were lost for lack of room at workers, and batches of them, and other news, that nobody here had time
    /// for. Sums lack them, too.
    pub lost: u64,
    pub dropped: u64,
    /// What they take.
    pub bytes: u64,
    /// What they may take.
    pub limit: u64,
    /// From when, in nanoseconds.
    pub from: u64,
    /// Until when.
    pub to: u64,
}

/// A group. Times are seconds, but `from` and `to`: nanoseconds.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct GroupRow {
    pub id: u32,
    pub name: String,
    /// Tasks that were submitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub states: Option<StatesRow>,
    /// Runs that raised.
    pub failed: u64,
    pub runs: u64,
    pub seconds: f64,
    /// Of them, until the inputs were there.
    pub fetch_seconds: f64,
    pub bytes: u64,
    pub mean: f64,
    /// Half of the runs took at most this, within a factor of two.
    pub median: f64,
    pub max: f64,
    pub from: u64,
    pub to: u64,
    pub inputs: Vec<u32>,
}

/// Tasks of a group by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct StatesRow {
    pub waiting: u64,
    /// In a queue of the scheduler.
    pub ready: u64,
    /// Sent to a worker: they run, or are about to.
    pub assigned: u64,
    pub memory: u64,
    /// Nobody needs their values any more.
    pub released: u64,
    /// Failed for good.
    pub erred: u64,
}

impl From<States> for StatesRow {
    fn from(states: States) -> Self {
        Self {
            waiting: states.waiting,
            ready: states.ready,
            assigned: states.assigned,
            memory: states.memory,
            released: states.released.saturating_add(states.forgotten),
            erred: states.failed,
        }
    }
}

/// A worker.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct WorkerRow {
    pub id: u32,
    pub name: String,
    pub address: String,
    pub host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
    pub status: &'static str,
    /// Why it is gone, or paused.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    pub threads: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spilled: Option<u64>,
    /// Processors that it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Bytes of its process beside its values: those of other libraries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<u64>,
    /// Bytes a second that its process reads from disks, and writes to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_written: Option<f64>,
    /// Bytes a second of its machine's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_received: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_sent: Option<f64>,
    /// For which share of the time something on its machine waited for processors, memory and disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled: Option<[Option<f64>; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<u64>,
    /// Seconds ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heard: Option<f64>,
    /// The share of its threads' time in the last ten seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<f64>,
    /// Bytes to other workers.
    pub sent: u64,
    /// Bytes from other workers.
    pub received: u64,
    /// Spans that it lost for lack of room.
    pub lost: u64,
}

/// Numbers over time, a row a name.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Series {
    /// Seconds.
    pub step: f64,
    /// The end of the last step, in nanoseconds.
    pub to: u64,
    pub names: [&'static str; 6],
    pub values: Vec<Vec<f64>>,
}

/// Tasks of a group that failed for the same reason: the latest of them.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct ErrorRow {
    pub key: String,
    pub group: String,
    pub worker: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<u32>,
    pub time: u64,
    pub text: String,
    /// From where, the calls that were made first before the others. An overview has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub traceback: String,
    /// How many were seen.
    pub count: u64,
    /// Whether they raised; otherwise the scheduler gave them up.
    pub raised: bool,
}

/// All errors that are kept.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct ErrorRows {
    /// The latest first.
    pub errors: Vec<ErrorRow>,
    /// Runs that raised and are none of them.
    pub more_errors: u64,
}

/// Workers that were looked for.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct WorkerRows {
    pub workers: Vec<WorkerRow>,
    /// Those that are left out.
    pub more_workers: usize,
}

/// A cast: a call, or values, for many workers.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct CastRow {
    /// Whose it is, and its number there.
    pub client: u32,
    pub number: u32,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// Of what each worker gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Workers that are done with it, and those that are known to take more than a second for it.
    pub receivers: u64,
    pub running: u64,
    /// When the first worker heard of it, in nanoseconds.
    pub from: u64,
    /// From then until the last one was done, or now; and until the last one that is done had all of it, and its
    /// turn.
    pub seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_seconds: Option<f64>,
    /// Bytes that all of them got in a second of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
}

/// A task that runs.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct RunningRow {
    pub key: String,
    pub group: String,
    pub worker: String,
    pub worker_id: u32,
    pub lane: u16,
    pub from: u64,
}

/// Where threads of tasks were.
#[derive(Clone, PartialEq, Default, Debug, serde::Serialize)]
pub struct Flame {
    /// Of places.
    pub names: Vec<String>,
    /// What called it, by its position, which is before it, or -1; the number of its name; seconds of threads, with
    /// those of what it called.
    pub nodes: Vec<(i64, u32, f64)>,
    /// Places that are left out, since others are larger.
    pub more: usize,
    /// Of what time parts are known, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// A line of a log.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct LineRow {
    pub time: u64,
    pub level: &'static str,
    pub worker: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<u32>,
    pub text: String,
}

/// The latest lines that are asked for.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Lines {
    /// The latest first.
    pub lines: Vec<LineRow>,
    /// Whether there are more like them.
    pub more: bool,
    /// Lines that are not kept any more, of all.
    pub lost: u64,
}

/// Something that happened to a worker.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct EventRow {
    pub time: u64,
    pub kind: &'static str,
    pub worker: String,
    pub text: String,
}

/// What is seen first.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Overview {
    pub version: u32,
    /// Whether the cluster is there.
    pub live: bool,
    pub now: u64,
    /// Seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began: Option<f64>,
    pub cluster: Cluster,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Tasks>,
    /// Tasks that ended in a second, over the last ten.
    pub rate: f64,
    pub spans: Kept,
    /// The most recently active first.
    pub groups: Vec<GroupRow>,
    pub more_groups: usize,
    pub workers: Vec<WorkerRow>,
    pub more_workers: usize,
    pub totals: Totals,
    pub series: Series,
    /// The same of the whole run.
    pub whole: Series,
    /// The latest first.
    pub shuffles: Vec<ShuffleRow>,
    /// Older ones.
    pub more_shuffles: u64,
    /// Those that go on, then the latest.
    pub casts: Vec<CastRow>,
    pub more_casts: u64,
    /// Those that have run longest.
    pub running: Vec<RunningRow>,
    pub more_running: usize,
    pub errors: Vec<ErrorRow>,
    /// Runs that raised and are none of `errors`.
    pub more_errors: u64,
    pub events: Vec<EventRow>,
    pub verdicts: Vec<Verdict>,
    /// What rules said before, and do not say now: each as it was worst, the latest first.
    pub earlier: Vec<Verdict>,
    /// The file that is written, or was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryRow>,
}

/// A history file.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct HistoryRow {
    pub bytes: u64,
    /// As many as it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// `written`: it goes on; `closed`: it ended with its scheduler; `full`, `failed`: it ended before;
    /// `unfinished`: of one that was read, the end is missing.
    pub state: &'static str,
    /// Why it could not be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl HistoryRow {
    pub(crate) fn new(
        bytes: u64,
        limit: Option<u64>,
        end: Option<&End>,
        without_end: &'static str,
    ) -> Self {
        let (state, error) = match end {
            None => (without_end, None),
            Some(End::Closed) => ("closed", None),
            Some(End::Full(_)) => ("full", None),
            Some(End::Failed(why)) => ("failed", Some(why.clone())),
        };
        Self {
            bytes,
            limit,
            state,
            error,
        }
    }
}

/// Which cluster it is.
#[derive(Clone, PartialEq, Eq, Default, Debug, serde::Serialize)]
pub struct Cluster {
    pub address: String,
    pub id: String,
    pub treadle: String,
}

/// A shuffle.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct ShuffleRow {
    /// One that runs again has another.
    pub number: u64,
    pub name: String,
    /// What it does, or how it ended.
    pub state: &'static str,
    pub inputs: u64,
    /// Of them.
    pub transferred: u64,
    pub bytes: u64,
    pub partitions: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest: Option<u64>,
    pub servers: u64,
    pub losses: u64,
    /// Shares of partitions in percent, and the bytes that so many do not exceed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quantiles: Vec<(u64, u64)>,
    /// The bytes of the largest partition of each range of so many neighbours.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bars: Vec<u64>,
    pub bar: u64,
}

/// What went from which worker to which: rows are those that had the values.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Matrix {
    /// Ids, the busiest first.
    pub workers: Vec<u32>,
    pub names: Vec<String>,
    pub bytes: Vec<Vec<u64>>,
    /// In which values were under way: several at a time count once.
    pub seconds: Vec<Vec<f64>>,
    /// From the request to the value, of each.
    pub waiting_seconds: Vec<Vec<f64>>,
    pub count: Vec<Vec<u64>>,
    pub failed: Vec<Vec<u64>>,
    /// Workers that are left out.
    pub more: usize,
    /// Values, and their bytes, of pairs beyond those that are told apart: no worker's sums have them.
    pub beyond: u64,
    pub beyond_bytes: u64,
}

/// One span.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct SpanRow {
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The value that it is about.
    pub object: u64,
    pub group: String,
    pub kind: &'static str,
    pub worker: String,
    pub worker_id: u32,
    pub lane: u16,
    pub from: u64,
    pub read: u64,
    pub computed: u64,
    pub to: u64,
    pub bytes: u64,
    pub ok: bool,
    /// It is not over: it has no bytes yet, and `read`, `computed` and `to` say nothing.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub running: bool,
}
