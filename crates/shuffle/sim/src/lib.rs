//! Whole shuffles on a virtual clock and network.
//!
//! Master, servers, writers and readers are the production cores, `treadle_shuffle`. What is replaced:
//! sockets, memory, disks, the Python that makes rows, and the host engine that runs the tasks. A seed
//! decides everything: workers, shuffles, faults. Each output is compared with what the inputs hold,
//! every machine is checked after each event, and in the end nothing may be left.

mod data;
pub mod disks;
mod engine;
pub mod hosted;
pub mod large;
mod leases;
mod masters;
mod network;
pub mod overload;
mod plan;
mod plans_of_masters;
mod process;
mod running;
mod store;
mod tasks;
pub mod weights;
mod world;

pub use plan::Plan;
pub use world::{
    Summary, simulate, simulate_masters, simulate_plan, simulate_remote, simulate_service,
    simulate_together,
};
