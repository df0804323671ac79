//! Sockets under the transfer plane.
//!
//! A [`Listener`] and [`Peer::connect`] make pairs of peers; the state machine of a pair is the pure
//! crate `treadle-transfer`, and this crate moves its bytes:
//!
//! | module | what |
//! | --- | --- |
//! | [`wire`], `checksum` | bytes: preambles, frames, extent headers |
//! | `handshake`, `handshaking` | who may talk: the proofs of `treadle-security`, carried |
//! | `dialled` | whether who was dialled is who was reached |
//! | `dial`, [`listener`](Listener), `local` | connecting, accepting; connections within a host |
//! | `sessions` | the pairs of a listener, and what comes for one before it is there |
//! | `control`, `stripes`, `outgoing`, `incoming`, `segments` | connections of a pair |
//! | `inner`, [`peer`](Peer), `objects` | the pair, and what is on its way |
//! | `memory` | what objects are received into, and the frames that the application gets |
//! | `stream`, `address` | a socket, plain or with TLS; where a node listens |
//! | [`poller`](Poller) | waiting for any of many pairs |
//! | [`pool`] | connections to many others, made when they are needed |
//! | [`lane`](Lane) | connections apart from those that the process shares |
//! | [`load`] | requests and answers to measure all of it with |
//!
//! The threads that wait, and the sockets that they watch, are `treadle-reactor`'s.
//!
//! Linux only: it stands on epoll and memfd.

pub mod address;
mod checksum;
mod control;
mod dial;
mod dialled;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod handshaking;
mod incoming;
mod inner;
mod lane;
mod listener;
pub mod load;
mod local;
mod memory;
mod objects;
mod options;
mod outgoing;
mod peer;
mod poller;
pub mod pool;
mod segments;
mod sessions;
mod stream;
mod stripes;
#[cfg(test)]
mod tests;
pub mod wire;

pub use address::Address;
pub use dialled::{ClusterId, NoClusterId};
pub use error::NetError;
pub use handshake::HandshakeError;
pub use lane::Lane;
pub use listener::Listener;
pub use memory::{Frame, Target};
pub use objects::{Incoming, Received, Sending, Timings};
pub use options::{Offer, Options, SendOptions};
pub use peer::{Peer, Stats};
pub use poller::{Poller, ReadyGuard, Signal};
pub use treadle_reactor::{Early, Wait, Waker};
pub use treadle_transfer::layout::{SMALL, fits_header};
pub use treadle_transfer::{Config, Failure, PairEnd};
