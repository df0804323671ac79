//! Clients of a service whose servers are processes, which are killed.

mod hostile;
mod losses;
mod placement;
mod refusals;
mod support;
mod together;
