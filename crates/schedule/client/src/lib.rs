//! A client's end of a cluster, as a state machine.
//!
//! [`Core::handle`] takes an [`Event`] in and appends [`Effect`]s; the application takes
//! [`Notification`]s with [`Core::next`].
//!
//! | module | concept |
//! | --- | --- |
//! | `state` | what happens, what the application wants, what it is told |
//! | `keys` | the keys that the application has futures of, by encoding and by local id |
//! | `submission` | tasks for the scheduler, in batches |
//! | `put` | values that the client brings to workers |
//! | `kept` | constants that the scheduler may ask for again |
//! | `fetch` | values from wherever they are |
//!
//! A local id is the client's name of a key towards the scheduler, and is used once. A key whose value
//! was lost, cancelled or put again is *named again*: it gets a further id, and what the scheduler
//! says about the earlier ones does not count any more.
//!
//! A key is known as long as somebody needs it: the application has futures of it (it has an
//! *owner*), or a submission that is being sent, a value that is being brought or a fetch *holds* it.
//! Then the scheduler is told, with the next message.
//!
//! The crate is pure: no IO, no clock, no threads, no randomness.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod effect;
mod error;
mod event;
mod fetch;
mod guard;
mod kept;
mod keys;
mod put;
mod state;
mod submission;

pub use effect::{Effect, Effects, Load};
pub use error::Exhausted;
pub use event::{Change, Event, Notification};
pub use fetch::Fetched;
pub use guard::Guard;
pub use kept::{Constant, IsIntact};
pub use put::{Contained, Content, Destination};
pub use state::Core;
pub use submission::{Input, NewTask, Submission};
