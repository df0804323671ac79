//! What the scheduler does, by theme, in a small cluster of workers that answer as workers do.

mod bring;
mod cancellation;
mod chains;
mod clients;
mod cluster;
mod copies;
mod failures;
mod hostile;
mod loss;
mod memory;
mod model;
mod overtaking;
mod performed;
mod placement;
mod reruns;
mod resources;
mod retraction;
