//! The state of the cluster as JSON, for programs that watch it.

use std::collections::BTreeMap;

use serde::Serialize;
use treadle_scheduler::{State, WorkerStatus};

use super::hub::Hub;

pub(super) const STATUSES: [(WorkerStatus, &str); 3] = [
    (WorkerStatus::Running, "running"),
    (WorkerStatus::Paused, "paused"),
    (WorkerStatus::Draining, "draining"),
];

/// The cluster at one moment.
#[derive(Debug, Serialize)]
pub(super) struct ClusterState {
    address: String,
    id: String,
    /// Seconds.
    uptime: f64,
    cpu_seconds: f64,
    reports_per_second: f64,
    /// How many, by their state.
    tasks: BTreeMap<&'static str, usize>,
    /// Their names.
    clients: Vec<String>,
    /// By their address.
    workers: BTreeMap<String, WorkerState>,
}

#[derive(Debug, Serialize)]
struct WorkerState {
    name: String,
    host: String,
    status: &'static str,
    threads: u32,
    memory_limit: u64,
    managed: u64,
    process: u64,
    spilled: u64,
    tasks: usize,
    values: usize,
    heard_seconds_ago: f64,
}

impl Hub {
    /// It costs as much as there are workers and clients, whatever there are of tasks.
    pub(super) fn state(&self) -> ClusterState {
        let states = State::ALL.into_iter();
        let states = states.filter(|state| *state != State::Forgotten);
        let clients = self.core.clients();
        let workers = self.core.workers().map(|node| {
            let view = self.core.scheduler().worker(node.id);
            let health = view.map(|view| view.health()).unwrap_or_default();
            let status = view.map(|view| view.status());
            let status = STATUSES.iter().find(|(known, _)| Some(*known) == status);
            let state = WorkerState {
                name: node.name.clone(),
                host: node.host.clone(),
                status: status.map_or("gone", |(_, name)| name),
                threads: node.threads,
                memory_limit: node.memory,
                managed: health.managed,
                process: health.process,
                spilled: health.spilled,
                tasks: view.map_or(0, |view| view.assigned_count()),
                values: view.map_or(0, |view| view.held().len()),
                heard_seconds_ago: self.now.saturating_sub(node.heard).as_secs_f64(),
            };
            (node.address.clone(), state)
        });
        ClusterState {
            address: self.core.settings().address.clone(),
            id: self.core.settings().id.clone(),
            uptime: self.now.as_secs_f64(),
            cpu_seconds: self.rates.processor.as_secs_f64(),
            reports_per_second: self.rates.rate,
            tasks: states
                .map(|state| (state.name(), self.core.scheduler().count(state)))
                .collect(),
            clients: clients.map(|node| node.name.clone()).collect(),
            workers: workers.collect(),
        }
    }
}
