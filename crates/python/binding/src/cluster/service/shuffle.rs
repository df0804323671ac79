//! A shuffle of the service, as Python sees it: rows of Python's memory, and pieces.

use super::super::worker::Worker;
use super::super::worker::shuffles::{Piece, Waiting, joined};
use super::{ShuffleError, interruptible};
use crate::rows::Rows;
use crate::transfer::Limit;
use pyo3::exceptions::{PyConnectionError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::sync::Arc;
use treadle_compress::Codec;
use treadle_interpreter::ProcessLocal;
use treadle_net::Wait;
use treadle_shuffle::Generation;
use treadle_shuffle_client::{Asked, Attempt, Error, RawShuffle, Receipt};
use treadle_shuffle_node::{Packed, Source};
use treadle_shuffle_service::Member;

pyo3::import_exception!(distributed.exceptions, Reschedule);
pyo3::import_exception!(treadle.shuffle.service._errors, DamagedRows);
pyo3::import_exception!(treadle.shuffle.service._errors, LateAttempt);
pyo3::import_exception!(treadle.shuffle.service._errors, NoRoom);
pyo3::import_exception!(treadle.shuffle.service._errors, RowsLost);
pyo3::import_exception!(treadle.shuffle.service._errors, Superseded);

/// A shuffle of the service. With `worker` the calling thread runs a task of it, which may be cancelled.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct ServiceShuffle(ProcessLocal<Inner>);

struct Inner {
    member: Arc<Member>,
    shuffle: RawShuffle,
}

impl ServiceShuffle {
    pub(super) fn new(member: Arc<Member>, shuffle: RawShuffle) -> Self {
        Self(ProcessLocal::new(Inner { member, shuffle }))
    }
}

#[pymethods]
impl ServiceShuffle {
    /// Pushes the rows of a map, and waits until all copies have them: the receipt, and how many rows and
    /// bytes there are. `again`: the map may have run before; a task of a worker says it itself. Pieces are
    /// compressed by `compression`, one of `COMPRESSIONS`.
    #[pyo3(signature = (map_index, rows, again, timeout, worker=None, compression=None))]
    #[expect(clippy::too_many_arguments, reason = "as many are needed")]
    fn transfer<'py>(
        &self,
        py: Python<'py>,
        map_index: u32,
        rows: &Bound<'py, Rows>,
        again: bool,
        timeout: Option<f64>,
        worker: Option<PyRef<'py, Worker>>,
        compression: Option<&str>,
    ) -> PyResult<(Bound<'py, PyBytes>, u64, u64)> {
        let rows = rows.get();
        let codec = compression.map(codec).transpose()?;
        let task = waiting(worker)?;
        let again = again || task.as_ref().is_some_and(Waiting::is_again);
        // Tasks of a worker run again because what they returned is lost.
        let attempt = Attempt::default().again(again).replaces(task.is_some());
        let receipt = self.call(py, timeout, task.as_ref(), |inner, wait| {
            let packed = codec.map(|codec| Packed {
                source: rows,
                codec,
            });
            let source: &dyn Source = packed.as_ref().map_or(rows, |packed| packed);
            inner.shuffle.push(map_index, attempt, source, wait)
        })?;
        let bytes = PyBytes::new(py, &receipt.to_bytes());
        Ok((bytes, receipt.rows(), receipt.bytes()))
    }

    /// Pushes the rows of several maps together, and waits until all copies have them. For each map, in their order,
    /// what `transfer` returns, or the exception that it raises.
    #[pyo3(signature = (maps, again, timeout, compression=None))]
    fn transfer_all<'py>(
        &self,
        py: Python<'py>,
        maps: Vec<(u32, Bound<'py, Rows>)>,
        again: bool,
        timeout: Option<f64>,
        compression: Option<&str>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let codec = compression.map(codec).transpose()?;
        let attempt = Attempt::default().again(again);
        let rows: Vec<(u32, &Rows)> = maps.iter().map(|(map, rows)| (*map, rows.get())).collect();
        let outcomes = self.call(py, timeout, None, |inner, wait| {
            let packed = rows.iter().flat_map(|&(map, source)| {
                let packed = codec.map(|codec| Packed { source, codec });
                packed.map(|packed| (map, packed))
            });
            let packed: Vec<(u32, Packed<'_>)> = packed.collect();
            let packed = packed
                .iter()
                .map(|(map, packed)| (*map, packed as &dyn Source));
            let plain = rows.iter().map(|&(map, rows)| (map, rows as &dyn Source));
            let maps: Vec<(u32, &dyn Source)> = match codec {
                Some(_) => packed.collect(),
                None => plain.collect(),
            };
            Ok(inner.shuffle.push_all(&maps, attempt, wait))
        })?;
        let outcome = |outcome: Result<Receipt, Error>| match outcome {
            Ok(receipt) => {
                let bytes = PyBytes::new(py, &receipt.to_bytes());
                let found = (bytes, receipt.rows(), receipt.bytes()).into_pyobject(py)?;
                Ok(found.into_any())
            }
            Err(error) => Ok(raised(error, false)
                .into_value(py)
                .into_bound(py)
                .into_any()),
        };
        outcomes.into_iter().map(outcome).collect()
    }

    /// Has the servers compare what they have with the receipts of all maps; the generation.
    #[pyo3(signature = (receipts, timeout, worker=None))]
    fn commit(
        &self,
        py: Python<'_>,
        receipts: Vec<PyBackedBytes>,
        timeout: Option<f64>,
        worker: Option<PyRef<'_, Worker>>,
    ) -> PyResult<u32> {
        let receipts = receipts.iter().map(|bytes| Receipt::from_bytes(bytes));
        let receipts = receipts.collect::<Result<Vec<Receipt>, _>>();
        let receipts = receipts.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let task = waiting(worker)?;
        // Whoever uses the service directly says when maps run again. Dask's run again when it needs them.
        let keeps = task.is_none();
        let committed = self.call(py, timeout, task.as_ref(), |inner, wait| {
            inner.shuffle.commit(&receipts, keeps, wait)
        });
        Ok(committed?.0)
    }

    /// Gets the rows of a partition, of all maps or of those from `maps[0]` up to `maps[1]`: pieces in the
    /// order of their maps.
    #[pyo3(signature = (generation, partition, width, maps, timeout, worker=None))]
    #[expect(clippy::too_many_arguments, reason = "as many are needed")]
    fn read(
        &self,
        py: Python<'_>,
        generation: u32,
        partition: u32,
        width: usize,
        maps: Option<(u32, u32)>,
        timeout: Option<f64>,
        worker: Option<PyRef<'_, Worker>>,
    ) -> PyResult<Vec<Piece>> {
        let task = waiting(worker)?;
        let asked = Asked {
            generation: Generation(generation),
            partition,
            maps: maps.map(|(first, end)| first..end),
            width,
            is_checked: task.is_none(),
        };
        self.call(py, timeout, task.as_ref(), |inner, wait| {
            let rows = inner.shuffle.read(&asked, wait)?;
            let plane = inner.member.plane();
            Ok(joined(&rows, width, |rows| plane.charge(rows)))
        })
    }

    /// The same of neighbouring partitions, from the first up to `end`, which are read together.
    #[pyo3(signature = (generation, first, end, width, maps, timeout))]
    #[expect(clippy::too_many_arguments, reason = "as many are needed")]
    fn read_all(
        &self,
        py: Python<'_>,
        generation: u32,
        first: u32,
        end: u32,
        width: usize,
        maps: Option<(u32, u32)>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Vec<Piece>>> {
        let asked = Asked {
            generation: Generation(generation),
            partition: first,
            maps: maps.map(|(first, end)| first..end),
            width,
            is_checked: true,
        };
        self.call(py, timeout, None, |inner, wait| {
            let all = inner.shuffle.read_all(&asked, end, wait)?;
            let plane = inner.member.plane();
            let joined = |rows| joined(rows, width, |rows| plane.charge(rows));
            Ok(all.iter().map(joined).collect())
        })
    }

    /// The maps that must run again, since all copies of some of their rows are lost.
    fn lost(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Vec<u32>> {
        self.call(py, timeout, None, |inner, wait| inner.shuffle.lost(wait))
    }

    /// Says that nobody will read it any more.
    fn finish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let finish = |inner: &Inner, wait: &mut Wait<'_>| inner.shuffle.finish(wait).map(drop);
        self.call(py, timeout, None, finish)
    }
}

fn codec(name: &str) -> PyResult<Codec> {
    let unknown = || PyValueError::new_err(format!("compression={name:?} is not known"));
    Codec::named(name).ok_or_else(unknown)
}

fn waiting(worker: Option<PyRef<'_, Worker>>) -> PyResult<Option<Waiting>> {
    worker.map(|worker| Waiting::of(&worker)).transpose()
}

impl ServiceShuffle {
    /// Does something that may wait, without the interpreter's lock: until `task` is over, if it is one's.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        task: Option<&Waiting>,
        act: impl FnOnce(&Inner, &mut Wait<'_>) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let inner = self.0.get()?;
        let deadline = Limit::new(timeout)?.deadline;
        let is_over = || task.is_some_and(Waiting::is_over);
        let done = interruptible(py, None, |interrupted| {
            let mut ends = || is_over() || interrupted();
            let interrupted: Option<&mut dyn FnMut() -> bool> = Some(&mut ends);
            act(
                inner,
                &mut Wait {
                    deadline,
                    interrupted,
                },
            )
        })?;
        done.map_err(|error| raised(error, is_over()))
    }
}

/// What is raised. `is_over`: the task is, for which it was called.
fn raised(error: Error, is_over: bool) -> PyErr {
    let text = error.to_string();
    match error {
        Error::RowsLost {
            maps, read_again, ..
        } => RowsLost::new_err((text, maps, read_again)),
        Error::Superseded { .. } => Superseded::new_err(text),
        Error::LateAttempt { .. } => LateAttempt::new_err(text),
        Error::NoRoom { .. } => NoRoom::new_err(text),
        Error::DamagedRows { .. } => DamagedRows::new_err(text),
        Error::Gone { .. } | Error::Unreachable { .. } => PyConnectionError::new_err(text),
        Error::Receipts { .. } | Error::Invalid { .. } => PyValueError::new_err(text),
        // Whatever becomes of a task that was cancelled, nobody hears of it.
        Error::Interrupted { .. } if is_over => Reschedule::new_err("the task is over"),
        Error::TimedOut { .. } | Error::Interrupted { .. } => PyTimeoutError::new_err(text),
        Error::Source { source, .. } => match source.downcast::<PyErr>() {
            Ok(error) => *error,
            Err(error) => ShuffleError::new_err(error.to_string()),
        },
        _ => ShuffleError::new_err(text),
    }
}
