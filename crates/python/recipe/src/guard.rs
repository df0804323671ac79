//! Whether a function is still what it was.
//!
//! A function is pickled once and known by its identity from then on. One that is pickled by name
//! (of an imported module) stays what it is. One that is pickled with its code takes the values of
//! the globals and closures that it mentions with it: somebody who works in a notebook changes
//! them and submits the same function again. So these are compared, by identity, each time.

use crate::class::Class;
use crate::encoder::class_name;
use crate::pickle;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyBytes, PyCFunction, PyComplex, PyDict, PyFloat, PyFunction, PyInt, PyModule,
    PyString, PyTuple, PyType,
};
use std::collections::HashSet;
use treadle_interpreter::loaded_module;

/// What has to be as it was. It does not keep the function itself alive.
#[derive(Default)]
pub(crate) struct Guard {
    checks: Vec<Check>,
    /// The function, or one that it calls and that is pickled with it, writes to what is pickled with
    /// them: a global, a closure, an attribute of a function.
    writes: bool,
}

enum Check {
    /// An attribute of a function, or the content of a cell of its closure.
    Attribute {
        owner: Expected,
        name: &'static str,
        value: Expected,
    },
    /// A global, or the default of a keyword.
    Item {
        items: Py<PyDict>,
        name: Py<PyAny>,
        value: Expected,
    },
    /// No keyword has got a default.
    Length(Py<PyDict>, usize),
    /// Nothing was set on the function.
    NoAttributes(Expected),
}

/// An object that is expected somewhere.
enum Expected {
    /// The guarded function.
    Itself,
    Object(Py<PyAny>),
    Nothing,
}

impl Expected {
    fn of(object: &Bound<'_, PyAny>, itself: &Bound<'_, PyAny>) -> Self {
        match object.is(itself) {
            true => Expected::Itself,
            false => Expected::Object(object.clone().unbind()),
        }
    }

    fn get<'a, 'py>(&'a self, itself: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyAny>> {
        match self {
            Expected::Itself => Some(itself),
            Expected::Object(object) => Some(object.bind(itself.py())),
            Expected::Nothing => None,
        }
    }

    fn is(&self, object: Option<&Bound<'_, PyAny>>, itself: &Bound<'_, PyAny>) -> bool {
        match (self.get(itself), object) {
            (Some(expected), Some(object)) => expected.is(object),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Guard {
    /// For a function or a class; none for what may change without a trace.
    ///
    /// # Errors
    /// What Python raises while attributes are read.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        // A module may be registered between two submissions, which changes how its functions are pickled.
        if pickle::registered_modules(object.py())?.is_some() {
            return Ok(None);
        }
        if !has_name(object) {
            return Ok(None);
        }
        let mut search = Search {
            guard: Guard::default(),
            itself: object,
            seen: HashSet::new(),
        };
        let is_guarded = search.add(object)?;
        Ok(is_guarded.then_some(search.guard))
    }

    /// Whether calls leave everything as it is.
    pub(crate) fn has_no_writes(&self) -> bool {
        !self.writes
    }

    /// Whether everything is as it was. `itself` is what the guard was made for.
    ///
    /// # Errors
    /// What Python raises while attributes are read.
    pub(crate) fn holds(&self, itself: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = itself.py();
        for check in &self.checks {
            let holds = match check {
                Check::Attribute { owner, name, value } => {
                    let owner = owner.get(itself);
                    let now = owner.map(|owner| owner.getattr_opt(*name)).transpose()?;
                    value.is(now.flatten().as_ref(), itself)
                }
                Check::Item { items, name, value } => {
                    value.is(items.bind(py).get_item(name)?.as_ref(), itself)
                }
                Check::Length(items, length) => items.bind(py).len() == *length,
                Check::NoAttributes(function) => match function.get(itself) {
                    Some(function) => has_no_attributes(function)?,
                    None => true,
                },
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What a function depends on, as it is found.
struct Search<'a, 'py> {
    guard: Guard,
    itself: &'a Bound<'py, PyAny>,
    seen: HashSet<usize>,
}

impl<'py> Search<'_, 'py> {
    /// Adds what `value` depends on; whether that can be watched.
    fn add(&mut self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        let py = value.py();
        if is_atom(value) || !self.seen.insert(value.as_ptr() as usize) {
            return Ok(true);
        }
        if let Ok(items) = value.cast_exact::<PyTuple>() {
            for item in items {
                if !self.add(&item)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        if value.is_instance_of::<PyModule>() {
            let name = value.getattr_opt(intern!(py, "__name__"))?;
            return Ok(match name {
                Some(name) => find_module(&name)?.is_some_and(|found| found.is(value)),
                None => false,
            });
        }
        if is_named(value)? || is_constant(value)? {
            return Ok(true);
        }
        if let Some(function) = cached(value)? {
            return self.add(&function);
        }
        if !value.is_exact_instance_of::<PyFunction>() || !has_no_attributes(value)? {
            return Ok(false);
        }
        self.add_function(value)
    }

    fn add_function(&mut self, function: &Bound<'py, PyAny>) -> PyResult<bool> {
        let py = function.py();
        let itself = self.itself;
        let owner = Expected::of(function, itself);
        self.guard.checks.push(Check::NoAttributes(owner));
        for name in ["__code__", "__defaults__", "__kwdefaults__"] {
            let value = function.getattr(name)?;
            self.guard.checks.push(Check::Attribute {
                owner: Expected::of(function, itself),
                name,
                value: Expected::of(&value, itself),
            });
            if let Ok(defaults) = value.cast_exact::<PyDict>() {
                let length = Check::Length(defaults.clone().unbind(), defaults.len());
                self.guard.checks.push(length);
                for (name, default) in defaults {
                    if !self.add(&default)? {
                        return Ok(false);
                    }
                    self.guard.checks.push(Check::Item {
                        items: defaults.clone().unbind(),
                        name: name.unbind(),
                        value: Expected::of(&default, itself),
                    });
                }
            } else if name != "__code__" && !self.add(&value)? {
                return Ok(false);
            }
        }
        let globals = function
            .getattr(intern!(py, "__globals__"))?
            .cast_into::<PyDict>()?;
        let mut names = Vec::new();
        let code = function.getattr(intern!(py, "__code__"))?;
        collect_names(&code, &mut names)?;
        let mut stores = Stores::default();
        stores.collect(&code)?;
        self.guard.writes |= stores.outside;
        for name in names {
            let value = globals.get_item(&name)?;
            if let Some(value) = &value {
                if !self.add(value)? {
                    return Ok(false);
                }
                self.guard.writes |= stores.attributes && is_pickled_function(value)?;
            }
            self.guard.checks.push(Check::Item {
                items: globals.clone().unbind(),
                name: name.unbind(),
                value: match value {
                    Some(value) => Expected::of(&value, itself),
                    None => Expected::Nothing,
                },
            });
        }
        let closure = function.getattr(intern!(py, "__closure__"))?;
        if let Ok(cells) = closure.cast::<PyTuple>() {
            for cell in cells {
                // Nobody can say what an empty cell will hold.
                let Ok(content) = cell.getattr(intern!(py, "cell_contents")) else {
                    return Ok(false);
                };
                if !self.add(&content)? {
                    return Ok(false);
                }
                self.guard.writes |= stores.attributes && is_pickled_function(&content)?;
                self.guard.checks.push(Check::Attribute {
                    owner: Expected::of(&cell, itself),
                    name: "cell_contents",
                    value: Expected::of(&content, itself),
                });
            }
        }
        Ok(true)
    }
}

/// The names that a code object mentions, with those of the functions inside it. Some are names of
/// attributes, which does no harm.
fn collect_names<'py>(
    code: &Bound<'py, PyAny>,
    names: &mut Vec<Bound<'py, PyAny>>,
) -> PyResult<()> {
    let py = code.py();
    for name in code.getattr(intern!(py, "co_names"))?.try_iter()? {
        names.push(name?);
    }
    for constant in code.getattr(intern!(py, "co_consts"))?.try_iter()? {
        let constant = constant?;
        if constant.get_type().is(code.get_type()) {
            collect_names(&constant, names)?;
        }
    }
    Ok(())
}

/// What code stores to, with the functions inside it.
#[derive(Default)]
struct Stores {
    /// Globals, or variables of functions around one of them.
    outside: bool,
    attributes: bool,
}

impl Stores {
    fn collect(&mut self, code: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = code.py();
        let free = code.getattr(intern!(py, "co_freevars"))?.len()?;
        let numbers = opcodes(py)?;
        let bytes = code.getattr(intern!(py, "co_code"))?;
        // Two bytes each: what to do, and with what.
        for operation in bytes.cast::<PyBytes>()?.as_bytes().iter().step_by(2) {
            let is = |names: &[u8]| names.contains(operation);
            self.outside |= is(&numbers.globals) || (free > 0 && is(&numbers.cells));
            self.attributes |= is(&numbers.attributes);
        }
        for constant in code.getattr(intern!(py, "co_consts"))?.try_iter()? {
            let constant = constant?;
            if constant.get_type().is(code.get_type()) {
                self.collect(&constant)?;
            }
        }
        Ok(())
    }
}

/// The numbers of operations of this version of Python.
struct Opcodes {
    globals: Vec<u8>,
    cells: Vec<u8>,
    attributes: Vec<u8>,
}

fn opcodes(py: Python<'_>) -> PyResult<&'static Opcodes> {
    static OPCODES: PyOnceLock<Opcodes> = PyOnceLock::new();
    OPCODES.get_or_try_init(py, || {
        let map = py.import("opcode")?.getattr("opmap")?;
        let numbers = |names: [&str; 2]| names.map(|name| map.get_item(name)?.extract());
        let both = |names| numbers(names).into_iter().collect::<PyResult<_>>();
        Ok(Opcodes {
            globals: both(["STORE_GLOBAL", "DELETE_GLOBAL"])?,
            cells: both(["STORE_DEREF", "DELETE_DEREF"])?,
            attributes: both(["STORE_ATTR", "DELETE_ATTR"])?,
        })
    })
}

/// Whether it is a function that is pickled with its code.
fn is_pickled_function(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(value.is_exact_instance_of::<PyFunction>() && !is_named(value)?)
}

/// The function whose values a `functools.lru_cache` keeps, if the object is one. What it keeps is no
/// state of the program.
pub(crate) fn cached<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    match &*class_name(object) {
        "_lru_cache_wrapper" => object.getattr_opt(intern!(object.py(), "__wrapped__")),
        _ => Ok(None),
    }
}

/// Whether nobody can write to an object of this class: a dtype, a number of NumPy, a date.
pub(crate) fn is_constant(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let class = Class::of(&value.get_type())?;
    Ok(matches!(class, Class::Value | Class::Number))
}

fn has_no_attributes(function: &Bound<'_, PyAny>) -> PyResult<bool> {
    let attributes = function.getattr(intern!(function.py(), "__dict__"))?;
    Ok(attributes.len()? == 0)
}

pub(crate) fn is_atom(value: &Bound<'_, PyAny>) -> bool {
    value.is_none()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyBytes>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyComplex>()
}

fn find_module<'py>(name: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = name.py();
    let is_main = name.eq(intern!(py, "__main__"))? || name.eq(pickle::SPAWNED_MAIN)?;
    match is_main {
        true => Ok(None),
        false => loaded_module(py, name),
    }
}

/// Whether it is of a type whose objects are pickled by name: classes, functions, and those of NumPy.
fn has_name(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyType>()
        || object.is_exact_instance_of::<PyFunction>()
        || object.is_exact_instance_of::<PyCFunction>()
        || matches!(&*class_name(object), "ufunc" | "_ArrayFunctionDispatcher")
}

/// Whether a function or a class is found under its name in the module that it says it is from:
/// then it is pickled as that name.
pub(crate) fn is_named(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    if !has_name(object) {
        return Ok(false);
    }
    let Some(module) = object.getattr_opt(intern!(py, "__module__"))? else {
        return Ok(false);
    };
    let Some(mut found) = find_module(&module)? else {
        return Ok(false);
    };
    let Some(name) = object.getattr_opt(intern!(py, "__qualname__"))? else {
        return Ok(false);
    };
    let Ok(name) = name.cast::<PyString>() else {
        return Ok(false);
    };
    for part in name.to_string_lossy().split('.') {
        match found.getattr_opt(part)? {
            Some(next) => found = next,
            None => return Ok(false),
        }
    }
    Ok(found.is(object))
}
