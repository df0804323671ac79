//! What the scheduler counts, and how it shows that to Prometheus.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{EncodeGaugeValue, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;
use rustix::time::{ClockId, clock_gettime};
use treadle_scheduler::State;

use super::hub::Hub;
use super::state::STATUSES;

/// What is counted here, and how fast it grows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) reports: u64,
    pub(super) calls: u64,
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

impl Rates {
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

/// A count since the start. Its sample is written as a gauge's is: a counter's gets `_total` after the
/// name of the metric, as in OpenMetrics, and the text format of Prometheus has that in the name itself.
#[derive(Debug)]
struct Total<N>(N);

impl<N: EncodeGaugeValue> EncodeMetric for Total<N> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_gauge(&self.0)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl<N> TypedMetric for Total<N> {
    const TYPE: MetricType = MetricType::Counter;
}

/// Metrics by the value of a label, in their order.
#[derive(Debug)]
struct Labelled<M>(&'static str, Vec<(String, M)>);

impl<M> Labelled<M> {
    fn new<'a>(label: &'static str, values: impl IntoIterator<Item = (&'a str, M)>) -> Self {
        let values = values.into_iter();
        let values = values.map(|(of, value)| (of.to_owned(), value));
        Self(label, values.collect())
    }
}

impl<M: EncodeMetric + TypedMetric> EncodeMetric for Labelled<M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (of, value) in &self.1 {
            value.encode(encoder.encode_family(&[(self.0, of.as_str())])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

/// How many functions a page lists at most.
const FUNCTIONS: usize = 1000;

impl Hub {
    /// What Prometheus is shown. It costs as much as there are workers, whatever there are of tasks.
    pub(super) fn metrics(&self) -> Registry {
        let mut metrics = Registry::with_prefix("treadle");
        self.add_members(&mut metrics);
        self.add_messages(&mut metrics);
        self.add_shuffles(&mut metrics);
        self.add_own(&mut metrics);
        metrics
    }

    /// Tasks, and who is there.
    fn add_members(&self, metrics: &mut Registry) {
        let states = State::ALL.into_iter();
        let states = states.filter(|state| *state != State::Forgotten);
        let tasks = states.map(|state| (state.name(), gauge(self.core.scheduler().count(state))));
        let tasks = Labelled::new("state", tasks);
        metrics.register("tasks", "Tasks by state", tasks);
        let workers = STATUSES.iter().map(|(status, name)| {
            let workers = self.core.scheduler().workers();
            let workers = workers.filter(|view| view.status() == *status);
            (*name, gauge(workers.count()))
        });
        let workers = Labelled::new("status", workers);
        metrics.register("workers", "Workers by status", workers);
        let threads = self.core.workers().map(|node| u64::from(node.threads));
        let threads = gauge(threads.sum::<u64>());
        metrics.register("threads", "Threads of all workers", threads);
        let clients = gauge(self.core.clients().count());
        metrics.register("clients", "Clients that are connected", clients);
        let (mut managed, mut process, mut spilled) = (0, 0, 0);
        for view in self.core.scheduler().workers() {
            let health = view.health();
            managed += health.managed;
            process += health.process;
            spilled += health.spilled;
        }
        let bytes = [
            ("managed", managed),
            ("process", process),
            ("spilled", spilled),
        ];
        let bytes = bytes.map(|(kind, bytes)| (kind, gauge(bytes)));
        let bytes = Labelled::new("kind", bytes);
        metrics.register("worker_bytes", "Bytes of memory of all workers", bytes);
    }

    /// What was said.
    fn add_messages(&self, metrics: &mut Registry) {
        let (mut sent, mut received) = (0, 0);
        for peer in self.links.peers_of_workers() {
            let stats = peer.stats();
            sent += stats.bytes_sent;
            received += stats.bytes_received;
        }
        let bytes = [("sent", Total(sent)), ("received", Total(received))];
        let bytes = Labelled::new("way", bytes);
        let help = "Bytes of messages with the workers that are connected";
        metrics.register("control_bytes_total", help, bytes);
        let (counts, scheduler) = (self.core.counts(), self.core.scheduler());
        for (name, help, count) in [
            (
                "tasks_submitted",
                "Tasks that clients sent",
                counts.submitted,
            ),
            ("reports", "Reports of workers", self.rates.reports),
            ("commands", "Commands to workers", counts.commands),
            ("notices", "Notices to clients", counts.notices),
            ("calls", "Questions between nodes", self.rates.calls),
            ("connections", "Connections", self.links.count),
            (
                "scheduler_events",
                "Transitions' causes",
                scheduler.events(),
            ),
            (
                "late_reports",
                "Reports too late to matter",
                scheduler.late_reports(),
            ),
        ] {
            metrics.register(format!("{name}_total"), help, Total(count));
        }
        let help = "Reports a second, lately: tasks a second where nothing else is reported";
        metrics.register("reports_per_second", help, gauge(self.rates.rate));
        let help = "Questions that were passed on and are not answered";
        metrics.register("calls_open", help, gauge(self.core.open_calls()));
    }

    fn add_shuffles(&self, metrics: &mut Registry) {
        let (count, begun) = self.core.shuffle_counts();
        metrics.register("shuffles", "Shuffles that run", gauge(count));
        let moved = self.core.moved();
        for (name, help, count) in [
            ("shuffles_begun", "Shuffles", begun),
            (
                "shuffle_transfers",
                "Transfers that have ended well, with those that ran again",
                moved.transfers,
            ),
            ("shuffled_rows", "Rows of these", moved.rows),
            ("shuffled_bytes", "Bytes of these rows", moved.bytes),
        ] {
            metrics.register(format!("{name}_total"), help, Total(count));
        }
    }

    /// What the scheduler itself takes, and has learnt.
    fn add_own(&self, metrics: &mut Registry) {
        let processor = Total(self.rates.processor.as_secs_f64());
        let help = "Processor time of the scheduler's thread";
        metrics.register("scheduler_cpu_seconds_total", help, processor);
        let bytes = gauge(self.core.memory());
        let help = "Bytes that tasks and keys take at the scheduler, about; recipes and small values \
                    not counted";
        metrics.register("scheduler_bytes", help, bytes);
        let (count, bytes) = self.core.definitions();
        let help = "Functions and shared constants";
        metrics.register("definitions", help, gauge(count));
        let help = "Bytes of their pickles, each kept once";
        metrics.register("definition_bytes", help, gauge(bytes));
        let learnt = self.core.scheduler().learnt().take(FUNCTIONS);
        let learnt = learnt.map(|(function, duration, _)| {
            (self.core.text(function), gauge(duration.as_secs_f64()))
        });
        let learnt = Labelled::new("function", learnt);
        let help =
            "How long functions take, as the scheduler has learnt: the first thousand functions";
        metrics.register("function_seconds", help, learnt);
    }
}

fn gauge<N>(value: N) -> ConstGauge<N> {
    ConstGauge::new(value)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode_registry;

    use super::*;

    #[test]
    fn metrics_are_text_that_prometheus_reads() {
        let mut metrics = Registry::with_prefix("x");
        metrics.register("a_total", "Of a", Total(3_u64));
        metrics.register("b", "Of b", gauge(0.5));
        let of = [("q\"\\\n", gauge(1_usize)), ("r", gauge(2))];
        let of = Labelled::new("l", of);
        metrics.register("c", "Of c", of);
        let mut text = String::new();
        encode_registry(&mut text, &metrics).unwrap();
        let expected = "# HELP x_a_total Of a.\n# TYPE x_a_total counter\nx_a_total 3\n\
                        # HELP x_b Of b.\n# TYPE x_b gauge\nx_b 0.5\n\
                        # HELP x_c Of c.\n# TYPE x_c gauge\nx_c{l=\"q\\\"\\\\\\n\"} 1\n\
                        x_c{l=\"r\"} 2\n";
        assert_eq!(text, expected);
    }
}
