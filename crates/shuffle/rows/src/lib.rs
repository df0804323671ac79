//! Rows of a table: how they become batches of a shuffle, and columns again. The design is
//! `docs/internals/shuffle.md`, "Rows".
//!
//! | module | concept |
//! | --- | --- |
//! | `column` | the columns of a table, as they lie in memory |
//! | `format` | what a row is as bytes |
//! | `partitions` | the column that says where each row goes |
//! | `cut` | how many rows each partition has, and where they will lie in the arenas |
//! | `gather` | copies rows into arenas, with their digests |
//! | `join` | copies pieces back into columns |
//! | `records` | rows with one field of bytes, without a copy |
//! | `views`, `chunks` | arrays with gaps; chunks of an array of their pieces |
//! | `blocks` | rows to columns and columns to rows, a block at a time |
//!
//! The crate is pure: no IO, clock, threads or randomness. The host gives the memory.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod blocks;
mod chunks;
mod column;
mod cut;
mod error;
mod format;
mod gather;
mod join;
mod partitions;
mod records;
mod views;

pub use chunks::{Chunk, Part, plain_head};
pub use column::{Column, ColumnMut, Scattered};
pub use cut::{Batch, TARGET, Wanted};
pub use error::RowsError;
pub use format::{Field, Format, Note};
pub use gather::{Arenas, Input};
pub use join::{Joined, digest, fill, scan};
pub use partitions::{Integer, Partitions};
pub use records::Records;
pub use views::View;
