//! Writing recipes: nodes, calls, containers, constants.

use crate::class::Class;
use crate::definition::Kind;
use crate::encoder::When;
use crate::key::encode_key;
use crate::plain::put_atom;
use crate::run::{DEEPEST, too_deep};
use crate::submission::{Argument, Place, Role, Submission};
use crate::tag;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyFrozenSet, PyList, PySet, PyString, PyTuple};
use treadle_dask::Kind as NodeKind;
use treadle_types::value::{put_head, put_varint, tag as plain};

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// Why writing ended early.
pub(crate) enum WriteError {
    /// Python raised it.
    Python(PyErr),
    /// The task has to be written anew: an object turned out to occur in several places.
    Restart,
}

impl From<PyErr> for WriteError {
    fn from(error: PyErr) -> Self {
        WriteError::Python(error)
    }
}

pub(crate) type WriteResult = Result<(), WriteError>;

/// Functions of Dask that build containers, and what else is needed of it.
pub(crate) struct Dask {
    identity_cast: Py<PyAny>,
    to_container: Py<PyAny>,
    dict: Py<PyAny>,
    task_call: Py<PyAny>,
    pub(crate) parse_input: Py<PyAny>,
}

pub(crate) fn dask(py: Python<'_>) -> PyResult<&'static Dask> {
    static DASK: PyOnceLock<Dask> = PyOnceLock::new();
    DASK.get_or_try_init(py, || {
        let module = py.import("dask._task_spec")?;
        let get = |class: &str, name: &str| -> PyResult<Py<PyAny>> {
            Ok(module.getattr(class)?.getattr(name)?.unbind())
        };
        Ok(Dask {
            identity_cast: module.getattr("_identity_cast")?.unbind(),
            to_container: get("NestedContainer", "to_container")?,
            dict: get("Dict", "constructor")?,
            task_call: get("Task", "__call__")?,
            parse_input: module.getattr("parse_input")?.unbind(),
        })
    })
}

impl<'py> Submission<'_, 'py> {
    /// Goes one level deeper.
    pub(crate) fn nested(&mut self, write: impl FnOnce(&mut Self) -> WriteResult) -> WriteResult {
        self.task.depth += 1;
        if self.task.depth > DEEPEST {
            return Err(too_deep().into());
        }
        write(self)?;
        self.task.depth -= 1;
        Ok(())
    }

    /// Writes a node, or the value that stands in place of one. `held` references to it are only
    /// those of the callers.
    pub(crate) fn node(&mut self, node: Object<'_, 'py>, held: isize) -> WriteResult {
        let spec = self.spec;
        // SAFETY: the kind says which class the slots belong to.
        unsafe {
            match spec.kind(node) {
                NodeKind::Value => self.value(node, held),
                NodeKind::Data => self.value(spec.data_value.get(node)?, 0),
                NodeKind::Reference => self.reference(spec.reference_key.get(node)?),
                NodeKind::Alias => self.reference(spec.alias_target.get(node)?),
                NodeKind::Task => self.nested(|this| this.task_node(node)),
                NodeKind::List => self.container_node(plain::LIST, node),
                NodeKind::Tuple => self.container_node(plain::TUPLE, node),
                NodeKind::Set => self.container_node(tag::SET, node),
                NodeKind::Dict => self.container_node(plain::DICT, node),
                // The references of a fused task were collected as `dependencies` gives them.
                NodeKind::Custom if self.task.scope.is_none() && is_plain_task(node)? => {
                    self.nested(|this| this.task_node(node))
                }
                NodeKind::Custom => self.nested(|this| this.custom(node)),
            }
        }
    }

    fn task_node(&mut self, node: Object<'_, 'py>) -> WriteResult {
        let spec = self.spec;
        // SAFETY: the caller knows that it is a task.
        let (function, args, kwargs) = unsafe {
            (
                spec.task_func.get(node)?,
                spec.task_args.get(node)?,
                spec.task_kwargs.get(node)?,
            )
        };
        let args = args.cast::<PyTuple>().map_err(PyErr::from)?;
        let kwargs = kwargs.cast::<PyDict>().map_err(PyErr::from)?;
        if kwargs.is_empty() {
            if function.as_ptr() == spec.execute_subgraph.as_ptr() {
                return self.fused(args.as_slice());
            }
            return self.call_now(function, args.as_slice(), None);
        }
        if let Some(tag) = container_tag(function, &kwargs)? {
            return self.container(tag, args.as_slice());
        }
        self.call_now(function, args.as_slice(), Some(&kwargs))
    }

    /// Writes a call.
    pub(crate) fn call(
        &mut self,
        function: Object<'_, 'py>,
        args: &[Bound<'py, PyAny>],
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> WriteResult {
        self.nested(|this| this.call_now(function, args, kwargs))
    }

    fn call_now(
        &mut self,
        function: Object<'_, 'py>,
        args: &[Bound<'py, PyAny>],
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> WriteResult {
        let is_outermost = self.task.depth == 1;
        if is_outermost {
            self.task.argument = Argument::Function;
        }
        let function = function.to_owned();
        // Fused tasks take their functions from a graph that is let go soon: always remembered.
        let place = self.place(&function, Role::Function, Class::Other, true)?;
        let kwargs = kwargs.filter(|kwargs| !kwargs.is_empty());
        let names = kwargs.map(|kwargs| self.names_of(kwargs)).transpose()?;
        if let Place::Definition(number) = place {
            self.task.bytes.push(match names {
                None => tag::CALL,
                Some(_) => tag::CALL_NAMED,
            });
            put_varint(number.into(), &mut self.task.bytes);
            self.task.use_definition(number);
            if !std::mem::replace(&mut self.task.calls, true) {
                // The first function comes first, whatever was used before it.
                let at = self.task.definitions.iter().position(|it| *it == number);
                self.task.definitions[..=at.unwrap_or(0)].rotate_right(1);
            }
            if let Some(names) = names {
                put_varint(names.into(), &mut self.task.bytes);
            }
        } else {
            self.task.bytes.push(tag::APPLY);
            self.put_place(&place)?;
            let names = names.map_or(0, |names| u64::from(names) + 1);
            put_varint(names, &mut self.task.bytes);
        }
        if let Some(names) = names {
            self.task.use_definition(names);
        }
        let named = kwargs.map_or(0, |kwargs| kwargs.len());
        put_varint((args.len() + named) as u64, &mut self.task.bytes);
        for (number, argument) in args.iter().enumerate() {
            if is_outermost {
                self.task.argument = Argument::Positional(number);
            }
            self.node(argument.as_borrowed(), 0)?;
        }
        if let Some(kwargs) = kwargs {
            for (name, argument) in entries(kwargs) {
                if is_outermost {
                    if self.task.shares_named {
                        self.task.shared_named = Some(self.task.bytes.len());
                    }
                    self.task.argument = Argument::Named(name);
                }
                self.node(argument.as_borrowed(), 1)?;
            }
        }
        Ok(())
    }

    /// The definition of the names of keyword arguments.
    fn names_of(&mut self, kwargs: &Bound<'py, PyDict>) -> Result<u32, WriteError> {
        let mut names = Vec::with_capacity(64);
        put_head(plain::TUPLE, kwargs.len(), &mut names);
        for name in kwargs.keys() {
            if !name.is_exact_instance_of::<PyString>() || !put_atom(name.as_borrowed(), &mut names)
            {
                return Err(PyTypeError::new_err("keywords must be strings").into());
            }
        }
        if let Some(&number) = self.names.get(&names) {
            return Ok(number);
        }
        let number = self
            .encoder
            .define(Kind::Names, &names, When::Now, || "names".to_owned())
            .expect("defined now");
        self.names.insert(names, number);
        Ok(number)
    }

    /// Writes a reference to a key.
    fn reference(&mut self, key: Object<'_, 'py>) -> WriteResult {
        let source = self.resolve(key)?;
        self.put_source(&source)
    }

    fn container_node(&mut self, tag: u8, node: Object<'_, 'py>) -> WriteResult {
        // SAFETY: containers are tasks, too.
        let items = unsafe { self.spec.task_args.get(node)? };
        let items = items.cast::<PyTuple>().map_err(PyErr::from)?;
        self.nested(|this| this.container(tag, items.as_slice()))
    }

    fn container(&mut self, tag: u8, items: &[Bound<'py, PyAny>]) -> WriteResult {
        let count = if tag == plain::DICT {
            items.len() / 2
        } else {
            items.len()
        };
        self.task.mutable += usize::from(tag != plain::TUPLE && tag != tag::FROZENSET);
        put_head(tag, count, &mut self.task.bytes);
        let written = if tag == plain::DICT { count * 2 } else { count };
        for item in &items[..written] {
            self.node(item.as_borrowed(), 0)?;
        }
        Ok(())
    }

    /// Writes a node of a class of its own, and what it reads.
    fn custom(&mut self, node: Object<'_, 'py>) -> WriteResult {
        self.task.bytes.push(tag::CUSTOM);
        self.task.references += 1;
        self.object(node, 0)?;
        let dependencies = node.getattr(intern!(node.py(), "dependencies"))?;
        let keys = dependencies
            .try_iter()?
            .collect::<PyResult<Vec<Bound<'py, PyAny>>>>()?;
        put_varint(keys.len() as u64, &mut self.task.bytes);
        for key in keys {
            encode_key(key.as_borrowed(), &mut self.task.bytes)?;
            self.reference(key.as_borrowed())?;
        }
        Ok(())
    }
}

/// The entries of a dictionary, which code of Python's may change meanwhile.
pub(crate) fn entries<'py>(
    dict: &Bound<'py, PyDict>,
) -> Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    dict.iter().collect()
}

/// The container that a call of Dask's own functions builds, if it is one.
fn container_tag(function: Object<'_, '_>, kwargs: &Bound<'_, PyDict>) -> PyResult<Option<u8>> {
    let py = function.py();
    let dask = dask(py)?;
    let class = if kwargs.len() != 1 {
        None
    } else if function.is(&dask.identity_cast) {
        kwargs.get_item(intern!(py, "typ"))?
    } else if function.is(&dask.to_container) {
        kwargs.get_item(intern!(py, "constructor"))?
    } else {
        None
    };
    let Some(class) = class else {
        return Ok(None);
    };
    Ok(if class.is(py.get_type::<PyList>()) {
        Some(plain::LIST)
    } else if class.is(py.get_type::<PyTuple>()) {
        Some(plain::TUPLE)
    } else if class.is(py.get_type::<PySet>()) {
        Some(tag::SET)
    } else if class.is(py.get_type::<PyFrozenSet>()) {
        Some(tag::FROZENSET)
    } else if class.is(&dask.dict) {
        Some(plain::DICT)
    } else {
        None
    })
}

/// Whether a node of a subclass of `Task` runs as any task does.
fn is_plain_task(node: Object<'_, '_>) -> PyResult<bool> {
    let py = node.py();
    let spec = treadle_dask::Spec::get(py)?;
    if !node.is_instance(spec.task.bind(py))? {
        return Ok(false);
    }
    let call = node.get_type().getattr(intern!(py, "__call__"))?;
    Ok(call.is(&dask(py)?.task_call))
}
