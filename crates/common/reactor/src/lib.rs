//! Threads that wait for sockets, and move what comes on them.
//!
//! Nothing here knows what the bytes mean, or who sent them: that is `treadle-net`'s.
//!
//! | module | what |
//! | --- | --- |
//! | `driver`, `sources` | an epoll instance, the sockets that it watches, and their timers |
//! | [`leader`] | which of the threads that wait leads, and which follow |
//! | `wait`, `spin` | how long threads wait, and how long they spin before they sleep |
//! | [`wake`] | descriptors that wake whoever waits for them |
//! | [`thread`] | threads that do not end unheard |
//! | [`awake`] | a clock that stands still while the process is stopped |
//! | [`clock`] | a clock that the processes of a machine share |
//!
//! Linux only: it stands on epoll, eventfd and timerfd.

pub mod awake;
pub mod clock;
mod driver;
pub mod leader;
mod sources;
mod spin;
pub mod thread;
mod wait;
pub mod wake;

pub use driver::{Driver, drivers, spun};
pub use sources::{Interest, Readiness, Source, Sources, TICK, Token};
pub use spin::SPIN;
pub use wait::{Early, Wait, Waiters, Waiting};
pub use wake::Waker;
