//! The worker's Python side, and the thread that calls it: what others ask, and answers to what it
//! asked.
//!
//! The native threads of a worker must not wait for the interpreter, which a task may hold for long.

use super::super::answer::{outcome_of, refusal, unreadable};
use super::live::Keeper;
use crate::transfer::attach;
use bytes::Bytes;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use treadle_interpreter::{call, lock};
use treadle_messages::{Answer, Call};
use treadle_reactor::thread::{self, caught};
use treadle_recipe::{Definition, decode_value, encode_value};
use treadle_types::ObjectId;

/// The worker's Python side, a `treadle.worker.Service`, until the worker is closed.
///
/// It refers to the worker, whose threads refer to it, which Python's collector does not see: so the
/// worker lets it go.
pub(crate) struct Service(Mutex<Option<Py<PyAny>>>);

impl Service {
    pub(crate) fn new(object: Py<PyAny>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(object))))
    }

    /// Calls a method.
    ///
    /// # Errors
    /// What it raises, and when the worker is closed.
    pub(crate) fn call<'py>(
        &self,
        py: Python<'py>,
        method: &Bound<'py, PyString>,
        arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>>,
    ) -> PyResult<Py<PyAny>> {
        let object = self.object().as_ref().map(|object| object.clone_ref(py));
        let object = object.ok_or_else(|| PyRuntimeError::new_err("the worker is closed"))?;
        let method = object.bind(py).getattr(method)?;
        let arguments = arguments.into_pyobject(py).map_err(Into::into)?;
        call(&method, &arguments).map(Bound::unbind)
    }

    /// Nobody calls it any more.
    pub(crate) fn release(&self) {
        let object = self.object().take();
        drop(object);
    }

    fn object(&self) -> std::sync::MutexGuard<'_, Option<Py<PyAny>>> {
        lock(&self.0)
    }
}

/// Something to do with the interpreter.
pub(crate) enum ServiceJob {
    Call(Call),
    Answer(Answer),
    /// A cast waits, and no thread for it.
    CastCame,
    /// A client's cast is to be interrupted, if it runs.
    InterruptCast(u32, u64),
    /// The worker has ended; why.
    End(String),
    /// The value of an actor was released; the key, encoded, and which attempt of it.
    DropActor(Bytes, ObjectId),
    /// Steps of tasks wait for [`tell`](super::Worker::tell).
    StepsCame,
    /// Values that nobody needs any more, to be dropped where Python may run.
    Collect(Weak<Keeper>),
    /// The same of definitions.
    Forget(Vec<Arc<Definition>>),
}

/// Questions that were not answered yet, and the queue of the thread.
pub(crate) struct ServiceThread {
    jobs: Sender<ServiceJob>,
    waiting: Mutex<HashMap<u64, Py<PyAny>>>,
    next: AtomicU64,
}

impl ServiceThread {
    /// Starts the thread; it ends when this value is dropped. `refuse` sends the answer to a call that
    /// did not reach the service; `failed` is called if it panics, with what to say.
    pub(crate) fn start(
        service: Arc<Service>,
        refuse: impl Fn(Answer) + Send + Sync + 'static,
        failed: impl FnOnce(&str) + Send + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let (jobs, queue) = channel();
        let thread = Arc::new(Self {
            jobs,
            waiting: Mutex::default(),
            next: AtomicU64::new(1),
        });
        let weak = Arc::downgrade(&thread);
        thread::start("treadle-service", move || {
            caught(|| serve(&queue, &weak, &service, refuse))
                .unwrap_or_else(|reason| failed(&reason.to_string()));
        })?;
        Ok(thread)
    }

    /// Does something when the interpreter is free.
    pub(crate) fn push(&self, job: ServiceJob) {
        // The thread is gone only when the interpreter is.
        let _ = self.jobs.send(job);
    }

    /// The number of a new question, whose answer `done` gets.
    pub(crate) fn register(&self, done: Py<PyAny>) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting().insert(id, done);
        id
    }

    /// The question was not asked.
    pub(crate) fn unregister(&self, id: u64) {
        let done = self.waiting().remove(&id);
        drop(done);
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Py<PyAny>>> {
        lock(&self.waiting)
    }

    fn answered(&self, py: Python<'_>, answer: &Answer) -> PyResult<()> {
        let Some(done) = self.waiting().remove(&answer.id) else {
            return Ok(());
        };
        match outcome_of(py, &answer.result) {
            Ok(arguments) => done.call1(py, arguments)?,
            Err(error) => done.call1(py, (py.None(), unreadable(&error)))?,
        };
        Ok(())
    }

    /// Nothing will be answered any more.
    pub(crate) fn close(&self, py: Python<'_>, reason: &str) {
        let waiting = std::mem::take(&mut *self.waiting());
        for done in waiting.into_values() {
            if let Err(error) = done.call1(py, (py.None(), reason)) {
                error.write_unraisable(py, None);
            }
        }
    }
}

fn serve(
    queue: &Receiver<ServiceJob>,
    thread: &Weak<ServiceThread>,
    service: &Service,
    refuse: impl Fn(Answer) + Send + Sync,
) {
    while let Ok(job) = queue.recv() {
        let Some(thread) = thread.upgrade() else {
            break;
        };
        let attached = attach(|py| {
            let outcome = match job {
                ServiceJob::Call(call) => {
                    let id = call.id;
                    begin(py, service, call).or_else(|(reason, error)| {
                        // Whoever asked waits for an answer.
                        py.detach(|| refuse(refusal(id, reason)));
                        error.map_or(Ok(()), Err)
                    })
                }
                ServiceJob::Answer(answer) => thread.answered(py, &answer),
                ServiceJob::End(reason) => {
                    thread.close(py, &reason);
                    Ok(())
                }
                ServiceJob::CastCame => service.call(py, intern!(py, "cast_came"), ()).map(drop),
                ServiceJob::InterruptCast(client, number) => service
                    .call(py, intern!(py, "interrupt_cast"), (client, number))
                    .map(drop),
                ServiceJob::StepsCame => service.call(py, intern!(py, "steps_came"), ()).map(drop),
                ServiceJob::Collect(keeper) => {
                    if let Some(keeper) = keeper.upgrade() {
                        keeper.collect(py);
                    }
                    Ok(())
                }
                ServiceJob::Forget(definitions) => {
                    drop(definitions);
                    Ok(())
                }
                ServiceJob::DropActor(key, object) => treadle_recipe::decode_key(py, &key)
                    .and_then(|key| {
                        service
                            .call(py, intern!(py, "drop_actor"), (key, object.to_u64()))
                            .map(drop)
                    }),
            };
            if let Err(error) = outcome {
                error.write_unraisable(py, None);
            }
        });
        if attached.is_none() {
            // The interpreter is ending.
            return;
        }
    }
}

/// Hands a call to the service, which answers it.
///
/// # Errors
/// When it does not get it: why, for whoever asked, and what it raised.
fn begin(py: Python<'_>, service: &Service, call: Call) -> Result<(), (String, Option<PyErr>)> {
    let argument = decode_value(py, &call.argument).map_err(|error| (unreadable(&error), None))?;
    let arguments = (call.id, call.node, call.operation, argument);
    let begun = service.call(py, intern!(py, "call"), arguments);
    begun.map(drop).map_err(|error| {
        let reason = format!("the worker cannot serve the call: {error}");
        (reason, Some(error))
    })
}

/// The answer to a call.
///
/// # Errors
/// For what cannot be pickled.
pub(crate) fn answer(
    id: u64,
    result: &Bound<'_, PyAny>,
    error: Option<&Bound<'_, PyAny>>,
) -> PyResult<Answer> {
    let result = match error {
        None => Ok(plain(result)?),
        Some(error) => Err(plain(error)?),
    };
    Ok(Answer { id, result })
}

/// The encoding of a result or an argument.
///
/// # Errors
/// For what cannot be pickled.
pub(crate) fn plain(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    /// As long as a message may be.
    const LONGEST: usize = 1 << 30;
    let bytes = encode_value(object, LONGEST)?;
    let bytes = bytes.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "an object of type {} cannot be pickled, or is longer than a message may be",
            object.get_type()
        ))
    })?;
    Ok(bytes.into())
}
