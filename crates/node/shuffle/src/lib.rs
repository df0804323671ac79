//! The shuffle plane in a worker process; see `docs/internals/shuffle.md`.

mod arena;
mod failure;

use bytes::Bytes;
use treadle_memory::MemoryError;
use treadle_rows::Wanted;
use treadle_shuffle::{Commit, Generation, ReadPiece, Receipt, ShuffleId, Transfer};

pub use arena::{Arena, ArenaMemory};
pub use failure::Failure;

/// Gives memory for the arena of a group, by its position among the groups, and of so many bytes.
pub type Allocate<'a> = dyn Fn(usize, usize) -> Result<ArenaMemory, MemoryError> + 'a;

/// The rows of a map.
pub trait Source: Sync {
    /// Puts the rows for each group into batches, in an arena for each group, in their order.
    ///
    /// # Errors
    /// [`Failure`]: the transfer ends with it.
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure>;
}

/// The shuffle plane of a worker process. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Plane;

impl Plane {
    /// Pushes the rows of a map. Waits until servers have them.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn transfer(
        &self,
        _transfer: Transfer,
        _again: bool,
        _source: &dyn Source,
        _interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Receipt, Failure> {
        Err(Failure::Failed("not there yet".into()))
    }

    /// Has the servers compare what they have with the receipts. Waits for that.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn commit(
        &self,
        _commit: Commit,
        _interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Generation, Failure> {
        Err(Failure::Failed("not there yet".into()))
    }

    /// Gets the rows of a partition: pieces in the order of their maps.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn read(
        &self,
        _shuffle: ShuffleId,
        _generation: Generation,
        _partition: u32,
        _width: usize,
        _interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<(ReadPiece, Bytes)>, Failure> {
        Err(Failure::Failed("not there yet".into()))
    }
}
