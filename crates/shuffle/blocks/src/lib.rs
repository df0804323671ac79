//! What a batch of rows is as bytes, and what is counted of it. `treadle-shuffle` has what becomes of batches.
//!
//! | module | concept |
//! | --- | --- |
//! | `ids` | names of things |
//! | `tally` | counts and digests of rows |
//! | `block` | the row-block format |
//!
//! The crate is pure: no IO, clock, threads or randomness.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod block;
mod ids;
mod tally;

pub use ids::{AttemptId, BatchId, Generation, GroupId, ServerId, ShuffleId, Transfer};
pub use tally::{RowDigest, Tally};
