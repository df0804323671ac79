//! Rows of Python's memory as the shuffle plane takes them.

use super::{Rows, failed};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use treadle_memory::MemoryError;
use treadle_rows::{Arenas, RowsError, Wanted};
use treadle_shuffle::Transfer;
use treadle_shuffle_node::{Allocate, Arena, Failure, Source};
use treadle_types::Runs;

/// What the exception of a task is then, when the plane returns it.
fn raised(error: PyErr) -> Failure {
    Failure::Source(Box::new(error))
}

fn no_memory(error: MemoryError) -> Failure {
    raised(PyMemoryError::new_err(error.to_string()))
}

fn not_gathered(error: RowsError) -> Failure {
    raised(failed(error))
}

/// The memory of its columns stays as it is while the task waits for the transfer.
impl Source for Rows {
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure> {
        let columns = self.columns();
        let arenas = Arenas::new(self.input(&columns), groups).map_err(not_gathered)?;
        let lengths = arenas.lengths().iter().enumerate();
        let memory = lengths.map(|(group, &length)| allocate(group, length).map_err(no_memory));
        let mut memory = memory.collect::<Result<Vec<_>, _>>()?;
        let mut slices: Vec<_> = memory.iter_mut().map(|one| one.as_mut_slice()).collect();
        let batches = arenas
            .fill(transfer.shuffle, transfer, &mut slices)
            .map_err(not_gathered)?;
        let arenas = memory.into_iter().zip(batches);
        Ok(arenas
            .map(|(memory, batches)| Arena { memory, batches })
            .collect())
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        self.partitions.count_in(partitions)
    }
}
