//! What a shuffle leaves behind: how large it was, how long its phases took, what was done again and why.
//!
//! A [`Recorder`] stands beside a [`Master`](treadle_shuffle::Master), and sees what happens to that and what
//! follows. When a shuffle ends, each process that took part says what it did ([`ToMaster::Used`](treadle_shuffle::ToMaster::Used)). The
//! record is whole when all have, or when five seconds have passed.
//!
//! The crate is pure: no IO, clock, threads or randomness.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod recorder;
mod sizes;
mod told;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

pub use recorder::Recorder;
pub use sizes::Sizes;
pub use told::Names;

use treadle_shuffle::{Generation, ServerId, ShuffleId, Tally, Usage};

/// Something that made rows be moved again, or could have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// A server with rows was lost.
    Lost(ServerId),
    /// A server had rows that could not be read, or were not those that were sent.
    Damaged(ServerId),
    /// A server could not write rows to its files.
    Poisoned(ServerId),
    /// A server answered pushes much more slowly than others.
    Slow(ServerId),
    /// An input had other rows when it ran again.
    Differs(Option<u32>),
}

/// What a shuffle does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Nobody has asked for its plan.
    Waiting,
    /// Rows are pushed.
    Transfer,
    /// Servers compare.
    Barrier,
    /// Outputs can be read.
    Read,
}

/// What is known of a shuffle.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    pub shuffle: ShuffleId,
    /// How many inputs it has.
    pub maps: u32,
    /// How many partitions it has.
    pub partitions: u32,
    /// How many of them somebody wants.
    pub outputs: u64,
    /// At how many servers each row is to be.
    pub copies: u32,
    /// When it was registered.
    pub registered: Duration,
    /// When the first process asked for its plan.
    pub began: Option<Duration>,
    pub ended: Option<Duration>,
    /// What it does, or did at its end.
    pub phase: Phase,
    /// How long it was in each phase, in their order.
    pub spent: [Duration; 4],
    /// What all outputs have together, since they could be read.
    pub committed: Option<Tally>,
    /// What transfers pushed, with those that ran again.
    pub moved: Tally,
    /// Transfers that ended well.
    pub transfers: u64,
    /// Those of them whose input had been transferred before.
    pub repeated: u64,
    /// The assignment of partitions that was the last one.
    pub generation: Generation,
    /// Servers that held partitions.
    pub servers: BTreeSet<ServerId>,
    /// Bytes by partition, since they could be read.
    pub sizes: Option<Sizes>,
    /// What the processes did, as far as they have said so. They do at the end.
    pub usage: Usage,
    /// What went wrong, and when: the first 32.
    pub troubles: Vec<(Duration, Trouble)>,
    /// How often something else went wrong.
    pub more_troubles: u64,
}
