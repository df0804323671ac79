//! Encoders and definitions by themselves, for tests: `treadle._core._Recipes` and some functions.

use crate::{
    Calls, Constant, Definition, Encoder, FunctionToken, FunctionTokens, Input, NewDefinition,
    Recipe, Submission, alias, decode_key, decode_value, encode_data, encode_key, encode_value,
    execute,
};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use treadle_dask::{Converter, Spec};
use treadle_interpreter::lock;

/// A client's encoder and a worker's definitions.
#[pyclass(frozen, name = "_Recipes", module = "treadle._core")]
struct Recipes {
    encoder: Encoder,
    tokens: FunctionTokens,
    definitions: Mutex<HashMap<u32, Arc<Definition>>>,
    sent: Mutex<Vec<NewDefinition>>,
}

type Encoded<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyList>);

#[pymethods]
impl Recipes {
    #[new]
    fn new() -> Self {
        Recipes {
            encoder: Encoder::new(),
            tokens: FunctionTokens::default(),
            definitions: Mutex::default(),
            sent: Mutex::default(),
        }
    }

    /// `(recipe, inputs, definitions)` for each entry of a graph, and the large constants by key, each with
    /// its size.
    /// Inputs that are constants are their keys.
    fn encode_graph<'py>(
        &self,
        graph: &Bound<'py, PyDict>,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let py = graph.py();
        let converter = Converter::new(Spec::get(py)?, graph.clone().into_any());
        let mut submission = Submission::new(py, &self.encoder)?;
        let recipes = PyDict::new(py);
        let mut pending = Vec::new();
        for (key, node) in graph.iter() {
            let node = converter.entry(&key, &node)?;
            let recipe = submission.encode_task(&key, &node)?;
            pending.push((key, Parts::new(py, &recipe)?));
        }
        let constants = constants(py, submission.constants())?;
        for (key, parts) in pending {
            recipes.set_item(key, parts.finish(py, &submission)?)?;
        }
        self.receive();
        Ok((recipes, constants))
    }

    /// `(recipe, inputs, definitions)` of a call, and the large constants by key, each with
    /// its size.
    #[pyo3(signature = (key, function, args, kwargs=None))]
    fn encode_call<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Encoded<'py>, Bound<'py, PyDict>)> {
        let py = key.py();
        let mut submission = Submission::new(py, &self.encoder)?;
        let recipe = submission.encode_call(key, function, args.as_slice(), kwargs, false)?;
        let parts = Parts::new(py, &recipe)?;
        let constants = constants(py, submission.constants())?;
        self.receive();
        Ok((parts.finish(py, &submission)?, constants))
    }

    /// Runs a recipe.
    fn execute(
        &self,
        py: Python<'_>,
        recipe: &[u8],
        inputs: Vec<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        execute(py, recipe, &inputs, &own(py, &inputs), &|number| {
            let definition = {
                let definitions = lock(&self.definitions);
                definitions.get(&number).cloned()
            };
            match definition {
                Some(definition) => definition.get(py),
                None => Err(PyKeyError::new_err(format!("definition {number}"))),
            }
        })
    }

    /// `(number, name, bytes)` of each definition so far.
    fn definitions<'py>(&self, py: Python<'py>) -> Vec<(u32, String, Bound<'py, PyBytes>)> {
        let sent = lock(&self.sent);
        let entry = |new: &NewDefinition| {
            let bytes = PyBytes::new(py, &new.bytes);
            (new.number, new.name.clone(), bytes)
        };
        sent.iter().map(entry).collect()
    }

    /// Adds a definition of another process.
    fn define(&self, number: u32, bytes: &[u8]) {
        let definition = Definition::new(bytes.to_vec().into()).into();
        lock(&self.definitions).insert(number, definition);
    }

    /// The key of a call.
    #[pyo3(signature = (function, args, kwargs=None))]
    fn call_key<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyString>> {
        let (token, mut calls) = self.calls(function, kwargs)?;
        calls.key(function.py(), &token.name, args.as_slice())
    }

    /// The keys of calls of one function.
    fn call_keys<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        arguments: Vec<Bound<'py, PyTuple>>,
    ) -> PyResult<Vec<Bound<'py, PyString>>> {
        let (token, mut calls) = self.calls(function, None)?;
        let key =
            |args: &Bound<'py, PyTuple>| calls.key(function.py(), &token.name, args.as_slice());
        arguments.iter().map(key).collect()
    }
}

impl Recipes {
    fn calls(
        &self,
        function: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<(Arc<FunctionToken>, Calls)> {
        let token = self.tokens.get(function)?;
        let calls = token.calls(kwargs)?;
        Ok((token, calls))
    }

    /// What a worker does with definitions that arrive.
    fn receive(&self) {
        // Under one lock, so that whoever comes out of it finds all definitions of its recipes.
        let mut sent = lock(&self.sent);
        for new in self.encoder.take_definitions() {
            self.define(new.number, &new.bytes);
            sent.push(new);
        }
    }
}

/// What a worker does for inputs that a task has of its own.
fn own(py: Python<'_>, inputs: &[Py<PyAny>]) -> impl Fn(usize) -> PyResult<Py<PyAny>> {
    move |number| {
        let copied = py
            .import("copy")?
            .call_method1("deepcopy", (&inputs[number],))?;
        Ok(copied.unbind())
    }
}

/// A recipe, taken out of its submission.
struct Parts<'py> {
    bytes: Bound<'py, PyBytes>,
    inputs: Vec<Input<'py>>,
    definitions: Bound<'py, PyList>,
}

impl<'py> Parts<'py> {
    fn new(py: Python<'py>, recipe: &Recipe<'_, 'py>) -> PyResult<Self> {
        Ok(Parts {
            bytes: PyBytes::new(py, recipe.bytes),
            inputs: recipe.inputs.to_vec(),
            definitions: PyList::new(py, recipe.definitions)?,
        })
    }

    fn finish(self, py: Python<'py>, submission: &Submission<'_, 'py>) -> PyResult<Encoded<'py>> {
        let inputs = PyList::empty(py);
        for input in self.inputs {
            match input {
                Input::Key(key) => inputs.append(key)?,
                Input::Constant(number) => {
                    inputs.append(&submission.constants()[number as usize].key)?;
                }
            }
        }
        Ok((self.bytes, inputs, self.definitions))
    }
}

fn constants<'py>(py: Python<'py>, constants: &[Constant]) -> PyResult<Bound<'py, PyDict>> {
    let by_key = PyDict::new(py);
    for constant in constants {
        let entry = (&constant.object, constant.encoded.bytes());
        by_key.set_item(&constant.key, entry)?;
    }
    Ok(by_key)
}

#[pyfunction]
fn _encode_key<'py>(key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut bytes = Vec::new();
    encode_key(key.as_borrowed(), &mut bytes)?;
    Ok(PyBytes::new(key.py(), &bytes))
}

#[pyfunction]
fn _decode_key<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    decode_key(py, bytes)
}

#[pyfunction]
fn _encode_value<'py>(
    value: &Bound<'py, PyAny>,
    limit: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let bytes = encode_value(value, limit)?;
    Ok(bytes.map(|bytes| PyBytes::new(value.py(), &bytes)))
}

#[pyfunction]
fn _encode_data<'py>(
    value: &Bound<'py, PyAny>,
    limit: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let bytes = encode_data(value, limit)?;
    Ok(bytes.map(|bytes| PyBytes::new(value.py(), &bytes)))
}

#[pyfunction]
fn _decode_value(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    decode_value(py, bytes)
}

#[pyfunction]
fn _recipe_alias(recipe: &[u8]) -> Option<usize> {
    alias(recipe)
}

/// Adds the class and the functions to `treadle._core`.
///
/// # Errors
/// What Python raises.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Recipes>()?;
    module.add_function(wrap_pyfunction!(_encode_key, module)?)?;
    module.add_function(wrap_pyfunction!(_decode_key, module)?)?;
    module.add_function(wrap_pyfunction!(_encode_value, module)?)?;
    module.add_function(wrap_pyfunction!(_encode_data, module)?)?;
    module.add_function(wrap_pyfunction!(_decode_value, module)?)?;
    module.add_function(wrap_pyfunction!(_recipe_alias, module)?)
}
