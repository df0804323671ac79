//! Rows in a host's own memory, for [`RawShuffle::push`](crate::RawShuffle::push).
//!
//! A [`Source`] sorts its rows by partition into memory that it is given, and computes their digests. [`gather`] does so
//! for rows in columns ([`Input`]). Whoever has records of bytes uses a [`Writer`](crate::Writer) instead.

pub use treadle_compress::Codec;
pub use treadle_rows::{
    Batch, Column, Field, Format, Input, Integer, Partitions, RowsError, Scattered, Wanted,
};
pub use treadle_shuffle::{BatchId, ReadPiece, Tally, Transfer};
pub use treadle_shuffle_node::{
    Allocate, Arena, ArenaMemory, Failure, NotGathered, Packed, ReadRows, Source, gather,
};
pub use treadle_types::Runs;
