//! Tasks of shuffles: transfers, barriers and reads.

use super::Worker;
use super::executor;
use super::shared::WorkerShared;
use crate::rows::{RowMemory, Rows};
use bytes::Bytes;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use treadle_memory::Registration;
use treadle_node_worker::Tracing;
use treadle_shuffle::{AttemptId, Commit, Generation, ReadPiece, Receipt, ShuffleId, Transfer};
use treadle_shuffle_node::{Failure, Plane, ReadRows};
use treadle_shuffle_wire::{decode_shuffled, encode_shuffled};
use treadle_types::{Attempt, ObjectId};

pyo3::import_exception!(distributed.exceptions, Reschedule);
pyo3::import_exception!(treadle.shuffle._p2p_errors, DamagedRows);
pyo3::import_exception!(treadle.shuffle._p2p_errors, OutOfDisk);

/// The first attempt of a task that has a fresh number.
const FIRST: Attempt = Attempt(1);

/// Bytes of a piece that are copied in less time than Python takes for it.
const SMALL: usize = 16 << 10;

/// Rows of one map: its position, how many rows, and their memory.
pub(crate) type Piece = (u32, u64, RowMemory);

#[pymethods]
impl Worker {
    /// Pushes the rows of a map, and waits until servers have them; the receipt. A thread that runs no
    /// task of this worker runs one of another engine.
    fn shuffle_transfer<'py>(
        &self,
        py: Python<'py>,
        shuffle: u64,
        map_index: u32,
        rows: &Bound<'py, Rows>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let rows = rows.get();
        let receipt = self.shuffling(py, |plane, object, interrupted| {
            let attempt = object.map_or_else(|| self.hosted(), |it| AttemptId(it.to_u64()));
            let transfer = Transfer {
                shuffle: ShuffleId(shuffle),
                map: map_index,
                attempt,
            };
            let again = object.is_some_and(|object| object.attempt > FIRST);
            // A map that runs again has lost what it returned: it counts, whatever was committed.
            let outcome = plane.transfer(transfer, (again, true), rows, interrupted);
            if object.is_none() {
                plane.finished(attempt, outcome.is_ok());
            }
            outcome
        })?;
        Ok(PyBytes::new(py, &encode_shuffled(&receipt)))
    }

    /// Has the servers compare what they have with the receipts of all `maps`; the generation.
    fn shuffle_commit(
        &self,
        py: Python<'_>,
        shuffle: u64,
        maps: u32,
        receipts: Vec<PyBackedBytes>,
    ) -> PyResult<u32> {
        let generation = self.shuffling(py, |plane, _, interrupted| {
            let failed = |reason: &dyn std::fmt::Display| {
                Failure::Failed(format!(
                    "the results of its transfers are no receipts: {reason}"
                ))
            };
            let decoded = receipts.iter().map(|bytes| decode_shuffled(bytes));
            let decoded = decoded.collect::<Result<Vec<Receipt>, _>>();
            let decoded = decoded.map_err(|error| failed(&error))?;
            let commit = Commit::new(ShuffleId(shuffle), maps, &decoded);
            plane.commit(commit.map_err(|error| failed(&error))?, interrupted)
        })?;
        Ok(generation.0)
    }

    /// Gets the rows of a partition: pieces in the order of their maps. `width` is that of the agreed
    /// row; 0: rows are variable.
    fn shuffle_read(
        &self,
        py: Python<'_>,
        shuffle: u64,
        generation: u32,
        partition: u32,
        width: usize,
    ) -> PyResult<Vec<Piece>> {
        self.shuffling(py, |plane, _, interrupted| {
            let shuffle = ShuffleId(shuffle);
            let generation = Generation(generation);
            let rows = plane.read(shuffle, generation, partition, None, width, interrupted)?;
            Ok(joined(&rows, width, |rows| plane.charge(rows)))
        })
    }

    /// What the shuffle plane does, and has done: counts and bytes.
    fn shuffle_stats(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, u64>> {
        let plane = self.own()?.node.shuffles();
        let (stats, leftovers) = py.detach(|| (plane.stats(), plane.leftovers()));
        Ok(HashMap::from([
            ("transfers", stats.transfers),
            ("reads", stats.reads),
            ("pushed", stats.pushed),
            ("stored", stats.stored),
            ("spilled", stats.spilled),
            ("loaded", stats.loaded),
            ("on_disk", stats.on_disk),
            ("gathered", stats.gathered),
            ("resident", stats.resident),
            ("held", stats.held),
            ("in_flight", stats.in_flight),
            ("leftovers", leftovers as u64),
        ]))
    }
}

/// Pieces for Python, which takes some microseconds for each. Agreed rows do not depend on their map: those
/// that share memory stay together, and small ones are copied together.
pub(crate) fn joined(read: &ReadRows, width: usize, charge: impl Fn(Bytes) -> Bytes) -> Vec<Piece> {
    let is_agreed =
        |piece: &ReadPiece| width > 0 && piece.rows.checked_mul(width as u64) == Some(piece.bytes);
    let are_agreed = |pieces: &[ReadPiece]| pieces.iter().all(is_agreed);
    let parts: Vec<(&[ReadPiece], Bytes)> = read.parts(are_agreed).collect();
    let is_small =
        |(pieces, bytes): &(&[ReadPiece], Bytes)| bytes.len() < SMALL && are_agreed(pieces);
    let groups = parts.chunk_by(|one, next| is_small(one) && is_small(next));
    let piece = |group: &[(&[ReadPiece], Bytes)]| {
        let pieces = group.iter().flat_map(|(pieces, _)| *pieces);
        let rows = pieces.clone().map(|piece| piece.rows).sum();
        let map = pieces.clone().next()?.batch.map;
        let bytes = match group {
            [(_, bytes)] => bytes.clone(),
            _ => {
                let all: Vec<&[u8]> = group.iter().map(|(_, bytes)| &bytes[..]).collect();
                charge(all.concat().into())
            }
        };
        Some((map, rows, RowMemory(bytes)))
    };
    groups.filter_map(piece).collect()
}

impl Worker {
    /// The number of a transfer of another engine. Tasks of this one have lower ones.
    fn hosted(&self) -> AttemptId {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let last = LAST.fetch_add(1, Ordering::Relaxed);
        let worker = self.0.node.id().0 | 1 << 31;
        AttemptId(u64::from(worker) << 32 | u64::from(last))
    }

    /// Runs what the calling thread's task waits for, without the interpreter's lock.
    fn shuffling<R: Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&Plane, Option<ObjectId>, &mut dyn FnMut() -> bool) -> Result<R, Failure>
        + Send,
    ) -> PyResult<R> {
        let shared = self.own()?;
        let object = executor::current().map(|current| current.object);
        let mut interrupted = || is_over(shared, object);
        let result = py.detach(|| operation(shared.node.shuffles(), object, &mut interrupted));
        result.map_err(raised)
    }
}

/// The calling thread's task, which waits for another service.
pub(crate) struct Waiting {
    shared: Arc<WorkerShared>,
    object: Option<ObjectId>,
}

impl Waiting {
    /// Of a thread of this worker.
    ///
    /// # Errors
    /// The worker is another process's.
    pub(crate) fn of(worker: &Worker) -> PyResult<Self> {
        Ok(Self {
            shared: Arc::clone(worker.own()?),
            object: executor::current().map(|current| current.object),
        })
    }

    /// Whether nobody waits for it any more.
    pub(crate) fn is_over(&self) -> bool {
        is_over(&self.shared, self.object)
    }

    /// Whether it may have run before.
    pub(crate) fn is_again(&self) -> bool {
        self.object.is_none_or(|object| object.attempt > FIRST)
    }
}

impl Worker {
    /// Counts what another shuffle plane of this process keeps as memory of this worker.
    ///
    /// # Errors
    /// The worker is another process's.
    pub(crate) fn account(&self, name: &'static str, plane: &Plane) -> PyResult<Registration> {
        Ok(self.own()?.node.account(name, plane))
    }

    /// What this worker records for those who trace the cluster.
    ///
    /// # Errors
    /// The worker is another process's.
    pub(crate) fn tracing(&self) -> PyResult<Arc<Tracing>> {
        Ok(Arc::clone(self.own()?.node.tracing()))
    }
}

/// Whether nobody waits for a task any more.
fn is_over(shared: &WorkerShared, object: Option<ObjectId>) -> bool {
    object.is_some_and(|object| shared.node.is_interrupted(object)) || shared.node.ended().is_some()
}

/// What a task raises.
fn raised(failure: Failure) -> PyErr {
    let text = failure.to_string();
    match failure {
        // Whatever becomes of a task that was cancelled, nobody hears of it.
        Failure::Again(_) | Failure::Superseded(_) | Failure::Interrupted => {
            Reschedule::new_err(text)
        }
        Failure::NoRoom(_) => OutOfDisk::new_err(text),
        Failure::Damaged(_) => DamagedRows::new_err(text),
        Failure::Failed(_) | Failure::Late(_) => PyRuntimeError::new_err(text),
        Failure::Source(error) => match error.downcast::<PyErr>() {
            Ok(error) => *error,
            Err(error) => PyRuntimeError::new_err(error.to_string()),
        },
    }
}
