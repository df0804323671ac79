//! Fused tasks: `dask._task_spec._execute_subgraph`, without the interpreter.
//!
//! Dask orders the inner graph of each fused task anew. Fused tasks of one layer differ in their
//! keys and constants but not in their shape, so the order is computed once for a shape.

use crate::error;
use crate::keys::Keys;
use crate::node::{Depth, Inputs, evaluate, references};
use crate::spec::Spec;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use treadle_graph::{Graph, TaskId, order};
use treadle_interpreter::{lock, repr};

/// How to run inner graphs of one shape. Task ids are positions: inputs first, then inner tasks.
pub struct Shape {
    /// In the order in which they are to run.
    pub steps: Vec<Step>,
}

/// One inner task.
pub struct Step {
    pub task: TaskId,
    /// Values that nobody reads after this step.
    release: Vec<TaskId>,
}

/// The shapes that a run has met.
#[derive(Default)]
pub struct Shapes(Mutex<HashMap<Box<[u32]>, Arc<Shape>>>);

impl Shapes {
    /// The steps of an inner graph whose result is `target`.
    ///
    /// # Errors
    /// `CycleError`.
    pub fn get(&self, inner: &Inner<'_>, target: TaskId) -> PyResult<Arc<Shape>> {
        let signature = inner.signature(target);
        if let Some(shape) = self.lock().get(&signature) {
            return Ok(shape.clone());
        }
        let shape = Arc::new(inner.plan(target)?);
        self.lock().insert(signature, shape.clone());
        Ok(shape)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Box<[u32]>, Arc<Shape>>> {
        lock(&self.0)
    }
}

/// The inner graph of one fused task.
pub struct Inner<'py> {
    /// The keys of its inputs, then those of its tasks.
    pub keys: Keys,
    /// The number of inputs.
    pub inputs: usize,
    /// The nodes of its tasks.
    pub nodes: Vec<Bound<'py, PyAny>>,
    /// `reads[offsets[i]..offsets[i + 1]]` are the references of node `i`.
    offsets: Vec<u32>,
    reads: Vec<TaskId>,
}

impl<'py> Inner<'py> {
    /// Reads an inner graph whose inputs have these keys.
    ///
    /// # Errors
    /// `RuntimeError`: a task reads what is neither an input nor a task of the graph.
    pub fn load(
        spec: &Spec,
        graph: Borrowed<'_, 'py, PyDict>,
        input_keys: Borrowed<'_, 'py, PyTuple>,
    ) -> PyResult<Self> {
        let capacity = graph.len() + input_keys.len();
        let mut inner = Inner {
            keys: Keys::with_capacity(capacity),
            inputs: input_keys.len(),
            nodes: Vec::with_capacity(graph.len()),
            offsets: Vec::with_capacity(graph.len() + 1),
            reads: Vec::with_capacity(capacity),
        };
        for key in input_keys.iter_borrowed() {
            inner.keys.push(key)?;
        }
        for (key, node) in graph.iter() {
            // An input takes the place of an inner task of the same key.
            if inner.keys.find(key.as_borrowed())?.is_none() {
                inner.keys.push(key.as_borrowed())?;
                inner.nodes.push(node);
            }
        }
        inner.offsets.push(0);
        for node in &inner.nodes {
            let (keys, reads) = (&inner.keys, &mut inner.reads);
            references(spec, node.as_borrowed(), &mut |key| {
                reads.push(find(keys, key)?);
                Ok(())
            })?;
            inner.offsets.push(reads.len() as u32);
        }
        Ok(inner)
    }

    /// What a node reads, in the order of its references.
    pub fn reads(&self, node: usize) -> &[TaskId] {
        &self.reads[self.offsets[node] as usize..self.offsets[node + 1] as usize]
    }

    /// Equal for inner graphs that can be run in the same steps, and only for those.
    fn signature(&self, target: TaskId) -> Box<[u32]> {
        let sizes = [self.inputs as u32, self.nodes.len() as u32, target.0];
        let reads = self.reads.iter().map(|task| task.0);
        sizes
            .into_iter()
            .chain(self.offsets.iter().copied())
            .chain(reads)
            .collect()
    }

    fn plan(&self, target: TaskId) -> PyResult<Shape> {
        let tasks = self.inputs + self.nodes.len();
        let mut graph = Graph::with_capacity(tasks, self.reads.len());
        let mut batch = graph.add(tasks).map_err(error::graph)?;
        (0..self.inputs).for_each(|_| batch.next());
        for node in 0..self.nodes.len() {
            for &read in self.reads(node) {
                batch.depend(read).map_err(error::graph)?;
            }
            batch.next();
        }
        batch.finish();
        let is_input = |task: TaskId| task.index() < self.inputs;
        let order = order(&graph, &[target], is_input)
            .map_err(|failure| error::unorderable(failure, &self.keys))?;
        let mut seen = vec![false; tasks];
        seen[target.index()] = true;
        let mut steps: Vec<Step> = order
            .iter()
            .rev()
            .map(|&task| {
                // Backwards, the first step that reads a value is the last in time.
                let is_last = |read: &TaskId| !std::mem::replace(&mut seen[read.index()], true);
                let reads = graph.dependencies(task).iter().copied();
                Step {
                    task,
                    release: reads.filter(is_last).collect(),
                }
            })
            .collect();
        steps.reverse();
        Ok(Shape { steps })
    }
}

/// The task of a key.
///
/// # Errors
/// `RuntimeError`: there is none.
pub fn find(keys: &Keys, key: Borrowed<'_, '_, PyAny>) -> PyResult<TaskId> {
    keys.find(key)?.ok_or_else(|| {
        PyRuntimeError::new_err(format!(
            "Not enough arguments provided: missing keys {{{}}}",
            repr(key)
        ))
    })
}

/// Runs a fused task. Its arguments are the inner graph, the key of its result, the keys of its
/// inputs, and one value for each of these.
pub(crate) fn execute<'b, 'py: 'b>(
    spec: &Spec,
    mut arguments: impl ExactSizeIterator<Item = Borrowed<'b, 'py, PyAny>>,
    shapes: &Shapes,
) -> PyResult<Py<PyAny>> {
    let (Some(graph), Some(output), Some(input_keys)) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err(PyTypeError::new_err(
            "a fused task needs its graph, output and input keys",
        ));
    };
    // As many levels as Dask's own function takes: a fused task in another takes 6 KB of the stack, ten
    // times as much as other levels.
    let (_one, _two, _three) = (
        Depth::enter(graph.py())?,
        Depth::enter(graph.py())?,
        Depth::enter(graph.py())?,
    );
    let inner = Inner::load(spec, graph.cast::<PyDict>()?, input_keys.cast::<PyTuple>()?)?;
    if arguments.len() != inner.inputs {
        return Err(PyTypeError::new_err(
            "a fused task needs one value for each input key",
        ));
    }
    let target = find(&inner.keys, output)?;
    let shape = shapes.get(&inner, target)?;
    let mut values: Vec<Option<Py<PyAny>>> = Vec::with_capacity(inner.keys.len());
    values.extend(arguments.map(|value| Some(value.to_owned().unbind())));
    values.resize_with(inner.keys.len(), || None);
    let mut inputs = SmallVec::<[_; 8]>::new();
    for step in &shape.steps {
        let node = step.task.index() - inner.inputs;
        inputs.clear();
        for read in inner.reads(node) {
            // The steps are in topological order, and a value is released after its last reader.
            let value = values[read.index()].as_ref();
            inputs.push(value.expect("a step comes after what it reads").as_ptr());
        }
        // SAFETY: `values` keeps the inputs alive.
        let mut inputs = unsafe { Inputs::new(&inputs) };
        let value = evaluate(spec, inner.nodes[node].as_borrowed(), &mut inputs, shapes)?;
        values[step.task.index()] = Some(value);
        for released in &step.release {
            values[released.index()] = None;
        }
    }
    Ok(values
        .swap_remove(target.index())
        .expect("the last step made the output"))
}
