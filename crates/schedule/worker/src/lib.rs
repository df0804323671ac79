//! What one worker does, as a state machine.
//!
//! [`Worker`] takes in what the scheduler says and what the store, the peers and the executors
//! report, and says what to do next: fetch inputs, run tasks, drop values, tell the scheduler.
//!
//! The crate is pure: no IO, clock, threads or randomness.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod error;
mod event;
mod fetches;
mod guard;
mod objects;
mod ready;
mod worker;

pub use error::WorkerError;
pub use event::{Effect, Effects, Event, Outcome, Run};
pub use guard::Guard;
pub use worker::{Config, Status, Worker};
