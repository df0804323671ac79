//! How one peer sends objects to another over several sockets, without a socket in sight.
//!
//! A *pair* of peers has one control connection and, in each direction, a number of *stripes*: data
//! connections that belong to the side that sends on them. An object is a list of frames. What is
//! small travels in the object's header, on the control connection; the rest is divided into
//! *regions* ([`layout`]), and a region into *extents*, which any stripe may carry in any order:
//!
//! ```text
//! sender                                receiver
//!   Offer (header, sizes)        ──►      allocates the regions, where the bytes will stay
//!                                ◄──    Accept
//!   extents, on every stripe     ══►      each into its place, each verified
//!                                ◄──    Placed          (the sender's memory may be reused)
//! ```
//!
//! * **Balance**: a stripe asks for its next extent when its socket has room, so a slow one takes
//!   fewer. Objects take turns.
//! * **Growth**: stripes are added while that raises the measured rate, and given up when it does not
//!   ([`ramp`]).
//! * **Resumption**: the receiver counts the whole, intact extents of each stripe. When a stripe
//!   ends, it reports the count, and the sender sends exactly the others again, elsewhere.
//! * **Credit**: headers cost credit that returns when the application takes the object; regions wait
//!   for `Accept`. A receiver that stops reading stops its sender, and both stay small.
//!
//! [`Pair`] is the state machine: [`Pair::handle`] takes events with the time and appends effects.
//! It has no IO, clock, threads or randomness, and [`Pair::check`] verifies its invariants.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod event;
mod guards;
pub mod layout;
mod pair;
pub mod ramp;
mod receiver;
mod sender;

pub use event::{
    Config, Effect, Event, Extent, Failure, Message, PairEnd, StripeId, TransferId, Violation,
};
pub use guards::Guard;
pub use pair::{Pair, Stats};
