//! From graphs and calls to batches of tasks.

use super::graph::{Loaded, Plan};
use super::options::OptionSets;
use super::shuffles::Shuffles;
use super::{Client, ClientConnection, non_empty};
use crate::cluster::class::class_bytes;
use crate::transfer::{Limit, blocking};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use smallvec::SmallVec;
use std::collections::HashMap;
use treadle_dask::error;
use treadle_graph::TaskId;
use treadle_interpreter::repr;
use treadle_messages::Definition;
use treadle_node_client::{Contained, Content, Input, NewTask, Submission};
use treadle_recipe::{self as recipe, NewDefinition};

/// The most inputs of a task. A list of a message has at most 1,048,576 entries, and has those of a few other
/// tasks, too.
const MOST_INPUTS: usize = 1_000_000;

/// A submission and what its tasks were encoded with.
struct Sending<'a, 'py> {
    py: Python<'py>,
    connection: &'a ClientConnection,
    client: &'a Client,
    recipes: recipe::Submission<'a, 'py>,
    submission: Submission<Py<PyAny>>,
    /// By number of the constant.
    constants: Vec<Option<Input>>,
    /// Keys of other submissions, by their encoding.
    foreign: HashMap<Vec<u8>, Input>,
    key: Vec<u8>,
    recipe: Vec<u8>,
    /// Bytes of data that the client kept before.
    kept: u64,
    /// After the recipes, which may have definitions that are withdrawn then.
    _open: Open<'a>,
}

/// That a submission is being encoded.
struct Open<'a> {
    connection: &'a ClientConnection,
    client: &'a Client,
    number: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let withdrawn = self.connection.encoder.end(self.number);
        if !withdrawn.is_empty() {
            self.client.undefine(withdrawn);
        }
    }
}

/// What a task reads, before it is known how it is called there.
enum Read<'py> {
    Key(Bound<'py, PyAny>),
    Constant(u32),
}

type Reads<'py> = SmallVec<[Read<'py>; 8]>;

impl<'a, 'py> Sending<'a, 'py> {
    fn begin(py: Python<'py>, connection: &'a ClientConnection) -> PyResult<Self> {
        let client = connection.client()?;
        client.announce();
        // Before any number is looked up.
        let open = Open {
            connection,
            client,
            number: connection.encoder.begin(),
        };
        Ok(Self {
            py,
            connection,
            client,
            recipes: recipe::Submission::new(py, &connection.encoder)?,
            submission: client.submission(),
            constants: Vec::new(),
            foreign: HashMap::new(),
            key: Vec::with_capacity(64),
            recipe: Vec::with_capacity(256),
            kept: client.kept().1,
            _open: open,
        })
    }

    /// A key that no task of the submission makes.
    fn foreign(&mut self, key: &Bound<'py, PyAny>, reader: &Bound<'py, PyAny>) -> PyResult<Input> {
        let encoded = super::encoded(key)?;
        if let Some(input) = self.foreign.get(&encoded) {
            return Ok(*input);
        }
        let found = self.client.read(&mut self.submission, &encoded);
        let input = found
            .ok_or_else(|| error::missing_dependency(key.as_borrowed(), reader.as_borrowed()))?;
        self.foreign.insert(encoded, input);
        Ok(input)
    }

    fn constant(&mut self, number: u32) -> PyResult<Input> {
        let place = number as usize;
        if self.constants.len() <= place {
            self.constants.resize(place + 1, None);
        }
        if let Some(input) = self.constants[place] {
            return Ok(input);
        }
        let constant = &self.recipes.constants()[place];
        let object = constant.object.bind(self.py);
        let content = Content {
            nbytes: constant.encoded.bytes(),
            class: class_bytes(&object.get_type()),
            value: Contained::Frames(constant.encoded.kind, constant.encoded.frames.clone()),
        };
        let key = pyo3::types::PyString::new(self.py, &constant.key);
        let key = super::encoded(key.as_any())?;
        let (client, submission) = (self.client, &mut self.submission);
        let put = self
            .py
            .detach(|| client.constant(submission, &key, content, recipe::is_intact));
        let input = put.map_err(self.connection.failed())?;
        self.constants[place] = Some(input);
        Ok(input)
    }

    /// Adds a task whose recipe is in `self.recipe`.
    fn add(
        &mut self,
        key: &Bound<'py, PyAny>,
        inputs: &[Input],
        definitions: &[u32],
        readers: u32,
        options: u32,
        state: Option<Py<PyAny>>,
    ) -> PyResult<u32> {
        if inputs.len() > MOST_INPUTS {
            return Err(PyValueError::new_err(format!(
                "task {} has {} inputs: a task has at most {MOST_INPUTS}. Let other tasks take a part of them each",
                repr(key.as_borrowed()),
                inputs.len()
            )));
        }
        self.key.clear();
        recipe::encode_key(key.as_borrowed(), &mut self.key)?;
        let task = NewTask {
            key: &self.key,
            recipe: &self.recipe,
            inputs,
            definitions,
            readers,
            options,
        };
        let number = self.submission.add(&task, state);
        if self.submission.is_full() {
            self.flush()?;
        }
        Ok(number)
    }

    /// Sends the batch, after waiting for room if there is none. Other threads get a turn.
    fn flush(&mut self) -> PyResult<()> {
        let (client, encoder) = (self.client, &self.connection.encoder);
        let submission = &mut self.submission;
        let failed = self.connection.failed();
        let garbage = blocking(self.py, Limit::NONE, None, failed, move |wait| {
            client.wait_for_room(wait)?;
            client.flush(submission, || definitions(encoder.take_definitions()))
        })?;
        drop(garbage);
        Ok(())
    }

    /// Returns the bytes of the data that came with it.
    fn finish(self) -> PyResult<u64> {
        let (client, encoder, before) = (self.client, &self.connection.encoder, self.kept);
        let submission = self.submission;
        // A small message leaves at once. Letting other threads have the interpreter's lock
        // meanwhile could cost milliseconds.
        let garbage = client.finish(submission, || definitions(encoder.take_definitions()));
        drop(garbage.map_err(self.connection.failed())?);
        Ok(client.kept().1.saturating_sub(before))
    }

    /// Gives it up, for an error that is raised already.
    fn abandon(self) {
        drop(self.client.abandon(self.submission));
    }

    /// Ends it, as what was done before has gone.
    fn end(self, outcome: PyResult<()>) -> PyResult<u64> {
        match outcome {
            Ok(()) => self.finish(),
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }
}

fn definitions(new: Vec<NewDefinition>) -> Vec<Definition> {
    let definition = |new: NewDefinition| Definition {
        client: treadle_types::ClientId::default(),
        number: new.number,
        name: new.name,
        pickle: new.bytes,
    };
    new.into_iter().map(definition).collect()
}

/// Copies a recipe out of the encoder, which is needed for its inputs; returns what it reads.
fn keep<'py>(
    recipe: &recipe::Recipe<'_, 'py>,
    bytes: &mut Vec<u8>,
    definitions: &mut SmallVec<[u32; 4]>,
) -> Reads<'py> {
    bytes.clear();
    bytes.extend_from_slice(recipe.bytes);
    definitions.clear();
    definitions.extend_from_slice(recipe.definitions);
    let read = |input: &recipe::Input<'py>| match input {
        recipe::Input::Key(key) => Read::Key(key.clone()),
        recipe::Input::Constant(number) => Read::Constant(*number),
    };
    recipe.inputs.iter().map(read).collect()
}

/// A function and its arguments.
type Call<'a, 'py> = (
    &'a Bound<'py, PyAny>,
    &'a Bound<'py, PyAny>,
    Option<&'a Bound<'py, PyDict>>,
);

/// The positional arguments of a call.
fn arguments<'py>(args: &Bound<'py, PyAny>) -> PyResult<SmallVec<[Bound<'py, PyAny>; 8]>> {
    match args.cast::<PyTuple>() {
        Ok(args) => Ok(args.iter().collect()),
        Err(_) => args.try_iter()?.collect(),
    }
}

/// One more of an iterator that has to be as long as another.
fn matching<'py>(
    items: &mut impl Iterator<Item = PyResult<Bound<'py, PyAny>>>,
    what: &str,
) -> PyResult<Bound<'py, PyAny>> {
    items.next().unwrap_or_else(|| {
        Err(PyValueError::new_err(format!(
            "there are fewer {what} than keys"
        )))
    })
}

#[pymethods]
impl ClientConnection {
    /// Submits what `wanted` needs of a graph; `states` are those of the wanted keys. `shuffle_service` is
    /// the one that keeps the rows of its shuffles; `None`: workers do. Returns the bytes of the data that
    /// came with it and is kept, as the two functions below.
    #[pyo3(signature = (graph, wanted, states, options=None, options_of=None, shuffle_service=None))]
    fn submit(
        &self,
        graph: &Bound<'_, PyAny>,
        wanted: &Bound<'_, PyAny>,
        states: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyAny>>,
        options_of: Option<&Bound<'_, PyAny>>,
        shuffle_service: Option<&str>,
    ) -> PyResult<u64> {
        let py = graph.py();
        let loaded = Loaded::new(graph)?;
        let mut owners: Vec<Option<Py<PyAny>>> = Vec::new();
        owners.resize_with(loaded.len(), || None);
        let mut targets = Vec::new();
        let mut elsewhere = Vec::new();
        let mut states = states.try_iter()?;
        for key in wanted.try_iter()? {
            let key = key?;
            let state = matching(&mut states, "states")?.unbind();
            match loaded.keys.find(key.as_borrowed())? {
                Some(task) => {
                    owners[task.index()] = Some(state);
                    targets.push(task);
                }
                None => elsewhere.push((key, state)),
            }
        }
        let mut sending = Sending::begin(py, self)?;
        let work = || -> PyResult<()> {
            let known = sending.known(&loaded)?;
            let mut plan = py.detach(|| loaded.plan(&targets, &known))?;
            let is_wanted = |task: TaskId| owners[task.index()].is_some();
            let mut shuffles = Shuffles::of(py, &loaded, &mut plan, is_wanted, shuffle_service)?;
            // First of all: what cannot be submitted shall leave nothing behind.
            for (key, reader) in loaded.outside(py, &plan) {
                sending.foreign(key, reader)?;
            }
            for shuffle in std::mem::take(&mut shuffles.registrations) {
                sending.submission.register(shuffle);
            }
            let sets = OptionSets::new(&mut sending.submission, options)?;
            let what = (&loaded, &plan, &shuffles);
            sending.tasks(what, &known, &mut owners, sets, options_of)?;
            // What is known already, and what the graph does not make.
            for (task, owner) in owners.into_iter().enumerate() {
                if let Some(state) = owner {
                    let key = loaded.keys.get(TaskId(task as u32)).bind(py).clone();
                    elsewhere.push((key, state));
                }
            }
            for (key, state) in elsewhere {
                self.watch(py, &key, state)?;
            }
            Ok(())
        };
        let outcome = work();
        sending.end(outcome)
    }

    #[pyo3(signature = (key, state, function, args, kwargs, options=None))]
    #[expect(clippy::too_many_arguments, reason = "of a call")]
    fn submit_call(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        state: Py<PyAny>,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let mut sending = Sending::begin(py, self)?;
        let outcome = OptionSets::new(&mut sending.submission, options).and_then(|options| {
            let call = (function, args, kwargs);
            sending.call(key, state, call, options.default(), false)
        });
        sending.end(outcome)
    }

    /// Submits calls of one function.
    #[pyo3(signature = (keys, states, function, arguments, kwargs, options=None))]
    #[expect(clippy::too_many_arguments, reason = "of calls")]
    fn submit_calls(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        states: &Bound<'_, PyAny>,
        function: &Bound<'_, PyAny>,
        arguments: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let mut sending = Sending::begin(py, self)?;
        let mut calls = || -> PyResult<()> {
            let options = OptionSets::new(&mut sending.submission, options)?;
            let mut states = states.try_iter()?;
            let mut arguments = arguments.try_iter()?;
            for key in keys.try_iter()? {
                let state = matching(&mut states, "states")?.unbind();
                let args = matching(&mut arguments, "arguments")?;
                let call = (function, &args, kwargs);
                sending.call(&key?, state, call, options.default(), true)?;
            }
            Ok(())
        };
        let outcome = calls();
        sending.end(outcome)
    }

    /// The key of a call that has the same value each time.
    #[pyo3(signature = (function, args, kwargs=None))]
    fn call_key<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyAny>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let token = self.tokens.get(function)?;
        let mut calls = token.calls(non_empty(kwargs))?;
        let key = calls.key(function.py(), &token.name, &arguments(args)?)?;
        Ok(key.into_any())
    }

    /// The keys of such calls.
    #[pyo3(signature = (function, arguments, kwargs=None))]
    fn call_keys<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyAny>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = function.py();
        let token = self.tokens.get(function)?;
        let mut calls = token.calls(non_empty(kwargs))?;
        let keys = PyList::empty(py);
        for args in arguments.try_iter()? {
            let args = self::arguments(&args?)?;
            keys.append(calls.key(py, &token.name, &args)?)?;
        }
        Ok(keys)
    }
}

impl<'py> Sending<'_, 'py> {
    /// By task: how others read it, if the client has a future of its key already.
    fn known(&mut self, loaded: &Loaded) -> PyResult<Vec<Option<Input>>> {
        let mut known = vec![None; loaded.len()];
        if self.client.key_count() == 0 {
            return Ok(known);
        }
        for (task, known) in known.iter_mut().enumerate() {
            self.key.clear();
            let key = loaded.keys.get(TaskId(task as u32));
            recipe::encode_key(key.bind_borrowed(self.py), &mut self.key)?;
            *known = self.client.read_coming(&mut self.submission, &self.key);
        }
        Ok(known)
    }

    /// Adds the tasks of a plan; takes the states of those that have one.
    fn tasks(
        &mut self,
        (loaded, plan, shuffles): (&Loaded, &Plan, &Shuffles),
        known: &[Option<Input>],
        owners: &mut [Option<Py<PyAny>>],
        mut sets: OptionSets<'py>,
        options_of: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let py = self.py;
        let options_of = options_of.filter(|own| !own.is_none());
        let mut numbers = known.to_vec();
        let mut definitions = SmallVec::new();
        let mut inputs: SmallVec<[Input; 8]> = SmallVec::new();
        for task in &plan.sequence {
            let key = loaded.keys.get(*task).bind(py).clone();
            let node = loaded.node(py, *task);
            let recipe = self.recipes.encode_task(&key, node)?;
            let reads = keep(&recipe, &mut self.recipe, &mut definitions);
            inputs.clear();
            for read in reads {
                inputs.push(match read {
                    Read::Constant(number) => self.constant(number)?,
                    Read::Key(input) => {
                        let made = loaded.keys.find(input.as_borrowed())?;
                        let made = made.map(|task| shuffles.read(task));
                        match made.and_then(|task| numbers[task.index()]) {
                            Some(input) => input,
                            None => self.foreign(&input, &key)?,
                        }
                    }
                });
            }
            let own = match options_of {
                Some(options_of) => options_of.call_method1("get", (&key,)).map(Some)?,
                None => None,
            };
            let mut own = sets.own(&mut self.submission, own)?;
            if shuffles.effects.contains(task) {
                own = sets.with_effects(&mut self.submission, own, shuffles.service.is_some());
            }
            let (readers, owner) = (plan.readers[task.index()], owners[task.index()].take());
            let number = self.add(&key, &inputs, &definitions, readers, own, owner)?;
            numbers[task.index()] = Some(Input::Task(number));
        }
        Ok(())
    }

    fn call(
        &mut self,
        key: &Bound<'py, PyAny>,
        state: Py<PyAny>,
        (function, args, kwargs): Call<'_, 'py>,
        options: u32,
        is_mapped: bool,
    ) -> PyResult<()> {
        let args = arguments(args)?;
        let kwargs = non_empty(kwargs);
        let mut definitions = SmallVec::new();
        let recipe = (self.recipes).encode_call(key, function, &args, kwargs, is_mapped)?;
        let reads = keep(&recipe, &mut self.recipe, &mut definitions);
        let mut inputs: SmallVec<[Input; 8]> = SmallVec::new();
        for read in reads {
            inputs.push(match read {
                Read::Constant(number) => self.constant(number)?,
                Read::Key(input) => self.foreign(&input, key)?,
            });
        }
        self.add(key, &inputs, &definitions, 0, options, Some(state))?;
        Ok(())
    }
}
