//! Walking Dask's graph nodes: what a task reads, and what it returns.
//!
//! Keys are looked up once, when a graph is loaded: [`references`] visits them in a fixed order,
//! and the ids that they stand for are the task's dependencies in that same order. [`evaluate`]
//! walks the node again in the same order and takes one dependency after another, so running a
//! task looks nothing up.

use std::cell::Cell;
use std::ffi::c_int;

use crate::spec::{Kind, Spec};
use crate::subgraph;
use pyo3::exceptions::PyRecursionError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet, PyTuple};
use smallvec::SmallVec;
use treadle_interpreter::{vectorcall, vectorcall_dict};

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// Calls `visit` with each key that `node` reads, in the order in which [`evaluate`] reads them.
pub fn references<'a, 'py>(
    spec: &Spec,
    node: Object<'a, 'py>,
    visit: &mut impl FnMut(Object<'_, 'py>) -> PyResult<()>,
) -> PyResult<()> {
    // SAFETY: the kind says which class the slots belong to.
    unsafe {
        match spec.kind(node) {
            Kind::Value | Kind::Data => Ok(()),
            Kind::Alias => visit(spec.alias_target.get(node)?),
            Kind::Reference => visit(spec.reference_key.get(node)?),
            Kind::Task => {
                for argument in tuple(spec.task_args.get(node)?)?.iter_borrowed() {
                    argument_references(spec, argument, visit)?;
                }
                let kwargs = spec.task_kwargs.get(node)?;
                let kwargs = kwargs.cast::<PyDict>()?;
                if !kwargs.is_empty() {
                    for (_, argument) in kwargs.iter() {
                        argument_references(spec, argument.as_borrowed(), visit)?;
                    }
                }
                Ok(())
            }
            Kind::List | Kind::Tuple | Kind::Set | Kind::Dict => {
                for item in tuple(spec.task_args.get(node)?)?.iter_borrowed() {
                    argument_references(spec, item, visit)?;
                }
                Ok(())
            }
            Kind::Custom => {
                for key in node.getattr("dependencies")?.try_iter()? {
                    visit(key?.as_borrowed())?;
                }
                Ok(())
            }
        }
    }
}

#[inline]
fn argument_references<'py>(
    spec: &Spec,
    argument: Object<'_, 'py>,
    visit: &mut impl FnMut(Object<'_, 'py>) -> PyResult<()>,
) -> PyResult<()> {
    match spec.kind(argument) {
        Kind::Value | Kind::Data => Ok(()),
        // SAFETY: a reference has the slot of its class.
        Kind::Reference => visit(unsafe { spec.reference_key.get(argument)? }),
        _ => {
            let _depth = Depth::enter(argument.py())?;
            references_dyn(spec, argument, visit)
        }
    }
}

/// Stops the closure's type from growing with the nesting.
fn references_dyn<'py>(
    spec: &Spec,
    node: Object<'_, 'py>,
    visit: &mut dyn FnMut(Object<'_, 'py>) -> PyResult<()>,
) -> PyResult<()> {
    references(spec, node, &mut |key| visit(key))
}

thread_local! {
    /// How many levels this thread is in.
    static LEVELS: Cell<c_int> = const { Cell::new(0) };
}

/// One level of nesting inside a node: too many are a `RecursionError`, not a crash.
///
/// The limit is `sys.getrecursionlimit()`, and at most [`DEEPEST`]. Since Python 3.12 the interpreter
/// counts calls of C code apart, with a limit of its own: 3.13 allows 10,000 of them, for which a stack
/// of 8 MB is too small.
pub struct Depth;

/// So many levels take at most four megabytes of the thread's stack, whatever limit Python was given.
const DEEPEST: i32 = 2_000;

impl Depth {
    /// Ends with the value that it returns.
    ///
    /// # Errors
    /// `RecursionError`.
    #[inline]
    pub fn enter(py: Python<'_>) -> PyResult<Self> {
        let levels = LEVELS.get();
        // SAFETY: the thread is attached.
        if levels >= DEEPEST.min(unsafe { ffi::Py_GetRecursionLimit() }) {
            return Err(PyRecursionError::new_err(
                "maximum recursion depth exceeded while walking a Dask task",
            ));
        }
        // SAFETY: the thread is attached; the call is paired with the one in `drop`.
        match unsafe { ffi::Py_EnterRecursiveCall(c" while walking a Dask task".as_ptr()) } {
            0 => {
                LEVELS.set(levels + 1);
                Ok(Depth)
            }
            _ => Err(PyErr::fetch(py)),
        }
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        LEVELS.set(LEVELS.get() - 1);
        // SAFETY: pairs with `enter`, on the same thread.
        unsafe { ffi::Py_LeaveRecursiveCall() }
    }
}

/// The values that a task reads, in the order of its references.
pub struct Inputs<'a>(std::slice::Iter<'a, *mut ffi::PyObject>);

impl<'a> Inputs<'a> {
    /// The values of a task.
    ///
    /// # Safety
    /// The objects stay alive until the inputs are dropped.
    pub unsafe fn new(values: &'a [*mut ffi::PyObject]) -> Self {
        Inputs(values.iter())
    }

    #[inline]
    fn next<'py>(&mut self, py: Python<'py>) -> Object<'a, 'py> {
        let value = *self
            .0
            .next()
            .expect("a node has as many references as when it was loaded");
        // SAFETY: by the contract of `new`.
        unsafe { Borrowed::from_ptr(py, value) }
    }
}

/// Runs a node: calls its function with its inputs.
///
/// # Errors
/// What the user's function raises, with its own traceback.
#[inline]
pub fn evaluate(
    spec: &Spec,
    node: Object<'_, '_>,
    inputs: &mut Inputs<'_>,
    shapes: &subgraph::Shapes,
) -> PyResult<Py<PyAny>> {
    let py = node.py();
    // SAFETY: the kind says which class the slots belong to.
    unsafe {
        match spec.kind(node) {
            Kind::Task => {
                let function = spec.task_func.get(node)?;
                let args = tuple(spec.task_args.get(node)?)?;
                let kwargs = spec.task_kwargs.get(node)?;
                let mut call = Call::new(args.len());
                for argument in args.iter_borrowed() {
                    call.push(spec, argument, inputs, shapes)?;
                }
                let kwargs = kwargs.cast::<PyDict>()?;
                if !kwargs.is_empty() {
                    let kwargs = keyword_arguments(spec, kwargs, inputs, shapes)?;
                    call.run(function, Some(kwargs.as_any().as_borrowed()))
                } else if function.as_ptr() == spec.execute_subgraph.as_ptr() {
                    subgraph::execute(spec, call.arguments(py), shapes)
                } else {
                    call.run(function, None)
                }
            }
            Kind::Alias | Kind::Reference => Ok(inputs.next(py).to_owned().unbind()),
            Kind::Data => Ok(spec.data_value.get(node)?.to_owned().unbind()),
            kind @ (Kind::List | Kind::Tuple | Kind::Set | Kind::Dict) => {
                let items = tuple(spec.task_args.get(node)?)?;
                let mut call = Call::new(items.len());
                for item in items.iter_borrowed() {
                    call.push(spec, item, inputs, shapes)?;
                }
                container(py, kind, call.arguments(py))
            }
            Kind::Custom => {
                let values = PyDict::new(py);
                for key in node.getattr("dependencies")?.try_iter()? {
                    values.set_item(key?, inputs.next(py))?;
                }
                Ok(node.call1((values,))?.unbind())
            }
            Kind::Value => Ok(node.to_owned().unbind()),
        }
    }
}

/// Builds the container that a `List`, `Tuple`, `Set` or `Dict` node stands for.
fn container<'a, 'py: 'a>(
    py: Python<'py>,
    kind: Kind,
    items: impl ExactSizeIterator<Item = Object<'a, 'py>>,
) -> PyResult<Py<PyAny>> {
    Ok(match kind {
        Kind::List => PyList::new(py, items)?.into_any(),
        Kind::Tuple => PyTuple::new(py, items)?.into_any(),
        Kind::Set => PySet::new(py, items)?.into_any(),
        _ => {
            let dict = PyDict::new(py);
            let mut items = items;
            while let (Some(key), Some(value)) = (items.next(), items.next()) {
                dict.set_item(key, value)?;
            }
            dict.into_any()
        }
    }
    .unbind())
}

/// The keyword arguments with their values; the node's own dictionary where it has only constants.
fn keyword_arguments<'py>(
    spec: &Spec,
    kwargs: Borrowed<'_, 'py, PyDict>,
    inputs: &mut Inputs<'_>,
    shapes: &subgraph::Shapes,
) -> PyResult<Bound<'py, PyDict>> {
    if kwargs
        .iter()
        .all(|(_, value)| spec.kind(value.as_borrowed()) == Kind::Value)
    {
        return Ok(kwargs.to_owned());
    }
    let resolved = PyDict::new(kwargs.py());
    for (name, value) in kwargs.iter() {
        match spec.kind(value.as_borrowed()) {
            Kind::Value => resolved.set_item(name, value)?,
            Kind::Reference => resolved.set_item(name, inputs.next(kwargs.py()))?,
            _ => {
                let _depth = Depth::enter(kwargs.py())?;
                resolved.set_item(name, evaluate(spec, value.as_borrowed(), inputs, shapes)?)?;
            }
        }
    }
    Ok(resolved)
}

/// The positional arguments of a call. Most are borrowed: constants from the node, inputs from the
/// values, which both outlive the call.
struct Call {
    /// The first entry is scratch space for the callee (`PY_VECTORCALL_ARGUMENTS_OFFSET`).
    arguments: SmallVec<[*mut ffi::PyObject; 9]>,
    /// Values that were made for this call.
    owned: SmallVec<[Py<PyAny>; 2]>,
}

impl Call {
    fn new(arguments: usize) -> Self {
        let mut call = Call {
            arguments: SmallVec::with_capacity(arguments + 1),
            owned: SmallVec::new(),
        };
        call.arguments.push(std::ptr::null_mut());
        call
    }

    /// Adds an argument of a node.
    ///
    /// # Safety
    /// The node and the inputs outlive the call.
    #[inline]
    unsafe fn push(
        &mut self,
        spec: &Spec,
        argument: Object<'_, '_>,
        inputs: &mut Inputs<'_>,
        shapes: &subgraph::Shapes,
    ) -> PyResult<()> {
        let argument = match spec.kind(argument) {
            Kind::Value => argument.as_ptr(),
            Kind::Reference => inputs.next(argument.py()).as_ptr(),
            // SAFETY: the slot belongs to the class.
            Kind::Data => unsafe { spec.data_value.get(argument)?.as_ptr() },
            _ => {
                let _depth = Depth::enter(argument.py())?;
                let value = evaluate(spec, argument, inputs, shapes)?;
                let pointer = value.as_ptr();
                self.owned.push(value);
                pointer
            }
        };
        self.arguments.push(argument);
        Ok(())
    }

    /// The arguments.
    ///
    /// # Safety
    /// As for [`Call::push`].
    unsafe fn arguments<'a, 'py: 'a>(
        &'a self,
        py: Python<'py>,
    ) -> impl ExactSizeIterator<Item = Object<'a, 'py>> + 'a {
        // SAFETY: by contract the pointers are valid while the call is.
        self.arguments[1..]
            .iter()
            .map(move |&a| unsafe { Borrowed::from_ptr(py, a) })
    }

    /// Calls `function`.
    ///
    /// # Safety
    /// As for [`Call::push`].
    #[inline]
    unsafe fn run(
        &mut self,
        function: Object<'_, '_>,
        kwargs: Option<Object<'_, '_>>,
    ) -> PyResult<Py<PyAny>> {
        let count = self.arguments.len() - 1;
        // SAFETY: the pointers are valid, and there is a writable entry before the first.
        unsafe {
            let arguments = self.arguments.as_mut_ptr().add(1);
            let result = match kwargs {
                None => vectorcall(function, arguments, count, None),
                Some(kwargs) => {
                    let kwargs = kwargs.cast::<PyDict>()?;
                    vectorcall_dict(function, arguments, count, kwargs)
                }
            };
            result.map(Bound::unbind)
        }
    }
}

#[inline]
fn tuple<'a, 'py>(object: Object<'a, 'py>) -> PyResult<Borrowed<'a, 'py, PyTuple>> {
    Ok(object.cast::<PyTuple>()?)
}
