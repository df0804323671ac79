//! The machines, one event after the other, and against a model.

mod device;
mod master;
mod masters;
mod model;
mod placement;
mod process;
mod reader;
mod reads;
mod server;
mod stuck;
mod support;
mod together;
mod writer;
