//! What the scheduler's process and a worker's have in common when the cluster is traced.

/// The scheduler's call that switches it on and off at a worker.
pub const SWITCH: &str = "trace";
/// The call that brings a batch of a worker's events to the scheduler.
pub const BATCH: &str = "trace-batch";
