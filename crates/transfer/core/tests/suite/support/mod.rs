//! Two pairs on a virtual network and clock.

mod application;
mod control;
mod network;
pub(crate) mod plan;
mod side;
mod stripe;
mod verify;
pub(crate) mod world;
