//! The scheduler's process over real sockets: clients and workers that do what a test says.

mod calls;
mod hostile;
mod shuffles;
mod support;
mod swarm;
mod tasks;
mod workers;
