//! What a client does: to the scheduler, to workers, for the application.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_broadcast::Runs;
use treadle_messages::{FromClient, Member};
use treadle_types::{Cause, WorkerId};

use crate::kept::Constant;

/// What is to be done, in order.
pub type Effects = Vec<Effect>;

/// Something to do.
#[derive(Debug)]
pub enum Effect {
    /// Tell the scheduler.
    Send(FromClient),
    /// Ask a worker for a value. The answer is an [`Event`](crate::Event) with this number.
    Get {
        /// The number, used once.
        request: u64,
        worker: WorkerId,
        /// The value's name.
        object: u64,
    },
    /// Nobody waits for these [`Effect::Get`]s: those that were not sent are not to be.
    Unwanted(BTreeSet<u64>),
    /// Bring a value to one worker; answered by [`Event::Brought`](crate::Event::Brought).
    Bring(WorkerId, Load),
    /// Bring a value to many; answered by [`Event::Spread`](crate::Event::Spread).
    Spread(Runs, Load),
    /// A worker is at an address.
    Met(WorkerId, String),
    /// A worker is gone. What it was asked for and brought comes to nothing.
    Lost(WorkerId),
    /// Workers joined that may be cast to.
    Joined(Vec<Member>),
    /// One of them left.
    Left(WorkerId, Cause),
    /// A worker asks what is settled of casts.
    SettledAsked(WorkerId),
    /// Find out whether what was kept under a name is what it was; answered by
    /// [`Event::Verified`](crate::Event::Verified).
    Verify(u32, Constant),
    /// There is something for the application, or to be [flushed](crate::Core::flush) soon.
    Wake,
}

/// A value for workers.
#[derive(Clone, Debug)]
pub struct Load {
    /// The id that the scheduler knows it by.
    pub name: u32,
    /// The value's name.
    pub object: u64,
    /// Of the serialised value.
    pub kind: u32,
    /// Of the serialised value.
    pub frames: Vec<Bytes>,
}
