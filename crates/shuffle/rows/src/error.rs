//! What can be wrong.

use treadle_shuffle::block::BlockError;

/// Why rows cannot become batches, or pieces cannot become columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RowsError {
    /// A partition that does not exist.
    #[error("row {row} is for partition {value}, and there are {partitions} partitions")]
    Partition {
        /// The position of the row.
        row: usize,
        /// What it has as partition.
        value: i128,
        /// How many partitions there are.
        partitions: u32,
    },
    /// A column that is shorter than the table, or of another kind than its field.
    #[error("the column of field {field} is of another kind, or has fewer than {rows} rows")]
    Column {
        /// The position of the field.
        field: usize,
        /// Rows of the table.
        rows: usize,
    },
    /// A row that is too long for the format.
    #[error("row {row} has 2 GiB or more: rows of a shuffle must have less")]
    RowTooLong {
        /// The position of the row.
        row: usize,
    },
    /// Two groups with a partition in common: one of them would get no rows of it.
    #[error("partition {partition} is in two groups that rows are gathered for")]
    Overlap {
        /// The first such partition.
        partition: u32,
    },
    /// Memory of another size than what was asked for.
    #[error("the memory should have {expected} bytes, and has {found}")]
    Memory {
        /// What was asked for.
        expected: usize,
        /// What is there.
        found: usize,
    },
    /// Bytes that are no rows of the format.
    #[error("piece {piece} is damaged: there is no valid row at byte {at}")]
    Damaged {
        /// The position of the piece.
        piece: usize,
        /// Where the row begins.
        at: usize,
    },
    /// Pieces of a chunk that are no whole grid, or have other lengths than they say.
    #[error(
        "{found} pieces came, and they do not fill the chunk: some are missing, or come twice, or have \
         other sizes"
    )]
    Parts {
        /// How many came.
        found: usize,
    },
    /// A batch that cannot be.
    #[error(transparent)]
    Block(#[from] BlockError),
}
