//! What the scheduler's process and a worker's have in common when the cluster is traced.

/// The scheduler's call that switches it on and off at a worker.
pub const SWITCH: &str = "trace";
/// The call that brings a batch of a worker's events to the scheduler.
pub const BATCH: &str = "trace-batch";
/// The call that brings what a worker recorded, as `treadle_sight::Batch` has it; and what the scheduler
/// says about itself where it wants that.
pub const SIGHT: &str = "sight";
