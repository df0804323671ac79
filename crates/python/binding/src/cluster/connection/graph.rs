//! A graph of Dask, before it is submitted: who reads whom, and in which order.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use treadle_dask::{Converter, Keys, Kind, Spec, error, references};
use treadle_graph::{Graph, TaskId, order};

/// The nodes of a graph by task, and their dependencies within it.
pub(super) struct Loaded {
    pub(super) spec: &'static Spec,
    pub(super) keys: Keys,
    nodes: Vec<Py<PyAny>>,
    graph: Graph,
    /// What tasks read of other graphs.
    outside: Vec<(TaskId, Py<PyAny>)>,
    /// Nodes of other classes than those of `dask._task_spec`: few, if any.
    pub(super) custom: Vec<TaskId>,
}

/// The tasks to send.
pub(super) struct Plan {
    /// Each after those that it reads.
    pub(super) sequence: Vec<TaskId>,
    /// By task: how many of these read it.
    pub(super) readers: Vec<u32>,
}

impl Loaded {
    /// Reads a graph.
    ///
    /// # Errors
    /// For keys that cannot be hashed; what Python raises while keys are compared.
    pub(super) fn new(graph: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = graph.py();
        let graph = match graph.cast::<PyDict>() {
            Ok(dict) => dict.clone(),
            Err(_) => py.get_type::<PyDict>().call1((graph,))?.cast_into()?,
        };
        let spec = Spec::get(py)?;
        let mut loaded = Self {
            spec,
            keys: Keys::with_capacity(graph.len()),
            nodes: Vec::with_capacity(graph.len()),
            graph: Graph::with_capacity(0, 0),
            outside: Vec::new(),
            custom: Vec::new(),
        };
        let mut converter = None;
        for (key, node) in graph.iter() {
            let kind = spec.kind(node.as_borrowed());
            let node = match kind {
                Kind::Value | Kind::Reference => {
                    let all_keys = || graph.clone().into_any();
                    let converter =
                        converter.get_or_insert_with(|| Converter::new(spec, all_keys()));
                    converter.entry(&key, &node)?
                }
                _ => node,
            };
            if spec.names_itself(key.as_borrowed(), node.as_borrowed())? {
                continue;
            }
            if kind == Kind::Custom {
                loaded.custom.push(TaskId(loaded.nodes.len() as u32));
            }
            loaded.keys.push(key.as_borrowed())?;
            loaded.nodes.push(node.unbind());
        }
        loaded.connect(py)?;
        Ok(loaded)
    }

    fn connect(&mut self, py: Python<'_>) -> PyResult<()> {
        let mut graph = Graph::with_capacity(self.keys.len(), 2 * self.keys.len());
        let mut batch = graph.add(self.keys.len()).map_err(error::graph)?;
        let mut outside = Vec::new();
        for node in &self.nodes {
            references(self.spec, node.bind_borrowed(py), &mut |key| {
                let found = self.keys.find(key).map_err(|error| {
                    let reader = self.keys.get(batch.current()).bind_borrowed(py);
                    error::unhashable(error, key, Some(reader))
                })?;
                match found {
                    Some(task) => batch.depend(task).map_err(error::graph),
                    None => {
                        outside.push((batch.current(), key.to_owned().unbind()));
                        Ok(())
                    }
                }
            })?;
            batch.next();
        }
        batch.finish();
        self.graph = graph;
        self.outside = outside;
        Ok(())
    }

    /// What the tasks of a plan read of other graphs, with the keys of these tasks.
    pub(super) fn outside<'a, 'py: 'a>(
        &'a self,
        py: Python<'py>,
        plan: &Plan,
    ) -> impl Iterator<Item = (&'a Bound<'py, PyAny>, &'a Bound<'py, PyAny>)> {
        let mut planned = vec![false; self.len()];
        if !self.outside.is_empty() {
            for task in &plan.sequence {
                planned[task.index()] = true;
            }
        }
        let read = self.outside.iter();
        let read = read.filter(move |(task, _)| planned[task.index()]);
        read.map(move |(task, key)| (key.bind(py), self.keys.get(*task).bind(py)))
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn node<'py>(&self, py: Python<'py>, task: TaskId) -> &Bound<'py, PyAny> {
        self.nodes[task.index()].bind(py)
    }

    pub(super) fn kind(&self, py: Python<'_>, task: TaskId) -> Kind {
        self.spec.kind(self.nodes[task.index()].bind_borrowed(py))
    }

    /// What a task reads of this graph.
    pub(super) fn inputs(&self, task: TaskId) -> &[TaskId] {
        self.graph.dependencies(task)
    }

    /// Who reads it.
    pub(super) fn readers(&self, task: TaskId) -> impl Iterator<Item = TaskId> + '_ {
        self.graph.dependents(task)
    }

    /// What is to be sent for the targets, up to tasks whose values need not be made (`known`, by
    /// task). Takes a while: call it detached.
    ///
    /// # Errors
    /// When tasks wait for each other.
    pub(super) fn plan<K>(&self, targets: &[TaskId], known: &[Option<K>]) -> PyResult<Plan> {
        let sequence = order(&self.graph, targets, |task| known[task.index()].is_some())
            .map_err(|failure| error::unorderable(failure, &self.keys))?;
        let mut readers = vec![0; self.len()];
        let mut seen = vec![u32::MAX; self.len()];
        for task in &sequence {
            for input in self.graph.dependencies(*task) {
                // A task that reads an input twice is one reader.
                if std::mem::replace(&mut seen[input.index()], task.0) != task.0 {
                    readers[input.index()] += 1;
                }
            }
        }
        Ok(Plan { sequence, readers })
    }
}
