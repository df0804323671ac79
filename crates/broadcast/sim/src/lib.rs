//! The broadcast plane on a virtual clock and network.
//!
//! Each node is the production core, [`treadle_broadcast::Relay`]; sockets, memory, engines and the
//! scheduler are replaced. A seed decides everything: hosts, engines, clients, casts, faults. Every
//! call is compared with what the client asked for, after each step the node that took it is checked,
//! and in the end nothing may be left.

pub mod figures;
mod host;
mod network;
mod oracle;
mod plan;
mod world;

pub use plan::Plan;
pub use world::{Summary, simulate, simulate_plan};
