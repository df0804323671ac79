//! Rows of Python's memory as the shuffle plane takes them.

use super::{Rows, failed};
use pyo3::exceptions::PyMemoryError;
use treadle_rows::Wanted;
use treadle_shuffle::Transfer;
use treadle_shuffle_node::{Allocate, Arena, Failure, NotGathered, Source, gather};
use treadle_types::Runs;

/// What the exception of a task is then, when the plane returns it.
fn raised(error: NotGathered) -> Failure {
    let error = match error {
        NotGathered::Rows(error) => failed(error),
        NotGathered::Memory(error) => PyMemoryError::new_err(error.to_string()),
    };
    Failure::Source(Box::new(error))
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
        gather(self.input(&columns), transfer, groups, allocate).map_err(raised)
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        self.partitions.count_in(partitions)
    }
}
