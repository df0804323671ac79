//! From what comes to calls of Python.

use super::super::answer::{outcome_of, refusal, unreadable};
use super::{Client, ClientConnection};
use bytes::Bytes;
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::PyList;
use treadle_node_client::{Event, Lead, Stuck};
use treadle_reactor::leader::is_busy;
use treadle_reactor::thread::caught;
use treadle_recipe as recipe;

/// Whether an error is that of what was called. What else is raised (`KeyboardInterrupt`, whatever a
/// signal handler raises) came in between, and says nothing of it.
pub(super) fn is_ordinary(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyException>(py) || error.is_instance_of::<PanicException>(py)
}

/// Whether a callback was called to its end, and is not to be called again.
pub(super) fn was_called<T>(py: Python<'_>, outcome: &PyResult<T>) -> bool {
    outcome
        .as_ref()
        .err()
        .is_none_or(|error| is_ordinary(py, error))
}

impl ClientConnection {
    /// Hands what has come to Python, at most so many things; how many they were.
    ///
    /// # Errors
    /// What came in between; other exceptions are reported and do not stop it. The thing that it met
    /// is delivered again: whoever is notified of something may be notified twice, and never not at all.
    pub(super) fn deliver(
        &self,
        py: Python<'_>,
        lead: &Lead<'_, Py<PyAny>>,
        most: usize,
    ) -> PyResult<usize> {
        debug_assert!(!is_busy(), "Python runs on a thread that leads");
        let client = self.client()?;
        let mut count = 0;
        while count < most
            && let Some(mut event) = lead.next(|state| state.clone_ref(py))
        {
            count += 1;
            // Who waits for what a panic lost would wait for ever: the connection ends.
            let delivered = caught(|| self.deliver_one(py, client, &mut event));
            match delivered.unwrap_or_else(|reason| {
                client.fail(&reason.to_string());
                Ok(())
            }) {
                Ok(()) => {}
                Err(error) if is_ordinary(py, &error) => error.write_unraisable(py, None),
                Err(error) => {
                    lead.put_back(event);
                    return Err(error);
                }
            }
        }
        Ok(count)
    }

    fn deliver_one(
        &self,
        py: Python<'_>,
        client: &Client,
        event: &mut Event<Py<PyAny>>,
    ) -> PyResult<()> {
        match event {
            Event::Standing { owner, change } => self.states.tell(owner.bind(py), change),
            Event::Fetched {
                ticket,
                index,
                outcome,
            } => self.fetched(py, client, *ticket, *index, outcome),
            Event::Answer(answer) => {
                let done = {
                    let callbacks = self.callbacks();
                    callbacks
                        .calls
                        .get(&answer.id)
                        .map(|done| done.clone_ref(py))
                };
                let Some(done) = done else {
                    return Ok(());
                };
                let outcome = match outcome_of(py, &answer.result) {
                    Ok(arguments) => done.call1(py, arguments),
                    Err(error) if is_ordinary(py, &error) => {
                        done.call1(py, (py.None(), unreadable(&error)))
                    }
                    Err(error) => Err(error),
                };
                if was_called(py, &outcome) {
                    drop(self.callbacks().calls.remove(&answer.id));
                }
                outcome.map(drop)
            }
            Event::Call(call) => {
                let argument = match recipe::decode_value(py, &call.argument) {
                    Ok(argument) => argument,
                    Err(error) if is_ordinary(py, &error) => {
                        // One that has ended needs no answer.
                        let _ = client.answer(refusal(call.id, unreadable(&error)));
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                };
                let arguments = (call.id, &call.node, &call.operation, argument);
                self.handle(py, |handlers| {
                    let name = intern!(py, "on_call");
                    handlers.call_method1(name, arguments).map(drop)
                })
            }
            Event::Stuck { keys, reason } => {
                let decode = |key: &Bytes| recipe::decode_key(py, key);
                let keys = keys.iter().map(decode).collect::<PyResult<Vec<_>>>()?;
                let arguments = (PyList::new(py, keys)?, why(*reason));
                self.handle(py, |handlers| {
                    let name = intern!(py, "on_stuck");
                    handlers.call_method1(name, arguments).map(drop)
                })
            }
            Event::Unused(numbers) => {
                let free = self.encoder.withdraw(std::mem::take(numbers));
                if !free.is_empty() {
                    client.undefine(free);
                }
                Ok(())
            }
            Event::Arrived(arrivals) => self.arrived(py, arrivals),
            Event::Restarted => self.handle(py, |handlers| {
                handlers.call_method0(intern!(py, "on_restarted")).map(drop)
            }),
            Event::Closed(reason) => self.closed_now(py, reason),
        }
    }

    /// What the client is told through, unless it is closed.
    pub(super) fn handlers(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let callbacks = self.callbacks();
        callbacks.handlers.as_ref().map(|held| held.clone_ref(py))
    }

    fn handle(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>,
    ) -> PyResult<()> {
        let handlers = self.handlers(py);
        match handlers {
            Some(handlers) => call(handlers.bind(py)),
            None => Ok(()),
        }
    }

    /// The connection is over: everybody who waits for an answer is notified.
    fn closed_now(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        self.handle(py, |handlers| {
            let name = intern!(py, "on_closed");
            handlers.call_method1(name, (reason,)).map(drop)
        })
        .or_else(|error| reported(py, error))?;
        let text = format!(
            "the connection to the scheduler at {} is over: {reason}",
            self.address
        );
        let first = || {
            let callbacks = self.callbacks();
            let call = callbacks.calls.iter().next();
            call.map(|(id, done)| (*id, done.clone_ref(py)))
        };
        while let Some((id, done)) = first() {
            let error = super::ended(text.clone()).into_value(py);
            let outcome = done.call1(py, (py.None(), error));
            outcome.map(drop).or_else(|error| reported(py, error))?;
            drop(self.callbacks().calls.remove(&id));
        }
        self.give_up_casts(py, &text)?;
        let handlers = self.callbacks().handlers.take();
        drop(handlers);
        Ok(())
    }
}

/// Reports the error of what was called; raises what came in between.
pub(super) fn reported(py: Python<'_>, error: PyErr) -> PyResult<()> {
    if !is_ordinary(py, &error) {
        return Err(error);
    }
    error.write_unraisable(py, None);
    Ok(())
}

/// Why nothing moves, in words.
fn why(reason: Stuck) -> &'static str {
    match reason {
        Stuck::NoWorkers => "there are no workers",
        Stuck::Restrictions => "no worker is among those that the tasks ask for",
        Stuck::Resources => "no worker has as much of a resource as the tasks ask for",
        Stuck::Memory => {
            "every worker that could run them has paused, for lack of memory or because it was told to"
        }
        Stuck::Silence => "they were sent to workers, which have said nothing of them since",
        Stuck::Slots => "other tasks take every slot that they could have, and none of those ends",
    }
}
