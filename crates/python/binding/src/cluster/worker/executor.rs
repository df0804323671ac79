//! The threads that run tasks.

use super::callbacks::readable;
use super::live::{Content, LiveObject, read};
use super::shared::WorkerShared;
use super::stages::{self, Stages};
use bytes::Bytes;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;
use treadle_interpreter::{Context, PeriodicSwitch, clock, fork, thread_identifier};
use treadle_node_worker::{Task, Value};
use treadle_recipe::{self as recipe, Definition};
use treadle_types::value::Reader;
use treadle_types::{ClientId, INLINE, ObjectId, Returned};
use treadle_worker::Outcome;

/// How long a value waits for room in memory before its task fails.
const ROOM: Duration = Duration::from_secs(300);

/// The task that a thread runs.
#[derive(Clone)]
pub(super) struct Current {
    pub(super) object: ObjectId,
    /// The encoded key.
    pub(super) key: Bytes,
    /// When it began, by the clock of `time.time`, in seconds.
    pub(super) started: f64,
    /// The same in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) began: u64,
    /// Which of the worker's threads runs it.
    pub(super) lane: u32,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
    /// Whether the task of this thread has given its slot away.
    static SECEDED: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread's task.
pub(super) fn current() -> Option<Current> {
    CURRENT.with_borrow(Clone::clone)
}

/// Marks the slot of this thread's task as given away or taken back; whether that is a change.
pub(super) fn set_seceded(seceded: bool) -> bool {
    SECEDED.replace(seceded) != seceded
}

/// The life of an executor thread.
pub(super) fn serve(shared: &Arc<WorkerShared>) {
    // A process that has no thread to close its worker with ends under it: then there is no interpreter any more.
    let _ = Python::try_attach(|py| {
        if let Err(error) = shared.service.call(py, intern!(py, "enter_thread"), ()) {
            error.write_unraisable(py, None);
        }
        let context = Context::of_caller(py);
        match context {
            Ok(context) => work(py, shared, &context),
            Err(error) => error.write_unraisable(py, None),
        }
        if let Err(error) = shared.service.call(py, intern!(py, "leave_thread"), ()) {
            error.write_unraisable(py, None);
        }
    });
}

fn work(py: Python<'_>, shared: &Arc<WorkerShared>, context: &Context) {
    let mut switch = PeriodicSwitch::from_now();
    let mut next = py.detach(|| shared.node.next(true));
    while let Some(task) = next {
        shared.keeper.enter();
        // Before the task allocates: its memory may be what others have let go of.
        shared.keeper.collect(py);
        let flush = run(py, shared, context, task);
        if let Err(error) = switch.switch_if_due(py) {
            error.write_unraisable(py, None);
        }
        next = if flush { None } else { shared.node.try_next() };
        shared.keeper.leave();
        if next.is_none() {
            // Before the thread waits, perhaps for long.
            shared.keeper.collect(py);
            next = py.detach(|| {
                if flush {
                    shared.node.flush();
                }
                shared.node.try_next().or_else(|| shared.node.next(false))
            });
        }
    }
}

/// Runs a task and reports what came of it; whether reports should be sent now.
fn run(py: Python<'_>, shared: &Arc<WorkerShared>, context: &Context, task: Task) -> bool {
    let began = clock::now();
    let mut ended = 0;
    let outcome = match split(&task.recipe) {
        Some((key, body)) => {
            let current = Current {
                object: task.object,
                key,
                started: clock::wall(),
                began,
                lane: stages::lane(),
            };
            let thread = thread_identifier();
            shared.enter(thread, &current);
            CURRENT.set(Some(current.clone()));
            shared.observe(py, &current.key, "ready", "executing");
            let stages = Stages::begin(shared, &task, &current.key, began);
            let outcome = attempt(py, shared, context, &task, &current.key, &body, &stages);
            ended = clock::now();
            stages.end(shared, &task, &current.key, &outcome, ended);
            let end = match outcome {
                Outcome::Returned(_) => "memory",
                Outcome::GivenBack => "rescheduled",
                _ => "error",
            };
            shared.observe(py, &current.key, "executing", end);
            CURRENT.set(None);
            SECEDED.set(false);
            shared.leave(thread);
            outcome
        }
        None => {
            let error = PyRuntimeError::new_err(
                "A task's recipe cannot be read. Run the same version of Treadle everywhere.",
            );
            raised(py, shared, &task, &error)
        }
    };
    if shared.is_parents() {
        // A plugin forked, or what keeps the value.
        end_child(py, &task, None);
    }
    if ended == 0 {
        ended = clock::now();
    }
    let duration = Duration::from_nanos(ended - began);
    let flush = shared.node.done(&task, outcome, duration);
    if flush {
        // What it held of values may be the last of them.
        py.detach(|| drop(task));
    }
    flush
}

/// The key and the recipe proper.
pub(in crate::cluster) fn split(recipe: &Bytes) -> Option<(Bytes, Bytes)> {
    let mut reader = Reader::new(recipe);
    let key = reader.blob().ok()?;
    let end = reader.position();
    Some((recipe.slice_ref(key), recipe.slice(end..)))
}

fn attempt(
    py: Python<'_>,
    shared: &Arc<WorkerShared>,
    context: &Context,
    task: &Task,
    key: &Bytes,
    body: &Bytes,
    stages: &Stages,
) -> Outcome {
    let values = if task.reads_store() {
        py.detach(|| shared.node.inputs(task))
    } else {
        shared.node.inputs(task)
    };
    let values = match values {
        Ok(values) => values,
        Err((object, error)) if error.is_lost() => {
            shared.log(&format!("{object:?}, an input, cannot be read: {error}"));
            return Outcome::Missing(object);
        }
        // There is no memory or no descriptor to read it: another task may find some.
        Err((_, error)) => {
            let error = pyo3::exceptions::PyMemoryError::new_err(error.to_string());
            return raised(py, shared, task, &error);
        }
    };
    let result = context.run(py, || {
        let mut inputs = Vec::with_capacity(values.len());
        let owned = recipe::owned(body);
        let mut contents: SmallVec<[(usize, Content); 2]> = SmallVec::new();
        for (number, value) in values.into_iter().enumerate() {
            match value {
                Value::Stored(pinned) if owned.contains(&number) => {
                    contents.push((number, Content::of(py, pinned)?));
                    inputs.push(py.None());
                }
                value => inputs.push(read(py, value, &shared.keeper)?),
            }
        }
        let own = |number: usize| match contents.iter().find(|(of, _)| *of == number) {
            Some((_, content)) => content.object(py),
            None => Err(PyRuntimeError::new_err(
                "A task reads what it was not given.",
            )),
        };
        stages.read();
        let definitions = |number| {
            if shared.is_parents() {
                // What was called before forked: the next call is the parent's.
                end_child(py, task, None);
            }
            stages.uses(number);
            shared.definition(py, task.client, number)
        };
        let value = recipe::execute(py, body, &inputs, &own, &definitions)?;
        // SAFETY: attached, and a live object.
        if unsafe { ffi::PyCoro_CheckExact(value.as_ptr()) } != 0 {
            let key = recipe::decode_key(py, key)?;
            return shared
                .service
                .call(py, intern!(py, "run_coroutine"), (key, value));
        }
        Ok(value)
    });
    if shared.is_parents() {
        // The task forked, and this is the child: the task, its value and the worker are the parent's.
        end_child(py, task, result.err());
    }
    stages.computed();
    match result.and_then(|value| keep(py, shared, task, key, value)) {
        Ok(returned) => Outcome::Returned(returned),
        Err(error) => raised(py, shared, task, &error),
    }
}

/// Ends a forked child that has come to the end of the task that forked.
fn end_child(py: Python<'_>, task: &Task, raised: Option<PyErr>) -> ! {
    let key = split(&task.recipe).map(|(key, _)| readable(&key));
    let what = key.map_or_else(|| "a task".into(), |key| format!("task {key}"));
    fork::end_returned(py, &what, raised)
}

/// Puts a task's value where it belongs.
fn keep(
    py: Python<'_>,
    shared: &Arc<WorkerShared>,
    task: &Task,
    key: &Bytes,
    value: Py<PyAny>,
) -> PyResult<Returned> {
    // An actor is of its own class to clients, and not of its handle's.
    let actor = task.actor.then(|| value.bind(py).get_type());
    let value = if task.actor {
        let key = recipe::decode_key(py, key)?;
        let handle = shared.service.call(
            py,
            intern!(py, "add_actor"),
            (key, value, task.object.to_u64()),
        )?;
        shared.actors().insert(task.object);
        handle
    } else {
        value
    };
    // The handle of an actor says all; of other values, those do that are data.
    let small = match task.actor {
        true => recipe::encode_value(value.bind(py), INLINE)?,
        false => recipe::encode_data(value.bind(py), INLINE)?,
    };
    if let Some(bytes) = small {
        let bytes = Bytes::from(bytes);
        // An actor is where it is, also where its handle is small.
        let kept = task.keep || task.actor;
        if kept {
            shared.node.keep_small(task.object, bytes.clone());
            shared.keys().insert(task.object, key.clone());
        }
        let nbytes = match bytes.first() {
            Some(&treadle_types::value::tag::PICKLE) => size_of(value.bind(py)),
            _ => bytes.len() as u64,
        };
        return Ok(Returned {
            nbytes,
            inline: Some(bytes),
            kept,
            class: Bytes::new(),
        });
    }
    let nbytes = size_of(value.bind(py));
    let class = shared.class_of(&actor.unwrap_or_else(|| value.bind(py).get_type()));
    let live = LiveObject::computed(value.into_bound(py), nbytes, key.clone(), &shared.keeper)?;
    py.detach(|| shared.node.keep(task.object, live, ROOM))
        .map_err(|error| pyo3::exceptions::PyMemoryError::new_err(error.to_string()))?;
    shared.keys().insert(task.object, key.clone());
    Ok(Returned {
        nbytes,
        inline: None,
        kept: true,
        class,
    })
}

fn raised(py: Python<'_>, shared: &Arc<WorkerShared>, task: &Task, error: &PyErr) -> Outcome {
    // With its traceback, which `PyErr::value` leaves out before Python 3.12.
    let exception = error.clone_ref(py).into_value(py);
    let again = shared
        .service
        .call(py, intern!(py, "reschedules"), (&exception,))
        .and_then(|again| again.extract(py));
    if again.unwrap_or(false) {
        return Outcome::GivenBack;
    }
    let key = split(&task.recipe).and_then(|(key, _)| recipe::decode_key(py, &key).ok());
    let dumped = shared
        .service
        .call(py, intern!(py, "task_raised"), (key, exception))
        .and_then(|bytes| bytes.extract::<Vec<u8>>(py));
    match dumped {
        Ok(bytes) => Outcome::Raised(bytes.into()),
        Err(second) => {
            // By contract it does not raise; the task must not be lost all the same.
            second.write_unraisable(py, None);
            Outcome::Raised(Bytes::new())
        }
    }
}

/// Bytes of memory that a value takes; a guess where Dask cannot say it.
fn size_of(value: &Bound<'_, PyAny>) -> u64 {
    treadle_dask::size_of(value).unwrap_or_else(|error| {
        error.write_unraisable(value.py(), Some(value));
        1 << 20
    })
}

/// Definitions that were unpickled, by client and number.
pub(super) type Definitions = std::collections::HashMap<(ClientId, u32), Arc<Definition>>;
