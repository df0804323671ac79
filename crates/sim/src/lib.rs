//! Whole clusters on a virtual clock and network.
//!
//! The cores of the scheduler, the workers and the clients are those of production; sockets, clocks, disks and
//! functions are replaced. A seed decides everything: machines, graphs, what clients do, faults. What
//! comes of each task is compared with a sequential run, and after each step the invariants of every
//! core are verified, and those between them.

pub mod broadcast;
mod client;
pub mod kernel;
mod liveness;
mod network;
mod notices;
mod oracle;
mod plan;
mod process;
pub mod scaling;
mod server;
mod sessions;
pub mod shuffle;
mod universe;
mod verify;
mod world;

pub use process::Guard;
pub use world::{Summary, simulate};
