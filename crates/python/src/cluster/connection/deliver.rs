//! From what comes to calls of Python.

use super::{Client, Connection};
use crate::recipe;
use bytes::Bytes;
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;
use treadle_node::client::{Event, Lead, Stuck};

impl Connection {
    /// Hands what has come to Python, at most so many things; how many they were.
    ///
    /// # Errors
    /// What ends programs (`KeyboardInterrupt`); other exceptions are reported and do not stop it.
    pub(super) fn deliver(
        &self,
        py: Python<'_>,
        lead: &Lead<'_, Py<PyAny>>,
        most: usize,
    ) -> PyResult<usize> {
        let client = self.client()?;
        let mut count = 0;
        while count < most
            && let Some(event) = lead.next(|state| state.clone_ref(py))
        {
            count += 1;
            if let Err(error) = self.deliver_one(py, client, event) {
                if !error.is_instance_of::<PyException>(py) {
                    return Err(error);
                }
                error.write_unraisable(py, None);
            }
        }
        Ok(count)
    }

    fn deliver_one(
        &self,
        py: Python<'_>,
        client: &Client,
        event: Event<Py<PyAny>>,
    ) -> PyResult<()> {
        match event {
            Event::Standing { owner, change } => self.states.tell(owner.bind(py), change),
            Event::Fetched {
                ticket,
                index,
                outcome,
            } => self.fetched(py, client, ticket, index, outcome),
            Event::Answer(answer) => {
                let Some(done) = self.held().calls.remove(&answer.id) else {
                    return Ok(());
                };
                match answer.result {
                    Ok(value) => done.call1(py, (recipe::decode_value(py, &value)?, py.None()))?,
                    Err(error) => {
                        let error = recipe::decode_value(py, &error)?;
                        done.call1(py, (py.None(), error))?
                    }
                };
                Ok(())
            }
            Event::Call(call) => {
                let argument = recipe::decode_value(py, &call.argument)?;
                let arguments = (call.id, call.node, call.operation, argument);
                self.handle(py, |handlers| {
                    let name = intern!(py, "on_call");
                    handlers.call_method1(name, arguments).map(drop)
                })
            }
            Event::Stuck { keys, reason } => {
                let decode = |key: &Bytes| recipe::decode_key(py, key);
                let keys = keys.iter().map(decode).collect::<PyResult<Vec<_>>>()?;
                let arguments = (PyList::new(py, keys)?, why(reason));
                self.handle(py, |handlers| {
                    let name = intern!(py, "on_stuck");
                    handlers.call_method1(name, arguments).map(drop)
                })
            }
            Event::Unused(numbers) => {
                let free = self.encoder.withdraw(numbers);
                if !free.is_empty() {
                    client.undefine(free);
                }
                Ok(())
            }
            Event::Arrived(arrivals) => self.arrived(py, arrivals),
            Event::Restarted => self.handle(py, |handlers| {
                handlers.call_method0(intern!(py, "on_restarted")).map(drop)
            }),
            Event::Closed(reason) => self.closed_now(py, &reason),
        }
    }

    fn handle(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>,
    ) -> PyResult<()> {
        let handlers = self.held().handlers.as_ref().map(|held| held.clone_ref(py));
        match handlers {
            Some(handlers) => call(handlers.bind(py)),
            None => Ok(()),
        }
    }

    /// The connection is over: everybody who waits for an answer is told.
    fn closed_now(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let told = self.handle(py, |handlers| {
            let name = intern!(py, "on_closed");
            handlers.call_method1(name, (reason,)).map(drop)
        });
        let calls = std::mem::take(&mut self.held().calls);
        let text = format!(
            "the connection to the scheduler at {} is over: {reason}",
            self.address
        );
        for done in calls.into_values() {
            let error = super::ended(text.clone()).into_value(py);
            if let Err(error) = done.call1(py, (py.None(), error)) {
                error.write_unraisable(py, None);
            }
        }
        self.give_up_casts(py, &text);
        let handlers = self.held().handlers.take();
        drop(handlers);
        told
    }
}

/// Why nothing moves, in words.
fn why(reason: Stuck) -> &'static str {
    match reason {
        Stuck::NoWorkers => "there are no workers",
        Stuck::Restrictions => "no worker is among those that the tasks ask for",
        Stuck::Resources => "no worker has as much of a resource as the tasks ask for",
        Stuck::Memory => "every worker has paused for lack of memory",
        Stuck::Silence => "they were sent to workers, which have said nothing of them since",
    }
}
