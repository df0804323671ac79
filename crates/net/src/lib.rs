//! Sockets under the transfer plane.
//!
//! A [`Listener`] and [`Peer::connect`] make pairs of peers; the state machine of a pair is the pure
//! crate `treadle-transfer`, and this crate moves its bytes:
//!
//! | module | what |
//! | --- | --- |
//! | [`wire`], `checksum` | bytes: preambles, frames, extent headers |
//! | `handshake`, `handshaking`, [`secret`], [`tls`], [`certs`] | who may talk |
//! | `dialled` | whether who was dialled is who was reached |
//! | [`leader`] | which of the threads that wait leads, and which follow |
//! | `wait`, [`wake`] | how long threads wait, and what wakes them |
//! | `driver`, `sources` | the thread that leads moves the bytes; sockets and timers |
//! | `dial`, [`listener`](Listener), `local` | connecting, accepting; connections within a host |
//! | `control`, `stripes`, `outgoing`, `incoming`, `segments` | connections of a pair |
//! | `inner`, [`peer`](Peer), `objects` | the pair, and what is on its way |
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
mod checksum;
mod control;
mod dial;
mod dialled;
mod driver;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod handshaking;
mod incoming;
mod inner;
mod lane;
pub mod leader;
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
pub mod secret;
mod segments;
mod sources;
mod spin;
mod stream;
mod stripes;
pub mod thread;
pub mod tls;
mod wait;
pub mod wake;
pub mod wire;

pub use address::Address;
pub use dialled::{ClusterId, NoClusterId};
pub use error::NetError;
pub use handshake::HandshakeError;
pub use lane::Lane;
pub use listener::Listener;
pub use memory::{Frame, Target};
pub use objects::{Incoming, Received, Sending, Timings};
pub use options::{Offer, Options};
pub use peer::{Peer, Stats};
pub use poller::{Poller, ReadyGuard, Signal};
pub use spin::SPIN;
pub use treadle_transfer::layout::{INLINE, SMALL};
pub use treadle_transfer::{Config, Failure, PairEnd};
pub use wait::{Early, Wait};
pub use wake::Waker;

pub(crate) use thread::lock;
