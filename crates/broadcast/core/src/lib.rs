//! How one client says something to many engines; the design is `docs/internals/broadcast.md`.
//!
//! [`Relay`] is what every node runs: the client's end of a session (the *top*), a relay and a leaf.
//! It takes in what the user, the neighbours, the scheduler, memory and the engine report, and says
//! what to do next. It sees no payload and no result, only their lengths: the host around it keeps
//! the bytes, payloads by [`CastId`] and results by [`CastId`] and engine.
//!
//! The crate is pure: no IO, clock, threads or randomness.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod config;
mod event;
mod message;
pub mod plan;
mod relay;
mod run_map;

pub use config::{Config, Guard};
pub use event::{Effect, Effects, Event};
pub use message::{
    CastId, CastResult, Member, Message, Neighbour, Offer, Outcome, Output, Previous, Settled,
    Version,
};
pub use plan::{Network, Shape, Tree, TreeError};
pub use relay::{Me, Relay, Violation};
pub use treadle_types::Runs;
