//! Rows of columns as the batches of a transfer.

use treadle_memory::MemoryError;
use treadle_rows::{Arenas, Input, RowsError, Wanted};
use treadle_shuffle::Transfer;

use crate::{Allocate, Arena};

/// Why rows did not become batches.
#[derive(Debug, thiserror::Error)]
pub enum NotGathered {
    /// The columns are no rows of their format.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// There is no memory for the batches.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// What [`Source::gather`](crate::Source::gather) returns for rows that are in columns.
///
/// # Errors
/// [`NotGathered`].
pub fn gather(
    input: Input<'_>,
    transfer: Transfer,
    groups: &[Wanted],
    allocate: &Allocate<'_>,
) -> Result<Vec<Arena>, NotGathered> {
    let arenas = Arenas::new(input, groups)?;
    let lengths = arenas.lengths().iter().enumerate();
    let memory = lengths.map(|(group, &length)| allocate(group, length));
    let mut memory = memory.collect::<Result<Vec<_>, _>>()?;
    let mut slices: Vec<_> = memory.iter_mut().map(|one| one.as_mut_slice()).collect();
    let batches = arenas.fill(transfer.shuffle, transfer, &mut slices)?;
    let arenas = memory.into_iter().zip(batches);
    Ok(arenas
        .map(|(memory, batches)| Arena { memory, batches })
        .collect())
}
