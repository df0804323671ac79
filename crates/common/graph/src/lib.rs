//! Task graphs, without any idea of what a task is.
//!
//! A [`Graph`] holds who depends on whom, as integers. [`order()`] gives each task a static
//! priority whose purpose is a small memory footprint. A [`Run`] is the state machine that
//! follows an execution: it is told what happened ([`Event`]) and answers with what follows
//! from it ([`Effects`]): tasks that may start, values that nobody needs any more.
//!
//! The crate is pure: no IO, no clock, no threads, no randomness. The in-process executor and
//! the cluster scheduler are both built on it.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod graph;
mod order;
mod ready;
mod run;

pub use graph::{Batch, Dependents, Graph, GraphError, TaskId};
pub use order::order;
pub use ready::ReadySet;
pub use run::{Effects, Event, Run, RunError, Status};
