//! What the scheduler counts, and how it shows that.

use std::fmt::Write;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use treadle_scheduler::{State, WorkerStatus};

use super::hub::Hub;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) submitted: u64,
    pub(super) reports: u64,
    pub(super) commands: u64,
    pub(super) notices: u64,
    pub(super) calls: u64,
    pub(super) connections: u64,
    /// When the rate was last taken, and the reports then.
    rated: (Duration, u64),
    /// Reports a second, over the last second or so.
    rate: f64,
    /// Processor time of the thread.
    pub(super) processor: Duration,
}

/// Processor time of the calling thread.
pub(super) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

impl Counters {
    /// Brings the rate up to date.
    pub(super) fn tick(&mut self, now: Duration) {
        self.processor = processor_time();
        let (since, before) = self.rated;
        let passed = now.saturating_sub(since);
        if passed >= Duration::from_secs(1) {
            self.rate = (self.reports - before) as f64 / passed.as_secs_f64();
            self.rated = (now, self.reports);
        }
    }
}

/// One metric of the Prometheus text format.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, value: f64) {
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn labelled(&mut self, name: &str, label: &str, of: &str, value: f64) {
        let of = of
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let _ = writeln!(self.0, "{name}{{{label}=\"{of}\"}} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.value(name, value);
    }
}

/// How many functions a page lists at most.
const FUNCTIONS: usize = 1000;

impl Hub {
    /// In the text format of Prometheus.
    pub(super) fn metrics(&self) -> String {
        let mut page = Page(String::new());
        let counters = &self.counters;
        page.head("treadle_tasks", "gauge", "Tasks by state.");
        for state in State::ALL {
            if state != State::Forgotten {
                let count = self.core.count(state) as f64;
                page.labelled("treadle_tasks", "state", state.name(), count);
            }
        }
        page.head("treadle_workers", "gauge", "Workers by status.");
        for (status, name) in STATUSES {
            let count = self
                .core
                .workers()
                .filter(|view| view.status() == status)
                .count();
            page.labelled("treadle_workers", "status", name, count as f64);
        }
        let threads: u64 = self
            .workers
            .iter()
            .map(|node| u64::from(node.threads))
            .sum();
        page.one(
            "treadle_threads",
            "gauge",
            "Threads of all workers.",
            threads as f64,
        );
        page.one(
            "treadle_clients",
            "gauge",
            "Clients that are connected.",
            self.clients.len() as f64,
        );
        let (mut managed, mut process, mut spilled, mut sent, mut received) = (0, 0, 0, 0, 0);
        for view in self.core.workers() {
            let health = view.health();
            managed += health.managed;
            process += health.process;
            spilled += health.spilled;
        }
        for node in self.workers.iter() {
            let stats = node.link.peer().stats();
            sent += stats.bytes_sent;
            received += stats.bytes_received;
        }
        page.head(
            "treadle_worker_bytes",
            "gauge",
            "Bytes of memory of all workers.",
        );
        for (kind, bytes) in [
            ("managed", managed),
            ("process", process),
            ("spilled", spilled),
        ] {
            page.labelled("treadle_worker_bytes", "kind", kind, bytes as f64);
        }
        page.head(
            "treadle_control_bytes_total",
            "counter",
            "Bytes of messages with the workers that are connected.",
        );
        for (way, bytes) in [("sent", sent), ("received", received)] {
            page.labelled("treadle_control_bytes_total", "way", way, bytes as f64);
        }
        for (name, help, count) in [
            (
                "treadle_tasks_submitted_total",
                "Tasks that clients sent.",
                counters.submitted,
            ),
            (
                "treadle_reports_total",
                "Reports of workers.",
                counters.reports,
            ),
            (
                "treadle_commands_total",
                "Commands to workers.",
                counters.commands,
            ),
            (
                "treadle_notices_total",
                "Notices to clients.",
                counters.notices,
            ),
            (
                "treadle_calls_total",
                "Questions between nodes.",
                counters.calls,
            ),
            (
                "treadle_connections_total",
                "Connections.",
                counters.connections,
            ),
            (
                "treadle_scheduler_events_total",
                "Transitions' causes.",
                self.core.events(),
            ),
            (
                "treadle_late_reports_total",
                "Reports too late to matter.",
                self.core.late_reports(),
            ),
        ] {
            page.one(name, "counter", help, count as f64);
        }
        page.one(
            "treadle_reports_per_second",
            "gauge",
            "Reports a second, lately: tasks a second where nothing else is reported.",
            counters.rate,
        );
        page.one(
            "treadle_scheduler_cpu_seconds_total",
            "counter",
            "Processor time of the scheduler's thread.",
            counters.processor.as_secs_f64(),
        );
        page.one(
            "treadle_calls_open",
            "gauge",
            "Questions that were passed on and are not answered.",
            self.calls.len() as f64,
        );
        page.one(
            "treadle_scheduler_bytes",
            "gauge",
            "Bytes that tasks and keys take at the scheduler, about; recipes and small values not counted.",
            (self.core.memory() + self.keys.memory()) as f64,
        );
        let (count, bytes) = self.definitions.totals();
        page.one(
            "treadle_definitions",
            "gauge",
            "Functions and shared constants.",
            count as f64,
        );
        page.one(
            "treadle_definition_bytes",
            "gauge",
            "Bytes of their pickles, each kept once.",
            bytes as f64,
        );
        page.head(
            "treadle_function_seconds",
            "gauge",
            "How long functions take, as the scheduler has learnt: the first thousand functions.",
        );
        for (function, duration, _) in self.core.learnt().take(FUNCTIONS) {
            let name = self.symbols.text(function);
            page.labelled(
                "treadle_function_seconds",
                "function",
                name,
                duration.as_secs_f64(),
            );
        }
        page.0
    }

    /// As JSON, for programs that watch the cluster.
    pub(super) fn state_page(&self) -> String {
        let mut page = String::from("{");
        let text = |text: &str| json_text(text);
        let _ = write!(
            page,
            "\"address\":{},\"id\":{},\"uptime\":{},\"cpu_seconds\":{},\"reports_per_second\":{}",
            text(&self.settings.address),
            text(&self.settings.id),
            self.now.as_secs_f64(),
            self.counters.processor.as_secs_f64(),
            self.counters.rate,
        );
        let states = State::ALL
            .into_iter()
            .filter(|state| *state != State::Forgotten);
        let states: Vec<String> = states
            .map(|state| format!("{}:{}", text(state.name()), self.core.count(state)))
            .collect();
        let _ = write!(page, ",\"tasks\":{{{}}}", states.join(","));
        let clients: Vec<String> = self
            .clients
            .ids()
            .into_iter()
            .filter_map(|client| Some(text(&self.clients.get(client)?.name)))
            .collect();
        let _ = write!(page, ",\"clients\":[{}]", clients.join(","));
        let workers = self.workers.iter().map(|node| {
            let view = self.core.worker(node.id);
            let health = view.map(|view| view.health()).unwrap_or_default();
            let status = view.map(|view| view.status());
            let status = STATUSES.iter().find(|(known, _)| Some(*known) == status);
            format!(
                "{}:{{\"name\":{},\"host\":{},\"status\":{},\"threads\":{},\"memory_limit\":{},\
                 \"managed\":{},\"process\":{},\"spilled\":{},\"tasks\":{},\"values\":{},\
                 \"heard_seconds_ago\":{}}}",
                text(&node.address),
                text(&node.name),
                text(&node.host),
                text(status.map_or("gone", |(_, name)| name)),
                node.threads,
                node.memory,
                health.managed,
                health.process,
                health.spilled,
                view.map_or(0, |view| view.assigned_count()),
                view.map_or(0, |view| view.held().len()),
                self.now.saturating_sub(node.heard).as_secs_f64(),
            )
        });
        let workers: Vec<String> = workers.collect();
        let _ = write!(page, ",\"workers\":{{{}}}}}", workers.join(","));
        page
    }
}

const STATUSES: [(WorkerStatus, &str); 3] = [
    (WorkerStatus::Running, "running"),
    (WorkerStatus::Paused, "paused"),
    (WorkerStatus::Draining, "draining"),
];

fn json_text(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            control if control < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
