//! How a task wants to be run.

use crate::Symbol;
use alloc::vec::Vec;

/// What runs first: the smaller. A later submission comes after an earlier one of the same user
/// priority, and within a submission the rank of the planned order decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Priority {
    /// The user's priority, negated: theirs is higher for what shall run earlier.
    pub user: i32,
    /// A counter of submissions.
    pub submission: u32,
    /// The position in the order of the submission.
    pub rank: u32,
}

/// Where a task may run, and what it needs there.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Constraint {
    /// Workers that have one of these among their names (their name, address, host). Empty: any.
    pub workers: Vec<Symbol>,
    /// Whether other workers will do if none of these is there.
    pub allow_other: bool,
    /// Amounts of abstract resources that the task uses while it runs.
    pub resources: Vec<(Symbol, f64)>,
}

/// How the tasks of a submission want to be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The user's priority: higher runs earlier.
    pub priority: i32,
    /// How often a task that raised is run again.
    pub retries: u32,
    /// One past the index of a constraint of the submission; 0: none.
    pub constraint: u32,
    /// The value is an actor: it stays on the worker that made it, and no copy is made.
    pub actor: bool,
    /// The task does more than return a value, and those that read the value rely on that: it sends
    /// rows to other workers, say. What it did counts as gone when the worker that ran it is lost, or
    /// when somebody says so. Then the task runs again if its value is needed, however small that is,
    /// and those that read the value and have not ended begin anew.
    pub effects: bool,
    /// What a task with effects did is not at the worker that ran it: it stays when that is lost.
    pub lasting: bool,
}
