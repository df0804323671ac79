//! The cluster's scheduler, as a state machine.
//!
//! [`Scheduler::handle`] takes an [`Event`] in and appends [`Effect`]s. A task goes through
//! *released*, *waiting*, *ready*, *assigned* (or *retracting*) to *memory* or *failed*; when nobody
//! can refer to it any more, it is forgotten, and its id is used again.
//!
//! | module | concept |
//! | --- | --- |
//! | `task`, `few`, `vacant` | the table of tasks and their edges; short lists; ids to hand out again |
//! | `worker`, `levels` | the table of workers, with indices by load |
//! | `queue`, `class` | queues of ready tasks; classes of equal constraints |
//! | `client`, `wants`, `submit` | clients: submissions, what is wanted, cancelled, tried again |
//! | `transitions` | how tasks come to need inputs, get a value, lose it, fail, are forgotten |
//! | `scheduler` | what it holds, and how one event is carried through |
//! | `placement`, `dispatch`, `steal` | where tasks run, what is sent when, what is taken back |
//! | `overtake` | urgent tasks take the places of others that were sent and have not begun |
//! | `report`, `loss` | what workers report, and what follows when one is lost |
//! | `reruns` | tasks that a worker gives back although nothing was lost |
//! | `located` | what tasks read that is no value, and where it is |
//! | `notices` | what clients are told of the tasks that they want |
//! | `performed` | tasks that do more than return a value, and what led to their values |
//! | `bring` | values that clients bring to workers, and keep to bring them again |
//! | `copies`, `cuts` | replicas, moves, drains, and ways around a cut between two workers |
//! | `watchdog` | ticks: what time alone brings about |
//! | `view`, `story`, `learnt`, `groups` | what can be asked |
//! | `check` | the invariants |
//!
//! The crate is pure: no IO, no clock, no threads, no randomness.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod bring;
mod check;
mod class;
mod client;
mod config;
mod copies;
mod cuts;
mod dispatch;
mod effect;
mod error;
mod event;
mod few;
mod groups;
mod learnt;
mod levels;
mod located;
mod loss;
mod notices;
mod overtake;
mod performed;
mod placement;
mod queue;
mod report;
mod reruns;
mod scheduler;
mod steal;
mod story;
mod submit;
mod task;
mod transitions;
mod vacant;
mod view;
mod wants;
mod watchdog;
mod worker;

pub use config::{Config, Guard, TICK};
pub use effect::{Effect, Effects, Notice, Stuck};
pub use error::SchedulerError;
pub use event::{Event, Located, Submission, WorkerProfile};
pub use groups::Counts;
pub use scheduler::Scheduler;
pub use story::{State, Step, Transition};
pub use view::{TaskView, WorkerView};
pub use worker::{Health, WorkerStatus};
