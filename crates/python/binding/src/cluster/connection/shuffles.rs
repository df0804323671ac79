//! Shuffles in a graph: `P2PBarrierTask`s of distributed, and the tasks around them.

use super::graph::{Loaded, Plan};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use treadle_dask::Kind;
use treadle_graph::TaskId;
use treadle_messages::Registration;
use treadle_types::Runs;

/// What `treadle.shuffle._graph.shuffles` says of a shuffle.
type About = (
    String,
    u32,
    u32,
    Vec<(u64, u64)>,
    Option<String>,
    Vec<u8>,
    Vec<(u32, u32)>,
    String,
);

/// The shuffles among the tasks of a plan.
#[derive(Default)]
pub(super) struct Shuffles {
    /// For the scheduler, in the order of their barriers.
    pub(super) registrations: Vec<Registration>,
    /// Who keeps their rows, if workers do not.
    pub(super) service: Option<String>,
    /// Transfers and barriers.
    pub(super) effects: HashSet<TaskId>,
    /// Other names of transfers: tasks that are read in place of them.
    pub(super) aliases: HashMap<TaskId, TaskId>,
}

impl Shuffles {
    /// Finds them. Fused transfers have another name in a graph of arrays (`Alias`), which the barrier
    /// reads. Then the task proper is an input of the barrier instead: it is what runs again. `is_wanted`
    /// says whether the client has a future of a task. `service` is the one that is to keep their rows; `None`:
    /// workers do.
    ///
    /// # Errors
    /// What Python raises.
    pub(super) fn of(
        py: Python<'_>,
        loaded: &Loaded,
        plan: &mut Plan,
        is_wanted: impl Fn(TaskId) -> bool,
        service: Option<&str>,
    ) -> PyResult<Self> {
        let mut shuffles = Self {
            service: service.map(str::to_owned),
            ..Self::default()
        };
        if loaded.custom.is_empty() {
            return Ok(shuffles);
        }
        let module = py.import("treadle.shuffle._graph")?;
        let mut barriers = Vec::new();
        let planned: HashSet<TaskId> = plan.sequence.iter().copied().collect();
        for &task in &loaded.custom {
            let node = loaded.node(py, task);
            let is_barrier = module.call_method1(intern!(py, "is_barrier"), (node,))?;
            if planned.contains(&task) && is_barrier.is_truthy()? {
                barriers.push(task);
            }
        }
        if barriers.is_empty() {
            return Ok(shuffles);
        }
        for &barrier in &barriers {
            shuffles.effects.insert(barrier);
            for &input in loaded.inputs(barrier) {
                let mut transfer = input;
                while loaded.kind(py, transfer) == Kind::Alias
                    && planned.contains(&transfer)
                    && let [target] = *loaded.inputs(transfer)
                    && planned.contains(&target)
                {
                    shuffles.aliases.insert(transfer, target);
                    transfer = target;
                }
                shuffles.effects.insert(transfer);
            }
        }
        // First: registrations name tasks by their places in what is left.
        shuffles.leave_aliases_out(plan, is_wanted);
        shuffles.register(py, loaded, plan, &barriers, &module)?;
        Ok(shuffles)
    }

    /// The task that is read where this one is named.
    pub(super) fn read(&self, task: TaskId) -> TaskId {
        let mut task = task;
        while let Some(&target) = self.aliases.get(&task) {
            task = target;
        }
        task
    }

    /// Has those who read an alias read its target. Only wanted aliases are left.
    fn leave_aliases_out(&self, plan: &mut Plan, is_wanted: impl Fn(TaskId) -> bool) {
        for &alias in self.aliases.keys() {
            let readers = std::mem::take(&mut plan.readers[alias.index()]);
            let target = &mut plan.readers[self.read(alias).index()];
            *target += readers;
            // The alias was itself a reader of its target.
            *target -= u32::from(!is_wanted(alias));
        }
        let is_left = |task: &TaskId| !self.aliases.contains_key(task) || is_wanted(*task);
        plan.sequence.retain(is_left);
    }

    fn register(
        &mut self,
        py: Python<'_>,
        loaded: &Loaded,
        plan: &Plan,
        barriers: &[TaskId],
        module: &Bound<'_, PyModule>,
    ) -> PyResult<()> {
        let mut ranks = vec![None; loaded.len()];
        for (rank, task) in (0_u32..).zip(&plan.sequence) {
            ranks[task.index()] = Some(rank);
        }
        let mut barriers: Vec<(u32, TaskId)> = barriers
            .iter()
            .filter_map(|barrier| Some((ranks[barrier.index()]?, *barrier)))
            .collect();
        barriers.sort_unstable();
        let nodes = barriers.iter().map(|(_, barrier)| {
            let readers = loaded.readers(*barrier);
            let readers = readers.filter_map(|task| Some((ranks[task.index()]?, task)));
            let readers: BTreeMap<u32, TaskId> = readers.collect();
            let readers = readers.into_iter();
            let readers = readers.map(|(rank, task)| (rank, loaded.node(py, task)));
            (loaded.node(py, *barrier), readers.collect::<Vec<_>>())
        });
        let nodes: Vec<_> = nodes.collect();
        let about = module.call_method1(intern!(py, "shuffles"), (nodes,))?;
        let about: Vec<About> = about.extract()?;
        let names: Vec<String> = about.iter().map(|about| about.0.clone()).collect();
        for (at, ((barrier, _), about)) in barriers.into_iter().zip(about).enumerate() {
            let (name, maps, partitions, outputs, aligned, spec, reads, kind) = about;
            let outputs = Runs::from_ranges(outputs)
                .ok_or_else(|| PyValueError::new_err("ranges of partitions out of order"))?;
            // The first of two is aligned with nothing.
            let aligned = aligned.filter(|other| !names[at..].contains(other));
            let (readers, reads) = reads.into_iter().unzip();
            self.registrations.push(Registration {
                submission: 0,
                name,
                barrier,
                maps,
                partitions,
                outputs,
                aligned,
                spec: spec.into(),
                readers,
                reads,
                kind,
                service: self.service.clone(),
            });
        }
        Ok(())
    }
}
