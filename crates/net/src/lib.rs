//! Sockets under the transfer plane.
//!
//! A [`Listener`] and [`Peer::connect`] make pairs of peers; the state machine of a pair is the pure
//! crate `treadle-transfer`, and this crate moves its bytes:
//!
//! | module | what |
//! | --- | --- |
//! | [`wire`] | bytes: preambles, frames, extent headers |
//! | `handshake`, [`secret`], [`tls`], [`certs`] | who may talk |
//! | `dialled` | whether who was dialled is who was reached |
//! | `driver` | which thread moves the bytes |
//! | `dial`, [`listener`](Listener), `local` | connections that are being made; those within a host |
//! | `control`, `outgoing`, `incoming`, `segments` | connections of a pair |
//! | `inner`, [`peer`](Peer) | the pair |
//! | [`poller`](Poller) | waiting for any of many pairs |
//! | [`pool`] | connections to many others, made when they are needed |
//! | [`lane`](Lane) | connections apart from those that the process shares |
//! | [`awake`] | a clock that stands still while the process is stopped |
//! | [`load`] | requests and answers to measure all of it with |
//!
//! Linux only: it stands on epoll, eventfd and memfd.

pub mod address;
pub mod awake;
pub mod certs;
mod control;
mod dial;
mod dialled;
mod driver;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod incoming;
mod inner;
mod lane;
mod listener;
pub mod load;
mod local;
mod lookout;
mod memory;
mod options;
mod outgoing;
mod peer;
mod poller;
pub mod pool;
pub mod secret;
mod segments;
mod stream;
pub mod thread;
pub mod tls;
pub mod wire;

pub use address::Address;
pub use dialled::{ClusterId, NoClusterId};
pub use driver::Wait;
pub use error::NetError;
pub use handshake::HandshakeError;
pub use lane::Lane;
pub use listener::Listener;
pub use lookout::LOOKOUT;
pub use memory::{Frame, Target};
pub use options::Options;
pub use peer::{Incoming, Peer, Received, Sending, Stats, Timings};
pub use poller::{Poller, Signal, Turn};
pub use treadle_transfer::layout::{INLINE, SMALL};
pub use treadle_transfer::{Config, Failure, PairEnd};
