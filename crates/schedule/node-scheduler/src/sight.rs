//! What the cluster does, for those who watch it: [`treadle_sight`], on a thread of its own.
//!
//! The scheduler's thread leaves there what workers recorded, unread, and what it knows itself; the thread of
//! the pages leaves questions. What is left is bounded: too much of it is dropped and counted.
//!
//! | module | what |
//! | --- | --- |
//! | `inbox` | what is left |
//! | `thread`, `writer` | who takes it in, and writes the history |
//! | `submissions` | groups of tasks that were submitted, and what they read |
//! | `questions`, `answers` | of HTTP requests |
//! | `errors` | the text in what a task raised |
//! | `assets` | the files of the page |
//! | `past` | the same pages from a history file |

mod answers;
mod assets;
mod errors;
mod inbox;
mod past;
mod questions;
mod submissions;
mod thread;
mod writer;

pub use past::{History, HistoryError};

pub(super) use answers::{Facts, Step, page_of};
pub(super) use assets::pages as assets;
pub(super) use inbox::Inbox;
pub(super) use questions::{PATHS, Question};
pub(super) use submissions::Submitted;
pub(super) use thread::{About, SightThread, start};

use std::path::PathBuf;

/// Settings of what is kept of the cluster's doings.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether workers record what they do, and it is kept. The pages have less without.
    pub is_on: bool,
    /// Bytes for spans.
    pub memory: usize,
    /// A file for the history, or a directory for one that is named by the time.
    pub history: Option<PathBuf>,
    /// Bytes of the longest history; what comes then is left out.
    pub longest_history: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            is_on: true,
            memory: 64 << 20,
            history: None,
            longest_history: 1 << 30,
        }
    }
}
