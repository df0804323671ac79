//! What a cluster does, in bounded memory: spans of a fixed size, aggregates, and what they prove.
//!
//! [`Sight::handle`] takes an [`Event`] in; [`Sight::overview`], [`Sight::picture`] and the other
//! questions read. Workers say what they did in [`Batch`]es, which are a block of the history file as
//! they are: a file that is [read](history) gives the same answers as the scheduler that wrote it.
//!
//! | module | concept |
//! | --- | --- |
//! | `span`, `ring` | one thing that somebody did, and the latest of them |
//! | `batch` | what a worker recorded, as bytes |
//! | `event` | all that is taken in, as bytes |
//! | `groups`, `workers`, `series`, `sums`, `transfers`, `profile` | aggregates, each with a fixed bound |
//! | `casts` | the latest calls, and values, for many workers |
//! | `logs`, `errors` | the latest lines of logs, and what tasks failed with |
//! | `picture` | spans reduced to what pixels show |
//! | `overview`, `tables` | the answers |
//! | `verdicts`, `spoken` | what they prove, now and before |
//! | `history`, `sparse`, `reader` | the format of the file, what it needs, and reading bytes of anybody's |
//! | `sight` | all of it together |
//!
//! The crate is pure: no IO, no clock, no threads, no randomness. Times are nanoseconds since the start
//! of the scheduler.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod batch;
mod casts;
mod errors;
mod event;
#[doc(hidden)]
pub mod fuzzing;
mod groups;
pub mod history;
mod logs;
mod overview;
mod picture;
mod profile;
mod reader;
mod ring;
mod series;
mod sight;
mod span;
mod sparse;
mod spoken;
mod sums;
mod tables;
mod transfers;
pub mod verdicts;
mod workers;

pub use batch::{Batch, Beside, Frame, Head, Line, Record, Running, System, Unnamed};
pub use casts::cast_object;
pub use event::{
    End, Event, SHUFFLE_STATES, Shuffle, Snapshot, States, WorkerState, about_error,
    about_traceback,
};
pub use groups::{MOST_GROUPS, OTHERS};
pub use overview::{
    CastRow, ErrorRow, ErrorRows, EventRow, Flame, GroupRow, HistoryRow, Kept, LineRow, Lines,
    Matrix, Overview, RunningRow, Series, SpanRow, StatesRow, Tasks, Totals, WorkerRow, WorkerRows,
};
pub use picture::{By, Lane, Picture, Rectangle, Window};
pub use reader::Malformed;
pub use sight::Sight;
pub use span::{Kind, Span, lane};
pub use sparse::Sparse;
pub use tables::Tables;
pub use verdicts::Verdict;
