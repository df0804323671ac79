//! What the nodes of a cluster tell each other.
//!
//! The scheduler sends a worker [`Command`]s and hears [`Report`]s; both are plain data, so that the
//! two state machines can be run against each other on a virtual network as well as over sockets.
//! [`value`] is the encoding of keys, small results and arguments.
//!
//! The crate is pure, and has no behaviour beyond encoding.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod command;
mod failure;
pub mod fnv;
mod ids;
pub mod keys;
mod options;
mod report;
mod runs;
pub mod value;
pub mod varint;

pub use command::{Assignment, Command, Holders, Input, Inputs, Place};
pub use failure::{Cause, Failure, Loss};
pub use ids::{Attempt, ClientId, ObjectId, Symbol, TaskId, WorkerId};
pub use options::{Constraint, Options, Priority};
pub use report::{Report, Returned};
pub use runs::Runs;
pub use value::Value;

/// Results of at most so many encoded bytes travel with the report and live at the scheduler: losing
/// their worker re-runs nothing.
pub const INLINE: usize = 1024;
