//! Who is here.

use alloc::borrow::ToOwned;
use alloc::vec::Vec;

use treadle_scheduler::WorkerStatus;
use treadle_types::{Value, WorkerId};

use super::{Answered, Arguments, dict, int};
use crate::nodes::WorkerNode;
use crate::state::Core;

impl Core {
    /// As distributed's `Scheduler.identity`.
    pub(crate) fn identity(&self, arguments: &Arguments) -> Answered {
        let most = arguments.integer("n_workers").unwrap_or(-1);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let workers = self.workers.iter().take(most);
        let workers = workers.map(|node| {
            (
                Value::Str(node.address.clone()),
                self.identity_of_node(node),
            )
        });
        let threads: u64 = self
            .workers
            .iter()
            .map(|node| u64::from(node.threads))
            .sum();
        let memory: u64 = self.workers.iter().map(|node| node.memory).sum();
        let (http, services) = match &self.settings.http {
            Some((link, port)) => (
                Value::Str(link.clone()),
                dict([("dashboard", Value::Int(i64::from(*port)))]),
            ),
            None => (Value::None, Value::Dict(Vec::new())),
        };
        Ok(Some(dict([
            ("type", Value::str("Scheduler")),
            ("id", Value::Str(self.settings.id.clone())),
            ("address", Value::Str(self.settings.address.clone())),
            ("services", services),
            ("http", http),
            ("started", Value::Float(self.settings.started.as_secs_f64())),
            ("n_workers", int(self.workers.len())),
            ("total_threads", int(threads)),
            ("total_memory", int(memory)),
            ("n_clients", int(self.clients.len())),
            ("observed", Value::Bool(self.observed)),
            ("workers", Value::Dict(workers.collect())),
        ])))
    }

    pub(crate) fn identity_of(&self, worker: WorkerId) -> Value {
        let node = self.workers.get(worker);
        node.map_or(Value::None, |node| self.identity_of_node(node))
    }

    fn identity_of_node(&self, node: &WorkerNode) -> Value {
        let view = self.scheduler.worker(node.id);
        let health = view.map(|view| view.health()).unwrap_or_default();
        let status = match view.map(|view| view.status()) {
            _ if node.broken.is_some() => "closed",
            Some(WorkerStatus::Running) => "running",
            Some(WorkerStatus::Paused) => "paused",
            Some(WorkerStatus::Draining) => "closing_gracefully",
            None => "closed",
        };
        let heard = self.settings.started + node.heard;
        let resources = node.resources.iter();
        let resources = resources
            .map(|(name, amount)| (Value::Str(name.clone()), Value::Float(*amount)))
            .collect();
        let used = view.iter().flat_map(|view| view.used_resources());
        let used = used.map(|(name, amount)| {
            let name = self.symbols.text(name).to_owned();
            (Value::Str(name), Value::Float(amount))
        });
        let used = used.collect();
        let spilled = dict([
            ("memory", int(health.spilled)),
            ("disk", int(health.spilled)),
        ]);
        // What pages of Dask show, and nobody measures here.
        let unmeasured = dict([
            ("read_bps", Value::Float(0.0)),
            ("write_bps", Value::Float(0.0)),
        ]);
        let metrics = dict([
            ("cpu", Value::Float(0.0)),
            ("memory", int(health.process)),
            ("managed_bytes", int(health.managed)),
            ("spilled_bytes", spilled),
            (
                "executing",
                int(view.map_or(0, |view| view.assigned_count())),
            ),
            ("in_flight", int(0_u64)),
            ("host_net_io", unmeasured),
            ("ready", int(view.map_or(0, |view| view.queued()))),
            ("in_memory", int(view.map_or(0, |view| view.held().len()))),
            ("time", Value::Float(heard.as_secs_f64())),
        ]);
        let directory = node.text("local_directory").unwrap_or_default().to_owned();
        dict([
            ("type", Value::str("Worker")),
            ("id", Value::Str(node.name.clone())),
            ("host", Value::Str(node.ip().to_owned())),
            ("resources", Value::Dict(resources)),
            ("used_resources", Value::Dict(used)),
            ("local_directory", Value::Str(directory)),
            ("name", Value::Str(node.name.clone())),
            ("nthreads", int(node.threads)),
            ("memory_limit", int(node.memory)),
            ("last_seen", Value::Float(heard.as_secs_f64())),
            ("services", Value::Dict(Vec::new())),
            ("metrics", metrics),
            ("status", Value::str(status)),
            ("nanny", Value::None),
            ("pid", node.pid().map_or(Value::None, Value::Int)),
        ])
    }

    /// How many workers get tasks.
    pub(crate) fn running(&self, arguments: &Arguments) -> Answered {
        let workers = self.named_workers(arguments).into_iter();
        Ok(Some(int(workers.filter(|id| self.is_running(*id)).count())))
    }

    /// Threads by worker; `running`: of those only that get tasks.
    pub(crate) fn ncores(&self, arguments: &Arguments, running: bool) -> Answered {
        let workers = self.named_workers(arguments).into_iter();
        let workers = workers.filter(|worker| !running || self.is_running(*worker));
        let entry = |worker: WorkerId| {
            let node = self.workers.get(worker)?;
            Some((Value::Str(node.address.clone()), int(node.threads)))
        };
        Ok(Some(Value::Dict(workers.filter_map(entry).collect())))
    }
}
