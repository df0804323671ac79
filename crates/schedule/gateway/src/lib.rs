//! The scheduler's end of a cluster, as a state machine: [`treadle_scheduler`], which knows numbers
//! only, and around it the names of things, who takes part, and what each of them is told.
//!
//! [`Core::handle`] takes an [`Event`] in and appends [`Effect`]s; [`Core::admit`] lets a node in,
//! [`Core::reports`] takes what a worker reported, and [`Core::distribute`] gives workers what they can
//! take after that.
//!
//! | module | concept |
//! | --- | --- |
//! | `state`, `event`, `effect` | what the core holds, what happens to it, what follows |
//! | `admission`, `nodes`, `members`, `liveness` | who takes part, and who is gone |
//! | `keys`, `groups`, `locals`, `symbols`, `definitions`, `awaited` | names of things |
//! | `submit`, `put` | from clients' messages to the scheduler's events |
//! | `follow` | from the scheduler's effects to messages |
//! | `steps` | each transition, for the sidecar if it wants to know |
//! | `calls`, `operations`, `waiting` | questions: those that are passed on, and those to the scheduler |
//! | `shuffles` | the master of the shuffle plane |
//! | `check` | the invariants |
//!
//! A task's number is given to another task once nobody can refer to the first. A client's *local id*
//! stands for one use of a number, its *generation*.
//!
//! The crate is pure: no IO, no clock, no threads, no randomness.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod admission;
mod awaited;
mod calls;
mod check;
mod definitions;
mod effect;
mod event;
mod follow;
mod groups;
mod guard;
mod keys;
mod liveness;
mod locals;
mod members;
mod nodes;
mod operations;
mod put;
mod shuffles;
mod state;
mod steps;
mod submit;
mod symbols;
mod waiting;

pub use admission::Refused;
pub use calls::error_text;
pub use effect::{Effect, Effects};
pub use event::Event;
pub use guard::Guard;
pub use nodes::{ClientNode, Node, WorkerNode};
pub use operations::{Answered, Arguments, OperationError, dict, int};
pub use shuffles::{EndedShuffle, Moved};
pub use state::{Core, Counts, Settings};
