//! One `get`: a Dask graph, loaded, and how far its execution has come.

use crate::trace::Recorders;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyDict, PyList, PySet, PyTuple};
use smallvec::SmallVec;
use std::sync::{Mutex, MutexGuard};
use treadle_dask::subgraph::Shapes;
use treadle_dask::{Converter, Depth, Inputs, Keys, Kind, Spec, error, evaluate, references};
use treadle_graph::{Effects, Event, Graph, Run, TaskId};
use treadle_interpreter::{clock, lock};

/// A graph whose tasks are Dask's nodes, and its execution.
///
/// Memory beyond Dask's own graph, at its highest: 108 bytes a task of a flat graph, 131 in a chain
/// (`bench/local/million.py`).
pub(crate) struct Job {
    spec: &'static Spec,
    keys: Keys,
    /// By task: its node. Nothing for data, and for keys that are not in the graph.
    nodes: Vec<Option<Py<PyAny>>>,
    shapes: Shapes,
    pub(crate) recorders: Recorders,
    /// Held for short, never while Python runs or a reference is dropped.
    state: Mutex<State>,
}

struct State {
    run: Run,
    effects: Effects,
    /// By task: its value, from its end until nobody needs it.
    values: Vec<Option<Py<PyAny>>>,
    /// Nothing starts any more.
    stopped: bool,
    /// Threads that work on the job or were sent for, and how many there may be. Both are 0 where
    /// no threads are needed.
    working: usize,
    limit: usize,
}

/// A task that was started, with what it reads.
pub(crate) struct Started {
    pub(crate) task: TaskId,
    /// Borrowed: a job keeps the inputs of a task until the task is finished.
    inputs: SmallVec<[*mut ffi::PyObject; 8]>,
}

impl Started {
    /// What it reads, for somebody who may use it after the task is finished.
    pub(crate) fn hold(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        // SAFETY: the job keeps the inputs of a started task until it is finished.
        let hold = |&value| unsafe { Borrowed::from_ptr(py, value).to_owned().unbind() };
        self.inputs.iter().map(hold).collect()
    }
}

// SAFETY: the pointers are only used by threads that are attached to Python.
unsafe impl Send for Started {}
// SAFETY: see above.
unsafe impl Sync for Started {}

/// What a turn leads to.
#[derive(Default)]
pub(crate) struct Turn {
    /// The task to run. Nothing, where one was asked for: the thread was counted as leaving.
    pub(crate) next: Option<Started>,
    /// So many further threads were counted as working: send for them.
    pub(crate) recruits: usize,
    /// Every task has finished.
    pub(crate) over: bool,
    /// The turn that ended the run: threads that were working then, this one included. None of
    /// them runs a task.
    pub(crate) returning: usize,
    /// Values that nobody needs, to be dropped outside of the lock.
    garbage: Vec<Py<PyAny>>,
}

impl Turn {
    /// Drops the values that nobody needs: any Python code may run.
    #[inline]
    pub(crate) fn drop_garbage(&mut self) {
        self.garbage.clear();
    }
}

impl Job {
    /// Loads `graph` and plans what `targets` (a key, or nested lists of keys) need.
    ///
    /// `cache` maps keys to values that are there already.
    ///
    /// # Errors
    /// `KeyError`: a target is not in the graph. `MissingDependencyError`, `CycleError`.
    /// `TypeError`: a key that cannot be hashed, named with the task that reads it.
    pub(crate) fn load(
        graph: &Bound<'_, PyDict>,
        targets: &Bound<'_, PyAny>,
        cache: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Job> {
        let recorders = Recorders::active();
        let began = if recorders.any() { clock::now() } else { 0 };
        let mut loader = Loader::new(graph, cache)?;
        with_critical_section(graph, || loader.take_nodes(graph))?;
        let mut wanted = Vec::new();
        loader.collect_targets(targets, &mut wanted)?;
        let job = loader.finish(&wanted, recorders)?;
        if job.recorders.any() {
            job.recorders.engine(clock::now() - began);
            job.recorders.planned(job.unfinished());
        }
        Ok(job)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The key of a task.
    pub(crate) fn key<'py>(&self, py: Python<'py>, task: TaskId) -> Borrowed<'_, 'py, PyAny> {
        self.keys.get(task).bind_borrowed(py)
    }

    /// The node of a task that was started.
    pub(crate) fn node<'py>(&self, py: Python<'py>, task: TaskId) -> Borrowed<'_, 'py, PyAny> {
        self.nodes[task.index()]
            .as_ref()
            .expect("only tasks are started")
            .bind_borrowed(py)
    }

    /// The keys that a task reads, each once, with their values: what `node(values)` needs.
    pub(crate) fn inputs<'py>(
        &self,
        py: Python<'py>,
        started: &Started,
    ) -> PyResult<Bound<'py, PyDict>> {
        let tasks: Vec<TaskId> = self.lock().run.graph().dependencies(started.task).to_vec();
        let values = PyDict::new(py);
        for (task, &value) in tasks.into_iter().zip(&started.inputs) {
            // SAFETY: the job keeps the inputs of a started task.
            let value = unsafe { Borrowed::from_ptr(py, value) };
            values.set_item(self.key(py, task), value)?;
        }
        Ok(values)
    }

    /// Number of planned tasks that have not finished.
    pub(crate) fn unfinished(&self) -> usize {
        self.lock().run.unfinished()
    }

    /// Threads that work on the job or were sent for.
    pub(crate) fn working(&self) -> usize {
        self.lock().working
    }

    /// So many threads may work on the job; the first is counted as working.
    pub(crate) fn expect_threads(&self, limit: usize) {
        let mut state = self.lock();
        state.limit = limit;
        state.working = 1;
    }

    /// A thread that was counted as working will not come.
    pub(crate) fn leave(&self) {
        self.lock().working -= 1;
    }

    /// Takes in the value of a finished task, and starts the next one if `more` are asked for.
    /// The caller drops the garbage.
    ///
    /// That the thread goes on or leaves, and how many others are sent for, is decided while
    /// nobody else can change what is ready: no ready task is overlooked.
    #[inline]
    pub(crate) fn turn(
        &self,
        finished: Option<(TaskId, Py<PyAny>)>,
        more: bool,
        turn: &mut Turn,
    ) -> PyResult<()> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (run, effects) = (&mut state.run, &mut state.effects);
        turn.returning = 0;
        if let Some((task, value)) = finished {
            state.values[task.index()] = Some(value);
            run.handle(Event::Finished(task), effects)
                .map_err(|e| error::run(e, &self.keys))?;
            for released in effects.released.drain(..) {
                turn.garbage.extend(state.values[released.index()].take());
            }
            if run.unfinished() == 0 {
                turn.returning = state.working;
            }
        }
        turn.over = run.unfinished() == 0;
        turn.next = None;
        if more && !state.stopped {
            run.handle(Event::Free, effects)
                .map_err(|e| error::run(e, &self.keys))?;
            turn.next = effects.start.take().map(|task| {
                let value = |d: &TaskId| state.values[d.index()].as_ref().map(Py::as_ptr);
                let inputs = run.graph().dependencies(task).iter().map(value);
                let inputs = inputs.map(|v| v.expect("a task starts when its inputs are there"));
                Started {
                    task,
                    inputs: inputs.collect(),
                }
            });
        }
        turn.recruits = 0;
        if turn.next.is_none() {
            // Where no threads are needed, none was counted.
            state.working = state.working.saturating_sub(usize::from(more));
        } else {
            let missing = state.limit.saturating_sub(state.working);
            turn.recruits = missing.min(run.ready());
            state.working += turn.recruits;
        }
        Ok(())
    }

    /// Runs a started task.
    ///
    /// # Errors
    /// What the user's function raises.
    #[inline]
    pub(crate) fn evaluate(&self, py: Python<'_>, started: &Started) -> PyResult<Py<PyAny>> {
        // SAFETY: the job keeps the inputs of a started task until it is finished.
        let mut inputs = unsafe { Inputs::new(&started.inputs) };
        evaluate(
            self.spec,
            self.node(py, started.task),
            &mut inputs,
            &self.shapes,
        )
    }

    /// Nothing starts from now on.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
    }

    /// The value of a finished target or of data.
    pub(crate) fn value(&self, py: Python<'_>, task: TaskId) -> Option<Py<PyAny>> {
        self.lock().values[task.index()]
            .as_ref()
            .map(|value| value.clone_ref(py))
    }

    /// The values of `targets`: lists of keys become tuples of values.
    pub(crate) fn results<'py>(&self, targets: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = targets.py();
        if let Ok(list) = targets.cast_exact::<PyList>() {
            let _depth = Depth::enter(py)?;
            let items: Vec<_> = list
                .iter()
                .map(|item| self.results(&item))
                .collect::<PyResult<_>>()?;
            return Ok(PyTuple::new(py, items)?.into_any());
        }
        let task = self.keys.find(targets.as_borrowed())?;
        let value = task.and_then(|task| self.value(py, task));
        Ok(value
            .ok_or_else(|| error::missing_key(targets.as_borrowed()))?
            .into_bound(py))
    }

    /// All tasks in the planned order.
    pub(crate) fn sequence(&self) -> Vec<TaskId> {
        self.lock().run.sequence().to_vec()
    }

    /// Every task and datum of the graph by key.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.keys.len() as u32).map(TaskId)
    }

    /// The dependencies of `task`, duplicates included.
    pub(crate) fn dependencies(&self, task: TaskId) -> Vec<TaskId> {
        self.lock().run.graph().dependencies(task).to_vec()
    }
}

/// A job in the making.
struct Loader<'a, 'py> {
    py: Python<'py>,
    spec: &'static Spec,
    keys: Keys,
    nodes: Vec<Option<Py<PyAny>>>,
    values: Vec<Option<Py<PyAny>>>,
    cache: Option<&'a Bound<'py, PyAny>>,
}

impl<'a, 'py> Loader<'a, 'py> {
    fn new(graph: &Bound<'py, PyDict>, cache: Option<&'a Bound<'py, PyAny>>) -> PyResult<Self> {
        Ok(Loader {
            py: graph.py(),
            spec: Spec::get(graph.py())?,
            keys: Keys::with_capacity(graph.len()),
            nodes: Vec::with_capacity(graph.len()),
            values: Vec::with_capacity(graph.len()),
            cache,
        })
    }

    /// Gives every key of the graph an id, in the graph's order.
    fn take_nodes(&mut self, graph: &Bound<'py, PyDict>) -> PyResult<()> {
        let mut converter = None;
        let mut position = 0;
        let (mut key, mut node) = (std::ptr::null_mut(), std::ptr::null_mut());
        // Converting an old-style task, and hashing and comparing keys, runs Python, which could change
        // the dictionary; PyDict_Next then skips or repeats entries, but stays within the
        // dictionary's memory.
        // SAFETY: the arguments are valid; key and node are borrowed and made owned at once.
        while unsafe { ffi::PyDict_Next(graph.as_ptr(), &mut position, &mut key, &mut node) } != 0 {
            // SAFETY: see above.
            let (key, node) = unsafe {
                (
                    Borrowed::from_ptr(self.py, key).to_owned(),
                    Borrowed::from_ptr(self.py, node).to_owned(),
                )
            };
            match self.spec.kind(node.as_borrowed()) {
                Kind::Value | Kind::Reference => {
                    let converter = match &converter {
                        Some(converter) => converter,
                        None => converter.insert(Converter::new(self.spec, self.all_keys(graph)?)),
                    };
                    let node = converter.entry(&key, &node)?;
                    self.take(key.as_borrowed(), node.as_borrowed())?;
                }
                _ => self.take(key.as_borrowed(), node.as_borrowed())?,
            }
        }
        Ok(())
    }

    /// What counts as a key in an old-style task.
    fn all_keys(&self, graph: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
        let Some(cache) = self.cache else {
            return Ok(graph.clone().into_any());
        };
        let keys = PySet::empty(self.py)?;
        for key in graph.as_any().try_iter()?.chain(cache.try_iter()?) {
            keys.add(key?)?;
        }
        Ok(keys.into_any())
    }

    #[inline]
    fn take(
        &mut self,
        key: Borrowed<'_, 'py, PyAny>,
        node: Borrowed<'_, 'py, PyAny>,
    ) -> PyResult<()> {
        let (node, value) = match self.spec.kind(node) {
            // SAFETY: the slot belongs to the class.
            Kind::Data => (None, Some(unsafe { self.spec.data_value.get(node)? })),
            Kind::Value => (None, Some(node)),
            // A key that stands for itself says that its value comes from elsewhere.
            _ if self.spec.names_itself(key, node)? => return Ok(()),
            _ => (Some(node), None),
        };
        // A value in the cache spares its task.
        let cached = if value.is_none() {
            self.cached(key)?
        } else {
            None
        };
        self.keys.push(key)?;
        self.nodes.push(node.map(|node| node.to_owned().unbind()));
        self.values
            .push(cached.or_else(|| value.map(|value| value.to_owned().unbind())));
        Ok(())
    }

    fn cached(&self, key: Borrowed<'_, 'py, PyAny>) -> PyResult<Option<Py<PyAny>>> {
        match self.cache {
            Some(cache) if cache.contains(key)? => Ok(Some(cache.get_item(key)?.unbind())),
            _ => Ok(None),
        }
    }

    /// Adds a key that is not in the graph; its value may be in the cache.
    fn take_foreign(&mut self, key: Borrowed<'_, 'py, PyAny>) -> PyResult<TaskId> {
        let value = self.cached(key)?;
        self.nodes.push(None);
        self.values.push(value);
        self.keys.push(key)
    }

    fn collect_targets(
        &mut self,
        targets: &Bound<'py, PyAny>,
        wanted: &mut Vec<TaskId>,
    ) -> PyResult<()> {
        if let Ok(list) = targets.cast_exact::<PyList>() {
            let _depth = Depth::enter(self.py)?;
            wanted.reserve(list.len());
            for target in list.iter() {
                self.collect_targets(&target, wanted)?;
            }
            return Ok(());
        }
        let key = targets.as_borrowed();
        let task = match self
            .keys
            .find(key)
            .map_err(|e| error::unhashable(e, key, None))?
        {
            Some(task) => task,
            None => self.take_foreign(key)?,
        };
        if self.nodes[task.index()].is_none() && self.values[task.index()].is_none() {
            return Err(error::missing_key(key));
        }
        wanted.push(task);
        Ok(())
    }

    /// Resolves what each node reads. Keys that are not in the graph are collected.
    fn connect(&self, foreign: &mut Vec<Py<PyAny>>) -> PyResult<Graph> {
        let mut graph = Graph::with_capacity(self.keys.len(), self.keys.len());
        let mut batch = graph.add(self.keys.len()).map_err(error::graph)?;
        for (node, value) in self.nodes.iter().zip(&self.values) {
            if let (Some(node), None) = (node, value) {
                references(self.spec, node.bind_borrowed(self.py), &mut |key| {
                    match self.keys.find(key) {
                        Ok(Some(task)) => batch.depend(task).map_err(error::graph)?,
                        Ok(None) => foreign.push(key.to_owned().unbind()),
                        Err(error) => {
                            let reader = self.keys.get(batch.current()).bind_borrowed(self.py);
                            return Err(error::unhashable(error, key, Some(reader)));
                        }
                    }
                    Ok(())
                })?;
            }
            batch.next();
        }
        batch.finish();
        Ok(graph)
    }

    fn finish(mut self, wanted: &[TaskId], recorders: Recorders) -> PyResult<Job> {
        let in_graph = self.keys.len();
        let mut foreign = Vec::new();
        let mut graph = self.connect(&mut foreign)?;
        if !foreign.is_empty() {
            // Rare: futures and cached values. The ids are known only now, so start over.
            for key in foreign.drain(..) {
                let key = key.bind_borrowed(self.py);
                if self.keys.find(key)?.is_none() {
                    self.take_foreign(key)?;
                }
            }
            graph = self.connect(&mut foreign)?;
        }
        let mut run = Run::new(graph);
        let mut effects = Effects::default();
        // First: what is wanted is planned around what is known.
        for task in run.graph().tasks().collect::<Vec<_>>() {
            if self.values[task.index()].is_some() {
                run.handle(Event::Known(task), &mut effects)
                    .map_err(|e| error::run(e, &self.keys))?;
            }
        }
        run.handle(Event::Wanted(wanted), &mut effects)
            .map_err(|e| error::run(e, &self.keys))?;
        if self.keys.len() > in_graph {
            self.require_nodes(&run)?;
        }
        Ok(Job {
            spec: self.spec,
            keys: self.keys,
            nodes: self.nodes,
            shapes: Shapes::default(),
            recorders,
            state: Mutex::new(State {
                run,
                effects,
                values: self.values,
                stopped: false,
                working: 0,
                limit: 0,
            }),
        })
    }

    /// Every planned task is in the graph.
    fn require_nodes(&self, run: &Run) -> PyResult<()> {
        for &task in run.sequence() {
            if self.nodes[task.index()].is_none() {
                let key = |task: TaskId| self.keys.get(task).bind_borrowed(self.py);
                let reader = run.graph().dependents(task).last();
                return Err(match reader {
                    Some(reader) => error::missing_dependency(key(task), key(reader)),
                    None => error::missing_key(key(task)),
                });
            }
        }
        Ok(())
    }
}
