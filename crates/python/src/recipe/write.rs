//! Writing recipes: nodes, calls, containers, constants.

use super::class::Class;
use super::definition::Kind;
use super::encoder::{When, class_name};
use super::key::encode_key;
use super::plain::{put_atom, references};
use super::run::{DEEPEST, too_deep};
use super::submission::{Argument, LARGE, Place, Role, Submission};
use super::tag;
use super::value::is_longer;
use crate::dask::Kind as NodeKind;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyFrozenSet, PyList, PySet, PySlice, PyString, PyTuple, PyType};
use treadle_types::value::{MAX_DEPTH, put_head, put_varint, tag as plain};

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// Natively written constants of more bytes than this are looked up, and defined if they recur.
const WORTH_SHARING: usize = 96;

/// Why writing ended early.
pub(super) enum Stop {
    Error(PyErr),
    /// The task has to be written anew: an object turned out to occur in several places.
    Again,
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Stop::Error(error)
    }
}

pub(super) type Written = Result<(), Stop>;

/// An object that was met in the task.
pub(super) enum Seen {
    /// It is being written.
    Inside,
    Done,
}

/// How to write an object that occurs several times.
pub(super) enum Shared {
    /// Once; then by its local.
    Kept(Option<u32>),
    /// Pickled as a whole: it contains itself.
    Pickled,
}

/// How an object that could occur several times is written.
enum Entered {
    /// It was, by its local.
    Written,
    /// It has to be; whether its value is to be kept.
    ToWrite {
        keep: bool,
    },
    /// It cannot be met again.
    Once,
    Pickled,
}

/// Functions of Dask that build containers, and what else is needed of it.
struct Dask {
    identity_cast: Py<PyAny>,
    to_container: Py<PyAny>,
    dict: Py<PyAny>,
    task_call: Py<PyAny>,
    parse_input: Py<PyAny>,
}

fn dask(py: Python<'_>) -> PyResult<&'static Dask> {
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
    pub(super) fn nested(&mut self, write: impl FnOnce(&mut Self) -> Written) -> Written {
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
    pub(super) fn node(&mut self, node: Object<'_, 'py>, held: isize) -> Written {
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

    fn task_node(&mut self, node: Object<'_, 'py>) -> Written {
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
    pub(super) fn call(
        &mut self,
        function: Object<'_, 'py>,
        args: &[Bound<'py, PyAny>],
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> Written {
        self.nested(|this| this.call_now(function, args, kwargs))
    }

    fn call_now(
        &mut self,
        function: Object<'_, 'py>,
        args: &[Bound<'py, PyAny>],
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> Written {
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
            self.put_place(&place);
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
                    self.task.argument = Argument::Named(name);
                }
                self.node(argument.as_borrowed(), 1)?;
            }
        }
        Ok(())
    }

    /// The definition of the names of keyword arguments.
    fn names_of(&mut self, kwargs: &Bound<'py, PyDict>) -> Result<u32, Stop> {
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
    fn reference(&mut self, key: Object<'_, 'py>) -> Written {
        let source = self.resolve(key)?;
        self.put_source(&source)
    }

    fn container_node(&mut self, tag: u8, node: Object<'_, 'py>) -> Written {
        // SAFETY: containers are tasks, too.
        let items = unsafe { self.spec.task_args.get(node)? };
        let items = items.cast::<PyTuple>().map_err(PyErr::from)?;
        self.nested(|this| this.container(tag, items.as_slice()))
    }

    fn container(&mut self, tag: u8, items: &[Bound<'py, PyAny>]) -> Written {
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
    fn custom(&mut self, node: Object<'_, 'py>) -> Written {
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

    /// Writes a value that is an argument as a whole.
    pub(super) fn value(&mut self, value: Object<'_, 'py>, held: isize) -> Written {
        if let Some(place) = self.large(value) {
            self.put_place(&place);
            return Ok(());
        }
        let task = &mut self.task;
        let start = task.bytes.len();
        let (references, mutable) = (task.references, task.mutable);
        let (uses, definitions) = (task.uses, task.definitions.len());
        task.root = value.as_ptr() as usize;
        self.part(value, held, 0)?;
        let task = &mut self.task;
        let length = task.bytes.len() - start;
        if length <= WORTH_SHARING || task.bytes[start] == plain::PICKLE {
            return Ok(());
        }
        if length > LARGE && !task.splits {
            if task.references > references {
                task.splits = true;
                return Err(Stop::Again);
            }
            task.definitions.truncate(definitions);
            return self.replace_by_constant(value, start);
        }
        if task.references == references && task.uses == uses {
            let kind = match task.mutable == mutable {
                true => Kind::SharedValue,
                false => Kind::FreshValue,
            };
            let name = || class_name(&value);
            let content = &task.bytes[start..];
            if let Some(number) = self.encoder.define(kind, content, When::Again, name) {
                task.bytes.truncate(start);
                task.put_definition(number);
            }
        }
        Ok(())
    }

    /// Writes a value, or a part of one.
    fn part(&mut self, value: Object<'_, 'py>, held: isize, depth: usize) -> Written {
        let start = self.task.bytes.len();
        if is_longer(value, LARGE) && (depth == 0 || self.task.splits) {
            return self.replace_by_constant(value, start);
        }
        if put_atom(value, &mut self.task.bytes) {
            return Ok(());
        }
        let class = value.get_type_ptr();
        let is = |of: *mut ffi::PyTypeObject| class == of;
        let is_hashable = is(&raw mut ffi::PyTuple_Type)
            || is(&raw mut ffi::PySlice_Type)
            || is(&raw mut ffi::PyFrozenSet_Type);
        let is_container = is_hashable
            || is(&raw mut ffi::PyList_Type)
            || is(&raw mut ffi::PyDict_Type)
            || is(&raw mut ffi::PySet_Type);
        if !is_container {
            if value.is(value.py().Ellipsis()) {
                self.task.bytes.push(tag::ELLIPSIS);
                return Ok(());
            }
            return self.leaf(value, held);
        }
        if depth == MAX_DEPTH {
            // Perhaps it contains itself.
            self.task.shared.insert(self.task.root, Shared::Pickled);
            return Err(Stop::Again);
        }
        let entered = match is_hashable {
            true if self.task.shared.is_empty() => Entered::Once,
            true => self.look_up(value),
            false => self.enter(value, held)?,
        };
        let keep = match entered {
            Entered::Written => return Ok(()),
            Entered::Pickled => return self.pickled(value),
            Entered::ToWrite { keep } => keep,
            Entered::Once => false,
        };
        if keep {
            self.task.bytes.push(tag::KEEP);
            self.task.references += 1;
        }
        let references = self.task.references;
        self.nested(|this| this.parts(value, depth))?;
        let is_large = self.task.splits && self.task.bytes.len() - start > LARGE;
        if is_large && self.task.references == references {
            self.replace_by_constant(value, start + usize::from(keep))?;
        }
        if !matches!(entered, Entered::Once) {
            self.leave(value, keep);
        }
        Ok(())
    }

    fn parts(&mut self, value: Object<'_, 'py>, depth: usize) -> Written {
        if let Ok(items) = value.cast_exact::<PyTuple>() {
            put_head(plain::TUPLE, items.len(), &mut self.task.bytes);
            for item in items.as_slice() {
                self.part(item.as_borrowed(), 0, depth + 1)?;
            }
        } else if let Ok(slice) = value.cast_exact::<PySlice>() {
            self.task.bytes.push(tag::SLICE);
            for name in [
                intern!(value.py(), "start"),
                intern!(value.py(), "stop"),
                intern!(value.py(), "step"),
            ] {
                self.part(slice.getattr(name)?.as_borrowed(), 1, depth + 1)?;
            }
        } else if let Ok(entries_of) = value.cast_exact::<PyDict>() {
            self.task.mutable += 1;
            let entries = entries(&entries_of);
            put_head(plain::DICT, entries.len(), &mut self.task.bytes);
            let parses = self.task.parses;
            for (key, item) in entries {
                self.task.parses = false;
                self.part(key.as_borrowed(), 1, depth + 1)?;
                self.task.parses = parses;
                self.part(item.as_borrowed(), 1, depth + 1)?;
            }
        } else {
            // Code of Python's may run meanwhile, and change the container.
            let (tag, items): (u8, Vec<Bound<'py, PyAny>>) =
                if let Ok(items) = value.cast_exact::<PyList>() {
                    (plain::LIST, items.iter().collect())
                } else if let Ok(items) = value.cast_exact::<PySet>() {
                    (tag::SET, items.iter().collect())
                } else {
                    let items = value.cast_exact::<PyFrozenSet>().map_err(PyErr::from)?;
                    (tag::FROZENSET, items.iter().collect())
                };
            self.task.mutable += usize::from(tag != tag::FROZENSET);
            put_head(tag, items.len(), &mut self.task.bytes);
            for item in items {
                self.part(item.as_borrowed(), 1, depth + 1)?;
            }
        }
        Ok(())
    }

    fn replace_by_constant(&mut self, value: Object<'_, 'py>, start: usize) -> Written {
        let number = self.large_constant(&value)?;
        self.task.bytes.truncate(start);
        self.task.put_constant(number);
        Ok(())
    }

    /// Writes an object that has no native form.
    fn leaf(&mut self, object: Object<'_, 'py>, held: isize) -> Written {
        if self.task.parses {
            let kind = self.spec.kind(object);
            let parsed = match kind {
                NodeKind::Value => self.parse(object)?,
                _ => Some(object.to_owned()),
            };
            if let Some(node) = parsed {
                // What is inside a node is what it seems.
                self.task.parses = false;
                self.node(node.as_borrowed(), held + 1)?;
                self.task.parses = true;
                return Ok(());
            }
        }
        self.object(object, held)
    }

    /// What Dask makes of an argument: a subclass of a container with futures inside, or a future
    /// of somebody else's.
    fn parse(&self, object: Object<'_, 'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = object.py();
        let is_container = object.is_instance_of::<PyTuple>()
            || object.is_instance_of::<PyList>()
            || object.is_instance_of::<PySet>()
            || object.is_instance_of::<PyDict>();
        let is_future = || -> PyResult<bool> {
            match object.getattr_opt(intern!(py, "__dask_future__"))? {
                Some(mark) => mark.is_truthy(),
                None => Ok(false),
            }
        };
        if object.is_instance_of::<PyType>() || !(is_container || is_future()?) {
            return Ok(None);
        }
        let parsed = dask(py)?.parse_input.bind(py).call1((object,))?;
        let is_node = self.spec.kind(parsed.as_borrowed()) != NodeKind::Value;
        Ok(is_node.then_some(parsed))
    }

    /// Writes an object by its pickle.
    fn object(&mut self, object: Object<'_, 'py>, held: isize) -> Written {
        let class = self.encoder.class_of(&object)?;
        let can_recur = references(object) - held > 1;
        if class == Class::Number && self.number(&object)? {
            return Ok(());
        }
        if matches!(class, Class::Named | Class::Value | Class::Number) {
            let place = self.place(&object, Role::Argument, class, can_recur)?;
            self.put_place(&place);
            return Ok(());
        }
        let entered = self.enter(object, held)?;
        let keep = match entered {
            Entered::Written => return Ok(()),
            Entered::ToWrite { keep } => keep,
            Entered::Once | Entered::Pickled => false,
        };
        if keep {
            self.task.bytes.push(tag::KEEP);
            self.task.references += 1;
            self.task.depth += 1;
        }
        let place = self.place(&object, Role::Argument, class, can_recur)?;
        self.put_place(&place);
        if keep {
            self.task.depth -= 1;
        }
        if !matches!(entered, Entered::Once) {
            self.leave(object, keep);
        }
        Ok(())
    }

    /// Writes a number of NumPy as a call of its type, which is shorter and faster than its pickle;
    /// whether it is one of the usual types.
    fn number(&mut self, number: &Bound<'py, PyAny>) -> Result<bool, Stop> {
        let mut bytes = Vec::with_capacity(10);
        let item = number.call_method0(intern!(number.py(), "item"))?;
        if !put_atom(item.as_borrowed(), &mut bytes) {
            return Ok(false);
        }
        let class = number.get_type().into_any();
        let place = self.place(&class, Role::Argument, Class::Named, true)?;
        let Place::Definition(class) = place else {
            return Ok(false);
        };
        self.task.bytes.push(tag::CALL);
        put_varint(class.into(), &mut self.task.bytes);
        self.task.use_definition(class);
        put_varint(1, &mut self.task.bytes);
        self.task.bytes.extend_from_slice(&bytes);
        Ok(true)
    }

    /// Writes a container as a whole by its pickle.
    fn pickled(&mut self, value: Object<'_, 'py>) -> Written {
        let place = self.place(&value, Role::Argument, Class::Other, true)?;
        self.put_place(&place);
        Ok(())
    }

    /// How to write an object that an earlier attempt may have found to be shared.
    fn look_up(&mut self, object: Object<'_, 'py>) -> Entered {
        match self.task.shared.get(&(object.as_ptr() as usize)) {
            None => Entered::Once,
            Some(Shared::Pickled) => Entered::Pickled,
            Some(Shared::Kept(Some(local))) => {
                let local = *local;
                self.task.put_local(local);
                Entered::Written
            }
            Some(Shared::Kept(None)) => Entered::ToWrite { keep: true },
        }
    }

    /// Looks whether an object that tasks may write to was met before, and remembers it.
    fn enter(&mut self, object: Object<'_, 'py>, held: isize) -> Result<Entered, Stop> {
        if !self.task.shared.is_empty() {
            match self.look_up(object) {
                Entered::Once => {}
                entered => return Ok(entered),
            }
        }
        if references(object) - held <= 1 {
            return Ok(Entered::Once);
        }
        let address = object.as_ptr() as usize;
        match self.task.seen.insert(address, Seen::Inside) {
            None => Ok(Entered::ToWrite { keep: false }),
            Some(Seen::Inside) => {
                self.task.shared.insert(address, Shared::Pickled);
                Err(Stop::Again)
            }
            Some(Seen::Done) => {
                // Others may be found in the rest of the task.
                self.task.shared.insert(address, Shared::Kept(None));
                self.task.again = true;
                Ok(Entered::ToWrite { keep: true })
            }
        }
    }

    fn leave(&mut self, object: Object<'_, 'py>, keep: bool) {
        let address = object.as_ptr() as usize;
        if keep {
            let local = self.task.new_local();
            self.task.shared.insert(address, Shared::Kept(Some(local)));
        } else if let Some(seen) = self.task.seen.get_mut(&address) {
            *seen = Seen::Done;
        }
    }
}

/// The entries of a dictionary, which code of Python's may change meanwhile.
fn entries<'py>(dict: &Bound<'py, PyDict>) -> Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
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
    let spec = crate::dask::Spec::get(py)?;
    if !node.is_instance(spec.task.bind(py))? {
        return Ok(false);
    }
    let call = node.get_type().getattr(intern!(py, "__call__"))?;
    Ok(call.is(&dask(py)?.task_call))
}
