//! Tasks of the old form: tuples of a function and its arguments.
//!
//! Dask converts them to nodes, in Python, for about 5 µs a task. The usual forms are converted
//! here for a twentieth of that; whatever is rarer is left to `dask._task_spec`. The nodes made
//! here have only what the engine reads, and nobody else gets to see them.

use crate::node::Depth;
use crate::spec::{Kind, Slot, Spec};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// Converts the entries of one graph.
pub struct Converter<'py> {
    spec: &'static Spec,
    /// What counts as a key: anything that `in` works on.
    all_keys: Bound<'py, PyAny>,
    no_kwargs: Bound<'py, PyDict>,
}

/// What became of a value.
enum Converted<'py> {
    /// It holds no keys: the value itself, or a copy of a list, as Dask makes one.
    Value(Bound<'py, PyAny>),
    /// A node that stands for it.
    Node(Bound<'py, PyAny>),
}

impl<'py> Converted<'py> {
    fn into_inner(self) -> Bound<'py, PyAny> {
        match self {
            Converted::Value(object) | Converted::Node(object) => object,
        }
    }
}

impl<'py> Converter<'py> {
    /// For a graph with these keys.
    pub fn new(spec: &'static Spec, all_keys: Bound<'py, PyAny>) -> Self {
        let no_kwargs = PyDict::new(all_keys.py());
        Converter {
            spec,
            all_keys,
            no_kwargs,
        }
    }

    /// The node or value that an entry of a graph stands for.
    ///
    /// # Errors
    /// What Python raises while keys are compared.
    pub fn entry(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.convert(value.as_borrowed())? {
            Some(converted) => Ok(converted.into_inner()),
            None => self.leave_to_dask(Some(key), value.as_borrowed()),
        }
    }

    fn leave_to_dask(
        &self,
        key: Option<&Bound<'py, PyAny>>,
        value: Object<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.spec
            .convert_legacy_task
            .bind(value.py())
            .call1((key, value, &self.all_keys))
    }

    /// Nothing where the value, as a whole, has to be left to Dask.
    fn convert(&self, value: Object<'_, 'py>) -> PyResult<Option<Converted<'py>>> {
        if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            let _depth = Depth::enter(value.py())?;
            return match tuple.get_borrowed_item(0) {
                Ok(first) if first.is_callable() => self.task(first, tuple),
                _ if self.is_key(value)? => self.reference(value).map(Some),
                _ => self.container(&self.spec.tuple, tuple.iter_borrowed(), || {
                    tuple.to_owned().into_any()
                }),
            };
        }
        if let Ok(list) = value.cast_exact::<PyList>() {
            let _depth = Depth::enter(value.py())?;
            let items: Vec<_> = list.iter().collect();
            let borrowed = items.iter().map(|item| item.as_borrowed());
            return self.container(&self.spec.list, borrowed, || list.to_owned().into_any());
        }
        let may_be_key = value.is_instance_of::<PyString>()
            || value.is_instance_of::<PyInt>()
            || value.is_instance_of::<PyFloat>();
        if may_be_key && self.is_key(value)? {
            return self.reference(value).map(Some);
        }
        let is_plain = value.is_none()
            || value.is_exact_instance_of::<PyString>()
            || value.is_exact_instance_of::<PyInt>()
            || value.is_exact_instance_of::<PyFloat>()
            || value.is_exact_instance_of::<PyBool>()
            || value.is_exact_instance_of::<PyBytes>();
        if is_plain {
            return Ok(Some(Converted::Value(value.to_owned())));
        }
        if self.spec.kind(value) != Kind::Value {
            return Ok(Some(Converted::Node(value.to_owned())));
        }
        Ok(None)
    }

    /// A converted part of a value, by Dask where necessary.
    fn part(&self, value: Object<'_, 'py>) -> PyResult<Converted<'py>> {
        if let Some(converted) = self.convert(value)? {
            return Ok(converted);
        }
        let converted = self.leave_to_dask(None, value)?;
        Ok(match self.spec.kind(converted.as_borrowed()) {
            Kind::Value => Converted::Value(converted),
            _ => Converted::Node(converted),
        })
    }

    fn task(
        &self,
        function: Object<'_, 'py>,
        tuple: Borrowed<'_, 'py, PyTuple>,
    ) -> PyResult<Option<Converted<'py>>> {
        let mut arguments = Vec::with_capacity(tuple.len() - 1);
        for argument in tuple.iter_borrowed().skip(1) {
            if argument.is_instance_of::<PyDict>() {
                return Ok(None);
            }
            arguments.push(self.part(argument)?.into_inner());
        }
        let arguments = PyTuple::new(tuple.py(), arguments)?.into_any();
        untrack(&arguments);
        self.make(
            &self.spec.task,
            [
                (self.spec.task_func, function.to_owned()),
                (self.spec.task_args, arguments),
                (self.spec.task_kwargs, self.no_kwargs.clone().into_any()),
            ],
        )
        .map(Some)
    }

    fn container<'a>(
        &self,
        class: &Py<PyType>,
        items: impl Iterator<Item = Object<'a, 'py>>,
        original: impl FnOnce() -> Bound<'py, PyAny>,
    ) -> PyResult<Option<Converted<'py>>>
    where
        'py: 'a,
    {
        let mut has_nodes = false;
        let mut converted = Vec::new();
        for item in items {
            let item = self.part(item)?;
            has_nodes |= matches!(item, Converted::Node(_));
            converted.push(item.into_inner());
        }
        let original = original();
        let py = original.py();
        if has_nodes {
            let items = PyTuple::new(py, converted)?.into_any();
            untrack(&items);
            return self.make(class, [(self.spec.task_args, items)]).map(Some);
        }
        Ok(Some(Converted::Value(
            match original.is_exact_instance_of::<PyList>() {
                true => PyList::new(py, converted)?.into_any(),
                false => PyTuple::new(py, converted)?.into_any(),
            },
        )))
    }

    /// What cannot be hashed is no key.
    fn is_key(&self, value: Object<'_, 'py>) -> PyResult<bool> {
        self.all_keys.contains(value).or_else(|error| {
            if error.is_instance_of::<pyo3::exceptions::PyTypeError>(value.py()) {
                Ok(false)
            } else {
                Err(error)
            }
        })
    }

    fn reference(&self, key: Object<'_, 'py>) -> PyResult<Converted<'py>> {
        self.make(
            &self.spec.task_ref,
            [(self.spec.reference_key, key.to_owned())],
        )
    }

    /// An instance of one of Dask's classes with only these slots filled.
    fn make<const N: usize>(
        &self,
        class: &Py<PyType>,
        slots: [(Slot, Bound<'py, PyAny>); N],
    ) -> PyResult<Converted<'py>> {
        let py = self.all_keys.py();
        // SAFETY: an instance as its class allocates it, with all slots empty; each is filled once.
        unsafe {
            let made = ffi::PyType_GenericAlloc(class.as_ptr().cast(), 0);
            let made = Bound::from_owned_ptr_or_err(py, made)?;
            for (slot, value) in slots {
                slot.fill(made.as_borrowed(), value);
            }
            untrack(&made);
            Ok(Converted::Node(made))
        }
    }
}

/// Spares the garbage collector an object that lives as long as its run and is in no cycle:
/// thousands at once would make it search the whole heap, again and again.
fn untrack(object: &Bound<'_, PyAny>) {
    // SAFETY: a live object of a class that takes part in garbage collection.
    unsafe { ffi::PyObject_GC_UnTrack(object.as_ptr().cast()) }
}
