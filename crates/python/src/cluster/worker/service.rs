//! The worker's Python side, and the thread that calls it: what others ask, and answers to what it
//! asked.
//!
//! The native threads of a worker must not wait for the interpreter, which a task may hold for long.

use crate::recipe::{Definition, decode_value, encode_value};
use bytes::Bytes;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use treadle_net::thread::{self, caught};
use treadle_node::message::{Answer, Call};

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
        arguments: impl PyCallArgs<'py>,
    ) -> PyResult<Py<PyAny>> {
        let object = self.object().as_ref().map(|object| object.clone_ref(py));
        let object = object.ok_or_else(|| PyRuntimeError::new_err("the worker is closed"))?;
        object.call_method1(py, method, arguments)
    }

    /// Nobody calls it any more.
    pub(crate) fn let_go(&self) {
        let object = self.object().take();
        drop(object);
    }

    fn object(&self) -> std::sync::MutexGuard<'_, Option<Py<PyAny>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something to do with the interpreter.
pub(crate) enum Job {
    Call(Call),
    Answer(Answer),
    /// A cast waits, and no thread for it.
    CastCame,
    /// A client's cast is to be interrupted, if it runs.
    InterruptCast(u32, u64),
    /// The worker has ended; why.
    End(String),
    /// The value of an actor was released; the key, encoded.
    DropActor(Bytes),
    /// Definitions that nobody needs any more, to be dropped where Python may run.
    Forget(Vec<Arc<Definition>>),
}

/// Questions that were not answered yet, and the queue of the thread.
pub(crate) struct Desk {
    jobs: Sender<Job>,
    waiting: Mutex<HashMap<u64, Py<PyAny>>>,
    next: AtomicU64,
}

impl Desk {
    /// Starts the thread; it ends with the desk. `failed` is called if it panics, with what to say.
    pub(crate) fn open(
        service: Arc<Service>,
        failed: impl FnOnce(&str) + Send + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let (jobs, queue) = channel();
        let desk = Arc::new(Self {
            jobs,
            waiting: Mutex::default(),
            next: AtomicU64::new(1),
        });
        let weak = Arc::downgrade(&desk);
        thread::start("treadle-service", move || {
            caught(|| serve(&queue, &weak, &service)).unwrap_or_else(|reason| failed(&reason));
        })?;
        Ok(desk)
    }

    /// Does something when the interpreter is free.
    pub(crate) fn push(&self, job: Job) {
        // The thread is gone only when the interpreter is.
        let _ = self.jobs.send(job);
    }

    /// The number of a new question, whose answer `done` gets.
    pub(crate) fn ask(&self, done: Py<PyAny>) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting().insert(id, done);
        id
    }

    /// The question was not asked.
    pub(crate) fn unask(&self, id: u64) {
        let done = self.waiting().remove(&id);
        drop(done);
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Py<PyAny>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self, py: Python<'_>, answer: &Answer) -> PyResult<()> {
        let Some(done) = self.waiting().remove(&answer.id) else {
            return Ok(());
        };
        match &answer.result {
            Ok(value) => done.call1(py, (decode_value(py, value)?, py.None()))?,
            Err(error) => done.call1(py, (py.None(), decode_value(py, error)?))?,
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

fn serve(queue: &Receiver<Job>, desk: &std::sync::Weak<Desk>, service: &Service) {
    while let Ok(job) = queue.recv() {
        let Some(desk) = desk.upgrade() else {
            break;
        };
        let attached = Python::try_attach(|py| {
            let outcome = match job {
                Job::Call(call) => decode_value(py, &call.argument).and_then(|argument| {
                    let arguments = (call.id, call.node, call.operation, argument);
                    service.call(py, intern!(py, "call"), arguments).map(drop)
                }),
                Job::Answer(answer) => desk.answered(py, &answer),
                Job::End(reason) => {
                    desk.close(py, &reason);
                    Ok(())
                }
                Job::CastCame => service.call(py, intern!(py, "cast_came"), ()).map(drop),
                Job::InterruptCast(client, number) => service
                    .call(py, intern!(py, "interrupt_cast"), (client, number))
                    .map(drop),
                Job::Forget(definitions) => {
                    drop(definitions);
                    Ok(())
                }
                Job::DropActor(key) => crate::recipe::decode_key(py, &key).and_then(|key| {
                    service
                        .call(py, intern!(py, "drop_actor"), (key,))
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

/// The encoding of an answer or an argument.
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
