//! Casts to engines: what Python says, and what arrives.

use super::deliver::{reported, was_called};
use super::{ClientConnection, client_error};
use crate::cluster::worker::plain;
use crate::transfer::{Limit, blocking};
use bytes::Bytes;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use treadle_net::Frame;
use treadle_node_client::{Arrival, CastError, Purpose, Tree, What};
use treadle_recipe as recipe;
use treadle_serialise::{ExportedBuffer, memories};

#[pymethods]
impl ClientConnection {
    /// The engines, each as its number, name, address and host; `None`: the scheduler, which is asked
    /// here the first time, has not said who they are.
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let client = self.client()?;
        let members = py.detach(|| client.members()).map_err(self.failed())?;
        let Some(members) = members else {
            return Ok(None);
        };
        let members = members.iter().map(|member| {
            let (name, address) = (member.name.as_str(), member.address.as_str());
            (member.worker.0, name, address, member.host.as_str())
        });
        PyList::new(py, members).map(Some)
    }

    /// Sends a head and buffers to engines; returns the cast's number, by which numbers increase.
    ///
    /// The buffers are copied once, before it returns. It waits while too many casts are not
    /// finished.
    ///
    /// Raises
    /// ------
    /// MemoryError
    ///     There is no memory for them.
    /// ValueError
    ///     An engine is not among the members, nor was; or the engines have no tree of this depth and
    ///     degree.
    #[pyo3(signature = (engines, head, frames, depth=None, degree=None))]
    fn cast(
        &self,
        py: Python<'_>,
        engines: Vec<u32>,
        head: &Bound<'_, PyAny>,
        frames: Vec<Bound<'_, PyAny>>,
        depth: Option<u32>,
        degree: Option<u32>,
    ) -> PyResult<u64> {
        let client = self.client()?;
        let tree = Tree { depth, degree };
        let frames = std::iter::once(head).chain(&frames).map(buffer);
        let frames = frames.collect::<PyResult<Vec<_>>>()?;
        blocking(py, Limit::NONE, None, failed, |wait| {
            client.cast(&engines, &frames, tree, wait)
        })
    }

    /// Asks the Python sides of several workers, members by number, the same at once. `done(answers)` is
    /// called when all have answered, or are gone, with a list: of each worker the number, what came
    /// ("answer", "error", "refused", "lost"), and the answer, the error, or the reason as text.
    ///
    /// It waits while too many casts are not finished.
    ///
    /// Raises
    /// ------
    /// MemoryError
    ///     There is no memory for the argument.
    /// ValueError
    ///     A worker is not among the members, nor was.
    fn call_all(
        &self,
        py: Python<'_>,
        workers: Vec<u32>,
        operation: &str,
        argument: &Bound<'_, PyAny>,
        done: Py<PyAny>,
    ) -> PyResult<()> {
        let client = self.client()?;
        let argument = plain(argument)?;
        let number = client.new_number();
        let asked = Asked {
            done,
            answers: PyList::empty(py).unbind(),
        };
        // First: another thread may process an answer at once.
        self.callbacks().asked.insert(number, asked);
        let cast = blocking(py, Limit::NONE, None, failed, |wait| {
            client.cast_call(number, &workers, operation, argument.clone(), wait)
        });
        cast.map(drop).inspect_err(|_| {
            drop(self.callbacks().asked.remove(&number));
        })
    }
}

impl ClientConnection {
    /// Calls who wants to know what arrived. What is left of `arrivals`, or in the list that they
    /// became, after an error that came in between is yet to be notified.
    pub(super) fn arrived(&self, py: Python<'_>, arrivals: &mut Vec<Arrival>) -> PyResult<()> {
        let list = PyList::empty(py);
        let mut rest = std::mem::take(arrivals).into_iter().peekable();
        let mut outcome = Ok(());
        while let Some(mut arrival) = rest.next() {
            if let Purpose::Call(number) = arrival.purpose {
                // Without memory for one answer there may be some for the others.
                outcome = self
                    .answered(py, number, &mut arrival)
                    .or_else(|error| reported(py, error));
                if outcome.is_err() {
                    arrivals.push(arrival);
                    break;
                }
                continue;
            }
            let mut engines = engines_of(&arrival);
            let mut times = times_of(&mut arrival).repeat(engines.len());
            while let Some(mut next) = rest.next_if(|next| is_same(&arrival, next)) {
                let others = engines_of(&next);
                times.extend(times_of(&mut next).repeat(others.len()));
                engines.extend(others);
            }
            let item = |what| item(py, arrival.number, &engines, what, &times);
            let item = item(arrival.what).or_else(|error| {
                let reason = format!("its result came, and cannot be taken here: {error}");
                reported(py, error)?;
                item(What::Lost(reason))
            });
            let added = item.and_then(|item| list.append(item));
            outcome = added.or_else(|error| reported(py, error));
            if outcome.is_err() {
                break;
            }
        }
        arrivals.extend(rest);
        if !list.is_empty() {
            self.callbacks().came.push_back(list.unbind());
        }
        outcome?;
        self.call_cast_listeners(py)
    }

    /// Calls who wants to know, with lists that they have not got, or not to their end.
    fn call_cast_listeners(&self, py: Python<'_>) -> PyResult<()> {
        loop {
            let (callback, list) = {
                let callbacks = self.callbacks();
                let Some(list) = callbacks.came.front() else {
                    return Ok(());
                };
                let callback = callbacks.casts.as_ref().map(|held| held.clone_ref(py));
                (callback, list.clone_ref(py))
            };
            let outcome = match callback {
                Some(callback) => callback.call1(py, (&list,)).map(drop),
                None => Ok(()),
            };
            if was_called(py, &outcome) {
                let mut callbacks = self.callbacks();
                let is_done = callbacks.came.front().is_some_and(|front| front.is(&list));
                let done = is_done.then(|| callbacks.came.pop_front());
                drop(callbacks);
                drop(done);
            }
            outcome.or_else(|error| reported(py, error))?;
        }
    }

    /// Workers have answered what many were asked.
    ///
    /// # Errors
    /// What came in between.
    fn answered(&self, py: Python<'_>, number: u64, arrival: &mut Arrival) -> PyResult<()> {
        if let What::Complete = arrival.what {
            return self.all_answered(py, number, None);
        }
        let answers = {
            let callbacks = self.callbacks();
            let asked = callbacks.asked.get(&number);
            asked.map(|asked| asked.answers.clone_ref(py))
        };
        let Some(answers) = answers else {
            return Ok(());
        };
        let text = |text: &str| PyString::new(py, text).into_any().unbind();
        let (kind, value) = match &arrival.what {
            What::Finished(frames) => match &frames[..] {
                [is_error, value] => {
                    let kind = match is_error.as_slice() {
                        [0] => "answer",
                        _ => "error",
                    };
                    match recipe::decode_value(py, value.as_slice()) {
                        Ok(value) => (kind, value),
                        Err(error) => {
                            reported(py, error)?;
                            ("lost", text("its answer cannot be read here"))
                        }
                    }
                }
                _ => ("lost", text("it answered something else")),
            },
            What::Refused(reason) => ("refused", text(reason)),
            What::Lost(reason) => ("lost", text(reason)),
            What::Output(_) | What::Aborted | What::Complete => return Ok(()),
        };
        for worker in arrival.engines.iter() {
            let answer = (worker, kind, value.clone_ref(py));
            answers.bind(py).append(answer)?;
        }
        Ok(())
    }

    /// Nobody is left to answer, or to wait for: `lost` says why.
    fn all_answered(&self, py: Python<'_>, number: u64, lost: Option<&str>) -> PyResult<()> {
        let asked = {
            let callbacks = self.callbacks();
            let asked = callbacks.asked.get(&number);
            asked.map(|asked| (asked.done.clone_ref(py), asked.answers.clone_ref(py)))
        };
        let Some((done, answers)) = asked else {
            return Ok(());
        };
        let answers = answers.into_bound(py);
        let outcome = match lost {
            Some(reason) => answers.append((-1, "lost", reason)),
            None => Ok(()),
        };
        let outcome = outcome.and_then(|()| done.call1(py, (answers,)));
        outcome.map(drop).or_else(|error| reported(py, error))?;
        drop(self.callbacks().asked.remove(&number));
        Ok(())
    }

    /// The connection is over: who has not answered is lost.
    ///
    /// # Errors
    /// What came in between.
    pub(super) fn give_up_casts(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        loop {
            let first = self.callbacks().asked.keys().next().copied();
            let Some(number) = first else {
                return Ok(());
            };
            self.all_answered(py, number, Some(reason))?;
        }
    }
}

/// What many workers were asked at once.
pub(super) struct Asked {
    done: Py<PyAny>,
    answers: Py<PyList>,
}

impl Asked {
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.done)?;
        visit.call(&self.answers)
    }
}

fn failed(error: CastError) -> PyErr {
    match error {
        CastError::Memory(_) => PyMemoryError::new_err(format!("{error}")),
        CastError::Refused(_) => PyValueError::new_err(format!("{error}")),
        CastError::NoThread => PyOSError::new_err(format!("{error}")),
        CastError::Wait(error) => client_error(error.into(), "casting to engines"),
    }
}

/// Bytes of when an engine began and ended, in seconds.
const TIMES: usize = 16;

/// What results of more bytes have in common is not looked for.
const LITTLE: usize = 1 << 10;

fn engines_of(arrival: &Arrival) -> Vec<i64> {
    match arrival.what {
        What::Complete => vec![-1],
        _ => arrival.engines.iter().map(|engine| engine as i64).collect(),
    }
}

/// Takes the first frame of a result: when its engine began and ended, two doubles; not a number
/// where nobody has said.
fn times_of(arrival: &mut Arrival) -> [u8; TIMES] {
    let unknown = || {
        let mut times = [0; TIMES];
        times.as_chunks_mut().0.fill(f64::NAN.to_le_bytes());
        times
    };
    let What::Finished(frames) = &mut arrival.what else {
        return unknown();
    };
    if frames.is_empty() {
        return unknown();
    }
    let times = frames.remove(0);
    times.as_slice().try_into().unwrap_or_else(|_| unknown())
}

/// Whether an arrival, whose times were taken, has the same to say as the next one.
fn is_same(arrival: &Arrival, next: &Arrival) -> bool {
    if arrival.number != next.number {
        return false;
    }
    match (&arrival.what, &next.what) {
        (What::Finished(one), What::Finished(other)) => {
            let other = other.get(1..).unwrap_or_default();
            let size: usize = one.iter().map(Frame::len).sum();
            let mut pairs = one.iter().zip(other);
            one.len() == other.len()
                && size <= LITTLE
                && pairs.all(|(one, other)| one.as_slice() == other.as_slice())
        }
        (What::Aborted, What::Aborted) => true,
        (What::Lost(one), What::Lost(other)) | (What::Refused(one), What::Refused(other)) => {
            one == other
        }
        _ => false,
    }
}

/// What precedes the frames of a result on their way.
pub(in crate::cluster) fn encode_times(times: Option<(f64, f64)>) -> Bytes {
    times.map_or_else(Bytes::new, |(began, ended)| {
        [began.to_le_bytes(), ended.to_le_bytes()].concat().into()
    })
}

/// The bytes of an object's buffer.
pub(in crate::cluster) fn buffer(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    ExportedBuffer::new(object, false).map(ExportedBuffer::into_bytes)
}

/// What came of engines, as those who want to know get it.
fn item<'py>(
    py: Python<'py>,
    number: u64,
    engines: &[i64],
    came: What,
    times: &[u8],
) -> PyResult<Bound<'py, PyTuple>> {
    let (kind, frames) = what(py, came)?;
    (number, engines, kind, frames, PyBytes::new(py, times)).into_pyobject(py)
}

fn what<'py>(
    py: Python<'py>,
    what: What,
) -> PyResult<(&'py Bound<'py, PyString>, Bound<'py, PyList>)> {
    let words = |text: &str| PyList::new(py, [PyBytes::new(py, text.as_bytes())]);
    Ok(match what {
        What::Output(text) => (
            intern!(py, "output"),
            PyList::new(py, [PyBytes::new(py, &text)])?,
        ),
        What::Finished(frames) => (
            intern!(py, "finished"),
            PyList::new(py, memories(py, frames)?)?,
        ),
        What::Refused(reason) => (intern!(py, "refused"), words(&reason)?),
        What::Aborted => (intern!(py, "aborted"), PyList::empty(py)),
        What::Lost(reason) => (intern!(py, "lost"), words(&reason)?),
        What::Complete => (intern!(py, "complete"), PyList::empty(py)),
    })
}
