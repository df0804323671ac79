//! Fused tasks: their inner graph becomes a list of steps, in the order in which they are to run.
//!
//! The order is that of `subgraph::Shapes`, found at the client once for a shape; a worker only
//! runs down the list. Inner keys are gone: what a step reads is an input of the task, or a local.

use crate::submission::Submission;
use crate::tag;
use crate::write::{WriteError, WriteResult};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use treadle_dask::Kind;
use treadle_dask::subgraph::{Inner, find};
use treadle_graph::TaskId;
use treadle_types::value::put_varint;

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// What a key stands for.
#[derive(Clone)]
pub(crate) enum Source<'py> {
    Input(u32),
    Local(u32),
    /// A constant that is written where it is read.
    Constant(Bound<'py, PyAny>),
}

/// What the keys inside a fused task stand for.
pub(crate) struct Scope<'py> {
    /// By task id of the inner graph; none before its step.
    sources: Vec<Option<Source<'py>>>,
    /// What the node that is being written reads, in the order in which it refers to it.
    reads: Vec<TaskId>,
    at: usize,
}

/// What becomes of an inner node or of the value of an inner input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InnerNode {
    /// Another name.
    Alias,
    /// Written where it is read.
    Inline,
    Step,
}

impl<'py> Submission<'_, 'py> {
    /// What a key that the current node refers to stands for.
    pub(crate) fn resolve(&mut self, key: Object<'_, 'py>) -> Result<Source<'py>, WriteError> {
        let Some(scope) = &mut self.task.scope else {
            return Ok(Source::Input(self.task.inputs.key(key)?));
        };
        let source = scope
            .reads
            .get(scope.at)
            .and_then(|task| scope.sources[task.index()].clone());
        scope.at += 1;
        // The steps are in topological order.
        Ok(source.expect("a node refers to what it referred to when its graph was loaded"))
    }

    pub(crate) fn put_source(&mut self, source: &Source<'py>) -> WriteResult {
        match source {
            Source::Input(number) => self.task.put_input(*number),
            Source::Local(number) => self.task.put_local(*number),
            // The scope has a reference, and so has the caller.
            Source::Constant(value) => return self.value(value.as_borrowed(), 2),
        }
        Ok(())
    }

    /// Writes a fused task: its arguments are the inner graph, the key of its result, the keys of
    /// its inputs, and one value for each of these.
    pub(crate) fn fused(&mut self, args: &[Bound<'py, PyAny>]) -> WriteResult {
        let [graph, output, input_keys, values @ ..] = args else {
            return Err(invalid(
                "a fused task needs its graph, output and input keys",
            ));
        };
        let graph = graph.cast::<PyDict>().map_err(PyErr::from)?;
        let input_keys = input_keys.cast::<PyTuple>().map_err(PyErr::from)?;
        let inner = Inner::load(self.spec, graph.as_borrowed(), input_keys.as_borrowed())?;
        if values.len() != inner.inputs {
            return Err(invalid("a fused task needs one value for each input key"));
        }
        let target = find(&inner.keys, output.as_borrowed())?;
        let shape = self.shapes.get(&inner, target)?;
        let node_of = |task: TaskId| &inner.nodes[task.index() - inner.inputs];

        let mut readers = vec![0u32; inner.keys.len()];
        for step in &shape.steps {
            for read in inner.reads(step.task.index() - inner.inputs) {
                readers[read.index()] += 1;
            }
        }
        let input_kinds: Vec<InnerNode> = values
            .iter()
            .zip(&readers)
            .map(|(value, readers)| self.inner_node(value.as_borrowed(), *readers))
            .collect();
        let (last, before) = match shape.steps.split_last() {
            Some((last, before)) => (Some(last), before),
            None => (None, &shape.steps[..]),
        };
        let kinds: Vec<InnerNode> = before
            .iter()
            .map(|step| {
                self.inner_node(node_of(step.task).as_borrowed(), readers[step.task.index()])
            })
            .collect();
        let steps = input_kinds.iter().chain(&kinds);
        let steps = steps.filter(|kind| **kind == InnerNode::Step).count();
        if steps > 0 {
            // Steps are locals of this task: its bytes are no constant.
            self.task.references += 1;
            self.task.bytes.push(tag::PROGRAM);
            put_varint(steps as u64, &mut self.task.bytes);
        }

        // What the outer graph's keys stand for is asked in the order of the arguments.
        let mut scope = Scope {
            sources: vec![None; inner.keys.len()],
            reads: Vec::new(),
            at: 0,
        };
        for ((value, kind), source) in values.iter().zip(input_kinds).zip(&mut scope.sources) {
            *source = Some(self.source_of(value, kind)?);
        }
        let outer = self.task.scope.replace(scope);
        for (step, kind) in before.iter().zip(kinds) {
            self.read_for(inner.reads(step.task.index() - inner.inputs));
            let source = self.source_of(node_of(step.task), kind)?;
            self.scope().sources[step.task.index()] = Some(source);
        }
        if let Some(last) = last {
            self.read_for(inner.reads(last.task.index() - inner.inputs));
            self.node(node_of(last.task).as_borrowed(), 0)?;
        } else {
            self.read_for(&[target]);
            let source = self.resolve(output.as_borrowed())?;
            self.put_source(&source)?;
        }
        self.task.scope = outer;
        Ok(())
    }

    fn inner_node(&self, node: Object<'_, 'py>, readers: u32) -> InnerNode {
        match self.spec.kind(node) {
            Kind::Alias | Kind::Reference => InnerNode::Alias,
            // A constant that several read is one object to all of them, unless nobody can tell.
            Kind::Data if readers <= 1 => InnerNode::Inline,
            Kind::Value if readers <= 1 => InnerNode::Inline,
            _ => InnerNode::Step,
        }
    }

    /// Makes of an inner node what it is to become.
    fn source_of(
        &mut self,
        node: &Bound<'py, PyAny>,
        kind: InnerNode,
    ) -> Result<Source<'py>, WriteError> {
        let spec = self.spec;
        let object = node.as_borrowed();
        // SAFETY: the kind says which class the slots belong to.
        unsafe {
            match (kind, spec.kind(object)) {
                (InnerNode::Alias, Kind::Alias) => self.resolve(spec.alias_target.get(object)?),
                (InnerNode::Alias, _) => self.resolve(spec.reference_key.get(object)?),
                (InnerNode::Inline, Kind::Data) => {
                    Ok(Source::Constant(spec.data_value.get(object)?.to_owned()))
                }
                (InnerNode::Inline, _) => Ok(Source::Constant(node.clone())),
                (InnerNode::Step, _) => {
                    self.node(object, 0)?;
                    Ok(Source::Local(self.task.new_local()))
                }
            }
        }
    }

    fn scope(&mut self) -> &mut Scope<'py> {
        self.task.scope.as_mut().expect("inside a fused task")
    }

    fn read_for(&mut self, reads: &[TaskId]) {
        let scope = self.scope();
        scope.reads.clear();
        scope.reads.extend_from_slice(reads);
        scope.at = 0;
    }
}

fn invalid(message: &'static str) -> WriteError {
    PyTypeError::new_err(message).into()
}
