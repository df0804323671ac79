//! Whole clusters on a virtual clock and network.
//!
//! The cores of the server, the workers and the clients are those of production; sockets, clocks, disks and
//! functions are replaced. A seed decides everything: machines, graphs, what clients do, faults. What
//! comes of each task is compared with a sequential run, and after each step the invariants of every
//! core are verified, and those between them.

mod client;
mod liveness;
mod network;
mod notices;
mod oracle;
mod plan;
mod process;
pub mod scaling;
mod server;
mod sessions;
mod shuffles;
mod universe;
mod verify;
mod versions;
mod world;

pub use process::Guard;
pub use treadle_sim_kernel as kernel;
pub use world::{Summary, simulate, simulate_whole};

/// The guards of the cores of a cluster, and of the simulated process around a worker's.
pub fn guards() -> Vec<&'static str> {
    let scheduler = treadle_scheduler::Guard::ALL.iter();
    let scheduler = scheduler.map(|guard| guard.path());
    let server = treadle_gateway::Guard::ALL.iter().map(|guard| guard.path());
    let client = treadle_client::Guard::ALL.iter().map(|guard| guard.path());
    let worker = treadle_worker::Guard::ALL.iter().map(|guard| guard.path());
    let process = Guard::ALL.iter().map(|guard| guard.path());
    let cores = scheduler.chain(server).chain(client).chain(worker);
    cores.chain(process).collect()
}
