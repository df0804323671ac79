//! Dask's graph nodes (`dask._task_spec`), as this crate reads them.
//!
//! Their attributes live in slots. Looking one up by name costs about 30 ns, and a task needs
//! four, so the offsets of the slots are taken from the classes' own descriptors once, and
//! attributes are read where they are. Only instances of exactly these classes are read so: a
//! subclass may have redefined anything, and is asked through Python instead.

use pyo3::exceptions::{PyAttributeError, PyImportError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// A slot of instances of a class.
#[derive(Clone, Copy)]
pub struct Slot {
    offset: isize,
    name: &'static str,
}

impl Slot {
    /// Borrows the slot's value.
    ///
    /// # Safety
    /// `object` is an instance of exactly the class that the slot was found in, or of a subclass,
    /// and lives for `'a`; nobody assigns to the slot meanwhile (Dask never does).
    #[inline]
    pub unsafe fn get<'a, 'py>(
        self,
        object: Borrowed<'a, 'py, PyAny>,
    ) -> PyResult<Borrowed<'a, 'py, PyAny>> {
        // SAFETY: by contract the offset is that of a pointer inside the object.
        let value = unsafe {
            *object
                .as_ptr()
                .cast::<u8>()
                .offset(self.offset)
                .cast::<*mut ffi::PyObject>()
        };
        if value.is_null() {
            return Err(PyAttributeError::new_err(self.name));
        }
        // SAFETY: not null, and kept alive by the object.
        Ok(unsafe { Borrowed::from_ptr(object.py(), value) })
    }
}

impl Slot {
    /// Fills a slot that is empty.
    ///
    /// # Safety
    /// `object` is an instance of the class that the slot was found in, or of a subclass, and
    /// nobody else knows of it yet.
    pub(crate) unsafe fn fill(self, object: Borrowed<'_, '_, PyAny>, value: Bound<'_, PyAny>) {
        // SAFETY: by contract the offset is that of an empty pointer inside the object.
        unsafe {
            let place = object.as_ptr().cast::<u8>().offset(self.offset);
            *place.cast::<*mut ffi::PyObject>() = value.into_ptr();
        }
    }

    /// Assigns to a slot.
    ///
    /// # Safety
    /// `object` is an instance of the class that the slot was found in, or of a subclass, and no
    /// other thread reads or writes the slot meanwhile.
    pub unsafe fn replace(self, object: Borrowed<'_, '_, PyAny>, value: Bound<'_, PyAny>) {
        // SAFETY: by contract the offset is that of a pointer inside the object: to an object that
        // it owns, or null.
        let before = unsafe {
            let place = object.as_ptr().cast::<u8>().offset(self.offset);
            std::ptr::replace(place.cast::<*mut ffi::PyObject>(), value.into_ptr())
        };
        // SAFETY: the slot's own reference, which nobody else has now.
        drop(unsafe { Bound::from_owned_ptr_or_opt(object.py(), before) });
    }
}

/// The head of CPython's member descriptor; `pyo3::ffi` leaves it out.
#[repr(C)]
struct MemberDescriptor {
    base: ffi::PyObject,
    class: *mut ffi::PyTypeObject,
    name: *mut ffi::PyObject,
    qualified_name: *mut ffi::PyObject,
    member: *const ffi::PyMemberDef,
}

/// Finds a slot of a class by its name.
///
/// # Errors
/// When there is none.
pub fn slot(class: &Bound<'_, PyType>, name: &'static str) -> PyResult<Slot> {
    let descriptor = class.getattr(name)?;
    // SAFETY: the type of the descriptor is compared before its fields are read.
    let offset = unsafe {
        let is_member = descriptor.get_type_ptr() == &raw mut ffi::PyMemberDescr_Type;
        let member = descriptor.as_ptr().cast::<MemberDescriptor>();
        if is_member && (*(*member).member).type_code == ffi::Py_T_OBJECT_EX {
            Some((*(*member).member).offset)
        } else {
            None
        }
    };
    offset.map(|offset| Slot { offset, name }).ok_or_else(|| {
        PyImportError::new_err(format!(
            "{}.{name} is not a slot in this version of Dask; Treadle needs dask >= 2025.11",
            class
                .name()
                .map_or_else(|_| "?".into(), |name| name.to_string()),
        ))
    })
}

/// What an object is to a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A plain value.
    Value,
    /// `TaskRef`, `distributed.Future`: stands for the value of a key.
    Reference,
    /// `Alias`: likewise, as a node.
    Alias,
    /// `DataNode`: a value with a key.
    Data,
    Task,
    /// `List`, a container of nodes like the next three.
    List,
    Tuple,
    Set,
    Dict,
    /// Any other subclass of `GraphNode`: called as it is.
    Custom,
}

/// The classes of `dask._task_spec` and where they keep what.
pub struct Spec {
    graph_node: Py<PyType>,
    pub(crate) task_ref: Py<PyType>,
    alias: Py<PyType>,
    data_node: Py<PyType>,
    pub task: Py<PyType>,
    pub(crate) list: Py<PyType>,
    pub(crate) tuple: Py<PyType>,
    set: Py<PyType>,
    dict: Py<PyType>,
    /// `TaskRef.key`.
    pub reference_key: Slot,
    /// `Alias.target`.
    pub alias_target: Slot,
    /// `DataNode.value`.
    pub data_value: Slot,
    /// `Task.func`.
    pub task_func: Slot,
    /// `Task.args`.
    pub task_args: Slot,
    /// `Task.kwargs`.
    pub task_kwargs: Slot,
    /// The function of fused tasks.
    pub execute_subgraph: Py<PyAny>,
    /// Turns an entry of a graph of the old form (tuples) into a node.
    pub(crate) convert_legacy_task: Py<PyAny>,
}

static SPEC: PyOnceLock<Spec> = PyOnceLock::new();

impl Spec {
    /// The classes, imported on first use.
    pub fn get(py: Python<'_>) -> PyResult<&'static Spec> {
        SPEC.get_or_try_init(py, || {
            let module = py.import("dask._task_spec")?;
            let class = |name| -> PyResult<Bound<'_, PyType>> {
                Ok(module.getattr(name)?.cast_into::<PyType>()?)
            };
            let (task, alias) = (class("Task")?, class("Alias")?);
            let (task_ref, data_node) = (class("TaskRef")?, class("DataNode")?);
            Ok(Spec {
                reference_key: slot(&task_ref, "key")?,
                alias_target: slot(&alias, "target")?,
                data_value: slot(&data_node, "value")?,
                task_func: slot(&task, "func")?,
                task_args: slot(&task, "args")?,
                task_kwargs: slot(&task, "kwargs")?,
                graph_node: class("GraphNode")?.unbind(),
                task_ref: task_ref.unbind(),
                alias: alias.unbind(),
                data_node: data_node.unbind(),
                task: task.unbind(),
                list: class("List")?.unbind(),
                tuple: class("Tuple")?.unbind(),
                set: class("Set")?.unbind(),
                dict: class("Dict")?.unbind(),
                execute_subgraph: module.getattr("_execute_subgraph")?.unbind(),
                convert_legacy_task: module.getattr("convert_legacy_task")?.unbind(),
            })
        })
    }

    /// Whether the node of `key` is a reference to that key: its value comes from elsewhere.
    ///
    /// # Errors
    /// What Python raises while the keys are compared.
    #[inline]
    pub fn names_itself(
        &self,
        key: Borrowed<'_, '_, PyAny>,
        node: Borrowed<'_, '_, PyAny>,
    ) -> PyResult<bool> {
        // SAFETY: the slots belong to the classes.
        let target = unsafe {
            match self.kind(node) {
                Kind::Alias => self.alias_target.get(node)?,
                Kind::Reference => self.reference_key.get(node)?,
                _ => return Ok(false),
            }
        };
        target.eq(key)
    }

    /// What `object` is to a graph.
    #[inline]
    pub fn kind(&self, object: Borrowed<'_, '_, PyAny>) -> Kind {
        let class = object.get_type_ptr();
        let is = |candidate: &Py<PyType>| class == candidate.as_ptr().cast();
        if is(&self.task_ref) {
            Kind::Reference
        } else if is(&self.task) {
            Kind::Task
        } else if is(&self.alias) {
            Kind::Alias
        } else if is(&self.data_node) {
            Kind::Data
        } else if is(&self.list) {
            Kind::List
        } else if is(&self.tuple) {
            Kind::Tuple
        } else if is(&self.dict) {
            Kind::Dict
        } else if is(&self.set) {
            Kind::Set
        } else {
            self.kind_of_subclass(class)
        }
    }

    fn kind_of_subclass(&self, class: *mut ffi::PyTypeObject) -> Kind {
        // SAFETY: both are types; the call only reads their method resolution orders.
        let is_subclass =
            |of: &Py<PyType>| unsafe { ffi::PyType_IsSubtype(class, of.as_ptr().cast()) != 0 };
        if is_subclass(&self.graph_node) {
            Kind::Custom
        } else if is_subclass(&self.task_ref) {
            Kind::Reference
        } else {
            Kind::Value
        }
    }
}
