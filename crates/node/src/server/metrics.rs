//! What the scheduler counts, and how it shows that to Prometheus.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, GaugeValueEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use rustix::time::{ClockId, clock_gettime};
use treadle_scheduler::State;

use super::hub::Hub;
use super::state::STATUSES;

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
    pub(super) rate: f64,
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

/// The value of a sample.
#[derive(Debug)]
enum Number {
    Count(u64),
    Real(f64),
}

impl From<u64> for Number {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for Number {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<f64> for Number {
    fn from(real: f64) -> Self {
        Self::Real(real)
    }
}

impl EncodeGaugeValue for Number {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.encode(encoder),
            Self::Real(real) => real.encode(encoder),
        }
    }
}

#[derive(Debug)]
struct Metric {
    kind: MetricType,
    name: &'static str,
    help: &'static str,
    samples: Samples,
}

#[derive(Debug)]
enum Samples {
    One(Number),
    /// By the value of a label.
    Labelled(&'static str, Vec<(String, Number)>),
}

/// The metrics at one moment. Whoever asked for them makes the text of them, so that the scheduler's
/// thread does not have to.
#[derive(Debug, Default)]
pub(super) struct Metrics(Vec<Metric>);

impl Metrics {
    fn push(&mut self, kind: MetricType, name: &'static str, help: &'static str, samples: Samples) {
        self.0.push(Metric {
            kind,
            name,
            help,
            samples,
        });
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, value: impl Into<Number>) {
        self.push(MetricType::Gauge, name, help, Samples::One(value.into()));
    }

    fn counter(&mut self, name: &'static str, help: &'static str, value: impl Into<Number>) {
        self.push(MetricType::Counter, name, help, Samples::One(value.into()));
    }

    fn labelled<'a, N: Into<Number>>(
        &mut self,
        (kind, name, help): (MetricType, &'static str, &'static str),
        label: &'static str,
        samples: impl IntoIterator<Item = (&'a str, N)>,
    ) {
        let samples = samples.into_iter();
        let samples = samples.map(|(of, value)| (of.to_owned(), value.into()));
        let samples = Samples::Labelled(label, samples.collect());
        self.push(kind, name, help, samples);
    }

    /// In the text format of Prometheus, version 0.0.4.
    pub(super) fn into_text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode_registry(&mut text, &registry).expect("a string takes all that is written to it");
        text
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in &self.0 {
            let mut lines =
                encoder.encode_descriptor(metric.name, metric.help, None, metric.kind)?;
            // Samples of counters are written as those of gauges are: OpenMetrics has `_total` in the
            // name of a counter's sample only, the text format of Prometheus in the descriptor too.
            match &metric.samples {
                Samples::One(value) => lines.encode_gauge(value)?,
                Samples::Labelled(label, samples) => {
                    for (of, value) in samples {
                        let labels = [(*label, of.as_str())];
                        lines.encode_family(&labels)?.encode_gauge(value)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// How many functions a page lists at most.
const FUNCTIONS: usize = 1000;

impl Hub {
    /// What Prometheus is shown. It costs as much as there are workers, whatever there are of tasks.
    pub(super) fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::default();
        self.add_members(&mut metrics);
        self.add_traffic(&mut metrics);
        self.add_own(&mut metrics);
        metrics
    }

    /// Tasks, and who is there.
    fn add_members(&self, metrics: &mut Metrics) {
        let states = State::ALL.into_iter();
        let states = states.filter(|state| *state != State::Forgotten);
        metrics.labelled(
            (MetricType::Gauge, "treadle_tasks", "Tasks by state."),
            "state",
            states.map(|state| (state.name(), self.core.count(state))),
        );
        let statuses = STATUSES.iter().map(|(status, name)| {
            let workers = self.core.workers();
            (
                *name,
                workers.filter(|view| view.status() == *status).count(),
            )
        });
        metrics.labelled(
            (MetricType::Gauge, "treadle_workers", "Workers by status."),
            "status",
            statuses,
        );
        let threads = self.workers.iter().map(|node| u64::from(node.threads));
        metrics.gauge(
            "treadle_threads",
            "Threads of all workers.",
            threads.sum::<u64>(),
        );
        metrics.gauge(
            "treadle_clients",
            "Clients that are connected.",
            self.clients.len(),
        );
        let (mut managed, mut process, mut spilled) = (0, 0, 0);
        for view in self.core.workers() {
            let health = view.health();
            managed += health.managed;
            process += health.process;
            spilled += health.spilled;
        }
        let help = "Bytes of memory of all workers.";
        metrics.labelled(
            (MetricType::Gauge, "treadle_worker_bytes", help),
            "kind",
            [
                ("managed", managed),
                ("process", process),
                ("spilled", spilled),
            ],
        );
    }

    /// What was said.
    fn add_traffic(&self, metrics: &mut Metrics) {
        let (mut sent, mut received) = (0, 0);
        for node in self.workers.iter() {
            let stats = node.link.peer().stats();
            sent += stats.bytes_sent;
            received += stats.bytes_received;
        }
        let help = "Bytes of messages with the workers that are connected.";
        metrics.labelled(
            (MetricType::Counter, "treadle_control_bytes_total", help),
            "way",
            [("sent", sent), ("received", received)],
        );
        let counters = &self.counters;
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
            metrics.counter(name, help, count);
        }
        metrics.gauge(
            "treadle_reports_per_second",
            "Reports a second, lately: tasks a second where nothing else is reported.",
            counters.rate,
        );
        metrics.gauge(
            "treadle_calls_open",
            "Questions that were passed on and are not answered.",
            self.calls.len(),
        );
    }

    /// What the scheduler itself takes, and has learnt.
    fn add_own(&self, metrics: &mut Metrics) {
        metrics.counter(
            "treadle_scheduler_cpu_seconds_total",
            "Processor time of the scheduler's thread.",
            self.counters.processor.as_secs_f64(),
        );
        metrics.gauge(
            "treadle_scheduler_bytes",
            "Bytes that tasks and keys take at the scheduler, about; recipes and small values not counted.",
            self.core.memory() + self.keys.memory(),
        );
        let (count, bytes) = self.definitions.totals();
        metrics.gauge(
            "treadle_definitions",
            "Functions and shared constants.",
            count,
        );
        metrics.gauge(
            "treadle_definition_bytes",
            "Bytes of their pickles, each kept once.",
            bytes,
        );
        let help =
            "How long functions take, as the scheduler has learnt: the first thousand functions.";
        let learnt = self.core.learnt().take(FUNCTIONS);
        metrics.labelled(
            (MetricType::Gauge, "treadle_function_seconds", help),
            "function",
            learnt.map(|(function, duration, _)| {
                (self.symbols.text(function), duration.as_secs_f64())
            }),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_text_that_prometheus_reads() {
        let mut metrics = Metrics::default();
        metrics.counter("a_total", "Of a.", 3_u64);
        metrics.gauge("b", "Of b.", 0.5);
        let of = [("q\"\\\n", 1_usize), ("r", 2)];
        metrics.labelled((MetricType::Gauge, "c", "Of c."), "l", of);
        let expected = "# HELP a_total Of a.\n# TYPE a_total counter\na_total 3\n\
                        # HELP b Of b.\n# TYPE b gauge\nb 0.5\n\
                        # HELP c Of c.\n# TYPE c gauge\nc{l=\"q\\\"\\\\\\n\"} 1\nc{l=\"r\"} 2\n";
        assert_eq!(metrics.into_text(), expected);
    }
}
